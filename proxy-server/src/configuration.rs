//! User's configuration: further agents, profiles, model configurations.

use std::{collections::BTreeMap, path::PathBuf};

use agents::{
    AgentSpec, Catalog, ConfigDir, ConfigError, KeySource, ModelApi, ModelConfig, PROTOCOLS, PriceTable, Profile,
    Profiles, SaveMode, StoredModel,
    discovery::{self, SearchPaths},
};
use api_types::InstalledAgent;
use proxy_manager::{AgentSessionConfig, ManagerBuilder};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{ProblemDetails, file_stamps::FileStamps, installed_agents};

/// Place of a configuration, and of the programs that it is about. A library reads no environment: its program says what is there.
#[derive(Clone, Debug)]
pub struct ConfigurationSource {
    /// Directory of the configuration; `None` if there is none.
    pub directory: Option<ConfigDir>,
    /// File with the prices of models, in the place of the directory's own. It has to be there.
    pub prices: Option<PathBuf>,
    /// Folders in which agents are looked for.
    pub places: SearchPaths,
    /// Value of an environment variable, for keys and for what agents inherit.
    pub variable: fn(&str) -> Option<String>,
}

impl ConfigurationSource {
    /// Returns the metadata of the files, but for those of keys.
    fn stamps(&self) -> FileStamps {
        let stamps = self.directory.as_ref().map(FileStamps::of).unwrap_or_default();
        stamps.with_prices(self.prices.as_deref())
    }
}

/// Configuration as it was read.
#[derive(Debug)]
pub struct LoadedConfiguration {
    source: ConfigurationSource,
    /// Agents, built-in and configured.
    pub catalog: Catalog,
    /// Configured profiles, and a default one for each agent that was found.
    pub profiles: Profiles,
    /// Model configurations, by name.
    pub models: BTreeMap<String, StoredModel>,
    /// Prices of models.
    pub prices: PriceTable,
    /// Metadata of its files before they were read.
    stamps: FileStamps,
}

impl LoadedConfiguration {
    /// Reads it.
    ///
    /// # Errors
    /// `invalid-config` with file, entry and field.
    pub fn read(source: ConfigurationSource) -> Result<Self, ProblemDetails> {
        let directory = &source.directory;
        let stamps = source.stamps();
        let prices = match (&source.prices, directory) {
            (Some(file), _) => PriceTable::read(file)?,
            (None, Some(directory)) => directory.prices()?,
            (None, None) => PriceTable::default(),
        };
        let (mut catalog, mut profiles, models) = match directory {
            Some(directory) => (directory.catalog(&PROTOCOLS)?, directory.profiles()?, directory.models()?),
            None => Default::default(),
        };
        catalog.inherit(source.variable);
        let found =
            |row: &&agents::AgentSpec| row.enabled && discovery::discover(row, &source.places).start_program.is_some();
        profiles.add_defaults(catalog.rows().iter().filter(found));
        let stamps = match directory {
            Some(directory) => stamps.with_keys(directory, models.values()),
            None => stamps,
        };
        Ok(Self { source, catalog, profiles, models, prices, stamps })
    }

    /// Returns true if the files have changed since they were read.
    pub fn has_changed(&self) -> bool {
        let now = match &self.source.directory {
            Some(at) => self.source.stamps().with_keys(at, self.models.values()),
            None => self.source.stamps(),
        };
        now != self.stamps
    }

    /// Reads the same files again.
    ///
    /// # Errors
    /// Same as [`LoadedConfiguration::read`].
    pub fn reload(&self) -> Result<Self, ProblemDetails> {
        Self::read(self.source.clone())
    }

    /// Returns the directory for changes.
    ///
    /// # Errors
    /// `usage` if there is no such directory.
    pub fn directory(&self) -> Result<&ConfigDir, ProblemDetails> {
        self.source.directory.as_ref().ok_or_else(|| {
            ProblemDetails::usage(
                "there is no place for the configuration: set HOME to an absolute path, or give --config-dir",
            )
        })
    }

    /// Creates the problem for a missing model configuration.
    pub fn no_model(&self, name: &str) -> ProblemDetails {
        let known = self.models.keys().cloned().collect();
        ConfigError::Missing { what: "model configuration", name: name.to_owned(), known }.into()
    }

    /// Resolves the model configuration of that name, with its key.
    ///
    /// # Errors
    /// `unknown-model` with the existing names; `invalid-config` if its key cannot be read.
    pub fn model(&self, name: &str) -> Result<ModelConfig, ProblemDetails> {
        let stored = self.models.get(name).ok_or_else(|| self.no_model(name))?;
        Ok(self.directory()?.resolve(name, stored, self.source.variable)?)
    }

    /// Applies the profile to a session's configuration.
    ///
    /// # Errors
    /// If the profile does not exist, or is for another agent.
    pub fn with_profile(&self, config: &AgentSessionConfig) -> Result<AgentSessionConfig, ProblemDetails> {
        let mut config = config.clone();
        if let Some(name) = config.profile.clone() {
            self.profiles.get(&name)?.apply(&mut config)?;
        }
        Ok(config)
    }

