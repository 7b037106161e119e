//! A daemon in the background: its start, its terminal's end, and its own.

use std::{
    fs::{self, File},
    io::{Read, Write},
    os::unix::fs::OpenOptionsExt,
    process::Stdio,
    time::Instant,
};

use ipc_protocol::{Event, ProcessId};
use nix::{
    fcntl::OFlag,
    pty::{grantpt, posix_openpt, ptsname_r, unlockpt},
    sys::signal::Signal,
};
use serde_json::Value;

use crate::harness::{DEADLINE, PROGRAM, Place, Running, gone, is_there, process};

/// A daemon that was started in the background. It is ended with the test.
struct BackgroundDaemon<'a> {
    place: &'a Place,
    process: ProcessId,
    log: std::path::PathBuf,
}

impl<'a> BackgroundDaemon<'a> {
    #[track_caller]
    fn start(place: &'a Place, flags: &[&str]) -> Self {
        let started = place.run(&[&["serve", "--detach", "--json"], flags].concat()).exits(0).json();
        let pid = started["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("a pid");
        let log = started["log"].as_str().expect("a path").into();
        Self { place, process: process(pid), log }
    }
}

impl Drop for BackgroundDaemon<'_> {
    fn drop(&mut self) {
        if is_running(self.process) {
            // Whatever became of the test.
            self.place.run(&["stop", "--now"]);
        }
    }
}

/// Whether a process is there, and no zombie that nobody has reaped yet.
pub(crate) fn is_running(id: ProcessId) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", id.pid)).unwrap_or_default();
    is_there(id) && stat.rsplit_once(')').is_some_and(|(_, fields)| !fields.trim_start().starts_with('Z'))
}

fn signal(process: ProcessId, signal: ipc_protocol::Signal) {
    registry::PidFd::open(process).and_then(|held| held.signal(signal)).expect("it is there");
}

#[test]
fn serve_detach_prints_the_addresses_that_it_answers_on() {
    let place = Place::new();
    let started = place.run(&["serve", "--detach", "--json", "--listen", "127.0.0.1:0"]).exits(0).json();
    let status = place.run(&["status", "--json"]).exits(0).json();
    place.run(&["stop"]).exits(0);
    let [address] = started["addresses"].as_array().map_or(&[][..], Vec::as_slice) else {
        panic!("one address: {started}")
    };
    assert!(
        address.as_str().is_some_and(|url| url.starts_with("http://127.0.0.1:") && !url.ends_with(":0")),
        "{started}"
    );
    assert_eq!(started["addresses"], status["daemon"]["addresses"]);
}

#[test]
fn serve_detach_returns_when_it_answers_and_stop_when_it_is_gone() {
    let place = Place::new();
    let daemon = BackgroundDaemon::start(&place, &[]);
    assert_eq!(daemon.log, place.socket().with_extension("log"));
    let stat = fs::read_to_string(format!("/proc/{}/stat", daemon.process.pid)).expect("it runs");
    let (_, fields) = stat.rsplit_once(')').expect("a name");
    assert_eq!(fields.split_whitespace().nth(3), Some(daemon.process.pid.to_string().as_str()), "a session of its own");
    place.run(&["start", "--id", "s", "--agent", "command", "--", "cat"]).exits(0);
    assert!(fs::read_to_string(&daemon.log).expect("a log").contains("\"socket\":"));

    // An error of several lines says where, and what.
    let other = Place::new();
    let config = other.directory.join("config");
    fs::create_dir_all(&config).expect("made");
    fs::write(config.join("webhooks.toml"), "[out.x]\nurl = \"http://127.0.0.1:1\"\nlabels = { usr = \"a\" }\n")
        .expect("written");
    let state = other.directory.join("state");
    let flags = ["serve", "--detach", "--state-dir", state.to_str().expect("UTF-8")];
    let failed = other.run(&[&flags[..], &["--config-dir", config.to_str().expect("UTF-8")]].concat()).exits(2).stderr;
    assert!(failed.contains("webhooks.toml") && failed.contains("line 3") && failed.contains("usr"), "{failed}");

    let again = place.run(&["serve", "--detach"]).exits(8);
    assert!(again.stderr.contains("the daemon did not start: a daemon is running on") && again.stdout.is_empty());
    assert_eq!(place.run(&["serve", "--detach", "--json"]).exits(8).problem()["type"], "daemon-running");

    let stopped = place.run(&["stop"]).exits(0);
    assert!(!is_running(daemon.process), "it is gone when stop returns");
    assert!(stopped.stdout.starts_with("s: ended, 0 survivors, "), "{}", stopped.stdout);
    assert_eq!(stopped.stderr, "the daemon has ended; 1 session was ended\n");
    assert!(!place.socket().exists());
    place.run(&["stop"]).exits(4);
}

#[test]
fn the_pid_is_what_serve_detach_prints() {
    let place = Place::new();
    let started = place.run(&["serve", "--detach"]).exits(0);
    let pid: u32 = started.stdout.trim_end().parse().expect("a pid and nothing else");
    let daemon = process(pid);
    assert!(started.stderr.contains("listening on ") && started.stderr.contains("agent-proxy stop"), "{started:?}");
    let stopped = place.run(&["stop", "--json"]).exits(0);
    assert_eq!((stopped.stdout.as_str(), is_running(daemon)), ("[]\n", false));
}

