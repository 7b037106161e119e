//! Confinement of a program in a sandbox without namespaces: what Landlock's rules on files leave open.
//!
//! A filter of system calls refuses sockets of the file system (Landlock does not know whom they lead to), memory shared by number, key
//! rings, and what a program has no business with. Changes of modes, owners and times are passed on to [`crate::metadata_guard`], because
//! Landlock has no right for them.

use std::{
    ffi::{c_int, c_long},
    io, mem,
    os::fd::{AsRawFd, OwnedFd, RawFd},
    ptr,
};

use ipc_protocol::packet;

use super::{
    SpawnStep, errno,
    filter::{ALLOW, ERROR, NATIVE, equal, load, ret},
};

/// Capabilities that root has in a sandbox: over files, users and its own processes.
const KEPT: u64 = 1 << 0 // CHOWN
    | 1 << 1 // DAC_OVERRIDE
    | 1 << 3 // FOWNER
    | 1 << 4 // FSETID
    | 1 << 5 // KILL
    | 1 << 6 // SETGID
    | 1 << 7 // SETUID
    | 1 << 10; // NET_BIND_SERVICE
/// Numbers of calls that are the same on every architecture and that libc does not name everywhere.
const SETXATTRAT: c_long = 463;
const REMOVEXATTRAT: c_long = 466;
const FILE_SETATTR: c_long = 469;
pub(crate) const FCHMODAT2: c_long = 452;
/// Least number of calls of x32.
#[cfg(target_arch = "x86_64")]
const X32: u32 = 0x4000_0000;

/// Calls that fail, with their errors.
const REFUSED: [(c_long, c_int); 31] = [
    (libc::SYS_shmget, libc::EPERM),
    (libc::SYS_shmat, libc::EPERM),
    (libc::SYS_shmctl, libc::EPERM),
    (libc::SYS_msgget, libc::EPERM),
    (libc::SYS_msgsnd, libc::EPERM),
    (libc::SYS_msgrcv, libc::EPERM),
    (libc::SYS_msgctl, libc::EPERM),
    (libc::SYS_semget, libc::EPERM),
    (libc::SYS_semop, libc::EPERM),
    (libc::SYS_semtimedop, libc::EPERM),
    (libc::SYS_semctl, libc::EPERM),
    (libc::SYS_mq_open, libc::EPERM),
    (libc::SYS_mq_unlink, libc::EPERM),
    (libc::SYS_add_key, libc::EPERM),
    (libc::SYS_request_key, libc::EPERM),
    (libc::SYS_keyctl, libc::EPERM),
    (libc::SYS_bpf, libc::EPERM),
    (libc::SYS_perf_event_open, libc::EPERM),
    (libc::SYS_open_by_handle_at, libc::EPERM),
    (libc::SYS_fanotify_init, libc::EPERM),
    (libc::SYS_io_uring_setup, libc::ENOSYS),
    (libc::SYS_setxattr, libc::EOPNOTSUPP),
    (libc::SYS_lsetxattr, libc::EOPNOTSUPP),
    (libc::SYS_fsetxattr, libc::EOPNOTSUPP),
    (libc::SYS_removexattr, libc::EOPNOTSUPP),
    (libc::SYS_lremovexattr, libc::EOPNOTSUPP),
    (libc::SYS_fremovexattr, libc::EOPNOTSUPP),
    (SETXATTRAT, libc::ENOSYS),
    (REMOVEXATTRAT, libc::ENOSYS),
    (FILE_SETATTR, libc::ENOSYS),
    (libc::SYS_kcmp, libc::EPERM),
];
/// Calls that are passed on.
const PASSED: [c_long; 6] =
    [libc::SYS_fchmod, libc::SYS_fchmodat, FCHMODAT2, libc::SYS_fchown, libc::SYS_fchownat, libc::SYS_utimensat];
/// The same of calls that only this architecture has.
#[cfg(target_arch = "x86_64")]
const PASSED_OLD: [c_long; 6] =
    [libc::SYS_chmod, libc::SYS_chown, libc::SYS_lchown, libc::SYS_utime, libc::SYS_utimes, libc::SYS_futimesat];
#[cfg(not(target_arch = "x86_64"))]
const PASSED_OLD: [c_long; 0] = [];
/// Requests to `ioctl` that change attributes of files or put input into a terminal: FS_IOC_SETFLAGS, the same of 32 bits,
/// FS_IOC_FSSETXATTR, TIOCSTI, TIOCLINUX.
const REFUSED_REQUESTS: [u32; 5] = [0x4008_6602, 0x4004_6602, 0x401c_5820, 0x5412, 0x541c];

/// Filter of a program, and the way for its listener to who started it.
#[derive(Debug)]
pub(crate) struct ConfinementPlan {
    filter: Vec<libc::sock_filter>,
    socket: OwnedFd,
}

impl ConfinementPlan {
    /// Makes a filter, and the socket on which its listener comes.
    pub(crate) fn new() -> io::Result<(Self, OwnedFd)> {
        if NATIVE == 0 {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "there is no filter of system calls for this processor",
            ));
        }
        let (ours, theirs) = packet::packet_pair()?;
        Ok((Self { filter: program(), socket: theirs }, ours))
    }
}

