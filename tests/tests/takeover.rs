//! Supervisors that die together, are stopped or are struck by limits while the host lives: it ends what they left, says so
//! with a receipt, and goes on with a new fork server. No call says that something ended which nobody has proven.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use agent_proxy_tests::{
    lasting::{Lasting, Mode, Speaker},
    sessions::{self, all, event, family, shell, soon},
    system::{self, until},
};
use proxy_manager::{
    AgentSessionConfig, Containment, EndReason, Error, Event, Json, KillOptions, NewEvent, ProcessId, ProxyManager,
    Receipt, SessionHandle, SessionId, SessionState, Signal, Subscription,
};
use registry::PidFd;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

/// Longest time of a call beyond its grace.
const CALL: Duration = Duration::from_secs(3);
/// Longest time from a supervisor's stop to the first sign of the host's.
const NOTICED: Duration = Duration::from_secs(3);

fn builder() -> proxy_manager::ManagerBuilder {
    sessions::builder(env!("CARGO_BIN_EXE_proxy-child"), env!("CARGO_BIN_EXE_fake-agent"))
}

async fn manager() -> ProxyManager {
    soon("a manager", builder().build()).await.expect("built")
}

/// The containment layers of this machine.
async fn layers(manager: &ProxyManager) -> Vec<Containment> {
    let offered = manager.capabilities().await.expect("probed");
    let mut layers = vec![Containment::Baseline];
    layers.extend(offered.cgroup.is_ok().then_some(Containment::Cgroup));
    layers.extend(offered.strict.is_ok().then_some(Containment::Strict));
    layers
}

fn in_layer(containment: Containment) -> AgentSessionConfig {
    AgentSessionConfig { containment: Some(containment), ..sessions::fake() }
}

fn signal(process: ProcessId, signal: Signal) {
    PidFd::open(process).expect("alive").signal(signal).expect("signalled");
}

/// Strikes all at once: none sees another one die.
fn strike(processes: &[ProcessId]) {
    let open: Vec<_> = processes.iter().map(|id| PidFd::open(*id).expect("alive")).collect();
    for way in [Signal::Stop, Signal::Kill] {
        open.iter().for_each(|process| process.signal(way).expect("signalled"));
    }
}

async fn end(events: &mut Subscription) -> (EndReason, Option<Box<Receipt>>) {
    let events = all(events).await;
    match &events.last().expect("a last event").event {
        Event::SessionEnded { reason, receipt } | Event::SessionSuspended { reason, receipt } => {
            (reason.clone(), receipt.clone())
        }
        other => panic!("{other:?}"),
    }
}

/// Checks the end against what `/proc` says.
async fn ended_with_nothing_left(session: &SessionHandle, events: &mut Subscription, seconds: &str) -> EndReason {
    let (reason, receipt) = end(events).await;
    let receipt = receipt.expect("a receipt");
    assert!(receipt.is_empty(), "{reason}: {receipt:?}");
    assert_eq!(system::sleeping(seconds), [0_u32; 0], "{reason}: {receipt:?}");
    assert_eq!(system::with_marker(session.id().as_str()), [0_u32; 0], "{reason}: {receipt:?}");
    reason
}

/// Starts a session and ends it: the manager is of use.
async fn works(manager: &ProxyManager) {
    let session = soon("a start", manager.start_session(sessions::fake())).await.expect("started");
    let receipt = soon("a kill", session.kill(KillOptions::NOW)).await.expect("killed");
    assert!(receipt.is_empty(), "{receipt:?}");
}

#[tokio::test]
async fn proxy_and_fork_server_die_together() {
    let manager = manager().await;
    for layer in layers(&manager).await {
        let session = manager.start_session(in_layer(layer)).await.expect("started");
        let mut events = session.subscribe();
        let family = family(&session).await;
        let old = manager.fork_server();
        strike(&[old, session.info().processes.proxy.expect("it runs")]);
        let reason = ended_with_nothing_left(&session, &mut events, &family.seconds).await;
        assert_eq!(reason, EndReason::ForkServerDied, "{layer}");
        assert_eq!(session.processes().await.expect("a list"), [], "{layer}");
        assert!(session.kill(KillOptions::NOW).await.expect("the stored receipt").is_empty(), "{layer}");
        works(&manager).await;
        assert_ne!(manager.fork_server(), old, "{layer}");
    }
    manager.shutdown().await;
}

