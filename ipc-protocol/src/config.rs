//! Configuration of a session.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde::{Deserialize, Serialize};

use crate::{
    AgentSandbox, Budget, Containment, Hardening, Lifecycle, Limits, PermissionMode, PermissionPolicy, Resume,
    SessionId, Setting, Timeouts,
};

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

/// Effect of the agent's exit on the session's other processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OnAgentExit {
    /// Ends them (SIGTERM, 500 ms, SIGKILL), and ends the session with a receipt.
    #[default]
    Kill,
    /// Leaves them until the session is killed.
    Keep,
}

/// Action for a turn that meets the usage limit of the agent's account (`usage:limited`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OnUsageLimit {
    /// Fails the turn.
    #[default]
    Fail,
    /// Waits until the limit is reset, and asks again; prompts behind it wait with it. The turn fails where the agent does
    /// not say when that is.
    Wait,
}

/// Action for a session whose host dies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum HostDeath {
    /// Ends the session.
    #[default]
    Kill,
    /// Keeps the session with its fork server, to wait for a host with the same state directory. Its messages
    /// meanwhile are kept.
    Detach {
        /// Longest wait, in milliseconds; the session ends itself then. 24 hours by default.
        #[serde(default = "HostDeath::default_fetch_within_ms")]
        fetch_within_ms: u64,
        /// Bytes of messages kept for the next host. Further ones are counted, and lost. 64 MiB by default.
        #[serde(default = "HostDeath::default_spool_bytes")]
        spool_bytes: u64,
    },
}

impl HostDeath {
    /// [`HostDeath::Detach`] with its defaults.
    pub const DETACH: Self =
        Self::Detach { fetch_within_ms: Self::default_fetch_within_ms(), spool_bytes: Self::default_spool_bytes() };

    const fn default_fetch_within_ms() -> u64 {
        24 * 3600 * 1000
    }

    const fn default_spool_bytes() -> u64 {
        64 << 20
    }
}

/// Home directory of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Home {
    /// Home of the manager's base environment.
    Shared,
    /// Home for the session alone, empty at first: no settings, conversations or keys of anybody. Kept until the
    /// session is deleted.
    Own,
}

/// Connection to an MCP server. `Debug` shows neither arguments nor values.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum McpTransport {
    /// Program that the agent starts and that speaks on its standard input and output.
    Stdio {
        /// Program to start.
        command: String,
        /// Arguments of the program.
        args: Vec<String>,
        /// Environment of the program.
        env: EnvVars,
    },
    /// Server that is already running.
    Http {
        /// Address of the server.
        url: String,
        /// Headers of each request; values are hidden in `Debug`.
        headers: EnvVars,
    },
}

impl fmt::Debug for McpTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdio { command, env, .. } => {
                f.debug_struct("Stdio").field("command", command).field("env", env).finish_non_exhaustive()
            }
            Self::Http { url, headers } => {
                f.debug_struct("Http").field("url", &without_login(url)).field("headers", headers).finish()
            }
        }
    }
}

/// MCP server that the agent may use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct McpServer {
    /// Name under which the agent shows its tools.
    pub name: String,
    /// Connection to the server.
    pub transport: McpTransport,
}

