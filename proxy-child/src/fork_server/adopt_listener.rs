//! Local socket through which a new host adopts the sessions of a dead one, and the checks of its clients.
//!
//! ```text
//! DIR/PID.START.sock   0600, of the fork server with this pid and start time; DIR is 0700
//! DIR/PID.START.lock   locked (flock) while that fork server lives: the holder of the lock may remove both
//! ```

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    time::{Duration, Instant},
};

use interprocess::local_socket::{
    Listener, ListenerNonblockingMode, Stream,
    traits::{Listener as _, Stream as _},
};
use ipc_protocol::{
    ProcessId,
    packet::{recv_bytes, send_packet},
    reattach::{AdoptRequest, AdoptResponse, MAX_LINE, WireFormat},
};
use registry::local_socket::{SocketName, SocketNameError, SocketPeer};

/// Time in which a client has to send its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Most clients that are served at once.
const MAX_CLIENTS: usize = 32;

/// Listening socket with its clients.
#[derive(Debug)]
pub(super) struct AdoptListener {
    listener: Listener,
    /// Removes the files at the end.
    _name: SocketName,
    fork_server: ProcessId,
    clients: Vec<AdoptClient>,
}

#[derive(Debug)]
struct AdoptClient {
    stream: Stream,
    /// Pidfd of the client, from the kernel.
    process: OwnedFd,
    line: Vec<u8>,
    control: Option<OwnedFd>,
    deadline: Instant,
}

/// New host of the sessions.
#[derive(Debug)]
pub(super) struct CurrentOwner {
    /// Pidfd of the host.
    pub(super) host: OwnedFd,
    /// Connection to the host.
    pub(super) control: OwnedFd,
    pub(super) wire: WireFormat,
    pub(super) process: ProcessId,
}

impl AdoptListener {
    /// Opens the socket of the fork server `own` in `directory`.
    ///
    /// # Errors
    /// [`SocketNameError`].
    pub(super) fn open(directory: &Path, own: ProcessId) -> Result<Self, SocketNameError> {
        let file = |ending: &str| directory.join(format!("{}.{}.{ending}", own.pid, own.start_time));
        let name = SocketName::take(file("sock"), file("lock"))?;
        let listener = name.listen(|options| options.nonblocking(ListenerNonblockingMode::Both).create_sync())?;
        Ok(Self { listener, _name: name, fork_server: own, clients: Vec::new() })
    }

    /// Returns the descriptors to poll for reading. New clients are not polled for while there is no room.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let Listener::UdSocket(listener) = &self.listener;
        let listener = (self.clients.len() < MAX_CLIENTS).then(|| listener.as_fd());
        listener.into_iter().chain(self.clients.iter().map(|caller| fd(&caller.stream)))
    }

    /// Returns the time at which [`AdoptListener::poll_clients`] is due even with nothing to read.
    pub(super) fn next(&self) -> Option<Instant> {
        self.clients.iter().map(|caller| caller.deadline).min()
    }

    /// Serves the clients that are ready. Returns the new host, if one was accepted; while `owner` exists none is.
    pub(super) fn poll_clients(&mut self, owner: Option<ProcessId>) -> Option<CurrentOwner> {
        // Refused clients count too: a session's processes can reconnect as fast as they are refused.
        for _ in self.clients.len()..MAX_CLIENTS {
            let Ok(stream) = self.listener.accept() else { break };
            match admit(&stream, self.fork_server) {
                Ok(process) if stream.set_nonblocking(true).is_ok() => {
                    let until = Instant::now() + REQUEST_TIMEOUT;
                    self.clients.push(AdoptClient {
                        stream,
                        process,
                        line: Vec::new(),
                        control: None,
                        deadline: until,
                    });
                }
                Ok(_) => {}
                Err(reason) => respond(&stream, &AdoptResponse::Refused { reason }),
            }
        }
        let (now, mut chosen) = (Instant::now(), None);
        let mut at = 0;
        while at < self.clients.len() {
            let caller = &mut self.clients[at];
            match caller.receive_request() {
                Ok(None) if caller.deadline > now => at += 1,
                Ok(None) | Err(_) => drop(self.clients.swap_remove(at)),
                Ok(Some(claim)) => {
                    let caller = self.clients.swap_remove(at);
                    let owner = owner.or(chosen.as_ref().map(|owner: &CurrentOwner| owner.process));
                    match caller.decide(claim, owner, self.fork_server) {
                        Ok(owner) => chosen = Some(owner),
                        Err((stream, verdict)) => respond(&stream, &verdict),
                    }
                }
            }
        }
        chosen
    }
}

