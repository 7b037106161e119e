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
    SharedState, apply, byte_streams,
    heads::{StreamHead, StreamHeads},
    queue::RequestedPass,
    read_lock,
};
use crate::{OnCommit, Retention, line, store::BatchTarget};

/// Most rows that a slice examines.
const SLICE_ROWS: usize = 64;
/// Bytes that a slice removes; one row more may be removed.
const SLICE_BYTES: u64 = 512 * 1024;
/// Free pages that the file keeps for the next appends.
const FREE_PAGES: i64 = 256;

/// Pending background work.
#[derive(derive_more::Debug, Default)]
pub(super) struct RetentionChores {
    deleted_streams: Vec<i64>,
    deleted_byte_streams: Vec<i64>,
    pass: Option<RetentionPass>,
    /// Callbacks that wait for the end of the pass.
    #[debug("{}", waiting.len())]
    waiting: Vec<OnCommit>,
    vacuum: bool,
    /// Set after a failure, until new work is requested.
    is_paused: bool,
}

/// Pass of retention in progress.
#[derive(Debug)]
struct RetentionPass {
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
struct OldestBatch {
    gid: i64,
    stream: i64,
    last: u64,
    created_ms: i64,
    bytes: u64,
}

impl OldestBatch {
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
pub(super) struct SliceOutcome {
    /// Number of events.
    pub(super) removed: u64,
    rows: usize,
    bytes: u64,
    heads: HashMap<SessionId, StreamHead>,
}

impl SliceOutcome {
    fn is_full(&self) -> bool {
        self.rows >= SLICE_ROWS || self.bytes >= SLICE_BYTES
    }

    /// Publishes the new heads, once the slice is committed.
    pub(super) fn publish(self, heads: &mut StreamHeads) {
        for (session, stream) in self.heads {
            heads.set(BatchTarget::Stream, session, Some(stream));
        }
    }

    fn stream(&self, heads: &RwLock<StreamHeads>, session: &SessionId) -> Option<StreamHead> {
        self.heads.get(session).copied().or_else(|| read_lock(heads).get(BatchTarget::Stream, session))
    }

