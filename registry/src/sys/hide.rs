//! Directories that a child does not see.

use std::{
    ffi::{CString, c_int},
    io,
    os::fd::{AsRawFd, OwnedFd, RawFd},
    ptr,
};

use ipc_protocol::Pid;

use super::{
    SpawnStep,
    clone::{BlockedSignals, CloneSide, SharedMemory, clone_copy, owned},
    default_signals, errno,
    init::{IdMaps, write_file},
};

/// Most directories of a [`HiddenPoint`] that stay visible: their descriptors are on the stack of the child.
pub(crate) const MAX_SHOWN: usize = 8;

/// Place over which an empty one is mounted.
#[derive(Clone, Debug)]
pub(crate) struct HiddenPoint {
    pub point: CString,
    /// True for a directory. Another file is replaced by an empty one.
    pub is_directory: bool,
    /// Directories below the point that stay visible, at most [`MAX_SHOWN`].
    pub shown: Vec<ShownDirectory>,
}

/// Directory that stays visible below a hidden one.
#[derive(Clone, Debug)]
pub(crate) struct ShownDirectory {
    pub path: CString,
    /// Directories from below the hidden point to this one, itself included.
    pub parents: Vec<CString>,
}

/// Hides directories in the calling process's mount namespace.
///
/// # Safety
/// Only in a child that is alone in its mount namespace, whose mounts are private or slaves. Async-signal-safe.
pub(super) unsafe fn hide(points: &[HiddenPoint]) -> Result<(), c_int> {
    // SAFETY: system calls on C strings that live as long as the points, on constants, and on descriptors of our own.
    unsafe {
        let none = ptr::null();
        let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
        let check = |done: libc::c_long| if done < 0 { Err(errno()) } else { Ok(done as c_int) };
        for hidden in points {
            let point = hidden.point.as_ptr();
            if !hidden.is_directory {
                check(libc::mount(c"/dev/null".as_ptr(), point, none, libc::MS_BIND, ptr::null()).into())?;
                continue;
            }
            let mut trees: [RawFd; MAX_SHOWN] = [-1; MAX_SHOWN];
            let clone = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC | libc::AT_RECURSIVE as u32;
            for (directory, tree) in hidden.shown.iter().zip(trees.iter_mut()) {
                let opened = libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, directory.path.as_ptr(), clone);
                *tree = check(opened)?;
            }
            let (tmpfs, options) = (c"tmpfs".as_ptr(), c"mode=755,size=64k".as_ptr().cast());
            check(libc::mount(tmpfs, point, tmpfs, flags, options).into())?;
            for (directory, tree) in hidden.shown.iter().zip(trees.iter()) {
                for parent in &directory.parents {
                    if libc::mkdir(parent.as_ptr(), 0o755) < 0 && errno() != libc::EEXIST {
                        return Err(errno());
                    }
                }
                let (from_fd, to) = (libc::MOVE_MOUNT_F_EMPTY_PATH, directory.path.as_ptr());
                check(libc::syscall(libc::SYS_move_mount, *tree, c"".as_ptr(), libc::AT_FDCWD, to, from_fd))?;
                libc::close(*tree);
            }
            let read_only = flags | libc::MS_REMOUNT | libc::MS_BIND | libc::MS_RDONLY;
            check(libc::mount(none, point, none, read_only, ptr::null()).into())?;
        }
        Ok(())
    }
}

/// A child in a user and a mount namespace of its own, in which directories are hidden. It lives until its socket is closed.
pub(crate) struct MountHolder {
    pub pid: Pid,
    pub pidfd: OwnedFd,
    report: SharedMemory<Option<(SpawnStep, c_int)>>,
}

impl MountHolder {
    /// Returns the step and error of a holder that closed its socket because it failed.
    pub(crate) fn failure(&self) -> Option<(SpawnStep, io::Error)> {
        self.report.get().map(|(step, errno)| (step, io::Error::from_raw_os_error(errno)))
    }
}

/// Makes the namespaces. The child sends a byte on its socket once the directories are hidden. Only a `wait` with `__WALL` can see it.
pub(crate) fn clone_mount_holder(maps: &IdMaps, points: &[HiddenPoint], socket: &OwnedFd) -> io::Result<MountHolder> {
    let report = SharedMemory::new(None)?;
    let (target, socket) = (report.as_ptr(), socket.as_raw_fd());
    let mut pidfd: RawFd = -1;
    let _blocked = BlockedSignals::all();
    // SAFETY: the child only makes system calls, on what was allocated before, and exits.
    unsafe {
        match clone_copy(libc::CLONE_NEWUSER | libc::CLONE_NEWNS, 0, None, &raw mut pidfd)? {
            // SAFETY: the kernel made this descriptor for us.
            CloneSide::Parent(pid) => Ok(MountHolder { pid: pid.unsigned_abs(), pidfd: owned(pidfd), report }),
            CloneSide::Child(made) => {
                let failed = match made {
                    Ok(()) => hold(maps, points, socket).err(),
                    Err(errno) => Some((SpawnStep::Clone, errno)),
                };
                ptr::write_volatile(target, failed);
                libc::_exit(failed.is_some().into())
            }
        }
    }
}

/// Runs as the holder.
///
/// # Safety
/// Only in the child. It must not allocate, lock or panic.
unsafe fn hold(maps: &IdMaps, points: &[HiddenPoint], socket: RawFd) -> Result<(), (SpawnStep, c_int)> {
    // SAFETY: system calls on what the caller holds, and on constants.
    unsafe {
        let check = |step: SpawnStep, result: c_int| if result < 0 { Err((step, errno())) } else { Ok(()) };
        default_signals();
        check(SpawnStep::Descriptors, libc::dup2(socket, 0))?;
        check(SpawnStep::Descriptors, libc::syscall(libc::SYS_close_range, 1, u32::MAX, 0) as c_int)?;
        check(SpawnStep::ParentDeath, libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0))?;
        // Without this its files below /proc belong to root.
        check(SpawnStep::Dumpable, libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0))?;
        write_file(SpawnStep::DenySetgroups, c"/proc/self/setgroups".as_ptr(), b"deny")?;
        write_file(SpawnStep::UserMap, c"/proc/self/uid_map".as_ptr(), &maps.user)?;
        write_file(SpawnStep::GroupMap, c"/proc/self/gid_map".as_ptr(), &maps.group)?;
        let (none, root) = (ptr::null(), c"/".as_ptr());
        check(SpawnStep::PrivateMounts, libc::mount(none, root, none, libc::MS_REC | libc::MS_SLAVE, ptr::null()))?;
        hide(points).map_err(|errno| (SpawnStep::Hide, errno))?;
        let mut byte = 0_u8;
        libc::send(0, (&raw const byte).cast(), 1, libc::MSG_NOSIGNAL);
        // Until the parent closes its end.
        libc::read(0, (&raw mut byte).cast(), 1);
        Ok(())
    }
}
