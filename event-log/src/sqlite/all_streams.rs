//! Reads all streams together, in the order of the file.

use std::sync::{Arc, RwLock};

use ipc_protocol::{Envelope, Event, OffsetGap, SessionId};
use rusqlite::{Connection, OptionalExtension as _};

use super::{
    heads::StreamHeads,
    inspect, read_lock,
    reader::ReaderPool,
    rows::{BODY_EVENTS, checksum},
};
use crate::{LogError, ReadLimit, Result, line, store::BatchTarget, types::ReadBound};

/// Low bits of a position, which hold the line's index in its row. The row's `gid` is above them.
const LINE_BITS: u32 = 16;
const LINES: u64 = 1 << LINE_BITS;
const _: () = assert!(BODY_EVENTS <= LINES, "each line of a row has a position");

/// Start and result of a read.
struct ReadingPosition<'a> {
    heads: &'a RwLock<StreamHeads>,
    bound: ReadBound,
    from: u64,
    limit: ReadLimit,
    bytes: usize,
    events: Vec<(u64, Arc<Envelope>)>,
}

/// Row of a stream.
struct PositionedRow<'a> {
    gid: u64,
    session: Arc<SessionId>,
    first: u64,
    last: u64,
    batch_ms: i64,
    sum: i64,
    body: &'a [u8],
}

/// Reads the events of all streams at positions greater than `from`.
///
/// # Errors
/// Same as [`crate::EventLog::read_all`].
pub(super) fn read(
    readers: &ReaderPool,
    (heads, bound): (&RwLock<StreamHeads>, ReadBound),
    from: u64,
    limit: ReadLimit,
) -> Result<Vec<(u64, Arc<Envelope>)>> {
    let mut reading = ReadingPosition { heads, bound, from, limit, bytes: 0, events: Vec::new() };
    match readers.with(|conn| reading.rows(conn)) {
        // Events read before the damage are good.
        Err(LogError::Corrupt { .. }) if !reading.events.is_empty() => Ok(reading.events),
        done => done.map(|()| reading.events),
    }
}

/// Returns the position of the last row's last line, whether it has that many or not; or the one before the first event that is
/// beyond the bound.
///
/// # Errors
/// Same as [`crate::EventLog::end`].
pub(super) fn end(readers: &ReaderPool, (heads, bound): (&RwLock<StreamHeads>, ReadBound)) -> Result<u64> {
    let waiting: Vec<_> = match bound {
        ReadBound::Committed => Vec::new(),
        ReadBound::Acknowledged => {
            let heads = read_lock(heads);
            let waiting = heads.iter().filter(|(_, stream)| stream.head.is_unacknowledged());
            waiting.map(|(_, stream)| (stream.id, stream.head.readable().cast_signed())).collect()
        }
    };
    let first = readers.with(|conn| {
        let sql = "SELECT gid, last, body FROM batches WHERE stream = ?1 AND last > ?2 AND first >= coalesce(
            (SELECT first FROM batches WHERE stream = ?1 AND first <= ?2 ORDER BY first DESC LIMIT 1), 0) ORDER BY first LIMIT 1";
        let mut first: Option<u64> = None;
        for (stream, readable) in waiting {
            let position = conn.prepare_cached(sql)?.query_row([stream, readable], |row| {
                let [gid, last] = [row.get::<_, i64>(0)?, row.get(1)?].map(i64::cast_unsigned);
                let lines = memchr::memchr_iter(b'\n', row.get_ref(2)?.as_blob().unwrap_or_default()).count() as u64;
                // The events have the row's last offsets.
                let shown = lines.saturating_sub(last.saturating_sub(readable.cast_unsigned()));
                Ok(((gid << LINE_BITS) + shown).saturating_sub(1))
            });
            first = first.into_iter().chain(position.optional()?).min();
        }
        Ok(first)
    })?;
    if let Some(first) = first {
        return Ok(first);
    }
    let last: Option<i64> =
        readers.with(|conn| conn.prepare_cached("SELECT max(gid) FROM batches")?.query_row([], |row| row.get(0)))?;
    Ok(last.map_or(0, |gid| (gid.cast_unsigned() << LINE_BITS) | (LINES - 1)))
}

