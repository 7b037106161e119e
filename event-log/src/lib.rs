//! Ordered event streams, one per session: in memory, or in a SQLite file that outlives its host.
//!
//! * Offsets are given by the caller: 1, 2, … without holes. A batch that does not go on where its stream ends is refused.
//! * [`EventLog::append`] never blocks. One thread writes: it takes whatever waits and commits it together, and tells each
//!   batch when it is on the disk (`fsync`). What it told survives a crash of the machine.
//! * Readers have connections of their own. Reading blocks: call it from a blocking thread.
//! * A failure (disk full, read-only, damaged) is told to whom it concerns; nothing is half done then, and the next append is
//!   another try, after a pause that grows to a second.
//!
//! ```
//! use std::{sync::{Arc, mpsc}, time::SystemTime};
//! use event_log::{Batch, EventLog, Limit, MemoryLimits};
//! use ipc_protocol::{Envelope, Event, SessionId};
//!
//! let log = EventLog::memory(MemoryLimits::default());
//! let session: Arc<SessionId> = Arc::new("s-1".parse().unwrap());
//! let created_at = SystemTime::now();
//! let event = Event::Text { text: "hi".into() };
//! let envelope = Arc::new(Envelope { offset: 1, created_at, session: Arc::clone(&session), turn: Some(1), event });
//! let batch = Batch { session: Arc::clone(&session), created_at, first: 1, events: vec![envelope], source: 0, cursor: None };
//! let (tell, told) = mpsc::channel();
//! log.append(batch, Box::new(move |result| tell.send(result).unwrap())).unwrap();
//! told.recv().unwrap().unwrap();
//! assert_eq!(log.read(&session, 0, Limit::default()).unwrap().events.len(), 1);
//! ```

mod error;
mod line;
mod memory;
mod sqlite;
mod store;
mod transfer;
mod types;

use std::{
    collections::HashSet,
    fmt,
    io::{BufRead, Write},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use ipc_protocol::{Envelope, SessionId};

pub use self::{
    error::{Cause, LogError},
    sqlite::inspect::{Damage, Inspection, RecordCheck, check, salvage},
    types::{
        Batch, Beat, Done, Exported, Full, Head, Imported, Limit, Lines, MemoryLimits, Metrics, Options, Page,
        Retention,
    },
};
use self::{
    memory::Memory,
    sqlite::Sqlite,
    store::{Change, Store, Target},
};

/// A handle on a log. The last one that is dropped waits until what was queued is committed, and closes the log.
#[derive(Clone)]
pub struct EventLog {
    store: Arc<dyn Store>,
    /// What is being imported.
    importing: Arc<Mutex<HashSet<SessionId>>>,
}

impl fmt::Debug for EventLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventLog").finish_non_exhaustive()
    }
}

/// What [`EventLog::together`] gives.
pub struct Together(Arc<dyn Store>);

impl fmt::Debug for Together {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Together").finish_non_exhaustive()
    }
}

impl Drop for Together {
    fn drop(&mut self) {
        self.0.hold(false);
    }
}

impl EventLog {
    /// A log in memory: each stream's newest events. Every `done` is called before the call that it was given to returns.
    pub fn memory(limits: MemoryLimits) -> Self {
        Self { store: Arc::new(Memory::new(limits)), importing: Arc::default() }
    }

    /// Opens the log in the file `path`, or creates it; its directory has to be there. Blocks. A file of an older release is
    /// brought up to date. Beside it come `path-wal`, `path-shm` and `path.lock`. What is damaged within it is left as it is, and
    /// told ([`EventLog::damage`]).
    ///
    /// # Errors
    /// [`LogError::Locked`] while another handle or process has it; [`LogError::Corrupt`] for a file that is no log, which is
    /// left as it is; [`LogError::TooNew`], [`LogError::Missing`], [`LogError::ReadOnly`], [`LogError::DiskFull`].
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self, LogError> {
        Ok(Self { store: Arc::new(Sqlite::open(path.as_ref(), options)?), importing: Arc::default() })
    }

    /// Appends a batch, whole or not at all. Never blocks. `done` is called once, on the writer's thread: let it be short.
    /// Batches of one stream are stored in the order of their appends. After one that failed, those behind it fail with
    /// [`LogError::Order`].
    ///
    /// # Errors
    /// [`Full`] where too much waits already; the batch and `done` come back.
    pub fn append(&self, batch: Batch, done: Done) -> Result<(), Full> {
        self.store.append(batch, Target::Stream, done)
    }

    /// While this is held, what is appended and put waits, to be committed together: one `fsync`, not one for each. Hold it over a
    /// few calls only: everybody's appends wait, though never longer than 20 ms.
    pub fn together(&self) -> Together {
        self.store.hold(true);
        Together(self.store.clone())
    }

    /// The events with offsets greater than `from`, up to `limit`; at least one, where there is one. What retention has removed
    /// shows as [`Page::gap`], also in a page without events. Blocks.
    ///
    /// # Errors
    /// [`LogError::Unknown`] for no such stream. [`LogError::Corrupt`] when the next events cannot be read: its `lost` tells
    /// which; those after `lost.to` may be readable.
    pub fn read(&self, session: &SessionId, from: u64, limit: Limit) -> Result<Page, LogError> {
        self.store.read(session, from, limit)
    }

    /// As [`EventLog::read`], as public JSON envelopes, one a line. Faster: the payloads are not parsed.
    ///
    /// # Errors
    /// As [`EventLog::read`].
    pub fn read_lines(&self, session: &SessionId, from: u64, limit: Limit) -> Result<Lines, LogError> {
        self.store.read_lines(session, from, limit)
    }

