//! Route `stop`: a client ends the daemon, and hears what becomes of its sessions.

use std::{sync::Arc, time::Duration};

use axum::{Router, extract::State, response::Response, routing::post};
use proxy_manager::{DrainProgress, ProxyManager, Receipt, SessionStatus};
use tokio::sync::{mpsc, watch};

use super::{
    requests::{Body, Daemon, RouteResult, parse},
    stream,
};
use crate::api::{StopProgressLine, StopRequest, StoppedSession};

/// Treatment of running turns at the daemon's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopMode {
    /// They may finish.
    AfterTurns,
    /// They are ended.
    Now,
}

/// Progress of the daemon's end, for its clients.
#[derive(Clone, Debug)]
pub(super) struct StopProgress {
    requests: mpsc::Sender<StopMode>,
    /// `None` before the end begins.
    latest: Arc<watch::Sender<Option<StopProgressLine>>>,
}

/// Receiving end of the clients' requests.
#[derive(Debug)]
pub(super) struct StopRequests(mpsc::Receiver<StopMode>);

impl StopRequests {
    /// Waits for the next request.
    pub(super) async fn recv(&mut self) -> StopMode {
        match self.0.recv().await {
            Some(mode) => mode,
            // The routes hold a sender for as long as the daemon serves.
            None => std::future::pending().await,
        }
    }

    /// Waits for a request that does not wait for turns.
    pub(super) async fn now(&mut self) {
        while self.recv().await != StopMode::Now {}
    }
}

impl StopProgress {
    pub(super) fn new() -> (Self, StopRequests) {
        let (requests, received) = mpsc::channel(1);
        (Self { requests, latest: Arc::new(watch::Sender::new(None)) }, StopRequests(received))
    }

    /// Reports turns that are waited for, `longest` at most.
    pub(super) fn drains(&self, DrainProgress { turns, .. }: DrainProgress, longest: Duration) {
        let longest_ms = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
        self.latest.send_replace(Some(StopProgressLine::Draining { turns, longest_ms }));
    }

    /// Reports the end of all sessions.
    pub(super) fn stopped(&self, manager: &ProxyManager, receipts: &[Receipt]) {
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
        self.latest.send_replace(Some(StopProgressLine::Stopped { sessions: sessions.collect() }));
    }
}

/// Returns this route, for the daemon's router.
pub(super) fn routes() -> Router<Daemon> {
    Router::new().route("/v1/stop", post(stop))
}

/// Ends the daemon. It ends even if the client leaves.
async fn stop(State(Daemon { stopping, .. }): State<Daemon>, body: Body) -> RouteResult<Response> {
    let StopRequest { now } = parse(body)?;
    let latest = stopping.latest.subscribe();
    let mode = if now { StopMode::Now } else { StopMode::AfterTurns };
    // Full when the end has begun, or is about to. The one request that counts then is read for all along.
    let _ = stopping.requests.send(mode).await;
    Ok(stream::stop(latest))
}
