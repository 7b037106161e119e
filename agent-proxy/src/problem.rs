//! Errors as problem objects (RFC 9457): the daemon's error answers, and the output of `--json` on stderr.

use ipc_protocol::ErrorChain;
use proxy_manager::{Error, LogError, Receipt};
use serde::{Deserialize, Serialize};

use crate::exit::Exit;

/// All kinds of problems: `type`, title, HTTP status and exit code. The first ones are the variants of
/// [`proxy_manager::Error`]; the others arise in the daemon or its client.
const KINDS: &[(&str, &str, u16, Exit)] = &[
    ("duplicate-session", "a session of that id exists", 409, Exit::Refused),
    ("unknown-session", "no such session", 404, Exit::NotFound),
    ("unknown-process", "no such process", 404, Exit::NotFound),
    ("unknown-agent", "no such agent", 404, Exit::NotFound),
    ("unknown-profile", "no such profile", 404, Exit::NotFound),
    ("unknown-model", "no such model configuration", 404, Exit::NotFound),
    ("unknown-log", "no such event log", 404, Exit::NotFound),
    ("unknown-permission", "no such permission request or option", 404, Exit::NotFound),
    ("native-session-missing", "the conversation cannot be gone on with", 404, Exit::NotFound),
    ("native-session-busy", "another session has the conversation open", 409, Exit::Refused),
    ("not-ended", "the session has not ended", 409, Exit::Refused),
    ("suspended", "the session is suspended", 409, Exit::Refused),
    ("not-suspended", "the session is not suspended", 409, Exit::Refused),
    ("handed-over", "the session was handed over", 409, Exit::Refused),
    ("secrets-missing", "a secret that the session was started with is missing", 409, Exit::Refused),
    ("log", "the event log cannot do what it has to", 500, Exit::Failed),
    ("agent-refused", "the agent refused", 502, Exit::Failed),
    ("too-deep", "sessions within sessions within sessions", 403, Exit::Refused),
    ("invalid-config", "invalid configuration", 400, Exit::Usage),
    ("state-dir-in-use", "another manager has the state directory", 409, Exit::Refused),
    ("program-not-found", "the agent's program was not found", 422, Exit::Failed),
    ("cwd-missing", "the working directory cannot be used", 422, Exit::Failed),
    ("child-unusable", "the child binary cannot be used", 500, Exit::Failed),
    ("fds-exhausted", "out of file descriptors", 503, Exit::Refused),
    ("busy", "a turn is running", 409, Exit::Refused),
    ("permission-bypassed", "a tool call bypassed the permission policy", 409, Exit::Refused),
    ("budget-exceeded", "the budget is used up", 409, Exit::Refused),
    ("draining", "the daemon is about to end", 503, Exit::Refused),
    ("too-many-sessions", "there are as many sessions as there may be", 429, Exit::Refused),
    ("turn-failed", "the turn failed", 502, Exit::Failed),
    ("max-prompts", "no prompts left", 409, Exit::Refused),
    ("unsupported", "not supported", 501, Exit::Unsupported),
    ("containment-unavailable", "the containment asked for cannot be had", 501, Exit::Unsupported),
    ("deadline", "deadline passed", 504, Exit::Deadline),
    ("agent-died", "the agent died", 502, Exit::Failed),
    ("proxy-died", "the proxy died", 502, Exit::Failed),
    ("fork-server-died", "the fork server died", 502, Exit::Failed),
    ("ended", "the session has ended", 409, Exit::Refused),
    ("version-mismatch", "host and child are of different builds", 500, Exit::Failed),
    ("protocol", "protocol error", 502, Exit::Failed),
    ("survivors", "something survived the kill", 500, Exit::Survivors),
    ("shut-down", "the manager was shut down", 503, Exit::Failed),
    ("system", "the system refused", 500, Exit::Failed),
    ("already-exists", "there is one of that name", 409, Exit::Refused),
    ("refused", "refused", 403, Exit::Refused),
    ("usage", "bad request", 400, Exit::Usage),
    ("unknown-route", "no such route", 404, Exit::Usage),
    ("method-not-allowed", "the route has another method", 405, Exit::Usage),
    ("body-too-large", "the request is too large", 413, Exit::Usage),
    ("request-timeout", "the request took too long", 408, Exit::Deadline),
    ("overloaded", "too much is asked at once", 503, Exit::Refused),
    ("no-daemon", "no daemon", 503, Exit::NoDaemon),
    ("daemon-running", "a daemon is running already", 409, Exit::Refused),
    ("unusable-socket", "the socket's path cannot be used", 403, Exit::Failed),
    ("failed", "failed", 500, Exit::Failed),
];

/// Problem object. `type` is the kebab-case variant of the library's error.
///
/// ```json
/// {"type":"unknown-session","title":"no such session","status":404,
///  "detail":"no session s-9: list the sessions to see which there are"}
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Problem {
    /// Kind of problem.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// Title of the kind, for people.
    pub(crate) title: String,
    /// HTTP status.
    pub(crate) status: u16,
    /// Operation that was tried, its target, and advice.
    pub(crate) detail: String,
    /// Receipt of the kill, for `survivors`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) receipt: Option<Box<Receipt>>,
}

