//! State machine of the conversation: opening it, and handling each message.

use std::collections::BTreeMap;

use ipc_protocol::{AgentSessionConfig, Event, NativeResume, ResolvedBy, WireError, message::RequestId};
use serde_json::{Value, json};

use super::{
    dialogs::{self, Dialogs},
    operations::{Listing, Shape},
    tools::Calls,
    turn::Turn,
    wire::{self, Answer, Delta},
};
use crate::{
    Action, AdapterSetup,
    answer::OpenAnswer,
    jsonl::{self, MAX_ID, log, words},
};

/// Most of our commands that wait for a response.
pub(super) const MAX_PENDING: usize = 256;

/// Purpose of one of our commands.
#[derive(Debug)]
pub(super) enum Purpose {
    /// First command: the agent is ready when it responds.
    Probe,
    /// Copy of the most recent conversation, before the first prompt.
    Clone,
    Prompt,
    /// Check whether the prompt of this turn started a run: commands of extensions do not.
    Handled(u64),
    /// Check whether the run that ended is the last one of this turn.
    Settled(u64),
    Steer,
    /// Query of the conversation's id, after a command of the caller.
    Identity,
    /// The response is ignored.
    Ignored,
    Operation(RequestId, Shape),
}

#[derive(Debug)]
pub(super) struct Pending {
    pub(super) command: String,
    pub(super) purpose: Purpose,
}

/// Phase of the conversation.
#[derive(Debug)]
pub(super) enum State {
    New,
    Starting,
    Ready(Option<Turn>),
    /// The session has failed, or the agent has ended.
    Over,
}

#[derive(Debug)]
pub(super) struct Session {
    pub(super) agent: String,
    pub(super) config: AgentSessionConfig,
    resume: Option<NativeResume>,
    pub(super) directories: BTreeMap<String, String>,
    pub(super) state: State,
    commands: u64,
    pub(super) turns: u64,
    /// Open commands by id, which is oldest first.
    pub(super) pending: BTreeMap<u64, Pending>,
    pub(super) dialogs: Dialogs,
    pub(super) calls: Calls,
    pub(super) listing: Listing,
    /// Id of the conversation in Pi; `file` is the file that contains it.
    pub(super) native_id: Option<String>,
    pub(super) file: Option<String>,
    /// Provider of the model; `context_window` is the model's size in tokens.
    pub(super) provider: Option<String>,
    pub(super) context_window: Option<u64>,
    /// True once pieces of the current text block have arrived.
    streamed: bool,
    pub(super) answer: OpenAnswer,
    /// The last thing the agent said that was no message: why it does not start.
    words: String,
}

impl Session {
    pub(super) fn new(setup: AdapterSetup) -> Self {
        let AdapterSetup { config, agent, resume, directories, .. } = setup;
        Self {
            agent,
            config,
            resume,
            directories,
            state: State::New,
            commands: 0,
            turns: 0,
            pending: BTreeMap::new(),
            dialogs: Dialogs::default(),
            calls: Calls::default(),
            listing: Listing::default(),
            native_id: None,
            file: None,
            provider: None,
            context_window: None,
            streamed: false,
            answer: OpenAnswer::default(),
            words: String::new(),
        }
    }

    pub(super) fn unsupported(&self, operation: &str) -> WireError {
        WireError::Unsupported { agent: self.agent.clone(), operation: operation.to_owned() }
    }

    /// Sends a command.
    pub(super) fn command(&mut self, name: &str, fields: Value, purpose: Purpose, out: &mut Vec<Action>) {
        self.commands += 1;
        self.pending.insert(self.commands, Pending { command: name.to_owned(), purpose });
        wire::command(self.commands, name, fields, out);
    }

    pub(super) fn start(&mut self, out: &mut Vec<Action>) {
        if matches!(self.state, State::New) {
            self.state = State::Starting;
            self.command("get_state", Value::Null, Purpose::Probe, out);
        }
    }

