//! Sessions that outlive their processes: suspend, resume, hand over and take back.

use std::time::Duration;

use axum::extract::Path;
use proxy_manager::{KillOptions, ProxyManager, SessionId, SessionInfo, SessionMetadata, SessionSnapshot};

use crate::{
    ApiState,
    access::{Caller, with_options},
    api::{AttachCommandResponse, ResumeRequest, SuspendRequest},
    requests::{Body, JsonBody, RouteResult, parse, to_the_end},
    route_table::api_routes,
};

api_routes! { "Lifecycle", ApiState;
    /// Ends a session's processes and keeps its conversation.
    post "/v1/sessions/{id}/suspend" suspend:
        body::<SuspendRequest>() json::<SessionSnapshot>(200, "Snapshot, from which any server resumes the session.")
        problems(SESSION) problems(PROXY) problems(&["survivors", "native-session-missing", "invalid-config", "busy"]);
    /// Resumes a suspended session.
    post "/v1/sessions/{id}/resume" resume:
        body::<proxy_manager::ResumeOptions>() json::<SessionInfo>(200, "The session.") problems(SESSION) problems(START) problems(&["not-suspended", "handed-over"]);
    /// Tells the agent's own command for the conversation.
    get "/v1/sessions/{id}/attach-command" attach_command:
        json::<AttachCommandResponse>(200, "The command.") problems(SESSION) problems(PROXY) problems(&["native-session-missing", "invalid-config"]);
    /// Suspends a session for its agent's own program.
    post "/v1/sessions/{id}/hand-over" hand_over:
        body::<SuspendRequest>() json::<AttachCommandResponse>(200, "The agent's own command.")
        problems(SESSION) problems(PROXY) problems(&["survivors", "native-session-missing", "invalid-config", "busy"]);
    /// Resumes a session that was handed over.
    post "/v1/sessions/{id}/take-back" take_back:
        body::<proxy_manager::ResumeOptions>() json::<SessionInfo>(200, "The session.") problems(SESSION) problems(START) problems(&["not-suspended"]);
    /// Resumes a session of another server, from its snapshot.
    post "/v1/resume" resume_snapshot:
        body::<ResumeRequest>() json::<SessionInfo>(200, "The session.") problems(MANAGER) problems(START) problems(&["unknown-session", "suspended", "not-suspended"]);
}

fn options(SuspendRequest { grace_ms }: SuspendRequest) -> KillOptions {
    grace_ms.map_or_else(KillOptions::default, |ms| KillOptions::grace(Duration::from_millis(ms)))
}

async fn suspend(caller: Caller, Path(id): Path<String>, body: Body) -> RouteResult<JsonBody<SessionSnapshot>> {
    let (id, options) = (caller.unended_id(&id)?, options(parse(body)?));
    to_the_end(async move { caller.manager.suspend_session(&id, options).await }).await.map(JsonBody)
}

async fn resume(caller: Caller, Path(id): Path<String>, body: Body) -> RouteResult<JsonBody<SessionInfo>> {
    let (id, options) = (caller.unended_id(&id)?, parse(body)?);
    caller.refresh().await?;
    caller.check_resume(&id, &options)?;
    let session = to_the_end(async move { caller.manager.resume_session_with(&id, options).await }).await?;
    Ok(JsonBody(session.info()))
}

async fn resume_snapshot(caller: Caller, body: Body) -> RouteResult<JsonBody<SessionInfo>> {
    let ResumeRequest { mut snapshot, options } = parse(body)?;
    caller.own(&mut snapshot.config)?;
    caller.refresh().await?;
    caller.apply_policy(&mut with_options(*snapshot.config.clone(), &options))?;
    caller.apply_policy(&mut snapshot.config)?;
    caller.has_started(&snapshot.config.session_id);
    let session = to_the_end(async move { caller.manager.resume_snapshot(snapshot, options).await }).await?;
    Ok(JsonBody(session.info()))
}

async fn take_back(caller: Caller, Path(id): Path<String>, body: Body) -> RouteResult<JsonBody<SessionInfo>> {
    let (id, options) = (caller.unended_id(&id)?, parse(body)?);
    caller.refresh().await?;
    caller.check_resume(&id, &options)?;
    let session = to_the_end(async move { caller.manager.take_back_with(&id, options).await }).await?;
    Ok(JsonBody(session.info()))
}

async fn attach_command(caller: Caller, Path(id): Path<String>) -> RouteResult<JsonBody<AttachCommandResponse>> {
    let id = caller.unended_id(&id)?;
    let command = caller.manager.attach_command(&id)?;
    attach(&caller.manager, &id, command).await
}

async fn hand_over(caller: Caller, Path(id): Path<String>, body: Body) -> RouteResult<JsonBody<AttachCommandResponse>> {
    let (id, options) = (caller.unended_id(&id)?, options(parse(body)?));
    let (owner, of) = (caller.manager.clone(), id.clone());
    let command = to_the_end(async move { owner.hand_over(&of, options).await }).await?;
    attach(&caller.manager, &id, command).await
}

async fn attach(
    manager: &ProxyManager,
    id: &SessionId,
    command: Vec<String>,
) -> RouteResult<JsonBody<AttachCommandResponse>> {
    let SessionMetadata { cwd, home, .. } = manager.session(id)?.info().metadata;
    // Where the agent has worked, it finds its conversation.
    let cwd = manager.workspace(id).await.map_or(cwd, |workspace| workspace.cwd);
    Ok(JsonBody(AttachCommandResponse { command, cwd, home }))
}
