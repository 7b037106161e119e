//! Children that are a copy of this process, created in a cgroup or in namespaces of their own.

use std::{
    ffi::c_int,
    io, mem,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    ptr::{self, NonNull},
};

use rustix::fs::{Mode, OFlags};

use super::errno;

/// libc's constant of this name is cut to 32 bits, which leaves 0.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Process in which [`clone_copy`] returned.
pub(super) enum CloneSide {
    /// The original process, with the child's pid.
    Parent(libc::pid_t),
    /// The copy; `Err` is the errno with which it failed to join the cgroup.
    Child(Result<(), c_int>),
}

/// Forks this process: the child continues from here with a copy of all memory, on its copy of the stack. With `group`,
/// the directory of a cgroup, the child is a member of it from its first instruction, or from its second if `clone3` is
/// refused. `pidfd` receives a descriptor of the child.
///
/// # Safety
/// This process may have other threads, whose locks the child has for good: the child must not allocate, lock, panic or
/// return into code that does, and must end by exec or `_exit`. `pidfd` must be valid for a write.
pub(super) unsafe fn clone_copy(
    flags: c_int,
    exit_signal: c_int,
    group: Option<BorrowedFd<'_>>,
    pidfd: *mut RawFd,
) -> io::Result<CloneSide> {
    let flags = flags | libc::CLONE_PIDFD;
    let mut procs = None;
    if let Some(group) = group {
        // SAFETY: the struct is plain data, zero is a valid value. Without CLONE_VM and with no stack given the child
        // goes on on a copy of this one.
        let pid = unsafe {
            let mut args: libc::clone_args = mem::zeroed();
            args.flags = u64::from(flags.cast_unsigned()) | CLONE_INTO_CGROUP;
            args.pidfd = pidfd as u64;
            args.exit_signal = u64::from(exit_signal.cast_unsigned());
            args.cgroup = u64::from(group.as_raw_fd().cast_unsigned());
            libc::syscall(libc::SYS_clone3, &raw const args, size_of::<libc::clone_args>())
        };
        match pid {
            0 => return Ok(CloneSide::Child(Ok(()))),
            -1 if is_refused(errno()) => {
                let flags = OFlags::WRONLY | OFlags::CLOEXEC;
                procs = Some(rustix::fs::openat(group, "cgroup.procs", flags, Mode::empty())?);
            }
            -1 => return Err(io::Error::last_os_error()),
            pid => return Ok(CloneSide::Parent(pid as libc::pid_t)),
        }
    }
    let flags = libc::c_long::from(flags | exit_signal);
    // Flags, then stack; s390x has them the other way round.
    let (first, second) = if cfg!(target_arch = "s390x") { (0, flags) } else { (flags, 0) };
    // SAFETY: as above. The third argument is, on every architecture, where CLONE_PIDFD has the kernel write.
    match unsafe { libc::syscall(libc::SYS_clone, first, second, pidfd, 0_usize, 0_usize) } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            // SAFETY: writes a byte that is there.
            let write = |fd: &OwnedFd| unsafe { libc::write(fd.as_raw_fd(), c"0".as_ptr().cast(), 1) };
            let joined = if procs.as_ref().map(write) == Some(-1) { Err(errno()) } else { Ok(()) };
            // With CLONE_FILES the descriptor is the parent's too.
            mem::forget(procs);
            Ok(CloneSide::Child(joined))
        }
        pid => Ok(CloneSide::Parent(pid as libc::pid_t)),
    }
}

/// Returns true if an errno means that `clone3` is not available: unknown, not to this extent, or refused by a filter.
fn is_refused(errno: c_int) -> bool {
    matches!(errno, libc::ENOSYS | libc::EINVAL | libc::E2BIG | libc::EPERM)
}

