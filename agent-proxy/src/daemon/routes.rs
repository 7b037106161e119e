//! Routes of the daemon, all under `/v1`. Every error is a problem object (RFC 9457).

use std::time::Duration;

use axum::{
    Router,
    extract::{DefaultBodyLimit, Path, Query, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use proxy_manager::{
    AgentSessionConfig, KillOptions, KillScope, Operation, ProcessInfo, ProxyManager, Receipt, ResumeFrom,
    ResumeRequest, SessionInfo, SilentHandler, StreamOptions, TurnStream,
};
use serde::Deserialize;

use super::{
    event_filter::EventsQuery,
    persistence,
    requests::{Body, Daemon, JsonBody, MAX_BODY, RouteResult, UrlQuery, find, parse, to_the_end},
    session_ids::session_id,
    stop, stream, terminal,
};
use crate::{
    api::{
        AbortRequest, HealthResponse, KillRequest, PermissionReply, PromptAccepted, PromptRequest, SteerRequest,
        TranscriptResponse,
    },
    problem::ProblemDetails,
};

/// Builds the router of all routes.
pub(super) fn router(daemon: Daemon) -> Router {
    Router::new()
        .route("/v1/health", get(health))
        .route("/v1/sessions", get(sessions).post(start))
        .route("/v1/sessions/{id}", get(session).delete(delete))
        .route("/v1/sessions/{id}/operations", post(operate))
        .route("/v1/sessions/{id}/transcript", get(transcript))
        .route("/v1/sessions/{id}/processes", get(processes))
        .route("/v1/sessions/{id}/events", get(events))
        .route("/v1/events", get(all_events))
        .route("/v1/sessions/{id}/prompt", post(prompt))
        .route("/v1/sessions/{id}/ask", post(ask))
        .route("/v1/sessions/{id}/steer", post(steer))
        .route("/v1/sessions/{id}/abort", post(abort))
        .route("/v1/sessions/{id}/kill", post(kill))
        .route("/v1/sessions/{id}/permissions/{request}", post(permit))
        .merge(persistence::routes())
        .merge(stop::routes())
        .merge(terminal::routes())
        .fallback(async || {
            ProblemDetails::new("unknown-route", "no such route: they start with /v1, see GET /v1/health")
        })
        .method_not_allowed_fallback(async || {
            ProblemDetails::new("method-not-allowed", "this route has another method")
        })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(daemon)
}

async fn health(State(manager): State<ProxyManager>) -> JsonBody<HealthResponse> {
    let sessions = manager.list_sessions();
    let live = sessions.iter().filter(|session| !is_ended(session)).count();
    JsonBody(HealthResponse {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        fork_server: manager.fork_server(),
        sessions: live,
        waiting: manager.occupancy().waiting,
        damaged: manager.damage().iter().map(ToString::to_string).collect(),
        degraded: manager.trouble(),
    })
}

fn is_ended(session: &SessionInfo) -> bool {
    matches!(session.state, proxy_manager::SessionState::Ended { .. })
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

async fn start(State(daemon): State<Daemon>, body: Body) -> RouteResult<Response> {
    let Daemon { manager, configuration: configured, .. } = daemon;
    let mut config: AgentSessionConfig = parse(body)?;
    if let Some(ResumeRequest { from: ResumeFrom::Session { id }, .. }) = &mut config.resume {
        *id = session_id(&manager, id.as_str())?;
    }
    configured.refresh(&manager).await?;
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

async fn processes(
    State(manager): State<ProxyManager>,
    Path(id): Path<String>,
) -> RouteResult<JsonBody<Vec<ProcessInfo>>> {
    Ok(JsonBody(find(&manager, &id)?.processes().await?))
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

async fn prompt(State(manager): State<ProxyManager>, Path(id): Path<String>, body: Body) -> RouteResult<Response> {
    let request: PromptRequest = parse(body)?;
    let id = session_id(&manager, &id)?;
    let (mode, wait, session) = (request.mode, request.wait, manager.session(&id)?);
    let send = async move { manager.send_prompt(&id, request, mode).await };
    // The prompt may resume the session, which must not be left half done.
    let turn = to_the_end(TurnStream::follow(session, send)).await?;
    if wait {
        return Ok(stream::turn(turn));
    }
    Ok((StatusCode::ACCEPTED, JsonBody(PromptAccepted { turn: turn.number() })).into_response())
}

/// Waits for the answer, or streams it as it grows. The turn continues if the client leaves. The body's field
/// `wait` is ignored here.
async fn ask(State(manager): State<ProxyManager>, Path(id): Path<String>, body: Body) -> RouteResult<Response> {
    let request: PromptRequest = parse(body)?;
    let options = StreamOptions { mode: request.mode, ..StreamOptions::default() };
    let session = manager.awake(&session_id(&manager, &id)?).await?;
    if request.stream {
        return Ok(stream::calls(session, request.into(), options));
    }
    Ok(JsonBody(session.stream_with(request, &mut SilentHandler, options).await?).into_response())
}

async fn steer(State(manager): State<ProxyManager>, Path(id): Path<String>, body: Body) -> RouteResult<StatusCode> {
    let request: SteerRequest = parse(body)?;
    find(&manager, &id)?.steer(request).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn abort(State(manager): State<ProxyManager>, Path(id): Path<String>, body: Body) -> RouteResult<Response> {
    let AbortRequest { policy } = parse(body)?;
    let session = find(&manager, &id)?;
    Ok(match to_the_end(async move { session.abort(policy).await }).await? {
        Some(receipt) => JsonBody(receipt).into_response(),
        None => StatusCode::NO_CONTENT.into_response(),
    })
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

async fn permit(
    State(manager): State<ProxyManager>,
    Path((id, request)): Path<(String, String)>,
    body: Body,
) -> RouteResult<StatusCode> {
    let PermissionReply { answer, by } = parse(body)?;
    let session = find(&manager, &id)?;
    match by {
        Some(by) => session.respond_permission_as(&by, &request, answer).await?,
        None => session.respond_permission(&request, answer).await?,
    }
    Ok(StatusCode::NO_CONTENT)
}
