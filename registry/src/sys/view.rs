//! Mounts of a child: the cgroup hierarchies as its session may see them.

use std::{
    ffi::{CString, c_int},
    ptr,
};

use super::{
    errno,
    sandbox::{MountSteps, mount_steps},
};

/// Plan of [`mount_view`].
#[derive(Clone, Debug, Default)]
pub(crate) struct MountPlan {
    /// The directory of the session's group, and where it is to be mounted.
    pub own: Option<(CString, CString)>,
    /// Mount points, those first that were mounted last; whether it is a hierarchy of version 2.
    pub points: Vec<(CString, bool)>,
    /// Directories that the init of a namespace mounts a file system of the session's own over.
    pub private: Vec<CString>,
    /// Overlay of the session's workspace, for the init of a namespace.
    pub overlay: MountSteps,
    /// Files that are not to be seen: without them being hidden nothing starts.
    pub hidden: MountSteps,
}

/// Changes the mounts of the calling process, in a mount namespace that is made first unless it has one (`is_apart`). Does
/// what can be done; the first error is the result.
///
/// # Safety
/// Only in a child that was just cloned: what it shares with others is none of its mounts' business then. Async-signal-safe.
pub(super) unsafe fn mount_view(plan: &MountPlan, is_apart: bool) -> Result<(), c_int> {
    // SAFETY: system calls on C strings that live as long as the plan, on constants, and on a descriptor of our own.
    unsafe {
        let none = ptr::null();
        let cgroup = if plan.own.is_some() { libc::CLONE_NEWCGROUP } else { 0 };
        let mounts = if is_apart { 0 } else { libc::CLONE_NEWNS };
        if libc::unshare(cgroup | mounts) < 0 {
            return Err(errno());
        }
        // What is mounted outside shows inside, and not the other way round.
        if !is_apart && libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_SLAVE, ptr::null()) < 0 {
            return Err(errno());
        }
        let mut result = Ok(());
        let mut check = |done: libc::c_long| {
            if done < 0 && result.is_ok() {
                result = Err(errno());
            }
            done
        };
        let clone = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC;
        let own = plan.own.as_ref().map(|(group, point)| {
            (check(libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, group.as_ptr(), clone)), point)
        });
        for (point, is_unified) in &plan.points {
            let flags = libc::MS_REMOUNT | libc::MS_BIND | libc::MS_RDONLY;
            let safe = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
            check(libc::mount(none, point.as_ptr(), none, flags | safe, ptr::null()).into());
            if *is_unified && own.is_some() {
                // An ordinary user cannot, and need not: it cannot take away either what is mounted over it.
                libc::umount2(point.as_ptr(), libc::MNT_DETACH);
            }
        }
        if let Some((tree, point)) = own
            && tree >= 0
        {
            let from_fd = libc::MOVE_MOUNT_F_EMPTY_PATH;
            let to = point.as_ptr();
            check(libc::syscall(libc::SYS_move_mount, tree as c_int, c"".as_ptr(), libc::AT_FDCWD, to, from_fd));
            libc::close(tree as c_int);
        }
        result
    }
}

/// Makes a mount namespace for the calling process, and changes its mounts. The inner result is that of [`mount_view`] for cgroup
/// files; the outer one an error of the hidden files.
///
/// # Safety
/// As [`mount_view`].
pub(super) unsafe fn mount_apart(plan: &mut MountPlan) -> Result<Result<(), c_int>, c_int> {
    // SAFETY: the caller's promise. What is hidden is hidden in a namespace that was just made.
    unsafe {
        if plan.hidden.steps.is_empty() {
            return Ok(mount_view(plan, false));
        }
        let none = ptr::null();
        if libc::unshare(libc::CLONE_NEWNS) < 0
            || libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_SLAVE, ptr::null()) < 0
        {
            return Err(errno());
        }
        mount_steps(&mut plan.hidden).map_err(|(_, errno)| errno)?;
        Ok(mount_view(plan, true))
    }
}