/// Its shell sends SIGHUP to all that it runs, and the terminal can be written to no more.
#[test]
fn a_daemon_outlives_the_terminal_that_it_was_started_in() {
    let place = Place::new();
    // No program that another test starts may hold its end open.
    let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let mut master = posix_openpt(flags).expect("a terminal");
    grantpt(&master).and_then(|()| unlockpt(&master)).expect("it can be used");
    let mut options = File::options();
    let options = options.read(true).write(true).custom_flags(OFlag::O_NOCTTY.bits());
    let slave = options.open(ptsname_r(&master).expect("a name")).expect("its other end");
    let line = format!("{PROGRAM} serve -vv & echo \"pid=$!.\"\n");
    // A session whose terminal this is, with a shell that has jobs.
    let mut shell = place.command_of(&["setsid", "--ctty", "--wait", "bash", "--norc", "--noprofile", "-i"]);
    let end = || Stdio::from(slave.try_clone().expect("another end"));
    shell.stdin(end()).stdout(end()).stderr(end()).env("PS1", "").env("HISTFILE", "/dev/null");
    let shell = Running::new(shell);
    master.write_all(line.as_bytes()).expect("typed");
    drop(slave);
    let (mut screen, mut byte) = (String::new(), [0]);
    let begin = Instant::now();
    let is_done = |screen: &str| screen.contains("listening on ") && pid_in(screen).is_some();
    while !is_done(&screen) {
        assert!(begin.elapsed() < DEADLINE && master.read(&mut byte).is_ok_and(|read| read == 1), "{screen}");
        screen.push(byte[0].into());
    }
    let daemon = BackgroundDaemon {
        place: &place,
        process: process(pid_in(&screen).expect("a pid")),
        log: place.directory.join("none"),
    };
    drop(master);
    shell.end();
    place.run(&["start", "--id", "s", "--agent", "command", "--", "cat"]).exits(0);
    assert!(is_running(daemon.process));
    place.run(&["stop"]).exits(0);
    gone(daemon.process);
}

fn pid_in(screen: &str) -> Option<u32> {
    let (_, rest) = screen.split_once("\npid=")?;
    rest.split_once('.')?.0.parse().ok()
}

#[test]
fn a_hangup_opens_the_log_anew_and_ends_nothing() {
    let place = Place::new();
    let log = place.directory.canonicalize().expect("there").join("own.log");
    let daemon = BackgroundDaemon::start(&place, &["--log-file", log.to_str().expect("UTF-8")]);
    assert_eq!(daemon.log, log);
    let old = place.directory.join("own.log.1");
    fs::rename(&log, &old).expect("renamed");
    signal(daemon.process, ipc_protocol::Signal::Hup);
    let begin = Instant::now();
    let output = format!("/proc/{}/fd/2", daemon.process.pid);
    while fs::read_link(&output).expect("its output") != log {
        place.run(&["sessions"]).exits(0);
        assert!(begin.elapsed() < DEADLINE, "the log was not opened anew");
    }
    place.run(&["start", "--id", "s", "--agent", "command", "--", "cat"]).exits(0);
    place.run(&["stop"]).exits(0);
    assert!(fs::read_to_string(&log).expect("a log").contains("\"sessionId\":\"s\""));
    assert!(!fs::read_to_string(&old).expect("a log").contains("sessionId"));
}

#[test]
fn stop_waits_for_turns_as_long_as_it_may_and_says_what_it_waits_for() {
    let place = Place::new();
    let state = place.directory.join("state");
    let daemon = BackgroundDaemon::start(&place, &["--state-dir", state.to_str().expect("UTF-8")]);
    place.run(&["start", "--id", "s", "--agent", "acp", "--", PROGRAM, "fake-agent"]).exits(0);
    let mut events = place.spawn(&["events", "s", "--follow", "--json"]);
    place.run(&["prompt", "s", "say up\nwait", "--no-wait"]).exits(0);
    events.until(|e| matches!(&e.event, Event::Text { text } if text == "up\n").then_some(()));
    let late = place.run(&["stop", "--timeout", "3s"]).exits(7);
    assert!(late.stderr.contains("it waits for 1 turn, 30s at most"), "{}", late.stderr);
    assert!(late.stderr.contains("still there after 3s: it waits for 1 turn to finish"), "{}", late.stderr);
    assert!(is_running(daemon.process));
    let stopped = place.run(&["stop", "--now", "--json"]).exits(0).json();
    assert_eq!((&stopped[0]["sessionId"], &stopped[0]["receipt"]["survivors"]), (&"s".into(), &Value::Array(vec![])));
    assert!(!is_running(daemon.process));
    events.end().exits(0);
}

/// As a service manager does it.
#[test]
fn stop_ends_a_daemon_in_the_foreground_too() {
    let place = Place::new();
    let daemon = place.serve();
    daemon.run(&["start", "--id", "s", "--agent", "command", "--", "cat"]).exits(0);
    daemon.run(&["stop"]).exits(0);
    let ran = daemon.ended();
    assert!(ran.status.success() && ran.stdout.contains("s: 0 survivors"), "{ran:?}");
}

#[test]
fn a_client_that_leaves_does_not_keep_the_daemon_from_ending() {
    let place = Place::new();
    let daemon = place.serve();
    daemon.run(&["start", "--id", "s", "--agent", "acp", "--", PROGRAM, "fake-agent"]).exits(0);
    daemon.run(&["prompt", "s", "wait", "--no-wait"]).exits(0);
    let mut stop = daemon.spawn(&["stop"]);
    assert!(stop.stderr().until("it waits for 1 turn"));
    stop.signal(Signal::SIGINT);
    stop.end().exits(130);
    daemon.run(&["abort", "s"]).exits(0);
    assert!(daemon.ended().status.success());
}
