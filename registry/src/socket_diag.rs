//! One TCP socket as the kernel's socket diagnostics (netlink) describe it: found by its hash, where `/proc/net/tcp` walks the whole table.
//! That takes milliseconds on a machine with much memory, however few sockets there are.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType,
    netlink::{self, SocketAddrNetlink},
    recv, sendto, socket_with, sockopt,
};

/// Constants of `linux/sock_diag.h` and `linux/netlink.h`.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
/// "Any socket with these addresses", in the place of its cookie.
const NO_COOKIE: [u8; 8] = [0xff; 8];
/// Lengths of a netlink header, of a request and of an answer (`inet_diag_req_v2`, `inet_diag_msg`).
const HEADER: usize = 16;
const REQUEST: usize = 56;
const ANSWER: usize = 72;
/// Where an answer has its local port, its remote port, its user and its inode.
const LOCAL_PORT: usize = HEADER + 4;
const REMOTE_PORT: usize = HEADER + 6;
const USER: usize = HEADER + 64;
const INODE: usize = HEADER + 68;
/// The kernel answers within the call that sends the request.
const ANSWER_TIME: Duration = Duration::from_millis(100);

/// User and inode of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DiagnosedSocket {
    pub(crate) user: u32,
    pub(crate) inode: u64,
}

/// Finds the socket of this network namespace with these addresses. `None` where the kernel knows none, which is no proof: one that is bound
/// to a device is not found by its addresses alone.
///
/// # Errors
/// The system's, on a kernel without diagnostics.
pub(crate) fn tcp_socket(local: SocketAddr, remote: SocketAddr) -> io::Result<Option<DiagnosedSocket>> {
    let Some(request) = request(local, remote) else { return Ok(None) };
    let socket =
        socket_with(AddressFamily::NETLINK, SocketType::DGRAM, SocketFlags::CLOEXEC, Some(netlink::SOCK_DIAG))?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(ANSWER_TIME))?;
    sendto(&socket, &request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut answer = [0; HEADER + ANSWER + 512];
    let (length, _) = recv(&socket, &mut answer, RecvFlags::empty())?;
    Ok(parse(&answer[..length], local.port(), remote.port()))
}

/// Writes a request; `None` for addresses of two families.
fn request(local: SocketAddr, remote: SocketAddr) -> Option<[u8; HEADER + REQUEST]> {
    let (family, source, destination) = match (local.ip(), remote.ip()) {
        (IpAddr::V4(local), IpAddr::V4(remote)) => {
            (AddressFamily::INET, padded(local.octets()), padded(remote.octets()))
        }
        (IpAddr::V6(local), IpAddr::V6(remote)) => (AddressFamily::INET6, local.octets(), remote.octets()),
        _ => return None,
    };
    let mut message = [0; HEADER + REQUEST];
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        message[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    put(&((HEADER + REQUEST) as u32).to_ne_bytes());
    put(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(&NLM_F_REQUEST.to_ne_bytes());
    // Sequence number and port of the sender.
    put(&[0; 8]);
    put(&[family.as_raw() as u8, libc::IPPROTO_TCP as u8, 0, 0]);
    // Any state.
    put(&u32::MAX.to_ne_bytes());
    put(&local.port().to_be_bytes());
    put(&remote.port().to_be_bytes());
    put(&source);
    put(&destination);
    // Any interface.
    put(&[0; 4]);
    put(&NO_COOKIE);
    Some(message)
}

fn padded(octets: [u8; 4]) -> [u8; 16] {
    let mut all = [0; 16];
    all[..4].copy_from_slice(&octets);
    all
}

/// Parses an answer. A socket that listens is found where none is connected, and one that is closed has no inode.
fn parse(answer: &[u8], local: u16, remote: u16) -> Option<DiagnosedSocket> {
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    let port = |at: usize| Some(u16::from_be_bytes(answer.get(at..at + 2)?.try_into().ok()?));
    let number = |at: usize| Some(u32::from_ne_bytes(answer.get(at..at + 4)?.try_into().ok()?));
    let (user, inode) = (number(USER)?, u64::from(number(INODE)?));
    let is_it = kind == SOCK_DIAG_BY_FAMILY && (port(LOCAL_PORT)?, port(REMOTE_PORT)?) == (local, remote) && inode != 0;
    is_it.then_some(DiagnosedSocket { user, inode })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{
        net::{TcpListener, TcpStream},
        os::{fd::AsRawFd, linux::fs::MetadataExt},
    };

    use super::*;
    use crate::socket_table::canonical;

    /// Looks until it is so: programs that other tests start have what is closed here too, until their exec.
    pub(crate) fn until(what: &str, is_so: impl Fn() -> bool) {
        let by = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while !is_so() {
            assert!(std::time::Instant::now() < by, "{what}");
            std::thread::yield_now();
        }
    }

    /// Makes connections to this machine, of each family that it has, and of one in the form of the other. Client's end first.
    pub(crate) fn connections() -> Vec<(TcpStream, TcpStream)> {
        let connect = |listening: &str| {
            let listener = match TcpListener::bind(listening) {
                // A machine without version 6 has nothing to find.
                Err(_) if listening != "127.0.0.1:0" => return None,
                listener => listener.expect("bound"),
            };
            let port = listener.local_addr().expect("an address").port();
            let host = if listening.contains("::1") { "[::1]" } else { "127.0.0.1" };
            let client = TcpStream::connect(format!("{host}:{port}")).expect("connected");
            Some((client, listener.accept().expect("accepted").0))
        };
        ["127.0.0.1:0", "[::1]:0", "[::]:0"].into_iter().filter_map(connect).collect()
    }

    #[test]
    fn both_ends_of_a_connection_are_found_and_nothing_else() {
        for (client, server) in connections() {
            let inode = |socket: &TcpStream| {
                std::fs::metadata(format!("/proc/self/fd/{}", socket.as_raw_fd())).expect("a socket").st_ino()
            };
            let ends =
                (canonical(client.local_addr().expect("bound")), canonical(client.peer_addr().expect("connected")));
            let user = rustix::process::geteuid().as_raw();
            let of = |socket| Some(DiagnosedSocket { user, inode: inode(socket) });
            assert_eq!(tcp_socket(ends.0, ends.1).expect("diagnostics"), of(&client), "{client:?}");
            assert_eq!(tcp_socket(ends.1, ends.0).expect("diagnostics"), of(&server), "{client:?}");
            let elsewhere = SocketAddr::new(ends.0.ip(), 1);
            assert_eq!(tcp_socket(ends.1, elsewhere).expect("diagnostics"), None, "no connection to there");
            drop(client);
            until("it is closed", || tcp_socket(ends.0, ends.1).expect("diagnostics").is_none());
        }
    }

    #[test]
    fn a_socket_that_listens_is_not_taken_for_a_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let at = listener.local_addr().expect("an address");
        assert_eq!(tcp_socket(at, "127.0.0.1:1".parse().expect("an address")).expect("diagnostics"), None);
    }

    #[test]
    fn what_is_no_answer_names_no_socket() {
        for answer in [&[][..], &[0; HEADER], &[0xff; HEADER + ANSWER]] {
            assert_eq!(parse(answer, 1, 2), None);
        }
        let (four, six) = ("127.0.0.1:1".parse().expect("an address"), "[::1]:1".parse().expect("an address"));
        assert_eq!(request(four, six), None);
    }
}
