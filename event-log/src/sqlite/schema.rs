//! Schema of the file, and the migration of older files.

use std::{fs::File, io::Read as _, path::Path};

use rusqlite::Connection;

use super::classify;
use crate::LogError;

/// Application id of our files: "agpl" as a number, of no further meaning.
const APPLICATION_ID: i64 = 0x6167_706c;
/// First bytes of every SQLite file.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// Pages of the write-ahead log at which a checkpoint copies it into the file (16 MiB). The writer does that
/// between two commits. A larger number means fewer long commits, and pages written once instead of many times.
const CHECKPOINT_PAGES: i64 = 4000;
/// Size to which a write-ahead log shrinks after a long reader made it grow further.
const WAL_BYTES: i64 = 32 * 1024 * 1024;

/// Migrations, each from one schema version to the next. A released one is never changed; new ones are added.
const MIGRATIONS: [&str; 4] = [
    // A stream without a name is being imported or deleted: no reader sees it.
    // A row of `batches` covers `first` to `last`; its events have the last of these offsets. A gap may cover more
    // than one.
    "CREATE TABLE streams (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT UNIQUE,
        first INTEGER NOT NULL DEFAULT 1,
        last INTEGER NOT NULL DEFAULT 0,
        closed INTEGER NOT NULL DEFAULT 0,
        source INTEGER NOT NULL DEFAULT 0,
        bytes INTEGER NOT NULL DEFAULT 0
    );
    CREATE TABLE batches (
        gid INTEGER PRIMARY KEY,
        stream INTEGER NOT NULL,
        first INTEGER NOT NULL,
        last INTEGER NOT NULL,
        created_ms INTEGER NOT NULL,
        source INTEGER NOT NULL,
        bytes INTEGER NOT NULL,
        sum INTEGER NOT NULL,
        body BLOB NOT NULL
    );
    CREATE UNIQUE INDEX batches_by_offset ON batches (stream, first);",
    "CREATE TABLE sessions (
        id TEXT PRIMARY KEY,
        record TEXT NOT NULL,
        updated_ms INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE cursors (
        stream INTEGER NOT NULL,
        consumer TEXT NOT NULL,
        offset INTEGER NOT NULL,
        PRIMARY KEY (stream, consumer)
    ) WITHOUT ROWID;",
    // A single row: the heartbeat of the file's owner.
    "CREATE TABLE beat (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        host TEXT NOT NULL,
        at_ms INTEGER NOT NULL
    );",
    // A single row: the greatest `gid` of a removed batch, which is not reused.
    "CREATE TABLE position (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        gid INTEGER NOT NULL
    );
    INSERT INTO position VALUES (1, 0);",
];

/// Schema version that this release writes.
pub(super) const VERSION: i64 = MIGRATIONS.len() as i64;

/// Refuses a file of another kind, before SQLite touches it.
///
/// # Errors
/// [`LogError::Corrupt`] for such a file, [`LogError::ReadOnly`] for one that cannot be read.
pub(super) fn check_magic(path: &Path) -> Result<(), LogError> {
    let mut start = Vec::new();
    let read = match File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        opened => opened.and_then(|file| file.take(MAGIC.len() as u64).read_to_end(&mut start)),
    };
    read.map_err(|error| super::system(path, "read the start of", error))?;
    if start.is_empty() || start == MAGIC { Ok(()) } else { Err(foreign(path)) }
}

fn foreign(path: &Path) -> LogError {
    let detail = "it is no event log; nothing in it was changed; move it away, or name another file".into();
    LogError::Corrupt { path: path.to_owned(), detail, lost: None }
}

/// Sets up the writer's connection, and creates or migrates the schema.
///
/// # Errors
/// [`LogError::TooNew`] for a file of a later release. Neither that nor a foreign file is changed.
pub(super) fn prepare(conn: &mut Connection, path: &Path) -> Result<(), LogError> {
    let sql = |error| classify(path, "open", error);
    let (found, tables) = check_ours(conn, path)?;
    if conn.is_readonly("main").map_err(sql)? {
        let cause = rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_READONLY), None);
        return Err(sql(cause));
    }
    if tables == 0 {
        // Must come before the first table; lets freed pages be given back to the file system.
        conn.pragma_update(None, "auto_vacuum", "INCREMENTAL").map_err(sql)?;
    }
    conn.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(())).map_err(sql)?;
    conn.pragma_update(None, "synchronous", "FULL").map_err(sql)?;
    conn.pragma_update_and_check(None, "wal_autocheckpoint", CHECKPOINT_PAGES, |_| Ok(())).map_err(sql)?;
    conn.pragma_update_and_check(None, "journal_size_limit", WAL_BYTES, |_| Ok(())).map_err(sql)?;
    migrate(conn, found).map_err(sql)
}

/// The version of the file's schema, and how many tables and indexes it has. Changes nothing.
///
/// # Errors
/// [`LogError::TooNew`] for a file of a later release, [`LogError::Corrupt`] for one of another program.
pub(super) fn check_ours(conn: &Connection, path: &Path) -> Result<(i64, i64), LogError> {
    let sql = |error| classify(path, "open", error);
    let number = |name| conn.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).map_err(sql);
    let found = number("user_version")?;
    let application = number("application_id")?;
    let tables: i64 = conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(sql)?;
    if tables > 0 && application != APPLICATION_ID {
        return Err(foreign(path));
    }
    if found > VERSION {
        return Err(LogError::TooNew { path: path.to_owned(), found, known: VERSION });
    }
    Ok((found, tables))
}

/// All steps that are missing, in one transaction.
fn migrate(conn: &mut Connection, found: i64) -> rusqlite::Result<()> {
    let missing = MIGRATIONS.iter().skip(usize::try_from(found).unwrap_or(0));
    if found == VERSION {
        return Ok(());
    }
    let transaction = conn.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    for step in missing {
        transaction.execute_batch(step)?;
    }
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", VERSION)?;
    transaction.commit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_is_on_the_disk_when_it_is_told() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("log.sqlite");
        // A new file, then an existing one.
        for _ in 0..2 {
            let mut conn = Connection::open(&path).expect("a connection");
            prepare(&mut conn, &path).expect("prepared");
            let number = |name| conn.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).expect("a number");
            let mode: String = conn.pragma_query_value(None, "journal_mode", |row| row.get(0)).expect("a word");
            assert_eq!(mode, "wal");
            // FULL: in WAL mode each commit is an fsync.
            assert_eq!(number("synchronous"), 2);
            // INCREMENTAL: freed pages go back to the file system.
            assert_eq!(number("auto_vacuum"), 2);
            assert_eq!(number("wal_autocheckpoint"), CHECKPOINT_PAGES);
            assert_eq!(number("journal_size_limit"), WAL_BYTES);
            assert_eq!(number("user_version"), VERSION);
            assert_eq!(number("application_id"), APPLICATION_ID);
        }
    }
}
