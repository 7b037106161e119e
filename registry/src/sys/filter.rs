//! Filter of system calls for a program with a network of its own.
//!
//! Not all kinds of sockets belong to a network namespace: by AF_VSOCK a program in a virtual machine reaches its host. Those of the
//! kinds that do are left, and io_uring, which makes sockets past any filter, is not.

use std::ffi::c_int;

use super::errno;

/// Kinds of sockets that belong to a network namespace, or to a file system.
const FAMILIES: [u32; 5] = [
    libc::AF_UNIX as u32,
    libc::AF_INET as u32,
    libc::AF_INET6 as u32,
    libc::AF_NETLINK as u32,
    libc::AF_PACKET as u32,
];
/// Bit of the numbers of system calls of x32, which is the same architecture.
#[cfg(target_arch = "x86_64")]
const OTHER_NUMBERS: u32 = 0x4000_0000;
#[cfg(not(target_arch = "x86_64"))]
const OTHER_NUMBERS: u32 = 0;
#[cfg(target_arch = "x86_64")]
pub(super) const NATIVE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
pub(super) const NATIVE: u32 = 0xc000_00b7;
/// All calls of others are judged as foreign ones.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) const NATIVE: u32 = 0;
/// Numbers of `socketcall` and `socket` of x86 with 32 bits, and of `socket` of ARM with 32 bits or of an architecture not named above.
const FOREIGN: [u32; 3] = [102, 359, if NATIVE == 0 { libc::SYS_socket as u32 } else { 281 }];
/// Number of `io_uring_setup` on every architecture.
const IO_URING_SETUP: u32 = 425;

pub(super) const ALLOW: u32 = 0x7fff_0000;
pub(super) const ERROR: u32 = 0x0005_0000;

pub(super) const fn load(offset: u32) -> libc::sock_filter {
    libc::sock_filter { code: 0x20, jt: 0, jf: 0, k: offset }
}

/// Compares, and leaves out so many instructions if it is equal (`jt`) or not (`jf`).
pub(super) const fn equal(k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code: 0x15, jt, jf, k }
}

pub(super) const fn ret(k: u32) -> libc::sock_filter {
    libc::sock_filter { code: 0x06, jt: 0, jf: 0, k }
}

/// The program. The number of the call, the architecture and the first argument are at 0, 4 and 16 of what it reads.
static PROGRAM: [libc::sock_filter; 20] = [
    load(4),
    equal(NATIVE, 5, 0),
    // Another architecture: whatever makes sockets.
    load(0),
    equal(FOREIGN[0], 13, 0),
    equal(FOREIGN[1], 12, 0),
    equal(FOREIGN[2], 11, 0),
    equal(IO_URING_SETUP, 12, 11),
    // This one, from 7 on.
    load(0),
    libc::sock_filter { code: 0x54, jt: 0, jf: 0, k: !OTHER_NUMBERS },
    equal(IO_URING_SETUP, 9, 0),
    equal(libc::SYS_socket as u32, 0, 7),
    load(16),
    equal(FAMILIES[0], 5, 0),
    equal(FAMILIES[1], 4, 0),
    equal(FAMILIES[2], 3, 0),
    equal(FAMILIES[3], 2, 0),
    equal(FAMILIES[4], 1, 0),
    // 17, 18 and 19: the three results.
    ret(ERROR | libc::EAFNOSUPPORT as u32),
    ret(ALLOW),
    ret(ERROR | libc::ENOSYS as u32),
];

/// Restricts the calling process to sockets of its network. Without rights of its own it promises never to gain any.
///
/// # Safety
/// Only in a child. Async-signal-safe.
pub(super) unsafe fn restrict_sockets() -> Result<(), c_int> {
    let program = libc::sock_fprog { len: PROGRAM.len() as u16, filter: PROGRAM.as_ptr().cast_mut() };
    // SAFETY: the kernel reads the program, whose length is given.
    unsafe {
        let install = || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program, 0, 0) == 0;
        let promise = || libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
        if install() || errno() == libc::EACCES && promise() && install() { Ok(()) } else { Err(errno()) }
    }
}
