//! Catalog row: an agent as data.

use std::collections::BTreeMap;

use ipc_protocol::EnvVars;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::family::AgentFamily;

/// Agent, as a row of the catalog.
///
/// Flags (`model_flag` and the like) are text as in a shell: split at blanks, quotes hold a word together. Placeholders are filled
/// in after that, so what is filled in is always one argument or a part of one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AgentSpec {
    /// Name in configurations, events and errors: 1 to 64 characters of A-Z a-z 0-9 . _ -
    #[cfg_attr(test, schemars(regex(pattern = "^[A-Za-z0-9._-]{1,64}$")))]
    pub id: String,
    /// Full name of the agent.
    #[serde(default)]
    pub name: String,
    /// Name in lists.
    #[serde(default)]
    pub display_name: String,
    /// Description in a sentence.
    #[serde(default)]
    pub description: String,
    /// True if sessions of it may start. It is listed anyway.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// Container image that sessions of it run in, unless they name another; empty for none.
    #[serde(default)]
    pub image: String,
    /// Tag of the image; empty for the engine's default, `latest`.
    #[serde(default)]
    pub tag: String,
    /// Program and leading arguments; empty where the session's `command` gives them all, or the image has a program of its own.
    #[serde(default)]
    pub cmd: Vec<String>,
    /// Program and leading arguments of its own screen (TUI), for sessions in a terminal; empty where it has none.
    #[serde(default)]
    pub terminal_cmd: Vec<String>,
    /// Program and arguments of its own screen beside a session of its protocol, as a second client of what the session runs:
    /// `{endpoint}` is the address of its server, `{id}` its conversation. Empty where its screen and its protocol exclude each other.
    #[serde(default)]
    pub companion_cmd: Vec<String>,
    /// Directory that the agent starts in: `{workspace}` is the session's working directory, `{home}` its home directory.
    #[serde(default = "workspace")]
    pub working_dir: String,
    /// Variables of the caller's environment that it is given and does not start without; a session's model configuration
    /// stands in for them.
    #[serde(default)]
    pub required_env: Vec<String>,
    /// Environment that it is given beneath the session's, and nothing else of the caller's: an allow-list. A value `${NAME}` is
    /// the caller's own variable NAME, if it is set. `{key}`, `{base_url}`, `{model}` and `{provider}` are of the session's model
    /// configuration; a variable is left out where there is none.
    #[serde(default)]
    #[cfg_attr(test, schemars(with = "BTreeMap<String, String>"))]
    pub env: EnvVars,
    /// Mounts of the container, besides the working directory.
    #[serde(default)]
    pub mounts: Vec<ContainerMount>,
    /// Limits of its sessions, where these set none.
    #[serde(default)]
    pub resource_limits: ResourceLimits,
    /// Strengths, in words for people and for whoever chooses, as `agent-proxy agents --json` lists them. Nothing
    /// follows from them.
    #[serde(default)]
    pub capabilities: Vec<String>,
    /// Name of the protocol's adapter: `acp`, `claude-code`, `codex`, `command`, `opencode`, `pi`; `gemini` is `acp` by another
    /// name.
    pub protocol: String,
    /// Settings of the protocol's adapter: an object. `config` (`claude`, `codex`, `gemini`, `opencode`, `pi`, `qwen`) says whose
    /// configuration files the agent reads; `server: true` that it can be reached at an address instead of being started.
    #[serde(default = "object")]
    #[cfg_attr(test, schemars(with = "serde_json::Map<String, Value>"))]
    pub protocol_config: Value,
    /// Flag for the model, with `{model}`: `--model {model}`. Empty where the protocol or its configuration
    /// (`protocol_config.config`) does that.
    #[serde(default)]
    pub model_flag: String,
    /// Flag for the working directory, beside being started there: `--workspace`, or with `{workspace}` in it.
    #[serde(default)]
    pub workspace_flag: String,
    /// Settings of the agent's conversations.
    #[serde(default)]
    pub session_config: SessionConfig,
    /// Tools that ask for permission.
    #[serde(default)]
    pub permission_config: PermissionConfig,
    /// Switches of its own about permissions, by name.
    #[serde(default)]
    pub permission_settings: BTreeMap<String, PermissionSetting>,
    /// Settings for finding the installed agent.
    #[serde(default)]
    pub discovery: DiscoverySpec,
    /// Files of the user's home that a session's own home can begin with.
    #[serde(default)]
    pub home_files: HomeFiles,
    /// Models of the agent.
    #[serde(default)]
    pub model_config: ModelSpecs,
    /// The command that installs it.
    #[serde(default)]
    pub install: String,
    /// Marks by which processes of it and those it starts are recognised.
    #[serde(default)]
    pub marks: ProcessMarks,
    /// Values of the caller's variables that `required_env` and `env` name: filled in by [`Catalog::inherit`](super::Catalog).
    #[serde(skip)]
    pub inherited: EnvVars,
}

