//! Callers over the network: a token, and a host and an origin that are ours.
//!
//! A page of the internet that a user visits can send requests to this machine, and with a name whose address changes (DNS
//! rebinding) it can read the answers too. Such requests name a host that is not ours, or come from an origin that is not ours.

use std::net::SocketAddr;

use axum::{
    Router,
    extract::{Request, State},
    http::{HeaderMap, Method, header},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
};
use tokio::task::spawn_blocking;

use super::{Identity, TokenFile};
use crate::{ProblemDetails, ServerMetrics, routes::is_public};

/// What a request over the network needs.
#[derive(Clone, Debug)]
pub struct NetworkAccess {
    tokens: TokenFile,
    /// Hosts that a request may name, besides addresses of this machine: lower case, without a port.
    hosts: Vec<String>,
    /// Origins of pages that may send requests: `https://example.com`.
    origins: Vec<String>,
    /// Metrics that count refusals.
    metrics: Option<ServerMetrics>,
}

impl NetworkAccess {
    /// Admits holders of these tokens, who name this machine by an IP address or as `localhost`.
    pub fn new(tokens: TokenFile) -> Self {
        Self { tokens, hosts: Vec::new(), origins: Vec::new(), metrics: None }
    }

    /// Admits requests that name this host.
    #[must_use]
    pub fn with_host(mut self, host: &str) -> Self {
        self.hosts.push(host.to_ascii_lowercase());
        self
    }

    /// Admits requests of pages of this origin, too: `https://example.com`.
    #[must_use]
    pub fn with_origin(mut self, origin: &str) -> Self {
        self.origins.push(origin.to_ascii_lowercase());
        self
    }

    /// Counts refusals.
    #[must_use]
    pub fn with_metrics(self, metrics: ServerMetrics) -> Self {
        Self { metrics: Some(metrics), ..self }
    }

    async fn admit(&self, headers: &HeaderMap) -> Result<Identity, ProblemDetails> {
        self.check_host(headers)?;
        let token = bearer(headers).ok_or_else(|| {
            ProblemDetails::new(
                "unauthorized",
                "a request over the network needs a token, as `Authorization: Bearer TOKEN`: `agent-proxy tokens create \
                 NAME` makes one",
            )
        })?;
        let (tokens, token) = (self.tokens.clone(), token.to_owned());
        let known = spawn_blocking(move || tokens.identify(&token)).await;
        let known = known.map_err(|error| ProblemDetails::failed(format!("the tokens cannot be read: {error}")))?;
        let known = known.map_err(|error| ProblemDetails::failed(ipc_protocol::ErrorChain(&error).to_string()))?;
        known.ok_or_else(|| ProblemDetails::new("unauthorized", "this token is not known, or was revoked"))
    }

    fn check_host(&self, headers: &HeaderMap) -> Result<(), ProblemDetails> {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let refused =
            |what: &str| ProblemDetails::new("refused", format!("{what}: start the server with `--host NAME`"));
        let host = text(header::HOST).ok_or_else(|| refused("the request names no host"))?.to_ascii_lowercase();
        if !self.is_ours(&host) {
            return Err(refused(&format!(
                "the request is for the host {host:?}, which this server does not know as its own"
            )));
        }
        match text(header::ORIGIN).map(str::to_ascii_lowercase) {
            None => Ok(()),
            Some(origin) if self.origins.contains(&origin) => Ok(()),
            Some(origin) if origin.split_once("://").is_some_and(|(_, of)| of == host) => Ok(()),
            Some(origin) => Err(ProblemDetails::new(
                "refused",
                format!("the request comes from a page of {origin:?}: start the server with `--origin` to admit it"),
            )),
        }
    }

    fn is_ours(&self, host: &str) -> bool {
        let name = match host.parse::<SocketAddr>() {
            // An address cannot be another one the next moment, as a name can.
            Ok(_) => return true,
            Err(_) => {
                host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()).map_or(host, |(name, _)| name)
            }
        };
        let address = name.trim_start_matches('[').trim_end_matches(']');
        name == "localhost"
            || address.parse::<std::net::IpAddr>().is_ok()
            || self.hosts.iter().any(|known| known == name)
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Makes a router for the network of one that trusts its callers: each request needs a token.
pub fn require_token(router: Router, access: NetworkAccess) -> Router {
    router.layer(from_fn_with_state(access, admit))
}

async fn admit(State(access): State<NetworkAccess>, mut request: Request, next: Next) -> Response {
    if is_public(request.uri().path()) && request.method() == Method::GET {
        return next.run(request).await;
    }
    match access.admit(request.headers()).await {
        Ok(identity) => {
            request.extensions_mut().insert(identity);
            next.run(request).await
        }
        Err(problem) => {
            tracing::info!(why = problem.detail, "a request is refused");
            let response = problem.into_response();
            if let Some(metrics) = &access.metrics {
                metrics.count_refusal(response.status());
            }
            response
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(access: &NetworkAccess, host: Option<&str>, origin: Option<&str>) -> bool {
        let mut headers = HeaderMap::new();
        for (name, value) in [(header::HOST, host), (header::ORIGIN, origin)] {
            if let Some(value) = value {
                headers.insert(name, value.parse().expect("a value"));
            }
        }
        access.check_host(&headers).is_ok()
    }

    #[test]
    fn hosts_and_origins() {
        let access =
            NetworkAccess::new(TokenFile::new("/none")).with_host("Agents.example").with_origin("https://ui.example");
        for (host, origin, expected) in [
            (Some("127.0.0.1:8080"), None, true),
            (Some("[::1]:8080"), None, true),
            (Some("localhost"), None, true),
            (Some("LOCALHOST:80"), Some("http://localhost:80"), true),
            (Some("agents.example"), None, true),
            (Some("agents.example:8080"), Some("https://ui.example"), true),
            (Some("127.0.0.1:8080"), Some("http://127.0.0.1:8080"), true),
            (Some("127.0.0.1:8080"), Some("http://127.0.0.1:9090"), false),
            (Some("127.0.0.1:8080"), Some("null"), false),
            (Some("127.0.0.1:8080"), Some("https://evil.example"), false),
            (Some("evil.example:8080"), None, false),
            (Some("localhost.evil.example"), None, false),
            (Some("127.0.0.1.evil.example"), None, false),
            (None, None, false),
        ] {
            assert_eq!(checked(&access, host, origin), expected, "{host:?} {origin:?}");
        }
    }
}