/// Creates a child in this process's memory, which suspends the caller as vfork does. The child begins in `entry` on
/// `stack`, as a member of `group` (the directory of a cgroup). `pidfd` receives a descriptor of it. `Ok(None)` if this
/// is not available; the caller then makes a copy.
///
/// libc has no such call: `clone` knows no cgroup, and a child of `clone3` that shares memory and begins on another
/// stack cannot return to its parent's caller.
///
/// # Safety
/// `entry` neither allocates, locks, unwinds nor returns, and accepts `argument`. Nobody else touches `stack` until the
/// child has executed or exited, and its end is aligned to 16 bytes. `pidfd` is valid for a write.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn clone_into(
    group: BorrowedFd<'_>,
    exit_signal: c_int,
    stack: &mut [mem::MaybeUninit<u128>],
    entry: extern "C" fn(*mut libc::c_void) -> c_int,
    argument: *mut libc::c_void,
    pidfd: *mut RawFd,
) -> io::Result<Option<libc::pid_t>> {
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD;
    // SAFETY: the struct is plain data, zero is a valid value.
    let mut args: libc::clone_args = unsafe { mem::zeroed() };
    args.flags = u64::from(flags.cast_unsigned()) | CLONE_INTO_CGROUP;
    args.pidfd = pidfd as u64;
    args.exit_signal = u64::from(exit_signal.cast_unsigned());
    args.cgroup = u64::from(group.as_raw_fd().cast_unsigned());
    args.stack = stack.as_mut_ptr() as u64;
    args.stack_size = size_of_val(stack) as u64;
    let result: libc::c_long;
    // SAFETY: the system call reads `args`. In the parent only the registers that are named change. The child has the same
    // registers but for rax, which is 0, and rsp, which is the end of `stack`: it calls `entry` there, which does not
    // return. The registers of `entry` and `argument` are not those that a system call changes.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, {argument}",
            "call {entry}",
            "ud2",
            "2:",
            argument = in(reg) argument,
            entry = in(reg) entry,
            inlateout("rax") libc::SYS_clone3 => result,
            in("rdi") &raw const args,
            in("rsi") size_of::<libc::clone_args>(),
            out("rcx") _,
            out("r11") _,
        );
    }
    match c_int::try_from(-result) {
        Ok(errno) if errno > 0 && is_refused(errno) => Ok(None),
        Ok(errno) if errno > 0 => Err(io::Error::from_raw_os_error(errno)),
        _ => Ok(Some(result as libc::pid_t)),
    }
}

/// Other processors make a copy.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn clone_into(
    _group: BorrowedFd<'_>,
    _exit_signal: c_int,
    _stack: &mut [mem::MaybeUninit<u128>],
    _entry: extern "C" fn(*mut libc::c_void) -> c_int,
    _argument: *mut libc::c_void,
    _pidfd: *mut RawFd,
) -> io::Result<Option<libc::pid_t>> {
    Ok(None)
}

/// Blocks all signals until dropped: no handler of this process runs in a child that was just cloned.
pub(super) struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    pub(super) fn all() -> Self {
        // SAFETY: the sets are plain data that the calls fill.
        unsafe {
            let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = (mem::zeroed(), mem::zeroed());
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Self(before)
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: restores the mask that was read before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}

/// A value in memory shared with a copy of this process. Both write through [`SharedMemory::as_ptr`].
pub(super) struct SharedMemory<T: Copy>(NonNull<T>);

impl<T: Copy> SharedMemory<T> {
    pub(super) fn new(value: T) -> io::Result<Self> {
        let (read_write, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping, which touches no memory that is in use.
        let page = unsafe { libc::mmap(ptr::null_mut(), size_of::<T>(), read_write, flags, -1, 0) };
        let page = if page == libc::MAP_FAILED { None } else { NonNull::new(page.cast::<T>()) };
        let page = page.ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the mapping is writable, large enough and aligned to a page.
        unsafe { page.write(value) };
        Ok(Self(page))
    }

    pub(super) fn as_ptr(&self) -> *mut T {
        self.0.as_ptr()
    }

    pub(super) fn get(&self) -> T {
        // SAFETY: mapped and initialised; volatile, because another process may have written it.
        unsafe { self.0.as_ptr().read_volatile() }
    }
}

impl<T: Copy> Drop for SharedMemory<T> {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this size in `new`, and no pointer to it is used after its owner's end.
        unsafe { libc::munmap(self.0.as_ptr().cast(), size_of::<T>()) };
    }
}

/// Takes ownership of a descriptor that the kernel wrote to `number`.
///
/// # Safety
/// The descriptor is open, and nobody else owns it.
pub(super) unsafe fn owned(number: RawFd) -> OwnedFd {
    // SAFETY: the caller's promise.
    unsafe { OwnedFd::from_raw_fd(number) }
}
