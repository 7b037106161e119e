//! Store in a file: SQLite, with one writer thread.

mod all_streams;
mod apply;
mod byte_salvage;
mod byte_streams;
mod heads;
pub(crate) mod inspect;
mod lock;
mod ownership;
mod queue;
mod reader;
mod retention_chores;
mod rows;
mod schema;
mod writer;

use std::{
    fs::OpenOptions,
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use ipc_protocol::{Envelope, ErrorCause, SessionId};
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension as _, params};

use self::{
    byte_streams::ByteStreamHeads,
    heads::StreamHeads,
    lock::FileLock,
    queue::{QueuedJob, WorkItem, WriterQueue},
    reader::ReaderPool,
    retention_chores::RetentionChores,
    rows::EncodedBatch,
    writer::LogWriter,
};
use crate::{
    BytePage, ByteStreamChange, ByteStreamInfo, EventBatch, EventPage, Heartbeat, LinePage, LogDamage, LogError,
    LogMetrics, LogOptions, OnCommit, OnStreamChange, QueueFull, REQUEST_RETENTION, ReadLimit, Result, Retention,
    StreamPosition, line,
    store::{BatchTarget, LogChange, LogStore},
    types::ReadBound,
};

/// State shared by the writer and all callers.
#[derive(Debug)]
struct SharedState {
    path: Arc<PathBuf>,
    queue: WriterQueue,
    heads: RwLock<StreamHeads>,
    byte_heads: RwLock<ByteStreamHeads>,
    metrics: Mutex<LogMetrics>,
    /// Damage that was found by now.
    damage: Mutex<Vec<LogDamage>>,
}

impl SharedState {
    fn metrics(&self) -> MutexGuard<'_, LogMetrics> {
        self.metrics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ended(&self) -> LogError {
        LogError::Ended { path: (*self.path).clone() }
    }
}

/// Log in a file.
#[derive(Debug)]
pub(crate) struct SqliteStore {
    shared: Arc<SharedState>,
    readers: ReaderPool,
    writer: Option<JoinHandle<()>>,
}

impl SqliteStore {
    /// Opens or creates the log at `path`. Blocks.
    ///
    /// # Errors
    /// Same as [`crate::EventLog::open`].
    pub(crate) fn open(path: &Path, options: LogOptions) -> Result<Self> {
        let lock = FileLock::take(path)?;
        schema::check_magic(path)?;
        create_private(path)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let sql = |error| classify(path, "open the event log", error);
        let mut conn = Connection::open_with_flags(path, flags).map_err(sql)?;
        conn.busy_timeout(options.write_deadline).map_err(sql)?;
        conn.set_prepared_statement_cache_capacity(64);
        if let Some(pages) = options.max_pages {
            conn.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(())).map_err(sql)?;
        }
        schema::prepare(&mut conn, path)?;
        let (heads, doomed, mut damage) = StreamHeads::load(&conn).map_err(sql)?;
        let (byte_heads, doomed_bytes) = ByteStreamHeads::load(&conn, &mut damage).map_err(sql)?;
        for damage in &damage {
            tracing::error!(path = %path.display(), %damage, "a part of the event log is damaged");
        }
        let path = Arc::new(path.to_owned());
        let shared = Arc::new(SharedState {
            path: Arc::clone(&path),
            queue: WriterQueue::new(options.queue_bytes),
            heads: RwLock::new(heads),
            byte_heads: RwLock::new(byte_heads),
            metrics: Mutex::default(),
            damage: Mutex::new(damage),
        });
        let writer = LogWriter {
            conn,
            shared: Arc::clone(&shared),
            chores: RetentionChores::new(doomed, doomed_bytes),
            _lock: lock,
        };
        let thread = std::thread::Builder::new().name("event-log".into()).spawn(move || writer.run());
        let thread = thread.map_err(|error| system(&path, "start the writer of", error))?;
        Ok(Self {
            shared,
            readers: ReaderPool::new(path, options.readers, options.read_deadline),
            writer: Some(thread),
        })
    }
}

