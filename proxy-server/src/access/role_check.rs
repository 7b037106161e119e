//! Roles of routes.

use axum::{
    extract::{MatchedPath, Request},
    http::Method,
};

use super::{Identity, Role};
use crate::ProblemDetails;

/// Routes that need another role than their method says.
const ROLES: [(&str, Role); 10] = [
    ("/v1/import", Role::Admin),
    ("/v1/stop", Role::Admin),
    ("/v1/fleet/nodes/{node}/drain", Role::Admin),
    ("/v1/fleet/nodes/{node}/forget", Role::Admin),
    ("/v1/fleet/sessions/{id}/take", Role::Admin),
    // They are asked for with GET, and start sessions, end them, or type.
    ("/instance/{name}", Role::Operate),
    ("/v1/doctor", Role::Operate),
    ("/v1/sessions/{id}/hold", Role::Operate),
    ("/v1/sessions/{id}/shell", Role::Operate),
    ("/v1/sessions/{id}/terminal", Role::Operate),
];

/// Returns the least role for a route.
pub(crate) fn role_for(method: &Method, path: &str) -> Role {
    let named = ROLES.iter().find(|(route, _)| ends_with_route(path, route));
    match named {
        Some((_, role)) => *role,
        // Whoever is known may leave.
        None if path.ends_with("/v1/logout") => Role::Read,
        // Profiles and model configurations decide what others' sessions run, and with which keys.
        None if *method != Method::GET && (path.contains("/v1/profiles") || path.contains("/v1/models")) => Role::Admin,
        None if matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) => Role::Read,
        None => Role::Operate,
    }
}

/// Returns true if a path, or the pattern that it has matched, ends as a route does.
fn ends_with_route(path: &str, route: &str) -> bool {
    let mut segments = path.rsplit('/');
    route.trim_start_matches('/').rsplit('/').all(|wanted| {
        segments.next().is_some_and(|segment| segment == wanted || (wanted.starts_with('{') && !segment.is_empty()))
    })
}

/// Returns true for a request that changes something, or begins to: some do it by GET.
pub(crate) fn changes(method: &Method, path: &str) -> bool {
    !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) || role_for(method, path) > Role::Read
}

/// Checks that the caller's role is enough for the route.
///
/// # Errors
/// `refused`.
pub(crate) fn check_role(request: &Request) -> Result<(), ProblemDetails> {
    let path = request.extensions().get::<MatchedPath>().map_or_else(|| request.uri().path(), MatchedPath::as_str);
    let needed = role_for(request.method(), path);
    match request.extensions().get::<Identity>() {
        Some(Identity { name, role, .. }) if *role < needed => {
            let detail = format!(
                "{} {path} needs the role {needed}, and {name:?} has {role}: ask for another token (`agent-proxy tokens create \
                 NAME --role {needed}`)",
                request.method()
            );
            Err(ProblemDetails::new("refused", detail))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_of_routes() {
        for (method, path, role) in [
            (Method::GET, "/v1/sessions", Role::Read),
            (Method::POST, "/v1/sessions", Role::Operate),
            (Method::DELETE, "/v1/sessions/{id}", Role::Operate),
            (Method::GET, "/v1/sessions/{id}/terminal", Role::Operate),
            (Method::GET, "/v1/sessions/{id}/hold", Role::Operate),
            (Method::GET, "/agents/v1/sessions/{id}/shell", Role::Operate),
            (Method::POST, "/agents/v1/stop", Role::Admin),
            (Method::POST, "/v1/import", Role::Admin),
            (Method::POST, "/v1/fleet/nodes/{node}/drain", Role::Admin),
            (Method::POST, "/v1/fleet/nodes/{node}/forget", Role::Admin),
            (Method::POST, "/v1/fleet/sessions/{id}/take", Role::Admin),
            (Method::POST, "/v1/fleet/sessions/{id}/move", Role::Operate),
            (Method::POST, "/v1/logout", Role::Read),
            // Where no router has matched it yet.
            (Method::GET, "/v1/sessions/s-1/hold", Role::Operate),
            (Method::GET, "/below/v1/sessions/s-1/terminal", Role::Operate),
            (Method::POST, "/v1/fleet/nodes/a/drain", Role::Admin),
            (Method::GET, "/v1/sessions/hold", Role::Read),
            (Method::GET, "/v1/profiles", Role::Read),
            (Method::PUT, "/v1/profiles/{name}", Role::Admin),
            (Method::DELETE, "/v1/models/{name}", Role::Admin),
        ] {
            assert_eq!(role_for(&method, path), role, "{method} {path}");
        }
    }
}
