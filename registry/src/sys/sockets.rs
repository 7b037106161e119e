//! Sockets in another network namespace.

use std::{
    ffi::c_int,
    io, mem,
    net::SocketAddrV4,
    os::fd::{AsRawFd, OwnedFd, RawFd},
};

use super::{
    clone::{BlockedSignals, CloneSide, SharedMemory, clone_copy, owned},
    errno, wait_for,
};

/// Most sockets made at a time.
const MAX_SOCKETS: usize = 64;
/// Connections that wait to be accepted.
const BACKLOG: c_int = 128;

/// Socket to make.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SocketPlan {
    /// True for TCP, false for UDP.
    pub is_stream: bool,
    /// Address to bind to, and to listen on.
    pub address: Option<SocketAddrV4>,
}

#[derive(Clone, Copy)]
struct SocketReport {
    made: [RawFd; MAX_SOCKETS],
    failed: c_int,
}

/// Makes sockets in the last of `namespaces`, which are entered in turn. A copy of this process does that, and shares its descriptors.
/// Safe with any number of threads.
pub(crate) fn make_sockets(namespaces: &[OwnedFd], plans: &[SocketPlan]) -> io::Result<Vec<OwnedFd>> {
    if plans.len() > MAX_SOCKETS {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("more than {MAX_SOCKETS} sockets")));
    }
    let report = SharedMemory::new(SocketReport { made: [-1; MAX_SOCKETS], failed: 0 })?;
    let blocked = BlockedSignals::all();
    let mut pidfd: RawFd = -1;
    // SAFETY: the child only calls `enter_and_make`, which keeps to what is allowed.
    let child = unsafe {
        match clone_copy(libc::CLONE_VFORK | libc::CLONE_FILES, 0, None, &raw mut pidfd)? {
            CloneSide::Parent(_) => owned(pidfd),
            CloneSide::Child(_) => {
                if let Err(errno) = enter_and_make(namespaces, plans, &mut *report.as_ptr()) {
                    (*report.as_ptr()).failed = errno;
                }
                libc::_exit(0)
            }
        }
    };
    drop(blocked);
    // The copy was waited for; its status may be lost to another waiter without harm.
    let _ = wait_for(&child);
    let SocketReport { made, failed } = report.get();
    // SAFETY: the copy has made them in the descriptors of this process, and nobody else has them.
    let made =
        made.into_iter().take(plans.len()).filter(|fd| *fd >= 0).map(|fd| unsafe { owned(fd) }).collect::<Vec<_>>();
    match failed {
        0 if made.len() == plans.len() => Ok(made),
        0 => Err(io::Error::new(io::ErrorKind::Interrupted, "killed on the way")),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// # Safety
/// Only in the child. It must not allocate, lock or panic.
unsafe fn enter_and_make(namespaces: &[OwnedFd], plans: &[SocketPlan], report: &mut SocketReport) -> Result<(), c_int> {
    let check = |result: c_int| if result < 0 { Err(errno()) } else { Ok(result) };
    // SAFETY: system calls on descriptors that are open and on structs of this function.
    unsafe {
        for namespace in namespaces {
            check(libc::setns(namespace.as_raw_fd(), 0))?;
        }
        for (plan, made) in plans.iter().zip(&mut report.made) {
            let kind = if plan.is_stream { libc::SOCK_STREAM } else { libc::SOCK_DGRAM };
            let socket = check(libc::socket(libc::AF_INET, kind | libc::SOCK_CLOEXEC, 0))?;
            *made = socket;
            let Some(address) = plan.address else { continue };
            let address = socket_address(address);
            let length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
            check(libc::bind(socket, (&raw const address).cast(), length))?;
            if plan.is_stream {
                check(libc::listen(socket, BACKLOG))?;
            }
        }
    }
    Ok(())
}

fn socket_address(address: SocketAddrV4) -> libc::sockaddr_in {
    // SAFETY: the struct is plain data, zero is a valid value.
    let mut socket: libc::sockaddr_in = unsafe { mem::zeroed() };
    socket.sin_family = libc::AF_INET as libc::sa_family_t;
    socket.sin_port = address.port().to_be();
    socket.sin_addr.s_addr = u32::from_ne_bytes(address.ip().octets());
    socket
}

/// Sets up the loopback device of the calling process's network namespace: its own address, and those of 198.18.0.0/15.
///
/// # Safety
/// Only in a child. Async-signal-safe.
pub(super) unsafe fn raise_loopback() -> Result<(), c_int> {
    let check = |result: c_int| if result < 0 { Err(errno()) } else { Ok(result) };
    // SAFETY: system calls on structs of this function, which are plain data.
    unsafe {
        let socket = check(libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0))?;
        let request = |name: &std::ffi::CStr| {
            let mut request: libc::ifreq = mem::zeroed();
            for (to, from) in request.ifr_name.iter_mut().zip(name.to_bytes()) {
                *to = *from as libc::c_char;
            }
            request
        };
        let mut raise = request(c"lo");
        raise.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        check(libc::ioctl(socket, libc::SIOCSIFFLAGS as _, &raw const raise))?;
        // A second address, which is not in 127.0.0.0/8: without one some programs take the machine for offline.
        for (call, address) in [(libc::SIOCSIFADDR, [198, 18, 0, 1]), (libc::SIOCSIFNETMASK, [255, 254, 0, 0])] {
            let mut set = request(c"lo:1");
            let address = socket_address(SocketAddrV4::new(address.into(), 0));
            (&raw mut set.ifr_ifru).cast::<libc::sockaddr_in>().write_unaligned(address);
            check(libc::ioctl(socket, call as _, &raw const set))?;
        }
        libc::close(socket);
        Ok(())
    }
}
