//! What agents do beside the protocol or against it: one test each.

use agents::{Action, acp};
use ipc_protocol::{
    AgentSessionConfig, Event, PermissionAnswer, PermissionRequest, ResolvedBy, StopReason, ToolStatus, Usage,
    WireError,
};
use serde_json::{Value, json};

use crate::replay::{Replay, TRANSCRIPTS, USER, events, kinds, line, records, setup, update, writes};

/// An adapter with a session `s` of the agent that calls itself `name`.
fn ready(name: &str, row: Value) -> Replay {
    let mut setup = setup(AgentSessionConfig { cwd: Some("/w".into()), ..AgentSessionConfig::new("agent") });
    setup.protocol_config = row;
    let mut replay = Replay::new(acp::make(setup).expect("an adapter"));
    let result = json!({"protocolVersion": 1, "agentInfo": {"name": name, "version": "1"}});
    replay.stdout(&line(&json!({"jsonrpc": "2.0", "id": 1, "result": result})));
    replay.stdout(&line(&json!({"jsonrpc": "2.0", "id": 2, "result": {"sessionId": "s"}})));
    replay.clear();
    replay
}

/// As [`ready`], with a turn whose prompt is request 3.
fn in_turn(name: &str, row: Value) -> Replay {
    let mut replay = ready(name, row);
    replay.adapter.prompt(&"go".into(), &mut replay.actions).expect("ready");
    replay.clear();
    replay
}

fn text(text: &str) -> Vec<u8> {
    update(&json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}))
}

fn recorded(name: &str) -> Vec<Action> {
    let (_, transcript) = TRANSCRIPTS.iter().find(|(known, _)| *known == name).expect("a recording");
    let records = records(transcript);
    let mut replay = Replay::of(&records);
    records.iter().for_each(|record| replay.record(record));
    replay.finish()
}

fn requests(actions: &[Action]) -> Vec<PermissionRequest> {
    let request = |event| match event {
        Event::PermissionRequested(request) => Some(*request),
        _ => None,
    };
    events(actions).into_iter().filter_map(request).collect()
}

fn ask(id: u64, call: &Value) -> Vec<u8> {
    let options = json!([
        {"optionId": "proceed_once", "name": "Allow", "kind": "allow_once"},
        {"optionId": "cancel", "name": "Reject", "kind": "reject_once"},
    ]);
    let params = json!({"sessionId": "s", "toolCall": call, "options": options});
    line(&json!({"jsonrpc": "2.0", "id": id, "method": "session/request_permission", "params": params}))
}

/// After a permission only the update of the call comes, when it is over; and none at all where it was rejected.
#[test]
fn trap_gemini_begins_no_call_that_it_asks_for() {
    let mut replay = in_turn("gemini-cli", json!({}));
    let call = |id: &str| json!({"toolCallId": id, "title": "make", "kind": "execute", "status": "pending"});
    replay.stdout(&ask(0, &call("a")));
    assert_eq!(kinds(&replay.actions), ["stream:tool_start", "permission:requested"]);
    replay.adapter.permission("permission-1", &PermissionAnswer::Allow, USER, &mut replay.actions).expect("open");
    replay.clear();
    replay.stdout(&update(&json!({"sessionUpdate": "tool_call_update", "toolCallId": "a", "status": "completed"})));
    assert_eq!(kinds(&replay.actions), ["stream:tool_end"]);
    replay.stdout(&ask(1, &call("b")));
    replay.clear();
    replay.adapter.permission("permission-2", &PermissionAnswer::Deny, USER, &mut replay.actions).expect("open");
    assert_eq!(kinds(&replay.actions), ["permission:resolved", "stream:tool_end"]);
}

#[test]
fn trap_gemini_names_a_command_by_its_title() {
    let request = requests(&recorded("gemini-permission")).remove(0);
    assert_eq!((request.kind.as_str(), request.command.as_deref()), ("execute", Some("touch x1 && echo allowed")));
}

