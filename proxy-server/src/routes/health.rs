//! Health.

use axum::{Router, routing::get};
use proxy_manager::SessionInfo;

use crate::{ApiState, access::Caller, api::HealthResponse, requests::JsonBody};

pub(super) fn routes() -> Router<ApiState> {
    Router::new().route("/v1/health", get(health))
}

async fn health(caller: Caller) -> JsonBody<HealthResponse> {
    let sessions = caller.manager.list_sessions();
    let live = sessions.iter().filter(|session| !is_ended(session)).count();
    JsonBody(HealthResponse {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        fork_server: caller.manager.fork_server(),
        sessions: live,
        waiting: caller.manager.occupancy().waiting,
        damaged: caller.manager.damage().iter().map(ToString::to_string).collect(),
        degraded: caller.manager.trouble(),
    })
}

fn is_ended(session: &SessionInfo) -> bool {
    matches!(session.state, proxy_manager::SessionState::Ended { .. })
}
