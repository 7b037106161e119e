//! Starts programs.

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
    ptr,
};

use ipc_protocol::Pid;
use rustix::fs::{Mode, OFlags};

use super::{
    SpawnStep,
    clone::{BlockedSignals, CloneSide, SharedMemory, clone_copy, clone_into, owned},
    confine::{ConfinementPlan, confine},
    default_signals, dup_above, errno,
    filter::restrict_sockets,
    view::{MountPlan, mount_apart},
    wait_for,
};

/// A program to execute, with everything allocated beforehand.
pub(crate) struct ExecPlan {
    /// Paths to try in turn. With none, the child runs all steps before the exec and exits with 0: a rehearsal.
    pub programs: Vec<CString>,
    pub argv: Vec<CString>,
    pub env: Vec<CString>,
    pub cwd: Option<CString>,
    /// Descriptors that become the standard streams.
    pub stdio: [OwnedFd; 3],
    /// Descriptors that become 3, 4, …
    pub fds: Vec<OwnedFd>,
    /// Directory of the cgroup to join.
    pub group: Option<OwnedFd>,
    /// Namespaces to enter, in this order.
    pub namespaces: Vec<OwnedFd>,
    /// Resources, each with what its soft and its hard limit become.
    pub rlimits: Vec<(u32, u64, u64)>,
    /// Mounts of its own. It starts without what cannot be had of them.
    pub mounts: Option<MountPlan>,
    /// A landlock ruleset to be restricted by.
    pub landlock: Option<OwnedFd>,
    /// True if audit tells what its domain refuses, where the kernel can.
    pub is_logged: bool,
    /// What it is confined by in a sandbox without namespaces.
    pub confinement: Option<ConfinementPlan>,
    /// True if it makes no sockets but those of its network namespace.
    pub has_socket_filter: bool,
    /// True if its standard input becomes the terminal that controls its session.
    pub is_terminal: bool,
    /// Signal sent at its end: SIGCHLD, or 0 for a child that nobody else may notice.
    pub exit_signal: c_int,
}

/// Flag of `landlock_restrict_self`: audit tells what is refused to programs that are executed later.
const LOG_NEW_EXEC: u32 = 1 << 1;

/// Inputs of the child: the parent's own memory, or a copy of it.
struct ChildPlan {
    programs: Vec<*const c_char>,
    argv: Vec<*const c_char>,
    env: Vec<*const c_char>,
    cwd: *const c_char,
    fds: Vec<RawFd>,
    namespaces: Vec<RawFd>,
    rlimits: Vec<(u32, u64, u64)>,
    mounts: Option<MountPlan>,
    landlock: RawFd,
    is_logged: bool,
    confinement: Option<ConfinementPlan>,
    has_socket_filter: bool,
    is_terminal: bool,
    report: *mut ExecReport,
}

/// Results of the child, in memory that parent and child share.
#[derive(Clone, Copy)]
struct ExecReport {
    /// Step and errno of a failure; `None` while there is none.
    failed: Option<(SpawnStep, c_int)>,
    /// Descriptor of the program's process; -1 while there is none.
    pidfd: RawFd,
    /// Reason why the program has no mounts of its own.
    unmounted: Option<c_int>,
}

/// A program that runs.
pub(crate) struct StartedProgram {
    pub pid: Pid,
    pub pidfd: OwnedFd,
    /// Reason why mounts that were asked for are missing.
    pub unmounted: Option<io::Error>,
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|s| s.as_ptr()).chain([ptr::null()]).collect()
}

