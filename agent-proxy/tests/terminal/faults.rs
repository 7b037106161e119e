//! Deaths in the middle of output, and output that means harm.

use std::{
    fs,
    io::{Read, Write},
    os::unix::net::UnixStream,
};

use ipc_protocol::{ProcessId, Signal};
use registry::PidFd;
use serde_json::{Value, json};

use crate::{
    harness::{Place, gone, is_there, process},
    window::{SIZE, Window},
};

/// How many rounds of deaths; `tests/full` has 200.
fn rounds() -> usize {
    std::env::var("AGENT_PROXY_TERMINAL_ROUNDS").ok().map_or(4, |text| text.parse().expect("a number"))
}

/// Writes without end, beside a child that ignores what asks it to end.
const WRITES: &str =
    "trap '' HUP TERM; sleep 1000 & trap - HUP TERM; i=0; while :; do i=$((i + 1)); echo \"$i lines of output\"; done";

/// Who is killed.
#[derive(Clone, Copy, Debug)]
enum Victim {
    Viewer,
    Daemon,
    Proxy,
    ForkServer,
}

fn health(place: &Place) -> Value {
    let mut stream = UnixStream::connect(place.socket()).expect("it listens");
    let request = b"GET /v1/health HTTP/1.1\r\nHost: agent-proxy\r\nConnection: close\r\n\r\n";
    stream.write_all(request).expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    serde_json::from_str(body).expect("JSON")
}

fn kill(id: ProcessId) {
    PidFd::open(id).and_then(|process| process.signal(Signal::Kill)).expect("it is there");
}

/// Number of the last line that is whole.
fn last_line(text: &str) -> Option<u64> {
    text.lines().rev().find_map(|line| line.strip_suffix(" lines of output")?.parse().ok())
}

/// Looks until more output has come than there was.
#[track_caller]
fn goes_on(window: &mut Window) {
    let before = last_line(&window.text()).unwrap_or(0);
    window.look("more output", |text| last_line(text).is_some_and(|line| line > before));
}

fn round(victim: Victim) {
    let place = Place::new();
    let state = place.directory.join("state");
    let flags = ["--state-dir", state.to_str().expect("UTF-8")];
    let mut daemon = place.serve_with(&flags);
    let start = ["start", "--tty", "--id", "s", "--agent", "command", "--on-host-death", "detach", "--"];
    daemon.run(&[&start[..], &["bash", "-c", WRITES]].concat()).exits(0);
    let attach = |size, args: &[&str]| Window::program(&place, size, &[&["attach", "s"], args].concat());
    let mut first = attach(SIZE, &[]);
    let mut second = attach((40, 100), &["--read-only"]);
    goes_on(&mut first);
    goes_on(&mut second);
    let pids = daemon.run(&["ps", "s", "--pids"]).exits(0).stdout;
    let processes: Vec<_> = pids.lines().map(|pid| process(pid.parse().expect("a pid"))).collect();
    assert!(processes.len() >= 2, "{pids}");
    let session = daemon.run(&["sessions", "--json"]).exits(0).json();
    let proxy: ProcessId = serde_json::from_value(session[0]["proxy"].clone()).expect("a process");
    let fork_server: ProcessId = serde_json::from_value(health(&place)["forkServer"].clone()).expect("a process");
    let lives_on = match victim {
        Victim::Viewer => {
            first.signal(nix::sys::signal::Signal::SIGKILL);
            true
        }
        Victim::Daemon => {
            daemon.end(nix::sys::signal::Signal::SIGKILL);
            daemon = place.serve_with(&flags);
            true
        }
        Victim::Proxy => {
            kill(proxy);
            false
        }
        Victim::ForkServer => {
            kill(fork_server);
            false
        }
    };
    first.end();
    if !matches!(victim, Victim::Viewer) {
        first.assert_reset();
        second.end();
        second.assert_reset();
    }
    if lives_on {
        assert!(processes.iter().all(|id| is_there(*id)), "{victim:?}");
        let mut third = attach((30, 90), &["--take"]);
        goes_on(&mut third);
        let receipt = daemon.run(&["kill", "s", "--grace", "0s", "--json"]).exits(0).json();
        assert_eq!(receipt["survivors"], json!([]), "{victim:?}: {receipt}");
        third.end();
        third.assert_reset();
        if matches!(victim, Victim::Viewer) {
            second.end();
            second.assert_reset();
        }
    }
    drop(daemon);
    for id in processes.into_iter().chain([proxy, fork_server]) {
        gone(id);
    }
}

