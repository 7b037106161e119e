//! What goes into a log, and what comes out.

use std::{fmt, sync::Arc, time::Duration, time::SystemTime};

use ipc_protocol::{Envelope, Gap, SessionId};

use crate::LogError;

/// Told once, when a change is committed or has failed.
pub type Done = Box<dyn FnOnce(Result<(), LogError>) + Send>;

/// Events of one stream that are appended together: all of them, or none.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Whose stream.
    pub session: Arc<SessionId>,
    /// When it was made.
    pub created_at: SystemTime,
    /// The stream's next offset: that of the first event. It may be less where that event is a `session:gap` which tells of
    /// everything from here to itself.
    pub first: u64,
    /// The events, with offsets that follow each other. May be empty: then only `source` and `cursor` are stored.
    pub events: Vec<Arc<Envelope>>,
    /// The sender's own number of the last of its messages in this batch; 0 for none.
    pub source: u64,
    /// A consumer of this stream, and the offset that it has come to: stored with the batch, or not at all.
    pub cursor: Option<(String, u64)>,
}

/// A sign of life of the one who has the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beat {
    /// Who that is.
    pub host: String,
    /// When it was alive; kept to the millisecond.
    pub at: SystemTime,
}

/// The queue is full: the batch comes back, and nothing was done.
pub struct Full {
    /// The batch.
    pub batch: Batch,
    /// Whom to tell.
    pub done: Done,
}

impl fmt::Debug for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Full").field("batch", &self.batch).finish_non_exhaustive()
    }
}

/// How much is read at once. At least one event is, whatever its size.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Events.
    pub events: usize,
    /// Bytes of their stored form.
    pub bytes: usize,
}

impl Default for Limit {
    fn default() -> Self {
        Self { events: 4096, bytes: 1024 * 1024 }
    }
}

/// A piece of a stream.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// The events, in order.
    pub events: Vec<Arc<Envelope>>,
    /// Offset of the first event that is kept; one more than `last` where none is.
    pub first_kept: u64,
    /// Offset of the stream's last event when the page was read; 0 for none.
    pub last: u64,
    /// Whether nothing comes after `last`.
    pub closed: bool,
}

impl Page {
    /// What lies between `from`, after which was read, and what was found.
    pub fn gap(&self, from: u64) -> Option<Gap> {
        let next = self.events.first().map_or(self.first_kept, |event| event.offset);
        let first = from.saturating_add(1);
        (next > first).then(|| Gap { from: first, to: next - 1 })
    }
}

/// A piece of a stream as public JSON: one envelope a line.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    /// The lines, each with its newline.
    pub bytes: Vec<u8>,
    /// How many.
    pub events: usize,
    /// Offset of the last line's event: where reading goes on. The `from` that was asked for, where there is no line.
    pub next: u64,
    /// As in [`Page`].
    pub first_kept: u64,
    /// As in [`Page`].
    pub last: u64,
    /// As in [`Page`].
    pub closed: bool,
}

/// Where a stream stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Offset of the first event that is kept; one more than `last` where none is.
    pub first: u64,
    /// Offset of its last event; 0 for none.
    pub last: u64,
    /// Whether nothing can be appended any more.
    pub closed: bool,
    /// The greatest `source` of its batches.
    pub source: u64,
    /// Bytes of what is kept.
    pub bytes: u64,
}

/// What is kept. Whole batches go, the oldest first. `None` is no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Batches older than this go.
    pub max_age: Option<Duration>,
    /// Events of each stream. Its newest batch stays.
    pub max_events_per_session: Option<u64>,
    /// Bytes of each stream. Its newest batch stays.
    pub max_bytes_per_session: Option<u64>,
    /// Events of all streams together: the oldest batch goes first, whichever stream it is of.
    pub max_events_total: Option<u64>,
    /// Bytes of all streams together, in the same way.
    pub max_bytes_total: Option<u64>,
}

/// What a log has done since it was opened.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// Transactions, of any number of batches each.
    pub commits: u64,
    /// Events appended.
    pub events: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Transactions that failed.
    pub failures: u64,
    /// Events that retention or a deletion has removed.
    pub removed: u64,
    /// Bytes that wait to be committed.
    pub queue_bytes: usize,
    /// Why the last failed transaction failed; `None` after one that did not.
    pub last_error: Option<LogError>,
}

/// What an import brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// Whose stream.
    pub session: SessionId,
    /// Offset of its first event.
    pub first: u64,
    /// Offset of its last event.
    pub last: u64,
}

/// What an export wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// Lines.
    pub events: u64,
    /// What could not be read: damaged. A `session:gap` stands for each.
    pub lost: Vec<Gap>,
}

/// What a memory log keeps of each stream: its newest events, at least one.
#[derive(Clone, Copy, Debug)]
pub struct MemoryLimits {
    /// Events.
    pub events: usize,
    /// Bytes, as [`ipc_protocol::Event::weight`] counts them.
    pub bytes: usize,
}

impl Default for MemoryLimits {
    fn default() -> Self {
        Self { events: 65_536, bytes: 16 * 1024 * 1024 }
    }
}

/// How a log in a file is kept.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes that may wait for the writer. One batch more may be taken, of any size.
    pub queue_bytes: usize,
    /// Connections for readers. One reader more waits.
    pub readers: usize,
    /// How long a reader waits for a connection, or for SQLite.
    pub read_deadline: Duration,
    /// How long the writer waits for another program that has the file, before what it was to write fails.
    pub write_deadline: Duration,
    /// Pages that the file may have; `None` for no bound of its own. For tests of a full disk.
    pub max_pages: Option<u32>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            queue_bytes: 8 * 1024 * 1024,
            readers: 4,
            read_deadline: Duration::from_secs(10),
            write_deadline: Duration::from_secs(5),
            max_pages: None,
        }
    }
}
