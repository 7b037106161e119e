//! Ordered event streams, one per session: in memory, or in a SQLite file that outlives its host.
//!
//! * The caller gives the offsets: 1, 2, … without holes. A batch that does not begin where its stream ends is
//!   refused.
//! * [`EventLog::append`] never blocks. One thread writes: it commits all waiting changes together and notifies
//!   each batch once it is on the disk (`fsync`). A batch that was notified survives a crash of the machine.
//! * Readers have connections of their own. Reading blocks: call it from a blocking thread.
//! * A stream may be *replicated* ([`EventLog::continue_from`]): its events then wait, committed, for their acknowledgement
//!   ([`EventLog::acknowledge`]). A handle of [`EventLog::acknowledged`] reads none that waits.
//! * A failure (disk full, read-only, damaged) is reported to every caller concerned. Nothing is half done then.
//!   The next append tries again, after a pause that grows to a second.
//!
//! ```
//! use std::{sync::{Arc, mpsc}, time::SystemTime};
//! use event_log::{EventBatch, EventLog, MemoryLimits, ReadLimit};
//! use ipc_protocol::{Envelope, Event, SessionId};
//!
//! let log = EventLog::memory(MemoryLimits::default());
//! let session: Arc<SessionId> = Arc::new("s-1".parse().unwrap());
//! let created_at = SystemTime::now();
//! let event = Event::Text { text: "hi".into() };
//! let envelope = Arc::new(Envelope { offset: 1, created_at, session: Arc::clone(&session), turn: Some(1), metadata: None, event });
//! let batch = EventBatch { session: Arc::clone(&session), created_at, first: 1, events: vec![envelope], source: 0, cursor: None };
//! let (tell, told) = mpsc::channel();
//! log.append(batch, Box::new(move |result| tell.send(result).unwrap())).unwrap();
//! told.recv().unwrap().unwrap();
//! assert_eq!(log.read(&session, 0, ReadLimit::default()).unwrap().events.len(), 1);
//! ```

#![cfg_attr(not(feature = "sqlite"), expect(dead_code, reason = "the file format is there for logs in files"))]

mod byte_streams;
mod damage;
mod error;
mod line;
mod memory;
mod ring;
#[cfg(feature = "sqlite")]
mod sqlite;
mod store;
mod transfer;
mod types;

