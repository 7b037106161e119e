//! Turns, from the answer to the prompt to the end.

use ipc_protocol::{Event, StopReason};
use serde_json::{Value, json};

use super::{
    errors, items,
    session::{CodexSession, of_sub_agent, status},
    state::{CodexPurpose, CodexState, ScreenTurn},
    usage::{self, TokenUsageUpdate},
    wire::CodexResponse,
};
use crate::{
    Action,
    kit::bounds::{self, MAX_ID, words},
};

impl CodexSession {
    /// Sends the prompt of a turn.
    pub(super) fn start_turn(&mut self, input: &Value, out: &mut Vec<Action>) {
        let CodexState::Ready(thread) = &mut self.state else { return };
        thread.tokens.begin();
        thread.unseen_inputs = 1;
        let params = json!({ "threadId": thread.id, "input": input });
        self.streamed.clear();
        self.output.answer.begin();
        self.request("turn/start", &params, CodexPurpose::TurnStart, out);
    }

    pub(super) fn send_steer(&mut self, thread: &str, turn: &str, input: &Value, out: &mut Vec<Action>) {
        if let CodexState::Ready(thread) = &mut self.state {
            thread.unseen_inputs += 1;
        }
        let params = json!({ "threadId": thread, "expectedTurnId": turn, "input": input });
        self.request("turn/steer", &params, CodexPurpose::Steer, out);
    }

    /// Sends the interrupt if the turn is to be interrupted and has an id.
    pub(super) fn interrupt(&mut self, out: &mut Vec<Action>) {
        let CodexState::Ready(thread) = &mut self.state else { return };
        let Some(turn) = &mut thread.turn else { return };
        let Some(id) = turn.id.clone().filter(|_| turn.aborting && !turn.interrupt_sent) else { return };
        turn.interrupt_sent = true;
        let params = json!({ "threadId": thread.id, "turnId": id });
        self.request("turn/interrupt", &params, CodexPurpose::Interrupt, out);
    }

    /// Handles the answer to an interrupt. Codex refuses an interrupt before the turn has really started; it is sent again then.
    pub(super) fn interrupted(&mut self, done: bool) {
        if let CodexState::Ready(thread) = &mut self.state
            && let Some(turn) = &mut thread.turn
        {
            turn.interrupt_sent = done;
        }
    }

    /// Handles the answer to `turn/start`.
    pub(super) fn turn_started(&mut self, answer: CodexResponse, out: &mut Vec<Action>) {
        match answer {
            Ok(result) => self.turn_named(result["turn"]["id"].as_str().unwrap_or_default(), out),
            Err(refusal) => {
                let retryable = refusal.code == errors::OVERLOADED;
                let error = Event::error(refusal.code.to_string(), refusal.message, retryable);
                self.end_turn(Some(error), out);
            }
        }
    }

    /// Records the turn's id.
    fn turn_named(&mut self, id: &str, out: &mut Vec<Action>) {
        let CodexState::Ready(thread) = &mut self.state else { return };
        let thread_id = thread.id.clone();
        let Some(turn) = &mut thread.turn else { return };
        // An empty id would match no end of a turn.
        if turn.id.is_none() && !id.is_empty() && id.len() <= MAX_ID {
            turn.id = Some(id.to_owned());
            for input in std::mem::take(&mut turn.held_steers) {
                self.send_steer(&thread_id, id, &input, out);
            }
        }
        self.interrupt(out);
    }

