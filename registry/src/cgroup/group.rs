//! The group of one session.

use std::{
    fs, io,
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
};

use ipc_protocol::{LimitAction, LimitKind, Pid, errno::is_group_gone};

use super::{
    GroupUsage,
    dir::{OpenDir, context},
    limits,
};

/// Groups that a session may make in its own: each is looked at whenever its members are listed.
const MAX_GROUPS: &str = "1024";

/// The cgroup of one session, held open: whatever is done to its path, this is the one that was made.
#[derive(Debug)]
pub struct SessionCgroup {
    dir: OpenDir,
    path: PathBuf,
}

impl SessionCgroup {
    /// Makes it. An empty one of that name, left by somebody who died, is taken away first.
    ///
    /// # Errors
    /// The system's; `ResourceBusy` when there is one with processes in it.
    pub fn create(path: &Path) -> io::Result<Self> {
        let make = || fs::create_dir(path);
        let made = match make() {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Self::open(path)?.remove()?;
                make()
            }
            made => made,
        };
        made.map_err(|error| context(&error, format_args!("making the cgroup {}", path.display())))?;
        let group = Self::open(path)?;
        // Where the kernel does not know it there is no such bound.
        let _ = group.dir.write("cgroup.max.descendants", MAX_GROUPS);
        Ok(group)
    }

    /// Opens one that is there.
    ///
    /// # Errors
    /// The system's; `NotFound` when it is gone, `InvalidInput` when it is no cgroup.
    pub fn open(path: &Path) -> io::Result<Self> {
        let dir = OpenDir::open_made(path);
        let dir = dir.map_err(|error| context(&error, format_args!("opening the cgroup {}", path.display())))?;
        Ok(Self { dir, path: path.to_owned() })
    }

    #[cfg(test)]
    pub(super) fn fake(path: &Path) -> Self {
        Self { dir: OpenDir::open_any(path), path: path.to_owned() }
    }

    pub(super) fn dir(&self) -> &OpenDir {
        &self.dir
    }

    /// Returns the directory of the group.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the open directory, as `CLONE_INTO_CGROUP` wants it.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    fn failed(&self, doing: &str, error: &io::Error) -> io::Error {
        context(error, format_args!("{doing} cgroup {}", self.path.display()))
    }

    /// Appends its processes and those of the groups below it, each once: what the kernel counts as a member, dead leaders
    /// of living threads among them. Processes of another PID namespace are not listed, though
    /// [`SessionCgroup::is_populated`] counts them. A group that is gone has none.
    ///
    /// # Errors
    /// When it could not be looked at, which says nothing about its members.
    pub fn members(&self, out: &mut Vec<Pid>) -> io::Result<()> {
        let mut found = Vec::new();
        self.each_populated(|dir| dir.processes(&mut found))
            // Somebody is there all the same: threads that were moved here after their leader's death.
            .and_then(|()| match found.is_empty() && self.dir.is_populated()? {
                true => self.each_populated(|dir| dir.processes_of_threads(&mut found)),
                false => Ok(()),
            })
            .map_err(|error| self.failed("listing the", &error))?;
        found.sort_unstable();
        found.dedup();
        out.append(&mut found);
        Ok(())
    }

    /// Visits the group and those below, as far as there are processes.
    fn each_populated(&self, mut visit: impl FnMut(&OpenDir) -> io::Result<()>) -> io::Result<()> {
        let enter = |dir: &OpenDir| {
            let is_populated = dir.is_populated()?;
            if is_populated {
                visit(dir)?;
            }
            Ok(is_populated)
        };
        self.dir.walk(enter, |_, _| {})
    }

    /// Sends SIGKILL to every member at once, whoever's it is, those of groups below and frozen ones among them. Threads
    /// whose leader is dead escape it: the caller sweeps [`SessionCgroup::members`] until [`SessionCgroup::is_populated`] is false.
    ///
    /// # Errors
    /// The system's. A group that is gone is no error.
    pub fn kill(&self) -> io::Result<()> {
        let killed = match self.dir.write("cgroup.kill", "1") {
            Err(error)
                if is_group_gone(&error)
                    && self.dir.read("cgroup.events").is_err_and(|error| is_group_gone(&error)) =>
            {
                return Ok(());
            }
            killed => killed,
        };
        // A frozen process dies of SIGKILL; one that escaped cgroup.kill shall be able to.
        let thawed = self.each_populated(|dir| match dir.write("cgroup.freeze", "0") {
            Err(error) if is_group_gone(&error) => Ok(()),
            written => written,
        });
        killed.map_err(|error| self.failed("killing the", &error))?;
        thawed.map_err(|error| self.failed("thawing the", &error))
    }

    /// Returns whether a process lives in it or below, of whatever PID namespace. A group that is gone has none.
    ///
    /// # Errors
    /// When it could not be looked at.
    pub fn is_populated(&self) -> io::Result<bool> {
        self.dir.is_populated().map_err(|error| self.failed("looking at the", &error))
    }

    /// Removes it and the groups below it. One that is gone is no error.
    ///
    /// # Errors
    /// `ResourceBusy` while a process lives in it.
    pub fn remove(&self) -> io::Result<()> {
        let below = self.dir.remove_below();
        match fs::remove_dir(&self.path) {
            Err(error) if is_group_gone(&error) => Ok(()),
            // What is below is why, if there is anything.
            Err(error) => Err(self.failed("removing the", &below.err().unwrap_or(error))),
            Ok(()) => Ok(()),
        }
    }

    /// Has the kernel enforce a limit on all members together. True when it does; false where the controller is not there,
    /// or when no controller fits: a [`LimitAction::Warn`] needs none, since nothing shall be held back.
    ///
    /// * [`LimitKind::Memory`]: `memory.max`, and no swap. The kernel ends the member that takes most, or with
    ///   [`LimitAction::KillSession`] all of them.
    /// * [`LimitKind::Processes`]: `pids.max`. A fork beyond it fails. The kernel counts threads too.
    /// * [`LimitKind::CpuPercent`]: `cpu.max`. Members wait; nothing is ended.
    ///
    /// # Errors
    /// The system's.
    pub fn limit(&self, kind: LimitKind, value: u64, action: LimitAction) -> io::Result<bool> {
        limits::set(&self.dir, kind, value, action)
            .map_err(|error| self.failed(&format!("limiting {kind} of the"), &error))
    }

    /// Returns the usage of all members together, as far as the controllers count it.
    pub fn usage(&self) -> GroupUsage {
        limits::usage(&self.dir)
    }
}
