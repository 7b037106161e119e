//! Argv, environment and files of Codex, and of its ACP wrapper (`codex-acp`).
//!
//! A session with a home of its own has its `CODEX_HOME` there. A model configuration is written to files in it. So the key is in no
//! argument and not in the environment, which Codex passes on to the commands that it runs.

use ipc_protocol::AgentSandbox;
use serde_json::{Map, json};
use sha2::{Digest, Sha256};
use toml::{Table, Value};

use super::{
    Provision, ProvisionError, ProvisionFile, ProvisionRequest, Result,
    hooks::{self, HookCommands},
};
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
        let is_visit = request.config.terminal.as_ref().is_some_and(|terminal| terminal.visit);
        if is_visit && super::asks(request.config) {
            // As its other process is told by the protocol.
            provision.argv.extend(["-c".to_owned(), format!("approval_policy={}", Value::from("untrusted"))]);
        }
        if let Some(commands) = hooks::commands(request, provision) {
            provision.argv.extend(screen_hooks(&commands, super::is_bound(request.config)));
        }
    }
    if let Some(model) = provision.model.take().filter(|_| request.home.is_none()) {
        provision.argv.extend(["--model".to_owned(), model]);
    }
}

/// Returns overrides with the hooks of its own screen. No file has them, and Codex reviews only what is new to it: so a user's hooks stay
/// as they are, and a repository's stay as untrusted as they were. A hook that asks decides before each call of a tool, too: Codex's own
/// dialog comes only where it wants to leave its sandbox.
fn screen_hooks(HookCommands { report, ask }: &HookCommands, is_bound: bool) -> Vec<String> {
    let reporting = |event| (event, report, hooks::REPORT_TIMEOUT);
    let asking = |event| (event, ask, hooks::ASK_TIMEOUT);
    let mut hooks = ["SessionStart", "UserPromptSubmit", "PostToolUse", "Stop"].map(reporting).to_vec();
    hooks.push(if is_bound { asking("PreToolUse") } else { reporting("PreToolUse") });
    hooks.extend(is_bound.then(|| asking("PermissionRequest")));
    let mut trusted = Table::new();
    let mut flags = Vec::new();
    for (event, command, timeout) in hooks {
        let mut hook = Table::from_iter([("type".to_owned(), Value::from("command"))]);
        hook.insert("command".to_owned(), command.as_str().into());
        hook.insert("timeout".to_owned(), Value::Integer(i64::try_from(timeout).unwrap_or(i64::MAX)));
        let group = Table::from_iter([("hooks".to_owned(), Value::Array(vec![hook.into()]))]);
        flags.extend(["-c".to_owned(), format!("hooks.{event}={}", Value::Array(vec![group.into()]))]);
        let label = snake_case(event);
        let hash = Table::from_iter([("trusted_hash".to_owned(), Value::from(trusted_hash(&label, command, timeout)))]);
        trusted.insert(format!("/<session-flags>/config.toml:{label}:0:0"), hash.into());
    }
    flags.extend(["-c".to_owned(), format!("hooks.state={}", Value::Table(trusted))]);
    flags
}

/// Returns what Codex writes down of a hook that its user trusts.
fn trusted_hash(event: &str, command: &str, timeout: u64) -> String {
    let command = json!(command);
    let identity = format!(
        r#"{{"event_name":"{event}","hooks":[{{"async":false,"command":{command},"timeout":{timeout},"type":"command"}}]}}"#
    );
    let digits: String = Sha256::digest(identity).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{digits}")
}

/// Returns `PreToolUse` as `pre_tool_use`.
fn snake_case(name: &str) -> String {
    let word = |(at, char): (usize, char)| {
        let between = (at > 0 && char.is_ascii_uppercase()).then_some('_');
        between.into_iter().chain([char.to_ascii_lowercase()])
    };
    name.char_indices().flat_map(word).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hooks_are_trusted_as_codex_does() {
        // As Codex 0.169.0 wrote it down.
        let hash = "sha256:b3f74614b374249fa15876bd7a03932e777cc3a48427d18f6ec1fb50ff9a7ead";
        assert_eq!(trusted_hash(&snake_case("PreToolUse"), "/tmp/hB/hook2.sh", 600), hash);
        let commands = HookCommands { report: "say 'it'".to_owned(), ask: "a \"b\"".to_owned() };
        for (is_bound, asking) in [(false, 0), (true, 2)] {
            let flags = screen_hooks(&commands, is_bound);
            let text: Vec<&String> = flags.iter().filter(|flag| *flag != "-c").collect();
            assert_eq!(
                text.iter().filter(|text| text.contains(r#"a \"b\""#) || text.contains("'a \"b\"'")).count(),
                asking
            );
            for text in text {
                let (name, value) = text.split_once('=').expect("an assignment");
                let parsed: Table = format!("value={value}").parse().expect("TOML");
                assert!(!value.contains('\n') && parsed.contains_key("value"), "{name} {value}");
            }
        }
    }
}
