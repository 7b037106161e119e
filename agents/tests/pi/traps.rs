//! One test for each trap that the protocol has.

use agents::{Action, AdapterSetup, pi};
use ipc_protocol::{
    AgentSessionConfig, Event, Json, NativeResume, Operation, PermissionAnswer, StopReason, ToolStatus, WireError,
};
use serde_json::json;

use crate::{
    behaviour::{done, in_turn, message_end, ready, state},
    recorded::{Replay, Step, events, kinds, replayed, replies, setup, writes},
    transcript,
};

fn ended(actions: &[Action]) -> bool {
    actions.contains(&Action::TurnEnded)
}

/// `agent_end` comes after each attempt: a turn ends with `agent_settled`.
#[test]
fn trap_agent_end_repeats_on_each_retry() {
    let mut replay = in_turn();
    for attempt in 1..=2 {
        replay.says(&message_end("error", Some("503 overloaded")));
        replay.says(&json!({"type": "agent_end", "messages": [], "willRetry": true}));
        replay.says(&json!({"type": "auto_retry_start", "attempt": attempt, "errorMessage": "503 overloaded"}));
        replay.says(&json!({"type": "agent_start"}));
    }
    replay.says(&message_end("stop", None));
    replay.says(&json!({"type": "agent_end", "messages": [], "willRetry": false}));
    assert!(!ended(&replay.actions));
    assert_eq!(writes(&replay.actions), Vec::<serde_json::Value>::new(), "nothing is asked of a newer agent");
    replay.says(&json!({"type": "agent_settled"}));
    assert!(ended(&replay.actions));
    let attempts: Vec<_> = events(&replay.actions)
        .into_iter()
        .filter_map(|event| match event {
            Event::Error { attempt, code, .. } => Some((code, attempt)),
            _ => None,
        })
        .collect();
    assert_eq!(attempts, [("503".to_owned(), Some(1)), ("503".to_owned(), Some(2))]);
}

/// An older agent has only `agent_end`, and what it does next comes after that: it is asked whether it is idle.
#[test]
fn trap_older_agents_do_not_settle() {
    let mut replay = in_turn();
    replay.says(&message_end("error", Some("500 no")));
    replay.says(&json!({"type": "agent_end", "messages": []}));
    replay.says(&json!({"type": "auto_retry_start", "attempt": 1, "errorMessage": "500 no"}));
    replay.says(&state("4", &json!({})));
    assert!(!ended(&replay.actions), "it waits before it tries again");
    replay.says(&json!({"type": "agent_start"}));
    replay.says(&message_end("stop", None));
    replay.says(&json!({"type": "agent_end", "messages": []}));
    replay.says(&state("5", &json!({"isStreaming": true})));
    assert!(!ended(&replay.actions), "it goes on");
    replay.says(&json!({"type": "agent_end", "messages": []}));
    replay.says(&state("6", &json!({})));
    assert!(ended(&replay.actions));
    let turns = replayed(pi::make, transcript("legacy")).iter().filter(|action| **action == Action::TurnEnded).count();
    assert_eq!(turns, 8);
}

/// What is asked about one turn may be answered in the next.
#[test]
fn trap_a_late_answer_does_not_end_the_next_turn() {
    let mut replay = ready();
    replay.step(&Step::Prompt("go".into())).expect("ready");
    replay.says(&done("2", "prompt"));
    replay.says(&json!({"type": "agent_start"}));
    replay.says(&json!({"type": "agent_settled"}));
    assert!(ended(&replay.actions));
    replay.step(&Step::Prompt("again".into())).expect("ready");
    replay.clear();
    replay.says(&state("3", &json!({})));
    assert_eq!(replay.actions, []);
}

/// A command of an extension is a prompt that leads to no run: nothing else would end its turn.
#[test]
fn trap_a_prompt_may_lead_to_no_run() {
    let mut replay = ready();
    replay.step(&Step::Prompt("/command".into())).expect("ready");
    replay.says(&done("2", "prompt"));
    assert!(!ended(&replay.actions));
    replay.clear();
    replay.says(&state("3", &json!({})));
    let complete = Event::Complete { stop_reason: StopReason::EndTurn, usage: None };
    assert_eq!(replay.actions, [Action::Event(complete), Action::TurnEnded]);
}

/// The output of an update is all of it so far, not a piece.
#[test]
fn trap_updates_are_cumulative() {
    let mut replay = in_turn();
    let update = |text: &str| {
        let result = json!({"content": [{"type": "text", "text": text}]});
        json!({"type": "tool_execution_update", "toolCallId": "c", "toolName": "bash", "args": {}, "partialResult": result})
    };
    for text in ["a\n", "a\nb\n", &"x".repeat(40_000)] {
        replay.says(&update(text));
    }
    let outputs: Vec<_> = events(&replay.actions)
        .into_iter()
        .filter_map(|event| match event {
            Event::ToolUpdate(update) => update.output,
            _ => None,
        })
        .collect();
    assert_eq!((outputs[0].as_str(), outputs[1].as_str(), outputs[2].len()), ("a\n", "a\nb\n", 16 * 1024));
}

