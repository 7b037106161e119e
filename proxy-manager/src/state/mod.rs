//! State directory: files that a manager leaves for the next one, in case it dies together with all other supervisors.
//!
//! ```text
//! DIR                      held (flock) while a manager uses it: a file in it can be removed, and then be another one
//! DIR/lock                 its text names that process; nobody holds it
//! DIR/sessions/ID.journal  one for each session that runs
//! DIR/homes/s-ID           the own home of a session, until it is deleted: see `homes`
//! DIR/detached/…          of sessions that outlive their hosts: see `detached`
//! DIR/conversations/ID.json  which conversation a session had: see `records`
//! ```

pub(crate) mod detached_search;
mod group;
mod journal;
mod record;
mod recover;
pub(crate) mod started;
mod sweep;

use std::{
    fs::{DirBuilder, File},
    io::{self, Read, Write},
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt, MetadataExt},
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use ipc_protocol::{ProcessId, SessionId};
use registry::file_lock;
use rustix::{
    fs::{Access, AtFlags, Mode, OFlags},
    io::Errno,
};

use crate::{
    blocking::OrderedWork,
    error::{Error, Result},
};

pub(crate) use journal::{JournalResult, SessionJournal};
pub(crate) use record::{BootNamespace, JournalContainer, JournalHeader, JournalRecord};
pub use recover::{RecoveredSession, RecoveryOutcome};
pub(crate) use recover::{recover, sweep_own};

/// Ending of a journal's name.
const JOURNAL: &str = ".journal";
/// Name of the directory of sessions' homes.
pub(crate) const HOMES: &str = "homes";

/// The directory of the journals.
#[derive(Debug)]
pub(crate) struct JournalDir {
    dir: OwnedFd,
    /// Writes of journals.
    work: Arc<OrderedWork>,
}

/// A state directory that this manager owns.
#[derive(Debug)]
pub(crate) struct StateDir {
    /// The directory: whoever has it locked owns it.
    dir: OwnedFd,
    pub(crate) path: PathBuf,
    pub(crate) sessions: Arc<JournalDir>,
    pub(crate) place: BootNamespace,
}

impl StateDir {
    /// Creates the directory if it is missing, and takes ownership.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if it is another user's, or others may write to it; [`Error::StateDirInUse`];
    /// [`Error::System`].
    pub(crate) fn open(path: &Path, owner: ProcessId) -> Result<Self> {
        let path = std::path::absolute(path).map_err(|error| system("finding", path, error))?;
        let dir = own_directory(&path)?;
        let sessions = own_directory(&path.join("sessions"))?;
        lock(&dir, &path, owner)?;
        let place = BootNamespace::here().map_err(|error| Error::system("reading the boot's id", error))?;
        Ok(Self { dir, path, sessions: Arc::new(JournalDir { dir: sessions, work: Arc::default() }), place })
    }
}

impl StateDir {
    /// Returns a directory within this one, and creates it if it is missing.
    ///
    /// # Errors
    /// As [`StateDir::open`].
    pub(crate) fn directory(&self, name: &str) -> Result<PathBuf> {
        directory_in(&self.path, name)
    }

    fn journal_path(&self, name: &str) -> PathBuf {
        self.path.join("sessions").join(name)
    }
}

/// Returns a directory within a state directory, and creates it if it is missing. Blocks.
///
/// # Errors
/// As [`StateDir::open`].
pub(crate) fn directory_in(state: &Path, name: &str) -> Result<PathBuf> {
    let path = state.join(name);
    own_directory(&path).map(|_| path)
}

impl Drop for StateDir {
    /// Unlocks explicitly: forked children share the descriptor until they exec, so closing it would not release the
    /// lock.
    fn drop(&mut self) {
        file_lock::unlock(&self.dir);
    }
}

/// Returns true if a manager would make a session's home there: `DIR/homes/s-ID` in a state directory, this user's
/// alone. Blocks.
pub(crate) fn is_home(home: &Path) -> bool {
    let id = home.file_name().and_then(|name| name.to_str()?.strip_prefix("s-"));
    let is_named_so = id.is_some_and(|id| id.parse::<SessionId>().is_ok());
    let homes = home.parent().filter(|_| home.is_absolute() && is_named_so);
    let Some(homes) = homes.and_then(|homes| homes.canonicalize().ok()) else { return false };
    let Some(state) = homes.parent() else { return false };
    let us = nix::unistd::geteuid().as_raw();
    // Rejects symbolic links, too.
    let is_ours = |path: &Path, not: u32| {
        let found = path.symlink_metadata();
        found.is_ok_and(|found| found.is_dir() && found.uid() == us && found.mode() & not == 0)
    };
    homes.ends_with(HOMES)
        && is_ours(home, 0o077)
        && [&homes, state, &state.join("sessions")].into_iter().all(|path| is_ours(path, 0o022))
        && state.join("lock").symlink_metadata().is_ok_and(|lock| lock.is_file())
}

