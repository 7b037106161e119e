//! Errors as problem objects (RFC 9457): the API's error answers, and the output of `--json` on stderr.

use std::time::Duration;

use ipc_protocol::Receipt;
use serde::{Deserialize, Serialize};

use crate::exit::ProgramExit;

/// All kinds of problems: `type`, title, HTTP status and exit code. The first ones are the variants of
/// `proxy_manager::Error`; the others arise in the daemon or its client.
pub const KINDS: &[(&str, &str, u16, ProgramExit)] = &[
    ("duplicate-session", "a session of that id exists", 409, ProgramExit::Refused),
    ("unknown-session", "no such session", 404, ProgramExit::NotFound),
    ("ambiguous-id", "several sessions have such an id", 400, ProgramExit::Usage),
    ("unknown-process", "no such process", 404, ProgramExit::NotFound),
    ("unknown-prompt", "no such prompt waits", 404, ProgramExit::NotFound),
    ("unknown-agent", "no such agent", 404, ProgramExit::NotFound),
    ("unknown-profile", "no such profile", 404, ProgramExit::NotFound),
    ("unknown-model", "no such model configuration", 404, ProgramExit::NotFound),
    ("unknown-token", "no such token", 404, ProgramExit::NotFound),
    ("unknown-log", "no such event log", 404, ProgramExit::NotFound),
    ("unknown-stream", "no such stream", 404, ProgramExit::NotFound),
    ("stream-deleted", "the stream was deleted", 410, ProgramExit::NotFound),
    ("stream-conflict", "the stream is another, or is closed", 409, ProgramExit::Refused),
    ("unknown-permission", "no such permission request or option", 404, ProgramExit::NotFound),
    ("native-session-missing", "the conversation cannot be gone on with", 404, ProgramExit::NotFound),
    ("native-session-busy", "another session has the conversation open", 409, ProgramExit::Refused),
    ("unknown-workspace", "no such workspace", 404, ProgramExit::NotFound),
    ("workspace-busy", "another call uses the workspace", 409, ProgramExit::Refused),
    ("workspace-unapplied", "the workspace has changes that are not applied", 409, ProgramExit::Refused),
    ("workspace-conflict", "the changes do not fit the user's tree", 409, ProgramExit::Refused),
    ("command-failed", "the command before the start failed", 422, ProgramExit::Failed),
    ("not-ended", "the session has not ended", 409, ProgramExit::Refused),
    ("suspended", "the session is suspended", 409, ProgramExit::Refused),
    ("not-suspended", "the session is not suspended", 409, ProgramExit::Refused),
    ("handed-over", "the session was handed over", 409, ProgramExit::Refused),
    ("secrets-missing", "a secret that the session was started with is missing", 409, ProgramExit::Refused),
    ("not-owner", "another machine of the fleet has the session", 409, ProgramExit::Refused),
    ("fleet-unavailable", "the fleet cannot be asked", 503, ProgramExit::Failed),
    ("log", "the event log cannot do what it has to", 500, ProgramExit::Failed),
    ("agent-refused", "the agent refused", 502, ProgramExit::Failed),
    ("too-deep", "sessions within sessions within sessions", 403, ProgramExit::Refused),
    ("invalid-config", "invalid configuration", 400, ProgramExit::Usage),
    ("state-dir-in-use", "another manager has the state directory", 409, ProgramExit::Refused),
    ("program-not-found", "the agent's program was not found", 422, ProgramExit::NotFound),
    ("cwd-missing", "the working directory cannot be used", 422, ProgramExit::Failed),
    ("child-unusable", "the child binary cannot be used", 500, ProgramExit::Failed),
    ("fds-exhausted", "out of file descriptors", 503, ProgramExit::Refused),
    ("busy", "a turn is running", 409, ProgramExit::Refused),
    ("permission-bypassed", "a tool call bypassed the permission policy", 409, ProgramExit::Refused),
    ("budget-exceeded", "the budget is used up", 409, ProgramExit::Refused),
    ("draining", "the daemon is about to end", 503, ProgramExit::Refused),
    ("too-many-sessions", "there are as many sessions as there may be", 429, ProgramExit::Refused),
    ("prompt-dropped", "the prompt was dropped from the queue", 409, ProgramExit::Refused),
    ("turn-failed", "the turn failed", 502, ProgramExit::Failed),
    ("max-prompts", "no prompts left", 409, ProgramExit::Refused),
    ("unsupported", "not supported", 501, ProgramExit::Unsupported),
    ("containment-unavailable", "the containment asked for cannot be had", 501, ProgramExit::Unsupported),
    ("deadline", "deadline passed", 504, ProgramExit::Deadline),
    ("agent-died", "the agent died", 502, ProgramExit::Failed),
    ("proxy-died", "the proxy died", 502, ProgramExit::Failed),
    ("fork-server-died", "the fork server died", 502, ProgramExit::Failed),
    ("ended", "the session has ended", 409, ProgramExit::Refused),
    ("version-mismatch", "host and child are of different builds", 500, ProgramExit::Failed),
    ("protocol", "protocol error", 502, ProgramExit::Failed),
    ("survivors", "something survived the kill", 500, ProgramExit::Survivors),
    ("shut-down", "the manager was shut down", 503, ProgramExit::Failed),
    ("system", "the system refused", 500, ProgramExit::Failed),
    ("already-exists", "there is one of that name", 409, ProgramExit::Refused),
    ("refused", "refused", 403, ProgramExit::Refused),
    ("unauthorized", "no valid token", 401, ProgramExit::Refused),
    ("invalid-signature", "the signature is missing, wrong, too old or used", 401, ProgramExit::Refused),
    ("rate-limited", "too many requests", 429, ProgramExit::Refused),
    ("idempotency-key-reused", "the key was used for another request", 422, ProgramExit::Usage),
    ("interrupted", "the server ended while it did this", 409, ProgramExit::Failed),
    ("usage", "bad request", 400, ProgramExit::Usage),
    ("unknown-route", "no such route", 404, ProgramExit::Usage),
    ("method-not-allowed", "the route has another method", 405, ProgramExit::Usage),
    ("body-too-large", "the request is too large", 413, ProgramExit::Usage),
    ("request-timeout", "the request took too long", 408, ProgramExit::Deadline),
    ("overloaded", "too much is asked at once", 503, ProgramExit::Refused),
    ("node-silent", "the node does not answer", 503, ProgramExit::Failed),
    ("other-node", "another node has the session", 421, ProgramExit::Refused),
    ("no-node", "no node of the fleet fits", 503, ProgramExit::Refused),
    ("fleet-unreachable", "the fleet's engine does not answer", 503, ProgramExit::Failed),
    ("no-daemon", "no daemon", 503, ProgramExit::NoDaemon),
    ("daemon-running", "a daemon is running already", 409, ProgramExit::Refused),
    ("unusable-socket", "the socket's path cannot be used", 403, ProgramExit::Failed),
    ("failed", "failed", 500, ProgramExit::Failed),
];

