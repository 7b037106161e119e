//! TOML files of named tables.

use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Read, Write},
    ops::Range,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use serde::{Serialize, de::DeserializeOwned};
use toml_edit::{DocumentMut, Item, Table, TomlError};

use super::{ConfigError, SaveMode};
use crate::{RowError, catalog::typed};

/// Longest configuration file, in bytes.
const LONGEST: u64 = 1 << 20;

fn unread(path: &Path) -> impl FnOnce(io::Error) -> ConfigError {
    move |source| ConfigError::Read { path: path.to_owned(), source }
}

fn unwritten(path: &Path) -> impl FnOnce(io::Error) -> ConfigError {
    move |source| ConfigError::Write { path: path.to_owned(), source }
}

/// Returns true if there is no such file. A user without a home has `/dev/null` for one, below which nothing is.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Reads a complete file. Returns `None` if there is none.
pub(super) fn read(path: &Path) -> Result<Option<String>, ConfigError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if is_absent(&error) => return Ok(None),
        Err(error) => return Err(unread(path)(error)),
    };
    let mut text = String::new();
    let read = file.take(LONGEST + 1).read_to_string(&mut text).map_err(unread(path))?;
    if read as u64 > LONGEST {
        return Err(unread(path)(io::Error::other(format!("it is longer than {LONGEST} bytes"))));
    }
    Ok(Some(text))
}

/// Returns the sorted entries of a directory; none if it does not exist.
pub(super) fn files(directory: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if is_absent(&error) => return Ok(Vec::new()),
        Err(error) => return Err(unread(directory)(error)),
    };
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let mut paths = paths.collect::<Result<Vec<_>, _>>().map_err(unread(directory))?;
    paths.sort();
    Ok(paths)
}

/// Refuses a file that anybody but its owner can access.
pub(super) fn private(path: &Path) -> Result<(), ConfigError> {
    let mode = fs::metadata(path).map_err(unread(path))?.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(ConfigError::Open { path: path.to_owned(), mode });
    }
    Ok(())
}

/// Reads the key from a file that contains nothing else.
pub(super) fn key(path: &Path) -> Result<String, ConfigError> {
    private(path)?;
    let text = read(path)?.unwrap_or_default();
    let key = text.trim();
    if key.is_empty() {
        return Err(ConfigError::EmptyKey { path: path.to_owned() });
    }
    Ok(key.to_owned())
}

/// Makes a syntax error. The parser's own text shows the line, which may contain a key: only line number and reason are used.
fn syntax(path: &Path, text: &str, place: Option<Range<usize>>, reason: &str) -> ConfigError {
    let line = place.and_then(|place| text.get(..place.start)).map(|before| before.matches('\n').count() + 1);
    let line = line.map(|line| format!("line {line}: ")).unwrap_or_default();
    ConfigError::Syntax { path: path.to_owned(), reason: format!("{line}{reason}") }
}

/// Loads every table of a file, by name.
pub(super) fn load<T: DeserializeOwned>(path: &Path) -> Result<BTreeMap<String, T>, ConfigError> {
    let Some(text) = read(path)? else { return Ok(BTreeMap::new()) };
    let table: toml::Table =
        toml::from_str(&text).map_err(|error| syntax(path, &text, error.span(), error.message()))?;
    let entry = |(name, value): (String, toml::Value)| {
        let refused = |field| ConfigError::Entry { path: path.to_owned(), name: name.clone(), field };
        check_name(&name).map_err(refused)?;
        if !value.is_table() {
            let reason = "a table is needed, as in [NAME]".to_owned();
            return Err(refused(RowError { name: "(table)".to_owned(), reason }));
        }
        Ok((name.clone(), typed(value).map_err(refused)?))
    };
    table.into_iter().map(entry).collect()
}

/// Checks a name, since names go into files and command lines.
fn check_name(name: &str) -> Result<(), RowError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.is_empty() || name.len() > 64 || !name.chars().all(fits) {
        let reason = "a name is 1 to 64 characters of A-Z a-z 0-9 . _ -";
        return Err(RowError { name: "(name)".into(), reason: reason.into() });
    }
    Ok(())
}