#[tokio::test]
async fn a_call_meanwhile_waits_for_the_proof_or_tells_the_truth() {
    let manager = manager().await;
    let session = manager.start_session(in_layer(Containment::Baseline)).await.expect("started");
    let family = family(&session).await;
    strike(&[manager.fork_server(), session.info().processes.proxy.expect("it runs")]);
    let began = Instant::now();
    // Nobody has told the host yet.
    let (listed, killed) = tokio::join!(session.processes(), session.kill(KillOptions::NOW));
    let took = began.elapsed();
    match killed {
        Ok(receipt) => assert!(receipt.is_empty() && took < CALL, "{took:?}: {receipt:?}"),
        // Another test's proxy, whose fork server was killed at the same time, may be of this session as far as anyone can say.
        Err(Error::Survivors(receipt)) => {
            let is_proxy = |command: &String| command.starts_with("agent-proxy: session ");
            let is_doubt = receipt.unattributed.iter().all(|entry| entry.command.as_ref().is_some_and(is_proxy));
            assert!(receipt.doubt().is_some() && is_doubt && !receipt.unattributed.is_empty(), "{receipt:?}");
        }
        Err(error) => panic!("{error}"),
    }
    assert_eq!(system::sleeping(&family.seconds), [0_u32; 0]);
    if let Ok(listed) = listed {
        assert!(listed.is_empty() || !system::with_marker(session.id().as_str()).is_empty(), "{listed:?}");
    }
    manager.shutdown().await;
}

#[tokio::test]
async fn all_supervisors_but_the_host_die_together() {
    let manager = manager().await;
    let layers = layers(&manager).await;
    let mut sessions = Vec::new();
    for at in 0..6 {
        let session = manager.start_session(in_layer(layers[at % layers.len()])).await.expect("started");
        let (events, family) = (session.subscribe(), family(&session).await);
        sessions.push((session, events, family.seconds));
    }
    let proxies = sessions.iter().map(|(session, _, _)| session.info().processes.proxy.expect("it runs"));
    strike(&[manager.fork_server()].into_iter().chain(proxies).collect::<Vec<_>>());
    for (session, events, seconds) in &mut sessions {
        let reason = ended_with_nothing_left(session, events, seconds).await;
        assert_eq!(reason, EndReason::ForkServerDied);
    }
    works(&manager).await;
    manager.shutdown().await;
}

#[tokio::test]
async fn a_fork_server_that_dies_is_replaced() {
    let manager = manager().await;
    for _ in 0..3 {
        let session = soon("a start", manager.start_session(sessions::fake())).await.expect("started");
        let mut events = session.subscribe();
        let family = family(&session).await;
        let old = manager.fork_server();
        signal(old, Signal::Kill);
        // Its proxy ends it, having lost its guard.
        let reason = ended_with_nothing_left(&session, &mut events, &family.seconds).await;
        assert_eq!(reason, EndReason::ForkServerDied);
        works(&manager).await;
        assert_ne!(manager.fork_server(), old);
    }
    manager.shutdown().await;
}

/// A start that comes before anybody has noticed may fail, but not those after.
#[tokio::test]
async fn starts_during_the_change_wait_for_it() {
    let manager = manager().await;
    let old = manager.fork_server();
    signal(old, Signal::Kill);
    until("its death", || (!system::is_alive(old.pid)).then_some(()));
    let starts: Vec<_> = (0..4).map(|_| manager.start_session(sessions::fake())).collect();
    for start in starts {
        let session = soon("a start", start).await.expect("started");
        soon("a kill", session.kill(KillOptions::NOW)).await.expect("killed");
    }
    manager.shutdown().await;
}

#[tokio::test]
async fn a_stopped_fork_server_is_continued_without_a_call() {
    let manager = manager().await;
    let session = manager.start_session(sessions::fake()).await.expect("started");
    let mut events = session.subscribe();
    let family = family(&session).await;
    let fork_server = manager.fork_server();
    signal(fork_server, Signal::Stop);
    signal(session.info().processes.proxy.expect("it runs"), Signal::Kill);
    let began = Instant::now();
    ended_with_nothing_left(&session, &mut events, &family.seconds).await;
    assert!(began.elapsed() < NOTICED, "{:?}", began.elapsed());
    assert_eq!(manager.fork_server(), fork_server, "it goes on");
    works(&manager).await;
    manager.shutdown().await;
}

