//! Replicated streams: acknowledgement, change of the owner, events that are put aside.

use std::time::SystemTime;

use ipc_protocol::SessionId;
use rusqlite::{Connection, params};

use super::{
    apply::{ApplyResult, OpenTransaction},
    heads::StreamHead,
    reader::ReaderPool,
    retention_chores,
    rows::checksum,
};
use crate::{LogError, MAX_PUT_ASIDE, Result, StreamOwnership, StreamPosition, line, store::BatchTarget};

/// Row of a stream that is cut.
struct CutRow {
    gid: i64,
    first: u64,
    last: u64,
    created_ms: i64,
    body: Vec<u8>,
}

impl CutRow {
    /// Splits the row before an offset: returns the bytes of the events before it, and their number.
    fn split(&self, from: u64) -> (usize, u64) {
        let count = memchr::memchr_iter(b'\n', &self.body).count() as u64;
        // The events have the row's last offsets.
        let begin = (self.last + 1).saturating_sub(count);
        let kept = from.saturating_sub(begin);
        let end = usize::try_from(kept).ok().and_then(|kept| kept.checked_sub(1));
        let end = end.and_then(|index| memchr::memchr_iter(b'\n', &self.body).nth(index));
        end.map_or((0, 0), |end| (end + 1, kept))
    }
}

fn refused(session: &SessionId, operation: &'static str, detail: String) -> ApplyResult {
    Ok(Err(LogError::Replication { session: session.clone(), operation, detail }))
}

fn unknown(session: &SessionId) -> ApplyResult {
    Ok(Err(LogError::Unknown { session: session.clone() }))
}

impl OpenTransaction<'_> {
    pub(super) fn acknowledge(&mut self, session: &SessionId, through: u64) -> ApplyResult {
        let Some(mut stream) = self.stream(BatchTarget::Stream, session) else { return unknown(session) };
        let head = &mut stream.head;
        if head.epoch == 0 {
            return refused(session, "acknowledge", "it is not replicated".into());
        }
        if through > head.last {
            return refused(session, "acknowledge", format!("event {through} is beyond its last, {}", head.last));
        }
        if through > head.acknowledged {
            head.acknowledged = through;
            self.set(BatchTarget::Stream, session, Some(stream));
        }
        Ok(Ok(()))
    }

    pub(super) fn continue_from(&mut self, session: &SessionId, ownership: StreamOwnership) -> ApplyResult {
        let StreamOwnership { epoch, tail, keeps_tail } = ownership;
        let known = self.stream(BatchTarget::Stream, session);
        let before = known.map_or(0, |stream| stream.head.epoch);
        if epoch == 0 || epoch < before || tail >= i64::MAX as u64 - 1 {
            let detail = format!("epoch {epoch} from event {tail} cannot follow epoch {before}");
            return refused(session, "continue", detail);
        }
        let mut stream = match known {
            Some(mut stream) => {
                if !keeps_tail {
                    // What was acknowledged here is in all replicas, up to their end.
                    let from = stream.head.acknowledged.min(tail) + 1;
                    self.cut(session, &mut stream, from)?;
                }
                if stream.head.last < tail { self.begin_after(session, &stream, tail)? } else { stream }
            }
            None => {
                let head = StreamPosition { first: tail + 1, last: tail, ..StreamPosition::default() };
                StreamHead { id: self.create(BatchTarget::Stream, session)?, head }
            }
        };
        (stream.head.closed, stream.head.epoch, stream.head.acknowledged) = (false, epoch, tail);
        self.set(BatchTarget::Stream, session, Some(stream));
        Ok(Ok(()))
    }

    pub(super) fn put_aside(&mut self, session: &SessionId, from: u64) -> ApplyResult {
        let Some(mut stream) = self.stream(BatchTarget::Stream, session) else { return unknown(session) };
        let StreamPosition { epoch, acknowledged, .. } = stream.head;
        if epoch == 0 || from <= acknowledged {
            let detail =
                format!("event {from} is not replicated, or is acknowledged (as are all up to {acknowledged})");
            return refused(session, "put aside events of", detail);
        }
        self.cut(session, &mut stream, from)?;
        self.set(BatchTarget::Stream, session, Some(stream));
        Ok(Ok(()))
    }

    /// Moves the events of a stream from an offset on to those that were put aside.
    fn cut(&mut self, session: &SessionId, stream: &mut StreamHead, from: u64) -> rusqlite::Result<()> {
        let conn = self.conn;
        if from > stream.head.last {
            return Ok(());
        }
        let sql = "SELECT gid, first, last, created_ms, body FROM batches WHERE stream = ?1 AND last >= ?2
            AND first >= coalesce(
                (SELECT first FROM batches WHERE stream = ?1 AND first <= ?2 ORDER BY first DESC LIMIT 1), 0)
            ORDER BY first";
        let mut query = conn.prepare_cached(sql)?;
        let found = query.query_map(params![stream.id, from.cast_signed()], |row| {
            let [first, last] = [row.get::<_, i64>(1)?, row.get(2)?].map(i64::cast_unsigned);
            Ok(CutRow { gid: row.get(0)?, first, last, created_ms: row.get(3)?, body: row.get(4)? })
        })?;
        let rows = found.collect::<rusqlite::Result<Vec<_>>>()?;
        let now = line::millis(SystemTime::now());
        let mut end = from - 1;
        for row in rows {
            let (kept_bytes, kept) = row.split(from);
            let (before, after) = row.body.split_at(kept_bytes);
            let begin = if kept == 0 { row.first } else { from };
            let sql = "INSERT INTO put_aside (session, epoch, first, last, created_ms, at_ms, body)
                VALUES (?, ?, ?, ?, ?, ?, ?)";
            let [epoch, first, last] = [stream.head.epoch, begin, row.last].map(u64::cast_signed);
            conn.prepare_cached(sql)?.execute(params![
                session.as_str(),
                epoch,
                first,
                last,
                row.created_ms,
                now,
                after
            ])?;
            stream.head.bytes = stream.head.bytes.saturating_sub(after.len() as u64);
            if kept == 0 {
                retention_chores::delete(conn, row.gid)?;
                // A gap that began earlier goes as a whole.
                end = end.min(row.first - 1);
            } else {
                let sum = checksum(row.first, from - 1, row.created_ms, before);
                let sql = "UPDATE batches SET last = ?, bytes = ?, sum = ?, body = ? WHERE gid = ?";
                let (last, bytes) = ((from - 1).cast_signed(), before.len() as i64);
                conn.prepare_cached(sql)?.execute(params![last, bytes, sum, before, row.gid])?;
            }
        }
        stream.head.last = end.max(stream.head.first.saturating_sub(1));
        stream.head.acknowledged = stream.head.acknowledged.min(stream.head.last);
        // What comes in their place is yet to be consumed.
        let sql = "UPDATE cursors SET offset = ?2 WHERE stream = ?1 AND offset > ?2";
        conn.prepare_cached(sql)?.execute(params![stream.id, stream.head.last.cast_signed()])?;
        let sql = "DELETE FROM put_aside WHERE id <= (
            SELECT id FROM (SELECT id, sum(length(body)) OVER (ORDER BY id DESC) AS total FROM put_aside)
            WHERE total > ? ORDER BY id DESC LIMIT 1)";
        conn.prepare_cached(sql)?.execute([MAX_PUT_ASIDE.cast_signed()])?;
        Ok(())
    }

    /// Begins the stream anew after `tail`, with the consumers that it has. Its events are removed later.
    fn begin_after(&mut self, session: &SessionId, before: &StreamHead, tail: u64) -> rusqlite::Result<StreamHead> {
        self.conn.prepare_cached("UPDATE streams SET name = NULL WHERE id = ?")?.execute([before.id])?;
        let id = self.create(BatchTarget::Stream, session)?;
        self.conn.prepare_cached("UPDATE cursors SET stream = ? WHERE stream = ?")?.execute([id, before.id])?;
        self.mark_deleted(before.id)?;
        let head =
            StreamPosition { first: tail + 1, last: tail, source: before.head.source, ..StreamPosition::default() };
        Ok(StreamHead { id, head })
    }
}

