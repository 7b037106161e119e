//! A web server that embeds a manager: sessions over HTTP, their events as server-sent events, and a shutdown that ends every
//! session with a receipt. Agents run with the rights of whoever can reach it: here only the loopback can.
//!
//! ```sh
//! cargo run -p agent-proxy-manager --example axum_server -- 127.0.0.1:4000
//! curl -X POST 127.0.0.1:4000/sessions -d '{"sessionId":"s-1","agent":"fake"}' -H content-type:application/json
//! curl -N 127.0.0.1:4000/sessions/s-1/events &
//! curl -X POST 127.0.0.1:4000/sessions/s-1/prompt -d 'say hello'
//! curl -X POST 127.0.0.1:4000/sessions/s-1/kill
//! ```

#![expect(clippy::print_stdout, reason = "an example talks")]

use std::{convert::Infallible, future::IntoFuture, time::Duration};

use axum::{
    Json, Router,
    extract::{Path, State},
    http::{HeaderMap, StatusCode},
    response::{
        IntoResponse, Response, Sse,
        sse::{self, KeepAlive},
    },
    routing::{get, post},
};
use futures_util::{Stream, stream};
use proxy_manager::{
    AgentSessionConfig, AgentSpec, ChildProgram, Error, KillOptions, PromptMode, ProxyManager, Receipt, SessionId,
    SessionInfo,
};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::sleep,
};

/// Time for clients to read the last events, once all sessions have ended.
const LAST_EVENTS: Duration = Duration::from_secs(2);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let token = proxy_child::run_if_child();
    // So that the example needs no agent installed, it brings a fake one along.
    if std::env::args().nth(1).as_deref() == Some("fake-agent") {
        let reexec = vec!["/proc/self/exe".to_owned(), "fake-agent".to_owned()];
        std::process::exit(fake_agent::run(fake_agent::Config { reexec }, std::env::args().skip(2)));
    }
    tokio::runtime::Runtime::new()?.block_on(serve(ChildProgram::Current(token)))
}

async fn serve(child: ChildProgram) -> Result<(), Box<dyn std::error::Error>> {
    // Before anyone is told that we are there: a signal must find its handler.
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let this_program = std::env::current_exe()?.display().to_string();
    let manager = ProxyManager::builder(child)
        .base_env([("PATH", "/usr/bin:/bin")].into_iter().collect())
        .agent(AgentSpec::new("fake", "acp", &[this_program.as_str(), "fake-agent"]))
        .build()
        .await?;

    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".into());
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let ending = manager.clone();
    let (ended, all_ended) = tokio::sync::oneshot::channel();
    let server = axum::serve(listener, router(manager)).with_graceful_shutdown(async move {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        // Every session ends, and with it its stream of events.
        for receipt in ending.shutdown().await {
            println!("{}: {receipt}", receipt.session_id);
        }
        let _ = ended.send(());
    });
    tokio::select! {
        served = server.into_future() => served?,
        // The last events are sent by then. The connection of a client that does not read them would never end.
        () = async { _ = all_ended.await; sleep(LAST_EVENTS).await } => println!("some clients did not read to the end"),
    }
    Ok(())
}

fn router(manager: ProxyManager) -> Router {
    Router::new()
        .route("/sessions", get(list).post(start))
        .route("/sessions/{id}/prompt", post(send_prompt))
        .route("/sessions/{id}/events", get(events))
        .route("/sessions/{id}/kill", post(kill))
        .with_state(manager)
}

/// An error of the manager's as an answer.
struct Refused(Error);

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let status = match self.0 {
            Error::UnknownSession { .. } | Error::UnknownAgent { .. } => StatusCode::NOT_FOUND,
            Error::DuplicateSession { .. } | Error::Busy { .. } | Error::Ended { .. } => StatusCode::CONFLICT,
            Error::InvalidConfig { .. } => StatusCode::BAD_REQUEST,
            Error::Unsupported { .. } => StatusCode::NOT_IMPLEMENTED,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        // Errors say what was tried, on what, and what to do.
        (status, self.0.to_string()).into_response()
    }
}

async fn list(State(manager): State<ProxyManager>) -> Json<Vec<SessionInfo>> {
    Json(manager.list_sessions())
}

/// The body is an `AgentSessionConfig`; only `agent` is needed.
async fn start(
    State(manager): State<ProxyManager>,
    Json(config): Json<AgentSessionConfig>,
) -> Result<(StatusCode, Json<SessionInfo>), Refused> {
    Ok((StatusCode::CREATED, Json(manager.start_session(config).await?.info())))
}

/// The body is the prompt. What comes of it is told by the events.
async fn send_prompt(
    State(manager): State<ProxyManager>,
    Path(id): Path<SessionId>,
    text: String,
) -> Result<StatusCode, Refused> {
    manager.send_prompt(&id, text, PromptMode::Queue).await?;
    Ok(StatusCode::ACCEPTED)
}

/// All events from the first one on, or after the one that `Last-Event-ID` names: a client that lost its connection misses
/// nothing. A slow one holds up nobody.
async fn events(
    State(manager): State<ProxyManager>,
    Path(id): Path<SessionId>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<sse::Event, Infallible>>>, Refused> {
    let seen = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse().ok()).unwrap_or(0);
    let events = manager.subscribe_from(&id, seen)?;
    let events = stream::unfold(events, async |mut events| {
        let envelope = events.next().await?;
        let data = envelope.to_json().unwrap_or_default().to_string();
        Some((Ok(sse::Event::default().id(envelope.offset.to_string()).data(data)), events))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::default()))
}

/// Ends the session and everything it started, and answers with the receipt.
async fn kill(State(manager): State<ProxyManager>, Path(id): Path<SessionId>) -> Result<Json<Receipt>, Refused> {
    // In a task of its own: a client that leaves does not stop it half-way.
    let kill = tokio::spawn(async move { manager.kill_session(&id, KillOptions::default()).await });
    Ok(Json(kill.await.unwrap_or(Err(Error::ShutDown))?))
}
