//! What holds a session's processes together besides the tree.

use std::io;

use ipc_protocol::{Layer, Pid, ProcessId, Signal};

use crate::{Group, PidFd, ProcessRegistry, RegistryEvent, cgroup, proc, table};

/// What holds a session's processes together besides the tree.
#[derive(Debug, Default)]
pub struct Hold {
    /// Value of [`ipc_protocol::MARKER`] in the environment of every process of the session; empty for none.
    pub marker: String,
    /// Only processes that started no earlier (clock ticks since boot) can carry the marker.
    pub since: u64,
    /// The session's cgroup.
    pub group: Option<Group>,
    /// Whether the processes are in namespaces of their own.
    pub strict: bool,
    /// The init of their PID namespace, where it is a child of this process: ours, and none of the session's processes.
    pub init: Option<PidFd>,
}

impl Hold {
    /// The layers of containment that this makes.
    pub fn layers(&self) -> Vec<Layer> {
        let further = [(self.group.is_some(), Layer::Cgroup), (self.strict, Layer::Strict)];
        let further = further.into_iter().filter_map(|(there, layer)| there.then_some(layer));
        std::iter::once(Layer::Baseline).chain(further).collect()
    }
}

impl ProcessRegistry {
    /// Says what holds the processes together besides the tree.
    pub fn hold(&mut self, hold: Hold) {
        if hold.group.is_some() {
            cgroup::remember_own_group();
        }
        self.hold = hold;
    }

    /// Whether a member of the session's group is none of its processes, but one that somebody has moved there.
    pub(crate) fn is_foreign(&self, id: ProcessId, ppid: Pid) -> bool {
        // Whatever the session starts is below its proxy: what is beside that is another proxy.
        let is_sibling = || self.is_own() && nix::unistd::getppid().as_raw().unsigned_abs() == ppid;
        cgroup::is_foreign(id, self.hold.since) || is_sibling()
    }

    /// Moves what is foreign out of the session's group, as far as it is not known to be the session's.
    ///
    /// # Errors
    /// When some of it may be there still.
    fn release_foreign(&self, group: &Group) -> io::Result<()> {
        let mut members = Vec::new();
        group.members(&mut members)?;
        for pid in members.into_iter().filter(|pid| self.live(*pid).is_none()) {
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

    /// What holds the processes together besides the tree.
    pub fn held(&self) -> &Hold {
        &self.hold
    }

    /// Looks for processes of the session outside the tree: by its marker, on the whole machine. They are on the walk from
    /// now on, with all below them. Says whether there are none; an error says that this cannot be told.
    pub(crate) fn look_for_strays(&mut self) -> io::Result<bool> {
        self.strays.clear();
        let marked = table::marked(&self.hold.marker, self.hold.since)?;
        Ok(self.set_strays(marked))
    }

    /// As [`ProcessRegistry::look_for_strays`], where somebody else has looked.
    pub(crate) fn set_strays(&mut self, mut marked: Vec<ProcessId>) -> bool {
        let own = std::process::id();
        marked.retain(|id| id.pid != own);
        self.strays = marked;
        self.strays.is_empty()
    }

    /// Whether the session's cgroup is empty; `None` where it has none.
    pub(crate) fn is_group_empty(&self) -> Option<bool> {
        // What cannot be read is not known to be empty.
        self.hold.group.as_ref().map(|group| group.is_populated().is_ok_and(|populated| !populated))
    }

    /// Whether a child is left as long as it is not killed, though nothing is alive in the session.
    pub(crate) fn has_init(&self) -> bool {
        self.hold.init.is_some()
    }

    /// Whether the session has a cgroup.
    pub(crate) fn has_group(&self) -> bool {
        self.hold.group.is_some()
    }

    /// Removes the session's cgroup: it is empty, and the session over.
    pub(crate) fn remove_group(&mut self) {
        let Some(group) = &self.hold.group else { return };
        if let Err(error) = group.remove() {
            let event =
                RegistryEvent::Error { operation: "removing the session's cgroup".into(), error: error.to_string() };
            self.emit(event);
        }
    }

    /// Whether everything can be sent SIGKILL at once.
    pub(crate) fn strikes(&self) -> bool {
        self.hold.group.is_some() || self.hold.init.is_some()
    }

    /// Sends SIGKILL to everything at once, by the init and by the group. `false` where there is neither (any more).
    ///
    /// # Errors
    /// The group's, or else the init's, where neither could be done.
    pub(crate) fn strike(&self) -> io::Result<bool> {
        let by_init = self.hold.init.as_ref().map(|init| init.signal(Signal::Kill));
        let by_group = self.hold.group.as_ref().map(|group| self.release_foreign(group).and_then(|()| group.kill()));
        match (by_init, by_group) {
            (Some(Ok(())), _) | (_, Some(Ok(()))) => Ok(true),
            (_, Some(Err(error))) => Err(error),
            (Some(Err(error)), None) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(false),
        }
    }

    /// Whether this is the init of the session's namespace.
    pub(crate) fn is_init(&self, pid: Pid) -> bool {
        self.hold.init.as_ref().is_some_and(|init| init.id().pid == pid)
    }
}
