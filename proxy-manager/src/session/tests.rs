//! A session's task against a proxy and a fork server that the test plays.

use std::{future::pending, os::fd::OwnedFd, sync::Arc, time::Duration};

use agents::Catalog;
use ipc_protocol::{
    AbortPolicy, AgentSessionConfig, EndReason, EnvVars, Event, ExitStatus, KillCause, KillOptions, PermissionAnswer,
    ProcessId, Proof, Receipt, SessionId, StopReason, WireError,
    codec::{self, Assembler, Inbox},
    message::{FromForkServer, FromProxy, Hello, RequestId, ToForkServer, ToProxy, VERSION},
    packet,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, Interest, unix::AsyncFd},
    net::UnixStream,
    time::timeout,
};

use super::{Fork, PromptMode, Session, SessionHandle, SessionState, Task};
use crate::{Deadlines, Error, HistoryLimits, directory::Directory, fork_server::ForkServer, launch::Launch, watched};

/// A wait that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(20);
const PROXY: ProcessId = ProcessId { pid: 100, start_time: 1 };
const AGENT: ProcessId = ProcessId { pid: 101, start_time: 2 };
const HOST: ProcessId = ProcessId { pid: 1, start_time: 0 };

async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.expect("in time")
}

/// The proxy's end.
struct FakeProxy {
    stream: UnixStream,
    inbox: Inbox,
}

impl FakeProxy {
    async fn send(&mut self, message: FromProxy) {
        let mut bytes = Vec::new();
        codec::encode(&message, &mut bytes).expect("encodes");
        self.stream.write_all(&bytes).await.expect("written");
    }

    async fn receive(&mut self) -> Option<ToProxy> {
        soon(async {
            loop {
                if let Some(message) = self.inbox.next_message().expect("decodes") {
                    return Some(message);
                }
                let read = self.stream.read(self.inbox.spare()).await.ok().filter(|read| *read > 0)?;
                self.inbox.filled(read);
            }
        })
        .await
    }

    async fn hello(&mut self) -> RequestId {
        let hello = self.receive().await;
        assert_eq!(hello, Some(ToProxy::Hello(Hello { version: VERSION, process: HOST })));
        self.send(FromProxy::Hello(Hello { version: VERSION, process: PROXY })).await;
        match self.receive().await {
            Some(ToProxy::Start { request, .. }) => request,
            other => panic!("no start: {other:?}"),
        }
    }

    async fn start(&mut self, turns: bool) {
        let request = self.hello().await;
        self.send(FromProxy::Started {
            request,
            process: AGENT,
            native_session_id: None,
            turns,
            measures: Box::default(),
        })
        .await;
    }

    /// Expects a prompt and takes it.
    async fn take_prompt(&mut self, expected: &str) -> u64 {
        match self.receive().await {
            Some(ToProxy::Prompt { request, turn, text }) => {
                assert_eq!(text, expected);
                self.send(FromProxy::Done { request }).await;
                turn
            }
            other => panic!("no prompt: {other:?}"),
        }
    }

    async fn end_turn(&mut self, turn: u64) {
        let event = Event::Complete { stop_reason: StopReason::EndTurn, usage: None };
        self.send(FromProxy::Event { turn, event }).await;
        self.send(FromProxy::TurnEnded { turn }).await;
    }
}

/// The fork server's end.
struct FakeForkServer {
    socket: AsyncFd<OwnedFd>,
    assembler: Assembler,
}

impl FakeForkServer {
    async fn receive(&mut self) -> (ToForkServer, Option<OwnedFd>) {
        soon(async {
            loop {
                let mut ready = self.socket.readable().await.expect("watched");
                let mut buffer = Vec::new();
                let Ok(received) = ready.try_io(|socket| packet::recv_packet(socket, &mut buffer)) else { continue };
                let fd = received.expect("received").expect("open");
                if let Some(message) = self.assembler.frame(&buffer).expect("decodes") {
                    return (message, fd);
                }
            }
        })
        .await
    }

    fn send(&self, message: &FromForkServer) {
        for packet in codec::encode_packets(message).expect("encodes") {
            packet::send_packet(&self.socket, &packet, None).expect("sent");
        }
    }

