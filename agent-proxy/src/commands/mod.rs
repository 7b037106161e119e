//! Commands of the program, one module each.

mod abort;
mod agents;
mod ask;
mod completions;
mod config;
mod demo;
mod doctor;
mod events;
mod handler;
mod interrupts;
mod kill;
mod lasting;
mod leaktest;
mod lines;
mod log;
mod models;
mod operations;
mod permission;
mod permit;
mod profiles;
mod prompt;
mod ps;
mod records;
mod run;
mod serve;
mod sessions;
mod start;
mod transfer;

use proxy_child::ChildToken;
use proxy_manager::{Child, Operation};

use self::interrupts::goes_on;
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
/// The problem to report, or the exit code that is left.
pub(crate) async fn run(cli: Cli, token: ChildToken) -> Result<(), Failure> {
    let Cli { command, global } = cli;
    let child = Child::Current(token);
    match command {
        Command::Demo => demo::run(child, global.json).await,
        Command::Run(args) => run::run(child, args, global.config_dir.as_deref(), global.json).await,
        Command::Ask(args) if args.session().is_none() => {
            ask::alone(child, args, global.config_dir.as_deref(), global.json).await
        }
        Command::Ask(args) if args.handler.is_some() => {
            ask::told(child, &Client::new(socket(&global)?), args, global.json).await
        }
        Command::Agents(args) => agents::run(child, &args, global.config_dir.as_deref(), global.json).await,
        Command::Profiles(args) => profiles::run(args, global.config_dir.as_deref(), global.json),
        Command::Models(args) => models::run(args, global.config_dir.as_deref(), global.json),
        Command::Serve(args) => serve::run(child, args, &global, &socket(&global)?).await,
        Command::Leaktest(args) => leaktest::run(child, args, global.json).await,
        Command::Doctor => {
            let socket = SocketPath::find(global.socket.as_deref());
            doctor::run(child, &socket, global.config_dir.as_deref(), global.json).await
        }
        Command::Completions(args) => completions::run(&args),
        Command::Log(args) => log::run(&args, global.json),
        other => {
            let client = Client::new(socket(&global)?);
            let note = match &other {
                Command::Ask(args) => args.session().map(goes_on),
                Command::Prompt(args) => Some(goes_on(args.id.as_str())),
                _ => None,
            };
            // Leaving here interrupts nothing: the daemon continues with the request.
            tokio::select! {
                done = run_client(other, &client, global.json) => done,
                _ = tokio::signal::ctrl_c() => {
                    note.inspect(|text| term::note(text));
                    Err(Failure::Exit(Exit::Interrupted))
                }
            }
        }
    }
}

async fn run_client(command: Command, client: &Client, as_json: bool) -> Result<(), Failure> {
    match command {
        Command::Start(args) => start::run(client, args, as_json).await,
        Command::Sessions(args) => match args.filter() {
            Some(filter) => records::list(client, &filter, as_json).await,
            None => sessions::run(client, as_json).await,
        },
        Command::Queue(args) => sessions::queue(client, &args, as_json).await,
        Command::Ps(args) => ps::run(client, &args, as_json).await,
        Command::Ask(args) => ask::daemon(client, args, as_json).await,
        Command::Prompt(args) => prompt::run(client, args, as_json).await,
        Command::Events(args) => events::run(client, &args, as_json).await,
        Command::Abort(args) => abort::run(client, &args, as_json).await,
        Command::Kill(args) => kill::run(client, &args, as_json).await,
        Command::Permit(args) => permit::run(client, args, as_json).await,
        Command::Steer(args) => operations::steer(client, args, as_json).await,
        Command::Set(args) => operations::set(client, args, as_json).await,
        Command::Compact(args) => operations::ask(client, args, Operation::Compact, as_json).await,
        Command::State(args) => operations::ask(client, args, Operation::GetState, as_json).await,
        Command::Messages(args) => operations::ask(client, args, Operation::GetMessages, as_json).await,
        Command::Conversations(args) => operations::ask(client, args, Operation::ListSessions, as_json).await,
        Command::Native(args) => operations::native(client, args, as_json).await,
        Command::Transcript(args) => operations::transcript(client, args, as_json).await,
        Command::Suspend(args) => lasting::suspend(client, &args, as_json).await,
        Command::Resume(args) => lasting::resume(client, args, as_json).await,
        Command::Attach(args) => lasting::attach_command(client, &args, as_json).await,
        Command::TakeBack(args) => lasting::take_back(client, args, as_json).await,
        Command::Append(args) => lasting::append(client, args, as_json).await,
        Command::Export(args) => transfer::export(client, &args).await,
        Command::Import(args) => transfer::import(client, &args, as_json).await,
        Command::Rename(args) => records::rename(client, args, as_json).await,
        Command::Tag(args) => records::tag(client, args, as_json).await,
        Command::Archive(args) => records::archive(client, &args, as_json).await,
        Command::Delete(args) => operations::delete(client, args, as_json).await,
        Command::Demo
        | Command::Run(_)
        | Command::Agents(_)
        | Command::Profiles(_)
        | Command::Models(_)
        | Command::Serve(_)
        | Command::Leaktest(_)
        | Command::Log(_)
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
