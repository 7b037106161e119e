//! Processes that connect over TCP on this machine.
//!
//! The kernel does not say who is at the other end of a TCP connection. It names the inode of the other end, and each process lists its
//! descriptors: a process of a session that holds that inode is found.

use std::{collections::BTreeMap, io, net::SocketAddr};

use ipc_protocol::{Pid, ProcessId};

use crate::{
    ancestry::{is_below, walk},
    process_table::{self, SeenProcess},
    procfs, socket_diag,
    socket_table::{SocketLine, canonical, held_sockets},
};

/// Checks that no process below any of `tops` holds the client's end of a connection on this machine, and returns a process that
/// holds it, where one is seen. `sessions` says whose sessions those are. A client on another machine, or in another network
/// namespace, is in no session of ours that has this network.
///
/// # Errors
/// The reason why one does, or why that is unknown, for the user who runs it.
pub fn check_tcp_client(
    client: SocketAddr,
    server: SocketAddr,
    tops: &[ProcessId],
    sessions: &str,
) -> Result<Option<Pid>, String> {
    let (client, server) = (canonical(client), canonical(server));
    if !client.ip().is_loopback() && client.ip() != server.ip() {
        return Ok(None);
    }
    let unknown = |error: io::Error| format!("the connection from {client} cannot be looked at ({error})");
    let Some(end) = own_client_end(client, server).map_err(unknown)? else {
        return Err(format!("the connection from {client} is gone"));
    };
    let all = process_table::all_processes(u64::MAX).map_err(unknown)?;
    let all: BTreeMap<Pid, SeenProcess> = all.into_iter().map(|(process, _)| (process.id.pid, process)).collect();
    let holds = |pid: &Pid| held_sockets(*pid).is_ok_and(|inodes| inodes.contains(&end.inode));
    // All that may be in a session are looked at: one can have given its socket to a process outside.
    let (suspects, others): (Vec<Pid>, Vec<Pid>) = all.keys().partition(|pid| may_be_below(**pid, tops, &all));
    let mut holder = None;
    for pid in suspects.into_iter().filter(holds) {
        holder = holder.or(Some(pid));
        if is_below(pid, tops)? {
            return Err(format!("your process {pid} belongs to one of {sessions}"));
        }
    }
    // Clients are young, as a rule.
    let mut holder = holder.or_else(|| others.into_iter().rev().find(holds));
    // A child that has not become its program yet holds what its parent does. The table was not read in one moment: it may have circles.
    for _ in 0..all.len() {
        let parent = holder.and_then(|pid| all.get(&pid)).map(|child| child.ppid).filter(holds);
        let Some(parent) = parent else { break };
        holder = Some(parent);
    }
    // Another user's descriptors cannot be read. Sessions are this user's, and one of theirs can hide its descriptors.
    if holder.is_none() && end.user == nix::unistd::geteuid().as_raw() {
        return Err(format!("the process behind the connection from {client} cannot be seen"));
    }
    Ok(holder)
}

/// Returns true unless all parents of a process were seen, and none is one of `tops`.
fn may_be_below(pid: Pid, tops: &[ProcessId], all: &BTreeMap<Pid, SeenProcess>) -> bool {
    let look = |pid: Pid| all.get(&pid).copied().ok_or_else(|| io::ErrorKind::NotFound.into());
    !matches!(walk(pid, tops, look), Ok(None))
}

/// Finds the process that holds the client's end of a connection in a network namespace, as links in `/proc` name it. `None` where there
/// is none, or none that may be looked at.
pub fn tcp_client_of(network: &str, client: SocketAddr, server: SocketAddr) -> Option<ProcessId> {
    let is_there = |pid| procfs::read_link(&format!("{pid}/ns/net")).is_ok_and(|link| link == network);
    let all = process_table::all_processes(u64::MAX).ok()?;
    let members: Vec<ProcessId> =
        all.into_iter().map(|(process, _)| process.id).filter(|id| is_there(id.pid)).collect();
    let end = client_end(&members.first()?.pid.to_string(), canonical(client), canonical(server)).ok()??;
    members.into_iter().find(|id| held_sockets(id.pid).is_ok_and(|inodes| inodes.contains(&end.inode)))
}

/// Client's end of a connection.
#[derive(Debug, PartialEq)]
struct ClientEnd {
    user: u32,
    inode: u64,
}

