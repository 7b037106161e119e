//! What an agent is asked beside prompts, and prompts of more than words.

use agents::{Action, acp};
use ipc_protocol::{Json, Operation, Prompt, PromptPart, StopReason, WireError};
use serde_json::{Value, json};

use crate::replay::{Replay, events, kinds, line, setup, update, writes};

const REQUEST: u64 = 70;

/// An adapter with a session `s` of an agent that has these capabilities and choices.
fn ready(can: &Value, choices: &Value, row: Value) -> Replay {
    let mut setup = setup(ipc_protocol::AgentSessionConfig {
        cwd: Some("/w".into()),
        ..ipc_protocol::AgentSessionConfig::new("agent")
    });
    setup.protocol_config = row;
    let mut replay = Replay::new(acp::make(setup).expect("an adapter"));
    replay
        .stdout(&line(&json!({"jsonrpc": "2.0", "id": 1, "result": {"protocolVersion": 1, "agentCapabilities": can}})));
    let mut opened = choices.clone();
    opened["sessionId"] = "s".into();
    replay.stdout(&line(&json!({"jsonrpc": "2.0", "id": 2, "result": opened})));
    assert!(replay.actions.iter().any(|action| matches!(action, Action::Ready { .. })));
    replay.clear();
    replay
}

fn plain() -> Replay {
    ready(&json!({}), &json!({}), json!({}))
}

fn operate(replay: &mut Replay, operation: &Operation) -> Result<(), WireError> {
    replay.clear();
    replay.adapter.operate(REQUEST, operation, &mut replay.actions)
}

fn answer(replay: &mut Replay, outcome: &Value) {
    let mut message = json!({"jsonrpc": "2.0", "id": writes(&replay.actions).last().expect("a request")["id"]});
    message.as_object_mut().expect("an object").extend(outcome.as_object().expect("an object").clone());
    replay.clear();
    replay.stdout(&line(&message));
}

fn reply(replay: &Replay) -> Result<Value, WireError> {
    match replay.actions.last() {
        Some(Action::Reply { request: REQUEST, reply }) => reply.clone().map(|json| json.value()),
        other => panic!("{other:?}"),
    }
}

fn choices() -> Value {
    json!({
        "modes": {"currentModeId": "default", "availableModes": [{"id": "default", "name": ""}, {"id": "plan", "name": ""}]},
        "models": {"currentModelId": "a", "availableModels": []},
    })
}

#[test]
fn settings_change_in_a_running_session() {
    let mut replay = ready(&json!({}), &choices(), json!({}));
    operate(&mut replay, &Operation::SetModel { model: "b".into() }).expect("it can");
    assert_eq!(writes(&replay.actions)[0]["params"], json!({"sessionId": "s", "modelId": "b"}));
    answer(&mut replay, &json!({"result": {}}));
    assert_eq!(reply(&replay), Ok(Value::Null));
    operate(&mut replay, &Operation::SetModel { model: "b".into() }).expect("it can");
    assert_eq!(writes(&replay.actions), Vec::<Value>::new(), "it is so already");
    assert_eq!(reply(&replay), Ok(Value::Null));
    operate(&mut replay, &Operation::SetMode { mode: "plan".into() }).expect("it can");
    answer(&mut replay, &json!({"error": {"code": -32602, "message": "not now"}}));
    assert!(matches!(reply(&replay), Err(WireError::AgentRefused { reason, .. }) if reason.contains("not now")));
    let refused = operate(&mut replay, &Operation::SetThinking { level: "high".into() });
    assert!(matches!(refused, Err(WireError::Unsupported { .. })));
    assert_eq!(replay.actions, []);
}

#[test]
fn choices_are_those_that_the_agent_lists() {
    let listed = |choices: &Value| {
        let mut replay = ready(&json!({}), choices, json!({}));
        operate(&mut replay, &Operation::ListChoices).expect("it can");
        reply(&replay).expect("an answer")
    };
    assert_eq!(listed(&json!({})), json!({}), "it tells none");
    assert_eq!(
        listed(&json!({
            "modes": {"currentModeId": "ask", "availableModes": [{"id": "ask", "name": "Ask", "description": "asks first"}, {"id": "code", "name": ""}]},
            "models": {"currentModelId": "a", "availableModels": [{"modelId": "a", "name": "A"}, {"name": "no id"}]},
        })),
        json!({
            "models": [{"id": "a", "name": "A"}],
            "modes": [{"id": "ask", "name": "Ask", "description": "asks first"}, {"id": "code", "name": "code"}],
        })
    );
    let option = |id: &str, category: &str, options: Value| json!({"id": id, "name": id, "category": category, "type": "select", "currentValue": "x", "options": options});
    let grouped =
        json!([{"group": "g", "name": "G", "options": [{"value": "x", "name": "X"}, {"value": "y", "name": "Y"}]}]);
    assert_eq!(
        listed(&json!({
            "modes": {"currentModeId": "old", "availableModes": [{"id": "old", "name": "Old"}]},
            "configOptions": [
                option("m", "model", grouped), option("t", "thought_level", json!([{"value": "x", "name": "X", "description": "hard"}])),
                option("o", "mode", json!([{"value": "x", "name": "X"}])),
            ],
        })),
        json!({
            "models": [{"id": "x", "name": "X"}, {"id": "y", "name": "Y"}],
            "modes": [{"id": "x", "name": "X"}],
            "thinking": [{"id": "x", "name": "X", "description": "hard"}],
        }),
        "options count more than modes"
    );
}

