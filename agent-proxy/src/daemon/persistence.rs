//! Routes of sessions that outlive their processes: suspend, resume, hand over, append, records.

use std::{fs::File, io::BufReader, time::Duration};

use axum::{
    Router,
    extract::{Path, Query, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use proxy_manager::{
    ImportSummary, KillOptions, ProxyManager, SessionFilter, SessionId, SessionInfo, SessionMetadata, SessionRecord,
    SessionSnapshot,
};

use super::{
    requests::{Body, Daemon, JsonBody, RouteResult, UrlQuery, find, parse, to_the_end},
    session_ids::session_id,
};
use crate::{
    api::{
        AppendRequest, AppendResponse, AttachCommandResponse, ImportRequest, ImportResponse, RecordChange,
        ResumeRequest, SuspendRequest,
    },
    problem::ProblemDetails,
};

/// Returns these routes, for the daemon's router.
pub(super) fn routes() -> Router<Daemon> {
    Router::new()
        .route("/v1/sessions/{id}/suspend", post(suspend))
        .route("/v1/sessions/{id}/resume", post(resume))
        .route("/v1/sessions/{id}/attach-command", get(attach_command))
        .route("/v1/sessions/{id}/hand-over", post(hand_over))
        .route("/v1/sessions/{id}/take-back", post(take_back))
        .route("/v1/sessions/{id}/events", post(append))
        .route("/v1/resume", post(resume_snapshot))
        .route("/v1/import", post(import))
        .route("/v1/records", get(records))
        .route("/v1/records/{id}", get(record).post(change))
}

fn options(SuspendRequest { grace_ms }: SuspendRequest) -> KillOptions {
    grace_ms.map_or_else(KillOptions::default, |ms| KillOptions::grace(Duration::from_millis(ms)))
}

async fn suspend(
    State(manager): State<ProxyManager>,
    Path(id): Path<String>,
    body: Body,
) -> RouteResult<JsonBody<SessionSnapshot>> {
    let (id, options) = (session_id(&manager, &id)?, options(parse(body)?));
    to_the_end(async move { manager.suspend_session(&id, options).await }).await.map(JsonBody)
}

async fn resume(
    State(daemon): State<Daemon>,
    Path(id): Path<String>,
    body: Body,
) -> RouteResult<JsonBody<SessionInfo>> {
    let Daemon { manager, configuration: configured, .. } = daemon;
    let (id, options) = (session_id(&manager, &id)?, parse(body)?);
    configured.refresh(&manager).await?;
    let session = to_the_end(async move { manager.resume_session_with(&id, options).await }).await?;
    Ok(JsonBody(session.info()))
}

async fn resume_snapshot(
    State(Daemon { manager, configuration: configured, .. }): State<Daemon>,
    body: Body,
) -> RouteResult<JsonBody<SessionInfo>> {
    let ResumeRequest { snapshot, options } = parse(body)?;
    configured.refresh(&manager).await?;
    let session = to_the_end(async move { manager.resume_snapshot(snapshot, options).await }).await?;
    Ok(JsonBody(session.info()))
}

async fn take_back(
    State(daemon): State<Daemon>,
    Path(id): Path<String>,
    body: Body,
) -> RouteResult<JsonBody<SessionInfo>> {
    let Daemon { manager, configuration: configured, .. } = daemon;
    let (id, options) = (session_id(&manager, &id)?, parse(body)?);
    configured.refresh(&manager).await?;
    let session = to_the_end(async move { manager.take_back_with(&id, options).await }).await?;
    Ok(JsonBody(session.info()))
}

async fn attach_command(
    State(manager): State<ProxyManager>,
    Path(id): Path<String>,
) -> RouteResult<JsonBody<AttachCommandResponse>> {
    let id = session_id(&manager, &id)?;
    let command = manager.attach_command(&id)?;
    attach(&manager, &id, command)
}

async fn hand_over(
    State(manager): State<ProxyManager>,
    Path(id): Path<String>,
    body: Body,
) -> RouteResult<JsonBody<AttachCommandResponse>> {
    let (id, options) = (session_id(&manager, &id)?, options(parse(body)?));
    let (owner, of) = (manager.clone(), id.clone());
    let command = to_the_end(async move { owner.hand_over(&of, options).await }).await?;
    attach(&manager, &id, command)
}

fn attach(
    manager: &ProxyManager,
    id: &SessionId,
    command: Vec<String>,
) -> RouteResult<JsonBody<AttachCommandResponse>> {
    let SessionMetadata { cwd, home, .. } = manager.session(id)?.info().metadata;
    Ok(JsonBody(AttachCommandResponse { command, cwd, home }))
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