impl SqliteStore {
    fn push(&self, job: QueuedJob) {
        self.fail_job(self.shared.queue.push(job));
    }

    /// Fails a job that the ended writer did not accept.
    fn fail_job(&self, job: Option<QueuedJob>) {
        if let Some(job) = job {
            job.complete(Err(self.shared.ended()));
        }
    }
}

impl Drop for SqliteStore {
    /// Waits until everything queued is committed or has failed.
    fn drop(&mut self) {
        self.readers.close();
        self.shared.queue.stop();
        if let Some(writer) = self.writer.take()
            // A callback may drop the last handle: then this is the writer's own thread, which ends by itself.
            && writer.thread().id() != std::thread::current().id()
            && writer.join().is_err()
        {
            tracing::error!(path = %self.shared.path.display(), "event log writer panicked");
        }
    }
}

impl LogStore for SqliteStore {
    fn append(&self, batch: EventBatch, target: BatchTarget, done: OnCommit) -> Result<(), QueueFull> {
        if !self.shared.queue.has_room() {
            return Err(QueueFull { batch, done });
        }
        match EncodedBatch::of(&batch, &self.shared.path) {
            Ok(entry) => self.push(QueuedJob::new(WorkItem::Append(entry, target), done)),
            Err(error) => done(Err(error)),
        }
        Ok(())
    }

    fn change(&self, change: LogChange, done: OnCommit) {
        let row = match &change {
            LogChange::PutSession(session, _) | LogChange::DeleteSession(session) => Some(session.clone()),
            // At most one close comes for each stream, and readers at its end wait for it. What is done for a replica comes one at a time
            // for each stream.
            LogChange::Close(_)
            | LogChange::Acknowledge(..)
            | LogChange::ContinueFrom(..)
            | LogChange::PutAside(..) => None,
            _ if self.shared.queue.is_crowded() => {
                return done(Err(LogError::Busy { bytes: self.shared.queue.bytes() }));
            }
            _ => None,
        };
        let job = QueuedJob::new(WorkItem::Change(change), done);
        match row {
            Some(session) => self.fail_job(self.shared.queue.push_row(&session, job)),
            None => self.push(job),
        }
    }

    fn read(&self, session: &SessionId, from: u64, limit: ReadLimit, bound: ReadBound) -> Result<EventPage> {
        let mut events = Vec::new();
        let owner = Arc::new(session.clone());
        let heads = (&self.shared.heads, bound);
        let head = reader::scan(&self.readers, heads, session, from, limit, |stored| {
            events.push(Arc::new(line::read(stored.line, &owner, stored.offset, stored.batch_ms)?));
            Ok(())
        })?;
        Ok(EventPage { events, first_kept: head.first, last: head.last, closed: head.closed })
    }

    fn read_lines(&self, session: &SessionId, from: u64, limit: ReadLimit, bound: ReadBound) -> Result<LinePage> {
        let mut lines = LinePage { next: from, ..LinePage::default() };
        let mut writer = line::PublicLines::new(session);
        let heads = (&self.shared.heads, bound);
        let head = reader::scan(&self.readers, heads, session, from, limit, |stored| {
            writer.write(&mut lines.bytes, stored.line, stored.offset, stored.batch_ms)?;
            lines.events += 1;
            lines.next = stored.offset;
            Ok(())
        })?;
        (lines.first_kept, lines.last, lines.closed) = (head.first, head.last, head.closed);
        Ok(lines)
    }

    fn read_all(&self, from: u64, limit: ReadLimit, bound: ReadBound) -> Result<Vec<(u64, Arc<Envelope>)>> {
        all_streams::read(&self.readers, (&self.shared.heads, bound), from, limit)
    }

    fn end(&self, bound: ReadBound) -> Result<u64> {
        all_streams::end(&self.readers, (&self.shared.heads, bound))
    }

    fn read_put_aside(&self, session: &SessionId) -> Result<Vec<u8>> {
        ownership::read_put_aside(&self.readers, session)
    }

