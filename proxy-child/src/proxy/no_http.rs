//! Stands in for the HTTP client in a build without one: each request fails, with the feature that is missing.

use std::{collections::VecDeque, sync::Arc, time::Instant};

use agents::{HttpEvent, HttpPatience, HttpRequest};
use ipc_protocol::AgentEndpoint;
use registry::SessionNetwork;

const MISSING: &str = "this build has no HTTP client: build it with the feature `opencode`";

/// Result of a request.
#[derive(Debug)]
pub(crate) enum HttpOutcome {
    #[expect(dead_code, reason = "no request has an answer")]
    Body(Vec<u8>),
    #[expect(dead_code, reason = "no request has an answer")]
    End,
    Failed(&'static str),
}

impl HttpOutcome {
    /// Returns the result as an adapter takes it.
    pub(crate) fn event(&self) -> HttpEvent<'_> {
        match self {
            Self::Body(bytes) => HttpEvent::Body(bytes),
            Self::End => HttpEvent::End,
            Self::Failed(why) => HttpEvent::Failed(why),
        }
    }
}

/// Piece of an answer.
#[derive(Debug)]
pub(crate) struct ResponsePiece {
    pub(crate) id: u64,
    pub(crate) stream: bool,
    pub(crate) emits_raw: bool,
    pub(crate) outcome: HttpOutcome,
}

/// Requests that have failed and were not reported yet.
#[derive(Debug, Default)]
pub(crate) struct HttpClients(VecDeque<ResponsePiece>);

impl HttpClients {
    pub(crate) fn connect(&mut self, _: &AgentEndpoint) {}

    pub(crate) fn request(&mut self, request: HttpRequest) {
        let HttpRequest { id, patience, emits_raw, .. } = request;
        let outcome = HttpOutcome::Failed(MISSING);
        self.0.push_back(ResponsePiece { id, stream: patience == HttpPatience::Stream, emits_raw, outcome });
    }

    /// Waits until [`HttpClients::take`] has something.
    pub(crate) async fn readable(&mut self) {
        if self.0.is_empty() {
            std::future::pending().await
        }
    }

    pub(crate) fn take(&mut self) -> Option<ResponsePiece> {
        self.0.pop_front()
    }

    pub(crate) fn drain_deadline(&mut self) -> Option<Instant> {
        None
    }

    pub(crate) fn next_due(&self) -> Option<Instant> {
        None
    }

    /// Does nothing: there is no client that could enter a network.
    pub(crate) fn enter(&mut self, _network: Option<Arc<SessionNetwork>>) {}

    pub(crate) fn close(&mut self) {
        self.0.clear();
    }
}
