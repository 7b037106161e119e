//! Clients that leave before the answer: what they have begun goes on.

use std::{future::poll_fn, task::Poll, time::Duration};

use axum::{body::Body, http::Request};
use proxy_server::{AuditLog, ServerOptions};
use serde_json::Value;
use tower::ServiceExt as _;

use crate::support::{ApiUnderTest, DEADLINE};

/// Sends a request, and leaves as soon as the server has it.
async fn send_and_leave(api: &ApiUnderTest, request: &str, body: &str) {
    let (method, path) = request.split_once(' ').expect("METHOD PATH");
    let request = Request::builder().method(method).uri(path).body(Body::from(body.to_owned())).expect("a request");
    let mut answer = Box::pin(api.router.clone().oneshot(request));
    // Polled once, and dropped, as the server does with it when the connection ends.
    poll_fn(|context| {
        assert!(answer.as_mut().poll(context).is_pending(), "it takes longer than that");
        Poll::Ready(())
    })
    .await;
}

#[tokio::test]
async fn a_start_goes_on_without_its_client() {
    let api = ApiUnderTest::new().await;
    send_and_leave(&api, "POST /v1/sessions", r#"{"sessionId":"s-1","agent":"fake","cwd":"/"}"#).await;
    api.until("GET /v1/sessions/s-1", |session| session["state"] == "idle").await;
    api.end().await;
}

#[tokio::test]
async fn a_kill_is_carried_out_without_its_client() {
    let api = ApiUnderTest::new().await;
    for (id, request, body) in [
        ("s-1", "POST /v1/sessions/s-1/kill", r#"{"graceMs":200}"#),
        // One that does not end by SIGTERM.
        ("s-2", "POST /v1/sessions/s-2/kill", r#"{"graceMs":50}"#),
    ] {
        api.start(id).await;
        if id == "s-2" {
            api.turn(id, "ignore-sigterm\nsetsid exec sleep 600").await;
        }
        send_and_leave(&api, request, body).await;
        let receipts = api.until(&format!("GET /v1/sessions/{id}/receipts"), |list| list[0].is_object()).await;
        let receipt = &receipts[0]["receipt"];
        assert!(receipt["survivors"] == serde_json::json!([]) && receipt["proof"].is_string(), "{receipts}");
    }
    api.end().await;
}

#[tokio::test]
async fn a_prompt_a_steer_and_an_operation_are_carried_out_without_their_clients() {
    let api = ApiUnderTest::new().await;
    api.start("s-1").await;
    send_and_leave(&api, "POST /v1/sessions/s-1/prompt", r#"{"text":"say one\nwait"}"#).await;
    api.until("GET /v1/sessions/s-1/events?type=stream:text", |page| page.to_string().contains("one")).await;
    send_and_leave(&api, "POST /v1/sessions/s-1/steer", r#"{"text":"two"}"#).await;
    api.until("GET /v1/sessions/s-1/events?type=stream:text", |page| page.to_string().contains("steered: two")).await;
    send_and_leave(&api, "POST /v1/sessions/s-1/abort", "{}").await;
    api.until("GET /v1/sessions/s-1", |session| session["state"] == "idle").await;
    send_and_leave(&api, "POST /v1/sessions/s-1/operations", r#"{"setModel":{"model":"fake-2"}}"#).await;
    api.until("GET /v1/sessions/s-1", |session| {
        session["model"] == "fake-2" || session["agentStatus"]["model"] == "fake-2"
    })
    .await;
    api.end().await;
}

#[tokio::test]
async fn a_change_of_several_settings_is_whole_without_its_client() {
    let api = ApiUnderTest::durable().await;
    api.start("s-1").await;
    let change = r#"{"title":"Login","addTags":["web"],"archived":true}"#;
    send_and_leave(&api, "PATCH /v1/sessions/s-1", change).await;
    let record = api.until("GET /v1/records/s-1", |record| record["archived"] == true).await;
    assert_eq!(
        (&record["config"]["lifecycle"]["title"], &record["config"]["lifecycle"]["tags"]),
        (&"Login".into(), &serde_json::json!(["web"])),
        "{record}"
    );
    api.end().await;
}

#[tokio::test]
async fn the_audit_log_has_the_outcome_of_what_a_client_has_left() {
    let mut api = ApiUnderTest::new().await;
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("audit.jsonl");
    let options = ServerOptions::default().with_audit(AuditLog::open(&file).expect("opened"));
    api.router = proxy_server::router(api.manager.clone(), options);
    send_and_leave(&api, "POST /v1/sessions", r#"{"sessionId":"s-1","agent":"fake","cwd":"/"}"#).await;
    let recorded = async {
        loop {
            let text = std::fs::read_to_string(&file).expect("readable");
            if let Some(line) = text.lines().find(|line| line.ends_with('}')) {
                return serde_json::from_str::<Value>(line).expect("JSON");
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let line = tokio::time::timeout(DEADLINE, recorded).await.expect("recorded");
    assert_eq!(
        (&line["outcome"], &line["status"], &line["session"]),
        (&"done".into(), &201.into(), &"s-1".into()),
        "{line}"
    );
    api.end().await;
}
