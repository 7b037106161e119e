//! Argv, environment and files of Codex, and of its ACP wrapper (`codex-acp`).
//!
//! A session with a home of its own has its `CODEX_HOME` there. A model configuration is written to files in it. So the key is in no
//! argument and not in the environment, which Codex passes on to the commands that it runs.

use ipc_protocol::AgentSandbox;
use serde_json::{Map, json};
use toml::{Table, Value};

use super::{Provision, ProvisionError, ProvisionFile, ProvisionRequest, Result};
use crate::{
    AgentSpec, ModelApi, ModelConfig,
    conversations::{ConversationStorage, StorageFormat},
    family::{AgentFamily, FamilySandbox},
};

/// Directory `CODEX_HOME`, relative to the session's home.
const CODEX_HOME: &str = ".codex";
/// The program that has Codex ask, in the session's folder, and its script beside it.
const ASKING: &str = "codex-asking";
const ASKING_SCRIPT: &str = "codex-asking.cjs";
/// Socket of the app-server, in the session's folder; `MAX_SOCKET` is the longest path that the system takes.
const SOCKET: &str = "codex.sock";
const MAX_SOCKET: usize = 107;
/// Name of a model configuration's provider in `config.toml`.
const PROVIDER: &str = "session";

/// Codex and its ACP wrappers.
pub(crate) const FAMILY: AgentFamily = AgentFamily {
    name: "codex",
    provision,
    sandbox: FamilySandbox::Codex("config.toml"),
    storage: ConversationStorage {
        roots: &[("CODEX_HOME", ""), ("HOME", CODEX_HOME)],
        format: StorageFormat::LineFiles("sessions"),
        pid_records: None,
    },
};

/// Adds to `provision`, which already has the row's own argv and environment; the session's `command` is appended later.
fn provision(spec: &AgentSpec, request: &ProvisionRequest<'_>, provision: &mut Provision) -> Result<()> {
    if spec.protocol == "acp" {
        provision.argv.extend(overrides(request, provision.agent_sandbox));
        wrapper(request, provision);
    }
    if request.config.terminal.is_some() {
        on_screen(request, provision);
    }
    if !provision.companion.is_empty() {
        server(spec, request, provision)?;
    }
    let Some(home) = request.home else {
        return match request.model {
            Some(_) => Err(ProvisionError::NeedsHome { agent: spec.id.clone(), what: "a model configuration" }),
            None => Ok(()),
        };
    };
    let codex_home = home.join(CODEX_HOME).to_string_lossy().into_owned();
    provision.env.0.insert("CODEX_HOME".to_owned(), codex_home);
    let mut config = own_home_settings();
    if let Some(name) = request.model_name() {
        config.insert("model".to_owned(), name.into());
    }
    if let Some(model) = request.model {
        provider(spec, model, &mut config, provision)?;
    }
    if let (Some(_), Some(cwd)) = (&request.config.terminal, &request.config.cwd) {
        // Its screen begins with a dialog else.
        let trusted = Table::from_iter([("trust_level".to_owned(), Value::from("trusted"))]);
        config.insert("projects".to_owned(), Table::from_iter([(cwd.clone(), trusted.into())]).into());
    }
    file("config.toml", config.to_string(), provision);
    Ok(())
}

/// Has the app-server listen on a socket in the session's folder, for its screen and for us.
fn server(spec: &AgentSpec, request: &ProvisionRequest<'_>, provision: &mut Provision) -> Result<()> {
    let refused = |operation: String| ProvisionError::unsupported(spec, operation);
    if request.config.ephemeral {
        let operation =
            "show its screen beside its protocol and keep nothing of a conversation: the screen reads its file";
        return Err(refused(operation.to_owned()));
    }
    let folder = request.shim_dir.ok_or_else(|| refused("listen without a folder of the session's own".to_owned()))?;
    let socket = folder.join(SOCKET).to_string_lossy().into_owned();
    if socket.len() > MAX_SOCKET {
        let operation = format!(
            "listen at {socket:?}: a socket's path has {MAX_SOCKET} bytes at most; name a shorter state directory, or a shorter id"
        );
        return Err(refused(operation));
    }
    let endpoint = format!("unix://{socket}");
    provision.argv.extend(["--listen".to_owned(), endpoint.clone()]);
    provision.companion.iter_mut().for_each(|word| *word = word.replace("{endpoint}", &endpoint));
    provision.socket = Some(socket);
    Ok(())
}

/// Adds the arguments of its own screen.
fn on_screen(request: &ProvisionRequest<'_>, provision: &mut Provision) {
    if let Some(resume) = request.resume {
        provision.argv.push(if resume.fork { "fork" } else { "resume" }.to_owned());
        provision.argv.push(resume.id.clone().unwrap_or_else(|| "--last".to_owned()));
    }
    // By default it runs its turns in a daemon of its own, which outlives it and keeps an older configuration.
    let starts_screen = |word: &String| word.starts_with('-') || matches!(word.as_str(), "resume" | "fork");
    if request.config.command.first().is_none_or(starts_screen) {
        provision.argv.push("--no-daemon".to_owned());
    }
    if let Some(model) = provision.model.take().filter(|_| request.home.is_none()) {
        provision.argv.extend(["--model".to_owned(), model]);
    }
}

