//! What a store of events does. There are two: memory, and SQLite.

use std::{sync::Arc, time::Duration};

use ipc_protocol::{Envelope, SessionId};

use crate::{Batch, Beat, Damage, Done, Full, Head, Limit, Lines, LogError, Metrics, Page, Retention};

/// A change that is no append.
#[derive(Debug)]
pub(crate) enum Change {
    /// Nothing: for who waits until everything before it is done.
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
    /// What was imported becomes a stream; closed, or not.
    Publish(SessionId, bool),
    /// What was imported is thrown away.
    Discard(SessionId),
}

/// Where a batch goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// To its session's stream.
    Stream,
    /// To what is imported and nobody sees until it is published.
    Import,
}

pub(crate) trait Store: Send + Sync {
    fn append(&self, batch: Batch, target: Target, done: Done) -> Result<(), Full>;
    fn change(&self, change: Change, done: Done);
    fn read(&self, session: &SessionId, from: u64, limit: Limit) -> Result<Page, LogError>;
    fn read_lines(&self, session: &SessionId, from: u64, limit: Limit) -> Result<Lines, LogError>;
    fn read_all(&self, from: u64, limit: Limit) -> Result<Vec<(u64, Arc<Envelope>)>, LogError>;
    fn head(&self, session: &SessionId) -> Option<Head>;
    fn streams(&self) -> Vec<(SessionId, Head)>;
    fn session(&self, id: &SessionId) -> Result<Option<String>, LogError>;
    fn sessions(&self) -> Result<Vec<(SessionId, String)>, LogError>;
    /// What is damaged, as far as that was found by now.
    fn damage(&self) -> Vec<Damage> {
        Vec::new()
    }
    fn last_beat(&self) -> Result<Option<Beat>, LogError>;
    fn cursor(&self, consumer: &str, session: &SessionId) -> Result<u64, LogError>;
    fn retain(&self, retention: Retention, done: Done);
    fn metrics(&self) -> Metrics;
    fn flush(&self, deadline: Duration) -> Result<(), LogError>;
    /// Whether what comes is to be committed together with what comes next; each `true` is followed by a `false`.
    fn hold(&self, _hold: bool) {}
}
