//! What is done when a proxy does not answer, and when the manager drains. Time passes only when nobody has anything to do.

use super::{
    effects::{agent_start, appended, setup},
    *,
};
use crate::deadlines::HealthPolicy;

async fn watched_session(ends: bool) -> Running {
    let health = HealthPolicy { interval: Duration::from_secs(10), misses: 3, ends };
    let deadlines = Deadlines { health: Some(health), ..Deadlines::default() };
    running_with(AgentSessionConfig::new("acp"), deadlines, HistoryLimits::default(), true).await
}

async fn take_ping(proxy: &mut FakeProxy) -> RequestId {
    match proxy.next().await {
        Some(ToProxy::Request { request, command: ProxyCommand::Ping }) => request,
        other => panic!("no ping: {other:?}"),
    }
}

async fn status(events: &mut crate::history::Subscription) -> (String, String) {
    loop {
        if let Event::SessionStatus { status, detail } = &events.next().await.expect("an event").event {
            return (status.clone(), detail.clone());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_proxy_is_asked_and_its_silence_told() {
    let Running { handle, mut proxy, fork_server: _alive } = watched_session(false).await;
    let mut events = handle.subscribe();
    let begun = tokio::time::Instant::now();
    let request = take_ping(&mut proxy).await;
    assert_eq!(begun.elapsed().as_secs(), 10);
    proxy.send(FromProxy::Done { request }).await;
    let request = take_ping(&mut proxy).await;
    assert_eq!((begun.elapsed().as_secs(), handle.info().metrics.missed_pings), (20, 0));
    let told = status(&mut events).await;
    assert_eq!(told, ("unresponsive".to_owned(), "its proxy did not answer 3 pings in a row".to_owned()));
    let info = handle.info();
    assert_eq!((begun.elapsed().as_secs(), info.metrics.missed_pings, info.metrics.silent_ms), (50, 3, 40_000));
    assert_eq!(info.state, SessionState::Idle);
    // Late is better than never.
    proxy.send(FromProxy::Done { request }).await;
    assert_eq!(status(&mut events).await.0, "responsive");
    assert_eq!(handle.info().metrics.missed_pings, 0);
    let turn = begin_turn(&handle, &mut proxy).await;
    proxy.end_turn(1).await;
    turn.wait().await.expect("ended");
}

async fn begin_turn(handle: &SessionHandle, proxy: &mut FakeProxy) -> crate::session::Turn {
    let (turn, _) = tokio::join!(handle.prompt("one", PromptMode::Refuse), proxy.take_prompt("one"));
    turn.expect("taken")
}

#[tokio::test(start_paused = true)]
async fn an_unresponsive_session_is_ended_without_its_proxy() {
    let Running { handle, proxy: _silent, mut fork_server } = watched_session(true).await;
    // Not `receive`: time passes while it waits.
    let (message, _) = fork_server.next().await;
    assert!(matches!(message, ToForkServer::Kill { .. }), "{message:?}");
    fork_server.gone(handle.id(), guard_receipt(handle.id()));
    let mut events = handle.subscribe();
    let reason = loop {
        if let Event::SessionEnded { reason, .. } = &events.next().await.expect("an event").event {
            break reason.clone();
        }
    };
    assert_eq!(reason, EndReason::Unresponsive(3));
}

#[tokio::test(start_paused = true)]
async fn a_session_that_drains_ends_its_turn_and_takes_no_other() {
    let Running { handle, mut proxy, fork_server: _alive } = running().await;
    let turn = begin_turn(&handle, &mut proxy).await;
    let queued = handle.prompt("two", PromptMode::Queue).await.expect("queued");
    handle.session().drain();
    assert!(matches!(handle.prompt("three", PromptMode::Queue).await, Err(Error::Draining)));
    proxy.end_turn(1).await;
    turn.wait().await.expect("it ends well");
    assert!(matches!(queued.wait().await, Err(Error::Draining)));
}

#[tokio::test]
async fn without_a_conversation_an_idle_session_waits_for_what_comes() {
    let mut config = AgentSessionConfig::new("command");
    config.lifecycle.idle_suspend_ms = Some(1);
    let now = Instant::now();
    let (mut core, _ready) = SessionCore::new(setup(&config, patient()), agent_start(config), now).expect("a core");
    core.message(FromProxy::Hello(Hello { version: VERSION, process: PROXY }), now);
    let request: RequestId = 1;
    let (native_session_id, measures) = (None, Box::default());
    core.message(FromProxy::Started { request, process: AGENT, native_session_id, turns: false, measures }, now);
    assert!(appended(&mut core).contains(&Event::SessionIdle {}));
    let later = now + Duration::from_secs(1);
    core.tick(later);
    assert!(core.next().is_none_or(|due| due > later), "due for ever");
    core.message(FromProxy::NativeSession { id: "n-1".into() }, later);
    core.leased_by_agent("n-1".into(), Ok(()), later);
    assert!(core.next().is_some_and(|due| due <= later), "with one it is suspended");
}
