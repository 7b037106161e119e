//! Sessions within bounds: how many at once, what each may take, and what becomes of those that do not answer.

use std::{future::Future, pin::pin, time::Duration};

use agent_proxy_tests::sessions::{self, event, fake, soon};
use proxy_manager::{
    AgentSessionConfig, Budget, BudgetAction, BudgetExceeded, BudgetKind, Error, Event, KillCause, KillOptions,
    Occupancy, PermissionAnswer, ProcessUse, PromptMode, ProxyManager, SessionBound, SessionHandle, SessionState,
    StopReason, Usd,
};

fn builder() -> proxy_manager::ManagerBuilder {
    sessions::builder(env!("CARGO_BIN_EXE_proxy-child"), env!("CARGO_BIN_EXE_fake-agent"))
}

const LONG: Duration = Duration::from_secs(60);

fn of(user: &str) -> AgentSessionConfig {
    AgentSessionConfig { user_id: Some(user.into()), ..fake() }
}

/// Polls a future once, so that what it begins with is done. It must not be ready.
async fn begun<T: std::fmt::Debug>(future: &mut (impl Future<Output = T> + Unpin)) {
    tokio::select! {
        biased;
        done = future => panic!("{done:?}"),
        () = std::future::ready(()) => {}
    }
}

/// Polls the future of a start until `waiting` starts are in the queue. It must not be ready.
async fn queued<T: std::fmt::Debug>(
    manager: &ProxyManager,
    future: &mut (impl Future<Output = T> + Unpin),
    waiting: usize,
) {
    let is_queued = async {
        while manager.occupancy().waiting != waiting {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        done = future => panic!("{done:?}"),
        () = soon("its place in the queue", is_queued) => {}
    }
}

async fn end(session: SessionHandle) {
    soon("the end", session.kill(KillOptions::default())).await.expect("killed");
}

fn occupancy(manager: &ProxyManager) -> (usize, usize) {
    let Occupancy { running, waiting } = manager.occupancy();
    (running, waiting)
}

#[tokio::test]
async fn a_start_beyond_a_bound_is_refused_and_says_which() {
    let manager = builder().max_sessions(2).max_sessions_per_user(1).build().await.expect("built");
    let first = manager.start_session(of("alice")).await.expect("started");
    let refused = manager.start_session(of("alice")).await.expect_err("one too many");
    assert!(
        matches!(&refused, Error::TooManySessions { bound: SessionBound::User(user), limit: 1, .. } if user == "alice"),
        "{refused:?}"
    );
    assert_eq!(
        refused.to_string(),
        "the limit of 1 running sessions of user \"alice\" is reached, and none may wait: end one, or try again later"
    );
    let second = manager.start_session(fake()).await.expect("started");
    let refused = manager.start_session(of("bob")).await.expect_err("one too many");
    assert!(matches!(refused, Error::TooManySessions { bound: SessionBound::Total, limit: 2, waited: None, .. }));
    // As soon as the end is told, the place is free; so is that of a start that fails.
    for _ in 0..3 {
        end(manager.session(first.id()).expect("there")).await;
        let failed = AgentSessionConfig { command: vec!["/none".into()], ..AgentSessionConfig::new("command") };
        manager.start_session(failed).await.expect_err("no such program");
        end(manager.start_session(of("alice")).await.expect("started")).await;
    }
    end(second).await;
    assert_eq!(occupancy(&manager), (0, 0));
    manager.shutdown().await;
}

#[tokio::test]
async fn the_queue_is_served_user_by_user() {
    let manager = builder().max_sessions(1).queue(10, LONG).build().await.expect("built");
    let mut running = manager.start_session(of("alice")).await.expect("started");
    let mut alice = [pin!(manager.start_session(of("alice"))), pin!(manager.start_session(of("alice")))];
    let mut bob = pin!(manager.start_session(of("bob")));
    for (start, waiting) in alice.iter_mut().zip(1..) {
        queued(&manager, start, waiting).await;
    }
    queued(&manager, &mut bob, 3).await;
    assert_eq!(occupancy(&manager), (1, 3));
    let [first, second] = alice;
    end(running).await;
    running = soon("alice's next", first).await.expect("started");
    end(running).await;
    running = soon("bob's", bob).await.expect("started");
    end(running).await;
    running = soon("alice's last", second).await.expect("started");
    end(running).await;
    manager.shutdown().await;
}

#[tokio::test]
async fn a_start_that_is_not_waited_for_leaves_the_queue() {
    let manager = builder().max_sessions(1).queue(1, LONG).build().await.expect("built");
    let running = manager.start_session(fake()).await.expect("started");
    {
        let mut dropped = pin!(manager.start_session(fake()));
        queued(&manager, &mut dropped, 1).await;
        let refused = manager.start_session(fake()).await.expect_err("the queue is full");
        assert!(matches!(refused, Error::TooManySessions { waiting: 1, .. }), "{refused}");
    }
    assert_eq!(occupancy(&manager), (1, 0));
    let mut called = Box::pin(manager.start_session(fake()));
    queued(&manager, &mut called, 1).await;
    end(running).await;
    // It has the place and does not know it yet.
    assert_eq!(occupancy(&manager), (1, 0));
    drop(called);
    assert_eq!(occupancy(&manager), (0, 0));
    end(manager.start_session(fake()).await.expect("the place is free")).await;
    manager.shutdown().await;
}

#[tokio::test]
async fn a_keyed_start_that_waits_for_a_place_holds_up_no_other_key() {
    let keyed = |key: &str| {
        let mut config = fake();
        config.lifecycle.key = Some(key.into());
        config
    };
    let manager = builder().max_sessions(1).queue(10, LONG).build().await.expect("built");
    let running = manager.start_session(keyed("one")).await.expect("started");
    let mut waiting = pin!(manager.start_session(keyed("two")));
    queued(&manager, &mut waiting, 1).await;
    let mut same = pin!(manager.start_session(keyed("two")));
    begun(&mut same).await;
    assert_eq!(occupancy(&manager), (1, 1), "the second of one key waits for the first");
    let again = soon("the one that runs", manager.start_session(keyed("one"))).await.expect("there");
    assert_eq!(again.id(), running.id());
    end(running).await;
    let second = soon("the place", waiting).await.expect("started");
    assert_eq!(soon("the same", same).await.expect("there").id(), second.id());
    manager.shutdown().await;
}

#[tokio::test]
async fn nobody_waits_for_ever() {
    let manager = builder().max_sessions(1).queue(2, Duration::from_millis(50)).build().await.expect("built");
    let running = manager.start_session(fake()).await.expect("started");
    let late = soon("the refusal", manager.start_session(fake())).await.expect_err("nobody ends");
    assert!(matches!(late, Error::TooManySessions { waited: Some(_), .. }), "{late}");
    end(running).await;
    manager.shutdown().await;

    let manager = builder().max_sessions(1).queue(2, LONG).build().await.expect("built");
    let _running = manager.start_session(fake()).await.expect("started");
    let mut waiting = pin!(manager.start_session(fake()));
    queued(&manager, &mut waiting, 1).await;
    let (waited, _) = tokio::join!(waiting, manager.shutdown());
    assert!(matches!(waited, Err(Error::ShutDown)), "{waited:?}");
}

#[tokio::test]
async fn a_budget_is_told_and_then_refuses() {
    let manager = builder().build().await.expect("built");
    let budget = Budget { total_tokens: Some(100), ..Budget::default() };
    let session = manager.start_session(AgentSessionConfig { budget, ..fake() }).await.expect("started");
    let mut events = session.subscribe();
    soon("the answer", session.ask("say a\ntokens 50 10")).await.expect("answered");
    assert_eq!(session.info().metrics.usage.input_tokens, Some(50));
    // What is told at the end of a turn ends none.
    soon("the answer", session.ask("say b\ntokens 30 10")).await.expect("answered");
    let passed = event(&mut events, "the budget", |envelope| match &envelope.event {
        Event::BudgetExceeded(passed) => Some(**passed),
        _ => None,
    })
    .await;
    let (budget, action) = (BudgetKind::TotalTokens, BudgetAction::EndTurn);
    assert_eq!(passed, BudgetExceeded { budget, value: 100, measured: 100, action });
    let refused = session.ask("say c").await.expect_err("used up");
    assert!(matches!(&refused, Error::BudgetExceeded { exceeded, .. } if *exceeded == passed), "{refused}");
    assert!(refused.to_string().contains("100 of 100 tokens"), "{refused}");
    let metrics = session.info().metrics;
    assert_eq!((metrics.usage.input_tokens, metrics.usage.output_tokens, metrics.messages), (Some(80), Some(20), 4));
    end(session).await;
    manager.shutdown().await;
}

#[tokio::test]
async fn a_turn_that_uses_up_its_budget_is_aborted_or_ends_the_session_or_is_warned() {
    let manager = builder().build().await.expect("built");
    let start = |action| {
        let budget = Budget { cost_usd: Usd::from_dollars(1.0), action, ..Budget::default() };
        manager.start_session(AgentSessionConfig { budget, ..fake() })
    };
    let session = start(BudgetAction::EndTurn).await.expect("started");
    let directory = tempfile::tempdir().expect("a directory");
    let go = directory.path().join("go");
    let waiting = async {
        let mut events = session.subscribe();
        event(&mut events, "the turn", |envelope| matches!(envelope.event, Event::SessionBusy {}).then_some(())).await;
        let turn = session.prompt("say queued", PromptMode::Queue).await.expect("queued");
        std::fs::write(&go, "").expect("written");
        turn.wait().await
    };
    let script = format!("run while ! test -e {}; do :; done\ncost 40\ncost 70\nwait", go.display());
    let (asked, queued) = soon("the end of the turn", async { tokio::join!(session.ask(script), waiting) }).await;
    let Err(Error::TurnFailed { answer, reason, .. }) = asked else { panic!("{asked:?}") };
    assert_eq!(reason, "it used up the session's budget of cost");
    assert_eq!((answer.over_budget, answer.stop_reason), (Some(BudgetKind::Cost), Some(StopReason::Cancelled)));
    assert!(matches!(queued, Err(Error::BudgetExceeded { .. })), "{queued:?}");
    assert_eq!(session.info().state, SessionState::Idle);
    end(session).await;

    let session = start(BudgetAction::EndSession).await.expect("started");
    let asked = soon("the end", session.ask("cost 150\nwait")).await;
    match asked {
        // Whether the end of its output or of the session is seen first.
        Err(Error::TurnFailed { answer, .. }) => assert_eq!(answer.over_budget, Some(BudgetKind::Cost)),
        Err(Error::Ended { .. }) => {}
        other => panic!("{other:?}"),
    }
    let receipt = session.kill(KillOptions::default()).await.expect("ended");
    assert!(receipt.is_empty() && receipt.cause == KillCause::Limit, "{receipt}");

    let session = start(BudgetAction::Warn).await.expect("started");
    for _ in 0..2 {
        soon("the answer", session.ask("cost 150")).await.expect("answered");
    }
    end(session).await;
    manager.shutdown().await;
}

#[tokio::test]
async fn metrics_say_what_a_session_did() {
    let manager = builder().build().await.expect("built");
    let session = manager.start_session(fake()).await.expect("started");
    soon("the answer", session.ask("say a\nrun exit 3\nsay b\nsleep 30ms\nspawn exec sleep 300"))
        .await
        .expect("answered");
    let info = session.info();
    let metrics = info.metrics;
    assert_eq!((info.turns, metrics.tool_calls, metrics.events), (1, 1, info.last_offset));
    assert!(metrics.messages == 3 && metrics.busy_ms >= 30 && metrics.event_bytes > 100, "{metrics:?}");
    assert!(info.heartbeat >= info.metadata.started_at);
    let measured = manager.measured_sessions().await;
    let process_use = measured[0].process_use.expect("it lives");
    assert!(process_use.processes >= 2 && process_use.rss_bytes > 100_000, "{process_use:?}");
    end(session).await;
    let measured = manager.measured_sessions().await;
    assert_eq!(measured[0].process_use, Some(ProcessUse::default()), "nothing is left");
    manager.shutdown().await;
}

#[tokio::test]
async fn a_manager_that_drains_lets_turns_finish_and_begins_nothing() {
    let manager = builder().max_sessions(2).queue(1, LONG).build().await.expect("built");
    let (busy, idle) = tokio::join!(manager.start_session(fake()), manager.start_session(fake()));
    let (busy, idle) = (busy.expect("started"), idle.expect("started"));
    let turn = busy.prompt("ask May I?\nsay done", PromptMode::Refuse).await.expect("prompted");
    let mut events = busy.subscribe();
    let request = event(&mut events, "the request", |envelope| match &envelope.event {
        Event::PermissionRequested(request) => Some(request.id.clone()),
        _ => None,
    })
    .await;
    let waiting = manager.start_session(fake());
    let mut told = Vec::new();
    let (begun, drains) = tokio::sync::oneshot::channel();
    let mut begun = Some(begun);
    let drained = manager.drain(LONG, |progress| {
        told.push((progress.sessions, progress.turns));
        _ = begun.take().map(|begun| begun.send(()));
    });
    let meanwhile = async {
        drains.await.expect("told");
        assert!(matches!(manager.start_session(fake()).await, Err(Error::Draining)));
        assert!(matches!(idle.prompt("say x", PromptMode::Queue).await, Err(Error::Draining)));
        busy.respond_permission(&request, PermissionAnswer::Allow).await.expect("answered");
        let end = turn.wait().await.expect("it ends well");
        assert_eq!(end.stop_reason, Some(StopReason::EndTurn));
    };
    let (waited, receipts, ()) = soon("the end", async { tokio::join!(waiting, drained, meanwhile) }).await;
    assert!(matches!(waited, Err(Error::Draining)), "{waited:?}");
    assert!(receipts.len() == 2 && receipts.iter().all(proxy_manager::Receipt::is_empty), "{receipts:?}");
    assert_eq!(told, [(2, 1), (2, 0)]);
}

#[tokio::test]
async fn a_turn_that_is_not_done_in_time_is_ended() {
    let manager = builder().build().await.expect("built");
    let session = manager.start_session(fake()).await.expect("started");
    let turn = session.prompt("wait", PromptMode::Refuse).await.expect("prompted");
    let receipts = soon("the end", manager.drain(Duration::from_millis(50), |_| {})).await;
    assert!(receipts.len() == 1 && receipts[0].is_empty());
    // Whether the end of its output or of the session is seen first.
    assert!(!matches!(turn.wait().await, Ok(end) if end.error.is_none()));
}
