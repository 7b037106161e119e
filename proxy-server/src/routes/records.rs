//! Records of sessions, living and past.

use axum::{
    Router,
    extract::{Path, Query, State},
    routing::get,
};
use proxy_manager::{ProxyManager, SessionFilter, SessionRecord};

use crate::{
    ApiState, ProblemDetails,
    api::RecordChange,
    requests::{Body, JsonBody, RouteResult, UrlQuery, parse},
    session_ids::session_id,
};

pub(super) fn routes() -> Router<ApiState> {
    Router::new().route("/v1/records", get(records)).route("/v1/records/{id}", get(record).post(change))
}

async fn records(
    State(manager): State<ProxyManager>,
    filter: UrlQuery<SessionFilter>,
) -> RouteResult<JsonBody<Vec<SessionRecord>>> {
    let Query(filter) = filter.map_err(|error| ProblemDetails::usage(error.to_string()))?;
    Ok(JsonBody(manager.records(&filter)))
}

async fn record(State(manager): State<ProxyManager>, Path(id): Path<String>) -> RouteResult<JsonBody<SessionRecord>> {
    Ok(JsonBody(manager.record(&session_id(&manager, &id)?)?))
}

async fn change(
    State(manager): State<ProxyManager>,
    Path(id): Path<String>,
    body: Body,
) -> RouteResult<JsonBody<SessionRecord>> {
    let id = session_id(&manager, &id)?;
    let RecordChange { title, add_tags, remove_tags, archived } = parse(body)?;
    if let Some(title) = title {
        manager.rename_session(&id, Some(title).filter(|title| !title.is_empty())).await?;
    }
    if !add_tags.is_empty() || !remove_tags.is_empty() {
        manager.tag_session(&id, &add_tags, &remove_tags).await?;
    }
    if let Some(archived) = archived {
        manager.archive_session(&id, archived).await?;
    }
    Ok(JsonBody(manager.record(&id)?))
}
