//! Other end of a connection.

use std::net::SocketAddr;

/// Other end of a connection: an extension of its requests, set by who accepts connections. The audit log has it, and bounds and trusted
/// proxies go by its address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// Address; `None` for a local socket.
    pub address: Option<SocketAddr>,
    /// Process on this machine, where it is known.
    pub pid: Option<u32>,
    /// Id of that process's user, where it is known.
    pub user: Option<u32>,
    /// True for a process of one of our own sessions, where those are answered: a session that it starts is deeper.
    pub is_in_session: bool,
}
