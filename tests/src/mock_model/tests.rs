use std::time::Duration;

use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use super::*;

const DEADLINE: Duration = Duration::from_secs(30);

/// Sends a request and reads nothing of the answer yet.
async fn send(model: &MockModel, path: &str, key: &str, body: &Value) -> TcpStream {
    let body = body.to_string();
    let mut stream = TcpStream::connect(model.address()).await.expect("the server listens");
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: mock\r\n{key}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.expect("request");
    stream.write_all(body.as_bytes()).await.expect("request body");
    stream
}

async fn post(model: &MockModel, path: &str, body: &Value) -> String {
    let mut stream = send(model, path, "authorization: Bearer dummy", body).await;
    let mut answer = String::new();
    timeout(DEADLINE, stream.read_to_string(&mut answer)).await.expect("in time").expect("answer");
    answer
}

/// The requests, once there is one with this outcome.
async fn until(model: &MockModel, outcome: Outcome) -> Vec<Request> {
    let reached = model.until(|requests| requests.iter().any(|request| request.outcome == outcome));
    timeout(DEADLINE, reached).await.unwrap_or_else(|_| panic!("none is {outcome:?}: {:?}", model.requests()))
}

/// The body that was sent in these chunks.
fn chunks(body: &str) -> String {
    body.split("\r\n").skip(1).step_by(2).collect()
}

/// A request of the Responses dialect.
fn responses(prompt: &str) -> Value {
    json!({ "stream": true, "input": [{ "role": "user", "content": prompt }], "tools": [{ "name": "exec_command" }] })
}

/// A request of each dialect: its path, the body, and how the end of its stream shows.
fn each(prompt: &str) -> [(&'static str, Value, &'static str); 4] {
    let messages = json!([{ "role": "user", "content": prompt }]);
    [
        ("/v1/responses", responses(prompt), "event: response.completed\n"),
        (
            "/v1/chat/completions",
            json!({ "stream": true, "messages": messages, "tools": [{ "function": { "name": "bash" } }] }),
            "data: [DONE]\n\n",
        ),
        (
            "/v1/messages",
            json!({ "stream": true, "messages": messages, "tools": [{ "name": "Bash" }] }),
            "event: message_stop\n",
        ),
        (
            "/v1beta/models/mock-model:streamGenerateContent",
            json!({
                "contents": [{ "role": "user", "parts": [{ "text": prompt }] }],
                "tools": [{ "functionDeclarations": [{ "name": "run_shell_command" }] }],
            }),
            "\"finishReason\":\"STOP\"",
        ),
    ]
}

#[tokio::test]
async fn it_answers_records_and_stops() {
    let model = MockModel::start().await.expect("started");
    let body = responses("hello");
    let answer = post(&model, "/v1/responses", &body).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("text/event-stream"), "{answer}");
    assert!(answer.contains("you said: hello"), "{answer}");
    let missing = post(&model, "/v1/models", &Value::Null).await;
    assert!(missing.starts_with("HTTP/1.1 404"), "{missing}");

    until(&model, Outcome::Answered).await;
    let requests = model.requests();
    assert_eq!(requests.len(), 2);
    let authorization = Some("Bearer dummy".into());
    assert_eq!(requests[0], Request { path: "/v1/responses".into(), authorization, body, outcome: Outcome::Answered });
    assert_eq!(requests[1].outcome, Outcome::Refused(404));

    let mut idle = TcpStream::connect(model.address()).await.expect("the server listens");
    drop(model);
    let closed = timeout(DEADLINE, idle.read(&mut [0; 1])).await.expect("in time");
    assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
}

#[tokio::test]
async fn every_dialect_streams_calls_tools_and_takes_its_own_key() {
    let model = MockModel::start().await.expect("started");
    for (path, body, end) in each("shell: echo hi") {
        let answer = post(&model, path, &body).await;
        assert!(answer.contains("text/event-stream") && answer.contains("echo hi"), "{path}: {answer}");
        assert!(answer.contains(end), "{path}: {answer}");
    }
    for key in ["x-api-key: dummy", "x-goog-api-key: dummy"] {
        let mut stream = send(&model, "/v1/messages", key, &Value::Null).await;
        timeout(DEADLINE, stream.read_to_end(&mut Vec::new())).await.expect("in time").expect("answer");
        assert_eq!(model.requests().last().and_then(|request| request.authorization.as_deref()), Some("dummy"));
    }
}