fn system(doing: &str, path: &Path, error: io::Error) -> Error {
    let operation = format!("{doing} the state directory {path:?}");
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            let advice = format!("{error}; make it writable for this user, or name another directory");
            Error::system(operation, io::Error::new(error.kind(), advice))
        }
        _ => Error::system(operation, error),
    }
}

fn refused(reason: String) -> Error {
    Error::InvalidConfig { field: "state directory", reason }
}

/// Creates a directory that only this user can use, or opens one and checks that nobody else can write there.
fn own_directory(path: &Path) -> Result<OwnedFd> {
    let made = DirBuilder::new().mode(0o700).recursive(true).create(path);
    made.map_err(|error| system("making", path, error))?;
    let open = || {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = File::from(rustix::fs::open(path, flags, Mode::empty())?);
        Ok((dir.metadata()?, dir))
    };
    let (metadata, dir) = open().map_err(|error| system("opening", path, error))?;
    let us = nix::unistd::geteuid().as_raw();
    if metadata.uid() != us {
        let owner = metadata.uid();
        return Err(refused(format!("{path:?} is user {owner}'s and this is user {us}: name a directory of your own")));
    }
    if metadata.mode() & 0o022 != 0 {
        let mode = metadata.mode() & 0o7777;
        return Err(refused(format!(
            "others may write to {path:?} (mode {mode:o}), and could have any process killed: chmod it to 700"
        )));
    }
    // Checked first: lock and log are files that may be writable in a directory where no file can be created.
    let writable = rustix::fs::accessat(&dir, ".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS);
    writable.map_err(|error| system("writing to", path, error.into()))?;
    Ok(dir.into())
}

fn lock(dir: &OwnedFd, path: &Path, owner: ProcessId) -> Result<()> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let opened = rustix::fs::openat(dir, "lock", flags, Mode::from_raw_mode(0o600));
    let mut file = File::from(opened.map_err(|error| system("locking", path, error.into()))?);
    if !file_lock::try_lock(dir).map_err(|error| system("locking", path, error))? {
        let mut text = String::new();
        // The owner's name is for people only: the owner may have just begun to write it.
        let _ = (&mut file).take(64).read_to_string(&mut text);
        let owner =
            text.split_once('@').map_or_else(|| "another process".to_owned(), |(pid, _)| format!("process {pid}"));
        return Err(Error::StateDirInUse { directory: path.to_owned(), owner });
    }
    // The lock is as good without the name.
    if let Err(error) = file.set_len(0).and_then(|()| file.write_all(format!("{owner}\n").as_bytes())) {
        tracing::warn!(?path, %error, "failed to write the state directory's owner");
    }
    Ok(())
}

impl JournalDir {
    /// Returns a name that no journal has.
    fn free_name(&self, header: &JournalHeader) -> io::Result<String> {
        let name = format!("{}{JOURNAL}", header.session);
        match rustix::fs::statat(&self.dir, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(name),
            Ok(_) => Ok(format!("{}.{}{JOURNAL}", header.session, header.marker)),
            Err(error) => Err(error.into()),
        }
    }

    /// Names of all journals, and of nothing else.
    fn journals(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.dir)? {
            let entry = entry?;
            if let Ok(name) = entry.file_name().to_str()
                && name.ends_with(JOURNAL)
            {
                names.push(name.to_owned());
            }
        }
        names.sort();
        Ok(names)
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        /// Upper bound of a journal in bytes; journals stay far below it.
        const MAX: u64 = 64 << 20;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = File::from(rustix::fs::openat(&self.dir, name, flags, Mode::empty())?);
        let mut bytes = Vec::new();
        file.take(MAX).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Returns the time since a journal was written last.
    fn age(&self, name: &str) -> io::Result<std::time::Duration> {
        let file = File::from(rustix::fs::openat(&self.dir, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?);
        // A clock that was set back makes it written now: what was forked before is then not looked at; one that was set forward is
        // on the safe side.
        Ok(file.metadata()?.modified()?.elapsed().unwrap_or_default())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.dir, name, AtFlags::empty())?)
    }

    /// Renames a file that is no journal, so that the next search ignores it.
    fn set_aside(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.dir, name, &self.dir, format!("{name}.damaged"))?)
    }
}

#[cfg(test)]
mod tests;
