//! Temporary directory of homes. Its manager locks it (`flock`) while it lives. A killed manager's directory can be
//! locked by a later manager, which removes it.

use std::{
    fs,
    io::{self, ErrorKind},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    thread,
};

use agents::conversations::BACKUP_PREFIX;
use registry::file_lock;
use rustix::fs::fstat;

use super::files;

/// Prefix of the names of such directories.
const PREFIX: &str = "agent-proxy-homes.";
/// Attempts to create a directory that somebody else removes before it is locked.
const MAX_TRIES: usize = 16;

/// The temporary directory of this manager.
#[derive(Debug)]
pub(super) struct TemporaryRoot {
    path: PathBuf,
    /// Descriptor that holds the lock.
    lock: OwnedFd,
}

impl Drop for TemporaryRoot {
    /// Unlocks explicitly: forked children share the descriptor until they exec, so closing it would not release the lock.
    fn drop(&mut self) {
        file_lock::unlock(&self.lock);
    }
}

impl TemporaryRoot {
    /// Creates the directory in `parent`.
    pub(super) fn make(parent: &Path) -> io::Result<Self> {
        for _ in 0..MAX_TRIES {
            let path = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent)?.keep();
            // An unlocked directory looks like that of a dead manager.
            let opened = match files::open(&path) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                opened => opened?,
            };
            match file_lock::try_lock(&opened) {
                Ok(true) if file_lock::is_at(&opened, &path) => return Ok(Self { path, lock: opened }),
                // A sweeper has it, or has removed it.
                Ok(_) => {}
                Err(error) => {
                    // The first error is the one to report.
                    let _ = fs::remove_dir(&path);
                    return Err(error);
                }
            }
        }
        Err(io::Error::other("each was removed by somebody at once"))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the directory with its content.
    pub(super) fn remove(self) -> io::Result<()> {
        files::remove(&self.path)
    }
}

/// Removes the directories of this user's dead managers in `parent`, in a thread of its own since they may be large.
pub(super) fn sweep_in_background(parent: PathBuf) {
    let swept = thread::Builder::new().name("agent-proxy".to_owned()).spawn(move || sweep(&parent));
    if let Err(error) = swept {
        tracing::warn!(%error, "failed to sweep the homes of killed managers");
    }
}

fn sweep(parent: &Path) {
    let entries = match fs::read_dir(parent) {
        Ok(entries) => entries,
        Err(error) => return tracing::debug!(?parent, %error, "failed to sweep the homes of killed managers"),
    };
    for entry in entries.flatten() {
        if entry.file_name().to_str().is_none_or(|name| !name.starts_with(PREFIX)) {
            continue;
        }
        let path = entry.path();
        match remove_stale(&path) {
            Ok(true) => tracing::info!(?path, "removed the homes of a killed manager"),
            Ok(false) => {}
            // Another manager removed it first.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(?path, %error, "failed to remove the homes of a killed manager"),
        }
    }
}

/// Removes a directory, unless it is another user's or its manager lives.
fn remove_stale(path: &Path) -> io::Result<bool> {
    let opened = files::open(path)?;
    if fstat(&opened)?.st_uid != nix::unistd::geteuid().as_raw() {
        return Ok(false);
    }
    if !file_lock::try_lock(&opened)? || !file_lock::is_at(&opened, path) {
        return Ok(false);
    }
    for entry in fs::read_dir(path)? {
        // The agent that was loading a conversation may have destroyed it: this is the only copy.
        if entry?.file_name().to_string_lossy().starts_with(BACKUP_PREFIX) {
            return Err(io::Error::other("there is a saved conversation in it: bring it back, then remove it"));
        }
    }
    files::remove(path)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// As if its manager had been killed.
    fn abandoned(parent: &Path) -> PathBuf {
        let made = TemporaryRoot::make(parent).expect("made");
        fs::create_dir(made.path.join("s-1")).expect("made");
        fs::write(made.path.join("s-1/file"), "x").expect("written");
        made.path.clone()
    }

    #[test]
    fn what_the_dead_left_goes_and_what_the_living_have_stays() {
        let scratch = tempfile::tempdir().expect("a directory");
        let living = TemporaryRoot::make(scratch.path()).expect("made");
        fs::create_dir(living.path().join("s-1")).expect("made");
        let dead = [abandoned(scratch.path()), abandoned(scratch.path())];
        let saved = abandoned(scratch.path());
        fs::create_dir(saved.join("backup-s-1")).expect("made");
        // Others' things.
        let outside = scratch.path().join("outside");
        fs::create_dir(&outside).expect("made");
        symlink(&outside, scratch.path().join(format!("{PREFIX}link"))).expect("linked");
        fs::write(scratch.path().join(format!("{PREFIX}file")), "").expect("written");
        for _ in 0..2 {
            sweep(scratch.path());
            assert!(dead.iter().all(|dead| !dead.exists()));
            assert!(living.path().join("s-1").exists() && outside.exists());
            assert!(saved.join("backup-s-1").exists() && saved.join("s-1/file").exists());
        }
        let path = living.path().to_owned();
        living.remove().expect("removed");
        assert!(!path.exists());
        sweep(&scratch.path().join("nowhere"));
    }

    #[test]
    fn one_that_is_being_made_is_not_lost() {
        let scratch = tempfile::tempdir().expect("a directory");
        let done = std::sync::atomic::AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    sweep(scratch.path());
                }
            });
            let made: Vec<_> = (0..100).map(|_| TemporaryRoot::make(scratch.path()).expect("made")).collect();
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(made.iter().all(|made| file_lock::is_at(&made.lock, made.path())));
        });
    }
}
