//! Defaults from which sessions are started.

use std::{collections::BTreeMap, path::PathBuf};

use agents::{AgentSpec, Catalog, CatalogError, ModelConfig, ProfileError, Profiles};
use ipc_protocol::{AgentSessionConfig, EnvVars};

use super::invalid;
use crate::{
    error::{Error, Result},
    prices::SharedPrices,
};

/// Catalog, configurations and defaults that a manager applies to every session.
#[derive(Clone, Debug, Default)]
pub(crate) struct AgentDefaults {
    pub(crate) catalog: Catalog,
    pub(crate) profiles: Profiles,
    pub(crate) models: BTreeMap<String, ModelConfig>,
    pub(crate) prices: SharedPrices,
    pub(crate) base_env: EnvVars,
    /// Environment of container engines; `None` for [`AgentDefaults::base_env`].
    pub(crate) engine_env: Option<EnvVars>,
    /// Working directory of sessions that name none.
    pub(crate) cwd: String,
    /// Maximum nesting of sessions.
    pub(crate) max_depth: u32,
    /// Paths that no sandbox shows: the state of the manager, and what its embedder adds.
    pub(crate) hidden: Vec<PathBuf>,
}

impl AgentDefaults {
    /// Environment of container engines.
    pub(crate) fn engine_env(&self) -> &EnvVars {
        self.engine_env.as_ref().unwrap_or(&self.base_env)
    }

    /// Fills `config` with the values of its profile, where it has none.
    ///
    /// # Errors
    /// [`Error::UnknownProfile`]; [`Error::InvalidConfig`] for a profile of another agent.
    pub(crate) fn apply_profile(&self, config: &mut AgentSessionConfig) -> Result<()> {
        let Some(name) = config.profile.clone() else { return Ok(()) };
        let applied = self.profiles.get(&name).and_then(|profile| profile.apply(config));
        applied.map_err(|error| match error {
            ProfileError::Unknown { name, known } => Error::UnknownProfile { profile: name, known },
            error @ ProfileError::OtherAgent { .. } => invalid("profile", error.to_string()),
        })
    }

    /// Returns the catalog row of the session's agent.
    ///
    /// # Errors
    /// [`Error::UnknownAgent`]; [`Error::InvalidConfig`] for an agent that cannot be started.
    pub(crate) fn agent(&self, config: &AgentSessionConfig) -> Result<&AgentSpec> {
        self.catalog.get(&config.agent).map_err(|error| match error {
            CatalogError::Unknown { agent, known } => Error::UnknownAgent { agent, known },
            CatalogError::Disabled { .. } => invalid("agent", error.to_string()),
        })
    }

    /// Returns the model configuration that the session names.
    ///
    /// # Errors
    /// [`Error::UnknownModel`], which lists the existing ones.
    pub(super) fn model(&self, config: &AgentSessionConfig) -> Result<Option<&ModelConfig>> {
        let Some(name) = &config.model_config else { return Ok(None) };
        let unknown = || Error::UnknownModel { model: name.clone(), known: self.models.keys().cloned().collect() };
        self.models.get(name).map(Some).ok_or_else(unknown)
    }
}
