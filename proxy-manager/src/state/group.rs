//! The cgroup of a session whose manager may be dead.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    path::{Path, PathBuf},
};

use ipc_protocol::Pid;
use registry::{SessionCgroup, file_lock};
use rustix::fs::{Mode, OFlags};

/// Locks of dead managers' directories, each of which has the groups of several sessions.
#[derive(Debug, Default)]
pub(super) struct GroupLocks(BTreeMap<PathBuf, File>);

impl GroupLocks {
    /// Takes the lock of a manager's directory; `false` if a live process holds it.
    fn take(&mut self, manager: &Path) -> io::Result<bool> {
        if self.0.contains_key(manager) {
            return Ok(true);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = File::from(rustix::fs::open(manager, flags, Mode::empty())?);
        let is_locked = file_lock::try_lock(&directory)?;
        if is_locked {
            self.0.insert(manager.to_owned(), directory);
        }
        Ok(is_locked)
    }
}

impl Drop for GroupLocks {
    /// Unlocks explicitly: forked children share the descriptors until they exec, so closing them would not release the
    /// locks.
    fn drop(&mut self) {
        self.0.values().for_each(file_lock::unlock);
    }
}

/// A group that was recorded in a journal.
#[derive(Debug)]
pub(super) enum StaleGroup {
    /// The session had no group, or the group is gone.
    None { had: bool },
    /// A live process holds the lock of its manager's directory.
    Locked(PathBuf),
    /// The group is ours to empty, as long as the lock is held.
    Taken(SessionCgroup),
    /// This manager's own, and not to be looked at: nobody knows whether it is empty.
    Unopened,
}

impl StaleGroup {
    pub(super) fn new(path: Option<&str>) -> Self {
        path.map_or(Self::None { had: false }, |path| Self::Locked(PathBuf::from(path)))
    }

    /// Returns the group of a session of this manager, whose fork server is dead.
    pub(super) fn of_own(path: Option<&str>) -> Self {
        let Some(path) = path else { return Self::None { had: false } };
        match SessionCgroup::open(Path::new(path)) {
            Ok(group) => Self::Taken(group),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::None { had: true },
            Err(error) => {
                tracing::warn!(path, %error, "a session's cgroup cannot be opened");
                Self::Unopened
            }
        }
    }

    /// Tries to take a group that is still somebody's.
    pub(super) fn take(&mut self, locks: &mut GroupLocks) {
        let Self::Locked(path) = self else { return };
        let manager = path.parent().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound));
        let taken = manager.and_then(|manager| locks.take(manager));
        match taken.and_then(|taken| taken.then(|| SessionCgroup::open(path)).transpose()) {
            Ok(Some(group)) => *self = Self::Taken(group),
            Ok(None) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => *self = Self::None { had: true },
            Err(error) => tracing::debug!(?path, %error, "failed to take over a session's cgroup"),
        }
    }

    /// Returns whether it holds all that the session started, which can be looked at.
    pub(super) fn is_taken(&self) -> bool {
        matches!(self, Self::Taken(_))
    }

    /// Appends the members of a group that is ours.
    pub(super) fn members(&self, out: &mut Vec<Pid>) -> io::Result<()> {
        match self {
            Self::Taken(group) => group.members(out),
            Self::None { .. } | Self::Locked(_) | Self::Unopened => Ok(()),
        }
    }

    /// Kills the members of a group that is ours, but what is older than its session; whether it may have some left.
    pub(super) fn kill(&self, since: u64) -> bool {
        let Self::Taken(group) = self else { return false };
        let populated = group.is_populated().unwrap_or(true);
        if populated && let Err(error) = group.release_foreign(since).and_then(|()| group.kill()) {
            // Its members are killed one by one as well.
            tracing::debug!(%error, "a cgroup cannot be killed as a whole");
        }
        populated
    }

    /// Removes the group. Returns true if it is empty, and `None` if the session had none or it belongs to a live
    /// manager.
    pub(super) fn remove(self) -> Option<bool> {
        match self {
            Self::None { had } => had.then_some(true),
            Self::Locked(_) => None,
            Self::Unopened => Some(false),
            Self::Taken(group) => {
                let empty = group.is_populated().is_ok_and(|populated| !populated);
                if empty && let Err(error) = group.remove() {
                    tracing::debug!(%error, "failed to remove an empty cgroup");
                }
                Some(empty)
            }
        }
    }
}
