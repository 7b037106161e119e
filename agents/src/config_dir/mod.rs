//! Directory of configuration files: more agents, profiles and model configurations. The caller names the directory.
//!
//! - `agents.toml`, `agents.json`, `agents.d/*.toml` and `*.json`: rows of the catalog.
//! - `profiles.toml`: a table for each [`Profile`].
//! - `prices.toml`: prices of models, as [`PriceTable`] has them.
//! - `models.toml`: a table for each [`StoredModel`]. A file that contains a key has to be private to its owner (mode 0600).
//!
//! Writing keeps the comments and the order of a file, creates it with mode 0600, and replaces the old file atomically.

mod tables;

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use api_types::ProblemDetails;
use ipc_protocol::ErrorChain;
use toml_edit::Table;

use crate::{
    Catalog, FileFormat, KeySource, LoadError, ModelConfig, PriceError, PriceTable, Profile, ProfileError, Profiles,
    RowError, Secret, StoredModel,
};

/// Failure of an access to a configuration directory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A file cannot be read.
    #[error("reading {} failed", path.display())]
    Read {
        /// File or directory.
        path: PathBuf,
        /// Cause of the failure.
        source: io::Error,
    },
    /// A file cannot be written.
    #[error("writing {} failed", path.display())]
    Write {
        /// File or directory.
        path: PathBuf,
        /// Cause of the failure.
        source: io::Error,
    },
    /// A file is no list of agents.
    #[error(transparent)]
    Agents(#[from] LoadError),
    /// A file is no TOML.
    #[error("{} is no TOML: {reason}", path.display())]
    Syntax {
        /// Path of the file.
        path: PathBuf,
        /// Error and its position.
        reason: String,
    },
    /// An entry is wrong.
    #[error("{}, {name:?}, field {field}", path.display())]
    Entry {
        /// Path of the file.
        path: PathBuf,
        /// Name of the profile or the model configuration.
        name: String,
        /// Field with its error.
        field: RowError,
    },
    /// A price is wrong.
    #[error("{}, {error}", path.display())]
    Price {
        /// Path of the file.
        path: PathBuf,
        /// Line, key and reason.
        error: PriceError,
    },
    /// Other users can read a key.
    #[error("{} holds a key and others may read it (mode {mode:04o}): chmod 600 it", path.display())]
    Open {
        /// Path of the file.
        path: PathBuf,
        /// Mode of the file.
        mode: u32,
    },
    /// The variable that has a key is not set.
    #[error("model configuration {name:?} takes its key from ${variable}, which is not set: export it")]
    NoKey {
        /// Name of the model configuration.
        name: String,
        /// Name of the variable.
        variable: String,
    },
    /// A file that should hold a key is empty.
    #[error("{} should hold a key and is empty", path.display())]
    EmptyKey {
        /// Path of the file.
        path: PathBuf,
    },
    /// The name already exists.
    #[error("{what} {name:?} is there already: {advice}")]
    Exists {
        /// Kind of the entry.
        what: &'static str,
        /// Name of the entry.
        name: String,
        /// Advice to the user.
        advice: &'static str,
    },
    /// No entry has that name.
    #[error("no {what} is called {name:?}: {}", if known.is_empty() { "there are none".to_owned() } else { format!("there are {}", known.join(", ")) })]
    Missing {
        /// Kind of the entry.
        what: &'static str,
        /// Name that was asked for.
        name: String,
        /// Known names.
        known: Vec<String>,
    },
    /// Another process has held the lock for longer than a second.
    #[error("{} is being changed by another program: try again", path.display())]
    Locked {
        /// Path of the directory.
        path: PathBuf,
    },
    /// A profile cannot be used.
    #[error(transparent)]
    Profile(#[from] ProfileError),
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

const PROFILE: &str = "profile";
const MODEL: &str = "model configuration";

/// Directory of configuration files. It may be missing: then nothing is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigDir {
    path: PathBuf,
}

/// Precondition of a save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveMode {
    /// The name is new.
    New,
    /// The name exists.
    Changed,
}

