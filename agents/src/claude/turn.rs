//! Which of our messages the agent has still to answer, and how a result of it ends a turn.
//!
//! Each message of ours has a name (`uuid`). A result names those that it answers: one that came while a tool ran joins the running
//! turn and is answered with it; one that came while the model spoke is answered by a result of its own. A result that names none of
//! ours, or says that it comes of something else, is of a turn that the agent began by itself: a background task had ended.

use ipc_protocol::{Event, StopReason, Usage};
use serde::Deserialize;

use super::usage;
use crate::jsonl::words;

/// `result`: a turn of the agent's is over.
#[derive(Debug, Deserialize)]
pub(super) struct Outcome {
    #[serde(default)]
    subtype: String,
    #[serde(default)]
    is_error: bool,
    #[serde(default)]
    result: Option<String>,
    #[serde(default)]
    errors: Vec<String>,
    #[serde(default)]
    terminal_reason: Option<String>,
    #[serde(default)]
    stop_reason: Option<String>,
    #[serde(default)]
    api_error_status: Option<u16>,
    #[serde(default)]
    pub(super) startup_failure_reason: Option<String>,
    #[serde(default)]
    user_message_uuid: Option<String>,
    #[serde(default)]
    user_message_uuids: Vec<String>,
    #[serde(default)]
    origin: Option<Origin>,
}

#[derive(Debug, Deserialize)]
struct Origin {
    #[serde(default)]
    kind: String,
}

impl Outcome {
    /// What the agent says of a failure.
    pub(super) fn reason(&self) -> String {
        let result = self.result.as_deref().filter(|text| !text.is_empty());
        match result {
            Some(text) => words(text),
            None if self.errors.is_empty() => self.subtype.clone(),
            None => words(&self.errors.join("; ")),
        }
    }

    pub(super) fn is_error(&self) -> bool {
        self.is_error
    }

    /// Why the turn ended, or the error that it ended with.
    fn end(&self) -> Result<StopReason, Event> {
        let reason = self.terminal_reason.as_deref().unwrap_or_default();
        if reason.starts_with("aborted") {
            return Ok(StopReason::Cancelled);
        }
        if self.subtype == "error_max_turns" {
            return Ok(StopReason::MaxRequests);
        }
        if self.is_error || self.subtype != "success" {
            // A failure of the model's API is a success with `is_error`.
            let code = match self.api_error_status {
                Some(status) => status.to_string(),
                None if reason.is_empty() || reason == "completed" => words(&self.subtype),
                None => words(reason),
            };
            let again = match self.api_error_status {
                Some(status) => matches!(status, 408 | 409 | 429 | 500..),
                // No answer at all.
                None => reason == "api_error",
            };
            return Err(Event::error(code, self.reason(), again));
        }
        Ok(match self.stop_reason.as_deref() {
            None | Some("end_turn" | "stop_sequence" | "tool_use") => StopReason::EndTurn,
            Some("max_tokens") => StopReason::MaxTokens,
            Some("refusal") => StopReason::Refusal,
            Some(other) => StopReason::Other(words(other)),
        })
    }

    /// Whether it is of a turn that somebody asked for.
    pub(super) fn is_ours(&self) -> bool {
        let names_some = self.user_message_uuid.is_some() || !self.user_message_uuids.is_empty();
        names_some || self.origin.as_ref().is_none_or(|origin| origin.kind == "human")
    }

    /// Whether it answers the message `uuid`. A result that names none is taken for an answer to everything, unless it says that
    /// it comes of something else.
    pub(super) fn answers(&self, uuid: &str) -> bool {
        let mut named = self.user_message_uuids.iter().chain(&self.user_message_uuid).peekable();
        if named.peek().is_none() {
            return self.is_ours();
        }
        named.any(|named| named == uuid)
    }
}

/// A message of ours.
#[derive(Debug)]
struct Sent {
    uuid: String,
    /// The agent has it.
    taken: bool,
}

/// A turn that runs.
#[derive(Debug)]
pub(super) struct Turn {
    /// The messages that are not answered: the first, and those that steer it.
    sent: Vec<Sent>,
    pub(super) steers: usize,
    pub(super) cancelled: bool,
    usage: Option<Usage>,
    /// How the last result ended; none where that was an error, which is told at once.
    stop: Option<StopReason>,
}

impl Turn {
    pub(super) fn new(uuid: String) -> Self {
        Self { sent: vec![Sent { uuid, taken: false }], steers: 0, cancelled: false, usage: None, stop: None }
    }

    /// One more message in it.
    pub(super) fn steer(&mut self, uuid: String) {
        self.steers += 1;
        self.sent.push(Sent { uuid, taken: false });
    }

    /// Whether the result is one of this turn.
    pub(super) fn has(&self, outcome: &Outcome) -> bool {
        self.sent.iter().any(|sent| outcome.answers(&sent.uuid))
    }

    /// Takes a result of this turn, which took `usage`: what the turn took so far, and the error if it is one.
    pub(super) fn result(&mut self, outcome: &Outcome, usage: Usage) -> (Usage, Option<Event>) {
        self.sent.retain(|sent| !outcome.answers(&sent.uuid));
        let sum = self.usage.map_or(usage, |sum| usage::add(sum, usage));
        self.usage = Some(sum);
        match outcome.end() {
            Ok(stop) => {
                self.stop = Some(stop);
                (sum, None)
            }
            Err(error) => {
                self.stop = None;
                (sum, Some(error))
            }
        }
    }

    /// The agent has a message.
    pub(super) fn taken(&mut self, uuid: &str) {
        if let Some(sent) = self.sent.iter_mut().find(|sent| sent.uuid == uuid) {
            sent.taken = true;
        }
    }

    /// The agent is done with a message. Whether it never took it: it had one of that name, and this one has no result.
    pub(super) fn passed_over(&mut self, uuid: &str) -> bool {
        let before = self.sent.len();
        self.sent.retain(|sent| sent.uuid != uuid || sent.taken);
        self.sent.len() < before
    }

    /// The agent has dropped a message before it began with it: it has no result.
    pub(super) fn dropped(&mut self, uuid: &str) {
        let before = self.sent.len();
        self.sent.retain(|sent| sent.uuid != uuid);
        if self.sent.len() < before && self.sent.is_empty() && self.stop.is_none() {
            self.stop = Some(StopReason::Cancelled);
        }
    }

    /// Whether every message is answered.
    pub(super) fn over(&self) -> bool {
        self.sent.is_empty()
    }

    /// Its last event, if an error was not that already.
    pub(super) fn complete(self) -> Option<Event> {
        let usage = self.usage.map(Box::new);
        self.stop.map(|stop_reason| Event::Complete { stop_reason, usage })
    }
}
