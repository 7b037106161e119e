//! Every unsafe line of the project: fork, clone for exec, a peek at the dead, a title.

#![expect(unsafe_code, reason = "the system calls that have no safe wrapper; nothing else belongs here")]

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    io,
    mem::MaybeUninit,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
    sync::atomic::{AtomicBool, Ordering},
};

use ipc_protocol::{ExitStatus, Pid};

/// Descriptors from here on are a forked child's or a started program's own: 0 to 2 are the standard streams.
pub(crate) const FIRST_FD: RawFd = 3;

/// Whether this process has one thread only. A second one could hold a lock at a fork, for good.
pub fn is_single_threaded() -> bool {
    // SAFETY: with CLONE_THREAD alone, unshare changes nothing: it succeeds with one thread and is EINVAL with more.
    unsafe { libc::unshare(libc::CLONE_THREAD) == 0 }
}

/// Forks this process, without exec. In the child: `keep` are its only descriptors above 2, renumbered from 3 on in that
/// order; signal dispositions and mask are the defaults; then `child` runs, and its result is the exit code. Nothing of the
/// parent's is dropped or flushed there.
///
/// # Errors
/// The system's; `WouldBlock`-like `EAGAIN` when out of processes. `Unsupported` when this process has a second thread.
pub fn fork_child(keep: Vec<OwnedFd>, child: impl FnOnce(Vec<OwnedFd>) -> u8) -> io::Result<Pid> {
    if !is_single_threaded() {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "fork without exec from a process with several threads",
        ));
    }
    let keep = above(keep)?;
    // SAFETY: the process has one thread, so no lock is held by a thread that the child would lack.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let code = catch_unwind(AssertUnwindSafe(|| {
                default_signals();
                child(take_over(keep))
            }));
            // SAFETY: always sound; it ends the process at once, without running destructors or flushing what the
            // parent buffered.
            unsafe { libc::_exit(code.map_or(101, c_int::from)) }
        }
        pid => Ok(pid.unsigned_abs()),
    }
}

/// Duplicates of `fds` that are all out of the way of the numbers they are to get.
pub(crate) fn above(fds: Vec<OwnedFd>) -> io::Result<Vec<OwnedFd>> {
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

/// Renumbers `fds` from 3 on, closes everything behind them, and owns the new numbers.
fn take_over(fds: Vec<OwnedFd>) -> Vec<OwnedFd> {
    let mut taken = Vec::with_capacity(fds.len());
    for (fd, number) in fds.into_iter().zip(FIRST_FD..) {
        // SAFETY: plain system call on a descriptor we own; whatever had `number` belonged to the parent's state, which
        // this process never touches again.
        if unsafe { libc::dup3(fd.as_raw_fd(), number, libc::O_CLOEXEC) } == number {
            // SAFETY: `number` was just made by dup3 and nobody else owns it.
            taken.push(unsafe { OwnedFd::from_raw_fd(number) });
        }
        // The original is closed below, with all others: closing it here as well would be a second close.
        std::mem::forget(fd);
    }
    let end = FIRST_FD + RawFd::try_from(taken.len()).unwrap_or(0);
    // SAFETY: closes descriptors that this process never uses again.
    unsafe { libc::syscall(libc::SYS_close_range, end, u32::MAX, 0) };
    taken
}

/// The first `count` descriptors from 3 on that the program which started this one left open for it. Once.
///
/// # Errors
/// `AlreadyExists` the second time; the system's when one is not open.
pub fn inherited_fds(count: usize) -> io::Result<Vec<OwnedFd>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if TAKEN.swap(true, Ordering::SeqCst) {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the inherited descriptors were taken before"));
    }
    let mut fds = Vec::with_capacity(count);
    for number in (FIRST_FD..).take(count) {
        // SAFETY: plain system call; it fails on a number that is not open.
        if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it is open, this process did not open it itself (callers do this first of all), and it is handed out
        // once.
        fds.push(unsafe { OwnedFd::from_raw_fd(number) });
    }
    Ok(fds)
}

