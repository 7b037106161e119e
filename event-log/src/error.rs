//! What can go wrong with a log.

use std::{error::Error as StdError, fmt, path::PathBuf, sync::Arc, time::Duration};

use ipc_protocol::{Gap, SessionId};

/// The error below one of ours. Shared, since one failed commit is told to many.
#[derive(Clone)]
pub struct Cause(Arc<dyn StdError + Send + Sync>);

impl Cause {
    pub(crate) fn new(error: impl StdError + Send + Sync + 'static) -> Self {
        Self(Arc::new(error))
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl StdError for Cause {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source()
    }
}

/// Why the log did not do what it was asked for. Nothing is half done then.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// No room is left for the file.
    #[error("write to the event log {}: the disk is full; make room, then append again", path.display())]
    DiskFull {
        /// The log.
        path: PathBuf,
        /// What SQLite said.
        #[source]
        cause: Cause,
    },
    /// The file, or its directory, cannot be written.
    #[error("write to the event log {}: it is read-only; make the file and its directory writable", path.display())]
    ReadOnly {
        /// The log.
        path: PathBuf,
        /// What SQLite or the system said.
        #[source]
        cause: Cause,
    },
    /// The file is damaged, or is no log.
    #[error("use the event log {}: {detail}", path.display())]
    Corrupt {
        /// The log.
        path: PathBuf,
        /// What was found, and what to do.
        detail: String,
        /// The events of the stream that cannot be read, where that is known: reading goes on after them.
        lost: Option<Gap>,
    },
    /// Somebody else has it open.
    #[error("use the event log {}: {} has it open; end that first, or use another directory", path.display(), owner(*by))]
    Locked {
        /// The log.
        path: PathBuf,
        /// The owner's process, where its lock file says.
        by: Option<u32>,
    },
    /// Its directory is not there.
    #[error("open the event log {}: its directory does not exist; create it", path.display())]
    Missing {
        /// The log.
        path: PathBuf,
    },
    /// A later release wrote it.
    #[error("open the event log {}: its schema is {found}, this release knows {known}; use a newer release", path.display())]
    TooNew {
        /// The log.
        path: PathBuf,
        /// Version of the file's schema.
        found: i64,
        /// The newest that is known.
        known: i64,
    },
    /// The batch does not begin where its stream ends.
    #[error("append to the stream of {session}: the batch begins at {found}, the stream goes on at {expected}")]
    Order {
        /// Whose stream.
        session: SessionId,
        /// The stream's next offset.
        expected: u64,
        /// Where the batch begins, or the first of its offsets that does not follow.
        found: u64,
    },
    /// The stream is closed.
    #[error("append to the stream of {session}: it is closed")]
    Closed {
        /// Whose stream.
        session: SessionId,
    },
    /// An event is larger than any may be.
    #[error(
        "append to the stream of {session}: event {offset} takes {bytes} bytes, the most is {}",
        crate::line::MAX_BYTES
    )]
    TooLarge {
        /// Whose stream.
        session: SessionId,
        /// Which event.
        offset: u64,
        /// Its stored form.
        bytes: usize,
    },
    /// There is such a stream already.
    #[error("import the stream of {session}: it exists; delete it first")]
    Exists {
        /// Whose stream.
        session: SessionId,
    },
    /// There is no such stream.
    #[error("find the stream of {session}: there is none")]
    Unknown {
        /// Whose stream.
        session: SessionId,
    },
    /// A line that is imported is no event, or not the one that follows.
    #[error("import line {line}: {detail}")]
    Import {
        /// Which line; the first is 1.
        line: u64,
        /// What is wrong with it.
        detail: String,
    },
    /// More is queued than is allowed.
    #[error("queue a change of the event log: {bytes} bytes wait already; wait for the log")]
    Busy {
        /// What waits.
        bytes: usize,
    },
    /// It took too long.
    #[error("{operation} the event log: it took longer than {after:?}")]
    Deadline {
        /// What.
        operation: &'static str,
        /// The deadline.
        after: Duration,
    },
    /// The thread that writes has ended, which only a fault of its own can bring about.
    #[error("write to the event log {}: its writer has ended; open it again", path.display())]
    Ended {
        /// The log.
        path: PathBuf,
    },
    /// The system or SQLite refused something else.
    #[error("{operation} {}: {cause}", path.display())]
    Io {
        /// The log, or the file beside it.
        path: PathBuf,
        /// What was tried.
        operation: &'static str,
        /// What was said.
        #[source]
        cause: Cause,
    },
}

fn owner(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".into(), |pid| format!("process {pid}"))
}
