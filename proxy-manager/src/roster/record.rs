//! Record of a session, and the filter that selects records.

use std::{collections::BTreeSet, sync::Arc, time::SystemTime};

use event_log::{Beat, Imported, LogError};
use ipc_protocol::{AgentSessionConfig, EndReason, Envelope, Event, Lifecycle, ProcessId, SessionId, Usage};
use serde::{Deserialize, Serialize};

use crate::session::{Count, Session, SessionInfo, SessionState, TurnUsage};

/// State of a session's lifecycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SessionStatus {
    /// The agent is not ready yet.
    Starting,
    /// The agent runs.
    Running,
    /// The session has no processes; its conversation can be resumed.
    Suspended,
    /// The session is over.
    Terminated,
}

impl SessionStatus {
    fn of(state: &SessionState) -> Self {
        match state {
            SessionState::Starting => Self::Starting,
            SessionState::Idle | SessionState::Busy { .. } => Self::Running,
            SessionState::Suspended { .. } => Self::Suspended,
            SessionState::Ended { .. } => Self::Terminated,
        }
    }

    /// Returns true if the session has, or had, processes of a living host.
    pub fn is_live(self) -> bool {
        matches!(self, Self::Starting | Self::Running)
    }
}

/// Name of a model configuration's key in [`SessionRecord::secrets`].
pub(crate) const MODEL_KEY: &str = "modelConfig.key";

/// Tag of sessions whose events were imported.
const IMPORTED: &str = "imported";

/// Record of a session. With a state directory it outlives the manager, until the session is deleted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionRecord {
    /// Id of the session.
    pub session_id: SessionId,
    /// State of its lifecycle.
    pub status: SessionStatus,
    /// Reason for its suspension or end.
    pub reason: Option<EndReason>,
    /// True if a user archived the session.
    pub archived: bool,
    /// True if the session is suspended because a user continues its conversation with the agent itself.
    pub handed_over: bool,
    /// Configuration for its start and its resumes, without secrets.
    pub config: AgentSessionConfig,
    /// Names of the secrets left out of `config`, as in [`AgentSessionConfig::secrets`]; `modelConfig.key` if its model
    /// configuration had a key. A resume in another manager needs them again.
    pub secrets: Vec<String>,
    /// The agent's own id of the conversation.
    pub native_session_id: Option<String>,
    /// The file in which the agent keeps that conversation, as in [`SessionInfo::native_session_file`].
    pub native_session_file: Option<String>,
    /// True if another process can resume the conversation, as in [`SessionInfo::resumable`].
    pub resumable: bool,
    /// Address of the agent's server, without a login: the running server that the session is connected to, or its own
    /// while it runs.
    pub endpoint: Option<String>,
    /// Home directory that belongs to the session.
    pub home: Option<String>,
    /// The manager that has the session, or had it last: an id of one run.
    pub host_execution_id: String,
    /// The proxy, while it runs.
    pub proxy: Option<ProcessId>,
    /// The agent, while it runs.
    pub agent_process: Option<ProcessId>,
    /// Time of its first start. RFC 3339.
    #[serde(with = "time")]
    pub created_at: SystemTime,
    /// Time of the record's last change. RFC 3339.
    #[serde(with = "time")]
    pub updated_at: SystemTime,
    /// Time at which its manager last knew it alive. It is written for all live sessions together every 30 seconds, and
    /// at each change; after a crash of the host it is at most that much too early. RFC 3339.
    #[serde(with = "time")]
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
    /// Offset of its last event when the record was written.
    pub last_offset: u64,
    /// Accepted prompts that wait for their turn; those of a suspended session wait for its resume.
    pub queued: u64,
}

