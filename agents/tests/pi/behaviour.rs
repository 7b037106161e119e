//! What no recording has: single messages, and what the adapter makes of them.

use agents::{Action, AdapterSetup, ListedFile, pi};
use ipc_protocol::{
    AgentSessionConfig, Event, FileChange, Json, NativeResume, Operation, PermissionAnswer, Prompt, PromptPart,
    SettingSource, StopReason, WireError, message::AgentFact, terminal::Surface,
};
use serde_json::{Value, json};

use crate::recorded::{Replay, Step, events, kinds, replies, setup, writes};

/// The answer to `get_state`.
pub(crate) fn state(id: &str, more: &Value) -> Value {
    let mut data = json!({
        "model": {"id": "m", "provider": "p", "contextWindow": 1000}, "thinkingLevel": "off", "isStreaming": false,
        "isCompacting": false, "sessionId": "s-1", "messageCount": 0, "pendingMessageCount": 0,
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        data[key] = value.clone();
    }
    json!({"id": id, "type": "response", "command": "get_state", "success": true, "data": data})
}

/// A successful response.
pub(crate) fn done(id: &str, command: &str) -> Value {
    json!({"id": id, "type": "response", "command": command, "success": true})
}

fn started(config: AgentSessionConfig, resume: Option<NativeResume>, state: &Value) -> Replay {
    let mut replay = Replay::new(pi::make, AdapterSetup { resume, ..setup(config) });
    assert_eq!(writes(&replay.actions), [json!({"id": "1", "type": "get_state"})]);
    replay.clear();
    replay.says(state);
    replay
}

/// An adapter that is ready, and no actions yet.
pub(crate) fn ready() -> Replay {
    let mut replay = started(AgentSessionConfig::new("pi"), None, &state("1", &json!({})));
    let (model, thinking) = (Some("p/m".into()), Some("off".into()));
    let settings = Action::Fact(AgentFact::Settings { model, mode: None, thinking });
    assert_eq!(replay.actions[..2], [Action::Ready { native_session_id: Some("s-1".into()) }, settings]);
    assert_eq!(writes(&replay.actions), [json!({"id": "0", "type": "get_commands"})]);
    replay.clear();
    replay
}

/// An adapter in a turn that has begun.
pub(crate) fn in_turn() -> Replay {
    let mut replay = ready();
    replay.step(&Step::Prompt("go".into())).expect("ready");
    replay.says(&done("2", "prompt"));
    replay.says(&json!({"type": "agent_start"}));
    replay.says(&state("3", &json!({"isStreaming": true})));
    replay.clear();
    replay
}

pub(crate) fn message_end(stop: &str, error: Option<&str>) -> Value {
    let usage =
        json!({"input": 10, "output": 2, "cacheRead": 5, "cacheWrite": 1, "totalTokens": 18, "cost": {"total": 0.5}});
    let message =
        json!({"role": "assistant", "content": [], "stopReason": stop, "errorMessage": error, "usage": usage});
    json!({"type": "message_end", "message": message})
}

#[test]
fn what_pi_cannot_do_is_refused_before_it_is_started() {
    let refused = |config: AgentSessionConfig, resume| {
        let error = pi::make(AdapterSetup { resume, ..setup(config) }).err();
        assert!(matches!(error, Some(WireError::Unsupported { .. })), "{error:?}");
    };
    refused(AgentSessionConfig { mode: Some("plan".into()), ..AgentSessionConfig::new("pi") }, None);
    let resume = Some(NativeResume { id: None, fork: true });
    refused(AgentSessionConfig { ephemeral: true, ..AgentSessionConfig::new("pi") }, resume);
    let mode = ready().step(&Step::Operate(Operation::SetMode { mode: "plan".into() }));
    assert!(matches!(mode, Err(WireError::Unsupported { .. })));
}

#[test]
fn every_part_of_a_prompt_is_passed_on() {
    let mut replay = ready();
    let parts = vec![
        PromptPart::Text("look".into()),
        PromptPart::Image { mime_type: "image/png".into(), data: "aGkh".into() },
        PromptPart::File { path: "/a/b.rs".into() },
    ];
    replay.step(&Step::Prompt(Prompt { parts })).expect("ready");
    let images = json!([{"type": "image", "data": "aGkh", "mimeType": "image/png"}]);
    assert_eq!(
        writes(&replay.actions)[0],
        json!({"id": "2", "type": "prompt", "message": "look\n@/a/b.rs", "images": images})
    );
}

#[test]
fn one_turn_at_a_time() {
    let mut replay = ready();
    assert!(matches!(replay.step(&Step::Steer("left".into())), Err(WireError::Unsupported { .. })));
    replay.step(&Step::Abort).expect("nothing to abort is fine");
    assert_eq!(replay.actions, []);
    let mut replay = in_turn();
    assert_eq!(replay.step(&Step::Prompt("again".into())), Err(WireError::Busy));
    assert_eq!(replay.step(&Step::Operate(Operation::Compact)), Err(WireError::Busy));
    let mut replay = Replay::new(pi::make, setup(AgentSessionConfig::new("pi")));
    assert!(matches!(replay.step(&Step::Prompt("go".into())), Err(WireError::Unsupported { .. })), "not ready");
    assert!(matches!(replay.step(&Step::Operate(Operation::GetState)), Err(WireError::Unsupported { .. })));
}

#[test]
fn a_prompt_that_is_refused_ends_the_turn() {
    let mut replay = ready();
    replay.step(&Step::Prompt("go".into())).expect("ready");
    replay.clear();
    replay.says(&json!({"id": "2", "type": "response", "command": "prompt", "success": false, "error": "No model"}));
    assert_eq!(replay.actions, [Action::Event(Event::error("refused", "No model", false)), Action::TurnEnded]);
}

#[test]
fn tokens_of_a_turn_are_the_sum_of_its_requests() {
    let mut replay = in_turn();
    replay.says(&message_end("toolUse", None));
    replay.says(&message_end("stop", None));
    replay.says(&json!({"type": "agent_settled"}));
    let Some(Event::Complete { stop_reason, usage: Some(usage) }) = events(&replay.actions).pop() else {
        panic!("{:?}", replay.actions)
    };
    assert_eq!(stop_reason, StopReason::EndTurn);
    assert_eq!((usage.input_tokens, usage.cache_read_tokens, usage.cost_usd), (Some(32), Some(10), Some(1.0)));
    let kinds = kinds(&replay.actions);
    assert_eq!(kinds.iter().filter(|kind| *kind == "stream:context_window").count(), 2, "{kinds:?}");
}

#[test]
fn every_way_to_stop_has_a_word() {
    for (stop, expected) in [
        ("stop", StopReason::EndTurn),
        ("length", StopReason::MaxTokens),
        ("aborted", StopReason::Cancelled),
        ("bored", StopReason::Other("bored".into())),
    ] {
        let mut replay = in_turn();
        replay.says(&message_end(stop, None));
        replay.says(&json!({"type": "agent_settled"}));
        let last = events(&replay.actions).pop();
        assert!(matches!(&last, Some(Event::Complete { stop_reason, .. }) if *stop_reason == expected), "{last:?}");
    }
}

#[test]
fn text_that_does_not_come_in_pieces_comes_whole() {
    let mut replay = in_turn();
    let update = |update: &Value| json!({"type": "message_update", "assistantMessageEvent": update});
    for (kind, text) in [("text", "hello"), ("thinking", "hm")] {
        replay.says(&update(&json!({"type": format!("{kind}_start"), "contentIndex": 0})));
        replay.says(&update(&json!({"type": format!("{kind}_end"), "contentIndex": 0, "content": text})));
    }
    replay.says(&update(&json!({"type": "text_start", "contentIndex": 1})));
    replay.says(&update(&json!({"type": "text_delta", "contentIndex": 1, "delta": "x"})));
    replay.says(&update(&json!({"type": "text_end", "contentIndex": 1, "content": "x"})));
    let expected =
        [Event::Text { text: "hello".into() }, Event::Thinking { text: "hm".into() }, Event::Text { text: "x".into() }];
    assert_eq!(events(&replay.actions), expected);
}

#[test]
fn a_call_that_is_never_run_ends_with_its_turn() {
    let mut replay = in_turn();
    let call = json!({"type": "toolcall_start", "contentIndex": 0, "id": "c", "toolName": "bash"});
    replay.says(&json!({"type": "message_update", "assistantMessageEvent": call}));
    replay.says(&json!({"type": "agent_settled"}));
    assert_eq!(kinds(&replay.actions), ["stream:tool_start", "stream:tool_end", "stream:complete"]);
}

#[test]
fn a_compaction_has_the_caller_s_instructions() {
    let mut replay = ready();
    replay.clear();
    let instructions = "retain the plum".to_owned();
    replay.step(&Step::Operate(Operation::CompactWith { instructions: instructions.clone() })).expect("taken");
    let written = writes(&replay.actions).remove(0);
    assert_eq!((&written["type"], &written["customInstructions"]), (&json!("compact"), &json!(instructions)));
    assert_eq!(replay.step(&Step::Operate(Operation::CompactWith { instructions })), Err(WireError::Busy));
}

#[test]
fn compacting_answers_when_it_is_done() {
    let mut replay = ready();
    replay.step(&Step::Operate(Operation::Compact)).expect("taken");
    assert_eq!(replay.step(&Step::Prompt("go".into())), Err(WireError::Busy), "while it compacts");
    replay.clear();
    replay.says(&json!({"type": "compaction_start", "reason": "manual"}));
    replay.says(&json!({"type": "compaction_end", "reason": "manual", "result": {"summary": "x"}, "aborted": false, "willRetry": false}));
    let response =
        json!({"id": "2", "type": "response", "command": "compact", "success": true, "data": {"summary": "x"}});
    replay.says(&response);
    assert_eq!(kinds(&replay.actions), ["session:status", "session:status"]);
    assert_eq!(replies(&replay.actions), [Ok(json!({"summary": "x"}))]);
    replay.step(&Step::Prompt("go".into())).expect("ready again");
}

#[test]
fn a_model_is_found_by_its_name_with_or_without_its_provider() {
    let models = json!({"models": [
        {"id": "a/b", "provider": "router"}, {"id": "m2", "provider": "other"}, {"id": "m2", "provider": "p"},
    ]});
    for (asked, found) in [
        ("m2", Some(("p", "m2"))),
        ("other/m2", Some(("other", "m2"))),
        ("a/b", Some(("router", "a/b"))),
        ("router/a/b", Some(("router", "a/b"))),
        ("m3", None),
    ] {
        let mut replay = ready();
        replay.step(&Step::Operate(Operation::SetModel { model: asked.into() })).expect("taken");
        let mut response = done("2", "get_available_models");
        response["data"] = models.clone();
        replay.clear();
        replay.says(&response);
        match found {
            Some((provider, id)) => {
                let expected = json!({"id": "3", "type": "set_model", "provider": provider, "modelId": id});
                assert_eq!(writes(&replay.actions), [expected], "{asked}");
            }
            None => assert!(matches!(&replies(&replay.actions)[..], [Err(WireError::Unsupported { .. })]), "{asked}"),
        }
    }
}

#[test]
fn conversations_are_listed_from_their_files() {
    let config = AgentSessionConfig { cwd: Some("/srv/work".into()), ..AgentSessionConfig::new("pi") };
    let directories = [("HOME".to_owned(), "/home/user".to_owned())].into_iter().collect();
    let mut replay = Replay::new(pi::make, AdapterSetup { directories, ..setup(config) });
    replay.says(&state("1", &json!({})));
    replay.clear();
    replay.step(&Step::Operate(Operation::ListSessions)).expect("taken");
    let [Action::List { id, directory, suffix }] = &replay.actions[..] else { panic!("{:?}", replay.actions) };
    assert_eq!((directory.as_str(), *suffix), ("/home/user/.pi/agent/sessions/--srv-work--", ".jsonl"));
    let id = *id;
    let file = |head: &str| ListedFile { path: "/x.jsonl".into(), modified_ms: 1_000, head: head.as_bytes().to_vec() };
    let header = |id: &str, cwd: &str| json!({"type": "session", "id": id, "cwd": cwd, "timestamp": "t"}).to_string();
    let user =
        json!({"type": "message", "message": {"role": "user", "content": [{"type": "text", "text": "first\nline"}]}});
    let name = json!({"type": "session_info", "name": "named"});
    let files = vec![
        file(&format!("{}\n{user}\n{{\"cut", header("a", "/srv/work"))),
        file(&format!("{}\n{user}\n{name}\n", header("b", "/srv/work"))),
        file(&header("c", "/elsewhere")),
        file("no session\n"),
        file(""),
        ListedFile { modified_ms: u64::MAX, ..file(&header("d", "/srv/work")) },
    ];
    replay.clear();
    replay.adapter.listed(id, files, &mut replay.actions);
    let [Ok(sessions)] = &replies(&replay.actions)[..] else { panic!("{:?}", replay.actions) };
    let of =
        |key: &str| sessions.as_array().expect("a list").iter().map(|session| session[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("id"), ["a", "b", "d"]);
    assert_eq!(of("title"), [json!("first …"), json!("named"), Value::Null]);
    assert_eq!(of("updatedAt")[0], "1970-01-01T00:00:01.000Z");
    replay.clear();
    replay.adapter.listed(id, Vec::new(), &mut replay.actions);
    assert_eq!(replay.actions, [], "answered already");
}

#[test]
fn another_conversation_of_the_callers_is_told() {
    let mut replay = ready();
    let native = |text: &str| Step::Operate(Operation::Native { message: Json::new(text).expect("JSON") });
    assert!(matches!(replay.step(&native(r#"{"method":"x"}"#)), Err(WireError::Protocol { .. })));
    replay.step(&native(r#"{"type":"new_session","id":"mine"}"#)).expect("taken");
    assert_eq!(writes(&replay.actions), [json!({"id": "2", "type": "new_session"})]);
    replay.clear();
    replay.says(&done("2", "new_session"));
    assert_eq!(replies(&replay.actions), [Ok(done("2", "new_session"))]);
    replay.clear();
    replay.says(&state("3", &json!({"sessionId": "s-2"})));
    assert_eq!(replay.actions, [Action::NativeSession("s-2".into())]);
}

#[test]
fn dialogs_take_only_the_answers_that_they_have() {
    let mut replay = in_turn();
    let ask = |method: &str| json!({"type": "extension_ui_request", "id": "d", "method": method, "title": "Which?", "options": ["a"]});
    let with = PermissionAnswer::AllowWith { input: Json::new(r#"{"x":1}"#).expect("JSON") };
    replay.says(&ask("select"));
    let answer = |answer: &PermissionAnswer| Step::Permission("permission-1".into(), answer.clone());
    assert!(matches!(replay.step(&answer(&with)), Err(WireError::Unsupported { .. })));
    assert!(matches!(replay.step(&answer(&PermissionAnswer::Allow)), Err(WireError::UnknownOption { .. })));
    assert!(matches!(
        replay.step(&answer(&PermissionAnswer::Option("b".into()))),
        Err(WireError::UnknownOption { .. })
    ));
    replay.clear();
    replay.step(&answer(&PermissionAnswer::Deny)).expect("open");
    assert_eq!(writes(&replay.actions), [json!({"type": "extension_ui_response", "id": "d", "cancelled": true})]);
    replay.says(&ask("editor"));
    replay.clear();
    replay.step(&Step::Permission("permission-2".into(), with)).expect("open");
    assert_eq!(writes(&replay.actions)[0]["value"], r#"{"x":1}"#);
    replay.clear();
    for method in ["setStatus", "setWidget", "setTitle", "set_editor_text", "brand-new"] {
        replay.says(&ask(method));
    }
    assert_eq!(replay.actions, [], "nobody answers these");
}

#[test]
fn choices_are_its_models_and_levels() {
    let mut replay = ready();
    replay.step(&Step::Operate(Operation::ListChoices)).expect("taken");
    let asked = writes(&replay.actions).pop().expect("a command");
    assert_eq!(asked["type"], "get_available_models");
    let models = json!([{"id": "m", "name": "M", "provider": "p"}, {"id": "n", "provider": "p"}, {"id": "nobody's"}]);
    replay.says(&json!({"type": "response", "id": asked["id"], "command": asked["type"], "success": true, "data": {"models": models}}));
    let [Ok(choices)] = &replies(&replay.actions)[..] else { panic!("{:?}", replay.actions) };
    assert_eq!(choices["models"], json!([{"id": "p/m", "name": "M"}, {"id": "p/n", "name": "p/n"}]));
    assert_eq!((&choices["modes"], &choices["thinking"][0]["id"]), (&json!(null), &json!("off")));
}

#[test]
fn the_end_of_the_agent_ends_what_is_open() {
    let mut replay = in_turn();
    replay.step(&Step::Operate(Operation::GetMessages)).expect("taken");
    replay.says(&json!({"type": "extension_ui_request", "id": "d", "method": "confirm", "title": "x"}));
    replay.clear();
    // Half a line, which is a whole message.
    let delta = json!({"type": "text_delta", "contentIndex": 0, "delta": "bye"});
    replay.stdout(json!({"type": "message_update", "assistantMessageEvent": delta}).to_string().as_bytes());
    let actions = replay.finish();
    assert_eq!(kinds(&actions), ["stream:text", "permission:resolved", "stream:error"]);
    assert!(matches!(&replies(&actions)[..], [Err(WireError::AgentDied { .. })]));
    assert_eq!(actions.last(), Some(&Action::TurnEnded));
    assert_eq!(writes(&actions), Vec::<Value>::new(), "nobody reads any more");
    assert_eq!(ready().finish(), [], "nothing is open");
    let actions = Replay::new(pi::make, setup(AgentSessionConfig::new("pi"))).finish();
    assert!(matches!(actions.last(), Some(Action::Fail(WireError::AgentDied { .. }))), "{actions:?}");
}

#[test]
fn what_is_not_understood_is_logged_and_what_is_not_ours_is_not() {
    let mut replay = in_turn();
    for text in ["plain words\n", "[1,2]\n", "{}\n", "{\"type\":\"response\",\"id\":\"99\",\"success\":true}\n"] {
        replay.clear();
        replay.stdout(text.as_bytes());
        assert_eq!(events(&replay.actions), [Event::Log { stream: "stdout".into(), text: text.into() }]);
    }
    replay.clear();
    replay.stdout(b"\n  \r\n");
    replay.says(&json!({"type": "turn_start"}));
    replay.says(&json!({"type": "entry_appended", "entry": {}}));
    assert_eq!(replay.actions, []);
}

/// An adapter of a session whose screen speaks, too.
fn on_screen() -> Replay {
    let config = AgentSessionConfig { surface: Some(Surface::Both), ..AgentSessionConfig::new("pi") };
    let mut replay = started(config, None, &state("1", &json!({})));
    replay.clear();
    replay
}

#[test]
fn a_turn_that_was_begun_on_the_screen_is_reported_without_one() {
    let mut replay = on_screen();
    replay.says(&json!({"type": "screen_prompt", "text": "hi"}));
    replay.says(&json!({"type": "agent_start"}));
    let asked = json!({"agentProxy": "permission", "toolCallId": "c", "tool": "bash", "input": {"command": "ls"}});
    let dialog = json!({"type": "extension_ui_request", "id": "screen-1", "method": "select", "title": asked.to_string(),
        "options": ["allow", "deny"]});
    replay.says(&dialog);
    // The person answers it there.
    replay.says(&json!({"type": "screen_answered", "id": "screen-1", "option": "allow"}));
    replay.says(&message_end("stop", None));
    replay.says(&json!({"type": "agent_settled"}));
    let expected = [
        "terminal:prompted",
        "permission:requested",
        "permission:resolved",
        "stream:usage",
        "stream:context_window",
        "stream:complete",
    ];
    assert_eq!(kinds(&replay.actions), expected);
    assert!(writes(&replay.actions).is_empty(), "{:?}", replay.actions);
    let usage = events(&replay.actions).into_iter().find_map(|event| match event {
        Event::Complete { usage, .. } => usage,
        _ => None,
    });
    assert_eq!(usage.and_then(|usage| usage.input_tokens), Some(16));
    // Ours ends as ever.
    replay.clear();
    replay.step(&Step::Prompt("go".into())).expect("ready");
    replay.says(&json!({"type": "agent_start"}));
    replay.says(&json!({"type": "agent_settled"}));
    assert_eq!(replay.actions.last(), Some(&Action::TurnEnded));
}

#[test]
fn another_conversation_on_the_screen_is_the_sessions() {
    let mut replay = on_screen();
    let conversation = |id: &str| json!({"type": "screen_conversation", "sessionId": id, "sessionFile": "/f"});
    replay.says(&conversation("s-1"));
    assert_eq!(replay.actions, []);
    replay.says(&conversation("s-2"));
    assert_eq!(replay.actions, [Action::NativeSession("s-2".into())]);
}

#[test]
fn slash_commands_are_told_where_there_are_some() {
    let mut replay = ready();
    let answer = |commands: Value| {
        let data = json!({ "commands": commands });
        json!({"id": "0", "type": "response", "command": "get_commands", "success": true, "data": data})
    };
    replay.says(&answer(json!([])));
    assert_eq!(replay.actions, []);
    let fix = json!({"name": "fix-tests", "description": "Fix failing tests", "source": "prompt"});
    replay.says(&answer(json!([fix, {"name": "ask", "source": "extension"}, {"source": "skill"}])));
    let names: Vec<_> = events(&replay.actions)
        .into_iter()
        .flat_map(|event| match event {
            Event::SessionCommands { commands } => commands,
            event => panic!("{event:?}"),
        })
        .map(|command| (command.name, command.description))
        .collect();
    assert_eq!(names, [("fix-tests".to_owned(), Some("Fix failing tests".to_owned())), ("ask".to_owned(), None)]);
    replay.clear();
    // Of an agent that does not know the request, which leaves out its id.
    replay.says(&json!({"type": "response", "command": "get_commands", "success": false, "error": "Unknown command"}));
    assert_eq!(replay.actions, []);
}

#[test]
fn name_model_and_level_are_told_when_they_change() {
    let mut replay = ready();
    replay.says(&json!({"type": "session_info_changed", "name": "Plums"}));
    replay.says(&json!({"type": "session_info_changed"}));
    replay.says(&json!({"type": "thinking_level_changed", "level": "low"}));
    for model in ["m", "n"] {
        let message = json!({"role": "assistant", "provider": "p", "model": model, "content": []});
        replay.says(&json!({"type": "message_end", "message": message}));
    }
    let by = SettingSource::Agent;
    let expected = [
        Event::SessionStatus { status: "title".into(), detail: "Plums".into() },
        Event::SessionTitle { title: "Plums".into(), by },
        Event::SessionThinking { level: "low".into(), by },
        Event::SessionModel { model: "p/n".into(), by },
    ];
    assert_eq!(events(&replay.actions), expected);
}

#[test]
fn an_edit_is_told_as_it_is_proposed_and_as_it_was_done() {
    let mut replay = in_turn();
    let input = json!({"path": "a.txt", "edits": [{"oldText": "x", "newText": "y"}]});
    replay.says(&json!({"type": "tool_execution_start", "toolCallId": "c", "toolName": "edit", "args": input}));
    let details = json!({"diff": "…", "patch": "--- a.txt\n+++ a.txt\n@@ -3,1 +3,1 @@\n-x\n+y\n"});
    let content =
        json!([{"type": "text", "text": "done"}, {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"}]);
    let result = json!({"content": content, "details": details});
    replay.says(&json!({"type": "tool_execution_end", "toolCallId": "c", "toolName": "edit", "result": result, "isError": false}));
    let (mut lines, mut pictures) = (Vec::new(), Vec::new());
    for event in events(&replay.actions) {
        match event {
            Event::Diff(diff) => {
                assert_eq!((&*diff.tool_call_id, &*diff.path, diff.change), ("c", "a.txt", Some(FileChange::Modified)));
                lines.extend(diff.hunks.into_iter().map(|hunk| (hunk.old_line, hunk.new_text)));
            }
            Event::Image(image) => pictures.push((image.bytes, image.tool_call_id)),
            _ => {}
        }
    }
    assert_eq!(lines, [(None, Some("y".to_owned())), (Some(3), Some("y\n".to_owned()))]);
    assert_eq!(pictures, [(8, Some("c".to_owned()))]);
}
