//! The kernel's proc connector: a netlink socket that reports every fork, exec and exit on the machine.
//!
//! It works in the first PID and user namespace only. Elsewhere a subscription succeeds and nothing is ever delivered,
//! and in another network namespace there is no such socket. So only the sight of a real fork and a real exit shows
//! that it works.

use std::{
    fs,
    io::{self, IoSliceMut},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    os::linux::fs::MetadataExt,
    time::{Duration, Instant},
};

use ipc_protocol::{ExitStatus, Pid, Signal};
use nix::{
    errno::Errno,
    sys::socket::{MsgFlags, MultiHeaders, NetlinkAddr, recvmmsg},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{
        AddressFamily, SendFlags, SocketFlags, SocketType, bind,
        netlink::{self, SocketAddrNetlink},
        sendto, socket_with, sockopt,
    },
};
use socket2::{SockFilter, SockRef};

use crate::{PidFd, SpawnRequest, UnavailableFeature, fork_child, is_single_threaded, proc, spawn};

/// Constants of `linux/connector.h`: index and value of the proc connector, and its multicast group.
const CN_IDX_PROC: u32 = 1;
const CN_VAL_PROC: u32 = 1;
/// Constants of `linux/cn_proc.h`.
const LISTEN: u32 = 1;
const IGNORE: u32 = 2;
const EVENT_FORK: u32 = 0x0000_0001;
const EVENT_EXEC: u32 = 0x0000_0002;
const EVENT_EXIT: u32 = 0x8000_0000;
/// Constant of `linux/netlink.h`.
const NLMSG_DONE: u16 = 3;
/// Length of a netlink header and the connector's.
const HEADERS: usize = 16 + 20;
/// Length of an event's header (kind, cpu and time), before its own fields.
const EVENT_HEADER: usize = 16;
/// Filter that passes the whole datagram of an exec, and nothing else: loads the event's kind as if it were big-endian,
/// and compares.
const EXEC_FILTER: [SockFilter; 4] = [
    SockFilter::new((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, 0, 0, HEADERS as u32),
    SockFilter::new((libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, 0, 1, EVENT_EXEC.to_be()),
    SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, u32::MAX),
    SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, 0),
];
/// Receive buffer for a datagram, longer than any event.
const DATAGRAM: usize = 128;
/// Maximum number of events taken by one call.
const BATCH: usize = 64;
/// Maximum number of execs skipped by one call; mostly there is one.
const MAX_EXECS_READ: usize = 8;
/// Receive buffer requested from the kernel for a slow reader: some 20,000 events.
const BUFFER: usize = 16 * 1024 * 1024;
/// Inodes that the kernel gives to the first PID and user namespace (`PROC_PID_INIT_INO`, `PROC_USER_INIT_INO`).
const FIRST_NAMESPACES: [(&str, &str, u64); 2] = [("pid", "PID", 0xEFFF_FFFC), ("user", "user", 0xEFFF_FFFD)];
/// Wait for the self-test's child to end. It takes some 0.5 ms on a quiet machine; on a busy one it waits for its turn,
/// which says nothing about the connector.
const CHILD_DEADLINE: Duration = Duration::from_secs(10);
/// Wait for the events of its fork and exit once it has ended.
const PROOF_DEADLINE: Duration = Duration::from_millis(500);
/// Exit code of the self-test's child, unlikely by accident.
const PROOF_CODE: u8 = 107;

