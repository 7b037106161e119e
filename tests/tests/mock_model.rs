//! The mock model as a program.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
};

use agent_proxy_tests::system::{DEADLINE, until};
use serde_json::{Value, json};

/// The program; it is killed if a test fails before it ended.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        // It has ended where the test passed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[expect(clippy::disallowed_methods, reason = "the test starts its own program")]
fn command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_mock-model"))
}

impl Program {
    /// Starts it, with the address that it prints.
    fn start(args: &[&str]) -> (Self, String) {
        let child = command().args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("started");
        let mut program = Self(child);
        let mut printed = BufReader::new(program.0.stdout.take().expect("piped"));
        let (line, lines) = mpsc::channel();
        thread::spawn(move || {
            let mut text = String::new();
            let read = printed.read_line(&mut text).map(|_| text);
            // The test may have given up.
            let _ = line.send(read);
        });
        let url = lines.recv_timeout(DEADLINE).expect("in time").expect("read");
        let address = url.trim().strip_prefix("http://").expect("a URL").to_owned();
        (program, address)
    }

    /// Ends it in the way that whoever started it does.
    fn end(mut self) -> Option<i32> {
        drop(self.0.stdin.take());
        until("the program ends", || self.0.try_wait().expect("ours")).code()
    }
}

/// The answer to a request, with its head.
fn post(address: &str, path: &str, body: &Value) -> String {
    let body = body.to_string();
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(DEADLINE)).expect("set");
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: mock\r\nauthorization: Bearer dummy\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer in time");
    answer
}

/// A request of each dialect, with what its answer has.
fn each(prompt: &str) -> [(&'static str, Value, &'static str); 4] {
    let messages = json!([{ "role": "user", "content": prompt }]);
    [
        ("/v1/responses", json!({ "stream": true, "input": messages }), "event: response.completed\n"),
        ("/v1/chat/completions", json!({ "stream": true, "messages": messages }), "data: [DONE]\n\n"),
        ("/v1/messages", json!({ "stream": true, "messages": messages }), "event: message_stop\n"),
        (
            "/v1beta/models/mock-model:streamGenerateContent",
            json!({ "contents": [{ "role": "user", "parts": [{ "text": prompt }] }] }),
            "\"finishReason\":\"STOP\"",
        ),
    ]
}

#[test]
fn it_answers_each_dialect_notes_it_and_ends_with_its_input() {
    let scratch = tempfile::tempdir().expect("a directory");
    let log = scratch.path().join("log");
    let (program, address) = Program::start(&["0", log.to_str().expect("UTF-8")]);
    for (path, body, end) in each("hello") {
        let answer = post(&address, path, &body);
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(end), "{path}: {answer}");
    }
    let lines = || fs::read_to_string(&log).unwrap_or_default();
    let noted = until("the log", || Some(lines()).filter(|text| text.lines().count() == 4 && text.ends_with('\n')));
    for ((path, body, _), line) in each("hello").into_iter().zip(noted.lines()) {
        let expected = json!({ "path": path, "authorization": "Bearer dummy", "outcome": "Answered", "body": body });
        assert_eq!(serde_json::from_str::<Value>(line).expect("JSON"), expected);
    }
    // On the port that it is told; one that is taken is an error.
    let port = address.rsplit_once(':').expect("a port").1;
    let taken = command().arg(port).stdin(Stdio::null()).output().expect("run");
    assert!(!taken.status.success() && taken.stdout.is_empty(), "{taken:?}");
    assert_eq!(program.end(), Some(0));
}
