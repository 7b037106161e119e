//! Snapshot of a session, as callers see it: counters, prompts that wait, resource use.

use std::time::SystemTime;

use ipc_protocol::{ContainmentStatus, ProcessInfo, ProcessStatus, Usage};
use serde::{Deserialize, Serialize};

use crate::description::{
    AgentStatus, NativeConversation, OpenPermission, SessionMetadata, SessionSettings, SessionState,
    SupervisedProcesses,
};

/// Snapshot of one session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SessionInfo {
    /// Immutable facts. In JSON its fields are among these.
    #[serde(flatten)]
    pub metadata: SessionMetadata,
    /// Settings now. In JSON its fields are among these.
    #[serde(flatten)]
    pub settings: SessionSettings,
    /// Title: the one that a caller gave, else the agent's own; `null` without either.
    #[serde(default)]
    pub title: Option<String>,
    /// What the agent tells of itself. In JSON its fields are among these.
    #[serde(flatten)]
    pub agent_status: AgentStatus,
    /// The agent's own conversation. In JSON its fields are among these.
    #[serde(flatten)]
    pub conversation: NativeConversation,
    /// Lifecycle state. JSON has two fields beside it: `status`, the state as one word, as session records have it; and
    /// `handedOver`, whether it is suspended for somebody to use its conversation with the agent itself.
    #[serde(flatten, with = "state_fields")]
    #[cfg_attr(feature = "openapi", schemars(with = "state_fields::StateFields<'static>"))]
    pub state: SessionState,
    /// True while the session ends: its processes are being ended, and calls fail.
    #[serde(default)]
    pub ending: bool,
    /// Permission requests that wait for an answer, oldest first. The turn waits with them.
    #[serde(default)]
    pub open_permissions: Vec<OpenPermission>,
    /// Latest status of the agent's own screen: `idle`, `working`, `blocked`, or another word of the program's. `null` if it has
    /// reported none, or has no screen.
    #[serde(default)]
    pub screen_status: Option<String>,
    /// Reason why what happens in the session now is not kept: its fleet is unavailable, or its event log cannot be written. `null` otherwise.
    #[serde(default)]
    pub degraded: Option<String>,
    /// True if a user archived the session.
    #[serde(default)]
    pub archived: bool,
    /// True while it is warm: started ahead, and nobody's before a start claims it.
    #[serde(default)]
    pub warm: bool,
    /// Proxy and agent. In JSON its fields are among these.
    #[serde(flatten)]
    pub processes: SupervisedProcesses,
    /// Containment, observer and limits in force; `null` until the session is ready.
    pub measures: Option<ContainmentStatus>,
    /// Number of prompts accepted so far, each a turn; queued prompts and steers are not counted.
    pub turns: u64,
    /// The prompts that were accepted and wait for their turn, in order. Those of a suspended session wait for its resume.
    pub queued: Vec<QueuedPrompt>,
    /// Offset of its last event, 0 if there is none. 20 decimal digits in JSON, as for all offsets.
    #[serde(with = "ipc_protocol::offset_text")]
    #[cfg_attr(feature = "openapi", schemars(with = "ipc_protocol::json_schema::OffsetText"))]
    pub last_offset: u64,
    /// Time of the last message of its proxy. RFC 3339 in JSON.
    #[serde(with = "ipc_protocol::time_text")]
    #[cfg_attr(feature = "openapi", schemars(with = "ipc_protocol::json_schema::TimeText"))]
    pub heartbeat: SystemTime,
    /// Activity so far.
    pub metrics: SessionMetrics,
    /// Current resource use of its processes; `null` unless requested (`ProxyManager::measured_sessions`).
    pub process_use: Option<ProcessUse>,
}