/// Event of a process or a thread, anywhere on the machine. `at` is monotonic time in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcEvent {
    /// A process was forked.
    Fork {
        /// Parent of the process: with `CLONE_PARENT` the parent of the process that forked it.
        parent: Pid,
        /// The process.
        child: Pid,
        /// Time of the fork.
        at: u64,
    },
    /// A thread started that is not the first of its process.
    ThreadStarted {
        /// Process of the thread.
        process: Pid,
        /// Id of the thread.
        thread: Pid,
        /// Time of its start.
        at: u64,
    },
    /// A process executed a program. It has one thread now, whose id is the process's pid.
    Exec {
        /// The process.
        pid: Pid,
        /// Time of the exec.
        at: u64,
    },
    /// The first thread of a process ended. The process ended too, unless other threads live on.
    LeaderExited {
        /// The process.
        pid: Pid,
        /// Exit status of the thread.
        exit: ExitStatus,
        /// Time of its end.
        at: u64,
    },
    /// A thread ended that is not the first of its process.
    ThreadExited {
        /// Process of the thread.
        process: Pid,
        /// Id of the thread.
        thread: Pid,
        /// Exit status of the thread.
        exit: ExitStatus,
        /// Time of its end.
        at: u64,
    },
}

impl ProcEvent {
    /// Time of the event: monotonic, in nanoseconds.
    pub fn at(&self) -> u64 {
        match *self {
            Self::Fork { at, .. }
            | Self::ThreadStarted { at, .. }
            | Self::Exec { at, .. }
            | Self::LeaderExited { at, .. }
            | Self::ThreadExited { at, .. } => at,
        }
    }

    /// Parses one datagram; `None` for any other message.
    fn parse(datagram: &[u8]) -> Option<Self> {
        let event = datagram.get(HEADERS..)?;
        let word = |at: usize| Some(u32::from_ne_bytes(event.get(at..at + 4)?.try_into().ok()?));
        let field = |index: usize| word(EVENT_HEADER + 4 * index);
        let at = u64::from_ne_bytes(event.get(8..16)?.try_into().ok()?);
        let exit = |status: u32| proc::exit_of_wait_status(status.cast_signed());
        Some(match word(0)? {
            EVENT_FORK => {
                let (parent, thread, process) = (field(1)?, field(2)?, field(3)?);
                if thread == process {
                    Self::Fork { parent, child: process, at }
                } else {
                    Self::ThreadStarted { process, thread, at }
                }
            }
            EVENT_EXEC => Self::Exec { pid: field(1)?, at },
            EVENT_EXIT => {
                let (thread, process, exit) = (field(0)?, field(1)?, exit(field(2)?));
                if thread == process {
                    Self::LeaderExited { pid: process, exit, at }
                } else {
                    Self::ThreadExited { process, thread, exit, at }
                }
            }
            _ => return None,
        })
    }
}

/// Result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOutcome {
    /// All pending events were read.
    All,
    /// More events may be pending.
    More,
    /// The reader was too slow, and events were lost.
    Overrun,
}

/// A subscription to the proc connector.
#[derive(Debug)]
pub struct ProcConnector {
    socket: OwnedFd,
    /// Socket that receives only execs, in addition to `socket`.
    exec_socket: OwnedFd,
    headers: MultiHeaders<NetlinkAddr>,
    buffers: Box<[[u8; DATAGRAM]]>,
    is_listening: bool,
    has_mask: bool,
}

impl ProcConnector {
    /// Subscribes, and proves by a child's fork and exit that events arrive. Returns with the subscription paused.
    ///
    /// Takes as long as a child's fork and end, plus 500 ms if the connector is silent. The child is reaped here, by
    /// its pid.
    ///
    /// # Errors
    /// [`UnavailableFeature`] with what failed.
    pub fn open() -> Result<Self, UnavailableFeature> {
        for (file, name, first) in FIRST_NAMESPACES {
            // If this cannot be read, the self-test decides.
            if fs::metadata(format!("/proc/self/ns/{file}")).is_ok_and(|found| found.st_ino() != first) {
                return Err(unavailable(format!(
                    "this process is in a {name} namespace of its own, where the kernel delivers no events"
                )));
            }
        }
        let failed = |what: &str, error: io::Error| unavailable(format!("{what}: {error}"));
        let mut connector = Self::subscribe().map_err(|error| failed("subscribing failed", error))?;
        let proven = connector.self_test().map_err(|error| failed("its self-test failed", error))?;
        connector.pause().map_err(|error| failed("pausing failed", error))?;
        match proven {
            true => Ok(connector),
            false => {
                Err(unavailable(format!("fork and exit of a child were not told within {PROOF_DEADLINE:?} of its end")))
            }
        }
    }

