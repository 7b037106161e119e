//! `top` at 80 columns and 24 rows: in a terminal of ours, and under tmux.

use std::{
    process::Stdio,
    time::{Duration, Instant},
};

use crate::{
    harness::{DEADLINE, Daemon, PROGRAM, Place, Running, gone, not_run, process},
    window::{SIZE, Window},
};

fn start_fake(daemon: &Daemon<'_>, id: &str) {
    daemon.run(&["start", "--id", id, "--agent", "acp", "--", PROGRAM, "fake-agent"]).exits(0);
}

/// Pid of the process of a session whose command line has this in it.
#[track_caller]
fn pid_of(daemon: &Daemon<'_>, session: &str, command: &str) -> u32 {
    let listed = daemon.run(&["ps", session, "--format", "{pid} {command}"]).exits(0).stdout;
    let line = listed.lines().find(|line| line.contains(command)).unwrap_or_else(|| panic!("{command} in {listed}"));
    line.split(' ').next().and_then(|pid| pid.parse().ok()).expect("a pid")
}

#[test]
fn sessions_are_watched_answered_and_killed() {
    let place = Place::new();
    let daemon = place.serve();
    start_fake(&daemon, "talks");
    daemon.run(&["start", "--id", "other", "--agent", "command", "--", "cat"]).exits(0);
    daemon.run(&["prompt", "talks", "say hello\nsetsid exec sleep 600"]).exits(0);
    let mut window = Window::program(&place, SIZE, &["top", "--interval", "250ms", "--sort", "id"]);
    let screen = window.until("talks");
    let lines: Vec<&str> = screen.lines().collect();
    assert!(lines[0].starts_with("agent-proxy  2 living, 0 busy") && lines[0].ends_with("by id"), "{screen}");
    assert!(lines[1].starts_with("SESSION      AGENT       STATE"), "{screen}");
    assert!(lines[2].starts_with("other        command     idle"), "{screen}");
    assert!(lines[3].starts_with("talks        acp         idle"), "{screen}");
    assert!(lines[23].starts_with("Enter open  / filter"), "{screen}");

    // Its tree and what it has said.
    window.press("/tal\r");
    window.look("the filter", |screen| !screen.contains("other"));
    window.press("\r");
    window.until("sleep 600  [left session]");
    window.until("> say hello");
    // What it says now comes by itself.
    daemon.run(&["prompt", "talks", "say and again"]).exits(0);
    window.until("and again");
    // It asks, and is answered here.
    daemon.run(&["prompt", "talks", "ask rm x", "--no-wait"]).exits(0);
    window.until("(a answers)");
    window.press("a");
    window.until("[y] allow  [n] deny");
    window.press("n");
    window.look("the answer", |screen| !screen.contains("(a answers)"));

    let sleeper = process(pid_of(&daemon, "talks", "sleep 600"));
    window.press("\u{1b}[B");
    window.press("x");
    window.until("6 SIGCONT");
    window.press("6\r");
    window.until(&format!("sent SIGCONT to process {}", sleeper.pid));
    window.press("k");
    window.until(&format!("{} sleep 600", sleeper.pid));
    window.press("p");
    window.until("0 survivors, 1 process ended");
    gone(sleeper);
    window.press("\r");
    let agent = process(pid_of(&daemon, "talks", "fake-agent"));
    window.press("ks");
    let screen = window.until("proof: ");
    assert!(screen.contains("talks: 0 survivors") && screen.contains(&agent.pid.to_string()), "{screen}");
    gone(agent);
    window.press("\r\u{1b}");
    window.look("the list", |screen| screen.lines().nth(1).is_some_and(|line| line.starts_with("SESSION")));
    window.press("q");
    window.exits(0);
    window.assert_reset();
}

#[test]
fn a_daemon_that_goes_away_is_waited_for() {
    let place = Place::new();
    let daemon = place.serve();
    daemon.run(&["start", "--id", "one", "--agent", "command", "--", "cat"]).exits(0);
    let mut window = Window::program(&place, SIZE, &["top", "--interval", "250ms"]);
    window.until("one ");
    drop(daemon);
    window.until("error: no daemon answers");
    let daemon = place.serve();
    window.look("the daemon's return", |screen| !screen.contains("error:"));
    window.resize(10, 40);
    // It is cut as soon as the new size is known.
    window.look("the smaller window", |screen| screen.contains("agent-prox…"));
    window.press("?");
    window.until("Keys");
    window.press("\u{3}");
    window.exits(0);
    drop(daemon);
}

#[test]
fn over_the_network_it_shows_the_same_and_where_processes_listen() {
    let place = Place::new();
    let (daemon, address) = place.serve_network(&[]);
    start_fake(&daemon, "serves");
    let listen =
        "use IO::Socket::INET; my $s = IO::Socket::INET->new(Listen => 1, LocalAddr => q(127.0.0.1)); sleep 600";
    let script = &format!("spawn exec perl -e '{listen}'");
    daemon.run(&["prompt", "serves", script]).exits(0);
    let url = format!("http://{address}");
    let mut window = Window::program(&place, (24, 120), &["--url", &url, "top", "--interval", "250ms"]);
    window.until("serves");
    window.press("\r");
    window.until("[listens on tcp 127.0.0.1:");
    // A terminal, too.
    window.press("q");
    window.exits(0);
    let mut window =
        Window::program(&place, SIZE, &["--url", &url, "shell", "serves", "--", "sh", "-c", "echo $((40 + 2)) beside"]);
    window.until("42 beside");
    window.exits(0);
    window.assert_reset();
    daemon.run(&["kill", "serves"]).exits(0);
}

