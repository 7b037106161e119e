//! The kernel's tables of sockets (`/proc/PID/net/tcp` and the like), and which sockets a process holds.

use std::{
    collections::HashSet,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use ipc_protocol::Pid;

use crate::procfs;

/// Most descriptors of a process that are looked at.
const MAX_DESCRIPTORS: usize = 65_536;

/// State of a TCP socket that listens, and of a UDP socket without a peer.
pub(crate) const TCP_LISTEN: u8 = 0x0a;
pub(crate) const UDP_UNCONNECTED: u8 = 0x07;

/// Line of a table: one socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SocketLine {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) state: u8,
    /// User of the socket.
    pub(crate) user: u32,
    /// 0 once the socket is closed.
    pub(crate) inode: u64,
}

impl SocketLine {
    /// Parses a line; `None` for the heading.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_ascii_whitespace();
        let (local, remote) = (address(fields.nth(1)?)?, address(fields.next()?)?);
        let state = u8::from_str_radix(fields.next()?, 16).ok()?;
        let user = fields.nth(3)?.parse().ok()?;
        let inode = fields.nth(1)?.parse().ok()?;
        Some(Self { local, remote, state, user, inode })
    }
}

/// Returns the inodes of the sockets that a process holds.
///
/// # Errors
/// The system's: the process is gone, or is another user's.
pub(crate) fn held_sockets(pid: Pid) -> io::Result<HashSet<u64>> {
    let descriptors = procfs::numbers_in_proc(&format!("{pid}/fd"), MAX_DESCRIPTORS)?;
    let links = descriptors.iter().filter_map(|fd| procfs::read_link(&format!("{pid}/fd/{fd}")).ok());
    Ok(links.filter_map(|link| inode(link.to_str()?)).collect())
}

/// Parses `socket:[48151]`.
fn inode(link: &str) -> Option<u64> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// Parses `0100007F:1F90`: the address in words of the machine's byte order, and the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let words: Option<Vec<u32>> = (0..address.len() / 8)
        .map(|at| u32::from_str_radix(address.get(at * 8..at * 8 + 8)?, 16).ok().map(|word| u32::from_be(word.to_be())))
        .collect();
    let bytes: Vec<u8> = words?.into_iter().flat_map(u32::to_ne_bytes).collect();
    let ip = match <[u8; 4]>::try_from(&bytes[..]) {
        Ok(four) => IpAddr::V4(Ipv4Addr::from(four)),
        Err(_) => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[..]).ok()?)),
    };
    Some(canonical(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?)))
}

/// Writes an address of version 4 in one of version 6 as what it is.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_kernel_s_table() {
        if cfg!(target_endian = "little") {
            assert_eq!(address("0100007F:1F90"), Some("127.0.0.1:8080".parse().expect("an address")));
            assert_eq!(address("00000000000000000000000001000000:0050"), Some("[::1]:80".parse().expect("an address")));
            assert_eq!(
                address("0000000000000000FFFF00000100007F:0050"),
                Some("127.0.0.1:80".parse().expect("an address")),
                "one of version 4 in a table of version 6"
            );
        }
        for wrong in ["", "0100007F", "0100007:1", "ZZ00007F:1F90", "0100007F:1F9000"] {
            assert_eq!(address(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn lines_and_links() {
        let line = "   0: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12345 1 0 100 0";
        let parsed = SocketLine::parse(line).expect("a line");
        assert_eq!((parsed.local.port(), parsed.state, parsed.user, parsed.inode), (22, TCP_LISTEN, 0, 12345));
        assert_eq!(SocketLine::parse("  sl  local_address rem_address   st tx_queue rx_queue tr tm->when"), None);
        assert_eq!((inode("socket:[7]"), inode("pipe:[7]"), inode("socket:[x]")), (Some(7), None, None));
    }
}