#[tokio::test]
async fn every_dialect_answers_in_one_piece_and_counts() {
    let model = MockModel::start().await.expect("started");
    for (path, mut body, _) in each("hello") {
        body["stream"] = json!(false);
        let path = path.replace("streamGenerateContent", "generateContent");
        let answer = post(&model, &path, &body).await;
        let (head, whole) = answer.split_once("\r\n\r\n").expect("a body");
        assert!(head.contains("application/json"), "{path}: {answer}");
        let whole: Value =
            serde_json::from_str(chunks(whole).as_str()).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert!(whole.to_string().contains("you said: hello"), "{path}: {answer}");
    }
    for path in ["/v1/messages/count_tokens", "/v1beta/models/mock-model:countTokens"] {
        let answer = post(&model, path, &json!({})).await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("okens\":1"), "{path}: {answer}");
    }
}

#[tokio::test]
async fn an_error_of_the_script_is_one_for_good_or_for_once() {
    let model = MockModel::start().await.expect("started");
    for (path, body, _) in each("status: 500") {
        for _ in 0..2 {
            let answer = post(&model, path, &body).await;
            assert!(
                answer.starts_with("HTTP/1.1 500") && answer.contains("an error of the script"),
                "{path}: {answer}"
            );
        }
    }
    let once = responses("status: 429 once");
    let first = post(&model, "/v1/responses", &once).await;
    assert!(first.starts_with("HTTP/1.1 429") && first.contains("retry-after-ms: 50\r\n"), "{first}");
    let second = post(&model, "/v1/responses", &once).await;
    assert!(second.starts_with("HTTP/1.1 200") && second.contains("you said: status: 429 once"), "{second}");
    assert_eq!(model.requests()[8].outcome, Outcome::Refused(429));
}

#[tokio::test]
async fn a_cut_breaks_the_connection_in_mid_stream() {
    let model = MockModel::start().await.expect("started");
    for (path, body, end) in each("cut") {
        let answer = post(&model, path, &body).await;
        // The last chunk of HTTP, which says that the body is whole, is missing.
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("data: "), "{path}: {answer}");
        assert!(!answer.contains(end) && !answer.ends_with("0\r\n\r\n"), "{path}: {answer}");
    }
    until(&model, Outcome::Cut).await;
}

#[tokio::test]
async fn a_slow_answer_comes_in_pieces_and_ends_when_the_client_hangs_up() {
    let model = MockModel::start().await.expect("started");
    let mut stream = send(&model, "/v1/responses", "x: y", &responses("slow: 10000")).await;
    let mut seen = String::new();
    while !seen.contains("\"delta\":\"3 \"") {
        let mut piece = [0; 4096];
        let read = timeout(DEADLINE, stream.read(&mut piece)).await.expect("in time").expect("a piece");
        assert_ne!(read, 0, "it ended: {seen}");
        seen += &String::from_utf8_lossy(&piece[..read]);
    }
    assert_eq!(model.requests()[0].outcome, Outcome::Open);
    drop(stream);
    until(&model, Outcome::Dropped).await;
}

#[tokio::test]
async fn a_slow_answer_ends_with_the_server() {
    let model = MockModel::start().await.expect("started");
    let mut stream = send(&model, "/v1/responses", "x: y", &responses("slow: 10000")).await;
    assert_ne!(timeout(DEADLINE, stream.read(&mut [0; 16])).await.expect("in time").expect("a piece"), 0);
    drop(model);
    timeout(DEADLINE, stream.read_to_end(&mut Vec::new())).await.expect("in time").expect("the end");
}

#[tokio::test]
async fn a_big_answer_is_as_big_as_it_should_be() {
    let model = MockModel::start().await.expect("started");
    let answer = post(&model, "/v1/chat/completions", &each("big: 3000000")[1].1).await;
    let deltas = answer.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
    let bytes: usize = deltas.filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().map(str::len)).sum();
    assert_eq!(bytes, 3_000_000);
}
