//! A session's task against a proxy and a fork server that the test plays.

mod clocks;
mod effects;
mod ends;
mod health;
#[path = "../../../../event-log/tests/log/immutable.rs"]
mod immutable;
mod kept;
mod lives;
mod log_failures;
mod operations;
mod purity;
mod resume;
mod taken_over;
mod threads;
mod turns;
mod usage;

use std::{
    future::pending,
    os::fd::OwnedFd,
    sync::{Arc, mpsc},
    time::Duration,
};

use event_log::EventLog;
use ipc_protocol::{
    AbortPolicy, AgentSessionConfig, EndReason, Event, ExitStatus, KillCause, KillOptions, KillScope, LimitAction,
    LimitExceeded, LimitForm, LimitKind, Limits, PermissionAnswer, ProcessId, Proof, Receipt, SessionId, StopReason,
    TimeoutAction, TimeoutKind, WireError,
    codec::{self, Inbox, MessageAssembler},
    message::{FromForkServer, FromProxy, Hello, ProxyCommand, RequestId, ToForkServer, ToProxy, VERSION},
    packet,
    reattach::WireFormat,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, Interest, unix::AsyncFd},
    net::UnixStream,
    sync::oneshot,
    time::{Instant, timeout},
};

use super::{
    ActionClass, BEGUN, ENDED, EventToAppend, ForkRequest, ManagedSession, PromptMode, SessionState, SessionTask,
    core::{CoreSetup, SessionCore},
    sockets,
};
use crate::{
    conversation_locks::ConversationLocks,
    deadlines::Deadlines,
    error::Error,
    fd_watch,
    fork_server::ForkServer,
    history::{HistoryLimits, StreamContext},
    homes::SessionHomes,
    launch::{AgentDefaults, LaunchContext, SessionLaunch},
    manager::SessionHandle,
    session_table::SessionTable,
};

/// A wait that takes longer has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const PROXY: ProcessId = ProcessId { pid: 100, start_time: 1 };
const AGENT: ProcessId = ProcessId { pid: 101, start_time: 2 };
const TOOL: ProcessId = ProcessId { pid: 102, start_time: 3 };
pub(crate) const HOST: ProcessId = ProcessId { pid: 1, start_time: 0 };

pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.expect("in time")
}

/// Has the log's writer stand still until what is given back is dropped.
pub(crate) async fn stall(log: &EventLog) -> mpsc::Sender<()> {
    let (go_on, waits) = mpsc::channel::<()>();
    let (told, tells) = oneshot::channel();
    let stall = move |_| {
        told.send(()).expect("heard");
        _ = waits.recv();
    };
    log.put_session(&"other".parse().expect("a valid id"), String::new(), Box::new(stall));
    soon(tells).await.expect("it stalls");
    go_on
}

/// The proxy's end.
pub(crate) struct FakeProxy {
    stream: UnixStream,
    inbox: Inbox,
}

impl FakeProxy {
    pub(crate) async fn send(&mut self, message: FromProxy) {
        let mut bytes = Vec::new();
        codec::encode(&message, &mut bytes).expect("encodes");
        self.stream.write_all(&bytes).await.expect("written");
    }

    pub(crate) async fn receive(&mut self) -> Option<ToProxy> {
        soon(self.next()).await
    }

    /// As [`FakeProxy::receive`], however long that takes.
    pub(crate) async fn next(&mut self) -> Option<ToProxy> {
        loop {
            if let Some(message) = self.inbox.next_message().expect("decodes") {
                return Some(message);
            }
            let read = self.stream.read(self.inbox.spare()).await.ok().filter(|read| *read > 0)?;
            self.inbox.filled(read);
        }
    }

    pub(crate) async fn hello(&mut self) -> RequestId {
        let hello = self.receive().await;
        assert_eq!(hello, Some(ToProxy::Hello(Hello { version: VERSION, process: HOST })));
        self.send(FromProxy::Hello(Hello { version: VERSION, process: PROXY })).await;
        match self.receive().await {
            Some(ToProxy::Request { request, command: ProxyCommand::Start { .. } }) => request,
            other => panic!("no start: {other:?}"),
        }
    }

    async fn start(&mut self, turns: bool) {
        let request = self.hello().await;
        self.is_ready(request, None, turns).await;
    }

    /// Its agent is ready, as was asked for.
    pub(crate) async fn is_ready(&mut self, request: RequestId, native_session_id: Option<&str>, turns: bool) {
        let (native_session_id, measures) = (native_session_id.map(str::to_owned), Box::default());
        self.send(FromProxy::Started { request, process: AGENT, native_session_id, turns, measures }).await;
    }

