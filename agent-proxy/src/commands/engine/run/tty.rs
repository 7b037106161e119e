//! `run --tty`: a program in this terminal, as it would run without agent-proxy.

use std::path::Path;

use proxy_manager::{
    AgentSessionConfig, ChildProgram, KillOptions, ProxyManager, SessionHandle,
    terminal::{KeyboardWish, OnDetach, TerminalConfig},
};
use proxy_server::{LoadedConfiguration, ProblemDetails, ProgramExit};

use crate::{
    args::RunArgs,
    command_failure::CommandFailure,
    commands::{
        attach::{open_terminal, program_exit, require_terminal},
        engine::{foreground_config, workspaces},
    },
    configuration, environment, render,
    term::{self, TermStyle},
    viewing::{EndSignals, LEAVE_LINE, RawTerminal, TerminalAnswers, ViewEnd, ViewOptions, view},
};

/// Agent of the catalog for any command.
const COMMAND: &str = "command";
/// What Ctrl-C types.
const INTERRUPT: u8 = 3;
/// Most that is typed ahead for a program, in bytes.
const MAX_TYPED: usize = 64 * 1024;

/// Runs the program to its end, then kills what it has left.
pub(super) async fn run(child: ChildProgram, args: RunArgs, directory: Option<&Path>) -> Result<(), CommandFailure> {
    require_terminal("--tty")?;
    let given = args.terminal.config()?;
    let configuration = configuration::read_with_prices(directory, args.prices.as_deref())?;
    let (mut agent, mut start) = (args.agent, args.start);
    if agent.is_none() && start.profile.is_none() {
        agent = Some(take_known_program(&configuration, &mut start.argv).unwrap_or_else(|| COMMAND.to_owned()));
    }
    let mut config = foreground_config::foreground(&configuration, agent, start)?;
    let manager = configuration.apply_to(environment::foreground_builder(child, environment::all())).build().await?;
    let id = config.session_id.clone();
    let mut terminal = open_terminal()?;
    let TerminalAnswers { foreground, background, cursor, typed } = terminal.query();
    let first_row = cursor.map_or(0, |(row, _)| row.saturating_sub(1));
    // Its end waits for this viewer: what a short program writes is shown.
    let (size, on_detach) = (terminal.size(), OnDetach::End);
    config.terminal = Some(TerminalConfig { size, on_detach, first_row, foreground, background, ..given });
    // A program in the middle of a line would begin there; a terminal without an answer shows something unknown.
    let options = ViewOptions {
        keyboard: KeyboardWish::Type,
        in_place: cursor.is_some_and(|(_, column)| column == 1),
        detach_keys: None,
        lends: true,
        typed,
    };
    let done = match start_and_view(&manager, config, &mut terminal, options).await {
        Ok((session, end)) => {
            let was_alternate = terminal.alternate;
            drop(terminal);
            if !was_alternate && !matches!(end, ViewEnd::Ended(_)) {
                term::error_text(LEAVE_LINE);
            }
            finish(&session, end).await
        }
        Err(failure) => {
            drop(terminal);
            Err(failure)
        }
    };
    manager.shutdown().await;
    workspaces::report(&id);
    done
}

/// Returns the agent whose program the command line names, and takes the program off it.
fn take_known_program(configuration: &LoadedConfiguration, argv: &mut Vec<String>) -> Option<String> {
    let program = argv.first()?;
    let mut rows = configuration.catalog.rows().iter().filter(|row| row.enabled);
    let row = rows.find(|row| row.terminal_cmd.first() == Some(program))?;
    argv.remove(0);
    Some(row.id.clone())
}

/// Starts the session and shows its terminal until that ends.
async fn start_and_view(
    manager: &ProxyManager,
    config: AgentSessionConfig,
    terminal: &mut RawTerminal,
    mut options: ViewOptions,
) -> Result<(SessionHandle, ViewEnd), CommandFailure> {
    let mut ends = EndSignals::new().map_err(|error| ProblemDetails::failed(format!("handling signals: {error}")))?;
    // Dropping the start ends what it began.
    let session = tokio::select! {
        started = manager.start_session(config) => started?,
        () = ends.recv() => return Err(CommandFailure::Exit(ProgramExit::Interrupted)),
        () = interrupt_key(terminal, &mut options.typed) => return Err(CommandFailure::Exit(ProgramExit::Interrupted)),
    };
    drop(ends);
    let connect = async || session.view_terminal().await.map_err(ProblemDetails::from);
    let end = view(connect, terminal, options).await?;
    Ok((session, end))
}

/// Takes what is typed, for the program, until it is Ctrl-C: no signal in this mode.
async fn interrupt_key(terminal: &RawTerminal, typed: &mut Vec<u8>) {
    let mut chunk = [0; 1024];
    while typed.len() < MAX_TYPED {
        match terminal.read(&mut chunk).await {
            Ok(read) if chunk[..read].contains(&INTERRUPT) => return,
            Ok(read @ 1..) => typed.extend_from_slice(&chunk[..read]),
            // The terminal is gone, which is a signal.
            _ => break,
        }
    }
    std::future::pending().await
}

/// Ends the session, and prints its receipt in a line.
async fn finish(session: &SessionHandle, end: ViewEnd) -> Result<(), CommandFailure> {
    let receipt = session.kill(KillOptions::default()).await?;
    let style = TermStyle::stderr();
    term::error_line(style.dim(format_args!("session ended: {}", render::receipt::summary(&receipt, style))));
    if !receipt.is_empty() {
        return Err(CommandFailure::Exit(ProgramExit::Survivors));
    }
    match end {
        ViewEnd::Ended(exit) => program_exit(exit),
        ViewEnd::Lost => {
            let detail =
                "the session's proxy closed the connection to the terminal, and the program was ended with the session";
            Err(ProblemDetails::new("proxy-died", detail).into())
        }
        // Nothing is known of the program's end: it was ended since this command was.
        _ => Err(CommandFailure::Exit(ProgramExit::Interrupted)),
    }
}
