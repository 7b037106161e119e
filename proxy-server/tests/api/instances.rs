//! Instances of an agent's own server.

use std::time::Duration;

use axum::http::StatusCode;
use proxy_server::{InstanceOptions, InstancePool, ServerOptions};

use crate::support::{ApiUnderTest, DEADLINE};

async fn with_instances(idle_timeout: Duration, most: usize) -> ApiUnderTest {
    let mut api = ApiUnderTest::new().await;
    let mut options = InstanceOptions::new("fake").without_models();
    options = options.with_idle_timeout(idle_timeout).with_max_instances(most);
    options.config.cwd = Some("/".to_owned());
    options.config.home = None;
    let pool = InstancePool::start(&api.manager, options);
    api.router = proxy_server::router(api.manager.clone(), ServerOptions::default().with_instances(pool));
    api
}

#[tokio::test]
async fn instances_are_started_once_bounded_and_stopped() {
    let api = with_instances(Duration::from_secs(600), 2).await;
    let (status, one) = api.json("GET /instance/5", "").await;
    assert_eq!(
        (status, &one["status"], &one["sessionId"]),
        (StatusCode::OK, &"ready".into(), &"instance-5".into()),
        "{one}"
    );
    assert_eq!(one["port"], serde_json::Value::Null, "the fake agent is no server");
    let started = api.json("GET /v1/sessions/instance-5", "").await.1["startedAt"].clone();
    assert_eq!(api.json("GET /instance/5", "").await.0, StatusCode::OK);
    assert_eq!(api.json("GET /v1/sessions/instance-5", "").await.1["startedAt"], started, "it is the same one");
    assert_eq!(api.json("GET /instance/6", "").await.0, StatusCode::OK);
    let (status, problem) = api.json("GET /instance/7", "").await;
    assert_eq!((status, &problem["type"]), (StatusCode::TOO_MANY_REQUESTS, &"too-many-sessions".into()), "{problem}");
    let (_, listed) = api.json("GET /instances", "").await;
    let ids: Vec<&str> = listed.as_array().expect("a list").iter().filter_map(|one| one["id"].as_str()).collect();
    assert_eq!(ids, ["5", "6"], "{listed}");
    let (status, stopped) = api.json("POST /instance/5/stop", "").await;
    assert_eq!((status, &stopped["status"]), (StatusCode::OK, &"stopped".into()), "{stopped}");
    assert_eq!(api.json("POST /instance/5/stop", "").await.0, StatusCode::NOT_FOUND);
    assert_eq!(api.json("GET /instance/5", "").await.0, StatusCode::OK, "it is started again");
    assert_eq!(api.json("GET /instance/a%20b", "").await.0, StatusCode::BAD_REQUEST);
    api.end().await;
}

#[tokio::test]
async fn an_instance_that_nobody_uses_is_stopped() {
    let api = with_instances(Duration::from_millis(50), 2).await;
    assert_eq!(api.json("GET /instance/5", "").await.0, StatusCode::OK);
    let mut events = api.manager.subscribe_from(&"instance-5".parse().expect("an id"), 0).expect("there");
    let ended = async { while events.next().await.is_some() {} };
    tokio::time::timeout(DEADLINE, ended).await.expect("it is stopped");
    assert_eq!(api.json("GET /instances", "").await.1, serde_json::json!([]));
    api.end().await;
}

#[tokio::test]
async fn a_server_without_instances_says_so() {
    let api = ApiUnderTest::new().await;
    assert_eq!(api.json("GET /instances", "").await.0, StatusCode::NOT_IMPLEMENTED);
    api.end().await;
}