impl SessionRecord {
    /// Creates the record of a session from its current state.
    pub(crate) fn of(session: &Session, host_execution_id: &str, before: Option<&Self>) -> Option<Self> {
        let config = session.config()?;
        let info = session.info();
        let SessionInfo { native_session_id, native_session_file, resumable, home, proxy, agent_process, .. } = info;
        let now = SystemTime::now();
        // A session of this manager has been alive up to now.
        let rested =
            before.filter(|before| !(before.status.is_live() && before.host_execution_id == host_execution_id));
        let status = SessionStatus::of(&info.state);
        let mut kept = config.without_secrets();
        kept.cwd = Some(info.cwd);
        kept.resume = None;
        let lifecycle = before.map(|before| before.config.lifecycle.clone());
        kept.lifecycle = lifecycle.unwrap_or(kept.lifecycle);
        let mut secrets: BTreeSet<String> = config.secrets().into_iter().collect();
        secrets.extend(session.absent_secrets().iter().cloned());
        secrets.extend(session.labels().has_model_key.then(|| MODEL_KEY.to_owned()));
        Some(Self {
            session_id: info.session_id,
            status,
            reason: info.state.at_rest().map(|(reason, _)| reason.clone()),
            archived: before.is_some_and(|before| before.archived),
            handed_over: info.handed_over,
            secrets: secrets.into_iter().collect(),
            endpoint: kept.endpoint.clone().or_else(|| session.endpoint().filter(|_| status.is_live())),
            config: kept,
            native_session_id,
            native_session_file,
            resumable,
            home,
            host_execution_id: host_execution_id.to_owned(),
            proxy: proxy.filter(|_| status.is_live()),
            agent_process: agent_process.filter(|_| status.is_live()),
            created_at: info.started_at,
            updated_at: now,
            heartbeat: rested.filter(|_| !status.is_live()).map_or(now, |before| before.heartbeat),
            turns: info.turns,
            messages: info.metrics.messages,
            usage: info.metrics.usage,
            turn_usage: session.turn_usage(),
            // Events up to this offset are on the disk before the record is.
            last_offset: session.history().assigned(),
            queued: session.queue().len(),
        })
    }

    /// Creates the record of a session that another manager has suspended.
    ///
    /// # Errors
    /// None: [`SessionRecord::imported`] fails only on events, and there are none.
    pub(crate) fn suspended(
        config: AgentSessionConfig,
        native_session_id: String,
        home: Option<String>,
        turns: u64,
        secrets: Vec<String>,
    ) -> Result<Self, LogError> {
        let nothing = Imported { session: config.session_id.clone(), first: 1, last: 0 };
        Ok(Self {
            status: SessionStatus::Suspended,
            reason: Some(EndReason::Suspended),
            config: AgentSessionConfig { resume: None, ..config },
            native_session_id: Some(native_session_id),
            home,
            turns,
            secrets,
            heartbeat: SystemTime::now(),
            ..Self::imported(&nothing, std::iter::empty())?
        })
    }

    /// Creates the record of an imported session from its events.
    ///
    /// # Errors
    /// An error if the events cannot be read.
    pub(crate) fn imported(
        imported: &Imported,
        events: impl Iterator<Item = Result<Arc<Envelope>, LogError>>,
    ) -> Result<Self, LogError> {
        let lifecycle = Lifecycle { tags: vec![IMPORTED.to_owned()], ..Lifecycle::default() };
        let session_id = imported.session.clone();
        let now = SystemTime::now();
        let mut record = Self {
            session_id: session_id.clone(),
            status: SessionStatus::Terminated,
            reason: None,
            archived: false,
            handed_over: false,
            config: AgentSessionConfig { session_id, lifecycle, ..AgentSessionConfig::new("") },
            secrets: Vec::new(),
            native_session_id: None,
            native_session_file: None,
            resumable: true,
            endpoint: None,
            home: None,
            host_execution_id: String::new(),
            proxy: None,
            agent_process: None,
            created_at: now,
            updated_at: now,
            heartbeat: SystemTime::UNIX_EPOCH,
            turns: 0,
            messages: 0,
            usage: Usage::default(),
            turn_usage: TurnUsage::default(),
            last_offset: imported.last,
            queued: 0,
        };
        let mut count = Count::default();
        for envelope in events {
            let envelope = envelope?;
            record.created_at = record.created_at.min(envelope.created_at);
            record.heartbeat = record.heartbeat.max(envelope.created_at);
            record.turns = record.turns.max(envelope.turn.unwrap_or_default());
            count.note(&envelope);
            match &envelope.event {
                Event::SessionStarted { agent, .. } => record.config.agent.clone_from(agent),
                Event::SessionEnded { reason, .. } => record.reason = Some(reason.clone()),
                _ => {}
            }
        }
        (record.messages, record.usage) = count.total();
        Ok(record)
    }

