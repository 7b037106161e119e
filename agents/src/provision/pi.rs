//! Argv, environment and files of Pi.
//!
//! The extension that asks for permission is in the session's folder, so that it works in any home. A session with a home of its own has
//! Pi's directory there. It contains a model configuration with its key, and the system prompt.

use std::path::Path;

use ipc_protocol::terminal::Surface;
use serde_json::{Value, json};

use super::{Provision, ProvisionError, ProvisionFile, ProvisionRequest, Result, pi_mcp};
use crate::{
    AgentSpec, ModelApi, ModelConfig,
    conversations::{ConversationStorage, StorageFormat},
    family::{AgentFamily, FamilySandbox},
};

/// Pi's directory, relative to the session's home.
const AGENT_DIR: &str = ".pi/agent";
/// Extension that asks for permission, in the session's folder.
const EXTENSION: &str = "permissions.js";
/// Extension with which its own screen speaks its protocol, its pipes beside it, and the variable that has it ask for permission.
const SCREEN: &str = "screen.js";
const REPORTS: &str = "screen-reports";
const COMMANDS: &str = "screen-commands";
const ASKS: &str = "AGENT_PROXY_PI_ASKS";
const SYSTEM_PROMPT: &str = ".pi/system-prompt.md";
/// Name in `models.json` of a model configuration's provider that has an address.
const PROVIDER: &str = "session";
/// Providers that Pi knows by these names, with their APIs.
const KNOWN: [(&str, ModelApi); 3] =
    [("anthropic", ModelApi::AnthropicMessages), ("openai", ModelApi::OpenaiResponses), ("google", ModelApi::Gemini)];

/// Pi.
pub(crate) const FAMILY: AgentFamily = AgentFamily {
    name: "pi",
    provision,
    sandbox: FamilySandbox::Absent,
    storage: ConversationStorage {
        roots: &[
            ("PI_CODING_AGENT_SESSION_DIR", ""),
            ("PI_CODING_AGENT_DIR", "sessions"),
            ("HOME", ".pi/agent/sessions"),
        ],
        format: StorageFormat::LineFiles(""),
        pid_records: None,
    },
};

/// Adds to `provision`, which already has the row's own argv and environment; the session's `command` is appended later.
fn provision(spec: &AgentSpec, request: &ProvisionRequest<'_>, provision: &mut Provision) -> Result<()> {
    let config = request.config;
    let needs_home = |what| ProvisionError::NeedsHome { agent: spec.id.clone(), what };
    // Pi connects to nothing but the model.
    for (name, value) in [("PI_OFFLINE", "1"), ("PI_SKIP_VERSION_CHECK", "1"), ("PI_TELEMETRY", "0")] {
        provision.env.0.entry(name.to_owned()).or_insert_with(|| value.to_owned());
    }
    if let Some(home) = request.home {
        provision.env.0.insert("PI_CODING_AGENT_DIR".to_owned(), path(home, AGENT_DIR));
    }
    if let Some(model) = request.model {
        request.home.ok_or_else(|| needs_home("a model configuration"))?;
        let provider = provider(spec, request, model, provision)?;
        flag("--provider", provider, provision);
    }
    if let Some(model) = request.model_name() {
        flag("--model", model, provision);
    }
    if let Some(thinking) = &config.thinking {
        flag("--thinking", thinking, provision);
    }
    if !config.tools.is_empty() {
        flag("--tools", &config.tools.join(","), provision);
    }
    match (&config.system_prompt, request.home) {
        (Some(prompt), Some(home)) => {
            file(SYSTEM_PROMPT, prompt.clone(), provision);
            flag("--append-system-prompt", &path(home, SYSTEM_PROMPT), provision);
        }
        (Some(prompt), None) => flag("--append-system-prompt", prompt, provision),
        (None, _) => {}
    }
    if config.driving_surface() == Surface::Both {
        on_screen(spec, request, provision)?;
    } else if super::asks(config) {
        let extension = super::shim_file(spec, request, EXTENSION, include_str!("pi-permissions.js"), provision)?;
        flag("--extension", &extension, provision);
    }
    pi_mcp::bridge(spec, request, provision)?;
    conversation(spec, request, provision)
}

