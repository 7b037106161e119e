//! A daemon that keeps its sessions within bounds.

use std::time::Instant;

use ipc_protocol::Event;
use nix::sys::signal::Signal;

use crate::harness::{DEADLINE, Daemon, PROGRAM, Place};

fn start<'a>(id: &'a str, user: &'a str) -> [&'a str; 9] {
    ["start", "--json", "--id", id, "--agent", "command", "--user", user, "--"]
}

fn refused(daemon: &Daemon<'_>, id: &str, user: &str) -> String {
    let problem = daemon.run(&[&start(id, user)[..], &["cat"]].concat()).exits(8).problem();
    assert_eq!((&problem["type"], &problem["status"]), (&"too-many-sessions".into(), &429.into()));
    problem["detail"].as_str().expect("text").to_owned()
}

#[test]
fn a_start_beyond_the_bound_is_refused() {
    let place = Place::new();
    let daemon = place.serve_with(&["--max-sessions", "2", "--max-per-user", "1"]);
    daemon.run(&[&start("a", "alice")[..], &["cat"]].concat()).exits(0);
    let detail = refused(&daemon, "b", "alice");
    assert!(detail.contains("of user \"alice\"") && detail.contains("none may wait"), "{detail}");
    daemon.run(&[&start("b", "bob")[..], &["cat"]].concat()).exits(0);
    assert!(refused(&daemon, "c", "carol").contains("in all"));
    daemon.run(&["kill", "a"]).exits(0);
    daemon.run(&[&start("c", "alice")[..], &["cat"]].concat()).exits(0);
}

#[test]
fn a_start_waits_for_a_place() {
    let place = Place::new();
    let daemon = place.serve_with(&["--max-per-agent", "1", "--queue", "1", "--queue-wait", "50s"]);
    daemon.run(&[&start("a", "alice")[..], &["cat"]].concat()).exits(0);
    let waiting = daemon.spawn(&[&start("b", "bob")[..], &["cat"]].concat());
    let begin = Instant::now();
    while daemon.waiting() == 0 {
        assert!(begin.elapsed() < DEADLINE, "it does not wait");
        std::thread::yield_now();
    }
    daemon.run(&["kill", "a"]).exits(0);
    waiting.end().exits(0);
    daemon.run(&["kill", "b"]).exits(0);
}

#[test]
fn a_budget_ends_the_turn_and_is_a_refusal() {
    let place = Place::new();
    let ask = |command, flags: &[&str], prompt| {
        let agent = ["--agent", "acp", prompt, "--", PROGRAM, "fake-agent"];
        place.run(&[&[command][..], flags, &agent].concat())
    };
    let ran = ask("run", &["--max-cost", "1.5"], "say up\ncost 150\nwait").exits(8);
    assert!(ran.stdout == "up\n" && ran.stderr.contains("! budget used up: $1.5 of $1.5"), "{ran:?}");
    let ran = ask("ask", &["--max-cost", "$1"], "say up\ncost 150\nwait").exits(8);
    assert!(ran.stdout == "up\n" && ran.stderr.contains("budget"), "{ran:?}");
    ask("ask", &["--max-tokens", "10", "--on-budget", "end-session"], "say hello\ntokens 9 0").exits(0);
    ask("ask", &["--max-cost", "-1"], "say hello").exits(2);
}

#[test]
fn metrics_are_in_the_list_of_sessions() {
    let place = Place::new();
    let daemon = place.serve();
    drop(daemon.start_fake("s"));
    daemon.run(&["ask", "s", "say a\nrun true\ntokens 5 7"]).exits(0);
    let sessions = daemon.run(&["sessions", "--json"]).exits(0).json();
    let metrics = &sessions[0]["metrics"];
    assert_eq!((&metrics["toolCalls"], &metrics["usage"]["outputTokens"]), (&1.into(), &7.into()));
    assert!(sessions[0]["processUse"]["rssBytes"].as_u64().is_some_and(|bytes| bytes > 0), "{sessions}");
    assert!(sessions[0]["heartbeat"].as_str().is_some_and(|time| time.ends_with('Z')), "{sessions}");
}

#[test]
fn a_daemon_lets_turns_finish_and_a_second_signal_does_not_wait() {
    for second in [false, true] {
        let place = Place::new();
        let daemon = place.serve_with(&["--drain", "50s"]);
        drop(daemon.start_fake("s"));
        let asked = daemon.spawn(&["ask", "s", "ask May I?\nsay done"]);
        let mut follower = daemon.spawn(&["events", "s", "--follow", "--json"]);
        let request = follower.until(|envelope| match &envelope.event {
            Event::PermissionRequested(request) => Some(request.id.clone()),
            _ => None,
        });
        let (running, mut stderr) = daemon.drain();
        assert!(stderr.until("draining: 1 turn runs, waiting 50s at most"));
        assert_eq!(place.run(&["--json", "prompt", "s", "say x"]).exits(8).problem()["type"], "draining");
        if second {
            running.signal(Signal::SIGTERM);
            assert_ne!(asked.end().status.code(), Some(0));
        } else {
            place.run(&["permit", "s", &request, "allow"]).exits(0);
            assert!(asked.end().exits(0).stdout.ends_with("done\n"));
        }
        let ran = running.end().exits(0);
        assert!(ran.stdout.contains("0 survivors"), "{ran:?}");
    }
}
