//! The daemon as a service: its file, its log, its restart, its state; and commands that look at sessions from outside.

use std::fs;

use ipc_protocol::{ExitStatus, ProcessId};
use serde_json::Value;

use crate::{
    background::is_running,
    harness::{DEADLINE, PROGRAM, Place, process},
};

/// Ends the daemon with the test, whatever became of it.
struct StopAtEnd<'a>(&'a Place);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.run(&["stop", "--now"]);
    }
}

fn write_config(place: &Place, text: &str) {
    fs::create_dir_all(place.config()).expect("created");
    fs::write(place.config().join("config.toml"), text).expect("written");
}

#[track_caller]
fn pid(text: &str) -> u32 {
    text.trim().parse().unwrap_or_else(|error| panic!("{error}: {text:?}"))
}

#[test]
fn the_daemon_has_what_its_file_says_and_the_log_is_json() {
    let place = Place::new();
    write_config(
        &place,
        "detach = true\nstate_dir = 'state'\nlog_file = 'ap.log'\nlog_format = 'json'\nmax_sessions = 1\n",
    );
    let _end = StopAtEnd(&place);
    let daemon = process(pid(&place.run(&["serve"]).exits(0).stdout));
    let status = place.run(&["status", "--json"]).exits(0).json();
    assert_eq!(status["pid"], daemon.pid);
    let described = &status["daemon"];
    assert_eq!(described["stateDir"], place.config().join("state").to_str().expect("UTF-8"));
    assert_eq!(described["logFile"], place.config().join("ap.log").to_str().expect("UTF-8"));
    assert!(status["uptimeMs"].as_u64().is_some_and(|uptime| uptime < 60_000), "{status}");
    place.run(&["start", "--id", "one", "--agent", "command", "--", "cat"]).exits(0);
    place.run(&["start", "--id", "two", "--agent", "command", "--", "cat"]).exits(8);
    let shown = place.run(&["config", "--json"]).exits(0).json();
    let row = shown.as_array().expect("rows").iter().find(|row| row["key"] == "max_sessions").expect("a row").clone();
    assert_eq!((row["value"].as_str(), row["origin"].as_str()), (Some("1"), Some("file")), "{row}");
    place.run(&["stop"]).exits(0);
    let log = fs::read_to_string(place.config().join("ap.log")).expect("a log");
    assert!(!log.is_empty());
    for line in log.lines() {
        let _: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    }
    assert_eq!(place.run(&["status"]).exits(4).stdout, "");
}

#[test]
fn a_file_that_makes_no_sense_starts_nothing() {
    let place = Place::new();
    write_config(&place, "\nmax_sesions = 1\n");
    let refused = place.run(&["serve", "--json"]).exits(2).problem();
    let detail = refused["detail"].as_str().expect("text");
    assert_eq!(refused["type"], "invalid-config");
    assert!(detail.contains("config.toml:2: max_sesions: no such key") && detail.contains("max_sessions"), "{detail}");
    let checked = place.run(&["config", "check", "--json"]).exits(2).json();
    assert_eq!((&checked["faults"][0]["line"], &checked["faults"][0]["key"]), (&2.into(), &"max_sesions".into()));
    let mut serve = place.command(&["serve", "--json"]);
    write_config(&place, "");
    serve.env("AGENT_PROXY_DRAIN", "soon");
    let refused = crate::harness::Running::new(serve).end().exits(2).problem();
    assert!(refused["detail"].as_str().is_some_and(|detail| detail.contains("$AGENT_PROXY_DRAIN = soon")), "{refused}");
}

