//! Supervisors among the members of a session's group, or in a frozen one: root's agents can move them there. What would
//! strike them is preceded by a look at the members, and they are moved back to where they were.

use std::{
    collections::BTreeSet,
    fs, io,
    path::PathBuf,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
};

use ipc_protocol::{Pid, ProcessId, errno::errno};
use rustix::io::Errno;

use super::{
    SessionCgroup,
    dir::context,
    freezer::thaw_v1,
    mounts::{CgroupHierarchy, group_of},
    place::CgroupView,
};
use crate::proc;

/// Supervisors that this process has started.
static STARTED: Mutex<BTreeSet<ProcessId>> = Mutex::new(BTreeSet::new());
/// The group of this process and of the supervisors around it, and its directory.
static HOME: OnceLock<Option<SupervisorGroup>> = OnceLock::new();

#[derive(Debug)]
struct SupervisorGroup {
    group: PathBuf,
    directory: PathBuf,
}

fn started() -> MutexGuard<'static, BTreeSet<ProcessId>> {
    STARTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes note of a supervisor that this process has started: no kill of a session's group is to strike it.
pub fn add_supervisor(id: ProcessId) {
    started().insert(id);
}

/// The opposite: it has ended.
pub fn remove_supervisor(id: ProcessId) {
    started().remove(&id);
}

/// Takes note of the group that this process is in. To be called before there is an agent.
pub fn remember_own_group() {
    home();
}

fn home() -> Option<&'static SupervisorGroup> {
    let find = || {
        let view = CgroupView::read().ok()?;
        let directory = view.places().into_iter().next()?.directory;
        Some(SupervisorGroup { group: view.own().to_owned(), directory })
    };
    HOME.get_or_init(find).as_ref()
}

/// Returns whether a member of a session's group is none of the session's processes: it is older than the session (`since`, in clock
/// ticks since boot), or a supervisor that this process has started, or this process.
pub(crate) fn is_foreign(id: ProcessId, since: u64) -> bool {
    id.start_time < since || id.pid == std::process::id() || started().contains(&id)
}

/// Moves a process to the group of this one.
///
/// # Errors
/// The system's. A process that is gone is no error.
pub(crate) fn move_home(pid: Pid) -> io::Result<()> {
    let home = home().ok_or_else(|| io::Error::other("the group of this process is not to be seen"))?;
    let procs = home.directory.join("cgroup.procs");
    match fs::write(&procs, pid.to_string()) {
        Err(error) if errno(&error) == Some(Errno::SRCH) => Ok(()),
        Err(error) => Err(context(&error, format_args!("moving process {pid} back by {}", procs.display()))),
        Ok(()) => {
            tracing::warn!(pid, "moved a supervisor out of a session's cgroup");
            Ok(())
        }
    }
}

/// Brings a supervisor out of a frozen group: back to this process's own in version 2, thawed in version 1. What cannot be
/// done is tried again by who waits for it.
pub fn free_supervisor(pid: Pid) {
    let group = group_of(pid, CgroupHierarchy::Unified).ok().flatten();
    if group.zip(home()).is_some_and(|(group, home)| group != home.group)
        && let Err(error) = move_home(pid)
    {
        tracing::debug!(pid, %error, "failed to move a supervisor out of a foreign cgroup");
    }
    thaw_v1(pid);
}

impl SessionCgroup {
    /// Moves out what is none of the session's: what is older, or a supervisor that this process has started, or this process.
    ///
    /// # Errors
    /// When some of it stays, or the members cannot be listed: a kill of the group would strike it.
    pub fn release_foreign(&self, since: u64) -> io::Result<()> {
        let mut members = Vec::new();
        self.members(&mut members)?;
        for pid in members {
            match proc::identify(pid) {
                Ok(id) if is_foreign(id, since) => move_home(pid)?,
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}
