//! Work of a job within a transaction. New stream heads are noted here, and published once the transaction is
//! committed.

use std::{collections::HashMap, sync::RwLock, time::SystemTime};

use ipc_protocol::SessionId;
use rusqlite::{Connection, params};

use super::{
    heads::{Heads, Stream},
    queue::Work,
    read_lock,
    rows::{Entry, checksum},
};
use crate::{
    Beat, Head, LogError, Result, line,
    store::{Change, Target},
};

/// Result of a job: done, or refused before anything was written. The outer error ends the transaction.
type Applied = rusqlite::Result<Result<()>>;

/// Transaction in progress.
#[derive(Debug)]
pub(super) struct Applying<'a> {
    conn: &'a Connection,
    heads: &'a RwLock<Heads>,
    streams: HashMap<SessionId, Option<Stream>>,
    imports: HashMap<SessionId, Option<Stream>>,
    /// Changes made so far.
    pub(super) outcome: Outcome,
}

/// Changes made by a transaction.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) events: u64,
    pub(super) bytes: u64,
    /// Streams that have lost their name and are to be removed.
    pub(super) doomed: Vec<i64>,
    heads: Vec<(Target, SessionId, Option<Stream>)>,
}

impl Outcome {
    /// Publishes the new heads, once the transaction is committed.
    pub(super) fn publish(&mut self, heads: &mut Heads) {
        for (target, session, stream) in self.heads.drain(..) {
            heads.set(target, session, stream);
        }
    }
}

impl<'a> Applying<'a> {
    pub(super) fn new(conn: &'a Connection, heads: &'a RwLock<Heads>) -> Self {
        Self { conn, heads, streams: HashMap::new(), imports: HashMap::new(), outcome: Outcome::default() }
    }

    fn stream(&self, target: Target, session: &SessionId) -> Option<Stream> {
        let changed = match target {
            Target::Stream => self.streams.get(session),
            Target::Import => self.imports.get(session),
        };
        changed.copied().unwrap_or_else(|| read_lock(self.heads).get(target, session))
    }

    fn set(&mut self, target: Target, session: &SessionId, stream: Option<Stream>) {
        let map = match target {
            Target::Stream => &mut self.streams,
            Target::Import => &mut self.imports,
        };
        match map.get_mut(session) {
            Some(known) => *known = stream,
            None => drop(map.insert(session.clone(), stream)),
        }
    }

    pub(super) fn apply(&mut self, work: &Work) -> Applied {
        match work {
            Work::Append(entry, target) => self.append(entry, *target),
            Work::Change(change) => self.change(change),
        }
    }

