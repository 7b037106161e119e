//! Questions and their answers, and handlers that are told of them as they grow.

use std::time::Duration;

use agent_proxy_tests::sessions::{self, event, fake, said, shell, soon};
use proxy_manager::{
    Answer, AnswerChunk, Error, Event, HistoryLimits, KillOptions, PermissionAnswer, PromptMode, ProxyManager,
    SessionState, SilentHandler, StopReason, StreamHandler, StreamInfo, StreamOptions, TimeoutAction, TimeoutKind,
    Timeouts, ToolStatus,
};
use tokio::sync::Semaphore;

fn builder() -> proxy_manager::ManagerBuilder {
    sessions::builder(env!("CARGO_BIN_EXE_proxy-child"), env!("CARGO_BIN_EXE_fake-agent"))
}

async fn manager() -> ProxyManager {
    builder().build().await.expect("built")
}

#[tokio::test]
async fn a_question_its_answer_and_nothing_left() {
    let manager = manager().await;
    let asked = manager.ask(fake(), "say first\nrun echo out\nsay last\ntokens 100 20\nsetsid sleep 300");
    let answer = soon("the answer", asked).await.expect("answered");
    assert!(answer.reply.starts_with("first\n\nlast\n"), "{:?}", answer.reply);
    let [call] = answer.tool_calls.as_slice() else { panic!("{:?}", answer.tool_calls) };
    assert_eq!(call.state, ToolStatus::Completed);
    assert!(call.output.contains("out") && call.input.as_str().contains("echo out"), "{call:?}");
    assert_eq!((answer.turn, answer.stop_reason.clone()), (1, Some(StopReason::EndTurn)));
    assert!(answer.is_complete(), "{answer:?}");
    assert_eq!(answer.usage.and_then(|usage| usage.output_tokens), Some(20));
    let receipt = answer.receipt.expect("of its session");
    assert!(receipt.is_empty() && receipt.processes.len() >= 2, "the agent and what it left: {receipt}");
    let info = manager.session(&answer.session_id).expect("remembered").info();
    assert!(matches!(info.state, SessionState::Ended { .. }));
    manager.shutdown().await;
}

#[tokio::test]
async fn a_session_is_asked_again_and_again() {
    let manager = manager().await;
    let session = manager.start_session(fake()).await.expect("started");
    for turn in 1..=3 {
        let answer = soon("the answer", session.ask(format!("say {turn}"))).await.expect("answered");
        assert_eq!((answer.reply, answer.turn, answer.receipt), (format!("{turn}\n"), turn, None));
    }
    let turn = session.prompt("wait", PromptMode::Refuse).await.expect("prompted");
    assert!(matches!(session.ask("say x").await, Err(Error::Busy { .. })));
    session.abort(proxy_manager::AbortPolicy::LeaveProcesses).await.expect("aborted");
    soon("the turn's end", turn.wait()).await.expect("ended");
    session.kill(KillOptions::default()).await.expect("killed");
    assert!(matches!(session.ask("say x").await, Err(Error::Ended { .. })));
    manager.shutdown().await;
}

#[tokio::test]
async fn what_goes_wrong_is_typed_and_leaves_nothing() {
    let manager = manager().await;
    let asked = soon("the error", manager.ask(fake(), "say up\nexit 3")).await;
    assert!(matches!(asked, Err(Error::AgentDied { .. })), "{asked:?}");
    let timeouts = Timeouts { turn_ms: Some(2000), action: TimeoutAction::AbortTurn, ..Timeouts::NONE };
    let late = proxy_manager::AgentSessionConfig { timeouts, ..fake() };
    match soon("the error", manager.ask(late, "say up\nwait")).await {
        Err(Error::TurnFailed { answer, .. }) => {
            assert_eq!((answer.reply.as_str(), answer.timed_out), ("up\n", Some(TimeoutKind::Turn)));
        }
        other => panic!("{other:?}"),
    }
    let asked = soon("the error", manager.ask(shell("cat"), "hello")).await;
    assert!(matches!(&asked, Err(Error::Unsupported { operation, .. }) if operation.contains("turns")), "{asked:?}");
    // It was refused before it was done.
    assert!(manager.list_sessions().iter().all(|info| info.metadata.agent != "command" || info.turns == 0));
    assert!(manager.list_sessions().iter().all(|info| matches!(info.state, SessionState::Ended { .. })));
    for receipt in manager.shutdown().await {
        assert!(receipt.is_empty(), "{receipt}");
    }
}