use std::{
    collections::HashSet,
    io::{BufRead, Write},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use ipc_protocol::{Envelope, SessionId};

#[cfg(feature = "sqlite")]
pub use self::sqlite::inspect::{RecordCheck, check, salvage};
pub use self::{
    byte_streams::{
        BytePage, ByteStreamAppend, ByteStreamChange, ByteStreamInfo, ByteStreamOutcome, ByteStreamRefusal,
        MAX_BYTE_STREAMS, NewByteStream, OnStreamChange, ProducerSequence, StreamContent, StreamFork, StreamLifetime,
        is_json,
    },
    damage::{LogDamage, LogInspection},
    error::LogError,
    ring::EventRing,
    transfer::gap_line,
    types::{
        CommitTimes, EventBatch, EventPage, ExportSummary, Heartbeat, ImportSummary, LinePage, LogMetrics, LogOptions,
        MAX_PUT_ASIDE, MAX_REQUESTS, MemoryLimits, OnCommit, QueueFull, REQUEST_RETENTION, ReadLimit, Retention,
        StreamOwnership, StreamPosition,
    },
};
use self::{
    memory::MemoryStore,
    store::{BatchTarget, LogChange, LogStore},
    types::ReadBound,
};

/// Result of an operation on a log.
pub type Result<T, E = LogError> = std::result::Result<T, E>;

/// Handle on a log. Dropping the last one waits until everything queued is committed, and closes the log.
#[derive(Clone, derive_more::Debug)]
#[debug("EventLog")]
pub struct EventLog {
    store: Arc<dyn LogStore>,
    /// Events that this handle's reads return.
    bound: ReadBound,
    /// Sessions whose stream is being imported.
    importing: Arc<Mutex<HashSet<SessionId>>>,
}

/// Guard that [`EventLog::hold_commits`] returns. Dropping it releases the held changes.
#[derive(derive_more::Debug)]
#[debug("Together")]
pub struct CommitHold(Arc<dyn LogStore>);

impl Drop for CommitHold {
    fn drop(&mut self) {
        self.0.hold_commits(false);
    }
}

impl EventLog {
    /// Creates a log in memory, which keeps each stream's newest events. A call runs its `done` before it returns.
    pub fn memory(limits: MemoryLimits) -> Self {
        Self::with(Arc::new(MemoryStore::new(limits)))
    }

    /// Opens the log in the file `path`, or creates it; its directory has to be there. Blocks. A file of an older release is
    /// brought up to date. Beside it come `path-wal`, `path-shm` and `path.lock`. What is damaged within it is left as it is, and
    /// told ([`EventLog::damage`]).
    ///
    /// # Errors
    /// [`LogError::Locked`] while another handle or process has it open; [`LogError::Corrupt`] for a file that is
    /// no log, which is left unchanged; [`LogError::TooNew`], [`LogError::Missing`], [`LogError::ReadOnly`],
    /// [`LogError::DiskFull`].
    #[cfg(feature = "sqlite")]
    pub fn open(path: impl AsRef<std::path::Path>, options: LogOptions) -> Result<Self> {
        Ok(Self::with(Arc::new(sqlite::SqliteStore::open(path.as_ref(), options)?)))
    }

    fn with(store: Arc<dyn LogStore>) -> Self {
        Self { store, bound: ReadBound::Committed, importing: Arc::default() }
    }

    /// Returns a handle whose reads and exports stop at the last acknowledged event of each replicated stream. A stream's own
    /// position ([`EventLog::head`], [`EventLog::streams`]) is the same with either handle.
    #[must_use]
    pub fn acknowledged(&self) -> Self {
        Self { bound: ReadBound::Acknowledged, ..self.clone() }
    }

    /// Returns a handle that reads all committed events.
    #[must_use]
    pub fn committed(&self) -> Self {
        Self { bound: ReadBound::Committed, ..self.clone() }
    }

    /// Has a session's stream go on at offset `tail + 1` under an ownership: from then on it is replicated, and its events are to be
    /// acknowledged. Creates a stream that does not exist; reopens a closed one. A stream that ends before `tail` loses its events
    /// and begins after it: what it lacks is elsewhere. Cursors of consumers are retained, up to `tail`.
    ///
    /// `done` gets [`LogError::Replication`] for an epoch of 0, or one that is less than the stream's.
    pub fn continue_from(&self, session: &SessionId, ownership: StreamOwnership, done: OnCommit) {
        self.store.change(LogChange::ContinueFrom(session.clone(), ownership), done);
    }

    /// Marks the events of a replicated stream as acknowledged, up to this offset. One that is marked already stays so.
    ///
    /// `done` gets [`LogError::Unknown`] if there is no such stream, and [`LogError::Replication`] if it is not replicated, or has no
    /// event of that offset.
    pub fn acknowledge(&self, session: &SessionId, through: u64, done: OnCommit) {
        self.store.change(LogChange::Acknowledge(session.clone(), through), done);
    }

    /// Puts the events of a replicated stream from this offset on aside: no reader gets them, and the stream goes on in their place.
    /// None of them may be acknowledged. They are retained for [`EventLog::read_put_aside`], [`MAX_PUT_ASIDE`] bytes of all sessions.
    ///
    /// `done` gets [`LogError::Unknown`] if there is no such stream, and [`LogError::Replication`] for events that are acknowledged.
    pub fn put_aside(&self, session: &SessionId, from: u64, done: OnCommit) {
        self.store.change(LogChange::PutAside(session.clone(), from), done);
    }

    /// Returns the events of a session that were put aside, as public JSON lines with the offsets that they had. Blocks.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn read_put_aside(&self, session: &SessionId) -> Result<Vec<u8>> {
        self.store.read_put_aside(session)
    }

    /// Appends a batch, whole or not at all. Never blocks. `done` is called once, on the writer's thread: keep it
    /// short. Batches of one stream are stored in the order of their appends. After a batch that failed, those
    /// behind it fail with [`LogError::Order`].
    ///
    /// # Errors
    /// [`QueueFull`] where too much is queued already; it returns the batch and `done`.
    pub fn append(&self, batch: EventBatch, done: OnCommit) -> Result<(), QueueFull> {
        self.store.append(batch, BatchTarget::Stream, done)
    }

    /// Holds back appends and puts, to commit them together: one `fsync` instead of one each. Keep the guard for a
    /// few calls only: the appends of all callers wait, though never longer than 20 ms.
    pub fn hold_commits(&self) -> CommitHold {
        self.store.hold_commits(true);
        CommitHold(self.store.clone())
    }

    /// Reads the events with offsets greater than `from`, up to `limit`; at least one, where there is one.
    /// [`EventPage::gap`] shows events that retention has removed, also in a page without events. Blocks.
    ///
    /// # Errors
    /// [`LogError::Unknown`] if there is no such stream. [`LogError::Corrupt`] when the next events cannot be read:
    /// its `lost` names them; those after `lost.to` may be readable.
    pub fn read(&self, session: &SessionId, from: u64, limit: ReadLimit) -> Result<EventPage> {
        self.store.read(session, from, limit, self.bound)
    }

    /// Reads like [`EventLog::read`], but as public JSON envelopes, one a line. Faster: the payloads are not
    /// parsed.
    ///
    /// # Errors
    /// As [`EventLog::read`].
    pub fn read_lines(&self, session: &SessionId, from: u64, limit: ReadLimit) -> Result<LinePage> {
        self.store.read_lines(session, from, limit, self.bound)
    }

    /// Reads the events of all streams at positions greater than `from`, in the order in which they were appended;
    /// up to `limit`, and at least one, where there is one. Each comes with its position, from which reading can
    /// continue. Positions start at 1 and grow, with holes; none is ever reused or changed. Position 0 is before
    /// all events. Blocks.
    ///
    /// Events that retention or a deletion has removed are left out; the missing offsets of a stream show it.
    /// Damaged events appear as one `session:gap`. Imported events have the positions at which they were written,
    /// and appear once the whole import is committed. A reader that has passed the beginning of an import by then
    /// gets the rest of it, or nothing; the offsets show that too.
    ///
    /// With a handle of [`EventLog::acknowledged`] the order waits for the first event that is not acknowledged, of whatever stream.
    ///
    /// # Errors
    /// [`LogError::Corrupt`] where the damage makes it impossible to follow the order any further: read the streams
    /// one by one.
    pub fn read_all(&self, from: u64, limit: ReadLimit) -> Result<Vec<(u64, Arc<Envelope>)>> {
        self.store.read_all(from, limit, self.bound)
    }

    /// Returns the position of the end: [`EventLog::read_all`] from there gives what is appended from now on. Blocks.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn end(&self) -> Result<u64> {
        self.store.end(self.bound)
    }

    /// Returns the committed head of a stream. Does not block.
    pub fn head(&self, session: &SessionId) -> Option<StreamPosition> {
        self.store.head(session)
    }

    /// Lists all streams, in no order. Does not block.
    pub fn streams(&self) -> Vec<(SessionId, StreamPosition)> {
        self.store.streams()
    }

    /// Closes a stream to further appends, behind those already queued. Accepted even where too much is queued for
    /// anything else. `done` gets [`LogError::Unknown`] if there is no such stream.
    pub fn close(&self, session: &SessionId, done: OnCommit) {
        self.store.change(LogChange::Close(session.clone()), done);
    }

    /// Deletes a stream and its cursors. The stream is gone when `done` is called; its space is freed little by
    /// little.
    pub fn delete(&self, session: &SessionId, done: OnCommit) {
        self.store.change(LogChange::Delete(session.clone()), done);
    }

    /// Stores a session's record in place of an older one. The record is independent of the stream of that name.
    /// While too much is queued, only the newest record of each session is kept, and stored behind the appends
    /// before it once there is room. The `done` of each record it replaced is called too. If it replaced more than
    /// 64, the oldest ones get [`LogError::Busy`].
    pub fn put_session(&self, id: &SessionId, record: String, done: OnCommit) {
        self.store.change(LogChange::PutSession(id.clone(), record), done);
    }

    /// Deletes a session's record, if there is one; while too much is queued, as in [`EventLog::put_session`].
    pub fn delete_session(&self, id: &SessionId, done: OnCommit) {
        self.store.change(LogChange::DeleteSession(id.clone()), done);
    }

    /// Reads a session's record. Blocks.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn session(&self, id: &SessionId) -> Result<Option<String>> {
        self.store.session(id)
    }

    /// All records that are whole, in the order of their ids. Blocks.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn sessions(&self) -> Result<Vec<(SessionId, String)>> {
        self.store.sessions()
    }

    /// Returns the damage in the file that was found by now: by the opening, which goes on with what is whole, and by
    /// [`EventLog::sessions`]. Of events that are damaged the reads tell. Does not block.
    pub fn damage(&self) -> Vec<LogDamage> {
        self.store.damage()
    }

    /// Stores who has the log and when it said that it is alive, in the place of what was stored before.
    pub fn put_heartbeat(&self, beat: Heartbeat, done: OnCommit) {
        self.store.change(LogChange::Heartbeat(beat), done);
    }

    /// Reads the last heartbeat: of this owner of the log, or of the one before. Blocks.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn last_heartbeat(&self) -> Result<Option<Heartbeat>> {
        self.store.last_heartbeat()
    }

    /// Stores a request that its caller named, in the place of an older one of that name; `None` forgets it. A request is retained for a
    /// day, and the newest 10,000 are.
    pub fn put_request(&self, name: &str, record: Option<String>, done: OnCommit) {
        self.store.change(LogChange::PutRequest(name.to_owned(), record), done);
    }

    /// Reads a request that is retained. Blocks.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn request(&self, name: &str) -> Result<Option<String>> {
        self.store.request(name)
    }

    /// Reads a consumer's offset in a stream; 0 for none. Blocks.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn cursor(&self, consumer: &str, session: &SessionId) -> Result<u64> {
        self.store.cursor(consumer, session)
    }

    /// Stores a consumer's offset in a stream.
    pub fn set_cursor(&self, consumer: &str, session: &SessionId, offset: u64, done: OnCommit) {
        let change = LogChange::SetCursor { consumer: consumer.to_owned(), session: session.clone(), offset };
        self.store.change(change, done);
    }

    /// Runs one pass of retention, a little at a time between the appends. Call it periodically. `done` is called
    /// when the pass is over, or dropped if the log is closed before.
    pub fn retain(&self, retention: Retention, done: OnCommit) {
        self.store.retain(retention, done);
    }

    /// Writes a stream up to its current end as public JSON envelopes, one a line. A `session:gap` replaces damaged
    /// events. Blocks.
    ///
    /// # Errors
    /// [`LogError::Unknown`] if there is no such stream, [`LogError::Io`] where `out` fails.
    pub fn export(&self, session: &SessionId, mut out: impl Write) -> Result<ExportSummary> {
        transfer::export(&*self.store, session, self.bound, &mut out)
    }

    /// Creates a stream from an export: all of it, or nothing. The stream is closed if its last event is
    /// `session:ended`. Blocks.
    ///
    /// # Errors
    /// [`LogError::Exists`] for a session that has a stream, or is being imported. [`LogError::Import`] with the
    /// line that is no event, belongs to another session, or does not follow the line before.
    pub fn import(&self, mut input: impl BufRead) -> Result<ImportSummary> {
        let mut claimed = None;
        let result = transfer::PendingImport::new(&*self.store).run(&mut input, |session| {
            if self.store.head(session).is_some() || !self.importing().insert(session.clone()) {
                return Err(LogError::Exists { session: session.clone() });
            }
            claimed = Some(session.clone());
            Ok(())
        });
        if let Some(session) = claimed {
            self.importing().remove(&session);
        }
        result
    }

    fn importing(&self) -> MutexGuard<'_, HashSet<SessionId>> {
        self.importing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts of the work done since the log was opened.
    pub fn metrics(&self) -> LogMetrics {
        self.store.metrics()
    }

    /// Changes a byte stream. The changes of all streams are decided one after the other; what was done is on the disk when `done` is called.
    /// `done` gets [`LogError::Busy`] while too much is queued, and [`LogError::InMemory`] in a log without a file.
    pub fn change_byte_stream(&self, change: ByteStreamChange, done: OnStreamChange) {
        self.store.change_byte_stream(change, done);
    }

    /// Returns the committed state of a byte stream whose life is not over. Does not block.
    pub fn byte_stream(&self, path: &str) -> Option<ByteStreamInfo> {
        self.store.byte_stream(path)
    }

    /// Notes that a byte stream is read: its time begins anew, where that counts. Does not block.
    pub fn touch_byte_stream(&self, path: &str) {
        self.store.touch_byte_stream(path);
    }

    /// Deletes the byte streams whose life is over. One that is over is not found before, either. Call it periodically.
    pub fn expire_byte_streams(&self) {
        self.store.expire_byte_streams();
    }

    /// Names of the byte streams with JSON messages to which rules are to be applied. Does not block.
    pub fn unmapped_byte_streams(&self) -> Vec<String> {
        self.store.unmapped_byte_streams()
    }

    /// Reads a byte stream from position `from`: as much as there is, up to about `bytes` bytes, and something, where there is something.
    /// In a fork it goes through the sources. Blocks.
    ///
    /// # Errors
    /// [`LogError::NoStream`] if there is no such stream; [`LogError::Corrupt`] where its content is damaged.
    pub fn read_byte_stream(&self, path: &str, from: u64, bytes: usize) -> Result<BytePage> {
        self.store.read_byte_stream(path, from, bytes)
    }

    /// Waits until everything queued before is committed or has failed. Blocks.
    ///
    /// # Errors
    /// [`LogError::Deadline`] when this takes longer than `deadline`.
    pub fn flush(&self, deadline: Duration) -> Result<()> {
        self.store.flush(deadline)
    }
}
