//! Facts about a session that its launch settles.

use serde::{Deserialize, Serialize};

/// Facts about a session, apart from its state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Labels {
    pub(crate) agent: String,
    pub(crate) agent_type: Option<String>,
    pub(crate) user_id: Option<String>,
    pub(crate) workspace_id: Option<String>,
    pub(crate) cwd: String,
    pub(crate) profile: Option<String>,
    /// Model at the start; it may be changed later.
    pub(crate) model: Option<String>,
    pub(crate) model_config: Option<String>,
    /// True if the model configuration has a key.
    pub(crate) has_model_key: bool,
    pub(crate) mode: Option<String>,
    pub(crate) thinking: Option<String>,
    /// Home directory that belongs to the session.
    pub(crate) home: Option<String>,
    /// Nesting depth of the session.
    pub(crate) depth: u32,
    /// True if no other process can resume its conversation: the session is ephemeral, or its agent's row rules it out.
    pub(crate) not_kept: bool,
}
