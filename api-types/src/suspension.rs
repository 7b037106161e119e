//! Snapshot of a suspended session, and what its resume needs beside it.

use std::collections::BTreeSet;

use ipc_protocol::{AgentSessionConfig, EnvVars, McpServer, Receipt, ResumeFallback};
use serde::{Deserialize, Serialize};

/// Snapshot of a suspended session, from which this manager, or another one that sees the same files, resumes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SessionSnapshot {
    /// Configuration of its start, without secrets; these must be given again.
    pub config: Box<AgentSessionConfig>,
    /// The agent's own id of the conversation.
    pub native_session_id: String,
    /// Home directory that belongs to the session, if any: it has the conversation.
    pub home: Option<String>,
    /// Number of turns so far.
    pub turns: u64,
    /// Offset of its last event. 20 decimal digits in JSON, as for all offsets.
    #[serde(with = "crate::recorded_offset")]
    #[cfg_attr(feature = "openapi", schemars(with = "ipc_protocol::json_schema::OffsetText"))]
    pub last_offset: u64,
    /// Names of the secrets that it was started with, as in [`SessionRecord::secrets`](crate::SessionRecord::secrets).
    pub secrets: Vec<String>,
    /// Receipt of the processes ended by the suspension.
    pub receipt: Option<Box<Receipt>>,
}

/// What a resume needs beside the session's configuration: secrets, since no record keeps these, so that a session of an
/// earlier manager needs them again (retained while the manager lives); and what is done if the conversation is gone.
/// `Debug` shows no values.
#[derive(Clone, derive_more::Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ResumeOptions {
    /// Environment variables; each replaces the one with its name.
    pub env: EnvVars,
    /// MCP servers; each replaces the one with its name.
    pub mcp_servers: Vec<McpServer>,
    /// Address of the running server; replaces the one before.
    #[debug("{}", endpoint.is_some())]
    pub endpoint: Option<String>,
    /// Names of values that are no secrets from now on, as in [`AgentSessionConfig::not_secret`].
    pub not_secret: BTreeSet<String>,
    /// Fallback if the conversation is gone. Of this resume alone.
    #[serde(skip_serializing_if = "is_fail")]
    pub on_missing: ResumeFallback,
}

/// Returns true for the default, which daemons of earlier releases do not know by name.
fn is_fail(fallback: &ResumeFallback) -> bool {
    *fallback == ResumeFallback::Fail
}
