//! Prompts that wait: who sent them, and what becomes of those that are dropped.

use axum::http::StatusCode;
use proxy_server::{Identity, Role};

use crate::support::{ApiUnderTest, BodyReader, DEADLINE, text};

/// Queues a prompt, and does not wait for its turn.
async fn queue(api: &ApiUnderTest, script: &str) {
    let body = serde_json::json!({ "text": script, "mode": "queue" }).to_string();
    let (status, answer) = api.json("POST /v1/sessions/s-1/prompt", &body).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{answer}");
}

/// Whoever sent it was told the number of its turn, and reads that.
#[tokio::test]
async fn a_prompt_behind_a_dropped_one_has_the_turn_that_it_was_told() {
    let api = ApiUnderTest::durable().await;
    api.start("s-1").await;
    queue(&api, "wait").await;
    queue(&api, "say two").await;
    let body = serde_json::json!({ "text": "say three", "mode": "queue", "wait": true }).to_string();
    let third = api.send("POST /v1/sessions/s-1/prompt", &[], &body).await;
    let (_, listed) = api.json("GET /v1/sessions/s-1/queue", "").await;
    let second = format!("DELETE /v1/sessions/s-1/queue/{}", listed[0]["offset"].as_str().expect("an offset"));
    assert_eq!(api.send(&second, &[], "").await.status(), StatusCode::NO_CONTENT);
    let body = serde_json::json!({ "text": "say four", "mode": "queue" }).to_string();
    let (_, fourth) = api.json("POST /v1/sessions/s-1/prompt", &body).await;
    assert_eq!(fourth["turn"], 4, "{fourth}");
    assert_eq!(api.send("POST /v1/sessions/s-1/abort", &[], "{}").await.status(), StatusCode::NO_CONTENT);
    let third = tokio::time::timeout(DEADLINE, text(third)).await.expect("its turn");
    assert!(third.contains("three\\n") && third.contains("\"turn\":3"), "{third}");
    api.end().await;
}

#[tokio::test]
async fn a_prompt_that_is_dropped_is_told_as_failed_and_never_begun() {
    let mut api = ApiUnderTest::durable().await;
    api.start("s-1").await;
    queue(&api, "wait").await;
    let ada = Identity::new("ada", Role::Operate);
    let hers = api.router.clone().layer(axum::Extension(ada));
    let mine = std::mem::replace(&mut api.router, hers);
    queue(&api, "say two").await;
    api.router = mine;
    queue(&api, "say three").await;
    // Its sender waits for the turn.
    let body = serde_json::json!({ "text": "say four", "mode": "queue", "wait": true }).to_string();
    let waiting = api.send("POST /v1/sessions/s-1/prompt", &[], &body).await;

    let (_, listed) = api.json("GET /v1/sessions/s-1/queue", "").await;
    let texts: Vec<&str> =
        listed.as_array().expect("a list").iter().filter_map(|prompt| prompt["text"].as_str()).collect();
    assert_eq!(texts, ["say two", "say three", "say four"], "{listed}");
    assert_eq!((&listed[0]["by"], &listed[1]["by"]), (&"ada".into(), &"host".into()), "{listed}");
    assert!(listed[0]["at"].is_string(), "{listed}");

    let one = format!("DELETE /v1/sessions/s-1/queue/{}", listed[0]["offset"].as_str().expect("an offset"));
    assert_eq!(api.send(&one, &[], "").await.status(), StatusCode::NO_CONTENT);
    let (status, problem) = api.json(&one, "").await;
    assert_eq!((status, &problem["type"]), (StatusCode::NOT_FOUND, &"unknown-prompt".into()), "{problem}");
    assert_eq!(api.json("DELETE /v1/sessions/s-1/queue/first", "").await.0, StatusCode::BAD_REQUEST);

    let (status, dropped) = api.json("DELETE /v1/sessions/s-1/queue", "").await;
    assert_eq!((status, dropped.as_array().map(Vec::len)), (StatusCode::OK, Some(2)), "{dropped}");
    assert!(text(waiting).await.contains("prompt-dropped"), "who waits for its turn is told");
    assert_eq!(api.json("GET /v1/sessions/s-1/queue", "").await.1, serde_json::json!([]));
    let failed = api.send("GET /v1/sessions/s-1/events?type=action:failed", &[], "").await;
    let failed = text(failed).await;
    assert_eq!(failed.matches("dropped from the queue by \\\"host\\\"").count(), 3, "{failed}");

    // The turn that runs is untouched, and nothing begins behind it.
    assert_eq!(api.send("POST /v1/sessions/s-1/abort", &[], "{}").await.status(), StatusCode::NO_CONTENT);
    let events = api.send("GET /v1/sessions/s-1/events?follow=true&type=session:idle,turn", &[], "").await;
    let mut events = BodyReader::new(events);
    tokio::time::timeout(DEADLINE, async {
        events.until("session:idle").await;
        events.until("session:idle").await;
    })
    .await
    .expect("idle again");
    api.turn("s-1", "say five").await;
    let turns = text(api.send("GET /v1/sessions/s-1/events?type=turn:started", &[], "").await).await;
    assert_eq!(turns.lines().count(), 2, "{turns}");
    api.end().await;
}
