//! A log's file looked at as it lies: what of it is whole, what is damaged, and what is whole written to a new file. SQLite notices
//! few of the bits that flip, so each row is read by itself, by every way that leads to it.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use ipc_protocol::{Envelope, Event, OffsetGap, SessionId};
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, Row, params, types::ValueRef};

use super::{
    byte_salvage, classify, create_private,
    rows::{checksum, is_sound},
    schema, system,
};
use crate::{LogDamage, LogInspection, Result, line};

/// Time to wait for another program that writes the file.
const PATIENCE: Duration = Duration::from_secs(5);
/// Findings of SQLite itself that are told.
const MOST_FINDINGS: usize = 20;

/// Check of a session's record; the error says why a record that is text is not understood.
pub type RecordCheck<'a> = &'a dyn Fn(&str) -> Result<(), String>;

/// Looks at the log in the file `path` and changes nothing in it. Blocks, for as long as reading all of the file takes. Another
/// process may have the log.
///
/// # Errors
/// [`crate::LogError::Missing`]; [`crate::LogError::Corrupt`] for a file that is no log; [`crate::LogError::TooNew`]. What is damaged is no error.
pub fn check(path: &Path, is_record: RecordCheck<'_>) -> Result<LogInspection> {
    InspectSource::open(path)?.inspect(is_record, None)
}

/// The same, and writes what is whole to a new log in the file `to`: streams with their offsets and positions, a `session:gap` for
/// what is lacking in them, records, cursors. A stream without a readable name is called `salvaged-N` there.
///
/// # Errors
/// As [`check`]; [`crate::LogError::Io`] if there is something at `to`, which is left as it is.
pub fn salvage(path: &Path, to: &Path, is_record: RecordCheck<'_>) -> Result<LogInspection> {
    let source = InspectSource::open(path)?;
    if to.symlink_metadata().is_ok() {
        let error = std::io::Error::new(std::io::ErrorKind::AlreadyExists, "there is something already");
        return Err(system(to, "create", error));
    }
    create_private(to)?;
    let sql = |error| classify(to, "write what is salvaged to", error);
    let mut conn = Connection::open(to).map_err(sql)?;
    schema::prepare(&mut conn, to)?;
    conn.execute_batch("BEGIN IMMEDIATE").map_err(sql)?;
    let inspection = source.inspect(is_record, Some(&SalvageTarget { conn: &conn, path: to }))?;
    conn.execute_batch("COMMIT; PRAGMA wal_checkpoint(TRUNCATE)").map_err(sql)?;
    Ok(inspection)
}

struct InspectSource {
    conn: Connection,
}

/// New log that is written to.
pub(super) struct SalvageTarget<'a> {
    conn: &'a Connection,
    path: &'a Path,
}

impl SalvageTarget<'_> {
    pub(super) fn put(&self, sql: &str, params: impl rusqlite::Params) -> Result<()> {
        let put = self.conn.prepare_cached(sql).and_then(|mut statement| statement.execute(params));
        put.map(drop).map_err(|error| classify(self.path, "write what is salvaged to", error))
    }
}

/// A stream's row, as far as it can be read.
struct StreamRow {
    name: Result<SessionId, String>,
    closed: bool,
    source: i64,
    /// First and last offset.
    span: Option<(u64, u64)>,
}

/// Place of a row, and the events in it.
#[derive(Clone, Copy)]
struct EventRow {
    gid: i64,
    first: u64,
    last: u64,
}

/// The number of a row, whatever that is said to be.
fn number(row: &Row<'_>, index: usize) -> Option<i64> {
    row.get_ref(index).ok()?.as_i64().ok()
}

fn text(row: &Row<'_>, index: usize) -> Result<String, String> {
    let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match row.get_ref(index).map_err(|error| error.to_string())? {
        ValueRef::Text(bytes) => String::from_utf8(bytes.to_vec()).map_err(|_| shown(bytes)),
        ValueRef::Blob(bytes) => Err(shown(bytes)),
        ValueRef::Null => Err(String::new()),
        other => Err(format!("{other:?}")),
    }
}