/// Default dispositions and an empty mask: what is ignored or blocked survives fork and exec, and programs then ignore
/// SIGTERM without knowing. Async-signal-safe.
fn default_signals() {
    // The kernel's own struct (handler, flags, restorer, mask), all zero: SIG_DFL. glibc's call refuses 32 and 33, which
    // it keeps for itself and which a parent without glibc may well have ignored.
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

/// A program to execute, with everything allocated beforehand.
pub(crate) struct Exec {
    /// Paths to try in turn.
    pub programs: Vec<CString>,
    pub argv: Vec<CString>,
    pub env: Vec<CString>,
    pub cwd: Option<CString>,
    /// Become the standard streams.
    pub stdio: [OwnedFd; 3],
    /// Become 3, 4, …
    pub fds: Vec<OwnedFd>,
}

/// Which step of starting a program failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Clone,
    Session,
    Descriptors,
    Cwd,
    Exec,
}

/// What the child of [`clone_exec`] works on. It shares the parent's memory.
struct Plan {
    programs: Vec<*const c_char>,
    argv: Vec<*const c_char>,
    env: Vec<*const c_char>,
    cwd: *const c_char,
    fds: Vec<RawFd>,
    /// Step and errno of the failure; `None` while there is none.
    failed: Option<(Step, c_int)>,
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|s| s.as_ptr()).chain([ptr::null()]).collect()
}

/// Starts a program in a session of its own and returns once its exec is done: pid and pidfd.
///
/// The calling thread is suspended until the exec (vfork): nothing is copied, and a failure is known at once.
pub(crate) fn clone_exec(mut exec: Exec) -> Result<(Pid, OwnedFd), (Step, io::Error)> {
    const STACK: usize = 32 * 1024;
    let fail = |error| (Step::Descriptors, error);
    let mut fds: Vec<OwnedFd> = exec.stdio.into_iter().collect();
    fds.append(&mut exec.fds);
    // 3 is the least number that is out of the way of the first targets; `above` counts from 3, the targets from 0.
    let fds = above(fds).map_err(fail)?;
    let mut plan = Plan {
        programs: pointers(&exec.programs),
        argv: pointers(&exec.argv),
        env: pointers(&exec.env),
        cwd: exec.cwd.as_deref().map_or(ptr::null(), CStr::as_ptr),
        fds: fds.iter().map(AsRawFd::as_raw_fd).collect(),
        failed: None,
    };
    // Never touched but by the child: left as it is.
    let mut stack = Vec::<MaybeUninit<u128>>::with_capacity(STACK / size_of::<u128>());
    let mut pidfd: RawFd = -1;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD;
    // SAFETY: the sets are plain data that the calls fill. All signals are blocked so that no handler of this process
    // runs in the child, on its small stack; the mask is restored below.
    let before = unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    };
    // SAFETY: CLONE_VFORK suspends this thread until the child has executed or exited, so `plan`, `stack` and what they
    // point to outlive the child's use of them and are not touched meanwhile. The stack grows down from its aligned end.
    // `exec_child` neither allocates, locks, unwinds nor returns. With CLONE_PIDFD the kernel writes to `pidfd`.
    let pid = unsafe {
        let top = stack.as_mut_ptr().add(stack.capacity()).cast::<c_void>();
        libc::clone(exec_child, top, flags, (&raw mut plan).cast::<c_void>(), &raw mut pidfd)
    };
    let clone_error = io::Error::last_os_error();
    // SAFETY: restores the mask that was read above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut()) };
    if pid < 0 {
        return Err((Step::Clone, clone_error));
    }
    // SAFETY: the kernel made this descriptor for us.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    // The child wrote it through the pointer: read it as memory that changed behind the compiler's back.
    // SAFETY: `plan` is alive and the child, the only other user, has gone on to another memory or is dead.
    let failed = unsafe { ptr::read_volatile(&raw const plan.failed) };
    if let Some((step, errno)) = failed {
        // It has exited; no one else may find its status.
        let _ = rustix::process::waitid(
            rustix::process::WaitId::PidFd(std::os::fd::AsFd::as_fd(&pidfd)),
            rustix::process::WaitIdOptions::EXITED,
        );
        return Err((step, io::Error::from_raw_os_error(errno)));
    }
    Ok((pid.unsigned_abs(), pidfd))
}

