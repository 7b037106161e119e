//! What callers may ask for at most, wherever they ask for it.

use std::time::Duration;

use agent_proxy_sdk::{catalog::AgentSpec, testing};
use axum::http::StatusCode;
use proxy_server::{InstanceOptions, InstancePool, Policy, ServerOptions};
use serde_json::{Value, json};

use crate::support::ApiUnderTest;

/// Restricts a server with instances.
async fn restricted(mut api: ApiUnderTest, policy: Value) -> ApiUnderTest {
    let policy: Policy = serde_json::from_value(policy).expect("a policy");
    let mut instances = InstanceOptions::new("fake").without_models().with_idle_timeout(Duration::from_secs(600));
    instances.config.cwd = Some("/".to_owned());
    instances.config.home = None;
    let pool = InstancePool::start(&api.manager, instances);
    let options = ServerOptions::default().with_policy(policy).with_instances(pool);
    api.router = proxy_server::router(api.manager.clone(), options);
    api
}

#[track_caller]
fn refused((status, problem): (StatusCode, Value), words: &[&str]) {
    assert_eq!((status, &problem["type"]), (StatusCode::FORBIDDEN, &"refused".into()), "{problem}");
    let detail = problem["detail"].as_str().expect("text");
    assert!(words.iter().all(|word| detail.contains(word)), "{words:?}: {detail}");
}

#[tokio::test]
async fn an_instance_is_held_to_the_policy_as_a_session_is() {
    for (policy, words) in [
        (json!({ "agents": ["pi"] }), &["agent", "\"fake\"", "[\"pi\"]"][..]),
        (json!({ "cwd": ["/srv/work"] }), &["cwd", "\"/\"", "/srv/work"]),
        (
            json!({ "roles": { "admin": { "permission-modes": ["readOnly"] } } }),
            &["permissionMode", "policy.roles.admin"],
        ),
        (json!({ "max-sessions": 0 }), &["max-sessions", "given is 1"]),
    ] {
        let api = restricted(ApiUnderTest::new().await, policy).await;
        refused(api.json("GET /instance/main", "").await, words);
        assert_eq!(api.json("GET /instances", "").await.1, json!([]), "nothing has started");
        api.end().await;
    }
    let policy = json!({ "max-sessions": 1, "limits": { "processes": 50 } });
    let api = restricted(ApiUnderTest::durable().await, policy).await;
    assert_eq!(api.json("GET /instance/main", "").await.0, StatusCode::OK);
    let record = api.json("GET /v1/records/instance-main", "").await.1;
    assert_eq!(record["config"]["limits"]["processes"], 50, "it gets the limit that it does not name: {record}");
    assert_eq!(api.json("GET /instance/main", "").await.0, StatusCode::OK, "it is there already");
    refused(api.json("GET /instance/other", "").await, &["max-sessions", "given is 2"]);
    api.end().await;
}

