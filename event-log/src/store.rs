//! Interface of an event store. Two implement it: memory and SQLite.

use std::{sync::Arc, time::Duration};

use ipc_protocol::{Envelope, SessionId};

use crate::{
    BytePage, ByteStreamChange, ByteStreamInfo, EventBatch, EventPage, Heartbeat, LinePage, LogDamage, LogError,
    LogMetrics, OnCommit, OnStreamChange, QueueFull, ReadLimit, Result, Retention, StreamOwnership, StreamPosition,
    types::ReadBound,
};

/// Change other than an append.
#[derive(Debug)]
pub(crate) enum LogChange {
    /// No change: its callback runs once everything before it is done.
    Barrier,
    Close(SessionId),
    Delete(SessionId),
    PutSession(SessionId, String),
    DeleteSession(SessionId),
    Heartbeat(Heartbeat),
    SetCursor {
        consumer: String,
        session: SessionId,
        offset: u64,
    },
    /// Stores a request that its caller named; `None` forgets it.
    PutRequest(String, Option<String>),
    /// Turns an import into a stream; `true` closes it.
    Publish(SessionId, bool),
    /// Discards an import.
    Discard(SessionId),
    /// Marks a replicated stream's events up to this offset as acknowledged.
    Acknowledge(SessionId, u64),
    /// Has a stream go on under an ownership, or begin.
    ContinueFrom(SessionId, StreamOwnership),
    /// Puts the events from this offset on aside.
    PutAside(SessionId, u64),
}

/// Destination of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchTarget {
    /// Stream of the batch's session.
    Stream,
    /// Import, invisible until it is published.
    Import,
}

pub(crate) trait LogStore: Send + Sync {
    fn append(&self, batch: EventBatch, target: BatchTarget, done: OnCommit) -> Result<(), QueueFull>;
    fn change(&self, change: LogChange, done: OnCommit);
    fn read(&self, session: &SessionId, from: u64, limit: ReadLimit, bound: ReadBound) -> Result<EventPage>;
    fn read_lines(&self, session: &SessionId, from: u64, limit: ReadLimit, bound: ReadBound) -> Result<LinePage>;
    fn read_all(&self, from: u64, limit: ReadLimit, bound: ReadBound) -> Result<Vec<(u64, Arc<Envelope>)>>;
    /// Returns a position that is not before any event within the bound, and before all that follow.
    fn end(&self, bound: ReadBound) -> Result<u64>;
    /// Returns the events of a session that were put aside, as public JSON lines.
    fn read_put_aside(&self, session: &SessionId) -> Result<Vec<u8>>;
    fn head(&self, session: &SessionId) -> Option<StreamPosition>;
    fn streams(&self) -> Vec<(SessionId, StreamPosition)>;
    fn session(&self, id: &SessionId) -> Result<Option<String>>;
    fn sessions(&self) -> Result<Vec<(SessionId, String)>>;
    /// Returns the damage that was found by now.
    fn damage(&self) -> Vec<LogDamage> {
        Vec::new()
    }
    fn last_heartbeat(&self) -> Result<Option<Heartbeat>>;
    fn request(&self, name: &str) -> Result<Option<String>>;
    fn cursor(&self, consumer: &str, session: &SessionId) -> Result<u64>;
    fn retain(&self, retention: Retention, done: OnCommit);
    fn metrics(&self) -> LogMetrics;
    fn flush(&self, deadline: Duration) -> Result<()>;
    fn change_byte_stream(&self, _change: ByteStreamChange, done: OnStreamChange) {
        done(Err(LogError::InMemory));
    }
    fn byte_stream(&self, _path: &str) -> Option<ByteStreamInfo> {
        None
    }
    fn touch_byte_stream(&self, _path: &str) {}
    fn expire_byte_streams(&self) {}
    fn unmapped_byte_streams(&self) -> Vec<String> {
        Vec::new()
    }
    fn read_byte_stream(&self, _path: &str, _from: u64, _bytes: usize) -> Result<BytePage> {
        Err(LogError::InMemory)
    }
    /// Starts (`true`) or ends (`false`) holding changes back, to commit them with those that follow. Each `true`
    /// is followed by a `false`.
    fn hold_commits(&self, _hold: bool) {}
}
