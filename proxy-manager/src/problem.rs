//! The problem that an error is, in the API and on the command line.

use api_types::ProblemDetails;

use event_log::LogError;

use crate::{error::Error, error_text::error_text};

impl From<Error> for ProblemDetails {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::DuplicateSession { .. } => "duplicate-session",
            Error::UnknownSession { .. } => "unknown-session",
            Error::UnknownProcess { .. } => "unknown-process",
            Error::UnknownPrompt { .. } => "unknown-prompt",
            Error::PromptDropped { .. } => "prompt-dropped",
            Error::UnknownAgent { .. } => "unknown-agent",
            Error::UnknownProfile { .. } => "unknown-profile",
            Error::UnknownModel { .. } => "unknown-model",
            Error::UnknownPermission { .. } => "unknown-permission",
            Error::NativeSessionMissing { .. } => "native-session-missing",
            Error::NativeSessionBusy { .. } | Error::HomeBusy { .. } => "native-session-busy",
            Error::UnknownWorkspace { .. } => "unknown-workspace",
            Error::WorkspaceBusy { .. } => "workspace-busy",
            Error::WorkspaceUnapplied { .. } => "workspace-unapplied",
            Error::WorkspaceConflict { .. } => "workspace-conflict",
            Error::CommandFailed { .. } => "command-failed",
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
            Error::ChildUnusable { .. } | Error::ChildInRuntime { .. } => "child-unusable",
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
            Error::ShutDown | Error::RuntimeEnded { .. } => "shut-down",
            Error::NotOwner { .. } | Error::Fenced { .. } => "not-owner",
            Error::FleetUnavailable { .. } => "fleet-unavailable",
            Error::System { .. } => "system",
            _ => "failed",
        };
        let mut problem = Self::new(kind, error_text(&error));
        if let Error::Busy { session, permission: Some(request) } = &error {
            // Shells see no harm in most ids; one that they do is quoted in the list of `permit`.
            problem.detail = format!(
                "session {session} is waiting for {request}: `agent-proxy permit {session}` shows what it asks and how to \
                 answer; --queue has a prompt wait"
            );
        }
        if let Error::Survivors(receipt) = error {
            problem.receipt = Some(receipt);
        }
        problem
    }
}

#[cfg(test)]
mod tests {
    use api_types::ProgramExit;
    use ipc_protocol::{KillCause, Receipt, SessionId};

    use super::*;

    #[test]
    fn survivors_carry_their_receipt_through_json() {
        let id: SessionId = "s-1".parse().expect("a valid id");
        let problem = ProblemDetails::from(Error::Survivors(Box::new(Receipt::begin(id, KillCause::KillSession))));
        assert_eq!((problem.kind.as_str(), problem.status, problem.exit()), ("survivors", 500, ProgramExit::Survivors));
        let json = serde_json::to_string(&problem).expect("serializes");
        assert!(json.contains(r#""type":"survivors""#), "{json}");
        assert_eq!(serde_json::from_str::<ProblemDetails>(&json).expect("parses"), problem);
    }
}
