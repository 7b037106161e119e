//! Commands `logs` and `wait`: what sessions say, and how they end.

use std::{
    collections::VecDeque,
    io::{self, IsTerminal as _},
};

use api_types::{
    ProblemDetails, ProgramExit, SessionInfo, SessionState,
    api::{MAX_TAIL, path_segment},
};
use ipc_protocol::{EndReason, Envelope, Event, ExitStatus, Receipt, SessionId};
use serde_json::{Value, json};

use crate::{
    args::{LogsArgs, WaitArgs, WaitState},
    client::DaemonClient,
    command_failure::CommandFailure,
    render::log_text::LogText,
    term::{self, TermStyle},
};

/// Events that are read for each line of a text whose last lines are wanted: answers come in pieces.
const EVENTS_PER_LINE: u32 = 8;
/// Fewest events that are read for that.
const LEAST_EVENTS: u32 = 256;

/// Prints a session's text.
pub(super) async fn logs(client: &DaemonClient, args: &LogsArgs, as_json: bool) -> Result<(), CommandFailure> {
    let LogsArgs { id, follow, lines, since } = args;
    let since = since.map_or_else(String::new, |since| {
        format!("&since={}", path_segment(&humantime::format_rfc3339_millis(since).to_string()))
    });
    let events = LogEvents { client, path: format!("/v1/sessions/{id}/events?raw=false{since}") };
    let new_text = || LogText::new(TermStyle::stdout(), io::stdout().is_terminal());
    let mut log = new_text();
    let mut from = 0;
    let mut selection = String::new();
    match lines {
        // A line of JSON is an event.
        Some(lines @ 1..) if as_json => selection = format!("&tail={lines}"),
        Some(lines) => {
            let lines = usize::try_from(*lines).unwrap_or(usize::MAX);
            let mut most = args.lines.unwrap_or(1).saturating_mul(EVENTS_PER_LINE).max(LEAST_EVENTS);
            loop {
                log = new_text();
                let mut last = LastLines::new(lines);
                // More than the longest tail is everything.
                let tail = if most > MAX_TAIL { String::new() } else { format!("&tail={most}") };
                let mut count = 0_u32;
                events
                    .read(0, &format!("&follow=false{tail}"), |values| {
                        count = count.saturating_add(u32::try_from(values.len()).unwrap_or(u32::MAX));
                        for envelope in values.into_iter().filter_map(|value| Envelope::from_json(value).ok()) {
                            from = envelope.offset;
                            last.push(&log.add(&envelope.event));
                        }
                        Ok(())
                    })
                    .await?;
                // The first line of a part may be the end of a longer one.
                if count < most || tail.is_empty() || last.is_full() {
                    let shown = last.shown();
                    if !shown.is_empty() {
                        term::out(shown)?;
                    }
                    break;
                }
                most = most.saturating_mul(EVENTS_PER_LINE);
            }
            if !follow {
                return Ok(());
            }
        }
        None => {}
    }
    events
        .read(from, &format!("&follow={follow}{selection}"), |values| {
            let mut text = String::new();
            for value in values {
                if as_json {
                    text.push_str(&format!("{}\n", term::json_for_stdout(&value.to_string())));
                } else if let Ok(envelope) = Envelope::from_json(value) {
                    text.push_str(&log.add(&envelope.event));
                }
            }
            if text.is_empty() { Ok(()) } else { term::out(text) }
        })
        .await
}

/// Events of a session, as `logs` reads them.
struct LogEvents<'a> {
    client: &'a DaemonClient,
    path: String,
}

impl LogEvents<'_> {
    /// Reads the events behind an offset.
    async fn read(
        &self,
        from: u64,
        selection: &str,
        mut print: impl FnMut(Vec<Value>) -> Result<(), CommandFailure>,
    ) -> Result<(), CommandFailure> {
        let mut stream = self.client.get_lines(&format!("{}&from={from}{selection}", self.path)).await?;
        while let Some(batch) = stream.next_batch_to_print().await? {
            print(batch)?;
        }
        Ok(())
    }
}

/// Last lines of a text; one without its end is a line, too.
#[derive(Debug)]
struct LastLines {
    most: usize,
    /// One line more than are wanted, at the most, each with its end.
    lines: VecDeque<String>,
}

impl LastLines {
    fn new(most: usize) -> Self {
        Self { most, lines: VecDeque::new() }
    }

    fn push(&mut self, text: &str) {
        for piece in text.split_inclusive('\n') {
            match self.lines.back_mut().filter(|line| !line.ends_with('\n')) {
                Some(line) => line.push_str(piece),
                None => self.lines.push_back(piece.to_owned()),
            }
            if self.lines.len() > self.most.saturating_add(1) {
                self.lines.pop_front();
            }
        }
    }

