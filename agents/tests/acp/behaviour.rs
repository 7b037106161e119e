//! What no recording has: single lines, and what the adapter makes of them.

use agents::{Action, acp};
use ipc_protocol::{
    AgentSessionConfig, EnvVars, Event, FileChange, ImageOutput, McpServer, McpTransport, PermissionAnswer,
    PermissionMode, ResolvedBy, SettingSource, SlashCommand, StopReason, ToolStatus, WireError,
};
use serde_json::{Value, json};

use crate::replay::{Replay, USER, adapter, events, kinds, line, ready, setup, update, writes};

#[test]
fn the_handshake_asks_for_nothing_it_does_not_need() {
    let servers = vec![
        McpServer {
            name: "files".into(),
            transport: McpTransport::Stdio {
                command: "/bin/mcp".into(),
                args: vec!["-v".into()],
                env: [("KEY", "secret")].into_iter().collect(),
            },
        },
        McpServer {
            name: "web".into(),
            transport: McpTransport::Http {
                url: "http://127.0.0.1:1/mcp".into(),
                headers: [("Authorization", "secret")].into_iter().collect(),
            },
        },
    ];
    let config =
        AgentSessionConfig { cwd: Some("/work".into()), mcp_servers: servers, ..AgentSessionConfig::new("agent") };
    let mut replay = Replay::new(acp::make(setup(config)).expect("an adapter"));
    let capable = json!({"protocolVersion": 1, "agentCapabilities": {"mcpCapabilities": {"http": true}}});
    replay.stdout(&line(&json!({"jsonrpc": "2.0", "id": 1, "result": capable})));
    let written = writes(&replay.actions);
    let capabilities = &written[0]["params"]["clientCapabilities"];
    assert_eq!(written[0]["params"]["protocolVersion"], 1);
    assert_eq!(written[0]["params"]["clientInfo"]["name"], "agent-proxy");
    for absent in ["/fs/readTextFile", "/fs/writeTextFile", "/terminal"] {
        assert_ne!(capabilities.pointer(absent), Some(&json!(true)), "{absent}");
    }
    assert_eq!(
        written[1]["params"],
        json!({"cwd": "/work", "mcpServers": [
            {"name": "files", "command": "/bin/mcp", "args": ["-v"], "env": [{"name": "KEY", "value": "secret"}]},
            {"type": "http", "name": "web", "url": "http://127.0.0.1:1/mcp",
             "headers": [{"name": "Authorization", "value": "secret"}]},
        ]})
    );
}

#[test]
fn what_the_protocol_cannot_do_is_refused() {
    for config in [
        AgentSessionConfig { tools: vec!["Bash".into()], ..AgentSessionConfig::new("agent") },
        AgentSessionConfig { ephemeral: true, ..AgentSessionConfig::new("agent") },
    ] {
        let mut replay = Replay::new(acp::make(setup(config)).expect("an adapter"));
        replay.stdout(&line(&json!({"jsonrpc": "2.0", "id": 1, "result": {"protocolVersion": 1}})));
        assert!(matches!(replay.actions.last(), Some(Action::Fail(WireError::Unsupported { .. }))));
    }
    let server = McpServer {
        name: "web".into(),
        transport: McpTransport::Http { url: "http://127.0.0.1:1/".into(), headers: EnvVars::default() },
    };
    let config = AgentSessionConfig { mcp_servers: vec![server], ..AgentSessionConfig::new("agent") };
    let mut replay = Replay::new(acp::make(setup(config)).expect("an adapter"));
    replay.stdout(&line(&json!({"jsonrpc": "2.0", "id": 1, "result": {"protocolVersion": 1}})));
    assert!(matches!(replay.actions.last(), Some(Action::Fail(WireError::Unsupported { .. }))));
    let mut out = Vec::new();
    let mut adapter = ready().adapter;
    assert!(adapter.steer(&"left".into(), &mut out).is_err(), "no turn runs");
    adapter.prompt(&"go".into(), &mut out).expect("ready");
    assert_eq!(adapter.prompt(&"again".into(), &mut out), Err(WireError::Busy));
    let mut setup = setup(AgentSessionConfig::new("agent"));
    setup.protocol_config = json!({});
    let mut adapter = acp::make(setup).expect("an adapter");
    assert!(matches!(adapter.steer(&"left".into(), &mut out), Err(WireError::Unsupported { .. })));
    assert!(matches!(adapter.prompt(&"go".into(), &mut out), Err(WireError::Unsupported { .. })), "not ready");
}

