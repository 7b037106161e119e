//! What no recording shows.

use agents::{Action, AdapterSetup, ListedFile, claude};
use ipc_protocol::{
    AgentSessionConfig, Event, NativeResume, Operation, PermissionAnswer, Prompt, PromptPart, StopReason, WireError,
};
use serde_json::{Value, json};

use crate::replay::{Replay, Transcript, USER, config, events, setup, stored, writes};

fn answer(replay: &mut Replay, id: &Value, response: &Value) {
    let line = json!({ "type": "control_response", "response": { "subtype": "success", "request_id": id, "response": response } });
    replay.stdout(format!("{line}\n").as_bytes());
}

fn started(config: AgentSessionConfig) -> Replay {
    Replay::new(claude::make(setup(config)).expect("an adapter"), Vec::new())
}

fn ready() -> Replay {
    let mut replay = started(config());
    answer(&mut replay, &json!("agent-proxy-1"), &json!({}));
    replay.clear();
    replay
}

/// A result of the first message.
const RESULT: &[u8] = b"{\"type\":\"result\",\"subtype\":\"success\",\"user_message_uuids\":[\"00000000-0000-4000-8000-000000000001\"]}\n";

#[test]
fn it_is_ready_when_the_last_of_its_configuration_is_answered() {
    let mut replay = started(AgentSessionConfig { thinking: Some("high".into()), ..config() });
    assert!(replay.adapter.prompt(&Prompt::from("early"), &mut Vec::new()).is_err());
    answer(&mut replay, &json!("agent-proxy-1"), &json!({}));
    assert!(!replay.actions.iter().any(|action| matches!(action, Action::Ready { .. })));
    assert_eq!(writes(&replay.actions)[1]["request"]["settings"], json!({ "effortLevel": "high" }));
    answer(&mut replay, &json!("agent-proxy-2"), &json!({}));
    assert!(matches!(replay.actions.last(), Some(Action::Ready { .. })));
}

#[test]
fn it_does_not_wait_for_servers_that_are_slow() {
    let transport = ipc_protocol::McpTransport::Http { url: "http://127.0.0.1:9/".into(), headers: Default::default() };
    let mcp_servers = vec![ipc_protocol::McpServer { name: "slow".into(), transport }];
    let mut replay = started(AgentSessionConfig { mcp_servers, ..config() });
    answer(&mut replay, &json!("agent-proxy-1"), &json!({}));
    assert!(matches!(replay.actions.last(), Some(Action::Ready { .. })));
    answer(&mut replay, &json!("agent-proxy-2"), &json!({ "errors": { "slow": "no answer" } }));
    let Some(Action::Event(Event::Error { message, .. })) = replay.actions.last() else { panic!() };
    assert_eq!(message, "MCP server \"slow\": no answer");
}

#[test]
fn a_configuration_that_is_refused_ends_the_start() {
    let mut replay = started(AgentSessionConfig { thinking: Some("high".into()), ..config() });
    answer(&mut replay, &json!("agent-proxy-1"), &json!({}));
    let line = json!({ "type": "control_response", "response": { "subtype": "error", "request_id": "agent-proxy-2", "error": "no" } });
    replay.stdout(format!("{line}\n").as_bytes());
    let Some(Action::Fail(WireError::AgentRefused { reason, .. })) = replay.actions.last() else {
        panic!("{:?}", replay.actions)
    };
    assert_eq!(reason, "no");
}

#[test]
fn a_start_that_fails_says_what_the_agent_said() {
    let mut adapter = claude::make(setup(config())).expect("an adapter");
    let mut out = Vec::new();
    adapter.start(&mut out);
    adapter.stderr(b"error: unknown option '--nonsense'\n", &mut out);
    adapter.finish(&mut out);
    let Some(Action::Fail(WireError::AgentDied { reason })) = out.last() else { panic!("{out:?}") };
    assert!(reason.ends_with("--nonsense'"), "{reason}");
    let mut replay = started(config());
    replay.stdout(b"{\"type\":\"result\",\"subtype\":\"error_during_execution\",\"is_error\":true,\"errors\":[\"not here\"],\"startup_failure_reason\":\"bypass_root\"}\n");
    let Some(Action::Fail(WireError::AgentRefused { reason, .. })) = replay.actions.last() else { panic!() };
    assert_eq!(reason, "to start: not here");
}

#[test]
fn pictures_and_files_reach_the_agent() {
    let mut replay = ready();
    let prompt = Prompt::from(vec![
        PromptPart::Text("what is this?".into()),
        PromptPart::Image { mime_type: "image/png".into(), data: "aGk=".into() },
        PromptPart::File { path: "src/main.rs".into() },
    ]);
    replay.adapter.prompt(&prompt, &mut replay.actions).expect("a turn");
    let content = &writes(&replay.actions)[0]["message"]["content"];
    assert_eq!(
        *content,
        json!([
            { "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": "aGk=" } },
            { "type": "text", "text": "what is this?\n@src/main.rs" },
        ])
    );
}