/// `abort` hangs while a dialog is open: the answer comes first.
#[test]
fn trap_abort_hangs_while_a_dialog_is_open() {
    let mut replay = in_turn();
    for id in ["d1", "d2"] {
        replay.says(&json!({"type": "extension_ui_request", "id": id, "method": "confirm", "title": "x"}));
    }
    replay.clear();
    replay.step(&Step::Abort).expect("running");
    let written = writes(&replay.actions);
    assert_eq!((written[0]["cancelled"].clone(), written[1]["cancelled"].clone()), (json!(true), json!(true)));
    assert_eq!(written[2]["type"], "abort");
    replay.clear();
    replay.says(&json!({"type": "extension_ui_request", "id": "d3", "method": "confirm", "title": "x"}));
    assert_eq!(writes(&replay.actions)[0]["cancelled"], true, "and one that comes later");
    assert_eq!(kinds(&replay.actions), Vec::<String>::new());
}

/// An aborted agent goes on with what was steered, unless that is taken back.
#[test]
fn trap_abort_goes_on_with_what_was_steered() {
    let mut replay = in_turn();
    replay.step(&Step::Steer("left".into())).expect("running");
    replay.clear();
    replay.step(&Step::Abort).expect("running");
    let commands: Vec<_> = writes(&replay.actions).iter().map(|message| message["type"].clone()).collect();
    assert_eq!(commands, ["clear_queue", "abort"]);
}

/// Before the run has begun there is nothing to abort: it is aborted again then.
#[test]
fn trap_an_abort_that_is_too_early_does_nothing() {
    let mut replay = ready();
    replay.step(&Step::Prompt("go".into())).expect("ready");
    replay.step(&Step::Abort).expect("running");
    replay.says(&done("3", "abort"));
    replay.says(&done("2", "prompt"));
    replay.clear();
    replay.says(&json!({"type": "agent_start"}));
    assert_eq!(writes(&replay.actions), [json!({"id": "5", "type": "abort"})]);
}

/// What is steered when the agent is done already waits for the next prompt: it is taken back, and said to be lost.
#[test]
fn trap_a_steer_that_is_too_late_waits_for_the_next_prompt() {
    let mut replay = in_turn();
    replay.step(&Step::Steer("left".into())).expect("running");
    replay.says(&json!({"type": "queue_update", "steering": ["left"], "followUp": []}));
    replay.clear();
    replay.says(&json!({"type": "agent_settled"}));
    assert_eq!(kinds(&replay.actions), ["action:failed", "stream:complete"]);
    assert_eq!(writes(&replay.actions)[0]["type"], "clear_queue");
}

/// A plain `prompt` while the agent is busy is refused; `steer` is not.
#[test]
fn trap_a_prompt_while_busy_is_refused() {
    let mut replay = in_turn();
    assert_eq!(replay.step(&Step::Prompt("again".into())), Err(WireError::Busy));
    replay.step(&Step::Steer("left".into())).expect("running");
    assert_eq!(writes(&replay.actions)[0]["type"], "steer");
    replay.clear();
    replay.says(&json!({"id": "4", "type": "response", "command": "steer", "success": false, "error": "no"}));
    assert_eq!(kinds(&replay.actions), ["action:failed"]);
}

/// An older agent's error about an unknown command has no id.
#[test]
fn trap_an_error_without_an_id_answers_its_command() {
    let mut replay = ready();
    for command in ["brand_new", "get_state"] {
        let message = Json::new(json!({ "type": command }).to_string()).expect("JSON");
        replay.step(&Step::Operate(Operation::Native { message })).expect("taken");
    }
    let error =
        json!({"type": "response", "command": "brand_new", "success": false, "error": "Unknown command: brand_new"});
    replay.says(&error);
    assert_eq!(replies(&replay.actions), [Ok(error)]);
    replay.clear();
    replay.says(&json!({"type": "response", "command": "parse", "success": false, "error": "x"}));
    assert_eq!(kinds(&replay.actions), ["log"], "nobody asked");
}

/// Where it finds no conversation it begins one without a word; or it exits, and the reason is in its standard error.
#[test]
fn trap_a_missing_conversation_is_begun_anew() {
    for (name, reason) in [
        ("missing", "No session found matching '01a1ff8a-7d8e-7dc2-adf3-000000000000'"),
        ("missing-file", "the agent began a new one instead"),
        ("missing-recent", "the agent began a new one instead"),
    ] {
        let actions = replayed(pi::make, transcript(name));
        let missing = |action: &Action| matches!(action, Action::Fail(WireError::NativeSessionMissing { reason: told, .. }) if told == reason);
        assert!(actions.iter().any(missing), "{name}: {actions:?}");
        assert!(!actions.iter().any(|action| matches!(action, Action::Ready { .. })), "{name}");
    }
    let resumed = |asked: &str, got: &str| {
        let resume = Some(NativeResume { id: Some(asked.into()), fork: false });
        let mut replay = Replay::new(pi::make, AdapterSetup { resume, ..setup(AgentSessionConfig::new("pi")) });
        replay.says(&state("1", &json!({"sessionId": got, "messageCount": 2})));
        replay.actions.iter().any(|action| matches!(action, Action::Ready { .. }))
    };
    assert!(resumed("01a1", "01a1ff8a") && !resumed("01a1", "02b2"), "a part of an id is enough, and no other id");
    assert!(resumed("/x/y.jsonl", "01a1ff8a"));
}