#[test]
fn a_login_that_is_missing_is_named() {
    let mut replay = Replay::new(adapter());
    replay.stdout(&line(&json!({"jsonrpc": "2.0", "id": 1, "result": {"protocolVersion": 1}})));
    let error = json!({"code": -32000, "message": "Authentication required"});
    replay.stdout(&line(&json!({"jsonrpc": "2.0", "id": 2, "error": error})));
    let Some(Action::Fail(error)) = replay.actions.last() else { panic!("{:?}", replay.actions) };
    let is_named = error.to_string().contains("not logged in") && error.to_string().contains("log it in");
    assert!(is_named && matches!(error, WireError::AgentRefused { .. }), "{error}");
    replay.clear();
    replay.stdout(&line(&json!({"jsonrpc": "2.0", "id": 2, "result": {"sessionId": "s"}})));
    assert_eq!(kinds(&replay.actions), ["log"], "after a failure nothing is believed");
}

#[test]
fn an_error_ends_the_turn() {
    let mut replay = ready();
    replay.adapter.prompt(&"go".into(), &mut replay.actions).expect("ready");
    replay.clear();
    let error = json!({"code": -32603, "message": "Internal error", "data": {"details": "no model"}});
    replay.stdout(&line(&json!({"jsonrpc": "2.0", "id": 3, "error": error})));
    let message = "Internal error: no model".to_owned();
    let expected = Event::error("-32603", message, true);
    assert_eq!(replay.actions, [Action::Event(expected), Action::TurnEnded]);
    replay.adapter.prompt(&"again".into(), &mut replay.actions).expect("ready again");
    replay.clear();
    replay.stdout(&line(&json!({"jsonrpc": "2.0", "id": 4, "error": "gone wrong"})));
    assert!(matches!(&events(&replay.actions)[..], [Event::Error { message, .. }] if message.contains("gone wrong")));
    replay.adapter.prompt(&"again".into(), &mut replay.actions).expect("ready again");
    replay.clear();
    replay.stdout(&line(&json!({"jsonrpc": "2.0", "id": 5, "result": {"stopReason": "bored"}})));
    let expected = Event::Complete { stop_reason: StopReason::Other("bored".into()), usage: None };
    assert_eq!(replay.actions, [Action::Event(expected), Action::TurnEnded]);
}

#[test]
fn the_end_of_the_agent_ends_what_is_open() {
    let mut replay = ready();
    replay.adapter.prompt(&"go".into(), &mut replay.actions).expect("ready");
    replay.stdout(&permission(&json!(7)));
    replay.clear();
    // Half a line, which is a whole message.
    let last = update(&json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "bye"}}));
    replay.stdout(last.trim_ascii_end());
    let actions = replay.finish();
    assert_eq!(kinds(&actions), ["stream:text", "permission:resolved", "stream:tool_end", "stream:error"]);
    assert_eq!(actions.last(), Some(&Action::TurnEnded));
    assert_eq!(writes(&actions), Vec::<Value>::new(), "nobody reads any more");

    let actions = Replay::new(adapter()).finish();
    assert!(matches!(actions.last(), Some(Action::Fail(WireError::AgentDied { .. }))), "{actions:?}");
    assert_eq!(ready().finish(), [], "nothing is open");
}

fn permission(id: &Value) -> Vec<u8> {
    let params = json!({
        "sessionId": "s", "toolCall": {"toolCallId": "c"},
        "options": [{"optionId": "yes", "name": "Yes", "kind": "allow_always"}],
    });
    line(&json!({"jsonrpc": "2.0", "id": id, "method": "session/request_permission", "params": params}))
}

