//! Health.

use axum::{Router, extract::State, routing::get};
use proxy_manager::{ProxyManager, SessionInfo};

use crate::{ApiState, api::HealthResponse, requests::JsonBody};

pub(super) fn routes() -> Router<ApiState> {
    Router::new().route("/v1/health", get(health))
}

async fn health(State(manager): State<ProxyManager>) -> JsonBody<HealthResponse> {
    let sessions = manager.list_sessions();
    let live = sessions.iter().filter(|session| !is_ended(session)).count();
    JsonBody(HealthResponse {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        fork_server: manager.fork_server(),
        sessions: live,
        waiting: manager.occupancy().waiting,
        damaged: manager.damage().iter().map(ToString::to_string).collect(),
        degraded: manager.trouble(),
    })
}

fn is_ended(session: &SessionInfo) -> bool {
    matches!(session.state, proxy_manager::SessionState::Ended { .. })
}
