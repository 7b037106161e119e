//! The WebSocket of renderers.

use axum::http::StatusCode;
use futures_util::{SinkExt as _, StreamExt as _};
use proxy_server::{Identity, Role};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    task::AbortHandle,
};
use tokio_tungstenite::{WebSocketStream, tungstenite::Message};

use crate::support::{ApiUnderTest, DEADLINE};

/// Connection to a router that listens on loopback, until it is dropped.
pub(crate) struct SocketUnderTest {
    pub(crate) socket: WebSocketStream<TcpStream>,
    /// Messages that nobody waited for yet.
    waiting: Vec<Value>,
    server: AbortHandle,
}

impl Drop for SocketUnderTest {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl SocketUnderTest {
    pub(crate) async fn connect(router: axum::Router, path: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let at = listener.local_addr().expect("an address");
        let server = tokio::spawn(async move { axum::serve(listener, router).await }).abort_handle();
        let stream = TcpStream::connect(at).await.expect("connected");
        let (socket, response) =
            tokio_tungstenite::client_async(format!("ws://{at}{path}"), stream).await.expect("accepted");
        assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
        Self { socket, waiting: Vec::new(), server }
    }

    pub(crate) async fn send(&mut self, message: Value) {
        self.socket.send(Message::Text(message.to_string().into())).await.expect("sent");
    }

    /// Returns the first JSON message that fits; others wait for who wants them.
    pub(crate) async fn until(&mut self, fits: impl Fn(&Value) -> bool) -> Value {
        if let Some(at) = self.waiting.iter().position(&fits) {
            return self.waiting.remove(at);
        }
        let wait = async {
            loop {
                let message = self.socket.next().await.expect("more").expect("a message");
                if let Message::Text(text) = message {
                    let json: Value = serde_json::from_str(&text).expect("JSON");
                    if fits(&json) {
                        return json;
                    }
                    self.waiting.push(json);
                }
            }
        };
        tokio::time::timeout(DEADLINE, wait).await.expect("in time")
    }

