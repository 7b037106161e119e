//! Place up to which a receiver has what it gets: a file, which is on the disk before a delivery counts.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use proxy_manager::SessionId;
use serde::{Deserialize, Serialize};

use crate::access::write_private;

/// Place in the events of all sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeliveryCursor {
    /// Position up to which all is done.
    pub(super) position: u64,
    /// Sessions of which more is done, with the position up to which it is.
    #[serde(default)]
    pub(super) ahead: BTreeMap<SessionId, u64>,
}

impl DeliveryCursor {
    /// Returns true if an event is done.
    pub(super) fn covers(&self, session: &SessionId, position: u64) -> bool {
        position <= self.position || self.ahead.get(session).is_some_and(|done| position <= *done)
    }

    /// Notes that the events of a session are done up to a position, and those of all up to another.
    pub(super) fn advance(&mut self, session: &SessionId, done: u64, all: u64) {
        self.ahead.insert(session.clone(), done);
        self.move_to(all);
    }

    /// Notes that the events of all sessions are done up to a position.
    pub(super) fn move_to(&mut self, position: u64) {
        self.position = self.position.max(position);
        self.ahead.retain(|_, done| *done > self.position);
    }
}

/// File of a cursor.
#[derive(Clone, Debug)]
pub(super) struct CursorFile(PathBuf);

impl CursorFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// Reads the cursor; `None` if there is none yet. Blocks.
    ///
    /// # Errors
    /// The file cannot be read, or is no cursor.
    pub(super) fn read(&self) -> io::Result<Option<DeliveryCursor>> {
        match fs::read(&self.0) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(io::Error::from),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes the cursor, in one step, to the disk. Blocks.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn write(&self, cursor: &DeliveryCursor) -> io::Result<()> {
        let new = self.0.with_extension("new");
        write_private(&new, &serde_json::to_vec(cursor)?)?;
        fs::rename(&new, &self.0)?;
        File::open(self.0.parent().unwrap_or(Path::new(".")))?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_knows_what_is_done() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = CursorFile::new(directory.path().join("ops.json"));
        assert_eq!(file.read().expect("readable"), None);
        let [a, b]: [SessionId; 2] = ["a", "b"].map(|id| id.parse().expect("an id"));
        let mut cursor = DeliveryCursor { position: 3, ..DeliveryCursor::default() };
        cursor.advance(&a, 9, 4);
        file.write(&cursor).expect("written");
        let mut cursor = file.read().expect("readable").expect("written");
        assert!(cursor.covers(&a, 9) && !cursor.covers(&a, 10) && cursor.covers(&b, 4) && !cursor.covers(&b, 5));
        cursor.advance(&b, 5, 12);
        assert_eq!(cursor, DeliveryCursor { position: 12, ahead: BTreeMap::new() });
        fs::write(&file.0, "{").expect("written");
        assert!(file.read().is_err());
    }
}
