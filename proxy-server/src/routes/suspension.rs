//! Sessions that outlive their processes: suspend, resume, hand over and take back.

use std::time::Duration;

use axum::{
    Router,
    extract::Path,
    routing::{get, post},
};
use proxy_manager::{KillOptions, ProxyManager, SessionId, SessionInfo, SessionMetadata, SessionSnapshot};

use crate::{
    ApiState,
    access::Caller,
    api::{AttachCommandResponse, ResumeRequest, SuspendRequest},
    requests::{Body, JsonBody, RouteResult, parse, to_the_end},
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

async fn suspend(caller: Caller, Path(id): Path<String>, body: Body) -> RouteResult<JsonBody<SessionSnapshot>> {
    let (id, options) = (caller.session_id(&id)?, options(parse(body)?));
    to_the_end(async move { caller.manager.suspend_session(&id, options).await }).await.map(JsonBody)
}

async fn resume(caller: Caller, Path(id): Path<String>, body: Body) -> RouteResult<JsonBody<SessionInfo>> {
    let (id, options) = (caller.session_id(&id)?, parse(body)?);
    caller.refresh().await?;
    let session = to_the_end(async move { caller.manager.resume_session_with(&id, options).await }).await?;
    Ok(JsonBody(session.info()))
}

async fn resume_snapshot(caller: Caller, body: Body) -> RouteResult<JsonBody<SessionInfo>> {
    let ResumeRequest { mut snapshot, options } = parse(body)?;
    caller.own(&mut snapshot.config)?;
    caller.refresh().await?;
    let session = to_the_end(async move { caller.manager.resume_snapshot(snapshot, options).await }).await?;
    Ok(JsonBody(session.info()))
}

async fn take_back(caller: Caller, Path(id): Path<String>, body: Body) -> RouteResult<JsonBody<SessionInfo>> {
    let (id, options) = (caller.session_id(&id)?, parse(body)?);
    caller.refresh().await?;
    let session = to_the_end(async move { caller.manager.take_back_with(&id, options).await }).await?;
    Ok(JsonBody(session.info()))
}

async fn attach_command(caller: Caller, Path(id): Path<String>) -> RouteResult<JsonBody<AttachCommandResponse>> {
    let id = caller.session_id(&id)?;
    let command = caller.manager.attach_command(&id)?;
    attach(&caller.manager, &id, command)
}

async fn hand_over(caller: Caller, Path(id): Path<String>, body: Body) -> RouteResult<JsonBody<AttachCommandResponse>> {
    let (id, options) = (caller.session_id(&id)?, options(parse(body)?));
    let (owner, of) = (caller.manager.clone(), id.clone());
    let command = to_the_end(async move { owner.hand_over(&of, options).await }).await?;
    attach(&caller.manager, &id, command)
}

fn attach(
    manager: &ProxyManager,
    id: &SessionId,
    command: Vec<String>,
) -> RouteResult<JsonBody<AttachCommandResponse>> {
    let SessionMetadata { cwd, home, .. } = manager.session(id)?.info().metadata;
    Ok(JsonBody(AttachCommandResponse { command, cwd, home }))
}
