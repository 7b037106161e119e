//! Mounts of an agent: of cgroup files it sees those of its session's group, and below it; of some directories its own.
//!
//! Root could freeze, kill or move its supervisors by any other. In a mount namespace of the agent's own the hierarchy of its
//! group is replaced by the group itself, in a cgroup namespace that begins there; all other hierarchies are read-only. Root
//! can mount a hierarchy of version 1 again; of version 2 it gets its own group, wherever it mounts it.

use std::{
    ffi::CString,
    fs, io,
    os::unix::{ffi::OsStrExt, fs::DirBuilderExt},
    path::{Path, PathBuf},
};

use super::{
    SessionCgroup,
    mounts::{CgroupHierarchy, CgroupMount},
};
use ipc_protocol::{HiddenFiles, OverlaySpec};

use crate::{hiding::hiding_steps, overlay::overlay_step, sys::MountPlan};

/// Mounts for one session's agent.
#[derive(Clone, Debug)]
pub struct MountView(pub(crate) MountPlan);

impl MountView {
    /// Reads what is mounted now. With `group` the agent sees this one; without, all is read-only.
    ///
    /// # Errors
    /// When the mount table cannot be read.
    pub fn plan(group: Option<&SessionCgroup>) -> io::Result<Self> {
        Ok(Self(plan(&CgroupMount::find(CgroupHierarchy::Any)?, group.map(SessionCgroup::path), is_cgroup)))
    }

    /// Adds directories that are the session's own, empty at first. Only a [`crate::SessionNamespace`] has them. Those that are not
    /// there and cannot be made are left out: what cannot be made here the session cannot share either.
    #[must_use]
    pub fn with_private(mut self, directories: &[String]) -> Self {
        let make = |path: &&String| fs::DirBuilder::new().recursive(true).mode(0o700).create(path.as_str()).is_ok();
        self.0.private = directories.iter().filter(make).filter_map(|path| CString::new(path.as_str()).ok()).collect();
        self
    }

    /// Creates a view that leaves cgroup files as they are.
    pub fn unchanged() -> Self {
        Self(MountPlan::default())
    }

    /// Mounts the overlay of a workspace. The session does not start where that cannot be had.
    ///
    /// # Errors
    /// A path that no mount option can have.
    pub fn with_overlay(mut self, overlay: &OverlaySpec) -> io::Result<Self> {
        self.0.overlay.steps = vec![overlay_step(overlay)?];
        Ok(self)
    }

    /// Hides files. The program does not start where that cannot be had.
    #[must_use]
    pub fn with_hidden(mut self, files: &HiddenFiles) -> Self {
        self.0.hidden = hiding_steps(files);
        self
    }
}

fn plan(mounts: &[CgroupMount], group: Option<&Path>, is_visible: impl Fn(&Path) -> bool) -> MountPlan {
    let cstring = |path: &Path| CString::new(path.as_os_str().as_bytes()).ok();
    let visible: Vec<&CgroupMount> = mounts.iter().filter(|mount| is_visible(&mount.point)).collect();
    // The mount that the group's path leads through.
    let through = group.and_then(|group| {
        let unified = visible.iter().filter(|mount| mount.is_unified && group.starts_with(&mount.point));
        unified.map(|mount| &mount.point).max_by_key(|point| point.as_os_str().len())
    });
    let own = group.zip(through).and_then(|(group, point): (&Path, &PathBuf)| Some((cstring(group)?, cstring(point)?)));
    // What is mounted later may hide what was mounted before.
    let points = visible.iter().rev().filter_map(|mount| Some((cstring(&mount.point)?, mount.is_unified))).collect();
    MountPlan { own, points, ..MountPlan::default() }
}

/// Returns whether a path shows a cgroup hierarchy: something else may be mounted over one.
fn is_cgroup(path: &Path) -> bool {
    let magic = rustix::fs::statfs(path).map(|fs| i128::from(fs.f_type));
    magic.is_ok_and(|magic| {
        magic == i128::from(libc::CGROUP2_SUPER_MAGIC) || magic == i128::from(libc::CGROUP_SUPER_MAGIC)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_group_stands_where_its_hierarchy_was() {
        let mount = |point: &str, is_unified| CgroupMount {
            root: "/".into(),
            point: point.into(),
            is_read_only: false,
            is_unified,
        };
        let mounts = [mount("/c/cpu", false), mount("/c/hidden", false), mount("/c/unified", true), mount("/c2", true)];
        let seen = |path: &Path| path != Path::new("/c/hidden");
        let points = [(c"/c2".to_owned(), true), (c"/c/unified".to_owned(), true), (c"/c/cpu".to_owned(), false)];
        let made = plan(&mounts, Some(Path::new("/c/unified/agent-proxy.1.2/s-1")), seen);
        assert_eq!(made.own, Some((c"/c/unified/agent-proxy.1.2/s-1".to_owned(), c"/c/unified".to_owned())));
        assert_eq!(made.points, points);
        assert_eq!(plan(&mounts, None, seen).own, None);
    }
}