    /// Removes the oldest batch of a stream.
    fn remove(
        &mut self,
        conn: &Connection,
        session: &SessionId,
        mut stream: StreamHead,
        oldest: &OldestBatch,
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

impl RetentionChores {
    /// Starts with streams whose deletion was not finished.
    pub(super) fn new(deleted_streams: Vec<i64>, deleted_byte_streams: Vec<i64>) -> Self {
        Self { deleted_streams, deleted_byte_streams, ..Self::default() }
    }

    pub(super) fn is_pending(&self) -> bool {
        let is_deleting = !self.deleted_streams.is_empty() || !self.deleted_byte_streams.is_empty();
        !self.is_paused && (is_deleting || self.pass.is_some() || self.vacuum)
    }

    /// Adds streams to be removed.
    pub(super) fn remove(&mut self, doomed: Vec<i64>) {
        if !doomed.is_empty() {
            self.deleted_streams.extend(doomed);
            self.is_paused = false;
        }
    }

    /// Adds byte streams to be removed.
    pub(super) fn remove_bytes(&mut self, doomed: Vec<i64>) {
        if !doomed.is_empty() {
            self.deleted_byte_streams.extend(doomed);
            self.is_paused = false;
        }
    }

    /// Begins a pass, in place of one that has not ended.
    pub(super) fn begin(&mut self, RequestedPass { retention, done }: RequestedPass, shared: &SharedState) {
        self.waiting.extend(done);
        let heads = read_lock(&shared.heads);
        let age = retention.max_age.unwrap_or(Duration::ZERO);
        let oldest = SystemTime::now().checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH);
        self.pass = Some(RetentionPass {
            retention,
            oldest_ms: line::millis(oldest),
            sessions: heads.iter().map(|(session, _)| session.clone()).collect(),
            names: heads.iter().map(|(session, stream)| (stream.id, session.clone())).collect(),
            gid: i64::MIN,
        });
        self.is_paused = false;
    }

    /// Takes the callbacks of a pass that is over.
    pub(super) fn take_finished(&mut self) -> Vec<OnCommit> {
        if self.pass.is_none() { std::mem::take(&mut self.waiting) } else { Vec::new() }
    }

    /// Abandons the pass after a failure and returns its callbacks. The next pass or deletion tries again.
    pub(super) fn give_up(&mut self) -> Vec<OnCommit> {
        self.pass = None;
        self.is_paused = true;
        std::mem::take(&mut self.waiting)
    }

    /// Does one slice of work, within a transaction.
    pub(super) fn slice(
        &mut self,
        conn: &Connection,
        heads: &RwLock<StreamHeads>,
        idle: bool,
    ) -> rusqlite::Result<SliceOutcome> {
        let mut slice = SliceOutcome::default();
        if let Some(id) = self.deleted_streams.last().copied() {
            if purge_stream(conn, id, &mut slice)? {
                self.deleted_streams.pop();
                self.vacuum = true;
            }
        } else if let Some(id) = self.deleted_byte_streams.last().copied() {
            if byte_streams::purge(conn, id)? {
                self.deleted_byte_streams.pop();
                self.vacuum = true;
            }
        } else if let Some(pass) = &mut self.pass {
            if pass.step(conn, heads, &mut slice)? {
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

/// Returns true if events of a batch wait for their acknowledgement: retention leaves those.
fn is_unacknowledged(stream: &StreamHead, batch: &OldestBatch) -> bool {
    batch.last > stream.head.readable()
}

/// Removes a batch. Its `gid` is not reused, even if it is the last one.
pub(super) fn delete(conn: &Connection, gid: i64) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM batches WHERE gid = ?")?.execute([gid])?;
    conn.prepare_cached("UPDATE position SET gid = ?1 WHERE gid < ?1")?.execute([gid])?;
    Ok(())
}

/// Removes some batches of a stream without a name, and finally the stream. Returns true once it is gone.
fn purge_stream(conn: &Connection, id: i64, slice: &mut SliceOutcome) -> rusqlite::Result<bool> {
    let sql = "SELECT gid, stream, last, created_ms, bytes FROM batches WHERE stream = ? ORDER BY first LIMIT 1";
    while !slice.is_full() {
        let Some(oldest) = conn.prepare_cached(sql)?.query_row([id], OldestBatch::of).optional()? else {
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
struct LogTotal {
    events: u64,
    bytes: u64,
}

impl LogTotal {
    fn with(self, stream: &StreamHead) -> Self {
        let events = (stream.head.last + 1).saturating_sub(stream.head.first);
        Self { events: self.events.saturating_add(events), bytes: self.bytes.saturating_add(stream.head.bytes) }
    }
}

impl RetentionPass {
    /// Continues the pass. Returns true when it is over.
    fn step(
        &mut self,
        conn: &Connection,
        heads: &RwLock<StreamHeads>,
        slice: &mut SliceOutcome,
    ) -> rusqlite::Result<bool> {
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
                Some(stream) => conn.prepare_cached(sql)?.query_row([stream.id], OldestBatch::of).optional()?,
                None => None,
            };
            match stream.zip(oldest) {
                Some((stream, oldest)) if self.exceeds_bounds(&stream, &oldest) => {
                    slice.remove(conn, session, stream, &oldest)?;
                }
                _ => drop(self.sessions.pop_front()),
            }
        }
        self.step_total(conn, heads, slice)
    }

    fn exceeds_bounds(&self, stream: &StreamHead, oldest: &OldestBatch) -> bool {
        let Retention { max_age, max_events_per_session, max_bytes_per_session, .. } = self.retention;
        let head = &stream.head;
        if is_unacknowledged(stream, oldest) {
            return false;
        }
        let is_newest = oldest.last == head.last;
        let too_old = max_age.is_some() && oldest.created_ms < self.oldest_ms;
        let too_many = max_events_per_session.is_some_and(|max| head.last + 1 - head.first > max);
        let too_large = max_bytes_per_session.is_some_and(|max| head.bytes > max);
        too_old || (!is_newest && (too_many || too_large))
    }

    fn step_total(
        &mut self,
        conn: &Connection,
        heads: &RwLock<StreamHeads>,
        slice: &mut SliceOutcome,
    ) -> rusqlite::Result<bool> {
        let Retention { max_events_total, max_bytes_total, .. } = self.retention;
        if max_events_total.is_none() && max_bytes_total.is_none() {
            return Ok(true);
        }
        let mut total = {
            let heads = read_lock(heads);
            let now = |(session, stream)| slice.heads.get(session).unwrap_or(stream);
            heads.iter().map(now).fold(LogTotal::default(), LogTotal::with)
        };
        while max_events_total.is_some_and(|max| total.events > max)
            || max_bytes_total.is_some_and(|max| total.bytes > max)
        {
            if slice.is_full() {
                return Ok(false);
            }
            slice.rows += 1;
            let sql = "SELECT gid, stream, last, created_ms, bytes FROM batches WHERE gid > ? ORDER BY gid LIMIT 1";
            let oldest = conn.prepare_cached(sql)?.query_row(params![self.gid], OldestBatch::of).optional()?;
            let Some(oldest) = oldest else { return Ok(true) };
            self.gid = oldest.gid;
            // A batch of a stream created since the pass began, or of one without a name: not for this pass to
            // remove.
            let Some(session) = self.names.get(&oldest.stream) else { continue };
            let Some(stream) = slice.stream(heads, session).filter(|stream| stream.id == oldest.stream) else {
                continue;
            };
            if is_unacknowledged(&stream, &oldest) {
                continue;
            }
            let before = slice.removed;
            slice.remove(conn, session, stream, &oldest)?;
            total.events = total.events.saturating_sub(slice.removed - before);
            total.bytes = total.bytes.saturating_sub(oldest.bytes);
        }
        Ok(true)
    }
}