fn file(name: &str, contents: String, provision: &mut Provision) {
    provision.files.push(ProvisionFile { path: [CODEX_HOME, name].iter().collect(), contents: contents.into() });
}

/// The app-server is told by its protocol; over ACP there is no way but these, for `@zed-industries/codex-acp`.
fn overrides(request: &ProvisionRequest<'_>, sandbox: Option<AgentSandbox>) -> Vec<String> {
    let config = request.config;
    let mut set = Vec::new();
    if let Some(model) = request.model_name() {
        set.push(("model", model));
    }
    if let Some(level) = config.thinking.as_deref() {
        set.push(("model_reasoning_effort", crate::codex::effort(level)));
    }
    // A mode of the session selects the preset of that name, which decides what needs permission. Codex asks most when it trusts
    // nothing and tries nothing in its sandbox first.
    if config.mode.is_none() {
        let approval = match (super::allows_all(config), sandbox) {
            (true, Some(AgentSandbox::None)) => "never",
            // Else nothing would ever leave the sandbox.
            (true, _) => "on-request",
            (false, _) => "untrusted",
        };
        set.push(("approval_policy", approval));
        set.extend(sandbox.map(|sandbox| ("sandbox_mode", crate::codex::sandbox(sandbox))));
    }
    set.into_iter().flat_map(|(key, value)| ["-c".to_owned(), format!("{key}={}", Value::from(value))]).collect()
}

/// Sets up `@agentclientprotocol/codex-acp`, which reads no argument. Of its modes none asks for all that is asked for here,
/// so a program of ours stands between it and Codex, and has Codex ask. Its predecessor reads none of these.
fn wrapper(request: &ProvisionRequest<'_>, provision: &mut Provision) {
    let config = request.config;
    let mut set = Map::new();
    if let Some(model) = request.model_name() {
        set.insert("model".to_owned(), model.into());
    }
    if let Some(level) = config.thinking.as_deref() {
        set.insert("model_reasoning_effort".to_owned(), crate::codex::effort(level).into());
    }
    if !set.is_empty() {
        provision.env.0.insert("CODEX_CONFIG".to_owned(), json!(set).to_string());
    }
    // It has one mode for each sandbox.
    let mode = match (provision.agent_sandbox, provision.sandbox.as_deref()) {
        (Some(AgentSandbox::ReadOnly), _) | (None, Some("read-only")) => Some("read-only"),
        (Some(AgentSandbox::WorkspaceWrite), _) | (None, Some("workspace-write")) => Some("workspace-write"),
        (Some(AgentSandbox::None), _) | (None, Some("none")) => Some("agent-full-access"),
        (None, _) => None,
    };
    if let Some(mode) = mode.filter(|_| config.mode.is_none()) {
        provision.env.0.insert("INITIAL_AGENT_MODE".to_owned(), mode.to_owned());
    }
    if let Some(folder) = request.shim_dir.filter(|_| !super::allows_all(config)) {
        let program = |path: &str, text: &str| ProvisionFile { path: path.into(), contents: text.to_owned().into() };
        provision.programs.push(program(ASKING, include_str!("codex-asking.sh")));
        provision.programs.push(program(ASKING_SCRIPT, include_str!("codex-asking.cjs")));
        provision.env.0.insert("CODEX_PATH".to_owned(), folder.join(ASKING).to_string_lossy().into_owned());
    }
}

/// A home of a session's own is for that session: nothing is looked up or sent for it.
fn own_home_settings() -> Table {
    let mut config = Table::new();
    config.insert("check_for_update_on_startup".to_owned(), false.into());
    config.insert("cli_auth_credentials_store".to_owned(), "file".into());
    config.insert("analytics".to_owned(), Table::from_iter([("enabled".to_owned(), Value::from(false))]).into());
    config
}

fn provider(spec: &AgentSpec, model: &ModelConfig, config: &mut Table, provision: &mut Provision) -> Result<()> {
    if model.api() != ModelApi::OpenaiResponses {
        let operation = format!("use model configuration {:?}: it speaks only with OpenAI's Responses", model.name);
        return Err(ProvisionError::unsupported(spec, operation));
    }
    let key = model.key.as_ref().map(crate::Secret::expose);
    let base_url = match (&model.base_url, model.provider.as_str()) {
        (Some(url), _) => url,
        (None, "openai") => {
            // Codex's own provider has features that no other has.
            if let Some(key) = key {
                file("auth.json", json!({ "OPENAI_API_KEY": key }).to_string(), provision);
            }
            return Ok(());
        }
        (None, _) => {
            let operation = format!("use model configuration {:?}: it has no base_url", model.name);
            return Err(ProvisionError::unsupported(spec, operation));
        }
    };
    let mut table = Table::new();
    table.insert("name".to_owned(), model.provider.as_str().into());
    table.insert("base_url".to_owned(), base_url.as_str().into());
    table.insert("wire_api".to_owned(), "responses".into());
    table.insert("supports_websockets".to_owned(), false.into());
    if let Some(key) = key {
        table.insert("experimental_bearer_token".to_owned(), key.into());
    }
    config.insert("model_provider".to_owned(), PROVIDER.into());
    config.insert("model_providers".to_owned(), Table::from_iter([(PROVIDER.to_owned(), table.into())]).into());
    Ok(())
}
