//! Errors of a log.

use std::{path::PathBuf, time::Duration};

use ipc_protocol::{ErrorCause, OffsetGap, SessionId};

/// Failure of a request to the log. Nothing is half done then.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// No room is left for the file.
    #[error("write to the event log {}: the disk is full; make room", path.display())]
    DiskFull {
        /// Path of the log.
        path: PathBuf,
        /// Error that SQLite returned.
        #[source]
        cause: ErrorCause,
    },
    /// The file, or its directory, cannot be written.
    #[error("write to the event log {}: it is read-only; make the file and its directory writable", path.display())]
    ReadOnly {
        /// Path of the log.
        path: PathBuf,
        /// Error that SQLite or the system returned.
        #[source]
        cause: ErrorCause,
    },
    /// The file is damaged, or is no log.
    #[error("use the event log {}: {detail}", path.display())]
    Corrupt {
        /// Path of the log.
        path: PathBuf,
        /// Finding, and advice on what to do.
        detail: String,
        /// Events of the stream that cannot be read, where known: reading can continue after them.
        lost: Option<OffsetGap>,
    },
    /// Another handle or process has the log open.
    #[error("use the event log {}: {} has it open; end that first, or use another directory", path.display(), owner(*by))]
    Locked {
        /// Path of the log.
        path: PathBuf,
        /// Pid of the owner, if its lock file has it.
        by: Option<u32>,
    },
    /// The log's directory does not exist.
    #[error("open the event log {}: its directory does not exist; create it", path.display())]
    Missing {
        /// Path of the log.
        path: PathBuf,
    },
    /// A later release wrote it.
    #[error("open the event log {}: its schema is {found}, this release knows {known}; use a newer release", path.display())]
    TooNew {
        /// Path of the log.
        path: PathBuf,
        /// Version of the file's schema.
        found: i64,
        /// Newest schema version that this release knows.
        known: i64,
    },
    /// The batch does not begin where its stream ends.
    #[error("append to the stream of {session}: the batch begins at {found}, the stream goes on at {expected}")]
    Order {
        /// Session whose stream was appended to.
        session: SessionId,
        /// Next offset of the stream.
        expected: u64,
        /// Offset at which the batch begins, or the first of its offsets that does not follow.
        found: u64,
    },
    /// The stream is closed.
    #[error("append to the stream of {session}: it is closed")]
    Closed {
        /// Session whose stream was appended to.
        session: SessionId,
    },
    /// An event's stored form is larger than 64 MiB.
    #[error(
        "append to the stream of {session}: event {offset} takes {bytes} bytes, the most is {}",
        crate::line::MAX_BYTES
    )]
    TooLarge {
        /// Session whose stream was appended to.
        session: SessionId,
        /// Offset of the event.
        offset: u64,
        /// Size of the event's stored form.
        bytes: usize,
    },
    /// A stream of that session exists already.
    #[error("import the stream of {session}: it exists; delete it first")]
    Exists {
        /// Session to be imported.
        session: SessionId,
    },
    /// No stream of that session exists.
    #[error("find the stream of {session}: there is none")]
    Unknown {
        /// Session that was asked for.
        session: SessionId,
    },
    /// The stream is not replicated, or not as far as the operation needs.
    #[error("{operation} the stream of {session}: {detail}")]
    Replication {
        /// Session whose stream was to be changed.
        session: SessionId,
        /// Operation that was tried.
        operation: &'static str,
        /// Reason why that cannot be.
        detail: String,
    },
    /// No byte stream of that name exists.
    #[error("find the stream {path:?}: there is none")]
    NoStream {
        /// Name that was asked for.
        path: String,
    },
    /// The log has no file for byte streams.
    #[error("use a byte stream: a log in memory has none; open one in a file")]
    InMemory,
    /// A line of the import is no event, or does not follow the one before.
    #[error("import line {line}: {detail}")]
    Import {
        /// Number of the line; the first is 1.
        line: u64,
        /// Description of the fault.
        detail: String,
    },
    /// More is queued than allowed.
    #[error("queue a change of the event log: {bytes} bytes wait already; wait for the log")]
    Busy {
        /// Number of bytes that wait.
        bytes: usize,
    },
    /// The operation took too long.
    #[error("{operation} the event log: it took longer than {after:?}")]
    Deadline {
        /// Operation that was tried.
        operation: &'static str,
        /// Deadline that passed.
        after: Duration,
    },
    /// The writer's thread has ended, which only a bug of its own can cause.
    #[error("write to the event log {}: its writer has ended; open it again", path.display())]
    Ended {
        /// Path of the log.
        path: PathBuf,
    },
    /// The system or SQLite refused the operation for another reason.
    #[error("{operation} {}", path.display())]
    Io {
        /// Path of the log, or of the file beside it.
        path: PathBuf,
        /// Operation that was tried.
        operation: &'static str,
        /// Error that SQLite or the system returned.
        #[source]
        cause: ErrorCause,
    },
}

fn owner(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".into(), |pid| format!("process {pid}"))
}