/// Has its own screen speak its protocol, through two pipes in the session's folder.
fn on_screen(spec: &AgentSpec, request: &ProvisionRequest<'_>, provision: &mut Provision) -> Result<()> {
    let extension = super::shim_file(spec, request, SCREEN, include_str!("pi-screen.js"), provision)?;
    let beside = |name: &str| Path::new(&extension).with_file_name(name).to_string_lossy().into_owned();
    (provision.reports, provision.commands) = (Some(beside(REPORTS)), Some(beside(COMMANDS)));
    if super::asks(request.config) {
        provision.env.0.insert(ASKS.to_owned(), "1".to_owned());
    }
    flag("--extension", &extension, provision);
    Ok(())
}

/// Adds the conversation to continue. The adapter copies the most recent one.
fn conversation(spec: &AgentSpec, request: &ProvisionRequest<'_>, provision: &mut Provision) -> Result<()> {
    match request.resume {
        // Pi would silently start a new conversation.
        Some(_) if request.config.ephemeral => {
            return Err(ProvisionError::unsupported(spec, "keep nothing of a conversation that it goes on with"));
        }
        Some(resume) => match &resume.id {
            Some(id) if resume.fork => flag("--fork", id, provision),
            Some(id) => flag("--session", id, provision),
            None => provision.argv.push("--continue".to_owned()),
        },
        None if request.config.ephemeral => provision.argv.push("--no-session".to_owned()),
        None => {}
    }
    Ok(())
}

fn path(home: &Path, below: &str) -> String {
    home.join(below).to_string_lossy().into_owned()
}

fn flag(name: &str, value: &str, provision: &mut Provision) {
    provision.argv.extend([name.to_owned(), value.to_owned()]);
}

fn file(path: &str, contents: String, provision: &mut Provision) {
    provision.files.push(ProvisionFile { path: path.into(), contents: contents.into() });
}

/// Writes a model configuration and returns the name of its provider.
fn provider<'a>(
    spec: &AgentSpec,
    request: &ProvisionRequest<'_>,
    model: &'a ModelConfig,
    provision: &mut Provision,
) -> Result<&'a str> {
    let key = model.key.as_ref().map(|key| literal(key.expose()));
    let Some(base_url) = &model.base_url else {
        let known = KNOWN.iter().any(|known| *known == (model.provider.as_str(), model.api()));
        if !known {
            let operation = format!("use model configuration {:?}: it has no base_url", model.name);
            return Err(ProvisionError::unsupported(spec, operation));
        }
        if let Some(key) = key {
            let auth = json!({ &model.provider: { "type": "api_key", "key": key } });
            file(&format!("{AGENT_DIR}/auth.json"), auth.to_string(), provision);
        }
        return Ok(&model.provider);
    };
    let Some(name) = request.model_name() else {
        let operation = format!("use model configuration {:?}: it names no model", model.name);
        return Err(ProvisionError::unsupported(spec, operation));
    };
    let (api, base_url) = match model.api() {
        // Pi adds the version itself here.
        ModelApi::AnthropicMessages => ("anthropic-messages", base_url.trim_end_matches('/').trim_end_matches("/v1")),
        ModelApi::OpenaiResponses => ("openai-responses", base_url.as_str()),
        ModelApi::OpenaiChat => ("openai-completions", base_url.as_str()),
        ModelApi::Gemini => ("google-generative-ai", base_url.as_str()),
    };
    let thinks = request.config.thinking.as_deref().is_some_and(|level| level != "off");
    // A session that starts with another model can switch to the configuration's.
    let names = [Some(name), model.model.as_deref().filter(|configured| *configured != name)];
    let models = names.into_iter().flatten();
    let models: Vec<Value> =
        models.map(|name| json!({ "id": name, "reasoning": thinks, "input": ["text", "image"] })).collect();
    let provider = json!({
        "baseUrl": base_url,
        "api": api,
        // Pi does not offer the models of a provider without a key.
        "apiKey": key.unwrap_or_else(|| "none".to_owned()),
        "models": models,
    });
    let providers = json!({ "providers": { PROVIDER: provider } });
    file(&format!("{AGENT_DIR}/models.json"), providers.to_string(), provision);
    Ok(PROVIDER)
}

/// Escapes a key for Pi: a leading `!` would start a command, and `$` the name of a variable.
fn literal(key: &str) -> String {
    let escaped = key.replace('$', "$$");
    match escaped.strip_prefix('!') {
        Some(rest) => format!("$!{rest}"),
        None => escaped,
    }
}
