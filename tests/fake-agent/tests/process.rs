//! The agent as a process: this test's own program, which becomes the agent when asked to.
//!
//! It has no test harness, since it must be able to be re-executed. It is a subreaper, so that what the agent leaves
//! behind comes to it, is ended by it and is reaped by it.
#![expect(clippy::print_stdout, reason = "a test without a harness says itself what it does")]

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::process::ExitStatusExt,
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    sync::mpsc::{Receiver, channel},
    time::{Duration, Instant},
};

use nix::{
    sys::{
        signal::{Signal, kill},
        wait::{WaitStatus, waitpid},
    },
    unistd::{Pid, getsid},
};
use serde_json::{Value, json};

/// Longest wait for anything.
const DEADLINE: Duration = Duration::from_secs(30);
const BECOME_AGENT: &str = "--become-the-agent";

fn main() {
    let mut args = std::env::args().skip(1);
    let own = std::env::current_exe().expect("a path").to_string_lossy().into_owned();
    if args.next().as_deref() == Some(BECOME_AGENT) {
        let reexec = vec![own, BECOME_AGENT.to_owned()];
        std::process::exit(fake_agent::run(fake_agent::Config { reexec }, args));
    }
    nix::sys::prctl::set_child_subreaper(true).expect("a subreaper");
    let passed = std::panic::catch_unwind(|| {
        handshakes_go_as_the_flags_say();
        children_are_what_they_should_be_and_outlive_the_agent();
        a_tool_does_not_wait_for_what_it_leaves_behind();
        it_ignores_sigterm_and_dies_of_others();
        conversations_outlive_it_and_are_lost_when_it_is_told_so();
    });
    let left = end_what_is_left();
    assert!(passed.is_err() || left == 0, "{left} processes were left");
    println!("test result: {}", if passed.is_ok() { "ok" } else { "FAILED" });
    std::process::exit(i32::from(passed.is_err()));
}

/// Kills and reaps our children, and theirs that come to us, until there are none. Returns how many there were.
fn end_what_is_left() -> usize {
    let children = || {
        let text = std::fs::read_to_string("/proc/thread-self/children").expect("a list");
        text.split_whitespace().map(|pid| Pid::from_raw(pid.parse().expect("a pid"))).collect::<Vec<_>>()
    };
    let mut ended = 0;
    loop {
        let left = children();
        if left.is_empty() {
            return ended;
        }
        ended += left.len();
        for pid in left {
            // A child of ours is there until we reap it.
            kill(pid, Signal::SIGKILL).expect("a child");
            waitpid(pid, None).expect("a child");
        }
    }
}

struct Agent {
    child: Child,
    lines: Receiver<Value>,
}

impl Agent {
    #[expect(clippy::disallowed_methods, reason = "the test starts its own program")]
    fn start(flags: &[&str]) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("a path"))
            .arg(BECOME_AGENT)
            .args(flags)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("started");
        let stdout = child.stdout.take().expect("piped");
        let (sender, lines) = channel();
        let read = move |stdout: ChildStdout| {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let value = serde_json::from_str(&line).unwrap_or(Value::String(line));
                if sender.send(value).is_err() {
                    return;
                }
            }
        };
        std::thread::spawn(move || read(stdout));
        Self { child, lines }
    }

    /// An agent with a session.
    fn ready(flags: &[&str]) -> Self {
        let mut agent = Self::start(flags);
        agent.send(1, "initialize", json!({"protocolVersion": 1}));
        assert_eq!(agent.line()["result"]["protocolVersion"], 1);
        agent.send(2, "session/new", json!({"cwd": "/", "mcpServers": []}));
        assert_eq!(agent.line()["result"]["sessionId"], "fake-session");
        agent
    }

    fn send(&mut self, id: i64, method: &str, params: Value) {
        let line = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        writeln!(self.child.stdin.as_mut().expect("piped"), "{line}").expect("written");
    }

    fn prompt(&mut self, id: i64, text: &str) {
        self.send(
            id,
            "session/prompt",
            json!({"sessionId": "fake-session", "prompt": [{"type": "text", "text": text}]}),
        );
    }

    fn line(&self) -> Value {
        self.lines.recv_timeout(DEADLINE).expect("a line in time")
    }

    /// The text of the next update.
    fn text(&self) -> String {
        let line = self.line();
        let text = line["params"]["update"]["content"]["text"].as_str();
        text.unwrap_or_else(|| panic!("not a text: {line}")).to_owned()
    }

    /// The pid in `KIND PID`.
    fn pid(&self, kind: &str) -> Pid {
        let text = self.text();
        let pid = text.strip_prefix(kind).unwrap_or_else(|| panic!("not {kind}: {text}"));
        Pid::from_raw(pid.trim().parse().unwrap_or_else(|_| panic!("no pid: {text}")))
    }

    /// Waits for its end, which the end of its input brings about.
    fn wait(mut self) -> ExitStatus {
        drop(self.child.stdin.take());
        self.child.wait().expect("waited")
    }

    /// Waits for its end by itself.
    fn reap(mut self) -> ExitStatus {
        // `Child::wait` would close its input.
        let stdin = self.child.stdin.take();
        let status = self.child.wait().expect("waited");
        drop(stdin);
        status
    }
}