#[tokio::test]
async fn stopped_supervisors_do_not_hold_up_a_kill() {
    let manager = manager().await;
    for layer in layers(&manager).await {
        for both in [false, true] {
            let session = manager.start_session(in_layer(layer)).await.expect("started");
            let family = family(&session).await;
            let proxy = session.info().processes.proxy.expect("it runs");
            signal(manager.fork_server(), Signal::Stop);
            signal(proxy, if both { Signal::Stop } else { Signal::Kill });
            let began = Instant::now();
            let receipt = soon("a kill", session.kill(KillOptions::NOW)).await.expect("killed");
            let took = began.elapsed();
            assert!(receipt.is_empty() && took < CALL, "{layer}, both: {both}, {took:?}: {receipt:?}");
            assert_eq!(system::sleeping(&family.seconds), [0_u32; 0], "{layer}, both: {both}");
        }
    }
    manager.shutdown().await;
}

#[tokio::test]
async fn a_fork_server_that_is_stopped_again_and_again_is_replaced() {
    let manager = manager().await;
    let session = manager.start_session(sessions::fake()).await.expect("started");
    let mut events = session.subscribe();
    let family = family(&session).await;
    let old = manager.fork_server();
    let stopper = system::Stopper::new(old);
    signal(session.info().processes.proxy.expect("it runs"), Signal::Kill);
    ended_with_nothing_left(&session, &mut events, &family.seconds).await;
    works(&manager).await;
    assert_ne!(manager.fork_server(), old);
    drop(stopper);
    manager.shutdown().await;
}

/// A limit that a stranger of the same user sets: how low, and whether it can be raised again by that user.
fn limit(process: ProcessId, resource: Resource, to: u64, hard: bool) {
    let pid = Pid::from_raw(process.pid.cast_signed());
    let maximum = if hard { Some(to) } else { getrlimit(resource).maximum };
    prlimit(pid, resource, Rlimit { current: Some(to), maximum }).expect("lowered");
}

const LIMITS: [(Resource, u64); 6] = [
    (Resource::Nofile, 0),
    (Resource::Nofile, 4),
    (Resource::Cpu, 0),
    (Resource::Fsize, 0),
    (Resource::Nproc, 0),
    (Resource::As, 1 << 20),
];

/// Whatever becomes of the fork server, each of its sessions is ended by somebody and told.
#[tokio::test]
async fn limits_of_the_fork_server_leave_nothing() {
    for (resource, to) in LIMITS {
        for hard in [false, true] {
            let manager = manager().await;
            let session = manager.start_session(sessions::fake()).await.expect("started");
            let mut events = session.subscribe();
            let family = family(&session).await;
            limit(manager.fork_server(), resource, to, hard);
            signal(session.info().processes.proxy.expect("it runs"), Signal::Kill);
            let began = Instant::now();
            let reason = ended_with_nothing_left(&session, &mut events, &family.seconds).await;
            let told = (resource, to, hard, reason, began.elapsed());
            assert!(told.4 < CALL, "{told:?}");
            works(&manager).await;
            manager.shutdown().await;
        }
    }
}

#[tokio::test]
async fn limits_of_the_proxy_leave_nothing() {
    for (resource, to) in LIMITS {
        for hard in [false, true] {
            let manager = manager().await;
            let session = manager.start_session(sessions::fake()).await.expect("started");
            let mut events = session.subscribe();
            let family = family(&session).await;
            limit(session.info().processes.proxy.expect("it runs"), resource, to, hard);
            let began = Instant::now();
            let receipt = soon("a kill", session.kill(KillOptions::NOW)).await;
            let told = (resource, to, hard, began.elapsed());
            let receipt = receipt.unwrap_or_else(|error| panic!("{told:?}: {error}"));
            assert!(receipt.is_empty() && told.3 < CALL, "{told:?}: {receipt:?}");
            ended_with_nothing_left(&session, &mut events, &family.seconds).await;
            works(&manager).await;
            manager.shutdown().await;
        }
    }
}

#[tokio::test]
async fn the_end_can_be_read_when_kill_returns() {
    let scratch = tempfile::tempdir().expect("a directory");
    let manager = soon("a manager", builder().state_dir(scratch.path().into()).build()).await.expect("built");
    for _ in 0..40 {
        let session = manager.start_session(shell("exec cat")).await.expect("started");
        soon("a kill", session.kill(KillOptions::NOW)).await.expect("killed");
        let mut events = session.subscribe();
        let mut told = false;
        // What can be read now, without a wait for more.
        while let Some(Some(envelope)) = now(events.next()).await {
            told |= matches!(envelope.event, Event::SessionEnded { .. });
        }
        assert!(told, "a reader does not see the end of {}", session.id());
    }
    manager.shutdown().await;
}

