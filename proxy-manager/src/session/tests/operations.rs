//! What is asked of the agent beside prompts.

use std::time::Duration;

use ipc_protocol::{Json, Operation, PromptPart, SettingSource, SlashCommand, message::AgentFact};

use super::*;
use crate::description::AgentStatus;

fn json(text: &str) -> Json {
    Json::new(text).expect("valid JSON")
}

impl FakeProxy {
    /// Expects an operation.
    async fn take_operation(&mut self) -> (RequestId, Operation) {
        loop {
            match self.receive().await {
                Some(ToProxy::Request { request, command: ProxyCommand::Operate { operation } }) => {
                    return (request, operation);
                }
                Some(ToProxy::GiveUp { .. }) => {}
                other => panic!("no operation: {other:?}"),
            }
        }
    }

    async fn reply(&mut self, reply: &str) -> Operation {
        let (request, operation) = self.take_operation().await;
        self.send(FromProxy::Reply { request, reply: json(reply) }).await;
        operation
    }
}

#[tokio::test]
async fn replies_come_back_as_they_are() {
    let Running { handle, mut proxy, fork_server: _alive } = running().await;
    for operation in [Operation::Compact, Operation::GetState, Operation::GetMessages, Operation::ListSessions] {
        let (reply, asked) = tokio::join!(handle.operate(operation.clone()), proxy.reply(r#"{"a": [1, 2]}"#));
        assert_eq!((reply.expect("a reply"), asked), (json(r#"{"a": [1, 2]}"#), operation));
    }
    let message = json(r#"{"method":"odd","params":{}}"#);
    let (reply, asked) = tokio::join!(handle.native(message.clone()), proxy.reply("17"));
    assert_eq!((reply.expect("a reply"), asked), (json("17"), Operation::Native { message }));
}

#[tokio::test]
async fn what_is_changed_is_shown_and_said_when_it_is_done() {
    let Running { handle, mut proxy, fork_server: _alive } = running().await;
    let (set, _) = tokio::join!(handle.set_model("large"), proxy.reply("null"));
    set.expect("set");
    let (set, _) = tokio::join!(handle.set_mode("plan"), proxy.reply("null"));
    set.expect("set");
    let (refused, ()) = tokio::join!(handle.set_thinking("high"), async {
        let (request, operation) = proxy.take_operation().await;
        let error = WireError::Unsupported { agent: "acp".into(), operation: operation.describe() };
        proxy.send(FromProxy::Failed { request, error }).await;
    });
    assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
    let info = handle.info();
    assert_eq!(
        (info.settings.model.as_deref(), info.settings.mode.as_deref(), info.settings.thinking),
        (Some("large"), Some("plan"), None)
    );
    let mut events = handle.subscribe_from(2);
    let (by, status) = (SettingSource::Caller, |status: &str, detail: &str| Event::SessionStatus {
        status: status.into(),
        detail: detail.into(),
    });
    for expected in [
        status("model", "large"),
        Event::SessionModel { model: "large".into(), by },
        status("mode", "plan"),
        Event::SessionMode { mode: "plan".into(), by },
    ] {
        assert_eq!(soon(events.next()).await.expect("an event").event, expected);
    }
    let status = handle.info().agent_status;
    assert_eq!((status.current_model.as_deref(), status.current_mode.as_deref()), (Some("large"), Some("plan")));
}

#[tokio::test]
async fn what_the_agent_tells_of_itself_is_an_event_when_it_changes_and_in_the_state() {
    let Running { handle, mut proxy, fork_server: _alive } = running().await;
    let mut events = handle.subscribe_from(2);
    let agent = SettingSource::Agent;
    let mode = |mode: &str, by| Event::SessionMode { mode: mode.into(), by };
    let (model, thinking) = (Some("small".to_owned()), None);
    let began = AgentFact::Settings { model: model.clone(), mode: Some("build".into()), thinking };
    proxy.send(FromProxy::Fact(began)).await;
    let title = Event::SessionTitle { title: "Login".into(), by: agent };
    let commands = vec![SlashCommand { name: "review".into(), description: None, argument_hint: None }];
    let menu = Event::SessionCommands { commands: commands.clone() };
    for event in [mode("build", agent), title.clone(), title.clone(), menu.clone(), menu.clone(), mode("plan", agent)] {
        proxy.send(FromProxy::Event { turn: 0, event }).await;
    }
    for expected in [title, menu, mode("plan", agent)] {
        assert_eq!(soon(events.next()).await.expect("an event").event, expected, "each change once");
    }
    // What it tells while a caller changes it is the caller's change, in the agent's words.
    let (set, ()) = tokio::join!(handle.set_mode("build"), async {
        let (request, _) = proxy.take_operation().await;
        proxy.send(FromProxy::Event { turn: 0, event: mode("default", agent) }).await;
        proxy.send(FromProxy::Reply { request, reply: json("null") }).await;
    });
    set.expect("set");
    assert_eq!(soon(events.next()).await.expect("an event").event, mode("default", SettingSource::Caller));
    let status = Event::SessionStatus { status: "mode".into(), detail: "build".into() };
    assert_eq!(soon(events.next()).await.expect("an event").event, status);
    let info = handle.info();
    let expected = AgentStatus {
        agent_title: Some("Login".into()),
        current_model: model,
        current_mode: Some("default".into()),
        current_thinking: None,
        commands: Some(commands),
    };
    assert_eq!((info.title.as_deref(), info.agent_status), (Some("Login"), expected));
}

#[tokio::test]
async fn a_change_that_failed_takes_no_event_from_the_next() {
    let Running { handle, mut proxy, fork_server: _alive } = running().await;
    let mut events = handle.subscribe_from(2);
    let mode = |mode: &str, by| Event::SessionMode { mode: mode.into(), by };
    let (refused, ()) = tokio::join!(handle.set_mode("plan"), async {
        let (request, operation) = proxy.take_operation().await;
        proxy.send(FromProxy::Event { turn: 0, event: mode("default", SettingSource::Agent) }).await;
        let error = WireError::Unsupported { agent: "acp".into(), operation: operation.describe() };
        proxy.send(FromProxy::Failed { request, error }).await;
    });
    assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
    assert_eq!(soon(events.next()).await.expect("an event").event, mode("default", SettingSource::Caller));
    let (set, _) = tokio::join!(handle.set_mode("plan"), proxy.reply("null"));
    set.expect("set");
    let status = Event::SessionStatus { status: "mode".into(), detail: "plan".into() };
    for expected in [status, mode("plan", SettingSource::Caller)] {
        assert_eq!(soon(events.next()).await.expect("an event").event, expected);
    }
}

#[tokio::test]
async fn operations_keep_their_order_with_prompts() {
    let Running { handle, mut proxy, fork_server: _alive } = running().await;
    let (turn, number) = tokio::join!(handle.prompt("one", PromptMode::Refuse), proxy.take_prompt("one"));
    let waiting = handle.clone();
    let state = tokio::spawn(async move { waiting.state().await });
    let (request, operation) = proxy.take_operation().await;
    assert_eq!(operation, Operation::GetState);
    proxy.end_turn(number).await;
    soon(turn.expect("taken").wait()).await.expect("ended");
    proxy.send(FromProxy::Reply { request, reply: json("{}") }).await;
    soon(state).await.expect("no panic").expect("a reply");
}

#[tokio::test]
async fn an_agent_that_starts_or_is_silent_answers_nothing() {
    let deadlines = Deadlines {
        control: Duration::from_millis(5),
        operation: Duration::from_millis(10),
        compact: Duration::from_millis(20),
        ..patient()
    };
    let Starting { handle, ready: _ready, mut proxy, fork_server: _alive } =
        starting(AgentSessionConfig::new("acp"), deadlines, HistoryLimits::default()).await;
    assert!(matches!(handle.state().await, Err(Error::Busy { .. })));
    proxy.start(true).await;
    soon(async {
        while handle.info().state == SessionState::Starting {
            tokio::task::yield_now().await;
        }
    })
    .await;
    for (operation, expected) in [(Operation::GetState, deadlines.operation), (Operation::Compact, deadlines.compact)] {
        match soon(handle.operate(operation)).await {
            Err(Error::Deadline { after, .. }) => assert_eq!(after, expected),
            other => panic!("{other:?}"),
        }
    }
    // What was set after all is known, though nobody waits for it any more.
    assert!(matches!(soon(handle.set_model("late")).await, Err(Error::Deadline { .. })));
    for _ in 0..2 {
        proxy.take_operation().await;
    }
    proxy.reply("null").await;
    soon(async {
        while handle.info().settings.model.is_none() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn the_proxy_is_told_what_nobody_waits_for_any_more() {
    let Running { handle, mut proxy, fork_server: _alive } = running().await;
    let mut given_up = Vec::new();
    for _ in 0..2 {
        let caller = handle.clone();
        let asked = tokio::spawn(async move { caller.state().await });
        given_up.push(proxy.take_operation().await.0);
        asked.abort();
        assert!(asked.await.is_err_and(|error| error.is_cancelled()));
    }
    let caller = handle.clone();
    let asked = tokio::spawn(async move { caller.state().await });
    // The first was told of before the second was asked.
    let Some(ToProxy::GiveUp { request }) = proxy.receive().await else { panic!("it keeps its place") };
    assert_eq!(request, given_up[1]);
    let (request, _) = proxy.take_operation().await;
    proxy.send(FromProxy::Reply { request, reply: json("{}") }).await;
    soon(asked).await.expect("no panic").expect("a reply");
    // One that is answered late after all is nobody's.
    proxy.send(FromProxy::Reply { request: given_up[0], reply: json("1") }).await;
    round_trip(&handle, &mut proxy).await;
}

#[tokio::test]
async fn a_dead_agent_answers_no_operation() {
    let Running { handle, mut proxy, fork_server: _alive } = running().await;
    let caller = handle.clone();
    let state = tokio::spawn(async move { caller.state().await });
    proxy.take_operation().await;
    drop(proxy);
    assert!(matches!(soon(state).await.expect("no panic"), Err(Error::ProxyDied { .. })));
}

#[tokio::test]
async fn a_prompt_of_many_parts_is_told_by_its_words_and_attachments() {
    let Running { handle, mut proxy, fork_server: _alive } = running().await;
    let parts = vec![
        PromptPart::Text("look".into()),
        PromptPart::Image { mime_type: "image/png".into(), data: "aGkh".into() },
        PromptPart::File { path: "/a".into() },
    ];
    let (turn, ()) = tokio::join!(handle.prompt(parts.clone(), PromptMode::Refuse), async {
        let Some(ToProxy::Request { request, command: ProxyCommand::Prompt { prompt, .. } }) = proxy.receive().await
        else {
            panic!("no prompt")
        };
        assert_eq!(prompt.parts, parts);
        proxy.send(FromProxy::Done { request }).await;
    });
    turn.expect("taken");
    let mut events = handle.subscribe_from(2);
    let expected =
        Event::TurnStarted { prompt: "look".into(), attachments: vec!["image/png (3 bytes)".into(), "/a".into()] };
    assert_eq!(soon(events.next()).await.expect("an event").event, expected);
    for steer in [true, false] {
        let nothing: Vec<PromptPart> = Vec::new();
        let refused =
            if steer { handle.steer(nothing).await } else { handle.prompt(nothing, PromptMode::Queue).await.map(drop) };
        assert!(matches!(refused, Err(Error::InvalidConfig { field: "prompt", .. })), "{refused:?}");
    }
}

#[tokio::test]
async fn an_answer_to_a_permission_request_names_who_gave_it() {
    let Running { handle, mut proxy, fork_server: _alive } = running().await;
    for by in [Some("alice"), None] {
        let (answered, ()) = tokio::join!(
            async {
                match by {
                    Some(by) => handle.respond_permission_as(by, "p", PermissionAnswer::Allow).await,
                    None => handle.respond_permission("p", PermissionAnswer::Allow).await,
                }
            },
            async {
                let Some(ToProxy::Request { request, command: ProxyCommand::Permission { by: said, .. } }) =
                    proxy.receive().await
                else {
                    panic!("no answer")
                };
                assert_eq!(said.as_deref(), by);
                proxy.send(FromProxy::Done { request }).await;
            }
        );
        answered.expect("answered");
    }
}