/// Starts a program in a session of its own and returns once its exec is done.
///
/// The calling thread is suspended until the exec (vfork), so a failure is known at once. Without a cgroup or namespaces
/// nothing is copied: the child runs in this process's memory.
pub(crate) fn clone_exec(mut exec: ExecPlan) -> Result<StartedProgram, (SpawnStep, io::Error)> {
    let fail = |error| (SpawnStep::Descriptors, error);
    let mut fds: Vec<OwnedFd> = exec.stdio.into_iter().collect();
    fds.append(&mut exec.fds);
    // 3 is the least number beyond the first targets; `above` counts from 3, the targets from 0.
    let fds = dup_above(fds).map_err(fail)?;
    let report = SharedMemory::new(ExecReport { failed: None, pidfd: -1, unmounted: None })
        .map_err(|error| (SpawnStep::Clone, error))?;
    let mut plan = ChildPlan {
        programs: pointers(&exec.programs),
        argv: pointers(&exec.argv),
        env: pointers(&exec.env),
        cwd: exec.cwd.as_deref().map_or(ptr::null(), CStr::as_ptr),
        fds: fds.iter().map(AsRawFd::as_raw_fd).collect(),
        namespaces: exec.namespaces.iter().map(AsRawFd::as_raw_fd).collect(),
        rlimits: exec.rlimits,
        mounts: exec.mounts,
        landlock: exec.landlock.as_ref().map_or(-1, AsRawFd::as_raw_fd),
        is_logged: exec.is_logged,
        confinement: exec.confinement,
        has_socket_filter: exec.has_socket_filter,
        is_terminal: exec.is_terminal,
        report: report.as_ptr(),
    };
    let blocked = BlockedSignals::all();
    let cloned = match (&exec.group, exec.namespaces.is_empty()) {
        (None, true) => clone_vfork(&mut plan, exec.exit_signal),
        (Some(group), true) => match clone_vfork_into_group(&mut plan, exec.exit_signal, group) {
            Ok(None) => clone_as_copy(&mut plan, exec.exit_signal, Some(group)),
            cloned => cloned,
        },
        (group, false) => clone_into_namespaces(&mut plan, exec.exit_signal, group.as_ref()),
    };
    drop(blocked);
    let pid = cloned.map_err(|error| (SpawnStep::Clone, error))?;
    let ExecReport { failed, pidfd, unmounted } = report.get();
    // SAFETY: the kernel made this descriptor for us, in a clone that succeeded.
    let pidfd = (pidfd >= 0).then(|| unsafe { owned(pidfd) });
    if let Some((step, errno)) = failed {
        if let Some(pidfd) = pidfd {
            // The child has exited; no one else may find its status.
            let _ = wait_for(&pidfd);
        }
        return Err((step, io::Error::from_raw_os_error(errno)));
    }
    let gone = || (SpawnStep::Enter, io::Error::new(io::ErrorKind::Interrupted, "killed on the way"));
    let pidfd = pidfd.ok_or_else(gone)?;
    let pid =
        pid.map_or_else(|| crate::proc::pid_of_pidfd(pidfd.as_fd()), Ok).map_err(|error| (SpawnStep::Enter, error))?;
    Ok(StartedProgram { pid, pidfd, unmounted: unmounted.map(io::Error::from_raw_os_error) })
}

/// Creates an `Exec` without a program, the base of a [`dry_run`].
pub(crate) fn dry_run_exec() -> io::Result<ExecPlan> {
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    Ok(ExecPlan {
        programs: Vec::new(),
        argv: Vec::new(),
        env: Vec::new(),
        cwd: None,
        stdio: [null.try_clone()?, null.try_clone()?, null],
        fds: Vec::new(),
        group: None,
        namespaces: Vec::new(),
        rlimits: Vec::new(),
        mounts: None,
        landlock: None,
        is_logged: false,
        confinement: None,
        has_socket_filter: false,
        is_terminal: false,
        exit_signal: 0,
    })
}

/// Runs all steps but the exec, in a child that is gone afterwards and that only a `wait` with `__WALL` can see. Safe
/// with any number of threads.
pub(crate) fn dry_run(exec: ExecPlan) -> Result<(), (SpawnStep, io::Error)> {
    let child = clone_exec(ExecPlan { programs: Vec::new(), exit_signal: 0, ..exec })?;
    wait_for(&child.pidfd).map_err(|error| (SpawnStep::Clone, error))
}

/// Stack size of a child that runs in this process's memory, in bytes.
const STACK: usize = 32 * 1024;

/// Starts the child the fast way: in this process's memory, on a stack of its own.
fn clone_vfork(plan: &mut ChildPlan, exit_signal: c_int) -> io::Result<Option<Pid>> {
    // Only the child touches it, so it stays uninitialized.
    let mut stack = Vec::<MaybeUninit<u128>>::with_capacity(STACK / size_of::<u128>());
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | exit_signal;
    // SAFETY: CLONE_VFORK suspends this thread until the child has executed or exited, so `plan`, `stack` and what they
    // point to outlive the child's use of them and are not touched meanwhile. The stack grows down from its aligned end.
    // `exec_child` neither allocates, locks, unwinds nor returns. With CLONE_PIDFD the kernel writes to `pidfd`.
    let pid = unsafe {
        let top = stack.as_mut_ptr().add(stack.capacity()).cast::<c_void>();
        let pidfd = &raw mut (*plan.report).pidfd;
        libc::clone(exec_child, top, flags, ptr::from_mut(plan).cast::<c_void>(), pidfd)
    };
    if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(Some(pid.unsigned_abs())) }
}

