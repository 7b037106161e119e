//! Who may talk to a daemon.

use ipc_protocol::Event;

use crate::harness::{Daemon, PROGRAM, Place, Running, not_run};

/// An agent that asks its own daemon for the sessions, twice: as its child, and from a POSIX session of its own whose
/// parent is gone.
const ASKS: &str = r#"read go
"$0" sessions --json; echo "child $?"
(setsid sh -c '"$0" sessions --json; echo "daemon $?"' "$0" &)
exec cat"#;

fn asking(place: &Place, daemon: &Daemon<'_>, flags: &[&str]) -> Running {
    running(place, daemon, flags, ASKS)
}

/// Has an agent that is a script of the shell do what it does, and follows its events.
fn running(place: &Place, daemon: &Daemon<'_>, flags: &[&str], script: &str) -> Running {
    let socket = format!("AGENT_PROXY_SOCKET={}", place.socket().display());
    let start = ["start", "--id", "s", "--agent", "command", "--env", &socket];
    daemon.run(&[&start, flags, &["--", "sh", "-c", script, PROGRAM]].concat()).exits(0);
    let events = daemon.spawn(&["events", "s", "--follow", "--json"]);
    daemon.run(&["prompt", "s", "go"]).exits(0);
    events
}

#[test]
fn a_session_cannot_drive_its_own_manager() {
    is_refused(&[]);
}

#[test]
fn nor_can_one_in_a_namespace_of_its_own() {
    match registry::strict_is_available() {
        Ok(()) => is_refused(&["--containment", "strict"]),
        Err(why) => not_run(why),
    }
}

fn is_refused(flags: &[&str]) {
    let place = Place::new();
    let daemon = place.serve();
    let mut events = asking(&place, &daemon, flags);
    let mut problems = Vec::new();
    let mut codes = Vec::new();
    events.until(|envelope| {
        match &envelope.event {
            Event::Log { text, .. } => problems.push(text.clone()),
            Event::Text { text } => codes.push(text.trim().to_owned()),
            _ => {}
        }
        (codes.len() == 2 && problems.len() == 2).then_some(())
    });
    codes.sort();
    assert_eq!(codes, ["child 8", "daemon 8"]);
    for problem in problems {
        let problem: serde_json::Value = serde_json::from_str(&problem).expect("a problem object");
        assert_eq!((&problem["type"], &problem["status"]), (&"refused".into(), &403.into()), "{problem}");
        let detail = problem["detail"].as_str().expect("text");
        assert!(detail.contains("own sessions") && detail.contains("--allow-sessions"), "{detail}");
    }
    // Nobody else is kept out by it.
    daemon.run(&["sessions"]).exits(0);
    daemon.run(&["kill", "s"]).exits(0);
    events.end();
}

#[test]
fn a_daemon_that_is_told_to_answers_its_sessions() {
    let place = Place::new();
    let daemon = place.serve_with(&["--allow-sessions"]);
    let mut events = asking(&place, &daemon, &[]);
    events.until_printed(&["child 0", "daemon 0"]);
    daemon.run(&["kill", "s"]).exits(0);
    events.end();
}

#[test]
fn a_session_that_a_session_starts_is_deeper_whatever_is_said_of_it() {
    let place = Place::new();
    let daemon = place.serve_with(&["--allow-sessions"]);
    let starts =
        r#"read go; env -u AGENT_PROXY_DEPTH "$0" start --id deeper --agent command -- cat; echo "child $?"; exec cat"#;
    let mut events = running(&place, &daemon, &[], starts);
    events.until_printed(&["child 0"]);
    for (id, depth) in [("s", 1), ("deeper", 2)] {
        let sessions = daemon.run(&["sessions", "--json"]).exits(0).json();
        let found = sessions.as_array().and_then(|all| all.iter().find(|session| session["sessionId"] == id));
        assert_eq!(found.map(|session| &session["depth"]), Some(&depth.into()), "{sessions}");
    }
    daemon.run(&["kill", "s"]).exits(0);
    daemon.run(&["kill", "deeper"]).exits(0);
    events.end();
}
