//! Agents of the catalog, and what is found of them on a daemon's machine.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Agent of the catalog, with the results of its discovery.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct InstalledAgent {
    /// Catalog id.
    pub id: String,
    /// Title for people.
    pub title: String,
    /// Description for people.
    pub description: String,
    /// False if it is not to be used.
    pub enabled: bool,
    /// Protocol that it speaks.
    pub protocol: String,
    /// True if it runs any program, which the session's command names.
    pub any_program: bool,
    /// True if a session of it can be started.
    pub usable: bool,
    /// True if its program was found.
    pub found: bool,
    /// Path of the program.
    pub path: Option<PathBuf>,
    /// Version, if it is known.
    pub version: Option<String>,
    /// The versions that its row was tried with.
    pub tried: Vec<String>,
    /// Warning about a version that was not tried; `null` for one that was, or that is not known.
    pub untried: Option<String>,
    /// Requirements that the agent cannot start without.
    pub missing: Vec<String>,
    /// Command that installs it.
    pub install: Option<String>,
    /// Files that show that it is set up.
    pub files: Vec<PathBuf>,
    /// Files with its configured MCP servers.
    pub mcp_config_files: Vec<PathBuf>,
    /// Default model.
    pub default_model: Option<String>,
    /// Capabilities that its row names.
    pub capabilities: Vec<String>,
    /// Capabilities that its row states or denies.
    pub supports: AgentSupport,
}

/// Capabilities stated in the catalog row; `null` where it states none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AgentSupport {
    /// It takes MCP servers.
    pub mcp: Option<bool>,
    /// Its conversations can be resumed.
    pub session_resume: Option<bool>,
    /// It runs commands.
    pub shell: Option<bool>,
    /// It stays in its workspace.
    pub workspace_only: Option<bool>,
}
