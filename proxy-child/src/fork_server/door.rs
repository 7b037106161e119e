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
    reattach::{Claim, MAX_LINE, Verdict, Wire},
};
use registry::local_socket::{SocketName, SocketNameError, SocketPeer};

/// Time in which a client has to send its request.
const PATIENCE: Duration = Duration::from_secs(2);
/// Most clients that are served at once.
const MAX_CALLERS: usize = 32;

/// Listening socket with its clients.
#[derive(Debug)]
pub(super) struct Door {
    listener: Listener,
    /// Removes the files at the end.
    _name: SocketName,
    own: ProcessId,
    callers: Vec<Caller>,
}

#[derive(Debug)]
struct Caller {
    stream: Stream,
    /// Pidfd of the client, from the kernel.
    process: OwnedFd,
    line: Vec<u8>,
    control: Option<OwnedFd>,
    until: Instant,
}

/// New host of the sessions.
#[derive(Debug)]
pub(super) struct Owner {
    /// Pidfd of the host.
    pub(super) host: OwnedFd,
    /// Connection to the host.
    pub(super) control: OwnedFd,
    pub(super) wire: Wire,
    pub(super) process: ProcessId,
}

impl Door {
    /// Opens the socket of the fork server `own` in `directory`.
    ///
    /// # Errors
    /// [`SocketNameError`].
    pub(super) fn open(directory: &Path, own: ProcessId) -> Result<Self, SocketNameError> {
        let file = |ending: &str| directory.join(format!("{}.{}.{ending}", own.pid, own.start_time));
        let name = SocketName::take(file("sock"), file("lock"))?;
        let listener = name.listen(|options| options.nonblocking(ListenerNonblockingMode::Both).create_sync())?;
        Ok(Self { listener, _name: name, own, callers: Vec::new() })
    }

    /// Returns the descriptors to poll for reading. New clients are not polled for while there is no room.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let Listener::UdSocket(listener) = &self.listener;
        let listener = (self.callers.len() < MAX_CALLERS).then(|| listener.as_fd());
        listener.into_iter().chain(self.callers.iter().map(|caller| fd(&caller.stream)))
    }

    /// Returns the time at which [`Door::turn`] is due even with nothing to read.
    pub(super) fn next(&self) -> Option<Instant> {
        self.callers.iter().map(|caller| caller.until).min()
    }

    /// Serves the clients that are ready. Returns the new host, if one was accepted; while `owner` exists none is.
    pub(super) fn turn(&mut self, owner: Option<ProcessId>) -> Option<Owner> {
        // Refused clients count too: a session's processes can reconnect as fast as they are refused.
        for _ in self.callers.len()..MAX_CALLERS {
            let Ok(stream) = self.listener.accept() else { break };
            match admit(&stream, self.own) {
                Ok(process) if stream.set_nonblocking(true).is_ok() => {
                    let until = Instant::now() + PATIENCE;
                    self.callers.push(Caller { stream, process, line: Vec::new(), control: None, until });
                }
                Ok(_) => {}
                Err(reason) => answer(&stream, &Verdict::Refused { reason }),
            }
        }
        let (now, mut chosen) = (Instant::now(), None);
        let mut at = 0;
        while at < self.callers.len() {
            let caller = &mut self.callers[at];
            match caller.hear() {
                Ok(None) if caller.until > now => at += 1,
                Ok(None) | Err(_) => drop(self.callers.swap_remove(at)),
                Ok(Some(claim)) => {
                    let caller = self.callers.swap_remove(at);
                    let owner = owner.or(chosen.as_ref().map(|owner: &Owner| owner.process));
                    match caller.judge(claim, owner, self.own) {
                        Ok(owner) => chosen = Some(owner),
                        Err((stream, verdict)) => answer(&stream, &verdict),
                    }
                }
            }
        }
        chosen
    }
}

