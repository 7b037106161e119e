//! Prompts, turns and what is said in them.

use super::*;

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
    proxy.send(FromProxy::Event { turn: 2, event: Event::error("529", message, true) }).await;
    proxy.send(FromProxy::TurnEnded { turn: 2 }).await;
    let end = soon(second.wait()).await.expect("ended");
    assert_eq!((end.turn, end.stop_reason, end.error.as_deref()), (Some(2), None, Some("overloaded")));
    assert_eq!(proxy.take_prompt("three").await, 3);
    proxy.end_turn(3).await;
    assert_eq!(soon(third.wait()).await.expect("ended").turn, Some(3));
    assert_eq!((handle.info().state, handle.info().turns), (SessionState::Idle, 3));
    let expected = "session:started@0 session:idle@0 turn:started@1 session:busy@1 agent:action:prompt:called@1 \
                    agent:action:prompt:called@1 stream:text@1 stream:complete@1 \
                    session:idle@1 turn:started@2 session:busy@2 stream:error@2 session:idle@2 turn:started@3 \
                    session:busy@3 stream:complete@3 session:idle@3";
    assert_eq!(kinds(&handle).await.join(" "), expected);
}

#[tokio::test]
async fn the_queue_is_bounded() {
    let Running { handle, mut proxy, fork_server: _alive } = running().await;
    let (first, _) = tokio::join!(handle.prompt("0", PromptMode::Refuse), proxy.take_prompt("0"));
    let first = first.expect("taken");
    let mut tickets = Vec::new();
    for n in 0..crate::session::prompts::MOST_QUEUED {
        tickets.push(handle.prompt(n.to_string(), PromptMode::Queue).await.expect("queued"));
    }
    assert!(matches!(handle.prompt("x", PromptMode::Queue).await, Err(Error::Busy { .. })));
    proxy.end_turn(1).await;
    soon(first.wait()).await.expect("ended");
    proxy.take_prompt("0").await;
    // One that has begun waits no more, however long its turn.
    tickets.push(handle.prompt("y", PromptMode::Queue).await.expect("queued"));
    assert!(matches!(handle.prompt("z", PromptMode::Queue).await, Err(Error::Busy { .. })));
    drop(proxy);
    for ticket in tickets {
        assert!(matches!(soon(ticket.wait()).await, Err(Error::ProxyDied { .. })));
    }
}

#[tokio::test]
async fn steering_and_max_prompts() {
    let config = AgentSessionConfig { max_prompts: Some(1), ..AgentSessionConfig::new("acp") };
    let Running { handle, mut proxy, fork_server: _alive } =
        running_with(config, patient(), HistoryLimits::default(), true).await;
    assert!(matches!(handle.steer("left").await, Err(Error::Unsupported { .. })), "no turn runs");
    // With no turn to steer, the prompt begins one.
    let (first, _) = tokio::join!(handle.prompt("go", PromptMode::Steer), proxy.take_prompt("go"));
    let first = first.expect("taken");
    assert!(matches!(handle.prompt("more", PromptMode::Queue).await, Err(Error::MaxPrompts { max_prompts: 1, .. })));
    let (steered, ()) = tokio::join!(handle.steer("left"), async {
        match proxy.receive().await {
            Some(ToProxy::Request { request, command: ProxyCommand::Steer { prompt } }) if prompt.text() == "left" => {
                proxy.send(FromProxy::Done { request }).await
            }
            other => panic!("no steer: {other:?}"),
        }
    });
    steered.expect("steered");
    let (steered, ()) = tokio::join!(handle.prompt("right", PromptMode::Steer), async {
        let Some(ToProxy::Request { request, command: ProxyCommand::Steer { .. } }) = proxy.receive().await else {
            panic!("no steer")
        };
        proxy.send(FromProxy::Done { request }).await;
    });
    let steered = steered.expect("steered");
    assert_eq!(steered.number(), Some(1));
    let (refused, ()) = tokio::join!(handle.prompt("up", PromptMode::Steer), async {
        let Some(ToProxy::Request { request, command: ProxyCommand::Steer { .. } }) = proxy.receive().await else {
            panic!("no steer")
        };
        let error = WireError::Unsupported { agent: "acp".into(), operation: "be steered".into() };
        proxy.send(FromProxy::Failed { request, error }).await;
    });
    assert!(matches!(refused, Err(Error::Unsupported { .. })));
    proxy.end_turn(1).await;
    assert_eq!(soon(first.wait()).await.expect("ended"), soon(steered.wait()).await.expect("ended"));
    assert!(matches!(handle.prompt("again", PromptMode::Refuse).await, Err(Error::MaxPrompts { .. })));
}

#[tokio::test]
async fn a_prompt_that_is_not_taken_leaves_the_session_idle() {
    let Running { handle, mut proxy, fork_server: _alive } = running().await;
    let (refused, ()) = tokio::join!(handle.prompt("one", PromptMode::Refuse), async {
        let Some(ToProxy::Request { request, command: ProxyCommand::Prompt { .. } }) = proxy.receive().await else {
            panic!("no prompt")
        };
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
        running_with(config, patient(), HistoryLimits::default(), false).await;
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
    let Some(ToProxy::Request { request, command: ProxyCommand::Abort { .. } }) = proxy.receive().await else {
        panic!("no abort")
    };
    proxy.send(FromProxy::Done { request }).await;
    soon(prompt).await.expect("no panic").expect("taken");
    soon(abort).await.expect("no panic").expect("aborted");
}

#[tokio::test]
async fn a_slow_subscriber_gets_a_gap_and_holds_up_nobody() {
    let limits = HistoryLimits { events: 10, ..HistoryLimits::default() };
    let Running { handle, mut proxy, fork_server: _alive } =
        running_with(AgentSessionConfig::new("acp"), patient(), limits, true).await;
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
