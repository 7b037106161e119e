//! User's configuration: further agents, profiles, model configurations.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use agents::{
    Catalog, ConfigDir, ConfigError, ModelConfig, PROTOCOLS, Profiles, StoredModel,
    discovery::{self, SearchPaths},
};
use ipc_protocol::ErrorChain;
use proxy_manager::{AgentSessionConfig, ManagerBuilder};

use crate::{file_stamps::FileStamps, problem::ProblemDetails};

/// Configuration as it was read.
#[derive(Debug)]
pub(crate) struct LoadedConfiguration {
    /// Directory of the configuration; `None` if the environment names none.
    directory: Option<ConfigDir>,
    pub(crate) catalog: Catalog,
    /// Configured profiles, and a default one for each agent that was found.
    pub(crate) profiles: Profiles,
    pub(crate) models: BTreeMap<String, StoredModel>,
    /// Metadata of its files before they were read.
    stamps: FileStamps,
}

impl LoadedConfiguration {
    /// Reads the given directory, or the one that the environment names.
    ///
    /// # Errors
    /// `invalid-config` with file, entry and field.
    pub(crate) fn read(given: Option<&Path>) -> Result<Self, ProblemDetails> {
        Self::of(directory(given, |name| std::env::var_os(name).map(PathBuf::from)).map(ConfigDir::new))
    }

    fn of(directory: Option<ConfigDir>) -> Result<Self, ProblemDetails> {
        let stamps = directory.as_ref().map(FileStamps::of).unwrap_or_default();
        let (mut catalog, mut profiles, models) = match &directory {
            Some(directory) => (directory.catalog(&PROTOCOLS)?, directory.profiles()?, directory.models()?),
            None => Default::default(),
        };
        catalog.inherit(variable);
        let places = places();
        let found = |row: &&agents::AgentSpec| row.enabled && discovery::discover(row, &places).start_program.is_some();
        profiles.add_defaults(catalog.rows().iter().filter(found));
        let stamps = match &directory {
            Some(directory) => stamps.with_keys(directory, models.values()),
            None => stamps,
        };
        Ok(Self { directory, catalog, profiles, models, stamps })
    }

    /// Returns true if the files have changed since they were read.
    pub(crate) fn has_changed(&self) -> bool {
        let directory = self.directory.as_ref();
        directory.is_some_and(|at| FileStamps::of(at).with_keys(at, self.models.values()) != self.stamps)
    }

    /// Reads the same files again.
    ///
    /// # Errors
    /// Same as [`Configuration::read`].
    pub(crate) fn reload(&self) -> Result<Self, ProblemDetails> {
        Self::of(self.directory.clone())
    }

    /// Returns the directory for changes.
    ///
    /// # Errors
    /// `usage` if there is no such directory.
    pub(crate) fn directory(&self) -> Result<&ConfigDir, ProblemDetails> {
        self.directory.as_ref().ok_or_else(|| {
            ProblemDetails::usage("there is no place for the configuration: set HOME, or give --config-dir")
        })
    }

    /// Creates the problem for a missing model configuration.
    pub(crate) fn no_model(&self, name: &str) -> ProblemDetails {
        let known = self.models.keys().cloned().collect();
        ConfigError::Missing { what: "model configuration", name: name.to_owned(), known }.into()
    }

    /// Resolves the model configuration of that name, with its key.
    ///
    /// # Errors
    /// `unknown-model` with the existing names; `invalid-config` if its key cannot be read.
    pub(crate) fn model(&self, name: &str) -> Result<ModelConfig, ProblemDetails> {
        let stored = self.models.get(name).ok_or_else(|| self.no_model(name))?;
        Ok(self.directory()?.resolve(name, stored, variable)?)
    }

    /// Applies the profile to a session's configuration.
    ///
    /// # Errors
    /// If the profile does not exist, or is for another agent.
    pub(crate) fn with_profile(&self, config: &AgentSessionConfig) -> Result<AgentSessionConfig, ProblemDetails> {
        let mut config = config.clone();
        if let Some(name) = config.profile.clone() {
            self.profiles.get(&name)?.apply(&mut config)?;
        }
        Ok(config)
    }

    /// Configures a manager's builder with all of this.
    pub(crate) fn apply_to(&self, builder: ManagerBuilder) -> ManagerBuilder {
        builder.catalog(self.catalog.clone()).profiles(self.profiles.clone()).models(self.usable_models())
    }

    /// Resolves the model configurations with their keys. One whose key cannot be read is left out, with a warning
    /// in the log.
    pub(crate) fn usable_models(&self) -> Vec<ModelConfig> {
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

/// Returns the search paths in this process's environment.
pub(crate) fn places() -> SearchPaths {
    let path = std::env::var_os("PATH").unwrap_or_default();
    SearchPaths { path: std::env::split_paths(&path).collect(), home: std::env::var_os("HOME").map(PathBuf::from) }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn directory(given: Option<&Path>, variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    // The XDG specification says that an empty or relative value counts as unset.
    let absolute = |name: &str| variable(name).filter(|path| path.is_absolute());
    let given = given.map(Path::to_owned).or_else(|| variable("AGENT_PROXY_CONFIG_DIR").filter(|path| path != ""));
    given
        .map(|path| std::path::absolute(&path).unwrap_or(path))
        .or_else(|| absolute("XDG_CONFIG_HOME").map(|path| path.join("agent-proxy")))
        .or_else(|| absolute("HOME").map(|path| path.join(".config/agent-proxy")))
}

impl From<ConfigError> for ProblemDetails {
    fn from(error: ConfigError) -> Self {
        let kind = match &error {
            ConfigError::Missing { what: "profile", .. } | ConfigError::Profile(_) => "unknown-profile",
            ConfigError::Missing { .. } => "unknown-model",
            ConfigError::Exists { .. } => "already-exists",
            ConfigError::Locked { .. } => "busy",
            ConfigError::Read { .. } | ConfigError::Write { .. } => "system",
            _ => "invalid-config",
        };
        Self::new(kind, ErrorChain(&error).to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_the_configuration_is() {
        let place = |given: Option<&str>, vars: &[(&str, &str)]| {
            let variable = |name: &str| vars.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
            directory(given.map(Path::new), variable).map(|path| path.display().to_string())
        };
        let all = [("AGENT_PROXY_CONFIG_DIR", "/a"), ("XDG_CONFIG_HOME", "/x"), ("HOME", "/h")];
        assert_eq!(place(Some("/given"), &all).as_deref(), Some("/given"));
        assert_eq!(place(None, &all).as_deref(), Some("/a"));
        assert_eq!(place(None, &all[1..]).as_deref(), Some("/x/agent-proxy"));
        assert_eq!(place(None, &[("XDG_CONFIG_HOME", "relative"), all[2]]).as_deref(), Some("/h/.config/agent-proxy"));
        assert_eq!(place(None, &[("AGENT_PROXY_CONFIG_DIR", ""), all[2]]).as_deref(), Some("/h/.config/agent-proxy"));
        assert_eq!(place(None, &[]), None);
        assert!(place(Some("here"), &[]).is_some_and(|path| path.starts_with('/') && path.ends_with("/here")));
    }
}
