//! Metrics.

use axum::{Router, http::StatusCode};
use proxy_server::{Identity, Role, ServerMetrics, ServerOptions};
use serde_json::json;

use crate::{
    sockets::SocketUnderTest,
    support::{ApiUnderTest, DEADLINE, text},
};

/// Value of a metric with these labels.
fn value(metrics: &str, name: &str, labels: &[&str]) -> Option<f64> {
    let line = metrics.lines().find(|line| {
        let at = line.find(['{', ' ']).unwrap_or(0);
        &line[..at] == name && labels.iter().all(|label| line.contains(label))
    })?;
    line.rsplit(' ').next()?.parse().ok()
}

#[tokio::test]
async fn what_sessions_do_is_counted() {
    let mut api = ApiUnderTest::new().await;
    let metrics = ServerMetrics::start(&api.manager);
    api.router = proxy_server::router(api.manager.clone(), ServerOptions::default().with_metrics(metrics));
    api.start("s-1").await;
    api.turn("s-1", "say one\nsetsid exec sleep 600").await;
    let reader = Identity::new("reader", Role::Read);
    let refused = Router::clone(&api.router).layer(axum::Extension(reader));
    let mine = std::mem::replace(&mut api.router, refused);
    assert_eq!(api.json("POST /v1/sessions/s-1/kill", "{}").await.0, StatusCode::FORBIDDEN);
    api.router = mine;

    let read = async || text(api.send("GET /metrics", &[], "").await).await;
    let now = read().await;
    assert_eq!(value(&now, "agent_proxy_sessions", &["agent=\"fake\"", "state=\"idle\""]), Some(1.0), "{now}");
    assert!(
        value(&now, "agent_proxy_processes", &["agent=\"fake\""]).is_some_and(|processes| processes >= 2.0),
        "{now}"
    );
    assert!(value(&now, "agent_proxy_memory_bytes", &[]).is_some_and(|bytes| bytes > 0.0), "{now}");
    assert_eq!(value(&now, "agent_proxy_denied_requests_total", &["status=\"403\""]), Some(1.0), "{now}");
    assert!(now.ends_with("# EOF\n"));

    api.json("POST /v1/sessions/s-1/kill", "{}").await;
    // The events are read by a task of their own.
    let counted = async {
        loop {
            let after = read().await;
            if value(&after, "agent_proxy_kills_total", &[]) == Some(1.0) {
                return after;
            }
            tokio::task::yield_now().await;
        }
    };
    let after = tokio::time::timeout(DEADLINE, counted).await.expect("counted in time");
    for (name, labels, expected) in [
        ("agent_proxy_session_starts_total", &["agent=\"fake\""][..], 1.0),
        ("agent_proxy_session_start_seconds_count", &["agent=\"fake\""], 1.0),
        ("agent_proxy_session_ends_total", &["agent=\"fake\"", "how=\"ended\""], 1.0),
        ("agent_proxy_turns_total", &["agent=\"fake\""], 1.0),
        ("agent_proxy_turn_seconds_count", &["agent=\"fake\""], 1.0),
        ("agent_proxy_kill_seconds_count", &[], 1.0),
        ("agent_proxy_escapees_total", &[], 1.0),
        ("agent_proxy_survivors_total", &[], 0.0),
        ("agent_proxy_unproven_kills_total", &[], 0.0),
    ] {
        assert_eq!(value(&after, name, labels), Some(expected), "{name}: {after}");
    }
    api.end().await;
}

