//! What the engine adds to the command line. A build without it has `without_engine.rs` in this place.

use std::{ffi::OsString, path::Path, process::ExitCode};

use agents::Profile;
use api_types::ProblemDetails;
use clap::Args as _;
use ipc_protocol::ProcessId;
pub use proxy_child::{ChildToken as EngineToken, run_if_child};
use proxy_server::LoadedConfiguration;
use registry::PidFd;

pub(crate) use crate::commands::engine::workspaces;
use crate::{
    args::{AskArgs, CliCommand, EngineCommand, GlobalArgs, LogFormat, ServeArgs},
    client::DaemonClient,
    command_failure::CommandFailure,
    commands, configuration,
    process_exit::ProcessExit,
    serve_config, term,
};

/// First argument that makes this program the fake agent. Not for users, so it is not in the help.
pub(crate) const FAKE_AGENT: &str = "fake-agent";

/// Process of a daemon on this machine.
pub(crate) type DaemonProcess = PidFd;

/// Serves programs that start this one for themselves; returns `None` for users.
pub(crate) fn answer(args: &[OsString]) -> Option<ExitCode> {
    registry::bound_arenas();
    if args.get(1).is_some_and(|arg| arg == FAKE_AGENT) {
        return Some(fake_agent(&args[2..]));
    }
    commands::engine::hooks::record_report(args)
}

/// Adds what environment and file set to a command line of `serve`.
///
/// # Errors
/// As [`serve_config::complete`].
pub(crate) fn complete(args: Vec<OsString>) -> Result<Vec<OsString>, ProblemDetails> {
    serve_config::complete(args)
}

/// Gets as many descriptors as there may be. Agents get the limit that this process was started with.
pub(crate) fn prepare() {
    // Where it cannot be raised there are fewer sessions, and a start says so.
    let _ = proxy_manager::raise_descriptor_limit();
}

/// Returns true for the daemon itself.
pub(crate) fn is_daemon(command: &CliCommand) -> bool {
    matches!(command, CliCommand::Engine(EngineCommand::Serve(_)))
}

/// Returns true for a daemon that logs JSON.
pub(crate) fn logs_json(command: &CliCommand) -> bool {
    matches!(command, CliCommand::Engine(EngineCommand::Serve(args)) if args.log_format == LogFormat::Json)
}

/// Returns the options of `serve`, for topics of the help.
pub(crate) fn serve_options() -> Option<clap::Command> {
    Some(ServeArgs::augment_args(clap::Command::new("agent-proxy")))
}

/// Returns the problem of a command that only other builds have.
pub(crate) fn absent_command(_: &clap::Error) -> Option<ProblemDetails> {
    None
}

/// Asks in a session of this process, or with a handler in one.
///
/// # Errors
/// As the command `ask`.
pub(crate) async fn ask(token: EngineToken, args: AskArgs, global: &GlobalArgs) -> Result<(), CommandFailure> {
    commands::engine::ask::run(token, args, global).await
}

/// Returns the process of the daemon; `None` if it cannot be seen from here.
///
/// # Errors
/// `no-daemon`.
pub(crate) async fn daemon_process(client: &DaemonClient) -> Result<Option<DaemonProcess>, ProblemDetails> {
    client.daemon_process().await
}

/// Waits until a daemon is gone.
///
/// # Errors
/// When out of descriptors.
pub(crate) async fn wait_for_end(daemon: &DaemonProcess) -> Result<(), ProblemDetails> {
    let failed =
        |error: std::io::Error| ProblemDetails::failed(format!("waiting for the daemon's end failed: {error}"));
    ProcessExit::of(daemon).map_err(failed)?.wait().await.map_err(failed)
}

/// Returns true if this process is alive on this machine.
pub(crate) fn is_alive(process: ProcessId) -> bool {
    registry::identify(process.pid).is_ok_and(|now| now == process)
}

/// Agents of the user's configuration, each with its title.
pub(crate) fn agents(directory: Option<&Path>) -> Vec<(String, String)> {
    configured(directory, |configuration| {
        let rows = configuration.catalog.rows().iter().filter(|row| row.enabled);
        rows.map(|row| (row.id.clone(), row.display_name.clone())).collect()
    })
}

/// Profiles of the user's configuration, each with its description.
pub(crate) fn profiles(directory: Option<&Path>) -> Vec<(String, String)> {
    configured(directory, |configuration| {
        let about = |profile: &Profile| profile.description.clone().unwrap_or(profile.agent.clone());
        configuration.profiles.iter().map(|profile| (profile.name.clone(), about(profile))).collect()
    })
}

/// Model configurations of the user's, each with its provider.
pub(crate) fn model_configs(directory: Option<&Path>) -> Vec<(String, String)> {
    configured(directory, |configuration| {
        configuration.models.iter().map(|(name, stored)| (name.clone(), stored.provider.clone())).collect()
    })
}

/// Models that the user's configuration names.
pub(crate) fn models(directory: Option<&Path>) -> Vec<String> {
    configured(directory, |configuration| {
        let of_models = configuration.models.values().filter_map(|stored| stored.model.clone());
        of_models.chain(configuration.profiles.iter().filter_map(|profile| profile.model.clone())).collect()
    })
}

fn configured<T: Default>(directory: Option<&Path>, find: impl Fn(&LoadedConfiguration) -> T) -> T {
    configuration::read(directory).as_ref().map(find).unwrap_or_default()
}

fn fake_agent(args: &[OsString]) -> ExitCode {
    let reexec = match fake_agent_argv() {
        Ok(argv) => argv,
        Err(problem) => {
            term::problem(&problem, false);
            return problem.exit().into();
        }
    };
    let args = args.iter().map(|arg| arg.to_string_lossy().into_owned());
    let code = fake_agent::run(fake_agent::Config { reexec }, args);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

/// Returns the program and argument that start the fake agent.
pub(crate) fn fake_agent_argv() -> Result<Vec<String>, ProblemDetails> {
    let program = std::env::current_exe()
        .map_err(|error| ProblemDetails::failed(format!("finding this program's own path failed: {error}")))?;
    let program = program.into_os_string().into_string();
    let program =
        program.map_err(|path| ProblemDetails::failed(format!("this program's own path {path:?} is not UTF-8")))?;
    Ok(vec![program, FAKE_AGENT.to_owned()])
}

#[cfg(test)]
mod tests {
    use clap::Subcommand as _;

    use super::*;

    #[test]
    fn a_build_without_the_engine_knows_its_commands_by_name() {
        let names = include_str!("without_engine.rs");
        let commands = EngineCommand::augment_subcommands(clap::Command::new("agent-proxy"));
        for command in commands.get_subcommands() {
            assert!(names.contains(&format!("\"{}\"", command.get_name())), "{}", command.get_name());
        }
    }
}