#[test]
fn several_requests_are_answered_in_any_order() {
    let mut replay = ready();
    replay.prompt("go");
    replay.clear();
    for id in ["a", "b", "c"] {
        let asked = json!({ "type": "control_request", "request_id": id,
            "request": { "subtype": "can_use_tool", "tool_name": "Bash", "input": { "command": id } } });
        replay.stdout(format!("{asked}\n").as_bytes());
    }
    let mut permission =
        |id: &str, answer: PermissionAnswer| replay.adapter.permission(id, &answer, USER, &mut replay.actions);
    permission("permission-3", PermissionAnswer::Allow).expect("open");
    permission("permission-1", PermissionAnswer::DenyWith { message: "not that".into() }).expect("open");
    let error = permission("permission-2", PermissionAnswer::Option("maybe".into())).expect_err("no such option");
    assert!(matches!(&error, WireError::UnknownOption { options, .. } if options.len() == 3), "{error}");
    permission("permission-2", PermissionAnswer::Cancelled).expect("still open");
    let error = permission("permission-2", PermissionAnswer::Allow).expect_err("answered");
    assert!(matches!(error, WireError::UnknownPermission { .. }));
    let answers: Vec<_> = writes(&replay.actions)
        .iter()
        .map(|write| {
            let response = &write["response"];
            (response["request_id"].as_str().unwrap_or_default().to_owned(), response["response"].clone())
        })
        .collect();
    assert_eq!(answers[0], ("c".into(), json!({ "behavior": "allow", "updatedInput": { "command": "c" } })));
    assert_eq!(answers[1], ("a".into(), json!({ "behavior": "deny", "message": "not that" })));
    assert_eq!((answers[2].0.as_str(), &answers[2].1["interrupt"]), ("b", &json!(true)));
}

#[test]
fn other_requests_of_the_agent_are_refused() {
    let mut replay = ready();
    replay.stdout(b"{\"type\":\"control_request\",\"request_id\":\"h\",\"request\":{\"subtype\":\"elicitation\"}}\n");
    assert_eq!(writes(&replay.actions)[0]["response"]["subtype"], "error", "it does not wait for us");
}

#[test]
fn an_abort_without_a_turn_is_nothing() {
    let mut replay = ready();
    replay.adapter.abort(&mut replay.actions).expect("abortable");
    assert_eq!(replay.actions, []);
    // A turn that the agent began by itself can be ended too.
    replay.stdout(
        b"{\"type\":\"system\",\"subtype\":\"init\",\"session_id\":\"00000000-0000-4000-8000-000000000000\"}\n",
    );
    replay.adapter.abort(&mut replay.actions).expect("abortable");
    assert_eq!(writes(&replay.actions)[0]["request"]["subtype"], "interrupt");
}

#[test]
fn an_agent_that_dies_in_a_turn_leaves_nobody_waiting() {
    let mut replay = ready();
    replay.adapter.operate(7, &Operation::GetState, &mut replay.actions).expect("sent");
    replay.adapter.operate(8, &Operation::ListSessions, &mut Vec::new()).expect("asked");
    replay.prompt("go");
    replay.stdout(b"{\"type\":\"control_request\",\"request_id\":\"r\",\"request\":{\"subtype\":\"can_use_tool\",\"tool_name\":\"X\"}}\n");
    let actions = replay.finish();
    let replies: Vec<_> = actions
        .iter()
        .filter_map(|action| match action {
            Action::Reply { request, reply: Err(WireError::AgentDied { .. }) } => Some(*request),
            _ => None,
        })
        .collect();
    assert_eq!(replies, [7, 8]);
    let resolved =
        events(&actions).into_iter().any(|event| matches!(event, Event::PermissionResolved { option: None, .. }));
    let said =
        events(&actions).into_iter().any(|event| matches!(event, Event::Error { code, .. } if code == "agent-exited"));
    assert!(resolved && said && actions.last() == Some(&Action::TurnEnded), "{actions:?}");
}

#[test]
fn stored_conversations_are_listed_newest_first() {
    let mut replay = Replay::new(
        claude::make(setup(config())).expect("an adapter"),
        vec![stored("new"), ListedFile { head: b"nothing".to_vec(), ..stored("broken") }, stored("old")],
    );
    answer(&mut replay, &json!("agent-proxy-1"), &json!({}));
    replay.adapter.operate(3, &Operation::ListSessions, &mut replay.actions).expect("asked");
    replay.follow();
    let Some(Action::Reply { request: 3, reply: Ok(reply) }) = replay.actions.last() else { panic!() };
    let ids: Vec<_> = reply.value().as_array().expect("a list").iter().map(|one| one["id"].clone()).collect();
    assert_eq!(ids, ["new", "old"]);
    assert_eq!(reply.value()[0]["title"], "hello");
}