    fn append(&mut self, entry: &Entry, target: Target) -> Applied {
        let session = &*entry.session;
        let known = self.stream(target, session);
        let head = known.map_or(Head { first: 1, ..Head::default() }, |stream| stream.head);
        if head.closed {
            return Ok(Err(LogError::Closed { session: session.clone() }));
        }
        let anywhere = known.is_none() && target == Target::Import;
        if entry.events > 0 && entry.first != head.last + 1 && !anywhere {
            return Ok(Err(LogError::Order { session: session.clone(), expected: head.last + 1, found: entry.first }));
        }
        let mut stream = match known {
            Some(stream) => stream,
            None => Stream { id: self.create(target, session)?, head },
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

    fn create(&self, target: Target, session: &SessionId) -> rusqlite::Result<i64> {
        let name = (target == Target::Stream).then(|| session.as_str());
        self.conn.prepare_cached("INSERT INTO streams (name) VALUES (?)")?.insert([name])
    }

    fn set_cursor(&self, stream: i64, consumer: &str, offset: u64) -> rusqlite::Result<()> {
        let sql = "INSERT INTO cursors (stream, consumer, offset) VALUES (?, ?, ?)
            ON CONFLICT (stream, consumer) DO UPDATE SET offset = excluded.offset";
        self.conn.prepare_cached(sql)?.execute(params![stream, consumer, offset.cast_signed()])?;
        Ok(())
    }

    fn change(&mut self, change: &Change) -> Applied {
        let unknown = |session: &SessionId| Ok(Err(LogError::Unknown { session: session.clone() }));
        match change {
            Change::Nothing => {}
            Change::Close(session) => {
                let Some(mut stream) = self.stream(Target::Stream, session) else { return unknown(session) };
                stream.head.closed = true;
                self.set(Target::Stream, session, Some(stream));
            }
            Change::Delete(session) => {
                let Some(stream) = self.stream(Target::Stream, session) else { return unknown(session) };
                self.doom(stream.id)?;
                self.set(Target::Stream, session, None);
            }
            Change::SetCursor { consumer, session, offset } => {
                let Some(stream) = self.stream(Target::Stream, session) else { return unknown(session) };
                self.set_cursor(stream.id, consumer, *offset)?;
            }
            Change::PutSession(id, record) => {
                let sql = "INSERT INTO sessions (id, record, updated_ms) VALUES (?, ?, ?)
                    ON CONFLICT (id) DO UPDATE SET record = excluded.record, updated_ms = excluded.updated_ms";
                let now = line::millis(SystemTime::now());
                self.conn.prepare_cached(sql)?.execute(params![id.as_str(), record, now])?;
            }
            Change::DeleteSession(id) => {
                self.conn.prepare_cached("DELETE FROM sessions WHERE id = ?")?.execute([id.as_str()])?;
            }
            Change::Beat(Beat { host, at }) => {
                let sql = "INSERT INTO beat (one, host, at_ms) VALUES (1, ?, ?)
                    ON CONFLICT (one) DO UPDATE SET host = excluded.host, at_ms = excluded.at_ms";
                self.conn.prepare_cached(sql)?.execute(params![host, line::millis(*at)])?;
            }
            Change::Publish(session, closed) => return self.publish(session, *closed),
            Change::Discard(session) => {
                if let Some(stream) = self.stream(Target::Import, session) {
                    self.doom(stream.id)?;
                    self.set(Target::Import, session, None);
                }
            }
        }
        Ok(Ok(()))
    }

    /// Turns an import into a stream, all at once.
    fn publish(&mut self, session: &SessionId, closed: bool) -> Applied {
        if self.stream(Target::Stream, session).is_some() {
            return Ok(Err(LogError::Exists { session: session.clone() }));
        }
        let Some(mut stream) = self.stream(Target::Import, session) else {
            return Ok(Err(LogError::Unknown { session: session.clone() }));
        };
        let sql = "UPDATE streams SET name = ? WHERE id = ?";
        self.conn.prepare_cached(sql)?.execute(params![session.as_str(), stream.id])?;
        stream.head.closed = closed;
        self.set(Target::Import, session, None);
        self.set(Target::Stream, session, Some(stream));
        Ok(Ok(()))
    }

    /// Removes a stream's name and cursors. Its batches are removed later, a few at a time.
    fn doom(&mut self, id: i64) -> rusqlite::Result<()> {
        self.conn.prepare_cached("UPDATE streams SET name = NULL WHERE id = ?")?.execute([id])?;
        self.conn.prepare_cached("DELETE FROM cursors WHERE stream = ?")?.execute([id])?;
        self.outcome.doomed.push(id);
        Ok(())
    }

    /// Writes the new stream heads, and returns all changes.
    pub(super) fn finish(self) -> rusqlite::Result<Outcome> {
        let mut outcome = self.outcome;
        let streams = self.streams.into_iter().map(|(session, stream)| (Target::Stream, session, stream));
        let imports = self.imports.into_iter().map(|(session, stream)| (Target::Import, session, stream));
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
pub(super) fn store(conn: &Connection, stream: &Stream) -> rusqlite::Result<()> {
    let Head { first, last, closed, source, bytes } = stream.head;
    let sql = "UPDATE streams SET first = ?, last = ?, closed = ?, source = ?, bytes = ? WHERE id = ?";
    let [first, last, source, bytes] = [first, last, source, bytes].map(u64::cast_signed);
    conn.prepare_cached(sql)?.execute(params![first, last, closed, source, bytes, stream.id])?;
    Ok(())
}
