//! Webhooks, and the links in ours.

use api_types::api::WebhookStatus;
use axum::{
    body::to_bytes,
    extract::{Path, State},
    http::Request,
    response::Response,
};

use crate::{
    ApiState, ProblemDetails,
    requests::{Body, JsonBody, RouteResult, UrlQuery},
    route_table::api_routes,
    webhooks::{LinkForm, MAX_DELIVERY, Webhooks},
};

api_routes! { "Webhooks", ApiState;
    /// Takes a webhook of another service, once.
    ///
    /// It needs no token: the signature says who sends it. `webhooks.toml` names the senders. The answer to Slack's `url_verification` is the
    /// challenge, as text.
    post "/v1/hooks/{name}" receive:
        raw_body() json::<WebhookReceipt>(202, "The delivery is in its stream.")
        problems(&["invalid-signature", "usage", "body-too-large", "unknown-route", "stream-conflict", "unsupported", "log", "system", "shut-down", "idempotency-key-reused"]);
    /// Lists senders and receivers of webhooks.
    get "/v1/webhooks" list: json::<Vec<WebhookStatus>>(200, "Senders and receivers.");
    /// Shows what a link answers, with a button for it.
    ///
    /// It needs no token: the link is one. It answers nothing.
    get "/v1/permission-link" show: query::<LinkForm>() text(200, "The page.", "text/html") empty(404, "No link of this server.") empty(410, "It is too old, or was used.") problems(&["unsupported"]);
    /// Answers a permission request by a link, once.
    ///
    /// The body is a form with the link's `token`, as the page sends it.
    post "/v1/permission-link" answer: raw_body() text(200, "The page.", "text/html") empty(404, "No link of this server.") empty(409, "The agent offers no such answer.") empty(410, "It is too old, or was used.") problems(&["unsupported"]);
}

/// Answer to a webhook.
#[derive(Debug, serde::Serialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[cfg_attr(not(feature = "openapi"), expect(dead_code, reason = "the document names it"))]
struct WebhookReceipt {
    /// `accepted`, or `duplicate` for a delivery that is in the stream already.
    outcome: String,
    /// Id of the delivery.
    id: String,
}

fn webhooks(state: &ApiState) -> RouteResult<&Webhooks> {
    state.webhooks.as_ref().filter(|webhooks| !webhooks.is_empty()).ok_or_else(|| {
        ProblemDetails::new(
            "unsupported",
            "this server has no webhooks: write webhooks.toml into its configuration directory",
        )
    })
}

async fn receive(
    State(state): State<ApiState>,
    Path(name): Path<String>,
    request: Request<axum::body::Body>,
) -> RouteResult<Response> {
    let webhooks = webhooks(&state)?.clone();
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, MAX_DELIVERY).await.map_err(|error| {
        ProblemDetails::new(
            "body-too-large",
            format!("reading the webhook failed: {error} (at most {MAX_DELIVERY} bytes)"),
        )
    })?;
    webhooks.receive(&state.manager, &name, &parts.headers, body).await
}

async fn list(State(state): State<ApiState>) -> JsonBody<Vec<WebhookStatus>> {
    JsonBody(state.webhooks.as_ref().map(Webhooks::statuses).unwrap_or_default())
}

async fn show(State(state): State<ApiState>, query: UrlQuery<LinkForm>) -> RouteResult<Response> {
    let token = query.map(|query| query.0.token).unwrap_or_default();
    Ok(webhooks(&state)?.show_link(&state.manager, &token))
}

async fn answer(State(state): State<ApiState>, body: Body) -> RouteResult<Response> {
    let body = body.map_err(|error| ProblemDetails::new("body-too-large", error.to_string()))?;
    Ok(webhooks(&state)?.answer_link(&state.manager, &LinkForm::parse(&body).token).await)
}
