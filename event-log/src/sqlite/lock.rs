//! Single ownership of a log: a locked file beside it, with the owner's pid.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{Read as _, Seek as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use super::system;
use crate::{LogError, Result};

/// Lock held while the log is open. The file stays: removing it could remove the next owner's.
#[derive(Debug)]
pub(super) struct FileLock {
    file: File,
}

/// Returns the lock file's path for the log at `path`.
fn path_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

impl FileLock {
    /// Takes the lock of the log at `path`.
    ///
    /// # Errors
    /// [`LogError::Locked`] with the owner's pid; [`LogError::Missing`] or [`LogError::ReadOnly`] for the
    /// directory.
    pub(super) fn take(path: &Path) -> Result<Self> {
        let beside = path_of(path);
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&beside);
        let mut file = opened.map_err(|error| system(path, "open the lock file of", error))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                // The owner may be about to write its pid: then the pid is unknown.
                let read = file.take(32).read_to_string(&mut text);
                let by = read.ok().and_then(|_| text.trim().parse().ok());
                return Err(LogError::Locked { path: path.to_owned(), by });
            }
            Err(TryLockError::Error(error)) => return Err(system(path, "lock", error)),
        }
        let pid = std::process::id();
        // A full disk is no reason to refuse reads: the pid is for people only.
        let written = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{pid}"));
        if let Err(error) = written {
            tracing::warn!(path = %beside.display(), %error, "failed to write the event log's lock file");
        }
        Ok(Self { file })
    }
}

impl Drop for FileLock {
    /// Unlocks explicitly, not by closing: a process that is being started has a copy of the descriptor until its
    /// exec.
    fn drop(&mut self) {
        if let Err(error) = self.file.unlock() {
            tracing::warn!(%error, "failed to unlock the event log; closing its lock file releases it");
        }
    }
}