#[test]
fn choices_are_its_modes_and_levels() {
    let mut replay = ready();
    replay.adapter.operate(1, &Operation::ListChoices, &mut replay.actions).expect("answered");
    let Some(Action::Reply { request: 1, reply: Ok(reply) }) = replay.actions.last() else { panic!() };
    let choices = reply.value();
    assert_eq!(choices["models"], json!(null), "it lists none");
    assert_eq!(choices["modes"][1], json!({"id": "acceptEdits", "name": "acceptEdits"}));
    assert_eq!(choices["thinking"][0]["id"], "off");
}

#[test]
fn what_it_cannot_says_why() {
    let mut replay = ready();
    let error = replay.adapter.operate(1, &Operation::GetMessages, &mut replay.actions).expect_err("no such request");
    assert!(matches!(error, WireError::Unsupported { .. }), "{error}");
    let prompt = ipc_protocol::Json::new(r#"{"type":"user","message":{}}"#).expect("JSON");
    let error = replay.adapter.operate(1, &Operation::Native { message: prompt }, &mut replay.actions);
    assert!(matches!(error, Err(WireError::Unsupported { .. })));
    assert_eq!(replay.actions, [], "nothing is sent");
}

#[test]
fn a_whole_control_request_can_be_passed_on() {
    let mut replay = ready();
    let message = r#"{"type":"control_request","request":{"subtype":"mcp_status"}}"#;
    let message = ipc_protocol::Json::new(message).expect("JSON");
    replay.adapter.operate(1, &Operation::Native { message }, &mut replay.actions).expect("sent");
    let written = writes(&replay.actions).remove(0);
    assert_eq!(written["request"], json!({ "subtype": "mcp_status" }));
    answer(&mut replay, &written["request_id"], &json!({ "mcpServers": [] }));
    let Some(Action::Reply { reply: Ok(reply), .. }) = replay.actions.last() else { panic!() };
    assert_eq!(reply.value()["response"], json!({ "mcpServers": [] }));
}

#[test]
fn a_compaction_has_the_caller_s_instructions() {
    let mut replay = ready();
    let operation = Operation::CompactWith { instructions: "retain the plum".to_owned() };
    replay.adapter.operate(5, &operation, &mut replay.actions).expect("sent");
    let written = writes(&replay.actions).pop().expect("a message");
    assert_eq!(written["message"]["content"], json!([{ "type": "text", "text": "/compact retain the plum" }]));
}

#[test]
fn a_compaction_waits_for_its_own_result() {
    let mut replay = ready();
    replay.adapter.operate(5, &Operation::Compact, &mut replay.actions).expect("sent");
    assert_eq!(replay.adapter.operate(6, &Operation::Compact, &mut Vec::new()), Err(WireError::Busy));
    replay.prompt("meanwhile");
    replay.stdout(b"{\"type\":\"system\",\"subtype\":\"compact_boundary\",\"compact_metadata\":{\"pre_tokens\":9,\"post_tokens\":3}}\n");
    replay.stdout(RESULT);
    let reply = replay.actions.iter().find_map(|action| match action {
        Action::Reply { request: 5, reply } => Some(reply.clone()),
        _ => None,
    });
    assert_eq!(reply.expect("a reply").expect("done").value(), json!({ "pre_tokens": 9, "post_tokens": 3 }));
    assert!(!replay.actions.contains(&Action::TurnEnded), "the turn has a result of its own");
}

#[test]
fn a_result_of_an_agent_that_knows_no_names_ends_the_turn() {
    let mut replay = ready();
    replay.prompt("go");
    replay.adapter.steer(&Prompt::from("left"), &mut replay.actions).expect("steered");
    replay.stdout(b"{\"type\":\"result\",\"subtype\":\"success\",\"is_error\":false}\n");
    let complete = events(&replay.actions)
        .into_iter()
        .any(|event| matches!(event, Event::Complete { stop_reason: StopReason::EndTurn, .. }));
    assert!(complete && replay.actions.last() == Some(&Action::TurnEnded));
}

#[test]
fn a_copy_of_the_most_recent_conversation_has_a_name_of_its_own() {
    let resume = Some(NativeResume { id: None, fork: true });
    let adapter = claude::make(AdapterSetup { resume, ..setup(config()) }).expect("an adapter");
    let mut replay = Replay::new(adapter, vec![stored("newest")]);
    answer(&mut replay, &json!("agent-proxy-1"), &json!({}));
    let id = Some("00000000-0000-4000-8000-000000000000".to_owned());
    assert_eq!(replay.actions.last(), Some(&Action::Ready { native_session_id: id }));
}

#[test]
fn what_is_written_to_an_adapter_that_is_over_is_only_logged() {
    let mut replay = Replay::of(&Transcript::named("resume-missing"));
    Transcript::named("resume-missing").records().iter().for_each(|record| replay.record(record));
    replay.clear();
    replay.stdout(RESULT);
    assert!(events(&replay.actions).iter().all(|event| matches!(event, Event::Log { .. })), "{:?}", replay.actions);
    assert!(replay.adapter.prompt(&Prompt::from("go"), &mut Vec::new()).is_err());
}
