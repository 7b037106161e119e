//! Cgroups (version 2): membership that no fork, `setsid` or double fork gets out of.
//!
//! A manager has a directory of its own, `agent-proxy.<pid>.<start time>`, and holds a lock on it for as long as anybody
//! lives who guards its sessions ([`ManagerCgroup`]). Each session is a directory in there ([`SessionCgroup`]). What a dead manager left
//! is known by its lock, which anybody can take.
//!
//! A session's processes may write to their own group when they are of the same user: they make sub-groups, freeze them,
//! take away rights, and as root mount things over them. What is read from there is therefore never trusted further than
//! the tree: see `dir`.

mod dir;
#[cfg(test)]
pub(crate) mod fake;
mod freezer;
mod group;
mod groups;
mod limits;
mod mounts;
mod place;
mod stale;
mod supervisors;
mod view;

pub use freezer::thaw_v1;
pub use group::SessionCgroup;
pub use groups::ManagerCgroup;
pub use limits::GroupUsage;
pub use stale::SweptCgroup;
pub use supervisors::{add_supervisor, free_supervisor, remember_own_group, remove_supervisor};
pub(crate) use supervisors::{is_foreign, move_home};
pub use view::MountView;

/// The controllers that limit a session's group as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CgroupControllers {
    /// Memory of all its processes together.
    pub memory: bool,
    /// Number of its tasks.
    pub pids: bool,
    /// CPU time per period of all its processes together.
    pub cpu: bool,
}

impl CgroupControllers {
    /// All there are.
    pub const ALL: Self = Self { memory: true, pids: true, cpu: true };

    /// From the words of `cgroup.controllers` or `cgroup.subtree_control`.
    fn parse(text: &str) -> Self {
        let has = |name: &str| text.split_ascii_whitespace().any(|word| word == name);
        Self { memory: has("memory"), pids: has("pids"), cpu: has("cpu") }
    }

    /// Returns the controllers of `self` that `other` has not.
    fn without(self, other: Self) -> Self {
        Self { memory: self.memory && !other.memory, pids: self.pids && !other.pids, cpu: self.cpu && !other.cpu }
    }

    /// Returns the number of controllers.
    fn count(self) -> usize {
        self.names().count()
    }

    /// The kernel's names of those that are there.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        [(self.memory, "memory"), (self.pids, "pids"), (self.cpu, "cpu")]
            .into_iter()
            .filter_map(|(has, name)| has.then_some(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_are_read() {
        assert_eq!(CgroupControllers::parse("cpuset cpu io memory hugetlb pids rdma misc\n"), CgroupControllers::ALL);
        // cpuset is not cpu.
        assert_eq!(CgroupControllers::parse("cpuset hugetlb"), CgroupControllers::default());
        let some = CgroupControllers::parse("memory pids");
        assert_eq!(some, CgroupControllers { memory: true, pids: true, cpu: false });
        assert_eq!(CgroupControllers::ALL.without(some).names().collect::<Vec<_>>(), ["cpu"]);
        assert_eq!((some.count(), CgroupControllers::ALL.count()), (2, 3));
    }
}
