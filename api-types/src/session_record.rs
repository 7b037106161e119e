//! Record of a session, and the filter that selects records.

use std::{fmt, time::SystemTime};

use ipc_protocol::{AgentSessionConfig, EndReason, SessionId, Usage};
use serde::{Deserialize, Serialize};

use crate::description::{AgentStatus, NativeConversation, SessionState, SupervisedProcesses, TurnUsage};

/// State of a session's lifecycle, as one word: a [`SessionState`] without its facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum SessionStatus {
    /// The agent is not ready yet.
    Starting,
    /// The session waits for a prompt.
    // Earlier releases recorded `running`, of which nothing runs when it is read.
    #[serde(alias = "running")]
    Idle,
    /// A turn runs, and may wait for a permission.
    Busy,
    /// The session has no processes; its conversation can be resumed.
    Suspended,
    /// The session is over.
    #[serde(alias = "terminated")]
    Ended,
}

impl SessionStatus {
    /// All of them, in the order of a life.
    pub const ALL: [Self; 5] = [Self::Starting, Self::Idle, Self::Busy, Self::Suspended, Self::Ended];

    /// Returns true if the session has, or had, processes of a living host.
    pub fn is_live(self) -> bool {
        matches!(self, Self::Starting | Self::Idle | Self::Busy)
    }

    /// Returns the word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Idle => "idle",
            Self::Busy => "busy",
            Self::Suspended => "suspended",
            Self::Ended => "ended",
        }
    }
}

impl fmt::Display for SessionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<&SessionState> for SessionStatus {
    fn from(state: &SessionState) -> Self {
        match state {
            SessionState::Starting => Self::Starting,
            SessionState::Idle => Self::Idle,
            SessionState::Busy { .. } => Self::Busy,
            SessionState::Suspended { .. } => Self::Suspended,
            SessionState::Ended { .. } => Self::Ended,
        }
    }
}

/// State of a session in its record. In JSON it has the fields `status`, `reason` and `handedOver`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(from = "StatusFields", into = "StatusFields")]
pub enum RecordState {
    /// The agent is not ready yet.
    Starting,
    /// The session waits for a prompt.
    Idle,
    /// A turn runs.
    Busy,
    /// The session has no processes; its conversation can be resumed.
    Suspended {
        /// Reason for the suspension.
        reason: EndReason,
        /// True if a user continues the conversation with the agent itself.
        handed_over: bool,
    },
    /// The session is over.
    Ended {
        /// Reason for the end; `None` for imported events without one.
        reason: Option<EndReason>,
    },
}

impl RecordState {
    /// Status, without its facts.
    pub fn status(&self) -> SessionStatus {
        match self {
            Self::Starting => SessionStatus::Starting,
            Self::Idle => SessionStatus::Idle,
            Self::Busy => SessionStatus::Busy,
            Self::Suspended { .. } => SessionStatus::Suspended,
            Self::Ended { .. } => SessionStatus::Ended,
        }
    }

    /// Reason for the suspension or end.
    pub fn reason(&self) -> Option<&EndReason> {
        match self {
            Self::Starting | Self::Idle | Self::Busy => None,
            Self::Suspended { reason, .. } => Some(reason),
            Self::Ended { reason } => reason.as_ref(),
        }
    }

    /// Returns true if the session is suspended because a user continues its conversation with the agent itself.
    pub fn is_handed_over(&self) -> bool {
        matches!(self, Self::Suspended { handed_over: true, .. })
    }
}

impl From<&SessionState> for RecordState {
    fn from(state: &SessionState) -> Self {
        match state {
            SessionState::Starting => Self::Starting,
            SessionState::Idle => Self::Idle,
            SessionState::Busy { .. } => Self::Busy,
            SessionState::Suspended { reason, .. } => {
                Self::Suspended { reason: reason.clone(), handed_over: state.is_handed_over() }
            }
            SessionState::Ended { reason, .. } => Self::Ended { reason: Some(reason.clone()) },
        }
    }
}

/// Fields of a [`RecordState`] in JSON.
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
struct StatusFields {
    /// Lifecycle state as one word.
    status: SessionStatus,
    /// Reason for the suspension or the end.
    reason: Option<EndReason>,
    /// True if a user continues the conversation with the agent itself.
    #[serde(default)]
    handed_over: bool,
}

