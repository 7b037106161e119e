//! Workspaces of sessions, and their changes.

use std::time::SystemTime;

use ipc_protocol::{FileChange, SessionId, WorkspaceKind};
use serde::{Deserialize, Serialize};

/// Workspace of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceInfo {
    /// Session whose agent works in it.
    pub session_id: SessionId,
    /// Label of the session's user.
    pub user_id: Option<String>,
    /// Kind of the workspace.
    pub kind: WorkspaceKind,
    /// Tree of the user's that it was made from, and that changes are applied to.
    pub source: String,
    /// Tree that the agent works in.
    pub path: String,
    /// Working directory of the agent: the tree, or a directory in it.
    pub cwd: String,
    /// Time at which it was made. RFC 3339.
    #[serde(with = "ipc_protocol::time_text")]
    #[cfg_attr(feature = "openapi", schemars(with = "ipc_protocol::json_schema::TimeText"))]
    pub created_at: SystemTime,
    /// Number of changed files that are not applied; `null` where it could not be found out.
    pub changed_files: Option<u64>,
}

/// Changes in a workspace that are not applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceDiff {
    /// Changed files, by path. Files that git ignores are left out.
    pub files: Vec<ChangedFile>,
    /// The changes as a patch of git's; `null` if it is longer than 16 MiB.
    pub patch: Option<String>,
    /// Repositories within the tree: changes in them are neither shown nor applied.
    pub left_out: Vec<String>,
}

/// Changed file of a workspace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ChangedFile {
    /// Path in the tree.
    pub path: String,
    /// Kind of the change.
    pub change: FileChange,
    /// Path before a move.
    pub moved_from: Option<String>,
}
