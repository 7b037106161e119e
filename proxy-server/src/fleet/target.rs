//! What a request is about, as far as a fleet is concerned. Pure.

use std::ops::Range;

use axum::http::Method;
use percent_encoding::percent_decode_str;

/// Subject of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RequestTarget {
    /// Start of a session: a node is chosen for it.
    Start,
    /// List of what all nodes have.
    List(FleetList),
    /// Events of all sessions: those of the fleet's log.
    AllEvents,
    /// One session: its owner answers.
    Session(NamedSession),
    /// Another node, or this one.
    Node(String),
    /// This node itself.
    Here,
}

/// Session that a path names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedSession {
    /// Its id, or the beginning of one.
    pub(super) id: String,
    /// Place of the id in the path.
    pub(super) place: Range<usize>,
    /// False where the path may name something else: only a whole id counts.
    pub(super) may_be_beginning: bool,
}

/// List that has members of all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FleetList {
    Sessions,
    Records,
    Permissions,
}

/// Beginnings of paths that name a session, and whether the beginning of an id is enough there.
const OF_SESSIONS: [(&str, bool); 4] =
    [("/v1/sessions/", true), ("/v1/fleet/sessions/", true), ("/v1/records/", true), ("/v1/streams/", false)];

impl RequestTarget {
    /// Finds what a request is about.
    pub(super) fn of(method: &Method, path: &str) -> Self {
        match (method, path) {
            (&Method::POST, "/v1/sessions") => return Self::Start,
            (&Method::GET, "/v1/sessions") => return Self::List(FleetList::Sessions),
            (&Method::GET, "/v1/records") => return Self::List(FleetList::Records),
            (&Method::GET, "/v1/permissions") => return Self::List(FleetList::Permissions),
            (&Method::GET, "/v1/events") => return Self::AllEvents,
            _ => {}
        }
        if let Some((node, "drain")) = path.strip_prefix("/v1/fleet/nodes/").and_then(|rest| rest.split_once('/')) {
            return Self::Node(node.to_owned());
        }
        let named = OF_SESSIONS.iter().find_map(|(beginning, may_be_beginning)| {
            let rest = path.strip_prefix(beginning)?;
            let end = beginning.len() + rest.find('/').unwrap_or(rest.len());
            let place = beginning.len()..end;
            let id = percent_decode_str(&path[place.clone()]).decode_utf8().ok()?.into_owned();
            Some(NamedSession { id, place, may_be_beginning: *may_be_beginning })
        });
        named.filter(|named| !named.id.is_empty()).map_or(Self::Here, Self::Session)
    }
}

/// Returns true for a kill of a whole session.
pub(super) fn is_kill(method: &Method, path: &str) -> bool {
    *method == Method::POST && path.starts_with("/v1/sessions/") && path.ends_with("/kill")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_requests_are_about() {
        let session = |id: &str, place, may_be_beginning| {
            RequestTarget::Session(NamedSession { id: id.into(), place, may_be_beginning })
        };
        for (method, path, target) in [
            (Method::POST, "/v1/sessions", RequestTarget::Start),
            (Method::GET, "/v1/sessions", RequestTarget::List(FleetList::Sessions)),
            (Method::GET, "/v1/permissions", RequestTarget::List(FleetList::Permissions)),
            (Method::GET, "/v1/events", RequestTarget::AllEvents),
            (Method::GET, "/v1/sessions/s-1", session("s-1", 13..16, true)),
            (Method::POST, "/v1/sessions/s%2D1/kill", session("s-1", 13..18, true)),
            (Method::GET, "/v1/streams/s-1/events", session("s-1", 12..15, false)),
            (Method::PUT, "/v1/streams/s-1", session("s-1", 12..15, false)),
            (Method::POST, "/v1/fleet/sessions/s-1/move", session("s-1", 19..22, true)),
            (Method::POST, "/v1/fleet/nodes/b/drain", RequestTarget::Node("b".into())),
            (Method::GET, "/v1/sessions/", RequestTarget::Here),
            (Method::GET, "/v1/streams", RequestTarget::Here),
            (Method::GET, "/v1/profiles/s-1", RequestTarget::Here),
            (Method::POST, "/v1/stop", RequestTarget::Here),
        ] {
            assert_eq!(RequestTarget::of(&method, path), target, "{method} {path}");
        }
    }
}
