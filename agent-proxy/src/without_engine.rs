//! What a build without the engine has in the place of `engine.rs`: nothing runs here, and whoever asks for it is told where it does.

use std::{ffi::OsString, path::Path, process::ExitCode};

use api_types::{InstalledAgent, ProblemDetails};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use ipc_protocol::ProcessId;
use serde_json::Value;

use crate::{
    args::{AgentsArgs, AskArgs, CliCommand, GlobalArgs},
    client::{DaemonClient, SilentDaemon},
    command_failure::CommandFailure,
    completion::ConfiguredNames,
};

/// Commands of a build with the engine.
const COMMANDS: [&str; 14] = [
    "accounts", "acp", "config", "demo", "doctor", "hooks", "leaktest", "log", "mcp", "orphans", "restart", "run",
    "serve", "tokens",
];

/// Stands for the right to run as a part of the engine, which this build has none of.
#[derive(Debug)]
pub struct EngineToken;

/// Does nothing: no program is started again by the engine here.
pub fn run_if_child() -> EngineToken {
    EngineToken
}

/// Process of a daemon on this machine, which this build cannot watch.
#[derive(Debug)]
pub(crate) enum DaemonProcess {}

/// Serves programs that start this one for themselves: there are none.
pub(crate) fn answer(_: &[OsString]) -> Option<ExitCode> {
    None
}

/// Returns the command line as it is.
///
/// # Errors
/// None.
pub(crate) fn complete(args: Vec<OsString>) -> Result<Vec<OsString>, ProblemDetails> {
    Ok(args)
}

/// Does nothing: a client needs few descriptors.
pub(crate) fn prepare() {}

/// Returns true for the daemon itself, which is not here.
pub(crate) fn is_daemon(_: &CliCommand) -> bool {
    false
}

/// Returns true for a daemon that logs JSON.
pub(crate) fn logs_json(_: &CliCommand) -> bool {
    false
}

/// Returns the options of `serve`: there are none.
pub(crate) fn serve_options() -> Option<clap::Command> {
    None
}

/// Returns the problem of a command that only a build with the engine has.
pub(crate) fn absent_command(error: &clap::Error) -> Option<ProblemDetails> {
    match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(name))
            if error.kind() == ErrorKind::InvalidSubcommand && COMMANDS.contains(&name.as_str()) =>
        {
            Some(needs_engine(&format!("`{name}`")))
        }
        _ => None,
    }
}

fn needs_engine(what: &str) -> ProblemDetails {
    let detail = format!(
        "{what} needs the engine, and this build is a client alone: the engine runs on Linux; name its daemon with --url or \
         AGENT_PROXY_URL (docs/platforms.md)"
    );
    ProblemDetails::new("unsupported", detail)
}

/// Refuses a question without a session, or with a handler.
///
/// # Errors
/// `unsupported`.
pub(crate) async fn ask(_: EngineToken, args: AskArgs, _: &GlobalArgs) -> Result<(), CommandFailure> {
    let what = if args.session().is_none() { "`ask` without the id of a session" } else { "`ask --handler`" };
    Err(needs_engine(what).into())
}

/// Returns the process of the daemon: it cannot be seen from here.
///
/// # Errors
/// None.
pub(crate) async fn daemon_process(_: &DaemonClient) -> Result<Option<DaemonProcess>, ProblemDetails> {
    Ok(None)
}

/// Returns the process of a daemon that does not answer: it cannot be seen from here.
pub(crate) async fn silent_daemon(_: &DaemonClient) -> Option<SilentDaemon> {
    None
}

/// Waits until a daemon is gone.
///
/// # Errors
/// None.
pub(crate) async fn wait_for_end(daemon: &DaemonProcess) -> Result<(), ProblemDetails> {
    match *daemon {}
}

/// Returns true if this process is alive on this machine: no process of a session is seen from here.
pub(crate) fn is_alive(_: ProcessId) -> bool {
    false
}

/// Returns the names in the configuration of this machine: there is none, and the daemon is asked.
pub(crate) fn configured_names(_: Option<&Path>) -> Option<ConfiguredNames> {
    None
}

/// Looks for the agents of this machine: none are looked for, and the daemon is asked.
///
/// # Errors
/// None.
pub(crate) async fn installed_agents(
    _: EngineToken,
    _: &AgentsArgs,
    _: &GlobalArgs,
) -> Result<Option<Vec<InstalledAgent>>, CommandFailure> {
    Ok(None)
}

/// Refuses the schema of a file of agents: such files are read by the engine.
///
/// # Errors
/// `unsupported`.
pub(crate) fn agents_schema() -> Result<Value, ProblemDetails> {
    Err(needs_engine("`agents --schema`"))
}

/// Workspaces of sessions that ran in this terminal: none.
pub(crate) mod workspaces {
    use api_types::{ProblemDetails, WorkspaceDiff, WorkspaceInfo, api::WorkspaceResult};
    use ipc_protocol::SessionId;

    /// Returns the id as it is.
    ///
    /// # Errors
    /// None.
    pub(crate) fn resolve(session: &SessionId) -> Result<SessionId, ProblemDetails> {
        Ok(session.clone())
    }

    /// Lists the workspaces.
    pub(crate) fn list() -> Vec<WorkspaceInfo> {
        Vec::new()
    }

    /// Returns the changes of a workspace, if it is here.
    ///
    /// # Errors
    /// None.
    pub(crate) fn diff(_: &SessionId) -> Result<Option<WorkspaceDiff>, ProblemDetails> {
        Ok(None)
    }

    /// Applies a workspace, if it is here.
    ///
    /// # Errors
    /// None.
    pub(crate) fn apply(_: &SessionId) -> Result<Option<WorkspaceResult>, ProblemDetails> {
        Ok(None)
    }

    /// Removes a workspace, if it is here.
    ///
    /// # Errors
    /// None.
    pub(crate) fn remove(_: &SessionId) -> Result<Option<WorkspaceResult>, ProblemDetails> {
        Ok(None)
    }
}
