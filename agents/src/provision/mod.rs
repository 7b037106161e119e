//! What an agent is started with: its whole argv, its environment, and the files that its home needs, from its catalog row and
//! the session's configuration. Pure: the host writes the files and starts the program.
//!
//! `protocol_config.config` of a row names the *family* whose configuration files its agent reads. A family's function gets the
//! [`Provision`] with the row's own argv and environment and the endpoint that the session names, and adds everything that the
//! agent takes by argument, environment or file: model, mode, thinking, resume, keys, MCP servers. A row without a family is
//! all data: its model flag and its resume flag are applied here, and the rest is its adapter's. The workspace flag and the
//! permission flags are applied here for every row.

mod claude;
mod codex;
mod flags;
mod gemini;
mod opencode;
mod pi;
mod sandbox;

use std::path::{Path, PathBuf};

use ipc_protocol::{AgentSandbox, AgentSessionConfig, Endpoint, EnvVars, NativeResume, PermissionMode};

pub use self::sandbox::{default_sandbox, sandbox_program, settings_file};
use crate::{AgentSpec, ModelConfig, Secret};

/// What a provision is made from.
#[derive(Clone, Copy, Debug)]
pub struct ProvisionRequest<'a> {
    /// The session: its profile applied, `cwd` filled in.
    pub config: &'a AgentSessionConfig,
    /// The model configuration it names.
    pub model: Option<&'a ModelConfig>,
    /// The session's own home directory, if it has one: absolute, it exists, and it is nobody else's.
    pub home: Option<&'a Path>,
    /// The home directory of the base environment.
    pub shared_home: Option<&'a Path>,
    /// The text of [`settings_file`], where the agent has the shared home and there is one.
    pub user_settings: Option<&'a str>,
    /// Where [`Provision::programs`] are, or would be: absolute, and nobody else's. Needed where [`needs_folder`] says so.
    pub folder: Option<&'a Path>,
    /// The conversation to go on with.
    pub resume: Option<&'a NativeResume>,
    /// A fresh UUID, for agents that let the caller name a new conversation.
    pub fresh_id: &'a str,
    /// A fresh secret, for agents whose server wants one.
    pub fresh_secret: &'a Secret,
}

/// A file that is written before the agent starts: mode 0600, its directories 0700.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProvisionFile {
    /// Relative to the session's own home, or to its folder.
    pub path: PathBuf,
    /// May hold keys.
    pub contents: Secret,
}

/// What an agent is started with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Provision {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Environment, above the manager's base and beneath the session's own. May hold keys.
    pub env: EnvVars,
    /// What its home needs.
    pub files: Vec<ProvisionFile>,
    /// Programs of ours that it runs: mode 0700, relative to the session's folder, which goes when the session ends.
    pub programs: Vec<ProvisionFile>,
    /// The agent's server, if it speaks HTTP.
    pub endpoint: Option<Endpoint>,
    /// Where it starts; `None` for the session's working directory.
    pub cwd: Option<String>,
    /// The model that the adapter is told. Taken out where an argument or a file has it and the protocol must not set it again.
    pub model: Option<String>,
    /// The conversation that the adapter is told. Taken out where an argument has it and the protocol must not load it again.
    pub resume: Option<NativeResume>,
    /// The sandbox of the agent's own that the adapter asks for. `None` where a file or an argument says it.
    pub agent_sandbox: Option<AgentSandbox>,
    /// The sandbox of the agent's own, in words; `None` where it is not known.
    pub sandbox: Option<String>,
}

/// Why an agent cannot be started so.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum ProvisionError {
    /// The agent cannot do what the session asks for.
    #[error("agent {agent:?} cannot {operation}")]
    Unsupported {
        /// Its catalog id.
        agent: String,
        /// What was asked.
        operation: String,
    },
    /// The row leaves the program open and the session did not say.
    #[error("agent {agent:?} runs the program that the session's command names, and it names none")]
    NoCommand {
        /// The row.
        agent: String,
    },
    /// What is asked for is written to files, and the session has no home of its own to write them to.
    #[error("agent {agent:?} takes {what} from a file in its home: give the session a home of its own")]
    NeedsHome {
        /// Its catalog id.
        agent: String,
        /// What was asked.
        what: &'static str,
    },
}

impl ProvisionError {
    /// The agent of `spec` cannot `operation` (the end of "agent … cannot").
    pub fn unsupported(spec: &AgentSpec, operation: impl Into<String>) -> Self {
        Self::Unsupported { agent: spec.id.clone(), operation: operation.into() }
    }
}

impl ProvisionRequest<'_> {
    /// The model to use: the session's, else the model configuration's.
    pub fn model_name(&self) -> Option<&str> {
        self.config.model.as_deref().or_else(|| self.model?.model.as_deref())
    }
}

/// Refuses what a session's policy would only seem to hold: an agent that is made to ask by a file, without a home for it. In mode
/// `ask`, where nothing is ruled out, what the agent does by its own rules and the user's stays between these two.
///
/// # Errors
/// [`ProvisionError::NeedsHome`] where there are rules, or the mode is to refuse.
fn made_to_ask(spec: &AgentSpec, request: &ProvisionRequest<'_>) -> Result<(), ProvisionError> {
    let config = request.config;
    let refuses = matches!(config.permission_mode, PermissionMode::Deny | PermissionMode::ReadOnly);
    if request.home.is_none() && (refuses || !config.permissions.rules.is_empty()) {
        return Err(ProvisionError::NeedsHome { agent: spec.id.clone(), what: "what makes it ask for permission" });
    }
    Ok(())
}

