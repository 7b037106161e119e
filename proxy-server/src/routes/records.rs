//! Records of sessions, living and past.

use axum::{
    Router,
    extract::{Path, Query},
    routing::get,
};
use proxy_manager::{SessionFilter, SessionRecord};

use crate::{
    ApiState, ProblemDetails,
    access::Caller,
    api::RecordChange,
    requests::{Body, JsonBody, RouteResult, UrlQuery, parse},
};

pub(super) fn routes() -> Router<ApiState> {
    Router::new().route("/v1/records", get(records)).route("/v1/records/{id}", get(record).post(change))
}

async fn records(caller: Caller, filter: UrlQuery<SessionFilter>) -> RouteResult<JsonBody<Vec<SessionRecord>>> {
    let Query(filter) = filter.map_err(|error| ProblemDetails::usage(error.to_string()))?;
    let mut records = caller.manager.records(&filter);
    records.retain(|record| caller.sees(record.config.user_id.as_deref()));
    Ok(JsonBody(records))
}

async fn record(caller: Caller, Path(id): Path<String>) -> RouteResult<JsonBody<SessionRecord>> {
    Ok(JsonBody(caller.manager.record(&caller.session_id(&id)?)?))
}

async fn change(caller: Caller, Path(id): Path<String>, body: Body) -> RouteResult<JsonBody<SessionRecord>> {
    let id = caller.session_id(&id)?;
    let RecordChange { title, add_tags, remove_tags, archived } = parse(body)?;
    if let Some(title) = title {
        caller.manager.rename_session(&id, Some(title).filter(|title| !title.is_empty())).await?;
    }
    if !add_tags.is_empty() || !remove_tags.is_empty() {
        caller.manager.tag_session(&id, &add_tags, &remove_tags).await?;
    }
    if let Some(archived) = archived {
        caller.manager.archive_session(&id, archived).await?;
    }
    Ok(JsonBody(caller.manager.record(&id)?))
}
