//! Arguments of commands on several sessions.

use clap::Args;
use ipc_protocol::SessionId;

/// Sessions of a command.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct SeveralArgs {
    /// The sessions' ids, or unique beginnings of them
    #[arg(value_name = "ID", required_unless_present = "every")]
    pub(crate) ids: Vec<SessionId>,
    /// Every session in a state for it
    ///
    /// kill: those that run. suspend: those that run and can be resumed. delete: those that have ended, but for archived ones.
    /// archive: those that have ended, and with --undo those that are archived.
    #[arg(long = "all", id = "every", conflicts_with = "ids")]
    pub(crate) all: bool,
}