/// It changes its mode by a word of the answer.
#[test]
fn trap_gemini_says_its_mode_as_text() {
    let mut replay = ready("gemini-cli", json!({}));
    replay.stdout(&text("[MODE_UPDATE] plan"));
    let status = Event::SessionStatus { status: "mode".into(), detail: "plan".into() };
    assert_eq!(events(&replay.actions), [status]);
    replay.clear();
    replay.stdout(&text("[MODE_UPDATE] is what it says"));
    assert_eq!(kinds(&replay.actions), ["stream:text"]);
    let mut other = ready("x", json!({}));
    other.stdout(&text("[MODE_UPDATE] plan"));
    assert_eq!(kinds(&other.actions), ["stream:text"]);
}

#[test]
fn trap_gemini_counts_tokens_in_meta() {
    let mut replay = in_turn("gemini-cli", json!({}));
    let meta = json!({"quota": {"token_count": {"input_tokens": 7, "output_tokens": 3}}});
    replay.stdout(&line(&json!({"jsonrpc": "2.0", "id": 3, "result": {"stopReason": "end_turn", "_meta": meta}})));
    let usage = Usage { input_tokens: Some(7), output_tokens: Some(3), ..Usage::default() };
    let complete = Event::Complete { stop_reason: StopReason::EndTurn, usage: Some(Box::new(usage)) };
    assert_eq!(events(&replay.actions), [complete]);
}

/// It does not hear a cancellation while it waits for an answer.
/// Qwen Code starts a call before its input is complete. The permission request has the input; nothing else may.
#[test]
fn trap_qwen_begins_a_call_without_its_input() {
    let mut replay = in_turn("qwen-code", json!({}));
    let meta = json!({"toolName": "run_shell_command", "phase": "preparing"});
    replay.stdout(&update(&json!({
        "sessionUpdate": "tool_call", "toolCallId": "c", "status": "pending", "title": "Shell", "kind": "execute",
        "rawInput": {}, "_meta": meta,
    })));
    let input = json!({"command": "touch a"});
    let call = json!({"toolCallId": "c", "title": "touch a", "kind": "execute", "rawInput": input});
    replay.stdout(&ask(7, &call));
    replay.stdout(&ask(8, &call));
    let told = events(&replay.actions);
    let inputs = told.iter().filter_map(|event| match event {
        Event::ToolUpdate(update) => update.input.clone(),
        _ => None,
    });
    assert_eq!(inputs.map(|input| input.value()).collect::<Vec<_>>(), [input], "once");
    assert!(matches!(&told[0], Event::ToolStart(start) if start.name == "run_shell_command"), "{told:?}");
    assert_eq!(requests(&replay.actions)[0].command.as_deref(), Some("touch a"));
}

/// Qwen Code sends no sum: the usage of each call of the model comes with an empty text.
#[test]
fn trap_qwen_counts_tokens_in_empty_texts() {
    let mut replay = in_turn("qwen-code", json!({}));
    for (input, output) in [(100, 5), (200, 7)] {
        let usage = json!({"inputTokens": input, "outputTokens": output, "cachedReadTokens": 10});
        replay.stdout(&update(&json!({
            "sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": ""}, "_meta": {"usage": usage},
        })));
    }
    replay.stdout(&line(&json!({"jsonrpc": "2.0", "id": 3, "result": {"stopReason": "end_turn"}})));
    let told = events(&replay.actions);
    assert!(!told.iter().any(|event| matches!(event, Event::Text { .. })), "{told:?}");
    let usage = told.iter().find_map(|event| match event {
        Event::Complete { usage, .. } => usage.as_deref().copied(),
        _ => None,
    });
    let sum =
        Usage { input_tokens: Some(300), output_tokens: Some(12), cache_read_tokens: Some(20), ..Usage::default() };
    assert_eq!(usage, Some(sum));
}

#[test]
fn trap_gemini_hangs_with_a_permission_open_when_it_is_cancelled() {
    let mut replay = in_turn("gemini-cli", json!({}));
    replay.stdout(&ask(0, &json!({"toolCallId": "a"})));
    replay.clear();
    replay.adapter.abort(&mut replay.actions).expect("abortable");
    let [answer, cancel] = &writes(&replay.actions)[..] else { panic!("{:?}", replay.actions) };
    assert_eq!(answer["result"]["outcome"]["outcome"], "cancelled");
    assert_eq!(cancel["method"], "session/cancel");
}

