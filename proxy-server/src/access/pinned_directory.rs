//! Directory that stays the one it was, whatever becomes of its path.
//!
//! An agent that cannot see a directory can rename one above it, and put another in its place: what is read by path would be the agent's.

use std::{
    ffi::OsString,
    fs::File,
    io,
    os::fd::AsRawFd as _,
    path::{Path, PathBuf},
    sync::Arc,
};

/// A file in a directory that is open.
#[derive(Clone, Debug)]
pub(super) struct PinnedDirectory {
    directory: Arc<File>,
    name: OsString,
}

impl PinnedDirectory {
    /// Opens the directory of a file.
    ///
    /// # Errors
    /// The directory cannot be opened, or the path names no file.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Ok(Self { directory: Arc::new(File::open(parent)?), name: name.to_owned() })
    }

    /// Returns a path of the file that leads through the open directory.
    pub(super) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.directory.as_raw_fd())).join(&self.name)
    }
}
