//! Callers of requests that one server passes on to another on the same machine.

use std::net::SocketAddr;

use axum::{
    Router,
    extract::Request,
    http::{Extensions, HeaderName, HeaderValue, header},
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};

use super::{Identity, Peer, Role};
use crate::{ProblemDetails, websocket::remove_subprotocol_token};

/// Header with the caller, as JSON.
const CALLER: HeaderName = HeaderName::from_static("agent-proxy-caller");

/// Caller of a request that is passed on, as its header has it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PassedOnCaller {
    name: String,
    role: Role,
    user: Option<String>,
    address: Option<SocketAddr>,
    pid: Option<u32>,
}

impl PassedOnCaller {
    /// Describes who sent a request; `None` for one of the host itself.
    #[cfg(feature = "fleet")]
    pub(crate) fn of(extensions: &Extensions) -> Option<Self> {
        let Identity { name, role, user } = extensions.get().cloned()?;
        let Peer { address, pid, .. } = extensions.get().copied().unwrap_or_default();
        Some(Self { name, role, user, address, pid })
    }

    /// Makes this the caller of a request.
    pub(crate) fn apply_to(self, extensions: &mut Extensions) {
        let Self { name, role, user, address, pid } = self;
        extensions.insert(Identity { name, role, user });
        extensions.insert(Peer { address, pid, ..Peer::default() });
    }
}

/// Says in a request who its caller is, in place of what proves it, for a server behind [`trust_root`].
///
/// # Errors
/// `failed` for a name that no header can have.
pub fn name_caller(request: &mut Request, identity: &Identity) -> Result<(), ProblemDetails> {
    let Peer { address, pid, .. } = request.extensions().get().copied().unwrap_or_default();
    let Identity { name, role, user } = identity.clone();
    let failed = |error: &dyn std::fmt::Display| ProblemDetails::failed(format!("passing on who calls: {error}"));
    let text =
        serde_json::to_vec(&PassedOnCaller { name, role, user, address, pid }).map_err(|error| failed(&error))?;
    let value = HeaderValue::from_bytes(&text).map_err(|error| failed(&error))?;
    let headers = request.headers_mut();
    headers.remove(header::AUTHORIZATION);
    headers.remove(header::COOKIE);
    remove_subprotocol_token(headers);
    headers.insert(CALLER, value);
    Ok(())
}

/// Makes a router that believes root on the local socket who calls. Requests that name no caller come from the host itself, as ever.
pub fn trust_root(router: Router) -> Router {
    router.layer(from_fn(believe))
}

async fn believe(mut request: Request, next: Next) -> Response {
    let Some(value) = request.headers_mut().remove(CALLER) else { return next.run(request).await };
    let peer: Peer = request.extensions().get().copied().unwrap_or_default();
    let named: Option<PassedOnCaller> = serde_json::from_slice(value.as_bytes()).ok().filter(|_| peer.user == Some(0));
    let Some(caller) = named else {
        let detail =
            format!("{CALLER}: a caller can be named by root alone, on the local socket: leave the header out");
        return ProblemDetails::new("refused", detail).into_response();
    };
    caller.apply_to(request.extensions_mut());
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use axum::{Extension, body::Body, http::StatusCode};
    use tower::ServiceExt as _;

    use super::*;

    #[test]
    fn what_proves_the_caller_stays_here() {
        let mut request = Request::new(Body::empty());
        for (name, value) in [
            (header::AUTHORIZATION, "Bearer secret"),
            (header::COOKIE, "agent-proxy=secret"),
            (header::UPGRADE, "websocket"),
            (header::SEC_WEBSOCKET_PROTOCOL, "agent-proxy, agent-proxy.bearer.c2VjcmV0"),
        ] {
            request.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        name_caller(&mut request, &Identity::new("ada", Role::Operate)).expect("named");
        let text = format!("{:?}", request.headers());
        assert!(!text.contains("secret") && !text.contains("c2VjcmV0"), "{text}");
        assert_eq!(request.headers()[header::SEC_WEBSOCKET_PROTOCOL], "agent-proxy");
    }

    /// Status of a request that names `ada`, from a process of this user.
    async fn status(user: Option<u32>) -> (StatusCode, String) {
        let mut request = Request::new(Body::empty());
        name_caller(&mut request, &Identity::new("ada", Role::Read).with_user("ada")).expect("named");
        let answer = |identity: Option<Extension<Identity>>| async move { format!("{identity:?}") };
        let router = trust_root(Router::new().fallback(answer)).layer(Extension(Peer { user, ..Peer::default() }));
        let response = router.oneshot(request).await.expect("an answer");
        let status = response.status();
        let body = axum::body::to_bytes(response.into_body(), 4096).await.expect("a body");
        (status, String::from_utf8_lossy(&body).into_owned())
    }

    #[tokio::test]
    async fn only_root_names_a_caller() {
        let (code, text) = status(Some(0)).await;
        assert!(code == StatusCode::OK && text.contains("\"ada\"") && text.contains("Read"), "{text}");
        for user in [Some(1000), None] {
            assert_eq!(status(user).await.0, StatusCode::FORBIDDEN, "{user:?}");
        }
    }
}
