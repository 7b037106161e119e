//! WebSocket for renderers: events of several sessions, and requests with their replies, on one connection.
//!
//! Each message is a JSON text. A request is carried out as the HTTP request that it stands for, through the same routes: so it has the
//! same checks, bounds and answers. What was begun goes on if the client leaves.

mod protocol;
mod subscriptions;

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Request, header},
    response::Response,
};
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use tokio::{
    sync::{Semaphore, mpsc},
    time::{Instant, interval},
};
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};
use tower::ServiceExt as _;

use self::{
    protocol::{HttpCall, SocketCall, SocketRequest},
    subscriptions::SocketSubscriptions,
};
use crate::{
    Peer, ProblemDetails,
    access::Identity,
    api::NDJSON,
    websocket::{WebSocket, WebSocketSender, send},
};

/// Messages that wait for a slow client. Behind them its subscriptions wait, which delays nobody else.
const OUTGOING: usize = 16;

/// Requests that may be under way, and as many that wait for their turn in order.
const MOST_REQUESTS: usize = 32;

/// Longest answer of a request, in bytes.
const LONGEST_ANSWER: usize = 64 * 1024 * 1024;

/// Pause between signs of life.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Time without any message of a client, not even an answer to a sign of life, after which it counts as gone.
const LONGEST_SILENCE: Duration = Duration::from_secs(120);