/// Marks of an agent's processes in a process table, beside its program and npm packages: what `agent-proxy orphans` looks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ProcessMarks {
    /// Variables that it gives the tools and servers that it starts: `NAME=VALUE`, or `NAME` with any value.
    pub env: Vec<String>,
    /// The variable among those that has the agent's own pid, if there is one.
    pub owner_env: String,
    /// Words of a daemon of its own that is meant to outlive terminals: a subcommand, or a directory that the program is in.
    pub daemons: Vec<String>,
}

/// A mount of a container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ContainerMount {
    /// Path outside of the container.
    pub source: String,
    /// Path inside of the container.
    pub target: String,
    /// True if the mount is read-only.
    pub read_only: bool,
}

/// Limits of a session, where it sets none itself. Nothing is limited where nothing is said.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ResourceLimits {
    /// Memory of all its processes, in MiB.
    pub memory_mb: Option<u64>,
    /// CPU of all its processes, in cores.
    pub cpu_cores: Option<f64>,
    /// Wall clock since its start, in seconds.
    pub timeout_seconds: Option<u64>,
}

/// An agent's conversations.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct SessionConfig {
    /// True if the adapter goes on with a conversation through the agent's protocol. `false`: it is by `resume_flag`; without
    /// one its sessions go on with none, and can only be given the text of one. Where it is not said: by `resume_flag`, else by the
    /// protocol.
    pub native_session_resume: Option<bool>,
    /// Flag for the conversation to continue: `--resume`, or with `{id}` in it. Empty where its protocol or its
    /// configuration (`protocol_config.config`) does that.
    pub resume_flag: String,
    /// Command that continues a conversation in the agent itself: program and arguments, with `{id}` in them.
    pub attach_command: Vec<String>,
    /// The same for a session on a server that runs already: with `{endpoint}`, its address, in them too; empty: as others.
    pub attach_to_server: Vec<String>,
    /// True if its conversations outlive its process. `false`: its sessions go on with none, and are not suspended, also not when
    /// they are idle or their host ends. Where it is not said the agent may say so itself.
    pub can_recover: Option<bool>,
    /// Directory with the files of conversations; `{home}` is the session's home directory. The file of a session's is looked for
    /// there. Where `protocol_config.config` says whose agent it is, that is known, and depends on its variables too.
    pub session_dir_template: String,
    /// Place of that directory in a container, where it is mounted: conversations outlive the container then.
    pub session_dir_target: String,
}

/// Tools of an agent that ask for permission.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct PermissionConfig {
    /// Flag that makes the agent ask, unless the session allows everything: once for each tool where `{tool}` is in it, else once.
    pub permission_flag: String,
    /// The tools that ask, in the agent's spelling: what `{tool}` stands for in the flag. Without that they are for people: an
    /// agent asks of what it asks, and the rules of sessions decide.
    pub tools_requiring_permission: Vec<String>,
    /// The kinds of tool calls that it asks about where its session lets it: `edit`, `execute`, …. One that runs without having been
    /// asked about is a `permission:bypassed` event.
    pub asks: Vec<String>,
}

/// A switch about permissions. `auto_approve` is also on where the session allows everything (mode `allow`, no rules), and off
/// where it denies, only reads, or has rules.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct PermissionSetting {
    /// True if the agent has it.
    pub supported: bool,
    /// True if the switch is on by default.
    #[serde(rename = "default")]
    pub on: bool,
    /// Name, for people.
    pub label: String,
    /// Effect, for people.
    pub description: String,
    /// Way to switch it on.
    pub apply_method: ApplyMethod,
    /// The flag that does.
    pub cli_flag: String,
}

/// Way to switch a setting on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ApplyMethod {
    /// By `cli_flag`.
    #[default]
    CliFlag,
}

/// Files of the user's home that a session can have copied into its own: `homeCopy`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct HomeFiles {
    /// The agent's login. Those that are there are copied, and removed again when the session's processes have ended.
    pub login: Vec<HomeFile>,
    /// The agent's skills, and what else people add to it that holds no secret. Those that are there are copied.
    pub skills: Vec<HomeFile>,
    /// Variables of the agent that move a directory of the home elsewhere, with that directory: `CODEX_HOME = ".codex"`.
    pub moved_by: BTreeMap<String, String>,
}

