//! What a session is and where it stands, as the caller sees it.

use std::time::SystemTime;

use ipc_protocol::{EndReason, ProcessId, Receipt, SessionId};
use serde::{Serialize, Serializer};

/// Where a session is in its life: starting, then idle and busy by turns, then ended.
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
    /// It is over.
    Ended {
        /// Why.
        reason: EndReason,
        /// What was ended and the proof that nothing is left; `null` if nobody could tell.
        receipt: Option<Box<Receipt>>,
    },
}

/// One session, as it is at the moment of asking.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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
    /// Where it stands.
    pub state: SessionState,
    /// Its proxy's process; `null` until it is known. Of an ended session: the last one.
    pub proxy: Option<ProcessId>,
    /// Its agent's process; `null` until it is ready. Of an ended session: the last one.
    pub agent_process: Option<ProcessId>,
    /// Prompts taken so far, each a turn; queued ones and steers are not counted.
    pub turns: u64,
    /// When `start_session` was called. RFC 3339 in JSON.
    #[serde(serialize_with = "rfc3339")]
    pub started_at: SystemTime,
    /// Offset of its last event, 0 if there is none. 20 decimal digits in JSON, as offsets are everywhere.
    #[serde(serialize_with = "offset_text")]
    pub last_offset: u64,
}

fn rfc3339<S: Serializer>(time: &SystemTime, s: S) -> Result<S::Ok, S::Error> {
    s.collect_str(&humantime::format_rfc3339_millis(*time))
}

fn offset_text<S: Serializer>(offset: &u64, s: S) -> Result<S::Ok, S::Error> {
    s.collect_str(&format_args!("{offset:020}"))
}
