//! Families of agents.
//!
//! Agents of one family read the same configuration files and each other's conversations: Claude Code and its ACP wrapper, say.
//! `protocol_config.config` of a catalog row names the family. What is known of a family is one [`AgentFamily`], beside the function
//! that makes its provision: a new agent is a row, and where it has files of its own, one such value.

use std::path::PathBuf;

use ipc_protocol::EnvVars;
use serde_json::Value;

use crate::{
    AgentSpec,
    conversations::ConversationStorage,
    provision::{self, Provision, ProvisionRequest},
};

/// All families.
pub(crate) const FAMILIES: [&AgentFamily; 6] = [
    &provision::claude::FAMILY,
    &provision::codex::FAMILY,
    &provision::gemini::FAMILY,
    &provision::opencode::FAMILY,
    &provision::pi::FAMILY,
    &provision::qwen::FAMILY,
];

/// Common knowledge about the agents that read the same files.
#[derive(Debug)]
pub(crate) struct AgentFamily {
    /// Name in `protocol_config.config`.
    pub(crate) name: &'static str,
    /// Adds what its agents take by argument, environment or file to a provision that has the row's own.
    pub(crate) provision: fn(&AgentSpec, &ProvisionRequest<'_>, &mut Provision) -> provision::Result<()>,
    /// Sandbox that its agents put around their tools.
    pub(crate) sandbox: FamilySandbox,
    /// Place of its conversations.
    pub(crate) storage: ConversationStorage,
}

/// Sandbox of a family's agents.
#[derive(Debug)]
pub(crate) enum FamilySandbox {
    /// None.
    Absent,
    /// The user's settings switch it on: the file's name in the root of the storage, and the test of its contents.
    Settings(&'static str, fn(&Value) -> bool),
    /// Codex's, which a session can ask for: the name of the settings file.
    Codex(&'static str),
}

impl AgentFamily {
    /// Returns the family of this name.
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        FAMILIES.into_iter().find(|family| family.name == name)
    }

    /// Returns the user's settings file, if what it says matters to us.
    pub(crate) fn settings_file(&self, env: &EnvVars) -> Option<PathBuf> {
        let (FamilySandbox::Settings(name, _) | FamilySandbox::Codex(name)) = self.sandbox else { return None };
        Some(self.storage.root(env)?.join(name))
    }
}