/// File or directory, relative to the home.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct HomeFile {
    /// Path in the user's home.
    pub path: String,
    /// Path in the session's own home; empty for the same.
    pub to: String,
    /// Members of the JSON object that the file is: these are copied and nothing else of it. Empty for all of the file.
    pub keys: Vec<String>,
}

/// Settings for finding an installed agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct DiscoverySpec {
    /// Names of its program in PATH, or paths; that of `cmd` where none is given.
    pub executables: PerPlatform,
    /// Files that say that it is set up; `~` is the home directory.
    pub installation_path: PerPlatform,
    /// The npm package that it comes in: its `package.json` near the program has the version.
    pub npm_package: String,
    /// The versions that its row was tried with: `NAME VERSION` or `NAME FIRST - LAST`, where the name is that of an npm package or
    /// the one that the program gives itself. Another one is told as a session starts, and by `agent-proxy agents`.
    pub tried: Vec<String>,
    /// Arguments that make it print its version, where no package tells; none where it cannot.
    pub version_args: Vec<String>,
    /// The oldest Node.js that runs it, as in `22.19.0`, where Node.js does.
    pub min_node: String,
    /// True if it takes MCP servers. `false`: a session that has some is refused. Where it is not said its protocol does.
    pub supports_mcp: Option<bool>,
    /// The files in which it has its own configured; `~` is the home directory. `agent-proxy agents --json` lists those that are
    /// there; they are neither read nor written.
    pub mcp_config_path: PerPlatform,
    /// Further abilities.
    pub discovery_capabilities: DiscoveryCapabilities,
}

impl Default for DiscoverySpec {
    fn default() -> Self {
        Self {
            executables: PerPlatform::default(),
            installation_path: PerPlatform::default(),
            npm_package: String::new(),
            tried: Vec::new(),
            version_args: vec!["--version".to_owned()],
            min_node: String::new(),
            supports_mcp: None,
            mcp_config_path: PerPlatform::default(),
            discovery_capabilities: DiscoveryCapabilities::default(),
        }
    }
}

/// Names or paths, for each platform.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "the names say it")]
pub struct PerPlatform {
    pub linux: Vec<String>,
    pub windows: Vec<String>,
    pub macos: Vec<String>,
}

/// Abilities of an agent, as `agent-proxy agents --json` lists them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct DiscoveryCapabilities {
    /// True if it goes on with conversations. `false`: a session that is to go on with one is refused, and none is suspended.
    /// Where it is not said its protocol does.
    pub supports_session_resume: Option<bool>,
    /// True if it runs commands. For whoever chooses: nothing follows from it. What it may run is a matter of permissions.
    pub supports_shell: Option<bool>,
    /// True if it can be kept within its working directory. For whoever chooses: nothing follows from it.
    pub supports_workspace_only: Option<bool>,
}

/// An agent's models.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ModelSpecs {
    /// The one that is used where nobody says; empty for the agent's own choice.
    pub default_model: String,
    /// Some that it has, for people and whoever chooses: others may be named as well. One may be the default.
    pub available_models: Vec<ModelSpec>,
}

/// A model. Only its id and whether it is the default mean anything here: the size of its context is what the agent tells.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ModelSpec {
    /// In the agent's spelling.
    pub id: String,
    /// Name for people.
    pub name: String,
    /// Description of the model.
    pub description: String,
    /// Provider of the model.
    pub provider: String,
    /// Number of tokens that the model takes, for people.
    pub context_window: Option<u64>,
    /// True if the model is the default.
    pub is_default: bool,
}

fn yes() -> bool {
    true
}

fn workspace() -> String {
    "{workspace}".to_owned()
}

fn object() -> Value {
    Value::Object(serde_json::Map::new())
}

impl AgentSpec {
    /// Returns the command with which a person continues the conversation `id` in the agent itself, or on the running server at
    /// `endpoint` if the row has a command for that. Returns `None` if the row has no command.
    pub fn attach_command(&self, id: &str, endpoint: Option<&str>) -> Option<Vec<String>> {
        let SessionConfig { attach_command, attach_to_server, .. } = &self.session_config;
        let (words, endpoint) = match endpoint.filter(|_| !attach_to_server.is_empty()) {
            Some(endpoint) => (attach_to_server, endpoint),
            None => (attach_command, ""),
        };
        let fill = |word: &String| word.replace("{endpoint}", endpoint).replace("{id}", id);
        (!words.is_empty()).then(|| words.iter().map(fill).collect())
    }