    /// Checks that the connector works here: calls [`ProcConnector::open`] and drops the result.
    ///
    /// # Errors
    /// [`UnavailableFeature`] with what failed.
    pub fn probe() -> Result<(), UnavailableFeature> {
        Self::open().map(drop)
    }

    fn subscribe() -> io::Result<Self> {
        let execs = open_group_socket(Some(&EXEC_FILTER))?;
        // The kernel delivers to the newest member first: an exec that `execs` signals can already be read from
        // `socket`.
        let socket = open_group_socket(None)?;
        let headers = MultiHeaders::preallocate(BATCH, None);
        let buffers = vec![[0; DATAGRAM]; BATCH].into_boxed_slice();
        let mut connector =
            Self { socket, exec_socket: execs, headers, buffers, is_listening: false, has_mask: has_mask() };
        connector.resume()?;
        Ok(connector)
    }

    /// Sends one command to the kernel.
    fn send_op(&self, order: u32) -> io::Result<()> {
        // An older kernel drops a message whose length includes a mask.
        let words = [order, EVENT_FORK | EVENT_EXEC | EVENT_EXIT];
        let data = if self.has_mask { words.as_slice() } else { &words[..1] };
        let length = 4 * data.len();
        let mut message = Vec::with_capacity(HEADERS + length);
        message.extend(u32::try_from(HEADERS + length).unwrap_or(0).to_ne_bytes());
        message.extend(NLMSG_DONE.to_ne_bytes());
        message.extend([0; 10]);
        message.extend([CN_IDX_PROC, CN_VAL_PROC, 0, 0].iter().flat_map(|word| word.to_ne_bytes()));
        message.extend(u16::try_from(length).unwrap_or(0).to_ne_bytes());
        message.extend([0; 2]);
        message.extend(data.iter().flat_map(|word| word.to_ne_bytes()));
        sendto(&self.socket, &message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        Ok(())
    }

    /// Stops the kernel's messages; those already sent can still be read.
    ///
    /// # Errors
    /// An error of the system call.
    pub fn pause(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.is_listening, false) {
            self.send_op(IGNORE)?;
        }
        Ok(())
    }

    /// Discards unread messages and makes the kernel send again.
    ///
    /// # Errors
    /// An error of the system call.
    pub fn resume(&mut self) -> io::Result<()> {
        if !self.is_listening {
            // Terminates: nothing arrives while the subscription is paused.
            while self.read(|_| ())? != ReadOutcome::All {}
            self.send_op(LISTEN)?;
            self.is_listening = true;
        }
        Ok(())
    }

    /// Returns true while the kernel sends.
    pub fn is_listening(&self) -> bool {
        self.is_listening
    }

    /// Reads pending events up to a bound, oldest first.
    ///
    /// # Errors
    /// An error of the system call.
    pub fn read(&mut self, mut sink: impl FnMut(ProcEvent)) -> io::Result<ReadOutcome> {
        // Done first: a later exec makes the other socket readable again.
        self.drain_execs();
        let mut slices: Vec<_> = self.buffers.iter_mut().map(|buffer| [IoSliceMut::new(buffer)]).collect();
        let received =
            recvmmsg(self.socket.as_raw_fd(), &mut self.headers, slices.iter_mut(), MsgFlags::MSG_DONTWAIT, None);
        let mut count = 0;
        match received {
            Ok(received) => {
                for message in received {
                    count += 1;
                    // Root could send here too; only port 0 is the kernel.
                    if message.address.is_some_and(|from| from.pid() != 0) {
                        continue;
                    }
                    if let Some(event) = message.iovs().next().and_then(ProcEvent::parse) {
                        sink(event);
                    }
                }
            }
            Err(Errno::EAGAIN) => return Ok(ReadOutcome::All),
            Err(Errno::ENOBUFS) => return Ok(ReadOutcome::Overrun),
            Err(Errno::EINTR) => return Ok(ReadOutcome::More),
            Err(error) => return Err(error.into()),
        }
        Ok(if count < BATCH { ReadOutcome::All } else { ReadOutcome::More })
    }