    fn head(&self, session: &SessionId) -> Option<StreamPosition> {
        read_lock(&self.shared.heads).get(BatchTarget::Stream, session).map(|stream| stream.head)
    }

    fn streams(&self) -> Vec<(SessionId, StreamPosition)> {
        read_lock(&self.shared.heads).iter().map(|(session, stream)| (session.clone(), stream.head)).collect()
    }

    fn session(&self, id: &SessionId) -> Result<Option<String>> {
        let sql = "SELECT record FROM sessions WHERE id = ?";
        self.readers.with(|conn| conn.prepare_cached(sql)?.query_row([id.as_str()], |row| row.get(0)).optional())
    }

    fn sessions(&self) -> Result<Vec<(SessionId, String)>> {
        let (records, damage) = self.readers.with(|conn| Ok(inspect::records(conn)))?;
        let mut known = self.shared.damage.lock().unwrap_or_else(PoisonError::into_inner);
        for damage in damage {
            if !known.contains(&damage) {
                tracing::error!(path = %self.shared.path.display(), %damage, "a part of the event log is damaged");
                known.push(damage);
            }
        }
        Ok(records.into_iter().map(|(id, record, _)| (id, record)).collect())
    }

    fn damage(&self) -> Vec<LogDamage> {
        self.shared.damage.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn last_heartbeat(&self) -> Result<Option<Heartbeat>> {
        let found = self.readers.with(|conn| {
            let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
            conn.prepare_cached("SELECT host, at_ms FROM beat")?.query_row([], read).optional()
        })?;
        Ok(found.map(|(host, at_ms)| Heartbeat { host, at: line::time(at_ms) }))
    }

    fn request(&self, name: &str) -> Result<Option<String>> {
        let oldest = line::millis(std::time::SystemTime::now())
            - i64::try_from(REQUEST_RETENTION.as_millis()).unwrap_or(i64::MAX);
        self.readers.with(|conn| {
            let sql = "SELECT record FROM requests WHERE name = ? AND at_ms >= ?";
            conn.prepare_cached(sql)?.query_row(rusqlite::params![name, oldest], |row| row.get(0)).optional()
        })
    }

    fn cursor(&self, consumer: &str, session: &SessionId) -> Result<u64> {
        let Some(stream) = read_lock(&self.shared.heads).get(BatchTarget::Stream, session) else { return Ok(0) };
        let sql = "SELECT offset FROM cursors WHERE stream = ? AND consumer = ?";
        let found = self.readers.with(|conn| {
            conn.prepare_cached(sql)?.query_row(params![stream.id, consumer], |row| row.get::<_, i64>(0)).optional()
        })?;
        Ok(found.unwrap_or(0).cast_unsigned())
    }

    fn change_byte_stream(&self, change: ByteStreamChange, done: OnStreamChange) {
        if !self.shared.queue.has_room() {
            return done(Err(LogError::Busy { bytes: self.shared.queue.bytes() }));
        }
        let outcome = Arc::new(Mutex::new(None));
        let work = WorkItem::ByteStream(change, Arc::clone(&outcome));
        let ended = self.shared.ended();
        let done = move |result: Result<()>| {
            let outcome = outcome.lock().unwrap_or_else(PoisonError::into_inner).take();
            done(result.and_then(|()| outcome.ok_or(ended)));
        };
        self.push(QueuedJob::new(work, Box::new(done)));
    }

    fn byte_stream(&self, path: &str) -> Option<ByteStreamInfo> {
        read_lock(&self.shared.byte_heads).info(path)
    }

    fn touch_byte_stream(&self, path: &str) {
        read_lock(&self.shared.byte_heads).touch(path);
    }

    fn expire_byte_streams(&self) {
        let expired = read_lock(&self.shared.byte_heads).expired();
        for path in expired {
            // One that finds no room is removed by the next pass.
            self.change_byte_stream(ByteStreamChange::Expire(path), Box::new(drop));
        }
    }

    fn unmapped_byte_streams(&self) -> Vec<String> {
        read_lock(&self.shared.byte_heads).unmapped()
    }

    fn read_byte_stream(&self, path: &str, from: u64, bytes: usize) -> Result<BytePage> {
        byte_streams::read(&self.readers, &self.shared.byte_heads, path, from, bytes)
    }

    fn retain(&self, retention: Retention, done: OnCommit) {
        self.shared.queue.retain(retention, done);
    }

    fn metrics(&self) -> LogMetrics {
        LogMetrics { queue_bytes: self.shared.queue.bytes(), ..self.shared.metrics().clone() }
    }

    fn hold_commits(&self, hold: bool) {
        self.shared.queue.hold_commits(hold);
    }

    fn flush(&self, deadline: Duration) -> Result<()> {
        let (tell, told) = mpsc::sync_channel(1);
        self.change(LogChange::Barrier, Box::new(move |result| drop(tell.send(result))));
        told.recv_timeout(deadline).unwrap_or(Err(LogError::Deadline { operation: "flush", after: deadline }))
    }
}

/// Creates the file, if there is none, with mode 0600. SQLite gives the files beside it the same mode.
fn create_private(path: &Path) -> Result<()> {
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(system(path, "create", error)),
        _ => Ok(()),
    }
}

