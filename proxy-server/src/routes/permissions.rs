//! Permission requests.

use axum::{Router, extract::Path, http::StatusCode, routing::post};

use crate::{
    ApiState,
    access::Caller,
    api::PermissionReply,
    requests::{Body, RouteResult, parse},
};

pub(super) fn routes() -> Router<ApiState> {
    Router::new().route("/v1/sessions/{id}/permissions/{request}", post(permit))
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