/// A second prompt would cancel the first: without a word of its row an agent is not steered.
#[test]
fn trap_gemini_cancels_the_turn_that_is_prompted_again() {
    let mut replay = in_turn("gemini-cli", json!({}));
    let refused = replay.adapter.steer(&"left".into(), &mut replay.actions);
    assert!(matches!(refused, Err(WireError::Unsupported { .. })));
    assert_eq!(replay.actions, []);
}

/// The turn must not stay open for ever.
#[test]
fn trap_codex_acp_never_answers_a_second_prompt() {
    for (first, second) in [(3, 4), (4, 3)] {
        let mut replay = in_turn("codex-acp", json!({"steerByPrompt": "unanswered"}));
        replay.adapter.steer(&"left".into(), &mut replay.actions).expect("steered");
        replay.clear();
        replay.stdout(&line(&json!({"jsonrpc": "2.0", "id": first, "result": {"stopReason": "end_turn"}})));
        assert_eq!(replay.actions.last(), Some(&Action::TurnEnded));
        replay.clear();
        replay.adapter.prompt(&"next".into(), &mut replay.actions).expect("ready again");
        replay.clear();
        // Should it ever come.
        replay.stdout(&line(&json!({"jsonrpc": "2.0", "id": second, "result": {"stopReason": "end_turn"}})));
        assert_eq!(kinds(&replay.actions), ["log"], "it is no answer to the next prompt");
    }
}

#[test]
fn trap_codex_acp_warns_of_a_model_as_text() {
    let mut replay = in_turn("codex-acp", json!({}));
    let warning = "Model metadata for `m` not found. Defaulting to fallback metadata; this can degrade performance.";
    replay.stdout(&text(warning));
    let status = Event::SessionStatus { status: "warning".into(), detail: warning.into() };
    assert_eq!(events(&replay.actions), [status]);
    let said: String = events(&recorded("codex-acp-basic"))
        .iter()
        .filter_map(|event| if let Event::Text { text } = event { Some(text.as_str()) } else { None })
        .collect();
    assert!(said.contains("mock") && !said.contains("metadata"), "{said}");
}

/// The call that it asks for begins after the answer; the command is an argument of a shell.
#[test]
fn trap_codex_acp_asks_before_it_begins_a_call() {
    let actions = recorded("codex-acp-permission");
    let request = requests(&actions).remove(0);
    assert_eq!(request.command.as_deref(), Some("touch x1 && echo allowed"));
    let starts = |id: &str| {
        let is = |event: &Event| matches!(event, Event::ToolStart(start) if start.id == id);
        events(&actions).iter().filter(|event| is(event)).count()
    };
    assert_eq!(request.tool_call_id.map(|id| starts(&id)), Some(1));
}

/// A request is an update of its call: what was said before need not be said again.
#[test]
fn trap_a_request_leaves_out_what_was_said_before() {
    let mut replay = in_turn("agent", Value::Null);
    let asked = |replay: &mut Replay, id: u64, before: &Value, call: &Value| {
        replay.clear();
        replay.stdout(&update(before));
        replay.stdout(&ask(id, call));
        requests(&replay.actions).pop()
    };
    let runs = |id: &str, command: &str| json!({"sessionUpdate": "tool_call", "toolCallId": id, "title": "x", "kind": "execute", "rawInput": {"command": command}});
    let request = asked(&mut replay, 7, &runs("c", "rm -rf x"), &json!({"toolCallId": "c"})).expect("asked");
    assert_eq!((request.kind.as_str(), request.command.as_deref()), ("execute", Some("rm -rf x")));
    let edits = json!({"sessionUpdate": "tool_call", "toolCallId": "d", "title": "x", "kind": "edit", "locations": [{"path": "/etc/x"}]});
    let request = asked(&mut replay, 8, &edits, &json!({"toolCallId": "d", "title": "y"})).expect("asked");
    assert_eq!(request.paths, ["/etc/x"]);
    let other = json!({"toolCallId": "e", "rawInput": {"command": "ls"}});
    let request = asked(&mut replay, 9, &runs("e", "rm -rf x"), &other).expect("asked");
    assert_eq!(request.command.as_deref(), Some("ls"), "what is said last holds");
    let long = asked(&mut replay, 10, &runs("f", &"x".repeat(65 * 1024)), &json!({"toolCallId": "f"}));
    assert_eq!(long, None, "a policy would know nothing of it");
    assert_eq!(writes(&replay.actions)[0]["error"]["code"], -32602);
}