    /// The events of all streams together at positions greater than `from`, in the order in which they were appended; up to
    /// `limit`, and at least one, where there is one. Each with its position, from which reading goes on. Positions grow, from 1 on
    /// and with holes; none is ever given again, nor changed. 0 is before all. Blocks.
    ///
    /// What retention or a deletion has removed is not among them: what is missing of a stream shows in its offsets. Events that
    /// are damaged are one `session:gap`. What was imported stands where it was written, and is there when all of it is: who has read
    /// past the beginning of that meanwhile comes to the rest of it, or to nothing, which shows in its offsets too.
    ///
    /// # Errors
    /// [`LogError::Corrupt`] where so much is damaged that the order cannot be followed any further: read the streams one by one.
    pub fn read_all(&self, from: u64, limit: Limit) -> Result<Vec<(u64, Arc<Envelope>)>, LogError> {
        self.store.read_all(from, limit)
    }

    /// Where a stream stands: what is committed. Does not block.
    pub fn head(&self, session: &SessionId) -> Option<Head> {
        self.store.head(session)
    }

    /// All streams, in no order. Does not block.
    pub fn streams(&self) -> Vec<(SessionId, Head)> {
        self.store.streams()
    }

    /// Nothing can be appended to the stream any more, behind what was appended before; also where too much waits for anything else.
    /// `done` gets [`LogError::Unknown`] for no such stream.
    pub fn close(&self, session: &SessionId, done: Done) {
        self.store.change(Change::Close(session.clone()), done);
    }

    /// Deletes a stream and its cursors. It is gone when `done` is told; its room is freed little by little.
    pub fn delete(&self, session: &SessionId, done: Done) {
        self.store.change(Change::Delete(session.clone()), done);
    }

    /// Stores a session's record, in the place of an older one. It has nothing to do with the stream of that name. Where too much
    /// waits, the newest of each session is kept until there is room: then it is stored behind what was appended before, and for
    /// those that it took the place of `done` is told too. Of more than 64 of these the first get [`LogError::Busy`].
    pub fn put_session(&self, id: &SessionId, record: String, done: Done) {
        self.store.change(Change::PutSession(id.clone(), record), done);
    }

    /// Deletes a session's record, if there is one; where too much waits, as [`EventLog::put_session`].
    pub fn delete_session(&self, id: &SessionId, done: Done) {
        self.store.change(Change::DeleteSession(id.clone()), done);
    }

    /// A session's record. Blocks.
    ///
    /// # Errors
    /// Where the file cannot be read.
    pub fn session(&self, id: &SessionId) -> Result<Option<String>, LogError> {
        self.store.session(id)
    }

    /// All records that are whole, in the order of their ids. Blocks.
    ///
    /// # Errors
    /// Where the file cannot be read.
    pub fn sessions(&self) -> Result<Vec<(SessionId, String)>, LogError> {
        self.store.sessions()
    }

    /// What of the file is damaged, as far as that was found by now: by the opening, which goes on with what is whole, and by
    /// [`EventLog::sessions`]. Of events that are damaged the reads tell. Does not block.
    pub fn damage(&self) -> Vec<Damage> {
        self.store.damage()
    }

    /// Stores who has the log and when it said that it is alive, in the place of what was stored before.
    pub fn put_beat(&self, beat: Beat, done: Done) {
        self.store.change(Change::Beat(beat), done);
    }

    /// Who said last that it is alive, and when: this user of the log, or the one before. Blocks.
    ///
    /// # Errors
    /// Where the file cannot be read.
    pub fn last_beat(&self) -> Result<Option<Beat>, LogError> {
        self.store.last_beat()
    }

    /// Up to where a consumer has come in a stream; 0 for nowhere. Blocks.
    ///
    /// # Errors
    /// Where the file cannot be read.
    pub fn cursor(&self, consumer: &str, session: &SessionId) -> Result<u64, LogError> {
        self.store.cursor(consumer, session)
    }

    /// Stores how far a consumer has come in a stream.
    pub fn set_cursor(&self, consumer: &str, session: &SessionId, offset: u64, done: Done) {
        let change = Change::SetCursor { consumer: consumer.to_owned(), session: session.clone(), offset };
        self.store.change(change, done);
    }

    /// Removes what is too much, a little at a time between the appends. One pass: call it now and then. `done` is told when
    /// the pass is over, or is dropped when the log is closed before.
    pub fn retain(&self, retention: Retention, done: Done) {
        self.store.retain(retention, done);
    }

    /// Writes a stream as public JSON envelopes, one a line, up to where it stands. What is damaged is left out, with a
    /// `session:gap` in its place. Blocks.
    ///
    /// # Errors
    /// [`LogError::Unknown`] for no such stream, [`LogError::Io`] where `out` fails.
    pub fn export(&self, session: &SessionId, mut out: impl Write) -> Result<Exported, LogError> {
        transfer::export(&*self.store, session, &mut out)
    }

    /// Makes a stream of what an export wrote: all of it, or nothing. It is closed if its last event is `session:ended`.
    /// Blocks.
    ///
    /// # Errors
    /// [`LogError::Exists`] for a session that has a stream, or is being imported. [`LogError::Import`] names the line that is
    /// no event, not the session's, or not the one that follows.
    pub fn import(&self, mut input: impl BufRead) -> Result<Imported, LogError> {
        let mut claimed = None;
        let result = transfer::Import::new(&*self.store).run(&mut input, |session| {
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

    /// What was done so far.
    pub fn metrics(&self) -> Metrics {
        self.store.metrics()
    }

    /// Waits until everything is committed, or has failed, that was queued before. Blocks.
    ///
    /// # Errors
    /// [`LogError::Deadline`] when it takes longer than that.
    pub fn flush(&self, deadline: Duration) -> Result<(), LogError> {
        self.store.flush(deadline)
    }
}
