//! An MCP server with one tool, for agents that are given one.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
};

use axum::{
    Json, Router,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::post,
};
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// Its answer to a message; none to a notification, which has no id.
pub fn answer(message: &Value) -> Option<Value> {
    let id = message.get("id")?;
    let result = match message["method"].as_str() {
        Some("initialize") => json!({
            "protocolVersion": message["params"]["protocolVersion"], "capabilities": { "tools": {} },
            "serverInfo": { "name": "orchard", "version": "1.0.0" },
        }),
        Some("tools/list") => json!({ "tools": [{
            "name": "pick_plum", "description": "Picks a plum.",
            "inputSchema": { "type": "object", "properties": { "colour": { "type": "string" } } },
        }] }),
        Some("tools/call") => {
            let colour = message["params"]["arguments"]["colour"].as_str().unwrap_or("green");
            json!({ "content": [{ "type": "text", "text": format!("a {colour} plum") }] })
        }
        Some("ping") => json!({}),
        _ => {
            let error = json!({ "code": -32601, "message": "no such method" });
            return Some(json!({ "jsonrpc": "2.0", "id": id, "error": error }));
        }
    };
    Some(json!({ "jsonrpc": "2.0", "id": id, "result": result }))
}

/// The server by HTTP, on a port of 127.0.0.1. It ends with the tokio runtime that it was started in.
#[derive(Debug)]
pub struct Orchard {
    address: SocketAddr,
    /// Each message that came, with the `authorization` that it came with.
    came: Came,
}

type Came = Arc<Mutex<Vec<(Option<String>, Value)>>>;

impl Orchard {
    /// Starts it.
    ///
    /// # Errors
    /// The system's, if no port can be had.
    pub async fn start() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let (address, came) = (listener.local_addr()?, Came::default());
        // Of anything but a message, which is posted, there is none: it sends nothing by itself, and has no sessions.
        let router = Router::new().route("/mcp", post(take)).with_state(came.clone());
        tokio::spawn(axum::serve(listener, router).into_future());
        Ok(Self { address, came })
    }

    /// Where it is.
    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    /// Each message that came, with the `authorization` that it came with.
    pub fn came(&self) -> Vec<(Option<String>, Value)> {
        self.came.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn take(State(came): State<Came>, headers: HeaderMap, Json(message): Json<Value>) -> Response {
    let authorization = headers.get("authorization").and_then(|value| value.to_str().ok()).map(str::to_owned);
    came.lock().unwrap_or_else(PoisonError::into_inner).push((authorization, message.clone()));
    answer(&message).map_or_else(|| StatusCode::ACCEPTED.into_response(), |answer| Json(answer).into_response())
}