/// Some agents write `once`, others `allow-once` or `proceed_once`.
#[test]
fn trap_options_are_matched_by_kind() {
    for (name, allow, deny) in [
        ("claude-acp-permission", "allow-once", "reject"),
        ("codex-acp-permission", "approved", "abort"),
        ("gemini-permission", "proceed_once", "cancel"),
        ("opencode-permission", "once", "reject"),
    ] {
        for (answer, option) in [(PermissionAnswer::Allow, allow), (PermissionAnswer::Deny, deny)] {
            let request = requests(&recorded(name)).remove(0);
            let mut replay = in_turn("x", json!({}));
            let options: Vec<_> = request
                .options
                .iter()
                .map(|option| json!({"optionId": option.id, "name": "", "kind": kind(option.kind)}))
                .collect();
            let params = json!({"sessionId": "s", "toolCall": {"toolCallId": "c"}, "options": options});
            replay.stdout(&line(
                &json!({"jsonrpc": "2.0", "id": 0, "method": "session/request_permission", "params": params}),
            ));
            replay.clear();
            replay.adapter.permission("permission-1", &answer, USER, &mut replay.actions).expect("open");
            assert_eq!(writes(&replay.actions)[0]["result"]["outcome"]["optionId"], option, "{name}");
        }
    }
}

/// An agent that is told something for ever asks no more, and no rule is heard again: that is for a user to say.
#[test]
fn a_policy_takes_no_option_that_is_for_ever() {
    let mut replay = in_turn("x", json!({}));
    let options = json!([
        {"optionId": "yes", "name": "Yes", "kind": "allow_always"},
        {"optionId": "no", "name": "No", "kind": "reject_always"},
    ]);
    let params = json!({"sessionId": "s", "toolCall": {"toolCallId": "c"}, "options": options});
    replay.stdout(&line(&json!({"jsonrpc": "2.0", "id": 0, "method": "session/request_permission", "params": params})));
    replay.clear();
    for answer in [PermissionAnswer::Allow, PermissionAnswer::Deny] {
        let refused = replay.adapter.permission("permission-1", &answer, ResolvedBy::Deadline, &mut replay.actions);
        assert!(matches!(refused, Err(WireError::UnknownOption { .. })), "{answer:?}: {refused:?}");
    }
    assert_eq!(replay.actions, [], "it is still open");
    replay.adapter.permission("permission-1", &PermissionAnswer::Deny, USER, &mut replay.actions).expect("open");
    assert_eq!(writes(&replay.actions)[0]["result"]["outcome"]["optionId"], "no");
}

fn kind(kind: ipc_protocol::PermissionOptionKind) -> &'static str {
    match kind {
        ipc_protocol::PermissionOptionKind::AllowOnce => "allow_once",
        ipc_protocol::PermissionOptionKind::AllowAlways => "allow_always",
        ipc_protocol::PermissionOptionKind::RejectOnce => "reject_once",
        ipc_protocol::PermissionOptionKind::RejectAlways => "reject_always",
        ipc_protocol::PermissionOptionKind::Other => "other",
    }
}

#[test]
fn an_answer_with_more_than_a_choice_is_unsupported() {
    let mut replay = in_turn("x", json!({}));
    replay.stdout(&ask(0, &json!({"toolCallId": "a"})));
    replay.clear();
    for answer in [
        PermissionAnswer::AllowWith { input: ipc_protocol::Json::null() },
        PermissionAnswer::DenyWith { message: "no".into() },
    ] {
        let refused = replay.adapter.permission("permission-1", &answer, USER, &mut replay.actions);
        assert!(matches!(refused, Err(WireError::Unsupported { .. })));
    }
    assert_eq!(replay.actions, [], "it is still open");
    replay.adapter.permission("permission-1", &PermissionAnswer::Allow, USER, &mut replay.actions).expect("open");
}

