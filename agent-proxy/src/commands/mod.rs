//! Commands of the program, one module each.

mod abort;
mod agents;
mod ask;
mod attach;
mod completions;
mod config;
#[cfg(feature = "engine")]
pub(crate) mod engine;
mod events;
mod fleet;
mod help;
mod kill;
mod login_link;
mod logs;
mod man;
mod models;
mod operations;
mod permit;
mod persistence;
mod profiles;
mod prompt;
mod prune;
mod ps;
mod records;
mod sessions;
mod several;
mod shell;
mod signal;
mod start;
mod status;
pub(crate) mod stop;
mod top;
mod transfer;
mod webhooks;
mod workspaces;

use api_types::{ProblemDetails, ProgramExit};
use ipc_protocol::Operation;

use crate::{
    args::{Cli, CliCommand, GlobalArgs},
    client::DaemonClient,
    command_failure::CommandFailure,
    daemon_address::DaemonAddress,
    engine::EngineToken,
    term,
};

/// Runs a command to its end.
///
/// # Errors
/// The problem to report, or the exit code that is left.
pub(crate) async fn run(cli: Cli, token: EngineToken) -> Result<(), CommandFailure> {
    let Cli { command, global } = cli;
    match command {
        #[cfg(feature = "engine")]
        CliCommand::Engine(command) => engine::run(command, token, &global).await,
        CliCommand::Ask(args) if args.session().is_none() || args.handler.is_some() => {
            crate::engine::ask(token, args, &global).await
        }
        CliCommand::Agents(args) => agents::run(token, &args, &global).await,
        CliCommand::Profiles(args) => profiles::run(args, &global).await,
        CliCommand::Models(args) => models::run(args, &global).await,
        CliCommand::Fleet(args) => fleet::run(&global, args).await,
        CliCommand::Completions(args) => completions::run(&args),
        CliCommand::Man(args) => man::run(&args),
        CliCommand::Help(args) => help::run(&args),
        CliCommand::Top(args) => top::run(&client(&global)?, args).await,
        CliCommand::Attach(args) => attach::run(&client(&global)?, &args).await,
        CliCommand::Shell(args) => shell::run(&client(&global)?, args).await,
        CliCommand::Webhooks(args) => webhooks::list(&global, &args.format.form(global.json)).await,
        CliCommand::Workspaces(args) => workspaces::list(&global, &args.format.form(global.json)).await,
        CliCommand::Diff(args) => workspaces::diff(&global, &args, global.json).await,
        CliCommand::Apply(args) => workspaces::apply(&global, &args.id, global.json).await,
        CliCommand::Drop(args) => workspaces::remove(&global, &args.id, global.json).await,
        other => {
            let client = client(&global)?;
            let note = match &other {
                CliCommand::Ask(args) => args.session().map(goes_on),
                CliCommand::Prompt(args) => Some(goes_on(args.id.as_str())),
                CliCommand::Stop(_) => Some("the daemon ends all the same".to_owned()),
                _ => None,
            };
            // Leaving here interrupts nothing: the daemon continues with the request.
            tokio::select! {
                // First: until it has read what it reads from standard input, Ctrl-C ends the program.
                biased;
                done = run_client(other, &client, global.json) => done,
                _ = tokio::signal::ctrl_c() => {
                    note.inspect(|text| term::error_line(text));
                    Err(CommandFailure::Exit(ProgramExit::Interrupted))
                }
            }
        }
    }
}

