//! Sessions that outlived their hosts: finds their fork servers, and the files they left.
//!
//! ```text
//! DIR/detached/PID.START.sock   of a fork server with such sessions; beside it a .lock
//! DIR/detached/ID.spool         messages of a session without a host
//! DIR/detached/ID.ended.json    end of a session that no host adopted
//! ```

use std::{
    fs, io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    thread::sleep,
    time::{Duration, Instant},
};

use interprocess::local_socket::Stream;
use ipc_protocol::{
    EndReason, ProcessId, Receipt, SessionId, Signal,
    codec::MessageAssembler,
    message::{DetachedSession, FromForkServer},
    packet::{packet_pair, recv_bytes, recv_packet, send_packet},
    reattach::{AdoptRequest, AdoptResponse, MAX_LINE, ReceivedMessage, WireFormat},
};
use registry::{
    PidFd,
    local_socket::{self, SocketName},
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Deserialize;

use super::{RecoveredSession, RecoveryOutcome};

/// Time for a fork server to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for a fork server to notice that its host has just died.
const HOST_DEATH_TIMEOUT: Duration = Duration::from_secs(3);
/// Time for a killed fork server to be gone.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between attempts.
const INTERVAL: Duration = Duration::from_millis(10);

/// A fork server that was adopted.
#[derive(Debug)]
pub(crate) struct AdoptedForkServer {
    pub(crate) process: ProcessId,
    pub(crate) control: OwnedFd,
    pub(crate) wire: WireFormat,
    pub(crate) sessions: Vec<DetachedSession>,
}

/// Fork servers in a directory.
#[derive(Debug, Default)]
pub(crate) struct DetachedSearch {
    pub(crate) found: Vec<AdoptedForkServer>,
    /// Fork servers of another owner: their sessions are left alone.
    pub(crate) others: Vec<ProcessId>,
}

/// Adopts the fork servers found in `directory`. One whose release cannot talk with this one is killed: its proxies end their sessions, each
/// with a receipt, and the journals name whatever they leave. Blocks.
pub(crate) fn find(directory: &Path, host: ProcessId) -> DetachedSearch {
    let mut search = DetachedSearch::default();
    for (name, process) in names(directory, ".sock").filter_map(|name| Some((name.clone(), parse_socket_name(&name)?)))
    {
        match adopt(directory, &name, process, host) {
            Ok(Some(found)) => search.found.push(found),
            Ok(None) => {
                // Taking the name proves the death; giving it back removes its files.
                let socket = directory.join(&name);
                let lock = socket.with_extension("lock");
                if let Err(error) = SocketName::take(socket, lock).map(drop) {
                    tracing::warn!(name, %error, "failed to remove the socket of a dead fork server");
                }
            }
            Err(reason) => {
                tracing::warn!(fork_server = %process, reason, "failed to adopt detached sessions");
                search.others.push(process);
            }
        }
    }
    search
}

/// Names of files with this ending.
fn names(directory: &Path, ending: &'static str) -> impl Iterator<Item = String> + use<> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(move |entry| entry.file_name().into_string().ok().filter(|name| name.ends_with(ending)))
}

/// Removes what a fork server of this manager's that was killed listened on, if it did.
pub(crate) fn remove_door(state: &Path, ProcessId { pid, start_time }: ProcessId) {
    for ending in ["sock", "lock"] {
        let path = state.join("detached").join(format!("{pid}.{start_time}.{ending}"));
        if let Err(error) = std::fs::remove_file(&path)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(?path, %error, "a file of a dead fork server stays");
        }
    }
}

/// `PID.START.sock`
fn parse_socket_name(name: &str) -> Option<ProcessId> {
    let (pid, start_time) = name.strip_suffix(".sock")?.split_once('.')?;
    Some(ProcessId { pid: pid.parse().ok()?, start_time: start_time.parse().ok()? })
}

