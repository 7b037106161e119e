//! Byte streams of a file that is looked at as it lies: rows of content that are damaged, and what is whole written to a new file.

use rusqlite::{Connection, types::Value};

use super::{
    inspect::{SalvageTarget, each},
    rows::checksum,
};
use crate::{LogDamage, LogInspection, Result};

/// Looks at the byte streams, and copies them with the rows that are whole. A file of an older release has none.
///
/// # Errors
/// If the new file cannot be written.
pub(super) fn inspect(conn: &Connection, found: &mut LogInspection, to: Option<&SalvageTarget<'_>>) -> Result<()> {
    let known = conn.query_row("SELECT count(*) FROM sqlite_schema WHERE name = 'byte_streams'", [], |row| row.get(0));
    if matches!(known, Ok(0_i64)) {
        return Ok(());
    }
    let mut rows = Vec::new();
    let read = each(conn, "SELECT gid FROM byte_rows", "gid", |row| rows.extend(row.get::<_, i64>(0)));
    broken(read, "the table of streams' content", found);
    rows.sort_unstable();
    rows.dedup();
    let mut lost = 0;
    for gid in rows {
        let sql = "SELECT stream, first, last, sum, body FROM byte_rows WHERE gid = ?";
        let read = conn.prepare_cached(sql).and_then(|mut query| {
            query.query_row([gid], |row| {
                let body: Vec<u8> = row.get(4)?;
                Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?, row.get::<_, i64>(3)?, body))
            })
        });
        match read {
            Ok((stream, first, last, sum, body))
                if sum == i64::from(checksum(first.cast_unsigned(), last.cast_unsigned(), stream, &body)) =>
            {
                let sql =
                    "INSERT OR IGNORE INTO byte_rows (gid, stream, first, last, sum, body) VALUES (?, ?, ?, ?, ?, ?)";
                copy(to, sql, rusqlite::params![gid, stream, first, last, sum, body])?;
            }
            _ => lost += 1,
        }
    }
    if lost > 0 {
        let detail =
            format!("{lost} rows of the content of byte streams are not to be read: readers find a hole there");
        found.damage.push(LogDamage::Other { detail });
    }
    table(conn, "byte_streams", 14, "id", found, to)?;
    table(conn, "producers", 4, "stream", found, to)
}

/// Copies how far replicated streams are acknowledged, and what was put aside. A file of an older release has none.
///
/// # Errors
/// If the new file cannot be written.
pub(super) fn inspect_replicated(
    conn: &Connection,
    found: &mut LogInspection,
    to: Option<&SalvageTarget<'_>>,
) -> Result<()> {
    let known = conn.query_row("SELECT count(*) FROM sqlite_schema WHERE name = 'replicated'", [], |row| row.get(0));
    if matches!(known, Ok(0_i64)) {
        return Ok(());
    }
    table(conn, "replicated", 3, "stream", found, to)?;
    table(conn, "put_aside", 8, "id", found, to)
}

/// Copies a small table as it is.
fn table(
    conn: &Connection,
    name: &str,
    columns: usize,
    order: &str,
    found: &mut LogInspection,
    to: Option<&SalvageTarget<'_>>,
) -> Result<()> {
    let mut rows: Vec<Vec<Value>> = Vec::new();
    let read = each(conn, &format!("SELECT * FROM {name}"), order, |row| {
        let values: rusqlite::Result<Vec<Value>> = (0..columns).map(|column| row.get(column)).collect();
        rows.extend(values);
    });
    broken(read, &format!("the table {name}"), found);
    let places = vec!["?"; columns].join(", ");
    for row in rows {
        // A row that does not fit its table is left out.
        copy(to, &format!("INSERT OR IGNORE INTO {name} VALUES ({places})"), rusqlite::params_from_iter(row))?;
    }
    Ok(())
}

fn copy(to: Option<&SalvageTarget<'_>>, sql: &str, params: impl rusqlite::Params) -> Result<()> {
    to.map_or(Ok(()), |to| to.put(sql, params))
}

fn broken(read: rusqlite::Result<()>, what: &str, found: &mut LogInspection) {
    if let Err(error) = read {
        found.damage.push(LogDamage::Database { detail: format!("{what}: {error}") });
    }
}
