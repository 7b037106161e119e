//! What a session is and where it stands, as the caller sees it.

use std::time::SystemTime;

use ipc_protocol::{EndReason, Measures, ProcessId, Receipt, SessionId};
use serde::{Serialize, Serializer};

use super::{ProcessUse, QueuedPrompt, SessionMetrics};

/// Where a session is in its life: starting, then idle and busy by turns, then ended. Suspended, it may start once more.
///
/// In JSON `"starting"`, `"idle"`, `{"busy":{"turn":1}}`, `{"ended":{"reason":"killed","receipt":{…}}}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum SessionState {
    /// Its agent is not ready yet.
    Starting,
    /// It waits for a prompt. An agent without turns is always idle.
    Idle,
    /// A turn runs.
    Busy {
        /// Which; the first is 1.
        turn: u64,
    },
    /// Its processes have ended and its conversation is kept: [`crate::ProxyManager::resume_session`] goes on with it.
    Suspended {
        /// Why.
        reason: EndReason,
        /// What was ended and the proof that nothing is left; `null` if nobody could tell.
        receipt: Option<Box<Receipt>>,
    },
    /// It is over.
    Ended {
        /// Why.
        reason: EndReason,
        /// What was ended and the proof that nothing is left; `null` if nobody could tell.
        receipt: Option<Box<Receipt>>,
    },
}

/// One session, as it is at the moment of asking.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionInfo {
    /// Which session.
    pub session_id: SessionId,
    /// Catalog id of its agent.
    pub agent: String,
    /// Label of its configuration.
    pub agent_type: Option<String>,
    /// Label of its configuration.
    pub user_id: Option<String>,
    /// Label of its configuration.
    pub workspace_id: Option<String>,
    /// Working directory.
    pub cwd: String,
    /// The profile it was started with.
    pub profile: Option<String>,
    /// The model it was told to use, in the agent's spelling; `null` for the agent's own choice.
    pub model: Option<String>,
    /// The mode it was told to work in; `null` for the agent's own choice.
    pub mode: Option<String>,
    /// How hard it was told to think; `null` for the agent's own choice.
    pub thinking: Option<String>,
    /// Its own home directory; `null` where it has the shared one.
    pub home: Option<String>,
    /// How many sessions deep it is; 1 for one that was started from outside any.
    pub depth: u32,
    /// The agent's own id of the conversation; `null` until it is known, and where the agent has none.
    pub native_session_id: Option<String>,
    /// The file in which the agent keeps that conversation (OpenCode: its database of all); `null` until it was found: agents
    /// make it with the first prompt. Always `null` for agents of whom nobody says where they keep conversations.
    pub native_session_file: Option<String>,
    /// Whether another process can go on with its conversation, as far as is known: `false` for one that is ephemeral, or whose
    /// agent, or its row in the catalog, says that it cannot. Such a session is not suspended.
    pub resumable: bool,
    /// Where it stands.
    pub state: SessionState,
    /// Its proxy's process; `null` until it is known. Of an ended session: the last one.
    pub proxy: Option<ProcessId>,
    /// Its agent's process; `null` until it is ready. Of an ended session: the last one.
    pub agent_process: Option<ProcessId>,
    /// What holds, sees and limits it; `null` until it is ready.
    pub measures: Option<Measures>,
    /// Prompts taken so far, each a turn; queued ones and steers are not counted.
    pub turns: u64,
    /// The prompts that were accepted and wait for their turn, in order. Those of a suspended session wait for its resume.
    pub queued: Vec<QueuedPrompt>,
    /// Whether it is suspended for somebody to use its conversation with the agent itself.
    pub handed_over: bool,
    /// When `start_session` was called. RFC 3339 in JSON.
    #[serde(serialize_with = "rfc3339")]
    pub started_at: SystemTime,
    /// Offset of its last event, 0 if there is none. 20 decimal digits in JSON, as offsets are everywhere.
    #[serde(serialize_with = "offset_text")]
    pub last_offset: u64,
    /// When its proxy was last heard of. RFC 3339 in JSON.
    #[serde(serialize_with = "rfc3339")]
    pub heartbeat: SystemTime,
    /// What it did by now.
    pub metrics: SessionMetrics,
    /// What its processes take now; `null` unless that was asked for (`ProxyManager::measured_sessions`).
    pub process_use: Option<ProcessUse>,
}

impl SessionState {
    /// How the session came to have no process, and what was ended then; `None` while it has some.
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
