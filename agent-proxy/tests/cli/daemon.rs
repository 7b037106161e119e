//! The daemon: its socket, and its end.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use ipc_protocol::{Event, ProcessId};
use nix::sys::signal::Signal;

use crate::harness::{
    DEADLINE, PROGRAM, Place, Running, gone, is_there, names, not_run, parent, process, signalled, stands_still, until,
};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").permissions().mode() & 0o7777
}

/// As on a full disk.
#[test]
fn a_daemon_that_cannot_say_where_it_listens_is_there_all_the_same() {
    let place = Place::new();
    let mut command = place.command(&["serve"]);
    command.stdout(std::fs::OpenOptions::new().write(true).open("/dev/full").expect("there"));
    let serving = Running::new(command);
    let status = until("it answers", || Some(place.run(&["status"])).filter(|ran| ran.status.success()));
    assert!(status.stdout.contains(&serving.pid().to_string()), "{}", status.stdout);
    place.run(&["stop", "--now"]).exits(0);
    serving.end();
}

#[test]
fn the_socket_is_its_owner_s_alone_and_goes_with_the_daemon() {
    let place = Place::new();
    let daemon = place.serve();
    let socket = place.socket();
    let directory = socket.parent().expect("it has one");
    assert_eq!((mode(&socket), mode(directory)), (0o600, 0o700));
    let ran = daemon.end(Signal::SIGINT).exits(0);
    assert_eq!(ran.stderr, "");
    assert_eq!(names(directory), Vec::<String>::new());
}

#[test]
fn a_live_daemon_s_name_is_not_stolen() {
    let place = Place::new();
    let daemon = place.serve();
    assert_eq!(place.run(&["serve", "--json"]).exits(8).problem()["type"], "daemon-running");
    daemon.run(&["sessions"]).exits(0);
}

#[test]
fn a_killed_daemon_leaves_no_process_and_its_socket_is_replaced() {
    let place = Place::new();
    let daemon = place.serve();
    let mut events = daemon.start("s", &["sh", "-c", "setsid sh -c 'echo $$; exec sleep 300' & exec cat"]);
    let sleeper = events.until(|envelope| match &envelope.event {
        Event::Text { text } => Some(process(text.trim().parse().expect("a pid"))),
        _ => None,
    });
    let ran = daemon.end(Signal::SIGKILL);
    assert_eq!(signalled(&ran), Some(9));
    gone(sleeper);
    assert_eq!(events.end().status.code(), Some(4), "its follower says that the daemon has gone");
    assert!(place.socket().exists(), "nobody was left to remove it");
    let daemon = place.serve();
    assert_eq!(daemon.run(&["sessions", "--json"]).exits(0).json(), serde_json::json!([]));
}

#[test]
fn what_a_crash_of_everything_left_is_ended_by_the_next_daemon() {
    let place = Place::new();
    let state = place.directory.join("state");
    let flags = ["--state-dir", state.to_str().expect("UTF-8")];
    let daemon = place.serve_with(&flags);
    let mut events = daemon.start("s", &["sh", "-c", "setsid sh -c 'echo $$; exec sleep 300' & exec cat"]);
    let sleeper = events.until(|envelope| match &envelope.event {
        Event::Text { text } => Some(process(text.trim().parse().expect("a pid"))),
        _ => None,
    });
    let other = Place::new();
    let refused = other.run(&[&["serve", "--json"], &flags[..]].concat()).exits(8).problem();
    assert!(refused["detail"].as_str().is_some_and(|detail| detail.contains("state")), "{refused}");

    let session = &daemon.run(&["sessions", "--json"]).exits(0).json()[0];
    let proxy: ProcessId = serde_json::from_value(session["proxy"].clone()).expect("a process");
    let fork_server = process(parent(proxy.pid));
    let held = [fork_server, proxy].map(|id| registry::PidFd::open(id).expect("alive"));
    // Stopped first: none sees the others die. A process with several threads goes on until one of them takes the signal.
    daemon.signal(Signal::SIGSTOP);
    stands_still(daemon.pid());
    for held in &held {
        held.signal(ipc_protocol::Signal::Stop).expect("stopped");
        stands_still(held.id().pid);
    }
    // The proxy first: the kernel continues what is stopped in a group that its parent's death orphans.
    held.iter().rev().for_each(|held| held.signal(ipc_protocol::Signal::Kill).expect("killed"));
    daemon.end(Signal::SIGKILL);
    gone(fork_server);
    gone(proxy);
    assert!(is_there(sleeper), "nobody was left to end it");

    let daemon = place.serve_with(&flags);
    gone(sleeper);
    let ran = daemon.end(Signal::SIGTERM).exits(0);
    assert!(ran.stderr.contains("recovered session s: 0 survivors, "), "{}", ran.stderr);
    drop(events);
}

