//! Container that a session's agent runs in: as it is requested, as the proxy gets it, in force, and removed.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::EnvVars;

/// Label of each container with the id of its session.
pub const SESSION_LABEL: &str = "agent-proxy.session";
/// Label of each container with the value of [`MARKER`](crate::MARKER) of its run.
pub const RUN_LABEL: &str = "agent-proxy.run";
/// Label of each container that ends with its host, which the value identifies.
pub const HOST_LABEL: &str = "agent-proxy.host";

/// Program that runs containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ContainerEngine {
    /// Podman: its containers are processes below the session.
    Podman,
    /// Docker: its daemon has them.
    Docker,
}

impl ContainerEngine {
    /// All values, each with its name and that of its program; the first that is installed is the default.
    pub const ALL: [(Self, &'static str); 2] = [(Self::Podman, "podman"), (Self::Docker, "docker")];
}

impl fmt::Display for ContainerEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::ALL[*self as usize].1)
    }
}

/// Error for text that names no [`ContainerEngine`].
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown container engine {0:?}: use one of podman docker")]
pub struct UnknownEngine(pub String);

impl FromStr for ContainerEngine {
    type Err = UnknownEngine;

    fn from_str(text: &str) -> Result<Self, UnknownEngine> {
        let known = Self::ALL.iter().find(|(_, name)| *name == text);
        known.map(|(value, _)| *value).ok_or_else(|| UnknownEngine(text.chars().take(80).collect()))
    }
}

/// File or directory of the host that a container sees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionMount {
    /// Absolute path on the host.
    pub source: String,
    /// Absolute path in the container.
    pub target: String,
    /// True if the container cannot write it.
    #[serde(default)]
    pub read_only: bool,
}

impl fmt::Display for SessionMount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}{}", self.source, self.target, if self.read_only { ":ro" } else { "" })
    }
}

/// Error for text that is no [`SessionMount`].
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is no mount: write it as SOURCE:TARGET, or SOURCE:TARGET:ro")]
pub struct InvalidMount(pub String);

impl FromStr for SessionMount {
    type Err = InvalidMount;

    fn from_str(text: &str) -> Result<Self, InvalidMount> {
        let (source, target, read_only) = match *text.split(':').collect::<Vec<_>>() {
            [source, target] | [source, target, "rw"] => (source, target, false),
            [source, target, "ro"] => (source, target, true),
            _ => return Err(InvalidMount(text.chars().take(200).collect())),
        };
        if source.is_empty() || target.is_empty() {
            return Err(InvalidMount(text.chars().take(200).collect()));
        }
        Ok(Self { source: source.to_owned(), target: target.to_owned(), read_only })
    }
}

/// Container of a session, as it is requested.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct SessionContainer {
    /// Image that the agent runs in, with or without a tag; `null` for the profile's, else that of the agent's row, else no
    /// container.
    pub image: Option<String>,
    /// Engine; `null` for the first that is installed of podman and docker.
    pub engine: Option<ContainerEngine>,
    /// Mounts, besides the working directory, which is mounted at its own path.
    pub mounts: Vec<SessionMount>,
}

/// Container as the proxy gets it: resolved by the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerSpec {
    /// Path of the engine's program.
    pub program: String,
    /// Environment of the engine.
    pub env: EnvVars,
    /// Name of the container, unique to one run of one session.
    pub name: String,
    /// Container in force, once it runs.
    pub status: ContainerStatus,
}

/// Container in force, as reported in `session:started`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ContainerStatus {
    /// Engine that runs it.
    pub engine: ContainerEngine,
    /// Image.
    pub image: String,
    /// Name of the container.
    pub name: String,
    /// All mounts.
    pub mounts: Vec<SessionMount>,
    /// True if it has no network but its own loopback; else it has what the engine gives.
    pub network_off: bool,
}

/// Removal of a session's container, in a receipt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ContainerRemoval {
    /// Name of the container.
    pub name: String,
    /// True if the engine has confirmed that there is no such container any more, and no mount of it.
    pub is_removed: bool,
    /// What the engine said, where it has not.
    pub failure: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_engine_is_at_its_place_and_parses_back() {
        for (value, name) in ContainerEngine::ALL {
            assert_eq!(value.to_string(), name);
            assert_eq!(name.parse(), Ok(value));
            assert_eq!(serde_json::to_value(value).expect("JSON"), name);
        }
        assert!("Podman".parse::<ContainerEngine>().is_err());
    }

    #[test]
    fn a_mount_parses_back() {
        for text in ["/a:/b", "/a b:/c:ro"] {
            assert_eq!(text.parse::<SessionMount>().expect("a mount").to_string(), text);
        }
        for wrong in ["", "/a", ":/b", "/a:", "/a:/b:rx", "/a:/b:ro:z"] {
            assert!(wrong.parse::<SessionMount>().is_err(), "{wrong}");
        }
    }
}