impl From<StatusFields> for RecordState {
    fn from(StatusFields { status, reason, handed_over }: StatusFields) -> Self {
        match status {
            SessionStatus::Starting => Self::Starting,
            SessionStatus::Idle => Self::Idle,
            SessionStatus::Busy => Self::Busy,
            SessionStatus::Suspended => Self::Suspended { reason: reason.unwrap_or(EndReason::Suspended), handed_over },
            SessionStatus::Ended => Self::Ended { reason },
        }
    }
}

impl From<RecordState> for StatusFields {
    fn from(state: RecordState) -> Self {
        Self { status: state.status(), reason: state.reason().cloned(), handed_over: state.is_handed_over() }
    }
}

/// Record of a session. With a state directory it outlives the manager, until the session is deleted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SessionRecord {
    /// Id of the session.
    pub session_id: SessionId,
    /// State of its lifecycle. In JSON its fields are among these.
    #[serde(flatten)]
    pub state: RecordState,
    /// Permission request that its turn waits for, the oldest one. Known to the manager that has the session.
    #[serde(default)]
    pub waiting_for: Option<String>,
    /// True if a user archived the session.
    pub archived: bool,
    /// True while it is warm: started ahead, and nobody's before a start claims it.
    #[serde(default)]
    pub warm: bool,
    /// Configuration for its start and its resumes, without secrets.
    pub config: AgentSessionConfig,
    /// Names of the secrets left out of `config`, as in [`AgentSessionConfig::secrets`]; `modelConfig.key` if its model
    /// configuration had a key. A resume in another manager needs them again.
    pub secrets: Vec<String>,
    /// The agent's own conversation. In JSON its fields are among these.
    #[serde(flatten)]
    pub conversation: NativeConversation,
    /// What the agent told of itself. In JSON its fields are among these.
    #[serde(flatten)]
    pub agent_status: AgentStatus,
    /// Address of the agent's server, without a login: the running server that the session is connected to, or its own
    /// while it runs.
    pub endpoint: Option<String>,
    /// Home directory that belongs to the session.
    pub home: Option<String>,
    /// The manager that has the session, or had it last: an id of one run.
    pub host_execution_id: String,
    /// Proxy and agent, while they run. In JSON its fields are among these.
    #[serde(flatten)]
    pub processes: SupervisedProcesses,
    /// Time of its first start. RFC 3339.
    #[serde(with = "ipc_protocol::time_text")]
    #[cfg_attr(feature = "openapi", schemars(with = "ipc_protocol::json_schema::TimeText"))]
    pub created_at: SystemTime,
    /// Time of the record's last change. RFC 3339.
    #[serde(with = "ipc_protocol::time_text")]
    #[cfg_attr(feature = "openapi", schemars(with = "ipc_protocol::json_schema::TimeText"))]
    pub updated_at: SystemTime,
    /// Time at which its manager last knew it alive. It is written for all live sessions together every 30 seconds, and
    /// at each change; after a crash of the host it is at most that much too early. RFC 3339.
    #[serde(with = "ipc_protocol::time_text")]
    #[cfg_attr(feature = "openapi", schemars(with = "ipc_protocol::json_schema::TimeText"))]
    pub heartbeat: SystemTime,
    /// Number of turns so far.
    pub turns: u64,
    /// Number of prompts accepted and answers, as in [`SessionMetrics::messages`](crate::SessionMetrics::messages).
    pub messages: u64,
    /// Tokens and cost of all turns, as far as the agent reports them.
    pub usage: Usage,
    /// Part of `usage` that belongs to the turn counted last: a host that takes the session over during that turn
    /// receives its usage again.
    pub turn_usage: TurnUsage,
    /// Offset of its last event when the record was written. 20 decimal digits in JSON, as for all offsets.
    #[serde(with = "crate::recorded_offset")]
    #[cfg_attr(feature = "openapi", schemars(with = "ipc_protocol::json_schema::OffsetText"))]
    pub last_offset: u64,
    /// Accepted prompts that wait for their turn; those of a suspended session wait for its resume.
    pub queued: u64,
}

impl SessionRecord {
    /// Creates the record of a session that no manager has run so far.
    pub fn new(config: AgentSessionConfig, state: RecordState) -> Self {
        let now = SystemTime::now();
        let conversation = NativeConversation { resumable: !config.ephemeral, ..NativeConversation::default() };
        let (secrets, endpoint, home, host_execution_id) = Default::default();
        let (turns, messages, usage, turn_usage, last_offset, queued) = Default::default();
        Self {
            session_id: config.session_id.clone(),
            state,
            waiting_for: None,
            archived: false,
            warm: false,
            config,
            secrets,
            conversation,
            agent_status: AgentStatus::default(),
            endpoint,
            home,
            host_execution_id,
            processes: SupervisedProcesses::default(),
            created_at: now,
            updated_at: now,
            heartbeat: now,
            turns,
            messages,
            usage,
            turn_usage,
            last_offset,
            queued,
        }
    }

