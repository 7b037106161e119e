//! Command line of agent-proxy: a daemon and its clients, a foreground session, `doctor` and a demo.
//!
//! The user interface is here; `proxy-manager` does the work. This crate reads the environment and the terminal,
//! which no library of the workspace does. The exit codes are in [`proxy_server::exit`].

mod args;
mod client;
mod command_failure;
mod commands;
mod completion;
mod configuration;
mod daemon;
mod daemon_address;
mod doctor;
#[cfg(test)]
mod documented;
mod environment;
mod installed_agents;
mod process_exit;
mod prompting;
mod render;
mod serve_config;
mod socket_path;
mod term;
mod tokens;
mod viewing;

use std::{ffi::OsString, process::ExitCode};

use proxy_child::ChildToken;
use proxy_server::{ProblemDetails, ProgramExit};
use tracing_subscriber::EnvFilter;

use crate::{
    args::{Cli, CliCommand, LogFormat},
    command_failure::CommandFailure,
};

/// First argument that makes this program the fake agent. Not for users, so it is not in the help.
pub(crate) const FAKE_AGENT: &str = "fake-agent";

/// Runs the program with this process's arguments. Call `proxy_child::run_if_child` first: it returns the token.
pub fn main(token: ChildToken) -> ExitCode {
    registry::bound_arenas();
    let args: Vec<OsString> = std::env::args_os().collect();
    if args.get(1).is_some_and(|arg| arg == FAKE_AGENT) {
        return fake_agent(&args[2..]);
    }
    if let Some(done) = commands::hooks::record_report(&args) {
        return done;
    }
    completion::answer();
    let args = match serve_config::complete(args) {
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
    let as_json = cli.global.json;
    let format = match &cli.command {
        CliCommand::Serve(args) => args.log_format,
        _ => LogFormat::Text,
    };
    let as_json = as_json || format == LogFormat::Json;
    log_to_stderr(cli.global.verbose, format);
    // Agents get the limit that we were started with. Where it cannot be raised there are fewer sessions, and a start says so.
    let _ = proxy_manager::raise_descriptor_limit();
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

fn run(cli: Cli, token: ChildToken) -> Result<(), CommandFailure> {
    // The daemon serves clients and sessions concurrently; every other command is sequential.
    let mut builder = match cli.command {
        CliCommand::Serve(_) => tokio::runtime::Builder::new_multi_thread(),
        _ => tokio::runtime::Builder::new_current_thread(),
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
    if args.iter().take_while(|arg| *arg != "--").any(|arg| arg == "--json") {
        let text = error.render().to_string();
        let text = text.strip_prefix("error: ").unwrap_or(&text);
        term::problem(&ProblemDetails::usage(text.trim_end()), true);
    } else {
        let _ = error.print();
    }
    ProgramExit::Usage
}

fn log_to_stderr(verbose: u8, format: LogFormat) {
    let default = ["warn", "info", "debug"][usize::from(verbose.min(2))];
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A terminal may be closed while a daemon runs: what cannot be printed is lost, and no reason to panic.
    let logs = logs.log_internal_errors(false);
    match format {
        LogFormat::Text => logs.with_ansi(term::TermStyle::stderr().is_on()).init(),
        LogFormat::Json => logs.json().flatten_event(true).with_current_span(false).with_span_list(false).init(),
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
