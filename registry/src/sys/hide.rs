//! Directories that a child does not see.

use std::{
    ffi::c_int,
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
    sandbox::{MountSteps, mount_steps},
};

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
pub(crate) fn clone_mount_holder(maps: &IdMaps, mut hidden: MountSteps, socket: &OwnedFd) -> io::Result<MountHolder> {
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
                    Ok(()) => hold(maps, &mut hidden, socket).err(),
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
unsafe fn hold(maps: &IdMaps, hidden: &mut MountSteps, socket: RawFd) -> Result<(), (SpawnStep, c_int)> {
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
        mount_steps(hidden).map_err(|(_, errno)| (SpawnStep::Hide, errno))?;
        let mut byte = 0_u8;
        libc::send(0, (&raw const byte).cast(), 1, libc::MSG_NOSIGNAL);
        // Until the parent closes its end.
        libc::read(0, (&raw mut byte).cast(), 1);
        Ok(())
    }
}
