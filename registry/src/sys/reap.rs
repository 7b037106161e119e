//! Detects and reaps dead children.

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
};

use ipc_protocol::{ExitStatus, Pid};

/// Result of looking for a dead child; the child stays unreaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeadChild {
    /// A dead child with this pid.
    Child(Pid),
    /// No child is dead now, but there are live ones.
    NoneYet,
    /// There is no child at all: ECHILD.
    NoChildren,
}

/// Looks for a dead child of any kind (`__WALL`) without reaping it, so that `/proc` still has its data.
pub(crate) fn peek_dead_child() -> io::Result<DeadChild> {
    // SAFETY: siginfo_t is plain data, zero is a valid value; waitid fills it.
    let (result, pid) = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
        let result = libc::waitid(libc::P_ALL, 0, &raw mut info, options);
        (result, info.si_pid())
    };
    match (result, pid) {
        (0, 0) => Ok(DeadChild::NoneYet),
        (0, pid) => Ok(DeadChild::Child(pid.unsigned_abs())),
        _ => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ECHILD) => Ok(DeadChild::NoChildren),
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

/// Takes a stopped child, each stop once; `None` when there is none (more).
pub(crate) fn take_stopped_child() -> io::Result<Option<Pid>> {
    // SAFETY: siginfo_t is plain data, zero is a valid value; waitid fills it.
    let (result, pid) = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let options = libc::WSTOPPED | libc::WNOHANG | libc::__WALL;
        let result = libc::waitid(libc::P_ALL, 0, &raw mut info, options);
        (result, info.si_pid())
    };
    match (result, pid) {
        (0, 0) => Ok(None),
        (0, pid) => Ok(Some(pid.unsigned_abs())),
        _ => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ECHILD) => Ok(None),
            error => Err(error),
        },
    }
}

/// Waits for the end of the child behind `pidfd` and reaps it, whatever its exit signal is. For a child that is known
/// to be ending.
pub(crate) fn wait_for(pidfd: &impl AsFd) -> io::Result<()> {
    loop {
        // SAFETY: siginfo_t is plain data, zero is a valid value; waitid fills it.
        let result = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let id = pidfd.as_fd().as_raw_fd().unsigned_abs();
            libc::waitid(libc::P_PIDFD, id, &raw mut info, libc::WEXITED | libc::__WALL)
        };
        match result {
            0 => return Ok(()),
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
}