/// Serves a connection to its end. Requests are those of this caller; those that name no session are for `session`.
pub(crate) async fn serve(
    socket: WebSocket,
    router: Router,
    (identity, peer): (Option<Identity>, Option<Peer>),
    session: Option<String>,
) {
    let (sink, mut messages) = socket.split();
    let (out, outgoing) = mpsc::channel(OUTGOING);
    let writer = tokio::spawn(write(sink, outgoing));
    let routes = SocketRoutes { router, identity, peer };
    let (in_order, ordered) = mpsc::channel(MOST_REQUESTS);
    tokio::spawn(run_in_order(ordered, routes.clone(), out.clone()));
    let mut connection = SocketConnection {
        subscriptions: SocketSubscriptions::new(out.clone()),
        routes,
        session,
        out,
        in_order,
        open: Arc::new(Semaphore::new(MOST_REQUESTS)),
    };
    let mut heartbeat = interval(HEARTBEAT);
    heartbeat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut heard = Instant::now();
    loop {
        tokio::select! {
            message = messages.next() => match message {
                Some(Ok(Message::Text(text))) => {
                    heard = Instant::now();
                    connection.receive(&text).await;
                }
                Some(Ok(Message::Binary(_))) => {
                    heard = Instant::now();
                    connection.refuse(&Value::Null, &ProblemDetails::usage("a message is a JSON text, not binary")).await;
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => heard = Instant::now(),
                Some(Ok(Message::Close(_)) | Err(_)) | None => break,
            },
            _ = heartbeat.tick() => {
                if heard.elapsed() > LONGEST_SILENCE {
                    break;
                }
                // A client that is behind hears enough.
                let _ = connection.out.try_send(Message::Ping(Vec::new().into()));
            }
            () = connection.out.closed() => break,
        }
    }
    drop(connection);
    // It ends with the requests that are under way, whose replies go nowhere.
    writer.abort();
}

async fn write(mut sink: WebSocketSender, mut outgoing: mpsc::Receiver<Message>) {
    while let Some(message) = outgoing.recv().await {
        if !send(&mut sink, message).await {
            return;
        }
    }
}

/// Carries out requests one after the other.
async fn run_in_order(
    mut requests: mpsc::Receiver<(Value, HttpCall)>,
    routes: SocketRoutes,
    out: mpsc::Sender<Message>,
) {
    while let Some((id, call)) = requests.recv().await {
        reply(&out, &id, routes.call(call).await).await;
    }
}

/// Connection with its subscriptions.
struct SocketConnection {
    routes: SocketRoutes,
    /// Session of requests that name none.
    session: Option<String>,
    out: mpsc::Sender<Message>,
    in_order: mpsc::Sender<(Value, HttpCall)>,
    /// Places of requests under way.
    open: Arc<Semaphore>,
    subscriptions: SocketSubscriptions,
}

impl SocketConnection {
    async fn receive(&mut self, text: &str) {
        let request = match SocketRequest::parse(text) {
            Ok(request) => request,
            Err(refused) => return self.refuse(&refused.0, &refused.1).await,
        };
        let SocketRequest { id, .. } = &request;
        let id = id.clone();
        match request.into_call(self.session.as_deref()) {
            Err(problem) => self.refuse(&id, &problem).await,
            Ok(SocketCall::Ping) => reply(&self.out, &id, Ok(b"null".to_vec())).await,
            Ok(SocketCall::Subscribe(call)) => {
                let begun = match self.subscriptions.check_room() {
                    Ok(()) => self.routes.stream(call).await,
                    Err(problem) => Err(problem),
                };
                match begun {
                    Ok(body) => {
                        let number = self.subscriptions.number();
                        let answer = json!({ "subscription": number }).to_string().into_bytes();
                        // Before its first event.
                        reply(&self.out, &id, Ok(answer)).await;
                        self.subscriptions.begin(number, body);
                    }
                    Err(problem) => self.refuse(&id, &problem).await,
                }
            }
            Ok(SocketCall::Unsubscribe(number)) => {
                let ended = self.subscriptions.end(number);
                let problem = || ProblemDetails::usage(format!("there is no subscription {number}"));
                reply(&self.out, &id, if ended { Ok(b"null".to_vec()) } else { Err(to_json(&problem())) }).await;
            }
            Ok(SocketCall::InOrder(call)) => {
                if self.in_order.try_send((id.clone(), call)).is_err() {
                    self.refuse(&id, &too_many()).await;
                }
            }
            Ok(SocketCall::AtOnce(call)) => {
                let Ok(place) = self.open.clone().try_acquire_owned() else {
                    return self.refuse(&id, &too_many()).await;
                };
                let (routes, out) = (self.routes.clone(), self.out.clone());
                tokio::spawn(async move {
                    reply(&out, &id, routes.call(call).await).await;
                    drop(place);
                });
            }
        }
    }

    async fn refuse(&self, id: &Value, problem: &ProblemDetails) {
        reply(&self.out, id, Err(to_json(problem))).await;
    }
}

fn too_many() -> ProblemDetails {
    let detail = format!("{MOST_REQUESTS} requests of this connection are under way: wait for a reply");
    ProblemDetails::new("overloaded", detail)
}

/// Sends the reply to a request: its result or its problem, as JSON. It fails for a client that has left.
async fn reply(out: &mpsc::Sender<Message>, id: &Value, answer: Result<Vec<u8>, Vec<u8>>) {
    let (name, json) = match &answer {
        Ok(result) => ("result", result),
        Err(problem) => ("problem", problem),
    };
    let text = [format!("{{\"id\":{id},\"{name}\":").as_bytes(), json, b"}"].concat();
    send_text(out, text).await;
}

/// Sends a text. Returns false for a client that has left.
async fn send_text(out: &mpsc::Sender<Message>, text: Vec<u8>) -> bool {
    let Ok(text) = Utf8Bytes::try_from(text) else {
        tracing::error!("failed to send a message that is not UTF-8");
        return true;
    };
    out.send(Message::Text(text)).await.is_ok()
}

fn to_json(problem: &ProblemDetails) -> Vec<u8> {
    serde_json::to_vec(problem).unwrap_or_default()
}

/// The routes of the API, for one caller.
#[derive(Clone)]
struct SocketRoutes {
    router: Router,
    identity: Option<Identity>,
    peer: Option<Peer>,
}

impl SocketRoutes {
    /// Carries out a request; the result is JSON, and so is the problem.
    async fn call(&self, call: HttpCall) -> Result<Vec<u8>, Vec<u8>> {
        let response = self.send(call, "application/json").await.map_err(|problem| to_json(&problem))?;
        let is_stream = response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind != "application/json");
        let status = response.status();
        if status.is_success() && is_stream {
            let detail = "this request answers with a stream: leave `wait` and `stream` out, and subscribe";
            return Err(to_json(&ProblemDetails::usage(detail)));
        }
        let failed =
            |error: axum::Error| to_json(&ProblemDetails::failed(format!("reading the answer failed: {error}")));
        let body = to_bytes(response.into_body(), LONGEST_ANSWER).await.map_err(failed)?;
        match body.is_empty() {
            true => Ok(b"null".to_vec()),
            false if status.is_success() => Ok(body.into()),
            false => Err(body.into()),
        }
    }

    /// Begins a stream of JSON lines.
    async fn stream(&self, call: HttpCall) -> Result<Body, ProblemDetails> {
        let response = self.send(call, NDJSON).await?;
        if response.status().is_success() {
            return Ok(response.into_body());
        }
        let body = to_bytes(response.into_body(), LONGEST_ANSWER).await.unwrap_or_default();
        Err(serde_json::from_slice(&body).unwrap_or_else(|_| ProblemDetails::failed("the subscription was refused")))
    }

    async fn send(&self, call: HttpCall, accept: &str) -> Result<Response, ProblemDetails> {
        let HttpCall { method, path, body, idempotency_key } = call;
        let mut request = Request::builder().method(method).uri(path).header(header::ACCEPT, accept);
        if let Some(key) = idempotency_key {
            request = request.header("idempotency-key", key);
        }
        let invalid = |error: axum::http::Error| ProblemDetails::usage(format!("the request makes no sense: {error}"));
        let mut request = request.body(Body::from(body)).map_err(invalid)?;
        if let Some(identity) = &self.identity {
            request.extensions_mut().insert(identity.clone());
        }
        if let Some(peer) = self.peer {
            request.extensions_mut().insert(peer);
        }
        // The router never fails.
        Ok(self.router.clone().oneshot(request).await.unwrap_or_else(|never| match never {}))
    }
}