/// The state letter, parent, group and session of a process.
fn stat(pid: Pid) -> (String, [i32; 3]) {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("alive");
    let mut fields = stat[stat.rfind(')').expect("a name") + 2..].split(' ');
    let state = fields.next().expect("a state").to_owned();
    (state, [(); 3].map(|()| fields.next().expect("a field").parse().expect("a number")))
}

fn kill_and_reap(pid: Pid) {
    kill(pid, Signal::SIGKILL).expect("alive");
    assert_eq!(waitpid(pid, None), Ok(WaitStatus::Signaled(pid, Signal::SIGKILL, false)));
}

fn handshakes_go_as_the_flags_say() {
    let mut agent = Agent::start(&["--banner", "welcome", "--bad-handshake"]);
    assert_eq!(agent.line(), "welcome");
    agent.send(1, "initialize", json!({}));
    assert_eq!(agent.line()["error"]["code"], -32603);
    assert!(agent.wait().success());

    let mut agent = Agent::start(&["--protocol-version", "2"]);
    agent.send(1, "initialize", json!({}));
    assert_eq!(agent.line()["result"]["protocolVersion"], 2);
    assert!(agent.wait().success());

    let mut agent = Agent::start(&["--no-handshake"]);
    agent.send(1, "initialize", json!({}));
    agent.send(2, "no/such", json!({}));
    assert_eq!(agent.line()["id"], 2, "the first is not answered");
    assert!(agent.wait().success());

    assert_eq!(Agent::start(&["--exit-at-start", "7"]).wait().code(), Some(7));
    assert_eq!(Agent::start(&["--bogus"]).wait().code(), Some(2));
    println!("ok: handshakes");
}

fn children_are_what_they_should_be_and_outlive_the_agent() {
    let mut agent = Agent::ready(&[]);
    let own = Pid::from_raw(agent.child.id().try_into().expect("a pid"));
    agent.prompt(
        3,
        "spawn exec sleep 1001\nsetsid exec sleep 1002\ndaemon exec sleep 1003\nignore-term sleep 1004; true",
    );
    let pids = ["spawn", "setsid", "daemon", "ignore-term"].map(|kind| agent.pid(kind));
    assert_eq!(agent.line()["result"]["stopReason"], "end_turn");
    let [spawned, leader, daemon, stubborn] = pids;
    let me = getsid(None).expect("a session").as_raw();
    let [own_pid, reaper] = [own.as_raw(), Pid::this().as_raw()];
    assert_eq!(stat(spawned).1[0], own_pid);
    assert_eq!(stat(spawned).1[2], me);
    assert_eq!(stat(leader).1, [own_pid, leader.as_raw(), leader.as_raw()]);
    assert_eq!(stat(daemon).1[0], reaper, "re-parented");
    assert_ne!(stat(daemon).1[2], me);
    assert_ne!(stat(daemon).1[2], daemon.as_raw(), "not a leader");
    for (pid, number) in pids.into_iter().zip(1001..) {
        let argv = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).expect("alive");
        assert!(argv.replace('\0', " ").contains(&format!("sleep {number}")), "{argv:?}");
        for fd in 0..3 {
            let target = std::fs::read_link(format!("/proc/{pid}/fd/{fd}")).expect("open");
            assert_eq!(target.to_str(), Some("/dev/null"), "{pid} fd {fd}");
        }
    }
    // The rest of the shell's SIGTERM: bit 15 of the ignored signals.
    let status = std::fs::read_to_string(format!("/proc/{stubborn}/status")).expect("alive");
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("a mask").trim();
    let ignored = u64::from_str_radix(ignored, 16).expect("a mask");
    assert_ne!(ignored & (1 << 14), 0, "SIGTERM is ignored");
    assert!(agent.wait().success());
    // The shell may not have forked yet: what it starts is found before it dies, and reaped after it.
    let started = Instant::now();
    let grandchild = loop {
        let children = std::fs::read_to_string(format!("/proc/{stubborn}/task/{stubborn}/children")).expect("alive");
        if let Some(pid) = children.split_whitespace().next() {
            break Pid::from_raw(pid.parse().expect("a pid"));
        }
        assert!(started.elapsed() < DEADLINE, "the shell starts its command");
        std::thread::yield_now();
    };
    for pid in pids {
        assert_ne!(stat(pid).0, "Z", "alive after the agent's end");
        kill_and_reap(pid);
    }
    kill_and_reap(grandchild);
    println!("ok: children");
}