#[tokio::test]
async fn what_resumes_a_session_is_held_to_the_policy() {
    let config = json!({ "sessionId": "s-1", "agent": "kept", "cwd": "/" }).to_string();
    let open = crate::support::keeping().await;
    let (status, started) = open.json("POST /v1/sessions", &config).await;
    assert_eq!(status, StatusCode::CREATED, "{started}");
    open.turn("s-1", "say one").await;
    let (status, suspended) = open.json("POST /v1/sessions/s-1/suspend", "{}").await;
    assert_eq!(status, StatusCode::OK, "{suspended}");
    let api = restricted(open, json!({ "agents": ["pi"] })).await;
    let prompt = json!({ "text": "say two" }).to_string();
    let action = json!({ "type": "agent:action:prompt:called", "payload": { "text": "say two" } }).to_string();
    for (request, body) in [
        ("POST /v1/sessions/s-1/resume", "{}"),
        ("POST /v1/sessions/s-1/prompt", &prompt),
        ("POST /v1/sessions/s-1/ask", &prompt),
        ("POST /v1/sessions/s-1/events", &action),
        ("POST /v1/streams/s-1/events", &action),
        ("POST /v1/sessions/s-1/visit", r#"{"size":{"rows":24,"columns":80}}"#),
    ] {
        refused(api.json(request, body).await, &["agent", "\"kept\"", "[\"pi\"]"]);
    }
    let session = api.json("GET /v1/sessions/s-1", "").await.1;
    assert!(session["state"]["suspended"].is_object() && session["turns"] == 1, "nothing has changed: {session}");
    // An event that asks for nothing resumes nothing.
    let event = json!({ "type": "slack:received", "payload": {} }).to_string();
    assert_eq!(api.json("POST /v1/sessions/s-1/events", &event).await.0, StatusCode::CREATED);
    // What a resume is given counts, too.
    let api = restricted(api, json!({ "commands": false })).await;
    for (options, field) in [
        (json!({ "env": { "LD_PRELOAD": "/tmp/x.so" } }), "env"),
        (json!({ "endpoint": "http://127.0.0.1:1" }), "endpoint"),
        (
            json!({ "mcpServers": [{ "name": "x", "transport": { "stdio": { "command": "/tmp/x", "args": [], "env": {} } } }] }),
            "mcpServers",
        ),
    ] {
        for request in ["POST /v1/sessions/s-1/resume", "POST /v1/sessions/s-1/take-back"] {
            refused(api.json(request, &options.to_string()).await, &[field]);
        }
        let snapshot = json!({ "snapshot": suspended, "options": options }).to_string();
        refused(api.json("POST /v1/resume", &snapshot).await, &[field]);
    }
    let (status, resumed) = api.json("POST /v1/sessions/s-1/resume", "{}").await;
    assert_eq!(status, StatusCode::OK, "{resumed}");
    api.end().await;
}

#[tokio::test]
async fn a_session_that_runs_is_led_no_further_than_the_policy() {
    let api = ApiUnderTest::new().await;
    api.start("s-1").await;
    let api = restricted(api, json!({ "commands": false, "permission-modes": ["ask"] })).await;
    let headers = [("connection", "upgrade"), ("upgrade", "agent-proxy-terminal")];
    let shell = api.send("GET /v1/sessions/s-1/shell", &headers, "").await;
    assert_eq!(shell.status(), StatusCode::FORBIDDEN, "a shell runs what its caller says");
    refused(
        api.json("POST /v1/sessions/s-1/visit", r#"{"size":{"rows":24,"columns":80}}"#).await,
        &["permissionMode", "own screen", "[\"ask\"]"],
    );
    // What no rule is about goes on.
    let (status, changed) = api.json("PATCH /v1/sessions/s-1", r#"{"title":"Login"}"#).await;
    assert_eq!((status, &changed["config"]["lifecycle"]["title"]), (StatusCode::OK, &"Login".into()), "{changed}");
    api.turn("s-1", "say one").await;
    api.end().await;
}

#[tokio::test]
async fn a_screen_beside_the_protocol_is_shown_as_a_visit_is() {
    let program = std::fs::read_link("/proc/self/exe").expect("a program").display().to_string();
    let mut both = AgentSpec::new("both", "acp", &[&program, "--agent-proxy-fake-agent"]);
    both.companion_cmd = ["/bin/sh", "-c", "read -r line"].map(str::to_owned).to_vec();
    let manager = testing::builder().agent(both).build().await.expect("a manager");
    let api = ApiUnderTest::of(manager, None);
    let config = json!({ "sessionId": "s-1", "agent": "both", "cwd": "/" }).to_string();
    let (status, started) = api.json("POST /v1/sessions", &config).await;
    assert_eq!((status, &started["surface"]), (StatusCode::CREATED, &"both".into()), "{started}");
    let api = restricted(api, json!({ "permission-modes": ["ask"] })).await;
    let websocket = [
        ("connection", "upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    let ours = [("connection", "upgrade"), ("upgrade", "agent-proxy-terminal")];
    for headers in [&websocket[..], &ours] {
        let answer = api.send("GET /v1/sessions/s-1/terminal", headers, "").await;
        let status = answer.status();
        let problem = serde_json::from_str(&crate::support::text(answer).await).unwrap_or_default();
        refused((status, problem), &["permissionMode", "own screen", "[\"ask\"]"]);
    }
    let processes = api.json("GET /v1/sessions/s-1/processes", "").await.1;
    assert!(!processes.to_string().contains("read -r line"), "the screen has started: {processes}");
    let api = restricted(api, json!({ "agents": ["both"] })).await;
    let shown = api.send("GET /v1/sessions/s-1/terminal", &ours, "").await;
    assert_eq!(shown.status(), StatusCode::SWITCHING_PROTOCOLS);
    api.end().await;
}
