//! The fleet's log: the events of all sessions, as their owners shipped them.
//!
//! One stream has them all, a subject for each session. A message is a batch of consecutive events as JSON lines; its headers say whose it is
//! and which offsets it has. Each names the sequence of the message before it in its subject.

use std::time::Duration;

use async_nats::{
    HeaderMap,
    jetstream::{
        Context,
        consumer::{DeliverPolicy, pull},
        message::StreamMessage,
        stream::{self, DirectGetErrorKind, DiscardPolicy, LastRawMessageErrorKind, StorageType, Stream},
    },
};
use futures_util::StreamExt as _;
use ipc_protocol::SessionId;

use crate::{
    bucket::{REPLICAS, has_too_few_servers, is_wrong_last},
    error::EngineError,
    names::session_token,
    offset_search::{LogMessage, OffsetSearch, SearchStep},
    shipping::{EventBatch, LogTail, PublishOutcome},
};

/// Stream with the events. The number is there for others beside it.
pub(crate) const STREAM: &str = "EV1";
/// Beginning of its subjects.
pub(crate) const SUBJECTS: &str = "ev.1";

const EPOCH: &str = "Ev-Epoch";
const FIRST: &str = "Ev-First";
const LAST: &str = "Ev-Last";
const NODE: &str = "Ev-Node";

/// Room for the headers of a message.
const HEADER_ROOM: usize = 4096;

/// Longest wait of one request for messages; a reader whose consumer is gone notes it after two of them.
pub(crate) const PULL_TIME: Duration = Duration::from_secs(2);

/// The log.
#[derive(Clone, Debug)]
pub struct FleetLog {
    context: Context,
    pub(crate) stream: Stream,
    /// Writer of messages: a node and one run of it.
    writer: String,
}

impl FleetLog {
    /// Opens the log, or creates it with three replicas, or as many as there are servers.
    pub(crate) async fn open(context: &Context, writer: String) -> Result<Self, EngineError> {
        let mut replicas = REPLICAS;
        let stream = loop {
            let config = stream::Config {
                name: STREAM.to_owned(),
                subjects: vec![format!("{SUBJECTS}.*")],
                storage: StorageType::File,
                discard: DiscardPolicy::New,
                num_replicas: replicas,
                allow_direct: true,
                deny_delete: true,
                ..stream::Config::default()
            };
            match context.get_or_create_stream(config).await {
                Ok(stream) => break stream,
                Err(error) if replicas > 1 && has_too_few_servers(&error) => replicas -= 1,
                // Another node may have made it meanwhile.
                Err(error) => match context.get_stream(STREAM).await {
                    Ok(stream) => break stream,
                    Err(_) => return Err(EngineError::new("create the stream", STREAM, error)),
                },
            }
        };
        Ok(Self { context: context.clone(), stream, writer })
    }

    /// Returns the last message of a session, as the log's leader has it.
    ///
    /// # Errors
    /// The engine's.
    pub async fn tail(&self, session: &SessionId) -> Result<LogTail, EngineError> {
        match self.stream.get_last_raw_message_by_subject(&subject(session)).await {
            Ok(message) => Ok(LogTail {
                sequence: message.sequence,
                epoch: number(&message.headers, EPOCH),
                last: number(&message.headers, LAST),
            }),
            Err(error) if matches!(error.kind(), LastRawMessageErrorKind::NoMessageFound) => Ok(LogTail::EMPTY),
            Err(error) => Err(EngineError::new("read the last events of", format!("session {session}"), error)),
        }
    }

    /// Publishes a batch, if the session's last message has the sequence `expected`. Returns the reason of an outcome that nobody knows.
    pub async fn publish(
        &self,
        session: &SessionId,
        batch: EventBatch,
        lines: Vec<u8>,
        expected: u64,
    ) -> (PublishOutcome, Option<EngineError>) {
        let mut headers = HeaderMap::new();
        headers.insert(EPOCH, batch.epoch.to_string());
        headers.insert(FIRST, batch.first.to_string());
        headers.insert(LAST, batch.last.to_string());
        headers.insert(NODE, self.writer.as_str());
        headers.insert(async_nats::header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, expected.to_string());
        let published = match self.context.publish_with_headers(subject(session), headers, lines.into()).await {
            Ok(acknowledgement) => acknowledgement.await,
            Err(error) => Err(error),
        };
        match published {
            Ok(acknowledgement) => (PublishOutcome::Stored(acknowledgement.sequence), None),
            Err(error) if is_wrong_last(&error) => match self.tail(session).await {
                Ok(tail) => (PublishOutcome::Refused(tail), None),
                Err(error) => (PublishOutcome::NoAnswer, Some(error)),
            },
            Err(error) => {
                let error = EngineError::new("store events of", format!("session {session}"), error);
                (PublishOutcome::NoAnswer, Some(error))
            }
        }
    }

    /// Removes all events of a session, so that one that has its id later begins anew.
    ///
    /// # Errors
    /// The engine's.
    pub(crate) async fn remove(&self, session: &SessionId) -> Result<(), EngineError> {
        if self.tail(session).await? == LogTail::EMPTY {
            return Ok(());
        }
        let purged = self.stream.purge().filter(subject(session)).await;
        purged.map(drop).map_err(|error| EngineError::new("remove the events of", format!("session {session}"), error))
    }

