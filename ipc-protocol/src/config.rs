//! Configuration of a session.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{
    AgentSandbox, Budget, ConfigSetting, Containment, Hardening, HomePart, Lifecycle, Limits, PermissionMode,
    PermissionPolicy, ResumeRequest, SessionContainer, SessionId, SessionSandbox, Timeouts, WorkspaceKind,
    terminal::{Surface, TerminalConfig},
};

/// Environment variables. `Debug` shows names only: values are often secrets.
#[derive(Clone, derive_more::Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[debug("{:?}", _0.keys())]
#[serde(transparent)]
pub struct EnvVars(pub BTreeMap<String, String>);

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for EnvVars {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(vars: I) -> Self {
        Self(vars.into_iter().map(|(k, v)| (k.into(), v.into())).collect())
    }
}

/// Effect of the agent's exit on the session's other processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Home {
    /// Home of the manager's base environment.
    Shared,
    /// Home for the session alone, empty at first: no settings, conversations or keys of anybody. Kept until the
    /// session is deleted.
    Own,
}

/// Connection to an MCP server. `Debug` shows neither arguments nor values.
#[derive(Clone, derive_more::Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum McpTransport {
    /// Program that the agent starts and that speaks on its standard input and output.
    Stdio {
        /// Program to start.
        command: String,
        /// Arguments of the program.
        #[debug("{} arguments", args.len())]
        args: Vec<String>,
        /// Environment of the program.
        env: EnvVars,
    },
    /// Server that is already running.
    Http {
        /// Address of the server.
        #[debug("{:?}", without_credentials(url))]
        url: String,
        /// Headers of each request; values are hidden in `Debug`.
        headers: EnvVars,
    },
}

/// MCP server that the agent may use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct McpServer {
    /// Name under which the agent shows its tools.
    pub name: String,
    /// Connection to the server.
    pub transport: McpTransport,
}

/// Configuration of a session. Only `agent` is required; in JSON every other field may be left out. `Debug` shows
/// neither arguments, values of variables nor the system prompt.
///
/// Start from [`AgentSessionConfig::new`]. There will be more fields: a literal without `..` breaks then.
///
/// ```
/// use ipc_protocol::AgentSessionConfig;
/// let config = AgentSessionConfig::new("command").with_command(["cat", "-u"]).with_user_id("user-1").with_env("TZ", "UTC");
/// let literal = AgentSessionConfig { user_id: Some("user-1".into()), ..config.clone() };
/// assert_eq!(literal, config);
/// ```
#[derive(Clone, derive_more::Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentSessionConfig {
    /// Name of the session; a fresh UUIDv7 by default.
    #[serde(default = "SessionId::mint")]
    pub session_id: SessionId,
    /// Id of the agent's catalog row.
    pub agent: String,
    /// Program and arguments, for agents whose row leaves them open (`command`, `acp`); else added to the row's.
    #[serde(default)]
    #[debug("{:?}", command.first())]
    pub command: Vec<String>,
    /// Label: purpose of the agent (`execution`, `plan`, …).
    pub agent_type: Option<String>,
    /// Label: user of the session.
    pub user_id: Option<String>,
    /// Label: workspace of the session.
    pub workspace_id: Option<String>,
    /// Working directory, absolute; the host's own by default.
    pub cwd: Option<String>,
    /// Model, in the agent's own spelling.
    pub model: Option<String>,
    /// System prompt. An agent whose protocol has none gets it before the first prompt.
    #[debug("{:?} bytes", system_prompt.as_ref().map(String::len))]
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
    pub max_turns: Option<u32>,
    /// Prompts that the session takes in all.
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
    pub profile: Option<String>,
    /// Model configuration (provider, address, key) to use: its name in the manager.
    pub model_config: Option<String>,
    /// Mode to work in: `build`, `plan`, or one of the agent's own.
    pub mode: Option<String>,
    /// Thinking level: `off`, `low`, `medium`, `high`, or one of the agent's own.
    pub thinking: Option<String>,
    /// Conversation to continue.
    pub resume: Option<ResumeRequest>,
    /// True if the agent keeps nothing of the conversation.
    #[serde(default)]
    pub ephemeral: bool,
    /// Home directory; `null` for an own one if a model configuration is used, else the shared one.
    pub home: Option<Home>,
    /// Address of a running server to connect to, for an agent that has one; the agent is not started then.
    #[debug("{:?}", endpoint.as_deref().map(without_credentials))]
    pub endpoint: Option<String>,
    /// True to emit each line of the agent's own as an event too; `null` for yes if the agent has turns.
    pub verbatim: Option<bool>,
    /// Clocks of the session.
    #[serde(default)]
    pub timeouts: Timeouts,
    /// True if the first prompt names the session to the agent, and forbids it to start itself again.
    #[serde(default)]
    pub runtime_context: bool,
    /// Number of sessions around the caller itself: 0 outside any. For a program that an agent may start again.
    #[doc(hidden)]
    #[serde(default)]
    pub depth: u32,
    /// Lifecycle beyond one incarnation of the agent.
    #[serde(default)]
    pub lifecycle: Lifecycle,
    /// Containment layers; `null` for the manager's default.
    pub containment: Option<Containment>,
    /// Protection of everything else from the session.
    #[serde(default)]
    pub hardening: Hardening,
    /// Budget for the model.
    #[serde(default)]
    pub budget: Budget,
    /// The agent's own sandbox around its tools; `null` for what its user has set, else the strongest that lets it work in its
    /// directory.
    pub agent_sandbox: Option<AgentSandbox>,
    /// Settings that are meant although they are the default: a profile does not change them. For a command line.
    #[doc(hidden)]
    #[serde(default)]
    pub explicit: BTreeSet<ConfigSetting>,
    /// Action for a turn that meets the account's usage limit.
    #[serde(default)]
    pub on_usage_limit: OnUsageLimit,
    /// Names of values that are no secrets, as in [`AgentSessionConfig::secrets`]: records keep them, and a resume in a
    /// later manager needs them not again.
    #[serde(default)]
    pub not_secret: BTreeSet<String>,
    /// Parts of the user's home that the session's own home begins with. With some the home is an own one, unless `home` says
    /// otherwise, which is an error then.
    #[serde(default)]
    pub home_copy: Vec<HomePart>,
    /// Terminal to start the agent in; without one its standard streams are pipes.
    pub terminal: Option<TerminalConfig>,
    /// Ways to drive the session; `null` for what `terminal` says. `both` is refused for an agent whose screen and protocol exclude
    /// each other, unless `terminal` is given: then the session has the terminal alone.
    #[serde(default)]
    pub surface: Option<Surface>,
    /// Files that the session's processes may use. With some mode but `off` the containment is strict.
    #[serde(default)]
    pub sandbox: SessionSandbox,
    /// Tree that the agent works in; `null` for the profile's, and `off` without one. In another than `off` it works in a place of
    /// its own, and nothing in `cwd` changes until the changes are applied.
    #[serde(default)]
    pub workspace: Option<WorkspaceKind>,
    /// Container that the agent runs in. It takes the place of `sandbox`, and of a containment stronger than the baseline.
    #[serde(default)]
    pub container: SessionContainer,
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
            not_secret: BTreeSet::new(),
            home_copy: Vec::new(),
            terminal: None,
            surface: None,
            sandbox: SessionSandbox::default(),
            workspace: None,
            container: SessionContainer::default(),
        }
    }
}

