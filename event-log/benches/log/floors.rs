//! What the disk and SQLite cost alone.

use std::{
    fs::File,
    io::Write as _,
    path::Path,
    time::{Duration, Instant},
};

use rusqlite::{Connection, params};

use crate::Result;

/// What is written: as the log wrote it.
pub(crate) struct Shape {
    pub(crate) events: usize,
    pub(crate) per_commit: usize,
}

/// The stored form of an event of 64 bytes of text.
fn line(number: usize) -> String {
    format!("{{\"t\":1,\"e\":{{\"stream:text\":{{\"text\":\"{number:064}\"}}}}}}\n")
}

/// The same bytes to a file, with an `fdatasync` where the log had a commit.
pub(crate) fn file(shape: &Shape) -> Result<Duration> {
    let dir = tempfile::tempdir()?;
    let mut file = File::create(dir.path().join("bytes"))?;
    let begin = Instant::now();
    for first in (0..shape.events).step_by(shape.per_commit) {
        let group: String = (first..shape.events.min(first + shape.per_commit)).map(line).collect();
        file.write_all(group.as_bytes())?;
        file.sync_data()?;
    }
    Ok(begin.elapsed())
}

/// The same events as rows of their own, with the index that finds them.
pub(crate) fn rows(shape: &Shape, streams: usize) -> Result<Duration> {
    let dir = tempfile::tempdir()?;
    let mut conn = Connection::open(dir.path().join("rows.sqlite"))?;
    conn.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
        CREATE TABLE events (gid INTEGER PRIMARY KEY, stream INTEGER, seq INTEGER, body BLOB);
        CREATE UNIQUE INDEX by_seq ON events (stream, seq);",
    )?;
    let begin = Instant::now();
    for first in (0..shape.events).step_by(shape.per_commit) {
        let transaction = conn.transaction()?;
        for number in first..shape.events.min(first + shape.per_commit) {
            let mut insert = transaction.prepare_cached("INSERT INTO events (stream, seq, body) VALUES (?, ?, ?)")?;
            insert.execute(params![(number % streams) as i64, (number / streams) as i64, line(number).as_bytes()])?;
        }
        transaction.commit()?;
    }
    Ok(begin.elapsed())
}

/// Reads the bodies of a log, and counts their newlines. Gives the number of rows too.
pub(crate) fn bodies(path: &Path) -> Result<(usize, Duration)> {
    let conn = Connection::open(path)?;
    let begin = Instant::now();
    let (mut rows, mut lines) = (0, 0);
    let mut query = conn.prepare("SELECT body FROM batches ORDER BY stream, first")?;
    let mut found = query.query([])?;
    while let Some(row) = found.next()? {
        lines += memchr::memchr_iter(b'\n', row.get_ref(0)?.as_blob()?).count();
        rows += 1;
    }
    if lines == 0 {
        return Err("no line".into());
    }
    Ok((rows, begin.elapsed()))
}