/// Their ids differ, and what a sub-agent does says whose it is.
#[test]
fn a_sub_agent_is_told_from_its_agent() {
    let mut replay = in_turn("@agentclientprotocol/claude-agent-acp", json!({}));
    let meta = json!({"claudeCode": {"toolName": "Bash", "parentToolUseId": "task"}});
    replay.stdout(&update(&json!({"sessionUpdate": "tool_call", "toolCallId": "a", "title": "t", "_meta": meta})));
    let Event::ToolStart(start) = &events(&replay.actions)[0] else { panic!("{:?}", replay.actions) };
    assert_eq!((start.name.as_str(), start.parent.as_deref()), ("Bash", Some("task")));
    replay.clear();
    replay.stdout(&ask(0, &json!({"toolCallId": "a"})));
    assert_eq!(requests(&replay.actions)[0].parent.as_deref(), Some("task"));
    replay.clear();
    let chunk =
        json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "x"}, "_meta": meta});
    replay.stdout(&update(&chunk));
    let said = Event::SubagentText { parent: "task".into(), text: "x".into() };
    assert_eq!(events(&replay.actions), [said], "no text of the answer");
}

/// Qwen Code has the parent in a field of its own: these are its lines.
#[test]
fn a_sub_agent_of_qwen_code_is_told_from_its_agent() {
    let mut replay = in_turn("qwen-code", json!({}));
    let meta = json!({"parentToolCallId": "call_1_0", "subagentType": "general-purpose"});
    let call = json!({
        "sessionUpdate": "tool_call", "toolCallId": "call_2_0", "status": "pending",
        "title": "Shell: expr 40 + 2 (a command of the script)", "content": [], "locations": [], "kind": "execute",
        "rawInput": {"command": "expr 40 + 2", "description": "a command of the script"},
        "_meta": {"toolName": "run_shell_command", "provenance": "subagent", "parentToolCallId": "call_1_0", "subagentType": "general-purpose"},
    });
    replay.stdout(&update(&call));
    let Event::ToolStart(start) = &events(&replay.actions)[0] else { panic!("{:?}", replay.actions) };
    assert_eq!((start.name.as_str(), start.parent.as_deref()), ("run_shell_command", Some("call_1_0")));
    replay.clear();
    let chunk =
        json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "done: "}, "_meta": meta});
    replay.stdout(&update(&chunk));
    let said = Event::SubagentText { parent: "call_1_0".into(), text: "done: ".into() };
    assert_eq!(events(&replay.actions), [said], "no text of the answer");
    replay.clear();
    // A call is not its own parent.
    let own = json!({"sessionUpdate": "tool_call", "toolCallId": "call_1_0", "title": "Agent", "_meta": meta});
    replay.stdout(&update(&own));
    let Event::ToolStart(start) = &events(&replay.actions)[0] else { panic!("{:?}", replay.actions) };
    assert_eq!(start.parent, None);
}

/// A call that nobody ends would stop the clocks for ever.
#[test]
fn every_call_ends_with_its_turn() {
    let mut replay = in_turn("x", json!({}));
    replay.stdout(&update(&json!({"sessionUpdate": "tool_call", "toolCallId": "a", "title": "t"})));
    replay.clear();
    replay.stdout(&line(&json!({"jsonrpc": "2.0", "id": 3, "result": {"stopReason": "end_turn"}})));
    assert_eq!(kinds(&replay.actions), ["stream:tool_end", "stream:complete"]);
    let Event::ToolEnd(end) = &events(&replay.actions)[0] else { panic!("an end") };
    assert_eq!(end.status, ToolStatus::Failed);
    replay.clear();
    // What comes after the end changes it, and does not end it again.
    let late =
        json!({"sessionUpdate": "tool_call_update", "toolCallId": "a", "status": "completed", "rawOutput": "out"});
    replay.stdout(&update(&late));
    assert_eq!(kinds(&replay.actions), ["stream:tool_update"]);
}

