//! Fork without exec, and the descriptors that a process begins with.

use std::{
    ffi::c_int,
    io,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicBool, Ordering},
};

use ipc_protocol::Pid;

use super::{FIRST_FD, default_signals, dup_above, is_single_threaded};
use crate::procfs;

/// Forks this process, without exec. In the child: `keep` are its only descriptors above 2 (but for the `/proc` that it
/// reads, behind them), renumbered from 3 on in that order; signal dispositions and mask are the defaults; then `child` runs, and its result is the exit code. Nothing of the
/// parent's is dropped or flushed there.
///
/// # Errors
/// An error of the system call; `WouldBlock`-like `EAGAIN` when out of processes. `Unsupported` when this process has a
/// second thread.
pub fn fork_child(keep: Vec<OwnedFd>, child: impl FnOnce(Vec<OwnedFd>) -> u8) -> io::Result<Pid> {
    if !is_single_threaded() {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "fork without exec from a process with several threads",
        ));
    }
    let root = procfs::root()?.as_fd().try_clone_to_owned()?;
    let keep = dup_above(keep.into_iter().chain([root]).collect())?;
    // SAFETY: the process has one thread, so no lock is held by a thread that the child would lack.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let code = catch_unwind(AssertUnwindSafe(|| {
                default_signals();
                let mut keep = renumber_fds(keep);
                // One too few is an error of the system's that the child would meet anyway.
                procfs::install(keep.pop());
                child(keep)
            }));
            // SAFETY: always sound; it ends the process at once, without running destructors or flushing what the
            // parent buffered.
            unsafe { libc::_exit(code.map_or(101, c_int::from)) }
        }
        pid => Ok(pid.unsigned_abs()),
    }
}

/// Renumbers `fds` from 3 on, closes all descriptors after them, and returns owners of the new numbers.
fn renumber_fds(fds: Vec<OwnedFd>) -> Vec<OwnedFd> {
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

/// Takes the first `count` descriptors from 3 on that the starting program left open for this one. Callable once.
///
/// # Errors
/// `AlreadyExists` the second time; an error of the system call when one is not open.
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
