//! Route `stop`: a client ends the daemon, and hears what becomes of its sessions.

use std::{sync::Arc, time::Duration};

use axum::{extract::State, response::Response};
use proxy_manager::{DrainProgress, ProxyManager, Receipt, SessionId, SessionStatus};
use tokio::sync::{mpsc, watch};

use crate::{
    api::{StopProgressLine, StopRequest, StoppedSession},
    requests::{Body, RouteResult, parse},
    route_table::api_routes,
    stream,
};

/// Treatment of running turns at the daemon's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopMode {
    /// They may finish.
    AfterTurns,
    /// They are ended.
    Now,
}

/// A client's request to end the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopOrder {
    /// Treatment of running turns.
    pub mode: StopMode,
    /// True to let sessions run on that may outlive the daemon, for the next one.
    pub detach: bool,
}

/// Progress of the daemon's end, for its clients.
#[derive(Clone, Debug)]
pub struct StopProgress {
    requests: mpsc::Sender<StopOrder>,
    /// `None` before the end begins.
    latest: Arc<watch::Sender<Option<StopProgressLine>>>,
}

/// Receiving end of the clients' requests.
#[derive(Debug)]
pub struct StopRequests(mpsc::Receiver<StopOrder>);

impl StopRequests {
    /// Waits for the next request.
    pub async fn recv(&mut self) -> StopOrder {
        match self.0.recv().await {
            Some(order) => order,
            // The routes hold a sender for as long as the daemon serves.
            None => std::future::pending().await,
        }
    }

    /// Waits for a request that does not wait for turns.
    pub async fn now(&mut self) {
        while self.recv().await.mode != StopMode::Now {}
    }
}

impl StopProgress {
    /// Creates the progress, and the receiving end of what clients request.
    pub fn new() -> (Self, StopRequests) {
        let (requests, received) = mpsc::channel(1);
        (Self { requests, latest: Arc::new(watch::Sender::new(None)) }, StopRequests(received))
    }

    /// Reports turns that are waited for, `longest` at most.
    pub fn drains(&self, DrainProgress { turns, .. }: DrainProgress, longest: Duration) {
        let longest_ms = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
        self.latest.send_replace(Some(StopProgressLine::Draining { turns, longest_ms }));
    }

    /// Reports the end of all sessions, but for those that run on without a daemon.
    pub fn stopped(&self, manager: &ProxyManager, receipts: &[Receipt], detached: Vec<SessionId>) {
        let listed = manager.list_sessions();
        let status = |receipt: &Receipt| {
            let session = listed.iter().find(|session| session.metadata.session_id == receipt.session_id);
            session.map_or(SessionStatus::Ended, |session| SessionStatus::from(&session.state))
        };
        let sessions = receipts.iter().map(|receipt| StoppedSession {
            session_id: receipt.session_id.clone(),
            status: status(receipt),
            receipt: receipt.clone(),
        });
        self.latest.send_replace(Some(StopProgressLine::Stopped { sessions: sessions.collect(), detached }));
    }
}

api_routes! { "Server", StopProgress;
    /// Ends the server.
    ///
    /// It ends even if the client leaves. The answer is a line at each change, and last one of the sessions that it ended.
    post "/v1/stop" stop: body::<StopRequest>() lines::<StopProgressLine>(200, "Progress of the end.");
}

/// Ends the daemon. It ends even if the client leaves.
async fn stop(State(stopping): State<StopProgress>, body: Body) -> RouteResult<Response> {
    let StopRequest { now, detach } = parse(body)?;
    let latest = stopping.latest.subscribe();
    let mode = if now { StopMode::Now } else { StopMode::AfterTurns };
    // Full when the end has begun, or is about to. The one request that counts then is read for all along.
    let _ = stopping.requests.send(StopOrder { mode, detach }).await;
    Ok(stream::stop(latest))
}
