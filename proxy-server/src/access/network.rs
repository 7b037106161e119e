//! Callers over the network: a token, and a host and an origin that are ours.
//!
//! A page of the internet that a user visits can send requests to this machine, and with a name whose address changes (DNS
//! rebinding) it can read the answers too. Such requests name a host that is not ours, or come from an origin that is not ours.

use std::{net::SocketAddr, sync::Arc};

use axum::{
    Router,
    extract::{MatchedPath, Query, Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header, request::Parts},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use tokio::task::spawn_blocking;

use super::{
    AuditLog, Identity, LoginStore, OidcVerifier, Peer, Role, TokenFile, TrustedProxy,
    audit::AuditDraft,
    login::{LOGIN_PATH, set_cookie},
    request_rate::RequestRates,
    role_check::changes,
};
use crate::{
    ProblemDetails, ServerMetrics,
    durable_streams::is_preflight,
    plain_page::{escape, is_for_people, page},
    routes::is_public,
    websocket::subprotocol_token,
};

/// Requests of a caller in a second, unless another bound is set.
const REQUESTS_PER_SECOND: u32 = 1000;

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
    logins: Option<LoginStore>,
    audit: Option<AuditLog>,
    trusted: Option<TrustedProxy>,
    oidc: Option<OidcVerifier>,
    rates: RequestRates,
    /// True if browsers reach the server by TLS.
    has_tls: bool,
}

