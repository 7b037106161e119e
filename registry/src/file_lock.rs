//! Advisory locks (`flock`) on files and directories that others find by their path.
//!
//! Whoever has such a lock may remove the file, so a lock counts only while its path still names the file.

use std::{fs, os::fd::AsFd, os::unix::fs::MetadataExt, path::Path};

use rustix::{
    fs::{FlockOperation, flock, fstat},
    io::Errno,
};

/// Tries to lock an open file or directory. Returns false if another process has it locked.
///
/// The lock lasts until the last duplicate of the descriptor is closed, or until [`unlock`].
///
/// # Errors
/// The error of the system.
pub fn try_lock(file: impl AsFd) -> std::io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Unlocks a file. Closing it does not, while a forked child that has not executed its program shares the descriptor.
pub fn unlock(file: impl AsFd) {
    // Fails for no descriptor that was locked.
    let _ = flock(file, FlockOperation::Unlock);
}

/// Returns true if `path` names the open file, and no link to it.
pub fn is_at(file: impl AsFd, path: &Path) -> bool {
    let (Ok(open), Ok(found)) = (fstat(file), fs::symlink_metadata(path)) else { return false };
    (open.st_dev, open.st_ino) == (found.dev(), found.ino())
}
