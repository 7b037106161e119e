//! What Codex, and what runs it (`codex-acp`), is started with.
//!
//! A session with a home of its own has its `CODEX_HOME` there. A model configuration is written to files in it, so that the key
//! is in no argument and in no environment, which Codex passes on to the commands that it runs.

use ipc_protocol::PermissionMode;
use serde_json::json;
use toml::{Table, Value};

use super::{Provision, ProvisionError, ProvisionFile, ProvisionRequest};
use crate::{AgentSpec, ModelApi, ModelConfig};

/// `CODEX_HOME`, below the session's home.
const CODEX_HOME: &str = ".codex";
/// What the provider of a model configuration is called in `config.toml`.
const PROVIDER: &str = "session";

/// Adds to `provision`, which has the row's own argv and environment already; the session's `command` is appended later.
pub(super) fn provision(
    spec: &AgentSpec,
    request: &ProvisionRequest<'_>,
    provision: &mut Provision,
) -> Result<(), ProvisionError> {
    if spec.protocol == "acp" {
        provision.argv.extend(overrides(request));
    }
    let Some(home) = request.home else {
        return match request.model {
            Some(_) => Err(ProvisionError::NeedsHome { agent: spec.id.clone(), what: "a model configuration" }),
            None => Ok(()),
        };
    };
    let codex_home = home.join(CODEX_HOME).to_string_lossy().into_owned();
    provision.env.0.insert("CODEX_HOME".to_owned(), codex_home);
    let mut config = quiet();
    if let Some(name) = request.model_name() {
        config.insert("model".to_owned(), name.into());
    }
    if let Some(model) = request.model {
        provider(spec, model, &mut config, provision)?;
    }
    file("config.toml", config.to_string(), provision);
    Ok(())
}

fn file(name: &str, contents: String, provision: &mut Provision) {
    provision.files.push(ProvisionFile { path: [CODEX_HOME, name].iter().collect(), contents: contents.into() });
}

/// The app-server is told by its protocol; over ACP there is no way but these.
fn overrides(request: &ProvisionRequest<'_>) -> Vec<String> {
    let config = request.config;
    let mut set = Vec::new();
    if let Some(model) = request.model_name() {
        set.push(("model", model));
    }
    if let Some(level) = config.thinking.as_deref() {
        set.push(("model_reasoning_effort", crate::codex::effort(level)));
    }
    // With a mode of the session's own the preset of that name says what is asked for. Codex asks for most when nothing is
    // trusted and nothing is tried in its sandbox first.
    if config.mode.is_none() {
        let allowed = config.permission_mode == PermissionMode::Allow && config.permissions.rules.is_empty();
        set.push(("approval_policy", if allowed { "never" } else { "untrusted" }));
        set.push(("sandbox_mode", "danger-full-access"));
    }
    set.into_iter().flat_map(|(key, value)| ["-c".to_owned(), format!("{key}={}", Value::from(value))]).collect()
}

/// A home of a session's own is for that session: nothing is looked up or sent for it.
fn quiet() -> Table {
    let mut config = Table::new();
    config.insert("check_for_update_on_startup".to_owned(), false.into());
    config.insert("cli_auth_credentials_store".to_owned(), "file".into());
    config.insert("analytics".to_owned(), Table::from_iter([("enabled".to_owned(), Value::from(false))]).into());
    config
}

fn provider(
    spec: &AgentSpec,
    model: &ModelConfig,
    config: &mut Table,
    provision: &mut Provision,
) -> Result<(), ProvisionError> {
    if model.api() != ModelApi::OpenaiResponses {
        let operation = format!("use model configuration {:?}: it speaks only with OpenAI's Responses", model.name);
        return Err(ProvisionError::unsupported(spec, operation));
    }
    let key = model.key.as_ref().map(crate::Secret::expose);
    let base_url = match (&model.base_url, model.provider.as_str()) {
        (Some(url), _) => url,
        (None, "openai") => {
            // Codex's own provider, with what only that has.
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