/// Whether what the agent of `spec` is started with has programs.
pub fn needs_folder(spec: &AgentSpec) -> bool {
    match spec.family() {
        Some("opencode") => spec.protocol != "acp",
        Some("codex") => spec.protocol == "acp",
        _ => false,
    }
}

/// What the agent of `spec` is started with.
///
/// # Errors
/// [`ProvisionError`] says what cannot be had.
pub fn provision(spec: &AgentSpec, request: &ProvisionRequest<'_>) -> Result<Provision, ProvisionError> {
    let Some(model) = spec.default_model().filter(|_| request.model_name().is_none()) else {
        return provisioned(spec, request);
    };
    let config = AgentSessionConfig { model: Some(model.to_owned()), ..request.config.clone() };
    provisioned(spec, &ProvisionRequest { config: &config, ..*request })
}

/// Refuses what the row says that its agent cannot.
fn within_row(spec: &AgentSpec, request: &ProvisionRequest<'_>) -> Result<(), ProvisionError> {
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

fn provisioned(spec: &AgentSpec, request: &ProvisionRequest<'_>) -> Result<Provision, ProvisionError> {
    within_row(spec, request)?;
    let mut provision = Provision {
        argv: spec.cmd.clone(),
        env: environment(spec, request),
        endpoint: endpoint(spec, request)?,
        cwd: working_dir(spec, request),
        model: request.model_name().map(str::to_owned),
        resume: request.resume.cloned(),
        ..Provision::default()
    };
    if provision.argv.is_empty() {
        // The session names the program, so its words come first.
        provision.argv.clone_from(&request.config.command);
    }
    (provision.agent_sandbox, provision.sandbox) = sandbox::sandbox(spec, request)?;
    flags::workspace(spec, request, &mut provision);
    flags::permissions(spec, request, &mut provision);
    match spec.family() {
        Some("claude") => claude::provision(spec, request, &mut provision)?,
        Some("codex") => codex::provision(spec, request, &mut provision)?,
        Some("gemini") => gemini::provision(spec, request, &mut provision)?,
        Some("opencode") => opencode::provision(spec, request, &mut provision)?,
        Some("pi") => pi::provision(spec, request, &mut provision)?,
        _ => data_only(spec, request, &mut provision)?,
    }
    if !spec.cmd.is_empty() {
        // What the session adds comes last: it is the user's word.
        provision.argv.extend(request.config.command.iter().cloned());
    }
    if provision.endpoint.as_ref().is_some_and(|endpoint| endpoint.url.is_some()) {
        // It runs already.
        provision.argv.clear();
    } else if provision.argv.first().is_none_or(String::is_empty) {
        return Err(ProvisionError::NoCommand { agent: spec.id.clone() });
    }
    Ok(provision)
}

/// A row without a family.
fn data_only(
    spec: &AgentSpec,
    request: &ProvisionRequest<'_>,
    provision: &mut Provision,
) -> Result<(), ProvisionError> {
    if request.model.is_some_and(|model| model.key.is_some() || model.base_url.is_some())
        && !spec.env.0.values().any(|value| MODEL.iter().any(|placeholder| value.contains(placeholder)))
    {
        let operation =
            "use a model configuration: its row has no place for one (`protocol_config.config`, or {key} in `env`)";
        return Err(ProvisionError::unsupported(spec, operation));
    }
    flags::model(spec, provision);
    flags::resume(spec, provision)
}

/// What stands for the session's model configuration in a row's environment.
const MODEL: [&str; 4] = ["{key}", "{base_url}", "{model}", "{provider}"];

/// The row's environment, filled in.
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

/// A value with its placeholders filled in; `None` where there is nothing to fill one in with.
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

/// `NAME` of a value `${NAME}`.
pub(crate) fn caller_variable(value: &str) -> Option<&str> {
    value.strip_prefix("${")?.strip_suffix('}')
}

/// Where the row starts its agent, if not in the session's working directory.
fn working_dir(spec: &AgentSpec, request: &ProvisionRequest<'_>) -> Option<String> {
    if spec.working_dir.is_empty() || spec.working_dir == "{workspace}" {
        return None;
    }
    let home = request.home.or(request.shared_home).map(|home| home.to_string_lossy().into_owned());
    let workspace = request.config.cwd.as_deref().unwrap_or_default();
    Some(spec.working_dir.replace("{workspace}", workspace).replace("{home}", &home.unwrap_or_default()))
}

/// The running server that the session names. `http://user:password@127.0.0.1:4096`: the password may be left out.
fn endpoint(spec: &AgentSpec, request: &ProvisionRequest<'_>) -> Result<Option<Endpoint>, ProvisionError> {
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
    Ok(Some(Endpoint {
        url: Some(format!("http://{host}")),
        user: user.to_owned(),
        password: password.map(str::to_owned),
    }))
}
