//! User's configuration: further agents, profiles, model configurations.

use std::collections::BTreeMap;

use agents::{
    Catalog, ConfigDir, ConfigError, ModelConfig, PROTOCOLS, Profiles, StoredModel,
    discovery::{self, SearchPaths},
};
use proxy_manager::{AgentSessionConfig, ManagerBuilder};

use crate::{ProblemDetails, file_stamps::FileStamps};

/// Place of a configuration, and of the programs that it is about. A library reads no environment: its program says what is there.
#[derive(Clone, Debug)]
pub struct ConfigurationSource {
    /// Directory of the configuration; `None` if there is none.
    pub directory: Option<ConfigDir>,
    /// Folders in which agents are looked for.
    pub places: SearchPaths,
    /// Value of an environment variable, for keys and for what agents inherit.
    pub variable: fn(&str) -> Option<String>,
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
        let stamps = directory.as_ref().map(FileStamps::of).unwrap_or_default();
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
        Ok(Self { source, catalog, profiles, models, stamps })
    }

    /// Returns true if the files have changed since they were read.
    pub fn has_changed(&self) -> bool {
        let directory = self.source.directory.as_ref();
        directory.is_some_and(|at| FileStamps::of(at).with_keys(at, self.models.values()) != self.stamps)
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
            ProblemDetails::usage("there is no place for the configuration: set HOME, or give --config-dir")
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
        builder.catalog(self.catalog.clone()).profiles(self.profiles.clone()).models(self.usable_models())
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
}