fn a_tool_does_not_wait_for_what_it_leaves_behind() {
    let mut agent = Agent::ready(&[]);
    agent.prompt(3, "run echo hello; sleep 1005 & echo $!\nrun exit 3");
    assert_eq!(agent.line()["params"]["update"]["sessionUpdate"], "tool_call");
    let end = agent.line();
    let update = &end["params"]["update"];
    assert_eq!(update["status"], "completed");
    let output = update["content"][0]["content"]["text"].as_str().expect("a text");
    let pid = output.strip_prefix("hello\n").expect("the output").trim().parse().expect("a pid");
    assert_eq!(agent.line()["params"]["update"]["title"], "exit 3");
    assert_eq!(agent.line()["params"]["update"]["status"], "failed");
    assert_eq!(agent.line()["result"]["stopReason"], "end_turn");
    kill_and_reap(Pid::from_raw(pid));
    assert!(agent.wait().success());
    println!("ok: tools");
}

fn it_ignores_sigterm_and_dies_of_others() {
    let mut agent = Agent::ready(&[]);
    let pid = Pid::from_raw(agent.child.id().try_into().expect("a pid"));
    agent.prompt(3, "ignore-sigterm");
    assert_eq!(agent.text(), "SIGTERM is ignored\n");
    assert_eq!(agent.line()["id"], 3);
    kill(pid, Signal::SIGTERM).expect("alive");
    agent.prompt(4, "spawn exec sleep 1006");
    let child = agent.pid("spawn");
    assert_eq!(agent.line()["id"], 4, "it goes on");
    kill(child, Signal::SIGTERM).expect("alive");
    agent.prompt(5, "crash");
    assert_eq!(agent.reap().signal(), Some(Signal::SIGABRT as i32));
    assert_eq!(waitpid(child, None), Ok(WaitStatus::Signaled(child, Signal::SIGTERM, false)), "its child does not");

    let mut agent = Agent::ready(&[]);
    agent.prompt(3, "exit 3");
    assert_eq!(agent.reap().code(), Some(3));
    println!("ok: ends");
}

fn conversations_outlive_it_and_are_lost_when_it_is_told_so() {
    let store = std::env::temp_dir().join(format!("fake-agent-test-{}", std::process::id()));
    let directory = store.to_str().expect("UTF-8");
    let kept = ["--store", directory, "--modes"];
    let mut agent = Agent::start(&kept);
    agent.send(1, "session/new", json!({"cwd": "/", "mcpServers": []}));
    let opened = agent.line();
    let id = opened["result"]["sessionId"].as_str().expect("an id").to_owned();
    assert_eq!(opened["result"]["modes"]["currentModeId"], "build");
    agent.send(2, "session/set_mode", json!({"sessionId": id, "modeId": "plan"}));
    assert_eq!(agent.line()["id"], 2);
    agent.send(3, "session/prompt", json!({"sessionId": id, "prompt": [{"type": "text", "text": "mode"}]}));
    assert_eq!(agent.text(), "plan\n");
    assert_eq!(agent.line()["id"], 3);
    assert!(agent.wait().success());

    let mut agent = Agent::start(&kept);
    agent.send(1, "session/list", json!({}));
    assert_eq!(agent.line()["result"]["sessions"][0]["sessionId"], id.as_str());
    agent.send(2, "session/load", json!({"sessionId": "unheard-of", "cwd": "/", "mcpServers": []}));
    assert_eq!(agent.line()["error"]["code"], -32002);
    agent.send(3, "session/load", json!({"sessionId": id, "cwd": "/", "mcpServers": []}));
    assert_eq!((agent.text(), agent.text()), ("mode".to_owned(), "plan".to_owned()));
    assert_eq!(agent.line()["id"], 3);
    agent.send(4, "session/prompt", json!({"sessionId": id, "prompt": [{"type": "text", "text": "history"}]}));
    assert_eq!(agent.text(), "1 before\n");
    assert_eq!(agent.line()["id"], 4);
    assert!(agent.wait().success());

    let mut agent = Agent::start(&["--store", directory, "--destructive-load"]);
    agent.send(1, "session/load", json!({"sessionId": id, "cwd": "/", "mcpServers": []}));
    assert_eq!(agent.line()["error"]["code"], -32603);
    assert!(agent.wait().success());
    assert_eq!(std::fs::read_dir(&store).expect("listed").count(), 0);
    std::fs::remove_dir(&store).expect("removed");
    println!("ok: conversations");
}
