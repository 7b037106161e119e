//! Command `shell`: a program beside a session's agent, in its containment.

use std::io::{IsTerminal, Read, Write};

use api_types::{ProblemDetails, TerminalViewer};
use ipc_protocol::{
    ExitStatus, WireError,
    terminal::{FromTerminal, KeyboardWish, TerminalConfig, ToTerminal},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
};

use super::attach::{open_terminal, program_exit};
use crate::{
    args::ShellArgs,
    client::DaemonClient,
    command_failure::CommandFailure,
    viewing::{TerminalAnswers, ViewEnd, ViewOptions, view_from},
};

/// Runs the program to its end: on a terminal, if this command has one, else with the standard streams as they are.
pub(super) async fn run(client: &DaemonClient, args: ShellArgs) -> Result<(), CommandFailure> {
    let id = client.whole_id(&args.id).await?;
    let is_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let end = if is_terminal {
        on_terminal(client, &id, args.command).await?
    } else {
        on_streams(TerminalViewer::over(client.shell(&id).await?), args.command).await?
    };
    match end {
        ViewEnd::Ended(exit) => program_exit(exit),
        ViewEnd::Refused(error) => Err(refusal(&error).into()),
        ViewEnd::Lost => Err(ProblemDetails::failed(format!(
            "the connection to {} broke off: has the session ended (agent-proxy sessions --all)?",
            args.id
        ))
        .into()),
        // The program is gone with its terminal.
        ViewEnd::Detached | ViewEnd::Signal | ViewEnd::TerminalGone => program_exit(Some(ExitStatus::Signal(1))),
    }
}

fn refusal(error: &WireError) -> ProblemDetails {
    let kind = match error {
        WireError::ProgramNotFound { .. } => "program-not-found",
        _ => "failed",
    };
    ProblemDetails::new(kind, error.to_string())
}

async fn on_terminal(client: &DaemonClient, id: &str, argv: Vec<String>) -> Result<ViewEnd, ProblemDetails> {
    let mut terminal = open_terminal()?;
    let TerminalAnswers { foreground, background, cursor, typed } = terminal.query();
    let first_row = cursor.map_or(0, |(row, _)| row.saturating_sub(1));
    let in_place = cursor.is_some_and(|(_, column)| column == 1);
    let config =
        TerminalConfig { size: terminal.size(), first_row, foreground, background, ..TerminalConfig::default() };
    let first = ToTerminal::Shell { argv, terminal: Some(Box::new(config)), in_place };
    let keyboard = KeyboardWish::Type;
    let options = ViewOptions { keyboard, in_place, detach_keys: None, lends: client.is_local(), typed };
    let connect = async || client.shell(id).await.map(TerminalViewer::over);
    view_from(connect, &mut terminal, first, options).await
}

/// Passes the standard streams on.
async fn on_streams<S: AsyncRead + AsyncWrite + Unpin>(
    viewer: TerminalViewer<S>,
    argv: Vec<String>,
) -> Result<ViewEnd, ProblemDetails> {
    let (reading, writing) = tokio::io::split(viewer.into_stream());
    let (mut output, mut input) =
        (TerminalViewer::over(tokio::io::join(reading, tokio::io::sink())), writing_half(writing));
    if input.send(&ToTerminal::Shell { argv, terminal: None, in_place: false }).await.is_err() {
        return Ok(ViewEnd::Lost);
    }
    // Ends when the program does not take its input any more; what is read then is nobody's.
    let feed = async {
        let mut typed = read_input();
        while let Some(bytes) = typed.recv().await {
            if input.send(&ToTerminal::Input(bytes)).await.is_err() {
                return;
            }
        }
        let _ = input.send(&ToTerminal::EndOfInput).await;
        std::future::pending().await
    };
    let print = async {
        loop {
            let Some(message) = output.next().await else { return ViewEnd::Lost };
            let written = match message {
                FromTerminal::Output { is_error: false, bytes } => write(&mut std::io::stdout().lock(), &bytes),
                FromTerminal::Output { is_error: true, bytes } => write(&mut std::io::stderr().lock(), &bytes),
                FromTerminal::Refused(error) => return ViewEnd::Refused(error),
                FromTerminal::Ended { exit, .. } => return ViewEnd::Ended(exit),
                _ => Ok(()),
            };
            // As for a program in a pipe whose reader is gone.
            if written.is_err() {
                return ViewEnd::TerminalGone;
            }
        }
    };
    tokio::pin!(print);
    tokio::select! {
        end = &mut print => Ok(end),
        () = feed => Ok(print.await),
    }
}

fn writing_half<W: AsyncWrite + Unpin>(writing: W) -> TerminalViewer<impl AsyncRead + AsyncWrite + Unpin> {
    TerminalViewer::over(tokio::io::join(tokio::io::empty(), writing))
}

/// Reads standard input in a thread, which ends with the process: a blocked read delays no exit.
fn read_input() -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel(4);
    std::thread::spawn(move || {
        let mut chunk = vec![0; 16 * 1024];
        while let Ok(read @ 1..) = std::io::stdin().read(&mut chunk) {
            if sender.blocking_send(chunk[..read].to_vec()).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Blocks while nobody reads: the program then waits, as it would with the streams as its own.
fn write(output: &mut impl Write, bytes: &[u8]) -> std::io::Result<()> {
    output.write_all(bytes)?;
    output.flush()
}