#[test]
fn the_command_after_the_end_of_a_killed_daemon_s_session_is_run_by_the_next_one() {
    let place = Place::new();
    let state = place.directory.join("state");
    let flags = ["--state-dir", state.to_str().expect("UTF-8")];
    let daemon = place.serve_with(&flags);
    let tree = place.directory.join("tree");
    let start = ["start", "--id", "s", "--cwd", tree.to_str().expect("UTF-8"), "--agent", "command"];
    let commands = [
        "--before-start",
        "mkdir \"$AGENT_PROXY_OF_CWD\"",
        "--after-end",
        "rmdir \"$AGENT_PROXY_OF_CWD\"; echo \"$AGENT_PROXY_OF_END\"",
    ];
    daemon.run(&[&start[..], &commands, &["--", "cat"]].concat()).exits(0);
    assert!(tree.is_dir());
    let refused = daemon
        .run(&["start", "--json", "--agent", "command", "--before-start", "echo not today; exit 3", "--", "cat"])
        .exits(1)
        .problem();
    assert_eq!(refused["type"], "command-failed");
    let detail = refused["detail"].as_str().expect("a text");
    assert!(detail.contains("exit code 3") && detail.ends_with("not today"), "{detail}");
    daemon.end(Signal::SIGKILL);
    assert!(tree.is_dir(), "nobody was left to run it");

    let daemon = place.serve_with(&flags);
    let begin = std::time::Instant::now();
    let said = loop {
        let events = daemon.run(&["events", "--all", "--json"]).exits(0).envelopes();
        let mut of_command = events.iter().filter(|envelope| envelope.session.as_str() == "s.after-end");
        let text = of_command.find_map(|envelope| match &envelope.event {
            Event::Text { text } => Some(text.trim().to_owned()),
            _ => None,
        });
        if let Some(text) = text {
            break text;
        }
        assert!(begin.elapsed() < DEADLINE, "the command did not run: {events:?}");
    };
    assert_eq!((said.as_str(), tree.exists()), ("the host died", false));
    daemon.end(Signal::SIGTERM).exits(0);
}

#[test]
fn what_outlives_a_daemon_is_the_next_one_s() {
    let place = Place::new();
    let state = place.directory.join("state");
    let flags = ["--state-dir", state.to_str().expect("UTF-8")];
    let daemon = place.serve_with(&flags);
    let start = ["start", "--id", "stays", "--agent", "command", "--on-host-death", "detach", "--", "cat"];
    daemon.run(&start).exits(0);
    let before = daemon.run(&["sessions", "--json"]).exits(0).json();
    daemon.end(Signal::SIGKILL);

    let daemon = place.serve_with(&flags);
    let after = daemon.run(&["sessions", "--json"]).exits(0).json();
    for field in ["sessionId", "proxy", "agentProcess", "cwd", "startedAt"] {
        assert_eq!(after[0][field], before[0][field], "{field}");
    }
    daemon.run(&["prompt", "stays", "still here"]).exits(0);
    let proxy: ProcessId = serde_json::from_value(after[0]["proxy"].clone()).expect("a process");
    let ran = daemon.end(Signal::SIGTERM).exits(0);
    assert!(ran.stderr.contains("reattached session stays"), "{}", ran.stderr);
    gone(proxy);
}

#[test]
fn without_a_state_directory_no_session_outlives_its_daemon() {
    let place = Place::new();
    let daemon = place.serve();
    let start = ["start", "--agent", "command", "--on-host-death", "detach", "--json", "--", "cat"];
    let refused = daemon.run(&start).exits(2).problem();
    assert!(refused["detail"].as_str().is_some_and(|detail| detail.contains("state directory")), "{refused}");
}

#[test]
fn sigterm_ends_every_session_and_says_how() {
    let place = Place::new();
    let daemon = place.serve();
    let mut followers = [daemon.start("one", &["cat"]), daemon.start("two", &["sh", "-c", "sleep 300 & cat"])];
    for follower in &mut followers {
        // It follows; one that came after the signal would be refused.
        follower.until(|e| matches!(e.event, Event::SessionStarted { .. }).then_some(()));
    }
    let pids = daemon.run(&["ps", "--pids"]).exits(0).stdout;
    let processes: Vec<_> = pids.lines().map(|pid| process(pid.parse().expect("a pid"))).collect();
    assert!(processes.len() >= 2, "{pids}");
    let ran = daemon.end(Signal::SIGTERM).exits(0);
    for id in ["one", "two"] {
        assert!(ran.stdout.lines().any(|line| line.starts_with(&format!("{id}: 0 survivors"))), "{}", ran.stdout);
    }
    assert!(processes.into_iter().all(|process| !is_there(process)));
    for follower in followers {
        let last = follower.end().exits(0).envelopes().pop().expect("events");
        assert!(matches!(last.event, Event::SessionEnded { receipt: Some(receipt), .. } if receipt.is_empty()));
    }
}