/// Starts the child like [`clone_vfork`], in a cgroup. `Ok(None)` if that is not available.
fn clone_vfork_into_group(plan: &mut ChildPlan, exit_signal: c_int, group: &OwnedFd) -> io::Result<Option<Pid>> {
    let mut stack = [const { MaybeUninit::<u128>::uninit() }; STACK / size_of::<u128>()];
    // SAFETY: as in `clone_vfork`: the thread is suspended until `plan` and `stack` are not used any more.
    let pid = unsafe {
        let pidfd = &raw mut (*plan.report).pidfd;
        let argument = ptr::from_mut(plan).cast::<c_void>();
        clone_into(group.as_fd(), exit_signal, &mut stack, exec_child, argument, pidfd)
    }?;
    Ok(pid.map(|pid| pid.unsigned_abs()))
}

/// Starts the child in a cgroup the other way: as a copy of this process.
fn clone_as_copy(plan: &mut ChildPlan, exit_signal: c_int, group: Option<&OwnedFd>) -> io::Result<Option<Pid>> {
    // SAFETY: the child only calls `exec_child` and `fail`, which keep to what is allowed; the pointer is into the report.
    unsafe {
        let pidfd = &raw mut (*plan.report).pidfd;
        match clone_copy(libc::CLONE_VFORK, exit_signal, group.map(AsFd::as_fd), pidfd)? {
            CloneSide::Parent(pid) => Ok(Some(pid.unsigned_abs())),
            CloneSide::Child(Err(errno)) => fail(plan, SpawnStep::Group, errno),
            CloneSide::Child(Ok(())) => {
                exec_child(ptr::from_mut(plan).cast());
                libc::_exit(127)
            }
        }
    }
}

/// Starts the child in namespaces, which only children of a process that entered them are in. A copy of this process
/// enters them and clones the program's process as a sibling (CLONE_PARENT), so that it is a child of this process. The
/// copy shares this process's descriptors, so this process gets the pidfd. The copy does not report the child's pid,
/// since it may be killed before it could.
fn clone_into_namespaces(plan: &mut ChildPlan, exit_signal: c_int, group: Option<&OwnedFd>) -> io::Result<Option<Pid>> {
    let mut between: RawFd = -1;
    let flags = libc::CLONE_VFORK | libc::CLONE_FILES;
    // SAFETY: the child only calls `enter_and_exec` and `fail`, which keep to what is allowed.
    let between = unsafe {
        match clone_copy(flags, exit_signal, group.map(AsFd::as_fd), &raw mut between)? {
            // SAFETY: the kernel made this descriptor for us.
            CloneSide::Parent(_) => owned(between),
            CloneSide::Child(Err(errno)) => fail(plan, SpawnStep::Group, errno),
            CloneSide::Child(Ok(())) => enter_and_exec(plan),
        }
    };
    // The copy was suspended like this process, so it has ended. Losing its status to another waiter does no harm.
    let _ = wait_for(&between);
    Ok(None)
}

/// Runs in the intermediate process.
///
/// # Safety
/// As [`exec_child`], and this process is a copy.
unsafe fn enter_and_exec(plan: &mut ChildPlan) -> ! {
    // SAFETY: system calls on numbers that are open; the pointer is into the report. An exit signal comes with
    // CLONE_PARENT from the process between, which has the one that is wanted.
    unsafe {
        let mut at = 0;
        while at < plan.namespaces.len() {
            if libc::setns(*plan.namespaces.as_ptr().add(at), 0) < 0 {
                fail(plan, SpawnStep::Enter, errno());
            }
            at += 1;
        }
        let pidfd = &raw mut (*plan.report).pidfd;
        match clone_copy(libc::CLONE_PARENT | libc::CLONE_VFORK, 0, None, pidfd) {
            Ok(CloneSide::Parent(_)) => libc::_exit(0),
            Ok(CloneSide::Child(_)) => {
                exec_child(ptr::from_mut(plan).cast());
                libc::_exit(127)
            }
            Err(_) => fail(plan, SpawnStep::Clone, errno()),
        }
    }
}

