//! What a manager makes of a session's record.

use std::{sync::Arc, time::SystemTime};

pub(crate) use api_types::{RecordState, SessionFilter, SessionRecord, SessionStatus};
use event_log::Heartbeat;
use ipc_protocol::AgentSessionConfig;

use crate::description::{SessionDescription, SessionMetadata, SessionSettings};

/// Name of a model configuration's key in [`SessionRecord::secrets`].
pub(crate) const MODEL_KEY: &str = "modelConfig.key";

/// Describes a session as its record does.
impl From<&SessionRecord> for SessionDescription {
    fn from(record: &SessionRecord) -> Self {
        let config = record.config.clone();
        let surface = config.driving_surface();
        let metadata = SessionMetadata {
            session_id: record.session_id.clone(),
            agent: config.agent,
            agent_type: config.agent_type,
            user_id: config.user_id,
            workspace_id: config.workspace_id,
            cwd: config.cwd.unwrap_or_default(),
            profile: config.profile,
            home: record.home.clone(),
            depth: config.depth + 1,
            surface,
            started_at: record.created_at,
        };
        SessionDescription {
            metadata,
            settings: SessionSettings { model: config.model, mode: config.mode, thinking: config.thinking },
            model_config: config.model_config,
            has_model_key: record.secrets.iter().any(|name| name == MODEL_KEY),
            resumable: record.conversation.resumable,
        }
    }
}

/// Applies a heartbeat of the host that had the session.
pub(super) fn catch_up(record: &mut SessionRecord, beat: Option<&Heartbeat>) {
    // An import without events has none.
    if record.heartbeat == SystemTime::UNIX_EPOCH {
        record.heartbeat = record.updated_at;
    }
    if let Some(beat) = beat
        && record.status().is_live()
        && record.host_execution_id == beat.host
    {
        record.heartbeat = record.heartbeat.max(beat.at);
    }
}

/// Returns the configuration, and the names of the secrets that it lacks. The model's key is in none.
pub(crate) fn own_config(record: &SessionRecord) -> (Arc<AgentSessionConfig>, Vec<String>) {
    let absent = record.secrets.iter().filter(|name| *name != MODEL_KEY).cloned().collect();
    (Arc::new(record.config.clone()), absent)
}
