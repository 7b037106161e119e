//! Where an agent's model is, and the key to it.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use crate::Field;

/// Text that is shown to nobody: `Debug` hides it.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// The text itself, for whoever it is meant for.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// How a model is spoken with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModelApi {
    /// Anthropic's Messages.
    AnthropicMessages,
    /// OpenAI's Responses.
    OpenaiResponses,
    /// OpenAI's Chat Completions, which most other providers speak too.
    OpenaiChat,
    /// Google's Gemini.
    Gemini,
}

impl ModelApi {
    /// Every value, with its name.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::AnthropicMessages, "anthropic-messages"),
        (Self::OpenaiResponses, "openai-responses"),
        (Self::OpenaiChat, "openai-chat"),
        (Self::Gemini, "gemini"),
    ];

    /// Its name in configurations.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// How a provider's models are spoken with where nobody says.
    pub fn of_provider(provider: &str) -> Self {
        match provider {
            "anthropic" => Self::AnthropicMessages,
            "openai" => Self::OpenaiResponses,
            "google" | "gemini" => Self::Gemini,
            _ => Self::OpenaiChat,
        }
    }
}

/// A model, by a name: translated for each agent into the agent's own form.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// Its name in configurations.
    pub name: String,
    /// `anthropic`, `openai`, `google`, or any other word.
    pub provider: String,
    /// How it is spoken with; by default what the provider's name says, else Chat Completions.
    #[serde(default)]
    pub api: Option<ModelApi>,
    /// Address of the API with its version (`https://api.example.com/v1`); the provider's own by default.
    #[serde(default)]
    pub base_url: Option<String>,
    /// The model, in the provider's spelling; a session's `model` wins.
    #[serde(default)]
    pub model: Option<String>,
    /// The key.
    #[serde(default)]
    pub key: Option<Secret>,
}

impl ModelConfig {
    /// How it is spoken with.
    pub fn api(&self) -> ModelApi {
        self.api.unwrap_or(ModelApi::of_provider(&self.provider))
    }
}

/// A model configuration as it is stored: with its key, or where the key is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredModel {
    /// As in [`ModelConfig`].
    pub provider: String,
    /// As in [`ModelConfig`].
    #[serde(default)]
    pub api: Option<ModelApi>,
    /// As in [`ModelConfig`].
    #[serde(default)]
    pub base_url: Option<String>,
    /// As in [`ModelConfig`].
    #[serde(default)]
    pub model: Option<String>,
    /// The key itself.
    #[serde(default)]
    pub key: Option<Secret>,
    /// The variable of the caller's environment that has the key.
    #[serde(default)]
    pub key_env: Option<String>,
    /// The file that holds the key and nothing else; nobody but its owner may be able to read it.
    #[serde(default)]
    pub key_file: Option<PathBuf>,
}

/// Where the key of a [`StoredModel`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySource<'a> {
    /// There is none.
    None,
    /// Beside the rest.
    Stored,
    /// In this variable of the caller's environment.
    Env(&'a str),
    /// In this file.
    File(&'a Path),
}

impl StoredModel {
    /// Whether it makes sense.
    ///
    /// # Errors
    /// The field that does not.
    pub fn check(&self) -> Result<(), Field> {
        let wrong = |name: &str, reason: &str| Err(Field { name: name.to_owned(), reason: reason.to_owned() });
        if self.provider.is_empty() {
            return wrong("provider", "it is empty: write `anthropic`, `openai`, `google`, or a word of your own");
        }
        if self.base_url.as_ref().is_some_and(|url| !url.starts_with("http://") && !url.starts_with("https://")) {
            return wrong("base_url", "an address begins with http:// or https://");
        }
        let keys = [self.key.is_some(), self.key_env.is_some(), self.key_file.is_some()];
        if keys.iter().filter(|given| **given).count() > 1 {
            return wrong("key", "give one of `key`, `key_env` and `key_file`");
        }
        if self.key.as_ref().is_some_and(|key| key.expose().trim().is_empty()) {
            return wrong("key", "it is empty");
        }
        if self.key_env.as_ref().is_some_and(|name| name.is_empty() || name.contains(['=', '\0'])) {
            return wrong("key_env", "that is no name of a variable");
        }
        Ok(())
    }

    /// Where its key is.
    pub fn key_source(&self) -> KeySource<'_> {
        match (&self.key, &self.key_env, &self.key_file) {
            (Some(_), ..) => KeySource::Stored,
            (_, Some(name), _) => KeySource::Env(name),
            (.., Some(path)) => KeySource::File(path),
            _ => KeySource::None,
        }
    }

    /// The configuration, with the key that was fetched from where it is.
    pub fn resolved(&self, name: &str, key: Option<Secret>) -> ModelConfig {
        ModelConfig {
            name: name.to_owned(),
            provider: self.provider.clone(),
            api: self.api,
            base_url: self.base_url.clone(),
            model: self.model.clone(),
            key: key.or_else(|| self.key.clone()),
        }
    }
}