/// Ends a child that failed in `step`.
///
/// # Safety
/// Only in a child, whose parent will read the report.
unsafe fn fail(plan: &ChildPlan, step: SpawnStep, errno: c_int) -> ! {
    // SAFETY: the report is mapped and the parent does not touch it before this process has ended.
    unsafe {
        ptr::write_volatile(&raw mut (*plan.report).failed, Some((step, errno)));
        libc::_exit(127)
    }
}

/// Runs in the child, on a small stack, in the parent's memory, while the parent's thread is suspended; or in a copy.
/// It must not allocate, lock, panic or return.
extern "C" fn exec_child(plan: *mut c_void) -> c_int {
    // SAFETY: callers pass a `Plan` that nobody else touches until this process has executed or exited. Everything called
    // is async-signal-safe, and every pointer in the plan is to a C string or a null-ended array of such.
    unsafe {
        let plan = &mut *plan.cast::<ChildPlan>();
        let step = run_plan(plan);
        fail(plan, step, errno())
    }
}

/// Runs all steps up to the exec, and returns the step that failed.
///
/// # Safety
/// As [`exec_child`].
unsafe fn run_plan(plan: &mut ChildPlan) -> SpawnStep {
    // SAFETY: see `exec_child`.
    unsafe {
        default_signals();
        if libc::setsid() < 0 {
            return SpawnStep::Session;
        }
        // Before landlock, which may forbid it.
        if let Some(mounts) = &mut plan.mounts {
            match mount_apart(mounts) {
                Ok(Ok(())) => {}
                Ok(Err(errno)) => ptr::write_volatile(&raw mut (*plan.report).unmounted, Some(errno)),
                Err(errno) => {
                    *libc::__errno_location() = errno;
                    return SpawnStep::Hide;
                }
            }
        }
        if plan.landlock >= 0 {
            let restrict_with = |flags: u32| libc::syscall(libc::SYS_landlock_restrict_self, plan.landlock, flags) == 0;
            // Kernels before 6.15 know no flags.
            let restrict = || (plan.is_logged && restrict_with(LOG_NEW_EXEC)) || restrict_with(0);
            // Without CAP_SYS_ADMIN this requires the promise never to gain privileges by exec.
            let promise = || errno() == libc::EPERM && libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
            if !(restrict() || promise() && restrict()) {
                return SpawnStep::Landlock;
            }
        }
        if let Some(confinement) = &plan.confinement
            && let Err((step, errno)) = confine(confinement)
        {
            *libc::__errno_location() = errno;
            return step;
        }
        if plan.has_socket_filter && restrict_sockets().is_err() {
            return SpawnStep::SocketFilter;
        }
        let mut number = 0;
        while (number as usize) < plan.fds.len() {
            if libc::dup2(*plan.fds.as_ptr().add(number as usize), number) < 0 {
                return SpawnStep::Descriptors;
            }
            number += 1;
        }
        // The session leader's first terminal is the one that controls it only where this is said.
        if plan.is_terminal && libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
            return SpawnStep::Terminal;
        }
        if libc::syscall(libc::SYS_close_range, number, u32::MAX, 0) < 0 {
            return SpawnStep::Descriptors;
        }
        let mut at = 0;
        while at < plan.rlimits.len() {
            let (resource, rlim_cur, rlim_max) = *plan.rlimits.as_ptr().add(at);
            let limits = libc::rlimit64 { rlim_cur, rlim_max };
            if libc::syscall(libc::SYS_prlimit64, 0, resource, &raw const limits, ptr::null_mut::<c_void>()) < 0 {
                return SpawnStep::Limits;
            }
            at += 1;
        }
        if !plan.cwd.is_null() && libc::chdir(plan.cwd) < 0 {
            return SpawnStep::Cwd;
        }
        let mut program = plan.programs.as_ptr();
        if (*program).is_null() {
            libc::_exit(0);
        }
        while !(*program).is_null() {
            libc::execve(*program, plan.argv.as_ptr(), plan.env.as_ptr());
            // The next directory of PATH may have it; any other failure is about this very file.
            if !matches!(errno(), libc::ENOENT | libc::ENOTDIR) {
                break;
            }
            program = program.add(1);
        }
        SpawnStep::Exec
    }
}