#[test]
fn without_a_terminal_it_says_what_to_use() {
    let place = Place::new();
    let problem = place.run(&["top", "--json"]).exits(2).problem();
    assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains("agent-proxy ps")), "{problem}");
}

/// Window of tmux. It is closed with the test.
struct Tmux<'a>(&'a Place);

impl Tmux<'_> {
    fn run(&self, words: &[&str]) -> crate::harness::Ran {
        let socket = self.0.directory.join("tmux");
        let begin = ["tmux", "-S", socket.to_str().expect("UTF-8"), "-f", "/dev/null"];
        let mut command = self.0.command_of(&[&begin, words].concat());
        command.stdin(Stdio::null()).env("TERM", "xterm-256color").env("NO_COLOR", "1");
        Running::new(command).end()
    }

    /// What the window shows, once it has this in it.
    #[track_caller]
    fn until(&self, wanted: &str) -> String {
        let begin = Instant::now();
        loop {
            let shown = self.run(&["capture-pane", "-p", "-t", "top"]).exits(0).stdout;
            if shown.contains(wanted) {
                return shown;
            }
            assert!(begin.elapsed() < DEADLINE, "no {wanted:?} in\n{shown}");
            // tmux has no way to say that something was drawn.
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Tmux<'_> {
    fn drop(&mut self) {
        self.run(&["kill-server"]);
    }
}

/// Replaces digits, which are sizes and times here, by `0`, and several of them by one.
fn masked(line: &str) -> String {
    let mut masked = String::new();
    for c in line.trim_end().chars() {
        let c = if c.is_ascii_digit() { '0' } else { c };
        if !(c == '0' && masked.ends_with('0')) {
            masked.push(c);
        }
    }
    masked.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn under_tmux_it_looks_as_expected() {
    let place = Place::new();
    if place.command_of(&["tmux", "-V"]).status().is_err() {
        return not_run("top under tmux: there is no tmux");
    }
    let daemon = place.serve();
    start_fake(&daemon, "first");
    start_fake(&daemon, "other");
    daemon.run(&["prompt", "first", "say hello\nsetsid exec sleep 600"]).exits(0);
    let tmux = Tmux(&place);
    let command = [PROGRAM, "top", "--interval", "250ms", "--sort", "id"];
    let open = ["new-session", "-d", "-s", "top", "-x", "80", "-y", "24"];
    tmux.run(&[&open[..], &command].concat()).exits(0);
    let shown = tmux.until("other ");
    let lines: Vec<String> = shown.lines().map(masked).collect();
    let expected = [
        "agent-proxy 0 living, 0 busy 0 processes CPU 0% 0.0 MiB by id",
        "SESSION AGENT STATE CPU% MEMORY PROC TURN TOKENS AGE",
        "first acp idle 0 0.0 MiB 0 0 0 0s",
        "other acp idle 0 0.0 MiB 0 0 0 0s",
    ];
    assert_eq!(lines[..4], expected, "{shown}");
    assert_eq!(
        (lines.len(), lines[23].as_str()),
        (24, "Enter open / filter s sort e ended a answer k kill ? keys q quit")
    );
    tmux.run(&["send-keys", "-t", "top", "Enter"]).exits(0);
    tmux.until("> say hello");
    let shown = tmux.until("sleep 600  [left session]");
    let lines: Vec<String> = shown.lines().map(masked).collect();
    assert_eq!(lines[1], "first acp idle 0 tokens 0s", "{shown}");
    assert_eq!(lines[2], "PID CPU% RSS COMMAND", "{shown}");
    assert!(lines[3].ends_with("fake-agent") && lines[4].contains("sleep 0 [left session]"), "{shown}");
    tmux.run(&["send-keys", "-t", "top", "k", "s"]).exits(0);
    let shown = tmux.until("proof: ");
    assert!(shown.contains("first: 0 survivors, 2 processes ended"), "{shown}");
    tmux.run(&["send-keys", "-t", "top", "q"]).exits(0);
    tmux.run(&["send-keys", "-t", "top", "q"]).exits(0);
}

#[test]
fn whoever_ends_it_leaves_the_terminal_as_it_was() {
    let place = Place::new();
    let daemon = place.serve();
    start_fake(&daemon, "s");
    for signal in [nix::sys::signal::Signal::SIGTERM, nix::sys::signal::Signal::SIGHUP] {
        let mut window = Window::program(&place, SIZE, &["top"]);
        window.until("s            acp");
        window.signal(signal);
        window.exits(0);
        window.assert_reset();
    }
    daemon.run(&["kill", "s"]).exits(0);
}
