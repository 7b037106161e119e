//! Permission requests.

use axum::{
    Router,
    extract::{Path, State},
    http::StatusCode,
    routing::post,
};
use proxy_manager::ProxyManager;

use crate::{
    ApiState,
    api::PermissionReply,
    requests::{Body, RouteResult, find, parse},
};

pub(super) fn routes() -> Router<ApiState> {
    Router::new().route("/v1/sessions/{id}/permissions/{request}", post(permit))
}

async fn permit(
    State(manager): State<ProxyManager>,
    Path((id, request)): Path<(String, String)>,
    body: Body,
) -> RouteResult<StatusCode> {
    let PermissionReply { answer, by } = parse(body)?;
    let session = find(&manager, &id)?;
    match by {
        Some(by) => session.respond_permission_as(&by, &request, answer).await?,
        None => session.respond_permission(&request, answer).await?,
    }
    Ok(StatusCode::NO_CONTENT)
}
