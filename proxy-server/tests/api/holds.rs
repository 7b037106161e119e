//! Sessions that are held: they last no longer than their holder's connection.

use axum::http::StatusCode;
use proxy_manager::{AfterSuspension, SessionState};

use crate::support::{ApiUnderTest, BodyReader, DEADLINE, keeping, text};

async fn hold(api: &ApiUnderTest, id: &str) -> BodyReader {
    let answer = api.send(&format!("GET /v1/sessions/{id}/hold"), &[], "").await;
    assert_eq!(answer.status(), StatusCode::OK);
    let mut held = BodyReader::new(answer);
    held.until("{\"held\":true}\n").await;
    held
}

/// Reads events until one of this type comes.
async fn until(api: &ApiUnderTest, id: &str, kind: &str) {
    let events = api.send(&format!("GET /v1/sessions/{id}/events?follow=true&type={kind}"), &[], "").await;
    BodyReader::new(events).until(kind).await;
}

#[tokio::test]
async fn a_session_whose_holder_leaves_is_suspended_or_killed() {
    let api = keeping().await;
    let body = r#"{"sessionId":"s-1","agent":"kept","cwd":"/"}"#;
    assert_eq!(api.json("POST /v1/sessions", body).await.0, StatusCode::CREATED);
    api.start("s-2").await;
    api.turn("s-1", "say plum").await;
    // Who asks for no body holds nothing.
    let head = api.send("HEAD /v1/sessions/s-1/hold", &[], "").await;
    assert_eq!(head.status(), StatusCode::OK);
    drop(head);
    let (first, second) = (hold(&api, "s-1").await, hold(&api, "s-2").await);
    api.turn("s-1", "say still here").await;
    drop((first, second));
    until(&api, "s-1", "session:suspended").await;
    until(&api, "s-2", "session:ended").await;

    // It is left suspended, whoever else leaves then.
    drop(hold(&api, "s-1").await);
    // A hold lasts over a resume.
    let held = hold(&api, "s-1").await;
    let (status, answer) = api.json("POST /v1/sessions/s-1/resume", "{}").await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    api.turn("s-1", "say resumed").await;
    drop(held);
    let events = api.send("GET /v1/sessions/s-1/events?follow=true&type=session:suspended", &[], "").await;
    let mut events = BodyReader::new(events);
    events.until("session:suspended").await;
    events.until("session:suspended").await;
    api.end().await;
}

#[tokio::test]
async fn a_session_lasts_as_long_as_its_last_holder() {
    let api = keeping().await;
    let body = r#"{"sessionId":"s-1","agent":"kept","cwd":"/"}"#;
    assert_eq!(api.json("POST /v1/sessions", body).await.0, StatusCode::CREATED);
    api.turn("s-1", "say plum").await;
    let (first, second) = (hold(&api, "s-1").await, hold(&api, "s-1").await);
    drop(first);
    for _ in 0..10 {
        drop(hold(&api, "s-1").await);
    }
    api.turn("s-1", "say still here").await;
    let events = text(api.send("GET /v1/sessions/s-1/events?type=session:suspended", &[], "").await).await;
    assert!(!events.contains("session:suspended"), "{events}");
    drop(second);
    until(&api, "s-1", "session:suspended").await;
    api.end().await;
}

/// A session that has crashed does not start again with nobody who holds it.
#[tokio::test]
async fn a_restart_that_waits_is_cancelled_with_the_last_holder() {
    let api = keeping().await;
    let body = r#"{"sessionId":"s-1","agent":"kept","cwd":"/","lifecycle":{"restart":{"onCrash":{"max":3,"backoffMs":60000}}}}"#;
    let (status, answer) = api.json("POST /v1/sessions", body).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    api.turn("s-1", "say plum").await;
    let held = hold(&api, "s-1").await;
    assert_eq!(api.json("POST /v1/sessions/s-1/prompt", r#"{"text":"crash"}"#).await.0, StatusCode::ACCEPTED);
    until(&api, "s-1", "session:suspended").await;
    let id = "s-1".parse().expect("an id");
    let next = || match api.manager.session(&id).expect("known").info().state {
        SessionState::Suspended { next, .. } => next,
        other => panic!("{other:?}"),
    };
    assert!(matches!(next(), AfterSuspension::Restart(_)), "{:?}", next());
    drop(held);
    tokio::time::timeout(DEADLINE, async {
        while !matches!(next(), AfterSuspension::Resume) {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("it is cancelled");
    api.end().await;
}

#[tokio::test]
async fn a_hold_ends_with_its_session() {
    let api = ApiUnderTest::new().await;
    api.start("s-1").await;
    let held = hold(&api, "s-1").await;
    assert_eq!(api.json("POST /v1/sessions/s-1/kill", "{}").await.0, StatusCode::OK);
    // Before it there may be signs of life.
    assert_eq!(held.rest().await.trim_start(), "{\"held\":false}\n");
    let refused = api.send("GET /v1/sessions/nobody/hold", &[], "").await;
    assert_eq!(refused.status(), StatusCode::NOT_FOUND);
    // At the end of the manager nothing was left by anybody.
    api.start("s-2").await;
    let answer = api.send("GET /v1/sessions/s-2/hold", &[], "").await;
    for receipt in api.manager.shutdown().await {
        assert!(receipt.is_empty(), "{receipt}");
    }
    assert!(text(answer).await.starts_with("{\"held\":true}\n"));
}
