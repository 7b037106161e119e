//! Rules applied to the messages of byte streams: one that has the shape of an event, and that a rule is for, is appended to the event stream
//! of the byte stream's name, and so becomes what the rule makes of it.
//!
//! Each message once, over crashes: it is durable before; its event carries its position, and so says after a crash that it was appended;
//! what the event asks for is done at most once, as on any stream.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use event_log::{ByteStreamChange, ByteStreamInfo, EventLog, LogError, ReadLimit};
use ipc_protocol::{Json, SessionId};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{sync::watch, time::sleep};

use super::{ManagerInner, NewEvent, ProxyManager};
use crate::{
    blocking::READING,
    error::{Error, Result},
};

/// Pause before an append is tried again that found no room, or no disk.
const PAUSE: Duration = Duration::from_millis(200);
/// Messages read at once, in bytes.
const READ_BYTES: usize = 64 * 1024;
/// Newest events that are looked through for what an earlier manager has appended and not noted.
const MOST_LOOKED: u64 = 10_000;
/// Types of events that are the server's own record of its callers.
const AUDIT: &str = "audit:";

/// Names of streams; no more than there are.
type WaitingStreams = Arc<Mutex<BTreeSet<String>>>;

/// Streams with messages that rules are to be applied to.
#[derive(Clone, Debug)]
pub(super) struct StreamMapper {
    has_rules: bool,
    waiting: WaitingStreams,
    wake: watch::Sender<()>,
}

/// Message that has the shape of an event.
#[derive(Deserialize)]
struct EventMessage {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default = "first_version")]
    version: u32,
    payload: Json,
}

fn first_version() -> u32 {
    1
}

impl StreamMapper {
    pub(super) fn new(has_rules: bool) -> Self {
        Self { has_rules, waiting: WaitingStreams::default(), wake: watch::channel(()).0 }
    }

    pub(super) fn has_rules(&self) -> bool {
        self.has_rules
    }

    /// Adds a stream.
    pub(super) fn add(&self, path: String) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(path);
        self.wake.send_replace(());
    }
}

impl ProxyManager {
    /// Applies rules to what is appended from now on, and to what an earlier manager had no time for.
    pub(super) async fn start_mapping(&self) {
        let mapper = &self.inner.stream_mapper;
        let behind = match self.change_byte_stream(ByteStreamChange::HaveRules(mapper.has_rules())).await {
            Err(Error::Log(LogError::InMemory)) => return,
            Err(error) => return tracing::warn!(error = %error.chain(), "failed to note whether streams have rules"),
            Ok(_) if !mapper.has_rules() => return,
            Ok(_) => self.inner.streams.log.get().map(|log| log.unmapped_byte_streams()).unwrap_or_default(),
        };
        let (waiting, wake) = (Arc::clone(&mapper.waiting), mapper.wake.subscribe());
        behind.iter().cloned().for_each(|path| mapper.add(path));
        tokio::spawn(run(Arc::downgrade(&self.inner), waiting, wake, behind.into_iter().collect()));
    }

    /// Applies the rules to the messages of a stream that they were not applied to.
    ///
    /// # Errors
    /// Where it is to be tried again.
    async fn map_stream(&self, path: &str, after_crash: bool) -> Result<()> {
        let Some(info) = self.byte_stream(path).filter(|info| !info.is_deleted) else { return Ok(()) };
        let Some(noted) = info.mapped else { return Ok(()) };
        let Ok(target) = path.replace('/', ".").parse::<SessionId>() else {
            return self.set_mapped(path, &info, info.tail).await;
        };
        let mut from = if after_crash { self.mapped_before(&target, &info, noted).await? } else { noted };
        while from < info.tail {
            let page = self.read_byte_stream(path, from, READ_BYTES).await?;
            let messages = page.bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
            for message in messages {
                from += 1;
                if let Some(event) = self.event_of(message, path, &info, from) {
                    self.append_mapped(&target, event).await?;
                    self.set_mapped(path, &info, from).await?;
                }
            }
            from = page.next;
        }
        self.set_mapped(path, &info, from).await
    }

