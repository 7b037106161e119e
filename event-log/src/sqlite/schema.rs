//! Schema of the file, and the migration of older files.

use std::{fs::File, io::Read as _, path::Path};

use rusqlite::Connection;

use super::classify;
use crate::{LogError, Result};

/// Application id of our files: "agpl" as a number, of no further meaning.
const APPLICATION_ID: i64 = 0x6167_706c;
/// First bytes of every SQLite file.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// Pages of the write-ahead log at which a checkpoint copies it into the file (16 MiB). The writer does that
/// between two commits. A larger number means fewer long commits, and pages written once instead of many times.
const CHECKPOINT_PAGES: i64 = 4000;
/// Size to which a write-ahead log shrinks after a long reader made it grow further.
const WAL_BYTES: i64 = 32 * 1024 * 1024;

/// Migrations, each from one schema version to the next. A released one is never changed; new ones are added, each with
/// a file of the schema that it makes (`tests/log/old`).
const MIGRATIONS: &[&str] = &[
    // A stream without a name is being imported or deleted: no reader sees it.
    // A row of `batches` covers `first` to `last`; its events have the last of these offsets. A gap may cover more
    // than one.
    // `beat` has a single row: the heartbeat of the file's owner.
    // `position` has a single row: the greatest `gid` of a removed batch, which is not reused.
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
    CREATE UNIQUE INDEX batches_by_offset ON batches (stream, first);
    CREATE TABLE sessions (
        id TEXT PRIMARY KEY,
        record TEXT NOT NULL,
        updated_ms INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE cursors (
        stream INTEGER NOT NULL,
        consumer TEXT NOT NULL,
        offset INTEGER NOT NULL,
        PRIMARY KEY (stream, consumer)
    ) WITHOUT ROWID;
    CREATE TABLE beat (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        host TEXT NOT NULL,
        at_ms INTEGER NOT NULL
    );
    CREATE TABLE position (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        gid INTEGER NOT NULL
    );
    INSERT INTO position VALUES (1, 0);",
    // Requests of callers that named them, so that one that is sent again is done once.
    "CREATE TABLE requests (
        name TEXT PRIMARY KEY,
        record TEXT NOT NULL,
        at_ms INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX requests_by_time ON requests (at_ms);",
    // A byte stream without a path is being removed. Its content is the rows of `byte_rows`, each from position `first` to `last`; lines of
    // JSON have the last of these positions. `mapped` is how far rules have been applied, where there are some. Before `fork_at` it has the content of `source`, another row here, or a copy of its own.
    "CREATE TABLE byte_streams (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        path TEXT UNIQUE,
        content_type TEXT NOT NULL,
        closed INTEGER NOT NULL,
        deleted INTEGER NOT NULL DEFAULT 0,
        idle_s INTEGER,
        until_ms INTEGER,
        source INTEGER,
        fork_at INTEGER NOT NULL DEFAULT 0,
        fork_path TEXT,
        fork_beyond INTEGER NOT NULL DEFAULT 0,
        seq TEXT,
        closer TEXT,
        mapped INTEGER
    );
    CREATE TABLE byte_rows (
        gid INTEGER PRIMARY KEY,
        stream INTEGER NOT NULL,
        first INTEGER NOT NULL,
        last INTEGER NOT NULL,
        sum INTEGER NOT NULL,
        body BLOB NOT NULL
    );
    CREATE UNIQUE INDEX byte_rows_by_position ON byte_rows (stream, last);
    CREATE TABLE producers (
        stream INTEGER NOT NULL,
        id TEXT NOT NULL,
        epoch INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        PRIMARY KEY (stream, id)
    ) WITHOUT ROWID;",
    // Streams that are replicated. `put_aside` has their events that were never acknowledged and that somebody else's took the place
    // of; the rows are like those of `batches`.
    "CREATE TABLE replicated (
        stream INTEGER PRIMARY KEY,
        epoch INTEGER NOT NULL,
        acknowledged INTEGER NOT NULL
    );
    CREATE TABLE put_aside (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        session TEXT NOT NULL,
        epoch INTEGER NOT NULL,
        first INTEGER NOT NULL,
        last INTEGER NOT NULL,
        created_ms INTEGER NOT NULL,
        at_ms INTEGER NOT NULL,
        body BLOB NOT NULL
    );",
];

/// Schema version that this release writes.
pub(super) const VERSION: i64 = MIGRATIONS.len() as i64;

