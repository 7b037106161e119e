//! Turns, from the prompt to the end.
//!
//! A prompt leads to one run of the agent or to several: Pi retries failures, and continues with steers. Newer agents report the end
//! of the last run (`agent_settled`). Older agents report the end of each run, and the adapter asks whether it was the last.

use ipc_protocol::{Event, ResolvedBy, StopReason, terminal::Surface};
use serde_json::{Value, json};

use super::{
    session::PiSession,
    state::{LastAnswer, PiPurpose, PiState, PiTurn},
    wire::PiResponse,
};
use crate::{Action, kit::bounds::words};

impl PiSession {
    pub(super) fn turn(&mut self) -> Option<&mut PiTurn> {
        match &mut self.state {
            PiState::Ready(turn) => turn.as_mut(),
            _ => None,
        }
    }

    /// Returns the turn that runs, whoever has begun it.
    fn running_turn(&mut self) -> Option<&mut PiTurn> {
        match &mut self.state {
            PiState::Ready(Some(turn)) => Some(turn),
            _ => self.screen.as_mut(),
        }
    }

    /// Handles an event of a turn that was begun on the agent's screen.
    fn screen_event(&mut self, event: &str, out: &mut Vec<Action>) {
        if self.config.surface != Some(Surface::Both) {
            return;
        }
        match event {
            "agent_start" => _ = self.screen.get_or_insert_default(),
            "agent_settled" => {
                let Some(mut turn) = self.screen.take() else { return };
                self.dialogs.close_all(&ResolvedBy::Abort, out);
                self.calls.fail(|_| true, out);
                let last = last_event(&mut turn);
                let is_error = matches!(last, Event::Error { .. });
                out.push(Action::Event(last));
                if is_error {
                    let (stop_reason, usage) = (StopReason::Other("failed".to_owned()), turn.usage.map(Box::new));
                    out.push(Action::Event(Event::Complete { stop_reason, usage }));
                }
            }
            _ => {}
        }
    }

    /// Handles the response to a prompt: the agent has accepted it, and possibly nothing else happens.
    pub(super) fn handle_prompt_taken(&mut self, answer: PiResponse, out: &mut Vec<Action>) {
        match answer {
            Ok(_) => {
                if let Some(number) = self.turn().map(|turn| turn.number) {
                    self.command("get_state", Value::Null, PiPurpose::Handled(number), out);
                }
            }
            Err(reason) => self.end_turn(Event::error("refused", reason, false), out),
        }
    }

    /// Handles the agent's state after it accepted a prompt.
    pub(super) fn handle_state_after_prompt(&mut self, number: u64, answer: &PiResponse, out: &mut Vec<Action>) {
        let Ok(state) = answer else { return };
        self.record_state(state);
        let idle = idle(state);
        if self.turn().is_some_and(|turn| turn.number == number && !turn.has_begun && idle) {
            self.complete(out);
        }
    }

    /// Handles an older agent's state after a run.
    pub(super) fn handle_state_after_run(&mut self, number: u64, answer: &PiResponse, out: &mut Vec<Action>) {
        let idle = answer.as_ref().is_ok_and(idle);
        if self.turn().is_some_and(|turn| turn.number == number && turn.legacy && !turn.retrying && idle) {
            self.complete(out);
        }
    }

    /// Handles the end of a run, or of something that may be the last after a run.
    pub(super) fn run_ended(&mut self, message: &Value, out: &mut Vec<Action>) {
        if message["type"] == "agent_end"
            && let Some(turn) = self.turn()
        {
            turn.legacy = message.get("willRetry").is_none();
        }
        if let Some(number) = self.turn().filter(|turn| turn.legacy).map(|turn| turn.number)
            && self.pending.has_room(1)
        {
            self.command("get_state", Value::Null, PiPurpose::Settled(number), out);
        }
    }

    pub(super) fn turn_event(&mut self, event: &str, message: &Value, out: &mut Vec<Action>) {
        let Some(turn) = self.turn() else { return self.screen_event(event, out) };
        match event {
            "agent_start" => {
                let again = turn.aborting && !turn.has_begun;
                (turn.has_begun, turn.retrying) = (true, false);
                if again {
                    // At the first abort there was nothing to abort yet.
                    self.command("abort", Value::Null, PiPurpose::Ignored, out);
                }
            }
            "queue_update" => {
                let len = |key: &str| message[key].as_array().map_or(0, Vec::len);
                turn.queued = len("steering") + len("followUp");
            }
            "auto_retry_start" | "summarization_retry_scheduled" => {
                turn.retrying = event == "auto_retry_start";
                let attempt = message["attempt"].as_u64().and_then(|attempt| u32::try_from(attempt).ok());
                let delay_ms = message["delayMs"].as_u64();
                let (code, message, _) = describe(message["errorMessage"].as_str());
                if event == "auto_retry_start" {
                    out.extend(self.output.answer.void());
                }
                out.push(Action::Event(Event::retry(code, message, attempt, delay_ms)));
            }
            "auto_retry_end" => {
                turn.retrying = false;
                turn.retries_exhausted = message["success"] == false;
                self.run_ended(message, out);
            }
            "agent_end" => self.run_ended(message, out),
            "agent_settled" => self.complete(out),
            _ => {}
        }
    }

