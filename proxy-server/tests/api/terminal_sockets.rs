//! Terminals over WebSockets.

use axum::http::StatusCode;
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::{
    sockets::SocketUnderTest,
    support::{ApiUnderTest, DEADLINE},
};

async fn start_in_terminal(api: &ApiUnderTest) {
    let body = json!({"sessionId": "s-1", "agent": "command", "command": ["/bin/cat"], "cwd": "/", "terminal": {}});
    let (status, answer) = api.json("POST /v1/sessions", &body.to_string()).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
}

/// Reads frames until they have painted a text.
async fn painted(browser: &mut SocketUnderTest, text: &str) {
    let mut screen = String::new();
    let wait = async {
        while !screen.contains(text) {
            if let Message::Binary(bytes) = browser.socket.next().await.expect("more").expect("a message") {
                screen.push_str(&String::from_utf8_lossy(&bytes));
            }
        }
    };
    tokio::time::timeout(DEADLINE, wait).await.expect("painted in time");
}

#[tokio::test]
async fn a_browser_types_and_sees_what_is_painted() {
    let api = ApiUnderTest::new().await;
    start_in_terminal(&api).await;
    let mut browser =
        SocketUnderTest::connect(api.router.clone(), "/v1/sessions/s-1/terminal?rows=30&columns=100").await;
    let attached = browser.until(|json| json["type"] == "attached").await;
    assert_eq!(attached, json!({"type": "attached", "rows": 30, "columns": 100, "types": true}));
    browser.socket.send(Message::Binary(b"hello\r".as_slice().into())).await.expect("sent");
    painted(&mut browser, "hello").await;
    browser.send(json!({"type": "input", "text": "again\r"})).await;
    painted(&mut browser, "again").await;
    browser.send(json!({"type": "dance"})).await;
    let invalid = browser.until(|json| json["type"] == "invalid").await;
    assert_eq!(invalid["problem"]["type"], "usage", "{invalid}");

    // Another one takes the keyboard.
    let mut other = SocketUnderTest::connect(api.router.clone(), "/v1/sessions/s-1/terminal?keyboard=watch").await;
    assert_eq!(other.until(|json| json["type"] == "attached").await["types"], false);
    painted(&mut other, "again").await;
    other.send(json!({"type": "take"})).await;
    assert_eq!(other.until(|json| json["type"] == "keyboard").await["types"], true);
    assert_eq!(browser.until(|json| json["type"] == "keyboard").await["types"], false);
    other.send(json!({"type": "resize", "rows": 40, "columns": 90})).await;
    other.send(json!({"type": "detach"})).await;
    let left = async { while other.socket.next().await.is_some_and(|message| message.is_ok()) {} };
    tokio::time::timeout(DEADLINE, left).await.expect("closed in time");

    assert_eq!(browser.until(|json| json["type"] == "keyboard").await["types"], true);
    browser.socket.send(Message::Binary(b"\x04".as_slice().into())).await.expect("sent");
    let ended = browser.until(|json| json["type"] == "ended").await;
    assert_eq!(ended["exit"], json!({"code": 0}), "{ended}");
    api.end().await;
}

/// Reads frames until the terminal waits for this client: what it prints then comes in no frame. Returns their number.
async fn until_it_waits(browser: &mut SocketUnderTest, typist: &mut SocketUnderTest) -> usize {
    let mut frames = 0;
    for number in 0..20 {
        typist.send(json!({"type": "input", "text": format!("line-{number}\r")})).await;
        painted(typist, &format!("line-{number}")).await;
    }
    // The answer comes behind the frames that were sent before it.
    browser.send(json!({"type": "dance"})).await;
    let wait = async {
        loop {
            match browser.socket.next().await.expect("more").expect("a message") {
                Message::Binary(_) => frames += 1,
                Message::Text(text) if text.contains("invalid") => return,
                _ => {}
            }
        }
    };
    tokio::time::timeout(DEADLINE, wait).await.expect("an answer in time");
    frames
}

#[tokio::test]
async fn a_browser_that_paints_slowly_gets_few_frames_and_then_the_screen_as_it_is() {
    let api = ApiUnderTest::new().await;
    start_in_terminal(&api).await;
    let mut typist = SocketUnderTest::connect(api.router.clone(), "/v1/sessions/s-1/terminal").await;
    typist.until(|json| json["type"] == "attached").await;
    let slow = "/v1/sessions/s-1/terminal?keyboard=watch&window=2";
    let mut browser = SocketUnderTest::connect(api.router.clone(), slow).await;
    browser.until(|json| json["type"] == "attached").await;
    // The second comes when the first has been there for a while.
    let mut frames = 0;
    for _ in 0..20 {
        frames += until_it_waits(&mut browser, &mut typist).await;
        if frames >= 2 {
            break;
        }
    }
    assert_eq!(frames, 2);
    assert_eq!(until_it_waits(&mut browser, &mut typist).await, 0);
    // As soon as it has painted, it gets what is on the screen now.
    browser.send(json!({"type": "painted", "frames": 2})).await;
    let mut screen = String::new();
    let wait = async {
        while !screen.contains("line-19") {
            if let Message::Binary(bytes) = browser.socket.next().await.expect("more").expect("a message") {
                screen.push_str(&String::from_utf8_lossy(&bytes));
                browser.send(json!({"type": "painted", "frames": 1})).await;
            }
        }
    };
    tokio::time::timeout(DEADLINE, wait).await.expect("painted in time");
    let wrong = api.send("GET /v1/sessions/s-1/terminal?window=0", &[("upgrade", "websocket")], "").await;
    assert_eq!(wrong.status(), StatusCode::BAD_REQUEST);
    api.end().await;
}

#[tokio::test]
async fn a_shell_is_a_terminal_too() {
    let api = ApiUnderTest::new().await;
    api.start("s-1").await;
    let mut browser = SocketUnderTest::connect(api.router.clone(), "/v1/sessions/s-1/shell?rows=10&columns=60").await;
    assert_eq!(browser.until(|json| json["type"] == "attached").await["columns"], 60);
    browser.send(json!({"type": "input", "text": "echo $((40 + 2))\r"})).await;
    painted(&mut browser, "42").await;
    browser.send(json!({"type": "input", "text": "exit 3\r"})).await;
    assert_eq!(browser.until(|json| json["type"] == "ended").await["exit"], json!({"code": 3}));
    api.end().await;
}

#[tokio::test]
async fn without_a_terminal_there_is_no_connection() {
    let api = ApiUnderTest::new().await;
    api.start("s-1").await;
    let upgrade = [
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    let refused = api.send("GET /v1/sessions/s-1/terminal", &upgrade, "").await;
    assert_eq!(refused.status(), StatusCode::NOT_IMPLEMENTED);
    let refused = api.send("GET /v1/sessions/s-1/terminal?rows=many", &upgrade, "").await;
    assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
    let problem: Value = serde_json::from_str(&crate::support::text(refused).await).expect("JSON");
    assert_eq!(problem["type"], "usage");
    api.end().await;
}