/// Activity of a session so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SessionMetrics {
    /// Prompts accepted, and answers: text of the agent between two other things.
    pub messages: u64,
    /// Number of tool calls begun.
    pub tool_calls: u64,
    /// Number of tool calls that failed or were rejected.
    pub failed_tool_calls: u64,
    /// Number of permission requests.
    pub permission_requests: u64,
    /// Number of errors that the agent reported, including those it retried after.
    pub errors: u64,
    /// Tokens and cost of all turns, as far as the agent reports them.
    pub usage: Usage,
    /// Number of events.
    pub events: u64,
    /// Bytes of the events caused by the agent and its processes, as [`Event::weight`](ipc_protocol::Event::weight) counts them.
    pub event_bytes: u64,
    /// Milliseconds spent in turns.
    pub busy_ms: u64,
    /// Milliseconds since the last message of its proxy, at the time of the snapshot.
    pub silent_ms: u64,
    /// Number of pings in a row that its proxy has not answered.
    pub missed_pings: u32,
}

/// Current resource use of a session's processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProcessUse {
    /// Number of live processes.
    pub processes: usize,
    /// CPU use of all processes since the last listing, in percent of one core.
    pub cpu_percent: f32,
    /// Resident memory of all processes in bytes; shared memory counts once for each.
    pub rss_bytes: u64,
}

impl ProcessUse {
    /// Sums up the live ones of these processes.
    pub fn of(processes: &[ProcessInfo]) -> Self {
        let running = processes.iter().filter(|process| process.status == ProcessStatus::Running);
        running.fold(Self::default(), |sum, process| Self {
            processes: sum.processes + 1,
            cpu_percent: sum.cpu_percent + process.cpu_percent.unwrap_or_default(),
            rss_bytes: sum.rss_bytes.saturating_add(process.rss_bytes.unwrap_or_default()),
        })
    }
}

/// A prompt that waits for its turn, as it is listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct QueuedPrompt {
    /// Offset of the event that it was accepted with. 20 decimal digits in JSON.
    #[serde(with = "ipc_protocol::offset_text")]
    #[cfg_attr(feature = "openapi", schemars(with = "ipc_protocol::json_schema::OffsetText"))]
    pub offset: u64,
    /// When that was. RFC 3339 in JSON.
    #[serde(with = "ipc_protocol::time_text")]
    #[cfg_attr(feature = "openapi", schemars(with = "ipc_protocol::json_schema::TimeText"))]
    pub at: SystemTime,
    /// The first 200 characters of its text.
    pub text: String,
    /// Name of the caller who sent it; `null` where that is not known.
    #[serde(default)]
    pub by: Option<String>,
}

/// Treatment of a prompt while a turn runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum PromptMode {
    /// The prompt fails with `Busy`.
    #[default]
    Refuse,
    /// Waits for its turn, behind the prompts before it. At most 64 wait; then `Busy`. Waiting or not, it is first
    /// appended to the session's stream as the action that it is from then on: done once or told as failed, over restarts too.
    Queue,
    /// The prompt is sent to the agent in the running turn, if the agent can be steered; else `Unsupported`.
    Steer,
}

/// State with the field of the hand-over beside it.
mod state_fields {
    use std::borrow::Cow;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::{
        description::{AfterSuspension, SessionState},
        session_record::SessionStatus,
    };

    #[derive(Serialize, Deserialize)]
    #[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
    #[serde(rename_all = "camelCase")]
    pub(super) struct StateFields<'a> {
        /// Lifecycle state.
        state: Cow<'a, SessionState>,
        /// Lifecycle state as one word.
        #[serde(skip_deserializing)]
        status: Option<SessionStatus>,
        /// True if it is suspended for somebody to use its conversation with the agent itself.
        #[serde(default)]
        handed_over: bool,
    }

    pub(super) fn serialize<S: Serializer>(state: &SessionState, s: S) -> Result<S::Ok, S::Error> {
        let status = Some(SessionStatus::from(state));
        StateFields { handed_over: state.is_handed_over(), status, state: Cow::Borrowed(state) }.serialize(s)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<SessionState, D::Error> {
        let StateFields { state, handed_over, .. } = StateFields::deserialize(d)?;
        let mut state = state.into_owned();
        if let SessionState::Suspended { next, .. } = &mut state
            && handed_over
        {
            *next = AfterSuspension::HandedOver;
        }
        Ok(state)
    }
}
