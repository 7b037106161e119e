//! Metrics.

use axum::{
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};

use crate::{ProblemDetails, metrics::ServerMetrics, requests::RouteResult, route_table::api_routes};

/// Media type of OpenMetrics text.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

api_routes! { "Server", ServerMetrics;
    /// Reads metrics for Prometheus.
    get "/metrics" metrics: text(200, "Metrics, as OpenMetrics text.", OPEN_METRICS);
}

async fn metrics(State(metrics): State<ServerMetrics>) -> RouteResult<Response> {
    let text = metrics.encode().await;
    let text = text.map_err(|error| ProblemDetails::failed(format!("writing the metrics failed: {error}")))?;
    Ok(([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response())
}
