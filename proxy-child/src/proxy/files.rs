//! Access to the agent's own files, on behalf of its adapter.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use agents::ListedFile;
use rustix::fs::{CWD, OFlags, RenameFlags};

/// Most files in a list.
const MAX_FILES: usize = 1000;
/// Most entries of a directory that are read.
const MAX_ENTRIES: usize = 50_000;
/// Bytes that are read of each file.
const HEAD: u64 = 16 * 1024;

/// Lists the plain files directly in `directory` whose names end with `suffix`, newest first, each with its first bytes. Files that
/// do not exist or cannot be read are left out.
pub(crate) fn list(directory: &str, suffix: &str) -> Vec<ListedFile> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut found: Vec<_> = entries
        .take(MAX_ENTRIES)
        .filter_map(Result::ok)
        .filter(|entry| entry.file_name().as_encoded_bytes().ends_with(suffix.as_bytes()))
        .filter_map(|entry| {
            let metadata = entry.metadata().ok().filter(fs::Metadata::is_file)?;
            Some((metadata.modified().ok()?, entry.path()))
        })
        .collect();
    found.sort_by(|a, b| b.cmp(a));
    found.truncate(MAX_FILES);
    let file = |(modified, path): (SystemTime, std::path::PathBuf)| {
        let since = modified.duration_since(UNIX_EPOCH).unwrap_or_default();
        Some(ListedFile {
            head: head(&path)?,
            // A path that is no text could not be passed to the agent either.
            path: path.into_os_string().into_string().ok()?,
            modified_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
        })
    };
    found.into_iter().filter_map(file).collect()
}

/// Renames the file at `path` within its directory, unless the new name exists.
///
/// # Errors
/// The error of the system; `InvalidInput` for an invalid name.
pub(crate) fn rename(path: &str, name: &str) -> io::Result<()> {
    let path = Path::new(path);
    if name.contains('/') || matches!(name, "" | "." | "..") {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    rustix::fs::renameat_with(CWD, path, CWD, path.with_file_name(name), RenameFlags::NOREPLACE)?;
    Ok(())
}

fn head(path: &Path) -> Option<Vec<u8>> {
    // The agent may have replaced the file by a pipe or a link: the open neither waits for a pipe nor follows a link.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file: File = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut head = Vec::new();
    file.take(HEAD).read_to_end(&mut head).ok()?;
    Some(head)
}

#[cfg(test)]
mod tests {
    use std::{path::PathBuf, time::Duration};

    use super::*;

    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("agent-proxy-files-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).expect("a directory");
            Self(path)
        }

        fn write(&self, name: &str, age: u64, contents: &[u8]) {
            let path = self.0.join(name);
            fs::write(&path, contents).expect("written");
            let file = File::options().write(true).open(&path).expect("there");
            file.set_modified(UNIX_EPOCH + Duration::from_secs(1_000_000 - age)).expect("a time");
        }

        fn list(&self) -> Vec<ListedFile> {
            list(self.0.to_str().expect("text"), ".jsonl")
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_newest_come_first_and_heads_are_bounded() {
        let directory = Directory::new("newest");
        directory.write("old.jsonl", 20, b"old");
        directory.write("new.jsonl", 10, &[b'x'; 20_000]);
        directory.write("other.txt", 0, b"");
        fs::create_dir(directory.0.join("folder.jsonl")).expect("a directory");
        let files = directory.list();
        let told =
            files.iter().map(|file| (file.path.rsplit('/').next().unwrap_or(""), file.modified_ms, file.head.len()));
        assert_eq!(told.collect::<Vec<_>>(), [("new.jsonl", 999_990_000, 16 * 1024), ("old.jsonl", 999_980_000, 3)]);
        assert_eq!(list("/no/such/directory", ".jsonl"), []);
    }

    #[test]
    fn at_most_a_thousand_are_told_of() {
        let directory = Directory::new("many");
        for number in 0..1002 {
            directory.write(&format!("{number}.jsonl"), number, b"");
        }
        let files = directory.list();
        assert_eq!(files.len(), 1000);
        assert!(files[999].path.ends_with("/999.jsonl"), "the oldest are left out");
    }

    #[test]
    fn a_file_gets_another_name_and_never_that_of_another_file() {
        let directory = Directory::new("rename");
        directory.write("a.jsonl", 0, b"a");
        directory.write("b.jsonl", 1, b"b");
        let path = directory.list()[0].path.clone();
        assert_eq!(rename(&path, "b.jsonl").expect_err("there is one").kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(rename(&path, "../c.jsonl").expect_err("no name").kind(), io::ErrorKind::InvalidInput);
        rename(&path, "c.jsonl").expect("renamed");
        let names = directory.list().into_iter().map(|file| file.path.rsplit('/').next().unwrap_or("").to_owned());
        assert_eq!(names.collect::<Vec<_>>(), ["c.jsonl", "b.jsonl"]);
    }

    /// A file of the agent must neither give it the proxy's read access nor block the proxy.
    #[test]
    fn links_and_pipes_are_left_alone() {
        let directory = Directory::new("links");
        std::os::unix::fs::symlink("/proc/self/environ", directory.0.join("link.jsonl")).expect("a link");
        let pipe = directory.0.join("pipe.jsonl");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        assert_eq!(directory.list(), []);
        assert_eq!((head(&pipe), head(&directory.0.join("link.jsonl"))), (None, None));
    }
}