impl AgentSessionConfig {
    /// Ways in which the session is driven.
    pub fn driving_surface(&self) -> Surface {
        match (&self.terminal, self.surface) {
            (_, Some(Surface::Both)) => Surface::Both,
            (Some(_), _) => Surface::Terminal,
            (None, _) => Surface::Machine,
        }
    }

    /// Returns a copy without its secrets, as [`AgentSessionConfig::secrets`] names them.
    #[must_use]
    pub fn without_secrets(&self) -> Self {
        let mut config = self.clone();
        config.remove_secrets();
        config
    }

    /// Names the values that no record keeps: all that may be secrets, and are not in
    /// [`AgentSessionConfig::not_secret`]. A variable has its own name; of an MCP server there are
    /// `mcpServers.NAME.args`, `mcpServers.NAME.KEY` for a variable or header, and `mcpServers.NAME.url` for the login,
    /// query and fragment of its address; `endpoint` stands for these of that address.
    pub fn secrets(&self) -> Vec<String> {
        self.clone().remove_secrets()
    }

    /// Removes the secrets, and returns their names.
    fn remove_secrets(&mut self) -> Vec<String> {
        let mut names = Vec::new();
        let mut is_secret = |name: String| {
            let is_secret = !self.not_secret.contains(&name);
            names.extend(is_secret.then_some(name));
            is_secret
        };
        self.env.0.retain(|name, _| !is_secret(name.clone()));
        for McpServer { name: server, transport } in &mut self.mcp_servers {
            let part = |part: &str| format!("mcpServers.{server}.{part}");
            match transport {
                McpTransport::Stdio { args, env, .. } => {
                    if !args.is_empty() && is_secret(part("args")) {
                        args.clear();
                    }
                    env.0.retain(|name, _| !is_secret(part(name)));
                }
                McpTransport::Http { url, headers } => {
                    headers.0.retain(|name, _| !is_secret(part(name)));
                    remove_credentials(url, || is_secret(part("url")));
                }
            }
        }
        if let Some(endpoint) = &mut self.endpoint {
            remove_credentials(endpoint, || is_secret("endpoint".to_owned()));
        }
        names
    }
}

/// Removes the credentials of an address, if it has some and they are secret.
fn remove_credentials(url: &mut String, is_secret: impl FnOnce() -> bool) {
    let without = without_credentials(url);
    if without != *url && is_secret() {
        *url = without;
    }
}