    /// Expects a prompt and takes it.
    pub(crate) async fn take_prompt(&mut self, expected: &str) -> u64 {
        match self.receive().await {
            Some(ToProxy::Request { request, command: ProxyCommand::Prompt { turn, prompt } }) => {
                assert_eq!(prompt.text(), expected);
                self.send(FromProxy::Done { request }).await;
                turn
            }
            other => panic!("no prompt: {other:?}"),
        }
    }

    pub(crate) async fn end_turn(&mut self, turn: u64) {
        let event = Event::Complete { stop_reason: StopReason::EndTurn, usage: None };
        self.send(FromProxy::Event { turn, event }).await;
        self.send(FromProxy::TurnEnded { turn }).await;
    }
}

/// The fork server's end.
pub(crate) struct FakeForkServer {
    socket: AsyncFd<OwnedFd>,
    assembler: MessageAssembler,
}

impl FakeForkServer {
    async fn receive(&mut self) -> (ToForkServer, Option<OwnedFd>) {
        soon(self.next()).await
    }

    /// As [`FakeForkServer::receive`], however long that takes.
    async fn next(&mut self) -> (ToForkServer, Option<OwnedFd>) {
        loop {
            let mut ready = self.socket.readable().await.expect("watched");
            let mut buffer = Vec::new();
            let Ok(received) = ready.try_io(|socket| packet::recv_packet(socket, &mut buffer)) else { continue };
            let fd = received.expect("received").expect("open");
            if let Some(message) = self.assembler.frame(&buffer).expect("decodes") {
                return (message, fd);
            }
        }
    }

    fn send(&self, message: &FromForkServer) {
        for packet in codec::encode_packets(message).expect("encodes") {
            packet::send_packet(&self.socket, &packet, None).expect("sent");
        }
    }

    pub(crate) fn gone(&self, session: &SessionId, receipt: Receipt) {
        let exit = Some(ExitStatus::Code(0));
        self.send(&FromForkServer::ProxyGone {
            session: session.clone(),
            process: PROXY,
            exit,
            receipt: Box::new(receipt),
        });
    }

    pub(crate) async fn fork(&mut self) -> FakeProxy {
        let (message, fd) = self.receive().await;
        let ToForkServer::Fork { session, .. } = message else { panic!("no fork: {message:?}") };
        self.send(&FromForkServer::Forked { session, process: PROXY });
        let stream = std::os::unix::net::UnixStream::from(fd.expect("a socket"));
        FakeProxy { stream: UnixStream::from_std(stream).expect("watched"), inbox: Inbox::default() }
    }
}

/// A session that starts.
struct Starting {
    handle: SessionHandle,
    ready: Ready,
    proxy: FakeProxy,
    fork_server: FakeForkServer,
}

/// A session that is ready.
struct Running {
    handle: SessionHandle,
    proxy: FakeProxy,
    fork_server: FakeForkServer,
}

/// Nobody is late.
pub(crate) fn patient() -> Deadlines {
    Deadlines { wedged: PATIENCE, kill: PATIENCE, health: None, ..Deadlines::default() }
}

/// A proxy that does not answer is soon given up.
fn quick() -> Deadlines {
    Deadlines { wedged: Duration::from_millis(30), ..patient() }
}

fn plan(config: AgentSessionConfig, leases: &Arc<ConversationLocks>) -> crate::error::Result<SessionLaunch> {
    let config = AgentSessionConfig { command: vec!["agent".into()], ..config };
    let kit = AgentDefaults { cwd: "/".to_owned(), max_depth: 3, ..AgentDefaults::default() };
    let homes = SessionHomes::persistent("/nowhere".into(), []);
    SessionLaunch::plan(
        config,
        &LaunchContext { defaults: &kit, homes: &homes, workspaces: None, locks: leases, past_session: &|_| None },
    )
}

async fn starting(config: AgentSessionConfig, deadlines: Deadlines, limits: HistoryLimits) -> Starting {
    launched(plan(config, &Arc::default()).expect("valid"), deadlines, limits).await
}

async fn launched(launch: SessionLaunch, deadlines: Deadlines, limits: HistoryLimits) -> Starting {
    launched_in(launch, deadlines, &StreamContext { limits, ..StreamContext::default() }).await
}

