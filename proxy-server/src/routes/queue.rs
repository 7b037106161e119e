//! Prompts that wait for their turn: list, drop one, drop all.

use axum::{extract::Path, http::StatusCode};
use proxy_manager::QueuedPrompt;

use crate::{
    ApiState, ProblemDetails,
    access::Caller,
    requests::{JsonBody, RouteResult, to_the_end},
    route_table::api_routes,
};

api_routes! { "Prompts", ApiState;
    /// Lists the prompts that wait for their turn, or for the session's resume.
    get "/v1/sessions/{id}/queue" list: json::<Vec<QueuedPrompt>>(200, "The prompts, in their order.") problems(SESSION);
    /// Drops all prompts that wait.
    ///
    /// Each is told as failed, and never begun. Those whose turn begins meanwhile are not in the answer.
    delete "/v1/sessions/{id}/queue" drop_all:
        json::<Vec<QueuedPrompt>>(200, "The prompts that were dropped.") problems(SESSION) problems(&["deadline"]);
    /// Drops one prompt that waits.
    ///
    /// It is told as failed, and never begun.
    delete "/v1/sessions/{id}/queue/{prompt}" drop_one:
        empty(204, "The prompt is dropped.") problems(SESSION) problems(&["unknown-prompt", "deadline"]);
}

async fn list(caller: Caller, Path(id): Path<String>) -> RouteResult<JsonBody<Vec<QueuedPrompt>>> {
    Ok(JsonBody(caller.find(&id)?.queued_prompts()))
}

async fn drop_all(caller: Caller, Path(id): Path<String>) -> RouteResult<JsonBody<Vec<QueuedPrompt>>> {
    let (session, by) = (caller.find(&id)?, caller.identity.name);
    to_the_end(async move { session.drop_queue(Some(&by)).await }).await.map(JsonBody)
}

async fn drop_one(caller: Caller, Path((id, prompt)): Path<(String, String)>) -> RouteResult<StatusCode> {
    let offset = prompt.parse().map_err(|_| {
        ProblemDetails::usage(format!("prompt {prompt:?} is no offset: give the `offset` of one in the queue"))
    })?;
    let (session, by) = (caller.find(&id)?, caller.identity.name);
    to_the_end(async move { session.drop_queued(offset, Some(&by)).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}