#[tokio::test]
async fn a_question_that_nobody_waits_for_ends_its_session() {
    let manager = manager().await;
    let mut all = manager.subscribe_all();
    let asked = manager.ask(fake(), "say up\nwait");
    tokio::select! {
        asked = asked => panic!("{asked:?}"),
        up = said(&mut all, "up") => assert_eq!(up, "\n"),
    }
    let receipt = event(&mut all, "its end", |envelope| match &envelope.event {
        Event::SessionEnded { receipt, .. } => Some(receipt.clone()),
        _ => None,
    })
    .await;
    assert!(receipt.expect("a receipt").is_empty());
    manager.shutdown().await;
}

#[tokio::test]
async fn nobody_to_ask_is_a_denial_that_is_told() {
    let manager = manager().await;
    let answer = soon("the answer", manager.ask(fake(), "ask May I?")).await.expect("answered");
    assert_eq!(answer.reply, "permission: reject-once\n");
    assert_eq!(answer.unanswered, ["May I?"]);
    let session = manager.start_session(fake()).await.expect("started");
    let options = StreamOptions { unanswered: Some(PermissionAnswer::Allow), ..StreamOptions::default() };
    let mut quiet = SilentHandler;
    let answer = session.stream_with("ask May I?", &mut quiet, options);
    assert_eq!(soon("the answer", answer).await.expect("answered").reply, "permission: allow-once\n");
    manager.shutdown().await;
}

/// What a handler was told.
#[derive(Default)]
struct Told {
    calls: Vec<String>,
    texts: Vec<String>,
    states: Vec<ToolStatus>,
}

impl StreamHandler for Told {
    async fn on_stream_start(&mut self, stream: &StreamInfo) {
        self.calls.push(format!("start {}", stream.agent));
    }

    async fn on_chunk(&mut self, chunk: &AnswerChunk<'_>) {
        self.calls.push(if chunk.is_final { "final" } else { "chunk" }.into());
        self.texts.push(chunk.text.into());
        self.states.extend(chunk.tool_calls.iter().map(|call| call.state));
    }

    async fn on_complete(&mut self, answer: &Answer) {
        self.calls.push(format!("complete {}", answer.reply.len()));
    }

    async fn on_failed(&mut self, error: &Error) {
        self.calls.push(format!("failed {error}"));
    }
}

#[tokio::test]
async fn a_handler_is_told_of_all_that_there_is_by_then() {
    let manager = manager().await;
    let session = manager.start_session(fake()).await.expect("started");
    let mut told = Told::default();
    let options = StreamOptions { interval: Duration::ZERO, ..StreamOptions::default() };
    let answer = session.stream_with("say one\nrun echo x\nsay two", &mut told, options).await.expect("answered");
    assert_eq!(told.calls.first().map(String::as_str), Some("start fake"));
    assert_eq!(told.calls[told.calls.len() - 2..], ["final".to_owned(), format!("complete {}", answer.reply.len())]);
    assert!(told.texts.windows(2).all(|pair| pair[1].starts_with(&pair[0])), "it grows: {:?}", told.texts);
    assert_eq!(told.texts.last(), Some(&answer.reply));
    assert_eq!(told.states.last(), Some(&ToolStatus::Completed));

    let mut told = Told::default();
    session.stream("exit 3", &mut told).await.expect_err("it died");
    assert!(told.calls.last().is_some_and(|call| call.starts_with("failed")), "{:?}", told.calls);
    manager.shutdown().await;
}

/// Does not return from its first chunk until it may.
struct Slow<'a> {
    may: &'a Semaphore,
    chunks: Vec<(usize, bool)>,
    missed: u64,
}

impl StreamHandler for Slow<'_> {
    async fn on_chunk(&mut self, chunk: &AnswerChunk<'_>) {
        self.chunks.push((chunk.text.len(), chunk.is_final));
        self.missed = chunk.missed_events;
        let _ = self.may.acquire().await.expect("open");
    }
}

