//! Reading, through separate connections, so that no reader waits for the writer.

use std::{
    path::PathBuf,
    sync::{Arc, Condvar, Mutex, PoisonError, RwLock},
    time::{Duration, Instant},
};

use ipc_protocol::{OffsetGap, SessionId};
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, params};

use super::{
    classify,
    heads::{StreamHead, StreamHeads},
    read_lock,
    rows::checksum,
};
use crate::{LogError, ReadLimit, Result, StreamPosition, store::BatchTarget, types::ReadBound};

/// Pool of read-only connections.
#[derive(Debug)]
pub(super) struct ReaderPool {
    path: Arc<PathBuf>,
    pool: Mutex<IdleConnections>,
    available: Condvar,
    max: usize,
    deadline: Duration,
}

#[derive(Debug, Default)]
struct IdleConnections {
    idle: Vec<Connection>,
    open: usize,
}

/// Connection in use.
struct LentConnection<'a> {
    readers: &'a ReaderPool,
    /// Connection; `None` once it is closed after an error.
    conn: Option<Connection>,
}

impl Drop for LentConnection<'_> {
    fn drop(&mut self) {
        let mut pool = self.readers.pool.lock().unwrap_or_else(PoisonError::into_inner);
        match self.conn.take() {
            Some(conn) => pool.idle.push(conn),
            None => pool.open -= 1,
        }
        drop(pool);
        self.readers.available.notify_one();
    }
}

impl ReaderPool {
    pub(super) fn new(path: Arc<PathBuf>, max: usize, deadline: Duration) -> Self {
        Self { path, pool: Mutex::default(), available: Condvar::new(), max: max.max(1), deadline }
    }

    /// Closes idle connections.
    pub(super) fn close(&self) {
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        pool.open -= pool.idle.len();
        pool.idle.clear();
    }

    fn acquire(&self) -> Result<LentConnection<'_>> {
        let by = Instant::now() + self.deadline;
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(conn) = pool.idle.pop() {
                return Ok(LentConnection { readers: self, conn: Some(conn) });
            }
            if pool.open < self.max {
                pool.open += 1;
                break;
            }
            let left = by.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(LogError::Deadline { operation: "get a reader of", after: self.deadline });
            }
            pool = self.available.wait_timeout(pool, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(pool);
        let mut lent = LentConnection { readers: self, conn: None };
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let opened = Connection::open_with_flags(&*self.path, flags).and_then(|conn| {
            conn.busy_timeout(self.deadline)?;
            Ok(conn)
        });
        lent.conn = Some(opened.map_err(|error| classify(&self.path, "open a reader of the event log", error))?);
        Ok(lent)
    }

    /// Lends a connection to `body`; closes it after an error.
    pub(super) fn with<T>(&self, body: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T> {
        let mut lent = self.acquire()?;
        let Some(conn) = lent.conn.take() else { return Err(LogError::Busy { bytes: 0 }) };
        let value = body(&conn).map_err(|error| classify(&self.path, "read the event log", error))?;
        lent.conn = Some(conn);
        Ok(value)
    }
}

/// Event in its stored form.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoredEvent<'a> {
    pub(super) offset: u64,
    pub(super) batch_ms: i64,
    pub(super) line: &'a [u8],
}

/// Reason why a scan stopped before its limit.
enum ScanStop {
    Sqlite(rusqlite::Error),
    /// A row with a wrong checksum, one that `visit` cannot read, or a missing row.
    Damaged,
}

