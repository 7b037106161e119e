//! The examples run and do what they say. `cargo test` builds them beside this test.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{Receiver, sync_channel},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// How long anything may take.
const DEADLINE: Duration = Duration::from_secs(60);

/// A running example.
struct Example {
    child: Child,
    lines: Receiver<String>,
}

impl Example {
    #[expect(clippy::disallowed_methods, reason = "tests start the program as a shell does")]
    fn start(name: &str) -> Self {
        // From target/PROFILE/deps/examples-HASH to target/PROFILE/examples/NAME.
        let this = std::env::current_exe().expect("a path");
        let path: PathBuf = this.ancestors().nth(2).expect("a target directory").join("examples").join(name);
        assert!(path.exists(), "{} is not there: cargo build -p agent-proxy-manager --examples", path.display());
        let mut command = Command::new(path);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("started");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let (send, lines) = sync_channel(1000);
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        Self { child, lines }
    }

    fn line(&self) -> Option<String> {
        self.lines.recv_timeout(DEADLINE).ok()
    }

    /// How it ended, and what it had still to say.
    fn end(mut self) -> (ExitStatus, String) {
        let begin = Instant::now();
        let mut rest = String::new();
        while let Ok(line) = self.lines.recv_timeout(DEADLINE.saturating_sub(begin.elapsed())) {
            rest += &(line + "\n");
        }
        // Its output is at its end, so it is; or it hangs.
        if begin.elapsed() >= DEADLINE {
            self.child.kill().expect("killed");
        }
        (self.child.wait().expect("reaped"), rest)
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        // Of a test that failed; one that has been reaped is not signalled.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs it to its end; what it says has to hold all of `expected`.
fn says(name: &str, expected: &[&str]) {
    let (status, said) = Example::start(name).end();
    assert!(status.success(), "{name} ended with {status}:\n{said}");
    for expected in expected {
        assert!(said.contains(expected), "{name} did not say {expected:?}:\n{said}");
    }
}

#[test]
fn two_agents_hand_work_over() {
    says(
        "handover",
        &["the planner says:\nrun uname -s", "the worker says:\nsetsid ", "\nall done\nplanner: ", "\n  sleep 600\n"],
    );
}

#[test]
fn an_agent_as_a_catalog_row() {
    says("catalog_row", &["you said: pieces of eight"]);
}

#[test]
fn an_agent_with_an_adapter_of_its_own() {
    says(
        "linked_adapter",
        &[
            "the shell says: hello from the same shell",
            "error Some(\"the script ended with status 3\")",
            "\n  sleep 600\n",
        ],
    );
}

/// One request; its status and its body.
fn request(address: &str, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut socket = connect(address, method, path, body);
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, body.to_owned())
}

fn connect(address: &str, method: &str, path: &str, body: &str) -> TcpStream {
    let mut socket = TcpStream::connect(address).expect("connected");
    socket.set_read_timeout(Some(DEADLINE)).expect("a deadline");
    let length = body.len();
    let head =
        format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: {length}\r\n");
    socket.write_all(format!("{head}content-type: application/json\r\n\r\n{body}").as_bytes()).expect("asked");
    socket
}

#[test]
fn a_web_server() {
    let server = Example::start("axum_server");
    let address = server.line().expect("an address");
    let address = address.strip_prefix("listening on http://").expect("an address").to_owned();
    let ask = |method: &str, path: &str, body: &str| request(&address, method, path, body);

    for id in ["killed", "shut-down"] {
        let config = format!(r#"{{"sessionId":"{id}","agent":"fake","cwd":"/"}}"#);
        let (status, body) = ask("POST", "/sessions", &config);
        assert_eq!(status, 201, "{body}");
    }
    assert_eq!(ask("POST", "/sessions", r#"{"sessionId":"killed","agent":"fake"}"#).0, 409);
    assert_eq!(ask("POST", "/sessions", r#"{"agent":"none"}"#).0, 404);

    // Asked before anything is said, and by a client that comes back: each gets the text.
    let mut events = BufReader::new(connect(&address, "GET", "/sessions/killed/events", "")).lines();
    assert_eq!(ask("POST", "/sessions/killed/prompt", "say hello\nsetsid exec sleep 600").0, 202);
    let said = |line: &String| line.contains("stream:text") && line.contains("hello");
    assert!(events.by_ref().map_while(Result::ok).any(|line| said(&line)), "the text is an event");
    let again = BufReader::new(connect(&address, "GET", "/sessions/killed/events", "")).lines();
    assert!(again.map_while(Result::ok).any(|line| said(&line)), "events are kept");
    // A turn that is over: its child is there.
    assert!(events.by_ref().map_while(Result::ok).any(|line| line.contains("stream:complete")), "the turn ends");

    let (status, receipt) = ask("POST", "/sessions/killed/kill", "");
    assert_eq!(status, 200, "{receipt}");
    assert!(receipt.contains(r#""survivors":[]"#) && receipt.contains("sleep 600"), "{receipt}");
    assert!(
        events.map_while(Result::ok).any(|line| line.contains("session:ended")),
        "the stream ends with the session"
    );

    // A client that asks for all events and reads none of them: far more than sockets take.
    let _deaf = connect(&address, "GET", "/sessions/shut-down/events", "");
    let mut events = BufReader::new(connect(&address, "GET", "/sessions/shut-down/events", "")).lines();
    assert_eq!(ask("POST", "/sessions/shut-down/prompt", "flood 1000 20000").0, 202);
    assert!(events.by_ref().map_while(Result::ok).any(|line| line.contains("stream:complete")), "the turn ends");
    drop(events);

    // The other session ends with the server, which says so, and waits for no client that does not read.
    kill(Pid::from_raw(server.child.id().cast_signed()), Signal::SIGTERM).expect("signalled");
    let (status, said) = server.end();
    assert!(status.success(), "{status}: {said}");
    assert!(said.contains("shut-down: ") && said.contains("0 survivors (proof"), "{said}");
}
