//! Sessions that outlive their processes: suspend, resume, hand over and take back.

use std::time::Duration;

use axum::{
    Router,
    extract::{Path, State},
    routing::{get, post},
};
use proxy_manager::{KillOptions, ProxyManager, SessionId, SessionInfo, SessionMetadata, SessionSnapshot};

use crate::{
    ApiState,
    api::{AttachCommandResponse, ResumeRequest, SuspendRequest},
    requests::{Body, JsonBody, RouteResult, parse, to_the_end},
    session_ids::session_id,
};

pub(super) fn routes() -> Router<ApiState> {
    Router::new()
        .route("/v1/sessions/{id}/suspend", post(suspend))
        .route("/v1/sessions/{id}/resume", post(resume))
        .route("/v1/sessions/{id}/attach-command", get(attach_command))
        .route("/v1/sessions/{id}/hand-over", post(hand_over))
        .route("/v1/sessions/{id}/take-back", post(take_back))
        .route("/v1/resume", post(resume_snapshot))
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
    State(state): State<ApiState>,
    Path(id): Path<String>,
    body: Body,
) -> RouteResult<JsonBody<SessionInfo>> {
    let manager = state.manager.clone();
    let (id, options) = (session_id(&manager, &id)?, parse(body)?);
    state.refresh().await?;
    let session = to_the_end(async move { manager.resume_session_with(&id, options).await }).await?;
    Ok(JsonBody(session.info()))
}

async fn resume_snapshot(State(state): State<ApiState>, body: Body) -> RouteResult<JsonBody<SessionInfo>> {
    let ResumeRequest { snapshot, options } = parse(body)?;
    let manager = state.manager.clone();
    state.refresh().await?;
    let session = to_the_end(async move { manager.resume_snapshot(snapshot, options).await }).await?;
    Ok(JsonBody(session.info()))
}

async fn take_back(
    State(state): State<ApiState>,
    Path(id): Path<String>,
    body: Body,
) -> RouteResult<JsonBody<SessionInfo>> {
    let manager = state.manager.clone();
    let (id, options) = (session_id(&manager, &id)?, parse(body)?);
    state.refresh().await?;
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
