//! Agents, profiles and model configurations: those of a daemon, or those in the files of this machine.

use agents::{Profile, StoredModel};
use api_types::{InstalledAgent, ProblemDetails};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

#[cfg(feature = "engine")]
use crate::engine::{SaveMode, StoredConfiguration};
use crate::{args::GlobalArgs, client::DaemonClient, daemon_address::DaemonAddress};

/// Characters of a name that are not themselves in a path.
const IN_PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'.').remove(b'_').remove(b'-');

/// Place of agents, profiles and model configurations.
#[derive(Debug)]
pub(crate) enum ConfigurationStore {
    /// Those of a daemon.
    Daemon(DaemonClient),
    /// Those of this machine.
    #[cfg(feature = "engine")]
    Files(Box<StoredConfiguration>),
}

impl ConfigurationStore {
    /// Finds the place: the daemon that a URL names, else the files of this machine. A build without the engine has no files, and asks
    /// the daemon of the socket then.
    ///
    /// # Errors
    /// `usage` for an address that does not fit; `invalid-config` for the files.
    pub(crate) fn find(global: &GlobalArgs) -> Result<Self, ProblemDetails> {
        #[cfg(feature = "engine")]
        if !DaemonAddress::is_url_given(global.address()) {
            return StoredConfiguration::read(global.config_dir.as_deref()).map(|files| Self::Files(Box::new(files)));
        }
        DaemonAddress::find(global.address()).map(|address| Self::Daemon(DaemonClient::new(address)))
    }

    /// Returns the profiles as the API describes them.
    ///
    /// # Errors
    /// The daemon's.
    pub(crate) async fn profiles(&self) -> Result<Vec<Value>, ProblemDetails> {
        match self {
            Self::Daemon(client) => client.get("/v1/profiles").await,
            #[cfg(feature = "engine")]
            Self::Files(files) => Ok(files.profiles()),
        }
    }

    /// Describes the profile of that name, as the API does.
    ///
    /// # Errors
    /// `unknown-profile`.
    pub(crate) async fn profile_description(&self, name: &str) -> Result<Value, ProblemDetails> {
        match self {
            Self::Daemon(client) => client.get(&path("/v1/profiles", name)).await,
            #[cfg(feature = "engine")]
            Self::Files(files) => files.profile(name),
        }
    }

    /// Returns the profile of that name.
    ///
    /// # Errors
    /// `unknown-profile`.
    pub(crate) async fn profile(&self, name: &str) -> Result<Profile, ProblemDetails> {
        profile_of(self.profile_description(name).await?)
    }

    /// Saves a new profile, and returns its description.
    ///
    /// # Errors
    /// `already-exists`; `unknown-agent`, `unknown-model`.
    pub(crate) async fn create_profile(&self, profile: &Profile) -> Result<Value, ProblemDetails> {
        match self {
            Self::Daemon(client) => {
                match self.profile(&profile.name).await {
                    Ok(found) if !found.computed => {
                        return Err(ProblemDetails::new(
                            "already-exists",
                            format!("there is a profile {:?} already", profile.name),
                        ));
                    }
                    Err(problem) if problem.kind != "unknown-profile" => return Err(problem),
                    _ => {}
                }
                client.put(&path("/v1/profiles", &profile.name), profile).await
            }
            #[cfg(feature = "engine")]
            Self::Files(files) => files.save_profile(profile, SaveMode::New),
        }
    }

    /// Saves a profile in the place of the stored one, and returns its description.
    ///
    /// # Errors
    /// `unknown-agent`, `unknown-model`.
    pub(crate) async fn change_profile(&self, profile: &Profile) -> Result<Value, ProblemDetails> {
        match self {
            Self::Daemon(client) => client.put(&path("/v1/profiles", &profile.name), profile).await,
            #[cfg(feature = "engine")]
            Self::Files(files) => files.save_profile(profile, SaveMode::Changed),
        }
    }

    /// Deletes a profile.
    ///
    /// # Errors
    /// `unknown-profile`.
    pub(crate) async fn delete_profile(&self, name: &str) -> Result<(), ProblemDetails> {
        match self {
            Self::Daemon(client) => client.delete(&path("/v1/profiles", name)).await,
            #[cfg(feature = "engine")]
            Self::Files(files) => files.delete_profile(name),
        }
    }