/// Returns an address without login, query and fragment. Returns its scheme alone if the host cannot be told from a
/// password.
fn without_credentials(url: &str) -> String {
    let (scheme, rest) = url.find("://").map_or(("", url), |at| url.split_at(at + 3));
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let port = host.rsplit_once(':').filter(|_| !host.ends_with(']')).map_or("", |(_, port)| port);
    if port.bytes().all(|b| b.is_ascii_digit()) { format!("{scheme}{host}{path}") } else { scheme.to_owned() }
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
        let names = [
            "API_KEY",
            "mcpServers.n.args",
            "mcpServers.n.SERVER_KEY",
            "mcpServers.m.Authorization",
            "mcpServers.m.url",
            "endpoint",
        ];
        assert_eq!(config.secrets(), names);
        let kept = config.without_secrets();
        assert!(kept.secrets().is_empty() && !format!("{:?}", kept.endpoint).contains("hunter2"));
    }

    fn http_server(url: &str) -> AgentSessionConfig {
        let transport = McpTransport::Http { url: url.into(), headers: EnvVars::default() };
        let mcp_servers = vec![McpServer { name: "m".into(), transport }];
        AgentSessionConfig { mcp_servers, endpoint: Some(url.into()), ..AgentSessionConfig::new("acp") }
    }

    #[test]
    fn an_address_is_recorded_without_login_and_query() {
        for (url, recorded) in [
            ("https://host/@owner/mcp", None),
            ("https://host:8080/a/@b/c@d", None),
            ("http://127.0.0.1:4096", None),
            ("http://[::1]:4096/x", None),
            ("127.0.0.1:4096/@x", None),
            ("https://user:hunter2@host/@owner/mcp", Some("https://host/@owner/mcp")),
            ("https://user:p@hunter2@host:1/", Some("https://host:1/")),
            ("user:hunter2@host:1", Some("host:1")),
            ("https://host/mcp?key=hunter2", Some("https://host/mcp")),
            ("https://host/mcp#hunter2", Some("https://host/mcp")),
            ("https://hunter2@host?next=a@b/c", Some("https://host")),
            // No URL has an authority like that: the end of the password is not told from the beginning of the path.
            ("https://user:hunter2/x@host/mcp", Some("https://")),
            ("https://user:hunter2?x@host/mcp", Some("https://")),
        ] {
            let config = http_server(url);
            let expected = if recorded.is_some() { vec!["mcpServers.m.url", "endpoint"] } else { vec![] };
            assert_eq!(config.secrets(), expected, "{url}");
            let without = config.without_secrets();
            assert_eq!(without.endpoint.as_deref(), Some(recorded.unwrap_or(url)));
            assert!(
                without.secrets().is_empty() && !format!("{config:?}{without:?}").contains("hunter2"),
                "{without:?}"
            );
        }
    }

    #[test]
    fn no_value_of_a_variable_is_recorded_unless_it_is_marked() {
        let names =
            ["DATABASE_URL", "DB_PASS", "GIT_AUTHOR_NAME", "MYSQL_PWD", "OPENAI_API_KEY", "TOKENIZERS_PARALLELISM"];
        let env: EnvVars = names.into_iter().map(|name| (name, "hunter2")).collect();
        let config = AgentSessionConfig { env, ..AgentSessionConfig::new("acp") };
        assert_eq!(config.secrets(), names);
        assert_eq!(config.without_secrets().env, EnvVars::default());
        let not_secret = ["GIT_AUTHOR_NAME", "TOKENIZERS_PARALLELISM", "ABSENT"].map(str::to_owned).into();
        let marked = AgentSessionConfig { not_secret, ..config };
        assert_eq!(marked.secrets(), ["DATABASE_URL", "DB_PASS", "MYSQL_PWD", "OPENAI_API_KEY"]);
        let kept: Vec<_> = marked.without_secrets().env.0.into_keys().collect();
        assert_eq!(kept, ["GIT_AUTHOR_NAME", "TOKENIZERS_PARALLELISM"]);
    }

    #[test]
    fn parts_of_mcp_servers_are_recorded_only_where_marked() {
        let transport = McpTransport::Stdio {
            command: "server".into(),
            args: vec!["--key".into(), "hunter2".into()],
            env: [("MODE", "hunter2")].into_iter().collect(),
        };
        let stdio = McpServer { name: "s".into(), transport };
        let mut config = http_server("https://hunter2@host/mcp?key=hunter2");
        config.mcp_servers.push(stdio);
        let names = ["mcpServers.m.url", "mcpServers.s.args", "mcpServers.s.MODE", "endpoint"];
        assert_eq!(config.secrets(), names);
        let recorded = serde_json::to_string(&config.without_secrets()).expect("JSON");
        assert!(!recorded.contains("hunter2"), "{recorded}");
        config.not_secret = names.map(str::to_owned).into();
        assert_eq!((config.secrets(), config.without_secrets()), (vec![], config.clone()));
    }

    #[test]
    fn json_needs_only_the_agent_and_refuses_what_it_does_not_know() {
        let config: AgentSessionConfig = serde_json::from_str(r#"{"agent":"fake"}"#).expect("minimal config");
        assert_eq!(config.agent, "fake");
        assert!(serde_json::from_str::<AgentSessionConfig>(r#"{"agent":"fake","maxTurn":3}"#).is_err());
    }
}