/// A manager of an agent that keeps its conversations, and the session to start there.
async fn lasting(dir: &Path) -> (Lasting, ProxyManager) {
    let speaker = Speaker::Fake(env!("CARGO_BIN_EXE_fake-agent").into());
    let (child, dir, id) = (env!("CARGO_BIN_EXE_proxy-child").into(), dir.to_owned(), SessionId::mint());
    let lasting = Lasting { speaker, child, dir, id, detaches: false, mode: Mode::Idle };
    lasting.furnish().expect("furnished");
    let manager = soon("a manager", lasting.builder().build()).await.expect("built");
    (lasting, manager)
}

/// What a future comes to at once.
async fn now<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|context| {
        std::task::Poll::Ready(match future.as_mut().poll(context) {
            std::task::Poll::Ready(value) => Some(value),
            std::task::Poll::Pending => None,
        })
    })
    .await
}

/// Whoever resumes a session whose agent has just died waits for its end.
#[tokio::test]
async fn a_resume_after_the_agents_death_waits_for_the_end() {
    let scratch = tempfile::tempdir().expect("a directory");
    let (lasting, manager) = lasting(scratch.path()).await;
    let id = lasting.id.clone();
    let session = soon("a start", manager.start_session(lasting.config(&id))).await.expect("started");
    let prompted = session.prompt(lasting.first(), proxy_manager::PromptMode::Refuse).await.expect("prompted");
    soon("the turn's end", prompted.wait()).await.expect("ended");
    signal(session.info().processes.agent_process.expect("it runs"), Signal::Kill);
    let again = proxy_manager::SessionId::mint();
    let from = proxy_manager::ResumeFrom::Session { id: id.clone() };
    let resume = Some(proxy_manager::ResumeRequest { from, fork: false, on_missing: proxy_manager::OnMissing::Fail });
    let lifecycle = proxy_manager::Lifecycle::default();
    let config = AgentSessionConfig { resume, lifecycle, ..lasting.config(&again) };
    let session = soon("a resume", manager.start_session(config)).await.expect("resumed");
    soon("a kill", session.kill(KillOptions::NOW)).await.expect("killed");
    manager.shutdown().await;
}

/// The same of a session that was suspended by the death, and of one that is being suspended.
#[tokio::test]
async fn a_resume_waits_for_a_suspension() {
    let scratch = tempfile::tempdir().expect("a directory");
    let (lasting, manager) = lasting(scratch.path()).await;
    let id = lasting.id.clone();
    let session = soon("a start", manager.start_session(lasting.config(&id))).await.expect("started");
    let prompted = session.prompt(lasting.first(), proxy_manager::PromptMode::Refuse).await.expect("prompted");
    soon("the turn's end", prompted.wait()).await.expect("ended");
    // The fork server and the proxy at once, and a resume before anybody has noticed.
    strike(&[manager.fork_server(), session.info().processes.proxy.expect("it runs")]);
    let session = soon("a resume", manager.resume_session(&id)).await.expect("resumed");
    assert_eq!(session.info().state, SessionState::Idle);
    soon("a kill", session.kill(KillOptions::NOW)).await.expect("killed");
    assert!(matches!(manager.resume_session(&id).await, Err(Error::NotSuspended { .. })));
    manager.shutdown().await;
}

/// A start and a resume whose fork server dies before it has forked for them begin once more, with the next one.
#[tokio::test]
async fn a_start_goes_on_with_the_next_fork_server() {
    let scratch = tempfile::tempdir().expect("a directory");
    let (lasting, manager) = lasting(scratch.path()).await;
    let id = lasting.id.clone();

    let (started, first) = while_it_dies(&manager, manager.start_session(lasting.config(&id))).await;
    let session = started.expect("started");
    assert_ne!(manager.fork_server(), first);
    let prompted = session.prompt(lasting.first(), proxy_manager::PromptMode::Refuse).await.expect("prompted");
    soon("the turn's end", prompted.wait()).await.expect("ended");

    soon("a suspend", manager.suspend_session(&id, KillOptions::NOW)).await.expect("suspended");
    let (resumed, second) = while_it_dies(&manager, manager.resume_session(&id)).await;
    let session = resumed.expect("resumed");
    assert_ne!(manager.fork_server(), second);
    let prompted = session.prompt(lasting.first(), proxy_manager::PromptMode::Refuse).await.expect("prompted");
    soon("the turn's end", prompted.wait()).await.expect("ended");
    let receipt = soon("a kill", session.kill(KillOptions::NOW)).await.expect("killed");
    assert!(receipt.is_empty(), "{receipt:?}");
    manager.shutdown().await;
}

