//! Settings of a session, in the server's form.

use ipc_protocol::{Prompt, PromptPart, WireError};
use serde_json::{Map, Value, json};

use super::wire::{AgentInfo, ServerRule};
use crate::{
    AdapterSetup, Result,
    kit::settings::AgentSettings,
    uri::{self, encode},
};

/// Settings of the session. Each prompt contains them: the server keeps none of them.
#[derive(Debug)]
pub(super) struct PromptSettings {
    /// Catalog id, for errors.
    pub(super) agent: String,
    /// Working directory.
    pub(super) directory: String,
    /// Provider and model; `None` is the server's default.
    pub(super) model: Option<(String, String)>,
    /// Mode: the server's agent `build`, `plan` or one of its own.
    pub(super) mode: Option<String>,
    /// Thinking level.
    pub(super) variant: Option<String>,
    system: Option<String>,
    tools: Vec<String>,
    /// Rules of a mode that is neither `build` nor `plan`.
    mode_rules: Vec<ServerRule>,
}

impl PromptSettings {
    /// Makes the settings of a session.
    ///
    /// # Errors
    /// [`WireError::AgentRefused`] for a model without its provider.
    pub(super) fn new(setup: &AdapterSetup) -> Result<Self> {
        let config = &setup.config;
        let mut settings = Self {
            agent: setup.agent.clone(),
            directory: config.cwd.clone().unwrap_or_else(|| "/".into()),
            model: None,
            mode: config.mode.clone(),
            variant: config.thinking.clone(),
            system: config.system_prompt.clone(),
            tools: config.tools.clone(),
            mode_rules: Vec::new(),
        };
        settings.model = config.model.as_deref().map(|model| settings.parse_model(model)).transpose()?;
        Ok(settings)
    }

    pub(super) fn refused(&self, reason: impl Into<String>) -> WireError {
        WireError::AgentRefused { agent: self.agent.clone(), reason: reason.into() }
    }

    pub(super) fn unsupported(&self, operation: impl Into<String>) -> WireError {
        WireError::Unsupported { agent: self.agent.clone(), operation: operation.into() }
    }

    /// Splits the name of a model into provider and model.
    ///
    /// # Errors
    /// [`WireError::AgentRefused`] for a model without its provider.
    pub(super) fn parse_model(&self, model: &str) -> Result<(String, String)> {
        match model.split_once('/') {
            Some((provider, name)) if !provider.is_empty() && !name.is_empty() => Ok((provider.into(), name.into())),
            // Another one of the same provider.
            None if let Some((provider, _)) = self.model.as_ref().filter(|_| !model.is_empty()) => {
                Ok((provider.clone(), model.into()))
            }
            _ => Err(self.refused(format!("model {model:?} has no provider: name it PROVIDER/MODEL"))),
        }
    }

    /// Adds the session's directory to `path`; without it the server uses its own.
    pub(super) fn path(&self, path: &str) -> String {
        let separator = if path.contains('?') { '&' } else { '?' };
        format!("{path}{separator}directory={}", encode(&self.directory))
    }

    /// Sets a mode of the server, with the rules that the server has for it.
    pub(super) fn set_mode(&mut self, mode: &AgentInfo) {
        self.mode = Some(mode.name.clone());
        self.mode_rules = if is_builtin(&mode.name) { Vec::new() } else { mode.permission.clone() };
    }

    /// Returns the rules of the session: the server asks for everything that it can ask for. They override the rules of the server's
    /// modes, so they have to repeat what a mode forbids.
    pub(super) fn rules(&self) -> Vec<ServerRule> {
        let mut rules = Vec::new();
        let mut add = |permission: &str, pattern: &str, action: &str| {
            rules.push(ServerRule { permission: permission.into(), pattern: pattern.into(), action: action.into() });
        };
        if self.tools.is_empty() {
            add("*", "*", "ask");
            // Both touch nothing: the first is the plan, which events show, and the second asks by itself.
            add("todowrite", "*", "allow");
            add("question", "*", "allow");
        } else {
            add("*", "*", "deny");
            for tool in &self.tools {
                match tool.as_str() {
                    "todowrite" | "question" => add(tool, "*", "allow"),
                    // One permission covers all of these.
                    "write" | "apply_patch" | "patch" | "multiedit" => add("edit", "*", "ask"),
                    tool => add(tool, "*", "ask"),
                }
            }
            add("external_directory", "*", "ask");
            add("doom_loop", "*", "ask");
        }
        if self.mode.as_deref() == Some("plan") {
            add("edit", "*", "deny");
            add("edit", ".opencode/plans/*.md", "ask");
            add("task", "general", "deny");
        }
        for rule in &self.mode_rules {
            match rule.action.as_str() {
                "deny" => add(&rule.permission, &rule.pattern, "deny"),
                // A permission that is granted or asked for after a denial is available again.
                _ if self.tools.is_empty() && !matches!(rule.permission.as_str(), "todowrite" | "question") => {
                    add(&rule.permission, &rule.pattern, "ask");
                }
                action if self.tools.is_empty() => add(&rule.permission, &rule.pattern, action),
                _ => {}
            }
        }
        rules
    }