    /// State of its lifecycle, without its facts.
    pub fn status(&self) -> SessionStatus {
        self.state.status()
    }

    /// Returns true if its conversation can be resumed.
    pub fn is_resumable(&self) -> bool {
        self.conversation.resumable_id().is_some()
    }
}

/// Filter of sessions: a session matches if all given fields match. By default all but the archived ones.
///
/// ```
/// use api_types::{SessionFilter, SessionStatus};
///
/// let mut filter = SessionFilter::default();
/// filter.status = vec![SessionStatus::Suspended];
/// filter.tag = Some("review".to_owned());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct SessionFilter {
    /// Statuses of which one is to match; empty for all. Words with commas between them in JSON.
    #[serde(with = "status_list", skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schemars(with = "String"))]
    pub status: Vec<SessionStatus>,
    /// Catalog id of the agent.
    pub agent: Option<String>,
    /// User label.
    pub user_id: Option<String>,
    /// Workspace label.
    pub workspace_id: Option<String>,
    /// Tag of the session.
    pub tag: Option<String>,
    /// Key of the session.
    pub key: Option<String>,
    /// Text in its id, title or working directory, in any case.
    pub text: Option<String>,
    /// Includes archived sessions.
    pub archived: bool,
}

impl SessionFilter {
    /// Returns true if a session matches.
    pub fn matches(&self, record: &SessionRecord) -> bool {
        let SessionRecord { config, .. } = record;
        let is = |wanted: &Option<String>, value: Option<&String>| wanted.is_none() || wanted.as_ref() == value;
        let has_text = |text: &String| {
            let text = text.to_lowercase();
            let title = config.lifecycle.title.as_deref().or(record.agent_status.agent_title.as_deref());
            let texts = [Some(record.session_id.as_str()), title, config.cwd.as_deref()];
            texts.into_iter().flatten().any(|value| value.to_lowercase().contains(&text))
        };
        (self.archived || !record.archived)
            && (self.status.is_empty() || self.status.contains(&record.status()))
            && is(&self.agent, Some(&config.agent))
            && is(&self.user_id, config.user_id.as_ref())
            && is(&self.workspace_id, config.workspace_id.as_ref())
            && is(&self.key, config.lifecycle.key.as_ref())
            && self.tag.as_ref().is_none_or(|tag| config.lifecycle.tags.contains(tag))
            && self.text.as_ref().is_none_or(has_text)
    }
}

/// Statuses as text: `idle,busy`.
mod status_list {
    use serde::{
        Deserialize, Deserializer, Serializer,
        de::{Error as _, IntoDeserializer, value},
    };

    use super::SessionStatus;

