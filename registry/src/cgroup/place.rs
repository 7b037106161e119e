//! Place of a manager's directory.

use std::{
    io,
    path::{Component, Path, PathBuf},
};

use super::{
    groups,
    mounts::{CgroupHierarchy, CgroupMount, group_of},
};

/// A directory that a manager's may be made in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CgroupParent {
    /// The directory.
    pub(super) directory: PathBuf,
    /// The closest directory that both it and our own group are in. To move a process there takes the right to write to
    /// its `cgroup.procs`. `None` when it cannot be seen from here.
    pub(super) common: Option<PathBuf>,
}

/// Part of version 2 that this process can see.
#[derive(Debug)]
pub(super) struct CgroupView {
    mounts: Vec<CgroupMount>,
    /// Our own group.
    own: PathBuf,
}

impl CgroupView {
    /// # Errors
    /// Why there is nothing to see.
    pub(super) fn read() -> Result<Self, String> {
        let failed = |file: &str, error: io::Error| format!("reading /proc/self/{file}: {error}");
        let mounts = CgroupMount::find(CgroupHierarchy::Unified).map_err(|error| failed("mountinfo", error))?;
        if mounts.is_empty() {
            return Err("cgroup version 2 is mounted nowhere".to_owned());
        }
        let own = group_of(std::process::id(), CgroupHierarchy::Unified).map_err(|error| failed("cgroup", error))?;
        let own = own.ok_or("/proc/self/cgroup names no group of version 2")?;
        Ok(Self { mounts, own })
    }

    /// Our own group, then those above it, in each place where they are to be seen. A manager that runs inside another's
    /// session stays inside: its sessions are that session's processes.
    pub(super) fn places(&self) -> Vec<CgroupParent> {
        let inside = enclosing_session(&self.own);
        let mut places = Vec::new();
        let (read_only, writable): (Vec<_>, Vec<_>) = self.mounts.iter().partition(|mount| mount.is_read_only);
        for mount in writable.into_iter().chain(read_only) {
            for group in self.own.ancestors().take_while(|group| inside.is_none_or(|inside| group.starts_with(inside)))
            {
                let Some(directory) = mount.directory_of(group) else { break };
                let place = CgroupParent { common: Some(directory.clone()), directory };
                if !places.contains(&place) {
                    places.push(place);
                }
            }
        }
        places
    }

    /// The directory that somebody asked for.
    pub(super) fn place_at(&self, directory: &Path) -> CgroupParent {
        // A mount point inside another: the longest is the one that is seen. Of several on the same, the last.
        let mount = self.mounts.iter().filter(|mount| directory.starts_with(&mount.point));
        let mount = mount.max_by_key(|mount| mount.point.as_os_str().len());
        let common = mount.and_then(|mount| {
            let group = mount.group_at(directory)?;
            mount.directory_of(&common_ancestor(&group, &self.own))
        });
        CgroupParent { directory: directory.to_owned(), common }
    }

    /// Our own group.
    pub(super) fn own(&self) -> &Path {
        &self.own
    }
}

fn common_ancestor(a: &Path, b: &Path) -> PathBuf {
    a.components().zip(b.components()).take_while(|(a, b)| a == b).map(|(component, _)| component).collect()
}

/// The group of the session that `group` is in, or is: what comes right after a manager's directory, the innermost one.
fn enclosing_session(group: &Path) -> Option<&Path> {
    group.ancestors().find(|group| {
        let manager = group.parent().and_then(|parent| parent.components().next_back());
        matches!(manager, Some(Component::Normal(name)) if name.to_str().is_some_and(groups::is_manager_name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(mounts: &[(&str, &str, bool)], own: &str) -> CgroupView {
        let mount = |(root, point, is_read_only): &(&str, &str, bool)| CgroupMount {
            root: root.into(),
            point: point.into(),
            is_read_only: *is_read_only,
            is_unified: true,
        };
        CgroupView { mounts: mounts.iter().map(mount).collect(), own: own.into() }
    }

    fn directories(view: &CgroupView) -> Vec<String> {
        view.places().iter().map(|place| place.directory.display().to_string()).collect()
    }

    #[test]
    fn the_own_group_comes_first_then_those_above() {
        let pure = view(&[("/", "/sys/fs/cgroup", false)], "/user.slice/run-1.scope");
        let expected = ["/sys/fs/cgroup/user.slice/run-1.scope", "/sys/fs/cgroup/user.slice", "/sys/fs/cgroup"];
        assert_eq!(directories(&pure), expected);
        let hybrid = view(&[("/", "/sys/fs/cgroup/unified", false)], "/");
        assert_eq!(directories(&hybrid), ["/sys/fs/cgroup/unified"]);
    }

    #[test]
    fn a_container_sees_its_own_part_only() {
        let part = view(&[("/docker/1f", "/sys/fs/cgroup", true)], "/docker/1f/app");
        assert_eq!(directories(&part), ["/sys/fs/cgroup/app", "/sys/fs/cgroup"]);
        let elsewhere = view(&[("/docker/1f", "/sys/fs/cgroup", false)], "/../2e");
        assert!(directories(&elsewhere).is_empty());
    }

    #[test]
    fn writable_mounts_come_first() {
        let both = view(&[("/", "/ro", true), ("/", "/rw", false)], "/a");
        assert_eq!(directories(&both), ["/rw/a", "/rw", "/ro/a", "/ro"]);
    }

    #[test]
    fn a_manager_inside_a_session_stays_inside() {
        let own = "/x/agent-proxy.12.345/s-one/agent-proxy.67.89/s-two/deep";
        assert_eq!(
            enclosing_session(Path::new(own)),
            Some(Path::new("/x/agent-proxy.12.345/s-one/agent-proxy.67.89/s-two"))
        );
        let nested = view(&[("/", "/c", false)], "/x/agent-proxy.12.345/s-one/deep");
        let expected = ["/c/x/agent-proxy.12.345/s-one/deep", "/c/x/agent-proxy.12.345/s-one"];
        assert_eq!(directories(&nested), expected);
        assert_eq!(enclosing_session(Path::new("/x/agent-proxy.service/y")), None);
    }

    #[test]
    fn the_common_ancestor_is_what_a_move_needs() {
        let host = view(&[("/", "/c", false)], "/user.slice/run-1.scope");
        let common = |directory: &str| host.place_at(Path::new(directory)).common;
        assert_eq!(common("/c/user.slice/box"), Some("/c/user.slice".into()));
        assert_eq!(common("/c/user.slice/run-1.scope/box"), Some("/c/user.slice/run-1.scope".into()));
        assert_eq!(common("/c/box").map(|path| path.join("x")), Some("/c/x".into()));
        assert_eq!(common("/elsewhere"), None);
        let part = view(&[("/docker/1f", "/c", false)], "/docker/2e");
        assert_eq!(part.place_at(Path::new("/c/box")).common, None);
    }
}
