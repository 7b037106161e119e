//! Permission requests.

use axum::{
    Router,
    extract::Path,
    http::StatusCode,
    routing::{get, post},
};
use proxy_manager::SessionInfo;

use crate::{
    ApiState,
    access::Caller,
    api::{PermissionReply, SessionPermission},
    requests::{Body, JsonBody, RouteResult, parse},
};

pub(super) fn routes() -> Router<ApiState> {
    Router::new()
        .route("/v1/permissions", get(every_permission))
        .route("/v1/sessions/{id}/permissions", get(permissions))
        .route("/v1/sessions/{id}/permissions/{request}", post(permit))
}

/// Lists the requests that are open, of all sessions that the caller sees.
async fn every_permission(caller: Caller) -> JsonBody<Vec<SessionPermission>> {
    let sessions = caller.manager.list_sessions().into_iter();
    JsonBody(sessions.filter(|session| caller.sees(session.metadata.user_id.as_deref())).flat_map(open).collect())
}

async fn permissions(caller: Caller, Path(id): Path<String>) -> RouteResult<JsonBody<Vec<SessionPermission>>> {
    Ok(JsonBody(open(caller.find(&id)?.info()).collect()))
}

fn open(session: SessionInfo) -> impl Iterator<Item = SessionPermission> {
    let SessionInfo { metadata, open_permissions, .. } = session;
    open_permissions
        .into_iter()
        .map(move |request| SessionPermission { session_id: metadata.session_id.clone(), request })
}

async fn permit(caller: Caller, Path((id, request)): Path<(String, String)>, body: Body) -> RouteResult<StatusCode> {
    let PermissionReply { answer, by } = parse(body)?;
    let session = caller.find(&id)?;
    match by {
        Some(by) => session.respond_permission_as(&by, &request, answer).await?,
        None => session.respond_permission(&request, answer).await?,
    }
    Ok(StatusCode::NO_CONTENT)
}
