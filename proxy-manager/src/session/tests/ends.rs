//! Starts and ends, and calls that nobody answers.

use std::time::Duration;

use super::*;
use crate::{
    fork_server::ProxyGone,
    session::session_ending::{EndingStep, SessionEnding},
    state::{BootNamespace, JournalHeader, SessionJournal},
};

#[tokio::test]
async fn a_silent_proxy_means_a_deadline() {
    let deadlines = Deadlines { control: Duration::from_millis(500), ..patient() };
    let config = AgentSessionConfig::new("acp");
    let Running { handle, mut proxy, fork_server: _alive } =
        running_with(config, deadlines, HistoryLimits::default(), true).await;
    let late = soon(handle.ping()).await;
    assert!(matches!(late, Err(Error::Deadline { .. })), "{late:?}");
    // The answer comes after all, and disturbs nothing.
    let Some(ToProxy::Request { request, command: ProxyCommand::Ping }) = proxy.receive().await else {
        panic!("no ping")
    };
    proxy.send(FromProxy::Done { request }).await;
    let denied = tokio::join!(handle.respond_permission("p", PermissionAnswer::Deny), async {
        let Some(ToProxy::Request { request, command: ProxyCommand::Permission { .. } }) = proxy.receive().await else {
            panic!("no answer")
        };
        proxy.send(FromProxy::Failed { request, error: WireError::UnknownPermission { id: "p".into() } }).await;
    });
    assert!(matches!(denied.0, Err(Error::UnknownPermission { .. })));
}

/// Time passes only when nobody has anything to do: however slow the machine is, the start is asked for before it runs out.
#[tokio::test(start_paused = true)]
async fn the_start_has_a_deadline_and_leaves_nothing() {
    let start = Duration::from_millis(20);
    let deadlines = Deadlines { start, ..patient() };
    let config = AgentSessionConfig::new("acp");
    let begun = tokio::time::Instant::now();
    let Starting { handle, ready, mut proxy, fork_server } =
        starting(config, deadlines, HistoryLimits::default()).await;
    proxy.hello().await;
    assert!(matches!(soon(ready).await, Ok(Err(Error::Deadline { after, .. })) if after == start));
    assert_eq!(begun.elapsed(), start);
    let Some(ToProxy::Request { command: ProxyCommand::Kill { reason, .. }, .. }) = proxy.receive().await else {
        panic!("no shutdown")
    };
    proxy.send(FromProxy::Ended { reason, receipt: Box::new(receipt(handle.id())) }).await;
    drop(proxy);
    fork_server.gone(handle.id(), guard_receipt(handle.id()));
    let killed = soon(handle.kill(KillOptions::NOW)).await.expect("a receipt");
    assert_eq!(killed.proof, Proof::NoChildren);
    assert!(matches!(handle.info().state, SessionState::Ended { reason: EndReason::TimedOut(TimeoutKind::Start), .. }));
}

#[tokio::test]
async fn a_kill_works_while_the_agent_starts() {
    let config = AgentSessionConfig::new("acp");
    let Starting { handle, ready, mut proxy, fork_server } =
        starting(config, patient(), HistoryLimits::default()).await;
    let caller = handle.clone();
    let kill = tokio::spawn(async move { caller.kill(KillOptions::NOW).await });
    proxy.hello().await;
    assert!(matches!(soon(ready).await, Ok(Err(Error::Ended { .. }))));
    let Some(ToProxy::Request { command: ProxyCommand::Kill { reason, .. }, .. }) = proxy.receive().await else {
        panic!("no shutdown")
    };
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
    let Some(ToProxy::Request { command: ProxyCommand::Kill { reason, .. }, .. }) = proxy.receive().await else {
        panic!("no shutdown")
    };
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
    // A start that is dropped only now changes nothing.
    handle.session().abandon_start(EndReason::Killed);
    assert!(matches!(handle.info().state, SessionState::Ended { .. }));
    assert_eq!(soon(handle.processes()).await.expect("none"), []);
    assert!(matches!(soon(handle.ping()).await, Err(Error::Ended { .. })));
}