    /// Applies a heartbeat of the host that had the session.
    pub(super) fn catch_up(&mut self, beat: Option<&Beat>) {
        // An import without events has none.
        if self.heartbeat == SystemTime::UNIX_EPOCH {
            self.heartbeat = self.updated_at;
        }
        if let Some(beat) = beat
            && self.status.is_live()
            && self.host_execution_id == beat.host
        {
            self.heartbeat = self.heartbeat.max(beat.at);
        }
    }

    /// Returns the configuration, and the names of the secrets that it lacks. The model's key is in none.
    pub(crate) fn own_config(&self) -> (Arc<AgentSessionConfig>, Vec<String>) {
        let absent = self.secrets.iter().filter(|name| *name != MODEL_KEY).cloned().collect();
        (Arc::new(self.config.clone()), absent)
    }

    /// Returns true if its conversation can be resumed.
    pub(crate) fn can_go_on(&self) -> bool {
        self.native_session_id.is_some() && self.resumable && !self.config.ephemeral
    }
}

/// Filter of sessions: a session matches if all given fields match. By default all but the archived ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct SessionFilter {
    /// Status to match.
    pub status: Option<SessionStatus>,
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
            let texts = [Some(record.session_id.as_str()), config.lifecycle.title.as_deref(), config.cwd.as_deref()];
            texts.into_iter().flatten().any(|value| value.to_lowercase().contains(&text))
        };
        (self.archived || !record.archived)
            && self.status.is_none_or(|status| status == record.status)
            && is(&self.agent, Some(&config.agent))
            && is(&self.user_id, config.user_id.as_ref())
            && is(&self.workspace_id, config.workspace_id.as_ref())
            && is(&self.key, config.lifecycle.key.as_ref())
            && self.tag.as_ref().is_none_or(|tag| config.lifecycle.tags.contains(tag))
            && self.text.as_ref().is_none_or(has_text)
    }
}

/// RFC 3339 times with milliseconds.
mod time {
    use std::time::SystemTime;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(time: &SystemTime, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&humantime::format_rfc3339_millis(*time))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<SystemTime, D::Error> {
        humantime::parse_rfc3339(&String::deserialize(d)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    pub(in crate::roster) fn record() -> SessionRecord {
        SessionRecord {
            session_id: "s-1".parse().expect("valid"),
            status: SessionStatus::Suspended,
            reason: Some(EndReason::Suspended),
            archived: false,
            handed_over: false,
            config: AgentSessionConfig {
                user_id: Some("ada".into()),
                cwd: Some("/src/Thing".into()),
                lifecycle: Lifecycle { tags: vec!["red".into()], key: Some("chat".into()), ..Lifecycle::default() },
                ..AgentSessionConfig::new("pi")
            },
            secrets: vec!["API_KEY".into()],
            native_session_id: Some("n".into()),
            native_session_file: Some("/h/n.jsonl".into()),
            resumable: true,
            endpoint: Some("http://127.0.0.1:4096".into()),
            home: None,
            host_execution_id: "h".into(),
            proxy: None,
            agent_process: None,
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
    fn filters_are_all_to_fit() {
        let all = |filter: SessionFilter| filter.matches(&record());
        let text = |text: &str| Some(text.to_owned());
        assert!(all(SessionFilter::default()));
        assert!(all(SessionFilter { text: text("THING"), tag: text("red"), key: text("chat"), ..Default::default() }));
        assert!(all(SessionFilter { status: Some(SessionStatus::Suspended), agent: text("pi"), ..Default::default() }));
        for other in [
            SessionFilter { status: Some(SessionStatus::Running), ..Default::default() },
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