fn read_lock<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write_lock<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// Converts an error of the system.
fn system(path: &Path, operation: &'static str, error: io::Error) -> LogError {
    let path = path.to_owned();
    match error.kind() {
        io::ErrorKind::NotFound => LogError::Missing { path },
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            LogError::DiskFull { path, cause: ErrorCause::new(error) }
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            LogError::ReadOnly { path, cause: ErrorCause::new(error) }
        }
        _ => LogError::Io { path, operation, cause: ErrorCause::new(error) },
    }
}

/// Converts an error of SQLite.
fn classify(path: &Path, operation: &'static str, error: rusqlite::Error) -> LogError {
    let path = path.to_owned();
    // A value that no release writes, or one of another type, means damage, like a broken page.
    let is_nonsense = matches!(
        error,
        rusqlite::Error::IntegralValueOutOfRange(..)
            | rusqlite::Error::FromSqlConversionFailure(..)
            | rusqlite::Error::InvalidColumnType(..)
    );
    match error.sqlite_error_code() {
        _ if is_nonsense => damaged(path, &error),
        Some(ErrorCode::DiskFull) => LogError::DiskFull { path, cause: ErrorCause::new(error) },
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => {
            LogError::ReadOnly { path, cause: ErrorCause::new(error) }
        }
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => damaged(path, &error),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => LogError::Locked { path, by: None },
        // The file has become read-only while open. SQLite does not pass on the system's error.
        Some(ErrorCode::SystemIoFailure) if refuses_writes(&path) => {
            LogError::ReadOnly { path, cause: ErrorCause::new(error) }
        }
        _ => LogError::Io { path, operation, cause: ErrorCause::new(error) },
    }
}

/// Returns true if an append would be refused now. Tests the write-ahead log, which appends reach first, and never
/// the database file: closing a descriptor of that would release the locks that SQLite has on it.
fn refuses_writes(path: &Path) -> bool {
    let mut wal = path.as_os_str().to_owned();
    wal.push("-wal");
    let refused = OpenOptions::new().append(true).open(wal).map_err(|error| error.kind());
    matches!(refused, Err(io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem))
}

fn damaged(path: PathBuf, error: &rusqlite::Error) -> LogError {
    let why = match error {
        // Of what we found ourselves.
        rusqlite::Error::FromSqlConversionFailure(_, _, why) => why.to_string(),
        error => error.to_string(),
    };
    let detail = format!(
        "it is damaged ({why}): `agent-proxy log salvage` writes what can be read to a new file; then move the file \
         away: a new one is begun in its place"
    );
    LogError::Corrupt { path, detail, lost: None }
}
