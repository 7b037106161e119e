//! The Durable Streams protocol. Its conformance tests are run by `tests/streams/run`; here is what those cannot see.

use agent_proxy_sdk::{catalog::AgentSpec, testing};
use axum::http::{HeaderMap, StatusCode};
use proxy_server::{Identity, Role};
use serde_json::{Value, json};

use crate::support::{ApiUnderTest, BodyReader, DEADLINE, text};

const JSON: (&str, &str) = ("content-type", "application/json");

/// Sends a request; returns status, headers and body of the answer.
async fn ask(
    api: &ApiUnderTest,
    request: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> (StatusCode, HeaderMap, String) {
    let answer = api.send(request, headers, body).await;
    (answer.status(), answer.headers().clone(), text(answer).await)
}

#[track_caller]
fn header<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).unwrap_or_else(|| panic!("no {name} in {headers:?}")).to_str().expect("text")
}

/// Reads all of a JSON stream.
async fn all(api: &ApiUnderTest, path: &str) -> Vec<Value> {
    let (status, _, body) = ask(api, &format!("GET /v1/streams/{path}"), &[], "").await;
    assert_eq!(status, StatusCode::OK, "{body}");
    serde_json::from_str(&body).expect("an array")
}

/// Calls the router as somebody.
fn called_by(api: &ApiUnderTest, identity: Identity) -> ApiUnderTest {
    let mut theirs = ApiUnderTest::of(api.manager.clone(), None);
    theirs.router = theirs.router.layer(axum::Extension(identity));
    theirs
}

#[tokio::test]
async fn streams_outlive_their_server() {
    let state = tempfile::tempdir().expect("a directory");
    let build = async || {
        let manager = testing::builder().state_dir(state.path().to_owned()).build().await.expect("a manager");
        ApiUnderTest::of(manager, None)
    };
    let api = build().await;
    assert_eq!(ask(&api, "PUT /v1/streams/logs/a", &[("content-type", "text/plain")], "begin ").await.0, 201);
    let (status, headers, _) = ask(&api, "POST /v1/streams/logs/a", &[("content-type", "text/plain")], "end").await;
    assert_eq!((status, header(&headers, "stream-next-offset")), (StatusCode::NO_CONTENT, "00000000000000000009"));
    let producer = |seq: &'static str| [JSON, ("producer-id", "p"), ("producer-epoch", "0"), ("producer-seq", seq)];
    ask(&api, "PUT /v1/streams/items", &[JSON, ("stream-ttl", "3600")], "").await;
    assert_eq!(ask(&api, "POST /v1/streams/items", &producer("0"), "[1,2]").await.0, StatusCode::OK);
    let fork = [("stream-forked-from", "/v1/streams/items"), ("stream-fork-offset", "00000000000000000001")];
    assert_eq!(ask(&api, "PUT /v1/streams/forks/items", &fork, "").await.0, StatusCode::CREATED);
    assert_eq!(ask(&api, "DELETE /v1/streams/items", &[], "").await.0, StatusCode::NO_CONTENT);
    let (_, headers, _) = ask(&api, "POST /v1/streams/logs/a", &[("stream-closed", "true")], "").await;
    assert_eq!(header(&headers, "stream-closed"), "true");
    api.manager.shutdown().await;
    drop(api);

    let api = build().await;
    let (_, headers, body) = ask(&api, "GET /v1/streams/logs/a?offset=00000000000000000003", &[], "").await;
    assert_eq!((body.as_str(), header(&headers, "stream-closed")), ("in end", "true"));
    assert_eq!(ask(&api, "GET /v1/streams/items", &[], "").await.0, StatusCode::GONE, "a fork has its beginning");
    let (status, _, again) = ask(&api, "PUT /v1/streams/items", &[JSON], "").await;
    assert!(status == StatusCode::CONFLICT && again.contains("forks of it still have its content"), "{again}");
    let (_, headers, _) = ask(&api, "HEAD /v1/streams/forks/items", &[], "").await;
    assert_eq!(header(&headers, "stream-ttl"), "3600", "as its source had");
    assert_eq!(ask(&api, "POST /v1/streams/forks/items", &producer("0"), "3").await.0, StatusCode::OK);
    assert_eq!(ask(&api, "POST /v1/streams/forks/items", &producer("0"), "3").await.0, StatusCode::NO_CONTENT);
    assert_eq!(all(&api, "forks/items").await, [1, 3]);
    assert_eq!(ask(&api, "DELETE /v1/streams/forks/items", &[], "").await.0, StatusCode::NO_CONTENT);
    assert_eq!(ask(&api, "GET /v1/streams/items", &[], "").await.0, StatusCode::NOT_FOUND, "nobody needs it now");
    api.end().await;
}