/// Refuses a file of another kind, before SQLite touches it.
///
/// # Errors
/// [`LogError::Corrupt`] for such a file, [`LogError::ReadOnly`] for one that cannot be read.
pub(super) fn check_magic(path: &Path) -> Result<()> {
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
pub(super) fn prepare(conn: &mut Connection, path: &Path) -> Result<()> {
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
    migrate(conn, found, MIGRATIONS).map_err(sql)
}

/// The version of the file's schema, and how many tables and indexes it has. Changes nothing.
///
/// # Errors
/// [`LogError::TooNew`] for a file of a later release, [`LogError::Corrupt`] for one of another program.
pub(super) fn check_ours(conn: &Connection, path: &Path) -> Result<(i64, i64)> {
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

/// Applies all missing steps in one transaction.
fn migrate(conn: &mut Connection, found: i64, steps: &[&str]) -> rusqlite::Result<()> {
    let missing = steps.get(usize::try_from(found).unwrap_or(0)..).unwrap_or_default();
    if missing.is_empty() {
        return Ok(());
    }
    let transaction = conn.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    for step in missing {
        transaction.execute_batch(step)?;
    }
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", steps.len() as i64)?;
    transaction.commit()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// The file that the first schema has written.
    const FIRST: &str = include_str!("../../tests/log/old/schema-1.sql");
    /// Steps of a later release: its fifth schema adds to a table, and has two tables more.
    const LATER: &[&str] = &[
        MIGRATIONS[0],
        MIGRATIONS[1],
        MIGRATIONS[2],
        MIGRATIONS[3],
        "ALTER TABLE sessions ADD COLUMN owner TEXT NOT NULL DEFAULT 'nobody';
        CREATE TABLE owners (name TEXT PRIMARY KEY);
        CREATE TABLE marks (gid INTEGER PRIMARY KEY);
        INSERT INTO marks SELECT gid FROM batches;",
    ];

    fn load_first(path: &Path) -> Connection {
        let conn = Connection::open(path).expect("a connection");
        conn.execute_batch(FIRST).expect("made");
        conn
    }

    fn number(conn: &Connection, sql: &str) -> i64 {
        conn.query_row(sql, [], |row| row.get(0)).expect("a number")
    }

    /// Version, number of tables and indexes, and what the file holds.
    fn content(conn: &Connection) -> (i64, i64, [i64; 4]) {
        let version = number(conn, "PRAGMA user_version");
        let tables = number(conn, "SELECT count(*) FROM sqlite_schema");
        let rows = ["batches", "streams", "sessions", "cursors"].map(|table| format!("SELECT count(*) FROM {table}"));
        (version, tables, rows.map(|sql| number(conn, &sql)))
    }

    fn assert_upgraded(conn: &Connection, before: (i64, i64, [i64; 4])) {
        // The table of the second schema with its index; three of the third, with two indexes; two of the fourth; then two tables, and
        // the index of one.
        assert_eq!(content(conn), (5, before.1 + 12, before.2));
        assert_eq!(number(conn, "SELECT count(*) FROM sessions WHERE owner = 'nobody'"), before.2[2]);
        assert_eq!(number(conn, "SELECT count(*) FROM marks"), before.2[0]);
    }

    #[test]
    fn an_older_file_is_brought_up_to_date_and_then_refused_by_its_own_release() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("log.sqlite");
        let mut conn = load_first(&path);
        let before = content(&conn);
        assert!(before.0 == 1 && before.2.iter().all(|rows| *rows > 1), "{before:?}");
        // Its own release has nothing to do; the later one has, once.
        migrate(&mut conn, 1, &MIGRATIONS[..1]).expect("nothing to do");
        assert_eq!(content(&conn), before);
        for _ in 0..2 {
            let found = content(&conn).0;
            migrate(&mut conn, found, LATER).expect("migrated");
            assert_upgraded(&conn, before);
        }
        let refused = check_ours(&conn, &path).expect_err("a later release's");
        assert!(matches!(refused, LogError::TooNew { found: 5, known: 4, .. }), "{refused}");
    }

    #[test]
    fn a_migration_without_room_changes_nothing() {
        let folder = tempfile::tempdir().expect("a directory");
        let mut conn = load_first(&folder.path().join("log.sqlite"));
        let before = content(&conn);
        // There is room for the first table that it lacks, and for no other.
        let pages = number(&conn, "PRAGMA page_count") + 1;
        number(&conn, &format!("PRAGMA max_page_count = {pages}"));
        let error = migrate(&mut conn, 1, LATER).expect_err("no room");
        assert_eq!(error.sqlite_error_code(), Some(rusqlite::ErrorCode::DiskFull), "{error}");
        assert_eq!(content(&conn), before);
        number(&conn, "PRAGMA max_page_count = 1000000");
        migrate(&mut conn, 1, LATER).expect("room");
        assert_upgraded(&conn, before);
    }

    /// A kill, or a loss of power, in the middle of a migration: all of it is in the write-ahead log, of which any part
    /// may have come to the disk.
    #[test]
    fn a_migration_that_is_cut_off_is_made_again() {
        const HEADER: usize = 32;
        const FRAME: usize = 24 + 4096;
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("log.sqlite");
        drop(load_first(&path));
        let file = fs::read(&path).expect("the file");
        let mut conn = Connection::open(&path).expect("a connection");
        let before = content(&conn);
        migrate(&mut conn, 1, LATER).expect("migrated");
        let written = fs::read(folder.path().join("log.sqlite-wal")).expect("its log");
        assert!(fs::read(&path).expect("the file") == file, "nothing is in the file yet");
        drop(conn);
        let frames = (written.len() - HEADER) / FRAME;
        assert!(frames >= 3 && written.len() == HEADER + frames * FRAME, "{}", written.len());
        let lengths = (0..=frames).flat_map(|frame| [frame * FRAME, HEADER + frame * FRAME, frame * FRAME + FRAME / 2]);
        for part in lengths.filter_map(|length| written.get(..length)) {
            let folder = tempfile::tempdir().expect("a directory");
            let path = folder.path().join("log.sqlite");
            fs::write(&path, &file).expect("written");
            fs::write(folder.path().join("log.sqlite-wal"), part).expect("written");
            let mut conn = Connection::open(&path).expect("a connection");
            if part.len() < written.len() {
                assert_eq!(content(&conn), before, "{} of {}", part.len(), written.len());
            }
            let found = content(&conn).0;
            migrate(&mut conn, found, LATER).expect("migrated");
            assert_upgraded(&conn, before);
        }
    }

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