    /// Handles a notification about a turn: ours, or a sub-agent's.
    pub(super) fn turn_notified(&mut self, method: &str, params: &Value, ours: bool, out: &mut Vec<Action>) {
        let thread = params["threadId"].as_str().unwrap_or_default();
        let id = params["itemId"].as_str().unwrap_or_default();
        let turn_id = params["turn"]["id"].as_str().unwrap_or_default();
        match method {
            "item/started" => self.item(&params["item"], thread, ours, false, out),
            "item/completed" => self.item(&params["item"], thread, ours, true, out),
            "item/commandExecution/outputDelta" | "item/fileChange/outputDelta" => {
                self.calls.append_output(id, params["delta"].as_str().unwrap_or_default());
            }
            "item/mcpToolCall/progress" => {
                let line = format!("{}\n", words(params["message"].as_str().unwrap_or_default()));
                self.calls.append_output(id, &line);
            }
            "item/reasoning/summaryPartAdded" if ours && params["summaryIndex"] != 0 => {
                out.push(Action::Event(Event::Thinking { text: "\n\n".to_owned() }));
            }
            "turn/started" if ours && self.is_begun_elsewhere() => self.screen_turn_begins(turn_id),
            "turn/started" if ours => self.turn_named(turn_id, out),
            "turn/started" if turn_id.len() <= MAX_ID && thread.len() <= MAX_ID => {
                self.sub_agents.turn_started(thread, turn_id);
            }
            "turn/completed" if ours => self.turn_completed(&params["turn"], out),
            "turn/completed" => {
                self.sub_agents.turn_completed(thread);
                self.approvals.close_thread(thread, out);
            }
            "thread/tokenUsage/updated" if ours => self.usage(params, out),
            "error" if ours => self.error(params, out),
            _ => {}
        }
    }

    /// Returns whether a turn that starts now is not ours.
    fn is_begun_elsewhere(&self) -> bool {
        let CodexState::Ready(thread) = &self.state else { return false };
        let is_ours = thread.turn.as_ref().is_some_and(|turn| turn.held_input.is_none());
        !is_ours && thread.compaction.is_none()
    }

    fn screen_turn_begins(&mut self, id: &str) {
        let CodexState::Ready(thread) = &mut self.state else { return };
        // An empty id would match no end of a turn.
        if !id.is_empty() && id.len() <= MAX_ID {
            thread.tokens.begin();
            thread.unseen_inputs = 0;
            thread.screen = Some(ScreenTurn { id: id.to_owned(), error_is_reported: false });
            self.streamed.clear();
            self.output.answer.begin();
        }
    }

    /// Ends a turn that is not ours, and starts ours that has waited for that.
    fn screen_turn_completed(&mut self, turn: &Value, out: &mut Vec<Action>) {
        let CodexState::Ready(thread) = &mut self.state else { return };
        let Some(ScreenTurn { error_is_reported, .. }) = thread.screen.take() else { return };
        let (id, usage) = (thread.id.clone(), thread.tokens.of_turn());
        let held = thread.turn.as_mut().and_then(|turn| turn.held_input.take());
        self.approvals.close_thread(&id, out);
        self.calls.end_all(Some(&id), out);
        let stop_reason = match turn["status"].as_str().unwrap_or_default() {
            "interrupted" => StopReason::Cancelled,
            "failed" => {
                if !error_is_reported {
                    let (code, message, retryable) = errors::describe(&turn["error"]);
                    out.push(Action::Event(Event::error(code, message, retryable)));
                }
                StopReason::Other("failed".to_owned())
            }
            _ => StopReason::EndTurn,
        };
        out.push(Action::Event(Event::Complete { stop_reason, usage }));
        if let Some(input) = held {
            self.start_turn(&input, out);
        }
    }

    /// Emits a message of the user that is not ours.
    fn user_message(&mut self, item: &Value, out: &mut Vec<Action>) {
        let CodexState::Ready(thread) = &mut self.state else { return };
        if let Some(fewer) = thread.unseen_inputs.checked_sub(1) {
            thread.unseen_inputs = fewer;
            return;
        }
        let parts = item["content"].as_array().into_iter().flatten();
        let text = parts.filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n");
        out.push(Action::Event(Event::TerminalPrompted { text: bounds::prompt_text(&text) }));
    }

