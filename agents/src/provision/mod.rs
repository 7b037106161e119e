//! Argv, environment and files of an agent, from its catalog row and the session's configuration. Pure: the host writes the files and
//! starts the program.
//!
//! `protocol_config.config` of a row names the *family* whose configuration files its agent reads. Its function gets the
//! [`Provision`] with the row's own argv and environment and the endpoint that the session names. It adds everything that the agent
//! takes by argument, environment or file: model, mode, thinking, resume, keys, MCP servers. A row without a family is data only: its
//! model flag and its resume flag are applied here, and the adapter does the rest. The workspace flag and the permission flags are
//! applied here for every row.

pub(crate) mod claude;
pub(crate) mod codex;
mod flags;
pub(crate) mod gemini;
mod hooks;
pub(crate) mod opencode;
pub(crate) mod pi;
mod pi_mcp;
pub(crate) mod qwen;
mod sandbox;
mod surface;
mod terminal;

use std::path::{Path, PathBuf};

use ipc_protocol::{
    AgentEndpoint, AgentSandbox, AgentSessionConfig, ConfigSetting, EnvVars, HomePart, NativeResume, PermissionMode,
    terminal::Surface,
};

pub use self::sandbox::{default_sandbox, sandbox_program, settings_file};
pub use self::surface::settle_surface;
use crate::{AgentSpec, ModelConfig, Secret};

/// Result of a provision.
pub type Result<T, E = ProvisionError> = std::result::Result<T, E>;

/// Input of a provision.
#[derive(Clone, Copy, Debug)]
pub struct ProvisionRequest<'a> {
    /// Configuration of the session, with its profile applied and `cwd` filled in.
    pub config: &'a AgentSessionConfig,
    /// Model configuration that the session names.
    pub model: Option<&'a ModelConfig>,
    /// The session's own home directory, if it has one: an absolute path that exists and that no other session uses.
    pub home: Option<&'a Path>,
    /// Home directory of the base environment.
    pub shared_home: Option<&'a Path>,
    /// The text of [`settings_file`], where the agent has the shared home and there is one.
    pub user_settings: Option<&'a str>,
    /// Directory of [`Provision::programs`]: absolute, and nobody else's. Needed where [`needs_shim_dir`] is true.
    pub shim_dir: Option<&'a Path>,
    /// Conversation to continue.
    pub resume: Option<&'a NativeResume>,
    /// Fresh UUID, for agents that let the caller name a new conversation.
    pub fresh_id: &'a str,
    /// Fresh secret, for agents whose server needs one.
    pub fresh_secret: &'a Secret,
}

/// File that is written before the agent starts: mode 0600, its directories 0700.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProvisionFile {
    /// Path relative to the session's own home, or to its folder.
    pub path: PathBuf,
    /// Contents, which may hold keys.
    pub contents: Secret,
}

/// Everything that an agent is started with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Provision {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Environment, which overrides the manager's base and is overridden by the session's own. May hold keys.
    pub env: EnvVars,
    /// Files for the agent's home.
    pub files: Vec<ProvisionFile>,
    /// Programs of ours that the agent runs, and files of ours that it reads without having them in its home: mode 0700, relative to the
    /// session's folder, which is removed when the session ends.
    pub programs: Vec<ProvisionFile>,
    /// The agent's server, if it speaks HTTP.
    pub endpoint: Option<AgentEndpoint>,
    /// True if the image's own program is started, and [`Provision::argv`] has its arguments alone.
    pub uses_entrypoint: bool,
    /// Directory that the agent starts in; `None` for the session's working directory.
    pub cwd: Option<String>,
    /// Model for the adapter. Removed if an argument or a file has it and the protocol must not set it again.
    pub model: Option<String>,
    /// Conversation for the adapter. Removed if an argument has it and the protocol must not load it again.
    pub resume: Option<NativeResume>,
    /// True if the agent was given [`AgentSessionConfig::max_turns`] and bounds its model replies itself. Else the proxy counts them.
    pub bounds_turns: bool,
    /// Pipe for reports of the agent's own screen: the proxy makes it, and hooks of ours in the agent write to it.
    pub reports: Option<String>,
    /// Pipe for commands to the agent's own screen, which speaks its protocol: its messages are those reports.
    pub commands: Option<String>,
    /// Program and arguments of the agent's screen beside its protocol, if the session has it: `{endpoint}` is the address that its
    /// server reports, `{id}` its conversation.
    pub companion: Vec<String>,
    /// Path of the socket on which the agent speaks its protocol instead of its standard streams.
    pub socket: Option<String>,
    /// The sandbox of the agent's own that the adapter asks for. `None` where a file or an argument says it.
    pub agent_sandbox: Option<AgentSandbox>,
    /// The sandbox of the agent's own, in words; `None` where it is not known.
    pub sandbox: Option<String>,
}