impl ConfigDir {
    /// Makes a handle for that directory.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Loads the built-in and the configured agents. `protocols` as for [`Catalog::load`].
    ///
    /// # Errors
    /// [`ConfigError::Agents`] names file, row and field; [`ConfigError::Read`].
    pub fn catalog(&self, protocols: &[&str]) -> Result<Catalog, ConfigError> {
        let mut catalog = Catalog::default();
        let mut files = vec![self.path.join("agents.toml"), self.path.join("agents.json")];
        files.extend(tables::files(&self.path.join("agents.d"))?);
        for path in files {
            let format = match path.extension().and_then(|extension| extension.to_str()) {
                Some("toml") => FileFormat::Toml,
                Some("json") => FileFormat::Json,
                _ => continue,
            };
            if let Some(text) = tables::read(&path)? {
                catalog.load(&text, format, protocols, &path.display().to_string())?;
            }
        }
        Ok(catalog)
    }

    fn profiles_path(&self) -> PathBuf {
        self.path.join("profiles.toml")
    }

    /// Loads the stored profiles.
    ///
    /// # Errors
    /// [`ConfigError::Entry`] names file, profile and field; [`ConfigError::Syntax`], [`ConfigError::Read`].
    pub fn profiles(&self) -> Result<Profiles, ConfigError> {
        let mut profiles = Profiles::default();
        for (name, profile) in tables::load::<Profile>(&self.profiles_path())? {
            let entry = |name: &str, field| ConfigError::Entry { path: self.profiles_path(), name: name.into(), field };
            if profile.agent.is_empty() {
                let reason = "it is not there: which agent is it of?";
                return Err(entry(&name, RowError { name: "agent".into(), reason: reason.into() }));
            }
            profiles.add(Profile { name, ..profile });
        }
        Ok(profiles)
    }

    /// Saves a profile under its name.
    ///
    /// # Errors
    /// [`ConfigError::Exists`], [`ConfigError::Missing`], [`ConfigError::Locked`], [`ConfigError::Write`], and as
    /// [`ConfigDir::profiles`].
    pub fn save_profile(&self, profile: &Profile, save: SaveMode) -> Result<(), ConfigError> {
        let table = tables::table(profile).map_err(|reason| ConfigError::Entry {
            path: self.profiles_path(),
            name: profile.name.clone(),
            field: RowError { name: "(profile)".into(), reason },
        })?;
        let advice = "change it, or delete it first";
        tables::edit(&self.path, &self.profiles_path(), |document| {
            tables::put(document, (PROFILE, &profile.name), table, save, advice)
        })
    }

    /// Deletes a profile.
    ///
    /// # Errors
    /// Same as for [`ConfigDir::save_profile`].
    pub fn delete_profile(&self, name: &str) -> Result<(), ConfigError> {
        tables::edit(&self.path, &self.profiles_path(), |document| tables::remove(document, (PROFILE, name)))
    }

    /// Loads the prices of models. None without a file.
    ///
    /// # Errors
    /// [`ConfigError::Price`] names file, line and key; [`ConfigError::Read`].
    pub fn prices(&self) -> Result<PriceTable, ConfigError> {
        let path = self.prices_path();
        tables::read(&path)?.map_or_else(|| Ok(PriceTable::default()), |text| prices(&path, &text))
    }

    /// Returns the path of the file with the prices.
    pub fn prices_path(&self) -> PathBuf {
        self.path.join("prices.toml")
    }

    fn models_path(&self) -> PathBuf {
        self.path.join("models.toml")
    }

    /// Loads the stored model configurations, by name. It looks up no key.
    ///
    /// # Errors
    /// [`ConfigError::Open`] if others may read a key; [`ConfigError::Entry`] names file, configuration and field.
    pub fn models(&self) -> Result<BTreeMap<String, StoredModel>, ConfigError> {
        let path = self.models_path();
        let models = tables::load::<StoredModel>(&path)?;
        for (name, model) in &models {
            model.check().map_err(|field| ConfigError::Entry { path: path.clone(), name: name.clone(), field })?;
        }
        if models.values().any(|model| model.key.is_some()) {
            tables::private(&path)?;
        }
        Ok(models)
    }

