//! Background work of the writer: retention, removal of deleted streams, and giving freed pages back. Done in
//! slices, so that appends never wait long.

use std::{
    collections::{HashMap, VecDeque},
    sync::RwLock,
    time::{Duration, SystemTime},
};

use ipc_protocol::SessionId;
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::{
    Shared, apply,
    heads::{Heads, Stream},
    queue::Asked,
    read_lock,
};
use crate::{Done, Retention, line, store::Target};

/// Most rows that a slice examines.
const SLICE_ROWS: usize = 64;
/// Bytes that a slice removes; one row more may be removed.
const SLICE_BYTES: u64 = 512 * 1024;
/// Free pages that the file keeps for the next appends.
const FREE_PAGES: i64 = 256;

/// Pending background work.
#[derive(derive_more::Debug, Default)]
pub(super) struct Chores {
    doomed: Vec<i64>,
    pass: Option<Pass>,
    /// Callbacks that wait for the end of the pass.
    #[debug("{}", waiting.len())]
    waiting: Vec<Done>,
    vacuum: bool,
    /// Set after a failure, until new work is requested.
    resting: bool,
}

/// Pass of retention in progress.
#[derive(Debug)]
struct Pass {
    retention: Retention,
    oldest_ms: i64,
    /// Streams that have not been examined yet.
    sessions: VecDeque<SessionId>,
    names: HashMap<i64, SessionId>,
    /// Last batch examined for the bounds on the total.
    gid: i64,
}

/// Oldest batch of a stream, or of all.
#[derive(Clone, Copy, Debug)]
struct Oldest {
    gid: i64,
    stream: i64,
    last: u64,
    created_ms: i64,
    bytes: u64,
}

impl Oldest {
    fn of(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            gid: row.get(0)?,
            stream: row.get(1)?,
            last: row.get::<_, i64>(2)?.cast_unsigned(),
            created_ms: row.get(3)?,
            bytes: row.get::<_, i64>(4)?.cast_unsigned(),
        })
    }
}

/// Changes made by one slice.
#[derive(Debug, Default)]
pub(super) struct Slice {
    /// Number of events.
    pub(super) removed: u64,
    rows: usize,
    bytes: u64,
    heads: HashMap<SessionId, Stream>,
}

impl Slice {
    fn is_full(&self) -> bool {
        self.rows >= SLICE_ROWS || self.bytes >= SLICE_BYTES
    }

    /// Publishes the new heads, once the slice is committed.
    pub(super) fn publish(self, heads: &mut Heads) {
        for (session, stream) in self.heads {
            heads.set(Target::Stream, session, Some(stream));
        }
    }

    fn stream(&self, heads: &RwLock<Heads>, session: &SessionId) -> Option<Stream> {
        self.heads.get(session).copied().or_else(|| read_lock(heads).get(Target::Stream, session))
    }

    /// Removes the oldest batch of a stream.
    fn remove(
        &mut self,
        conn: &Connection,
        session: &SessionId,
        mut stream: Stream,
        oldest: &Oldest,
    ) -> rusqlite::Result<()> {
        delete(conn, oldest.gid)?;
        self.removed += (oldest.last + 1).saturating_sub(stream.head.first);
        self.bytes += oldest.bytes;
        stream.head.first = oldest.last + 1;
        stream.head.bytes = stream.head.bytes.saturating_sub(oldest.bytes);
        self.heads.insert(session.clone(), stream);
        Ok(())
    }
}

impl Chores {
    /// Starts with streams whose deletion was not finished.
    pub(super) fn new(doomed: Vec<i64>) -> Self {
        Self { doomed, ..Self::default() }
    }

    pub(super) fn are_pending(&self) -> bool {
        !self.resting && (!self.doomed.is_empty() || self.pass.is_some() || self.vacuum)
    }

    /// Adds streams to be removed.
    pub(super) fn remove(&mut self, doomed: Vec<i64>) {
        if !doomed.is_empty() {
            self.doomed.extend(doomed);
            self.resting = false;
        }
    }

    /// Begins a pass, in place of one that has not ended.
    pub(super) fn begin(&mut self, Asked { retention, done }: Asked, shared: &Shared) {
        self.waiting.extend(done);
        let heads = read_lock(&shared.heads);
        let age = retention.max_age.unwrap_or(Duration::ZERO);
        let oldest = SystemTime::now().checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH);
        self.pass = Some(Pass {
            retention,
            oldest_ms: line::millis(oldest),
            sessions: heads.iter().map(|(session, _)| session.clone()).collect(),
            names: heads.iter().map(|(session, stream)| (stream.id, session.clone())).collect(),
            gid: i64::MIN,
        });
        self.resting = false;
    }

    /// Takes the callbacks of a pass that is over.
    pub(super) fn told(&mut self) -> Vec<Done> {
        if self.pass.is_none() { std::mem::take(&mut self.waiting) } else { Vec::new() }
    }

    /// Abandons the pass after a failure and returns its callbacks. The next pass or deletion tries again.
    pub(super) fn give_up(&mut self) -> Vec<Done> {
        self.pass = None;
        self.resting = true;
        std::mem::take(&mut self.waiting)
    }

    /// Does one slice of work, within a transaction.
    pub(super) fn slice(&mut self, conn: &Connection, heads: &RwLock<Heads>, idle: bool) -> rusqlite::Result<Slice> {
        let mut slice = Slice::default();
        if let Some(id) = self.doomed.last().copied() {
            if bury(conn, id, &mut slice)? {
                self.doomed.pop();
                self.vacuum = true;
            }
        } else if let Some(pass) = &mut self.pass {
            if pass.go_on(conn, heads, &mut slice)? {
                self.pass = None;
                self.vacuum = true;
            }
            for stream in slice.heads.values() {
                apply::store(conn, stream)?;
            }
        } else if idle {
            let free: i64 = conn.pragma_query_value(None, "freelist_count", |row| row.get(0))?;
            self.vacuum = free > FREE_PAGES;
            if self.vacuum {
                conn.execute_batch("PRAGMA incremental_vacuum(128)")?;
            }
        } else {
            // Appends reuse the freed pages. The next pass checks again.
            self.vacuum = false;
        }
        Ok(slice)
    }
}

