//! Description of a session: what its list entry, its record and the record for its next host share.
//!
//! [`SessionDescription`] never changes while an incarnation lives. The other types do; a session publishes them, and its record copies them.

use std::time::SystemTime;

pub(crate) use api_types::{
    AfterSuspension, AgentStatus, NativeConversation, OpenPermission, SessionMetadata, SessionRemains, SessionSettings,
    SessionState, SupervisedProcesses, TurnUsage,
};
use ipc_protocol::{SessionId, terminal::Surface};
use serde::{Deserialize, Serialize};

/// Description of a session at the start of an incarnation: all that its next host needs to describe it too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SessionDescription {
    #[serde(flatten)]
    pub(crate) metadata: SessionMetadata,
    /// Settings at the start; they may be changed later.
    #[serde(flatten)]
    pub(crate) settings: SessionSettings,
    /// Name of the model configuration.
    pub(crate) model_config: Option<String>,
    /// True if the model configuration has a key.
    #[serde(default)]
    pub(crate) has_model_key: bool,
    /// True if another process can resume its conversation: it is not ephemeral, and its agent's row allows it.
    #[serde(default = "yes")]
    pub(crate) resumable: bool,
}

fn yes() -> bool {
    true
}

impl SessionDescription {
    /// Describes a session by its id and agent alone, as started now.
    pub(crate) fn new(session_id: SessionId, agent: String, cwd: String) -> Self {
        let (agent_type, user_id, workspace_id, profile, home) = Default::default();
        let (depth, started_at) = (1, SystemTime::now());
        let metadata = SessionMetadata {
            session_id,
            agent,
            agent_type,
            user_id,
            workspace_id,
            cwd,
            profile,
            home,
            depth,
            surface: Surface::default(),
            started_at,
        };
        let (settings, model_config) = Default::default();
        Self { metadata, settings, model_config, has_model_key: false, resumable: true }
    }
}