fn program() -> Vec<libc::sock_filter> {
    let number = |call: c_long| call as u32;
    let mut program = vec![load(4), equal(NATIVE, 1, 0), ret(ERROR | libc::ENOSYS as u32), load(0)];
    #[cfg(target_arch = "x86_64")]
    program.extend([libc::sock_filter { code: 0x35, jt: 0, jf: 1, k: X32 }, ret(ERROR | libc::ENOSYS as u32)]);
    for (call, error) in REFUSED {
        program.extend([equal(number(call), 0, 1), ret(ERROR | error as u32)]);
    }
    for call in PASSED.iter().chain(&PASSED_OLD) {
        program.extend([equal(number(*call), 0, 1), ret(libc::SECCOMP_RET_USER_NOTIF)]);
    }
    // Each of these ends with its own results.
    program.extend([
        equal(number(libc::SYS_socket), 0, 6),
        load(16),
        equal(libc::AF_INET as u32, 3, 0),
        equal(libc::AF_INET6 as u32, 2, 0),
        equal(libc::AF_NETLINK as u32, 1, 0),
        ret(ERROR | libc::EAFNOSUPPORT as u32),
        ret(ALLOW),
    ]);
    // A pair for datagrams could send to any other socket.
    program.extend([
        equal(number(libc::SYS_socketpair), 0, 6),
        load(24),
        libc::sock_filter { code: 0x54, jt: 0, jf: 0, k: 0xf },
        equal(libc::SOCK_STREAM as u32, 2, 0),
        equal(libc::SOCK_SEQPACKET as u32, 1, 0),
        ret(ERROR | libc::EPROTONOSUPPORT as u32),
        ret(ALLOW),
    ]);
    let count = REFUSED_REQUESTS.len() as u8;
    program.extend([equal(number(libc::SYS_ioctl), 0, count + 3), load(24)]);
    program.extend(REFUSED_REQUESTS.iter().zip(0..).map(|(request, at): (&u32, u8)| equal(*request, count - at, 0)));
    program.extend([ret(ALLOW), ret(ERROR | libc::EPERM as u32)]);
    // Limits of other processes: the second half of the pointer counts as well.
    program.extend([
        equal(number(libc::SYS_prlimit64), 0, 8),
        load(16),
        equal(0, 5, 0),
        load(32),
        equal(0, 0, 2),
        load(36),
        equal(0, 1, 0),
        ret(ERROR | libc::EPERM as u32),
        ret(ALLOW),
    ]);
    program.push(ret(ALLOW));
    program
}

/// Confines the calling process, and sends the listener of its filter.
///
/// # Safety
/// Only in a child. Async-signal-safe.
pub(super) unsafe fn confine(plan: &ConfinementPlan) -> Result<(), (SpawnStep, c_int)> {
    // SAFETY: system calls on constants, on the program whose length is given, and on a message on this stack.
    unsafe {
        let mut capability = 0;
        while libc::prctl(libc::PR_CAPBSET_READ, capability, 0, 0, 0) >= 0 {
            let is_kept = capability < 64 && KEPT & (1_u64 << capability) != 0;
            let is_there = libc::prctl(libc::PR_CAPBSET_READ, capability, 0, 0, 0) == 1;
            // Others than root get none of them by an exec.
            if is_there
                && !is_kept
                && libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) < 0
                && libc::geteuid() == 0
            {
                return Err((SpawnStep::Capabilities, errno()));
            }
            capability += 1;
        }
        libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 {
            return Err((SpawnStep::SystemCallFilter, errno()));
        }
        let program = libc::sock_fprog { len: plan.filter.len() as u16, filter: plan.filter.as_ptr().cast_mut() };
        let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
        let listener = libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program);
        if listener < 0 {
            return Err((SpawnStep::SystemCallFilter, errno()));
        }
        send_listener(plan.socket.as_raw_fd(), listener as RawFd).map_err(|errno| (SpawnStep::SystemCallFilter, errno))
    }
}

/// # Safety
/// As [`confine`].
unsafe fn send_listener(socket: RawFd, listener: RawFd) -> Result<(), c_int> {
    let mut byte = 0_u8;
    let mut control = [0_u64; 4];
    // SAFETY: the message and all that it points to are on this stack; the buffer is as long as a descriptor needs, and aligned.
    unsafe {
        let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let mut message: libc::msghdr = mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as _;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
        ptr::write_unaligned(libc::CMSG_DATA(header).cast::<RawFd>(), listener);
        if libc::sendmsg(socket, &raw const message, libc::MSG_NOSIGNAL) == 1 { Ok(()) } else { Err(errno()) }
    }
}

/// A system call that waits for an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PassedCall {
    pub id: u64,
    /// The thread that makes it.
    pub thread: u32,
    pub number: c_long,
    pub args: [u64; 6],
}

/// Takes the next call of a listener.
pub(crate) fn take_call(listener: &OwnedFd) -> io::Result<PassedCall> {
    // SAFETY: the struct is plain data; the kernel wants it zeroed, and fills it.
    let taken = unsafe {
        let mut taken: libc::seccomp_notif = mem::zeroed();
        if libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut taken) < 0 {
            return Err(io::Error::last_os_error());
        }
        taken
    };
    let libc::seccomp_notif { id, pid, data, .. } = taken;
    Ok(PassedCall { id, thread: pid, number: c_long::from(data.nr), args: data.args })
}

/// Returns whether a call still waits: its thread is not another one of the same number.
pub(crate) fn is_call_waiting(listener: &OwnedFd, id: u64) -> bool {
    // SAFETY: the kernel reads the number.
    unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw const id) == 0 }
}

/// Answers a call: with 0, or with an errno. One that has gone needs none.
pub(crate) fn answer_call(listener: &OwnedFd, id: u64, errno: c_int) {
    let answer = libc::seccomp_notif_resp { id, val: 0, error: -errno, flags: 0 };
    // SAFETY: the kernel reads the struct.
    unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const answer) };
}