/// However an agent puts it, a turn that was aborted was cancelled.
#[test]
fn an_error_after_an_abort_is_the_abort() {
    let mut replay = in_turn("x", json!({}));
    replay.adapter.abort(&mut replay.actions).expect("abortable");
    replay.clear();
    replay.stdout(&line(&json!({"jsonrpc": "2.0", "id": 3, "error": {"code": -32800, "message": "cancelled"}})));
    let complete = Event::Complete { stop_reason: StopReason::Cancelled, usage: None };
    assert_eq!(events(&replay.actions), [complete]);
}

/// It takes any word for the name of a model, and says so only when the model is asked: the name is passed on as it stands,
/// whatever its list says, and the state tells it.
#[test]
fn trap_gemini_set_model_accepts_any_string() {
    let mut setup =
        setup(AgentSessionConfig { model: Some("no such model".into()), ..AgentSessionConfig::new("agent") });
    setup.config.cwd = Some("/w".into());
    let mut replay = Replay::new(acp::make(setup).expect("an adapter"));
    let result = json!({"protocolVersion": 1, "agentInfo": {"name": "gemini-cli", "version": "1"}});
    replay.stdout(&line(&json!({"jsonrpc": "2.0", "id": 1, "result": result})));
    let models = json!({"currentModelId": "a", "availableModels": [{"modelId": "a", "name": ""}]});
    replay.clear();
    replay.stdout(&line(&json!({"jsonrpc": "2.0", "id": 2, "result": {"sessionId": "s", "models": models}})));
    let [set] = &writes(&replay.actions)[..] else { panic!("{:?}", replay.actions) };
    assert_eq!((&set["method"], &set["params"]["modelId"]), (&json!("session/set_model"), &json!("no such model")));
    let is_ready = |replay: &Replay| replay.actions.iter().any(|action| matches!(action, Action::Ready { .. }));
    assert!(!is_ready(&replay), "{:?}", replay.actions);
    replay.stdout(&line(&json!({"jsonrpc": "2.0", "id": 3, "result": {}})));
    assert!(is_ready(&replay), "{:?}", replay.actions);
}

/// With some agents a reject is the end of the turn, and not of their making: nobody has aborted.
#[test]
fn trap_a_reject_may_end_the_turn() {
    for (name, reason, told) in
        [("OpenCode", "end_turn", StopReason::EndTurn), ("codex-acp", "cancelled", StopReason::Cancelled)]
    {
        let mut replay = in_turn(name, json!({}));
        replay.stdout(&ask(0, &json!({"toolCallId": "a", "title": "make", "kind": "execute", "status": "pending"})));
        replay.adapter.permission("permission-1", &PermissionAnswer::Deny, USER, &mut replay.actions).expect("open");
        replay.clear();
        replay.stdout(&line(&json!({"jsonrpc": "2.0", "id": 3, "result": {"stopReason": reason}})));
        assert_eq!(replay.actions.last(), Some(&Action::TurnEnded), "{name}");
        let events = events(&replay.actions);
        let complete = Event::Complete { stop_reason: told, usage: None };
        assert_eq!(events.last(), Some(&complete), "{name}: {events:?}");
        replay.adapter.prompt(&"next".into(), &mut replay.actions).expect("ready again");
    }
}

/// Some answer a line that is no JSON with an error that names no request: it ends nothing.
#[test]
fn trap_an_error_without_an_id_is_no_answer() {
    let mut replay = in_turn("codex-acp", json!({}));
    let error = json!({"code": -32700, "message": "Parse error"});
    replay.stdout(&line(&json!({"jsonrpc": "2.0", "id": null, "error": error})));
    assert_eq!(kinds(&replay.actions), ["log"]);
    replay.clear();
    replay.stdout(&line(&json!({"jsonrpc": "2.0", "id": 3, "result": {"stopReason": "end_turn"}})));
    assert_eq!(replay.actions.last(), Some(&Action::TurnEnded));
}