/// Configuration of a session. Only `agent` is required; in JSON every other field may be left out.
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
    /// Id of the agent's catalog row.
    pub agent: String,
    /// Program and arguments, for agents whose row leaves them open (`command`, `acp`); else added to the row's.
    #[serde(default)]
    pub command: Vec<String>,
    /// Label: purpose of the agent (`execution`, `plan`, …).
    #[serde(default)]
    pub agent_type: Option<String>,
    /// Label: user of the session.
    #[serde(default)]
    pub user_id: Option<String>,
    /// Label: workspace of the session.
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
    /// Default answer to permission requests.
    #[serde(default)]
    pub permission_mode: PermissionMode,
    /// Model replies that the agent may use for one prompt; at least 1. The agent's own option bounds them where it has
    /// one. Else they are counted, and the turn is aborted at the first sign of one more. Either way the turn ends with
    /// [`StopReason::MaxRequests`](crate::StopReason::MaxRequests).
    #[serde(default)]
    pub max_turns: Option<u32>,
    /// Prompts that the session takes in all.
    #[serde(default)]
    pub max_prompts: Option<u32>,
    /// Limits on the session's resources.
    #[serde(default)]
    pub limits: Limits,
    /// Effect of the agent's exit on its processes.
    #[serde(default)]
    pub on_agent_exit: OnAgentExit,
    /// Effect of the host's death. Detaching needs a state directory.
    #[serde(default)]
    pub on_host_death: HostDeath,
    /// Permission rules, which apply before the mode.
    #[serde(default)]
    pub permissions: PermissionPolicy,
    /// Profile for the settings left out here: its name in the manager.
    #[serde(default)]
    pub profile: Option<String>,
    /// Model configuration (provider, address, key) to use: its name in the manager.
    #[serde(default)]
    pub model_config: Option<String>,
    /// Mode to work in: `build`, `plan`, or one of the agent's own.
    #[serde(default)]
    pub mode: Option<String>,
    /// Thinking level: `off`, `low`, `medium`, `high`, or one of the agent's own.
    #[serde(default)]
    pub thinking: Option<String>,
    /// Conversation to continue.
    #[serde(default)]
    pub resume: Option<Resume>,
    /// True if the agent keeps nothing of the conversation.
    #[serde(default)]
    pub ephemeral: bool,
    /// Home directory; `null` for an own one if a model configuration is used, else the shared one.
    #[serde(default)]
    pub home: Option<Home>,
    /// Address of a running server to connect to, for an agent that has one; the agent is not started then.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// True to emit each line of the agent's own as an event too; `null` for yes if the agent has turns.
    #[serde(default)]
    pub verbatim: Option<bool>,
    /// Clocks of the session.
    #[serde(default)]
    pub timeouts: Timeouts,
    /// True if the first prompt names the session to the agent, and forbids it to start itself again.
    #[serde(default)]
    pub runtime_context: bool,
    /// Number of sessions around the caller itself: 0 outside any.
    #[serde(default)]
    pub depth: u32,
    /// Lifecycle beyond one incarnation of the agent.
    #[serde(default)]
    pub lifecycle: Lifecycle,
    /// Containment layers; `null` for the manager's default.
    #[serde(default)]
    pub containment: Option<Containment>,
    /// Protection of everything else from the session.
    #[serde(default)]
    pub hardening: Hardening,
    /// Budget for the model.
    #[serde(default)]
    pub budget: Budget,
    /// The agent's own sandbox around its tools; `null` for what its user has set, else the strongest that lets it work in its
    /// directory.
    #[serde(default)]
    pub agent_sandbox: Option<AgentSandbox>,
    /// Settings that are meant although they are the default: a profile does not change them.
    #[serde(default)]
    pub explicit: BTreeSet<Setting>,
    /// Action for a turn that meets the account's usage limit.
    #[serde(default)]
    pub on_usage_limit: OnUsageLimit,
}

impl AgentSessionConfig {
    /// Creates a session of `agent` with a fresh id and defaults.
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
            max_prompts: None,
            limits: Limits::default(),
            on_agent_exit: OnAgentExit::default(),
            on_host_death: HostDeath::default(),
            permissions: PermissionPolicy::default(),
            profile: None,
            model_config: None,
            mode: None,
            thinking: None,
            resume: None,
            ephemeral: false,
            home: None,
            endpoint: None,
            verbatim: None,
            timeouts: Timeouts::default(),
            runtime_context: false,
            depth: 0,
            lifecycle: Lifecycle::default(),
            containment: None,
            hardening: Hardening::default(),
            budget: Budget::default(),
            agent_sandbox: None,
            explicit: BTreeSet::new(),
            on_usage_limit: OnUsageLimit::default(),
        }
    }
}

impl AgentSessionConfig {
    /// Returns a copy without possible secrets: environment variables whose names suggest a key, a password or a
    /// token, all headers of MCP servers, and the login in the address of a server.
    #[must_use]
    pub fn without_secrets(&self) -> Self {
        let mut config = self.clone();
        forget_secrets(&mut config.env);
        for server in &mut config.mcp_servers {
            match &mut server.transport {
                McpTransport::Stdio { env, .. } => forget_secrets(env),
                McpTransport::Http { url, headers } => {
                    *url = without_login(url);
                    headers.0.clear();
                }
            }
        }
        config.endpoint = config.endpoint.as_deref().map(without_login);
        config
    }