    /// Most bytes of one message.
    pub fn max_bytes(&self) -> usize {
        self.context.client().max_payload().saturating_sub(HEADER_ROOM)
    }

    /// Begins to read a session's events, with the message that has the one after offset `from`.
    ///
    /// # Errors
    /// The engine's.
    pub async fn read(&self, session: &SessionId, from: u64) -> Result<FleetLogReader, EngineError> {
        let failed =
            |error: async_nats::Error| EngineError::new("read the events of", format!("session {session}"), error);
        let tail = self.tail(session).await?;
        let deliver_policy = match self.find(session, from + 1, tail).await? {
            Some(start_sequence) => DeliverPolicy::ByStartSequence { start_sequence },
            None => DeliverPolicy::ByStartSequence { start_sequence: tail.sequence + 1 },
        };
        let config = pull::OrderedConfig {
            filter_subject: subject(session),
            deliver_policy,
            max_expires: PULL_TIME,
            ..pull::OrderedConfig::default()
        };
        let consumer = self.stream.create_consumer(config).await.map_err(|error| failed(error.into()))?;
        let messages = consumer.messages().await.map_err(|error| failed(error.into()))?;
        Ok(FleetLogReader { session: session.clone(), messages, tail })
    }

    /// Finds the sequence of the message with an offset, or of the first after it; `None` where it is still to come.
    async fn find(&self, session: &SessionId, offset: u64, tail: LogTail) -> Result<Option<u64>, EngineError> {
        if offset > tail.last {
            return Ok(None);
        }
        let Some(first) = self.next(session, 1).await? else { return Ok(None) };
        let Some(last) = self.next(session, tail.sequence).await? else { return Ok(Some(first.sequence)) };
        let mut search = match OffsetSearch::new(offset, first, last) {
            None => return Ok(None),
            Some(Err(sequence)) => return Ok(Some(sequence)),
            Some(Ok(search)) => search,
        };
        loop {
            match search.step() {
                SearchStep::Found(sequence) => return Ok(Some(sequence)),
                SearchStep::Probe(probe) => match self.next(session, probe).await? {
                    Some(found) => search.answer(probe, found),
                    // A server that is behind: from the beginning is right too.
                    None => return Ok(Some(first.sequence)),
                },
            }
        }
    }

    /// Returns the first message of a session at or after a sequence.
    async fn next(&self, session: &SessionId, sequence: u64) -> Result<Option<LogMessage>, EngineError> {
        match self.stream.direct_get_next_for_subject(subject(session), Some(sequence)).await {
            Ok(message) => Ok(Some(described(&message))),
            Err(error) if error.kind() == DirectGetErrorKind::NotFound => Ok(None),
            Err(error) => Err(EngineError::new("find events of", format!("session {session}"), error)),
        }
    }
}

impl FleetLog {
    /// Returns the first message of a session at or after a sequence, with the time at which it was stored, in nanoseconds since 1970.
    pub(crate) async fn stored_at(
        &self,
        session: &SessionId,
        sequence: u64,
    ) -> Result<Option<(u64, i128)>, EngineError> {
        match self.stream.direct_get_next_for_subject(subject(session), Some(sequence)).await {
            Ok(message) => Ok(Some((message.sequence, message.time.unix_timestamp_nanos()))),
            Err(error) if error.kind() == DirectGetErrorKind::NotFound => Ok(None),
            Err(error) => Err(EngineError::new("find events of", format!("session {session}"), error)),
        }
    }
}

fn described(message: &StreamMessage) -> LogMessage {
    LogMessage {
        sequence: message.sequence,
        first: number(&message.headers, FIRST),
        last: number(&message.headers, LAST),
    }
}

fn number(headers: &HeaderMap, name: &str) -> u64 {
    headers.get(name).and_then(|value| value.as_str().parse().ok()).unwrap_or_default()
}

pub(crate) fn subject(session: &SessionId) -> String {
    format!("{SUBJECTS}.{}", session_token(session))
}

/// Reader of a session's events, which goes on with those that come.
#[derive(derive_more::Debug)]
pub struct FleetLogReader {
    session: SessionId,
    #[debug(skip)]
    messages: pull::Ordered,
    tail: LogTail,
}

impl FleetLogReader {
    /// Offset of the last event that the log had when the reader began; 0 for none.
    pub fn last(&self) -> u64 {
        self.tail.last
    }

    /// Returns the next batch of events as JSON lines, in the order of their offsets. The first may begin before the offset that was asked for.
    /// Waits for more at the end of the log.
    ///
    /// # Errors
    /// The engine's: begin again after the last event.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is lost.
    pub async fn next(&mut self) -> Result<Vec<u8>, EngineError> {
        let failed = |error: async_nats::Error| {
            EngineError::new("read the events of", format!("session {}", self.session), error)
        };
        match self.messages.next().await {
            Some(Ok(message)) => Ok(message.payload.to_vec()),
            Some(Err(error)) => Err(failed(error.into())),
            None => Err(failed("the reader has ended".into())),
        }
    }
}