    fn item(&mut self, item: &Value, thread: &str, ours: bool, done: bool, out: &mut Vec<Action>) {
        if thread.len() > MAX_ID {
            return;
        }
        self.sub_agents.item(item);
        let parent = if ours { None } else { self.sub_agents.parent(thread, &self.calls) };
        let is_tool = if done {
            self.calls.completed(item, thread, parent.as_deref(), out)
        } else {
            self.calls.started(item, thread, parent.as_deref(), out)
        };
        if is_tool {
            return;
        }
        if !ours {
            if let (Some(parent), true) = (parent, done)
                && !self.sub_agents.is_streamed(items::id(item).unwrap_or_default())
            {
                out.extend(whole_text(item).map(|event| Action::Event(of_sub_agent(event, parent))));
            }
            return;
        }
        let kind = item["type"].as_str().unwrap_or_default();
        if done {
            // An item that is done is part of the conversation, and is not asked for again.
            self.output.answer.settle();
        }
        match (kind, done) {
            ("agentMessage" | "plan" | "reasoning", true)
                if !self.streamed.contains(items::id(item).unwrap_or_default()) =>
            {
                out.extend(whole_text(item).map(Action::Event));
            }
            ("userMessage", true) => self.user_message(item, out),
            ("contextCompaction", _) => out.push(status("compaction", stage_name(done))),
            ("enteredReviewMode" | "exitedReviewMode", true) => {
                out.push(status("review", words(item["review"].as_str().unwrap_or_default())));
            }
            _ => {}
        }
        if done
            && let CodexState::Ready(thread) = &mut self.state
            && let Some(turn) = &mut thread.turn
        {
            turn.failed_attempts = 0;
        }
    }

    fn usage(&mut self, params: &Value, out: &mut Vec<Action>) {
        let CodexState::Ready(thread) = &mut self.state else { return };
        let Ok(update) = serde_json::from_value::<TokenUsageUpdate>(params["tokenUsage"].clone()) else { return };
        let elsewhere = thread.screen.as_ref().map(|screen| screen.id.as_str());
        let running = thread.turn.as_ref().and_then(|turn| turn.id.as_deref()).or(elsewhere);
        let news = thread.tokens.update(&update, running.is_some() && running == params["turnId"].as_str());
        if let Some(usage) = news.usage {
            out.push(Action::Event(Event::Usage(Box::new(usage))));
        }
        if let Some((used, size)) = news.window {
            out.push(Action::Event(Event::context_window(used, size)));
        }
    }

    /// Emits an error of the turn: one after which the agent retries, or the last one.
    fn error(&mut self, params: &Value, out: &mut Vec<Action>) {
        let CodexState::Ready(thread) = &mut self.state else { return };
        let error = &params["error"];
        let (code, message, retryable) = errors::describe(error);
        let running = thread.turn.as_mut().filter(|turn| turn.held_input.is_none());
        let Some(turn) = running else {
            if params["willRetry"] == true {
                out.extend(self.output.answer.void());
                out.push(Action::Event(Event::retry(code, message, None, None)));
                return;
            }
            thread.screen.iter_mut().for_each(|screen| screen.error_is_reported = true);
            out.push(Action::Event(Event::error(code, message, retryable)));
            return;
        };
        if params["willRetry"] != true {
            turn.error_is_reported = true;
            if error["codexErrorInfo"] == errors::USAGE_LIMIT {
                let resets_at = usage::resets_at(&self.rate_limits);
                let (limit, message) = (code.clone(), message.clone());
                out.push(Action::Event(Event::UsageLimited { limit, message, resets_at, waits: false }));
            }
            out.push(Action::Event(Event::error(code, message, retryable)));
            return;
        }
        let told = error["message"].as_str().and_then(errors::attempt);
        turn.failed_attempts = told.unwrap_or(turn.failed_attempts.saturating_add(1));
        let attempt = Some(turn.failed_attempts);
        out.extend(self.output.answer.void());
        out.push(Action::Event(Event::retry(code, message, attempt, None)));
    }