/// Removes a batch. Its `gid` is not reused, even if it is the last one.
fn delete(conn: &Connection, gid: i64) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM batches WHERE gid = ?")?.execute([gid])?;
    conn.prepare_cached("UPDATE position SET gid = ?1 WHERE gid < ?1")?.execute([gid])?;
    Ok(())
}

/// Removes some batches of a stream without a name, and finally the stream. Returns true once it is gone.
fn bury(conn: &Connection, id: i64, slice: &mut Slice) -> rusqlite::Result<bool> {
    let sql = "SELECT gid, stream, last, created_ms, bytes FROM batches WHERE stream = ? ORDER BY first LIMIT 1";
    while !slice.is_full() {
        let Some(oldest) = conn.prepare_cached(sql)?.query_row([id], Oldest::of).optional()? else {
            conn.prepare_cached("DELETE FROM streams WHERE id = ?")?.execute([id])?;
            return Ok(true);
        };
        delete(conn, oldest.gid)?;
        slice.rows += 1;
        slice.bytes += oldest.bytes;
    }
    Ok(false)
}

/// Sums over all streams.
#[derive(Clone, Copy, Debug, Default)]
struct Total {
    events: u64,
    bytes: u64,
}

impl Total {
    fn with(self, stream: &Stream) -> Self {
        let events = (stream.head.last + 1).saturating_sub(stream.head.first);
        Self { events: self.events.saturating_add(events), bytes: self.bytes.saturating_add(stream.head.bytes) }
    }
}

impl Pass {
    /// Continues the pass. Returns true when it is over.
    fn go_on(&mut self, conn: &Connection, heads: &RwLock<Heads>, slice: &mut Slice) -> rusqlite::Result<bool> {
        while let Some(session) = self.sessions.front() {
            if slice.is_full() {
                return Ok(false);
            }
            slice.rows += 1;
            // The stream may have been deleted since the pass began.
            let stream = slice.stream(heads, session);
            let sql =
                "SELECT gid, stream, last, created_ms, bytes FROM batches WHERE stream = ? ORDER BY first LIMIT 1";
            let oldest = match stream {
                Some(stream) => conn.prepare_cached(sql)?.query_row([stream.id], Oldest::of).optional()?,
                None => None,
            };
            match stream.zip(oldest) {
                Some((stream, oldest)) if self.is_too_much(&stream, &oldest) => {
                    slice.remove(conn, session, stream, &oldest)?;
                }
                _ => drop(self.sessions.pop_front()),
            }
        }
        self.go_on_with_total(conn, heads, slice)
    }

    fn is_too_much(&self, stream: &Stream, oldest: &Oldest) -> bool {
        let Retention { max_age, max_events_per_session, max_bytes_per_session, .. } = self.retention;
        let head = &stream.head;
        let is_newest = oldest.last == head.last;
        let too_old = max_age.is_some() && oldest.created_ms < self.oldest_ms;
        let too_many = max_events_per_session.is_some_and(|max| head.last + 1 - head.first > max);
        let too_large = max_bytes_per_session.is_some_and(|max| head.bytes > max);
        too_old || (!is_newest && (too_many || too_large))
    }

    fn go_on_with_total(
        &mut self,
        conn: &Connection,
        heads: &RwLock<Heads>,
        slice: &mut Slice,
    ) -> rusqlite::Result<bool> {
        let Retention { max_events_total, max_bytes_total, .. } = self.retention;
        if max_events_total.is_none() && max_bytes_total.is_none() {
            return Ok(true);
        }
        let mut total = {
            let heads = read_lock(heads);
            let now = |(session, stream)| slice.heads.get(session).unwrap_or(stream);
            heads.iter().map(now).fold(Total::default(), Total::with)
        };
        while max_events_total.is_some_and(|max| total.events > max)
            || max_bytes_total.is_some_and(|max| total.bytes > max)
        {
            if slice.is_full() {
                return Ok(false);
            }
            slice.rows += 1;
            let sql = "SELECT gid, stream, last, created_ms, bytes FROM batches WHERE gid > ? ORDER BY gid LIMIT 1";
            let oldest = conn.prepare_cached(sql)?.query_row(params![self.gid], Oldest::of).optional()?;
            let Some(oldest) = oldest else { return Ok(true) };
            self.gid = oldest.gid;
            // A batch of a stream created since the pass began, or of one without a name: not for this pass to
            // remove.
            let Some(session) = self.names.get(&oldest.stream) else { continue };
            let Some(stream) = slice.stream(heads, session).filter(|stream| stream.id == oldest.stream) else {
                continue;
            };
            let before = slice.removed;
            slice.remove(conn, session, stream, &oldest)?;
            total.events = total.events.saturating_sub(slice.removed - before);
            total.bytes = total.bytes.saturating_sub(oldest.bytes);
        }
        Ok(true)
    }
}