#[test]
fn ids_of_both_directions_do_not_mix() {
    let mut replay = ready();
    replay.adapter.prompt(&"go".into(), &mut replay.actions).expect("ready");
    replay.clear();
    // The number of our prompt, the same as text, and once more.
    for id in [json!(3), json!("3"), json!(3)] {
        replay.stdout(&permission(&id));
    }
    let asked = ["stream:tool_start", "permission:requested", "permission:requested", "permission:requested"];
    assert_eq!(kinds(&replay.actions), asked);
    replay.clear();
    // A policy allows once, and there is no such option.
    let by = ResolvedBy::Mode(PermissionMode::Allow);
    let by_mode = replay.adapter.permission("permission-2", &PermissionAnswer::Allow, by, &mut replay.actions);
    assert!(matches!(by_mode, Err(WireError::UnknownOption { .. })));
    replay.adapter.permission("permission-2", &PermissionAnswer::Allow, USER, &mut replay.actions).expect("open");
    let written = writes(&replay.actions);
    assert_eq!(written[0]["id"], "3");
    assert_eq!(written[0]["result"]["outcome"], json!({"outcome": "selected", "optionId": "yes"}), "there is no other");
    let denied = replay.adapter.permission("permission-1", &PermissionAnswer::Deny, USER, &mut replay.actions);
    assert!(matches!(denied, Err(WireError::UnknownOption { .. })));
    replay.clear();
    replay.stdout(&line(&json!({"jsonrpc": "2.0", "id": 3, "result": {"stopReason": "end_turn"}})));
    assert_eq!(
        kinds(&replay.actions),
        ["permission:resolved", "permission:resolved", "stream:tool_end", "stream:complete"]
    );
}

#[test]
fn requests_that_are_not_for_us_are_refused() {
    let mut replay = ready();
    replay.stdout(&line(
        &json!({"jsonrpc": "2.0", "id": "a", "method": "fs/read_text_file", "params": {"path": "/etc/passwd"}}),
    ));
    replay.stdout(&line(&json!({"jsonrpc": "2.0", "id": 1.5, "method": "terminal/create", "params": {}})));
    replay.stdout(&line(&json!({"jsonrpc": "2.0", "id": 9, "method": "session/request_permission", "params": {}})));
    let written = writes(&replay.actions);
    let codes: Vec<_> =
        written.iter().map(|message| (message["id"].clone(), message["error"]["code"].clone())).collect();
    assert_eq!(codes, [(json!("a"), json!(-32601)), (json!(1.5), json!(-32601)), (json!(9), json!(-32602))]);
    assert_eq!(kinds(&replay.actions), ["log"; 3]);
}

