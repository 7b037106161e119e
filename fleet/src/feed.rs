//! The fleet's log read whole: the events of all sessions, in the order in which they were stored.

use async_nats::jetstream::{
    consumer::{DeliverPolicy, pull},
    stream::DirectGetErrorKind,
};
use futures_util::StreamExt as _;

use crate::{
    error::EngineError,
    log::{FleetLog, PULL_TIME, SUBJECTS},
};

/// Message of the log: a batch of one session's events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedBatch {
    /// Sequence of the message in the log.
    pub sequence: u64,
    /// Its events as JSON lines.
    pub lines: Vec<u8>,
    /// True if the log had no other after it when it was read.
    pub is_last: bool,
}

/// Reader of all sessions' events, which goes on with those that come.
#[derive(derive_more::Debug)]
pub struct FleetFeed {
    #[debug(skip)]
    messages: pull::Ordered,
}

impl FleetLog {
    /// Returns the sequence of the last message of any session; 0 for none.
    ///
    /// # Errors
    /// The engine's.
    pub async fn last_sequence(&self) -> Result<u64, EngineError> {
        let info = self.stream.get_info().await;
        let info = info.map_err(|error| EngineError::new("describe the stream", "of events", error))?;
        Ok(info.state.last_sequence)
    }

    /// Returns true if the log has a message of this sequence or a later one.
    ///
    /// # Errors
    /// The engine's.
    pub async fn has_from(&self, sequence: u64) -> Result<bool, EngineError> {
        match self.stream.direct_get_next_for_subject(format!("{SUBJECTS}.*"), Some(sequence.max(1))).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == DirectGetErrorKind::NotFound => Ok(false),
            Err(error) => Err(EngineError::new("find events after", format!("sequence {sequence}"), error)),
        }
    }

    /// Begins to read the events of all sessions with the message of this sequence, or the first after it.
    ///
    /// # Errors
    /// The engine's.
    pub async fn read_all(&self, sequence: u64) -> Result<FleetFeed, EngineError> {
        let failed = |error: async_nats::Error| EngineError::new("read", "the events of all sessions", error);
        let config = pull::OrderedConfig {
            deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: sequence.max(1) },
            max_expires: PULL_TIME,
            ..pull::OrderedConfig::default()
        };
        let consumer = self.stream.create_consumer(config).await.map_err(|error| failed(error.into()))?;
        let messages = consumer.messages().await.map_err(|error| failed(error.into()))?;
        Ok(FleetFeed { messages })
    }
}

impl FleetFeed {
    /// Returns the next message. Waits for one at the end of the log.
    ///
    /// # Errors
    /// The engine's: begin again after the last one.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is lost.
    pub async fn next(&mut self) -> Result<FeedBatch, EngineError> {
        let failed = |error: async_nats::Error| EngineError::new("read", "the events of all sessions", error);
        match self.messages.next().await {
            Some(Ok(message)) => {
                let info = message.info().map_err(failed)?;
                let (sequence, is_last) = (info.stream_sequence, info.pending == 0);
                Ok(FeedBatch { sequence, lines: message.payload.to_vec(), is_last })
            }
            Some(Err(error)) => Err(failed(error.into())),
            None => Err(failed("the reader has ended".into())),
        }
    }
}