#[tokio::test]
async fn free_streams_are_for_those_who_see_all_users() {
    let api = ApiUnderTest::durable().await;
    assert_eq!(ask(&api, "PUT /v1/streams/a", &[JSON], "[1]").await.0, StatusCode::CREATED);
    let reader = called_by(&api, Identity::new("reader", Role::Read));
    assert_eq!(all(&reader, "a").await, [1]);
    for request in ["PUT /v1/streams/b", "POST /v1/streams/a", "DELETE /v1/streams/a"] {
        let (status, _, problem) = ask(&reader, request, &[JSON], "[2]").await;
        assert!(status == StatusCode::FORBIDDEN && problem.contains("needs the role operate"), "{request}: {problem}");
    }
    let ada = called_by(&api, Identity::new("ada", Role::Operate).with_user("ada"));
    for request in
        ["GET /v1/streams/a", "HEAD /v1/streams/a", "PUT /v1/streams/b", "POST /v1/streams/a", "DELETE /v1/streams/a"]
    {
        assert_eq!(ask(&ada, request, &[JSON], "[2]").await.0, StatusCode::FORBIDDEN, "{request}");
    }
    // Of sessions, a user's own are seen.
    for (user, id) in [("ada", "s-ada"), ("bob", "s-bob")] {
        let config = json!({ "sessionId": id, "agent": "fake", "cwd": "/", "userId": user }).to_string();
        assert_eq!(api.json("POST /v1/sessions", &config).await.0, StatusCode::CREATED);
    }
    assert_eq!(all(&ada, "s-ada").await[0]["eventStreamId"], "s-ada");
    assert_eq!(ask(&ada, "GET /v1/streams/s-bob", &[], "").await.0, StatusCode::NOT_FOUND);
    let fork = [("stream-forked-from", "/v1/streams/s-bob")];
    assert_eq!(ask(&ada, "PUT /v1/streams/mine", &fork, "").await.0, StatusCode::FORBIDDEN);
    assert_eq!(all(&api, "a").await, [1], "nothing was changed");
    api.end().await;
}

#[tokio::test]
async fn names_that_are_taken_say_by_what() {
    let api = ApiUnderTest::durable().await;
    api.start("s-1").await;
    for (request, status, word) in [
        ("PUT /v1/streams/s-1", StatusCode::CONFLICT, "stream of a session"),
        ("POST /v1/streams/s-1", StatusCode::METHOD_NOT_ALLOWED, "POST /v1/streams/s-1/events"),
        ("DELETE /v1/streams/s-1", StatusCode::METHOD_NOT_ALLOWED, "DELETE /v1/sessions/s-1"),
        ("PUT /v1/streams/x/events", StatusCode::METHOD_NOT_ALLOWED, "NAME/events is reserved"),
        ("PATCH /v1/streams/nothing", StatusCode::METHOD_NOT_ALLOWED, "this route has another method"),
        ("PUT /v1/streams/__ds/subscriptions/x", StatusCode::NOT_IMPLEMENTED, "subscriptions"),
        ("PUT /v1/streams/a//b", StatusCode::BAD_REQUEST, "a segment is empty"),
        ("PUT /v1/streams/a/%2E%2E/b", StatusCode::BAD_REQUEST, "dots alone"),
        ("GET /v1/streams/nothing", StatusCode::NOT_FOUND, "PUT /v1/streams/nothing"),
    ] {
        let (found, _, problem) = ask(&api, request, &[JSON], "").await;
        assert!(found == status && problem.contains(word), "{request}: {found} {problem}");
    }
    // Deeper names may end in it.
    assert_eq!(ask(&api, "PUT /v1/streams/x/y/events", &[JSON], "[1]").await.0, StatusCode::CREATED);
    assert_eq!(all(&api, "x/y/events").await, [1]);
    api.end().await;
    let api = ApiUnderTest::new().await;
    let (status, _, problem) = ask(&api, "PUT /v1/streams/a", &[JSON], "").await;
    assert!(status == StatusCode::NOT_IMPLEMENTED && problem.contains("--state-dir"), "{status}: {problem}");
    api.end().await;
}

#[tokio::test]
async fn a_reader_that_waits_is_told_of_each_end() {
    let api = ApiUnderTest::durable().await;
    let text_plain = [("content-type", "text/plain")];
    ask(&api, "PUT /v1/streams/a", &text_plain, "").await;
    ask(&api, "PUT /v1/streams/b", &text_plain, "").await;
    let mut events = BodyReader::new(api.send("GET /v1/streams/a?offset=-1&live=sse", &[], "").await);
    assert!(events.until("event: control\n").await.is_empty());
    events.until("\"upToDate\":true").await;
    ask(&api, "POST /v1/streams/a", &text_plain, " one\r\ntwo").await;
    events.until("event: data\ndata:  one\ndata:two\n\n").await;
    let closed = async {
        let waiting = ask(&api, "GET /v1/streams/b?offset=now&live=long-poll", &[], "");
        let close = ask(&api, "POST /v1/streams/b", &[("stream-closed", "true")], "");
        let ((status, headers, _), _) = tokio::join!(waiting, close);
        assert_eq!((status, header(&headers, "stream-closed")), (StatusCode::NO_CONTENT, "true"));
    };
    tokio::time::timeout(DEADLINE, closed).await.expect("in time");
    ask(&api, "DELETE /v1/streams/a", &[], "").await;
    let rest = events.rest().await;
    assert!(!rest.contains("streamClosed"), "it was deleted, not closed: {rest}");
    api.end().await;
}

