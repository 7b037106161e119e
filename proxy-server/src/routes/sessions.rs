//! Sessions: list, start, look at, operate, kill, forget.

use std::time::Duration;

use axum::{
    Router,
    extract::{Path, Query, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use proxy_manager::{
    AgentSessionConfig, KillOptions, KillScope, Operation, ProxyManager, Receipt, ResumeFrom, ResumeRequest,
    SessionInfo,
};
use serde::Deserialize;

use crate::{
    ApiState, ProblemDetails,
    api::{KillRequest, TranscriptResponse},
    requests::{Body, JsonBody, RouteResult, UrlQuery, find, parse, to_the_end},
    session_ids::session_id,
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

async fn sessions(
    State(manager): State<ProxyManager>,
    listing: UrlQuery<SessionsQuery>,
) -> RouteResult<JsonBody<Vec<SessionInfo>>> {
    let listing = listing.map_err(|error| ProblemDetails::usage(error.to_string()))?;
    let Query(SessionsQuery { process_use, archived }) = listing;
    let mut sessions = if process_use { manager.measured_sessions().await } else { manager.list_sessions() };
    sessions.retain(|session| archived || !session.archived);
    Ok(JsonBody(sessions))
}

async fn start(State(state): State<ApiState>, body: Body) -> RouteResult<Response> {
    let manager = state.manager.clone();
    let mut config: AgentSessionConfig = parse(body)?;
    if let Some(ResumeRequest { from: ResumeFrom::Session { id }, .. }) = &mut config.resume {
        *id = session_id(&manager, id.as_str())?;
    }
    state.refresh().await?;
    let session = manager.start_session(config).await?;
    Ok((StatusCode::CREATED, JsonBody(session.info())).into_response())
}

async fn session(State(manager): State<ProxyManager>, Path(id): Path<String>) -> RouteResult<JsonBody<SessionInfo>> {
    Ok(JsonBody(find(&manager, &id)?.info()))
}

async fn delete(State(manager): State<ProxyManager>, Path(id): Path<String>) -> RouteResult<StatusCode> {
    manager.delete_session(&session_id(&manager, &id)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Performs the [`Operation`] in the body: `"compact"`, `{"compactWith":{"instructions":"…"}}`, `{"setModel":{"model":"M"}}`. The answer is the agent's.
async fn operate(
    State(manager): State<ProxyManager>,
    Path(id): Path<String>,
    body: Body,
) -> RouteResult<JsonBody<proxy_manager::Json>> {
    let operation: Operation = parse(body)?;
    Ok(JsonBody(find(&manager, &id)?.operate(operation).await?))
}

async fn transcript(
    State(manager): State<ProxyManager>,
    Path(id): Path<String>,
) -> RouteResult<JsonBody<TranscriptResponse>> {
    Ok(JsonBody(TranscriptResponse { transcript: manager.transcript(&session_id(&manager, &id)?).await? }))
}

async fn kill(
    State(manager): State<ProxyManager>,
    Path(id): Path<String>,
    body: Body,
) -> RouteResult<JsonBody<Receipt>> {
    let KillRequest { pid, tree, keep_agent, grace_ms } = parse(body)?;
    let options = grace_ms.map_or_else(KillOptions::default, |ms| KillOptions::grace(Duration::from_millis(ms)));
    let session = find(&manager, &id)?;
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