#[test]
fn the_state_is_what_was_said_and_has_changed_since() {
    let mut replay = ready(&json!({"loadSession": true}), &choices(), json!({}));
    replay.stdout(&update(&json!({"sessionUpdate": "current_mode_update", "currentModeId": "plan"})));
    assert_eq!(kinds(&replay.actions), ["session:status", "session:mode"]);
    let commands = json!([{"name": "compact", "description": ""}]);
    replay.stdout(&update(&json!({"sessionUpdate": "available_commands_update", "availableCommands": commands})));
    operate(&mut replay, &Operation::GetState).expect("it can");
    let state = reply(&replay).expect("a state");
    assert_eq!(state["modes"]["currentModeId"], "plan");
    assert_eq!(state["agent"]["agentCapabilities"]["loadSession"], true);
    assert_eq!((&state["sessionId"], &state["commands"]), (&json!("s"), &json!(["compact"])));
    assert!(matches!(operate(&mut replay, &Operation::GetMessages), Err(WireError::Unsupported { .. })));
}

#[test]
fn a_compaction_has_instructions_where_the_agent_s_command_takes_words() {
    let with = Operation::CompactWith { instructions: "retain the plum".to_owned() };
    for (input, takes) in [(json!({"hint": "what to retain"}), true), (Value::Null, false)] {
        let mut replay = ready(&json!({}), &json!({}), json!({"compactCommand": "/compact"}));
        let commands = json!([{"name": "compact", "description": "", "input": input}]);
        replay.stdout(&update(&json!({"sessionUpdate": "available_commands_update", "availableCommands": commands})));
        let asked = operate(&mut replay, &with);
        assert_eq!(asked.is_ok(), takes, "{asked:?}");
        if takes {
            let prompt = json!([{"type": "text", "text": "/compact retain the plum"}]);
            assert_eq!(writes(&replay.actions)[0]["params"]["prompt"], prompt);
        } else {
            assert!(asked.expect_err("refused").to_string().contains("its command /compact takes none"));
        }
    }
    assert!(matches!(operate(&mut plain(), &with), Err(WireError::Unsupported { .. })));
}

#[test]
fn compacting_is_a_prompt_without_a_turn() {
    assert!(matches!(operate(&mut plain(), &Operation::Compact), Err(WireError::Unsupported { .. })));
    let mut offered = plain();
    let commands = json!([{"name": "compress", "description": ""}]);
    offered.stdout(&update(&json!({"sessionUpdate": "available_commands_update", "availableCommands": commands})));
    let of_row = ready(&json!({}), &json!({}), json!({"compactCommand": "/compact"}));
    for (mut replay, command) in [(offered, "/compress"), (of_row, "/compact")] {
        operate(&mut replay, &Operation::Compact).expect("it can");
        assert_eq!(writes(&replay.actions)[0]["params"]["prompt"], json!([{"type": "text", "text": command}]));
        let busy = replay.adapter.prompt(&"go".into(), &mut Vec::new());
        assert_eq!(busy, Err(WireError::Busy), "one thing at a time");
        let request = writes(&replay.actions)[0]["id"].clone();
        replay.clear();
        let chunk = json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "compacted"}});
        replay.stdout(&update(&chunk));
        assert_eq!(replay.actions, [], "what it says is the answer");
        replay.stdout(&line(&json!({"jsonrpc": "2.0", "id": request, "result": {"stopReason": "end_turn"}})));
        assert_eq!(reply(&replay), Ok(json!({"text": "compacted", "stopReason": "end_turn"})));
        assert!(!replay.actions.contains(&Action::TurnEnded));
        replay.adapter.prompt(&"go".into(), &mut replay.actions).expect("ready again");
        assert_eq!(operate(&mut replay, &Operation::Compact), Err(WireError::Busy), "a turn runs");
    }
}

#[test]
fn conversations_are_listed_where_the_agent_lists_them() {
    assert!(matches!(operate(&mut plain(), &Operation::ListSessions), Err(WireError::Unsupported { .. })));
    let mut replay = ready(&json!({"sessionCapabilities": {"list": {}}}), &json!({}), json!({}));
    operate(&mut replay, &Operation::ListSessions).expect("it can");
    answer(
        &mut replay,
        &json!({"result": {"sessions": [{"sessionId": "a", "cwd": "/w", "title": "t"}], "nextCursor": "n"}}),
    );
    assert_eq!(writes(&replay.actions)[0]["params"]["cursor"], "n");
    answer(&mut replay, &json!({"result": {"sessions": []}}));
    assert_eq!(reply(&replay), Ok(json!([{"id": "a", "title": "t", "updatedAt": null, "cwd": "/w"}])));
    operate(&mut replay, &Operation::ListSessions).expect("it can");
    answer(&mut replay, &json!({"error": {"code": -32603, "message": "no"}}));
    assert!(matches!(reply(&replay), Err(WireError::AgentRefused { .. })));
}

