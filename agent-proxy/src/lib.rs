//! Command line of agent-proxy: a daemon and its clients, a foreground session, `doctor` and a demo.
//!
//! The user interface is here; `proxy-manager` does the work. This crate reads the environment and the terminal,
//! which no library of the workspace does. The exit codes are in [`api_types::exit`].
//!
//! Without the feature `engine` it is the client of a daemon alone, and compiles elsewhere than on Linux too.

mod args;
mod client;
mod command_failure;
mod commands;
mod completion;
mod config_dir;
#[cfg(feature = "engine")]
mod configuration;
mod configuration_store;
#[cfg(feature = "engine")]
mod daemon;
mod daemon_address;
#[cfg(feature = "engine")]
mod doctor;
#[cfg(all(test, feature = "engine"))]
mod documented;
#[cfg(feature = "engine")]
mod engine;
#[cfg(not(feature = "engine"))]
#[path = "without_engine.rs"]
mod engine;
mod environment;
#[cfg(feature = "engine")]
mod installed_agents;
#[cfg(feature = "engine")]
mod process_exit;
mod prompting;
mod render;
#[cfg(feature = "engine")]
mod serve_config;
mod socket_path;
mod term;
#[cfg(feature = "engine")]
mod tokens;
mod viewing;

use std::{ffi::OsString, process::ExitCode};

use api_types::{ProblemDetails, ProgramExit};
use tracing_subscriber::EnvFilter;

pub use crate::engine::{EngineToken, run_if_child};
use crate::{args::Cli, command_failure::CommandFailure};

/// Runs the program with this process's arguments. Call [`run_if_child`] first: it returns the token.
pub fn main(token: EngineToken) -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    if let Some(done) = engine::answer(&args) {
        return done;
    }
    completion::answer();
    let args = match engine::complete(args) {
        Ok(args) => args,
        Err(problem) => {
            term::problem(&problem, std::env::args_os().any(|arg| arg == "--json"));
            return problem.exit().into();
        }
    };
    let cli = match args::parse(&args) {
        Ok(cli) => cli,
        Err(error) => return refused(&error, &args).into(),
    };
    let logs_json = engine::logs_json(&cli.command);
    let as_json = cli.global.json || logs_json;
    log_to_stderr(cli.global.verbose, logs_json);
    engine::prepare();
    let exit = match run(cli, token) {
        // The reader of our output has closed it: no failure.
        Ok(()) | Err(CommandFailure::Closed) => ProgramExit::Done,
        Err(CommandFailure::Exit(exit)) => exit,
        Err(CommandFailure::Program(code)) => return code.into(),
        Err(CommandFailure::Problem(problem)) => {
            term::problem(&problem, as_json);
            problem.exit()
        }
    };
    exit.into()
}

fn run(cli: Cli, token: EngineToken) -> Result<(), CommandFailure> {
    // The daemon serves clients and sessions concurrently; every other command is sequential.
    let mut builder = match engine::is_daemon(&cli.command) {
        true => tokio::runtime::Builder::new_multi_thread(),
        false => tokio::runtime::Builder::new_current_thread(),
    };
    let runtime = builder
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| ProblemDetails::failed(format!("starting the runtime failed: {error}")))?;
    let done = runtime.block_on(commands::run(cli, token));
    runtime.shutdown_background();
    done
}

/// Reports why a command line was refused, or prints the help that it requested.
fn refused(error: &clap::Error, args: &[OsString]) -> ProgramExit {
    if !error.use_stderr() {
        // Only a closed pipe can make this fail.
        let _ = error.print();
        return ProgramExit::Done;
    }
    let as_json = args.iter().take_while(|arg| *arg != "--").any(|arg| arg == "--json");
    if let Some(problem) = engine::absent_command(error) {
        term::problem(&problem, as_json);
        return problem.exit();
    }
    if as_json {
        let text = error.render().to_string();
        let text = text.strip_prefix("error: ").unwrap_or(&text);
        term::problem(&ProblemDetails::usage(text.trim_end()), true);
    } else {
        let _ = error.print();
    }
    ProgramExit::Usage
}

fn log_to_stderr(verbose: u8, as_json: bool) {
    let default = ["warn", "info", "debug"][usize::from(verbose.min(2))];
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A terminal may be closed while a daemon runs: what cannot be printed is lost, and no reason to panic.
    let logs = logs.log_internal_errors(false);
    match as_json {
        false => logs.with_ansi(term::TermStyle::stderr().is_on()).init(),
        true => logs.json().flatten_event(true).with_current_span(false).with_span_list(false).init(),
    }
}
