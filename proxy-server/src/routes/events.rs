//! Events: read, append, import.

use std::{fs::File, io::BufReader};

use axum::{
    Router,
    extract::{Path, Query, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use proxy_manager::{ImportSummary, ProxyManager};

use crate::{
    ApiState, ProblemDetails,
    api::{AppendRequest, AppendResponse, ImportRequest, ImportResponse},
    event_filter::EventsQuery,
    requests::{Body, JsonBody, RouteResult, UrlQuery, find, parse, to_the_end},
    session_ids::session_id,
    stream,
};

pub(super) fn routes() -> Router<ApiState> {
    Router::new()
        .route("/v1/sessions/{id}/events", get(events).post(append))
        .route("/v1/events", get(all_events))
        .route("/v1/import", post(import))
}

async fn events(
    State(manager): State<ProxyManager>,
    Path(id): Path<String>,
    query: UrlQuery<EventsQuery>,
) -> RouteResult<Response> {
    let Query(query) = query.map_err(|error| ProblemDetails::usage(error.to_string()))?;
    let id = session_id(&manager, &id)?;
    let last = manager.session(&id).ok().map(|session| session.info().last_offset);
    let range = stream::EventRange {
        from: query.from,
        last,
        // A session of an earlier daemon has an end, or does not exist.
        until: last.filter(|_| !query.follow),
    };
    Ok(stream::events(manager.subscribe_from(&id, query.from)?, range, query.selection()?))
}

async fn all_events(State(manager): State<ProxyManager>, query: UrlQuery<EventsQuery>) -> RouteResult<Response> {
    let Query(query) = query.map_err(|error| ProblemDetails::usage(error.to_string()))?;
    if query.follow {
        return Err(ProblemDetails::usage("follow is of one session: /v1/sessions/{id}/events"));
    }
    stream::all_events(manager, query.from, query.selection()?).await
}

async fn append(State(manager): State<ProxyManager>, Path(id): Path<String>, body: Body) -> RouteResult<Response> {
    let AppendRequest { kind, version, payload } = parse(body)?;
    let id = find(&manager, &id)?.id().clone();
    let offset = to_the_end(async move { manager.append_event(&id, &kind, version, payload).await }).await?;
    Ok((StatusCode::CREATED, JsonBody(AppendResponse { offset: format!("{offset:020}") })).into_response())
}

async fn import(State(manager): State<ProxyManager>, body: Body) -> RouteResult<JsonBody<ImportResponse>> {
    let ImportRequest { path } = parse(body)?;
    let opened = tokio::task::spawn_blocking(move || open(&path)).await;
    let file = opened.map_err(|error| ProblemDetails::failed(format!("opening the file broke off: {error}")))??;
    let imported = to_the_end(async move { manager.import_events(BufReader::new(file)).await }).await?;
    let offset = |offset: u64| format!("{offset:020}");
    let ImportSummary { session, first, last } = imported;
    Ok(JsonBody(ImportResponse { session_id: session, first: offset(first), last: offset(last) }))
}

/// Opens a regular file; refuses anything that could block its reader.
fn open(path: &std::path::Path) -> RouteResult<File> {
    let failed = |what: String| ProblemDetails::usage(format!("opening {} failed: {what}", path.display()));
    let found = std::fs::metadata(path).map_err(|error| failed(error.to_string()))?;
    if !found.is_file() {
        return Err(failed("it is no file".to_owned()));
    }
    File::open(path).map_err(|error| failed(error.to_string()))
}
