//! One module a command.

mod abort;
mod completions;
mod config;
mod demo;
mod doctor;
mod events;
mod interrupts;
mod kill;
mod leaktest;
mod permission;
mod permit;
mod prompt;
mod ps;
mod run;
mod serve;
mod sessions;
mod start;

use proxy_child::ChildToken;
use proxy_manager::Child;

use crate::{
    args::{Cli, Command, Global},
    client::Client,
    exit::Exit,
    problem::{Failure, Problem},
    socket_path::SocketPath,
    term,
};

/// Runs a command to its end.
///
/// # Errors
/// What is to be told, or the exit code that is left.
pub(crate) async fn run(cli: Cli, token: ChildToken) -> Result<(), Failure> {
    let Cli { command, global } = cli;
    let child = Child::Current(token);
    match command {
        Command::Demo => demo::run(child, global.json).await,
        Command::Run(args) => run::run(child, args, global.json).await,
        Command::Serve(args) => serve::run(child, args, &socket(&global)?, global.json).await,
        Command::Leaktest(args) => leaktest::run(child, args, global.json).await,
        Command::Doctor => doctor::run(child, &SocketPath::find(global.socket.as_deref()), global.json).await,
        Command::Completions(args) => completions::run(&args),
        other => {
            let client = Client::new(socket(&global)?);
            let goes_on = match &other {
                Command::Prompt(args) => Some(format!("the turn goes on: `agent-proxy abort {}` cancels it", args.id)),
                _ => None,
            };
            // Nothing is half done here when we leave: the daemon goes on with what it was asked.
            tokio::select! {
                done = run_client(other, &client, global.json) => done,
                _ = tokio::signal::ctrl_c() => {
                    goes_on.inspect(|text| term::note(text));
                    Err(Failure::Exit(Exit::Interrupted))
                }
            }
        }
    }
}

async fn run_client(command: Command, client: &Client, as_json: bool) -> Result<(), Failure> {
    match command {
        Command::Start(args) => start::run(client, args, as_json).await,
        Command::Sessions => sessions::run(client, as_json).await,
        Command::Ps(args) => ps::run(client, &args, as_json).await,
        Command::Prompt(args) => prompt::run(client, args, as_json).await,
        Command::Events(args) => events::run(client, &args, as_json).await,
        Command::Abort(args) => abort::run(client, &args, as_json).await,
        Command::Kill(args) => kill::run(client, &args, as_json).await,
        Command::Permit(args) => permit::run(client, args, as_json).await,
        Command::Demo
        | Command::Run(_)
        | Command::Serve(_)
        | Command::Leaktest(_)
        | Command::Doctor
        | Command::Completions(_) => Err(Problem::failed("this command has no client").into()),
    }
}

fn socket(global: &Global) -> Result<SocketPath, Problem> {
    let socket = SocketPath::find(global.socket.as_deref());
    match socket.unusable() {
        Some(why) => Err(Problem::usage(why)),
        None => Ok(socket),
    }
}
