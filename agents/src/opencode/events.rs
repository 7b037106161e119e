//! Handling of the server's event stream.

use ipc_protocol::{Event, PlanEntry};
use serde_json::Value;

use super::{
    content::{PartEffect, SessionOwner},
    permissions::{self, PermissionContext},
    session::{OpenCodePhase, OpenCodeSession},
    wire::{
        MessageChanged, MessageInfo, OpenCodeDelta, PartChanged, PermissionAsked, PermissionReplied, QuestionAsked,
        RunStatus, ServerEvent, SessionChanged, SessionError, SessionReference, StatusChanged, TodoUpdated,
    },
};
use crate::{
    Action,
    kit::{
        answer::OpenAnswer,
        bounds::{self, MAX_ID},
        json_lines::{AgentOutput, JsonLinesAgent, hot},
        session_status,
    },
};

/// Beginning of a line with an event.
const DATA: &[u8] = b"data:";
/// Most steps of a plan that are emitted.
const MAX_STEPS: usize = 1000;

impl JsonLinesAgent for OpenCodeSession {
    const STREAM: &str = "events";

    fn output(&mut self) -> &mut AgentOutput {
        &mut self.output
    }

    fn open_answer(&mut self) -> &mut OpenAnswer {
        &mut self.content.answer
    }

    fn delta(&mut self, line: &[u8], out: &mut Vec<Action>) -> bool {
        if self.phase == OpenCodePhase::Ready
            && let Some(data) = line.strip_prefix(DATA)
            && let Some(OpenCodeDelta { properties, .. }) = hot::<OpenCodeDelta<'_>>(data)
        {
            let whose = self.content.owner(properties.session, &self.session);
            if whose != SessionOwner::Foreign && properties.field == "text" {
                out.extend(self.content.delta(properties.part, properties.delta).map(Action::Event));
            }
            return true;
        }
        false
    }

    /// Takes a whole line: each event of the server's is one.
    fn message(&mut self, line: &[u8], out: &mut Vec<Action>) -> bool {
        // Lines that start with a colon keep the connection alive.
        let Some(data) = line.strip_prefix(DATA) else { return line.starts_with(b":") };
        match serde_json::from_slice::<ServerEvent<'_>>(data) {
            Ok(event) if self.phase != OpenCodePhase::Over => self.event(&event, out),
            _ => false,
        }
    }

    fn oversized(&mut self, head: Value, out: &mut Vec<Action>) {
        let text = |at: &str| head.pointer(at).and_then(Value::as_str).filter(|text| text.len() <= MAX_ID);
        let session = text("/properties/sessionID");
        if self.phase != OpenCodePhase::Ready
            || session.is_some_and(|session| self.owner(session) == SessionOwner::Foreign)
        {
            return;
        }
        let refused = text("/properties/id").and_then(|id| permissions::refusal(text("/type")?, id));
        match refused {
            Some(refused) => self.refuse(Some(refused), out),
            // The line may have contained the end of a call.
            None => self.content.end_calls(out),
        }
    }

    fn json_of<'a>(&self, beginning: &'a [u8]) -> &'a [u8] {
        beginning.strip_prefix(DATA).unwrap_or_default().trim_ascii_start()
    }
}

