//! Where each stream stands. In memory, so that nobody waits to know; changed by the writer alone, after each commit.

use std::collections::HashMap;

use ipc_protocol::SessionId;
use rusqlite::Connection;

use crate::{Head, store::Target};

/// A stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    pub(super) id: i64,
    pub(super) head: Head,
}

/// All streams.
#[derive(Debug, Default)]
pub(super) struct Heads {
    streams: HashMap<SessionId, Stream>,
    /// What is imported, under the name that it shall have.
    imports: HashMap<SessionId, Stream>,
}

impl Heads {
    /// Reads them. Beside them: the streams that nobody can name any more, which are to be removed.
    pub(super) fn load(conn: &Connection) -> rusqlite::Result<(Self, Vec<i64>)> {
        let mut heads = Self::default();
        let mut doomed = Vec::new();
        let mut query = conn.prepare("SELECT id, name, first, last, closed, source, bytes FROM streams")?;
        let mut rows = query.query([])?;
        while let Some(row) = rows.next()? {
            let id = row.get(0)?;
            let number = |index| row.get::<_, i64>(index).map(i64::cast_unsigned);
            let (first, last) = (number(2)?, number(3)?);
            if first == 0 || last >= i64::MAX as u64 || first > last + 1 {
                return Err(rusqlite::Error::IntegralValueOutOfRange(3, last.cast_signed()));
            }
            let name = row.get::<_, Option<String>>(1)?.and_then(|name| name.parse().ok());
            let head = Head { first, last, closed: row.get(4)?, source: number(5)?, bytes: number(6)? };
            match name {
                Some(name) => drop(heads.streams.insert(name, Stream { id, head })),
                None => doomed.push(id),
            }
        }
        Ok((heads, doomed))
    }

    pub(super) fn get(&self, target: Target, session: &SessionId) -> Option<Stream> {
        match target {
            Target::Stream => self.streams.get(session).copied(),
            Target::Import => self.imports.get(session).copied(),
        }
    }

    pub(super) fn set(&mut self, target: Target, session: SessionId, stream: Option<Stream>) {
        let map = match target {
            Target::Stream => &mut self.streams,
            Target::Import => &mut self.imports,
        };
        match stream {
            Some(stream) => drop(map.insert(session, stream)),
            None => drop(map.remove(&session)),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&SessionId, &Stream)> {
        self.streams.iter()
    }
}
