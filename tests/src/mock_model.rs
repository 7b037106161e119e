//! A model server for real agents: HTTP on loopback, streaming, and scripted by the prompt.
//!
//! It speaks the two dialects that agents ask for, OpenAI's Responses (`POST /v1/responses`: codex) and Chat Completions
//! (`POST /v1/chat/completions`: opencode). What it answers depends on the last user message of the request:
//!
//! * `shell: COMMAND`: a call of the agent's own shell tool; once the request carries that call's output, the text
//!   `done: ` and the first 100 characters of it.
//! * anything else: the text `you said: ` and the message, in several deltas.

mod chat;
mod responses;
mod script;

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use serde_json::Value;
use tokio::{net::TcpListener, sync::oneshot};

/// Requests after which an agent counts as run away: it gets errors from then on.
const MAX_REQUESTS: usize = 1000;

/// A request that an agent made.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Path, such as `/v1/responses`.
    pub path: String,
    /// The `authorization` header.
    pub authorization: Option<String>,
    /// The body; `null` if it is not JSON.
    pub body: Value,
}

type Requests = Arc<Mutex<Vec<Request>>>;

/// The running server. Dropping it closes its port and its connections.
#[derive(Debug)]
pub struct MockModel {
    address: SocketAddr,
    requests: Requests,
    /// The server runs until this is dropped.
    _stop: oneshot::Sender<()>,
}

impl MockModel {
    /// Starts a server on a free port of 127.0.0.1, in the tokio runtime of the caller.
    ///
    /// # Errors
    /// The system's, if no port can be had.
    pub async fn start() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let requests = Requests::default();
        let (stop, stopped) = oneshot::channel::<()>();
        let router = Router::new().fallback(answer).with_state(Arc::clone(&requests));
        let server = axum::serve(listener, router).with_graceful_shutdown(async {
            // Never sent: an error says that the handle was dropped.
            let _ = stopped.await;
        });
        tokio::spawn(server.into_future());
        Ok(Self { address, requests, _stop: stop })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What an agent wants as the base URL of an OpenAI-like provider: `http://127.0.0.1:PORT/v1`.
    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// Every request so far, oldest first.
    pub fn requests(&self) -> Vec<Request> {
        lock(&self.requests).clone()
    }
}

fn lock(requests: &Mutex<Vec<Request>>) -> MutexGuard<'_, Vec<Request>> {
    requests.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Answers one request, whatever its path.
async fn answer(State(requests): State<Requests>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let authorization = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let number = {
        let mut requests = lock(&requests);
        if requests.len() >= MAX_REQUESTS {
            return (StatusCode::TOO_MANY_REQUESTS, "the agent has asked too often").into_response();
        }
        requests.push(Request { path: uri.path().to_owned(), authorization, body: body.clone() });
        requests.len()
    };
    let events = match uri.path() {
        "/v1/responses" => responses::stream(&body, number),
        "/v1/chat/completions" => chat::stream(&body, number),
        path => return (StatusCode::NOT_FOUND, format!("the mock model has no {path}")).into_response(),
    };
    // Server-sent events in one piece: what an agent sees of streaming is the events, not when they come.
    ([(header::CONTENT_TYPE, "text/event-stream")], events).into_response()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
        time::timeout,
    };

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(30);

    async fn post(model: &MockModel, path: &str, body: &Value) -> String {
        let body = body.to_string();
        let mut stream = TcpStream::connect(model.address()).await.expect("the server listens");
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: mock\r\nauthorization: Bearer dummy\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await.expect("request");
        stream.write_all(body.as_bytes()).await.expect("request body");
        let mut answer = String::new();
        timeout(DEADLINE, stream.read_to_string(&mut answer)).await.expect("in time").expect("answer");
        answer
    }

    #[tokio::test]
    async fn it_answers_records_and_stops() {
        let model = MockModel::start().await.expect("started");
        let body = json!({"input": [{"type": "message", "role": "user", "content": [{"text": "hello"}]}]});
        let answer = post(&model, "/v1/responses", &body).await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("text/event-stream"), "{answer}");
        assert!(answer.contains("you said: "), "{answer}");
        let missing = post(&model, "/v1/models", &Value::Null).await;
        assert!(missing.starts_with("HTTP/1.1 404"), "{missing}");

        let requests = model.requests();
        assert_eq!(requests.len(), 2);
        assert_eq!(
            requests[0],
            Request { path: "/v1/responses".into(), authorization: Some("Bearer dummy".into()), body }
        );

        let mut idle = TcpStream::connect(model.address()).await.expect("the server listens");
        drop(model);
        let closed = timeout(DEADLINE, idle.read(&mut [0; 1])).await.expect("in time");
        assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
    }
}
