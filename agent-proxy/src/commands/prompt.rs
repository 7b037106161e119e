//! Command `prompt`.

use std::io::{self, IsTerminal};

use api_types::{
    ProblemDetails, ProgramExit, PromptMode, SessionInfo,
    api::{PromptAccepted, PromptRequest},
};
use ipc_protocol::{
    BudgetAction, BudgetExceeded, BypassAction, EndReason, Envelope, Event, LimitKind, StopReason, TimeoutAction,
    TimeoutKind,
};

use super::persistence::document;
use crate::{
    args::PromptArgs,
    client::DaemonClient,
    command_failure::CommandFailure,
    prompting,
    render::{event::stop, event_printer::EventPrinter},
    term,
};

/// Sends a prompt and, unless `--no-wait` is given, follows its turn to the end.
pub(super) async fn run(client: &DaemonClient, args: PromptArgs, as_json: bool) -> Result<(), CommandFailure> {
    let mode = match (args.queue, args.steer) {
        (true, _) => PromptMode::Queue,
        (_, true) => PromptMode::Steer,
        _ => PromptMode::Refuse,
    };
    let request = PromptRequest {
        text: String::new(),
        parts: prompting::parts(&args.text, &args.attachments)?,
        mode,
        wait: !args.no_wait,
        metadata: args.metadata.map(|text| document("metadata", text)).transpose()?,
        ..PromptRequest::default()
    };
    let path = format!("/v1/sessions/{}/prompt", args.id);
    if args.no_wait {
        let accepted: PromptAccepted = client.post(&path, &request).await?;
        return if as_json { term::json(&accepted) } else { Ok(()) };
    }
    let agent = match io::stderr().is_terminal() {
        true => client.get::<SessionInfo>(&format!("/v1/sessions/{}", args.id)).await?.metadata.agent,
        false => String::new(),
    };
    let mut lines = client.post_lines(&path, &request).await?;
    let mut live = EventPrinter::new();
    if !as_json {
        live.answer_with(format!("agent-proxy permit {}", args.id));
        live.begin(&agent, None);
    }
    let mut outcome = TurnOutcome::default();
    loop {
        let batch = tokio::select! {
            batch = lines.next_batch() => batch,
            never = EventPrinter::animate(Some(&mut live)) => match never {},
        };
        let batch = match batch {
            Ok(Some(batch)) => batch,
            Ok(None) => break,
            Err(problem) => {
                live.finish()?;
                return Err(problem.into());
            }
        };
        for value in batch {
            if as_json {
                term::json(&value)?;
            }
            // An event that only a newer daemon knows is none of the few that matter here.
            let Ok(envelope) = Envelope::from_json(value) else { continue };
            outcome.record(&envelope.event);
            if !as_json {
                live.event(&envelope.event)?;
            }
        }
    }
    live.finish()?;
    outcome.into_result()
}

/// Outcome of a turn, from its events.
#[derive(Debug, Default)]
pub(super) struct TurnOutcome {
    stop: Option<StopReason>,
    /// Code and message of the last error.
    error: Option<(String, String)>,
    /// Limit that ended the session.
    limit: Option<LimitKind>,
    /// Clock that ran out, if that ended the turn.
    timed_out: Option<TimeoutKind>,
    /// Last failure before that.
    last_words: Option<String>,
    /// The budget that was used up, if that ended the turn.
    exceeded_budget: Option<BudgetExceeded>,
    /// The tool call that bypassed the permission policy, if that ended the turn.
    bypassed: Option<String>,
}

impl TurnOutcome {
    /// Records events that show how the turn ended.
    pub(super) fn record(&mut self, event: &Event) {
        match event {
            Event::Complete { stop_reason, .. } => (self.stop, self.error) = (Some(stop_reason.clone()), None),
            Event::Error { code, message, .. } => self.error = Some((code.clone(), message.clone())),
            Event::SessionEnded { reason, .. } => self.record_end(reason),
            Event::TimeoutFired { clock, action, last_words, .. } if *action != TimeoutAction::Warn => {
                self.timed_out = Some(*clock);
                self.last_words.clone_from(last_words);
            }
            Event::PermissionBypassed(call) if call.action == BypassAction::AbortTurn => {
                self.bypassed = Some(call.title.clone());
            }
            Event::BudgetExceeded(spent)
                if matches!(spent.action, BudgetAction::EndTurn | BudgetAction::EndSession) && self.stop.is_none() =>
            {
                self.exceeded_budget = Some(**spent);
            }
            _ => {}
        }
    }

