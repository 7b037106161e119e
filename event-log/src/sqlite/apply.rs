//! Work of a job within a transaction. New stream heads are noted here, and published once the transaction is
//! committed.

use std::{
    collections::HashMap,
    sync::{PoisonError, RwLock},
    time::SystemTime,
};

use ipc_protocol::SessionId;
use rusqlite::{Connection, params};

use super::{
    byte_streams::{ByteStreamChanges, ByteStreamHeads, ByteStreamTransaction},
    heads::{StreamHead, StreamHeads},
    ownership,
    queue::WorkItem,
    read_lock,
    rows::{EncodedBatch, checksum},
};
use crate::{
    Heartbeat, LogError, MAX_REQUESTS, REQUEST_RETENTION, Result, StreamPosition, line,
    store::{BatchTarget, LogChange},
};

/// Result of a job: done, or refused before anything was written. The outer error ends the transaction.
pub(super) type ApplyResult = rusqlite::Result<Result<()>>;

/// Transaction in progress.
#[derive(Debug)]
pub(super) struct OpenTransaction<'a> {
    pub(super) conn: &'a Connection,
    heads: &'a RwLock<StreamHeads>,
    streams: HashMap<SessionId, Option<StreamHead>>,
    imports: HashMap<SessionId, Option<StreamHead>>,
    byte_streams: ByteStreamTransaction<'a>,
    /// Changes made so far.
    pub(super) outcome: CommitOutcome,
}

/// Changes made by a transaction.
#[derive(Debug, Default)]
pub(super) struct CommitOutcome {
    pub(super) events: u64,
    pub(super) bytes: u64,
    /// Streams that have lost their name and are to be removed.
    pub(super) deleted_streams: Vec<i64>,
    heads: Vec<(BatchTarget, SessionId, Option<StreamHead>)>,
    /// Changes of byte streams.
    pub(super) byte_streams: ByteStreamChanges,
}

impl CommitOutcome {
    /// Publishes the new heads, once the transaction is committed.
    pub(super) fn publish(&mut self, heads: &mut StreamHeads) {
        for (target, session, stream) in self.heads.drain(..) {
            heads.set(target, session, stream);
        }
    }
}

impl<'a> OpenTransaction<'a> {
    pub(super) fn new(
        conn: &'a Connection,
        heads: &'a RwLock<StreamHeads>,
        byte_heads: &'a RwLock<ByteStreamHeads>,
    ) -> Self {
        Self {
            conn,
            heads,
            streams: HashMap::new(),
            imports: HashMap::new(),
            byte_streams: ByteStreamTransaction::new(conn, byte_heads),
            outcome: CommitOutcome::default(),
        }
    }

    pub(super) fn stream(&self, target: BatchTarget, session: &SessionId) -> Option<StreamHead> {
        let changed = match target {
            BatchTarget::Stream => self.streams.get(session),
            BatchTarget::Import => self.imports.get(session),
        };
        changed.copied().unwrap_or_else(|| read_lock(self.heads).get(target, session))
    }

    pub(super) fn set(&mut self, target: BatchTarget, session: &SessionId, stream: Option<StreamHead>) {
        let map = match target {
            BatchTarget::Stream => &mut self.streams,
            BatchTarget::Import => &mut self.imports,
        };
        match map.get_mut(session) {
            Some(known) => *known = stream,
            None => drop(map.insert(session.clone(), stream)),
        }
    }

    pub(super) fn apply(&mut self, work: &WorkItem) -> ApplyResult {
        match work {
            WorkItem::Append(entry, target) => self.append(entry, *target),
            WorkItem::Change(change) => self.change(change),
            WorkItem::ByteStream(change, outcome) => {
                let done = self.byte_streams.apply(change)?;
                *outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
                Ok(Ok(()))
            }
        }
    }

