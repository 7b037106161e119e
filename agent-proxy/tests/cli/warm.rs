//! A daemon that starts sessions ahead.

use std::{fs, time::Instant};

use serde_json::Value;

use crate::harness::{DEADLINE, Daemon, PROGRAM, Place};

/// A place with a profile of the fake agent.
fn place() -> Place {
    let place = Place::new();
    fs::create_dir_all(place.config()).expect("made");
    let row = format!("id = 'quick'\nprotocol = 'acp'\ncmd = ['{PROGRAM}', 'fake-agent']\n");
    fs::write(place.config().join("agents.toml"), row).expect("written");
    place
}

/// Waits until a start would have a warm session. Its id.
fn warm(daemon: &Daemon<'_>) -> String {
    let begin = Instant::now();
    while !daemon.get("/metrics").contains("agent_proxy_warm_sessions 1\n") {
        assert!(begin.elapsed() < DEADLINE, "no session is warm: {}", daemon.get("/metrics"));
        std::thread::yield_now();
    }
    let sessions: Vec<Value> = serde_json::from_str(&daemon.get("/v1/sessions")).expect("JSON");
    let warm = sessions.iter().find(|session| session["warm"] == true).expect("it is listed");
    warm["sessionId"].as_str().expect("an id").to_owned()
}

#[test]
fn a_start_has_a_session_that_is_warm() {
    let place = place();
    let directory = place.directory.to_str().expect("UTF-8");
    let daemon = place.serve_with(&["--warm", &format!("quick=1@{directory}")]);
    let id = warm(&daemon);
    let listed = daemon.run(&["sessions"]).exits(0).stdout;
    assert!(listed.lines().any(|line| line.contains(" warm ")), "{listed}");
    let start = ["start", "--profile", "quick", "--cwd", directory];
    // Under a name of its own it is another one.
    daemon.run(&[&start[..], &["--id", "mine"]].concat()).exits(0);
    assert_eq!(warm(&daemon), id);
    let started = daemon.run(&[&start[..], &["--user", "ada", "--title", "Plums"]].concat()).exits(0).stdout;
    assert_eq!(started.trim(), id);
    let session: Value = serde_json::from_str(&daemon.get(&format!("/v1/sessions/{id}"))).expect("JSON");
    assert_eq!(
        (&session["userId"], &session["title"], &session["warm"]),
        (&"ada".into(), &"Plums".into(), &false.into())
    );
    let events = daemon.run(&["events", &id]).exits(0).stdout;
    assert!(events.contains("session:claimed") && events.contains("for ada"), "{events}");
    assert!(daemon.run(&["ask", &id, "say hello"]).exits(0).stdout.contains("hello"));
    assert_ne!(warm(&daemon), id);
}

#[test]
fn what_makes_no_sense_is_refused_at_the_start() {
    let place = place();
    for (value, code, part) in [
        ("quick", 2, "PROFILE=N"),
        ("quick=0", 2, "1 to 1000"),
        ("quick=1@here", 2, "not absolute"),
        ("nobody=1", 3, "no profile is called \"nobody\""),
    ] {
        let ran = place.run(&["serve", "--warm", value]).exits(code);
        assert!(ran.stderr.contains(part), "{value}: {}", ran.stderr);
    }
}

/// The key of the file, and the limits that a policy gives everybody.
#[test]
fn a_policy_s_limits_are_those_of_warm_sessions_too() {
    let place = place();
    let directory = place.directory.to_str().expect("UTF-8");
    fs::write(place.config().join("policy.toml"), "[policy.limits]\nprocesses = 500\n").expect("written");
    let config = format!("warm = ['quick=1@{directory}']\npolicy = 'policy.toml'\n");
    fs::write(place.config().join("config.toml"), config).expect("written");
    let daemon = place.serve();
    let id = warm(&daemon);
    let start = ["start", "--profile", "quick", "--cwd", directory];
    assert_eq!(daemon.run(&start).exits(0).stdout.trim(), id);
}