    /// Records the agent's last line while it starts.
    pub(super) fn said(&mut self, line: &[u8]) {
        let line = String::from_utf8_lossy(line);
        if matches!(self.state, State::Starting) && !line.trim().is_empty() {
            self.words = words(line.trim());
        }
    }

    /// Takes a whole line, and counts what it says of the answer.
    pub(super) fn counted_line(&mut self, line: &[u8], out: &mut Vec<Action>) {
        let before = out.len();
        self.line(line, out);
        self.answer.count(&out[before..]);
    }

    /// Takes a whole line.
    fn line(&mut self, line: &[u8], out: &mut Vec<Action>) {
        if matches!(self.state, State::Ready(_))
            && let Some(event) = Delta::event(line)
        {
            self.streamed = true;
            out.push(Action::Event(event));
            return;
        }
        if line.trim_ascii().is_empty() {
            return;
        }
        let message = match serde_json::from_slice::<Value>(line) {
            Ok(message @ Value::Object(_)) if !matches!(self.state, State::Over) => message,
            _ => {
                self.said(line);
                return log(line, out);
            }
        };
        let understood = match message["type"].as_str() {
            Some("response") => self.responded(&message, line, out),
            Some("extension_ui_request") => {
                self.asked(&message, out);
                true
            }
            Some(event) => {
                self.event(event, &message, out);
                true
            }
            None => false,
        };
        if !understood {
            log(line, out);
        }
    }

    /// Handles the beginning of a line that was dropped. Nothing may go on waiting for the contents of that line.
    pub(super) fn dropped(&mut self, beginning: &[u8], out: &mut Vec<Action>) {
        jsonl::too_long(out);
        let head = jsonl::head(beginning);
        let id = head["id"].as_str();
        match head["type"].as_str() {
            Some("response") => {
                let pending = id.and_then(|id| self.pending.remove(&id.parse().ok()?));
                if let Some(pending) = pending {
                    self.answered(pending, Err("its answer is longer than what is taken".to_owned()), &[], out);
                }
            }
            Some("extension_ui_request") => dialogs::dismiss(id.unwrap_or_default(), out),
            // The line repeats everything of the run.
            Some("agent_end") => self.event("agent_end", &head, out),
            // The line may have contained the end of a call.
            _ => self.calls.end_all(out),
        }
    }

    /// Handles a response. Older agents leave out the id for an unknown command.
    fn responded(&mut self, message: &Value, line: &[u8], out: &mut Vec<Action>) -> bool {
        let id = match message["id"].as_str() {
            Some(id) => id.parse().ok(),
            None if message["success"] == false => {
                let same = |(_, pending): &(&u64, &Pending)| message["command"] == *pending.command;
                self.pending.iter().find(same).map(|(id, _)| *id)
            }
            None => None,
        };
        let Some(pending) = id.and_then(|id| self.pending.remove(&id)) else { return false };
        self.answered(pending, wire::answer(message), line, out);
        true
    }

    fn answered(&mut self, pending: Pending, answer: Answer, line: &[u8], out: &mut Vec<Action>) {
        match pending.purpose {
            Purpose::Probe => {
                if let Err(error) = self.probed(answer, out) {
                    self.state = State::Over;
                    out.push(Action::Fail(error));
                }
            }
            Purpose::Clone => match answer {
                Ok(_) => {
                    // The copy has an id of its own.
                    self.resume = None;
                    self.command("get_state", Value::Null, Purpose::Probe, out);
                }
                Err(reason) => {
                    self.state = State::Over;
                    out.push(Action::Fail(self.missing(reason)));
                }
            },
            Purpose::Prompt => self.prompted(answer, out),
            Purpose::Handled(turn) => self.handled(turn, &answer, out),
            Purpose::Settled(turn) => self.settled(turn, &answer, out),
            Purpose::Steer => {
                if let Err(error) = answer {
                    out.push(Action::Event(Event::ActionFailed { action: "steer".to_owned(), error }));
                }
            }
            Purpose::Identity => self.identify(&answer, out),
            Purpose::Ignored => {}
            Purpose::Operation(request, shape) => self.operation_answered(request, shape, answer, line, out),
        }
    }