/// A start on a stream that was there before is not tried again: its stream is closed, and keeps what was acknowledged.
#[tokio::test]
async fn what_was_written_before_a_start_outlives_its_failure() {
    let scratch = tempfile::tempdir().expect("a directory");
    let (lasting, manager) = lasting(scratch.path()).await;
    let note = NewEvent { kind: "note".into(), version: 1, payload: Json::from(&"plum".into()), metadata: None };
    assert_eq!(soon("a note", manager.append_to_stream(&lasting.id, note)).await.expect("written"), 1);
    let (started, _) = while_it_dies(&manager, manager.start_session(lasting.config(&lasting.id))).await;
    assert!(matches!(started, Err(Error::ForkServerDied)), "{started:?}");
    works(&manager).await;
    let kept = soon("the events", manager.read_all(0, 100)).await.expect("read");
    let is_note = |event: &Event| matches!(event, Event::External { kind, .. } if **kind == *"note");
    assert!(kept.iter().any(|(_, kept)| *kept.session == lasting.id && is_note(&kept.event)), "{kept:?}");
    manager.shutdown().await;
}

/// What a start comes to whose order the fork server has in its socket when it dies; which one it was, too.
async fn while_it_dies<T>(manager: &ProxyManager, start: impl Future<Output = T>) -> (T, ProcessId) {
    let fork_server = manager.fork_server();
    signal(fork_server, Signal::Stop);
    until("it is stopped", || (system::state(fork_server.pid) == Some('T')).then_some(()));
    let dies = async {
        while !manager.list_sessions().iter().any(|session| session.state == SessionState::Starting) {
            tokio::task::yield_now().await;
        }
        signal(fork_server, Signal::Kill);
    };
    let (started, ()) = soon("a start", async { tokio::join!(start, dies) }).await;
    (started, fork_server)
}

/// Where no fork server can be started the manager says so, ends what it had, and starts one as soon as it can.
#[tokio::test]
async fn a_manager_without_a_fork_server_says_so_and_recovers() {
    let scratch = tempfile::tempdir().expect("a directory");
    let (program, away) = (scratch.path().join("proxy-child"), scratch.path().join("away"));
    std::fs::hard_link(env!("CARGO_BIN_EXE_proxy-child"), &program)
        .or_else(|_| std::fs::copy(env!("CARGO_BIN_EXE_proxy-child"), &program).map(drop))
        .expect("linked");
    let builder = sessions::builder(program.to_str().expect("UTF-8"), env!("CARGO_BIN_EXE_fake-agent"));
    let deadlines = proxy_manager::Deadlines { hello: Duration::from_secs(1), ..Default::default() };
    let manager = soon("a manager", builder.deadlines(deadlines).build()).await.expect("built");
    assert_eq!(manager.trouble(), [] as [String; 0]);
    let session = manager.start_session(in_layer(Containment::Baseline)).await.expect("started");
    let (mut events, family) = (session.subscribe(), family(&session).await);
    std::fs::rename(&program, &away).expect("renamed");
    strike(&[manager.fork_server(), session.info().processes.proxy.expect("it runs")]);
    ended_with_nothing_left(&session, &mut events, &family.seconds).await;
    let error = soon("a refusal", manager.start_session(sessions::fake())).await.expect_err("there is none");
    assert!(matches!(error, Error::ForkServerDied), "{error}");
    let trouble = manager.trouble();
    assert!(trouble.len() == 1 && trouble[0].contains("could not be started"), "{trouble:?}");
    std::fs::rename(&away, &program).expect("renamed");
    soon("another fork server", async {
        while !manager.trouble().is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    works(&manager).await;
    manager.shutdown().await;
}

#[tokio::test]
async fn the_end_is_told_once() {
    let manager = manager().await;
    let session = manager.start_session(in_layer(Containment::Baseline)).await.expect("started");
    let mut events = session.subscribe();
    event(&mut events, "ready", |envelope| (envelope.event == Event::SessionIdle {}).then_some(())).await;
    strike(&[manager.fork_server(), session.info().processes.proxy.expect("it runs")]);
    let ends = all(&mut events).await;
    let count = ends.iter().filter(|envelope| matches!(envelope.event, Event::SessionEnded { .. })).count();
    assert_eq!(count, 1, "{ends:?}");
    manager.shutdown().await;
}
