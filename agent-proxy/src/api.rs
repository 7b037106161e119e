//! What crosses the daemon's socket, beside the library's own types.

use std::fmt::Write as _;

use proxy_manager::{AbortPolicy, EndReason, PermissionAnswer, ProcessId, PromptMode, Receipt, SessionId};
use serde::{Deserialize, Serialize};

/// Media type of a stream of JSON lines.
pub(crate) const NDJSON: &str = "application/x-ndjson";

/// Body of `POST /v1/sessions/{id}/prompt`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct PromptRequest {
    /// What to do.
    pub(crate) text: String,
    /// What becomes of it while a turn runs.
    #[serde(default)]
    pub(crate) mode: PromptMode,
    /// Whether to answer with the turn's events, to its end, as JSON lines; else with [`Accepted`] at once.
    #[serde(default)]
    pub(crate) wait: bool,
}

/// Answer to a prompt that is not waited for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Accepted {
    /// The turn's number; of a queued prompt, the one it will have. `null` when the agent has no turns.
    pub(crate) turn: Option<u64>,
}

/// Body of `POST /v1/sessions/{id}/steer`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct SteerRequest {
    /// What to say in the running turn.
    pub(crate) text: String,
}

/// Body of `POST /v1/sessions/{id}/abort`: `{}`, `{"policy":"killTurnProcesses"}`. The answer to the second is a receipt.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct AbortRequest {
    /// What is done to processes.
    pub(crate) policy: AbortPolicy,
}

/// Body of `POST /v1/sessions/{id}/kill`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(crate) struct KillRequest {
    /// Only this process, or `null` for the session.
    pub(crate) pid: Option<u32>,
    /// With `pid`: everything below it too.
    pub(crate) tree: bool,
    /// Only what the agent started; the agent and the session go on.
    pub(crate) keep_agent: bool,
    /// Milliseconds between SIGTERM and SIGKILL; 2000 by default, 0 sends SIGKILL at once.
    pub(crate) grace_ms: Option<u64>,
}

/// Body of `POST /v1/sessions/{id}/permissions/{request}`: `{"answer":"allow"}`, `{"answer":{"option":"ID"}}`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PermissionReply {
    /// The answer.
    pub(crate) answer: PermissionAnswer,
}

/// Answer to `GET /v1/health`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Health {
    /// Of the daemon.
    pub(crate) version: String,
    /// The daemon.
    pub(crate) pid: u32,
    /// Its fork server.
    pub(crate) fork_server: ProcessId,
    /// Sessions that have not ended.
    pub(crate) sessions: usize,
}

/// What a client needs of a session's description.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SessionView {
    pub(crate) session_id: SessionId,
    pub(crate) agent: String,
    pub(crate) cwd: String,
    pub(crate) state: StateView,
    pub(crate) proxy: Option<ProcessId>,
    pub(crate) agent_process: Option<ProcessId>,
    pub(crate) turns: u64,
    pub(crate) started_at: String,
}

/// Where a session stands, as JSON has it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum StateView {
    Starting,
    Idle,
    Busy { turn: u64 },
    Ended { reason: EndReason, receipt: Option<Box<Receipt>> },
}

impl std::fmt::Display for StateView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Starting => f.write_str("starting"),
            Self::Idle => f.write_str("idle"),
            Self::Busy { turn } => write!(f, "busy, turn {turn}"),
            Self::Ended { reason, receipt } => {
                write!(f, "ended: {reason}")?;
                match receipt {
                    Some(receipt) if receipt.is_empty() => Ok(()),
                    Some(receipt) => write!(f, " ({} survivors)", receipt.survivors.len()),
                    None => f.write_str(" (no receipt)"),
                }
            }
        }
    }
}

/// `text` as one segment of a URL's path.
pub(crate) fn path_segment(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'~') || (byte == b'.' && text.len() > 2) {
            escaped.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_segments() {
        assert_eq!(path_segment("call_1-a"), "call_1-a");
        assert_eq!(path_segment("a/b ü?"), "a%2Fb%20%C3%BC%3F");
        assert_eq!(path_segment(".."), "%2E%2E");
    }

    #[test]
    fn bodies_in_json() {
        let prompt: PromptRequest = serde_json::from_str(r#"{"text":"hi","mode":"queue"}"#).expect("parses");
        assert!(!prompt.wait && prompt.mode == PromptMode::Queue);
        let kill: KillRequest = serde_json::from_str("{}").expect("parses");
        assert_eq!((kill.pid, kill.tree, kill.keep_agent, kill.grace_ms), (None, false, false, None));
        let abort = |json| serde_json::from_str::<AbortRequest>(json).expect("parses").policy;
        assert_eq!(abort("{}"), AbortPolicy::LeaveProcesses);
        assert_eq!(abort(r#"{"policy":"killTurnProcesses"}"#), AbortPolicy::KillTurnProcesses);
        let reply: PermissionReply = serde_json::from_str(r#"{"answer":{"option":"once"}}"#).expect("parses");
        assert_eq!(reply.answer, PermissionAnswer::Option("once".into()));
        assert!(serde_json::from_str::<KillRequest>(r#"{"grace":3}"#).is_err());
    }

    #[test]
    fn states_read_well() {
        let state = |json: &str| serde_json::from_str::<StateView>(json).expect("parses").to_string();
        assert_eq!(state(r#""idle""#), "idle");
        assert_eq!(state(r#"{"busy":{"turn":3}}"#), "busy, turn 3");
        assert_eq!(state(r#"{"ended":{"reason":"killed","receipt":null}}"#), "ended: killed (no receipt)");
    }
}
