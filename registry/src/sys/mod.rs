//! All unsafe code of the project: fork, clone for exec and for namespaces, a peek at the dead, a title, a start before `main`.

#![expect(unsafe_code, reason = "the system calls that have no safe wrapper; nothing else belongs here")]

mod before_main;
mod clone;
mod confine;
mod exec;
mod filter;
mod fork;
mod hide;
mod init;
mod reap;
mod sandbox;
mod sockets;
mod title;
mod view;

use std::{
    ffi::c_int,
    io,
    os::fd::{AsRawFd, OwnedFd, RawFd},
    ptr,
};

pub(crate) use self::{
    confine::{ConfinementPlan, FCHMODAT2, PassedCall, answer_call, is_call_waiting, take_call},
    exec::{ExecPlan, StartedProgram, clone_exec, dry_run, dry_run_exec},
    hide::clone_mount_holder,
    init::{IdMaps, NamespaceInit, clone_init},
    reap::{DeadChild, peek_dead_child, reap, take_stopped_child, wait_for},
    sandbox::{MountStep, MountSteps, SandboxPlan},
    sockets::{SocketPlan, make_sockets},
    view::MountPlan,
};
pub use self::{
    fork::{fork_child, inherited_fds},
    title::ProcessTitle,
};

/// First descriptor of a forked child's or a started program's own: 0 to 2 are the standard streams.
pub(crate) const FIRST_FD: RawFd = 3;

/// Returns true if this process has a single thread. A second one could hold a lock at a fork, for good.
pub fn is_single_threaded() -> bool {
    // SAFETY: with CLONE_THREAD alone, unshare changes nothing: it succeeds with one thread and is EINVAL with more.
    unsafe { libc::unshare(libc::CLONE_THREAD) == 0 }
}

/// Returns a signal as the system call takes it: one of the real-time signals has no name.
pub(crate) fn any_signal(signal: ipc_protocol::SignalNumber) -> rustix::process::Signal {
    use rustix::process::Signal;
    let number = signal.number();
    // SAFETY: the number is one of Linux's, 1 to 64. It is passed to the kernel alone, for a process that is not this one: glibc's own
    // use of the first real-time signals is not touched.
    Signal::from_named_raw(number).unwrap_or_else(|| unsafe { Signal::from_raw_unchecked(number) })
}

/// Limits the allocator, if it is glibc's, to two arenas for all threads. By default it has up to eight per processor,
/// each of which keeps what its threads needed once. Call it before there are threads.
pub fn bound_arenas() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it sets a number of the allocator's.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
    }
}

/// Duplicates `fds` to numbers beyond those that they are to get.
pub(crate) fn dup_above(fds: Vec<OwnedFd>) -> io::Result<Vec<OwnedFd>> {
    let least = FIRST_FD + RawFd::try_from(fds.len()).unwrap_or(RawFd::MAX / 2);
    let move_up = |fd: OwnedFd| {
        if fd.as_raw_fd() >= least {
            Ok(fd)
        } else {
            rustix::io::fcntl_dupfd_cloexec(&fd, least).map_err(io::Error::from)
        }
    };
    fds.into_iter().map(move_up).collect()
}

/// Sets default dispositions and an empty mask. Ignored and blocked signals survive fork and exec, and programs would
/// then ignore SIGTERM without knowing. Async-signal-safe.
fn default_signals() {
    // The kernel's own struct (handler, flags, restorer, mask), all zero: SIG_DFL. glibc's call refuses 32 and 33,
    // which it reserves for itself and which a parent without glibc may well have ignored.
    let default = [0_u64; 4];
    // SAFETY: the kernel reads the struct, whose size of mask (8 bytes) is given, and refuses KILL and STOP. The set is
    // plain data, zero is a valid value of it, and the calls fill it.
    unsafe {
        for number in 1..=64 {
            libc::syscall(libc::SYS_rt_sigaction, number, default.as_ptr(), ptr::null_mut::<u64>(), 8_usize);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
    }
}

/// Step of starting a program, or the init of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpawnStep {
    Clone,
    Group,
    Enter,
    Session,
    Landlock,
    Capabilities,
    SystemCallFilter,
    SocketFilter,
    Descriptors,
    Terminal,
    Limits,
    Cwd,
    Exec,
    ParentDeath,
    Dumpable,
    DenySetgroups,
    UserMap,
    GroupMap,
    PrivateMounts,
    MountProc,
    MountPrivate,
    MountOverlay,
    MountSandbox,
    LockMounts,
    Network,
    Hide,
}

impl SpawnStep {
    /// Name of the step for errors.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Clone => "clone",
            Self::Group => "joining the cgroup",
            Self::Enter => "entering the namespaces",
            Self::Session => "setsid",
            Self::Landlock => "entering the landlock domain",
            Self::Capabilities => "dropping capabilities",
            Self::SystemCallFilter => "installing the filter of system calls",
            Self::SocketFilter => "installing the filter for sockets",
            Self::Descriptors => "descriptors",
            Self::Terminal => "ioctl TIOCSCTTY",
            Self::Limits => "setting resource limits",
            Self::Cwd => "chdir",
            Self::Exec => "exec",
            Self::ParentDeath => "prctl PR_SET_PDEATHSIG",
            Self::Dumpable => "prctl PR_SET_DUMPABLE",
            Self::DenySetgroups => "writing /proc/self/setgroups",
            Self::UserMap => "writing /proc/self/uid_map",
            Self::GroupMap => "writing /proc/self/gid_map",
            Self::PrivateMounts => "making the mounts private",
            Self::MountProc => "mounting /proc",
            Self::MountPrivate => "mounting a directory of the session's own",
            Self::MountOverlay => "mounting the overlay of the workspace",
            Self::MountSandbox => "mounting the sandbox",
            Self::Network => "setting up the network",
            Self::LockMounts => "making the user namespace that locks the sandbox",
            Self::Hide => "hiding the server's files",
        }
    }
}

/// Reads errno, which is only meaningful right after a failed call.
fn errno() -> c_int {
    // SAFETY: the pointer is to this thread's own errno.
    unsafe { *libc::__errno_location() }
}

/// Opens the user namespace that owns another namespace.
pub(crate) fn owner_of_namespace(namespace: &OwnedFd) -> io::Result<OwnedFd> {
    const NS_GET_USERNS: libc::c_ulong = 0xb701;
    // SAFETY: the call takes no argument, and makes a descriptor that nobody else owns.
    unsafe {
        match libc::ioctl(namespace.as_raw_fd(), NS_GET_USERNS as _) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(clone::owned(fd)),
        }
    }
}