#[tokio::test]
async fn a_wedged_proxy_is_ended_by_the_fork_server() {
    let Running { handle, mut proxy, mut fork_server } =
        running_with(AgentSessionConfig::new("acp"), quick(), HistoryLimits::default(), true).await;
    let caller = handle.clone();
    let options = KillOptions::grace(Duration::from_millis(10));
    let kill = tokio::spawn(async move { caller.kill(options).await });
    assert!(matches!(proxy.receive().await, Some(ToProxy::Request { command: ProxyCommand::Kill { .. }, .. })));
    let (order, _) = fork_server.receive().await;
    assert_eq!(order, ToForkServer::Kill { session: handle.id().clone(), options });
    drop(proxy);
    fork_server.gone(handle.id(), guard_receipt(handle.id()));
    assert_eq!(soon(kill).await.expect("no panic").expect("a receipt").proof, Proof::QuietRounds(3));
    assert!(matches!(handle.info().state, SessionState::Ended { reason: EndReason::Killed, .. }));
}

#[tokio::test]
async fn when_nobody_ends_it_the_kill_says_so_and_can_be_asked_again() {
    let config = AgentSessionConfig::new("acp");
    // Nobody ends it in this time; who ends it later has as long.
    let deadlines = Deadlines { kill: Duration::from_secs(2), ..quick() };
    let Running { handle, mut proxy, mut fork_server } =
        running_with(config, deadlines, HistoryLimits::default(), true).await;
    let late = soon(handle.kill(KillOptions::NOW)).await;
    assert!(matches!(late, Err(Error::Deadline { .. })), "{late:?}");
    assert!(matches!(proxy.receive().await, Some(ToProxy::Request { command: ProxyCommand::Kill { .. }, .. })));
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
    let Some(ToProxy::Request { command: ProxyCommand::Kill { reason, .. }, .. }) = proxy.receive().await else {
        panic!("no shutdown")
    };
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
    assert!(matches!(proxy.receive().await, Some(ToProxy::Request { command: ProxyCommand::Ping, .. })));
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

/// The agent may have waited for nothing but what is killed.
#[tokio::test]
async fn a_kill_is_answered_though_the_agent_ends_in_the_middle_of_it() {
    let Running { handle, mut proxy, fork_server: _alive } = running().await;
    let (killed, ()) = tokio::join!(soon(handle.kill_scope(KillScope::AllButAgent, KillOptions::NOW)), async {
        let Some(ToProxy::Request { request, command: ProxyCommand::Kill { .. } }) = proxy.receive().await else {
            panic!("no kill")
        };
        proxy.send(FromProxy::AgentExited { exit: ExitStatus::Code(0), kept: false }).await;
        proxy.send(FromProxy::Receipt { request, receipt: Box::new(receipt(handle.id())) }).await;
    });
    assert_eq!(killed.expect("proven").proof, Proof::NoChildren);
    assert!(matches!(soon(handle.ping()).await, Err(Error::AgentDied { .. })));
}

#[tokio::test]
async fn a_dead_fork_server_fails_pending_calls_and_waits_for_the_proxys_word() {
    let Running { handle, mut proxy, fork_server } = running().await;
    let (turn, _) = tokio::join!(handle.prompt("one", PromptMode::Refuse), proxy.take_prompt("one"));
    drop(fork_server);
    assert!(matches!(soon(turn.expect("taken").wait()).await, Err(Error::ForkServerDied)));
    let caller = handle.clone();
    let kill = tokio::spawn(async move { caller.kill(KillOptions::NOW).await });
    assert!(matches!(proxy.receive().await, Some(ToProxy::Request { command: ProxyCommand::Kill { .. }, .. })));
    let reason = EndReason::ForkServerDied;
    proxy.send(FromProxy::Ended { reason, receipt: Box::new(receipt(handle.id())) }).await;
    // It is heard to its end.
    drop(proxy);
    soon(kill).await.expect("no panic").expect("the proxy's receipt");
    assert!(matches!(handle.info().state, SessionState::Ended { reason: EndReason::ForkServerDied, .. }));
}

#[tokio::test]
async fn what_the_fork_server_ends_for_its_lease_is_no_crash_of_the_proxy() {
    let now = tokio::time::Instant::now();
    for (cause, expected) in [
        (KillCause::Lease, EndReason::HostDied),
        (KillCause::ProxyDied, EndReason::ProxyDied(Some(ExitStatus::Signal(9)))),
    ] {
        let mut ending = SessionEnding::new(Duration::from_secs(1), Duration::from_secs(1));
        let left = Receipt { cause, ..guard_receipt(&SessionId::mint()) };
        ending.record_gone(ProxyGone { exit: Some(ExitStatus::Signal(9)), receipt: Box::new(left) }, now);
        ending.record_close(now);
        assert_eq!(ending.outcome(now).expect("enough").reason, expected);
    }
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

/// What the host knows of the session is in its journal, which needs no disk.
#[tokio::test]
async fn when_both_are_dead_the_host_sweeps() {
    let config = AgentSessionConfig { lifecycle: ipc_protocol::Lifecycle::default(), ..AgentSessionConfig::new("acp") };
    let mut launch = plan(config, &Arc::default()).expect("valid");
    let header = JournalHeader {
        session: launch.id().clone(),
        marker: format!("swept-{}", launch.id()),
        place: BootNamespace::default(),
        since: registry::now_in_ticks(),
        strict: false,
        host: HOST,
        fork_server: PROXY,
        cgroup: None,
        container: None,
    };
    launch.journal = Some(SessionJournal::new(None, header));
    let Starting { handle, ready, mut proxy, fork_server } =
        launched(launch, patient(), HistoryLimits::default()).await;
    proxy.start(true).await;
    soon(ready).await.expect("an answer").expect("ready");
    let mut subscription = handle.subscribe_from(handle.info().last_offset);
    drop((proxy, fork_server));
    let ended = soon(subscription.next()).await.expect("the last event");
    let Event::SessionEnded { reason, receipt: Some(receipt) } = &ended.event else { panic!("{ended:?}") };
    assert_eq!((reason, receipt.cause), (&EndReason::ForkServerDied, KillCause::Recovery));
    assert_eq!((receipt.proof, receipt.unmarked), (Proof::QuietRounds(3), Some(true)));
    assert_eq!(soon(handle.kill(KillOptions::NOW)).await.expect("the stored receipt"), **receipt);
}

/// A proxy that proves its end needs no sweep.
#[tokio::test]
async fn a_proxy_that_outlives_the_fork_server_speaks_for_itself() {
    let mut ending = SessionEnding::new(Duration::from_secs(1), Duration::from_secs(1));
    let now = tokio::time::Instant::now();
    assert_eq!(ending.record_guard_death(true, now), EndingStep::Nothing);
    let id = SessionId::mint();
    ending.record_report(EndReason::ForkServerDied, Box::new(receipt(&id)), now);
    assert_eq!(ending.outcome(now), None, "it may have more to say");
    assert_eq!(ending.record_close(now), EndingStep::Nothing);
    assert!(ending.outcome(now).is_some());
    // One that says nothing, or that something is left.
    for unproven in [false, true] {
        let mut ending = SessionEnding::new(Duration::from_secs(1), Duration::from_secs(60));
        assert_eq!(ending.record_guard_death(true, now), EndingStep::Nothing);
        if unproven {
            let left = Receipt { proof: Proof::None, ..receipt(&id) };
            ending.record_report(EndReason::ForkServerDied, Box::new(left), now);
        }
        let due = ending.next().expect("it is waited for");
        assert!(due < now + Duration::from_secs(2));
        assert_eq!(ending.tick(due), EndingStep::Sweep);
        assert_eq!((ending.tick(due), ending.outcome(due + Duration::from_secs(100))), (EndingStep::Nothing, None));
        ending.swept(Some(Box::new(guard_receipt(&id))), due);
        ending.record_close(due);
        let end = ending.outcome(due).expect("swept");
        assert!(end.receipt.expect("a receipt").is_empty());
    }
}

/// The look for the session's marker is the fork server's, and begins with the proxy's death.
#[tokio::test]
async fn a_proxy_that_has_ended_its_session_and_does_not_exit_is_killed() {
    let mut ending = SessionEnding::new(Duration::from_secs(1), Duration::from_secs(1));
    let (now, id) = (tokio::time::Instant::now(), SessionId::mint());
    ending.request(KillOptions::NOW, EndReason::Killed, now);
    ending.record_report(EndReason::Killed, Box::new(Receipt { unmarked: None, ..receipt(&id) }), now);
    let due = ending.next().expect("its exit is waited for");
    assert!(due < now + Duration::from_secs(1));
    assert_eq!(ending.tick(due), EndingStep::AskForkServer(KillOptions::NOW));
    assert_eq!((ending.tick(due), ending.outcome(due)), (EndingStep::Nothing, None));
    ending.record_gone(ProxyGone { exit: None, receipt: Box::new(guard_receipt(&id)) }, due);
    let end = ending.outcome(due).expect("both have spoken");
    assert!(end.reason == EndReason::Killed && end.receipt.expect("a receipt").is_empty());
}

#[tokio::test]
async fn nonsense_ends_the_session_through_the_fork_server() {
    for early in [true, false] {
        let config = AgentSessionConfig::new("acp");
        let Starting { handle, ready, mut proxy, mut fork_server } =
            starting(config, patient(), HistoryLimits::default()).await;
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
    let Starting { ready, mut proxy, mut fork_server, .. } =
        starting(config, patient(), HistoryLimits::default()).await;
    proxy.send(FromProxy::Hello(Hello { version: VERSION + 1, process: PROXY })).await;
    assert!(matches!(soon(ready).await, Ok(Err(Error::VersionMismatch { .. }))));
    assert!(matches!(fork_server.receive().await.0, ToForkServer::Kill { .. }));
}

/// With a proxy that does nothing about it, or only says so.
#[tokio::test]
async fn a_wall_clock_is_kept_without_the_proxy() {
    for says_so in [false, true] {
        let limits = Limits { wall_clock_ms: Some(1), ..Limits::default() };
        let config = AgentSessionConfig { limits, ..AgentSessionConfig::new("acp") };
        let Running { handle, mut proxy, mut fork_server } =
            running_with(config, quick(), HistoryLimits::default(), true).await;
        let event = Event::LimitExceeded(Box::new(LimitExceeded {
            limit: LimitKind::WallClock,
            value: 1,
            measured: 2,
            form: LimitForm::Clock,
            action: LimitAction::KillSession,
            process: None,
        }));
        if says_so {
            proxy.send(FromProxy::Event { turn: 0, event: event.clone() }).await;
        }
        let (order, _) = fork_server.receive().await;
        assert!(matches!(order, ToForkServer::Kill { .. }), "{order:?}");
        // The connection counts as closed: what it says now is not heard.
        proxy.send(FromProxy::Event { turn: 0, event }).await;
        fork_server.gone(handle.id(), guard_receipt(handle.id()));
        let mut events = handle.subscribe();
        let mut seen = Vec::new();
        while let Some(envelope) = soon(events.next()).await {
            seen.push(envelope.event.clone());
        }
        assert_eq!(seen.iter().filter(|event| matches!(event, Event::LimitExceeded(_))).count(), 1, "{seen:#?}");
        let Some(Event::SessionEnded { reason, receipt: Some(receipt) }) = seen.last() else { panic!("{seen:#?}") };
        assert_eq!(*reason, EndReason::LimitExceeded(LimitKind::WallClock));
        assert_eq!(receipt.cause, KillCause::Limit);
    }
}