    /// Socket that is readable when a process has executed a program since the last [`ProcConnector::read`]. Other events
    /// may gather; the program of a process must be looked up before the process ends.
    pub fn exec_fd(&self) -> BorrowedFd<'_> {
        self.exec_socket.as_fd()
    }

    /// Discards pending execs, up to a bound.
    fn drain_execs(&mut self) {
        let buffers = self.buffers.iter_mut().take(MAX_EXECS_READ);
        let mut slices: Vec<_> = buffers.map(|buffer| [IoSliceMut::new(buffer)]).collect();
        let flags = MsgFlags::MSG_DONTWAIT;
        // Either nothing is pending, or wake-ups were lost, or the other socket reports the error too.
        let _ = recvmmsg(self.exec_socket.as_raw_fd(), &mut self.headers, slices.iter_mut(), flags, None);
    }

    /// Returns true if the fork of a child and its exit, with its code, are reported.
    fn self_test(&mut self) -> io::Result<bool> {
        let child = if is_single_threaded() {
            PidFd::of_child(fork_child(Vec::new(), |_| PROOF_CODE)?)?
        } else {
            let argv = ["sh", "-c", &format!("exit {PROOF_CODE}")].map(Into::into).to_vec();
            spawn(SpawnRequest { argv, ..SpawnRequest::new("/bin/sh") }).map_err(io::Error::other)?.process
        };
        let pid = child.id().pid;
        wait_readable(&child, Instant::now() + CHILD_DEADLINE);
        let deadline = Instant::now() + PROOF_DEADLINE;
        let (mut forked, mut exited) = (false, false);
        let mut result = Ok(());
        while !(forked && exited) && result.is_ok() && wait_readable(&self.socket, deadline) {
            let read = self.read(|event| match event {
                ProcEvent::Fork { child, .. } => forked |= child == pid,
                ProcEvent::LeaderExited { pid: gone, exit, .. } => {
                    exited |= gone == pid && exit == ExitStatus::Code(PROOF_CODE.into());
                }
                _ => {}
            });
            // An overrun proves that the connector is not silent.
            let is_overrun = matches!(read, Ok(ReadOutcome::Overrun));
            (forked, exited) = (forked || is_overrun, exited || is_overrun);
            result = read.map(drop);
        }
        reap(&child);
        result.map(|()| forked && exited)
    }
}

/// Opens a member of the connector's multicast group that receives messages passing the filter.
fn open_group_socket(filter: Option<&[SockFilter]>) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(netlink::CONNECTOR))?;
    match filter {
        Some(filter) => SockRef::from(&socket).attach_filter(filter)?,
        // May exceed the system's bound with the privilege, else stays within it.
        None => sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER)
            .or_else(|_| sockopt::set_socket_recv_buffer_size(&socket, BUFFER))?,
    }
    bind(&socket, &SocketAddrNetlink::new(0, CN_IDX_PROC))?;
    Ok(socket)
}

/// Returns true if the kernel accepts a mask of events, as it does since 6.6.
fn has_mask() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.trim().parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(6))
}

impl Drop for ProcConnector {
    fn drop(&mut self) {
        // The kernel keeps counting a listener that only closes its socket, and produces events for nobody.
        let _ = self.pause();
    }
}

