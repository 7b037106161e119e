//! Head of each stream, in memory so that nobody has to wait for it. Only the writer changes it, after each commit.

use std::collections::HashMap;

use ipc_protocol::SessionId;
use rusqlite::{Connection, types::ValueRef};

use super::{inspect, rows::is_sound};
use crate::{LogDamage, StreamPosition, store::BatchTarget};

/// Row id and head of a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamHead {
    pub(super) id: i64,
    pub(super) head: StreamPosition,
}

/// Returns the head of a stream, by its rows.
fn head_of_rows(conn: &Connection, id: i64) -> rusqlite::Result<StreamPosition> {
    let sql =
        "SELECT coalesce(min(first), 1), coalesce(max(last), 0), coalesce(max(source), 0), coalesce(sum(bytes), 0)
        FROM batches WHERE stream = ?";
    conn.query_row(sql, [id], |row| {
        let number = |index| row.get::<_, i64>(index).map(i64::cast_unsigned);
        let (first, last) = (number(0)?, number(1)?);
        if !is_sound(first, last) {
            return Err(rusqlite::Error::IntegralValueOutOfRange(1, last.cast_signed()));
        }
        let (source, bytes) = (number(2)?, number(3)?);
        Ok(StreamPosition { first, last, source, bytes, ..StreamPosition::default() })
    })
}

/// All streams.
#[derive(Debug, Default)]
pub(super) struct StreamHeads {
    streams: HashMap<SessionId, StreamHead>,
    /// Imports in progress, under their future names.
    imports: HashMap<SessionId, StreamHead>,
}

impl StreamHeads {
    /// Reads them. Beside them: the streams that nobody can name any more, which are to be removed; and what is damaged: a
    /// stream whose name is none is kept as it is, and one of whom it is not to be read where it stands stands where its rows do.
    pub(super) fn load(conn: &Connection) -> rusqlite::Result<(Self, Vec<i64>, Vec<LogDamage>)> {
        let mut heads = Self::default();
        let (mut doomed, mut damage) = (Vec::new(), Vec::new());
        let mut query = conn.prepare("SELECT id, name, first, last, closed, source, bytes FROM streams")?;
        let mut rows = query.query([])?;
        while let Some(row) = rows.next()? {
            let id = row.get(0)?;
            if matches!(row.get_ref(1)?, ValueRef::Null) {
                doomed.push(id);
                continue;
            }
            let name = match inspect::name(row, 1) {
                Ok(name) => name,
                Err(name) => {
                    let detail = "its name is none: its events are kept, and nobody can ask for them".to_owned();
                    damage.push(LogDamage::Stream { row: id, name, detail });
                    continue;
                }
            };
            let number = |index| row.get::<_, i64>(index).map(i64::cast_unsigned);
            let sound = match (number(2), number(3), row.get(4), number(5), number(6)) {
                (Ok(first), Ok(last), Ok(closed), Ok(source), Ok(bytes)) if is_sound(first, last) => {
                    Some(StreamPosition { first, last, closed, source, bytes, ..StreamPosition::default() })
                }
                _ => None,
            };
            let head = match sound {
                Some(head) => head,
                None => {
                    let detail = "where it stands is not to be read: as its events say".to_owned();
                    damage.push(LogDamage::Stream { row: id, name: name.to_string(), detail });
                    head_of_rows(conn, id)?
                }
            };
            heads.streams.insert(name, StreamHead { id, head });
        }
        heads.load_replicated(conn)?;
        Ok((heads, doomed, damage))
    }

    /// Adds how far the replicated streams are acknowledged.
    fn load_replicated(&mut self, conn: &Connection) -> rusqlite::Result<()> {
        let mut query = conn.prepare("SELECT stream, epoch, acknowledged FROM replicated")?;
        let found = query.query_map([], |row| Ok((row.get(0)?, (row.get(1)?, row.get(2)?))))?;
        let replicated = found.collect::<rusqlite::Result<HashMap<i64, (i64, i64)>>>()?;
        for StreamHead { id, head } in self.streams.values_mut() {
            let Some((epoch, acknowledged)) = replicated.get(id) else { continue };
            // A part of the stream may be lost by damage.
            (head.epoch, head.acknowledged) = (epoch.cast_unsigned(), acknowledged.cast_unsigned().min(head.last));
        }
        Ok(())
    }

    pub(super) fn get(&self, target: BatchTarget, session: &SessionId) -> Option<StreamHead> {
        match target {
            BatchTarget::Stream => self.streams.get(session).copied(),
            BatchTarget::Import => self.imports.get(session).copied(),
        }
    }

    pub(super) fn set(&mut self, target: BatchTarget, session: SessionId, stream: Option<StreamHead>) {
        let map = match target {
            BatchTarget::Stream => &mut self.streams,
            BatchTarget::Import => &mut self.imports,
        };
        match stream {
            Some(stream) => drop(map.insert(session, stream)),
            None => drop(map.remove(&session)),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&SessionId, &StreamHead)> {
        self.streams.iter()
    }
}
