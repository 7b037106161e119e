//! The server at `/mcp`, over streamable HTTP.

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, header},
    response::{IntoResponse as _, Response},
    routing::any,
};
use rmcp::transport::streamable_http_server::{
    StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
};

use super::{McpServer, ToolNames};
use crate::{Peer, ProblemDetails, access::Identity, api_client::service_of, requests::MAX_BODY};

/// The server over HTTP.
type McpService = StreamableHttpService<McpServer, LocalSessionManager>;

/// Builds the route whose tools send their requests to `routes`.
pub(crate) fn routes(routes: Router) -> Router {
    let server = McpServer::new(service_of(routes), ToolNames::default(), 0);
    // Host and Origin are checked below, for callers whom nothing has checked yet.
    let config = StreamableHttpServerConfig::default().disable_allowed_hosts().with_max_request_body_bytes(MAX_BODY);
    let service: McpService = StreamableHttpService::new(move || Ok(server.clone()), Arc::default(), config);
    Router::new().route("/mcp", any(serve)).with_state(service)
}

async fn serve(State(service): State<McpService>, request: Request) -> Response {
    if let Err(problem) = check_origin(&request) {
        return problem.into_response();
    }
    service.handle(request).await.map(Body::new)
}

/// Checks that a caller whom nobody has identified is no page of another site: its host is this machine, and so is its origin, if it has one.
fn check_origin(request: &Request) -> Result<(), ProblemDetails> {
    let is_local = request.extensions().get::<Peer>().is_some_and(|peer| peer.address.is_none());
    if is_local || request.extensions().get::<Identity>().is_some() {
        return Ok(());
    }
    let host = text(request.headers(), header::HOST);
    let refused = |why: String| Err(ProblemDetails::new("refused", why));
    if !host.is_some_and(is_loopback) {
        return refused(format!(
            "the request is for the host {host:?}: without a login /mcp answers for this machine's own names alone"
        ));
    }
    match text(request.headers(), header::ORIGIN) {
        None => Ok(()),
        Some(origin) if origin.split_once("://").is_some_and(|(_, of)| Some(of) == host) => Ok(()),
        Some(origin) => refused(format!("the request comes from a page of {origin:?}, which is not this server's")),
    }
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok() => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || address.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(headers: &[(header::HeaderName, &str)]) -> Request {
        let mut request = Request::builder().uri("/mcp");
        for (name, value) in headers {
            request = request.header(name, *value);
        }
        request.body(Body::empty()).expect("a request")
    }

    #[test]
    fn pages_of_other_sites_are_refused() {
        let (host, origin) = (header::HOST, header::ORIGIN);
        for (headers, admitted) in [
            (vec![(host.clone(), "localhost:8480")], true),
            (vec![(host.clone(), "[::1]:8480"), (origin.clone(), "http://[::1]:8480")], true),
            (vec![(host.clone(), "127.0.0.1")], true),
            (vec![(host.clone(), "evil.example:8480")], false),
            (vec![(host.clone(), "127.0.0.1:8480"), (origin.clone(), "http://evil.example")], false),
            (vec![(host.clone(), "127.0.0.1:8480"), (origin.clone(), "null")], false),
            (vec![], false),
        ] {
            assert_eq!(check_origin(&request(&headers)).is_ok(), admitted, "{headers:?}");
        }
        let mut identified = request(&[(host, "agents.example"), (origin, "https://ui.example")]);
        identified.extensions_mut().insert(Identity::new("ci", crate::Role::Operate));
        assert!(check_origin(&identified).is_ok());
    }
}
