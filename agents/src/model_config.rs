//! Address and key of an agent's model.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::RowError;

/// Secret text: `Debug` hides it.
///
/// ```
/// use agents::Secret;
///
/// let key = Secret::from("sk-123".to_owned());
/// assert_eq!(format!("{key:?}"), "Secret(…)");
/// assert_eq!(key.expose(), "sk-123");
/// ```
#[derive(Clone, derive_more::Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[debug("Secret(…)")]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Returns the text itself, for its intended recipient.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

/// API of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, serde::Serialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
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
    /// All values with their names.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::AnthropicMessages, "anthropic-messages"),
        (Self::OpenaiResponses, "openai-responses"),
        (Self::OpenaiChat, "openai-chat"),
        (Self::Gemini, "gemini"),
    ];

    /// Returns the name in configurations.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// Returns the default API of a provider.
    pub fn of_provider(provider: &str) -> Self {
        match provider {
            "anthropic" => Self::AnthropicMessages,
            "openai" => Self::OpenaiResponses,
            "google" | "gemini" => Self::Gemini,
            _ => Self::OpenaiChat,
        }
    }
}

/// Named model, which is translated for each agent into the agent's own form.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// Name in configurations.
    pub name: String,
    /// Provider: `anthropic`, `openai`, `google`, or any other word.
    pub provider: String,
    /// API of the model; by default the one of the provider's name, else Chat Completions.
    pub api: Option<ModelApi>,
    /// Address of the API with its version (`https://api.example.com/v1`); the provider's own by default.
    pub base_url: Option<String>,
    /// Model in the provider's spelling; a session's `model` overrides it.
    pub model: Option<String>,
    /// Key for the API.
    pub key: Option<Secret>,
}

impl ModelConfig {
    /// Returns the API of the model.
    pub fn api(&self) -> ModelApi {
        self.api.unwrap_or(ModelApi::of_provider(&self.provider))
    }
}

/// Model configuration as stored: with its key, or with the key's place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredModel {
    /// Provider, as in [`ModelConfig`].
    pub provider: String,
    /// API, as in [`ModelConfig`].
    pub api: Option<ModelApi>,
    /// Address, as in [`ModelConfig`].
    pub base_url: Option<String>,
    /// Model, as in [`ModelConfig`].
    pub model: Option<String>,
    /// Key itself.
    pub key: Option<Secret>,
    /// Variable of the caller's environment that contains the key.
    pub key_env: Option<String>,
    /// File that contains the key and nothing else; only its owner may be able to read it.
    pub key_file: Option<PathBuf>,
}

/// Place of the key of a [`StoredModel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySource<'a> {
    /// There is no key.
    None,
    /// The stored configuration contains the key.
    Stored,
    /// This variable of the caller's environment contains the key.
    Env(&'a str),
    /// This file contains the key.
    File(&'a Path),
}

impl StoredModel {
    /// Checks the values of the fields.
    ///
    /// # Errors
    /// The first wrong field.
    pub fn check(&self) -> Result<(), RowError> {
        let wrong = |name: &str, reason: &str| Err(RowError { name: name.to_owned(), reason: reason.to_owned() });
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

    /// Returns the place of the key.
    pub fn key_source(&self) -> KeySource<'_> {
        match (&self.key, &self.key_env, &self.key_file) {
            (Some(_), ..) => KeySource::Stored,
            (_, Some(name), _) => KeySource::Env(name),
            (.., Some(path)) => KeySource::File(path),
            _ => KeySource::None,
        }
    }

    /// Returns the configuration with the key from its place.
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