    /// Handles a complete message. The model's messages contain the tokens of their requests, and the turn has the sum.
    pub(super) fn message_ended(&mut self, message: &Value, out: &mut Vec<Action>) {
        if message["role"] != "assistant" {
            return;
        }
        let window = self.context_window;
        let Some(turn) = self.running_turn() else { return };
        turn.last = Some(LastAnswer {
            stop: words(message["stopReason"].as_str().unwrap_or_default()),
            error: message["errorMessage"].as_str().map(str::to_owned),
        });
        let count = |key: &str| message["usage"][key].as_u64().unwrap_or(0);
        let total = count("totalTokens");
        if total == 0 {
            return;
        }
        let usage = turn.usage.get_or_insert_default();
        // It counts tokens of the cache beside its input.
        let input = count("input").saturating_add(count("cacheRead")).saturating_add(count("cacheWrite"));
        for (sum, more) in [
            (&mut usage.input_tokens, input),
            (&mut usage.output_tokens, count("output")),
            (&mut usage.cache_read_tokens, count("cacheRead")),
            (&mut usage.cache_write_tokens, count("cacheWrite")),
        ] {
            *sum = Some(sum.unwrap_or(0).saturating_add(more));
        }
        // A model without a price reports a cost of 0.
        if let Some(cost) = message["usage"]["cost"]["total"].as_f64().filter(|cost| *cost > 0.0) {
            usage.cost_usd = Some(usage.cost_usd.unwrap_or(0.0) + cost);
        }
        out.push(Action::Event(Event::Usage(Box::new(*usage))));
        out.extend(window.map(|size| Action::Event(Event::context_window(total, size))));
    }

    /// Completes the turn, since the agent is done.
    fn complete(&mut self, out: &mut Vec<Action>) {
        let Some(turn) = self.turn() else { return };
        let (queued, event) = (turn.queued, last_event(turn));
        if queued > 0 {
            // Otherwise the agent would send the rest with the next prompt.
            self.command("clear_queue", Value::Null, PiPurpose::Ignored, out);
            let error = "the turn was over before the agent took it".to_owned();
            out.push(Action::Event(Event::ActionFailed { action: "steer".to_owned(), error }));
        }
        self.end_turn(event, out);
    }

    fn end_turn(&mut self, last: Event, out: &mut Vec<Action>) {
        let PiState::Ready(turn) = &mut self.state else { return };
        if turn.take().is_none() {
            return;
        }
        self.dialogs.close_all(&ResolvedBy::Abort, out);
        self.calls.fail(|_| true, out);
        out.push(Action::Event(last));
        out.push(Action::TurnEnded);
    }
}

/// Makes the last event of a turn.
fn last_event(turn: &mut PiTurn) -> Event {
    let usage = turn.usage.map(Box::new);
    let complete = |stop_reason| Event::Complete { stop_reason, usage };
    match (turn.last.take(), turn.aborting) {
        (Some(LastAnswer { stop, error, .. }), false) if stop == "error" => {
            let (code, message, later) = describe(error.as_deref());
            Event::error(code, message, turn.retries_exhausted || later)
        }
        (Some(LastAnswer { stop, .. }), aborting) => complete(match (stop.as_str(), aborting) {
            ("aborted", _) | (_, true) => StopReason::Cancelled,
            ("length", _) => StopReason::MaxTokens,
            ("stop" | "toolUse", _) => StopReason::EndTurn,
            (other, _) => StopReason::Other(other.to_owned()),
        }),
        (None, true) => complete(StopReason::Cancelled),
        (None, false) => complete(StopReason::EndTurn),
    }
}

fn idle(state: &Value) -> bool {
    let busy = ["isStreaming", "isCompacting"].iter().any(|key| state[key] == json!(true));
    !busy && state["pendingMessageCount"].as_u64().unwrap_or(0) == 0
}

/// Returns the code of an error, its text, and whether a retry may succeed.
fn describe(error: Option<&str>) -> (String, String, bool) {
    let text = error.unwrap_or("the model failed");
    let status = status_code(text);
    // A provider's answer is raw JSON after its status.
    let (head, json) = text.find('{').map_or((text, ""), |at| text.split_at(at));
    let inner = serde_json::from_str::<Value>(json).unwrap_or_default();
    let inner = inner["message"].as_str().or_else(|| inner["error"]["message"].as_str());
    let message = inner.map_or_else(|| text.to_owned(), |inner| format!("{head}{inner}"));
    let code = status.map_or_else(|| "error".to_owned(), |status| status.to_string());
    (code, words(&message), status.is_some_and(|status| matches!(status, 408 | 429 | 500..)))
}

/// Returns the HTTP status in the text of an error: the first number that may be one.
fn status_code(text: &str) -> Option<u16> {
    let numbers = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| word.len() == 3);
    numbers.filter_map(|word| word.parse().ok()).find(|code| (400..600).contains(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_found_in_words() {
        for (text, code) in [
            ("429 {\"type\":\"error\"}", Some(429)),
            ("OpenAI API error (500): no", Some(500)),
            ("took 4000 ms, then 503", Some(503)),
            ("terminated", None),
            ("model gpt-400x, 200 OK", None),
        ] {
            assert_eq!(status_code(text), code, "{text}");
        }
    }
}
