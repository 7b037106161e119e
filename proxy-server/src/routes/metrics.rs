//! Metrics.

use axum::{
    Router,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
    routing::get,
};

use crate::{ProblemDetails, metrics::ServerMetrics, requests::RouteResult};

/// Media type of OpenMetrics text.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(super) fn routes(metrics: ServerMetrics) -> Router {
    Router::new().route("/metrics", get(encode)).with_state(metrics)
}

async fn encode(State(metrics): State<ServerMetrics>) -> RouteResult<Response> {
    let text = metrics.encode().await;
    let text = text.map_err(|error| ProblemDetails::failed(format!("writing the metrics failed: {error}")))?;
    Ok(([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response())
}