/// Of what is allowed, a user sees all: some agents tell it before they ask, or beside the input.
#[test]
fn a_request_has_all_that_the_agent_told_of_its_call() {
    let mut replay = ready();
    replay.adapter.prompt(&"go".into(), &mut replay.actions).expect("ready");
    let diff = |text: &str| json!([{"type": "diff", "path": "/x", "newText": text}]);
    let note = json!([{"type": "content", "content": {"type": "text", "text": "why"}}]);
    let long = "x".repeat(70_000);
    for (id, told, asked, input) in [
        ("a", json!({"rawInput": {"content": "all"}}), json!({}), json!({"content": "all"})),
        (
            "b",
            json!({"rawInput": {"path": "/x"}, "content": diff("all")}),
            json!({}),
            json!({"input": {"path": "/x"}, "content": diff("all")}),
        ),
        ("c", json!({}), json!({"rawInput": {"new": "all"}, "content": diff("all")}), json!({"new": "all"})),
        (
            "d",
            json!({}),
            json!({"rawInput": {"path": "/x"}, "content": diff("all")}),
            json!({"input": {"path": "/x"}, "content": diff("all")}),
        ),
        (
            "e",
            json!({"rawInput": {"path": "/x"}}),
            json!({"content": note}),
            json!({"input": {"path": "/x"}, "content": note}),
        ),
        ("f", json!({}), json!({"content": diff("all")}), diff("all")),
        (
            "g",
            json!({"rawInput": {"content": long}}),
            json!({}),
            json!("left out: 70014 bytes; the tool call's event has them"),
        ),
    ] {
        let with = |mut fields: serde_json::Value, more: serde_json::Value| {
            fields.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
            fields
        };
        let call = json!({"sessionUpdate": "tool_call", "toolCallId": id, "title": "write"});
        replay.stdout(&update(&with(call, told)));
        replay.clear();
        let options = json!([{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]);
        let params = json!({"sessionId": "s", "toolCall": with(json!({"toolCallId": id}), asked), "options": options});
        replay.stdout(&line(
            &json!({"jsonrpc": "2.0", "id": id, "method": "session/request_permission", "params": params}),
        ));
        let events = events(&replay.actions);
        let request = events.iter().find_map(|event| match event {
            Event::PermissionRequested(request) => Some(request),
            _ => None,
        });
        assert_eq!(request.expect("it asks").input.value(), input, "{id}");
    }
}

#[test]
fn what_is_not_understood_is_logged() {
    let mut replay = ready();
    for text in [
        "plain words\n",
        "[1,2]\n",
        "{}\n",
        "{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32700,\"message\":\"Parse error\"}}\n",
        "{\"jsonrpc\":\"2.0\",\"id\":99,\"result\":{}}\n",
        "{\"jsonrpc\":\"2.0\",\"id\":\"1\",\"result\":{}}\n",
        "{\"jsonrpc\":\"2.0\",\"method\":\"vendor/thing\",\"params\":{}}\n",
    ] {
        replay.clear();
        replay.stdout(text.as_bytes());
        assert_eq!(events(&replay.actions), [Event::Log { stream: "stdout".into(), text: text.into() }]);
    }
    replay.clear();
    replay.stdout(&update(&json!({"sessionUpdate": "something_new"})));
    let other = update(&json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "x"}}));
    replay.stdout(&String::from_utf8(other).expect("text").replace("\"s\"", "\"another\"").into_bytes());
    assert_eq!(kinds(&replay.actions), ["log", "log"]);
    replay.clear();
    replay.stdout(b"\n  \r\n");
    replay.stdout(&line(&json!({"jsonrpc": "2.0", "method": "_vendor/thing", "params": {}})));
    assert_eq!(replay.actions, [], "blank lines and extensions are nothing");
    replay.adapter.stderr(b"warning\n", &mut replay.actions);
    assert_eq!(events(&replay.actions), [Event::Log { stream: "stderr".into(), text: "warning\n".into() }]);
}

#[test]
fn tool_calls_begin_change_and_end() {
    let mut replay = ready();
    replay.stdout(&update(
        &json!({"sessionUpdate": "tool_call", "toolCallId": "a", "title": "look", "status": "completed",
        "content": [{"type": "diff", "path": "/x", "newText": "y"}]}),
    ));
    replay.stdout(&update(&json!({"sessionUpdate": "tool_call_update", "toolCallId": "b", "kind": "edit"})));
    replay.stdout(&update(
        &json!({"sessionUpdate": "tool_call", "toolCallId": "b", "title": "again", "status": "failed"}),
    ));
    replay.stdout(&update(&json!({"sessionUpdate": "tool_call_update", "toolCallId": "b", "_meta": {"x": 1}})));
    let events = events(&replay.actions);
    assert_eq!(
        kinds(&replay.actions),
        ["stream:tool_start", "stream:diff", "stream:tool_end", "stream:tool_start", "stream:tool_end"]
    );
    let Event::Diff(diff) = &events[1] else { panic!("{events:?}") };
    assert_eq!((diff.tool_call_id.as_str(), diff.path.as_str(), diff.change), ("a", "/x", Some(FileChange::Created)));
    assert_eq!(diff.hunks[0].new_text.as_deref(), Some("y"));
    let Event::ToolEnd(end) = &events[2] else { panic!("{events:?}") };
    assert_eq!((end.status, end.output.as_str()), (ToolStatus::Completed, "changed /x\n"));
    let Event::ToolStart(start) = &events[3] else { panic!("{events:?}") };
    assert_eq!((start.title.as_str(), start.status), ("edit", ToolStatus::InProgress));
}

