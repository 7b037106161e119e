//! Prompts, and what steers or ends their turns.

use axum::{
    Router,
    extract::Path,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::post,
};
use proxy_manager::{SilentHandler, StreamOptions, TurnStream};

use crate::{
    ApiState,
    access::Caller,
    api::{AbortRequest, PromptAccepted, PromptRequest, SteerRequest},
    requests::{Body, JsonBody, RouteResult, parse, to_the_end},
    stream,
};

pub(super) fn routes() -> Router<ApiState> {
    Router::new()
        .route("/v1/sessions/{id}/prompt", post(prompt))
        .route("/v1/sessions/{id}/ask", post(ask))
        .route("/v1/sessions/{id}/steer", post(steer))
        .route("/v1/sessions/{id}/abort", post(abort))
}

async fn prompt(caller: Caller, Path(id): Path<String>, body: Body) -> RouteResult<Response> {
    let request: PromptRequest = parse(body)?;
    let id = caller.session_id(&id)?;
    let (mode, wait, session) = (request.mode, request.wait, caller.manager.session(&id)?);
    let send = async move { caller.manager.send_prompt(&id, request, mode).await };
    // The prompt may resume the session, which must not be left half done.
    let turn = to_the_end(TurnStream::follow(session, send)).await?;
    if wait {
        return Ok(stream::turn(turn));
    }
    Ok((StatusCode::ACCEPTED, JsonBody(PromptAccepted { turn: turn.number() })).into_response())
}

/// Waits for the answer, or streams it as it grows. The turn continues if the client leaves. The body's field
/// `wait` is ignored here.
async fn ask(caller: Caller, Path(id): Path<String>, body: Body) -> RouteResult<Response> {
    let request: PromptRequest = parse(body)?;
    let options = StreamOptions { mode: request.mode, ..StreamOptions::default() };
    let session = caller.manager.awake(&caller.session_id(&id)?).await?;
    if request.stream {
        return Ok(stream::calls(session, request.into(), options));
    }
    Ok(JsonBody(session.stream_with(request, &mut SilentHandler, options).await?).into_response())
}

async fn steer(caller: Caller, Path(id): Path<String>, body: Body) -> RouteResult<StatusCode> {
    let request: SteerRequest = parse(body)?;
    caller.find(&id)?.steer(request).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn abort(caller: Caller, Path(id): Path<String>, body: Body) -> RouteResult<Response> {
    let AbortRequest { policy } = parse(body)?;
    let session = caller.find(&id)?;
    Ok(match to_the_end(async move { session.abort(policy).await }).await? {
        Some(receipt) => JsonBody(receipt).into_response(),
        None => StatusCode::NO_CONTENT.into_response(),
    })
}