impl Caller {
    /// Returns the client's request once it is complete.
    fn hear(&mut self) -> io::Result<Option<Claim>> {
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

    fn judge(self, claim: Claim, owner: Option<ProcessId>, own: ProcessId) -> Result<Owner, (Stream, Verdict)> {
        let Self { stream, process, control, .. } = self;
        if owner.is_some() {
            return Err((stream, Verdict::Busy { owner }));
        }
        let wire = match claim.wire() {
            Ok(wire) => wire,
            Err(reason) => return Err((stream, Verdict::Refused { reason })),
        };
        let Some(control) = control else {
            let reason = "no socket came with what you said".to_owned();
            return Err((stream, Verdict::Refused { reason }));
        };
        let verdict =
            Verdict::Owner { version: ipc_protocol::message::VERSION, process: own, described: wire.is_described() };
        answer(&stream, &verdict);
        Ok(Owner { host: process, control, wire, process: claim.process })
    }
}

/// Sends one line. The connection is closed even if the client does not read it.
fn answer(stream: &Stream, verdict: &Verdict) {
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
    may_come_in(peer.user, nix::unistd::geteuid().as_raw())?;
    peer.outside(&[own], "these sessions itself")
}

/// Checks that the client's user owns the sessions; the error is the reason.
fn may_come_in(user: u32, ours: u32) -> Result<(), String> {
    if user == ours { Ok(()) } else { Err(format!("you are user {user}, and these sessions are user {ours}'s")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a door of `own` with this many waiting clients.
    fn knocked(own: ProcessId, times: usize) -> (Door, Vec<std::os::unix::net::UnixStream>) {
        let directory = std::env::temp_dir().join(format!("agent-proxy-door-{}-{}", own.pid, own.start_time));
        std::fs::create_dir(&directory).expect("made");
        let door = Door::open(&directory, own).expect("opened");
        let knock = |_| std::os::unix::net::UnixStream::connect(door._name.path()).expect("connected");
        let callers = (0..times).map(knock).collect();
        // The names are not needed any more.
        std::fs::remove_dir_all(&directory).expect("removed");
        (door, callers)
    }

    #[test]
    fn who_is_refused_again_and_again_takes_a_bounded_part_of_a_turn() {
        let me = registry::identify(std::process::id()).expect("there");
        let (mut door, callers) = knocked(me, MAX_CALLERS + 5);
        let refused = || {
            let is_answered = |caller: &&std::os::unix::net::UnixStream| {
                caller.set_nonblocking(true).expect("set");
                matches!(std::io::Read::read(&mut &**caller, &mut [0]), Ok(1))
            };
            callers.iter().filter(is_answered).count()
        };
        assert!(door.turn(None).is_none());
        assert_eq!(refused(), MAX_CALLERS, "below the fork server, each");
        assert!(door.turn(None).is_none());
        assert_eq!(refused(), MAX_CALLERS + 5);
    }

    #[test]
    fn who_comes_while_there_is_no_room_wakes_nobody() {
        let other = ProcessId { start_time: 1, ..registry::identify(std::process::id()).expect("there") };
        let (mut door, mut callers) = knocked(other, MAX_CALLERS + 1);
        assert!(door.turn(None).is_none());
        assert_eq!((door.callers.len(), door.fds().count()), (MAX_CALLERS, MAX_CALLERS));
        drop(callers.remove(0));
        assert!(door.turn(None).is_none());
        assert_eq!(door.fds().count(), MAX_CALLERS, "and the listener, with one less");
    }

    /// The test with a user of another number is in tests/tests/detach.rs, as far as such a user exists.
    #[test]
    fn other_users_are_refused_root_too() {
        assert_eq!(may_come_in(1000, 1000), Ok(()));
        for (user, ours) in [(1001, 1000), (0, 1000), (1000, 0)] {
            let refused = may_come_in(user, ours).expect_err("another one");
            assert!(refused.contains(&format!("user {user},")) && refused.contains(&format!("user {ours}'s")));
        }
    }
}