    fn gone(&self, session: &SessionId, receipt: Receipt) {
        let exit = Some(ExitStatus::Code(0));
        self.send(&FromForkServer::ProxyGone {
            session: session.clone(),
            process: PROXY,
            exit,
            receipt: Box::new(receipt),
        });
    }

    async fn fork(&mut self) -> FakeProxy {
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
    ready: tokio::sync::oneshot::Receiver<crate::Result<()>>,
    proxy: FakeProxy,
    fork_server: FakeForkServer,
}

/// A session that is ready.
struct Running {
    handle: SessionHandle,
    proxy: FakeProxy,
    fork_server: FakeForkServer,
}

fn quick() -> Deadlines {
    Deadlines { wedged: Duration::from_millis(30), kill: Duration::from_millis(300), ..Deadlines::default() }
}

async fn starting(config: AgentSessionConfig, deadlines: Deadlines, limits: HistoryLimits) -> Starting {
    let (ours, theirs) = packet::packet_pair().expect("a pair");
    let (server, _hello) = ForkServer::connect(None, HOST, ours, pending()).expect("watched");
    let socket = watched::watch(theirs, Interest::READABLE | Interest::WRITABLE).expect("watched");
    let mut fork_server = FakeForkServer { socket, assembler: Assembler::default() };
    let config = AgentSessionConfig { command: vec!["agent".into()], ..config };
    let launch = Launch::plan(config, &Catalog::default(), &EnvVars::default(), "/").expect("valid");
    let directory = Arc::new(Directory::new(10));
    let id = launch.config.session_id.clone();
    let everyone = directory.everyone().clone();
    let (session, inlets, log) = Session::new(id, launch.labels.clone(), deadlines, limits, everyone);
    let (ours, theirs) = packet::stream_pair().expect("a pair");
    let (task, ready) = Task::new(session.clone(), inlets, log, launch, ours, HOST).expect("a task");
    let serial = directory.insert(&session).expect("free");
    tokio::spawn(task.run(directory, serial, Fork { server, socket: theirs }));
    let proxy = fork_server.fork().await;
    Starting { handle: SessionHandle::new(session), ready, proxy, fork_server }
}

async fn running_with(config: AgentSessionConfig, deadlines: Deadlines, limits: HistoryLimits, turns: bool) -> Running {
    let Starting { handle, ready, mut proxy, fork_server } = starting(config, deadlines, limits).await;
    proxy.start(turns).await;
    soon(ready).await.expect("an answer").expect("ready");
    Running { handle, proxy, fork_server }
}

async fn running() -> Running {
    running_with(AgentSessionConfig::new("acp"), quick(), HistoryLimits::default(), true).await
}

fn receipt(session: &SessionId) -> Receipt {
    Receipt { proof: Proof::NoChildren, rounds: 1, ..Receipt::begin(session.clone(), KillCause::KillSession) }
}

fn guard_receipt(session: &SessionId) -> Receipt {
    Receipt { proof: Proof::QuietRounds(3), rounds: 3, ..receipt(session) }
}

/// Lets what was sent to the session's task arrive there, by a round trip behind it.
async fn round_trip(handle: &SessionHandle, proxy: &mut FakeProxy) {
    let (pinged, ()) = tokio::join!(handle.ping(), async {
        match proxy.receive().await {
            Some(ToProxy::Ping { request }) => proxy.send(FromProxy::Pong { request }).await,
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

#[tokio::test]
async fn turns_come_one_after_the_other() {
    let Running { handle, mut proxy, fork_server: _alive } = running().await;
    let (first, turn) = tokio::join!(handle.prompt("one", PromptMode::Refuse), proxy.take_prompt("one"));
    let first = first.expect("taken");
    assert_eq!((first.number(), turn), (Some(1), 1));
    assert_eq!(handle.info().state, SessionState::Busy { turn: 1 });
    let refused = handle.prompt("no", PromptMode::Refuse).await;
    assert!(matches!(refused, Err(Error::Busy { .. })), "{refused:?}");
    let second = handle.prompt("two", PromptMode::Queue).await.expect("queued");
    let third = handle.prompt("three", PromptMode::Queue).await.expect("queued");
    assert_eq!(second.number(), Some(2));
    proxy.send(FromProxy::Event { turn: 1, event: Event::Text { text: "hi".into() } }).await;
    proxy.end_turn(1).await;
    let end = soon(first.wait()).await.expect("ended");
    assert_eq!((end.turn, end.stop_reason, end.error), (Some(1), Some(StopReason::EndTurn), None));
    assert_eq!(proxy.take_prompt("two").await, 2);
    let message = "overloaded".to_owned();
    proxy
        .send(FromProxy::Event { turn: 2, event: Event::Error { code: "529".into(), message, retryable: true } })
        .await;
    proxy.send(FromProxy::TurnEnded { turn: 2 }).await;
    let end = soon(second.wait()).await.expect("ended");
    assert_eq!((end.turn, end.stop_reason, end.error.as_deref()), (Some(2), None, Some("overloaded")));
    assert_eq!(proxy.take_prompt("three").await, 3);
    proxy.end_turn(3).await;
    assert_eq!(soon(third.wait()).await.expect("ended").turn, Some(3));
    assert_eq!((handle.info().state, handle.info().turns), (SessionState::Idle, 3));
    let expected = "session:started@0 session:idle@0 turn:started@1 session:busy@1 stream:text@1 stream:complete@1 \
                    session:idle@1 turn:started@2 session:busy@2 stream:error@2 session:idle@2 turn:started@3 \
                    session:busy@3 stream:complete@3 session:idle@3";
    assert_eq!(kinds(&handle).await.join(" "), expected);
}

#[tokio::test]
async fn the_queue_is_bounded() {
    let Running { handle, mut proxy, fork_server: _alive } = running().await;
    let (first, _) = tokio::join!(handle.prompt("0", PromptMode::Refuse), proxy.take_prompt("0"));
    let mut tickets = vec![first.expect("taken")];
    for n in 0..super::prompts::MOST_QUEUED {
        tickets.push(handle.prompt(n.to_string(), PromptMode::Queue).await.expect("queued"));
    }
    assert!(matches!(handle.prompt("x", PromptMode::Queue).await, Err(Error::Busy { .. })));
    drop(proxy);
    for ticket in tickets {
        assert!(matches!(soon(ticket.wait()).await, Err(Error::ProxyDied { .. })));
    }
}

#[tokio::test]
async fn steering_and_max_turns() {
    let config = AgentSessionConfig { max_turns: Some(1), ..AgentSessionConfig::new("acp") };
    let Running { handle, mut proxy, fork_server: _alive } =
        running_with(config, quick(), HistoryLimits::default(), true).await;
    assert!(matches!(handle.steer("left").await, Err(Error::Unsupported { .. })), "no turn runs");
    // With no turn to steer, the prompt begins one.
    let (first, _) = tokio::join!(handle.prompt("go", PromptMode::Steer), proxy.take_prompt("go"));
    let first = first.expect("taken");
    assert!(matches!(handle.prompt("more", PromptMode::Queue).await, Err(Error::MaxTurns { max_turns: 1, .. })));
    let (steered, ()) = tokio::join!(handle.steer("left"), async {
        match proxy.receive().await {
            Some(ToProxy::Steer { request, text }) if text == "left" => proxy.send(FromProxy::Done { request }).await,
            other => panic!("no steer: {other:?}"),
        }
    });
    steered.expect("steered");
    let (steered, ()) = tokio::join!(handle.prompt("right", PromptMode::Steer), async {
        let Some(ToProxy::Steer { request, .. }) = proxy.receive().await else { panic!("no steer") };
        proxy.send(FromProxy::Done { request }).await;
    });
    let steered = steered.expect("steered");
    assert_eq!(steered.number(), Some(1));
    let (refused, ()) = tokio::join!(handle.prompt("up", PromptMode::Steer), async {
        let Some(ToProxy::Steer { request, .. }) = proxy.receive().await else { panic!("no steer") };
        let error = WireError::Unsupported { agent: "acp".into(), operation: "be steered".into() };
        proxy.send(FromProxy::Failed { request, error }).await;
    });
    assert!(matches!(refused, Err(Error::Unsupported { .. })));
    proxy.end_turn(1).await;
    assert_eq!(soon(first.wait()).await.expect("ended"), soon(steered.wait()).await.expect("ended"));
    assert!(matches!(handle.prompt("again", PromptMode::Refuse).await, Err(Error::MaxTurns { .. })));
}

#[tokio::test]
async fn a_prompt_that_is_not_taken_leaves_the_session_idle() {
    let Running { handle, mut proxy, fork_server: _alive } = running().await;
    let (refused, ()) = tokio::join!(handle.prompt("one", PromptMode::Refuse), async {
        let Some(ToProxy::Prompt { request, .. }) = proxy.receive().await else { panic!("no prompt") };
        proxy.send(FromProxy::Failed { request, error: WireError::AgentDied { reason: "gone".into() } }).await;
    });
    assert!(matches!(refused, Err(Error::AgentDied { .. })));
    assert_eq!(handle.info().state, SessionState::Idle);
    let too_long = "x".repeat(codec::MAX_MESSAGE);
    assert!(matches!(handle.prompt(too_long, PromptMode::Refuse).await, Err(Error::InvalidConfig { .. })));
    let (taken, turn) = tokio::join!(handle.prompt("two", PromptMode::Refuse), proxy.take_prompt("two"));
    assert_eq!((taken.expect("taken").number(), turn), (Some(2), 2));
}

#[tokio::test]
async fn an_agent_without_turns_is_always_idle() {
    let config = AgentSessionConfig::new("command");
    let Running { handle, mut proxy, fork_server: _alive } =
        running_with(config, quick(), HistoryLimits::default(), false).await;
    for text in ["one", "two"] {
        let (turn, number) = tokio::join!(handle.prompt(text, PromptMode::Refuse), proxy.take_prompt(text));
        let turn = turn.expect("taken");
        assert_eq!((turn.number(), number), (None, 0));
        assert_eq!(soon(turn.wait()).await.expect("at once").turn, None);
        assert_eq!(handle.info().state, SessionState::Idle);
    }
    assert_eq!(handle.info().turns, 2);
}

#[tokio::test]
async fn an_abort_overtakes_nothing_it_is_meant_for() {
    let Running { handle, mut proxy, fork_server: _alive } = running().await;
    let text = "x".repeat(4_000_000);
    let caller = handle.clone();
    let long = text.clone();
    let prompt = tokio::spawn(async move { caller.prompt(long, PromptMode::Refuse).await });
    // The prompt is in the task's hands once the session is busy; it does not fit the socket.
    soon(async {
        while !matches!(handle.info().state, SessionState::Busy { .. }) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let caller = handle.clone();
    let abort = tokio::spawn(async move { caller.abort(AbortPolicy::LeaveProcesses).await });
    proxy.take_prompt(&text).await;
    let Some(ToProxy::Abort { request, .. }) = proxy.receive().await else { panic!("no abort") };
    proxy.send(FromProxy::Done { request }).await;
    soon(prompt).await.expect("no panic").expect("taken");
    soon(abort).await.expect("no panic").expect("aborted");
}

#[tokio::test]
async fn a_silent_proxy_means_a_deadline() {
    let deadlines = Deadlines { control: Duration::from_millis(20), ..quick() };
    let config = AgentSessionConfig::new("acp");
    let Running { handle, mut proxy, fork_server: _alive } =
        running_with(config, deadlines, HistoryLimits::default(), true).await;
    let late = soon(handle.ping()).await;
    assert!(matches!(late, Err(Error::Deadline { .. })), "{late:?}");
    // The answer comes after all, and disturbs nothing.
    let Some(ToProxy::Ping { request }) = proxy.receive().await else { panic!("no ping") };
    proxy.send(FromProxy::Pong { request }).await;
    let denied = tokio::join!(handle.respond_permission("p", PermissionAnswer::Deny), async {
        let Some(ToProxy::Permission { request, .. }) = proxy.receive().await else { panic!("no answer") };
        proxy.send(FromProxy::Failed { request, error: WireError::UnknownPermission { id: "p".into() } }).await;
    });
    assert!(matches!(denied.0, Err(Error::UnknownPermission { .. })));
}

#[tokio::test]
async fn the_start_has_a_deadline_and_leaves_nothing() {
    let deadlines = Deadlines { start: Duration::from_millis(20), ..quick() };
    let config = AgentSessionConfig::new("acp");
    let Starting { handle, ready, mut proxy, fork_server } =
        starting(config, deadlines, HistoryLimits::default()).await;
    proxy.hello().await;
    assert!(matches!(soon(ready).await, Ok(Err(Error::Deadline { .. }))));
    let Some(ToProxy::Shutdown { reason, .. }) = proxy.receive().await else { panic!("no shutdown") };
    proxy.send(FromProxy::Ended { reason, receipt: Box::new(receipt(handle.id())) }).await;
    drop(proxy);
    fork_server.gone(handle.id(), guard_receipt(handle.id()));
    let killed = soon(handle.kill(KillOptions::NOW)).await.expect("a receipt");
    assert_eq!(killed.proof, Proof::NoChildren);
    assert!(matches!(handle.info().state, SessionState::Ended { reason: EndReason::Failed(_), .. }));
}

#[tokio::test]
async fn a_kill_works_while_the_agent_starts() {
    let config = AgentSessionConfig::new("acp");
    let Starting { handle, ready, mut proxy, fork_server } = starting(config, quick(), HistoryLimits::default()).await;
    let caller = handle.clone();
    let kill = tokio::spawn(async move { caller.kill(KillOptions::NOW).await });
    proxy.hello().await;
    assert!(matches!(soon(ready).await, Ok(Err(Error::Ended { .. }))));
    let Some(ToProxy::Shutdown { reason, .. }) = proxy.receive().await else { panic!("no shutdown") };
    proxy.send(FromProxy::Ended { reason, receipt: Box::new(receipt(handle.id())) }).await;
    drop(proxy);
    fork_server.gone(handle.id(), guard_receipt(handle.id()));
    soon(kill).await.expect("no panic").expect("a receipt");
}

#[tokio::test]
async fn concurrent_kills_get_one_receipt_and_pending_calls_fail() {
    let Running { handle, mut proxy, fork_server } = running().await;
    let (turn, _) = tokio::join!(handle.prompt("one", PromptMode::Refuse), proxy.take_prompt("one"));
    let turn = turn.expect("taken");
    let mut kills = Vec::new();
    for _ in 0..3 {
        let caller = handle.clone();
        kills.push(tokio::spawn(async move { caller.kill(KillOptions::grace(Duration::from_millis(40))).await }));
    }
    let Some(ToProxy::Shutdown { reason, .. }) = proxy.receive().await else { panic!("no shutdown") };
    let late = handle.prompt("two", PromptMode::Queue).await;
    assert!(matches!(late, Err(Error::Ended { .. })), "{late:?}");
    proxy.send(FromProxy::Ended { reason, receipt: Box::new(receipt(handle.id())) }).await;
    assert!(matches!(soon(turn.wait()).await, Err(Error::Ended { .. })));
    drop(proxy);
    fork_server.gone(handle.id(), guard_receipt(handle.id()));
    let mut subscription = handle.subscribe();
    for kill in kills {
        let receipt = soon(kill).await.expect("no panic").expect("a receipt");
        assert_eq!((receipt.proof, receipt.rounds), (Proof::NoChildren, 4));
    }
    let mut last = None;
    while let Some(envelope) = soon(subscription.next()).await {
        last = Some(envelope);
    }
    let last = last.expect("events");
    assert!(matches!(&last.event, Event::SessionEnded { reason: EndReason::Killed, receipt: Some(_) }), "{last:?}");
    assert_eq!(handle.info().last_offset, last.offset);
    assert_eq!(soon(handle.processes()).await.expect("none"), []);
    assert!(matches!(soon(handle.ping()).await, Err(Error::Ended { .. })));
}

#[tokio::test]
async fn a_wedged_proxy_is_ended_by_the_fork_server() {
    let Running { handle, mut proxy, mut fork_server } = running().await;
    let caller = handle.clone();
    let options = KillOptions::grace(Duration::from_millis(10));
    let kill = tokio::spawn(async move { caller.kill(options).await });
    assert!(matches!(proxy.receive().await, Some(ToProxy::Shutdown { .. })));
    let (order, _) = fork_server.receive().await;
    assert_eq!(order, ToForkServer::Kill { session: handle.id().clone(), options });
    drop(proxy);
    fork_server.gone(handle.id(), guard_receipt(handle.id()));
    assert_eq!(soon(kill).await.expect("no panic").expect("a receipt").proof, Proof::QuietRounds(3));
    assert!(matches!(handle.info().state, SessionState::Ended { reason: EndReason::Killed, .. }));
}

#[tokio::test]
async fn when_nobody_ends_it_the_kill_says_so_and_can_be_asked_again() {
    let Running { handle, mut proxy, mut fork_server } = running().await;
    let late = soon(handle.kill(KillOptions::NOW)).await;
    assert!(matches!(late, Err(Error::Deadline { .. })), "{late:?}");
    assert!(matches!(proxy.receive().await, Some(ToProxy::Shutdown { .. })));
    assert!(matches!(fork_server.receive().await.0, ToForkServer::Kill { .. }));
    let caller = handle.clone();
    let again = tokio::spawn(async move { caller.kill(KillOptions::NOW).await });
    assert!(matches!(fork_server.receive().await.0, ToForkServer::Kill { .. }));
    drop(proxy);
    fork_server.gone(handle.id(), guard_receipt(handle.id()));
    soon(again).await.expect("no panic").expect("a receipt");
}

#[tokio::test]
async fn survivors_are_an_error_with_the_receipt() {
    let Running { handle, mut proxy, fork_server } = running().await;
    let caller = handle.clone();
    let kill = tokio::spawn(async move { caller.kill(KillOptions::NOW).await });
    let Some(ToProxy::Shutdown { reason, .. }) = proxy.receive().await else { panic!("no shutdown") };
    let left = Receipt { survivors: vec![AGENT], proof: Proof::None, ..receipt(handle.id()) };
    proxy.send(FromProxy::Ended { reason, receipt: Box::new(left.clone()) }).await;
    drop(proxy);
    fork_server.gone(handle.id(), left);
    let Err(Error::Survivors(receipt)) = soon(kill).await.expect("no panic") else { panic!("no survivors") };
    assert_eq!(receipt.survivors, [AGENT]);
}

#[tokio::test]
async fn a_dead_proxy_fails_pending_calls_at_once() {
    let Running { handle, mut proxy, fork_server } = running().await;
    let (turn, _) = tokio::join!(handle.prompt("one", PromptMode::Refuse), proxy.take_prompt("one"));
    let caller = handle.clone();
    let ping = tokio::spawn(async move { caller.ping().await });
    assert!(matches!(proxy.receive().await, Some(ToProxy::Ping { .. })));
    drop(proxy);
    assert!(matches!(soon(ping).await.expect("no panic"), Err(Error::ProxyDied { .. })));
    assert!(matches!(soon(turn.expect("taken").wait()).await, Err(Error::ProxyDied { .. })));
    assert!(matches!(soon(handle.abort(AbortPolicy::LeaveProcesses)).await, Err(Error::ProxyDied { .. })));
    fork_server.send(&FromForkServer::ProxyGone {
        session: handle.id().clone(),
        process: PROXY,
        exit: Some(ExitStatus::Signal(9)),
        receipt: Box::new(guard_receipt(handle.id())),
    });
    let receipt = soon(handle.kill(KillOptions::NOW)).await.expect("the guard's receipt");
    assert_eq!(receipt.proof, Proof::QuietRounds(3));
    let SessionState::Ended { reason, .. } = handle.info().state else { panic!("not ended") };
    assert_eq!(reason, EndReason::ProxyDied(Some(ExitStatus::Signal(9))));
}

#[tokio::test]
async fn a_dead_agent_fails_pending_calls_and_ends_the_session() {
    let Running { handle, mut proxy, fork_server } = running().await;
    let (turn, _) = tokio::join!(handle.prompt("one", PromptMode::Refuse), proxy.take_prompt("one"));
    let reason = EndReason::AgentExited(Some(ExitStatus::Code(3)));
    proxy.send(FromProxy::Ended { reason: reason.clone(), receipt: Box::new(receipt(handle.id())) }).await;
    assert!(matches!(soon(turn.expect("taken").wait()).await, Err(Error::AgentDied { .. })));
    drop(proxy);
    fork_server.gone(handle.id(), guard_receipt(handle.id()));
    soon(handle.kill(KillOptions::NOW)).await.expect("the stored receipt");
    assert!(matches!(handle.info().state, SessionState::Ended { reason: ended, .. } if ended == reason));
}

#[tokio::test]
async fn a_dead_fork_server_fails_pending_calls_and_waits_for_the_proxys_word() {
    let Running { handle, mut proxy, fork_server } = running().await;
    let (turn, _) = tokio::join!(handle.prompt("one", PromptMode::Refuse), proxy.take_prompt("one"));
    drop(fork_server);
    assert!(matches!(soon(turn.expect("taken").wait()).await, Err(Error::ForkServerDied)));
    let caller = handle.clone();
    let kill = tokio::spawn(async move { caller.kill(KillOptions::NOW).await });
    assert!(matches!(proxy.receive().await, Some(ToProxy::Shutdown { .. })));
    let reason = EndReason::ForkServerDied;
    proxy.send(FromProxy::Ended { reason, receipt: Box::new(receipt(handle.id())) }).await;
    soon(kill).await.expect("no panic").expect("the proxy's receipt");
    assert!(matches!(handle.info().state, SessionState::Ended { reason: EndReason::ForkServerDied, .. }));
}

#[tokio::test]
async fn when_both_are_dead_nobody_can_tell() {
    let Running { handle, proxy, fork_server } = running().await;
    let mut subscription = handle.subscribe_from(handle.info().last_offset);
    drop((proxy, fork_server));
    let ended = soon(subscription.next()).await.expect("the last event");
    assert!(matches!(&ended.event, Event::SessionEnded { receipt: None, .. }), "{ended:?}");
    assert!(soon(subscription.next()).await.is_none());
    assert!(soon(handle.kill(KillOptions::NOW)).await.is_err());
}

#[tokio::test]
async fn nonsense_ends_the_session_through_the_fork_server() {
    for early in [true, false] {
        let config = AgentSessionConfig::new("acp");
        let Starting { handle, ready, mut proxy, mut fork_server } =
            starting(config, quick(), HistoryLimits::default()).await;
        if early {
            proxy.send(FromProxy::TurnEnded { turn: 1 }).await;
        } else {
            proxy.stream.write_all(&[0xff; 64]).await.expect("written");
        }
        assert!(matches!(soon(ready).await, Ok(Err(Error::Protocol { .. }))));
        assert!(matches!(fork_server.receive().await.0, ToForkServer::Kill { .. }));
        fork_server.gone(handle.id(), guard_receipt(handle.id()));
        soon(handle.kill(KillOptions::NOW)).await.expect("the guard's receipt");
        assert!(matches!(handle.info().state, SessionState::Ended { reason: EndReason::Failed(_), .. }));
        drop(proxy);
    }
}

#[tokio::test]
async fn a_proxy_of_another_build_is_refused() {
    let config = AgentSessionConfig::new("acp");
    let Starting { ready, mut proxy, mut fork_server, .. } = starting(config, quick(), HistoryLimits::default()).await;
    proxy.send(FromProxy::Hello(Hello { version: VERSION + 1, process: PROXY })).await;
    assert!(matches!(soon(ready).await, Ok(Err(Error::VersionMismatch { .. }))));
    assert!(matches!(fork_server.receive().await.0, ToForkServer::Kill { .. }));
}

#[tokio::test]
async fn a_slow_subscriber_gets_a_gap_and_holds_up_nobody() {
    let limits = HistoryLimits { events: 10, ..HistoryLimits::default() };
    let Running { handle, mut proxy, fork_server: _alive } =
        running_with(AgentSessionConfig::new("acp"), quick(), limits, true).await;
    let mut slow = handle.subscribe();
    assert_eq!(soon(slow.next()).await.expect("started").offset, 1);
    let mut quick = handle.subscribe();
    let reader = tokio::spawn(async move {
        let mut seen = 0;
        while let Some(envelope) = quick.next().await {
            match envelope.event {
                Event::SessionGap(gap) => seen += gap.to - gap.from + 1,
                _ => seen += 1,
            }
            if envelope.offset == 1002 {
                break;
            }
        }
        seen
    });
    for n in 0..1000 {
        proxy.send(FromProxy::Event { turn: 0, event: Event::Text { text: format!("{n}") } }).await;
    }
    round_trip(&handle, &mut proxy).await;
    assert_eq!(soon(reader).await.expect("no panic"), 1002);
    // It had taken what was there when it first looked: the second event.
    assert_eq!(soon(slow.next()).await.expect("idle").offset, 2);
    let gap = soon(slow.next()).await.expect("a gap");
    assert!(matches!(gap.event, Event::SessionGap(gap) if gap.from == 3 && gap.to == 992), "{gap:?}");
    for offset in 993..=1002 {
        assert_eq!(soon(slow.next()).await.expect("an event").offset, offset);
    }
}