/// Finds it in our own network namespace.
fn own_client_end(client: SocketAddr, server: SocketAddr) -> io::Result<Option<ClientEnd>> {
    match socket_diag::tcp_socket(client, server) {
        Ok(Some(socket)) => Ok(Some(ClientEnd { user: socket.user, inode: socket.inode })),
        // A kernel without diagnostics, or a socket that they do not find: the whole table has it.
        Ok(None) | Err(_) => client_end("self", client, server),
    }
}

fn client_end(process: &str, client: SocketAddr, server: SocketAddr) -> io::Result<Option<ClientEnd>> {
    for table in ["net/tcp", "net/tcp6"] {
        let text = match procfs::read_text(&format!("{process}/{table}")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            text => text?,
        };
        if let Some(end) = text.lines().skip(1).find_map(|line| end_in(line, client, server)) {
            return Ok(Some(end));
        }
    }
    Ok(None)
}

/// Parses a line of the kernel's table; `None` if it is not of this end of the connection.
fn end_in(line: &str, local: SocketAddr, remote: SocketAddr) -> Option<ClientEnd> {
    let SocketLine { local: here, remote: there, user, inode, .. } = SocketLine::parse(line)?;
    // 0 once the socket is closed.
    (here == local && there == remote && inode != 0).then_some(ClientEnd { user, inode })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        identify,
        socket_diag::tests::{connections, until},
    };

    #[test]
    fn a_client_is_found_by_what_it_holds() {
        for (client, server) in connections() {
            let (from, at) = (client.local_addr().expect("bound"), server.local_addr().expect("an address"));
            let ourselves = identify(std::process::id()).expect("alive");
            let found = check_tcp_client(from, at, &[ourselves], "these sessions").expect_err("we hold it");
            assert!(
                found.contains(&format!("your process {} belongs to one of these sessions", ourselves.pid)),
                "{found}"
            );
            assert_eq!(
                check_tcp_client(from, at, &[], "these sessions"),
                Ok(Some(ourselves.pid)),
                "there are no sessions"
            );
            drop(client);
            drop(server);
            let is_gone = || {
                let found = check_tcp_client(from, at, &[ourselves], "these sessions");
                found.is_err_and(|why| why.ends_with("is gone"))
            };
            until("nobody holds it", is_gone);
        }
    }

    #[test]
    fn only_who_is_certainly_outside_is_passed_over() {
        let process = |pid: Pid, ppid: Pid| {
            let id = ProcessId { pid, start_time: 1 };
            (pid, SeenProcess { id, ppid, pgid: 0, sid: 0, is_stopped: false })
        };
        // 9's parent was not seen; 20 and 21 are each other's; 10's parent has the pid of one that is gone.
        let all = [(1, 0), (5, 1), (6, 5), (7, 6), (8, 1), (9, 4), (20, 21), (21, 20), (10, 11), (11, 1)];
        let mut all: BTreeMap<Pid, SeenProcess> = all.into_iter().map(|(pid, ppid)| process(pid, ppid)).collect();
        all.entry(11).and_modify(|seen| seen.id.start_time = 2);
        let top = ProcessId { pid: 5, start_time: 1 };
        let below = |top| {
            let may = |pid: &Pid| may_be_below(*pid, &[top], &all);
            [1, 5, 6, 7, 8, 9, 10, 11, 20, 21].into_iter().filter(may).collect::<Vec<_>>()
        };
        assert_eq!(below(top), [5, 6, 7, 9, 10, 20, 21]);
        assert_eq!(below(ProcessId { start_time: 2, ..top }), [9, 10, 20, 21], "another process had its pid");
        assert!(!may_be_below(7, &[], &all));
    }

    #[test]
    fn lines_of_the_kernel_s_table() {
        let line =
            "  12: 0100007F:D2F0 0100007F:1F90 01 00000000:00000000 02:000A 00000000  1000  0 48151 2 0 20 4 30 10 -1";
        let address = |text: &str| text.parse().expect("an address");
        let (client, server) = (address("127.0.0.1:54000"), address("127.0.0.1:8080"));
        if cfg!(target_endian = "little") {
            assert_eq!(end_in(line, client, server), Some(ClientEnd { user: 1000, inode: 48151 }));
        }
        assert_eq!(end_in(line, server, client), None);
        assert_eq!(end_in("", client, server), None);
    }

    #[test]
    fn a_client_elsewhere_is_in_no_session() {
        let address = |text: &str| text.parse().expect("an address");
        assert_eq!(check_tcp_client(address("192.0.2.1:5000"), address("192.0.2.7:80"), &[], "x"), Ok(None));
    }
}