/// Reason why an agent cannot be started as configured.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum ProvisionError {
    /// The agent cannot do what the session asks for.
    #[error("agent {agent:?} cannot {operation}")]
    Unsupported {
        /// Catalog id of the agent.
        agent: String,
        /// Operation that the session asks for.
        operation: String,
    },
    /// The row leaves the program open, and the session names none.
    #[error("agent {agent:?} runs the program that the session's command names, and it names none")]
    NoCommand {
        /// Catalog id of the row.
        agent: String,
    },
    /// The session asks for something that is written to files, and has no home of its own for them.
    #[error(
        "agent {agent:?} takes {what} from a file in its home, and yours is left as it is: give the session a home of its own \
         (`--home own`)"
    )]
    NeedsHome {
        /// Catalog id of the agent.
        agent: String,
        /// Thing that the session asks for.
        what: &'static str,
    },
}

impl ProvisionError {
    /// Makes the error for an agent of `spec` that cannot `operation` (the end of "agent … cannot").
    pub fn unsupported(spec: &AgentSpec, operation: impl Into<String>) -> Self {
        Self::Unsupported { agent: spec.id.clone(), operation: operation.into() }
    }
}

impl ProvisionRequest<'_> {
    /// Returns the model to use: the session's, else the model configuration's.
    pub fn model_name(&self) -> Option<&str> {
        self.config.model.as_deref().or_else(|| self.model?.model.as_deref())
    }

    /// Returns whether the session's own home has the user's login, and no model configuration takes its place.
    fn has_login_copy(&self) -> bool {
        self.model.is_none() && self.config.home_copy.contains(&HomePart::Login)
    }
}

/// Returns whether the agent has to ask for what its policy does not leave open. In a terminal that a user started it asks as it would by
/// itself, unless the session names a policy. A visit is of a session that asks anyway.
fn asks(config: &AgentSessionConfig) -> bool {
    let names_policy = config.explicit.contains(&ConfigSetting::PermissionMode) || is_bound(config);
    let is_visit = config.terminal.as_ref().is_some_and(|terminal| terminal.visit);
    let is_terminal = config.driving_surface() == Surface::Terminal;
    !allows_all(config) && (!is_terminal || is_visit || names_policy)
}

/// Returns whether the policy decides more than that a user is asked.
fn is_bound(config: &AgentSessionConfig) -> bool {
    !config.permissions.rules.is_empty() || config.permission_mode != PermissionMode::Ask
}

/// Returns whether the agent's own screen has hooks of ours: to report what happens there, or to have the policy decide.
fn has_hooks(config: &AgentSessionConfig) -> bool {
    config.driving_surface() == Surface::Terminal && (is_observed(config) || is_bound(config))
}

/// Returns whether the agent is to report what happens on its own screen.
fn is_observed(config: &AgentSessionConfig) -> bool {
    config.terminal.as_ref().is_some_and(|terminal| terminal.observed)
}

/// Returns whether the policy leaves nothing to ask for.
fn allows_all(config: &AgentSessionConfig) -> bool {
    config.permission_mode == PermissionMode::Allow && config.permissions.rules.is_empty()
}

/// Returns whether the provision of `spec` for `config` contains programs.
pub fn needs_shim_dir(spec: &AgentSpec, config: &AgentSessionConfig) -> bool {
    match spec.family() {
        Some("opencode") => spec.protocol != "acp" && config.terminal.is_none(),
        Some("codex") if spec.protocol == "acp" => !allows_all(config),
        Some("codex") => has_hooks(config) || config.driving_surface() == Surface::Both,
        Some("gemini") => asks(config) || has_hooks(config),
        Some("qwen") => asks(config),
        Some("claude") => has_hooks(config),
        Some("pi") => asks(config) || !config.mcp_servers.is_empty() || config.driving_surface() == Surface::Both,
        _ => false,
    }
}