/// A reader that takes nothing: what waits for it is bounded, and the server goes on.
#[tokio::test]
async fn a_slow_reader_holds_up_nobody() {
    let api = ApiUnderTest::durable().await;
    let bytes = [("content-type", "application/octet-stream")];
    ask(&api, "PUT /v1/streams/a", &bytes, "").await;
    let slow = api.send("GET /v1/streams/a?offset=-1&live=sse", &[], "").await;
    let chunk = "x".repeat(1024 * 1024);
    for _ in 0..8 {
        assert_eq!(ask(&api, "POST /v1/streams/a", &bytes, &chunk).await.0, StatusCode::NO_CONTENT);
    }
    ask(&api, "POST /v1/streams/a", &[("stream-closed", "true")], "").await;
    // It gets all of it later.
    let encoded: usize = text(slow)
        .await
        .lines()
        .filter_map(|line| line.strip_prefix("data:"))
        .filter(|line| !line.starts_with('{'))
        .map(str::len)
        .sum();
    assert!(encoded >= 8 * chunk.len() / 3 * 4, "{encoded}");
    // Pages have a bound, too.
    let (_, headers, page) = ask(&api, "GET /v1/streams/a", &[], "").await;
    assert!(page.len() < 2 * chunk.len() && !headers.contains_key("stream-up-to-date"), "{}", page.len());
    api.end().await;
}

/// Rules make actions of messages, once each, and those of the time of another server too.
#[tokio::test]
async fn rules_are_for_messages_with_the_shape_of_an_event() {
    let state = tempfile::tempdir().expect("a directory");
    let program = std::fs::read_link("/proc/self/exe").expect("a program").display().to_string();
    let chats = state.path().join("chats").display().to_string();
    let build = async |rules: Value| {
        let kept = AgentSpec::new("kept", "acp", &[&program, "--agent-proxy-fake-agent", "--store", &chats]);
        let rules: Vec<agent_proxy_sdk::host::ActionRule> = serde_json::from_value(rules).expect("rules");
        let builder = testing::builder().agent(kept).rules(rules).state_dir(state.path().join("state"));
        ApiUnderTest::of(builder.build().await.expect("a manager"), None)
    };
    let rules = json!([
        { "on": "hook:begin", "action": "session-create", "payload": { "config": { "agent": "kept", "cwd": "/" } } },
        { "on": "hook:said", "action": "prompt", "payload": { "content": "say {text}", "mode": "queue" } },
    ]);
    let kinds = async |api: &ApiUnderTest| -> Vec<String> {
        let page = api.json("GET /v1/streams/hooks.a/events?raw=false", "").await.1;
        let events = page["events"].as_array().cloned().unwrap_or_default();
        events.iter().map(|event| event["type"].as_str().expect("a type").to_owned()).collect()
    };
    let post = async |api: &ApiUnderTest, message: Value| {
        let (status, _, problem) = ask(api, "POST /v1/streams/hooks/a", &[JSON], &message.to_string()).await;
        assert_eq!(status, StatusCode::NO_CONTENT, "{problem}");
    };

    // Without rules nothing is made of what comes, then or later.
    let api = build(json!([])).await;
    ask(&api, "PUT /v1/streams/hooks/a", &[JSON], "").await;
    post(&api, json!({ "type": "hook:begin", "payload": {} })).await;
    api.end().await;

    let api = build(rules.clone()).await;
    let mut events = BodyReader::new(
        api.send("GET /v1/streams/hooks.a/events?from=0&raw=false", &[("accept", "text/event-stream")], "").await,
    );
    post(&api, json!([1, { "type": "hook:nothing", "payload": {} }, { "type": "audit:call", "payload": {} }])).await;
    post(
        &api,
        json!([{ "type": "hook:begin", "payload": {} }, { "type": "hook:said", "payload": { "text": "hello" } }]),
    )
    .await;
    tokio::time::timeout(DEADLINE, events.until("stream:complete")).await.expect("in time");
    let made = kinds(&api).await;
    assert_eq!(made.iter().filter(|kind| kind.starts_with("hook:")).count(), 2, "{made:?}");
    assert_eq!(made.iter().filter(|kind| *kind == "turn:started").count(), 1, "{made:?}");
    assert!(!made.contains(&"audit:call".to_owned()), "{made:?}");
    assert_eq!(all(&api, "hooks/a").await.len(), 6, "the messages are as they were sent");
    api.end().await;
    drop(events);

    // What was done is not done again.
    let api = build(rules).await;
    post(&api, json!({ "type": "hook:said", "payload": { "text": "more" } })).await;
    let wait = async {
        while kinds(&api).await.iter().filter(|kind| *kind == "hook:said").count() < 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, wait).await.expect("in time");
    let made = kinds(&api).await;
    assert_eq!(made.iter().filter(|kind| *kind == "hook:begin").count(), 1, "{made:?}");
    api.end().await;
}