impl OpenCodeSession {
    /// Handles an event. Returns `false` for a known event that does not parse.
    fn event(&mut self, event: &ServerEvent<'_>, out: &mut Vec<Action>) -> bool {
        if event.kind == "server.connected" {
            self.stream_opened(out);
            return true;
        }
        if self.phase != OpenCodePhase::Ready {
            return true;
        }
        let understood = match event.kind.as_ref() {
            "message.updated" => event.properties().map(|MessageChanged { info }| self.message(&info, out)),
            "message.part.updated" => event.properties().map(|PartChanged { part }| self.part(part, out)),
            "session.status" => event.properties().map(|StatusChanged { session, status }| {
                if session == self.session {
                    self.status(&status, out);
                } else if status.kind == "retry" && self.content.owner(&session, &self.session) != SessionOwner::Foreign
                {
                    retry(&status, out);
                }
            }),
            "session.idle" => event.properties().map(|SessionReference { session }| {
                if session == self.session {
                    self.idle(out);
                }
            }),
            "session.error" => event.properties().map(|error| self.error(&error, out)),
            "session.created" => event.properties().map(|SessionChanged { info }| {
                let parent = info.parent.as_deref().unwrap_or_default();
                if self.content.owner(parent, &self.session) != SessionOwner::Foreign {
                    self.content.child(&info.id);
                }
            }),
            "session.updated" => event.properties().map(|SessionChanged { info }| {
                if info.id == self.session {
                    self.looks.changed(&info, out);
                }
            }),
            "session.deleted" => event.properties().map(|SessionChanged { info }| {
                if info.id == self.session {
                    self.deleted(out);
                }
            }),
            "session.compacted" => event.properties().map(|SessionReference { session }| {
                if session == self.session {
                    status("compaction", "completed".into(), out);
                }
            }),
            "permission.asked" => event.properties().map(|asked| self.handle_permission(asked, out)),
            "question.asked" => event.properties().map(|question| self.question(question, out)),
            "permission.replied" | "question.replied" | "question.rejected" => {
                event.properties().map(|PermissionReplied { id, reply }| self.permissions.replied(&id, reply, out))
            }
            "todo.updated" => event.properties().map(|todos| self.todos(todos, out)),
            // Events of other sessions, of the server itself, or of a later version remain available as raw lines.
            _ => Some(()),
        };
        self.check_turn(out);
        self.send_next_prompt(out);
        understood.is_some()
    }

    pub(super) fn message(&mut self, info: &MessageInfo<'_>, out: &mut Vec<Action>) {
        let whose = self.content.owner(&info.session, &self.session);
        if whose == SessionOwner::Foreign {
            return;
        }
        let is_new_prompt = self.content.message(info, &whose);
        if self.content.is_copied(info) {
            return;
        }
        if whose != SessionOwner::Own || self.compaction.is_some() {
            return;
        }
        if is_new_prompt {
            self.looks.prompted(info, out);
        }
        if is_new_prompt && self.turn.as_ref().is_none_or(|turn| !turn.awaits_prompt()) {
            self.screen.prompt_shown(&info.id);
        }
        let Some(turn) = &mut self.turn else { return self.screen.answered(info.finish.as_deref()) };
        if is_new_prompt {
            turn.record_prompt(&info.id);
        } else if !info.is_prompt() {
            turn.record_answer(&info.id, info.parent.as_deref(), info.time.completed.is_some(), info.finish.clone());
        }
    }

    pub(super) fn part(&mut self, part: super::wire::MessagePart<'_>, out: &mut Vec<Action>) {
        let whose = self.content.owner(&part.session, &self.session);
        if whose == SessionOwner::Foreign {
            return;
        }
        if part.kind == "text"
            && !part.synthetic
            && let Some(text) = part.text.as_deref().filter(|_| self.screen.takes_prompt(&part.message))
        {
            out.push(Action::Event(Event::TerminalPrompted { text: bounds::prompt_text(text) }));
            if self.turn.is_none() {
                self.content.turn_begins();
                self.screen.begin();
            }
        }
        if let PartEffect::Step { ours, broken } = self.content.part(part, &whose, out)
            && ours
        {
            self.emit_context_window(out);
            if let Some(attempt) = self.turn.as_mut().and_then(|turn| turn.step_ended(broken)) {
                let message = "the model's answer broke off; the agent asks again".to_owned();
                out.push(Action::Event(Event::retry("broken-off", message, Some(attempt), None)));
            }
        }
    }

    pub(super) fn status(&mut self, status: &RunStatus, out: &mut Vec<Action>) {
        match status.kind.as_str() {
            "idle" => self.idle(out),
            "retry" => {
                out.extend(self.content.answer.void());
                retry(status, out);
            }
            _ => {
                if let Some(compaction) = &mut self.compaction {
                    (compaction.busy, compaction.idle) = (true, false);
                } else if let Some(turn) = &mut self.turn {
                    turn.set_busy();
                } else {
                    self.screen.set_busy();
                }
            }
        }
    }