#[test]
fn whoever_is_killed_in_the_middle_of_output_leaves_nothing() {
    let rounds = rounds();
    let mut done = [0; 4];
    let begin = std::time::Instant::now();
    for number in 0..rounds {
        let victims = [Victim::Viewer, Victim::Daemon, Victim::Proxy, Victim::ForkServer];
        round(victims[number % 4]);
        done[number % 4] += 1;
    }
    let [viewer, daemon, proxy, fork_server] = done;
    println!(
        "terminal faults: {rounds} rounds in {:?}: viewer {viewer}, daemon {daemon}, proxy {proxy}, fork server {fork_server}; nothing left",
        begin.elapsed()
    );
}

/// Resident memory of a process, in KiB.
fn rss_kib(id: ProcessId) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", id.pid)).expect("process status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
    line.trim().trim_end_matches(" kB").parse().expect("a number of KiB")
}

/// Most memory that any output may make a proxy hold, in KiB: full scrollback with the most that each cell takes, and a
/// synchronized update.
const MEMORY_KIB: u64 = 96 * 1024;

#[test]
fn hostile_output_is_bounded_and_asks_no_viewer_for_anything() {
    let place = Place::new();
    let daemon = place.serve();
    let floods: [(&str, Vec<u8>); 12] = [
        ("device control string", [&b"\x1bP+q"[..], &vec![b'6'; 8 << 20]].concat()),
        ("sixels", [&b"\x1bPq"[..], &b"#0;2;0;0;0#0~~@@vv@@~~$-".repeat(200_000), b"\x1b\\"].concat()),
        ("application command", [&b"\x1b_Ga=T;"[..], &vec![b'A'; 8 << 20]].concat()),
        ("title", [&b"\x1b]0;"[..], &vec![b't'; 8 << 20]].concat()),
        ("title behind a control character", [&b"\x1b\n]0;"[..], &vec![b't'; 8 << 20]].concat()),
        ("clipboard", [&b"\x1b]52;c;"[..], &vec![b'A'; 8 << 20], b"\x07\x1b]52;c;?\x07"].concat()),
        ("parameters", [&b"\x1b["[..], &b"1;".repeat(2 << 20), b"m"].concat()),
        ("stacks", b"\x1b[>1u\x1b[22;0t\x1b]0;another title\x07".repeat(100_000)),
        ("updates", [&b"\x1b[?2026h"[..], &b"\x1b[>1u\x1b[c\x1b[6n".repeat(400_000)].concat()),
        ("links", (0..60_000).flat_map(|at| format!("\x1b]8;;http://host/{at}\x1b\\{at}").into_bytes()).collect()),
        ("combining characters", format!("a{}", "\u{301}".repeat(40)).repeat(60_000).into_bytes()),
        ("no text", (0..4_u32 << 20).map(|at| 0x80 | at.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect()),
    ];
    let directory = place.directory.display();
    for (number, (_, flood)) in floods.iter().enumerate() {
        fs::write(place.directory.join(number.to_string()), flood).expect("written");
    }
    // The program's standard input has the answers to its queries.
    nix::unistd::mkfifo(&place.directory.join("names"), nix::sys::stat::Mode::S_IRWXU).expect("made");
    let script = format!(
        "stty -echo; echo ready; while read -r name; do cat '{directory}'/$name; printf '\\030\\033[?2026l\\033c\\nend of %s.\\n' $name; done <'{directory}/names'"
    );
    let start = ["start", "--tty", "--id", "s", "--agent", "command", "--", "bash", "-c", &script];
    daemon.run(&start).exits(0);
    let mut window = Window::program(&place, SIZE, &["attach", "s"]);
    window.until("ready");
    let session = daemon.run(&["sessions", "--json"]).exits(0).json();
    let proxy: ProcessId = serde_json::from_value(session[0]["proxy"].clone()).expect("a process");
    let before = rss_kib(proxy);
    let mut most = before;
    let mut names = fs::OpenOptions::new().write(true).open(place.directory.join("names")).expect("opened");
    for (number, (name, _)) in floods.iter().enumerate() {
        writeln!(names, "{number}").expect("written");
        window.until(&format!("end of {number}."));
        let now = rss_kib(proxy);
        assert!(now <= before + MEMORY_KIB, "{name}: {before} -> {now} KiB");
        most = most.max(now);
    }
    println!("terminal floods: {before} -> {most} KiB");
    for query in ["\x1b[c", "\x1b[6n", "\x1b[21t", "\x1bP", "\x1b_", "\x1b]0;", ";?\x07", "\x05"] {
        let found = window.output.windows(query.len()).any(|bytes| bytes == query.as_bytes());
        assert!(!found, "{query:?}");
    }
    daemon.run(&["kill", "s"]).exits(0);
    window.end();
    window.assert_reset();
}