/// Adds the file `name` to the session's folder, and returns its path.
///
/// # Errors
/// [`ProvisionError::Unsupported`] if the session has no folder.
fn shim_file(
    spec: &AgentSpec,
    request: &ProvisionRequest<'_>,
    name: &str,
    contents: &str,
    provision: &mut Provision,
) -> Result<String> {
    let folder = request.shim_dir.ok_or_else(|| {
        let operation = format!("have {name} without a folder of the session's own");
        ProvisionError::unsupported(spec, operation)
    })?;
    provision.programs.push(ProvisionFile { path: name.into(), contents: contents.to_owned().into() });
    Ok(folder.join(name).to_string_lossy().into_owned())
}

/// Makes the provision of the agent of `spec`.
///
/// # Errors
/// [`ProvisionError`] names the part that the agent or the session lacks.
pub fn provision(spec: &AgentSpec, request: &ProvisionRequest<'_>) -> Result<Provision> {
    let Some(model) = spec.default_model().filter(|_| request.model_name().is_none()) else {
        return provisioned(spec, request);
    };
    let config = AgentSessionConfig { model: Some(model.to_owned()), ..request.config.clone() };
    provisioned(spec, &ProvisionRequest { config: &config, ..*request })
}

/// Refuses features that the row denies for its agent.
fn check_row(spec: &AgentSpec, request: &ProvisionRequest<'_>) -> Result<()> {
    let refused = |what: &str, field: &str| {
        let operation = format!("{what}: its row in the catalog says so (`{field}`)");
        Err(ProvisionError::unsupported(spec, operation))
    };
    if !request.config.mcp_servers.is_empty() && spec.discovery.supports_mcp == Some(false) {
        return refused("use MCP servers", "discovery.supports_mcp");
    }
    match spec.cannot_resume().filter(|_| request.resume.is_some()) {
        Some(field) => refused("go on with a conversation", field),
        None => Ok(()),
    }
}

fn provisioned(spec: &AgentSpec, request: &ProvisionRequest<'_>) -> Result<Provision> {
    check_row(spec, request)?;
    if request.config.max_turns == Some(0) {
        return Err(ProvisionError::unsupported(spec, "answer a prompt without a turn: give a max_turns of 1 or more"));
    }
    let mut provision = Provision {
        argv: spec.cmd.clone(),
        env: environment(spec, request),
        endpoint: endpoint(spec, request)?,
        cwd: working_dir(spec, request),
        model: request.model_name().map(str::to_owned),
        resume: request.resume.cloned(),
        ..Provision::default()
    };
    if request.config.driving_surface() == Surface::Both {
        provision.companion.clone_from(&spec.companion_cmd);
    }
    if request.config.terminal.is_some() && !spec.cmd.is_empty() {
        terminal::check(spec, request)?;
        provision.argv.clone_from(&spec.terminal_cmd);
    }
    let names_program = |provision: &Provision| provision.argv.first().is_some_and(|program| !program.is_empty());
    if provision.argv.is_empty() {
        // The session names the program, so its words come first.
        provision.argv.clone_from(&request.config.command);
    }
    provision.uses_entrypoint = request.config.container.image.is_some() && !names_program(&provision);
    (provision.agent_sandbox, provision.sandbox) = sandbox::sandbox(spec, request)?;
    flags::workspace(spec, request, &mut provision);
    flags::permissions(spec, request, &mut provision);
    match spec.agent_family() {
        Some(family) => (family.provision)(spec, request, &mut provision)?,
        None => data_only(spec, request, &mut provision)?,
    }
    if !spec.cmd.is_empty() {
        // The session's words come last, so that they override the row's.
        provision.argv.extend(request.config.command.iter().cloned());
    }
    if provision.endpoint.as_ref().is_some_and(|endpoint| endpoint.url.is_some()) {
        // The server already runs.
        provision.argv.clear();
    } else if !provision.uses_entrypoint && !names_program(&provision) {
        return Err(ProvisionError::NoCommand { agent: spec.id.clone() });
    }
    Ok(provision)
}

