//! Receipts from a session's stream, and checks of the system.

use axum::http::StatusCode;
use proxy_server::{DoctorCheck, DoctorProbe, ServerOptions};
use serde_json::json;

use crate::support::ApiUnderTest;

#[tokio::test]
async fn receipts_come_from_the_stream_the_last_one_first() {
    let api = ApiUnderTest::durable().await;
    api.start("s-1").await;
    assert_eq!(api.json("GET /v1/sessions/s-1/receipts", "").await, (StatusCode::OK, json!([])));
    api.turn("s-1", "setsid exec sleep 605").await;
    let (status, killed) = api.json("POST /v1/sessions/s-1/kill", "{}").await;
    assert_eq!(status, StatusCode::OK, "{killed}");
    let (status, receipts) = api.json("GET /v1/sessions/s-1/receipts", "").await;
    assert_eq!((status, receipts.as_array().map(Vec::len)), (StatusCode::OK, Some(1)), "{receipts}");
    assert_eq!((&receipts[0]["type"], &receipts[0]["receipt"]), (&"session:ended".into(), &killed), "{receipts}");
    assert!(receipts[0]["createdAt"].is_string() && receipts[0]["offset"].is_string(), "{receipts}");
    assert_eq!(api.json("GET /v1/sessions/s-1/receipts?limit=0", "").await.0, StatusCode::BAD_REQUEST);
    assert_eq!(api.json("GET /v1/sessions/s-9/receipts", "").await.0, StatusCode::NOT_FOUND);
    api.end().await;
}

#[tokio::test]
async fn the_program_s_checks_are_run_for_clients() {
    let mut api = ApiUnderTest::new().await;
    assert_eq!(api.json("GET /v1/doctor", "").await.0, StatusCode::NOT_IMPLEMENTED);
    let probe = DoctorProbe::new(async || vec![DoctorCheck::ok("kernel", "Linux").needed()]);
    api.router = proxy_server::router(api.manager.clone(), ServerOptions::default().with_doctor(probe));
    let (status, checks) = api.json("GET /v1/doctor", "").await;
    let expected = json!([{"name": "kernel", "verdict": "ok", "needed": true, "found": "Linux", "advice": null}]);
    assert_eq!((status, checks), (StatusCode::OK, expected));
    api.end().await;
}