/// Becomes the host of a fork server. `None` if it is dead.
fn adopt(
    directory: &Path,
    name: &str,
    process: ProcessId,
    host: ProcessId,
) -> Result<Option<AdoptedForkServer>, String> {
    let until = Instant::now() + HOST_DEATH_TIMEOUT;
    loop {
        // A stopped fork server cannot answer. The signal fails for a dead one.
        if let Ok(server) = PidFd::open(process) {
            let _ = server.signal(Signal::Cont);
        }
        let Ok(stream) = local_socket::connect(&directory.join(name)) else { return Ok(None) };
        let (ours, theirs) = packet_pair().map_err(|error| error.to_string())?;
        let answer = request_adoption(&stream, theirs, host).and_then(|verdict| match verdict {
            AdoptResponse::Owner { process, described, .. } => {
                let wire = WireFormat::from_is_json(described);
                let sessions = receive_sessions(&ours, wire)?;
                Ok(AdoptAnswer::Adopted(AdoptedForkServer { process, control: ours, wire, sessions }))
            }
            AdoptResponse::Busy { owner } => Ok(AdoptAnswer::Busy(owner)),
            AdoptResponse::Refused { reason } => Ok(AdoptAnswer::Refused(reason)),
        });
        match answer {
            Ok(AdoptAnswer::Adopted(found)) => return Ok(Some(found)),
            // The state directory is ours, so that owner is dead or dying.
            Ok(AdoptAnswer::Busy(_)) if Instant::now() < until => sleep(INTERVAL),
            // The fork server may be dying too: a killed process stays visible for a while.
            Err(error) if is_hung_up(&error) && Instant::now() < until => sleep(INTERVAL),
            Ok(AdoptAnswer::Busy(owner)) => {
                return Err(
                    owner.map_or_else(|| "another host has them".to_owned(), |owner| format!("host {owner} has them"))
                );
            }
            Ok(AdoptAnswer::Refused(reason)) => {
                tracing::warn!(fork_server = %process, reason, "ended the sessions of another release: it cannot be talked with");
                kill(process).map_err(|error| format!("{reason}; and it cannot be killed: {error}"))?;
                return Ok(None);
            }
            Err(error) => return Err(format!("it does not say what it has: {error}")),
        }
    }
}

/// Kills a fork server, and waits until it is gone.
fn kill(server: ProcessId) -> io::Result<()> {
    let killed = PidFd::open(server).and_then(|server| {
        server.signal(Signal::Kill)?;
        await_readable(&server, Instant::now() + KILL_TIMEOUT)
    });
    match killed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        killed => killed,
    }
}

/// Answer of a fork server to an adopt request.
enum AdoptAnswer {
    Adopted(AdoptedForkServer),
    Busy(Option<ProcessId>),
    Refused(String),
}

fn is_hung_up(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe)
}

/// Sends the adopt request with one end of the future connection, and receives the answer.
fn request_adoption(stream: &Stream, control: OwnedFd, host: ProcessId) -> io::Result<AdoptResponse> {
    let Stream::UdSocket(stream) = stream;
    let mut line = serde_json::to_vec(&AdoptRequest::new(host))?;
    line.push(b'\n');
    // A fork server that refuses this process closes its side without reading; its answer can still be received.
    match send_packet(stream, &line, Some(control.as_fd())) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error),
        Ok(()) | Err(_) => drop(control),
    }
    let (until, mut answer) = (Instant::now() + ANSWER_TIMEOUT, Vec::new());
    while !answer.contains(&b'\n') && answer.len() < MAX_LINE {
        await_readable(stream, until)?;
        let mut buffer = [0; MAX_LINE];
        match recv_bytes(stream, &mut buffer)? {
            (0, _) => return Err(io::ErrorKind::UnexpectedEof.into()),
            (len, _) => answer.extend_from_slice(&buffer[..len]),
        }
    }
    let line = answer.split(|byte| *byte == b'\n').next().unwrap_or_default();
    Ok(serde_json::from_slice(line)?)
}

/// Receives a fork server's first messages: its hello and its sessions.
fn receive_sessions(control: &OwnedFd, wire: WireFormat) -> io::Result<Vec<DetachedSession>> {
    let (until, mut assembler, mut packet) = (Instant::now() + ANSWER_TIMEOUT, MessageAssembler::default(), Vec::new());
    loop {
        await_readable(control, until)?;
        match recv_packet(control, &mut packet) {
            Ok(Some(_none)) => {}
            Ok(None) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        }
        if let Some(ReceivedMessage::Understood(FromForkServer::Detached(sessions))) =
            wire.frame(&mut assembler, &packet).map_err(io::Error::other)?
        {
            return Ok(sessions);
        }
    }
}