/// Completes the provision of a row without a family.
fn data_only(spec: &AgentSpec, request: &ProvisionRequest<'_>, provision: &mut Provision) -> Result<()> {
    if request.model.is_some_and(|model| model.key.is_some() || model.base_url.is_some())
        && !spec.env.0.values().any(|value| MODEL.iter().any(|placeholder| value.contains(placeholder)))
    {
        let operation =
            "use a model configuration: its row has no place for one (`protocol_config.config`, or {key} in `env`)";
        return Err(ProvisionError::unsupported(spec, operation));
    }
    if request.config.terminal.is_some()
        && let Some(id) = request.resume.and_then(|resume| resume.id.as_deref())
        && let Some(command) = spec.attach_command(id, None)
    {
        provision.argv = command;
    }
    flags::model(spec, provision);
    flags::resume(spec, provision)
}

/// Placeholders for the session's model configuration in a row's environment.
const MODEL: [&str; 4] = ["{key}", "{base_url}", "{model}", "{provider}"];

/// Returns the row's environment with its placeholders filled in.
fn environment(spec: &AgentSpec, request: &ProvisionRequest<'_>) -> EnvVars {
    let mut env = EnvVars::default();
    if request.model.is_none() {
        let inherited = |name: &String| Some((name.clone(), spec.inherited.0.get(name)?.clone()));
        env.0.extend(spec.required_env.iter().filter_map(inherited));
    }
    let filled = |(name, value): (&String, &String)| Some((name.clone(), fill(value, spec, request)?));
    env.0.extend(spec.env.0.iter().filter_map(filled));
    env
}

/// Returns a value with its placeholders filled in, or `None` if a placeholder has no value.
fn fill(value: &str, spec: &AgentSpec, request: &ProvisionRequest<'_>) -> Option<String> {
    if let Some(name) = caller_variable(value) {
        return spec.inherited.0.get(name).cloned();
    }
    let mut filled = value.to_owned();
    for placeholder in MODEL.iter().filter(|placeholder| value.contains(**placeholder)) {
        let text = match *placeholder {
            "{key}" => request.model?.key.as_ref()?.expose(),
            "{base_url}" => request.model?.base_url.as_deref()?,
            "{provider}" => &request.model?.provider,
            _ => request.model_name()?,
        };
        filled = filled.replace(placeholder, text);
    }
    Some(filled)
}

/// Returns `NAME` of a value `${NAME}`.
pub(crate) fn caller_variable(value: &str) -> Option<&str> {
    value.strip_prefix("${")?.strip_suffix('}')
}

/// Returns the directory that the row starts its agent in, if it is not the session's working directory.
fn working_dir(spec: &AgentSpec, request: &ProvisionRequest<'_>) -> Option<String> {
    if spec.working_dir.is_empty() || spec.working_dir == "{workspace}" {
        return None;
    }
    let home = request.home.or(request.shared_home).map(|home| home.to_string_lossy().into_owned());
    let workspace = request.config.cwd.as_deref().unwrap_or_default();
    Some(spec.working_dir.replace("{workspace}", workspace).replace("{home}", &home.unwrap_or_default()))
}

/// Parses the address of the running server that the session names: `http://user:password@127.0.0.1:4096`, with an optional password.
fn endpoint(spec: &AgentSpec, request: &ProvisionRequest<'_>) -> Result<Option<AgentEndpoint>> {
    let Some(url) = &request.config.endpoint else { return Ok(None) };
    if !spec.is_server() {
        return Err(ProvisionError::unsupported(spec, "be reached at an address: it has no server of its own"));
    }
    let refused = || ProvisionError::unsupported(spec, "be reached at such an address: give http://HOST:PORT");
    let address = url.strip_prefix("http://").ok_or_else(refused)?;
    let (login, host) = address.rsplit_once('@').map_or((None, address), |(login, host)| (Some(login), host));
    let (user, password) = match login.map(|login| login.split_once(':').unwrap_or((login, ""))) {
        Some((user, password)) => (user, Some(password).filter(|password| !password.is_empty())),
        None => ("", None),
    };
    let host = host.trim_end_matches('/');
    if host.is_empty() || host.contains('/') {
        return Err(refused());
    }
    Ok(Some(AgentEndpoint {
        url: Some(format!("http://{host}")),
        user: user.to_owned(),
        password: password.map(str::to_owned),
    }))
}
