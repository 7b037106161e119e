//! A proxy that is stopped, once or again and again: its session's limits are kept all the same.

use agent_proxy_tests::{
    sessions::{self, all, event, shell, soon},
    system,
};
use proxy_manager::{
    AgentSessionConfig, Containment, EndReason, Envelope, Event, Hardening, KillCause, KillOptions, LimitAction,
    LimitExceeded, LimitForm, LimitKind, Limits, PromptMode, ProxyManager, SessionHandle, Signal, Subscription,
};

const RUNAWAY: &str = env!("CARGO_BIN_EXE_runaway");
const MIB: u64 = 1 << 20;

async fn manager() -> ProxyManager {
    let builder = sessions::builder(env!("CARGO_BIN_EXE_proxy-child"), env!("CARGO_BIN_EXE_fake-agent"));
    soon("a manager", builder.build()).await.expect("built")
}

/// A session whose agent runs `script` beside a process that stops the proxy for as long as that is there. Nothing holds it
/// back: it is not in a landlock domain.
async fn stopping(manager: &ProxyManager, limits: Limits, script: &str) -> (SessionHandle, Subscription) {
    let config = AgentSessionConfig {
        limits,
        containment: Some(Containment::Baseline),
        hardening: Hardening { landlock: Some(false), ..Hardening::default() },
        ..shell(&format!("read go; for i in 1 2 3 4; do {RUNAWAY} stop $PPID & done; {script}"))
    };
    let session = soon("a start", manager.start_session(config)).await.expect("started");
    let (events, starter) = (session.subscribe(), session.clone());
    // The proxy may be stopped before it can answer.
    tokio::spawn(async move { starter.prompt("go", PromptMode::Refuse).await });
    (session, events)
}

fn limit_exceeded(envelope: &Envelope) -> Option<LimitExceeded> {
    match &envelope.event {
        Event::LimitExceeded(exceeded) => Some(**exceeded),
        _ => None,
    }
}

fn proxy_stopped(envelope: &Envelope) -> Option<()> {
    matches!(&envelope.event, Event::SessionStatus { status, .. } if status == "proxyStopped").then_some(())
}

/// The session says once that it passed this limit, and ends for it with nothing left.
async fn ends_for(kind: LimitKind, session: &SessionHandle, events: &mut Subscription) -> LimitExceeded {
    let all = all(events).await;
    let said: Vec<_> = all.iter().filter_map(|envelope| limit_exceeded(envelope)).collect();
    assert_eq!(said.iter().map(|exceeded| exceeded.limit).collect::<Vec<_>>(), [kind], "{all:#?}");
    let end = &all.last().expect("an end").event;
    let Event::SessionEnded { reason, receipt: Some(receipt) } = end else { panic!("{end:?}") };
    assert_eq!(*reason, EndReason::LimitExceeded(kind));
    assert!(receipt.is_empty() && receipt.cause == KillCause::Limit, "{receipt:?}");
    assert!(system::with_marker(session.id().as_str()).is_empty());
    said[0]
}

#[tokio::test]
async fn a_stopped_proxy_goes_on_by_itself() {
    let manager = manager().await;
    let session = manager.start_session(shell("exec cat")).await.expect("started");
    let mut events = session.subscribe();
    let proxy = registry::PidFd::open(session.info().processes.proxy.expect("it runs")).expect("alive");
    proxy.signal(Signal::Stop).expect("stopped");
    event(&mut events, "that it was stopped", proxy_stopped).await;
    soon("an answer", session.ping()).await.expect("it goes on");
    manager.shutdown().await;
}

#[tokio::test]
async fn its_wall_clock_goes_on() {
    let manager = manager().await;
    let limits = Limits { wall_clock_ms: Some(300), ..Limits::default() };
    let (session, mut events) = stopping(&manager, limits, "exec sleep 1000").await;
    let exceeded = ends_for(LimitKind::WallClock, &session, &mut events).await;
    println!("wall clock: limit 300 ms, ended at {} ms", exceeded.measured);
    assert!(exceeded.measured > 300 && exceeded.form == LimitForm::Clock, "{exceeded:?}");
    manager.shutdown().await;
}

#[tokio::test]
async fn a_wall_clock_that_ends_nothing_is_said_once() {
    let manager = manager().await;
    let limits = Limits { wall_clock_ms: Some(300), on_limit: LimitAction::Warn, ..Limits::default() };
    let (session, mut events) = stopping(&manager, limits, "exec sleep 1000").await;
    let exceeded = event(&mut events, "limit:exceeded", limit_exceeded).await;
    assert_eq!((exceeded.limit, exceeded.action), (LimitKind::WallClock, LimitAction::Warn));
    let receipt = soon("a kill", session.kill(KillOptions::NOW)).await.expect("killed");
    assert!(receipt.is_empty(), "{receipt:?}");
    assert!(all(&mut events).await.iter().all(|envelope| limit_exceeded(envelope).is_none()));
    manager.shutdown().await;
}

#[tokio::test]
async fn its_memory_is_looked_at_by_the_fork_server() {
    const LIMIT: u64 = 128 * MIB;
    let manager = manager().await;
    let limits = Limits { memory_bytes: Some(LIMIT), ..Limits::default() };
    let script = format!("exec {RUNAWAY} memory /dev/null 2048");
    let (session, mut events) = stopping(&manager, limits, &script).await;
    let exceeded = ends_for(LimitKind::Memory, &session, &mut events).await;
    assert!(exceeded.measured > LIMIT && exceeded.value == LIMIT, "{exceeded:?}");
    println!("memory: limit {} MiB, noticed at {} MiB", LIMIT / MIB, exceeded.measured / MIB);
    manager.shutdown().await;
}

#[tokio::test]
async fn one_process_is_ended_where_that_is_the_action() {
    let manager = manager().await;
    let limits = Limits { cpu_time_ms: Some(10_000), on_limit: LimitAction::KillProcess, ..Limits::default() };
    let limits = Limits { memory_bytes: Some(128 * MIB), ..limits };
    let script = format!("{RUNAWAY} memory /dev/null 2048; echo over; exec sleep 1000");
    let (session, mut events) = stopping(&manager, limits, &script).await;
    let exceeded = event(&mut events, "limit:exceeded", limit_exceeded).await;
    assert_eq!((exceeded.limit, exceeded.action), (LimitKind::Memory, LimitAction::KillProcess));
    let ended = exceeded.process.expect("it takes most");
    system::until("its end", || (!system::is_alive(ended.pid)).then_some(()));
    let agent = session.info().processes.agent_process.expect("it runs");
    assert!(ended != agent && system::is_alive(agent.pid));
    let receipt = soon("a kill", session.kill(KillOptions::NOW)).await.expect("killed");
    assert!(receipt.is_empty(), "{receipt:?}");
    manager.shutdown().await;
}