/// Problem object. `type` is the kebab-case variant of the library's error.
///
/// ```json
/// {"type":"unknown-session","title":"no such session","status":404,
///  "detail":"no session s-9: list the sessions to see which there are"}
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ProblemDetails {
    /// Kind of problem.
    #[serde(rename = "type")]
    pub kind: String,
    /// Title of the kind, for people.
    pub title: String,
    /// HTTP status.
    pub status: u16,
    /// Operation that was tried, its target, and advice.
    pub detail: String,
    /// Receipt of the kill, for `survivors`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<Box<Receipt>>,
    /// Time after which to try again, for `rate-limited`: the header `Retry-After`.
    #[serde(skip)]
    pub retry_after: Option<Duration>,
}

impl ProblemDetails {
    /// Creates a problem of a kind in the table (`failed` for an unknown kind).
    pub fn new(kind: &str, detail: impl Into<String>) -> Self {
        let (kind, title, status, _) = kind_row(kind);
        Self {
            kind: kind.to_owned(),
            title: title.to_owned(),
            status,
            detail: detail.into(),
            receipt: None,
            retry_after: None,
        }
    }

    /// Creates the problem of a caller who sends too much, with the time until the next request is admitted.
    pub fn rate_limited(detail: impl Into<String>, after: Duration) -> Self {
        Self { retry_after: Some(after), ..Self::new("rate-limited", detail) }
    }