    /// Makes a row with the minimum of fields: the agent needs no environment and cannot be steered.
    pub fn new(id: &str, protocol: &str, argv: &[&str]) -> Self {
        Self {
            id: id.to_owned(),
            name: String::new(),
            display_name: String::new(),
            description: String::new(),
            enabled: true,
            image: String::new(),
            tag: String::new(),
            cmd: argv.iter().map(|arg| (*arg).to_owned()).collect(),
            terminal_cmd: Vec::new(),
            companion_cmd: Vec::new(),
            working_dir: workspace(),
            required_env: Vec::new(),
            env: EnvVars::default(),
            mounts: Vec::new(),
            resource_limits: ResourceLimits::default(),
            capabilities: Vec::new(),
            protocol: protocol.to_owned(),
            protocol_config: object(),
            model_flag: String::new(),
            workspace_flag: String::new(),
            session_config: SessionConfig::default(),
            permission_config: PermissionConfig::default(),
            permission_settings: BTreeMap::new(),
            discovery: DiscoverySpec::default(),
            home_files: HomeFiles::default(),
            model_config: ModelSpecs::default(),
            install: String::new(),
            marks: ProcessMarks::default(),
            inherited: EnvVars::default(),
        }
    }

    /// Returns the family whose configuration files the agent reads, if the row names one: `claude`, `codex`, `gemini`, `opencode`, `pi`, `qwen`.
    pub fn family(&self) -> Option<&str> {
        self.protocol_config.get("config").and_then(Value::as_str)
    }

    /// Returns what is known of the row's family.
    pub(crate) fn agent_family(&self) -> Option<&'static AgentFamily> {
        AgentFamily::named(self.family()?)
    }

    /// Returns the name under which the agent's conversations are locked: its family, whose agents read each other's, else its id.
    pub fn conversation_family(&self) -> &str {
        self.family().unwrap_or(&self.id)
    }

    /// Returns whether the agent has a server that can be reached at an address.
    pub fn is_server(&self) -> bool {
        self.protocol_config.get("server") == Some(&Value::Bool(true))
    }

    /// Returns whether the agent's protocol has conversations: a plain command has none.
    pub fn has_conversations(&self) -> bool {
        self.protocol != "command"
    }

    /// Returns the field of the row that rules out continuing a conversation in another process, if one does.
    pub fn cannot_resume(&self) -> Option<&'static str> {
        let session = &self.session_config;
        if session.can_recover == Some(false) {
            Some("session_config.can_recover")
        } else if self.discovery.discovery_capabilities.supports_session_resume == Some(false) {
            Some("discovery.discovery_capabilities.supports_session_resume")
        } else if session.native_session_resume == Some(false) && session.resume_flag.is_empty() {
            Some("session_config.native_session_resume")
        } else {
            None
        }
    }

    /// Returns the name for lists: the display name, else the name, else the id.
    pub fn title(&self) -> &str {
        [&self.display_name, &self.name].into_iter().find(|name| !name.is_empty()).unwrap_or(&self.id)
    }

    /// Returns the model that is used if nothing else names one.
    pub fn default_model(&self) -> Option<&str> {
        let models = &self.model_config;
        let named = Some(models.default_model.as_str()).filter(|model| !model.is_empty());
        named.or_else(|| models.available_models.iter().find(|model| model.is_default).map(|model| model.id.as_str()))
    }

    /// Returns the variables of `required_env` that `env`, the agent's complete environment, lacks: the agent cannot start without them.
    pub fn missing_env(&self, env: &EnvVars) -> Vec<String> {
        self.required_env.iter().filter(|name| env.0.get(*name).is_none_or(String::is_empty)).cloned().collect()
    }
}

impl ResourceLimits {
    /// Sets the limits that `limits` leaves open.
    pub fn apply(&self, limits: &mut ipc_protocol::Limits) {
        let memory = self.memory_mb.map(|mb| mb.saturating_mul(1 << 20));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it saturates, and is checked to be positive"
        )]
        let cpu = self.cpu_cores.map(|cores| (cores * 100.0).round() as u64);
        let clock = self.timeout_seconds.map(|seconds| seconds.saturating_mul(1000));
        limits.memory_bytes = limits.memory_bytes.or(memory);
        limits.cpu_percent = limits.cpu_percent.or(cpu);
        limits.wall_clock_ms = limits.wall_clock_ms.or(clock);
    }
}

impl PerPlatform {
    /// Returns the entries for the platform of this build.
    pub fn here(&self) -> &[String] {
        if cfg!(target_os = "macos") {
            &self.macos
        } else if cfg!(target_os = "windows") {
            &self.windows
        } else {
            &self.linux
        }
    }
}