fn await_readable(fd: impl AsFd, until: Instant) -> io::Result<()> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Record of a session that ended without a host.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct EndRecord {
    session: SessionId,
    reason: EndReason,
    receipt: Receipt,
    unheard: u64,
}

/// Collects the records of sessions that ended without a host, adds them to the results from journals, and removes all
/// files except those of `kept` sessions. Blocks.
pub(crate) fn take_end_records(directory: &Path, kept: impl Fn(&str) -> bool, recovered: &mut Vec<RecoveredSession>) {
    for name in names(directory, ".ended.json") {
        let found = directory.join(&name);
        let record = fs::read(&found).and_then(|text| Ok(serde_json::from_slice::<EndRecord>(&text)?));
        match record {
            Ok(record) => push_recovered(record, found.clone(), recovered),
            Err(error) => tracing::warn!(?found, %error, "failed to read the end record of a session"),
        }
        remove(&found);
    }
    for ending in [".spool", ".draft"] {
        for name in names(directory, ending).filter(|name| !name.strip_suffix(ending).is_some_and(&kept)) {
            remove(&directory.join(name));
        }
    }
}

fn push_recovered(record: EndRecord, found: PathBuf, recovered: &mut Vec<RecoveredSession>) {
    let EndRecord { session, reason, receipt, unheard } = record;
    tracing::info!(%session, %reason, unheard, "session ended without a host");
    let known = recovered.iter_mut().find(|known| known.session_id.as_ref() == Some(&session));
    match known {
        Some(RecoveredSession { outcome, .. }) => {
            let mut receipt = Box::new(receipt);
            if let RecoveryOutcome::Ended(rest) = outcome {
                receipt.merge(rest.as_ref().clone());
            }
            *outcome = RecoveryOutcome::Ended(receipt);
        }
        None => recovered.push(RecoveredSession {
            session_id: Some(session),
            found,
            outcome: RecoveryOutcome::Ended(Box::new(receipt)),
            supervisors: Vec::new(),
            damaged_lines: 0,
        }),
    }
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        tracing::warn!(?path, %error, "failed to remove a leftover file");
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write as _,
        os::unix::{net::UnixListener, process::ExitStatusExt as _},
    };

    use super::*;

    /// As one of a release does that speaks another protocol.
    #[test]
    fn a_fork_server_that_cannot_be_talked_with_is_killed() {
        let scratch = tempfile::tempdir().expect("a directory");
        #[expect(clippy::disallowed_methods, reason = "the process that is killed is no session's")]
        let mut server = std::process::Command::new("sleep").arg("600").spawn().expect("started");
        let ProcessId { pid, start_time } = registry::identify(server.id()).expect("alive");
        let path = scratch.path().join(format!("{pid}.{start_time}.sock"));
        let listener = UnixListener::bind(&path).expect("bound");
        let answering = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a claim");
            let answer = AdoptResponse::Refused { reason: "it is of version 1".to_owned() };
            serde_json::to_writer(&mut stream, &answer).expect("answered");
            stream.write_all(b"\n").expect("answered");
        });
        let host = registry::identify(std::process::id()).expect("alive");
        let DetachedSearch { found, others } = find(scratch.path(), host);
        assert!(found.is_empty() && others.is_empty(), "{found:?} {others:?}");
        assert_eq!(server.wait().expect("it has ended").signal(), Some(9));
        assert!(!path.exists(), "its socket is removed");
        answering.join().expect("no panic");
    }

    /// As one does that was just killed: it can still be connected to.
    #[test]
    fn a_fork_server_that_hangs_up_and_is_gone_is_dead() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("4194304.1.sock");
        let listener = UnixListener::bind(&path).expect("bound");
        let dying = std::thread::spawn(move || drop(listener.accept().expect("a claim")));
        let host = registry::identify(std::process::id()).expect("alive");
        let DetachedSearch { found, others } = find(scratch.path(), host);
        assert!(found.is_empty() && others.is_empty(), "{found:?} {others:?}");
        assert!(!path.exists(), "its socket is removed");
        dying.join().expect("no panic");
    }
}