impl AsFd for ProcConnector {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn unavailable(why: String) -> UnavailableFeature {
    UnavailableFeature {
        what: "the kernel's proc connector".into(),
        why,
        advice: "run in the host's PID, user and network namespaces on a kernel with CONFIG_PROC_EVENTS \
                 (unprivileged since 6.6); until then processes are observed by polling"
            .into(),
    }
}

fn wait_readable(fd: &impl AsFd, deadline: Instant) -> bool {
    let left = deadline.saturating_duration_since(Instant::now());
    let timeout = Timespec::try_from(left).unwrap_or_default();
    let polled = poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&timeout));
    matches!(polled, Ok(1..) | Err(rustix::io::Errno::INTR)) && !left.is_zero()
}

/// Reaps the self-test's child, which has ended or is about to.
fn reap(child: &PidFd) {
    if !wait_readable(child, Instant::now() + PROOF_DEADLINE) {
        // Fails only if the child is dead after all.
        let _ = child.signal(Signal::Kill);
        wait_readable(child, Instant::now() + PROOF_DEADLINE);
    }
    // Fails only if somebody else has reaped it.
    let _ = child.try_reap();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagram(what: u32, fields: &[u32]) -> Vec<u8> {
        let mut bytes = vec![0; HEADERS];
        bytes.extend(what.to_ne_bytes());
        bytes.extend(0_u32.to_ne_bytes());
        bytes.extend(5_000_000_000_u64.to_ne_bytes());
        bytes.extend(fields.iter().flat_map(|field| field.to_ne_bytes()));
        bytes
    }

    #[test]
    fn datagrams_are_read() {
        let at = 5_000_000_000;
        let cases = [
            (EVENT_FORK, vec![11, 10, 20, 20], ProcEvent::Fork { parent: 10, child: 20, at }),
            (EVENT_FORK, vec![1, 1, 21, 20], ProcEvent::ThreadStarted { process: 20, thread: 21, at }),
            (EVENT_EXEC, vec![20, 20], ProcEvent::Exec { pid: 20, at }),
            (
                EVENT_EXIT,
                vec![20, 20, 7 << 8, 17, 10, 10],
                ProcEvent::LeaderExited { pid: 20, exit: ExitStatus::Code(7), at },
            ),
            (
                EVENT_EXIT,
                vec![21, 20, 9, 17, 10, 10],
                ProcEvent::ThreadExited { process: 20, thread: 21, exit: ExitStatus::Signal(9), at },
            ),
        ];
        for (what, fields, event) in cases {
            assert_eq!(ProcEvent::parse(&datagram(what, &fields)), Some(event));
            assert_eq!(event.at(), at);
        }
        // An acknowledgement, another kind, and bytes that end early.
        assert_eq!(ProcEvent::parse(&datagram(0, &[0])), None);
        assert_eq!(ProcEvent::parse(&datagram(4, &[1, 1, 1, 1])), None);
        let whole = datagram(EVENT_EXEC, &[20, 20]);
        for length in 0..whole.len() {
            assert_eq!(ProcEvent::parse(&whole[..length]), None);
        }
    }

    /// The kernel's filter takes the datagrams of execs, whole, and no others, however short.
    #[test]
    fn only_execs_pass_the_filter() {
        let (ours, theirs) = std::os::unix::net::UnixDatagram::pair().expect("a pair");
        SockRef::from(&theirs).attach_filter(&EXEC_FILTER).expect("attached");
        theirs.set_nonblocking(true).expect("set");
        let exec = datagram(EVENT_EXEC, &[20, 20]);
        let others =
            [EVENT_FORK, EVENT_EXIT, 0, 4, EVENT_EXEC | EVENT_FORK].map(|what| datagram(what, &[20, 20, 0, 17]));
        for other in others.iter().map(Vec::as_slice).chain([&exec[..HEADERS], &[0; 4]]) {
            ours.send(other).expect("sent");
            assert_eq!(theirs.recv(&mut [0; DATAGRAM]).expect_err("it is dropped").kind(), io::ErrorKind::WouldBlock);
        }
        ours.send(&exec).expect("sent");
        let mut buffer = [0; DATAGRAM];
        let length = theirs.recv(&mut buffer).expect("it passes");
        assert_eq!(buffer[..length], exec);
    }
}
