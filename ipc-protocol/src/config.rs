//! What a session is started with.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use crate::{Containment, Hardening, Limits, SessionId};

/// Environment variables. `Debug` shows names only: values are often secrets.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EnvVars(pub BTreeMap<String, String>);

impl fmt::Debug for EnvVars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for EnvVars {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(vars: I) -> Self {
        Self(vars.into_iter().map(|(k, v)| (k.into(), v.into())).collect())
    }
}

/// What happens to a session's other processes when its agent exits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OnAgentExit {
    /// They are ended (SIGTERM, 500 ms, SIGKILL), and the session ends with a receipt.
    #[default]
    Kill,
    /// They are left until the session is killed.
    Keep,
}

/// Who answers an agent's permission requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PermissionMode {
    /// Each becomes an event; `respond_permission` answers it.
    #[default]
    Ask,
    /// Each is allowed, once.
    Allow,
    /// Each is rejected.
    Deny,
}

/// How to reach an MCP server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum McpTransport {
    /// A program of the agent's that speaks on its standard input and output.
    Stdio {
        /// The program.
        command: String,
        /// Its arguments.
        args: Vec<String>,
        /// Its environment.
        env: EnvVars,
    },
    /// A server that is already running.
    Http {
        /// Its address.
        url: String,
        /// Headers of each request; values are hidden in `Debug`.
        headers: EnvVars,
    },
}

/// An MCP server that the agent may use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct McpServer {
    /// The name the agent shows its tools under.
    pub name: String,
    /// How to reach it.
    pub transport: McpTransport,
}

/// What a session is started with. Only `agent` is needed; in JSON every other field may be left out.
///
/// ```
/// use ipc_protocol::AgentSessionConfig;
/// let config = AgentSessionConfig {
///     command: vec!["cat".into()],
///     user_id: Some("user-1".into()),
///     ..AgentSessionConfig::new("command")
/// };
/// assert_eq!(config.agent, "command");
/// ```
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentSessionConfig {
    /// Name of the session; a fresh UUIDv7 by default.
    #[serde(default = "SessionId::mint")]
    pub session_id: SessionId,
    /// Which agent: the id of a catalog row.
    pub agent: String,
    /// Program and arguments, for agents whose row leaves them open (`command`, `acp`); else added to the row's.
    #[serde(default)]
    pub command: Vec<String>,
    /// Label: what the agent is for (`execution`, `plan`, …).
    #[serde(default)]
    pub agent_type: Option<String>,
    /// Label: for whom it runs.
    #[serde(default)]
    pub user_id: Option<String>,
    /// Label: in which workspace.
    #[serde(default)]
    pub workspace_id: Option<String>,
    /// Working directory, absolute; the host's own by default.
    #[serde(default)]
    pub cwd: Option<String>,
    /// Model, in the agent's own spelling.
    #[serde(default)]
    pub model: Option<String>,
    /// System prompt. An agent whose protocol has none gets it before the first prompt.
    #[serde(default)]
    pub system_prompt: Option<String>,
    /// Environment of the agent, on top of the manager's base and the catalog row's.
    #[serde(default)]
    pub env: EnvVars,
    /// Tools the agent may use, in its own spelling; empty means its default.
    #[serde(default)]
    pub tools: Vec<String>,
    /// MCP servers passed to the agent.
    #[serde(default)]
    pub mcp_servers: Vec<McpServer>,
    /// Who answers permission requests.
    #[serde(default)]
    pub permission_mode: PermissionMode,
    /// Turns after which the session takes no further prompt.
    #[serde(default)]
    pub max_turns: Option<u32>,
    /// Limits.
    #[serde(default)]
    pub limits: Limits,
    /// What becomes of the agent's processes when it exits.
    #[serde(default)]
    pub on_agent_exit: OnAgentExit,
    /// Which layers hold it; `null` for the manager's default.
    #[serde(default)]
    pub containment: Option<Containment>,
    /// What protects everybody else from it.
    #[serde(default)]
    pub hardening: Hardening,
}

impl AgentSessionConfig {
    /// A session of `agent` with a fresh id and defaults.
    pub fn new(agent: impl Into<String>) -> Self {
        Self {
            session_id: SessionId::mint(),
            agent: agent.into(),
            command: Vec::new(),
            agent_type: None,
            user_id: None,
            workspace_id: None,
            cwd: None,
            model: None,
            system_prompt: None,
            env: EnvVars::default(),
            tools: Vec::new(),
            mcp_servers: Vec::new(),
            permission_mode: PermissionMode::default(),
            max_turns: None,
            limits: Limits::default(),
            on_agent_exit: OnAgentExit::default(),
            containment: None,
            hardening: Hardening::default(),
        }
    }
}

impl fmt::Debug for AgentSessionConfig {
    /// Without what may be secret: environment values, arguments and the system prompt.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentSessionConfig")
            .field("session_id", &self.session_id)
            .field("agent", &self.agent)
            .field("program", &self.command.first())
            .field("agent_type", &self.agent_type)
            .field("user_id", &self.user_id)
            .field("workspace_id", &self.workspace_id)
            .field("cwd", &self.cwd)
            .field("model", &self.model)
            .field("system_prompt_bytes", &self.system_prompt.as_ref().map(String::len))
            .field("env", &self.env)
            .field("tools", &self.tools)
            .field("mcp_servers", &self.mcp_servers)
            .field("permission_mode", &self.permission_mode)
            .field("max_turns", &self.max_turns)
            .field("limits", &self.limits)
            .field("on_agent_exit", &self.on_agent_exit)
            .field("containment", &self.containment)
            .field("hardening", &self.hardening)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_hides_secrets() {
        let config = AgentSessionConfig {
            command: vec!["tool".into(), "--key=hunter2".into()],
            env: [("API_KEY", "hunter2")].into_iter().collect(),
            system_prompt: Some("hunter2".into()),
            mcp_servers: vec![McpServer {
                name: "m".into(),
                transport: McpTransport::Http {
                    url: "http://127.0.0.1/".into(),
                    headers: [("Authorization", "hunter2")].into_iter().collect(),
                },
            }],
            ..AgentSessionConfig::new("command")
        };
        let text = format!("{config:?}");
        assert!(!text.contains("hunter2"), "{text}");
        assert!(text.contains("API_KEY") && text.contains("Authorization"), "{text}");
    }

    #[test]
    fn json_needs_only_the_agent_and_refuses_what_it_does_not_know() {
        let config: AgentSessionConfig = serde_json::from_str(r#"{"agent":"fake"}"#).expect("minimal config");
        assert_eq!(config.agent, "fake");
        assert!(serde_json::from_str::<AgentSessionConfig>(r#"{"agent":"fake","maxTurn":3}"#).is_err());
    }
}