    /// Handles an idle conversation. The server reports it twice each time: as a status, and as an event of its own.
    pub(super) fn idle(&mut self, out: &mut Vec<Action>) {
        if let Some(compaction) = &mut self.compaction {
            compaction.idle = compaction.busy;
            self.check_compaction(out);
        } else if let Some(turn) = &mut self.turn {
            turn.set_idle();
        } else if let Some(stop_reason) = self.screen.end() {
            self.end_screen_turn(stop_reason, out);
        }
    }

    fn error(&mut self, error: &SessionError, out: &mut Vec<Action>) {
        let (Some(session), Some(error)) = (&error.session, &error.error) else { return };
        if *session != self.session || self.compaction.is_some() {
            return;
        }
        let Some(turn) = &mut self.turn else {
            if self.screen.failed(error.is_abort()) {
                out.push(Action::Event(Event::error(error.code(), error.message(), error.is_retryable())));
            }
            return;
        };
        if error.is_abort() {
            // Our abort, or another client's abort of this conversation.
            turn.abort();
            return;
        }
        if turn.should_report_error() {
            out.push(Action::Event(Event::error(error.code(), error.message(), error.is_retryable())));
        }
        // Otherwise the server accepts the prompt all the same, for example if it names a missing file.
        if turn.is_busy() || error.is_of_prompt() {
            turn.failed();
        }
    }

    pub(super) fn handle_permission(&mut self, asked: PermissionAsked, out: &mut Vec<Action>) {
        let parent = match self.owner(&asked.session) {
            SessionOwner::Foreign => return,
            SessionOwner::Own => None,
            SessionOwner::Child(call) => call,
        };
        if let Some(tool) = &asked.tool {
            self.content.asked_diff(&tool.call, &asked.metadata, out);
        }
        let call = asked.tool.as_ref().and_then(|tool| self.content.call(&tool.call));
        let root = self.content.root.as_deref().unwrap_or(&self.settings.directory);
        let refused = self.permissions.open_permission(asked, PermissionContext { call, parent, root }, out);
        self.refuse(refused, out);
        self.refuse_if_aborted(out);
    }

    pub(super) fn question(&mut self, question: QuestionAsked, out: &mut Vec<Action>) {
        let parent = match self.owner(&question.session) {
            SessionOwner::Foreign => return,
            SessionOwner::Own => None,
            SessionOwner::Child(call) => call,
        };
        let call = question.tool.as_ref().and_then(|tool| self.content.call(&tool.call));
        let refused = self.permissions.open_question(question, PermissionContext { call, parent, root: "" }, out);
        self.refuse(refused, out);
        self.refuse_if_aborted(out);
    }

    /// Refuses requests that arrive while the turn is being aborted.
    fn refuse_if_aborted(&mut self, out: &mut Vec<Action>) {
        if self.turn.as_ref().is_some_and(super::turn::OpenCodeTurn::is_aborted) {
            self.abort_turn(out);
        }
    }

    fn todos(&mut self, todos: TodoUpdated, out: &mut Vec<Action>) {
        if todos.session != self.session {
            return;
        }
        let entry = |todo: super::wire::TodoItem| PlanEntry {
            content: todo.content,
            status: todo.status,
            priority: Some(todo.priority).filter(|priority| !priority.is_empty()),
        };
        let entries = todos.todos.into_iter().take(MAX_STEPS).map(entry).collect();
        out.push(Action::Event(Event::Plan { entries }));
    }
}

fn retry(status: &RunStatus, out: &mut Vec<Action>) {
    let message = bounds::words(status.message.as_deref().unwrap_or("the model's provider failed"));
    out.push(Action::Event(Event::retry("retry", message, status.attempt, None)));
}

fn status(status: &str, detail: String, out: &mut Vec<Action>) {
    out.push(Action::Event(session_status(status, detail)));
}