    /// Returns true if there are more lines than are wanted.
    fn is_full(&self) -> bool {
        self.lines.len() > self.most
    }

    fn shown(&self) -> String {
        self.lines.iter().skip(self.lines.len().saturating_sub(self.most)).map(String::as_str).collect()
    }
}

/// Waits for sessions, and prints how each ended.
pub(super) async fn wait(client: &DaemonClient, args: &WaitArgs, as_json: bool) -> Result<(), CommandFailure> {
    let waiting: Vec<_> =
        args.ids.iter().map(|id| tokio::spawn(wait_for(client.clone(), id.clone(), args.state))).collect();
    let all = async {
        let mut worst = ProgramExit::Done;
        for (id, waiting) in args.ids.iter().zip(waiting) {
            let ended = waiting.await.unwrap_or_else(|error| Err(ProblemDetails::failed(format!("{id}: {error}"))));
            let exit = match ended {
                Ok(ended) => {
                    ended.print(as_json)?;
                    ended.exit
                }
                Err(problem) if args.ids.len() == 1 => return Err(problem.into()),
                Err(problem) => {
                    term::problem(&problem, as_json);
                    problem.exit()
                }
            };
            worst = worst.worse(exit);
        }
        if worst == ProgramExit::Done { Ok(()) } else { Err(CommandFailure::Exit(worst)) }
    };
    match args.timeout {
        None => all.await,
        Some(longest) => match tokio::time::timeout(longest, all).await {
            Ok(ended) => ended,
            Err(_) => {
                let after = humantime::format_duration(longest);
                let what = if args.state == WaitState::Idle { "idle" } else { "ended" };
                let detail =
                    format!("not all sessions are {what} after {after}: `agent-proxy sessions` says what they do");
                Err(ProblemDetails::new("deadline", detail).into())
            }
        },
    }
}

/// Session that was waited for.
#[derive(Debug)]
struct WaitedSession {
    id: SessionId,
    state: String,
    exit: ProgramExit,
}

impl WaitedSession {
    fn print(&self, as_json: bool) -> Result<(), CommandFailure> {
        let Self { id, state, exit } = self;
        if as_json {
            return term::json(&json!({ "sessionId": id, "state": state, "exit": exit.code() }));
        }
        term::line(format_args!("{id}  {}", term::printable(state, false)))
    }
}

/// Waits for one session. Its events say when to look: nothing is polled.
async fn wait_for(client: DaemonClient, id: SessionId, state: WaitState) -> Result<WaitedSession, ProblemDetails> {
    loop {
        let session: SessionInfo = match client.get(&format!("/v1/sessions/{id}")).await {
            Ok(session) => session,
            // It may be one of an earlier daemon, whose events say how it ended.
            Err(problem) if matches!(problem.kind.as_str(), "unknown-session" | "ended") => {
                let whole: SessionId = parse_id(&client.whole_id(&id).await?)?;
                return last_end(&client, &whole).await?.ok_or(problem);
            }
            Err(problem) => return Err(problem),
        };
        if let Some(ended) = judge(&session, state) {
            return Ok(ended);
        }
        let id = &session.metadata.session_id;
        let kinds = path_segment("session:idle,session:ended,session:suspended,turn:started");
        let path = format!("/v1/sessions/{id}/events?from={}&follow=true&raw=false&type={kinds}", session.last_offset);
        let mut lines = client.get_lines(&path).await?;
        while let Some(batch) = lines.next_batch().await? {
            let mut events = batch.into_iter().filter_map(|value| Envelope::from_json(value).ok());
            // The last one counts: a turn may have begun after the idleness.
            if let Some(ended) = events.next_back().and_then(|envelope| judge_event(id, &envelope.event, state)) {
                return Ok(ended);
            }
        }
    }
}

fn parse_id(text: &str) -> Result<SessionId, ProblemDetails> {
    text.parse().map_err(|error| ProblemDetails::failed(format!("the daemon answered with the id {text:?}: {error}")))
}

/// Finds how a session of an earlier daemon ended.
async fn last_end(client: &DaemonClient, id: &SessionId) -> Result<Option<WaitedSession>, ProblemDetails> {
    let kinds = path_segment("session:ended,session:suspended");
    let mut lines = client.get_lines(&format!("/v1/sessions/{id}/events?from=0&raw=false&tail=1&type={kinds}")).await?;
    let mut found = None;
    while let Some(batch) = lines.next_batch().await? {
        let events = batch.into_iter().filter_map(|value| Envelope::from_json(value).ok());
        found = events.rev().find_map(|envelope| judge_event(id, &envelope.event, WaitState::Ended)).or(found);
    }
    Ok(found)
}