    /// Returns a stored model configuration with its key, which may be in a variable or a file. The path of a key file is relative to
    /// this directory.
    ///
    /// # Errors
    /// [`ConfigError::NoKey`], [`ConfigError::Open`], [`ConfigError::EmptyKey`], [`ConfigError::Read`].
    pub fn resolve(
        &self,
        name: &str,
        stored: &StoredModel,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<ModelConfig, ConfigError> {
        let key = match stored.key_source() {
            KeySource::None | KeySource::Stored => None,
            KeySource::Env(variable_name) => {
                let key = variable(variable_name).filter(|key| !key.trim().is_empty());
                Some(key.ok_or_else(|| ConfigError::NoKey { name: name.into(), variable: variable_name.into() })?)
            }
            KeySource::File(path) => Some(tables::key(&self.path.join(path))?),
        };
        Ok(stored.resolved(name, key.map(|key| Secret::from(key.trim().to_owned()))))
    }

    /// Reads a secret from a file of its own, which has to be private to its owner (mode 0600). A relative path begins at the directory.
    ///
    /// # Errors
    /// [`ConfigError::Open`], [`ConfigError::EmptyKey`], [`ConfigError::Read`].
    pub fn secret(&self, path: &Path) -> Result<Secret, ConfigError> {
        Ok(Secret::from(tables::key(&self.path.join(path))?))
    }

    /// Saves a new model configuration.
    ///
    /// # Errors
    /// [`ConfigError::Exists`], [`ConfigError::Entry`], [`ConfigError::Locked`], [`ConfigError::Write`], and as
    /// [`ConfigDir::models`].
    pub fn create_model(&self, name: &str, model: &StoredModel) -> Result<(), ConfigError> {
        self.save_model(name, model, SaveMode::New)
    }

    /// Saves a model configuration.
    ///
    /// # Errors
    /// As [`ConfigDir::create_model`], and [`ConfigError::Missing`].
    pub fn save_model(&self, name: &str, model: &StoredModel, save: SaveMode) -> Result<(), ConfigError> {
        let path = self.models_path();
        model.check().map_err(|field| ConfigError::Entry { path: path.clone(), name: name.into(), field })?;
        tables::edit(&self.path, &path, |document| {
            tables::put(document, (MODEL, name), model_table(model), save, "delete it first")
        })
    }

    /// Deletes a model configuration.
    ///
    /// # Errors
    /// [`ConfigError::Missing`], [`ConfigError::Locked`], [`ConfigError::Write`].
    pub fn delete_model(&self, name: &str) -> Result<(), ConfigError> {
        tables::edit(&self.path, &self.models_path(), |document| tables::remove(document, (MODEL, name)))
    }
}

impl PriceTable {
    /// Reads a file, which has to be there.
    ///
    /// # Errors
    /// As [`ConfigDir::prices`].
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let text = tables::read(path)?;
        prices(path, &text.ok_or_else(|| ConfigError::Read { path: path.to_owned(), source: missing() })?)
    }
}

fn prices(path: &Path, text: &str) -> Result<PriceTable, ConfigError> {
    PriceTable::parse(text).map_err(|error| ConfigError::Price { path: path.to_owned(), error })
}

/// Converts a model configuration to a table. This is the only place that writes a key: `Secret` cannot be serialized.
fn model_table(model: &StoredModel) -> Table {
    let mut table = Table::new();
    let api = model.api.map(|api| api.name());
    let file = model.key_file.as_ref().map(|path| path.to_string_lossy());
    for (name, value) in [
        ("provider", Some(model.provider.as_str())),
        ("api", api),
        ("base_url", model.base_url.as_deref()),
        ("model", model.model.as_deref()),
        ("key", model.key.as_ref().map(Secret::expose)),
        ("key_env", model.key_env.as_deref()),
        ("key_file", file.as_deref()),
    ] {
        if let Some(value) = value {
            table.insert(name, toml_edit::value(value));
        }
    }
    table
}
