//! Processes of a session.

use axum::{Router, extract::Path, routing::get};
use proxy_manager::ProcessInfo;

use crate::{
    ApiState,
    access::Caller,
    requests::{JsonBody, RouteResult},
};

pub(super) fn routes() -> Router<ApiState> {
    Router::new().route("/v1/sessions/{id}/processes", get(processes))
}

async fn processes(caller: Caller, Path(id): Path<String>) -> RouteResult<JsonBody<Vec<ProcessInfo>>> {
    Ok(JsonBody(caller.find(&id)?.processes().await?))
}