    /// Configures a manager's builder with all of this.
    pub fn apply_to(&self, builder: ManagerBuilder) -> ManagerBuilder {
        let builder = builder.catalog(self.catalog.clone()).profiles(self.profiles.clone());
        builder.models(self.usable_models()).prices(self.prices.clone())
    }

    /// Resolves the model configurations with their keys. One whose key cannot be read is left out, with a warning
    /// in the log.
    pub fn usable_models(&self) -> Vec<ModelConfig> {
        let usable = |name: &String| match self.model(name) {
            Ok(model) => Some(model),
            Err(problem) => {
                tracing::warn!("failed to load model configuration {name:?}: {}", problem.detail);
                None
            }
        };
        self.models.keys().filter_map(usable).collect()
    }

    /// Saves a profile after checking that its agent and model configuration exist, and that its rules are valid. Blocks.
    ///
    /// # Errors
    /// `unknown-agent`, `unknown-model`, `usage` for a rule; those of the files.
    pub fn save_profile(&self, profile: &Profile, save: SaveMode) -> Result<(), ProblemDetails> {
        if !self.catalog.rows().iter().any(|row| row.id == profile.agent) {
            let known: Vec<&str> = self.catalog.rows().iter().map(|row| row.id.as_str()).collect();
            let detail = format!("no agent is called {:?}: there are {}", profile.agent, known.join(", "));
            return Err(ProblemDetails::new("unknown-agent", detail));
        }
        if let Some(name) = profile.model_config.as_ref().filter(|name| !self.models.contains_key(*name)) {
            return Err(self.no_model(name));
        }
        let mut config = AgentSessionConfig::new("");
        profile.apply(&mut config)?;
        agents::permission::check(&config.permissions).map_err(|error| ProblemDetails::usage(error.to_string()))?;
        Ok(self.directory()?.save_profile(profile, save)?)
    }

    /// Returns the profile of that name, if it is in a file.
    ///
    /// # Errors
    /// `unknown-profile`.
    pub fn stored_profile(&self, name: &str) -> Result<&Profile, ProblemDetails> {
        let profile = self.profiles.get(name)?;
        if profile.computed {
            let advice = "make one of that name, which then takes its place";
            return Err(ProblemDetails::new("unknown-profile", format!("profile {name:?} is in no file: {advice}")));
        }
        Ok(profile)
    }

    /// Returns the stored model configuration of that name.
    ///
    /// # Errors
    /// `unknown-model` with the existing names.
    pub fn stored_model(&self, name: &str) -> Result<&StoredModel, ProblemDetails> {
        self.models.get(name).ok_or_else(|| self.no_model(name))
    }

    /// Looks for the agents of the catalog, without starting one. Blocks.
    pub fn agents(&self) -> Vec<InstalledAgent> {
        let described = |row: &AgentSpec| {
            let variable = |name: &String| Some((name.clone(), (self.source.variable)(name)?));
            let env = row.required_env.iter().filter_map(variable).collect();
            installed_agents::describe(row, discovery::discover(row, &self.source.places), &env, None)
        };
        self.catalog.rows().iter().map(described).collect()
    }
}

/// Profile with its name, as it is listed.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub(crate) struct ProfileDescription {
    /// Settings. In JSON its fields are among these.
    #[serde(flatten)]
    profile: Profile,
    /// Name of the profile.
    name: String,
    /// True for the profile that each found agent has by itself.
    computed: bool,
}

/// Model configuration without its key, as it is listed.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct ModelDescription {
    /// Name of the model configuration.
    name: String,
    /// Provider: `anthropic`, `openai`, `google`, or any other word.
    provider: String,
    /// API of the model.
    api: &'static str,
    /// Address of the API; `null` for the provider's own.
    base_url: Option<String>,
    /// Model in the provider's spelling.
    model: Option<String>,
    /// Place of the key: `none`, `stored`, `$VARIABLE` or a path.
    key: String,
}

/// Formats a profile as JSON.
pub fn profile_json(profile: &Profile) -> Value {
    let (name, computed) = (profile.name.clone(), profile.computed);
    json!(ProfileDescription { profile: profile.clone(), name, computed })
}

/// Formats a model configuration as JSON, without its key.
pub fn model_json(name: &str, stored: &StoredModel) -> Value {
    let key = match stored.key_source() {
        KeySource::None => "none".to_owned(),
        KeySource::Stored => "stored".to_owned(),
        KeySource::Env(name) => format!("${name}"),
        KeySource::File(path) => path.display().to_string(),
    };
    json!(ModelDescription {
        name: name.to_owned(),
        provider: stored.provider.clone(),
        api: stored.api.unwrap_or(ModelApi::of_provider(&stored.provider)).name(),
        base_url: stored.base_url.clone(),
        model: stored.model.clone(),
        key,
    })
}