/// A stream's name, or what is there in its place.
pub(super) fn name(row: &Row<'_>, index: usize) -> Result<SessionId, String> {
    text(row, index)?.parse().map_err(|_| text(row, index).unwrap_or_else(|shown| shown))
}

/// Gives every row that can be reached to `visit`: from one end, and where that way is broken from the other. Says what is broken.
pub(super) fn each(
    conn: &Connection,
    sql: &str,
    order: &str,
    mut visit: impl FnMut(&Row<'_>),
) -> Result<(), rusqlite::Error> {
    let mut way = |direction: &str| {
        let mut query = conn.prepare(&format!("{sql} ORDER BY {order} {direction}"))?;
        let mut rows = query.query([])?;
        while let Some(row) = rows.next()? {
            visit(row);
        }
        Ok(())
    };
    way("ASC").inspect_err(|_| _ = way("DESC"))
}

/// Path of the file of what is not in the database yet.
fn wal_of(path: &Path) -> PathBuf {
    let mut wal = path.as_os_str().to_owned();
    wal.push("-wal");
    wal.into()
}

/// URI of a database that nobody changes, of an absolute path.
fn unchanging(path: &Path) -> String {
    let encode = |byte: &u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' => char::from(*byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    let path: String = path.as_os_str().as_encoded_bytes().iter().map(encode).collect();
    format!("file://{path}?immutable=1")
}

impl InspectSource {
    fn open(path: &Path) -> Result<Self> {
        if let Err(error) = path.metadata() {
            return Err(system(path, "look at", error));
        }
        schema::check_magic(path)?;
        let sql = |error| classify(path, "read", error);
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        // Without a WAL nothing writes it, and all of it is here: SQLite makes no file beside it then, which a read-only place would refuse.
        let conn = if wal_of(path).exists() {
            Connection::open_with_flags(path, flags)
        } else {
            let absolute = std::path::absolute(path).map_err(|error| system(path, "look at", error))?;
            Connection::open_with_flags(unchanging(&absolute), flags | OpenFlags::SQLITE_OPEN_URI)
        };
        let conn = conn.map_err(sql)?;
        conn.busy_timeout(PATIENCE).map_err(sql)?;
        schema::check_ours(&conn, path)?;
        Ok(Self { conn })
    }

    fn inspect(&self, is_record: RecordCheck<'_>, to: Option<&SalvageTarget<'_>>) -> Result<LogInspection> {
        let mut found = LogInspection::default();
        self.database(&mut found);
        let named = self.streams(&mut found);
        let pieces = self.events(&named, &mut found, to)?;
        self.spans(named, &pieces, &mut found, to)?;
        self.records(is_record, &mut found, to)?;
        self.rest(&mut found, to)?;
        byte_salvage::inspect(&self.conn, &mut found, to)?;
        byte_salvage::inspect_replicated(&self.conn, &mut found, to)?;
        Ok(found)
    }

    /// Lists the faults that SQLite itself finds.
    fn database(&self, found: &mut LogInspection) {
        let findings = self.conn.prepare(&format!("PRAGMA quick_check({MOST_FINDINGS})")).and_then(|mut query| {
            let rows = query.query_map([], |row| row.get::<_, String>(0))?;
            rows.collect::<rusqlite::Result<Vec<_>>>()
        });
        let findings = findings.unwrap_or_else(|error| vec![error.to_string()]);
        let findings = findings.into_iter().filter(|finding| finding != "ok");
        found.damage.extend(findings.map(|detail| LogDamage::Database { detail }));
    }

    fn streams(&self, found: &mut LogInspection) -> BTreeMap<i64, StreamRow> {
        let mut named = BTreeMap::new();
        let sql = "SELECT id, name, first, last, closed, source FROM streams";
        let read = each(&self.conn, sql, "id", |row| {
            let Some(id) = number(row, 0) else { return };
            // One that was being imported, or deleted.
            if matches!(row.get_ref(1), Ok(ValueRef::Null)) {
                return;
            }
            let [first, last] = [2, 3].map(|index| number(row, index).map(i64::cast_unsigned));
            let span = first.zip(last).filter(|(first, last)| is_sound(*first, *last));
            let (closed, source) = (number(row, 4).is_some_and(|closed| closed != 0), number(row, 5).unwrap_or(0));
            named.insert(id, StreamRow { name: name(row, 1), closed, source, span });
        });
        self.broken(read, "the table of streams", found);
        named
    }

    fn broken(&self, read: rusqlite::Result<()>, what: &str, found: &mut LogInspection) {
        if let Err(error) = read {
            found.damage.push(LogDamage::Database { detail: format!("{what}: {error}") });
        }
    }

    /// Numbers of all rows of events that lead anywhere.
    fn gids(&self) -> BTreeSet<i64> {
        let mut gids = BTreeSet::new();
        for sql in [
            "SELECT gid FROM batches NOT INDEXED",
            "SELECT gid FROM batches INDEXED BY batches_by_offset WHERE stream >= 0",
        ] {
            let order = if sql.contains("NOT") { "gid" } else { "stream" };
            // What is broken on the way is seen where it is lacking.
            let _ = each(&self.conn, sql, order, |row| gids.extend(number(row, 0)));
        }
        gids
    }

    /// The rows that are whole, by stream; they are copied.
    fn events(
        &self,
        named: &BTreeMap<i64, StreamRow>,
        found: &mut LogInspection,
        to: Option<&SalvageTarget<'_>>,
    ) -> Result<BTreeMap<i64, Vec<EventRow>>> {
        let mut pieces: BTreeMap<i64, Vec<EventRow>> = BTreeMap::new();
        // What of rows that are not whole can be told.
        let mut unnamed = BTreeMap::new();
        let sql = "SELECT stream, first, last, created_ms, source, sum, body FROM batches WHERE gid = ?";
        for gid in self.gids() {
            let mut copied = Ok(());
            let read = self.conn.prepare_cached(sql).and_then(|mut query| {
                let take = |row: &Row<'_>| {
                    let numbers = [0, 1, 2, 3, 5].map(|index| number(row, index));
                    let [Some(stream), Some(first), Some(last), Some(created), Some(sum)] = numbers else { return Ok(None) };
                    let body = row.get_ref(6)?.as_blob().unwrap_or_default();
                    let Some(events) = whole(first.cast_unsigned(), last.cast_unsigned(), created, sum, body) else { return Ok(None) };
                    if let Some(to) = to.filter(|_| is_stream(stream, named)) {
                        let sql = "INSERT OR IGNORE INTO batches (gid, stream, first, last, created_ms, source, bytes, sum, body)
                            VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)";
                        let (source, bytes) = (number(row, 4).unwrap_or(0), body.len() as i64);
                        copied = to.put(sql, params![gid, stream, first, last, created, source, bytes, sum, body]);
                    }
                    Ok(Some((stream, first.cast_unsigned(), last.cast_unsigned(), events)))
                };
                query.query_row([gid], take).optional()
            });
            copied?;
            match read {
                Ok(Some(Some((stream, first, last, events)))) if is_stream(stream, named) => {
                    found.rows += 1;
                    found.events += events;
                    pieces.entry(stream).or_default().push(EventRow { gid, first, last });
                }
                // Of a stream that is being imported or deleted, or whose row is lost.
                Ok(Some(Some((stream, ..)))) => *unnamed.entry(stream).or_insert(0_u64) += 1,
                // Of which stream it was shows where it is lacking.
                _ => {}
            }
        }
        for (stream, rows) in unnamed {
            if self.is_lost(stream) {
                let detail = format!("its row is lost: {rows} rows of its events belong to nobody");
                found.damage.push(LogDamage::Stream { row: stream, name: String::new(), detail });
            }
        }
        Ok(pieces)
    }

    /// Returns whether no stream has a row, not even one that is being deleted.
    fn is_lost(&self, stream: i64) -> bool {
        let row = self.conn.query_row("SELECT 1 FROM streams WHERE id = ?", [stream], |_| Ok(())).optional();
        !matches!(row, Ok(Some(())))
    }

    /// Lists the parts that each stream has and lacks.
    fn spans(
        &self,
        named: BTreeMap<i64, StreamRow>,
        pieces: &BTreeMap<i64, Vec<EventRow>>,
        found: &mut LogInspection,
        to: Option<&SalvageTarget<'_>>,
    ) -> Result<()> {
        let mut free = pieces.values().flatten().map(|piece| piece.gid).max().unwrap_or(0) + 1;
        for (row, StreamRow { name, closed, source, span }) in named {
            let mut own = pieces.get(&row).cloned().unwrap_or_default();
            own.sort_by_key(|piece| piece.first);
            let ends = own.first().zip(own.last()).map(|(first, last)| (first.first, last.last));
            let shown = name.as_ref().map_or_else(Clone::clone, ToString::to_string);
            if name.is_err() {
                let detail = format!("its name is none: {} rows of its events are kept", own.len());
                found.damage.push(LogDamage::Stream { row, name: shown.clone(), detail });
            }
            let (first, last) = match (span, ends) {
                // Rows behind its end, where nothing was ever appended.
                (Some((_, last)), Some((_, end))) if end > last => {
                    let detail = format!("it is said to end at {last}, and has events up to {end}");
                    found.damage.push(LogDamage::Stream { row, name: shown.clone(), detail });
                    (span.map_or(1, |(first, _)| first), end)
                }
                (Some(span), _) => span,
                (None, ends) => {
                    let detail = "where it begins and ends is not to be read: as its events say".to_owned();
                    found.damage.push(LogDamage::Stream { row, name: shown.clone(), detail });
                    ends.unwrap_or((1, 0))
                }
            };
            let gaps = gaps(&own, first, last);
            found.streams += u64::from(name.is_ok());
            let session = shown.clone();
            found.damage.extend(gaps.iter().map(|gap| LogDamage::Events { session: session.clone(), gap: *gap }));
            let Some(to) = to else { continue };
            let name = name.unwrap_or_else(|_| salvaged_name(row));
            for gap in gaps {
                let body = gap_line(&name, gap);
                let sum = checksum(gap.from, gap.to, 0, &body);
                let sql = "INSERT INTO batches (gid, stream, first, last, created_ms, source, bytes, sum, body)
                    VALUES (?, ?, ?, ?, 0, 0, ?, ?, ?)";
                let [first, last] = [gap.from, gap.to].map(u64::cast_signed);
                to.put(sql, params![free, row, first, last, body.len() as i64, sum, body])?;
                free += 1;
            }
            let sql = "INSERT INTO streams (id, name, first, last, closed, source, bytes)
                VALUES (?1, ?2, ?3, ?4, ?5, ?6, (SELECT coalesce(sum(bytes), 0) FROM batches WHERE stream = ?1))";
            let [first, last] = [first, last].map(u64::cast_signed);
            to.put(sql, params![row, name.as_str(), first, last, closed, source])?;
        }
        Ok(())
    }

    fn records(
        &self,
        is_record: RecordCheck<'_>,
        found: &mut LogInspection,
        to: Option<&SalvageTarget<'_>>,
    ) -> Result<()> {
        let (records, damage) = records(&self.conn);
        found.damage.extend(damage);
        for (id, record, updated) in records {
            if let Err(detail) = is_record(&record) {
                found.damage.push(LogDamage::Record { id: id.to_string(), detail });
                continue;
            }
            found.records += 1;
            if let Some(to) = to {
                to.put(
                    "INSERT INTO sessions (id, record, updated_ms) VALUES (?, ?, ?)",
                    params![id.as_str(), record, updated],
                )?;
            }
        }
        Ok(())
    }

    /// Inspects cursors, heartbeat and last position.
    fn rest(&self, found: &mut LogInspection, to: Option<&SalvageTarget<'_>>) -> Result<()> {
        let mut cursors = BTreeMap::new();
        let mut lost = 0;
        let sql = "SELECT stream, consumer, offset FROM cursors";
        let read = each(&self.conn, sql, "stream", |row| match (number(row, 0), text(row, 1), number(row, 2)) {
            (Some(stream), Ok(consumer), Some(offset)) => _ = cursors.insert((stream, consumer), offset),
            _ => lost += 1,
        });
        self.broken(read, "the table of consumers", found);
        if lost > 0 {
            found
                .damage
                .push(LogDamage::Other { detail: format!("how far {lost} consumers have come is not to be read") });
        }
        let Some(to) = to else { return Ok(()) };
        for ((stream, consumer), offset) in cursors {
            let sql = "INSERT INTO cursors (stream, consumer, offset)
                SELECT ?, ?, ? WHERE EXISTS (SELECT 1 FROM streams WHERE id = ?1)";
            to.put(sql, params![stream, consumer, offset])?;
        }
        let beat = self.conn.query_row("SELECT host, at_ms FROM beat", [], |row| Ok((text(row, 0), number(row, 1))));
        if let Ok((Ok(host), Some(at))) = beat {
            to.put("INSERT INTO beat (one, host, at_ms) VALUES (1, ?, ?)", params![host, at])?;
        }
        let position = self.conn.query_row("SELECT gid FROM position", [], |row| Ok(number(row, 0)));
        if let Ok(Some(gid)) = position {
            to.put("UPDATE position SET gid = ?", [gid])?;
        }
        Ok(())
    }
}

