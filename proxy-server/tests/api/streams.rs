//! Streams before their session, and without one.

use agent_proxy_sdk::testing;
use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::support::{ApiUnderTest, BodyReader, DEADLINE};

async fn append(api: &ApiUnderTest, stream: &str, kind: &str, payload: Value) -> u64 {
    let body = json!({ "type": kind, "payload": payload, "metadata": { "requestId": kind } }).to_string();
    let (status, appended) = api.json(&format!("POST /v1/streams/{stream}/events"), &body).await;
    assert_eq!(status, StatusCode::CREATED, "{appended}");
    appended["offset"].as_str().and_then(|offset| offset.parse().ok()).expect("an offset")
}

/// Follows a stream from an offset.
async fn follow(api: &ApiUnderTest, stream: &str, from: &str) -> BodyReader {
    let accept = [("accept", "text/event-stream")];
    let answer = api.send(&format!("GET /v1/streams/{stream}/events?from={from}&raw=false"), &accept, "").await;
    assert_eq!(answer.status(), StatusCode::OK);
    BodyReader::new(answer)
}

async fn kinds(api: &ApiUnderTest, stream: &str) -> Vec<String> {
    let (_, page) = api.json(&format!("GET /v1/streams/{stream}/events?raw=false"), "").await;
    let events = page["events"].as_array().expect("events").iter();
    events.map(|event| event["type"].as_str().expect("a type").to_owned()).collect()
}

#[tokio::test]
async fn the_first_event_may_ask_for_the_session() {
    let api = ApiUnderTest::durable().await;
    let mut early = follow(&api, "chat-7", "latest").await;
    assert_eq!(append(&api, "chat-7", "slack:received", json!({ "text": "hi" })).await, 1);
    let config = json!({ "config": { "cwd": "/" } });
    assert_eq!(append(&api, "chat-7", "agent:harness:fake:action:session-create:called", config).await, 2);
    append(&api, "chat-7", "agent:action:prompt:called", json!({ "content": "say hello" })).await;
    // One reader sees all of it, over the start of the session.
    let read = async {
        early.until("slack:received").await;
        early.until("session:started").await;
        early.until("turn:started").await;
        early.until("hello").await;
        early.until("session:idle").await;
    };
    tokio::time::timeout(DEADLINE, read).await.expect("in time");
    let (status, session) = api.json("GET /v1/sessions/chat-7", "").await;
    assert_eq!((status, &session["agent"]), (StatusCode::OK, &"fake".into()), "{session}");
    let kinds = kinds(&api, "chat-7").await;
    assert_eq!(&kinds[..2], ["slack:received", "agent:harness:fake:action:session-create:called"], "{kinds:?}");
    assert!(!kinds.contains(&"action:failed".to_owned()), "{kinds:?}");
    let turn = api.json("GET /v1/sessions/chat-7/events?type=turn:started", "").await.1;
    assert_eq!(turn["events"][0]["metadata"]["requestId"], "agent:action:prompt:called", "{turn}");
    assert_eq!(api.json("GET /v1/streams", "").await.1, json!([]), "it has a session now");
    api.end().await;
}

#[tokio::test]
async fn what_no_session_can_do_is_told_as_failed() {
    let api = ApiUnderTest::new().await;
    append(&api, "chat-8", "agent:action:prompt:called", json!({ "content": "say hello" })).await;
    append(&api, "chat-8", "agent:action:session-create:called", json!({ "config": { "agent": "nobody" } })).await;
    let mut events = follow(&api, "chat-8", "0").await;
    let read = async {
        assert!(events.until("no session has this stream yet").await.contains("action:failed"));
        events.until("nobody").await;
        events.until("action:failed").await;
    };
    tokio::time::timeout(DEADLINE, read).await.expect("in time");
    let (_, listed) = api.json("GET /v1/streams", "").await;
    assert_eq!((&listed[0]["eventStreamId"], listed.as_array().map(Vec::len)), (&"chat-8".into(), Some(1)), "{listed}");
    // It is still there for a session.
    let config = json!({ "config": { "agent": "fake", "cwd": "/" } });
    append(&api, "chat-8", "agent:action:session-create:called", config).await;
    tokio::time::timeout(DEADLINE, events.until("session:started")).await.expect("in time");
    for (stream, body) in
        [("a%2Fb", r#"{"type":"a:b"}"#), ("chat-8", "{}"), ("chat-9", r#"{"type":"session:started"}"#)]
    {
        let (status, problem) = api.json(&format!("POST /v1/streams/{stream}/events"), body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{stream}: {problem}");
    }
    assert_eq!(api.json("POST /v1/sessions/chat-9/events", r#"{"type":"a:b"}"#).await.0, StatusCode::NOT_FOUND);
    api.end().await;
}

#[tokio::test]
async fn a_stream_without_a_session_goes_on_after_a_restart() {
    let state = tempfile::tempdir().expect("a directory");
    let build = async || {
        let manager = testing::builder().state_dir(state.path().to_owned()).build().await.expect("a manager");
        ApiUnderTest::of(manager, None)
    };
    let api = build().await;
    append(&api, "chat-7", "slack:received", json!({ "text": "hi" })).await;
    api.manager.shutdown().await;
    drop(api);

    let api = build().await;
    assert_eq!(kinds(&api, "chat-7").await, ["slack:received"]);
    assert_eq!(append(&api, "chat-7", "slack:received", json!({ "text": "ho" })).await, 2);
    let config = json!({ "config": { "agent": "fake", "cwd": "/" } });
    append(&api, "chat-7", "agent:action:session-create:called", config).await;
    let mut events = follow(&api, "chat-7", "0").await;
    tokio::time::timeout(DEADLINE, events.until("session:started")).await.expect("in time");
    api.end().await;
}

/// Without a log a stream begins again, and a reader that comes back has seen more of the one before.
#[tokio::test]
async fn a_reader_of_a_stream_that_began_again_hears_all_of_it() {
    let api = ApiUnderTest::new().await;
    let mut early = follow(&api, "chat-7", "50").await;
    append(&api, "chat-7", "slack:received", json!({ "text": "first" })).await;
    append(&api, "chat-7", "slack:received", json!({ "text": "second" })).await;
    let mut late = follow(&api, "chat-7", "50").await;
    let read = async {
        for events in [&mut early, &mut late] {
            events.until("first").await;
            events.until("second").await;
        }
    };
    tokio::time::timeout(DEADLINE, read).await.expect("in time");
    let (_, page) = api.json("GET /v1/streams/chat-7/events?from=50&raw=false", "").await;
    assert_eq!(page["events"].as_array().map(Vec::len), Some(2), "{page}");
    api.end().await;
}

#[tokio::test]
async fn readers_of_a_stream_without_a_session_end_with_the_manager() {
    let api = ApiUnderTest::new().await;
    let id = "chat-7".parse().expect("an id");
    let mut events = api.manager.subscribe_to_stream(&id, 0).expect("subscribed");
    append(&api, "chat-7", "slack:received", json!({})).await;
    assert_eq!(events.next().await.map(|event| event.offset), Some(1));
    api.manager.shutdown().await;
    let end = tokio::time::timeout(DEADLINE, events.next()).await.expect("it ends");
    assert!(end.is_none(), "{end:?}");
    let other = "chat-8".parse().expect("an id");
    let late = api.manager.subscribe_to_stream(&other, 0).map(drop);
    assert!(matches!(late, Err(proxy_manager::Error::ShutDown)), "{late:?}");
}