#[test]
fn clients_that_leave_end_their_streams() {
    let place = Place::new();
    let daemon = place.serve();
    let mut first = daemon.start("s", &["cat"]);
    // Its stream is open from here on, and stays.
    first.until(|envelope| matches!(envelope.event, Event::SessionStarted { .. }).then_some(()));
    let descriptors = || names(Path::new(&format!("/proc/{}/fd", daemon.pid()))).len();
    for _ in 0..3 {
        let mut follower = daemon.spawn(&["events", "s", "--follow", "--json"]);
        follower.until(|envelope| matches!(envelope.event, Event::SessionStarted { .. }).then_some(()));
        let with = descriptors();
        drop(follower);
        // The daemon sees the end of the connection on its own time; asking it again is all the waiting there is.
        let begin = std::time::Instant::now();
        while descriptors() >= with {
            daemon.run(&["sessions"]).exits(0);
            assert!(begin.elapsed() < crate::harness::DEADLINE, "the stream of a client that left is still open");
        }
    }
}

#[test]
fn agents_get_the_base_environment_and_no_more() {
    let place = Place::new();
    let mut serve = place.command(&["serve"]);
    serve.env("SECRET_OF_THE_CALLER", "x").env("LC_TEST", "C");
    let mut serve = crate::harness::Running::new(serve);
    serve.line().expect("it listens");
    let args = ["start", "--id", "e", "--agent", "command", "--env", "MINE=1", "--", "sh", "-c", "read _; env; exit 0"];
    place.run(&args).exits(0);
    let follower = place.spawn(&["events", "e", "--follow", "--json"]);
    place.run(&["prompt", "e", "go"]).exits(0);
    let envelopes = follower.end().exits(0).envelopes();
    let mut variables: Vec<&str> = envelopes
        .iter()
        .filter_map(|envelope| match &envelope.event {
            Event::Text { text } => text.split('=').next(),
            _ => None,
        })
        .collect();
    // The shell's own.
    variables.retain(|name| !["PWD", "OLDPWD", "SHLVL", "_"].contains(name));
    assert!(["PATH", "MINE", "LC_TEST", "AGENT_PROXY_SESSION"].iter().all(|name| variables.contains(name)));
    assert!(!variables.contains(&"SECRET_OF_THE_CALLER"), "{variables:?}");
    serve.signal(Signal::SIGTERM);
    serve.end().exits(0);
}

#[test]
fn a_daemon_that_is_stopped_is_named_with_what_helps() {
    let place = Place::new();
    let daemon = place.serve();
    daemon.run(&["start", "--id", "s", "--agent", "command", "--", "cat"]).exits(0);
    let (pid, helps) = (daemon.pid(), format!("`kill -CONT {}` lets it go on", daemon.pid()));
    daemon.signal(Signal::SIGSTOP);
    stands_still(pid);
    let commands = [&["sessions"][..], &["stop", "--now"], &["stop", "--timeout", "1s"], &["restart"], &["kill", "s"]];
    let asked: Vec<_> = commands.iter().map(|args| (args, place.spawn(args))).collect();
    let examined = place.spawn(&["doctor"]);
    for (args, running) in asked {
        let ran = running.end().exits(7);
        assert!(ran.stderr.contains(&helps), "{args:?}: {}", ran.stderr);
    }
    let examined = examined.end().stdout;
    assert!(examined.contains(&format!("process {pid}")), "{examined}");
    daemon.signal(Signal::SIGCONT);
    assert_eq!(daemon.run(&["sessions", "-q"]).exits(0).stdout, "s\n");
    daemon.end(Signal::SIGTERM).exits(0);
}

