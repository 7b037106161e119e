//! The first process of a PID namespace.

use std::{
    ffi::c_int,
    io,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd},
    ptr,
};

use ipc_protocol::Pid;

use super::{
    SpawnStep,
    clone::{BlockedSignals, CloneSide, SharedMemory, clone_copy, owned},
    default_signals, errno,
    sandbox::{SandboxPlan, mount_steps},
    sockets::raise_loopback,
    view::{MountPlan, mount_view},
};

/// Contents of the id maps of a user namespace.
pub(crate) struct IdMaps {
    pub user: Vec<u8>,
    pub group: Vec<u8>,
}

/// A cloned init. It sends one byte on its socket when it is ready, receives one as permission to continue, closes the
/// socket and then only waits, until its parent or itself is killed.
pub(crate) struct NamespaceInit {
    pub pid: Pid,
    pub pidfd: OwnedFd,
    report: SharedMemory<InitReport>,
}

/// Result of the start.
#[derive(Clone, Copy, Default)]
struct InitReport {
    failed: Option<(SpawnStep, c_int)>,
    /// Reason why mounts that were asked for are missing.
    unmounted: Option<c_int>,
    /// Number of the step of the sandbox that failed.
    at: usize,
}

impl NamespaceInit {
    /// Returns the step and error of an init that closed its socket because it failed, rather than being killed.
    pub(crate) fn failure(&self) -> Option<(SpawnStep, io::Error)> {
        self.report.get().failed.map(|(step, errno)| (step, io::Error::from_raw_os_error(errno)))
    }

    /// Returns the number of the step at which [`SpawnStep::MountSandbox`] failed.
    pub(crate) fn failed_mount(&self) -> usize {
        self.report.get().at
    }

    /// Returns the reason why mounts that were asked for are missing. To be called once the init is ready.
    pub(crate) fn unmounted(&self) -> Option<io::Error> {
        self.report.get().unmounted.map(io::Error::from_raw_os_error)
    }
}

/// Inputs of the init, in its own copy.
struct InitPlan {
    socket: RawFd,
    maps: Option<IdMaps>,
    mounts: Option<MountPlan>,
    sandbox: Option<SandboxPlan>,
    report: *mut InitReport,
}

/// Makes a PID and a mount namespace, with `maps` a user namespace that owns them, and the init in them. It is a copy of
/// this process, which may have other threads, and ends when the calling thread does. With the group in `mounts` there is a
/// cgroup namespace, too. With `sandbox` the init is in another user namespace and another mount namespace within these, and in an
/// IPC namespace. Without `maps` the caller writes the maps of that user namespace, between a first byte from the init and a byte
/// to it.
pub(crate) fn clone_init(
    group: Option<BorrowedFd<'_>>,
    maps: Option<IdMaps>,
    mounts: Option<MountPlan>,
    sandbox: Option<SandboxPlan>,
    socket: &OwnedFd,
    exit_signal: c_int,
) -> io::Result<NamespaceInit> {
    let user = if maps.is_some() { libc::CLONE_NEWUSER } else { 0 };
    let report = SharedMemory::new(InitReport::default())?;
    let ipc = if sandbox.is_some() { libc::CLONE_NEWIPC } else { 0 };
    let net = if sandbox.as_ref().is_some_and(|plan| plan.has_network) { libc::CLONE_NEWNET } else { 0 };
    let mut plan = InitPlan { socket: socket.as_raw_fd(), maps, mounts, sandbox, report: report.as_ptr() };
    let mut pidfd: RawFd = -1;
    let _blocked = BlockedSignals::all();
    let flags = libc::CLONE_NEWPID | libc::CLONE_NEWNS | user | ipc | net;
    // SAFETY: the child only calls `fail` and `run_init`, which keep to what is allowed.
    unsafe {
        match clone_copy(flags, exit_signal, group, &raw mut pidfd)? {
            // SAFETY: the kernel made this descriptor for us.
            CloneSide::Parent(pid) => Ok(NamespaceInit { pid: pid.unsigned_abs(), pidfd: owned(pidfd), report }),
            CloneSide::Child(Err(errno)) => fail(&plan, SpawnStep::Group, errno),
            CloneSide::Child(Ok(())) => run_init(&mut plan),
        }
    }
}

/// # Safety
/// Only in the child.
unsafe fn fail(plan: &InitPlan, step: SpawnStep, errno: c_int) -> ! {
    // SAFETY: the page is mapped, and the parent does not write to it.
    unsafe {
        ptr::write_volatile(&raw mut (*plan.report).failed, Some((step, errno)));
        libc::_exit(1)
    }
}

/// Runs as the init and never returns. It must not allocate, lock or panic.
///
/// # Safety
/// Only in the child.
unsafe fn run_init(plan: &mut InitPlan) -> ! {
    // SAFETY: system calls on what the plan holds, and on constants.
    unsafe {
        if let Err((step, errno)) = set_up(plan) {
            fail(plan, step, errno);
        }
        let mut byte = 0_u8;
        // A parent that died before its death signal was requested has closed its end: the write or the read fails.
        if libc::send(0, (&raw const byte).cast(), 1, libc::MSG_NOSIGNAL) != 1
            || libc::read(0, (&raw mut byte).cast(), 1) != 1
            || libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) < 0
        {
            libc::_exit(1);
        }
        libc::close(0);
        // The kernel reaps its children (SIGCHLD is ignored), and signals from inside do not reach it.
        loop {
            libc::pause();
        }
    }
}

