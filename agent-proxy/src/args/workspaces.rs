//! Arguments of commands about workspaces, and the flag that gives a session one.

use clap::{
    Args,
    builder::{PossibleValuesParser, TypedValueParser},
};
use ipc_protocol::{SessionId, WorkspaceKind};

use super::FormatArgs;

/// Arguments of `workspaces`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    agent-proxy workspaces\n  \
    agent-proxy diff s-1 --stat\n  \
    agent-proxy apply s-1\n\n\
    Workspaces of `run` and `ask` without a daemon are listed too.")]
pub(crate) struct WorkspacesArgs {
    /// Form of the list.
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

/// Arguments of `diff`.
#[derive(Debug, Args)]
pub(crate) struct WorkspaceDiffArgs {
    /// The session's id
    pub(crate) id: SessionId,
    /// List the files only
    #[arg(long)]
    pub(crate) stat: bool,
}

/// Parses the value of `--workspace`.
pub(super) fn kind() -> impl TypedValueParser<Value = WorkspaceKind> {
    PossibleValuesParser::new(WorkspaceKind::ALL.map(|(_, name)| name)).try_map(|name| name.parse::<WorkspaceKind>())
}