    pub(crate) async fn reply(&mut self, message: Value) -> Value {
        let id = message["id"].clone();
        self.send(message).await;
        self.until(|json| json["id"] == id && json.get("id").is_some()).await
    }
}

fn has_event(json: &Value, kind: &str) -> bool {
    json["events"].as_array().is_some_and(|events| events.iter().any(|event| event["type"] == kind))
}

#[tokio::test]
async fn renderers_read_and_write_on_one_connection() {
    let api = ApiUnderTest::new().await;
    api.start("s-1").await;
    api.start("s-2").await;
    let mut renderer = SocketUnderTest::connect(api.router.clone(), "/v1/sessions/s-1/socket").await;
    let subscribed = renderer
        .reply(json!({"id": 1, "method": "subscribe", "params": {"from": "latest", "type": ["stream:text", "permission"]}}))
        .await;
    assert_eq!(subscribed["result"], json!({ "subscription": 1 }), "{subscribed}");
    let other =
        renderer.reply(json!({"id": "b", "method": "subscribe", "session": "s-2", "params": {"from": 0}})).await;
    assert_eq!(other["result"]["subscription"], 2, "{other}");
    renderer.until(|json| json["subscription"] == 2 && has_event(json, "session:started")).await;

    let prompted = renderer.reply(json!({"id": 2, "method": "prompt", "params": {"text": "ask Edit\nsay done"}})).await;
    assert_eq!(prompted["result"]["turn"], 1, "{prompted}");
    let asked = renderer.until(|json| has_event(json, "permission:requested")).await;
    assert_eq!(asked["subscription"], 1, "{asked}");
    let request = asked["events"].as_array().and_then(|events| {
        events.iter().find(|event| event["type"] == "permission:requested").map(|event| event["payload"]["id"].clone())
    });
    let answered =
        renderer.reply(json!({"id": 3, "method": "answer", "params": {"request": request, "answer": "allow"}})).await;
    assert_eq!(answered["result"], Value::Null, "{answered}");
    let said = renderer.until(|json| json["events"].to_string().contains("done")).await;
    assert_eq!(said["subscription"], 1, "{said}");

    let appended =
        renderer.reply(json!({"id": 4, "method": "append", "session": "s-2", "params": {"type": "slack:said"}})).await;
    assert!(appended["result"]["offset"].is_string(), "{appended}");
    let seen = renderer.until(|json| has_event(json, "slack:said")).await;
    assert_eq!(seen["subscription"], 2, "{seen}");
    let ended = renderer.reply(json!({"id": 5, "method": "unsubscribe", "params": {"subscription": 2}})).await;
    assert_eq!(ended["result"], Value::Null);
    let again = renderer.reply(json!({"id": 6, "method": "unsubscribe", "params": {"subscription": 2}})).await;
    assert_eq!(again["problem"]["type"], "usage", "{again}");

    let page = json!({"method": "GET", "path": "/v1/sessions?sort=id"});
    let listed = renderer.reply(json!({"id": 7, "method": "call", "params": page})).await;
    assert_eq!(listed["result"].as_array().map(Vec::len), Some(2), "{listed}");
    let receipt = renderer.reply(json!({"id": 8, "method": "kill"})).await;
    assert_eq!(receipt["result"]["cause"], "killSession", "{receipt}");
    let over = renderer.until(|json| json["ended"] == true).await;
    assert_eq!((&over["subscription"], &over["problem"]), (&1.into(), &Value::Null), "{over}");
    api.end().await;
}

#[tokio::test]
async fn what_makes_no_sense_is_answered_and_changes_nothing() {
    let api = ApiUnderTest::new().await;
    api.start("s-1").await;
    let mut client = SocketUnderTest::connect(api.router.clone(), "/v1/socket").await;
    for (text, id, kind) in [
        ("{", Value::Null, "usage"),
        (r#"{"id":1,"method":"prompt","params":{"text":"hi"}}"#, 1.into(), "usage"),
        (r#"{"id":2,"method":"prompt","session":"s-9","params":{"text":"hi"}}"#, 2.into(), "unknown-session"),
        (r#"{"id":3,"method":"prompt","session":"s-1","params":{"words":"hi"}}"#, 3.into(), "usage"),
        (r#"{"id":4,"method":"dance"}"#, 4.into(), "usage"),
        (r#"{"id":5,"method":"subscribe","session":"s-1","params":{"from":"noon"}}"#, 5.into(), "usage"),
        (r#"{"id":6,"method":"call","params":{"method":"GET","path":"/v2"}}"#, 6.into(), "unknown-route"),
    ] {
        client.socket.send(Message::Text(text.into())).await.expect("sent");
        let refused = client.until(|json| json["id"] == id).await;
        assert_eq!(refused["problem"]["type"], kind, "{text}: {refused}");
    }
    client.socket.send(Message::Binary(vec![1].into())).await.expect("sent");
    let refused = client.until(|json| json["id"].is_null()).await;
    assert_eq!(refused["problem"]["type"], "usage");
    assert_eq!(client.reply(json!({"id": 9, "method": "ping"})).await, json!({"id": 9, "result": null}));
    assert_eq!(api.json("GET /v1/sessions/s-1", "").await.1["turns"], 0);
    // A request without the handshake.
    let (status, problem) = api.json("GET /v1/socket", "").await;
    assert_eq!((status, &problem["type"]), (StatusCode::BAD_REQUEST, &"usage".into()));
    api.end().await;
}

#[tokio::test]
async fn a_reader_s_connection_writes_nothing() {
    let api = ApiUnderTest::new().await;
    api.start("s-1").await;
    let reader = Identity::new("reader", Role::Read);
    let router = api.router.clone().layer(axum::Extension(reader));
    let mut client = SocketUnderTest::connect(router, "/v1/sessions/s-1/socket").await;
    for method in ["prompt", "steer", "append", "ask", "abort", "kill"] {
        let refused = client.reply(json!({"id": method, "method": method, "params": {}})).await;
        assert_eq!(refused["problem"]["type"], "refused", "{method}: {refused}");
    }
    assert_eq!(client.reply(json!({"id": 1, "method": "subscribe"})).await["result"]["subscription"], 1);
    assert_eq!(api.json("GET /v1/sessions/s-1", "").await.1["turns"], 0);
    api.end().await;
}

#[tokio::test]
async fn a_kill_is_carried_out_though_the_client_goes() {
    let api = ApiUnderTest::new().await;
    api.start("s-1").await;
    let mut events = api.manager.subscribe_from(&"s-1".parse().expect("an id"), 0).expect("there");
    let mut client = SocketUnderTest::connect(api.router.clone(), "/v1/sessions/s-1/socket").await;
    client.send(json!({"id": 1, "method": "kill", "params": {"graceMs": 500}})).await;
    drop(client);
    let ended = async { while events.next().await.is_some() {} };
    tokio::time::timeout(DEADLINE, ended).await.expect("the session ends");
    api.end().await;
}