/// # Safety
/// As [`run_init`].
unsafe fn set_up(plan: &mut InitPlan) -> Result<(), (SpawnStep, c_int)> {
    // SAFETY: see `run_init`; every pointer is to a C string, or to as many bytes as are given.
    unsafe {
        let check = |step: SpawnStep, result: c_int| if result < 0 { Err((step, errno())) } else { Ok(()) };
        default_signals();
        // Ignored, so that the kernel reaps children that it inherits. It starts no program that could inherit this.
        let ignore = [libc::SIG_IGN as u64, 0, 0, 0];
        libc::syscall(libc::SYS_rt_sigaction, libc::SIGCHLD, ignore.as_ptr(), ptr::null_mut::<u64>(), 8_usize);
        check(SpawnStep::Descriptors, libc::dup2(plan.socket, 0))?;
        check(SpawnStep::Descriptors, libc::syscall(libc::SYS_close_range, 1, u32::MAX, 0) as c_int)?;
        check(SpawnStep::ParentDeath, libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0))?;
        check(SpawnStep::Session, libc::setsid())?;
        libc::prctl(libc::PR_SET_NAME, c"ap init".as_ptr(), 0, 0, 0);
        if let Some(maps) = &plan.maps {
            write_maps(maps)?;
        }
        // Outer mounts show inside; inner mounts, /proc first of all, stay inside.
        let (none, root, proc) = (ptr::null(), c"/".as_ptr(), c"proc".as_ptr());
        check(SpawnStep::PrivateMounts, libc::mount(none, root, none, libc::MS_REC | libc::MS_SLAVE, ptr::null()))?;
        let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
        if plan.sandbox.is_none() {
            check(SpawnStep::MountProc, libc::mount(proc, c"/proc".as_ptr(), proc, flags, ptr::null()))?;
        }
        if let Some(mounts) = &mut plan.mounts {
            let (tmpfs, options) = (c"tmpfs".as_ptr(), c"mode=700,size=16m".as_ptr().cast());
            for directory in &mounts.private {
                check(SpawnStep::MountPrivate, libc::mount(tmpfs, directory.as_ptr(), tmpfs, flags, options))?;
            }
            // Before anything is mounted over its directories.
            mount_steps(&mut mounts.overlay).map_err(|(_, errno)| (SpawnStep::MountOverlay, errno))?;
            if let Err(errno) = mount_view(mounts, true) {
                ptr::write_volatile(&raw mut (*plan.report).unmounted, Some(errno));
            }
            mount_steps(&mut mounts.hidden).map_err(|(_, errno)| (SpawnStep::Hide, errno))?;
        }
        if let Some(sandbox) = &mut plan.sandbox {
            if sandbox.has_network {
                raise_loopback().map_err(|errno| (SpawnStep::Network, errno))?;
            }
            // What is mounted outside later does not show either.
            check(
                SpawnStep::PrivateMounts,
                libc::mount(none, root, none, libc::MS_REC | libc::MS_PRIVATE, ptr::null()),
            )?;
            if let Err((at, errno)) = mount_steps(&mut sandbox.mounts) {
                ptr::write_volatile(&raw mut (*plan.report).at, at);
                return Err((SpawnStep::MountSandbox, errno));
            }
            lock_mounts(plan.maps.as_ref())?;
        }
        check(SpawnStep::Cwd, libc::chdir(root))
    }
}

/// Enters another user namespace and another mount namespace, in which all mounts are locked.
///
/// # Safety
/// As [`run_init`].
unsafe fn lock_mounts(maps: Option<&IdMaps>) -> Result<(), (SpawnStep, c_int)> {
    // SAFETY: system calls on constants, and on the byte of this function.
    unsafe {
        let check = |result: c_int| if result < 0 { Err((SpawnStep::LockMounts, errno())) } else { Ok(()) };
        check(libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS))?;
        // A change of credentials may take it back.
        check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0))?;
        if let Some(maps) = maps {
            return write_maps(maps);
        }
        let mut byte = 0_u8;
        if libc::send(0, (&raw const byte).cast(), 1, libc::MSG_NOSIGNAL) != 1
            || libc::read(0, (&raw mut byte).cast(), 1) != 1
        {
            return Err((SpawnStep::LockMounts, libc::EPIPE));
        }
        Ok(())
    }
}

/// # Safety
/// As [`run_init`], in a user namespace without maps.
unsafe fn write_maps(maps: &IdMaps) -> Result<(), (SpawnStep, c_int)> {
    // SAFETY: system calls on constants and C strings.
    unsafe {
        // Without this its files below /proc belong to root.
        if libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0) < 0 {
            return Err((SpawnStep::Dumpable, errno()));
        }
        write_file(SpawnStep::DenySetgroups, c"/proc/self/setgroups".as_ptr(), b"deny")?;
        write_file(SpawnStep::UserMap, c"/proc/self/uid_map".as_ptr(), &maps.user)?;
        write_file(SpawnStep::GroupMap, c"/proc/self/gid_map".as_ptr(), &maps.group)
    }
}

/// # Safety
/// `path` is a C string.
pub(super) unsafe fn write_file(
    step: SpawnStep,
    path: *const libc::c_char,
    text: &[u8],
) -> Result<(), (SpawnStep, c_int)> {
    // SAFETY: the caller's promise; the descriptor is used by nobody else.
    unsafe {
        let fd = libc::open(path, libc::O_WRONLY | libc::O_CLOEXEC);
        if fd < 0 || libc::write(fd, text.as_ptr().cast(), text.len()) < 0 {
            return Err((step, errno()));
        }
        libc::close(fd);
        Ok(())
    }
}