    /// Creates a problem without a kind of its own.
    pub fn failed(detail: impl Into<String>) -> Self {
        Self::new("failed", detail)
    }

    /// Creates a problem for an invalid value on the command line, or in a request.
    pub fn usage(detail: impl Into<String>) -> Self {
        Self::new("usage", detail)
    }

    /// Creates the problem of a kill that left something, with its receipt.
    pub fn survivors(receipt: Box<Receipt>) -> Self {
        Self { detail: survivors_text(&receipt), receipt: Some(receipt), ..Self::new("survivors", "") }
    }

    /// Returns the problem's exit code.
    pub fn exit(&self) -> ProgramExit {
        kind_row(&self.kind).3
    }
}

/// Says what a kill left, or why nobody knows, as a fragment.
pub fn survivors_text(receipt: &Receipt) -> String {
    let Receipt { session_id, survivors, .. } = receipt;
    match receipt.doubt() {
        None => format!("{} processes of session {session_id} survived the kill: {survivors:?}", survivors.len()),
        Some(doubt) => format!("whether anything of session {session_id} survived the kill is not provable: {doubt}"),
    }
}

fn kind_row(kind: &str) -> (&'static str, &'static str, u16, ProgramExit) {
    let known = KINDS.iter().find(|(k, ..)| *k == kind);
    known.copied().unwrap_or(("failed", "failed", 500, ProgramExit::Failed))
}

#[cfg(feature = "axum")]
mod response {
    use axum::{
        http::{HeaderValue, StatusCode, header},
        response::{IntoResponse, Response},
    };

    use super::ProblemDetails;

    impl IntoResponse for ProblemDetails {
        fn into_response(self) -> Response {
            let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            let body = serde_json::to_vec(&self).unwrap_or_default();
            let mut response = (status, [(header::CONTENT_TYPE, "application/problem+json")], body).into_response();
            if status == StatusCode::UNAUTHORIZED {
                response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            if self.kind == "rate-limited" {
                let seconds = self.retry_after.map_or(1, |after| after.as_millis().div_ceil(1000).max(1));
                let seconds = u64::try_from(seconds).unwrap_or(u64::MAX);
                response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
            }
            response
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_kebab_case_and_differ() {
        for (at, (kind, title, status, _)) in KINDS.iter().enumerate() {
            assert!(kind.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'), "{kind}");
            assert!(!title.is_empty() && (400..600).contains(status), "{kind}");
            assert!(KINDS[..at].iter().all(|(other, ..)| other != kind), "{kind} is there twice");
        }
    }

    #[test]
    fn the_contract_s_codes() {
        for (kind, code) in [
            ("unknown-session", 3),
            ("unknown-process", 3),
            ("unknown-agent", 3),
            ("unknown-profile", 3),
            ("unknown-model", 3),
            ("no-daemon", 4),
            ("survivors", 5),
            ("unsupported", 6),
            ("containment-unavailable", 6),
            ("deadline", 7),
            ("duplicate-session", 8),
            ("busy", 8),
            ("max-prompts", 8),
            ("native-session-missing", 3),
            ("native-session-busy", 8),
            ("too-deep", 8),
            ("too-many-sessions", 8),
            ("not-ended", 8),
            ("suspended", 8),
            ("not-suspended", 8),
            ("handed-over", 8),
            ("secrets-missing", 8),
            ("log", 1),
            ("state-dir-in-use", 8),
            ("usage", 2),
            ("something a newer daemon says", 1),
        ] {
            assert_eq!(ProblemDetails::new(kind, "x").exit().code(), code, "{kind}");
        }
    }
}
