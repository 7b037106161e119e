//! Workspace of a session: the copy of the user's tree that its agent works in.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// Tree that an agent works in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum WorkspaceKind {
    /// The user's own tree.
    #[default]
    Off,
    /// A copy of the tree with everything in it, by reflinks where the file system has them.
    Copy,
    /// A git worktree of the repository, with changes that are not committed, and without ignored files.
    Worktree,
    /// The tree itself, in the session's mounts, with a layer over it that has the changes. Takes a mount namespace.
    Overlay,
}

impl WorkspaceKind {
    /// All values, each with its name.
    pub const ALL: [(Self, &'static str); 4] =
        [(Self::Off, "off"), (Self::Copy, "copy"), (Self::Worktree, "worktree"), (Self::Overlay, "overlay")];
}

impl fmt::Display for WorkspaceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::ALL[*self as usize].1)
    }
}

/// Error for text that names no [`WorkspaceKind`].
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown workspace {0:?}: use one of off copy worktree overlay")]
pub struct UnknownWorkspace(pub String);

impl FromStr for WorkspaceKind {
    type Err = UnknownWorkspace;

    fn from_str(text: &str) -> Result<Self, UnknownWorkspace> {
        let known = Self::ALL.iter().find(|(_, name)| *name == text);
        known.map(|(value, _)| *value).ok_or_else(|| UnknownWorkspace(text.chars().take(80).collect()))
    }
}

/// Overlay as the proxy mounts it. All are absolute directories.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverlaySpec {
    /// Mount point.
    pub tree: String,
    /// Tree of the user's, which stays as it is.
    pub lower: String,
    /// Directory that gets the changes.
    pub upper: String,
    /// Directory of the kernel's own, in the same file system.
    pub work: String,
}

/// Step in the life of a workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum WorkspaceStep {
    /// It was made from the user's tree.
    Made,
    /// Its changes were written to the user's tree.
    Applied,
    /// It was removed.
    Dropped,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_at_its_place_and_parses_back() {
        for (value, name) in WorkspaceKind::ALL {
            assert_eq!(value.to_string(), name);
            assert_eq!(name.parse(), Ok(value));
            assert_eq!(serde_json::to_value(value).expect("JSON"), name);
        }
        assert!("Copy".parse::<WorkspaceKind>().is_err());
    }
}
