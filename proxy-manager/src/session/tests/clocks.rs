//! What is done when an agent takes too long. Time passes only when nobody has anything to do.

use std::time::Duration;

use agents::AgentSpec;
use ipc_protocol::{Lifecycle, Timeouts, ToolEnd, ToolStart, ToolStatus, message::AgentFact};

use super::*;

fn config(timeouts: Timeouts) -> AgentSessionConfig {
    AgentSessionConfig { timeouts, ..AgentSessionConfig::new("acp") }
}

async fn timed(timeouts: Timeouts) -> Running {
    // As long as the defaults: no time passes in earnest.
    running_with(config(timeouts), Deadlines { health: None, ..Deadlines::default() }, HistoryLimits::default(), true)
        .await
}

async fn begin(handle: &SessionHandle, proxy: &mut FakeProxy, text: &str) -> crate::session::Turn {
    let (turn, _) = tokio::join!(handle.prompt(text, PromptMode::Refuse), proxy.take_prompt(text));
    turn.expect("taken")
}

/// Expects the abort of a turn that took too long.
async fn take_abort(proxy: &mut FakeProxy) -> RequestId {
    match proxy.next().await {
        Some(ToProxy::Request {
            request,
            command: ProxyCommand::Abort { policy: AbortPolicy::LeaveProcesses, .. },
        }) => request,
        other => panic!("no abort: {other:?}"),
    }
}

async fn fired(handle: &SessionHandle) -> Vec<(TimeoutKind, u64, TimeoutAction)> {
    let last = handle.info().last_offset;
    let mut events = handle.subscribe();
    let mut fired = Vec::new();
    for _ in 0..last {
        if let Event::TimeoutFired { clock, after_ms, action, .. } = events.next().await.expect("an event").event {
            fired.push((clock, after_ms, action));
        }
    }
    fired
}

#[tokio::test(start_paused = true)]
async fn a_silent_turn_is_aborted_and_the_session_goes_on() {
    let Running { handle, mut proxy, fork_server: _alive } = timed(Timeouts::default()).await;
    let turn = begin(&handle, &mut proxy, "one").await;
    let begun = tokio::time::Instant::now();
    let request = take_abort(&mut proxy).await;
    assert_eq!(begun.elapsed().as_secs(), 30, "the first response");
    proxy.send(FromProxy::Done { request }).await;
    let event = Event::Complete { stop_reason: StopReason::Cancelled, usage: None };
    proxy.send(FromProxy::Event { turn: 1, event }).await;
    proxy.send(FromProxy::TurnEnded { turn: 1 }).await;
    let end = turn.wait().await.expect("ended");
    assert_eq!((end.stop_reason, end.timed_out), (Some(StopReason::Cancelled), Some(TimeoutKind::FirstResponse)));
    assert_eq!(fired(&handle).await, [(TimeoutKind::FirstResponse, 30_000, TimeoutAction::AbortTurn)]);
    // Nothing of that turn is left for the next.
    let turn = begin(&handle, &mut proxy, "two").await;
    proxy.end_turn(2).await;
    assert_eq!(turn.wait().await.expect("ended").timed_out, None);
}

