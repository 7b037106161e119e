//! Metadata of callers, and the agent's own lines as JSON.

use agent_proxy_sdk::testing;
use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::support::{ApiUnderTest, text};

/// Reads the selected events of `s-1` from a page.
async fn events(api: &ApiUnderTest, query: &str) -> Vec<Value> {
    let (status, page) = api.json(&format!("GET /v1/sessions/s-1/events?{query}"), "").await;
    assert_eq!(status, StatusCode::OK, "{page}");
    page["events"].as_array().cloned().expect("events")
}

#[tokio::test]
async fn metadata_comes_back_to_every_reader_over_restarts_too() {
    let state = tempfile::tempdir().expect("a directory");
    let build = async || {
        let manager = testing::builder().state_dir(state.path().to_owned()).build().await.expect("a manager");
        ApiUnderTest::of(manager, None)
    };
    let api = build().await;
    api.start("s-1").await;
    let ids = json!({ "requestId": "r-7", "nested": { "a": [1, 2] } });
    let body = json!({ "type": "slack:received", "payload": { "text": "hi" }, "metadata": ids }).to_string();
    let (status, appended) = api.json("POST /v1/sessions/s-1/events", &body).await;
    assert_eq!(status, StatusCode::CREATED, "{appended}");
    let prompt =
        |text: &str, mode: &str| json!({ "text": text, "mode": mode, "wait": true, "metadata": ids }).to_string();
    for mode in ["refuse", "queue"] {
        text(api.send("POST /v1/sessions/s-1/prompt", &[], &prompt("say one", mode)).await).await;
    }
    let check = async |api: &ApiUnderTest| {
        let received = events(api, "type=slack:received").await;
        assert_eq!((received.len(), &received[0]["metadata"]), (1, &ids), "{received:?}");
        let queued = events(api, "type=agent:action:prompt:called").await;
        assert_eq!((queued.len(), &queued[0]["metadata"]), (1, &ids), "{queued:?}");
        let turns = events(api, "type=turn:started").await;
        let of_turn = |turn: u64| json!({ "requestId": "r-7", "nested": { "a": [1, 2] }, "turn": turn });
        assert_eq!((&turns[0]["metadata"], &turns[1]["metadata"]), (&of_turn(1), &of_turn(2)), "{turns:?}");
        let lines = api.send("GET /v1/sessions/s-1/events?type=slack:received", &[], "").await;
        assert!(text(lines).await.contains(r#""requestId":"r-7""#));
        let all = api.send("GET /v1/events?type=slack:received", &[], "").await;
        assert!(text(all).await.contains(r#""requestId":"r-7""#));
    };
    check(&api).await;
    api.manager.shutdown().await;
    drop(api);

    let api = build().await;
    check(&api).await;
    let export = state.path().join("s-1.jsonl");
    let exported = text(api.send("GET /v1/sessions/s-1/events", &[], "").await).await;
    std::fs::write(&export, exported).expect("written");
    api.manager.shutdown().await;
    drop(api);

    let other = ApiUnderTest::durable().await;
    let body = json!({ "path": export }).to_string();
    let (status, imported) = other.json("POST /v1/import", &body).await;
    assert_eq!(status, StatusCode::OK, "{imported}");
    check(&other).await;
    other.end().await;
}

#[tokio::test]
async fn metadata_that_is_no_object_or_too_long_is_refused() {
    let api = ApiUnderTest::new().await;
    api.start("s-1").await;
    let long = "x".repeat(17 * 1024);
    for metadata in [json!(1), json!([]), json!({ "turn": 1 }), json!({ "long": long })] {
        for (route, mut body) in [
            ("POST /v1/sessions/s-1/events", json!({ "type": "a:b" })),
            ("POST /v1/sessions/s-1/prompt", json!({ "text": "say one" })),
        ] {
            body["metadata"] = metadata.clone();
            let (status, problem) = api.json(route, &body.to_string()).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{route}: {problem}");
            assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains("metadata")), "{problem}");
        }
    }
    assert_eq!(events(&api, "type=a:b,turn:started").await, Vec::<Value>::new(), "nothing was changed");
    api.end().await;
}

#[tokio::test]
async fn lines_of_the_agent_s_protocol_are_json_beside_the_exact_line() {
    let api = ApiUnderTest::new().await;
    api.start("s-1").await;
    api.turn("s-1", "say one").await;
    let raw = events(&api, "type=harness").await;
    assert!(!raw.is_empty());
    for event in &raw {
        let payload = &event["payload"];
        let line = payload["line"].as_str().expect("a line");
        assert_eq!(
            payload["json"],
            serde_json::from_str::<Value>(line).expect("the fake agent speaks JSON"),
            "{event}"
        );
    }
    api.end().await;
}