#[test]
fn a_session_of_an_earlier_daemon_has_ended() {
    let place = Place::new();
    let state = place.directory.join("state");
    let flags = ["--state-dir", state.to_str().expect("UTF-8")];
    let daemon = place.serve_with(&flags);
    daemon.run(&["start", "--id", "s", "--agent", "command", "--", "cat"]).exits(0);
    daemon.run(&["kill", "s"]).exits(0);
    daemon.end(Signal::SIGTERM).exits(0);
    let daemon = place.serve_with(&flags);
    for args in [&["kill", "s"][..], &["prompt", "s", "x"], &["ps", "s"], &["status", "s"], &["append", "s", "a:b"]] {
        let ran = daemon.run(args).exits(8);
        assert!(ran.stderr.contains("session s has ended: "), "{args:?}: {}", ran.stderr);
    }
    assert!(daemon.run(&["wait", "s"]).exits(0).stdout.starts_with("s  "));
    assert!(daemon.run(&["prompt", "none", "x"]).exits(3).stderr.contains("sessions --all"));
    daemon.end(Signal::SIGTERM).exits(0);
}

#[test]
fn a_full_disk_is_seen_in_the_daemon_s_health_until_there_is_room() {
    let place = Place::new();
    let disk = place.directory.join("disk");
    std::fs::create_dir(&disk).expect("created");
    let disk = disk.to_str().expect("UTF-8");
    let mount = "mount -t tmpfs -o size=2m none \"$0\" && exec \"$@\"";
    if !place.run_as(&["unshare", "--mount", "sh", "-c", mount, disk, "true"]).status.success() {
        return not_run("a full disk: no file system can be mounted");
    }
    let state = format!("{disk}/state");
    let daemon =
        place.serve_as(&["unshare", "--mount", "sh", "-c", mount, disk, PROGRAM, "serve", "--state-dir", &state]);
    let shell = ["start", "--id", "s", "--agent", "command", "--", "sh"];
    daemon.run(&shell).exits(0);
    let mut events = daemon.spawn(&["events", "s", "--follow", "--json"]);
    let mut does = |what: &str, done: &str| {
        daemon.run(&["prompt", "s", &format!("{what}; echo {done}"), "--no-wait"]).exits(0);
        events.until(|e| matches!(&e.event, Event::Text { text } if text.contains(done)).then_some(()));
    };
    does(&format!("dd if=/dev/zero of={disk}/fill bs=4k 2>/dev/null"), "filled");
    let payload = format!("{{\"text\":\"{}\"}}", "x".repeat(50_000));
    let append = || daemon.run(&["append", "s", "a:b", &payload]);
    // What the file has room for already is still taken.
    let refused = (0..100).map(|_| append()).find(|ran| !ran.status.success()).expect("the disk is full");
    assert!(refused.stderr.contains("the disk is full; make room"), "{}", refused.stderr);
    let degraded = |listed: &serde_json::Value| listed["degraded"].to_string().contains("the disk is full");
    assert!(degraded(&daemon.run(&["status", "--json"]).exits(0).json()));
    assert!(degraded(&daemon.run(&["sessions", "--json"]).exits(0).json()[0]));
    assert!(daemon.run(&["status"]).stdout.contains("degraded"));
    does(&format!("rm {disk}/fill"), "emptied");
    let begin = std::time::Instant::now();
    while !append().status.success() {
        assert!(begin.elapsed() < DEADLINE, "there is room");
    }
    assert_eq!(daemon.run(&["status", "--json"]).exits(0).json()["degraded"], serde_json::json!([]));
    assert_eq!(daemon.run(&["sessions", "--json"]).exits(0).json()[0]["degraded"], serde_json::Value::Null);
    daemon.end(Signal::SIGTERM).exits(0);
}

#[test]
fn the_last_events_are_found_among_many() {
    let place = Place::new();
    let daemon = place.serve();
    let mut events = daemon.start(
        "s",
        &["sh", "-c", "i=0; while [ $i -lt 300 ]; do echo line $i; i=$((i+1)); sleep 0.001; done; exec cat"],
    );
    events.until(|e| matches!(&e.event, Event::Text { text } if text.contains("line 299")).then_some(()));
    let all = daemon.run(&["events", "s", "--json"]).exits(0).envelopes();
    for (flags, most) in [(&[][..], 3), (&[], 10_000), (&["--type", "session"], 1), (&["--type", "session:started"], 5)]
    {
        let most = most.to_string();
        let last = daemon.run(&[&["events", "s", "--json", "-n", &most], flags].concat()).exits(0).envelopes();
        let wanted = daemon.run(&[&["events", "s", "--json"], flags].concat()).exits(0).envelopes();
        let from = wanted.len().saturating_sub(most.parse().expect("a number"));
        assert_eq!(last, wanted[from..], "{flags:?}");
    }
    assert!(all.len() > 50, "{}", all.len());
    // Whoever follows into a pipe ends with its reader, though nothing comes any more.
    let mut following = daemon.spawn(&["events", "s", "--follow"]);
    following.line().expect("the first");
    following.close_stdout();
    following.end().exits(0);
    daemon.end(Signal::SIGTERM).exits(0);
}
