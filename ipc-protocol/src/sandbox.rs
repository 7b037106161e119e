//! Files that a session's processes may use: the requested sandbox, and the one in force.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::NetworkAccess;

/// Files that a session's processes may read and write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum SandboxMode {
    /// Whatever the user may.
    #[default]
    Off,
    /// Reads the system without the user's keys; writes the agent's own places and a private tmp.
    ReadOnly,
    /// As `ReadOnly`, and writes the working directory.
    Workspace,
}

impl SandboxMode {
    /// All values, each with its name.
    pub const ALL: [(Self, &'static str); 3] =
        [(Self::Off, "off"), (Self::ReadOnly, "read-only"), (Self::Workspace, "workspace")];
}

impl fmt::Display for SandboxMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::ALL[*self as usize].1)
    }
}

/// Error for text that names no [`SandboxMode`].
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown sandbox {0:?}: use one of off read-only workspace")]
pub struct UnknownSandbox(pub String);

impl FromStr for SandboxMode {
    type Err = UnknownSandbox;

    fn from_str(text: &str) -> Result<Self, UnknownSandbox> {
        let known = Self::ALL.iter().find(|(_, name)| *name == text);
        known.map(|(value, _)| *value).ok_or_else(|| UnknownSandbox(text.chars().take(80).collect()))
    }
}

/// Layer that keeps a session from files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum FileLayer {
    /// Mounts in a namespace.
    #[default]
    Mounts,
    /// Rules of Landlock, which need no namespace; of a sandbox, with a filter of system calls.
    Landlock,
}

impl FileLayer {
    /// All values, each with its name.
    pub const ALL: [(Self, &'static str); 2] = [(Self::Mounts, "mounts"), (Self::Landlock, "landlock")];
}

impl fmt::Display for FileLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::ALL[*self as usize].1)
    }
}

/// Sandbox of a session, as it is requested.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct SessionSandbox {
    /// Files in reach; `null` for the profile's, and `off` without one.
    pub mode: Option<SandboxMode>,
    /// Absolute paths that are read although the sandbox hides them.
    pub read: Vec<String>,
    /// Absolute paths that are written too.
    pub write: Vec<String>,
    /// Hosts in reach; `null` for the profile's, and `host` without one. Another than `host` needs a mode other than `off`.
    pub network: Option<NetworkAccess>,
}

impl SessionSandbox {
    /// Returns whether the session has a sandbox.
    pub fn is_on(&self) -> bool {
        self.mode.unwrap_or_default() != SandboxMode::Off
    }
}

/// Sandbox as the proxy gets it: paths that the host has resolved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxSpec {
    /// Requested mode.
    pub mode: SandboxMode,
    /// Absolute paths that are written.
    pub write: Vec<String>,
    /// Absolute paths that are read although something around them is hidden.
    pub read: Vec<String>,
    /// Absolute paths that cannot be read.
    pub hidden: Vec<String>,
    /// The user's home, in which directories around hidden paths show what they had at the start.
    pub home: Option<String>,
    /// Hosts in reach.
    pub network: NetworkAccess,
    /// Layer that enforces it.
    #[serde(default)]
    pub layer: FileLayer,
    /// Directory for temporary files, where the layer cannot give the session a `/tmp` of its own.
    #[serde(default)]
    pub temporary: Option<String>,
}

/// Sandbox in force, as reported in `session:started`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SandboxStatus {
    /// Mode in force.
    pub mode: SandboxMode,
    /// Layer that enforces it: `mounts` or `landlock`.
    pub layer: String,
    /// Paths that are written, besides a private `/tmp` where the layer is `mounts`.
    pub write: Vec<String>,
    /// Paths that were there at the start and cannot be read.
    pub hidden: Vec<String>,
    /// Hosts in reach.
    pub network: NetworkAccess,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_is_at_its_place_and_parses_back() {
        for (value, name) in SandboxMode::ALL {
            assert_eq!(value.to_string(), name);
            assert_eq!(name.parse(), Ok(value));
            assert_eq!(serde_json::to_value(value).expect("JSON"), name);
        }
        assert!("Workspace".parse::<SandboxMode>().is_err());
        for (value, name) in FileLayer::ALL {
            assert_eq!(value.to_string(), name);
            assert_eq!(serde_json::to_value(value).expect("JSON"), name);
        }
    }
}