#[test]
fn a_native_message_is_passed_on_and_its_reply_comes_as_it_stands() {
    let mut replay = plain();
    let native = |text: &str| Operation::Native { message: Json::new(text).expect("JSON") };
    operate(&mut replay, &native(r#"{"method": "x/y", "params": {"a": [1]}}"#)).expect("any method");
    let written = writes(&replay.actions)[0].clone();
    assert_eq!((&written["method"], &written["params"]), (&json!("x/y"), &json!({"a": [1]})));
    answer(&mut replay, &json!({"result": {"b": 2}}));
    assert_eq!(reply(&replay), Ok(json!({"jsonrpc": "2.0", "id": written["id"], "result": {"b": 2}})));
    operate(&mut replay, &native(r#"{"method": "x/z"}"#)).expect("any method");
    answer(&mut replay, &json!({"error": {"code": -32601, "message": "no such method"}}));
    assert_eq!(reply(&replay).expect("as it stands")["error"]["code"], -32601);
    operate(&mut replay, &native(r#"{"method": "x/note", "id": null}"#)).expect("a notification");
    assert_eq!(writes(&replay.actions)[0].get("id"), None);
    assert_eq!(reply(&replay), Ok(Value::Null));
    assert!(matches!(operate(&mut replay, &native("[]")), Err(WireError::Protocol { .. })));
}

#[test]
fn every_operation_is_answered_at_the_latest_by_the_end() {
    let mut replay = ready(&json!({"sessionCapabilities": {"list": {}}}), &choices(), json!({"compactCommand": "/c"}));
    for (request, operation) in [
        Operation::SetModel { model: "b".into() },
        Operation::ListSessions,
        Operation::Native { message: Json::new(r#"{"method": "x"}"#).expect("JSON") },
        Operation::Compact,
    ]
    .into_iter()
    .enumerate()
    {
        replay.adapter.operate(request as u64, &operation, &mut replay.actions).expect("it can");
    }
    replay.clear();
    let mut answered: Vec<_> = replay
        .finish()
        .into_iter()
        .map(|action| match action {
            Action::Reply { request, reply: Err(WireError::AgentDied { .. }) } => request,
            other => panic!("{other:?}"),
        })
        .collect();
    answered.sort_unstable();
    assert_eq!(answered, [0, 1, 2, 3]);
    let mut early = Replay::new(acp::make(setup(ipc_protocol::AgentSessionConfig::new("agent"))).expect("an adapter"));
    assert!(matches!(operate(&mut early, &Operation::GetState), Err(WireError::Unsupported { .. })), "not ready");
}

#[test]
fn an_agent_that_answers_nothing_is_not_asked_for_ever() {
    let mut replay = plain();
    let native = Operation::Native { message: Json::new(r#"{"method": "x"}"#).expect("JSON") };
    let taken = (0..1000).take_while(|_| operate(&mut replay, &native).is_ok()).count();
    assert_eq!(taken, 256);
    assert_eq!(operate(&mut replay, &native), Err(WireError::Busy));
}

#[test]
fn a_prompt_has_pictures_and_files() {
    let prompt = Prompt::from(vec![
        PromptPart::Text("look".into()),
        PromptPart::Image { mime_type: "image/png".into(), data: "aGk=".into() },
        PromptPart::File { path: "src/a b.rs".into() },
    ]);
    let mut replay = ready(&json!({"promptCapabilities": {"image": true}}), &json!({}), json!({}));
    replay.adapter.prompt(&prompt, &mut replay.actions).expect("ready");
    let blocks = json!([
        {"type": "text", "text": "look"},
        {"type": "image", "mimeType": "image/png", "data": "aGk="},
        {"type": "resource_link", "name": "a b.rs", "uri": "file:///w/src/a%20b.rs"},
    ]);
    assert_eq!(writes(&replay.actions)[0]["params"]["prompt"], blocks);
    let mut replay = plain();
    let refused = replay.adapter.prompt(&prompt, &mut replay.actions);
    assert!(matches!(refused, Err(WireError::Unsupported { .. })));
    assert_eq!(replay.actions, [], "nothing was said");
    replay.adapter.prompt(&"go".into(), &mut replay.actions).expect("the turn had not begun");
    answer(&mut replay, &json!({"result": {"stopReason": "end_turn"}}));
    let complete = ipc_protocol::Event::Complete { stop_reason: StopReason::EndTurn, usage: None };
    assert_eq!(events(&replay.actions), [complete]);
}
