//! State of a session, as callers see it.

use std::time::SystemTime;

use ipc_protocol::{EndReason, Measures, ProcessId, Receipt, SessionId};
use serde::{Serialize, Serializer};

use super::{ProcessUse, QueuedPrompt, SessionMetrics};

/// Lifecycle state of a session: starting, then idle and busy by turns, then ended. A suspended session may start
/// again.
///
/// In JSON `"starting"`, `"idle"`, `{"busy":{"turn":1}}`, `{"ended":{"reason":"killed","receipt":{…}}}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum SessionState {
    /// The agent is not ready yet.
    Starting,
    /// The session waits for a prompt. An agent without turns is always idle.
    Idle,
    /// A turn runs.
    Busy {
        /// Number of the turn; the first is 1.
        turn: u64,
    },
    /// The processes have ended and the conversation is retained: [`crate::ProxyManager::resume_session`] resumes it.
    Suspended {
        /// Reason for the suspension.
        reason: EndReason,
        /// Receipt that proves nothing is left; `null` if nobody could tell.
        receipt: Option<Box<Receipt>>,
    },
    /// The session is over.
    Ended {
        /// Reason for the end.
        reason: EndReason,
        /// Receipt that proves nothing is left; `null` if nobody could tell.
        receipt: Option<Box<Receipt>>,
    },
}

/// Snapshot of one session.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionInfo {
    /// Id of the session.
    pub session_id: SessionId,
    /// Catalog id of its agent.
    pub agent: String,
    /// Configured label for the agent's type.
    pub agent_type: Option<String>,
    /// Configured label for the user.
    pub user_id: Option<String>,
    /// Configured label for the workspace.
    pub workspace_id: Option<String>,
    /// Working directory.
    pub cwd: String,
    /// Profile that the session was started with.
    pub profile: Option<String>,
    /// Model that the agent was told to use, in its own spelling; `null` for the agent's own choice.
    pub model: Option<String>,
    /// Mode that the agent was told to work in; `null` for the agent's own choice.
    pub mode: Option<String>,
    /// Thinking level that the agent was told to use; `null` for the agent's own choice.
    pub thinking: Option<String>,
    /// Home directory that belongs to the session; `null` if it has the shared one.
    pub home: Option<String>,
    /// Nesting depth; 1 for a session that was started from outside any session.
    pub depth: u32,
    /// The agent's own id of the conversation; `null` until it is known, and if the agent has none.
    pub native_session_id: Option<String>,
    /// The file in which the agent keeps that conversation (OpenCode: its database of all). `null` until the file is
    /// found: agents create it with the first prompt. Always `null` for agents whose directory of conversations is
    /// unknown.
    pub native_session_file: Option<String>,
    /// True if another process can resume the conversation, as far as is known. `false` for an ephemeral session, or if
    /// the agent or its catalog row rules it out. Such a session is not suspended.
    pub resumable: bool,
    /// Lifecycle state.
    pub state: SessionState,
    /// Process of the proxy; `null` until it is known. For an ended session: the last one.
    pub proxy: Option<ProcessId>,
    /// Process of the agent; `null` until it is ready. For an ended session: the last one.
    pub agent_process: Option<ProcessId>,
    /// Containment, observer and limits in force; `null` until the session is ready.
    pub measures: Option<Measures>,
    /// Number of prompts accepted so far, each a turn; queued prompts and steers are not counted.
    pub turns: u64,
    /// The prompts that were accepted and wait for their turn, in order. Those of a suspended session wait for its resume.
    pub queued: Vec<QueuedPrompt>,
    /// True if it is suspended for somebody to use its conversation with the agent itself.
    pub handed_over: bool,
    /// Time of the `start_session` call. RFC 3339 in JSON.
    #[serde(serialize_with = "rfc3339")]
    pub started_at: SystemTime,
    /// Offset of its last event, 0 if there is none. 20 decimal digits in JSON, as for all offsets.
    #[serde(serialize_with = "offset_text")]
    pub last_offset: u64,
    /// Time of the last message of its proxy. RFC 3339 in JSON.
    #[serde(serialize_with = "rfc3339")]
    pub heartbeat: SystemTime,
    /// Activity so far.
    pub metrics: SessionMetrics,
    /// Current resource use of its processes; `null` unless requested (`ProxyManager::measured_sessions`).
    pub process_use: Option<ProcessUse>,
}

impl SessionState {
    /// Reason and receipt of a session without processes; `None` while it has processes.
    pub fn at_rest(&self) -> Option<(&EndReason, Option<&Receipt>)> {
        match self {
            Self::Suspended { reason, receipt } | Self::Ended { reason, receipt } => Some((reason, receipt.as_deref())),
            Self::Starting | Self::Idle | Self::Busy { .. } => None,
        }
    }
}

pub(super) fn rfc3339<S: Serializer>(time: &SystemTime, s: S) -> Result<S::Ok, S::Error> {
    s.collect_str(&humantime::format_rfc3339_millis(*time))
}

pub(super) fn offset_text<S: Serializer>(offset: &u64, s: S) -> Result<S::Ok, S::Error> {
    s.collect_str(&format_args!("{offset:020}"))
}