    /// Makes the body of a prompt.
    pub(super) fn prompt_body(&self, prompt: &Prompt) -> Vec<u8> {
        let mut body = Map::new();
        body.insert("parts".into(), prompt.parts.iter().map(|part| self.part(part)).collect());
        if let Some((provider, model)) = &self.model {
            body.insert("model".into(), json!({ "providerID": provider, "modelID": model }));
        }
        for (key, value) in [("agent", &self.mode), ("variant", &self.variant), ("system", &self.system)] {
            if let Some(value) = value {
                body.insert(key.into(), json!(value));
            }
        }
        Value::from(body).to_string().into_bytes()
    }

    /// Makes the body that calls a command of the server. It takes files and pictures beside its input.
    pub(super) fn command_body(&self, name: &str, input: &str, rest: &[PromptPart]) -> Vec<u8> {
        let is_text = |part: &&PromptPart| matches!(part, PromptPart::Text(_));
        let texts = rest.iter().filter_map(|part| match part {
            PromptPart::Text(text) => Some(text.as_str()),
            _ => None,
        });
        let input: Vec<&str> = std::iter::once(input).chain(texts).filter(|text| !text.is_empty()).collect();
        let files: Vec<Value> = rest.iter().filter(|part| !is_text(part)).map(|part| self.part(part)).collect();
        let mut body = Map::new();
        body.insert("command".into(), json!(name));
        body.insert("arguments".into(), json!(input.join("\n")));
        if !files.is_empty() {
            body.insert("parts".into(), files.into());
        }
        let model = self.model.as_ref().map(|(provider, model)| format!("{provider}/{model}"));
        for (key, value) in [("model", &model), ("agent", &self.mode), ("variant", &self.variant)] {
            if let Some(value) = value {
                body.insert(key.into(), json!(value));
            }
        }
        Value::from(body).to_string().into_bytes()
    }

    /// Returns the settings of the next prompt, as people see them.
    pub(super) fn looks(&self) -> AgentSettings {
        AgentSettings {
            model: self.model.as_ref().map(|(provider, model)| format!("{provider}/{model}")),
            mode: self.mode.clone(),
            thinking: self.variant.clone(),
        }
    }

    fn part(&self, part: &PromptPart) -> Value {
        match part {
            PromptPart::Text(text) => json!({ "type": "text", "text": text }),
            PromptPart::Image { mime_type, data } => {
                let extension = mime_type.rsplit('/').next().unwrap_or_default();
                let url = format!("data:{mime_type};base64,{data}");
                json!({ "type": "file", "mime": mime_type, "filename": format!("image.{extension}"), "url": url })
            }
            PromptPart::File { path } => {
                let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
                json!({ "type": "file", "mime": mime_of(path), "filename": name, "url": uri::file(path, &self.directory) })
            }
        }
    }
}

/// Returns whether [`PromptSettings::rules`] handles the mode.
pub(super) fn is_builtin(mode: &str) -> bool {
    matches!(mode, "build" | "plan")
}

/// Returns the media type of a file for the server: text, which the server reads itself, or a type that it forwards unchanged.
fn mime_of(path: &str) -> &'static str {
    let extension = path.rsplit('/').next().and_then(|name| name.rsplit_once('.')).map(|(_, extension)| extension);
    match extension.map(str::to_ascii_lowercase).as_deref() {
        _ if path.ends_with('/') => "application/x-directory",
        Some("png") => "image/png",
        Some("jpg" | "jpeg") => "image/jpeg",
        Some("gif") => "image/gif",
        Some("webp") => "image/webp",
        Some("pdf") => "application/pdf",
        _ => "text/plain",
    }
}
