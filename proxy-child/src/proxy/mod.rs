//! Proxy: one process, one session, one agent.
//!
//! Everything happens on one thread, in the order in which it is noticed: bytes from the host, bytes from the agent, deaths, and the
//! clock. Only [`ProxyLoop::wait`] waits.
//!
//! ARCHITECTURE.md has the chart of a proxy's life.

mod agent;
mod containment;
pub(crate) mod detachment;
mod egress;
mod event_split;
mod file_audit;
mod files;
mod hooks;
#[cfg(feature = "opencode")]
mod http;
#[cfg(not(feature = "opencode"))]
#[path = "no_http.rs"]
mod http;
pub(crate) mod limits;
mod link;
#[cfg(feature = "websocket")]
mod message_socket;
#[cfg(not(feature = "websocket"))]
#[path = "no_message_socket.rs"]
mod message_socket;
mod operations;
mod permissions;
mod polling;
mod raw_lines;
pub(crate) mod replay_buffer;
mod reply_limit;
mod session;

use std::{
    future::pending,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    time::{Duration, Instant},
};

use agents::Adapters;
use ipc_protocol::{
    EndReason, ErrorChain, KillOptions, ProcessId, SessionId,
    codec::MessageAssembler,
    message::{DetachSpec, ProxyHandover},
    packet::recv_packet,
};
use nix::sys::{
    signal::{SigSet, Signal},
    signalfd::{SfdFlags, SignalFd},
};
use registry::ProcessTitle;
use tokio::io::{Interest, unix::AsyncFd};

use self::{agent::OutputStream, link::HostLink, replay_buffer::ReplayBuffer, session::ProxySession};
use crate::own_limits::OwnLimits;

/// Descriptors that a proxy gets: the socket on which the fork server hands it its session, and a pidfd of the fork server.
pub(crate) const FDS: usize = 2;

/// Grace of the session's processes after SIGTERM, when a supervisor is dead.
const SUPERVISOR_GRACE: Duration = Duration::from_millis(300);
/// Longest delay of the proxy's exit by a host that does not read.
const FLUSH_PATIENCE: Duration = Duration::from_secs(2);
/// Bytes queued for the host beyond which the agent's output is left in its pipes.
const HIGH_WATER: usize = 256 * 1024;

/// Runs a proxy, which is forked ahead of its session and waits for it. Returns the exit code; 0 means that it is
/// proven that nothing is left.
pub(crate) fn main(title: ProcessTitle, fds: Vec<OwnedFd>, adapters: &Adapters) -> u8 {
    match run(title, fds, adapters) {
        Ok(true) => 0,
        Ok(false) => 3,
        Err(error) => {
            let text = format_args!("agent-proxy session: {}\n", ErrorChain(&error));
            let _ = std::io::Write::write_fmt(&mut std::io::stderr(), text);
            1
        }
    }
}

fn run(title: ProcessTitle, fds: Vec<OwnedFd>, adapters: &Adapters) -> std::io::Result<bool> {
    // A forked proxy inherits this from the fork server; an executed one does not.
    registry::set_dumpable(false)?;
    // A proxy that is stopped when its guard dies has nobody else to continue it, and a session to end.
    nix::sys::prctl::set_pdeathsig(Signal::SIGCONT)?;
    title.set("ap spare", "agent-proxy: waits for a session")?;
    // SIGCHLD is read from a descriptor. SIGPIPE is to be an error, and never SIG_IGN, which the agent would inherit.
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGCHLD);
    mask.add(Signal::SIGPIPE);
    // Of limits that somebody has lowered: see `own_limits`.
    mask.add(Signal::SIGXCPU);
    mask.add(Signal::SIGXFSZ);
    mask.thread_block()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    runtime.block_on(async {
        let Some(AssignedSession { supervision, session, observed, detach, socket }) =
            ProxySupervision::new(fds)?.wait_for_session().await?
        else {
            return Ok(true);
        };
        // The end of a UUIDv7 differs between sessions that start together.
        let short = &session.as_str()[session.as_str().len().saturating_sub(12)..];
        title.set(&format!("ap {short}"), &format!("agent-proxy: session {session}"))?;
        let kept = detach.as_ref().map(|detach| {
            let path = std::path::Path::new(&detach.directory).join(format!("{session}.spool"));
            ReplayBuffer::new(path, detach)
        });
        let session = ProxySession::new(session, observed, supervision.process, adapters)?;
        let mut proxy = ProxyLoop { link: HostLink::new(socket, kept)?, supervision, session, detach };
        Ok(proxy.run().await)
    })
}