impl From<rusqlite::Error> for ScanStop {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

/// Passes the stored events of a stream after `from` to `visit`, up to `limit`. Returns the stream's head within the bound.
///
/// # Errors
/// [`LogError::Corrupt`] when the very next event cannot be read: its `lost` says where the reader can continue.
pub(super) fn scan(
    readers: &ReaderPool,
    (heads, bound): (&RwLock<StreamHeads>, ReadBound),
    session: &SessionId,
    from: u64,
    limit: ReadLimit,
    mut visit: impl FnMut(StoredEvent<'_>) -> Result<(), serde_json::Error>,
) -> Result<StreamPosition> {
    let unknown = || LogError::Unknown { session: session.clone() };
    let find = || {
        let found = read_lock(heads).get(BatchTarget::Stream, session).ok_or_else(unknown)?;
        Ok::<_, LogError>(StreamHead { head: found.head.within(bound), ..found })
    };
    let mut stream = find()?;
    let mut reached = from;
    loop {
        let last = stream.head.last;
        if from >= last {
            break;
        }
        let stopped = readers.with(|conn| match rows(conn, &stream, &mut reached, limit, &mut visit) {
            Ok(()) => Ok(false),
            Err(ScanStop::Damaged) => Ok(true),
            Err(ScanStop::Sqlite(error)) => Err(error),
        });
        let damaged = match stopped {
            Ok(damaged) => damaged,
            Err(LogError::Corrupt { .. }) => true,
            Err(error) => return Err(error),
        };
        // Events read before the damage are good.
        if !damaged || reached > from {
            break;
        }
        // The head in the file is never older than the rows read above; `heads` may be, for a moment.
        let sql = "SELECT first FROM streams WHERE id = ? AND name IS NOT NULL";
        let kept = readers.with(|conn| conn.query_row(sql, [stream.id], |row| row.get::<_, i64>(0)).optional());
        let kept = match kept {
            Ok(kept) => kept.map(i64::cast_unsigned).ok_or_else(unknown)?,
            Err(_) => 0,
        };
        if kept > stream.head.first.max(from + 1) {
            // No damage: retention has removed the events meanwhile.
            let now = find()?.head;
            (stream.head.first, stream.head.last) = (kept, now.last);
            if kept > now.last {
                break;
            }
        } else {
            let lost = damage(readers, stream.id, stream.head.first.max(from + 1), last);
            let OffsetGap { from, to } = lost;
            let detail = format!(
                "events {from} to {to} of {session} are damaged; the others can be read: export what you need, then \
                 move the file away or delete the session"
            );
            return Err(LogError::Corrupt { path: (*readers.path).clone(), detail, lost: Some(lost) });
        }
    }
    let now = find()?.head;
    // Retention may have continued meanwhile.
    let first = now.first.max(stream.head.first);
    Ok(StreamPosition { first, last: stream.head.last.max(first - 1), ..now })
}

fn rows(
    conn: &Connection,
    stream: &StreamHead,
    reached: &mut u64,
    limit: ReadLimit,
    visit: &mut impl FnMut(StoredEvent<'_>) -> Result<(), serde_json::Error>,
) -> Result<(), ScanStop> {
    let from = *reached;
    let stream_last = stream.head.last;
    let mut expected = stream.head.first.max(from + 1);
    let sql = "SELECT first, last, created_ms, sum, body FROM batches WHERE stream = ?1 AND first >= coalesce(
        (SELECT first FROM batches WHERE stream = ?1 AND first <= ?2 ORDER BY first DESC LIMIT 1), 0) ORDER BY first";
    let mut query = conn.prepare_cached(sql)?;
    let next = i64::try_from(from.saturating_add(1)).unwrap_or(i64::MAX);
    let mut rows = query.query(params![stream.id, next])?;
    let (mut events, mut bytes) = (0, 0);
    while let Some(row) = rows.next()? {
        let first = row.get::<_, i64>(0)?.cast_unsigned();
        let last = row.get::<_, i64>(1)?.cast_unsigned();
        let batch_ms = row.get(2)?;
        let body = row.get_ref(4)?.as_blob().unwrap_or_default();
        if last <= from {
            continue;
        }
        if first > expected {
            return Err(ScanStop::Damaged);
        }
        if first > stream_last {
            return Ok(());
        }
        if row.get::<_, i64>(3)? != i64::from(checksum(first, last, batch_ms, body)) {
            return Err(ScanStop::Damaged);
        }
        expected = last + 1;
        // The events have the row's last offsets: a gap may come before the first.
        let count = memchr::memchr_iter(b'\n', body).count() as u64;
        let mut offset = last.saturating_sub(count);
        let mut begin = 0;
        for end in memchr::memchr_iter(b'\n', body) {
            offset += 1;
            let line = &body[begin..end];
            begin = end + 1;
            if offset <= from {
                continue;
            }
            // The rest of the row is not acknowledged.
            if offset > stream_last {
                return Ok(());
            }
            if visit(StoredEvent { offset, batch_ms, line }).is_err() {
                return Err(ScanStop::Damaged);
            }
            *reached = offset;
            events += 1;
            bytes += line.len();
            if events >= limit.events || bytes >= limit.bytes {
                return Ok(());
            }
        }
    }
    // A stream has no holes: a missing row is damage.
    if expected <= stream_last { Err(ScanStop::Damaged) } else { Ok(()) }
}

/// Finds the end of the damage that begins at `from`. Tests row by row, since a walk over the table stops at the
/// damage.
fn damage(readers: &ReaderPool, stream: i64, from: u64, last: u64) -> OffsetGap {
    let candidates = readers.with(|conn| {
        let sql = "SELECT gid, first FROM batches INDEXED BY batches_by_offset
            WHERE stream = ? AND first > ? AND first <= ? ORDER BY first";
        let mut query = conn.prepare(sql)?;
        let params = params![stream, from.cast_signed(), last.cast_signed()];
        let found = query.query_map(params, |row| Ok((row.get(0)?, row.get(1)?)))?;
        // If the index is damaged too, use its entries before the damage.
        Ok(found.map_while(Result::ok).collect::<Vec<(i64, i64)>>())
    });
    let good = |gid| {
        readers.with(|conn| {
            conn.query_row("SELECT first, last, created_ms, sum, body FROM batches WHERE gid = ?", [gid], |row| {
                let body = row.get_ref(4)?.as_blob().unwrap_or_default();
                let [first, last] = [row.get::<_, i64>(0)?, row.get(1)?].map(i64::cast_unsigned);
                Ok(row.get::<_, i64>(3)? == i64::from(checksum(first, last, row.get(2)?, body)))
            })
        })
    };
    let next = candidates.unwrap_or_default().into_iter().find(|(gid, _)| matches!(good(*gid), Ok(true)));
    OffsetGap { from, to: next.map_or(last, |(_, first)| first.cast_unsigned() - 1) }
}