    fn append(&mut self, entry: &EncodedBatch, target: BatchTarget) -> ApplyResult {
        let session = &*entry.session;
        let known = self.stream(target, session);
        let head = known.map_or(StreamPosition { first: 1, ..StreamPosition::default() }, |stream| stream.head);
        if head.closed {
            return Ok(Err(LogError::Closed { session: session.clone() }));
        }
        let anywhere = known.is_none() && target == BatchTarget::Import;
        if entry.events > 0 && entry.first != head.last + 1 && !anywhere {
            return Ok(Err(LogError::Order { session: session.clone(), expected: head.last + 1, found: entry.first }));
        }
        let mut stream = match known {
            Some(stream) => stream,
            None => StreamHead { id: self.create(target, session)?, head },
        };
        if anywhere && entry.events > 0 {
            stream.head.first = entry.first;
        }
        let mut insert = self.conn.prepare_cached(
            "INSERT INTO batches (gid, stream, first, last, created_ms, source, bytes, sum, body) VALUES (1 + max(
                coalesce((SELECT gid FROM batches ORDER BY gid DESC LIMIT 1), 0), (SELECT gid FROM position)
            ), ?, ?, ?, ?, ?, ?, ?, ?)",
        )?;
        for (index, row) in entry.rows.iter().enumerate() {
            let source = if index + 1 == entry.rows.len() { entry.source } else { 0 };
            let sum = checksum(row.first, row.last, row.created_ms, &row.body);
            let (first, last) = (row.first.cast_signed(), row.last.cast_signed());
            let bytes = i64::try_from(row.body.len()).unwrap_or(i64::MAX);
            insert.execute(params![
                stream.id,
                first,
                last,
                row.created_ms,
                source.cast_signed(),
                bytes,
                sum,
                row.body
            ])?;
        }
        if let Some((consumer, offset)) = &entry.cursor {
            self.set_cursor(stream.id, consumer, *offset)?;
        }
        if entry.events > 0 {
            stream.head.last = entry.next - 1;
        }
        stream.head.bytes += entry.bytes;
        stream.head.source = stream.head.source.max(entry.source);
        self.set(target, session, Some(stream));
        self.outcome.events += entry.events;
        self.outcome.bytes += entry.bytes;
        Ok(Ok(()))
    }

    pub(super) fn create(&self, target: BatchTarget, session: &SessionId) -> rusqlite::Result<i64> {
        let name = (target == BatchTarget::Stream).then(|| session.as_str());
        self.conn.prepare_cached("INSERT INTO streams (name) VALUES (?)")?.insert([name])
    }

    fn set_cursor(&self, stream: i64, consumer: &str, offset: u64) -> rusqlite::Result<()> {
        let sql = "INSERT INTO cursors (stream, consumer, offset) VALUES (?, ?, ?)
            ON CONFLICT (stream, consumer) DO UPDATE SET offset = excluded.offset";
        self.conn.prepare_cached(sql)?.execute(params![stream, consumer, offset.cast_signed()])?;
        Ok(())
    }

    fn change(&mut self, change: &LogChange) -> ApplyResult {
        let unknown = |session: &SessionId| Ok(Err(LogError::Unknown { session: session.clone() }));
        match change {
            LogChange::Barrier => {}
            LogChange::Close(session) => {
                let Some(mut stream) = self.stream(BatchTarget::Stream, session) else { return unknown(session) };
                stream.head.closed = true;
                self.set(BatchTarget::Stream, session, Some(stream));
            }
            LogChange::Delete(session) => {
                let Some(stream) = self.stream(BatchTarget::Stream, session) else { return unknown(session) };
                self.mark_deleted(stream.id)?;
                self.set(BatchTarget::Stream, session, None);
            }
            LogChange::SetCursor { consumer, session, offset } => {
                let Some(stream) = self.stream(BatchTarget::Stream, session) else { return unknown(session) };
                self.set_cursor(stream.id, consumer, *offset)?;
            }
            LogChange::PutSession(id, record) => {
                let sql = "INSERT INTO sessions (id, record, updated_ms) VALUES (?, ?, ?)
                    ON CONFLICT (id) DO UPDATE SET record = excluded.record, updated_ms = excluded.updated_ms";
                let now = line::millis(SystemTime::now());
                self.conn.prepare_cached(sql)?.execute(params![id.as_str(), record, now])?;
            }
            LogChange::DeleteSession(id) => {
                self.conn.prepare_cached("DELETE FROM sessions WHERE id = ?")?.execute([id.as_str()])?;
            }
            LogChange::Heartbeat(Heartbeat { host, at }) => {
                let sql = "INSERT INTO beat (one, host, at_ms) VALUES (1, ?, ?)
                    ON CONFLICT (one) DO UPDATE SET host = excluded.host, at_ms = excluded.at_ms";
                self.conn.prepare_cached(sql)?.execute(params![host, line::millis(*at)])?;
            }
            LogChange::PutRequest(name, None) => {
                self.conn.prepare_cached("DELETE FROM requests WHERE name = ?")?.execute([name])?;
            }
            LogChange::PutRequest(name, Some(record)) => {
                let sql = "INSERT INTO requests (name, record, at_ms) VALUES (?, ?, ?)
                    ON CONFLICT (name) DO UPDATE SET record = excluded.record, at_ms = excluded.at_ms";
                let now = line::millis(SystemTime::now());
                self.conn.prepare_cached(sql)?.execute(params![name, record, now])?;
                let oldest = now - i64::try_from(REQUEST_RETENTION.as_millis()).unwrap_or(i64::MAX);
                let sql = "DELETE FROM requests WHERE at_ms < ?1 OR at_ms < (
                    SELECT at_ms FROM requests ORDER BY at_ms DESC LIMIT 1 OFFSET ?2)";
                self.conn.prepare_cached(sql)?.execute(params![oldest, MAX_REQUESTS as i64 - 1])?;
            }
            LogChange::Acknowledge(session, through) => return self.acknowledge(session, *through),
            LogChange::ContinueFrom(session, ownership) => return self.continue_from(session, *ownership),
            LogChange::PutAside(session, from) => return self.put_aside(session, *from),
            LogChange::Publish(session, closed) => return self.publish(session, *closed),
            LogChange::Discard(session) => {
                if let Some(stream) = self.stream(BatchTarget::Import, session) {
                    self.mark_deleted(stream.id)?;
                    self.set(BatchTarget::Import, session, None);
                }
            }
        }
        Ok(Ok(()))
    }

    /// Turns an import into a stream, all at once.
    fn publish(&mut self, session: &SessionId, closed: bool) -> ApplyResult {
        if self.stream(BatchTarget::Stream, session).is_some() {
            return Ok(Err(LogError::Exists { session: session.clone() }));
        }
        let Some(mut stream) = self.stream(BatchTarget::Import, session) else {
            return Ok(Err(LogError::Unknown { session: session.clone() }));
        };
        let sql = "UPDATE streams SET name = ? WHERE id = ?";
        self.conn.prepare_cached(sql)?.execute(params![session.as_str(), stream.id])?;
        stream.head.closed = closed;
        self.set(BatchTarget::Import, session, None);
        self.set(BatchTarget::Stream, session, Some(stream));
        Ok(Ok(()))
    }

    /// Removes a stream's name and cursors. Its batches are removed later, a few at a time.
    pub(super) fn mark_deleted(&mut self, id: i64) -> rusqlite::Result<()> {
        self.conn.prepare_cached("UPDATE streams SET name = NULL WHERE id = ?")?.execute([id])?;
        self.conn.prepare_cached("DELETE FROM cursors WHERE stream = ?")?.execute([id])?;
        self.conn.prepare_cached("DELETE FROM replicated WHERE stream = ?")?.execute([id])?;
        self.outcome.deleted_streams.push(id);
        Ok(())
    }

    /// Writes the new stream heads, and returns all changes.
    pub(super) fn finish(self) -> rusqlite::Result<CommitOutcome> {
        let mut outcome = self.outcome;
        outcome.byte_streams = self.byte_streams.finish();
        let streams = self.streams.into_iter().map(|(session, stream)| (BatchTarget::Stream, session, stream));
        let imports = self.imports.into_iter().map(|(session, stream)| (BatchTarget::Import, session, stream));
        for (target, session, stream) in imports.chain(streams) {
            if let Some(stream) = &stream {
                store(self.conn, stream)?;
            }
            outcome.heads.push((target, session, stream));
        }
        Ok(outcome)
    }
}

/// Writes a stream's head.
pub(super) fn store(conn: &Connection, stream: &StreamHead) -> rusqlite::Result<()> {
    let StreamPosition { first, last, closed, source, bytes, .. } = stream.head;
    let sql = "UPDATE streams SET first = ?, last = ?, closed = ?, source = ?, bytes = ? WHERE id = ?";
    let [first, last, source, bytes] = [first, last, source, bytes].map(u64::cast_signed);
    conn.prepare_cached(sql)?.execute(params![first, last, closed, source, bytes, stream.id])?;
    ownership::store(conn, stream)
}
