//! A router, and requests to it.

use std::time::Duration;

use agent_proxy_sdk::{ProxyManager, catalog::AgentSpec, testing};
use axum::{
    Router,
    body::Body,
    http::{Request, Response, StatusCode},
};
use http_body_util::BodyExt as _;
use proxy_server::ServerOptions;
use serde_json::Value;
use tower::ServiceExt as _;

/// Longest wait for anything.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Manager behind a router.
pub(crate) struct ApiUnderTest {
    pub(crate) manager: ProxyManager,
    pub(crate) router: Router,
    _state: Option<tempfile::TempDir>,
}

impl ApiUnderTest {
    /// Starts one whose events are in memory.
    pub(crate) async fn new() -> Self {
        Self::of(testing::manager().await, None)
    }

    /// Starts one with a state directory.
    pub(crate) async fn durable() -> Self {
        let state = tempfile::tempdir().expect("a directory");
        let manager = testing::builder().state_dir(state.path().to_owned()).build().await.expect("a manager");
        Self::of(manager, Some(state))
    }

    /// Takes a manager; the directory lives as long as the router.
    pub(crate) fn of(manager: ProxyManager, state: Option<tempfile::TempDir>) -> Self {
        let router = proxy_server::router(manager.clone(), ServerOptions::default());
        Self { manager, router, _state: state }
    }

    /// Sends a request; an empty body for none.
    pub(crate) async fn send(&self, request: &str, headers: &[(&str, &str)], body: &str) -> Response<Body> {
        let (method, path) = request.split_once(' ').expect("METHOD PATH");
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::from(body.to_owned())).expect("a request");
        let answer = tokio::time::timeout(DEADLINE, self.router.clone().oneshot(request)).await;
        answer.expect("an answer in time").expect("the router never fails")
    }

    /// Sends a request, and returns the status and JSON of its answer.
    pub(crate) async fn json(&self, request: &str, body: &str) -> (StatusCode, Value) {
        let answer = self.send(request, &[("accept", "application/json")], body).await;
        let status = answer.status();
        (status, serde_json::from_str(&text(answer).await).unwrap_or_default())
    }

    /// Asks again and again until the answer fits.
    pub(crate) async fn until(&self, request: &str, fits: impl Fn(&Value) -> bool) -> Value {
        let asking = async {
            loop {
                let (_, answer) = self.json(request, "").await;
                if fits(&answer) {
                    return answer;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(DEADLINE, asking).await.unwrap_or_else(|_| panic!("{request} does not come to it"))
    }

    /// Starts a session of the fake agent.
    pub(crate) async fn start(&self, id: &str) {
        let body = format!(r#"{{"sessionId":"{id}","agent":"fake","cwd":"/"}}"#);
        let (status, answer) = self.json("POST /v1/sessions", &body).await;
        assert_eq!(status, StatusCode::CREATED, "{answer}");
    }

    /// Prompts a session, and waits for the turn's end.
    pub(crate) async fn turn(&self, id: &str, script: &str) {
        let body = serde_json::json!({ "text": script, "wait": true }).to_string();
        let answer = self.send(&format!("POST /v1/sessions/{id}/prompt"), &[], &body).await;
        assert_eq!(answer.status(), StatusCode::OK);
        text(answer).await;
    }

    /// Ends all sessions, and sees that nothing is left.
    pub(crate) async fn end(self) {
        for receipt in self.manager.shutdown().await {
            assert!(receipt.is_empty(), "{receipt}");
        }
    }
}

/// Starts one with a state directory, and with the agent `kept`, which keeps its conversations.
pub(crate) async fn keeping() -> ApiUnderTest {
    let state = tempfile::tempdir().expect("a directory");
    let program = std::fs::read_link("/proc/self/exe").expect("a program").display().to_string();
    let chats = state.path().join("chats").display().to_string();
    let kept = AgentSpec::new("kept", "acp", &[&program, "--agent-proxy-fake-agent", "--store", &chats]);
    let builder = testing::builder().agent(kept).state_dir(state.path().join("state"));
    ApiUnderTest::of(builder.build().await.expect("a manager"), Some(state))
}

/// Reads a body to its end.
pub(crate) async fn text(answer: Response<Body>) -> String {
    let read = tokio::time::timeout(DEADLINE, answer.into_body().collect()).await;
    let bytes = read.expect("the end in time").expect("a body").to_bytes();
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// Body that is read as it comes.
pub(crate) struct BodyReader {
    body: Body,
    text: String,
}

impl BodyReader {
    pub(crate) fn new(answer: Response<Body>) -> Self {
        Self { body: answer.into_body(), text: String::new() }
    }

    /// Reads up to and with `end`, and returns what is before it.
    pub(crate) async fn until(&mut self, end: &str) -> String {
        loop {
            if let Some(at) = self.text.find(end) {
                let rest = self.text.split_off(at + end.len());
                let mut found = std::mem::replace(&mut self.text, rest);
                found.truncate(at);
                return found;
            }
            let frame = tokio::time::timeout(DEADLINE, self.body.frame()).await;
            let frame = frame.expect("more in time").unwrap_or_else(|| panic!("no {end:?} in {:?}", self.text));
            let bytes = frame.expect("a frame").into_data().expect("data");
            self.text.push_str(std::str::from_utf8(&bytes).expect("UTF-8"));
        }
    }

    /// Reads to the end.
    pub(crate) async fn rest(mut self) -> String {
        let read = tokio::time::timeout(DEADLINE, self.body.collect()).await;
        let bytes = read.expect("the end in time").expect("a body").to_bytes();
        self.text.push_str(std::str::from_utf8(&bytes).expect("UTF-8"));
        self.text
    }
}
