//! Access to the agent's own files, on behalf of its adapter.

use std::{
    fs::{self, DirEntry, File, OpenOptions, ReadDir},
    io::{self, Read, Seek},
    iter::Take,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use agents::ListedFile;
use rustix::fs::{CWD, OFlags, RenameFlags};

/// Most files in a list.
const MAX_FILES: usize = 1000;
/// Most entries of a directory that are read.
const MAX_ENTRIES: usize = 50_000;
/// Bytes that are read of each file.
const HEAD: u64 = 16 * 1024;

/// Most bytes of a file that are read at a time.
const PIECE: u64 = 256 * 1024;

/// Reads a piece of a plain file, from `offset` on; without one nothing, at its end. Returns the place of the next byte, and what was
/// read.
///
/// # Errors
/// There is no such file, or it cannot be read.
pub(crate) fn read_on(path: &str, offset: Option<u64>) -> io::Result<(u64, Vec<u8>)> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // A file that was made anew begins again.
    let from = offset.map_or(metadata.len(), |offset| if offset > metadata.len() { 0 } else { offset });
    file.seek(io::SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(PIECE).read_to_end(&mut bytes)?;
    Ok((from.saturating_add(bytes.len().try_into().unwrap_or(u64::MAX)), bytes))
}

/// List of the plain files directly in a directory, made in slices: a kill does not wait for a directory with many files.
///
/// A file system that stands still holds up the proxy all the same: the fork server then ends the session without it.
pub(crate) struct FileListing {
    entries: Take<ReadDir>,
    suffix: &'static str,
    found: Vec<(SystemTime, PathBuf)>,
    /// The newest files, oldest first, once all entries are read.
    newest: Option<Vec<(SystemTime, PathBuf)>>,
    files: Vec<ListedFile>,
}

impl FileListing {
    /// Begins a list of the files whose names end with `suffix`. Returns `None` if the directory cannot be read.
    pub(crate) fn begin(directory: &str, suffix: &'static str) -> Option<Self> {
        let entries = fs::read_dir(directory).ok()?.take(MAX_ENTRIES);
        Some(Self { entries, suffix, found: Vec::new(), newest: None, files: Vec::new() })
    }

    /// Goes on until the instant `until`, by one file at least. Returns the files when all are known: newest first, each with its
    /// first bytes. Files that do not exist or cannot be read are left out.
    pub(crate) fn step(&mut self, until: Instant) -> Option<Vec<ListedFile>> {
        loop {
            match &mut self.newest {
                None => match self.entries.next() {
                    Some(entry) => self.found.extend(entry.ok().and_then(|entry| dated(&entry, self.suffix))),
                    None => {
                        let mut found = std::mem::take(&mut self.found);
                        found.sort();
                        self.newest = Some(found.split_off(found.len().saturating_sub(MAX_FILES)));
                    }
                },
                Some(newest) => match newest.pop() {
                    Some((modified, path)) => self.files.extend(listed(modified, path)),
                    None => return Some(std::mem::take(&mut self.files)),
                },
            }
            if Instant::now() >= until {
                return None;
            }
        }
    }
}

/// Time and path of a plain file whose name ends with `suffix`.
fn dated(entry: &DirEntry, suffix: &str) -> Option<(SystemTime, PathBuf)> {
    if !entry.file_name().as_encoded_bytes().ends_with(suffix.as_bytes()) {
        return None;
    }
    let metadata = entry.metadata().ok().filter(fs::Metadata::is_file)?;
    Some((metadata.modified().ok()?, entry.path()))
}

fn listed(modified: SystemTime, path: PathBuf) -> Option<ListedFile> {
    let since = modified.duration_since(UNIX_EPOCH).unwrap_or_default();
    Some(ListedFile {
        head: head(&path)?,
        // A path that is no text could not be passed to the agent either.
        path: path.into_os_string().into_string().ok()?,
        modified_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
    })
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
    use std::time::Duration;

    use rustix::fs::{FileType, Mode};

    use super::*;

    fn list(directory: &str) -> Vec<ListedFile> {
        let mut listing = FileListing::begin(directory, ".jsonl").expect("a directory");
        listing.step(Instant::now() + Duration::from_secs(60)).expect("all")
    }

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
            list(self.0.to_str().expect("text"))
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
        assert!(FileListing::begin("/no/such/directory", ".jsonl").is_none());
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
    fn a_slice_that_is_over_looks_at_one_file() {
        let directory = Directory::new("slices");
        for number in 0..3000 {
            directory.write(&format!("{number}.jsonl"), number, b"head");
        }
        let mut listing = FileListing::begin(directory.0.to_str().expect("text"), ".jsonl").expect("a directory");
        let mut slices = 0;
        let files = loop {
            slices += 1;
            if let Some(files) = listing.step(Instant::now()) {
                break files;
            }
        };
        assert!(slices >= 4000, "each of 3000 entries and of 1000 beginnings: {slices}");
        assert_eq!(files, directory.list());
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
        rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).expect("a pipe");
        assert_eq!(directory.list(), []);
        assert_eq!((head(&pipe), head(&directory.0.join("link.jsonl"))), (None, None));
    }

    #[test]
    fn a_growing_file_is_read_piece_by_piece() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("file");
        let path = file.to_str().expect("UTF-8");
        assert!(read_on(path, None).is_err());
        fs::write(&file, "one").expect("written");
        assert_eq!(read_on(path, None).expect("read"), (3, Vec::new()));
        assert_eq!(read_on(path, Some(1)).expect("read"), (3, b"ne".to_vec()));
        let long = "x".repeat(300_000);
        fs::write(&file, &long).expect("written");
        let (next, bytes) = read_on(path, Some(0)).expect("read");
        assert_eq!((next, bytes.len()), (PIECE, 256 * 1024));
        fs::write(&file, "two").expect("written");
        assert_eq!(read_on(path, Some(next)).expect("read"), (3, b"two".to_vec()), "it was made anew");
        std::os::unix::fs::symlink(&file, directory.path().join("link")).expect("linked");
        for other in [directory.path().join("link"), directory.path().to_owned()] {
            assert!(read_on(other.to_str().expect("UTF-8"), Some(0)).is_err(), "{other:?}");
        }
    }
}
