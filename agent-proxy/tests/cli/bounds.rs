//! What clients may have a daemon hold, what it refuses, and what is left to control it by.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
};

use ipc_protocol::Event;
use serde_json::{Value, json};

use crate::harness::{DEADLINE, PROGRAM, Place};

/// The soft and the hard limit on open files of a process.
fn open_files(pid: u32) -> (u64, u64) {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).expect("readable");
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).expect("a limit");
    let mut words = line.split_whitespace().map(|word| word.parse().expect("a number"));
    (words.next().expect("soft"), words.next().expect("hard"))
}

fn connect(place: &Place) -> UnixStream {
    let stream = UnixStream::connect(place.socket()).expect("it listens");
    stream.set_read_timeout(Some(DEADLINE)).expect("set");
    stream
}

/// The answer to a request: its status, and its body, which is JSON.
#[track_caller]
fn ask(place: &Place, method: &str, path: &[u8], body: &str) -> (u16, Value) {
    let mut stream = connect(place);
    let head = format!(" HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(&[method.as_bytes(), b" ", path, head.as_bytes(), body.as_bytes()].concat()).expect("written");
    answer(stream)
}

#[track_caller]
fn answer(mut stream: UnixStream) -> (u16, Value) {
    // Who has not read all of a request ends its answer with a reset.
    let (mut answer, mut part) = (Vec::new(), [0; 4096]);
    while let Ok(len @ 1..) = stream.read(&mut part) {
        answer.extend_from_slice(&part[..len]);
    }
    let answer = String::from_utf8(answer).expect("UTF-8");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}")))
}

#[test]
fn at_the_limit_of_open_files_sessions_can_be_listed_read_and_ended() {
    let place = Place::new();
    let state = place.directory.join("state");
    let serve = format!("ulimit -n 128; exec \"$0\" serve --state-dir {}", state.display());
    let daemon = place.serve_as(&["sh", "-c", &serve, PROGRAM]);
    let start = |n: usize| {
        daemon.run(&[
            "start",
            "--json",
            "--id",
            &format!("s-{n}"),
            "--agent",
            "command",
            "--",
            "sh",
            "-c",
            "echo up; exec cat",
        ])
    };
    let mut started = 0;
    let refused = loop {
        let ran = start(started);
        if ran.status.code() != Some(0) {
            break ran.exits(8).problem();
        }
        started += 1;
        assert!(started < 128, "the limit has no effect");
    };
    assert_eq!((&refused["type"], &refused["status"]), (&"fds-exhausted".into(), &503.into()), "{refused}");
    assert!(refused["detail"].as_str().is_some_and(|detail| detail.contains("ulimit -n")), "{refused}");
    assert!(started > 5, "{started}");
    // Clients that do nothing take no more than their part: each session can be ended all the same.
    let idle: Vec<_> = (0..12).map(|_| connect(&place)).collect();
    let listed = daemon.run(&["sessions", "--json"]).exits(0).json();
    assert_eq!(listed.as_array().map(Vec::len), Some(started));
    for n in 0..started {
        let events = daemon.run(&["events", &format!("s-{n}"), "--json"]).exits(0).envelopes();
        assert!(events.iter().any(|envelope| matches!(envelope.event, Event::SessionStarted { .. })), "{events:?}");
    }
    // And if these are too many, they are told.
    let more: Vec<_> = (0..16).map(|_| connect(&place)).collect();
    let mut last = more.last().expect("one");
    last.write_all(b"GET /v1/sessions HTTP/1.1\r\nHost: x\r\n\r\n").expect("written");
    let (status, problem) = answer(last.try_clone().expect("cloned"));
    drop(more);
    assert_eq!((status, &problem["type"]), (503, &"overloaded".into()), "{problem}");
    drop(idle);
    for n in 0..started {
        daemon.run(&["kill", &format!("s-{n}")]).exits(0);
    }
    start(started).exits(0);
}

#[test]
fn the_daemon_raises_its_limit_on_open_files_and_not_that_of_agents() {
    let place = Place::new();
    let daemon = place.serve_as(&["sh", "-c", "ulimit -Sn 100; exec \"$0\" serve", PROGRAM]);
    let (soft, hard) = open_files(daemon.pid());
    assert_eq!(soft, hard.min(1 << 20));
    let session = ["start", "--id", "s", "--agent", "command", "--", "sh", "-c", "ulimit -Sn; ulimit -Hn; exec cat"];
    daemon.run(&session).exits(0);
    let mut events = daemon.spawn(&["events", "s", "--follow", "--json"]);
    events.until_printed(&["100", &hard.to_string()]);
    daemon.run(&["kill", "s"]).exits(0);
    events.end();
}

/// Each of sixty clients sends most of a body of 30 MB, and no more.
#[test]
fn bodies_that_are_never_whole_take_no_memory_without_bound() {
    let place = Place::new();
    let daemon = place.serve();
    daemon.run(&["start", "--id", "s", "--agent", "command", "--", "cat"]).exits(0);
    let head = b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nContent-Length: 30000000\r\n\r\n";
    let chunk = vec![b'x'; 1 << 20];
    let (mut held, mut refused) = (Vec::new(), 0);
    for _ in 0..60 {
        let mut stream = connect(&place);
        stream.write_all(head).expect("written");
        if (0..28).all(|_| stream.write_all(&chunk).is_ok()) {
            held.push(stream);
            continue;
        }
        let (status, problem) = answer(stream);
        assert_eq!((status, &problem["type"]), (503, &"overloaded".into()), "{problem}");
        refused += 1;
    }
    assert!(refused >= 55, "{refused}");
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).expect("readable");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().expect("a number");
    assert!(peak < 400 << 10, "{peak} KiB");
    // Small ones are heard.
    daemon.run(&["prompt", "s", "hello"]).exits(0);
    daemon.run(&["kill", "s"]).exits(0);
    drop(held);
}

#[test]
fn what_cannot_be_a_name_is_refused_with_a_problem_object() {
    let place = Place::new();
    let _daemon = place.serve();
    for path in [
        &b"/v1/sessions/%FF"[..],
        b"/v1/sessions/%FF/events",
        b"/v1/records/%C3%28",
        b"/v1/sessions/..",
        b"/v1/sessions/.",
    ] {
        let (status, problem) = ask(&place, "GET", path, "");
        assert_eq!((status, &problem["type"]), (400, &"usage".into()), "{}: {problem}", path.escape_ascii());
    }
    let long = "x".repeat(1 << 20);
    for (field, value) in
        [("userId", "a\0b"), ("userId", &long), ("userId", ""), ("workspaceId", "a\nb"), ("agentType", &long)]
    {
        let body = json!({ "agent": "command", "command": ["cat"], field: value }).to_string();
        let (status, problem) = ask(&place, "POST", b"/v1/sessions", &body);
        assert_eq!((status, &problem["type"]), (400, &"invalid-config".into()), "{field}: {problem}");
        assert!(problem.to_string().len() < 1000, "{problem}");
    }
    for id in [".", ".."] {
        let body = json!({ "agent": "command", "command": ["cat"], "sessionId": id }).to_string();
        let (status, problem) = ask(&place, "POST", b"/v1/sessions", &body);
        assert_eq!((status, &problem["type"]), (400, &"usage".into()), "{problem}");
    }
}
