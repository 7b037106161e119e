//! Sockets on which processes listen.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    io::{self, BufRead as _, BufReader},
    time::{Duration, Instant},
};

use ipc_protocol::{ListeningSocket, Pid, ProcessId, SocketProtocol};

use crate::{
    identify, procfs,
    socket_table::{SocketLine, TCP_LISTEN, UDP_UNCONNECTED, held_sockets},
};

/// Most time of a look.
const MAX_TIME: Duration = Duration::from_millis(500);
/// Most lines of a table that are read. Those of sockets that listen come first.
const MAX_LINES: usize = 65_536;
/// Most sockets of a process that are reported.
const MAX_SOCKETS: usize = 256;

const TABLES: [(&str, SocketProtocol, u8); 4] = [
    ("tcp", SocketProtocol::Tcp, TCP_LISTEN),
    ("tcp6", SocketProtocol::Tcp, TCP_LISTEN),
    ("udp", SocketProtocol::Udp, UDP_UNCONNECTED),
    ("udp6", SocketProtocol::Udp, UDP_UNCONNECTED),
];

/// Sockets of a network namespace on which somebody listens, by inode.
type ListenerTable = HashMap<u64, ListeningSocket>;

/// Finds the sockets on which each of these processes listens, in its own network namespace. A process that listens on none, is gone,
/// or cannot be looked at is not in the result; nor is one for which there was no time.
pub fn listening_sockets(processes: &[ProcessId]) -> BTreeMap<ProcessId, Vec<ListeningSocket>> {
    let began = Instant::now();
    let mut namespaces: HashMap<std::ffi::OsString, ListenerTable> = HashMap::new();
    let mut found = BTreeMap::new();
    for process in processes {
        if began.elapsed() > MAX_TIME {
            tracing::warn!(processes = processes.len(), "failed to look at all sockets in time");
            break;
        }
        let pid = process.pid;
        let Some(held) = held_sockets(pid).ok().filter(|held| !held.is_empty()) else { continue };
        let Ok(namespace) = procfs::read_link(&format!("{pid}/ns/net")) else { continue };
        let table = namespaces.entry(namespace).or_insert_with(|| listeners(pid));
        let mut sockets = listened_to(table, &held);
        // Looked at last: a pid that is another's by now would have its sockets here.
        if !sockets.is_empty() && identify(pid).is_ok_and(|now| now == *process) {
            sockets.truncate(MAX_SOCKETS);
            found.insert(*process, sockets);
        }
    }
    found
}

fn listened_to(table: &ListenerTable, held: &HashSet<u64>) -> Vec<ListeningSocket> {
    let mut sockets: Vec<ListeningSocket> = held.iter().filter_map(|inode| table.get(inode)).cloned().collect();
    sockets.sort();
    sockets.dedup();
    sockets
}

/// Reads who listens in the network namespace of a process.
fn listeners(pid: Pid) -> ListenerTable {
    let mut table = HashMap::new();
    for (name, protocol, state) in TABLES {
        // A machine without version 6 has no such table.
        let _ = read_table(pid, name, |line| {
            if line.state == state && line.local.port() != 0 {
                let (address, port) = (line.local.ip().to_string(), line.local.port());
                table.insert(line.inode, ListeningSocket { protocol, address, port });
            }
        });
    }
    table
}

fn read_table(pid: Pid, name: &str, mut visit: impl FnMut(SocketLine)) -> io::Result<()> {
    let lines = BufReader::new(procfs::open_proc_file(&format!("{pid}/net/{name}"))?).lines();
    for line in lines.take(MAX_LINES) {
        if let Some(line) = SocketLine::parse(&line?) {
            visit(line);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::*;

    #[test]
    fn a_process_listens_where_it_holds_the_socket() {
        let tcp = TcpListener::bind("127.0.0.1:0").expect("bound");
        let udp = UdpSocket::bind("127.0.0.1:0").expect("bound");
        let port = tcp.local_addr().expect("an address").port();
        let client = TcpStream::connect(("127.0.0.1", port)).expect("connected");
        let ourselves = identify(std::process::id()).expect("alive");
        let socket = |protocol, port| ListeningSocket { protocol, address: "127.0.0.1".into(), port };
        let found = listening_sockets(&[ourselves]).remove(&ourselves).expect("we listen");
        assert!(found.contains(&socket(SocketProtocol::Tcp, port)), "{found:?}");
        let datagrams = udp.local_addr().expect("an address").port();
        assert!(found.contains(&socket(SocketProtocol::Udp, datagrams)), "{found:?}");
        let connected = client.local_addr().expect("an address").port();
        assert!(!found.iter().any(|socket| socket.port == connected), "it only connects: {found:?}");
        // The same pid, and another process.
        let other = ProcessId { start_time: ourselves.start_time + 1, ..ourselves };
        assert_eq!(listening_sockets(&[other]), BTreeMap::new());
        drop(tcp);
        let after = listening_sockets(&[ourselves]);
        assert!(!after.values().flatten().any(|socket| socket.port == port), "{after:?}");
    }
}