/// Registers a descriptor with the runtime.
pub(crate) fn watch<T: AsFd + AsRawFd>(owner: T) -> std::io::Result<AsyncFd<T>> {
    watch_for(owner, Interest::READABLE | Interest::WRITABLE)
}

/// Registers a descriptor with the runtime, which wakes nobody for anything else.
#[expect(deprecated, reason = "what replaces it is unsafe; it is sound for an owner that lives as long as the watch")]
pub(crate) fn watch_for<T: AsFd + AsRawFd>(owner: T, interest: Interest) -> std::io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(owner, interest)
}

/// State of a proxy before it has a session.
struct ProxySupervision {
    process: ProcessId,
    /// Socket that brings the session. After that it brings the viewers of terminals, a packet for each scan if this proxy has to scan
    /// for its processes itself, and the next host if the session outlives this one.
    handover: Option<AsyncFd<OwnedFd>>,
    sigchld: AsyncFd<SignalFd>,
    guard: AsyncFd<OwnedFd>,
}

impl ProxySupervision {
    fn new(fds: Vec<OwnedFd>) -> std::io::Result<Self> {
        let mut fds = fds.into_iter();
        let (Some(handover), Some(guard)) = (fds.next(), fds.next()) else {
            return Err(std::io::Error::other("started without its descriptors"));
        };
        let mut chld = SigSet::empty();
        chld.add(Signal::SIGCHLD);
        let sigchld = SignalFd::with_flags(&chld, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        Ok(Self {
            process: registry::identify(std::process::id())?,
            handover: Some(watch(handover)?),
            sigchld: watch(sigchld)?,
            guard: watch(guard)?,
        })
    }

    /// Waits for the session and the socket to its host. Returns `None` if there will be none.
    async fn wait_for_session(mut self) -> std::io::Result<Option<AssignedSession>> {
        let Some(handover) = self.handover.take() else { return Ok(None) };
        let mut packet = Vec::new();
        loop {
            tokio::select! {
                ready = handover.readable() => {
                    let received = ready?.try_io(|handover| recv_packet(handover.get_ref(), &mut packet));
                    match received {
                        Ok(Ok(Some(Some(socket)))) => {
                            let message = MessageAssembler::default().frame(&packet).map_err(std::io::Error::other)?;
                            let Some(ProxyHandover::Session { session, observed, detach }) = message else {
                                return Ok(None);
                            };
                            self.handover = Some(handover);
                            return Ok(Some(AssignedSession { supervision: self, session, observed, detach, socket }));
                        }
                        Ok(Ok(_)) => return Ok(None),
                        Ok(Err(error)) => return Err(error),
                        Err(_would_block) => {}
                    }
                }
                _ = self.guard.readable() => return Ok(None),
            }
        }
    }
}

/// Session as handed over by the fork server.
struct AssignedSession {
    supervision: ProxySupervision,
    session: SessionId,
    observed: bool,
    detach: Option<Box<DetachSpec>>,
    /// Socket to the host.
    socket: OwnedFd,
}

/// Waits until the fork server has sent something.
async fn handover_readable(handover: Option<&AsyncFd<OwnedFd>>) {
    match handover {
        Some(handover) if handover.readable().await.is_ok() => {}
        _ => pending().await,
    }
}

struct ProxyLoop<'a> {
    link: HostLink,
    supervision: ProxySupervision,
    session: ProxySession<'a>,
    /// Detach configuration, if the session outlives its host.
    detach: Option<Box<DetachSpec>>,
}

/// Event that wakes the proxy.
#[derive(Clone, Copy, Debug)]
enum ProxyWake {
    HostReadable,
    HostWritable,
    Stdout,
    Stderr,
    HttpReadable,
    Stdin,
    ChildExited,
    GuardExited,
    ForkServerNotice,
    Terminal,
    Timer,
}