    fn missing(&self, reason: String) -> WireError {
        let id =
            self.resume.as_ref().and_then(|resume| resume.id.clone()).unwrap_or_else(|| "the most recent".to_owned());
        WireError::NativeSessionMissing { agent: self.agent.clone(), id, reason }
    }

    /// Records the state that the agent reports.
    pub(super) fn learn(&mut self, state: &Value) {
        if let Some(id) = state["sessionId"].as_str().filter(|id| !id.is_empty() && id.len() <= MAX_ID) {
            self.native_id = Some(id.to_owned());
        }
        self.file = state["sessionFile"].as_str().map(str::to_owned);
        self.learn_model(&state["model"]);
    }

    pub(super) fn learn_model(&mut self, model: &Value) {
        self.provider = model["provider"].as_str().map(words);
        self.context_window = model["contextWindow"].as_u64();
    }

    /// Handles the answer to the first command: the conversation that the session continues must be open.
    fn probed(&mut self, answer: Answer, out: &mut Vec<Action>) -> Result<(), WireError> {
        let state = answer.map_err(|reason| WireError::AgentRefused { agent: self.agent.clone(), reason })?;
        self.learn(&state);
        let Some(id) = self.native_id.clone() else {
            let reason = "its session has no usable id".to_owned();
            return Err(WireError::AgentProtocol { agent: self.agent.clone(), reason });
        };
        if let Some(resume) = &self.resume {
            // Pi silently starts a new conversation if it does not find the old one.
            let other =
                |wanted: &String| !resume.fork && !wanted.contains(['/', '\\']) && !id.starts_with(wanted.as_str());
            if state["messageCount"].as_u64().unwrap_or(0) == 0 || resume.id.as_ref().is_some_and(other) {
                return Err(self.missing("the agent began a new one instead".to_owned()));
            }
            if resume.fork && resume.id.is_none() {
                self.command("clone", Value::Null, Purpose::Clone, out);
                return Ok(());
            }
        }
        if let (Some(asked), Some(got)) = (&self.config.thinking, state["thinkingLevel"].as_str())
            && asked != got
        {
            return Err(self.unsupported(&format!("think {asked:?} with this model, only {got:?}")));
        }
        self.state = State::Ready(None);
        out.push(Action::Ready { native_session_id: Some(id) });
        Ok(())
    }

    fn asked(&mut self, params: &Value, out: &mut Vec<Action>) {
        let dismiss = match &self.state {
            State::Ready(turn) => turn.as_ref().is_some_and(|turn| turn.aborting),
            // Nobody is asked before the agent is ready.
            _ => true,
        };
        let said = params["message"].as_str().filter(|_| params["method"] == "notify" && !dismiss);
        if let Some(message) = said {
            out.push(status("notice", words(message)));
        } else {
            self.dialogs.ask(params, dismiss, out);
        }
    }

    /// Handles an event. Events of other types remain available as raw lines.
    fn event(&mut self, event: &str, message: &Value, out: &mut Vec<Action>) {
        if !matches!(self.state, State::Ready(_)) {
            return;
        }
        let text = |key: &str| message[key].as_str().unwrap_or_default();
        let (id, name) = (text("toolCallId"), text("toolName"));
        match event {
            "message_start" if message["message"]["role"] == "assistant" => self.answer.begin(),
            "message_update" => self.updated(&message["assistantMessageEvent"], out),
            "message_end" => self.message_ended(&message["message"], out),
            "tool_execution_start" => self.calls.started(id, name, &message["args"], out),
            "tool_execution_update" => self.calls.output(id, name, &message["partialResult"], out),
            "tool_execution_end" => self.calls.ended(id, name, &message["result"], message["isError"] == true, out),
            "compaction_start" => out.push(status("compaction", "begun".to_owned())),
            "compaction_end" => {
                let failed = message["errorMessage"].as_str().map(|error| format!("failed: {}", words(error)));
                let aborted = if message["aborted"] == true { "aborted" } else { "done" };
                out.push(status("compaction", failed.unwrap_or_else(|| aborted.to_owned())));
                self.run_ended(message, out);
            }
            "session_info_changed" => out.push(status("title", words(text("name")))),
            "extension_error" => {
                let error = words(text("error"));
                out.push(Action::Event(Event::ActionFailed { action: "extension".to_owned(), error }));
            }
            _ => self.turn_event(event, message, out),
        }
    }

