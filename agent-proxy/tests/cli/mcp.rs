//! Clients of the Model Context Protocol, over standard input and output and over HTTP.

use std::{
    io::Write as _,
    process::{ChildStdin, Command, Stdio},
};

use serde_json::{Value, json};

use crate::{
    harness::{PROGRAM, Place, Running, gone, process},
    network::{bearer, send, token},
};

/// Client on the streams of `agent-proxy mcp`.
struct Client {
    server: Running,
    input: ChildStdin,
    last: u64,
    /// Notifications that came while a response was waited for.
    notifications: Vec<Value>,
}

impl Client {
    /// Starts the server, and begins.
    fn new(place: &Place, flags: &[&str]) -> Self {
        Self::of(place.command(&[&["mcp"], flags].concat()))
    }

    /// Starts a server by this command, and begins.
    fn of(mut command: Command) -> Self {
        let mut server = Running::new({
            command.stdin(Stdio::piped());
            command
        });
        let input = server.stdin();
        let mut client = Self { server, input, last: 0, notifications: Vec::new() };
        let began = client.request("initialize", &initialize());
        assert_eq!(began["result"]["protocolVersion"], "2025-11-25", "{began}");
        client.write(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        client
    }

    fn write(&mut self, message: &Value) {
        writeln!(self.input, "{message}").expect("written");
    }

    /// Sends a request without waiting for its response; returns its id.
    fn begin(&mut self, method: &str, params: &Value) -> u64 {
        self.last += 1;
        let id = self.last;
        self.write(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        id
    }

    fn request(&mut self, method: &str, params: &Value) -> Value {
        let id = self.begin(method, params);
        loop {
            let message = self.next();
            if message["id"] == id {
                return message;
            }
            self.notifications.push(message);
        }
    }

    fn next(&mut self) -> Value {
        let line = self.server.line().expect("a message");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    /// Calls a tool that succeeds; returns its result's structure.
    #[track_caller]
    fn call(&mut self, tool: &str, arguments: &Value) -> Value {
        let result = self.request("tools/call", &call(tool, arguments))["result"].clone();
        assert_eq!(result["isError"], false, "{result}");
        assert!(result["content"][0]["text"].as_str().is_some_and(|text| !text.is_empty()), "{result}");
        result["structuredContent"].clone()
    }

    /// Calls a tool that fails; returns what its client's model reads.
    #[track_caller]
    fn fails(&mut self, tool: &str, arguments: &Value) -> String {
        let result = self.request("tools/call", &call(tool, arguments))["result"].clone();
        assert_eq!(result["isError"], true, "{result}");
        result["content"][0]["text"].as_str().expect("text").to_owned()
    }

    /// Starts a session of the fake agent; returns its id.
    fn start(&mut self) -> String {
        let started = self.call("coding_agent_start_session", &fake(None));
        started["session_id"].as_str().expect("an id").to_owned()
    }

    /// Leaves, and sees the server's end.
    fn leave(self) {
        drop(self.input);
        self.server.end().exits(0);
    }
}

fn initialize() -> Value {
    json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" } })
}

fn call(tool: &str, arguments: &Value) -> Value {
    json!({ "name": tool, "arguments": arguments, "_meta": { "progressToken": "here" } })
}

fn fake(prompt: Option<&str>) -> Value {
    let command = [PROGRAM, "fake-agent"];
    match prompt {
        Some(prompt) => json!({ "agent_type": "acp", "command": command, "initial_prompt": prompt }),
        None => json!({ "agent_type": "acp", "command": command }),
    }
}

#[test]
fn a_client_without_a_daemon_has_an_agent_work_and_reads_its_receipt() {
    let place = Place::new();
    let mut client = Client::new(&place, &["--dotted-names"]);
    let tools = client.request("tools/list", &json!({}))["result"]["tools"].clone();
    let names: Vec<_> = tools.as_array().expect("tools").iter().filter_map(|tool| tool["name"].as_str()).collect();
    for name in ["start_session", "send_message", "steer", "get_status", "abort", "kill_session", "answer_permission"] {
        assert!(names.contains(&format!("coding_agent.{name}").as_str()), "{name}: {names:?}");
    }
    let first = client.call("coding_agent.start_session", &fake(Some("tool Read\nsay hello")));
    assert_eq!(
        (&first["text"], &first["status"], &first["tool_calls"]),
        (&json!("hello\n"), &json!("completed"), &json!(1))
    );
    let told =
        |message: &Value| message["method"] == "notifications/progress" && message["params"]["progressToken"] == "here";
    assert!(client.notifications.iter().any(told), "{:?}", client.notifications);
    let id = json!(first["session_id"]);
    // By its other name, and a part of its id.
    let said =
        client.call("coding_agent_send_message", &json!({ "session_id": id, "message": "setsid exec sleep 3071" }));
    let pid = said["text"].as_str().and_then(|text| text.trim().strip_prefix("setsid ")?.parse().ok()).expect("a pid");
    let orphan = process(pid);
    let listed = client.call("coding_agent_list_processes", &json!({ "session_id": id }));
    assert!(
        listed["processes"].as_array().expect("a list").iter().any(|process| process["id"]["pid"] == pid),
        "{listed}"
    );
    let events = client.call(
        "coding_agent_read_events",
        &json!({ "session_id": id, "from": first["next_offset"], "types": "stream:text" }),
    );
    assert_eq!(events["events"][0]["payload"]["text"], said["text"], "{events}");
    let uri = format!("agent-proxy://sessions/{}/transcript", id.as_str().expect("an id"));
    let read = client.request("resources/read", &json!({ "uri": uri }));
    assert!(
        read["result"]["contents"][0]["text"].as_str().is_some_and(|text| text.contains("Assistant: hello")),
        "{read}"
    );
    let killed = client.call("coding_agent_kill_session", &json!({ "session_id": id, "grace_ms": 2000 }));
    assert_eq!(killed["receipt"]["survivors"], json!([]));
    assert!(killed["receipt"]["processes"].as_array().is_some_and(|all| all.len() == 2), "{killed}");
    gone(orphan);
    let status = client.call("coding_agent_get_status", &json!({ "session_id": id }));
    assert_eq!(status["status"], "ended");
    client.leave();
}

#[test]
fn what_makes_no_sense_is_an_error_that_the_model_reads() {
    let place = Place::new();
    let mut client = Client::new(&place, &[]);
    let unknown = client.request("tools/call", &call("coding_agent_stop", &json!({})));
    assert!(
        unknown["error"]["message"].as_str().is_some_and(|why| why.contains("coding_agent_kill_session")),
        "{unknown}"
    );
    for (tool, arguments, wanted) in [
        ("start_session", json!({}), "agent_type"),
        ("start_session", json!({ "agent": "pi" }), "unknown field `agent`"),
        ("start_session", json!({ "agent_type": "nobody" }), "claude-code"),
        ("send_message", json!({ "session_id": "s", "message": 3 }), "in message: invalid type"),
        ("kill_session", json!({ "session_id": "../models" }), "models"),
        ("answer_permission", json!({ "session_id": "s", "permission_id": "", "answer": "allow" }), "permission_id"),
        (
            "answer_permission",
            json!({ "session_id": "s", "permission_id": "p", "answer": "allow", "message": "no" }),
            "`deny`",
        ),
    ] {
        let why = client.fails(&format!("coding_agent_{tool}"), &arguments);
        assert!(why.contains(wanted), "{tool} {arguments}: {why}");
    }
    // The server goes on.
    assert!(client.request("ping", &json!({}))["result"].is_object());
    client.leave();
}

#[test]
fn a_turn_that_needs_a_permission_returns_and_goes_on_with_the_answer() {
    let place = Place::new();
    let mut client = Client::new(&place, &[]);
    let asked = client.call("coding_agent_start_session", &fake(Some("ask to write\nsay done")));
    assert_eq!(asked["status"], "waitingForPermission");
    let permission = &asked["permissions"][0];
    assert_eq!(permission["title"], "to write", "{permission}");
    let id = &asked["session_id"];
    let open = client.call("coding_agent_list_permissions", &json!({}));
    assert_eq!(open["permissions"].as_array().map(Vec::len), Some(1));
    client.call(
        "coding_agent_answer_permission",
        &json!({ "session_id": id, "permission_id": permission["id"], "answer": "allow" }),
    );
    let ended = client
        .call("coding_agent_wait_for_turn", &json!({ "session_id": id, "from": asked["next_offset"], "turn": 1 }));
    assert_eq!(
        (&ended["status"], ended["text"].as_str().is_some_and(|text| text.ends_with("done\n"))),
        (&json!("completed"), true),
        "{ended}"
    );
    // A turn that has ended is told again, and one that was never is none.
    let again = client.call("coding_agent_wait_for_turn", &json!({ "session_id": id, "turn": 1 }));
    assert_eq!((&again["status"], &again["stop_reason"]), (&json!("completed"), &ended["stop_reason"]), "{again}");
    assert!(again["text"].as_str().is_some_and(|text| text.ends_with("done\n")), "{again}");
    let never = client.fails("coding_agent_wait_for_turn", &json!({ "session_id": id, "turn": 9 }));
    assert!(never.contains("the last turn so far is 1"), "{never}");
    client.leave();
}

#[test]
fn a_call_that_is_cancelled_has_its_turn_aborted() {
    let place = Place::new();
    let mut client = Client::new(&place, &[]);
    let id = client.start();
    let waiting = client.begin(
        "tools/call",
        &call("coding_agent_send_message", &json!({ "session_id": id, "message": "say begun\nwait" })),
    );
    // It runs.
    while client.next()["params"]["message"] != "begun" {}
    client.write(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": waiting, "reason": "no more" } }));
    let ended = client.call("coding_agent_wait_for_turn", &json!({ "session_id": id, "from": 0, "turn": 1 }));
    assert_eq!((&ended["status"], &ended["stop_reason"]), (&json!("completed"), &json!("cancelled")), "{ended}");
    client.leave();
}

#[test]
fn a_call_that_is_cancelled_while_its_message_waits_has_it_dropped_and_no_other_turn_aborted() {
    let place = Place::new();
    let mut client = Client::new(&place, &[]);
    let id = client.start();
    let send = |message: &str| call("coding_agent_send_message", &json!({ "session_id": id, "message": message }));
    let running = client.begin("tools/call", &send("say begun\nwait"));
    while client.next()["params"]["message"] != "begun" {}
    let waiting = client.begin("tools/call", &send("say never"));
    let queued =
        |client: &mut Client| client.call("coding_agent_get_status", &json!({ "session_id": id }))["queued"].clone();
    while queued(&mut client).as_array().is_none_or(Vec::is_empty) {}
    client.write(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": waiting, "reason": "no more" } }));
    while !queued(&mut client).as_array().is_none_or(Vec::is_empty) {}
    let status = client.call("coding_agent_get_status", &json!({ "session_id": id }));
    assert_eq!(status["state"]["busy"]["turn"], 1, "{status}");
    client.call("coding_agent_abort", &json!({ "session_id": id }));
    let ended = client.call("coding_agent_wait_for_turn", &json!({ "session_id": id, "from": 0, "turn": 1 }));
    assert_eq!((&ended["status"], &ended["stop_reason"]), (&json!("completed"), &json!("cancelled")), "{ended}");
    let next = client.request("tools/call", &send("say on"));
    assert_eq!(next["result"]["structuredContent"]["text"], "on\n", "{next}");
    while !client.notifications.iter().any(|message| message["id"] == running) {
        let message = client.next();
        client.notifications.push(message);
    }
    client.leave();
}

#[test]
fn with_a_daemon_the_sessions_are_its_own_and_live_on() {
    let place = Place::new();
    let daemon = place.serve();
    let mut client = Client::new(&place, &[]);
    let id = client.start();
    client.leave();
    let sessions = daemon.run(&["sessions", "--json"]).exits(0).json();
    assert_eq!(sessions[0]["sessionId"], id.as_str());
    // Whoever comes next goes on with it.
    let mut client = Client::new(&place, &[]);
    let said = client.call("coding_agent_send_message", &json!({ "session_id": &id[..13], "message": "say again" }));
    assert_eq!(said["text"], "again\n");
    client.leave();
}

#[test]
fn a_client_inside_a_session_starts_one_that_is_deeper_and_no_deeper_than_allowed() {
    let place = Place::new();
    for (depth, wanted) in [("1", 2), ("2", 3)] {
        let mut server = place.command(&["mcp"]);
        server.env("AGENT_PROXY_DEPTH", depth);
        let mut client = Client::of(server);
        let id = client.start();
        assert_eq!(client.call("coding_agent_get_status", &json!({ "session_id": id }))["depth"], wanted);
        client.leave();
    }
    let mut server = place.command(&["mcp"]);
    server.env("AGENT_PROXY_DEPTH", "3");
    let mut client = Client::of(server);
    let why = client.fails("coding_agent_start_session", &fake(None));
    assert!(why.contains("nest") || why.contains("deep"), "{why}");
    client.leave();
}

#[test]
fn over_http_a_client_needs_a_token_and_has_no_more_than_its_role() {
    let place = Place::new();
    let (daemon, address) = place.serve_network(&[]);
    let post = |headers: &[String], message: &Value| {
        let more =
            ["Content-Type: application/json".to_owned(), "Accept: application/json, text/event-stream".to_owned()];
        send(address, "POST /mcp", &[headers, &more].concat(), &message.to_string())
    };
    let begin = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": initialize() });
    assert_eq!(post(&[], &begin).status, 401);
    let reader = bearer(&token(&daemon, &["viewer", "--role", "read"]));
    let foreign = [&reader[..], &["Origin: https://evil.example".to_owned()]].concat();
    assert_eq!(post(&foreign, &begin).status, 403);
    let began = post(&reader, &begin);
    assert_eq!(began.status, 200, "{}", began.head);
    let session =
        began.head.lines().find_map(|line| line.strip_prefix("mcp-session-id: ")).expect("a session").to_owned();
    let with_session = [&reader[..], &[format!("Mcp-Session-Id: {session}")]].concat();
    assert_eq!(post(&with_session, &json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).status, 202);
    let calls = |tool: &str, arguments: &Value| {
        let message = json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": { "name": tool, "arguments": arguments } });
        let answer = post(&with_session, &message);
        assert_eq!(answer.status, 200, "{}", answer.head);
        answer.text
    };
    assert!(calls("coding_agent_list_sessions", &json!({})).contains(r#""isError":false"#));
    let refused = calls("coding_agent_start_session", &fake(None));
    assert!(refused.contains(r#""isError":true"#) && refused.contains("needs the role operate"), "{refused}");
    assert_eq!(daemon.run(&["sessions", "--json"]).exits(0).json(), json!([]));
}