/// The clock that runs out has a reason: what went wrong last.
#[tokio::test(start_paused = true)]
async fn a_clock_says_what_went_wrong_last() {
    let log = |text: &str| Event::Log { stream: "stderr".into(), text: text.into() };
    for (events, words) in [
        (vec![log("one\n"), log("cannot connect\n")], "cannot connect"),
        (vec![Event::retry("500", "no", Some(7), None), log("one\n")], "no (500, attempt 7)"),
    ] {
        let Running { handle, mut proxy, fork_server: _alive } = timed(Timeouts::default()).await;
        let turn = begin(&handle, &mut proxy, "one").await;
        for event in events {
            proxy.send(FromProxy::Event { turn: 1, event }).await;
        }
        let request = take_abort(&mut proxy).await;
        proxy.send(FromProxy::Done { request }).await;
        proxy.end_turn(1).await;
        let end = turn.wait().await.expect("ended");
        assert_eq!((end.timed_out, end.last_words.as_deref()), (Some(TimeoutKind::FirstResponse), Some(words)));
        let mut events = handle.subscribe();
        let told = loop {
            if let Event::TimeoutFired { last_words, .. } = &events.next().await.expect("an event").event {
                break last_words.clone();
            }
        };
        assert_eq!(told.as_deref(), Some(words));
    }
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_does_not_end_then_is_killed_with_its_session() {
    let Running { handle, mut proxy, fork_server } = timed(Timeouts::default()).await;
    let turn = begin(&handle, &mut proxy, "one").await;
    proxy.send(FromProxy::Event { turn: 1, event: Event::Text { text: "hm".into() } }).await;
    let request = take_abort(&mut proxy).await;
    proxy.send(FromProxy::Done { request }).await;
    let aborted = tokio::time::Instant::now();
    let Some(ToProxy::Request { command: ProxyCommand::Kill { reason, .. }, .. }) = proxy.next().await else {
        panic!("no shutdown")
    };
    assert_eq!(aborted.elapsed(), Deadlines::default().control);
    assert_eq!(reason, EndReason::TimedOut(TimeoutKind::Inactivity));
    proxy.send(FromProxy::Ended { reason: reason.clone(), receipt: Box::new(receipt(handle.id())) }).await;
    assert!(matches!(turn.wait().await, Err(Error::Ended { .. })));
    drop(proxy);
    fork_server.gone(handle.id(), guard_receipt(handle.id()));
    handle.kill(KillOptions::NOW).await.expect("the receipt");
    assert!(matches!(handle.info().state, SessionState::Ended { reason: ended, .. } if ended == reason));
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_cannot_abort_is_killed_at_once() {
    let Running { handle, mut proxy, fork_server: _alive } = timed(Timeouts::default()).await;
    let _turn = begin(&handle, &mut proxy, "one").await;
    let request = take_abort(&mut proxy).await;
    let aborted = tokio::time::Instant::now();
    let error = WireError::Unsupported { agent: "acp".into(), operation: "abort".into() };
    proxy.send(FromProxy::Failed { request, error }).await;
    let Some(ToProxy::Request { command: ProxyCommand::Kill { reason, .. }, .. }) = proxy.next().await else {
        panic!("no shutdown")
    };
    assert_eq!((aborted.elapsed(), reason), (Duration::ZERO, EndReason::TimedOut(TimeoutKind::FirstResponse)));
}

#[tokio::test(start_paused = true)]
async fn the_action_may_be_a_warning_or_the_end_of_the_session() {
    let timeouts = Timeouts { action: TimeoutAction::Warn, silence_ms: None, ..Timeouts::default() };
    let Running { handle, mut proxy, fork_server: _alive } = timed(timeouts).await;
    let turn = begin(&handle, &mut proxy, "one").await;
    let mut events = handle.subscribe_from(handle.info().last_offset);
    for (clock, seconds) in [(TimeoutKind::FirstResponse, 30), (TimeoutKind::Inactivity, 120), (TimeoutKind::Turn, 300)]
    {
        let expected =
            Event::TimeoutFired { clock, after_ms: seconds * 1000, action: TimeoutAction::Warn, last_words: None };
        assert_eq!(events.next().await.expect("an event").event, expected);
    }
    proxy.end_turn(1).await;
    assert_eq!(turn.wait().await.expect("ended").timed_out, None, "it was only a warning");

    let timeouts = Timeouts { action: TimeoutAction::KillSession, ..Timeouts::default() };
    let Running { handle, mut proxy, fork_server: _alive } = timed(timeouts).await;
    let _turn = begin(&handle, &mut proxy, "one").await;
    let Some(ToProxy::Request { command: ProxyCommand::Kill { reason, options, .. }, .. }) = proxy.next().await else {
        panic!("no shutdown")
    };
    assert_eq!((reason, options), (EndReason::TimedOut(TimeoutKind::FirstResponse), KillOptions::default()));
}

#[tokio::test(start_paused = true)]
async fn a_tool_stops_the_clocks_and_its_silence_is_told() {
    let Running { handle, mut proxy, fork_server: _alive } = timed(Timeouts::default()).await;
    let turn = begin(&handle, &mut proxy, "one").await;
    let start = ToolStart {
        id: "t".into(),
        name: "shell".into(),
        title: "make".into(),
        kind: "execute".into(),
        input: ipc_protocol::Json::null(),
        status: ToolStatus::InProgress,
        parent: None,
    };
    proxy.send(FromProxy::Event { turn: 1, event: Event::ToolStart(Box::new(start)) }).await;
    round_trip(&handle, &mut proxy).await;
    tokio::time::sleep(Duration::from_secs(1000)).await;
    assert_eq!(fired(&handle).await, []);
    let mut events = handle.subscribe_from(5);
    for seconds in [3, 8, 13] {
        let silent = Event::SessionSilent { for_ms: seconds * 1000 };
        assert_eq!(events.next().await.expect("an event").event, silent);
    }
    let end = ToolEnd { id: "t".into(), status: ToolStatus::Completed, output: String::new() };
    proxy.send(FromProxy::Event { turn: 1, event: Event::ToolEnd(Box::new(end)) }).await;
    round_trip(&handle, &mut proxy).await;
    let ended = tokio::time::Instant::now();
    take_abort(&mut proxy).await;
    assert_eq!(ended.elapsed().as_secs(), 120);
    assert_eq!(fired(&handle).await, [(TimeoutKind::Inactivity, 120_000, TimeoutAction::AbortTurn)]);
    proxy.end_turn(1).await;
    assert_eq!(turn.wait().await.expect("ended").timed_out, Some(TimeoutKind::Inactivity));
}

/// A session that starts and sets this, and whose proxy has been asked for that.
async fn set_to(start_ms: u64, action: TimeoutAction) -> (Starting, RequestId) {
    let timeouts = Timeouts { start_ms: Some(start_ms), action, ..Timeouts::default() };
    let mut starting = starting(config(timeouts), Deadlines::default(), HistoryLimits::default()).await;
    let request = starting.proxy.hello().await;
    (starting, request)
}

#[tokio::test(start_paused = true)]
async fn a_start_that_takes_too_long_is_ended_where_that_is_the_action() {
    for action in [TimeoutAction::AbortTurn, TimeoutAction::KillSession] {
        let (Starting { handle, ready, mut proxy, fork_server: _alive }, _) = set_to(700, action).await;
        match ready.await {
            Ok(Err(Error::Deadline { after, .. })) => assert_eq!(after.as_millis(), 700),
            other => panic!("{other:?}"),
        }
        let Some(ToProxy::Request { command: ProxyCommand::Kill { reason, .. }, .. }) = proxy.next().await else {
            panic!("no shutdown")
        };
        assert_eq!(reason, EndReason::TimedOut(TimeoutKind::Start));
        // What is done: there is no turn that it could be done to.
        assert_eq!(fired(&handle).await, [(TimeoutKind::Start, 700, TimeoutAction::KillSession)]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_start_that_takes_too_long_goes_on_where_the_action_is_to_warn() {
    for start_ms in [700, 0] {
        let (Starting { handle, ready, mut proxy, fork_server: _alive }, request) =
            set_to(start_ms, TimeoutAction::Warn).await;
        // Longer than anything that is set, or has a default.
        tokio::time::sleep(Duration::from_secs(1000)).await;
        let expected = [(TimeoutKind::Start, 700, TimeoutAction::Warn)];
        // Once; not at all where there is no such clock.
        assert_eq!(fired(&handle).await, if start_ms == 0 { &[][..] } else { &expected[..] });
        assert_eq!(handle.info().state, SessionState::Starting);
        let (native_session_id, measures) = (None, Box::default());
        proxy.send(FromProxy::Started { request, process: AGENT, native_session_id, turns: true, measures }).await;
        ready.await.expect("an answer").expect("ready");
        assert_eq!(handle.info().state, SessionState::Idle);
    }
}

/// A session of an agent by the row `change` makes of it, that is suspended when it has been idle for a minute.
async fn resting(config: AgentSessionConfig, change: impl FnOnce(&mut AgentSpec)) -> Running {
    let mut spec = AgentSpec::new("mine", "acp", &["mine"]);
    change(&mut spec);
    let mut kit = AgentDefaults { cwd: "/".to_owned(), max_depth: 3, ..AgentDefaults::default() };
    kit.catalog.add(spec);
    let homes = SessionHomes::persistent("/nowhere".into(), []);
    let lifecycle = Lifecycle { idle_suspend_ms: Some(60_000), ..Lifecycle::default() };
    let config = AgentSessionConfig { lifecycle, agent: "mine".into(), ..config };
    let around = LaunchContext {
        defaults: &kit,
        homes: &homes,
        workspaces: None,
        locks: &Arc::default(),
        past_session: &|_| None,
    };
    let launch = SessionLaunch::plan(config, &around).expect("valid");
    let Starting { handle, ready, mut proxy, fork_server } =
        launched(launch, Deadlines { health: None, ..Deadlines::default() }, HistoryLimits::default()).await;
    proxy.start_as("n-1").await;
    ready.await.expect("an answer").expect("ready");
    Running { handle, proxy, fork_server }
}

#[tokio::test(start_paused = true)]
async fn only_a_conversation_that_is_kept_is_suspended_when_it_is_idle() {
    let plain = || AgentSessionConfig::new("");
    let Running { handle, mut proxy, fork_server: _alive } = resting(plain(), |_| {}).await;
    assert!(handle.info().conversation.resumable);
    let Some(ToProxy::Request { command: ProxyCommand::Kill { reason, .. }, .. }) = proxy.next().await else {
        panic!("no shutdown")
    };
    assert_eq!(reason, EndReason::Suspended);

    let says_so = AgentFact::NotResumable { detail: String::new() };
    let ephemeral = AgentSessionConfig { ephemeral: true, ..plain() };
    let supports = |row: &mut AgentSpec| row.discovery.discovery_capabilities.supports_session_resume = Some(false);
    for (what, running, fact) in [
        // First of all: until then it would be suspended.
        ("its agent", resting(plain(), |_| {}).await, Some(says_so)),
        ("it is to keep nothing", resting(ephemeral, |_| {}).await, None),
        ("its row", resting(plain(), |row| row.session_config.can_recover = Some(false)).await, None),
        ("its row", resting(plain(), supports).await, None),
    ] {
        let Running { handle, mut proxy, fork_server } = running;
        if let Some(fact) = fact {
            proxy.send(FromProxy::Fact(fact)).await;
            round_trip(&handle, &mut proxy).await;
        }
        assert!(!handle.info().conversation.resumable, "{what}");
        assert_eq!(handle.info().conversation.native_session_id.as_deref(), Some("n-1"), "it is told all the same");
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!(handle.info().state, SessionState::Idle, "{what}");
        // If its host ends it, it is over.
        handle.session().request_end(KillOptions::NOW, EndReason::Suspended);
        end(proxy, fork_server, handle.id()).await;
        handle.session().wait_settled().await.expect("settled");
        assert!(matches!(handle.info().state, SessionState::Ended { .. }), "{what}");
    }
}
