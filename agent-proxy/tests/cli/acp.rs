//! Editors on the streams of `agent-proxy acp`, at a daemon: what is left of their sessions, and over its restarts.

use std::{
    io::Write as _,
    process::{ChildStdin, Stdio},
};

use ipc_protocol::Event;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::harness::{Daemon, PROGRAM, Place, Running, gone, process};

/// Editor of the fake agent, which keeps its conversations.
struct Editor {
    server: Running,
    input: ChildStdin,
    last: u64,
    updates: Vec<Value>,
}

impl Editor {
    fn new(place: &Place) -> Self {
        let store = place.directory.join("store");
        let store = store.to_str().expect("text");
        let mut command = place.command(&["acp", "--agent", "acp", "--", PROGRAM, "fake-agent", "--store", store]);
        command.stdin(Stdio::piped());
        let mut server = Running::new(command);
        let input = server.stdin();
        let mut editor = Self { server, input, last: 0, updates: Vec::new() };
        editor.call("initialize", &json!({ "protocolVersion": 1 }));
        editor
    }

    fn begin(&mut self, method: &str, params: &Value) -> u64 {
        self.last += 1;
        let id = self.last;
        writeln!(self.input, "{}", json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))
            .expect("written");
        id
    }

    fn next(&mut self) -> Value {
        let line = self.server.line().expect("a message");
        let message: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        if message["method"] == "session/update" {
            self.updates.push(message["params"]["update"].clone());
        }
        message
    }

    #[track_caller]
    fn answer(&mut self, id: u64) -> Value {
        loop {
            let message = self.next();
            if message["id"] == id {
                assert_eq!(message["error"], Value::Null, "{message}");
                return message["result"].clone();
            }
        }
    }

    #[track_caller]
    fn call(&mut self, method: &str, params: &Value) -> Value {
        let id = self.begin(method, params);
        self.answer(id)
    }

    /// Starts a session; returns its id.
    #[track_caller]
    fn start(&mut self) -> String {
        let opened = self.call("session/new", &json!({ "cwd": "/", "mcpServers": [] }));
        opened["sessionId"].as_str().expect("an id").to_owned()
    }

    fn prompt(&mut self, session: &str, script: &str) -> u64 {
        let prompt = json!([{ "type": "text", "text": script }]);
        self.begin("session/prompt", &json!({ "sessionId": session, "prompt": prompt }))
    }

    #[track_caller]
    fn turn(&mut self, session: &str, script: &str) {
        let id = self.prompt(session, script);
        assert_eq!(self.answer(id)["stopReason"], "end_turn");
    }

    fn load(&mut self, session: &str) {
        self.updates.clear();
        self.call("session/load", &json!({ "sessionId": session, "cwd": "/", "mcpServers": [] }));
    }

    fn text(&self, kind: &str) -> String {
        let chunks = self.updates.iter().filter(|update| update["sessionUpdate"] == kind);
        chunks.filter_map(|update| update["content"]["text"].as_str()).collect()
    }

    /// Waits until the agent has printed a line that begins so, and returns the rest of it.
    #[track_caller]
    fn printed(&mut self, begin: &str) -> String {
        loop {
            let text = self.text("agent_message_chunk");
            if let Some(line) = text.lines().find_map(|line| line.strip_prefix(begin)) {
                return line.to_owned();
            }
            self.next();
        }
    }

    fn leave(self) {
        drop(self.input);
        self.server.end().exits(0);
    }
}

fn state(place: &Place) -> String {
    place.directory.join("state").display().to_string()
}

/// Waits until a session is suspended.
#[track_caller]
fn suspended(daemon: &Daemon<'_>, session: &str) {
    let mut events = daemon.spawn(&["events", session, "--follow", "--json"]);
    events.until(|envelope| matches!(envelope.event, Event::SessionSuspended { .. }).then_some(()));
    events.signal(Signal::SIGKILL);
    events.end();
}

#[test]
fn a_kill_of_the_program_leaves_no_session_that_works() {
    let place = Place::new();
    let daemon = place.serve_with(&["--state-dir", &state(&place)]);
    let mut editor = Editor::new(&place);
    let (idle, busy) = (editor.start(), editor.start());
    editor.turn(&idle, "say plum");
    editor.prompt(&busy, "daemon exec sleep 3079\nwait");
    let pid = editor.printed("daemon ").parse().expect("a pid");
    let orphan = process(pid);
    editor.server.signal(Signal::SIGKILL);
    suspended(&daemon, &idle);
    suspended(&daemon, &busy);
    gone(orphan);
    editor.server.end();

    // The next one has its conversation.
    let mut editor = Editor::new(&place);
    editor.load(&idle);
    assert_eq!(editor.text("agent_message_chunk"), "plum\n");
    editor.leave();
}

#[test]
fn a_session_is_loaded_with_its_turns_after_a_restart_of_the_daemon() {
    let place = Place::new();
    let directory = state(&place);
    let flags = ["--state-dir", directory.as_str()];
    let daemon = place.serve_with(&flags);
    let mut editor = Editor::new(&place);
    let session = editor.start();
    editor.turn(&session, "say plum");
    editor.turn(&session, "say pear");
    editor.leave();
    daemon.end(Signal::SIGTERM).exits(0);
    let daemon = place.serve_with(&flags);
    let mut editor = Editor::new(&place);
    editor.load(&session);
    assert_eq!(editor.text("user_message_chunk"), "say plumsay pear");
    assert_eq!(editor.text("agent_message_chunk"), "plum\npear\n");
    editor.turn(&session, "history");
    assert_eq!(editor.text("agent_message_chunk"), "plum\npear\n2 before\n");
    // The daemon that comes next is told that it is held, and what it says is heard.
    daemon.end(Signal::SIGTERM).exits(0);
    let daemon = place.serve_with(&flags);
    editor.turn(&session, "say fig");
    assert_eq!(editor.printed("fig"), "");
    let mut events = daemon.spawn(&["events", &session, "--follow", "--json"]);
    events.until(|envelope| matches!(&envelope.event, Event::Text { text } if text == "fig\n").then_some(()));
    editor.server.signal(Signal::SIGKILL);
    events.until(|envelope| matches!(envelope.event, Event::SessionSuspended { .. }).then_some(()));
    editor.server.end();
    events.signal(Signal::SIGKILL);
    events.end();
}