#[tokio::test]
async fn a_slow_handler_holds_up_nobody_and_is_told_the_rest_at_once() {
    const EVENTS: u64 = 20_000;
    // The history alone could not hold the turn.
    let limits = HistoryLimits { events: 1000, ..HistoryLimits::default() };
    let manager = builder().history(limits).build().await.expect("built");
    let session = manager
        .start_session(proxy_manager::AgentSessionConfig { verbatim: Some(false), ..fake() })
        .await
        .expect("started");
    let may = Semaphore::new(0);
    let mut slow = Slow { may: &may, chunks: Vec::new(), missed: 0 };
    let mut events = session.subscribe();
    let over = event(&mut events, "the turn's end", |envelope| {
        matches!(envelope.event, Event::Complete { .. } | Event::SessionGap(_)).then_some(())
    });
    let release = async {
        over.await;
        // However often it is called from now on.
        may.add_permits(Semaphore::MAX_PERMITS / 2);
    };
    let options = StreamOptions { interval: Duration::ZERO, ..StreamOptions::default() };
    let (answer, ()) = tokio::join!(session.stream_with(format!("flood {EVENTS} 10"), &mut slow, options), release);
    let answer = answer.expect("answered");
    let (length, missed) = (answer.reply.len(), answer.missed_events);
    // A reader that the handler holds up loses all but what the history holds.
    assert!(missed < EVENTS / 2, "{missed}");
    assert!(length + missed as usize * 10 >= EVENTS as usize * 10, "{length} bytes, and {missed} events missed");
    assert_eq!(slow.chunks.last(), Some(&(answer.reply.len(), true)));
    assert_eq!((slow.missed, answer.handler_stopped), (answer.missed_events, None));
    manager.shutdown().await;
}

#[tokio::test]
async fn a_handler_that_never_returns_is_given_up_and_the_answer_comes() {
    let manager = manager().await;
    let session = manager.start_session(fake()).await.expect("started");
    let may = Semaphore::new(0);
    let mut stuck = Slow { may: &may, chunks: Vec::new(), missed: 0 };
    let options = StreamOptions { longest_call: Duration::from_millis(50), ..StreamOptions::default() };
    let answer = soon("the answer", session.stream_with("say a\nsay b", &mut stuck, options)).await.expect("answered");
    assert_eq!((answer.reply.as_str(), stuck.chunks.len()), ("a\nb\n", 1));
    assert!(answer.handler_stopped.is_some_and(|why| why.contains("on_chunk")));
    manager.shutdown().await;
}

#[tokio::test]
async fn what_a_slow_reader_lost_is_told() {
    // So few events are kept that a reader who looks once a turn has lost most of them.
    let limits = HistoryLimits { events: 8, ..HistoryLimits::default() };
    let manager = builder().history(limits).build().await.expect("built");
    let session = manager.start_session(fake()).await.expect("started");
    let turn = session.prompt("flood 500 10", PromptMode::Refuse).await.expect("prompted");
    // Queued behind a turn whose events push everything out.
    let options = StreamOptions { mode: PromptMode::Queue, ..StreamOptions::default() };
    let answer = soon("the answer", session.stream_with("flood 500 10", &mut SilentHandler, options)).await;
    let answer = answer.expect("answered");
    soon("the first turn's end", turn.wait()).await.expect("ended");
    assert!(answer.missed_events > 0 && !answer.is_complete(), "{}", answer.missed_events);
    manager.shutdown().await;
}

#[tokio::test]
async fn a_session_that_is_to_be_kept_is_asked_again() {
    let manager = manager().await;
    let options = StreamOptions { keep: true, ..StreamOptions::default() };
    let answer = manager.ask_with(fake(), "say one", &mut SilentHandler, options).await.expect("answered");
    assert_eq!((answer.reply.as_str(), answer.receipt), ("one\n", None));
    let session = manager.session(&answer.session_id).expect("there");
    assert_eq!(session.ask("say two").await.expect("answered").turn, 2);
    let mut keyed = fake();
    keyed.lifecycle.key = Some("chat-1".into());
    for turn in 1..=2 {
        let answer = soon("the answer", manager.ask(keyed.clone(), "say hello")).await.expect("answered");
        assert_eq!((answer.turn, answer.receipt), (turn, None), "the same conversation");
    }
    manager.shutdown().await;
}