/// Converts a value to a table.
pub(super) fn table(value: &impl Serialize) -> Result<Table, String> {
    let text = toml::to_string(value).map_err(|error| error.to_string())?;
    let document: DocumentMut = text.parse().map_err(|error: TomlError| error.to_string())?;
    let mut table = document.into_table();
    unplaced(&mut table);
    Ok(table)
}

/// Removes positions, which are only valid in the document that they come from.
fn unplaced(table: &mut Table) {
    table.set_position(None);
    for (_, item) in table.iter_mut() {
        match item {
            Item::Table(table) => unplaced(table),
            Item::ArrayOfTables(tables) => tables.iter_mut().for_each(unplaced),
            _ => {}
        }
    }
}

/// Inserts a table of that kind and name into a document.
pub(super) fn put(
    document: &mut DocumentMut,
    (what, name): (&'static str, &str),
    table: Table,
    save: SaveMode,
    advice: &'static str,
) -> Result<(), ConfigError> {
    check_name(name).map_err(|field| ConfigError::Entry { path: PathBuf::from(what), name: name.into(), field })?;
    match (save, document.contains_key(name)) {
        (SaveMode::New, true) => return Err(ConfigError::Exists { what, name: name.to_owned(), advice }),
        (SaveMode::Changed, false) => return Err(missing(document, (what, name))),
        (SaveMode::Changed, true) => {
            // The comments above the table, and its place among the others, stay.
            let mut table = table;
            if let Some(old) = document.get(name).and_then(Item::as_table) {
                *table.decor_mut() = old.decor().clone();
                table.set_position(old.position());
            }
            document.insert(name, Item::Table(table));
        }
        (SaveMode::New, false) => {
            let mut table = table;
            if !document.is_empty() {
                table.decor_mut().set_prefix("\n");
            }
            document.insert(name, Item::Table(table));
        }
    }
    Ok(())
}

/// Removes the table of that kind and name from a document.
pub(super) fn remove(document: &mut DocumentMut, (what, name): (&'static str, &str)) -> Result<(), ConfigError> {
    match document.remove(name) {
        Some(_) => Ok(()),
        None => Err(missing(document, (what, name))),
    }
}

fn missing(document: &DocumentMut, (what, name): (&'static str, &str)) -> ConfigError {
    let known = document.iter().map(|(name, _)| name.to_owned()).collect();
    ConfigError::Missing { what, name: name.to_owned(), known }
}

/// Changes a file of `directory` under the directory's lock.
pub(super) fn edit(
    directory: &Path,
    path: &Path,
    change: impl FnOnce(&mut DocumentMut) -> Result<(), ConfigError>,
) -> Result<(), ConfigError> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(unwritten(directory))?;
    let _held = lock(directory)?;
    // A link is followed, and its target is changed.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let text = read(&path)?.unwrap_or_default();
    let parsed = text.parse::<DocumentMut>();
    let mut document = parsed.map_err(|error| syntax(&path, &text, error.span(), error.message()))?;
    change(&mut document)?;
    write(&path, &document.to_string()).map_err(unwritten(&path))
}

/// Longest wait for another process's change.
const PATIENCE: Duration = Duration::from_secs(1);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(10);

/// Locks the directory's files until the result is dropped. Blocks while another process changes them. A process that was just
/// forked may hold the lock too, until it executes its program.
fn lock(directory: &Path) -> Result<File, ConfigError> {
    let path = directory.join(".lock");
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path).map_err(unwritten(&path))?;
    let begin = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if begin.elapsed() < PATIENCE => thread::sleep(PAUSE),
            Err(TryLockError::WouldBlock) => return Err(ConfigError::Locked { path: directory.to_owned() }),
            Err(TryLockError::Error(error)) => return Err(unwritten(&path)(error)),
        }
    }
}

/// Writes a file atomically: either the old or the new file exists, and the new one has mode 0600.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    // Left by an interrupted change; the holder of the lock may remove it.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&new)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        // The first error is more useful.
        let _ = fs::remove_file(&new);
    }
    written
}