/// Writes how far a stream is acknowledged, if it is replicated.
pub(super) fn store(conn: &Connection, stream: &StreamHead) -> rusqlite::Result<()> {
    let StreamPosition { epoch, acknowledged, .. } = stream.head;
    if epoch > 0 {
        let sql = "INSERT INTO replicated (stream, epoch, acknowledged) VALUES (?, ?, ?)
            ON CONFLICT (stream) DO UPDATE SET epoch = excluded.epoch, acknowledged = excluded.acknowledged";
        let params = params![stream.id, epoch.cast_signed(), acknowledged.cast_signed()];
        conn.prepare_cached(sql)?.execute(params)?;
    }
    Ok(())
}

/// Returns the events of a session that were put aside, as public JSON lines.
///
/// # Errors
/// Same as [`crate::EventLog::read_put_aside`].
pub(super) fn read_put_aside(readers: &ReaderPool, session: &SessionId) -> Result<Vec<u8>> {
    let mut writer = line::PublicLines::new(session);
    readers.with(|conn| {
        let mut lines = Vec::new();
        let sql = "SELECT last, created_ms, body FROM put_aside WHERE session = ? ORDER BY id";
        let mut query = conn.prepare_cached(sql)?;
        let mut rows = query.query([session.as_str()])?;
        while let Some(row) = rows.next()? {
            let (last, created_ms) = (row.get::<_, i64>(0)?.cast_unsigned(), row.get(1)?);
            let body = row.get_ref(2)?.as_blob().unwrap_or_default();
            let count = memchr::memchr_iter(b'\n', body).count() as u64;
            let stored = body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
            for (stored, offset) in stored.zip((last + 1).saturating_sub(count)..) {
                let damaged = |_| rusqlite::Error::IntegralValueOutOfRange(0, last.cast_signed());
                writer.write(&mut lines, stored, offset, created_ms).map_err(damaged)?;
            }
        }
        Ok(lines)
    })
}