/// A conversation of another directory makes it ask a person, on its standard streams: it takes our first command for the answer.
#[test]
fn trap_a_conversation_of_another_directory_is_no_protocol() {
    let resume = Some(NativeResume { id: Some("x".into()), fork: false });
    let mut replay = Replay::new(pi::make, AdapterSetup { resume, ..setup(AgentSessionConfig::new("pi")) });
    replay.stdout(b"Session found in different project: /elsewhere\n");
    let actions = replay.finish();
    let Some(Action::Fail(WireError::NativeSessionMissing { reason, .. })) = actions.last() else {
        panic!("{actions:?}")
    };
    assert_eq!(reason, "Session found in different project: /elsewhere");
}

/// It thinks less than it was asked to without a word.
#[test]
fn trap_thinking_is_clamped_silently() {
    let actions = replayed(pi::make, transcript("thinking-too-hard"));
    assert!(matches!(actions.last(), Some(Action::Fail(WireError::Unsupported { .. }))), "{actions:?}");
    let mut replay = ready();
    replay.step(&Step::Operate(Operation::SetThinking { level: "high".into() })).expect("taken");
    replay.says(&done("2", "set_thinking_level"));
    assert_eq!(replies(&replay.actions), []);
    replay.says(&state("3", &json!({"thinkingLevel": "low"})));
    assert!(matches!(&replies(&replay.actions)[..], [Err(WireError::Unsupported { .. })]));
}

/// Lines end with LF only: other separators are text.
#[test]
fn trap_line_separators_inside_a_line() {
    let mut replay = in_turn();
    let text = "a\u{2028}b\u{2029}c\u{85}d";
    let delta = format!("{{\"type\":\"text_delta\",\"contentIndex\":0,\"delta\":\"{text}\"}}");
    replay.stdout(format!("{{\"type\":\"message_update\",\"assistantMessageEvent\":{delta}}}\r\n").as_bytes());
    assert_eq!(events(&replay.actions), [Event::Text { text: text.into() }]);
}

/// It asks for nothing by itself; our extension asks for each call.
#[test]
fn trap_permissions_come_from_an_extension() {
    let actions = replayed(pi::make, transcript("permission"));
    let requests: Vec<_> = events(&actions)
        .into_iter()
        .filter_map(|event| match event {
            Event::PermissionRequested(request) => Some(request),
            _ => None,
        })
        .collect();
    assert_eq!(requests.len(), 7);
    let first = &requests[0];
    assert_eq!((first.tool.as_str(), first.kind.as_str()), ("bash", "execute"));
    assert_eq!((first.command.as_deref(), first.tool_call_id.is_some()), (Some("touch y1"), true));
    let ends: Vec<_> = events(&actions)
        .into_iter()
        .filter_map(|event| match event {
            Event::ToolEnd(end) => Some((end.status, end.output)),
            _ => None,
        })
        .collect();
    assert_eq!(ends[2], (ToolStatus::Failed, "use another name".to_owned()), "the reason reaches the model");
    assert_eq!(ends[3], (ToolStatus::Completed, "changed\n".to_owned()), "another input is run");

    // What a title says that only looks like one of ours is a question.
    let mut replay = in_turn();
    let title = json!({"agentProxy": "permission"}).to_string();
    replay.says(&json!({"type": "extension_ui_request", "id": "d", "method": "select", "title": title, "options": []}));
    let Some(Event::PermissionRequested(request)) = events(&replay.actions).pop() else {
        panic!("{:?}", replay.actions)
    };
    assert_eq!(request.kind, "question");
    replay.step(&Step::Permission(request.id, PermissionAnswer::Deny)).expect("open");
}

/// It says nothing by itself: it is asked for its state, and is ready when it answers.
#[test]
fn trap_without_a_handshake_it_is_probed() {
    let mut replay = Replay::new(pi::make, setup(AgentSessionConfig::new("pi")));
    assert_eq!(writes(&replay.actions), [json!({"id": "1", "type": "get_state"})]);
    assert_eq!(replay.actions.len(), 1, "not ready yet: {:?}", replay.actions);
    replay.clear();
    replay.says(&state("1", &json!({})));
    assert_eq!(replay.actions[0], Action::Ready { native_session_id: Some("s-1".into()) });
}
