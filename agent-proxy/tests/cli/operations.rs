//! What is asked of an agent beside prompts.

use ipc_protocol::{Event, ResolvedBy};

use crate::documented::documented;
use crate::harness::{PROGRAM, Place};

/// Flags of the fake agent: it keeps conversations, and has modes.
const FLAGS: [&str; 4] = ["fake-agent", "--modes", "--store", "chats"];

#[test]
fn settings_conversations_and_commands_of_its_own() {
    let place = Place::new();
    let state = place.directory.join("state");
    let daemon = place.serve_with(&["--state-dir", state.to_str().expect("UTF-8")]);
    let start = |id: &'static str, more: &[&'static str]| {
        [&["start", "--id", id, "--agent", "acp"], more, &["--", PROGRAM], &FLAGS].concat()
    };
    daemon.run(&start("s", &["--home", "own"])).exits(0);
    daemon.run(&["set", "s", "--model", "fake-2", "--mode", "plan", "--thinking", "high"]).exits(0);
    assert_eq!(daemon.run(&["prompt", "s", "model\nmode\nthinking"]).exits(0).stdout, "fake-2\nplan\nhigh\n");
    daemon.run(&["set", "s", "--mode", "unheard-of", "--json"]).exits(6);
    let info = &daemon.run(&["sessions", "--json"]).exits(0).json()[0];
    assert_eq!((&info["model"], &info["mode"], &info["depth"]), (&"fake-2".into(), &"plan".into(), &1.into()));
    let native = info["nativeSessionId"].as_str().expect("an id").to_owned();

    assert!(daemon.run(&["state", "s", "--json"]).exits(0).json().is_object());
    let listed = documented("conversations", daemon.run(&["conversations", "s", "--json"]).exits(0).json());
    assert_eq!(listed[0]["id"], native.as_str());
    let reply = daemon.run(&["native", "s", r#"{"method":"session/list","params":{}}"#]).exits(0).stdout;
    assert!(reply.contains(&native), "{reply}");
    assert_eq!(daemon.run(&["native", "s", "{", "--json"]).exits(2).problem()["type"], "usage");
    for command in ["compact", "messages"] {
        assert_eq!(daemon.run(&[command, "s", "--json"]).exits(6).problem()["type"], "unsupported");
        daemon.run(&[command, "unknown"]).exits(3);
    }
    let transcript = daemon.run(&["transcript", "s"]).exits(0).stdout;
    assert!(transcript.starts_with("User: model\nmode\nthinking\n\nAssistant: fake-2\nplan\nhigh"), "{transcript}");

    // Going on with it, and what becomes of its home.
    let busy = [&start("t", &["--resume", "session:s"])[..], &["--json"]].concat();
    let busy: Vec<&str> = busy.iter().copied().filter(|arg| *arg != "--json").collect();
    let busy = [&["--json"], &busy[..]].concat();
    assert_eq!(daemon.run(&busy).exits(8).problem()["type"], "native-session-busy");
    assert_eq!(daemon.run(&["--json", "delete", "s"]).exits(8).problem()["type"], "not-ended");
    daemon.run(&["kill", "s"]).exits(0);
    daemon.run(&start("t", &["--resume", "session:s"])).exits(0);
    assert_eq!(daemon.run(&["prompt", "t", "history"]).exits(0).stdout, "1 before\n");
    let home = info["home"].as_str().expect("its own");
    daemon.run(&["delete", "s"]).exits(0);
    assert!(std::path::Path::new(home).exists());
    daemon.run(&["kill", "t"]).exits(0);
    daemon.run(&["delete", "t"]).exits(0);
    assert!(!std::path::Path::new(home).exists());
    daemon.run(&["delete", "t"]).exits(3);
    let missing = daemon.run(&[&["--json"], &start("u", &["--resume", "session:s"])[..]].concat()).exits(3).problem();
    assert_eq!(missing["type"], "native-session-missing");
}

#[test]
fn a_turn_is_steered_and_a_request_answered_in_somebody_s_name() {
    let place = Place::new();
    std::fs::create_dir_all(place.config()).expect("made");
    let row = r#"
        [[agents]]
        id = "steered"
        protocol = "acp"
        protocol_config = { steerByPrompt = true }
    "#;
    std::fs::write(place.config().join("agents.toml"), row).expect("written");
    let daemon = place.serve();
    daemon.run(&["start", "--id", "s", "--agent", "steered", "--", PROGRAM, "fake-agent"]).exits(0);
    let mut events = daemon.spawn(&["events", "s", "--follow", "--json"]);
    daemon.run(&["steer", "s", "left"]).exits(6);
    let turn = daemon.spawn(&["prompt", "s", "say working\nwait"]);
    events.until(|e| matches!(&e.event, Event::Text { text } if text == "working\n").then_some(()));
    daemon.run(&["steer", "s", "left"]).exits(0);
    events.until(|e| matches!(&e.event, Event::Text { text } if text == "steered: left\n").then_some(()));
    daemon.run(&["abort", "s"]).exits(0);
    turn.end().exits(130);

    assert_eq!(daemon.run(&["permit", "s"]).exits(0).stderr, "s waits for no permission\n");
    let turn = daemon.spawn(&["prompt", "s", "ask May I?"]);
    let request = events.until(|envelope| match &envelope.event {
        Event::PermissionRequested(request) => Some(request.id.clone()),
        _ => None,
    });
    // Whoever comes meanwhile learns what it waits for, and what to type.
    let waiting = format!("waiting for {request}");
    let busy = daemon.run(&["prompt", "s", "next"]).exits(8).stderr;
    assert!(busy.contains(&waiting) && busy.contains("agent-proxy permit s"), "{busy}");
    for listing in [&["sessions"][..], &["sessions", "--all"], &["ps", "s"]] {
        assert!(daemon.run(listing).exits(0).stdout.contains(&waiting), "{listing:?}");
    }
    let open = daemon.run(&["permit", "s"]).exits(0).stdout;
    assert!(open.contains("May I?") && open.contains(&format!("agent-proxy permit s {request} allow|deny")), "{open}");
    let open = documented("permit", daemon.run(&["permit", "s", "--json"]).exits(0).json());
    assert_eq!((&open[0]["id"], &open[0]["title"]), (&request.as_str().into(), &"May I?".into()));
    assert_eq!(daemon.run(&["sessions", "--json"]).exits(0).json()[0]["openPermissions"], open);
    daemon.run(&["permit", "s", &request, "allow", "--reason", "because"]).exits(2);
    daemon.run(&["permit", "s", &request, "allow", "--as", "alice"]).exits(0);
    turn.end().exits(0);
    assert_eq!(daemon.run(&["permit", "s", "--json"]).exits(0).stdout, "[]\n");
    let by = events.until(|envelope| match &envelope.event {
        Event::PermissionResolved { by, .. } => Some(by.clone()),
        _ => None,
    });
    assert_eq!(by, ResolvedBy::User { name: Some("alice".into()) });
    daemon.run(&["kill", "s"]).exits(0);
    events.end();
}

#[test]
fn a_turn_that_takes_too_long_exits_7() {
    let place = Place::new();
    let daemon = place.serve();
    let start = ["start", "--id", "s", "--agent", "acp", "--timeout", "first=100ms", "--", PROGRAM, "fake-agent"];
    daemon.run(&start).exits(0);
    let late = daemon.run(&["prompt", "s", "wait", "--json"]).exits(7);
    assert_eq!(late.problem()["type"], "deadline");
    daemon.run(&["kill", "s"]).exits(0);
}

#[test]
fn sessions_within_sessions_are_refused_at_some_depth() {
    let place = Place::new();
    let daemon = place.serve();
    let start = ["--json", "start", "--id", "s", "--agent", "command", "--", "cat"];
    let mut deep = place.command(&start);
    deep.env("AGENT_PROXY_DEPTH", "3");
    assert_eq!(crate::harness::Running::new(deep).end().exits(8).problem()["type"], "too-deep");
    let mut less = place.command(&start);
    less.env("AGENT_PROXY_DEPTH", "2");
    assert_eq!(crate::harness::Running::new(less).end().exits(0).json()["depth"], 3);
    daemon.run(&["kill", "s"]).exits(0);
}
