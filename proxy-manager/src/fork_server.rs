//! The host's end of the fork server: its process, its control socket, and who waits for which of its answers.
//!
//! Anyone may send (a packet is sent whole or not at all); one task receives, and reaps the process when it dies. It also watches that the
//! process goes on: see [`watchdog`].

mod child;
mod replacement;
mod watchdog;

use std::{
    collections::HashMap,
    future::Future,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use ipc_protocol::{
    ErrorChain, Event, ExitStatus, ProcessId, ProcessInfo, Receipt, SessionId, Signal, WireError,
    codec::{Inbox, MessageAssembler},
    message::{FromForkServer, Hello, MissingFeature, ProbedFeature, ToForkServer, VERSION},
    packet,
    reattach::{ReceivedMessage, WireFormat},
};
use registry::{ManagerCgroup, PidFd, SpawnOutput, SpawnRequest};
use tokio::{
    io::{AsyncReadExt, Interest, unix::AsyncFd},
    runtime::Handle,
    sync::{mpsc, oneshot, watch::Sender as WatchSender},
    time::timeout,
};

pub use self::child::ChildProgram;
pub(crate) use self::replacement::ForkServers;
use self::watchdog::ForkServerHeartbeat;
use crate::{
    deadlines::Deadlines,
    error::{Error, Result},
    fd_watch::watch,
    replication::LeaseDeadline,
    runtime::watch_stream,
    state::{JournalRecord, started},
    takeover::SweepCoordinator,
};

/// A proxy and what it left have ended.
#[derive(Debug)]
pub(crate) struct ProxyGone {
    pub(crate) exit: Option<ExitStatus>,
    pub(crate) receipt: Box<Receipt>,
}

/// Message of the fork server about a session.
#[derive(Debug)]
pub(crate) enum ForkServerEvent {
    /// The proxy runs, or could not be forked.
    Forked(Result<ProcessId, WireError>),
    /// Something was seen of its processes.
    Observed(Event),
    /// Processes of the session, as requested.
    Listed(Vec<ProcessInfo>),
    /// The last word: its proxy and what that left have ended.
    Gone(ProxyGone),
}

/// Words that may wait for a session's task. Then the fork server waits, which counts what it cannot keep.
const MAX_EVENTS: usize = 256;

#[derive(Debug)]
struct SessionWatcher {
    /// Once it is forked.
    proxy: Option<ProcessId>,
    events: mpsc::Sender<ForkServerEvent>,
}

/// A message on its way: packets, and what goes beside the first.
#[derive(Debug)]
pub(crate) struct OutgoingFrame {
    packets: std::vec::IntoIter<Vec<u8>>,
    /// Sent next, until it is.
    packet: Option<Vec<u8>>,
    fd: Option<OwnedFd>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ForkServerLife {
    Alive,
    /// Of no more use.
    Dead,
    /// The process is gone, and reaped if it was ours to reap.
    Gone,
}

/// A running fork server.
#[derive(Debug)]
pub(crate) struct ForkServer {
    id: ProcessId,
    host: ProcessId,
    /// `None` where a test plays the fork server.
    process: Option<PidFd>,
    socket: AsyncFd<OwnedFd>,
    wire: WireFormat,
    /// `None` once the fork server is of no more use.
    watchers: Mutex<Option<HashMap<SessionId, SessionWatcher>>>,
    life: WatchSender<ForkServerLife>,
    heartbeat: ForkServerHeartbeat,
    /// End of the lease that there was no room for, in milliseconds.
    waiting_lease: Mutex<Option<u64>>,
    /// Time for which it may stand still.
    patience: Option<Duration>,
    takeover: Arc<SweepCoordinator>,
}

/// Reason why the fork server did not say hello.
#[derive(Debug)]
pub(crate) enum NoHello {
    /// Its program is inside a tokio runtime already.
    InRuntime,
    /// Any other, for people.
    Other(String),
}

/// First message of the fork server, or the reason why there was none.
type HelloResult = Result<Hello, NoHello>;
type HelloSender = oneshot::Sender<HelloResult>;

impl ForkServer {
    /// Starts the program and exchanges hellos. It holds the lock of `groups` too, and these stay until it is gone.
    pub(crate) async fn start(
        child: &ChildProgram,
        deadlines: &Deadlines,
        groups: Option<Arc<ManagerCgroup>>,
    ) -> Result<Arc<Self>> {
        let program = child.program();
        let unusable = |reason: String| Error::ChildUnusable { child: program.display().to_string(), reason };
        let system = |operation: &'static str| move |error: io::Error| Error::system(operation, error);
        let (ours, theirs) = packet::packet_pair().map_err(system("making the fork server's socket"))?;
        let host = registry::identify(std::process::id())
            .and_then(PidFd::open)
            .map_err(system("opening a pidfd of this process"))?;
        let host_fd = host.as_fd().try_clone_to_owned().map_err(system("duplicating a pidfd"))?;
        let lock = groups.as_ref().map(|groups| groups.lock().try_clone_to_owned()).transpose();
        let lock = lock.map_err(system("duplicating a lock"))?;
        // It stands still until the exec is confirmed: some 0.2 ms, not worth a thread.
        let spawned = registry::spawn(SpawnRequest {
            argv: proxy_child::fork_server_argv(usize::from(lock.is_some())),
            stderr: SpawnOutput::Inherit,
            // As `proxy_child::CONTROL_FD` and `proxy_child::HOST_PIDFD`.
            fds: [theirs, host_fd].into_iter().chain(lock).collect(),
            ..SpawnRequest::new(&program)
        })
        .map_err(|error| match error {
            WireError::FdsExhausted { operation } => Error::FdsExhausted { operation },
            error => unusable(error.to_string()),
        })?;
        let id = spawned.process.id();
        started::add(id);
        let mut unproven = KillOnDrop(Some(spawned.process));
        let process = unproven.0.as_ref().map(PidFd::try_clone).transpose();
        let watched = unproven.0.as_ref().map(PidFd::try_clone).transpose();
        let (process, watched) =
            process.and_then(|process| Ok((process, watched?))).map_err(system("duplicating a pidfd"))?;
        let death = async move {
            // An error here means that nothing can be waited for any more: as good as dead.
            let watched = watch(watched?, Interest::READABLE).ok()?;
            let _readable = watched.readable().await.ok()?;
            let exit = watched.get_ref().try_reap().ok().flatten();
            started::remove(id);
            // Their directory is removed by the last who has them, and as long as it lives there can be groups in it.
            drop(groups);
            exit
        };
        let (server, heard) =
            Self::connect_with_format(WireFormat::Bincode, process, host.id(), ours, deadlines.fork_server, death)?;
        let hello = server.encode(&ToForkServer::Hello(Hello { version: VERSION, process: host.id() }), None)?;
        let exchange = async {
            server.send(hello).await;
            heard.await.unwrap_or_else(|_| Err(NoHello::Other("its answers cannot be read".to_owned())))
        };
        let result = match timeout(deadlines.hello, exchange).await {
            Err(_) => Err(unusable(format!("it did not say hello within {:?}", deadlines.hello))),
            Ok(Err(NoHello::InRuntime)) => {
                // Of this very program the name says nothing.
                let program = program.read_link().unwrap_or(program);
                Err(Error::ChildInRuntime { child: program.display().to_string() })
            }
            Ok(Err(NoHello::Other(reason))) => Err(unusable(reason)),
            Ok(Ok(theirs)) if theirs.version != VERSION => {
                Err(Error::VersionMismatch { ours: VERSION, theirs: theirs.version })
            }
            // Where /proc hides it, nobody could tell whether it lives, nor its proxies. One that is gone by now is seen by its pidfd.
            Ok(Ok(_)) => match registry::identify(id.pid) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(Error::system("looking at the fork server", error))
                }
                _ => Ok(()),
            },
        };
        match result {
            Ok(()) => {
                unproven.0 = None;
                Ok(server)
            }
            Err(error) => {
                drop(unproven);
                server.gone_within(deadlines.hello).await;
                Err(error)
            }
        }
    }

    /// Takes over a connection, of one that a test plays. `death` resolves when the process is gone.
    #[cfg(test)]
    pub(crate) fn connect(
        process: Option<PidFd>,
        host: ProcessId,
        socket: OwnedFd,
        death: impl Future<Output = Option<ExitStatus>> + Send + 'static,
    ) -> Result<(Arc<Self>, oneshot::Receiver<HelloResult>)> {
        Self::connect_with_format(WireFormat::Bincode, process, host, socket, None, death)
    }

    fn connect_with_format(
        wire: WireFormat,
        process: Option<PidFd>,
        host: ProcessId,
        socket: OwnedFd,
        patience: Option<Duration>,
        death: impl Future<Output = Option<ExitStatus>> + Send + 'static,
    ) -> Result<(Arc<Self>, oneshot::Receiver<HelloResult>)> {
        let socket = watch(socket, Interest::READABLE | Interest::WRITABLE)
            .map_err(|error| Error::system("watching the fork server's socket", error))?;
        let id = process.as_ref().map_or(ProcessId { pid: 0, start_time: 0 }, PidFd::id);
        // A session's group that it was moved to is not to be killed with it.
        registry::add_supervisor(id);
        let watchers = Mutex::new(Some(HashMap::new()));
        let life = WatchSender::new(ForkServerLife::Alive);
        let (heartbeat, waiting_lease, takeover) = (ForkServerHeartbeat::default(), Mutex::default(), Arc::default());
        let server = Arc::new(Self {
            id,
            host,
            process,
            socket,
            wire,
            watchers,
            life,
            heartbeat,
            waiting_lease,
            patience,
            takeover,
        });
        let (hello, heard) = oneshot::channel();
        tokio::spawn(server.clone().supervise(hello, death));
        Ok((server, heard))
    }

    /// Takes over one whose host has died, which has said hello. It is nobody's child: nobody learns how it ends.
    pub(crate) fn adopt(
        process: ProcessId,
        host: ProcessId,
        socket: OwnedFd,
        wire: WireFormat,
        deadlines: &Deadlines,
    ) -> Result<Arc<Self>> {
        let system = |error: io::Error| Error::system("taking over a fork server", error);
        let process = PidFd::open(process).map_err(system)?;
        let watched = process.try_clone().map_err(system)?;
        let death = async move {
            let watched = watch(watched, Interest::READABLE).ok()?;
            let _readable = watched.readable().await.ok()?;
            None
        };
        let (server, _hello) =
            Self::connect_with_format(wire, Some(process), host, socket, deadlines.fork_server, death)?;
        let mut hello = server.encode(&ToForkServer::Hello(Hello { version: VERSION, process: host }), None)?;
        // The socket is fresh: there is room. If it is dead already, its death tells.
        let _ = server.try_send(&mut hello);
        Ok(server)
    }

    /// Returns the encoding of its messages and of its proxies'.
    pub(crate) fn wire(&self) -> WireFormat {
        self.wire
    }

    /// A message to it.
    pub(crate) fn encode(&self, message: &ToForkServer, fd: Option<OwnedFd>) -> Result<OutgoingFrame> {
        let packets = self.wire.encode_packets(message).map_err(Error::protocol)?;
        let mut packets = packets.into_iter();
        Ok(OutgoingFrame { packet: packets.next(), packets, fd })
    }

    /// Returns the process of the fork server.
    pub(crate) fn id(&self) -> ProcessId {
        self.id
    }

    /// Returns the process of this host.
    pub(crate) fn host(&self) -> ProcessId {
        self.host
    }

    pub(crate) fn is_dead(&self) -> bool {
        *self.life.borrow() != ForkServerLife::Alive
    }

    /// Returns whether it is dead, also where nobody has noticed yet.
    fn is_dying(&self) -> bool {
        self.is_dead() || (self.process.is_some() && registry::is_doomed(self.id))
    }

    /// Resolves when it is of no more use.
    pub(crate) async fn dies(&self) {
        // It fails only without this.
        let _ = self.life.subscribe().wait_for(|life| *life != ForkServerLife::Alive).await;
    }

    /// Ends what is left of a session in the place of this fork server, which is dead. The receiver fails where that cannot be done.
    pub(crate) fn sweep(&self, record: JournalRecord) -> oneshot::Receiver<Receipt> {
        self.takeover.sweep(record)
    }

    fn watchers(&self) -> MutexGuard<'_, Option<HashMap<SessionId, SessionWatcher>>> {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers for what will be said of `session`, whose proxy is this, if it has one already. It ends with [`ForkServerEvent::Gone`] or [`ForkServerEvent::Forked`] with an error; if it
    /// ends without, the fork server is dead.
    pub(crate) fn watch(&self, session: &SessionId, proxy: Option<ProcessId>) -> mpsc::Receiver<ForkServerEvent> {
        let (words, heard) = mpsc::channel(MAX_EVENTS);
        if let Some(watchers) = &mut *self.watchers() {
            watchers.insert(session.clone(), SessionWatcher { proxy, events: words });
        }
        heard
    }

    /// Sends what can be sent without a wait.
    ///
    /// # Errors
    /// `WouldBlock`: try again when [`ForkServer::writable`]. Any other: the fork server is dead or dying.
    pub(crate) fn try_send(&self, order: &mut OutgoingFrame) -> io::Result<()> {
        while let Some(packet) = &order.packet {
            let fd = order.fd.as_ref().map(AsFd::as_fd);
            self.socket.try_io(Interest::WRITABLE, |socket| packet::send_packet(socket, packet, fd))?;
            order.fd = None;
            order.packet = order.packets.next();
            self.heartbeat.was_asked();
        }
        Ok(())
    }

    /// Extends the lease on its sessions. Where there is no room, the newest one goes once there is.
    pub(crate) fn renew_lease(self: &Arc<Self>, LeaseDeadline(until): LeaseDeadline) {
        let until_ms = u64::try_from(until.as_millis()).unwrap_or(u64::MAX);
        let waits = self.waiting_lease().replace(until_ms).is_some();
        if waits || self.send_lease() {
            return;
        }
        if let Ok(runtime) = Handle::try_current() {
            let server = self.clone();
            runtime.spawn(async move {
                while !server.send_lease() {
                    server.writable().await;
                }
            });
        }
    }

    /// Sends the lease that waits. Returns false if there is no room.
    fn send_lease(&self) -> bool {
        let mut waiting = self.waiting_lease();
        let Some(until_ms) = *waiting else { return true };
        // A number is never too long to be sent.
        let order = self.encode(&ToForkServer::Lease { until_ms }, None);
        // Any other error means that it is dead or dying, and its sessions with it.
        let is_full = order.is_ok_and(|mut order| {
            self.try_send(&mut order).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        });
        if !is_full {
            *waiting = None;
        }
        !is_full
    }

    fn waiting_lease(&self) -> MutexGuard<'_, Option<u64>> {
        self.waiting_lease.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Continues it, if somebody has stopped or frozen it.
    pub(crate) fn continue_if_stopped(&self) {
        if let Some(process) = &self.process {
            registry::free_supervisor(process.id().pid);
            // It fails only if it is gone.
            let _ = process.signal(Signal::Cont);
        }
    }

    /// Waits until there may be room to send.
    pub(crate) async fn writable(&self) {
        // An error can only mean that the runtime is going down.
        let _ = self.socket.writable().await;
    }

    async fn send(&self, mut order: OutgoingFrame) {
        while let Err(error) = self.try_send(&mut order) {
            if error.kind() != io::ErrorKind::WouldBlock {
                return;
            }
            self.writable().await;
        }
    }

    /// Has it try a feature of the machine.
    ///
    /// # Errors
    /// [`Error::ForkServerDied`]; [`Error::Deadline`]; [`Error::System`] where it can start no process for it.
    pub(crate) async fn probe(&self, feature: ProbedFeature) -> Result<Result<(), MissingFeature>> {
        const WHAT: &str = "trying what the machine offers";
        let failed = |error: io::Error| Error::system(WHAT, error);
        let (ours, theirs) = packet::stream_pair().map_err(failed)?;
        rustix::io::write(&ours, &[feature as u8]).map_err(|error| failed(error.into()))?;
        let mut answer = watch_stream(ours)?;
        self.continue_if_stopped();
        let order = self.encode(&ToForkServer::Probe, Some(theirs))?;
        let probed = async {
            self.send(order).await;
            let mut inbox = Inbox::default();
            loop {
                let len = answer.read(inbox.spare()).await.map_err(failed)?;
                if len == 0 {
                    return Err(if self.is_dead() {
                        Error::ForkServerDied
                    } else {
                        failed(io::ErrorKind::BrokenPipe.into())
                    });
                }
                inbox.filled(len);
                let message = inbox.next_message::<Result<(), MissingFeature>>();
                if let Some(probed) = message.map_err(Error::protocol)? {
                    return Ok(probed);
                }
            }
        };
        let late = |_| Error::Deadline { operation: WHAT.to_owned(), after: PROBE_DEADLINE };
        timeout(PROBE_DEADLINE, probed).await.map_err(late)?
    }

    /// Closes the connection: the fork server ends what it still guards, then itself.
    pub(crate) fn close(&self) {
        self.continue_if_stopped();
        // Fails only if it is closed already.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    /// Closes the connection and waits for the process to be gone. If it does not go and guards nothing (`expendable`),
    /// it is killed.
    pub(crate) async fn finish(&self, deadline: Duration, expendable: bool) {
        self.close();
        if self.gone_within(deadline).await {
            return;
        }
        tracing::warn!(fork_server = %self.id, killed = expendable, "the fork server did not exit within {deadline:?}");
        if expendable && let Some(process) = &self.process {
            // Fails only if it is gone.
            let _ = process.signal(Signal::Kill);
            self.gone_within(deadline).await;
        }
    }

    /// Closes the connection and waits for the process to be gone, where the runtime of its supervising task has ended.
    pub(crate) async fn finish_unsupervised(&self, deadline: Duration) {
        self.close();
        let gone = async {
            let Some(process) = &self.process else { return Ok(None) };
            let watched = watch(process.try_clone()?, Interest::READABLE)?;
            let _readable = watched.readable().await?;
            watched.get_ref().try_reap()
        };
        match timeout(deadline, gone).await {
            Ok(Ok(exit)) => tracing::debug!(fork_server = %self.id, ?exit, "the fork server is gone"),
            Ok(Err(error)) => tracing::warn!(fork_server = %self.id, %error, "failed to wait for the fork server"),
            Err(_) => return tracing::warn!(fork_server = %self.id, "the fork server did not exit within {deadline:?}"),
        }
        started::remove(self.id);
        registry::remove_supervisor(self.id);
        self.life.send_replace(ForkServerLife::Gone);
    }

    async fn gone_within(&self, deadline: Duration) -> bool {
        timeout(deadline, self.life.subscribe().wait_for(|life| *life == ForkServerLife::Gone)).await.is_ok()
    }

    /// Receives until the connection or the process ends, then sees the process off.
    async fn supervise(self: Arc<Self>, hello: HelloSender, death: impl Future<Output = Option<ExitStatus>>) {
        let mut hello = Some(hello);
        let mut death = std::pin::pin!(death);
        let exit = tokio::select! {
            exit = &mut death => {
                // What it said before it died still counts. Nobody else holds its end, so this comes to an end.
                let _ = timeout(DRAIN_TIMEOUT, self.receive(&mut hello)).await;
                Some(exit)
            }
            reason = self.receive(&mut hello) => {
                tracing::debug!(fork_server = %self.id, reason, "connection to the fork server ended");
                None
            }
            reason = self.stands_still() => {
                tracing::error!(fork_server = %self.id, reason, "the fork server is killed: the host ends its sessions");
                Some(self.kill_and_reap(&mut death).await)
            }
        };
        // Whoever waits for an answer learns of the death by this.
        *self.watchers() = None;
        self.life.send_replace(ForkServerLife::Dead);
        let exit = match exit {
            Some(exit) => exit,
            None => death.await,
        };
        registry::remove_supervisor(self.id);
        tracing::debug!(fork_server = %self.id, ?exit, "the fork server is gone");
        if let Some(hello) = hello {
            let status = exit.map_or_else(String::new, |exit| format!(" ({exit})"));
            // Nobody listens if the build was given up.
            let _ = hello.send(Err(match exit {
                Some(ExitStatus::Code(proxy_child::IN_RUNTIME)) => NoHello::InRuntime,
                _ => NoHello::Other(format!("it ended{status} without saying hello")),
            }));
        }
        self.life.send_replace(ForkServerLife::Gone);
    }

    /// Receives until the connection ends; says why it did.
    async fn receive(&self, hello: &mut Option<HelloSender>) -> String {
        let mut buffer = Vec::new();
        let mut assembler = MessageAssembler::default();
        loop {
            self.heartbeat.waits(true);
            let Ok(mut ready) = self.socket.readable().await else { return "the runtime is going down".to_owned() };
            self.heartbeat.waits(false);
            let received = match ready.try_io(|socket| packet::recv_packet(socket, &mut buffer)) {
                Err(_would_block) => continue,
                Ok(received) => received,
            };
            match received {
                Ok(Some(_none)) => {}
                Ok(None) => return "closed".to_owned(),
                // A descriptor was dropped for want of a free number. The packet itself is there.
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {}
                Err(error) => return error.to_string(),
            }
            let message = match self.wire.frame(&mut assembler, &buffer) {
                // A later release's, which can be done without.
                Ok(None | Some(ReceivedMessage::Unknown(_))) => continue,
                Ok(Some(ReceivedMessage::Understood(message))) => message,
                Err(error) => {
                    if let Some(hello) = hello.take() {
                        let reason = format!("it said something else than hello: {}", ErrorChain(&error));
                        let _ = hello.send(Err(NoHello::Other(reason)));
                    }
                    return ErrorChain(&error).to_string();
                }
            };
            self.dispatch(message, hello).await;
        }
    }

    async fn dispatch(&self, message: FromForkServer, hello: &mut Option<HelloSender>) {
        self.heartbeat.answered();
        match message {
            FromForkServer::Hello(theirs) => {
                if let Some(hello) = hello.take() {
                    // It fails if the build was given up.
                    let _ = hello.send(Ok(theirs));
                }
            }
            FromForkServer::Forked { session, process } => {
                let words = self.watchers().as_mut().and_then(|watchers| {
                    let watcher = watchers.get_mut(&session)?;
                    watcher.proxy = Some(process);
                    Some(watcher.events.clone())
                });
                send_event(words, ForkServerEvent::Forked(Ok(process))).await;
            }
            FromForkServer::ForkFailed { session, error } => {
                let watcher = self.watchers().as_mut().and_then(|watchers| watchers.remove(&session));
                send_event(watcher.map(|watcher| watcher.events), ForkServerEvent::Forked(Err(error))).await;
            }
            FromForkServer::Observed { session, event } => {
                send_event(self.event_sender(&session), ForkServerEvent::Observed(event)).await
            }
            FromForkServer::Listed { session, processes } => {
                send_event(self.event_sender(&session), ForkServerEvent::Listed(processes)).await;
            }
            // Told once, to who took over.
            FromForkServer::Detached(_) => {}
            FromForkServer::ProxyGone { session, process, exit, receipt } => {
                // An earlier session can have had the same name.
                let watcher = self.watchers().as_mut().and_then(|watchers| {
                    watchers.get(&session).filter(|watcher| watcher.proxy == Some(process))?;
                    watchers.remove(&session)
                });
                if watcher.is_none() {
                    tracing::debug!(%session, %process, %receipt, "a proxy is gone that nobody waits for");
                }
                send_event(watcher.map(|watcher| watcher.events), ForkServerEvent::Gone(ProxyGone { exit, receipt }))
                    .await;
            }
        }
    }

    /// Returns the channel of a running session. Messages before its proxy belong to an earlier session of the same name.
    fn event_sender(&self, session: &SessionId) -> Option<mpsc::Sender<ForkServerEvent>> {
        let watchers = self.watchers();
        let watcher = watchers.as_ref()?.get(session)?;
        watcher.proxy.map(|_| watcher.events.clone())
    }
}

/// Says something to a session's task. One that is behind is waited for: it waits for nobody itself.
async fn send_event(words: Option<mpsc::Sender<ForkServerEvent>>, word: ForkServerEvent) {
    if let Some(words) = words {
        // It fails where nobody waits any more: the session has ended without this.
        let _ = words.send(word).await;
    }
}

/// Time for a test of the machine's features.
const PROBE_DEADLINE: Duration = Duration::from_secs(10);
/// Time for reading the last messages of a dead fork server.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// A process that has not proved to be a fork server yet.
struct KillOnDrop(Option<PidFd>);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if let Some(process) = &self.0 {
            // Fails only if it is gone. The supervising task reaps it.
            let _ = process.signal(Signal::Kill);
        }
    }
}