impl Problem {
    /// Creates a problem of a kind in the table (`failed` for an unknown kind).
    pub(crate) fn new(kind: &str, detail: impl Into<String>) -> Self {
        let (kind, title, status, _) = row(kind);
        Self { kind: kind.to_owned(), title: title.to_owned(), status, detail: detail.into(), receipt: None }
    }

    /// Creates a problem without a kind of its own.
    pub(crate) fn failed(detail: impl Into<String>) -> Self {
        Self::new("failed", detail)
    }

    /// Creates a problem for an invalid value on the command line, or in a request.
    pub(crate) fn usage(detail: impl Into<String>) -> Self {
        Self::new("usage", detail)
    }

    /// Returns the problem's exit code.
    pub(crate) fn exit(&self) -> Exit {
        row(&self.kind).3
    }
}

fn row(kind: &str) -> (&'static str, &'static str, u16, Exit) {
    let known = KINDS.iter().find(|(k, ..)| *k == kind);
    known.copied().unwrap_or(("failed", "failed", 500, Exit::Failed))
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::DuplicateSession { .. } => "duplicate-session",
            Error::UnknownSession { .. } => "unknown-session",
            Error::UnknownProcess { .. } => "unknown-process",
            Error::UnknownAgent { .. } => "unknown-agent",
            Error::UnknownProfile { .. } => "unknown-profile",
            Error::UnknownModel { .. } => "unknown-model",
            Error::UnknownPermission { .. } => "unknown-permission",
            Error::NativeSessionMissing { .. } => "native-session-missing",
            Error::NativeSessionBusy { .. } | Error::HomeBusy { .. } => "native-session-busy",
            Error::NotEnded { .. } => "not-ended",
            Error::Suspended { .. } => "suspended",
            Error::NotSuspended { .. } => "not-suspended",
            Error::HandedOver { .. } => "handed-over",
            Error::SecretsMissing { .. } => "secrets-missing",
            Error::Log(LogError::Exists { .. }) => "duplicate-session",
            Error::Log(LogError::Import { .. }) => "usage",
            Error::Log(LogError::Locked { .. }) => "state-dir-in-use",
            Error::Log(_) => "log",
            Error::AgentRefused { .. } => "agent-refused",
            Error::TooDeep { .. } => "too-deep",
            Error::InvalidConfig { .. } => "invalid-config",
            Error::StateDirInUse { .. } => "state-dir-in-use",
            Error::ProgramNotFound { .. } => "program-not-found",
            Error::CwdMissing { .. } => "cwd-missing",
            Error::ChildUnusable { .. } => "child-unusable",
            Error::FdsExhausted { .. } => "fds-exhausted",
            Error::Busy { .. } => "busy",
            Error::TurnFailed { answer, .. } if answer.timed_out.is_some() => "deadline",
            Error::TurnFailed { answer, .. } if answer.over_budget.is_some() => "budget-exceeded",
            Error::BudgetExceeded { .. } => "budget-exceeded",
            Error::TurnFailed { .. } => "turn-failed",
            Error::Draining => "draining",
            Error::TooManySessions { .. } => "too-many-sessions",
            Error::MaxPrompts { .. } => "max-prompts",
            Error::Unsupported { .. } => "unsupported",
            Error::ContainmentUnavailable { .. } => "containment-unavailable",
            Error::Deadline { .. } => "deadline",
            Error::AgentDied { .. } => "agent-died",
            Error::ProxyDied { .. } => "proxy-died",
            Error::ForkServerDied => "fork-server-died",
            Error::Ended { .. } => "ended",
            Error::VersionMismatch { .. } => "version-mismatch",
            Error::Protocol { .. } => "protocol",
            Error::Survivors(_) => "survivors",
            Error::ShutDown => "shut-down",
            Error::System { .. } => "system",
            _ => "failed",
        };
        let mut problem = Self::new(kind, ErrorChain(&error).to_string());
        if let Error::Survivors(receipt) = error {
            problem.receipt = Some(receipt);
        }
        problem
    }
}

/// Reason why a command did not end with [`Exit::Done`].
#[derive(Debug)]
pub(crate) enum Failure {
    /// A problem to report.
    Problem(Box<Problem>),
    /// The reader of our output has closed it: end silently.
    Closed,
    /// Everything is reported already; only the exit code remains.
    Exit(Exit),
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self::Problem(Box::new(problem))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Problem::from(error).into()
    }
}

#[cfg(test)]
mod tests {
    use ipc_protocol::KillCause;

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
            assert_eq!(Problem::new(kind, "x").exit().code(), code, "{kind}");
        }
    }

    #[test]
    fn survivors_carry_their_receipt_through_json() {
        let id: proxy_manager::SessionId = "s-1".parse().expect("a valid id");
        let problem = Problem::from(Error::Survivors(Box::new(Receipt::begin(id, KillCause::KillSession))));
        assert_eq!((problem.kind.as_str(), problem.status, problem.exit()), ("survivors", 500, Exit::Survivors));
        let json = serde_json::to_string(&problem).expect("serializes");
        assert!(json.contains(r#""type":"survivors""#), "{json}");
        assert_eq!(serde_json::from_str::<Problem>(&json).expect("parses"), problem);
    }
}