#[test]
fn a_restart_has_the_same_flags_and_detached_sessions_live_on() {
    let place = Place::new();
    let state = place.directory.join("state");
    let serve = ["serve", "--detach", "--max-sessions", "2", "--state-dir", state.to_str().expect("UTF-8")];
    let _end = StopAtEnd(&place);
    let first = process(pid(&place.run(&serve).exits(0).stdout));
    let start = |id: &str, host_death: &str| {
        let start = ["start", "--id", id, "--agent", "command", "--on-host-death", host_death, "--", "cat"];
        place.run(&start).exits(0);
    };
    start("stays", "detach");
    start("goes", "kill");
    let before = place.run(&["sessions", "--json"]).exits(0).json();
    let agent = |sessions: &Value, id: &str| -> ProcessId {
        let sessions = sessions.as_array().expect("sessions");
        let session = sessions.iter().find(|session| session["sessionId"] == id).expect("the session");
        serde_json::from_value(session["agentProcess"].clone()).expect("a process")
    };
    let (stays, goes) = (agent(&before, "stays"), agent(&before, "goes"));
    let restarted = place.run(&["restart", "--json"]).exits(0).json();
    assert_eq!(restarted["detached"], serde_json::json!(["stays"]), "{restarted}");
    assert!(!is_running(first) && !is_running(goes) && is_running(stays));
    let after = place.run(&["sessions", "--json"]).exits(0).json();
    assert_eq!(agent(&after, "stays"), stays, "the same process");
    let status = place.run(&["status", "--json"]).exits(0).json();
    assert_eq!(status["pid"], restarted["pid"]);
    assert_eq!(status["daemon"]["stateDir"], state.to_str().expect("UTF-8"));
    start("more", "kill");
    place.run(&["start", "--agent", "command", "--", "cat"]).exits(8);
    // A file that makes no sense leaves the daemon as it is.
    write_config(&place, "queue = 'x'");
    place.run(&["restart"]).exits(2);
    let still = place.run(&["status", "--json"]).exits(0).json();
    assert_eq!(still["pid"], restarted["pid"]);
    // A stop that detaches leaves the session to whoever comes.
    write_config(&place, "");
    let stop = |ended: &str| {
        let stopped = place.run(&["stop", "--detach"]).exits(0).stderr;
        let runs_on = "stays: runs on, for the next daemon with this state directory";
        assert_eq!(stopped, format!("{runs_on}\nthe daemon has ended; {ended}\n"));
        assert!(is_running(stays));
    };
    stop("1 session was ended, 1 runs on");
    place.run(&serve).exits(0);
    stop("1 session runs on");
    place.run(&serve).exits(0);
    let stopped = place.run(&["stop", "--detach", "--json"]).exits(0).json();
    assert_eq!(stopped, serde_json::json!([{ "sessionId": "stays", "status": "detached", "receipt": null }]));
    place.run(&serve).exits(0);
    place.run(&["kill", "stays"]).exits(0);
    assert!(!is_running(stays));
}

#[test]
fn a_session_has_a_status_a_log_and_an_end_to_wait_for() {
    let place = Place::new();
    let daemon = place.serve();
    daemon.run(&["start", "--id", "talks", "--agent", "acp", "--", PROGRAM, "fake-agent"]).exits(0);
    daemon.run(&["prompt", "talks", "say hello\nsetsid exec sleep 600"]).exits(0);
    let status = daemon.run(&["status", "talks"]).exits(0).stdout;
    for part in ["talks\n", "  state      idle\n", "  agent      acp\n", "sleep 600  [left session]", "turn:started"] {
        assert!(status.contains(part), "{part} in {status}");
    }
    let logs = daemon.run(&["logs", "talks"]).exits(0).stdout;
    assert!(logs.contains("> say hello") && logs.contains("\nhello\n"), "{logs}");
    daemon.run(&["wait", "talks", "--state", "idle"]).exits(0);
    daemon.run(&["wait", "talks", "--timeout", "50ms"]).exits(7);
    let waiting = daemon.spawn(&["wait", "talks"]);
    let follower = daemon.spawn(&["logs", "-f", "talks"]);
    daemon.run(&["kill", "talks"]).exits(0);
    assert_eq!(waiting.end().exits(0).stdout, "talks  ended: killed\n");
    assert!(follower.end().exits(0).stdout.contains("= session:ended: killed"));

    daemon.run(&["start", "--id", "fails", "--agent", "command", "--", "sh", "-c", "read x; exit 3"]).exits(0);
    let waiting = daemon.spawn(&["wait", "fails", "--json"]);
    daemon.run(&["prompt", "fails", "go"]).exits(0);
    let ended = waiting.end().exits(1).json();
    let expected = format!("ended: the agent exited ({})", ExitStatus::Code(3));
    assert_eq!((ended["state"].as_str(), &ended["exit"]), (Some(expected.as_str()), &1.into()));
    daemon.run(&["wait", "nobody"]).exits(3);

    daemon.run(&["start", "--id", "lives", "--agent", "command", "--", "cat"]).exits(0);
    assert_eq!(daemon.run(&["prune", "--older-than", "1day"]).exits(0).stdout, "");
    let due = daemon.run(&["prune", "--dry-run"]).exits(0).stdout;
    assert_eq!(due.lines().collect::<std::collections::BTreeSet<_>>(), ["fails", "talks"].into());
    daemon.run(&["prune"]).exits(0);
    assert_eq!(daemon.run(&["sessions", "-q"]).exits(0).stdout, "lives\n");
}

#[test]
fn ps_is_shown_again_and_again() {
    let place = Place::new();
    let daemon = place.serve();
    daemon.run(&["start", "--id", "s", "--agent", "command", "--", "cat"]).exits(0);
    let mut watch = daemon.spawn(&["ps", "s", "--watch=200ms"]);
    let begin = std::time::Instant::now();
    let mut looks = 0;
    while looks < 3 {
        assert!(begin.elapsed() < DEADLINE);
        looks += usize::from(watch.line().expect("a line").starts_with("s  command  idle"));
    }
    watch.signal(nix::sys::signal::Signal::SIGINT);
    watch.end().exits(130);
}
