//! Files of a conversation in a session's own home: read for an export, written for a take-over. The agent may change the home
//! meanwhile, so no symbolic link is followed.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Read as _},
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::fs::{Dir, FileType, Mode, OFlags};

use super::ConversationFile;
use crate::homes::files;

/// Most files of a conversation.
const MAX_FILES: usize = 10_000;
/// Most directories that are nested.
const MAX_DEPTH: usize = 32;

/// Files that were found.
#[derive(Debug, Default)]
pub(crate) struct FoundFiles {
    pub(crate) files: Vec<ConversationFile>,
    /// Reason why some are left out.
    pub(crate) incomplete: Option<String>,
}

struct FileSearch<'a> {
    /// Paths below the home that are left out.
    keys: &'a BTreeSet<PathBuf>,
    /// Only entries whose name begins so, in the directory that the search begins with.
    prefix: Option<&'a str>,
    left: u64,
    found: Vec<ConversationFile>,
}

/// Reads the files at `below` in `home`: all of a directory, or a file and those beside it whose names begin with its own (a
/// database has such). `keys` are left out, and so is everything if there is more than `max_bytes`. Blocks.
///
/// # Errors
/// The system's. A conversation that does not exist yet has no files.
pub(crate) fn read(home: &Path, below: &Path, keys: &BTreeSet<PathBuf>, max_bytes: u64) -> io::Result<FoundFiles> {
    let mut directory = files::open(home)?;
    let mut names: Vec<_> = below.components().collect();
    let mut prefix = None;
    let is_file = home.join(below).symlink_metadata().is_ok_and(|found| found.is_file());
    if is_file {
        prefix = names.pop().and_then(|name| name.as_os_str().to_str());
    }
    for name in &names {
        directory = match open(&directory, name.as_os_str(), OFlags::DIRECTORY) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(FoundFiles::default()),
            opened => opened?,
        };
    }
    let mut search = FileSearch { keys, prefix, left: max_bytes, found: Vec::new() };
    if let Err(reason) = search.directory(&directory, &names.iter().collect::<PathBuf>(), 0)? {
        return Ok(FoundFiles { files: Vec::new(), incomplete: Some(reason) });
    }
    search.found.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(FoundFiles { files: search.found, incomplete: None })
}

fn open(directory: impl AsFd, name: &std::ffi::OsStr, kind: OFlags) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | kind;
    Ok(rustix::fs::openat(directory, name, flags, Mode::empty())?)
}

impl FileSearch<'_> {
    /// Reads a directory. The inner error says why there is too much.
    fn directory(&mut self, directory: &OwnedFd, path: &Path, depth: usize) -> io::Result<Result<(), String>> {
        if depth > MAX_DEPTH {
            return Ok(Err(format!("its directories are nested deeper than {MAX_DEPTH}")));
        }
        for entry in Dir::read_from(directory)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            let below = path.join(name);
            if matches!(name, "." | "..") || self.keys.contains(&below) {
                continue;
            }
            if depth == 0 && self.prefix.is_some_and(|prefix| !name.starts_with(prefix)) {
                continue;
            }
            let opened = match entry.file_type() {
                FileType::Directory => open(directory, name.as_ref(), OFlags::DIRECTORY),
                FileType::RegularFile => open(directory, name.as_ref(), OFlags::empty()),
                // Links and sockets are of no use elsewhere.
                _ => continue,
            };
            let done = match (opened, entry.file_type()) {
                // The agent has removed or replaced it.
                (Err(_), _) => continue,
                (Ok(inner), FileType::Directory) => self.directory(&inner, &below, depth + 1)?,
                (Ok(file), _) => self.file(file, &below)?,
            };
            if done.is_err() {
                return Ok(done);
            }
        }
        Ok(Ok(()))
    }

    fn file(&mut self, file: OwnedFd, path: &Path) -> io::Result<Result<(), String>> {
        let file = File::from(file);
        if !file.metadata()?.is_file() {
            return Ok(Ok(()));
        }
        let mut content = Vec::new();
        file.take(self.left + 1).read_to_end(&mut content)?;
        if content.len() as u64 > self.left || self.found.len() >= MAX_FILES {
            return Ok(Err(format!("its files are more than may be exported, which end at {}", path.display())));
        }
        self.left -= content.len() as u64;
        if let Some(path) = path.to_str() {
            self.found.push(ConversationFile { path: path.to_owned(), content });
        }
        Ok(Ok(()))
    }
}

/// Writes the files of a conversation to `home`. Blocks.
///
/// # Errors
/// `InvalidInput` for a path that leads out of the home; else the system's.
pub(crate) fn write(home: &Path, conversation: &[ConversationFile]) -> io::Result<()> {
    let root = files::open(home)?;
    conversation.iter().try_for_each(|file| files::write(&root, Path::new(&file.path), &file.content))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    fn paths(found: &FoundFiles) -> Vec<&str> {
        found.files.iter().map(|file| file.path.as_str()).collect()
    }

    #[test]
    fn files_come_back_and_neither_keys_nor_links_go() {
        let scratch = tempfile::tempdir().expect("a directory");
        let home = scratch.path().join("home");
        fs::create_dir_all(home.join(".agent/chats/deep")).expect("made");
        for (path, text) in
            [(".agent/chats/deep/1.jsonl", "one"), (".agent/chats/2.jsonl", "two"), (".agent/key", "key")]
        {
            fs::write(home.join(path), text).expect("written");
        }
        fs::write(scratch.path().join("secret"), "secret").expect("written");
        symlink(scratch.path().join("secret"), home.join(".agent/chats/link")).expect("linked");
        symlink(scratch.path(), home.join(".agent/chats/out")).expect("linked");
        let none = BTreeSet::new();
        let found = read(&home, Path::new(".agent/chats"), &none, 1000).expect("read");
        assert_eq!(paths(&found), [".agent/chats/2.jsonl", ".agent/chats/deep/1.jsonl"]);
        let keys = [PathBuf::from(".agent/key")].into();
        let all = read(&home, Path::new(""), &keys, 1000).expect("read");
        assert_eq!(paths(&all), paths(&found));
        let other = scratch.path().join("other");
        fs::create_dir(&other).expect("made");
        write(&other, &all.files).expect("written");
        assert_eq!(read(&other, Path::new(""), &none, 1000).expect("read").files, all.files);
        // A link in the place of a directory is not followed.
        fs::rename(home.join(".agent"), home.join(".moved")).expect("renamed");
        symlink(home.join(".moved"), home.join(".agent")).expect("linked");
        assert!(read(&home, Path::new(".agent/chats"), &none, 1000).is_err());
        let outside = [ConversationFile { path: "../x".into(), content: Vec::new() }];
        assert!(write(&other, &outside).is_err() && !scratch.path().join("x").exists());
    }

    #[test]
    fn a_database_comes_with_what_is_beside_it_and_too_much_is_nothing() {
        let scratch = tempfile::tempdir().expect("a directory");
        for name in ["agent.db", "agent.db-wal", "other"] {
            fs::write(scratch.path().join(name), "x").expect("written");
        }
        let none = BTreeSet::new();
        let read = |below: &str, bytes| read(scratch.path(), Path::new(below), &none, bytes).expect("read");
        assert_eq!(paths(&read("agent.db", 2)), ["agent.db", "agent.db-wal"]);
        let too_much = read("", 2);
        assert!(too_much.files.is_empty() && too_much.incomplete.is_some(), "{too_much:?}");
        let missing = read("nowhere/chats", 2);
        assert!(missing.files.is_empty() && missing.incomplete.is_none(), "{missing:?}");
    }
}
