//! Containment of a session's processes besides the process tree.

use std::io;

use ipc_protocol::{ContainmentLayer, Pid, ProcessId, Signal};

use crate::{PidFd, ProcessRegistry, RegistryEvent, SessionCgroup, cgroup, proc, process_table};

/// Containment of a session's processes besides the process tree.
#[derive(Debug, Default)]
pub struct SessionHold {
    /// Value of [`ipc_protocol::MARKER`] in the environment of every process of the session; empty for none.
    pub marker: String,
    /// Lower bound of start times (clock ticks since boot): older processes cannot carry the marker.
    pub since: u64,
    /// The session's cgroup.
    pub group: Option<SessionCgroup>,
    /// True if the processes are in namespaces of their own.
    pub strict: bool,
    /// Init of their PID namespace, if it is a child of this process: it is ours, and not counted as the session's.
    pub init: Option<PidFd>,
}

impl SessionHold {
    /// Layers of containment that this provides.
    pub fn layers(&self) -> Vec<ContainmentLayer> {
        let further = [(self.group.is_some(), ContainmentLayer::Cgroup), (self.strict, ContainmentLayer::Strict)];
        let further = further.into_iter().filter_map(|(there, layer)| there.then_some(layer));
        std::iter::once(ContainmentLayer::Baseline).chain(further).collect()
    }
}

impl ProcessRegistry {
    /// Sets the containment besides the process tree.
    pub fn set_hold(&mut self, hold: SessionHold) {
        if hold.group.is_some() {
            cgroup::remember_own_group();
        }
        self.hold = hold;
    }

    /// Returns whether a member of the session's group is none of its processes, but one that somebody has moved there.
    pub(crate) fn is_foreign(&self, id: ProcessId, ppid: Pid) -> bool {
        // Whatever the session starts is below its proxy: what is beside that is another proxy.
        let is_sibling = || self.is_own() && nix::unistd::getppid().as_raw().unsigned_abs() == ppid;
        cgroup::is_foreign(id, self.hold.since) || is_sibling()
    }

    /// Moves what is foreign out of the session's group, as far as it is not known to be the session's.
    ///
    /// # Errors
    /// When some of it may be there still.
    fn release_foreign(&self, group: &SessionCgroup) -> io::Result<()> {
        let mut members = Vec::new();
        group.members(&mut members)?;
        for pid in members.into_iter().filter(|pid| self.find_living(*pid).is_none()) {
            match proc::stat(pid) {
                Ok(stat) => {
                    let id = ProcessId { pid, start_time: stat.starttime };
                    if self.is_foreign(id, stat.ppid.unsigned_abs()) {
                        cgroup::move_home(pid)?;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns the containment of the processes besides the tree.
    pub fn session_hold(&self) -> &SessionHold {
        &self.hold
    }

    /// Searches the whole machine for processes with the session's marker outside the tree. Passes include them from
    /// now on, with everything below them. Returns true if there are none; an error means that this is unknown.
    pub(crate) fn find_strays(&mut self) -> io::Result<bool> {
        self.strays.clear();
        let marked = process_table::processes_with_marker(&self.hold.marker, self.hold.since)?;
        Ok(self.set_strays(marked))
    }

    /// As [`ProcessRegistry::find_strays`], where somebody else has looked.
    pub(crate) fn set_strays(&mut self, mut marked: Vec<ProcessId>) -> bool {
        let own = std::process::id();
        marked.retain(|id| id.pid != own);
        self.strays = marked;
        self.strays.is_empty()
    }

    /// Returns true if the session's cgroup is empty; `None` if it has none.
    pub(crate) fn is_group_empty(&self) -> Option<bool> {
        // A group that cannot be read is not known to be empty.
        self.hold.group.as_ref().map(|group| group.is_populated().is_ok_and(|populated| !populated))
    }

    /// Returns true if an init exists: a child that stays until it is killed, though nothing is alive in the session.
    pub(crate) fn has_init(&self) -> bool {
        self.hold.init.is_some()
    }

    /// Returns true if the session has a cgroup.
    pub(crate) fn has_group(&self) -> bool {
        self.hold.group.is_some()
    }

    /// Removes the session's cgroup, which is empty since the session is over.
    pub(crate) fn remove_group(&mut self) {
        let Some(group) = &self.hold.group else { return };
        if let Err(error) = group.remove() {
            let event =
                RegistryEvent::Error { operation: "removing the session's cgroup".into(), error: error.to_string() };
            self.emit(event);
        }
    }

    /// Returns true if SIGKILL can be sent to everything at once.
    pub(crate) fn can_kill_at_once(&self) -> bool {
        self.hold.group.is_some() || self.hold.init.is_some()
    }

    /// Sends SIGKILL to everything at once, through the init and the group. Returns `false` if there is neither (any
    /// more).
    ///
    /// # Errors
    /// The group's error, or else the init's, if neither signal succeeded.
    pub(crate) fn kill_at_once(&self) -> io::Result<bool> {
        let by_init = self.hold.init.as_ref().map(|init| init.signal(Signal::Kill));
        let by_group = self.hold.group.as_ref().map(|group| self.release_foreign(group).and_then(|()| group.kill()));
        match (by_init, by_group) {
            (Some(Ok(())), _) | (_, Some(Ok(()))) => Ok(true),
            (_, Some(Err(error))) => Err(error),
            (Some(Err(error)), None) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(false),
        }
    }

    /// Returns true if this is the init of the session's namespace.
    pub(crate) fn is_init(&self, pid: Pid) -> bool {
        self.hold.init.as_ref().is_some_and(|init| init.id().pid == pid)
    }
}
