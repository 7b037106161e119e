//! Export of spans, in a build that has it (feature `otlp`).

use proxy_manager::ProxyManager;
use proxy_server::ProblemDetails;

#[cfg(feature = "otlp")]
pub(super) use proxy_server::TraceExport;

/// Export that no build without the feature has.
#[cfg(not(feature = "otlp"))]
#[derive(Debug)]
pub(super) enum TraceExport {}

#[cfg(not(feature = "otlp"))]
impl TraceExport {
    pub(super) async fn finish(self) {
        match self {}
    }
}

/// Begins to send spans.
///
/// # Errors
/// `unsupported` in a build without the feature; `usage` for an endpoint that is no address.
#[cfg(not(feature = "otlp"))]
pub(super) fn start(_: &ProxyManager, _: &str) -> Result<TraceExport, ProblemDetails> {
    let detail = "--otlp-endpoint: this build has no traces: build it with `cargo install agent-proxy --features otlp`";
    Err(ProblemDetails::new("unsupported", detail))
}

/// Begins to send spans.
///
/// # Errors
/// `unsupported` in a build without the feature; `usage` for an endpoint that is no address.
#[cfg(feature = "otlp")]
pub(super) fn start(manager: &ProxyManager, endpoint: &str) -> Result<TraceExport, ProblemDetails> {
    // The exporter reads OTEL_EXPORTER_OTLP_HEADERS itself: a key is in no argument.
    TraceExport::start(manager, endpoint, std::collections::HashMap::new())
}