impl ProxyLoop<'_> {
    /// Runs the session. Returns whether it is proven that nothing is left.
    async fn run(&mut self) -> bool {
        self.session.greet(&mut self.link);
        self.link.flush();
        let (mut lost_host, mut gave_up) = (false, false);
        let mut own_limits = OwnLimits::note();
        while self.session.ended().is_none() {
            // A write may notice the host's end before a read does.
            let closed = self.link.is_closed() && self.link.detached().is_none();
            if closed && (!lost_host || self.link.is_detachable()) {
                lost_host = true;
                self.handle_host_loss();
            }
            if !gave_up && self.abandon_at().is_some_and(|at| at <= Instant::now()) {
                gave_up = true;
                self.abandon();
            }
            let wake = self.wait().await;
            // Without enough files it goes on as it can: what it cannot prove the fork server is asked for.
            let _ = own_limits.restore_now_and_then();
            self.handle(wake);
            // Answers go first: they do not wait for a scan of the processes.
            self.link.flush();
            self.session.run_due(&mut self.link);
            self.link.flush();
        }
        self.session.finish_terminals().await;
        self.session.handle_terminal_notices(&mut self.link);
        self.deliver_end().await;
        self.session.ended() == Some(true)
    }

    async fn wait(&mut self) -> ProxyWake {
        let due = self.session.next_due().into_iter().chain(self.abandon_at().filter(|_| self.session.is_live())).min();
        let timer = async {
            match due {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => pending().await,
            }
        };
        // The agent's output waits in its pipes while the host is behind.
        let room = self.link.unsent() < HIGH_WATER;
        let link = &self.link;
        let lost_guard = self.session.lost_guard();
        let (agent, terminals, http) = self.session.agent_io();
        tokio::select! {
            // Deaths and requests come before output: a flood of output must not delay a kill.
            biased;
            ready = self.supervision.sigchld.readable() => {
                while matches!(self.supervision.sigchld.get_ref().read_signal(), Ok(Some(_))) {}
                if let Ok(mut ready) = ready {
                    ready.clear_ready();
                }
                ProxyWake::ChildExited
            }
            () = link.readable() => ProxyWake::HostReadable,
            _ = self.supervision.guard.readable(), if !lost_guard => ProxyWake::GuardExited,
            () = handover_readable(self.supervision.handover.as_ref()) => ProxyWake::ForkServerNotice,
            () = timer => ProxyWake::Timer,
            () = link.writable(), if link.has_unsent() => ProxyWake::HostWritable,
            () = agent::writable(agent) => ProxyWake::Stdin,
            () = agent::stdout_readable(agent), if room => ProxyWake::Stdout,
            () = agent::stderr_readable(agent), if room => ProxyWake::Stderr,
            () = http.readable(), if room => ProxyWake::HttpReadable,
            () = terminals.notified() => ProxyWake::Terminal,
        }
    }

    fn handle(&mut self, wake: ProxyWake) {
        match wake {
            ProxyWake::HostReadable => {
                while let Some(message) = self.link.receive() {
                    self.session.receive(message, &mut self.link);
                }
            }
            ProxyWake::HostWritable | ProxyWake::Timer => {}
            ProxyWake::Stdout => self.session.read(OutputStream::Stdout, &mut self.link),
            ProxyWake::Stderr => self.session.read(OutputStream::Stderr, &mut self.link),
            ProxyWake::HttpReadable => self.session.read_http(&mut self.link),
            ProxyWake::Stdin => self.session.write_stdin(&mut self.link),
            ProxyWake::ChildExited => {
                self.session.reap();
            }
            ProxyWake::ForkServerNotice => {
                let words = self.supervision.take_notices();
                self.handle_notices(words);
            }
            ProxyWake::Terminal => self.session.handle_terminal_notices(&mut self.link),
            ProxyWake::GuardExited => {
                self.session.handle_guard_death();
                self.session.end(EndReason::ForkServerDied, KillOptions::grace(SUPERVISOR_GRACE));
            }
        }
    }
}
