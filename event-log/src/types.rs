//! Data that goes into a log, and that comes out.

use std::{sync::Arc, time::Duration, time::SystemTime};

use ipc_protocol::{Envelope, OffsetGap, SessionId};

use crate::{LogError, Result};

/// Callback, called once when a change is committed or has failed.
pub type OnCommit = Box<dyn FnOnce(Result<()>) + Send>;

/// Events of one stream that are appended together: all or none.
#[derive(Clone, Debug)]
pub struct EventBatch {
    /// Session whose stream the batch belongs to.
    pub session: Arc<SessionId>,
    /// Time at which the batch was made.
    pub created_at: SystemTime,
    /// Stream's next offset: that of the first event. May be less where the first event is a `session:gap` that
    /// covers everything from here to itself.
    pub first: u64,
    /// Events, with consecutive offsets. May be empty: then only `source` and `cursor` are stored.
    pub events: Vec<Arc<Envelope>>,
    /// Sender's own number of the last of its messages in this batch; 0 for none.
    pub source: u64,
    /// Consumer of this stream and the offset it has reached: stored with the batch, or not at all.
    pub cursor: Option<(String, u64)>,
}

/// Most requests that are retained, see [`EventLog::put_request`](crate::EventLog::put_request); and for how long.
pub const MAX_REQUESTS: u64 = 10_000;
/// Time for which a request is retained.
pub const REQUEST_RETENTION: std::time::Duration = std::time::Duration::from_secs(24 * 60 * 60);

/// Heartbeat of the log's owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// Name of the owner.
    pub host: String,
    /// Time at which the owner was alive; kept to the millisecond.
    pub at: SystemTime,
}

/// Refusal of a batch because the queue is full; nothing was done.
#[derive(derive_more::Debug)]
pub struct QueueFull {
    /// Batch that was refused.
    pub batch: EventBatch,
    /// Callback of the batch; it was not called.
    #[debug(skip)]
    pub done: OnCommit,
}

/// Bounds of one read. At least one event is read, whatever its size.
#[derive(Clone, Copy, Debug)]
pub struct ReadLimit {
    /// Number of events.
    pub events: usize,
    /// Bytes of their stored form.
    pub bytes: usize,
}

impl Default for ReadLimit {
    fn default() -> Self {
        Self { events: 4096, bytes: 1024 * 1024 }
    }
}

/// Consecutive events of a stream.
#[derive(Clone, Debug, Default)]
pub struct EventPage {
    /// Events, in order.
    pub events: Vec<Arc<Envelope>>,
    /// Offset of the first event that is kept; one more than `last` if none is.
    pub first_kept: u64,
    /// Offset of the stream's last event when the page was read; 0 for none.
    pub last: u64,
    /// True when nothing comes after `last`.
    pub closed: bool,
}

impl EventPage {
    /// Returns the gap between `from`, the start of the read, and the first event found.
    pub fn gap(&self, from: u64) -> Option<OffsetGap> {
        let next = self.events.first().map_or(self.first_kept, |event| event.offset);
        let first = from.saturating_add(1);
        (next > first).then(|| OffsetGap { from: first, to: next - 1 })
    }
}

/// A piece of a stream as public JSON: one envelope a line.
#[derive(Clone, Debug, Default)]
pub struct LinePage {
    /// JSON lines, each with its newline.
    pub bytes: Vec<u8>,
    /// Number of lines.
    pub events: usize,
    /// Offset of the last line's event, from which reading continues. The requested `from`, if there is no line.
    pub next: u64,
    /// Same as in [`EventPage`].
    pub first_kept: u64,
    /// Same as in [`EventPage`].
    pub last: u64,
    /// Same as in [`EventPage`].
    pub closed: bool,
}

/// Current bounds and size of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamPosition {
    /// Offset of the first event that is kept; one more than `last` if none is.
    pub first: u64,
    /// Offset of the last event; 0 for none.
    pub last: u64,
    /// True when nothing can be appended any more.
    pub closed: bool,
    /// Greatest `source` of the stream's batches.
    pub source: u64,
    /// Bytes of the events that are kept.
    pub bytes: u64,
    /// Number of the stream's ownership; 0 for a stream that is not replicated.
    pub epoch: u64,
    /// Offset of the last event that is acknowledged; 0 for none, and in a stream that is not replicated.
    pub acknowledged: u64,
}

impl StreamPosition {
    /// Offset of the last event that nobody will take back: the last acknowledged one, or the last one in a stream that is not
    /// replicated.
    pub fn readable(&self) -> u64 {
        if self.epoch == 0 { self.last } else { self.acknowledged }
    }

    /// Returns true if events of the stream wait for their acknowledgement.
    pub fn is_unacknowledged(&self) -> bool {
        self.readable() < self.last
    }

    /// Position as reads within `bound` show it.
    pub(crate) fn within(self, bound: ReadBound) -> Self {
        let last = match bound {
            ReadBound::Committed => self.last,
            ReadBound::Acknowledged => self.readable(),
        };
        Self { last, closed: self.closed && last == self.last, ..self }
    }
}

