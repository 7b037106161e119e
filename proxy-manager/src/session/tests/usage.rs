//! A turn that meets a usage limit. Time passes only when nobody has anything to do.

use std::time::{SystemTime, UNIX_EPOCH};

use ipc_protocol::OnUsageLimit;

use super::*;

const HOUR: u64 = 3600;

async fn limited(on_usage_limit: OnUsageLimit) -> Running {
    let config = AgentSessionConfig { on_usage_limit, ..AgentSessionConfig::new("acp") };
    let deadlines = Deadlines { health: None, ..Deadlines::default() };
    running_with(config, deadlines, HistoryLimits::default(), true).await
}

async fn begin(handle: &SessionHandle, proxy: &mut FakeProxy) -> crate::session::Turn {
    let (turn, _) = tokio::join!(handle.prompt("one", PromptMode::Refuse), proxy.take_prompt("one"));
    turn.expect("taken")
}

/// The agent meets the limit in turn `turn`, which is reset in so many seconds.
async fn meets(proxy: &mut FakeProxy, turn: u64, resets_in: Option<u64>) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis();
    let resets_at = resets_in.map(|seconds| u64::try_from(now).expect("a moment") + seconds * 1000);
    let event = Event::UsageLimited { limit: "five_hour".into(), message: "no more".into(), resets_at, waits: false };
    proxy.send(FromProxy::Event { turn, event }).await;
    proxy.send(FromProxy::Event { turn, event: Event::error("429", "no more", true) }).await;
    proxy.send(FromProxy::TurnEnded { turn }).await;
}

/// Takes the prompt when it is asked again, however long that takes.
async fn asked_again(proxy: &mut FakeProxy) {
    match proxy.next().await {
        Some(ToProxy::Request { request, command: ProxyCommand::Prompt { turn: 1, prompt } }) => {
            assert_eq!(prompt.text(), "one");
            proxy.send(FromProxy::Done { request }).await;
        }
        other => panic!("no prompt: {other:?}"),
    }
}

/// What the stream says of the limits: whether each waits.
async fn told(handle: &SessionHandle) -> Vec<bool> {
    let last = handle.info().last_offset;
    let mut events = handle.subscribe();
    let mut told = Vec::new();
    for _ in 0..last {
        if let Event::UsageLimited { waits, .. } = events.next().await.expect("an event").event {
            told.push(waits);
        }
    }
    told
}

/// Until the turn waits: the task has taken all that its proxy has said.
async fn waits(handle: &SessionHandle, proxy: &mut FakeProxy) {
    round_trip(handle, proxy).await;
    assert_eq!(handle.info().state, SessionState::Busy { turn: 1 });
}

#[tokio::test(start_paused = true)]
async fn a_limit_fails_the_turn_unless_it_is_to_wait() {
    let Running { handle, mut proxy, fork_server: _alive } = limited(OnUsageLimit::Fail).await;
    let turn = begin(&handle, &mut proxy).await;
    meets(&mut proxy, 1, Some(HOUR)).await;
    assert_eq!(turn.wait().await.expect("ended").error.as_deref(), Some("no more"));
    assert_eq!(told(&handle).await, [false]);

    // Nobody knows until when, or it is too long.
    for resets_in in [None, Some(30 * 24 * HOUR)] {
        let Running { handle, mut proxy, fork_server: _alive } = limited(OnUsageLimit::Wait).await;
        let turn = begin(&handle, &mut proxy).await;
        meets(&mut proxy, 1, resets_in).await;
        assert_eq!(turn.wait().await.expect("ended").error.as_deref(), Some("no more"));
        assert_eq!(told(&handle).await, [false]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_turn_waits_for_the_reset_and_the_queue_behind_it() {
    let Running { handle, mut proxy, fork_server: _alive } = limited(OnUsageLimit::Wait).await;
    let turn = begin(&handle, &mut proxy).await;
    let second = handle.prompt("two", PromptMode::Queue).await.expect("queued");
    let begun = tokio::time::Instant::now();
    meets(&mut proxy, 1, Some(HOUR)).await;
    asked_again(&mut proxy).await;
    let waited = begun.elapsed().as_secs();
    assert!((HOUR - 5..=HOUR).contains(&waited), "{waited} s: no clock of the turn's ran");
    // The limit holds still.
    meets(&mut proxy, 1, Some(0)).await;
    asked_again(&mut proxy).await;
    proxy.end_turn(1).await;
    let end = turn.wait().await.expect("ended");
    assert_eq!((end.stop_reason, end.error), (Some(StopReason::EndTurn), None));
    assert_eq!(proxy.take_prompt("two").await, 2);
    proxy.end_turn(2).await;
    assert_eq!(second.wait().await.expect("ended").stop_reason, Some(StopReason::EndTurn));
    assert_eq!(told(&handle).await, [true, true]);
}

#[tokio::test(start_paused = true)]
async fn an_abort_ends_the_wait_and_the_next_prompt_is_asked() {
    let Running { handle, mut proxy, fork_server: _alive } = limited(OnUsageLimit::Wait).await;
    let turn = begin(&handle, &mut proxy).await;
    let second = handle.prompt("two", PromptMode::Queue).await.expect("queued");
    meets(&mut proxy, 1, Some(HOUR)).await;
    waits(&handle, &mut proxy).await;
    let answer = async {
        // The abort comes first: it does not meet the next turn.
        let Some(ToProxy::Request { request, command: ProxyCommand::Abort { .. } }) = proxy.next().await else {
            panic!("no abort")
        };
        proxy.send(FromProxy::Done { request }).await;
    };
    let (aborted, ()) = tokio::join!(handle.abort(AbortPolicy::LeaveProcesses), answer);
    aborted.expect("aborted");
    assert_eq!(turn.wait().await.expect("ended").stop_reason, Some(StopReason::Cancelled));
    assert_eq!(proxy.take_prompt("two").await, 2);
    proxy.end_turn(2).await;
    assert_eq!(second.wait().await.expect("ended").stop_reason, Some(StopReason::EndTurn));
}

#[tokio::test(start_paused = true)]
async fn a_kill_ends_the_wait() {
    let Running { handle, mut proxy, fork_server } = limited(OnUsageLimit::Wait).await;
    let turn = begin(&handle, &mut proxy).await;
    meets(&mut proxy, 1, Some(HOUR)).await;
    waits(&handle, &mut proxy).await;
    let begun = tokio::time::Instant::now();
    let id = handle.id().clone();
    let (receipt, reason) = tokio::join!(handle.kill(KillOptions::NOW), end(proxy, fork_server, &id));
    receipt.expect("the receipt");
    assert_eq!(reason, EndReason::Killed);
    assert!(begun.elapsed().as_secs() < 60, "nobody waited for the limit");
    assert!(matches!(turn.wait().await, Err(Error::Ended { .. })));
}