    /// Returns the model configurations as the API describes them.
    ///
    /// # Errors
    /// The daemon's.
    pub(crate) async fn models(&self) -> Result<Vec<Value>, ProblemDetails> {
        match self {
            Self::Daemon(client) => client.get("/v1/models").await,
            #[cfg(feature = "engine")]
            Self::Files(files) => Ok(files.models()),
        }
    }

    /// Describes the model configuration of that name.
    ///
    /// # Errors
    /// `unknown-model`.
    pub(crate) async fn model(&self, name: &str) -> Result<Value, ProblemDetails> {
        match self {
            Self::Daemon(client) => client.get(&path("/v1/models", name)).await,
            #[cfg(feature = "engine")]
            Self::Files(files) => files.model(name),
        }
    }

    /// Saves a new model configuration, and returns its description. A file with its key is one of the store's machine.
    ///
    /// # Errors
    /// `already-exists`; `usage` for a file with a key, which the API does not take.
    pub(crate) async fn create_model(&self, name: &str, stored: &StoredModel) -> Result<Value, ProblemDetails> {
        match self {
            Self::Daemon(client) => {
                if stored.key_file.is_some() {
                    return Err(ProblemDetails::usage(
                        "--key-file is a file of the daemon's machine: make the model configuration there, or send the key by --key-stdin",
                    ));
                }
                let StoredModel { provider, api, base_url, model, key, key_env, key_file: _ } = stored;
                let key = key.as_ref().map(agents::Secret::expose);
                let body = json!({
                    "name": name, "provider": provider, "api": api, "baseUrl": base_url, "model": model, "key": key, "keyEnv": key_env,
                });
                client.post("/v1/models", &body).await
            }
            #[cfg(feature = "engine")]
            Self::Files(files) => files.create_model(name, stored),
        }
    }

    /// Deletes a model configuration.
    ///
    /// # Errors
    /// `unknown-model`.
    pub(crate) async fn delete_model(&self, name: &str) -> Result<(), ProblemDetails> {
        match self {
            Self::Daemon(client) => client.delete(&path("/v1/models", name)).await,
            #[cfg(feature = "engine")]
            Self::Files(files) => files.delete_model(name),
        }
    }
}

/// Returns the agents of a daemon. It starts none, so that a version is only known where a file has it.
///
/// # Errors
/// The daemon's.
pub(crate) async fn agents_of(client: &DaemonClient) -> Result<Vec<InstalledAgent>, ProblemDetails> {
    client.get("/v1/agents").await
}

fn path(list: &str, name: &str) -> String {
    format!("{list}/{}", utf8_percent_encode(name, IN_PATH))
}

/// Reads a profile from its description, which has two members more.
fn profile_of(mut description: Value) -> Result<Profile, ProblemDetails> {
    let members = description.as_object_mut();
    let (name, computed) =
        members.map(|members| (members.remove("name"), members.remove("computed"))).unwrap_or_default();
    let name = name.and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default();
    let profile: Profile = serde_json::from_value(description).map_err(|error| {
        ProblemDetails::failed(format!("profile {name:?} is of another version than this program: {error}"))
    })?;
    Ok(Profile { computed: computed == Some(Value::Bool(true)), name, ..profile })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_of_a_daemon() {
        let profile =
            profile_of(json!({"name": "review", "computed": true, "agent": "pi", "model": "m"})).expect("fits");
        let expected = Profile {
            name: "review".into(),
            computed: true,
            agent: "pi".into(),
            model: Some("m".into()),
            ..Profile::default()
        };
        assert_eq!(profile, expected);
        let problem = profile_of(json!({"name": "later", "computed": false, "agent": "pi", "later": 1}))
            .expect_err("does not fit");
        assert!(problem.detail.contains("\"later\" is of another version"), "{}", problem.detail);
    }

    #[test]
    fn names_in_paths() {
        assert_eq!(path("/v1/models", "a.b_c-1"), "/v1/models/a.b_c-1");
        assert_eq!(path("/v1/models", "a/../b?c"), "/v1/models/a%2F..%2Fb%3Fc");
    }
}