/// A reader that does not read is behind; the log's commits have their times.
#[tokio::test]
async fn the_log_and_its_readers_are_counted() {
    let mut api = ApiUnderTest::durable().await;
    let metrics = ServerMetrics::start(&api.manager);
    api.router = proxy_server::router(api.manager.clone(), ServerOptions::default().with_metrics(metrics));
    api.start("s-1").await;
    let reader = api.send("GET /v1/sessions/s-1/events?follow=true", &[], "").await;
    api.turn("s-1", "flood 3000 2000").await;
    let read = async || text(api.send("GET /metrics", &[], "").await).await;
    let now = read().await;
    assert_eq!(value(&now, "agent_proxy_event_readers", &[]), Some(1.0), "{now}");
    let lag = value(&now, "agent_proxy_event_reader_lag_max", &[]).expect("a lag");
    assert!(lag > 100.0 && value(&now, "agent_proxy_event_reader_lag", &[]) == Some(lag), "{now}");
    let commits = value(&now, "agent_proxy_log_commits_total", &[]).expect("commits");
    assert!(commits > 0.0 && value(&now, "agent_proxy_log_commit_seconds_count", &[]) == Some(commits), "{now}");
    let slowest = value(&now, "agent_proxy_log_commit_seconds_bucket", &["le=\"+Inf\""]);
    assert_eq!(slowest, Some(commits), "{now}");
    let route = ["method=\"POST\"", "route=\"/v1/sessions/{id}/prompt\"", "status=\"200\""];
    assert_eq!(value(&now, "agent_proxy_http_requests_total", &route), Some(1.0), "{now}");
    drop(reader);
    let gone = async {
        while value(&read().await, "agent_proxy_event_readers", &[]) != Some(0.0) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, gone).await.expect("it is no reader any more");
    let _ = api.send("GET /v1/no-such/path", &[], "").await;
    let after = read().await;
    assert_eq!(
        value(&after, "agent_proxy_http_requests_total", &["route=\"none\"", "status=\"404\""]),
        Some(1.0),
        "{after}"
    );
    api.end().await;
}

/// Readers of all sessions, and those on WebSockets, are behind as others are.
#[tokio::test]
async fn readers_of_all_sessions_and_on_sockets_have_a_lag() {
    let mut api = ApiUnderTest::durable().await;
    let metrics = ServerMetrics::start(&api.manager);
    api.router = proxy_server::router(api.manager.clone(), ServerOptions::default().with_metrics(metrics));
    api.start("s-1").await;
    let read = async || text(api.send("GET /metrics", &[], "").await).await;
    let until = async |what: &str, readers: f64, fits: &dyn Fn(f64) -> bool| {
        let found = async {
            loop {
                let now = read().await;
                let lag = value(&now, "agent_proxy_event_reader_lag_max", &[]).expect("a lag");
                if value(&now, "agent_proxy_event_readers", &[]) == Some(readers) && fits(lag) {
                    return;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(DEADLINE, found).await.unwrap_or_else(|_| panic!("{what}: not in time"));
    };
    // One that reads nothing while much happens is behind, and catches up.
    let reader = api.send("GET /v1/events?from=latest&follow=true", &[], "").await;
    api.turn("s-1", "flood 3000 20").await;
    until("all, behind", 1.0, &|lag| lag > 100.0).await;
    let reading = tokio::spawn(text(reader));
    until("all, read", 1.0, &|lag| lag == 0.0).await;
    reading.abort();
    until("all, gone", 0.0, &|lag| lag == 0.0).await;
    // One subscription of a session, and one of all, on one connection.
    let mut socket = SocketUnderTest::connect(api.router.clone(), "/v1/socket").await;
    socket.reply(json!({ "id": 1, "method": "subscribe", "session": "s-1", "params": { "from": "latest" } })).await;
    socket.reply(json!({ "id": 2, "method": "subscribe", "params": { "from": "latest" } })).await;
    until("socket, begun", 2.0, &|lag| lag == 0.0).await;
    api.turn("s-1", "flood 3000 2000").await;
    until("socket, behind", 2.0, &|lag| lag > 100.0).await;
    drop(socket);
    until("socket, gone", 0.0, &|lag| lag == 0.0).await;
    api.end().await;
}

#[tokio::test]
async fn a_router_without_metrics_has_no_such_route() {
    let api = ApiUnderTest::new().await;
    assert_eq!(api.send("GET /metrics", &[], "").await.status(), StatusCode::NOT_FOUND);
    api.end().await;
}
