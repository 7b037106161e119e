//! What the engine adds to the command line. A build without it has `without_engine.rs` in this place.

use std::{ffi::OsString, path::Path, process::ExitCode};

pub(crate) use agents::SaveMode;
use agents::{Profile, StoredModel};
use api_types::{InstalledAgent, ProblemDetails};
use clap::Args as _;
use ipc_protocol::ProcessId;
pub use proxy_child::{ChildToken as EngineToken, run_if_child};
use proxy_manager::ChildProgram;
use proxy_server::{LoadedConfiguration, model_json, profile_json};
use registry::PidFd;
use serde_json::Value;

pub(crate) use crate::commands::engine::workspaces;
use crate::{
    args::{AgentsArgs, AskArgs, CliCommand, EngineCommand, GlobalArgs, LogFormat, ServeArgs},
    client::{DaemonClient, SilentDaemon},
    command_failure::CommandFailure,
    commands,
    completion::ConfiguredNames,
    configuration,
    daemon_address::DaemonAddress,
    installed_agents::installed,
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

/// Returns the process of a daemon that does not answer; `None` if it cannot be seen from here.
pub(crate) async fn silent_daemon(client: &DaemonClient) -> Option<SilentDaemon> {
    client.silent_daemon().await
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

/// Returns the names in the user's configuration on this machine; `None` if it cannot be read.
pub(crate) fn configured_names(directory: Option<&Path>) -> Option<ConfiguredNames> {
    let LoadedConfiguration { catalog, profiles, models, .. } = &configuration::read(directory).ok()?;
    let about = |profile: &Profile| profile.description.clone().unwrap_or(profile.agent.clone());
    Some(ConfiguredNames {
        agents: {
            let rows = catalog.rows().iter().filter(|row| row.enabled);
            rows.map(|row| (row.id.clone(), row.display_name.clone())).collect()
        },
        profiles: profiles.iter().map(|profile| (profile.name.clone(), about(profile))).collect(),
        model_configs: models.iter().map(|(name, stored)| (name.clone(), stored.provider.clone())).collect(),
        models: {
            let of_models = models.values().filter_map(|stored| stored.model.clone());
            of_models.chain(profiles.iter().filter_map(|profile| profile.model.clone())).collect()
        },
    })
}

/// Looks for the agents of this machine; `None` if a URL names a daemon, whose agents are meant.
///
/// # Errors
/// `invalid-config`; the manager's, when it cannot be started for the agents that tell their version only when they run.
pub(crate) async fn installed_agents(
    token: EngineToken,
    args: &AgentsArgs,
    global: &GlobalArgs,
) -> Result<Option<Vec<InstalledAgent>>, CommandFailure> {
    if DaemonAddress::is_url_given(global.address()) {
        return Ok(None);
    }
    let configuration = configuration::read(global.config_dir.as_deref())?;
    let child = (!args.no_run).then_some(ChildProgram::Current(token));
    installed(&configuration.catalog, child).await.map(Some)
}

/// Returns the JSON schema of a file of agents.
///
/// # Errors
/// None.
pub(crate) fn agents_schema() -> Result<Value, ProblemDetails> {
    Ok(agents::schema())
}

/// Profiles and model configurations in the files of this machine.
#[derive(Debug)]
pub(crate) struct StoredConfiguration(LoadedConfiguration);

impl StoredConfiguration {
    /// Reads the given directory, or the one that the environment names.
    ///
    /// # Errors
    /// As [`configuration::read`].
    pub(crate) fn read(directory: Option<&Path>) -> Result<Self, ProblemDetails> {
        configuration::read(directory).map(Self)
    }

    /// Describes the profiles.
    pub(crate) fn profiles(&self) -> Vec<Value> {
        self.0.profiles.iter().map(profile_json).collect()
    }

    /// Describes the profile of that name.
    ///
    /// # Errors
    /// `unknown-profile`.
    pub(crate) fn profile(&self, name: &str) -> Result<Value, ProblemDetails> {
        Ok(profile_json(self.0.profiles.get(name)?))
    }

    /// Saves a profile, and describes it.
    ///
    /// # Errors
    /// As [`LoadedConfiguration::save_profile`].
    pub(crate) fn save_profile(&self, profile: &Profile, mode: SaveMode) -> Result<Value, ProblemDetails> {
        self.0.save_profile(profile, mode)?;
        Ok(profile_json(profile))
    }

    /// Deletes a profile.
    ///
    /// # Errors
    /// `unknown-profile`.
    pub(crate) fn delete_profile(&self, name: &str) -> Result<(), ProblemDetails> {
        Ok(self.0.directory()?.delete_profile(name)?)
    }

    /// Describes the model configurations.
    pub(crate) fn models(&self) -> Vec<Value> {
        self.0.models.iter().map(|(name, stored)| model_json(name, stored)).collect()
    }

    /// Describes the model configuration of that name.
    ///
    /// # Errors
    /// `unknown-model`.
    pub(crate) fn model(&self, name: &str) -> Result<Value, ProblemDetails> {
        Ok(model_json(name, self.0.stored_model(name)?))
    }

    /// Saves a new model configuration, and describes it.
    ///
    /// # Errors
    /// `already-exists`.
    pub(crate) fn create_model(&self, name: &str, stored: &StoredModel) -> Result<Value, ProblemDetails> {
        self.0.directory()?.create_model(name, stored)?;
        Ok(model_json(name, stored))
    }

    /// Deletes a model configuration.
    ///
    /// # Errors
    /// `unknown-model`.
    pub(crate) fn delete_model(&self, name: &str) -> Result<(), ProblemDetails> {
        Ok(self.0.directory()?.delete_model(name)?)
    }
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
