//! Sessions: list, start, look at, operate, kill, forget.

use std::time::Duration;

use axum::{
    Router,
    extract::{Path, Query},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use proxy_manager::{
    AgentSessionConfig, KillOptions, KillScope, Operation, Receipt, ResumeFrom, ResumeRequest, SessionInfo,
};
use serde::Deserialize;

use crate::{
    ApiState, ProblemDetails,
    access::Caller,
    api::{KillRequest, TranscriptResponse},
    requests::{Body, JsonBody, RouteResult, UrlQuery, parse, to_the_end},
};

pub(super) fn routes() -> Router<ApiState> {
    Router::new()
        .route("/v1/sessions", get(sessions).post(start))
        .route("/v1/sessions/{id}", get(session).delete(delete))
        .route("/v1/sessions/{id}/operations", post(operate))
        .route("/v1/sessions/{id}/transcript", get(transcript))
        .route("/v1/sessions/{id}/kill", post(kill))
}

/// Query of `sessions`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct SessionsQuery {
    /// True to report what the processes of each session use now.
    process_use: bool,
    /// True to include archived sessions.
    archived: bool,
}

async fn sessions(caller: Caller, listing: UrlQuery<SessionsQuery>) -> RouteResult<JsonBody<Vec<SessionInfo>>> {
    let listing = listing.map_err(|error| ProblemDetails::usage(error.to_string()))?;
    let Query(SessionsQuery { process_use, archived }) = listing;
    let mut sessions =
        if process_use { caller.manager.measured_sessions().await } else { caller.manager.list_sessions() };
    sessions.retain(|session| (archived || !session.archived) && caller.sees(session.metadata.user_id.as_deref()));
    Ok(JsonBody(sessions))
}

async fn start(caller: Caller, body: Body) -> RouteResult<Response> {
    let mut config: AgentSessionConfig = parse(body)?;
    caller.own(&mut config)?;
    if let Some(ResumeRequest { from: ResumeFrom::Session { id }, .. }) = &mut config.resume {
        *id = caller.session_id(id.as_str())?;
    }
    caller.refresh().await?;
    let session = caller.manager.start_session(config).await?;
    Ok((StatusCode::CREATED, JsonBody(session.info())).into_response())
}

async fn session(caller: Caller, Path(id): Path<String>) -> RouteResult<JsonBody<SessionInfo>> {
    Ok(JsonBody(caller.find(&id)?.info()))
}

async fn delete(caller: Caller, Path(id): Path<String>) -> RouteResult<StatusCode> {
    caller.manager.delete_session(&caller.session_id(&id)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Performs the [`Operation`] in the body: `"compact"`, `{"compactWith":{"instructions":"…"}}`, `{"setModel":{"model":"M"}}`. The answer is the agent's.
async fn operate(caller: Caller, Path(id): Path<String>, body: Body) -> RouteResult<JsonBody<proxy_manager::Json>> {
    let operation: Operation = parse(body)?;
    Ok(JsonBody(caller.find(&id)?.operate(operation).await?))
}

async fn transcript(caller: Caller, Path(id): Path<String>) -> RouteResult<JsonBody<TranscriptResponse>> {
    Ok(JsonBody(TranscriptResponse { transcript: caller.manager.transcript(&caller.session_id(&id)?).await? }))
}

async fn kill(caller: Caller, Path(id): Path<String>, body: Body) -> RouteResult<JsonBody<Receipt>> {
    let KillRequest { pid, tree, keep_agent, grace_ms } = parse(body)?;
    let options = grace_ms.map_or_else(KillOptions::default, |ms| KillOptions::grace(Duration::from_millis(ms)));
    let session = caller.find(&id)?;
    let refused = |reason: &str| proxy_manager::Error::InvalidConfig { field: "kill", reason: reason.into() };
    let scope = match (pid, tree, keep_agent) {
        (Some(pid), tree, false) => KillScope::Process { pid, tree },
        (None, false, true) => KillScope::AllButAgent,
        (None, false, false) => KillScope::Session,
        (None, true, _) => return Err(refused("tree needs the pid of the process at its top").into()),
        (Some(_), _, true) => {
            let reason = "pid and keepAgent exclude each other: one names a process, the other all but the agent";
            return Err(refused(reason).into());
        }
    };
    Ok(JsonBody(to_the_end(async move { session.kill_scope(scope, options).await }).await?))
}