    /// Handles a piece of an answer that is no text, or one in an unusual form.
    fn updated(&mut self, update: &Value, out: &mut Vec<Action>) {
        let text = |key: &str| update[key].as_str().unwrap_or_default();
        match text("type") {
            "text_start" | "thinking_start" => self.streamed = false,
            "text_end" if !self.streamed && !text("content").is_empty() => {
                out.push(Action::Event(Event::Text { text: text("content").to_owned() }));
            }
            "thinking_end" if !self.streamed && !text("content").is_empty() => {
                out.push(Action::Event(Event::Thinking { text: text("content").to_owned() }));
            }
            "toolcall_start" => self.calls.called(text("id"), text("toolName"), &Value::Null, out),
            "toolcall_end" => {
                let call = &update["toolCall"];
                let part = |key: &str| call[key].as_str().unwrap_or_default();
                self.calls.called(part("id"), part("name"), &call["arguments"], out);
            }
            _ => {}
        }
    }

    /// Ends everything that is open, since the agent has ended.
    pub(super) fn finish(&mut self, out: &mut Vec<Action>) {
        self.dialogs.close_all(&ResolvedBy::Agent, out);
        self.calls.end_all(out);
        let gone = || WireError::AgentDied { reason: "its output ended before it answered".to_owned() };
        let open: Vec<RequestId> = self.listing.take_all();
        let asked = std::mem::take(&mut self.pending).into_values().filter_map(|pending| match pending.purpose {
            Purpose::Operation(request, _) => Some(request),
            _ => None,
        });
        out.extend(asked.chain(open).map(|request| Action::Reply { request, reply: Err(gone()) }));
        match std::mem::replace(&mut self.state, State::Over) {
            State::Ready(Some(_)) => {
                let message = "the agent's output ended during the turn";
                out.push(Action::Event(Event::error("agent-exited", message, false)));
                out.push(Action::TurnEnded);
            }
            State::Starting => {
                let reason = match self.words.as_str() {
                    "" => "its output ended before it was ready".to_owned(),
                    words => words.to_owned(),
                };
                // Any other error (a wrong flag, no key) does not mean that the conversation is missing.
                let says = ["No session found", "Session found in different project"];
                let is_missing = self.resume.is_some() && says.iter().any(|words| reason.contains(words));
                let error = if is_missing { self.missing(reason) } else { WireError::AgentDied { reason } };
                out.push(Action::Fail(error));
            }
            State::New | State::Ready(None) | State::Over => {}
        }
    }
}

pub(super) fn status(status: &str, detail: String) -> Action {
    Action::Event(Event::SessionStatus { status: status.to_owned(), detail })
}

/// Converts a prompt to Pi's text and pictures. The text names the files: Pi reads them with its tools.
pub(super) fn message(prompt: &ipc_protocol::Prompt) -> Value {
    use ipc_protocol::PromptPart;
    let (mut text, mut images) = (Vec::new(), Vec::new());
    for part in &prompt.parts {
        match part {
            PromptPart::Text(words) => text.push(words.clone()),
            PromptPart::File { path } => text.push(format!("@{path}")),
            PromptPart::Image { mime_type, data } => {
                images.push(json!({ "type": "image", "data": data, "mimeType": mime_type }));
            }
        }
    }
    let mut message = json!({ "message": text.join("\n") });
    if !images.is_empty() {
        message["images"] = images.into();
    }
    message
}
