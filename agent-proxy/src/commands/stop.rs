//! Command `stop`.

use std::time::Duration;

use api_types::{
    ProblemDetails, SessionStatus,
    api::{StopProgressLine, StopRequest, StoppedSession},
};
use ipc_protocol::SessionId;
use serde_json::{Value, json};

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

/// Says what became of a session.
pub(crate) fn stopped_line(
    StoppedSession { session_id, status, receipt }: &StoppedSession,
    style: TermStyle,
) -> String {
    let state = if *status == SessionStatus::Suspended { "suspended" } else { "ended" };
    format!("{session_id}: {state}, {}", render::receipt::summary(receipt, style))
}

/// Counts the sessions by what became of them: `2 sessions were ended, 1 was suspended, 1 runs on`.
fn outcome(sessions: &[StoppedSession], detached: &[SessionId]) -> String {
    let suspended = sessions.iter().filter(|session| session.status == SessionStatus::Suspended).count();
    let counts = [
        (sessions.len() - suspended, ["was ended", "were ended"]),
        (suspended, ["was suspended", "were suspended"]),
        (detached.len(), ["runs on", "run on"]),
    ];
    let mut text = String::new();
    for (count, [one, many]) in counts.into_iter().filter(|(count, _)| *count > 0) {
        if text.is_empty() {
            text = render::count(count, &format!("session {one}"), &format!("sessions {many}"));
        } else {
            text.push_str(&format!(", {}", render::count(count, one, many)));
        }
    }
    if text.is_empty() { "no session ran".to_owned() } else { text }
}

fn report(sessions: &[StoppedSession], detached: &[SessionId], as_json: bool) -> Result<(), CommandFailure> {
    if as_json {
        let running = |session| json!({ "sessionId": session, "status": "detached", "receipt": null });
        let listed: Vec<Value> =
            sessions.iter().map(|session| json!(session)).chain(detached.iter().map(running)).collect();
        term::json(&listed)?;
    } else {
        let style = TermStyle::stdout();
        term::out(sessions.iter().map(|session| format!("{}\n", stopped_line(session, style))).collect::<String>())?;
        for session in detached {
            term::error_line(format_args!("{session}: runs on, for the next daemon with this state directory"));
        }
        term::error_line(format_args!("the daemon has ended; {}", outcome(sessions, detached)));
    }
    match sessions.iter().find(|session| !session.receipt.is_empty()) {
        Some(session) => Err(ProblemDetails::survivors(Box::new(session.receipt.clone())).into()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use ipc_protocol::{KillCause, Receipt};

    use super::*;

    #[test]
    fn the_last_line_counts_each_session() {
        let id = |number: usize| -> SessionId { format!("s-{number}").parse().expect("an id") };
        let said = |ended: usize, suspended: usize, detached: usize| {
            let of = |status, count: usize| {
                (0..count).map(move |number| StoppedSession {
                    session_id: id(number),
                    status,
                    receipt: Receipt::begin(id(number), KillCause::Shutdown),
                })
            };
            let sessions: Vec<_> =
                of(SessionStatus::Ended, ended).chain(of(SessionStatus::Suspended, suspended)).collect();
            outcome(&sessions, &(0..detached).map(id).collect::<Vec<_>>())
        };
        assert_eq!(said(0, 0, 0), "no session ran");
        assert_eq!(said(2, 0, 0), "2 sessions were ended");
        assert_eq!(said(0, 1, 0), "1 session was suspended");
        assert_eq!(said(1, 2, 1), "1 session was ended, 2 were suspended, 1 runs on");
        assert_eq!(said(0, 0, 2), "2 sessions run on");
    }

    #[test]
    fn what_is_suspended_has_not_ended() {
        let line = |status| {
            let session_id: SessionId = "s-1".parse().expect("an id");
            let receipt = Receipt::begin(session_id.clone(), KillCause::Shutdown);
            stopped_line(&StoppedSession { session_id, status, receipt }, TermStyle::PLAIN)
        };
        assert!(line(SessionStatus::Suspended).starts_with("s-1: suspended, "));
        assert!(line(SessionStatus::Ended).starts_with("s-1: ended, "));
    }
}