/// Runs in the child, on a small stack, in the parent's memory, while the parent's thread stands still. It must not
/// allocate, lock, panic or return.
extern "C" fn exec_child(plan: *mut c_void) -> c_int {
    // SAFETY: `clone_exec` passes a `Plan` that nobody else touches until this process has executed or exited. Everything
    // called is async-signal-safe, and every pointer in the plan is to a C string or a null-ended array of such.
    unsafe {
        let plan = &mut *plan.cast::<Plan>();
        let failed = 'failed: {
            default_signals();
            if libc::setsid() < 0 {
                break 'failed Step::Session;
            }
            let mut number = 0;
            while (number as usize) < plan.fds.len() {
                if libc::dup2(*plan.fds.as_ptr().add(number as usize), number) < 0 {
                    break 'failed Step::Descriptors;
                }
                number += 1;
            }
            if libc::syscall(libc::SYS_close_range, number, u32::MAX, 0) < 0 {
                break 'failed Step::Descriptors;
            }
            if !plan.cwd.is_null() && libc::chdir(plan.cwd) < 0 {
                break 'failed Step::Cwd;
            }
            let mut program = plan.programs.as_ptr();
            while !(*program).is_null() {
                libc::execve(*program, plan.argv.as_ptr(), plan.env.as_ptr());
                // The next directory of PATH may have it; any other failure is about this very file.
                if !matches!(*libc::__errno_location(), libc::ENOENT | libc::ENOTDIR) {
                    break;
                }
                program = program.add(1);
            }
            Step::Exec
        };
        plan.failed = Some((failed, *libc::__errno_location()));
        libc::_exit(127)
    }
}

/// The pid of some dead child that waits to be reaped; it stays so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dead {
    /// This one.
    Child(Pid),
    /// None now, but there are living children.
    NoneYet,
    /// There is no child at all: ECHILD.
    NoChildren,
}

/// Looks for a dead child of any kind (`__WALL`) without reaping it, so that `/proc` still tells who it was.
pub(crate) fn peek_dead_child() -> io::Result<Dead> {
    // SAFETY: siginfo_t is plain data, zero is a valid value; waitid fills it.
    let (result, pid) = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
        let result = libc::waitid(libc::P_ALL, 0, &raw mut info, options);
        (result, info.si_pid())
    };
    match (result, pid) {
        (0, 0) => Ok(Dead::NoneYet),
        (0, pid) => Ok(Dead::Child(pid.unsigned_abs())),
        _ => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ECHILD) => Ok(Dead::NoChildren),
            error => Err(error),
        },
    }
}

/// Reaps the dead child `pid`; `None` if it is not dead after all.
pub(crate) fn reap(pid: Pid) -> io::Result<Option<ExitStatus>> {
    let mut status = 0;
    // SAFETY: plain system call that writes to `status`.
    match unsafe { libc::waitpid(pid.cast_signed(), &raw mut status, libc::WNOHANG | libc::__WALL) } {
        0 => Ok(None),
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(Some(crate::proc::exit_of_wait_status(status))),
    }
}

/// The place where `ps` finds this process's command line: its argv. Looked up once; a forked child has it at the same
/// place.
#[derive(Clone, Copy, Debug)]
pub struct Title {
    start: usize,
    room: usize,
}

impl Title {
    /// Finds the place. A program that wants long titles is started with padding among its arguments, and one that
    /// uses this does not read its arguments any more.
    ///
    /// # Errors
    /// The system's, where `/proc` is not readable.
    pub fn locate() -> io::Result<Self> {
        let stat = crate::proc::stat(std::process::id())?;
        let (start, end) = (stat.arg_start.unwrap_or(0), stat.arg_end.unwrap_or(0));
        let fit = |n: u64| usize::try_from(n).map_err(io::Error::other);
        Ok(Self { start: fit(start)?, room: fit(end.saturating_sub(start))? })
    }

    /// Sets the name (15 bytes) and, as far as there is room, the command line of this process.
    ///
    /// # Errors
    /// `InvalidInput` for a name with a NUL.
    pub fn set(self, name: &str, title: &str) -> io::Result<()> {
        let name =
            CString::new(name).map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a NUL in a process name"))?;
        nix::sys::prctl::set_name(&name)?;
        if self.start == 0 || self.room < 2 {
            return Ok(());
        }
        let text = &title.as_bytes()[..title.len().min(self.room - 1)];
        // SAFETY: the kernel said that these `room` bytes are this process's argv area (or, in a fork, its parent's, which
        // is mapped at the same place): mapped, writable, and nobody's Rust object. The last byte stays NUL, so that
        // whoever still reads an argument reads a valid C string.
        unsafe {
            let area = self.start as *mut u8;
            ptr::copy_nonoverlapping(text.as_ptr(), area, text.len());
            ptr::write_bytes(area.add(text.len()), 0, self.room - text.len());
        }
        Ok(())
    }
}
