//! Directory of a cgroup tree, and the walk over the directories below it.
//!
//! Names below a session's group are the session's own making. So nothing here follows a symlink or crosses a mount (root
//! can mount anything over a sub-group: a walk would then kill strangers), no descriptor is held per level (nesting can
//! be deeper than there are descriptors), and rights to our own groups that were taken away are given back.

use std::{
    ffi::OsString,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStringExt,
    },
    path::Path,
};

use ipc_protocol::errno::{errno, is_group_gone};
use rustix::{
    fs::{Mode, OFlags, ResolveFlags},
    io::Errno,
};

use crate::proc;

/// An open directory.
#[derive(Debug)]
pub(super) struct OpenDir {
    fd: OwnedFd,
    /// True if a manager made it, or it is below one that was made.
    is_ours: bool,
}

/// The error, with what was tried.
pub(super) fn context(error: &io::Error, tried: impl std::fmt::Display) -> io::Error {
    io::Error::new(error.kind(), format!("{tried}: {error}"))
}

impl OpenDir {
    /// Opens a directory by a path that is trusted.
    ///
    /// # Errors
    /// The system's; `InvalidInput` when it is no directory of a cgroup v2 file system.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let fd = rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let magic = rustix::fs::fstatfs(&fd)?.f_type;
        if i128::from(magic) != i128::from(libc::CGROUP2_SUPER_MAGIC) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a directory of a cgroup v2 file system"));
        }
        Ok(Self { fd, is_ours: false })
    }

    /// Opens what was made at `path`, not what somebody may have mounted over it.
    ///
    /// # Errors
    /// As [`OpenDir::open`]; `CrossesDevices` when something is mounted over it.
    pub(super) fn open_made(path: &Path) -> io::Result<Self> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Self::open(path) };
        Ok(Self { is_ours: true, ..Self::open(parent)?.child(name)? })
    }

    #[cfg(test)]
    pub(super) fn open_any(path: &Path) -> Self {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Self { fd: rustix::fs::open(path, flags, Mode::empty()).expect("a directory"), is_ours: true }
    }

    fn open_at(&self, name: impl rustix::path::Arg + Copy, flags: OFlags) -> io::Result<OwnedFd> {
        let open = || {
            let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
            rustix::fs::openat2(&self.fd, name, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
        };
        match open() {
            Err(Errno::ACCESS) if self.is_ours => {
                // A process of the same user may have taken our rights away; the owner can take them back.
                let _ = rustix::fs::fchmod(&self.fd, Mode::from_raw_mode(0o755));
                let mode = if flags.contains(OFlags::DIRECTORY) { 0o755 } else { 0o644 };
                let _ = rustix::fs::chmodat(&self.fd, name, Mode::from_raw_mode(mode), rustix::fs::AtFlags::empty());
                Ok(open()?)
            }
            opened => Ok(opened?),
        }
    }

    fn child(&self, name: &std::ffi::OsStr) -> io::Result<Self> {
        let fd = self.open_at(name, OFlags::RDONLY | OFlags::DIRECTORY)?;
        Ok(Self { fd, is_ours: self.is_ours })
    }

    /// The whole of one of its files.
    pub(super) fn read(&self, file: &str) -> io::Result<String> {
        let mut text = Vec::new();
        io::Read::read_to_end(&mut std::fs::File::from(self.open_at(file, OFlags::RDONLY)?), &mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Writes to one of its files, all at once as the kernel wants it.
    pub(super) fn write(&self, file: &str, text: &str) -> io::Result<()> {
        rustix::io::write(self.open_at(file, OFlags::WRONLY)?, text.as_bytes())?;
        Ok(())
    }

    /// Returns whether we may write to one of its files.
    pub(super) fn check_writable(&self, file: &str) -> io::Result<()> {
        self.open_at(file, OFlags::WRONLY).map(drop)
    }

    /// Opens one of its files to poll it for a change.
    pub(super) fn watch(&self, file: &str) -> io::Result<OwnedFd> {
        self.open_at(file, OFlags::RDONLY)
    }

    /// The value of `key` in one of its files of `key value` lines.
    pub(super) fn value(&self, file: &str, key: &str) -> io::Result<Option<u64>> {
        let text = self.read(file)?;
        Ok(text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok()))
    }

    /// Returns whether a process lives in it or below. A group that is gone has none.
    pub(super) fn is_populated(&self) -> io::Result<bool> {
        match self.value("cgroup.events", "populated") {
            Err(error) if is_group_gone(&error) => Ok(false),
            value => Ok(value? != Some(0)),
        }
    }

    /// Names of the directories in it. One that is gone has none.
    pub(super) fn subdirs(&self) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        let mut entries = match rustix::fs::Dir::read_from(&self.fd) {
            Err(Errno::NOENT) => return Ok(names),
            entries => entries?,
        };
        while let Some(entry) = entries.read() {
            let entry = match entry {
                Err(Errno::NOENT) => break,
                entry => entry?,
            };
            let name = entry.file_name().to_bytes();
            if entry.file_type() == rustix::fs::FileType::Directory && !matches!(name, b"." | b"..") {
                names.push(OsString::from_vec(name.to_vec()));
            }
        }
        Ok(names)
    }

    /// Appends the processes in this very group. Those of another PID namespace have no number here and are left out, and so
    /// are those whose leader died in another group.
    pub(super) fn processes(&self, out: &mut Vec<u32>) -> io::Result<()> {
        match self.numbers("cgroup.procs", out) {
            Err(error) if errno(&error) == Some(Errno::OPNOTSUPP) => self.processes_of_threads(out),
            listed => listed,
        }
    }

    /// Appends the process of each thread in this very group, as often as it has threads here. Slower, but it misses none:
    /// a dead leader stays in the group that it died in, wherever its threads are moved, and a threaded group lists no
    /// processes.
    pub(super) fn processes_of_threads(&self, out: &mut Vec<u32>) -> io::Result<()> {
        let mut threads = Vec::new();
        self.numbers("cgroup.threads", &mut threads)?;
        for thread in threads {
            out.extend(process_of_thread(thread)?);
        }
        Ok(())
    }

    /// The numbers in one of its files, a line each.
    fn numbers(&self, file: &str, out: &mut Vec<u32>) -> io::Result<()> {
        let text = match self.read(file) {
            Err(error) if is_group_gone(&error) => return Ok(()),
            text => text?,
        };
        out.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()).filter(|number| *number != 0));
        Ok(())
    }

    /// Visits this directory and those below, parents first; `enter` says whether to go below one. `leave` is called with
    /// a directory and the name of one in it, once that one has been left or could not be entered.
    pub(super) fn walk(
        &self,
        mut enter: impl FnMut(&Self) -> io::Result<bool>,
        mut leave: impl FnMut(&Self, &OsString),
    ) -> io::Result<()> {
        let mut below = |dir: &Self| if enter(dir)? { dir.subdirs() } else { Ok(Vec::new()) };
        // Names that are still to be visited, for each level.
        let mut levels = vec![below(self)?];
        let mut path = Vec::new();
        let mut here = Self { fd: self.fd.try_clone()?, is_ours: self.is_ours };
        while let Some(names) = levels.last_mut() {
            if let Some(name) = names.pop() {
                match here.child(&name) {
                    Ok(child) => {
                        levels.push(below(&child)?);
                        path.push(name);
                        here = child;
                    }
                    // Gone, or something is mounted over it.
                    Err(error) if is_group_gone(&error) || errno(&error) == Some(Errno::XDEV) => leave(&here, &name),
                    Err(error) => return Err(error),
                }
                continue;
            }
            levels.pop();
            if let Some(name) = path.pop() {
                here = here.child("..".as_ref()).map_err(|error| context(&error, "leaving a sub-group"))?;
                leave(&here, &name);
            }
        }
        Ok(())
    }

    /// Removes all that is below it, the deepest first. The last error, if there is one, is the result.
    pub(super) fn remove_below(&self) -> io::Result<()> {
        let mut result = Ok(());
        self.walk(
            |_| Ok(true),
            |dir, name| match rustix::fs::unlinkat(&dir.fd, name, rustix::fs::AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => {
                    result = Err(context(&error.into(), format_args!("removing the sub-group {}", name.display())))
                }
            },
        )?;
        result
    }
}

impl AsFd for OpenDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The process that a thread is of; `None` when the thread has ended.
fn process_of_thread(thread: u32) -> io::Result<Option<u32>> {
    match proc::status(thread) {
        Ok(status) => Ok(status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(context(&error, format_args!("looking at thread {thread}"))),
    }
}