/// Events that reads return.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ReadBound {
    /// All committed ones.
    #[default]
    Committed,
    /// Those that are acknowledged; all of a stream that is not replicated.
    Acknowledged,
}

/// Change of a replicated stream's owner, see [`EventLog::continue_from`](crate::EventLog::continue_from).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamOwnership {
    /// Number of the ownership, at least 1, and not less than the stream's.
    pub epoch: u64,
    /// Offset of the last event that all replicas agree on; 0 for none. The stream goes on after it.
    pub tail: u64,
    /// True to retain the events that this log has beyond `tail`, as events to be acknowledged. Else they are put aside.
    pub keeps_tail: bool,
}

/// Most bytes of events that were put aside; the oldest are removed beyond that.
pub const MAX_PUT_ASIDE: u64 = 64 * 1024 * 1024;

/// Bounds on the events kept. The oldest whole batches are removed first. `None` is no bound.
///
/// ```
/// use std::time::Duration;
///
/// use event_log::Retention;
///
/// let mut retention = Retention::default();
/// retention.max_age = Some(Duration::from_secs(30 * 24 * 3600));
/// retention.max_bytes_total = Some(2 << 30);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Age beyond which batches are removed.
    pub max_age: Option<Duration>,
    /// Events of each stream. Its newest batch stays.
    pub max_events_per_session: Option<u64>,
    /// Bytes of each stream. Its newest batch stays.
    pub max_bytes_per_session: Option<u64>,
    /// Events of all streams together: the oldest batch of all is removed first.
    pub max_events_total: Option<u64>,
    /// Bytes of all streams together, in the same way.
    pub max_bytes_total: Option<u64>,
}

/// Counters of a log since it was opened.
#[derive(Clone, Debug, Default)]
pub struct LogMetrics {
    /// Transactions, of any number of batches each.
    pub commits: u64,
    /// Events appended.
    pub events: u64,
    /// Bytes of the events appended.
    pub bytes: u64,
    /// Transactions that failed.
    pub failures: u64,
    /// Events that retention or a deletion has removed.
    pub removed: u64,
    /// Times that transactions took.
    pub commit_times: CommitTimes,
    /// Bytes that wait to be committed.
    pub queue_bytes: usize,
    /// Error of the last transaction, if it failed; `None` after one that succeeded.
    pub last_error: Option<LogError>,
}

/// Times that transactions took, by bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitTimes {
    /// Sum of all.
    pub total: Duration,
    /// Numbers of transactions up to each bound of [`CommitTimes::BOUNDS`], and beyond the last, each counted once.
    pub counts: [u64; 10],
}

impl CommitTimes {
    /// Bounds, the shortest first.
    pub const BOUNDS: [Duration; 9] = [
        Duration::from_micros(100),
        Duration::from_micros(250),
        Duration::from_micros(500),
        Duration::from_millis(1),
        Duration::from_micros(2_500),
        Duration::from_millis(10),
        Duration::from_millis(50),
        Duration::from_millis(250),
        Duration::from_secs(1),
    ];

    /// Counts a transaction.
    pub(crate) fn record(&mut self, took: Duration) {
        let at = Self::BOUNDS.iter().position(|bound| took <= *bound).unwrap_or(Self::BOUNDS.len());
        self.counts[at] += 1;
        self.total = self.total.saturating_add(took);
    }
}

/// Result of an import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportSummary {
    /// Session whose stream was imported.
    pub session: SessionId,
    /// Offset of the stream's first event.
    pub first: u64,
    /// Offset of the stream's last event.
    pub last: u64,
}

/// Result of an export.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExportSummary {
    /// Number of lines written for readable events.
    pub events: u64,
    /// Damaged events that could not be read. A `session:gap` was written for each.
    pub lost: Vec<OffsetGap>,
}

/// Bounds of each stream in a memory log. The newest events are kept, at least one.
#[derive(Clone, Copy, Debug)]
pub struct MemoryLimits {
    /// Number of events.
    pub events: usize,
    /// Bytes, as counted by [`ipc_protocol::Event::weight`].
    pub bytes: usize,
}

impl Default for MemoryLimits {
    fn default() -> Self {
        Self { events: 65_536, bytes: 16 * 1024 * 1024 }
    }
}

/// Settings of a log in a file.
#[derive(Clone, Copy, Debug)]
pub struct LogOptions {
    /// Bytes that may wait for the writer. One more batch, of any size, is accepted below this.
    pub queue_bytes: usize,
    /// Number of connections for readers. Further readers wait.
    pub readers: usize,
    /// Time that a reader waits for a connection, or for SQLite.
    pub read_deadline: Duration,
    /// Time that the writer waits for another program that has the file locked, before its transaction fails.
    pub write_deadline: Duration,
    /// Pages that the file may have; `None` for no bound beyond SQLite's. For tests of a full disk.
    pub max_pages: Option<u32>,
}

impl Default for LogOptions {
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
