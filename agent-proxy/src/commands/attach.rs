//! Command `attach`.

use std::io::IsTerminal;

use api_types::{ProblemDetails, TerminalViewer};
use ipc_protocol::{ExitStatus, terminal::TerminalConfig};
use serde_json::Value;

use crate::{
    args::AttachArgs,
    client::DaemonClient,
    command_failure::CommandFailure,
    render::listing::short_ids,
    term::{self, TermStyle},
    viewing::{LEAVE_LINE, RawTerminal, TerminalAnswers, ViewEnd, ViewOptions, view},
};

/// Shows a session's terminal in this one.
pub(super) async fn run(client: &DaemonClient, args: &AttachArgs) -> Result<(), CommandFailure> {
    let keys = args.detach_keys()?;
    require_terminal("attach")?;
    let id = client.whole_id(&args.id).await?;
    let mut terminal = open_terminal()?;
    let path = format!("/v1/sessions/{id}");
    let mut typed_before = Vec::new();
    let session: Value = if args.native {
        let TerminalAnswers { foreground, background, typed, .. } = terminal.query();
        typed_before = typed;
        let visit = TerminalConfig { size: terminal.size(), foreground, background, ..TerminalConfig::default() };
        client.post(&format!("{path}/visit"), &visit).await?
    } else {
        client.get(&path).await?
    };
    let is_beside = session["surface"] == "both";
    let options = ViewOptions {
        keyboard: args.keyboard(),
        in_place: false,
        detach_keys: Some(keys),
        lends: client.is_local(),
        typed: typed_before,
    };
    let connect = async || client.view_terminal(&id).await.map(TerminalViewer::over);
    let ended = view(connect, &mut terminal, options).await;
    // Pi is its screen: the session ends with it.
    let goes_on = match &ended {
        Ok(ViewEnd::Ended(exit)) if is_beside => exit.is_some() && lives(client, &path).await,
        _ => args.native,
    };
    let was_alternate = terminal.alternate;
    terminal.leave();
    drop(terminal);
    let end = ended?;
    let short = short_ids(&[&id]).pop().unwrap_or_default();
    let is_lost = end == ViewEnd::Lost;
    let line = match end {
        ViewEnd::Ended(exit) if goes_on => {
            let goes_on = format!("{short} goes on as before: agent-proxy prompt {short} 'hello'");
            let line = match exit.filter(|exit| *exit != ExitStatus::Code(0)) {
                None => goes_on,
                Some(exit) if session["turns"] == 0 => format!(
                    "its program ended with {exit}; many agents have no conversation to show before the first turn: prompt it, then attach \
                     again. {goes_on}"
                ),
                Some(exit) => format!("its program ended with {exit}; {goes_on}"),
            };
            term::error_line(TermStyle::stderr().dim(line));
            return program_exit(exit);
        }
        ViewEnd::Ended(exit) => {
            let how =
                exit.map_or_else(|| "the session ended".to_owned(), |exit| format!("its program ended with {exit}"));
            term::error_line(TermStyle::stderr().dim(format_args!("{short}: {how}")));
            return program_exit(exit);
        }
        ViewEnd::Detached | ViewEnd::Signal | ViewEnd::TerminalGone => {
            format!("left {short}, which goes on: agent-proxy attach {short}")
        }
        ViewEnd::Refused(error) => return Err(ProblemDetails::failed(error.to_string()).into()),
        ViewEnd::Lost => format!("the connection to {short} broke off: agent-proxy sessions --all"),
    };
    if !was_alternate && !matches!(end, ViewEnd::Ended(_)) {
        term::error_text(LEAVE_LINE);
    }
    term::error_line(TermStyle::stderr().dim(line));
    match is_lost {
        true => Err(ProblemDetails::new("no-daemon", "the daemon closed the connection: has it ended?").into()),
        false => Ok(()),
    }
}

/// Returns whether a session goes on without the program that has ended.
async fn lives(client: &DaemonClient, path: &str) -> bool {
    let session = client.get::<Value>(path).await.unwrap_or_default();
    session["ending"] == false && ["starting", "idle", "busy"].iter().any(|status| session["status"] == *status)
}

/// Checks that standard input and output are a terminal.
///
/// # Errors
/// `usage`.
pub(super) fn require_terminal(what: &str) -> Result<(), ProblemDetails> {
    if std::io::stdin().is_terminal() && std::io::stdout().is_terminal() {
        return Ok(());
    }
    Err(ProblemDetails::usage(format!("{what} needs a terminal: standard input and output have to be one")))
}

/// Opens the caller's terminal.
///
/// # Errors
/// `failed`.
pub(super) fn open_terminal() -> Result<RawTerminal, ProblemDetails> {
    RawTerminal::open()
        .map_err(|error| ProblemDetails::failed(format!("the terminal (/dev/tty) cannot be used: {error}")))
}

/// Ends as the program did: with its code, or 128 and the number of its signal.
pub(super) fn program_exit(exit: Option<ExitStatus>) -> Result<(), CommandFailure> {
    let code = match exit {
        Some(ExitStatus::Code(code)) => code,
        Some(ExitStatus::Signal(signal)) => 128 + signal,
        None => return Ok(()),
    };
    if code == 0 { Ok(()) } else { Err(CommandFailure::Program(u8::try_from(code).unwrap_or(u8::MAX))) }
}
