//! Search for the file of a conversation. No symbolic link is followed.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// Maximum number of files that are examined.
const MOST_FILES: usize = 20_000;
/// Maximum number of files whose beginning is searched for a working directory.
const NEWEST: usize = 1000;
/// Maximum depth of nested directories.
const DEEPEST: usize = 16;
/// Bytes of a file that are searched, which has the id at the beginning.
const HEAD: u64 = 64 * 1024;
/// Number of characters of an id by which agents name files.
pub(super) const PREFIX: usize = 8;

/// Finds the file of conversation `id` in `files`: the newest file below that directory that is named after it, or `files` itself if
/// it is a database of all. Returns `None` if there is none yet.
///
/// # Errors
/// An error if the files cannot be listed, or are too many.
pub fn find_conversation(files: &Path, id: &str) -> io::Result<Option<PathBuf>> {
    if files.is_file() {
        return Ok(Some(files.to_owned()));
    }
    Ok(newest_first(files)?.find(|path| is_of(path, id)))
}

/// Finds the newest file below `directory` whose beginning names `cwd`. Returns `None` if none of the newest does.
///
/// # Errors
/// As [`find_conversation`].
pub(super) fn most_recent(directory: &Path, cwd: &str) -> io::Result<Option<PathBuf>> {
    let named = format!("\"cwd\":{}", serde_json::Value::from(cwd));
    Ok(newest_first(directory)?.take(NEWEST).find(|path| head_contains(path, &named).unwrap_or(false)))
}

/// Lists the files below `directory`, the newest first.
pub(super) fn newest_first(directory: &Path) -> io::Result<impl Iterator<Item = PathBuf>> {
    let mut files = Vec::new();
    list(directory, DEEPEST, &mut files)?;
    files.sort_by_key(|(_, changed)| std::cmp::Reverse(*changed));
    Ok(files.into_iter().map(|(path, _)| path))
}

/// Returns whether a file is named after the conversation: by its id, or by a prefix of it if the file's beginning has
/// the whole id.
fn is_of(path: &Path, id: &str) -> bool {
    let Some(name) = path.file_stem().and_then(|name| name.to_str()) else { return false };
    let Some(prefix) = id.get(..PREFIX) else { return !id.is_empty() && name == id };
    name.contains(id) || (name.contains(prefix) && head_contains(path, id).unwrap_or(false))
}

/// Returns whether a file contains `text` near its beginning.
pub(super) fn head_contains(path: &Path, text: &str) -> io::Result<bool> {
    let head = present(read(path, HEAD))?;
    Ok(head.is_some_and(|head| memchr::memmem::find(&head, text.as_bytes()).is_some()))
}

/// Appends the files below `directory` with their modification times. Follows no links.
fn list(directory: &Path, depth: usize, out: &mut Vec<(PathBuf, SystemTime)>) -> io::Result<()> {
    let Some(depth) = depth.checked_sub(1) else { return Ok(()) };
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        let Some(metadata) = present(entry.metadata())? else { continue };
        if metadata.is_dir() {
            list(&entry.path(), depth, out)?;
        } else if metadata.is_file() {
            out.push((entry.path(), metadata.modified()?));
        }
        if out.len() > MOST_FILES {
            return Err(io::Error::other(format!("there are more than {MOST_FILES} files")));
        }
    }
    Ok(())
}

/// Maps `NotFound` to `None`: another agent may have removed the file just now.
pub(super) fn present<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// Reads the beginning of a file, at most `limit` bytes.
pub(super) fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut contents = Vec::new();
    open(path)?.take(limit).read_to_end(&mut contents)?;
    Ok(contents)
}

/// Opens a file for reading. Follows no link and never blocks.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    File::options().read(true).custom_flags(flags).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_by_the_names_that_agents_give_them() {
        let scratch = tempfile::tempdir().expect("a directory");
        let id = "0f1e2d3c-aaaa-7000-8000-000000000000";
        let other = "0f1e2d3c-bbbb-7000-8000-000000000000";
        let find = |below: &str, id: &str| find_conversation(&scratch.path().join(below), id).expect("looked");
        let write = |path: String, contents: &str| {
            let path = scratch.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs::write(&path, contents).expect("written");
            path
        };
        assert_eq!(find("claude", id), None, "it is not there yet");
        let claude = write(format!("claude/-work/{id}.jsonl"), "");
        let codex = write(format!("codex/2026/01/02/rollout-2026-01-02T03-04-05-{id}.jsonl"), "");
        let pi = write(format!("pi/--work--/2026-01-02_{id}.jsonl"), "");
        assert_eq!(find("claude", id), Some(claude));
        assert_eq!(find("codex", id), Some(codex));
        assert_eq!((find("pi", id), find("pi", other)), (Some(pi), None));
        // Two that begin alike, as those of one minute do.
        let gemini =
            write("gemini/w/chats/session-1-0f1e2d3c.jsonl".to_owned(), &format!("{{\"sessionId\":\"{id}\"}}"));
        write("gemini/w/chats/session-2-0f1e2d3c.jsonl".to_owned(), &format!("{{\"sessionId\":\"{other}\"}}"));
        assert_eq!(find("gemini", id), Some(gemini));
        let short = write("short/12.json".to_owned(), "");
        assert_eq!((find("short", "12"), find("short", "1"), find("short", "")), (Some(short), None, None));
        let database = "opencode/opencode.db";
        assert_eq!(find(database, "ses_1"), None, "it is not there yet");
        let file = write(database.to_owned(), "");
        assert_eq!(find(database, "ses_1"), Some(file));
    }
}