    /// Returns the event of a message that a rule is for.
    fn event_of(&self, message: &[u8], path: &str, info: &ByteStreamInfo, position: u64) -> Option<NewEvent> {
        let EventMessage { kind, version, payload } = serde_json::from_slice(message).ok()?;
        let is_wanted = self.inner.rules.iter().any(|rule| rule.apply(&kind, &payload).is_some());
        let metadata = json!({ "stream": path, "streamId": info.id, "streamOffset": format!("{position:020}") });
        (is_wanted && !kind.starts_with(AUDIT)).then(|| NewEvent {
            kind,
            version,
            payload,
            metadata: Some(Json::from(&metadata)),
        })
    }

    /// Appends an event. One that never can be is left out.
    ///
    /// # Errors
    /// Where it is to be tried again.
    async fn append_mapped(&self, target: &SessionId, event: NewEvent) -> Result<()> {
        match self.append_to_stream(target, event).await {
            Ok(_) => Ok(()),
            Err(error @ (Error::InvalidConfig { .. } | Error::Ended { .. })) => {
                tracing::warn!(stream = %target, error = %error.chain(), "no rule is applied to a message");
                Ok(())
            }
            // It is kept perhaps: what is there says so, when it is looked for.
            Err(error) => Err(error),
        }
    }

    async fn set_mapped(&self, path: &str, info: &ByteStreamInfo, position: u64) -> Result<()> {
        self.change_byte_stream(ByteStreamChange::SetMapped(path.to_owned(), info.id, position)).await.map(drop)
    }

    /// Position up to which rules have been applied, by the events that are there.
    async fn mapped_before(&self, target: &SessionId, info: &ByteStreamInfo, noted: u64) -> Result<u64> {
        let Some(log) = self.inner.streams.log.get() else { return Ok(noted) };
        let (target, id) = (target.clone(), info.id);
        let look = move || last_position(&log, &target, id);
        Ok(READING.run("looking for what rules made", look).await??.map_or(noted, |found| found.max(noted)))
    }
}

/// Position of the last message of a byte stream whose event is among the newest of a stream. Blocks.
fn last_position(log: &EventLog, target: &SessionId, id: i64) -> std::result::Result<Option<u64>, LogError> {
    let Some(head) = log.head(target) else { return Ok(None) };
    let (mut from, mut found) = (head.last.saturating_sub(MOST_LOOKED), None);
    while from < head.last {
        let page = match log.read(target, from, ReadLimit::default()) {
            Err(LogError::Corrupt { lost: Some(lost), .. }) => {
                from = lost.to;
                continue;
            }
            page => page?,
        };
        let Some(last) = page.events.last() else { break };
        from = last.offset;
        for metadata in page.events.iter().filter_map(|event| event.metadata.as_ref()) {
            let metadata: Value = metadata.value();
            let position = metadata["streamOffset"].as_str().and_then(|offset| offset.parse().ok());
            if metadata["streamId"] == id {
                found = found.max(position);
            }
        }
    }
    Ok(found)
}

/// Applies rules while the manager lives. Of the streams in `uncertain` it is not known up to where they were applied.
async fn run(
    manager: Weak<ManagerInner>,
    waiting: WaitingStreams,
    mut wake: watch::Receiver<()>,
    mut uncertain: BTreeSet<String>,
) {
    loop {
        let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_first();
        let Some(path) = next else {
            if wake.changed().await.is_err() {
                return;
            }
            continue;
        };
        let Some(manager) = manager.upgrade().map(|inner| ProxyManager { inner }) else { return };
        match manager.map_stream(&path, uncertain.contains(&path)).await {
            Ok(()) => _ = uncertain.remove(&path),
            Err(Error::ShutDown | Error::Log(LogError::InMemory | LogError::Ended { .. })) => return,
            Err(error) => {
                tracing::warn!(stream = path, error = %error.chain(), "failed to apply rules to a stream: trying again");
                uncertain.insert(path.clone());
                waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(path);
                drop(manager);
                sleep(PAUSE).await;
            }
        }
    }
}