impl NetworkAccess {
    /// Admits holders of these tokens, who name this machine by an IP address or as `localhost`.
    pub fn new(tokens: TokenFile) -> Self {
        Self {
            tokens,
            hosts: Vec::new(),
            origins: Vec::new(),
            metrics: None,
            logins: None,
            audit: None,
            trusted: None,
            oidc: None,
            rates: RequestRates::new(REQUESTS_PER_SECOND),
            has_tls: false,
        }
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

    /// Admits pages that have logged in by a link: `GET /login?code=…` exchanges it for a cookie.
    #[must_use]
    pub fn with_logins(self, logins: LoginStore) -> Self {
        Self { logins: Some(logins), ..self }
    }

    /// Records refusals.
    #[must_use]
    pub fn with_audit(self, audit: AuditLog) -> Self {
        Self { audit: Some(audit), ..self }
    }

    /// Admits users whom a proxy in front names.
    #[must_use]
    pub fn with_trusted_proxy(self, trusted: TrustedProxy) -> Self {
        Self { trusted: Some(trusted), ..self }
    }

    /// Admits holders of an issuer's tokens, too.
    #[must_use]
    pub fn with_oidc(self, oidc: OidcVerifier) -> Self {
        Self { oidc: Some(oidc), ..self }
    }

    /// Allows each caller so many requests in a second; 1000 by default.
    #[must_use]
    pub fn with_rate(self, per_second: u32) -> Self {
        Self { rates: RequestRates::new(per_second), ..self }
    }

    /// Says that browsers reach the server by TLS: cookies are sent by nothing else then.
    #[must_use]
    pub fn with_tls(self) -> Self {
        Self { has_tls: true, ..self }
    }

    /// Returns who sends a request: by a token, a page's login, or a proxy's header.
    async fn admit(&self, request: &Parts) -> Result<Identity, ProblemDetails> {
        let headers = &request.headers;
        let peer: Peer = request.extensions.get().copied().unwrap_or_default();
        let limited = |after: std::time::Duration| {
            let detail = format!("too many requests: send the next one in {} ms", after.as_millis().max(1));
            ProblemDetails::rate_limited(detail, after)
        };
        self.check_host(headers)?;
        // A wrong token costs a hash, and cannot be guessed. To count those of an address would shut out who has a token there.
        let identity = self.identify(request, peer).await?;
        // A kill gets through, whatever else its caller sends.
        if !is_kill(request) {
            self.rates.count(&identity.name).map_err(limited)?;
        }
        Ok(identity)
    }

    async fn identify(&self, request: &Parts, peer: Peer) -> Result<Identity, ProblemDetails> {
        let headers = &request.headers;
        // A browser asks without a token, and learns which headers it may send.
        if is_preflight(&request.method, request.uri.path()) {
            return Ok(Identity::new("preflight", Role::Read));
        }
        if let Some(token) = bearer(headers) {
            return self.identify_token(token.to_owned()).await;
        }
        if let Some(token) = subprotocol_token(headers) {
            return self.identify_token(token).await;
        }
        if let Some(identity) = self.logins.as_ref().and_then(|logins| logins.identify(headers)) {
            check_same_origin(request)?;
            return Ok(identity);
        }
        if let Some(trusted) = &self.trusted
            && let Some(identity) = trusted.identify(headers, peer)?
        {
            check_same_origin(request)?;
            return Ok(identity);
        }
        Err(ProblemDetails::new(
            "unauthorized",
            "a request over the network needs a token, as `Authorization: Bearer TOKEN`: `agent-proxy tokens create NAME` makes \
             one; or a page's login: `agent-proxy login-link` prints a link",
        ))
    }

    async fn identify_token(&self, token: String) -> Result<Identity, ProblemDetails> {
        let known = match self.oidc.clone().filter(|_| OidcVerifier::is_jwt(&token)) {
            // Keys of an issuer may have to be fetched.
            Some(oidc) => spawn_blocking(move || oidc.identify(&token).map(Some))
                .await
                .map_err(|error| ProblemDetails::failed(format!("the token cannot be checked: {error}")))??,
            // A look at a small file of this machine: another thread costs more.
            None => self
                .tokens
                .identify(&token)
                .map_err(|error| ProblemDetails::failed(ipc_protocol::ErrorChain(&error).to_string()))?,
        };
        known.ok_or_else(|| ProblemDetails::new("unauthorized", "this token is not known, or was revoked"))
    }

    /// Exchanges a login link for a cookie.
    fn log_in(&self, request: &Parts) -> Result<Response, ProblemDetails> {
        let peer: Peer = request.extensions.get().copied().unwrap_or_default();
        let address = peer.address.map(|address| address.ip().to_canonical());
        self.check_host(&request.headers)?;
        let detail = "too many attempts: try again in a second";
        self.rates.check_failures(address).map_err(|_| ProblemDetails::new("rate-limited", detail))?;
        let Some(logins) = &self.logins else { return Err(ProblemDetails::new("unknown-route", "no such route")) };
        let code = Query::<LoginQuery>::try_from_uri(&request.uri);
        let code = code.map_err(|_| ProblemDetails::usage("a login link has a `code`: use it as it was printed"))?;
        let value = logins.log_in(&code.code).inspect_err(|_| self.rates.count_failure(address))?;
        let host = request.headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let cookie = set_cookie(&value, host, self.has_tls).ok_or_else(|| ProblemDetails::failed("no cookie"))?;
        let headers = [
            (header::SET_COOKIE, cookie),
            (header::LOCATION, HeaderValue::from_static("/")),
            (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
            (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        ];
        Ok((StatusCode::SEE_OTHER, headers).into_response())
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

/// Scheme of the URLs by which a caller reaches the server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UrlScheme(pub(crate) &'static str);

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Makes a router for the network of one that trusts its callers: each request needs a token.
pub fn require_token(router: Router, access: NetworkAccess) -> Router {
    router.layer(from_fn_with_state(Arc::new(access), admit))
}

/// Page for whoever follows a login link that does nothing.
fn no_login_page(problem: &ProblemDetails) -> Response {
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    // The advice is below.
    let detail = escape(problem.detail.split(';').next().unwrap_or_default());
    let body = format!(
        "<p>You are not logged in: {detail}.</p><p>Where the daemon runs, print another link, and open it within 15 minutes:</p>\
         <pre>agent-proxy login-link</pre><p>A page that is logged in already stays so: <a href=\"/\">open it</a>.</p>"
    );
    page(status, "No login by this link", &body)
}

/// Query of a login link.
#[derive(Deserialize)]
struct LoginQuery {
    code: String,
}

/// Returns true for a request that ends processes.
fn is_kill(request: &Parts) -> bool {
    request.method == Method::POST && request.uri.path().ends_with("/kill")
}

/// Checks a request that a browser has made of itself the caller's: another site can have it sent, so one that changes something, or opens
/// a connection, says that a page of ours sends it. Its origin, if it names one, was checked before.
fn check_same_origin(request: &Parts) -> Result<(), ProblemDetails> {
    let headers = &request.headers;
    let path = request.extensions.get::<MatchedPath>().map_or_else(|| request.uri.path(), MatchedPath::as_str);
    let changes = changes(&request.method, path) || headers.contains_key(header::UPGRADE);
    let site = headers.get("sec-fetch-site").and_then(|site| site.to_str().ok());
    let is_ours = headers.contains_key(header::ORIGIN) || site == Some("same-origin");
    if is_ours && site.is_none_or(|site| site != "cross-site")
        || !changes && site.is_none_or(|site| site != "cross-site")
    {
        return Ok(());
    }
    Err(ProblemDetails::new(
        "refused",
        "a request with a page's login has to come from a page of this server: it names no origin that is one, or another site",
    ))
}

/// Returns the name of the caller of a route that checks by itself who sends a request.
fn self_authenticated(request: &Parts) -> Option<String> {
    let route = request.extensions.get::<MatchedPath>()?.as_str();
    let path = request.uri.path();
    match request.method {
        Method::POST if route.ends_with("/v1/hooks/{name}") => {
            path.rsplit('/').next().map(|name| format!("hook:{name}"))
        }
        Method::GET | Method::POST if route.ends_with("/v1/permission-link") => Some("link".to_owned()),
        _ => None,
    }
}

async fn admit(State(access): State<Arc<NetworkAccess>>, request: Request, next: Next) -> Response {
    let (mut request, body) = request.into_parts();
    if request.method == Method::GET && is_public(request.uri.path()) {
        return next.run(Request::from_parts(request, body)).await;
    }
    if let Some(name) = self_authenticated(&request) {
        // Its signature, or its link, says who sends it.
        if let Err(problem) = access.check_host(&request.headers) {
            return problem.into_response();
        }
        request.extensions.insert(Identity::new(name, Role::Operate));
        return next.run(Request::from_parts(request, body)).await;
    }
    let draft = access.audit.as_ref().map(|audit| (audit, AuditDraft::of(&request)));
    let admitted = if request.uri.path() == LOGIN_PATH && request.method == Method::GET && access.logins.is_some() {
        access.log_in(&request).map(Err)
    } else {
        access.admit(&request).await.map(Ok)
    };
    match admitted {
        Ok(Ok(identity)) => {
            request.extensions.insert(identity);
            request.extensions.insert(UrlScheme(if access.has_tls { "https" } else { "http" }));
            next.run(Request::from_parts(request, body)).await
        }
        Ok(Err(response)) => response,
        Err(problem) => {
            tracing::info!(why = problem.detail, "a request is refused");
            let response = if request.uri.path() == LOGIN_PATH && is_for_people(&request.headers) {
                no_login_page(&problem)
            } else {
                problem.into_response()
            };
            if let Some((audit, draft)) = draft {
                audit.record_refusal(draft, response.status()).await;
            }
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