impl AdoptClient {
    /// Returns the client's request once it is complete.
    fn receive_request(&mut self) -> io::Result<Option<AdoptRequest>> {
        loop {
            let mut buffer = [0; MAX_LINE];
            let (len, control) = match recv_bytes(fd(&self.stream), &mut buffer) {
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(got) => got,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            };
            self.line.extend_from_slice(&buffer[..len]);
            self.control = control.or(self.control.take());
            if self.line.contains(&b'\n') {
                let line = self.line.split(|byte| *byte == b'\n').next().unwrap_or_default();
                return serde_json::from_slice(line).map(Some).map_err(io::Error::other);
            }
            if self.line.len() >= MAX_LINE {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
    }

    fn decide(
        self,
        claim: AdoptRequest,
        owner: Option<ProcessId>,
        own: ProcessId,
    ) -> Result<CurrentOwner, (Stream, AdoptResponse)> {
        let Self { stream, process, control, .. } = self;
        if owner.is_some() {
            return Err((stream, AdoptResponse::Busy { owner }));
        }
        let wire = match claim.wire() {
            Ok(wire) => wire,
            Err(reason) => return Err((stream, AdoptResponse::Refused { reason })),
        };
        let Some(control) = control else {
            let reason = "no socket came with what you said".to_owned();
            return Err((stream, AdoptResponse::Refused { reason }));
        };
        let verdict =
            AdoptResponse::Owner { version: ipc_protocol::message::VERSION, process: own, described: wire.is_json() };
        respond(&stream, &verdict);
        Ok(CurrentOwner { host: process, control, wire, process: claim.process })
    }
}

/// Sends one line. The connection is closed even if the client does not read it.
fn respond(stream: &Stream, verdict: &AdoptResponse) {
    if let Ok(mut line) = serde_json::to_vec(verdict) {
        line.push(b'\n');
        let _ = send_packet(fd(stream), &line, None);
    }
}

fn fd(stream: &Stream) -> BorrowedFd<'_> {
    let Stream::UdSocket(stream) = stream;
    stream.as_fd()
}

/// Returns a pidfd of the client if it is permitted, else the reason.
fn admit(stream: &Stream, own: ProcessId) -> Result<OwnedFd, String> {
    let Stream::UdSocket(socket) = stream;
    let peer = SocketPeer::of(socket)?;
    check_peer_user(peer.user, nix::unistd::geteuid().as_raw())?;
    peer.outside(&[own], "these sessions itself")
}

/// Checks that the client's user owns the sessions; the error is the reason.
fn check_peer_user(user: u32, ours: u32) -> Result<(), String> {
    if user == ours { Ok(()) } else { Err(format!("you are user {user}, and these sessions are user {ours}'s")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a door of `own` with this many waiting clients.
    fn knocked(own: ProcessId, times: usize) -> (AdoptListener, Vec<std::os::unix::net::UnixStream>) {
        let directory = std::env::temp_dir().join(format!("agent-proxy-door-{}-{}", own.pid, own.start_time));
        std::fs::create_dir(&directory).expect("made");
        let door = AdoptListener::open(&directory, own).expect("opened");
        let knock = |_| std::os::unix::net::UnixStream::connect(door._name.path()).expect("connected");
        let callers = (0..times).map(knock).collect();
        // The names are not needed any more.
        std::fs::remove_dir_all(&directory).expect("removed");
        (door, callers)
    }

    #[test]
    fn who_is_refused_again_and_again_takes_a_bounded_part_of_a_turn() {
        let me = registry::identify(std::process::id()).expect("there");
        let (mut door, callers) = knocked(me, MAX_CLIENTS + 5);
        let refused = || {
            let is_answered = |caller: &&std::os::unix::net::UnixStream| {
                caller.set_nonblocking(true).expect("set");
                matches!(std::io::Read::read(&mut &**caller, &mut [0]), Ok(1))
            };
            callers.iter().filter(is_answered).count()
        };
        assert!(door.poll_clients(None).is_none());
        assert_eq!(refused(), MAX_CLIENTS, "below the fork server, each");
        assert!(door.poll_clients(None).is_none());
        assert_eq!(refused(), MAX_CLIENTS + 5);
    }

    #[test]
    fn who_comes_while_there_is_no_room_wakes_nobody() {
        let other = ProcessId { start_time: 1, ..registry::identify(std::process::id()).expect("there") };
        let (mut door, mut callers) = knocked(other, MAX_CLIENTS + 1);
        assert!(door.poll_clients(None).is_none());
        assert_eq!((door.clients.len(), door.fds().count()), (MAX_CLIENTS, MAX_CLIENTS));
        drop(callers.remove(0));
        assert!(door.poll_clients(None).is_none());
        assert_eq!(door.fds().count(), MAX_CLIENTS, "and the listener, with one less");
    }

    /// The test with a user of another number is in tests/tests/detach.rs, as far as such a user exists.
    #[test]
    fn other_users_are_refused_root_too() {
        assert_eq!(check_peer_user(1000, 1000), Ok(()));
        for (user, ours) in [(1001, 1000), (0, 1000), (1000, 0)] {
            let refused = check_peer_user(user, ours).expect_err("another one");
            assert!(refused.contains(&format!("user {user},")) && refused.contains(&format!("user {ours}'s")));
        }
    }
}
