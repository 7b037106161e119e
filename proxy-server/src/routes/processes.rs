//! Processes of a session.

use axum::{
    Router,
    extract::{Path, State},
    routing::get,
};
use proxy_manager::{ProcessInfo, ProxyManager};

use crate::{
    ApiState,
    requests::{JsonBody, RouteResult, find},
};

pub(super) fn routes() -> Router<ApiState> {
    Router::new().route("/v1/sessions/{id}/processes", get(processes))
}

async fn processes(
    State(manager): State<ProxyManager>,
    Path(id): Path<String>,
) -> RouteResult<JsonBody<Vec<ProcessInfo>>> {
    Ok(JsonBody(find(&manager, &id)?.processes().await?))
}
