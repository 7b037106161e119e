//! Interface of an event store. Two implement it: memory and SQLite.

use std::{sync::Arc, time::Duration};

use ipc_protocol::{Envelope, SessionId};

use crate::{Batch, Beat, Damage, Done, Full, Head, Limit, Lines, Metrics, Page, Result, Retention};

/// Change other than an append.
#[derive(Debug)]
pub(crate) enum Change {
    /// No change: its callback runs once everything before it is done.
    Nothing,
    Close(SessionId),
    Delete(SessionId),
    PutSession(SessionId, String),
    DeleteSession(SessionId),
    Beat(Beat),
    SetCursor {
        consumer: String,
        session: SessionId,
        offset: u64,
    },
    /// Turns an import into a stream; `true` closes it.
    Publish(SessionId, bool),
    /// Discards an import.
    Discard(SessionId),
}

/// Destination of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Stream of the batch's session.
    Stream,
    /// Import, invisible until it is published.
    Import,
}

pub(crate) trait Store: Send + Sync {
    fn append(&self, batch: Batch, target: Target, done: Done) -> Result<(), Full>;
    fn change(&self, change: Change, done: Done);
    fn read(&self, session: &SessionId, from: u64, limit: Limit) -> Result<Page>;
    fn read_lines(&self, session: &SessionId, from: u64, limit: Limit) -> Result<Lines>;
    fn read_all(&self, from: u64, limit: Limit) -> Result<Vec<(u64, Arc<Envelope>)>>;
    fn head(&self, session: &SessionId) -> Option<Head>;
    fn streams(&self) -> Vec<(SessionId, Head)>;
    fn session(&self, id: &SessionId) -> Result<Option<String>>;
    fn sessions(&self) -> Result<Vec<(SessionId, String)>>;
    /// Returns the damage that was found by now.
    fn damage(&self) -> Vec<Damage> {
        Vec::new()
    }
    fn last_beat(&self) -> Result<Option<Beat>>;
    fn cursor(&self, consumer: &str, session: &SessionId) -> Result<u64>;
    fn retain(&self, retention: Retention, done: Done);
    fn metrics(&self) -> Metrics;
    fn flush(&self, deadline: Duration) -> Result<()>;
    /// Starts (`true`) or ends (`false`) holding changes back, to commit them with those that follow. Each `true`
    /// is followed by a `false`.
    fn hold(&self, _hold: bool) {}
}
