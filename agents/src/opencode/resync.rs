//! Resync after the event stream was cut: queries for everything that was missed.

use ipc_protocol::Event;

use super::{
    calls::{OpenCodeRequestPurpose, OpenCodeResponse, ResyncStep, refusal},
    session::OpenCodeSession,
    wire::{PermissionAsked, QuestionAsked, RunStatus, WholeMessage},
};
use crate::Action;

/// Messages that a resync reads: each step of the model is one.
const MESSAGES: usize = 100;
/// Status queries for a prompt that the server has shown and not started to answer.
const MAX_STATUS_POLLS: u8 = 100;

impl OpenCodeSession {
    /// Starts the resync, since the event stream is open again.
    pub(super) fn resync(&mut self, out: &mut Vec<Action>) {
        if self.turn.is_none() && self.compaction.is_none() {
            return;
        }
        self.resyncing = true;
        if self.content.has_children() {
            let reason = "the event stream was cut: what sub-agents did meanwhile may be missing".to_owned();
            out.push(Action::Event(Event::SessionLossy { reason }));
        }
        let path = self.conversation(&format!("/message?limit={MESSAGES}"));
        self.fetch(ResyncStep::Messages, &path, out);
    }

    fn fetch(&mut self, step: ResyncStep, path: &str, out: &mut Vec<Action>) {
        let path = self.settings.path(path);
        self.calls.send(OpenCodeRequestPurpose::Resync(step), "GET", path, None, out);
    }

    /// Handles the answer to a step of the resync.
    pub(super) fn resynced(&mut self, step: ResyncStep, answer: OpenCodeResponse, out: &mut Vec<Action>) {
        let done = match answer {
            Ok((200, body)) => self.apply_resync(step, &body, out).map_err(|error| error.to_string()),
            Ok((status, body)) => Err(refusal(status, &body)),
            Err(why) => Err(why),
        };
        if let Err(why) = done {
            let reason = format!("the event stream was cut, and what was said meanwhile cannot be had: {why}");
            out.push(Action::Event(Event::SessionLossy { reason }));
            // The state of the calls is unknown: no call may go on waiting for an answer.
            self.content.end_calls(out);
        }
        match step {
            ResyncStep::Messages => self.fetch(ResyncStep::Permissions, "/permission", out),
            ResyncStep::Permissions => self.fetch(ResyncStep::Questions, "/question", out),
            ResyncStep::Questions => self.fetch(ResyncStep::Status(0), "/session/status", out),
            // If the stream was cut again meanwhile, the resync starts again when the stream is open, or has started again.
            ResyncStep::Status(_) => {
                self.resyncing = self.calls.count(|purpose| matches!(purpose, OpenCodeRequestPurpose::Resync(_))) > 0;
            }
        }
    }

    fn apply_resync(&mut self, step: ResyncStep, body: &[u8], out: &mut Vec<Action>) -> Result<(), serde_json::Error> {
        match step {
            ResyncStep::Messages => {
                let all: Vec<WholeMessage<'_>> = serde_json::from_slice(body)?;
                self.replay_messages(all, out);
            }
            ResyncStep::Permissions => {
                let all: Vec<PermissionAsked> = serde_json::from_slice(body)?;
                // A request that was open and is not listed was answered. Questions have a list of their own.
                for id in self.permissions.ids().iter().filter(|id| id.starts_with("per")) {
                    if !all.iter().any(|asked| asked.id == *id) {
                        self.permissions.replied(id, None, out);
                    }
                }
                all.into_iter().for_each(|asked| self.handle_permission(asked, out));
            }
            ResyncStep::Questions => {
                let all: Vec<QuestionAsked> = serde_json::from_slice(body)?;
                for id in self.permissions.ids().iter().filter(|id| !id.starts_with("per")) {
                    if !all.iter().any(|question| question.id == *id) {
                        self.permissions.replied(id, None, out);
                    }
                }
                all.into_iter().for_each(|question| self.question(question, out));
            }
            ResyncStep::Status(looks) => {
                let all: std::collections::HashMap<String, RunStatus> = serde_json::from_slice(body)?;
                match all.get(&self.session) {
                    Some(status) => self.status(status, out),
                    None => self.handle_all_idle(looks, out),
                }
            }
        }
        Ok(())
    }

    /// Handles an idle conversation: a run that has started is over.
    fn handle_all_idle(&mut self, looks: u8, out: &mut Vec<Action>) {
        if let Some(compaction) = &mut self.compaction {
            compaction.busy = true;
        } else if let Some(turn) = &mut self.turn {
            if turn.is_unanswered() {
                // The run may be about to start.
                if looks < MAX_STATUS_POLLS {
                    return self.fetch(ResyncStep::Status(looks + 1), "/session/status", out);
                }
                if turn.should_report_error() {
                    let message = "the server ended its run without an answer, while its event stream was cut";
                    out.push(Action::Event(Event::error("no-answer", message, true)));
                }
                turn.failed();
            }
            turn.mark_run();
        }
        self.idle(out);
    }

    /// The messages of the turn, with what of them has not been told.
    fn replay_messages(&mut self, mut all: Vec<WholeMessage<'_>>, out: &mut Vec<Action>) {
        all.retain(|message| !self.content.is_copied(&message.info));
        // They begin with its first prompt that is known; if none is, with the last one there.
        let first = self.turn.as_ref().and_then(|turn| turn.first_prompt().map(str::to_owned));
        let known = first.and_then(|first| all.iter().position(|message| message.info.id == first));
        let from = known.or_else(|| all.iter().rposition(|message| message.info.is_prompt())).unwrap_or(0);
        for WholeMessage { info, parts } in all.into_iter().skip(from) {
            self.message(&info, out);
            if let Some(error) = &info.error
                && let Some(turn) = &mut self.turn
                && turn.has_begun()
            {
                if error.is_abort() {
                    turn.abort();
                } else {
                    if turn.should_report_error() {
                        out.push(Action::Event(Event::error(error.code(), error.message(), error.is_retryable())));
                    }
                    turn.failed();
                }
            }
            parts.into_iter().for_each(|part| self.part(part, out));
        }
    }
}
