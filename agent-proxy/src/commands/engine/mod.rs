//! Commands that run agents, or look at this machine.

mod acp;
pub(crate) mod ask;
mod demo;
mod doctor;
pub(super) mod fleet_accounts;
mod foreground_config;
mod handler;
pub(crate) mod hooks;
mod input_reader;
mod interrupts;
mod leaktest;
mod log;
mod mcp;
mod orphans;
mod permission;
mod protocol_backend;
mod restart;
mod run;
mod serve;
mod serve_config;
mod tokens;
pub(crate) mod workspaces;

use proxy_child::ChildToken;
use proxy_manager::ChildProgram;
use proxy_server::ProblemDetails;

use super::client;
use crate::{
    args::{EngineCommand, GlobalArgs},
    client::DaemonClient,
    command_failure::CommandFailure,
    daemon_address::DaemonAddress,
    socket_path::SocketPath,
};

/// Runs a command to its end.
///
/// # Errors
/// The problem to report, or the exit code that is left.
pub(super) async fn run(command: EngineCommand, token: ChildToken, global: &GlobalArgs) -> Result<(), CommandFailure> {
    let child = ChildProgram::Current(token);
    let (directory, as_json) = (global.config_dir.as_deref(), global.json);
    match command {
        EngineCommand::Demo => demo::run(child, as_json).await,
        EngineCommand::Run(args) => run::run(child, args, directory, as_json).await,
        EngineCommand::Tokens(_) if DaemonAddress::is_url_given(global.address()) => {
            let detail = "tokens are made, listed and revoked where their daemon runs: do it there, without --url and AGENT_PROXY_URL";
            Err(ProblemDetails::usage(detail).into())
        }
        EngineCommand::Tokens(args) => tokens::run(args, directory, as_json),
        EngineCommand::Config(args) => serve_config::run(args, directory, as_json),
        EngineCommand::Restart(_) if global.url.is_some() => {
            Err(ProblemDetails::usage("restart starts a program of this machine: run it where the daemon is").into())
        }
        EngineCommand::Restart(args) => {
            let socket = socket(global)?;
            restart::run(&DaemonClient::new(socket.clone()), &socket, &args, as_json).await
        }
        EngineCommand::Serve(args) => serve::run(child, args, global, &socket(global)?).await,
        EngineCommand::Acp(args) => acp::run(child, &client(global)?, args, directory).await,
        EngineCommand::Mcp(args) => mcp::run(child, &client(global)?, &args, directory).await,
        EngineCommand::Orphans(args) => orphans::run(args, directory, as_json).await,
        EngineCommand::Leaktest(args) => leaktest::run(child, args, as_json).await,
        EngineCommand::Doctor => {
            let socket = SocketPath::find(global.socket.as_deref());
            doctor::run(child, &socket, directory, as_json).await
        }
        EngineCommand::Log(args) => log::run(&args, as_json),
        EngineCommand::Hooks(args) => hooks::run(args, as_json).await,
    }
}

fn socket(global: &GlobalArgs) -> Result<SocketPath, ProblemDetails> {
    let socket = SocketPath::find(global.socket.as_deref());
    match socket.unusable() {
        Some(why) => Err(ProblemDetails::usage(why)),
        None => Ok(socket),
    }
}