async fn launched_in(launch: SessionLaunch, deadlines: Deadlines, streams: &StreamContext) -> Starting {
    let (handle, ready, mut fork_server) = begun_in(launch, deadlines, streams);
    let proxy = fork_server.fork().await;
    Starting { handle, ready, proxy, fork_server }
}

/// Runs a session whose proxy is not forked yet.
fn begun_in(
    launch: SessionLaunch,
    deadlines: Deadlines,
    streams: &StreamContext,
) -> (SessionHandle, Ready, FakeForkServer) {
    let (session, inlets, log) = ManagedSession::new(launch.description.clone(), deadlines, streams, &Arc::default());
    let task =
        |ours| SessionTask::new(session.clone(), inlets, log, launch, ours, HOST, Arc::default()).expect("a task");
    let (ready, fork_server) = run(&session, task);
    (SessionHandle::new(session), ready, fork_server)
}

type Ready = tokio::sync::oneshot::Receiver<crate::error::Result<()>>;

/// One that the test plays.
pub(crate) fn fork_server() -> (Arc<ForkServer>, FakeForkServer) {
    let (ours, theirs) = packet::packet_pair().expect("a pair");
    let (server, _hello) = ForkServer::connect(None, HOST, ours, pending()).expect("watched");
    let socket = fd_watch::watch(theirs, Interest::READABLE | Interest::WRITABLE).expect("watched");
    (server, FakeForkServer { socket, assembler: MessageAssembler::default() })
}

/// Runs what `task` makes of the session's end of a socket.
fn run(
    session: &Arc<ManagedSession>,
    task: impl FnOnce(UnixStream) -> (SessionTask, Ready),
) -> (Ready, FakeForkServer) {
    let (server, played) = fork_server();
    let directory = Arc::new(SessionTable::new(10));
    let (ours, theirs) = sockets().expect("a pair");
    let (task, ready) = task(ours);
    directory.insert(session).expect("free");
    tokio::spawn(async move {
        task.run(ForkRequest { server, socket: theirs }).await;
        drop(directory);
    });
    (ready, played)
}

async fn running_with(config: AgentSessionConfig, deadlines: Deadlines, limits: HistoryLimits, turns: bool) -> Running {
    let Starting { handle, ready, mut proxy, fork_server } = starting(config, deadlines, limits).await;
    proxy.start(turns).await;
    soon(ready).await.expect("an answer").expect("ready");
    Running { handle, proxy, fork_server }
}

async fn running() -> Running {
    running_with(AgentSessionConfig::new("acp"), patient(), HistoryLimits::default(), true).await
}

pub(crate) fn receipt(session: &SessionId) -> Receipt {
    let unmarked = Some(true);
    Receipt { proof: Proof::NoChildren, rounds: 1, unmarked, ..Receipt::begin(session.clone(), KillCause::KillSession) }
}

pub(crate) fn guard_receipt(session: &SessionId) -> Receipt {
    Receipt { proof: Proof::QuietRounds(3), rounds: 3, ..receipt(session) }
}

/// Ends it as it is told to. For what reason that is.
async fn end(mut proxy: FakeProxy, fork_server: FakeForkServer, id: &SessionId) -> EndReason {
    let Some(ToProxy::Request { command: ProxyCommand::Kill { reason, .. }, .. }) = proxy.receive().await else {
        panic!("no shutdown")
    };
    proxy.send(FromProxy::Ended { reason: reason.clone(), receipt: Box::new(receipt(id)) }).await;
    drop(proxy);
    fork_server.gone(id, guard_receipt(id));
    reason
}

/// Lets what was sent to the session's task arrive there, by a round trip behind it.
async fn round_trip(handle: &SessionHandle, proxy: &mut FakeProxy) {
    let (pinged, ()) = tokio::join!(handle.ping(), async {
        match proxy.receive().await {
            Some(ToProxy::Request { request, command: ProxyCommand::Ping }) => {
                proxy.send(FromProxy::Done { request }).await
            }
            other => panic!("no ping: {other:?}"),
        }
    });
    pinged.expect("pong");
}

fn kinds(handle: &SessionHandle) -> impl Future<Output = Vec<String>> {
    let last = handle.info().last_offset;
    let mut subscription = handle.subscribe();
    async move {
        let mut kinds = Vec::new();
        while (kinds.len() as u64) < last {
            let envelope = soon(subscription.next()).await.expect("an event");
            let json = envelope.to_json().expect("serializes");
            let kind = json["type"].as_str().expect("a type").to_owned();
            kinds.push(format!("{kind}@{}", envelope.turn.unwrap_or(0)));
        }
        kinds
    }
}