async fn run_client(command: CliCommand, client: &DaemonClient, as_json: bool) -> Result<(), CommandFailure> {
    match command {
        CliCommand::Stop(args) => stop::run(client, &args, as_json).await,
        CliCommand::Status(args) => status::run(client, &args, as_json).await,
        CliCommand::Logs(args) => logs::logs(client, &args, as_json).await,
        CliCommand::Wait(args) => logs::wait(client, &args, as_json).await,
        CliCommand::Prune(args) => prune::run(client, &args, as_json).await,
        CliCommand::LoginLink(args) => login_link::run(client, args, as_json).await,
        CliCommand::Start(args) => start::run(client, args, as_json).await,
        CliCommand::Sessions(args) => {
            let form = args.format.form(as_json);
            match args.filter() {
                Some(filter) => records::list(client, &filter, &form).await,
                None => sessions::run(client, &form).await,
            }
        }
        CliCommand::Queue(args) => sessions::queue(client, &args, as_json).await,
        CliCommand::Ps(args) => ps::run(client, &args, as_json).await,
        CliCommand::Ask(args) => ask::ask_daemon(client, args, as_json).await,
        CliCommand::Prompt(args) => prompt::run(client, args, as_json).await,
        CliCommand::Events(args) => events::run(client, &args, as_json).await,
        CliCommand::Abort(args) => abort::run(client, &args, as_json).await,
        CliCommand::Signal(args) => signal::run(client, &args, as_json).await,
        CliCommand::Kill(args) => kill::run(client, &args, as_json).await,
        CliCommand::Permit(args) => permit::run(client, args, as_json).await,
        CliCommand::Steer(args) => operations::steer(client, args, as_json).await,
        CliCommand::Set(args) => operations::set(client, args, as_json).await,
        CliCommand::Compact(args) => operations::compact(client, args, as_json).await,
        CliCommand::State(args) => operations::ask(client, args, Operation::GetState, as_json).await,
        CliCommand::Messages(args) => operations::ask(client, args, Operation::GetMessages, as_json).await,
        CliCommand::Conversations(args) => operations::ask(client, args, Operation::ListSessions, as_json).await,
        CliCommand::Native(args) => operations::native(client, args, as_json).await,
        CliCommand::Transcript(args) => operations::transcript(client, args, as_json).await,
        CliCommand::Suspend(args) => persistence::suspend(client, &args, as_json).await,
        CliCommand::Resume(args) => persistence::resume(client, args, as_json).await,
        CliCommand::AttachCommand(args) => persistence::attach_command(client, &args, as_json).await,
        CliCommand::TakeBack(args) => persistence::take_back(client, args, as_json).await,
        CliCommand::Append(args) => persistence::append(client, args, as_json).await,
        CliCommand::Export(args) => transfer::export(client, &args).await,
        CliCommand::Import(args) => transfer::import(client, &args, as_json).await,
        CliCommand::Rename(args) => records::rename(client, args, as_json).await,
        CliCommand::Tag(args) => records::tag(client, args, as_json).await,
        CliCommand::Archive(args) => records::archive(client, &args, as_json).await,
        CliCommand::Delete(args) => operations::delete(client, args, as_json).await,
        CliCommand::Attach(_)
        | CliCommand::Shell(_)
        | CliCommand::Top(_)
        | CliCommand::Agents(_)
        | CliCommand::Profiles(_)
        | CliCommand::Models(_)
        | CliCommand::Fleet(_)
        | CliCommand::Webhooks(_)
        | CliCommand::Workspaces(_)
        | CliCommand::Diff(_)
        | CliCommand::Apply(_)
        | CliCommand::Drop(_)
        | CliCommand::Help(_)
        | CliCommand::Completions(_)
        | CliCommand::Man(_) => Err(ProblemDetails::failed("this command has no client").into()),
        #[cfg(feature = "engine")]
        CliCommand::Engine(_) => Err(ProblemDetails::failed("this command has no client").into()),
    }
}

/// Creates a client of the daemon that the flags, or the environment, name.
fn client(global: &GlobalArgs) -> Result<DaemonClient, ProblemDetails> {
    DaemonAddress::find(global.address()).map(DaemonClient::new)
}

/// Notes that the turn continues without the client.
pub(super) fn goes_on(session: &str) -> String {
    format!("the turn goes on: `agent-proxy abort {session}` cancels it")
}
