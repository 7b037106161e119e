//! Prompts, and what steers or ends their turns.

use axum::{
    Router,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::post,
};
use proxy_manager::{ProxyManager, SilentHandler, StreamOptions, TurnStream};

use crate::{
    ApiState,
    api::{AbortRequest, PromptAccepted, PromptRequest, SteerRequest},
    requests::{Body, JsonBody, RouteResult, find, parse, to_the_end},
    session_ids::session_id,
    stream,
};

pub(super) fn routes() -> Router<ApiState> {
    Router::new()
        .route("/v1/sessions/{id}/prompt", post(prompt))
        .route("/v1/sessions/{id}/ask", post(ask))
        .route("/v1/sessions/{id}/steer", post(steer))
        .route("/v1/sessions/{id}/abort", post(abort))
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
