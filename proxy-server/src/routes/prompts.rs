//! Prompts, and what steers or ends their turns.

use std::{pin::pin, time::Duration};

use axum::{
    extract::{Path, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use proxy_manager::{PromptOptions, SilentHandler, StreamOptions, TurnStream};
use serde::Serialize;
use tokio::time::{interval, timeout};

use crate::{
    ApiState, ProblemDetails,
    access::{Caller, ended_before},
    api::{AbortRequest, PromptAccepted, PromptRequest, SteerRequest},
    idempotency::{self, NamedRequest, RequestAnswer},
    requests::{Body, JsonBody, RouteResult, parse, to_the_end},
    route_table::api_routes,
    stream::{self, EVENT_STREAM, EventFormat, HEARTBEAT},
    webhooks,
};

/// Time in which a prompt is refused, if it is: that has a status of its own.
const AT_ONCE: Duration = Duration::from_secs(1);

api_routes! { "Prompts", ApiState;
    /// Sends a prompt.
    ///
    /// It resumes a suspended session. With `wait` the answer is the turn's events, to its end; a problem is the last line then.
    post "/v1/sessions/{id}/prompt" send:
        header("Idempotency-Key", IDEMPOTENCY_KEY) body::<PromptRequest>() json::<PromptAccepted>(202, "The prompt is accepted.")
        lines::<proxy_manager::Envelope>(200, "The turn's events.")
        problems(SESSION) problems(PROXY) problems(START) problems(PROMPT) problems(&["not-suspended", "invalid-config", "idempotency-key-reused", "interrupted"]);
    /// Sends a prompt, and answers with the agent's reply.
    ///
    /// With `stream` the answer is the calls of a stream handler, as JSON lines. As server-sent events, by `Accept`, it begins within
    /// a second: the reply is the only event, or a problem, the event `problem`. The turn goes on if the client leaves.
    post "/v1/sessions/{id}/ask" ask:
        body::<PromptRequest>() json::<proxy_manager::Answer>(200, "The reply, or the calls of a stream handler.")
        lines::<serde_json::Value>(200, "") server_sent::<proxy_manager::Answer>(200, "")
        problems(SESSION) problems(PROXY) problems(START) problems(PROMPT)
        problems(&["turn-failed", "not-suspended", "prompt-dropped"]);
    /// Sends text into the running turn.
    post "/v1/sessions/{id}/steer" steer:
        body::<SteerRequest>() empty(204, "The agent has it.") problems(SESSION) problems(PROXY) problems(PROMPT);
    /// Aborts the running turn.
    post "/v1/sessions/{id}/abort" abort:
        body::<AbortRequest>() empty(204, "The turn is being aborted.") json::<proxy_manager::Receipt>(200, "Receipt of the turn's processes.")
        problems(SESSION) problems(PROXY) problems(&["survivors", "busy"]);
}

/// Description of the header of a request that may be sent again.
#[cfg(feature = "openapi")]
pub(super) const IDEMPOTENCY_KEY: &str = "Name of the caller's for this request. Sent again with the same body, it is not done again, and has the same answer, for a day.";

async fn send(caller: Caller, Path(id): Path<String>, headers: HeaderMap, body: Body) -> RouteResult<Response> {
    let named = match &body {
        Ok(body) => NamedRequest::of(&caller, &headers, &format!("prompt {id}"), body)?,
        Err(_) => None,
    };
    let mut request: PromptRequest = parse(body)?;
    if request.callback.is_some() {
        return Err(ProblemDetails::usage("callback is for an ask: send the prompt to …/ask"));
    }
    webhooks::check_metadata(request.metadata.as_ref())?;
    if named.is_some() && request.wait {
        return Err(ProblemDetails::usage(
            "a prompt with an Idempotency-Key is not waited for: leave `wait` out, and read the events",
        ));
    }
    let id = caller.session_id(&id)?;
    caller.check_wake(&id)?;
    let wait = request.wait;
    let (by, metadata) = (request.by.take().unwrap_or_else(|| caller.identity.name.clone()), request.metadata.take());
    let options = PromptOptions::from(request.mode).with_by(by).with_metadata(metadata);
    let manager = caller.manager.clone();
    let follow = async move {
        let session = manager.session(&id).map_err(|error| ended_before(&manager, &id).unwrap_or(error))?;
        TurnStream::follow(session, manager.send_prompt_with(&id, request, options)).await
    };
    // The prompt may resume the session, which must not be left half done.
    let turn = to_the_end(follow);
    if wait {
        return Ok(stream::turn(turn.await?));
    }
    let accepted =
        async move { RequestAnswer::new(StatusCode::ACCEPTED, &PromptAccepted { turn: turn.await?.number() }) };
    idempotency::once(&caller, named, None, |_| None, accepted).await
}

/// Waits for the answer, or streams it as it grows. The turn continues if the client leaves. The body's field
/// `wait` is ignored here.
async fn ask(
    State(state): State<ApiState>,
    caller: Caller,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> RouteResult<Response> {
    let mut request: PromptRequest = parse(body)?;
    webhooks::check_metadata(request.metadata.as_ref())?;
    if let Some(url) = request.callback.take() {
        let id = caller.session_id(&id)?;
        caller.check_callback(&id, &url)?;
        let callback = webhooks::callback_metadata(state.webhooks.as_ref(), url, std::mem::take(&mut request.context));
        request.metadata = Some(webhooks::with_callback(request.metadata.take(), callback?)?);
    } else if !request.context.is_null() {
        return Err(ProblemDetails::usage("context is for a callback: give `callback` as well"));
    }
    let (mode, by) = (request.mode, Some(request.by.take().unwrap_or_else(|| caller.identity.name.clone())));
    let options = StreamOptions { mode, by, metadata: request.metadata.take(), ..StreamOptions::default() };
    let id = caller.unended_id(&id)?;
    caller.check_wake(&id)?;
    if request.stream {
        let session = caller.manager.awake(&id).await?;
        return Ok(stream::calls(session, request.into(), options));
    }
    let manager = caller.manager.clone();
    let answer = async move {
        let session = manager.awake(&id).await?;
        Ok(session.stream_with(request, &mut SilentHandler, options).await?)
    };
    if EventFormat::of(&headers) == EventFormat::ServerSent {
        let mut answer = Box::pin(answer);
        return match timeout(AT_ONCE, &mut answer).await {
            Ok(early) => Ok(server_sent(std::future::ready(Ok(early?)))),
            Err(_) => Ok(server_sent(answer)),
        };
    }
    Ok(JsonBody(answer.await?).into_response())
}

/// Sends an answer as the only server-sent event, with signs of life before it: many clients and proxies give up an answer that is silent for
/// minutes. The work goes on if the client leaves.
fn server_sent<T: Serialize>(answer: impl Future<Output = RouteResult<T>> + Send + 'static) -> Response {
    let (sender, response) = stream::response(EVENT_STREAM);
    tokio::spawn(async move {
        let mut answer = pin!(answer);
        let mut heartbeat = interval(HEARTBEAT);
        let answer = loop {
            tokio::select! {
                answer = &mut answer => break answer,
                // Fails for a client that has left, or reads nothing.
                _ = heartbeat.tick() => drop(sender.try_send(": heartbeat\n".into())),
            }
        };
        let event = answer.and_then(|answer| {
            serde_json::to_string(&answer)
                .map_err(|error| ProblemDetails::failed(format!("the answer is no JSON: {error}")))
        });
        let event = match event {
            Ok(answer) => format!("data: {answer}\n\n"),
            Err(problem) => {
                format!("event: problem\ndata: {}\n\n", serde_json::to_string(&problem).unwrap_or_default())
            }
        };
        // Fails for a client that has left.
        let _ = sender.send(event.into()).await;
    });
    response
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

#[cfg(test)]
mod tests {
    use axum::http::header::CONTENT_TYPE;
    use futures_util::StreamExt as _;
    use tokio::time::sleep;

    use super::*;

    /// Reads an answer that takes some time.
    async fn read(time: Duration, answer: RouteResult<&'static str>) -> String {
        let response = server_sent(async move {
            sleep(time).await;
            answer
        });
        assert_eq!(
            (response.status(), &response.headers()[CONTENT_TYPE]),
            (StatusCode::OK, &EVENT_STREAM.parse().expect("a value"))
        );
        let chunks = response.into_body().into_data_stream().map(|chunk| chunk.expect("whole").to_vec());
        String::from_utf8(chunks.concat().await).expect("text")
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_takes_long_has_signs_of_life() {
        let beats = |count| ": heartbeat\n".repeat(count);
        assert_eq!(read(Duration::from_secs(1), Ok("a\nb")).await, beats(1) + "data: \"a\\nb\"\n\n");
        let text = read(Duration::from_secs(301), Err(ProblemDetails::usage("no"))).await;
        let (silence, problem) = text.split_at(beats(21).len());
        assert_eq!(silence, beats(21));
        assert!(
            problem.starts_with("event: problem\ndata: {\"type\":\"usage\"") && problem.ends_with("}\n\n"),
            "{problem}"
        );
    }
}
