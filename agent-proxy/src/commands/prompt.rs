//! Command `prompt`.

use proxy_manager::{
    BudgetAction, BudgetExceeded, BypassAction, EndReason, Envelope, Event, LimitKind, PromptMode, StopReason,
    TimeoutAction, TimeoutKind,
};

use crate::{
    api::{Accepted, PromptRequest},
    args::PromptArgs,
    client::Client,
    exit::Exit,
    problem::{Failure, Problem},
    render::{event::stop, live::Live},
    saying, term,
};

/// Sends a prompt and, unless `--no-wait` is given, follows its turn to the end.
pub(super) async fn run(client: &Client, args: PromptArgs, as_json: bool) -> Result<(), Failure> {
    let mode = match (args.queue, args.steer) {
        (true, _) => PromptMode::Queue,
        (_, true) => PromptMode::Steer,
        _ => PromptMode::Refuse,
    };
    let request = PromptRequest {
        text: String::new(),
        parts: saying::parts(&args.text, &args.attachments)?,
        mode,
        wait: !args.no_wait,
        stream: false,
    };
    let path = format!("/v1/sessions/{}/prompt", args.id);
    if args.no_wait {
        let accepted: Accepted = client.post(&path, &request).await?;
        return if as_json { term::json(&accepted) } else { Ok(()) };
    }
    let mut lines = client.post_lines(&path, &request).await?;
    let mut live = Live::new();
    let mut outcome = Outcome::default();
    loop {
        let batch = match lines.next_batch().await {
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
            outcome.note(&envelope.event);
            if !as_json {
                live.event(&envelope.event)?;
            }
        }
    }
    live.finish()?;
    outcome.verdict()
}

/// Outcome of a turn, from its events.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    stop: Option<StopReason>,
    /// Code and message of the last error.
    error: Option<(String, String)>,
    /// Limit that ended the session.
    limit: Option<LimitKind>,
    /// Clock that ran out, if that ended the turn.
    late: Option<TimeoutKind>,
    /// Last failure before that.
    last_words: Option<String>,
    /// The budget that was used up, if that ended the turn.
    spent: Option<BudgetExceeded>,
    /// The tool call that bypassed the permission policy, if that ended the turn.
    bypassed: Option<String>,
}

impl Outcome {
    /// Records events that show how the turn ended.
    pub(super) fn note(&mut self, event: &Event) {
        match event {
            Event::Complete { stop_reason, .. } => (self.stop, self.error) = (Some(stop_reason.clone()), None),
            Event::Error { code, message, .. } => self.error = Some((code.clone(), message.clone())),
            Event::SessionEnded { reason, .. } => self.ended(reason),
            Event::TimeoutFired { clock, action, last_words, .. } if *action != TimeoutAction::Warn => {
                self.late = Some(*clock);
                self.last_words.clone_from(last_words);
            }
            Event::PermissionBypassed(call) if call.action == BypassAction::AbortTurn => {
                self.bypassed = Some(call.title.clone());
            }
            Event::BudgetExceeded(spent)
                if matches!(spent.action, BudgetAction::EndTurn | BudgetAction::EndSession) && self.stop.is_none() =>
            {
                self.spent = Some(**spent);
            }
            _ => {}
        }
    }

    /// Records the reason for the session's end.
    pub(super) fn ended(&mut self, reason: &EndReason) {
        match reason {
            EndReason::LimitExceeded(limit) => self.limit = Some(*limit),
            EndReason::TimedOut(clock) => self.late = Some(*clock),
            _ => {}
        }
    }

    /// Returns the result: done, interrupted, refused by a limit, or failed.
    ///
    /// # Errors
    /// Unless the agent finished, or there was no turn.
    pub(super) fn verdict(self) -> Result<(), Failure> {
        if let Some(limit) = self.limit {
            // The limit is the cause of any other error.
            return Err(Problem::new("ended", format!("the session ended: it passed its limit on {limit}")).into());
        }
        if let Some(call) = self.bypassed {
            let problem = format!(
                "the turn was aborted: its agent ran {call:?} without asking, which is denied; `agent-proxy agents` says whether its \
                 version was tried"
            );
            return Err(Problem::new("permission-bypassed", problem).into());
        }
        if let Some(spent) = self.spent {
            let problem = format!("the turn was ended: the session has used up its budget, {spent}");
            return Err(Problem::new("budget-exceeded", problem).into());
        }
        if let Some(clock) = self.late {
            let words = self.last_words.map_or_else(String::new, |words| format!("; what it said last: {words}"));
            let problem = format!("the turn was ended: its {clock} took too long{words}");
            return Err(Problem::new("deadline", problem).into());
        }
        match (self.stop, self.error) {
            (Some(StopReason::EndTurn) | None, None) => Ok(()),
            (Some(StopReason::Cancelled), _) => Err(Failure::Exit(Exit::Interrupted)),
            (_, Some((code, message))) => {
                let kind = if code == "agent-exited" { "agent-died" } else { "failed" };
                Err(Problem::new(kind, format!("the turn failed: {message} ({code})")).into())
            }
            (Some(reason), None) => Err(Problem::failed(format!("the turn ended early: {}", stop(&reason))).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(events: &[Event]) -> Option<u8> {
        let mut outcome = Outcome::default();
        events.iter().for_each(|event| outcome.note(event));
        match outcome.verdict() {
            Ok(()) => None,
            Err(Failure::Exit(exit)) => Some(exit.code()),
            Err(Failure::Problem(problem)) => Some(problem.exit().code()),
            Err(Failure::Closed) => panic!("nothing was written"),
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
            let spent = BudgetExceeded { budget: proxy_manager::BudgetKind::Cost, value: 1, measured: 2, action };
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
