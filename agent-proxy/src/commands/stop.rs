//! Command `stop`.

use std::time::Duration;

use api_types::{
    ProblemDetails, SessionStatus,
    api::{StopProgressLine, StopRequest, StoppedSession},
};
use ipc_protocol::SessionId;

use super::sessions::parse;
use crate::{
    args::StopArgs,
    client::DaemonClient,
    command_failure::CommandFailure,
    engine::{self, DaemonProcess},
    render,
    term::{self, TermStyle},
};

/// Ends the daemon, waits until it is gone, and prints what became of its sessions.
pub(super) async fn run(client: &DaemonClient, args: &StopArgs, as_json: bool) -> Result<(), CommandFailure> {
    let daemon = engine::daemon_process(client).await?;
    let request = StopRequest { now: args.now, detach: args.detach };
    let (sessions, detached) = end(client, daemon.as_ref(), &request, args.timeout, as_json).await?;
    report(&sessions, &detached, as_json)
}

/// Has the daemon end, and waits until it is gone. Returns the sessions that it ended, and those that run on.
///
/// # Errors
/// `deadline` if it is still there after `longest`; it ends all the same, unless it has not answered.
pub(crate) async fn end(
    client: &DaemonClient,
    daemon: Option<&DaemonProcess>,
    request: &StopRequest,
    longest: Duration,
    as_json: bool,
) -> Result<(Vec<StoppedSession>, Vec<SessionId>), ProblemDetails> {
    let mut turns = None;
    let ended = tokio::time::timeout(longest, async {
        let sessions = follow(client, request, as_json, &mut turns).await?;
        if let Some(daemon) = daemon {
            engine::wait_for_end(daemon).await?;
        }
        Ok::<_, ProblemDetails>(sessions)
    });
    let Ok(ended) = ended.await else {
        let after = humantime::format_duration(longest);
        let what = match turns {
            None => "it has not answered".to_owned(),
            Some(0) => "it ends its sessions".to_owned(),
            Some(turns) => format!("{} to finish; `agent-proxy stop --now` ends them", waits_for(turns)),
        };
        return Err(ProblemDetails::new("deadline", format!("the daemon is still there after {after}: {what}")));
    };
    ended
}

fn waits_for(turns: usize) -> String {
    format!("it waits for {}", render::count(turns, "turn", "turns"))
}

async fn follow(
    client: &DaemonClient,
    request: &StopRequest,
    as_json: bool,
    turns: &mut Option<usize>,
) -> Result<(Vec<StoppedSession>, Vec<SessionId>), ProblemDetails> {
    let mut lines = client.post_lines("/v1/stop", request).await?;
    while let Some(batch) = lines.next_batch().await? {
        for line in batch {
            match parse(line)? {
                StopProgressLine::Draining { turns: running, longest_ms } => {
                    *turns = Some(running);
                    if running > 0 && !request.now && !as_json {
                        let longest = humantime::format_duration(std::time::Duration::from_millis(longest_ms));
                        term::error_line(format_args!(
                            "{}, {longest} at most; `agent-proxy stop --now` does not",
                            waits_for(running)
                        ));
                    }
                }
                StopProgressLine::Stopped { sessions, detached } => return Ok((sessions, detached)),
            }
        }
    }
    Err(ProblemDetails::failed("the daemon ended without saying what became of its sessions: see its log"))
}

fn report(sessions: &[StoppedSession], detached: &[SessionId], as_json: bool) -> Result<(), CommandFailure> {
    if as_json {
        term::json(&sessions)?;
    } else {
        let style = TermStyle::stdout();
        let line = |StoppedSession { session_id, status, receipt }: &StoppedSession| {
            let state = if *status == SessionStatus::Suspended { "suspended" } else { "ended" };
            format!("{session_id}: {state}, {}\n", render::receipt::summary(receipt, style))
        };
        term::out(sessions.iter().map(line).collect::<String>())?;
        for session in detached {
            term::error_line(format_args!("{session}: runs on, for the next daemon with this state directory"));
        }
        let ended = render::count(sessions.len(), "session was ended", "sessions were ended");
        let many = match (sessions.len(), detached.len()) {
            (0, 0) => "no session ran".to_owned(),
            (0, many) => render::count(many, "session runs on", "sessions run on"),
            (_, 0) => ended,
            (_, many) => format!("{ended}, {}", render::count(many, "runs on", "run on")),
        };
        term::error_line(format_args!("the daemon has ended; {many}"));
    }
    match sessions.iter().find(|session| !session.receipt.is_empty()) {
        Some(session) => Err(ProblemDetails::survivors(Box::new(session.receipt.clone())).into()),
        None => Ok(()),
    }
}
