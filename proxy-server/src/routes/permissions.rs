//! Permission requests.

use axum::{extract::Path, http::StatusCode};
use proxy_manager::SessionInfo;

use crate::{
    ApiState,
    access::Caller,
    api::{PermissionReply, SessionPermission},
    requests::{Body, JsonBody, RouteResult, parse},
    route_table::api_routes,
};

api_routes! { "Permissions", ApiState;
    /// Lists the open permission requests of all sessions that the caller sees.
    get "/v1/permissions" list_all: json::<Vec<SessionPermission>>(200, "The requests.");
    /// Lists the open permission requests of a session.
    get "/v1/sessions/{id}/permissions" list: json::<Vec<SessionPermission>>(200, "The requests.") problems(SESSION);
    /// Answers a permission request.
    post "/v1/sessions/{id}/permissions/{request}" answer:
        body::<PermissionReply>() empty(204, "The answer is on its way to the agent.")
        problems(SESSION) problems(PROXY) problems(&["unknown-permission"]);
}

/// Lists the requests that are open, of all sessions that the caller sees.
async fn list_all(caller: Caller) -> JsonBody<Vec<SessionPermission>> {
    let sessions = caller.manager.list_sessions().into_iter();
    JsonBody(sessions.filter(|session| caller.sees(session.metadata.user_id.as_deref())).flat_map(open).collect())
}

async fn list(caller: Caller, Path(id): Path<String>) -> RouteResult<JsonBody<Vec<SessionPermission>>> {
    Ok(JsonBody(open(caller.find(&id)?.info()).collect()))
}

fn open(session: SessionInfo) -> impl Iterator<Item = SessionPermission> {
    let SessionInfo { metadata, open_permissions, .. } = session;
    open_permissions
        .into_iter()
        .map(move |request| SessionPermission { session_id: metadata.session_id.clone(), request })
}

async fn answer(caller: Caller, Path((id, request)): Path<(String, String)>, body: Body) -> RouteResult<StatusCode> {
    let PermissionReply { answer, by } = parse(body)?;
    let session = caller.find(&id)?;
    match by.or_else(|| caller.answers_as()) {
        Some(by) => session.respond_permission_as(&by, &request, answer).await?,
        None => session.respond_permission(&request, answer).await?,
    }
    Ok(StatusCode::NO_CONTENT)
}