impl ReadingPosition<'_> {
    fn rows(&mut self, conn: &Connection) -> rusqlite::Result<()> {
        // CROSS JOIN keeps `batches` as the outer loop, so that its rows come in order and need no sort.
        let sql = "SELECT gid, name, batches.first, batches.last, created_ms, sum, body
            FROM batches CROSS JOIN streams ON streams.id = stream WHERE gid >= ? AND name IS NOT NULL ORDER BY gid";
        let mut query = conn.prepare_cached(sql)?;
        let mut rows = query.query([(self.from >> LINE_BITS).cast_signed()])?;
        while let Some(row) = rows.next()? {
            let Ok(session) = inspect::name(row, 1) else { continue };
            let number = |index| row.get::<_, i64>(index).map(i64::cast_unsigned);
            let row = PositionedRow {
                gid: number(0)?,
                session: Arc::new(session),
                first: number(2)?,
                last: number(3)?,
                batch_ms: row.get(4)?,
                sum: row.get(5)?,
                body: row.get_ref(6)?.as_blob().unwrap_or_default(),
            };
            let readable = self.readable(&row);
            if !self.lines(&row, readable) && !self.gap(&row, readable) {
                return Err(rusqlite::Error::IntegralValueOutOfRange(3, row.last.cast_signed()));
            }
            if self.is_full() || readable < row.last {
                break;
            }
        }
        Ok(())
    }

    fn is_full(&self) -> bool {
        !self.events.is_empty() && (self.events.len() >= self.limit.events || self.bytes >= self.limit.bytes)
    }

    /// Returns the offset of the row's last event within the bound.
    fn readable(&self, row: &PositionedRow<'_>) -> u64 {
        match self.bound {
            ReadBound::Committed => row.last,
            ReadBound::Acknowledged => {
                let stream = read_lock(self.heads).get(BatchTarget::Stream, &row.session);
                // One that is not known yet was committed this very moment.
                let readable = stream.map_or(0, |stream| match stream.head.epoch {
                    0 => row.last,
                    _ => stream.head.acknowledged,
                });
                readable.min(row.last)
            }
        }
    }

    /// Takes the events of a row up to offset `readable`, up to the limit. Returns false if the row is damaged.
    fn lines(&mut self, row: &PositionedRow<'_>, readable: u64) -> bool {
        let PositionedRow { gid, session, first, last, batch_ms, sum, body } = row;
        let ends = || memchr::memchr_iter(b'\n', body);
        let count = ends().count() as u64;
        if *sum != i64::from(checksum(*first, *last, *batch_ms, body)) || count > LINES {
            return false;
        }
        let known = self.events.len();
        let mut begin = 0;
        for (end, index) in ends().zip(0..) {
            let line = &body[begin..end];
            begin = end + 1;
            let position = (gid << LINE_BITS) + index;
            if position <= self.from {
                continue;
            }
            // The events have the row's last offsets: a gap may come before the first.
            let offset = (last + 1 + index).saturating_sub(count);
            if offset > readable {
                break;
            }
            let Ok(envelope) = line::read(line, session, offset, *batch_ms) else {
                self.events.truncate(known);
                return false;
            };
            self.events.push((position, Arc::new(envelope)));
            self.bytes += line.len();
            if self.is_full() {
                break;
            }
        }
        true
    }

    /// Adds a gap in place of a damaged row, if all of it is readable. Returns false if the row's offsets are damaged too.
    fn gap(&mut self, row: &PositionedRow<'_>, readable: u64) -> bool {
        let PositionedRow { gid, session, first, last, batch_ms, .. } = row;
        let Some(stream) = read_lock(self.heads).get(BatchTarget::Stream, session) else { return false };
        if *first == 0 || first > last || *last > stream.head.last {
            return false;
        }
        if readable < *last {
            return true;
        }
        let event = Event::SessionGap(OffsetGap { from: *first, to: *last });
        let created_at = line::time(*batch_ms);
        let envelope =
            Envelope { offset: *last, created_at, session: Arc::clone(session), turn: None, metadata: None, event };
        // Position behind all lines of the row.
        let position = (gid << LINE_BITS) + (LINES - 1);
        if position > self.from {
            self.events.push((position, Arc::new(envelope)));
        }
        true
    }
}