    /// Records the reason for the session's end.
    pub(super) fn record_end(&mut self, reason: &EndReason) {
        match reason {
            EndReason::LimitExceeded(limit) => self.limit = Some(*limit),
            EndReason::TimedOut(clock) => self.timed_out = Some(*clock),
            _ => {}
        }
    }

    /// Returns the result: done, interrupted, refused by a limit, or failed.
    ///
    /// # Errors
    /// Unless the agent finished, or there was no turn.
    pub(super) fn into_result(self) -> Result<(), CommandFailure> {
        if let Some(limit) = self.limit {
            // The limit is the cause of any other error.
            return Err(
                ProblemDetails::new("ended", format!("the session ended: it passed its limit on {limit}")).into()
            );
        }
        if let Some(call) = self.bypassed {
            let problem = format!(
                "the turn was aborted: its agent ran {call:?} without asking, which is denied; `agent-proxy agents` says whether its \
                 version was tried"
            );
            return Err(ProblemDetails::new("permission-bypassed", problem).into());
        }
        if let Some(spent) = self.exceeded_budget {
            let problem = format!("the turn was ended: the session has used up its budget, {spent}");
            return Err(ProblemDetails::new("budget-exceeded", problem).into());
        }
        if let Some(clock) = self.timed_out {
            let words = self.last_words.map_or_else(String::new, |words| format!("; what it said last: {words}"));
            let problem = format!("the turn was ended: its {clock} took too long{words}");
            return Err(ProblemDetails::new("deadline", problem).into());
        }
        match (self.stop, self.error) {
            (Some(StopReason::EndTurn) | None, None) => Ok(()),
            (Some(StopReason::Cancelled), _) => Err(CommandFailure::Exit(ProgramExit::Interrupted)),
            (_, Some((code, message))) => {
                let kind = if code == "agent-exited" { "agent-died" } else { "failed" };
                Err(ProblemDetails::new(kind, format!("the turn failed: {message} ({code})")).into())
            }
            (Some(reason), None) => {
                Err(ProblemDetails::failed(format!("the turn ended early: {}", stop(&reason))).into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(events: &[Event]) -> Option<u8> {
        let mut outcome = TurnOutcome::default();
        events.iter().for_each(|event| outcome.record(event));
        match outcome.into_result() {
            Ok(()) => None,
            Err(CommandFailure::Exit(exit)) => Some(exit.code()),
            Err(CommandFailure::Program(code)) => Some(code),
            Err(CommandFailure::Problem(problem)) => Some(problem.exit().code()),
            Err(CommandFailure::Closed) => panic!("nothing was written"),
        }
    }

    #[test]
    fn how_a_turn_went() {
        let end = |stop_reason| Event::Complete { stop_reason, usage: None };
        let error = || Event::error("500", "overloaded", true);
        assert_eq!(verdict(&[]), None);
        assert_eq!(verdict(&[end(StopReason::EndTurn)]), None);
        assert_eq!(verdict(&[error(), end(StopReason::EndTurn)]), None, "it was retried");
        assert_eq!(verdict(&[end(StopReason::Cancelled)]), Some(130));
        assert_eq!(verdict(&[error()]), Some(1));
        assert_eq!(verdict(&[end(StopReason::Refusal)]), Some(1));
        let ended = |reason| Event::SessionEnded { reason, receipt: None };
        assert_eq!(verdict(&[error(), ended(EndReason::LimitExceeded(LimitKind::Memory))]), Some(8));
        assert_eq!(verdict(&[error(), ended(EndReason::Killed)]), Some(1));
        let passed = |action| {
            let spent = BudgetExceeded { budget: ipc_protocol::BudgetKind::Cost, value: 1, measured: 2, action };
            Event::BudgetExceeded(Box::new(spent))
        };
        assert_eq!(verdict(&[passed(BudgetAction::EndTurn), end(StopReason::Cancelled)]), Some(8));
        assert_eq!(verdict(&[passed(BudgetAction::RefusePrompts), end(StopReason::EndTurn)]), None);
        assert_eq!(verdict(&[end(StopReason::EndTurn), passed(BudgetAction::EndTurn)]), None, "it was over");
        let late = |action| Event::TimeoutFired { clock: TimeoutKind::Turn, after_ms: 1, action, last_words: None };
        assert_eq!(verdict(&[late(TimeoutAction::AbortTurn), end(StopReason::Cancelled)]), Some(7));
        assert_eq!(verdict(&[ended(EndReason::TimedOut(TimeoutKind::Inactivity))]), Some(7));
        assert_eq!(verdict(&[late(TimeoutAction::Warn), end(StopReason::EndTurn)]), None);
    }
}