fn judge_event(id: &SessionId, event: &Event, state: WaitState) -> Option<WaitedSession> {
    let (word, reason, receipt) = match event {
        Event::SessionIdle {} if state == WaitState::Idle => {
            return Some(WaitedSession { id: id.clone(), state: "idle".to_owned(), exit: ProgramExit::Done });
        }
        Event::SessionEnded { reason, receipt } => ("ended", reason, receipt),
        Event::SessionSuspended { reason, receipt } => ("suspended", reason, receipt),
        _ => return None,
    };
    let exit = exit_of(reason, receipt.as_deref());
    Some(WaitedSession { id: id.clone(), state: format!("{word}: {reason}"), exit })
}

fn judge(session: &SessionInfo, state: WaitState) -> Option<WaitedSession> {
    let id = session.metadata.session_id.clone();
    match &session.state {
        SessionState::Idle if state == WaitState::Idle => {
            Some(WaitedSession { id, state: "idle".to_owned(), exit: ProgramExit::Done })
        }
        SessionState::Suspended { reason, receipt, .. } | SessionState::Ended { reason, receipt, .. } => {
            let word = if session.state.is_suspended() { "suspended" } else { "ended" };
            let state = format!("{word}: {reason}");
            Some(WaitedSession { id, state, exit: exit_of(reason, receipt.as_deref()) })
        }
        _ => None,
    }
}

/// Exit code for the way in which a session ended.
fn exit_of(reason: &EndReason, receipt: Option<&Receipt>) -> ProgramExit {
    if receipt.is_some_and(|receipt| !receipt.is_empty()) {
        return ProgramExit::Survivors;
    }
    match reason {
        EndReason::Killed
        | EndReason::Suspended
        | EndReason::Shutdown
        | EndReason::AgentExited(Some(ExitStatus::Code(0)) | None) => ProgramExit::Done,
        EndReason::TimedOut(_) => ProgramExit::Deadline,
        EndReason::LimitExceeded(_) | EndReason::BudgetExceeded(_) => ProgramExit::Refused,
        // The agent, its proxy, the fork server or the host failed.
        _ => ProgramExit::Failed,
    }
}

#[cfg(test)]
mod tests {
    use ipc_protocol::{BudgetKind, LimitKind, TimeoutKind};

    use super::*;

    #[test]
    fn the_last_lines_of_a_text() {
        let last = |most, pieces: &[&str]| {
            let mut last = LastLines::new(most);
            pieces.iter().for_each(|piece| last.push(piece));
            assert!(last.lines.len() <= most + 1, "{last:?}");
            (last.shown(), last.is_full())
        };
        assert_eq!(last(2, &["a\nb", "c\nd\n"]), ("bc\nd\n".to_owned(), true));
        assert_eq!(last(2, &["a\n", "b\n", "c"]), ("b\nc".to_owned(), true), "one that has no end yet is a line");
        assert_eq!(last(2, &["a\n", "\n"]), ("a\n\n".to_owned(), false));
        assert_eq!(last(3, &["a\nb"]), ("a\nb".to_owned(), false));
        assert_eq!(last(0, &["a\nb\n"]), (String::new(), true));
        assert_eq!(last(0, &[]), (String::new(), false));
    }

    #[test]
    fn exit_codes_say_how_sessions_ended() {
        for (reason, exit) in [
            (EndReason::Killed, ProgramExit::Done),
            (EndReason::AgentExited(Some(ExitStatus::Code(0))), ProgramExit::Done),
            (EndReason::AgentExited(Some(ExitStatus::Code(3))), ProgramExit::Failed),
            (EndReason::AgentExited(Some(ExitStatus::Signal(9))), ProgramExit::Failed),
            (EndReason::TimedOut(TimeoutKind::Turn), ProgramExit::Deadline),
            (EndReason::LimitExceeded(LimitKind::Memory), ProgramExit::Refused),
            (EndReason::BudgetExceeded(BudgetKind::TotalTokens), ProgramExit::Refused),
            (EndReason::ProxyDied(None), ProgramExit::Failed),
        ] {
            assert_eq!(exit_of(&reason, None), exit, "{reason}");
        }
        let unproven = Receipt::begin("s".parse().expect("an id"), ipc_protocol::KillCause::KillSession);
        assert_eq!(exit_of(&EndReason::Killed, Some(&unproven)), ProgramExit::Survivors);
    }
}