    pub(super) fn serialize<S: Serializer>(statuses: &[SessionStatus], s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&statuses.iter().map(|status| status.as_str()).collect::<Vec<_>>().join(","))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<SessionStatus>, D::Error> {
        let text = Option::<String>::deserialize(d)?.unwrap_or_default();
        let words = text.split(',').filter(|word| !word.is_empty());
        let mut statuses = Vec::new();
        for word in words {
            match word {
                // The word of earlier releases for a session whose agent runs.
                "running" => statuses.extend([SessionStatus::Idle, SessionStatus::Busy]),
                word => {
                    let status: Result<_, value::Error> = SessionStatus::deserialize(word.into_deserializer());
                    statuses.push(status.map_err(D::Error::custom)?);
                }
            }
        }
        Ok(statuses)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use ipc_protocol::Lifecycle;

    use super::*;

    fn record() -> SessionRecord {
        SessionRecord {
            session_id: "s-1".parse().expect("valid"),
            state: RecordState::Suspended { reason: EndReason::Suspended, handed_over: false },
            waiting_for: None,
            archived: false,
            warm: false,
            config: AgentSessionConfig {
                user_id: Some("ada".into()),
                cwd: Some("/src/Thing".into()),
                lifecycle: Lifecycle { tags: vec!["red".into()], key: Some("chat".into()), ..Lifecycle::default() },
                ..AgentSessionConfig::new("pi")
            },
            secrets: vec!["API_KEY".into()],
            conversation: NativeConversation {
                native_session_id: Some("n".into()),
                native_session_file: Some("/h/n.jsonl".into()),
                resumable: true,
            },
            agent_status: AgentStatus { agent_title: Some("Login".into()), ..AgentStatus::default() },
            endpoint: Some("http://127.0.0.1:4096".into()),
            home: None,
            host_execution_id: "h".into(),
            processes: SupervisedProcesses::default(),
            created_at: UNIX_EPOCH + Duration::from_millis(1_234),
            updated_at: UNIX_EPOCH + Duration::from_millis(5_678),
            heartbeat: UNIX_EPOCH + Duration::from_millis(5_000),
            turns: 3,
            messages: 6,
            usage: Usage { input_tokens: Some(7), ..Usage::default() },
            turn_usage: TurnUsage { turn: 3, usage: Usage { input_tokens: Some(2), ..Usage::default() } },
            last_offset: 44,
            queued: 2,
        }
    }

    /// A field that a later release adds harms nobody.
    #[test]
    fn a_record_comes_back_from_its_json() {
        let record = record();
        let mut json = serde_json::to_value(&record).expect("serializes");
        json.as_object_mut().expect("an object").insert("ofALaterRelease".into(), true.into());
        assert_eq!(serde_json::from_value::<SessionRecord>(json).expect("parses"), record);
    }

    #[test]
    fn records_of_earlier_releases_are_understood() {
        let mut json = serde_json::to_value(record()).expect("serializes");
        assert_eq!(json["lastOffset"], "00000000000000000044", "as everywhere");
        let object = json.as_object_mut().expect("an object");
        object.insert("lastOffset".into(), 44.into());
        for (word, status) in [("running", SessionStatus::Idle), ("terminated", SessionStatus::Ended)] {
            object.insert("status".into(), word.into());
            let record: SessionRecord = serde_json::from_value(object.clone().into()).expect("parses");
            assert_eq!((record.status(), record.last_offset), (status, 44));
        }
        for status in SessionStatus::ALL {
            assert_eq!(serde_json::to_value(status).expect("serializes"), status.as_str());
        }
    }

    #[test]
    fn a_filter_takes_several_statuses() {
        let status = |text: &str| {
            let filter = serde_json::from_value::<SessionFilter>(serde_json::json!({ "status": text }));
            filter.map(|filter| filter.status).map_err(drop)
        };
        assert_eq!(status("idle,busy"), Ok(vec![SessionStatus::Idle, SessionStatus::Busy]));
        assert_eq!(status("running"), Ok(vec![SessionStatus::Idle, SessionStatus::Busy]));
        assert_eq!((status("terminated"), status("")), (Ok(vec![SessionStatus::Ended]), Ok(vec![])));
        assert_eq!(status("gone"), Err(()));
        let filter = SessionFilter { status: vec![SessionStatus::Idle, SessionStatus::Busy], ..Default::default() };
        assert_eq!(serde_json::to_value(&filter).expect("serializes")["status"], "idle,busy");
    }

    #[test]
    fn filters_are_all_to_fit() {
        let all = |filter: SessionFilter| filter.matches(&record());
        let text = |text: &str| Some(text.to_owned());
        assert!(all(SessionFilter::default()));
        assert!(all(SessionFilter { text: text("THING"), tag: text("red"), key: text("chat"), ..Default::default() }));
        assert!(all(SessionFilter {
            status: vec![SessionStatus::Busy, SessionStatus::Suspended],
            agent: text("pi"),
            ..Default::default()
        }));
        for other in [
            SessionFilter { status: vec![SessionStatus::Idle], ..Default::default() },
            SessionFilter { agent: text("codex"), ..Default::default() },
            SessionFilter { user_id: text("bob"), ..Default::default() },
            SessionFilter { workspace_id: text("w"), ..Default::default() },
            SessionFilter { tag: text("blue"), ..Default::default() },
            SessionFilter { key: text("other"), ..Default::default() },
            SessionFilter { text: text("nothing"), ..Default::default() },
        ] {
            assert!(!all(other.clone()), "{other:?}");
        }
        let archived = SessionRecord { archived: true, ..record() };
        assert!(!SessionFilter::default().matches(&archived));
        assert!(SessionFilter { archived: true, ..Default::default() }.matches(&archived));
    }
}