/// Records of sessions that are text, and what of them is not.
pub(super) fn records(conn: &Connection) -> (Vec<(SessionId, String, i64)>, Vec<LogDamage>) {
    let (mut found, mut damage) = (BTreeMap::new(), Vec::new());
    let read = each(conn, "SELECT id, record, updated_ms FROM sessions", "id", |row| {
        let id = match name(row, 0) {
            Ok(id) => id,
            Err(id) => return damage.push(LogDamage::Record { id, detail: "its id is none".to_owned() }),
        };
        match text(row, 1) {
            Ok(record) => _ = found.insert(id, (record, number(row, 2).unwrap_or(0))),
            Err(_) => damage.push(LogDamage::Record { id: id.to_string(), detail: "it is no text".to_owned() }),
        }
    });
    if let Err(error) = read {
        damage.push(LogDamage::Database { detail: format!("the table of records: {error}") });
    }
    let mut told = Vec::new();
    damage.retain(|one| {
        !told.contains(one) && {
            told.push(one.clone());
            true
        }
    });
    (found.into_iter().map(|(id, (record, updated))| (id, record, updated)).collect(), damage)
}

fn is_stream(stream: i64, named: &BTreeMap<i64, StreamRow>) -> bool {
    named.contains_key(&stream)
}

/// Returns the number of events in a row, if the row is whole.
fn whole(first: u64, last: u64, created_ms: i64, sum: i64, body: &[u8]) -> Option<u64> {
    if first == 0 || first > last || sum != i64::from(checksum(first, last, created_ms, body)) {
        return None;
    }
    let session: Arc<SessionId> = Arc::new("s".parse().ok()?);
    let lines = || body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines().all(|line| line::read(line, &session, 1, 0).is_ok()).then(|| lines().count() as u64)
}

/// Lists the gaps between the first and the last offset of a stream.
fn gaps(pieces: &[EventRow], first: u64, last: u64) -> Vec<OffsetGap> {
    let mut gaps = Vec::new();
    let mut next = first;
    for piece in pieces {
        if piece.first > next {
            gaps.push(OffsetGap { from: next, to: piece.first - 1 });
        }
        next = next.max(piece.last + 1);
    }
    if next <= last {
        gaps.push(OffsetGap { from: next, to: last });
    }
    gaps
}

fn salvaged_name(row: i64) -> SessionId {
    // Of letters and digits, and short enough.
    format!("salvaged-{row}").parse().unwrap_or_else(|_| SessionId::mint())
}

fn gap_line(session: &SessionId, gap: OffsetGap) -> Vec<u8> {
    let created_at = line::time(0);
    let event = Event::SessionGap(gap);
    let envelope =
        Envelope { offset: gap.to, created_at, session: Arc::new(session.clone()), turn: None, metadata: None, event };
    let mut body = Vec::new();
    // A gap has nothing that could not be written.
    let _ = line::write(&mut body, &envelope, 0);
    body
}
