//! Requests that are sent again.

use agent_proxy_sdk::testing;
use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::support::{ApiUnderTest, text};

async fn send(api: &ApiUnderTest, request: &str, key: &str, body: &str) -> (StatusCode, bool, Value) {
    let answer = api.send(request, &[("idempotency-key", key)], body).await;
    let (status, replayed) = (answer.status(), answer.headers().contains_key("idempotent-replayed"));
    (status, replayed, serde_json::from_str(&text(answer).await).unwrap_or_default())
}

#[tokio::test]
async fn a_request_of_one_key_is_done_once_over_restarts_too() {
    const START: &str = "POST /v1/sessions";
    const PROMPT: &str = "POST /v1/sessions/s-1/prompt";
    let state = tempfile::tempdir().expect("a directory");
    let build = async || {
        let manager = testing::builder().state_dir(state.path().to_owned()).build().await.expect("a manager");
        ApiUnderTest::of(manager, None)
    };
    let api = build().await;
    let config = r#"{"sessionId":"s-1","agent":"fake","cwd":"/"}"#;
    let (status, replayed, first) = send(&api, START, "k-1", config).await;
    assert_eq!((status, replayed), (StatusCode::CREATED, false), "{first}");
    assert_eq!(send(&api, START, "k-1", config).await, (StatusCode::CREATED, true, first.clone()));
    let (status, _, problem) = send(&api, START, "k-1", r#"{"agent":"fake","cwd":"/"}"#).await;
    assert_eq!((status, &problem["type"]), (StatusCode::UNPROCESSABLE_ENTITY, &"idempotency-key-reused".into()));
    assert_eq!(api.json("GET /v1/sessions", "").await.1.as_array().map(Vec::len), Some(1));

    let prompt = r#"{"text":"say one","mode":"queue"}"#;
    let (status, replayed, accepted) = send(&api, PROMPT, "k-2", prompt).await;
    assert_eq!((status, replayed, &accepted), (StatusCode::ACCEPTED, false, &json!({ "turn": 1 })));
    assert_eq!(send(&api, PROMPT, "k-2", prompt).await, (StatusCode::ACCEPTED, true, accepted.clone()));
    // The same key for another route, and for another body.
    assert_eq!(send(&api, PROMPT, "k-1", prompt).await.0, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(send(&api, PROMPT, "k-2", r#"{"text":"say two"}"#).await.0, StatusCode::UNPROCESSABLE_ENTITY);
    // What was refused is tried again.
    let refused = send(&api, START, "k-3", config).await;
    assert_eq!((refused.0, refused.1), (StatusCode::CONFLICT, false), "{}", refused.2);
    assert_eq!((send(&api, START, "k-3", config).await.1, refused.0), (false, StatusCode::CONFLICT));
    for key in ["", &"x".repeat(256)] {
        assert_eq!(send(&api, PROMPT, key, prompt).await.0, StatusCode::BAD_REQUEST, "{key:?}");
    }
    assert_eq!(send(&api, PROMPT, "k-4", r#"{"text":"say one","wait":true}"#).await.0, StatusCode::BAD_REQUEST);
    api.until("GET /v1/sessions/s-1", |session| session["state"] == "idle").await;
    api.turn("s-1", "say the last").await;
    api.manager.shutdown().await;
    drop(api);

    let api = build().await;
    assert_eq!(send(&api, START, "k-1", config).await, (StatusCode::CREATED, true, first));
    assert_eq!(send(&api, PROMPT, "k-2", prompt).await, (StatusCode::ACCEPTED, true, accepted));
    let turns = text(api.send("GET /v1/sessions/s-1/events?type=turn:started", &[], "").await).await;
    assert_eq!(turns.lines().count(), 2, "{turns}");
    api.end().await;
}

#[tokio::test]
async fn two_at_once_with_one_key_are_one() {
    let api = ApiUnderTest::new().await;
    let config = r#"{"agent":"fake","cwd":"/"}"#;
    let both = tokio::join!(
        send(&api, "POST /v1/sessions", "k", config),
        send(&api, "POST /v1/sessions", "k", config),
        send(&api, "POST /v1/sessions", "other", config)
    );
    assert_eq!((both.0.0, both.1.0), (StatusCode::CREATED, StatusCode::CREATED));
    assert_eq!(both.0.2["sessionId"], both.1.2["sessionId"]);
    assert_ne!(both.0.2["sessionId"], both.2.2["sessionId"]);
    assert_eq!(api.json("GET /v1/sessions", "").await.1.as_array().map(Vec::len), Some(2));
    api.end().await;
}

#[tokio::test]
async fn a_request_that_its_server_did_not_live_to_answer_is_not_done_again() {
    let api = ApiUnderTest::new().await;
    api.start("s-1").await;
    // As a server leaves it that is killed in the middle: begun, and without an answer.
    let lost = api.manager.begin_request("name", "print", None).await.expect("begun");
    drop(lost);
    let again = api.manager.begin_request("name", "print", None).await.expect("begun");
    assert!(matches!(again, agent_proxy_sdk::host::RequestStart::Interrupted(None, _)), "{again:?}");
    drop(again);
    let other = api.manager.begin_request("name", "other", None).await.expect("begun");
    assert!(matches!(other, agent_proxy_sdk::host::RequestStart::Reused));
    api.end().await;
}