    fn turn_completed(&mut self, turn: &Value, out: &mut Vec<Action>) {
        let CodexState::Ready(thread) = &mut self.state else { return };
        if thread.screen.as_ref().is_some_and(|screen| turn["id"] == *screen.id) {
            return self.screen_turn_completed(turn, out);
        }
        let status = turn["status"].as_str().unwrap_or_default();
        let Some(running) = &mut thread.turn else {
            if let Some(request) = thread.compaction.take() {
                self.compacted(request, turn, out);
            }
            return;
        };
        if running.ending || running.id.as_deref().is_some_and(|id| turn["id"] != *id) {
            return;
        }
        match status {
            // The turn's processes are still running.
            "interrupted" => {
                running.ending = true;
                let params = json!({ "threadId": thread.id });
                self.request("thread/backgroundTerminals/clean", &params, CodexPurpose::Clean, out);
            }
            "failed" => {
                let said = running.error_is_reported;
                let (code, message, retryable) = errors::describe(&turn["error"]);
                self.end_turn(Some(Event::error(code, message, retryable)).filter(|_| !said), out);
            }
            _ => self.complete(StopReason::EndTurn, out),
        }
    }

    /// The end of a turn was dropped, since all that was said in it is in it, and came before. An error is said before, too.
    pub(super) fn turn_dropped(&mut self, params: &Value, out: &mut Vec<Action>) {
        let CodexState::Ready(thread) = &self.state else { return };
        let ours = params["threadId"] == *thread.id;
        let status = match &thread.turn {
            Some(turn) if turn.held_input.is_some() => "completed",
            Some(turn) if turn.aborting => "interrupted",
            Some(turn) if turn.error_is_reported => "failed",
            _ => "completed",
        };
        let turn = json!({ "id": params["turn"]["id"], "status": status });
        let params = json!({ "threadId": params["threadId"], "turn": turn });
        self.turn_notified("turn/completed", &params, ours, out);
    }

    /// Completes an interrupted turn, since its processes have ended.
    pub(super) fn cleaned(&mut self, out: &mut Vec<Action>) {
        let CodexState::Ready(thread) = &self.state else { return };
        if !thread.turn.as_ref().is_some_and(|turn| turn.ending) {
            return;
        }
        self.calls.end_all(Some(&thread.id), out);
        self.complete(StopReason::Cancelled, out);
    }

    pub(super) fn complete(&mut self, stop_reason: StopReason, out: &mut Vec<Action>) {
        let CodexState::Ready(thread) = &self.state else { return };
        let usage = thread.tokens.of_turn();
        self.end_turn(Some(Event::Complete { stop_reason, usage }), out);
    }

    fn end_turn(&mut self, last: Option<Event>, out: &mut Vec<Action>) {
        let CodexState::Ready(thread) = &mut self.state else { return };
        if thread.turn.take().is_none() {
            return;
        }
        self.approvals.close_thread(&thread.id, out);
        out.extend(last.map(Action::Event));
        out.push(Action::TurnEnded);
    }
}

fn stage_name(done: bool) -> String {
    if done { "done".to_owned() } else { "begun".to_owned() }
}

/// Makes the event for the whole text of an item that has ended.
fn whole_text(item: &Value) -> Option<Event> {
    let text = match item["type"].as_str()? {
        "agentMessage" | "plan" => item["text"].as_str()?.to_owned(),
        "reasoning" => {
            let parts = ["summary", "content"].into_iter().flat_map(|key| item[key].as_array().into_iter().flatten());
            parts.filter_map(Value::as_str).collect::<Vec<_>>().join("\n\n")
        }
        _ => return None,
    };
    let thinking = item["type"] == "reasoning";
    if text.is_empty() {
        return None;
    }
    Some(if thinking { Event::Thinking { text } } else { Event::Text { text } })
}