/// Chunks that the fast path does not take lead to the same events.
#[test]
fn every_shape_of_a_chunk_is_text() {
    let mut replay = ready();
    for (content, text) in [
        (json!({"type": "text", "text": "a \"quoted\" \u{1F600}\n"}), "a \"quoted\" \u{1F600}\n"),
        (json!({"type": "text", "text": "x", "annotations": {"audience": ["user"]}, "_meta": {}}), "x"),
        (json!({"type": "resource_link", "name": "n", "uri": "file:///x"}), "file:///x"),
        (json!({"type": "audio", "data": "AA==", "mimeType": "audio/wav"}), "[audio]"),
    ] {
        for id in [None, Some("m1")] {
            let chunk = json!({"messageId": id, "sessionUpdate": "agent_message_chunk", "content": content});
            replay.clear();
            replay.stdout(&update(&chunk));
            assert_eq!(events(&replay.actions), [Event::Text { text: text.into() }], "{chunk}");
        }
    }
}

/// What people look at: settings, commands, titles, pictures, and output as it grows.
#[test]
fn what_people_look_at_has_events_of_its_own() {
    let mut replay = ready();
    let hint = json!({"hint": "files"});
    let commands =
        json!([{"name": "/review", "description": "Reviews", "input": hint}, {"name": "x", "description": ""}]);
    replay.stdout(&update(&json!({"sessionUpdate": "available_commands_update", "availableCommands": commands})));
    replay.stdout(&update(&json!({"sessionUpdate": "session_info_update", "title": "Login\npage"})));
    let image = json!({"type": "image", "data": "AA==", "mimeType": "image/png"});
    replay.stdout(&update(&json!({"sessionUpdate": "agent_message_chunk", "content": image})));
    let command = |name: &str, description: Option<&str>, hint: Option<&str>| SlashCommand {
        name: name.into(),
        description: description.map(str::to_owned),
        argument_hint: hint.map(str::to_owned),
    };
    let commands = vec![command("review", Some("Reviews"), Some("files")), command("x", None, None)];
    let picture = ImageOutput {
        mime_type: "image/png".into(),
        data: Some("AA==".into()),
        bytes: 1,
        tool_call_id: None,
        parent: None,
    };
    let expected = [
        Event::SessionCommands { commands },
        Event::SessionStatus { status: "title".into(), detail: "Login\npage".into() },
        Event::SessionTitle { title: "Login …".into(), by: SettingSource::Agent },
        Event::Image(Box::new(picture)),
    ];
    assert_eq!(events(&replay.actions), expected);
}

/// An agent that repeats all with each line of output is not repeated.
#[test]
fn output_as_it_grows_is_told_at_intervals_and_nothing_beside_it() {
    let mut replay = ready();
    let all = |output: &str| {
        update(
            &json!({"sessionUpdate": "tool_call_update", "toolCallId": "a", "title": "make", "status": "in_progress",
            "kind": "execute", "rawInput": {"command": "make"},
            "content": [{"type": "content", "content": {"type": "text", "text": output}}]}),
        )
    };
    replay.stdout(&all("1"));
    for output in ["12", "123"] {
        replay.feed(&all(output));
    }
    replay.stdout(&all("1234"));
    let told: Vec<_> = events(&replay.actions)
        .into_iter()
        .filter_map(|event| match event {
            Event::ToolUpdate(update) => Some((update.title, update.status, update.input, update.output)),
            _ => None,
        })
        .collect();
    assert_eq!(told.last(), Some(&(None, None, None, Some("1234".to_owned()))), "{told:?}");
    assert!(told.len() <= 3, "{told:?}");
}