    /// Names the secrets that [`AgentSessionConfig::without_secrets`] leaves out: a variable's own name,
    /// `mcpServers.NAME.KEY` for a variable or header of an MCP server, `mcpServers.NAME.url` and `endpoint` for
    /// the login in an address.
    pub fn secrets(&self) -> Vec<String> {
        let kept = self.without_secrets();
        let left_out = |all: &EnvVars, kept: &EnvVars| -> Vec<String> {
            all.0.keys().filter(|name| !kept.0.contains_key(*name)).cloned().collect()
        };
        let mut secrets = left_out(&self.env, &kept.env);
        for (server, kept) in self.mcp_servers.iter().zip(&kept.mcp_servers) {
            let names = match (&server.transport, &kept.transport) {
                (McpTransport::Stdio { env, .. }, McpTransport::Stdio { env: kept, .. }) => left_out(env, kept),
                (McpTransport::Http { url, headers }, McpTransport::Http { url: bare, headers: kept }) => {
                    let login = (url != bare).then(|| "url".to_owned());
                    left_out(headers, kept).into_iter().chain(login).collect()
                }
                _ => Vec::new(),
            };
            secrets.extend(names.into_iter().map(|name| format!("mcpServers.{}.{name}", server.name)));
        }
        secrets.extend((self.endpoint != kept.endpoint).then(|| "endpoint".to_owned()));
        secrets
    }
}

/// Parts of a variable's name that suggest a secret.
const SECRET: [&str; 7] = ["KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "AUTH"];

fn forget_secrets(env: &mut EnvVars) {
    env.0.retain(|name, _| {
        let name = name.to_ascii_uppercase();
        !SECRET.iter().any(|word| name.contains(word))
    });
}

impl fmt::Debug for AgentSessionConfig {
    /// Hides possible secrets: environment values, arguments and the system prompt.
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
            .field("max_prompts", &self.max_prompts)
            .field("limits", &self.limits)
            .field("on_agent_exit", &self.on_agent_exit)
            .field("on_host_death", &self.on_host_death)
            .field("permissions", &self.permissions)
            .field("profile", &self.profile)
            .field("model_config", &self.model_config)
            .field("mode", &self.mode)
            .field("thinking", &self.thinking)
            .field("resume", &self.resume)
            .field("ephemeral", &self.ephemeral)
            .field("home", &self.home)
            .field("endpoint", &self.endpoint.as_deref().map(without_login))
            .field("verbatim", &self.verbatim)
            .field("timeouts", &self.timeouts)
            .field("runtime_context", &self.runtime_context)
            .field("depth", &self.depth)
            .field("lifecycle", &self.lifecycle)
            .field("containment", &self.containment)
            .field("hardening", &self.hardening)
            .field("budget", &self.budget)
            .field("agent_sandbox", &self.agent_sandbox)
            .field("explicit", &self.explicit)
            .field("on_usage_limit", &self.on_usage_limit)
            .finish()
    }
}

/// Removes the login, up to the `@`, from an address.
fn without_login(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
        (None, Some((_, host))) => host.to_owned(),
        (_, None) => url.to_owned(),
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
            endpoint: Some("http://user:hunter2@127.0.0.1:4096".into()),
            mcp_servers: vec![
                McpServer {
                    name: "n".into(),
                    transport: McpTransport::Stdio {
                        command: "server".into(),
                        args: vec!["--key=hunter2".into()],
                        env: [("SERVER_KEY", "hunter2")].into_iter().collect(),
                    },
                },
                McpServer {
                    name: "m".into(),
                    transport: McpTransport::Http {
                        url: "http://hunter2@127.0.0.1/".into(),
                        headers: [("Authorization", "hunter2")].into_iter().collect(),
                    },
                },
            ],
            ..AgentSessionConfig::new("command")
        };
        let text = format!("{config:?}");
        assert!(!text.contains("hunter2"), "{text}");
        assert!(text.contains("API_KEY") && text.contains("Authorization"), "{text}");
        let names =
            ["API_KEY", "mcpServers.n.SERVER_KEY", "mcpServers.m.Authorization", "mcpServers.m.url", "endpoint"];
        assert_eq!(config.secrets(), names);
        let kept = config.without_secrets();
        assert!(kept.secrets().is_empty() && !format!("{:?}", kept.endpoint).contains("hunter2"));
    }

    #[test]
    fn json_needs_only_the_agent_and_refuses_what_it_does_not_know() {
        let config: AgentSessionConfig = serde_json::from_str(r#"{"agent":"fake"}"#).expect("minimal config");
        assert_eq!(config.agent, "fake");
        assert!(serde_json::from_str::<AgentSessionConfig>(r#"{"agent":"fake","maxTurn":3}"#).is_err());
    }
}
