//! Health.

use axum::{
    http::StatusCode,
    response::{IntoResponse, Response},
};
use proxy_manager::SessionInfo;

use crate::{
    ApiState,
    access::Caller,
    api::{HealthResponse, ReadyResponse, VersionResponse},
    requests::JsonBody,
    route_table::api_routes,
};

api_routes! { "Server", ApiState;
    /// Tells how the server is.
    get "/v1/health" health: json::<HealthResponse>(200, "State of the server.");
    /// Tells if sessions can be started, and their events be kept.
    get "/v1/ready" ready:
        json::<ReadyResponse>(200, "Sessions can be started.") json::<ReadyResponse>(503, "Sessions cannot be started, or their events not be kept.");
    /// Tells the server's version.
    get "/v1/version" version: json::<VersionResponse>(200, "Version of the server.");
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
        daemon: caller.daemon(),
    })
}

/// Says whether sessions can be started, and their events be kept; 503 if not.
async fn ready(caller: Caller) -> Response {
    let degraded = caller.manager.trouble();
    let ready = degraded.is_empty();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, JsonBody(ReadyResponse { ready, degraded })).into_response()
}

async fn version() -> JsonBody<VersionResponse> {
    JsonBody(VersionResponse { version: env!("CARGO_PKG_VERSION").to_owned() })
}

fn is_ended(session: &SessionInfo) -> bool {
    matches!(session.state, proxy_manager::SessionState::Ended { .. })
}
