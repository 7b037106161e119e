//! Unanswered messages of a turn, and the results that end it.
//!
//! Each of our messages has a name (`uuid`). A result names the messages that it answers. A message that arrives while a tool runs
//! joins the current turn and is answered with it; one that arrives while the model answers gets a result of its own. A result that
//! names none of our messages, or has another origin, belongs to a turn that the agent started itself after a background task ended.

use ipc_protocol::{Event, StopReason, Usage};
use serde::Deserialize;

use super::usage;
use crate::kit::bounds::words;

/// Contents of a `result` line: the end of one of the agent's turns.
#[derive(Debug, Deserialize)]
pub(super) struct TurnResult {
    #[serde(default)]
    subtype: String,
    #[serde(default)]
    is_error: bool,
    result: Option<String>,
    #[serde(default)]
    errors: Vec<String>,
    terminal_reason: Option<String>,
    stop_reason: Option<String>,
    api_error_status: Option<u16>,
    pub(super) startup_failure_reason: Option<String>,
    user_message_uuid: Option<String>,
    #[serde(default)]
    user_message_uuids: Vec<String>,
    origin: Option<MessageOrigin>,
}

#[derive(Debug, Deserialize)]
struct MessageOrigin {
    #[serde(default)]
    kind: String,
}

impl TurnResult {
    /// Returns the agent's text for a failure.
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

    /// Returns the stop reason, or the error that the turn ended with.
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
                // The API did not answer at all.
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

    /// Returns whether the result belongs to a turn that a prompt started.
    pub(super) fn is_ours(&self) -> bool {
        let names_some = self.user_message_uuid.is_some() || !self.user_message_uuids.is_empty();
        names_some || self.origin.as_ref().is_none_or(|origin| origin.kind == "human")
    }

    /// Returns whether the result answers the message `uuid`. A result that names no message answers all of them, unless it has
    /// another origin.
    pub(super) fn answers(&self, uuid: &str) -> bool {
        let mut named = self.user_message_uuids.iter().chain(&self.user_message_uuid).peekable();
        if named.peek().is_none() {
            return self.is_ours();
        }
        named.any(|named| named == uuid)
    }
}

/// Message that was sent to the agent.
#[derive(Debug)]
struct SentMessage {
    uuid: String,
    /// True once the agent has received it.
    is_taken: bool,
}

/// Turn in progress.
#[derive(Debug)]
pub(super) struct ClaudeTurn {
    /// Unanswered messages: the first, and those that steer the turn.
    sent: Vec<SentMessage>,
    pub(super) steers: usize,
    pub(super) cancelled: bool,
    usage: Option<Usage>,
    /// Stop reason of the last result; `None` if that was an error, which is emitted at once.
    stop: Option<StopReason>,
}

impl ClaudeTurn {
    pub(super) fn new(uuid: String) -> Self {
        Self { sent: vec![SentMessage { uuid, is_taken: false }], steers: 0, cancelled: false, usage: None, stop: None }
    }

    /// Adds a message that steers the turn.
    pub(super) fn steer(&mut self, uuid: String) {
        self.steers += 1;
        self.sent.push(SentMessage { uuid, is_taken: false });
    }

    /// Returns whether the result belongs to this turn.
    pub(super) fn has(&self, outcome: &TurnResult) -> bool {
        self.sent.iter().any(|sent| outcome.answers(&sent.uuid))
    }

    /// Handles a result that used `usage`. Returns the turn's usage so far, and the error if the result is one.
    pub(super) fn result(&mut self, outcome: &TurnResult, usage: Usage) -> (Usage, Option<Event>) {
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

    /// Records that the agent has received a message.
    pub(super) fn mark_taken(&mut self, uuid: &str) {
        if let Some(sent) = self.sent.iter_mut().find(|sent| sent.uuid == uuid) {
            sent.is_taken = true;
        }
    }

    /// Handles the end of a message. Returns whether the agent skipped it, since it knew the name: the message then has no result.
    pub(super) fn mark_finished(&mut self, uuid: &str) -> bool {
        let before = self.sent.len();
        self.sent.retain(|sent| sent.uuid != uuid || sent.is_taken);
        self.sent.len() < before
    }

    /// Handles a message that the agent dropped before it started on it: the message has no result.
    pub(super) fn remove(&mut self, uuid: &str) {
        let before = self.sent.len();
        self.sent.retain(|sent| sent.uuid != uuid);
        if self.sent.len() < before && self.sent.is_empty() && self.stop.is_none() {
            self.stop = Some(StopReason::Cancelled);
        }
    }

    /// Returns whether every message is answered.
    pub(super) fn is_complete(&self) -> bool {
        self.sent.is_empty()
    }

    /// Returns the turn's last event, unless an error was the last.
    pub(super) fn complete(self) -> Option<Event> {
        let usage = self.usage.map(Box::new);
        self.stop.map(|stop_reason| Event::Complete { stop_reason, usage })
    }
}
