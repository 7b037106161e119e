//! State machine of the conversation: opening it, and handling each message.

use std::collections::BTreeMap;

use ipc_protocol::{AgentSessionConfig, Event, NativeResume, WireError, message::RequestId};
use serde_json::{Value, json};

use super::{
    dialogs::{self, PiDialogs},
    state::{PiPending, PiPurpose, PiState, PiTurn},
    tools::PiToolCalls,
    wire::{self, PiDelta, PiResponse},
};
use crate::{
    Action, Adapter as _, AdapterSetup, Result,
    kit::{
        bounds::{self, MAX_ID, words},
        emit_title,
        json_lines::{AgentOutput, JsonLinesAgent},
        missing_conversation,
        pending::PendingRequests,
        session_commands, session_status, session_title,
        settings::{AgentSettings, EmittedSettings},
        stderr_line,
    },
};

/// Id of the request for slash commands: no other command has it.
const COMMANDS_ID: u64 = 0;

#[derive(Debug)]
pub(super) struct PiSession {
    pub(super) agent: String,
    pub(super) config: AgentSessionConfig,
    pub(super) resume: Option<NativeResume>,
    pub(super) directories: BTreeMap<String, String>,
    pub(super) state: PiState,
    pub(super) output: AgentOutput,
    pub(super) turns: u64,
    /// Turn that was begun on the agent's screen.
    pub(super) screen: Option<PiTurn>,
    pub(super) pending: PendingRequests<PiPending>,
    pub(super) dialogs: PiDialogs,
    pub(super) calls: PiToolCalls,
    /// Operations that wait for a list of files.
    pub(super) lists: PendingRequests<RequestId>,
    /// True while the conversation is being compacted: Pi takes no prompt then.
    pub(super) is_compacting: bool,
    /// Id of the conversation in Pi; `file` is the file that contains it.
    pub(super) native_id: Option<String>,
    pub(super) file: Option<String>,
    /// Provider of the model; `context_window` is the model's size in tokens.
    pub(super) provider: Option<String>,
    pub(super) context_window: Option<u64>,
    pub(super) settings: EmittedSettings,
    /// True once pieces of the current text block have arrived.
    streamed: bool,
    /// The last thing the agent said that was no message: why it does not start.
    pub(super) last_output: String,
}

impl PiSession {
    pub(super) fn new(setup: AdapterSetup) -> Self {
        let AdapterSetup { config, agent, resume, directories, .. } = setup;
        Self {
            agent,
            config,
            resume,
            directories,
            state: PiState::New,
            output: AgentOutput::default(),
            turns: 0,
            screen: None,
            pending: PendingRequests::default(),
            dialogs: PiDialogs::default(),
            calls: PiToolCalls::default(),
            lists: PendingRequests::default(),
            is_compacting: false,
            native_id: None,
            file: None,
            provider: None,
            context_window: None,
            settings: EmittedSettings::default(),
            streamed: false,
            last_output: String::new(),
        }
    }

    /// Asks for the slash commands. Nothing waits for the answer.
    fn request_commands(&mut self, out: &mut Vec<Action>) {
        wire::command(COMMANDS_ID, "get_commands", Value::Null, out);
    }

    /// Handles the answer to that; older agents do not know the command.
    fn handle_commands(&mut self, message: &Value, out: &mut Vec<Action>) -> bool {
        let is_it = message["command"] == "get_commands";
        let id = message["id"].as_str();
        if !is_it || !(id == Some("0") || (id.is_none() && message["success"] == false)) {
            return false;
        }
        let commands = message["data"]["commands"].as_array().map(Vec::as_slice).unwrap_or_default();
        let menu = commands.iter().filter_map(|it| Some((it["name"].as_str()?, it["description"].as_str(), None)));
        if !commands.is_empty() && matches!(self.state, PiState::Ready(_)) {
            out.push(Action::Event(session_commands(menu)));
        }
        true
    }

    /// Emits what is known of model and thinking level.
    pub(super) fn emit_settings(&mut self, model: &Value, level: &Value, out: &mut Vec<Action>) {
        let now = AgentSettings { model: model_name(model), mode: None, thinking: level.as_str().map(words) };
        self.settings.change(now, out);
    }

    /// Sends a command.
    pub(super) fn command(&mut self, name: &str, fields: Value, purpose: PiPurpose, out: &mut Vec<Action>) {
        let id = self.pending.add(PiPending { command: name.to_owned(), purpose });
        wire::command(id, name, fields, out);
    }

    /// Records the agent's last line while it starts.
    pub(super) fn record_output(&mut self, line: &[u8]) {
        let line = String::from_utf8_lossy(line);
        if matches!(self.state, PiState::Starting) && !line.trim().is_empty() {
            self.last_output = words(line.trim());
        }
    }

    /// Handles a response. Older agents leave out the id for an unknown command.
    fn handle_response(&mut self, message: &Value, line: &[u8], out: &mut Vec<Action>) -> bool {
        if self.handle_commands(message, out) {
            return true;
        }
        let id = match message["id"].as_str() {
            Some(id) => id.parse().ok(),
            None if message["success"] == false => self.pending.find(|pending| message["command"] == *pending.command),
            None => None,
        };
        let Some(pending) = id.and_then(|id| self.pending.take(id)) else { return false };
        self.handle_answer(pending, wire::answer(message), line, out);
        true
    }

    fn handle_answer(&mut self, pending: PiPending, answer: PiResponse, line: &[u8], out: &mut Vec<Action>) {
        match pending.purpose {
            PiPurpose::Probe => {
                if let Err(error) = self.handle_probe(answer, out) {
                    self.state = PiState::Over;
                    out.push(Action::Fail(error));
                }
            }
            PiPurpose::Clone => match answer {
                Ok(_) => {
                    // The copy has an id of its own.
                    self.resume = None;
                    self.command("get_state", Value::Null, PiPurpose::Probe, out);
                }
                Err(reason) => {
                    self.state = PiState::Over;
                    out.push(Action::Fail(self.missing(reason)));
                }
            },
            PiPurpose::Prompt => self.handle_prompt_taken(answer, out),
            PiPurpose::Handled(turn) => self.handle_state_after_prompt(turn, &answer, out),
            PiPurpose::Settled(turn) => self.handle_state_after_run(turn, &answer, out),
            PiPurpose::Steer => {
                if let Err(error) = answer {
                    out.push(Action::Event(Event::ActionFailed { action: "steer".to_owned(), error }));
                }
            }
            PiPurpose::Identity => self.identify(&answer, out),
            PiPurpose::Ignored => {}
            PiPurpose::Operation(request, shape) => self.operation_answered(request, shape, answer, line, out),
        }
    }

    pub(super) fn missing(&self, reason: impl Into<String>) -> WireError {
        missing_conversation(&self.agent, self.resume.as_ref(), reason)
    }

    /// Records the state that the agent reports.
    pub(super) fn record_state(&mut self, state: &Value) {
        if let Some(id) = state["sessionId"].as_str().filter(|id| !id.is_empty() && id.len() <= MAX_ID) {
            self.native_id = Some(id.to_owned());
        }
        self.file = state["sessionFile"].as_str().map(str::to_owned);
        self.record_model(&state["model"]);
    }

    pub(super) fn record_model(&mut self, model: &Value) {
        self.provider = model["provider"].as_str().map(words);
        self.context_window = model["contextWindow"].as_u64();
    }

    /// Handles the answer to the first command: the conversation that the session continues must be open.
    fn handle_probe(&mut self, answer: PiResponse, out: &mut Vec<Action>) -> Result<()> {
        let state = answer.map_err(|reason| WireError::AgentRefused { agent: self.agent.clone(), reason })?;
        self.record_state(&state);
        let Some(id) = self.native_id.clone() else {
            let reason = "its session has no usable id".to_owned();
            return Err(WireError::AgentProtocol { agent: self.agent.clone(), reason });
        };
        if let Some(resume) = &self.resume {
            // Pi silently starts a new conversation if it does not find the old one.
            let other =
                |wanted: &String| !resume.fork && !wanted.contains(['/', '\\']) && !id.starts_with(wanted.as_str());
            if state["messageCount"].as_u64().unwrap_or(0) == 0 || resume.id.as_ref().is_some_and(other) {
                return Err(self.missing("the agent began a new one instead"));
            }
            if resume.fork && resume.id.is_none() {
                self.command("clone", Value::Null, PiPurpose::Clone, out);
                return Ok(());
            }
        }
        if let (Some(asked), Some(got)) = (&self.config.thinking, state["thinkingLevel"].as_str())
            && asked != got
        {
            return Err(self.unsupported(&format!("think {asked:?} with this model, only {got:?}")));
        }
        self.state = PiState::Ready(None);
        out.push(Action::Ready { native_session_id: Some(id) });
        self.emit_settings(&state["model"], &state["thinkingLevel"], out);
        out.extend(conversation_name(&state["sessionName"]).map(|name| Action::Event(session_title(name))));
        self.request_commands(out);
        Ok(())
    }

    fn handle_dialog(&mut self, params: &Value, out: &mut Vec<Action>) {
        let dismiss = match &self.state {
            PiState::Ready(turn) => turn.as_ref().is_some_and(|turn| turn.aborting),
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
        if !matches!(self.state, PiState::Ready(_)) {
            return;
        }
        let text = |key: &str| message[key].as_str().unwrap_or_default();
        let (id, name) = (text("toolCallId"), text("toolName"));
        match event {
            "message_start" if message["message"]["role"] == "assistant" => self.output.answer.begin(),
            "message_update" => self.handle_update(&message["assistantMessageEvent"], out),
            "message_end" => {
                let said = &message["message"];
                if said["role"] == "assistant" {
                    let model = json!({ "provider": said["provider"], "id": said["model"] });
                    self.emit_settings(&model, &Value::Null, out);
                }
                self.message_ended(said, out);
            }
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
            "screen_prompt" => {
                out.push(Action::Event(Event::TerminalPrompted { text: bounds::prompt_text(text("text")) }))
            }
            "screen_answered" => self.dialogs.answered_elsewhere(text("id"), text("option"), out),
            "screen_conversation" => {
                let before = self.native_id.clone();
                self.record_state(message);
                out.extend(self.native_id.clone().filter(|id| before.as_ref() != Some(id)).map(Action::NativeSession));
            }
            "session_info_changed" => {
                if let Some(name) = conversation_name(&message["name"]) {
                    emit_title(name, out);
                }
            }
            "thinking_level_changed" => self.emit_settings(&Value::Null, &message["level"], out),
            "extension_error" => {
                let error = words(text("error"));
                out.push(Action::Event(Event::ActionFailed { action: "extension".to_owned(), error }));
            }
            _ => self.turn_event(event, message, out),
        }
    }

    /// Handles a piece of an answer that is no text, or one in an unusual form.
    fn handle_update(&mut self, update: &Value, out: &mut Vec<Action>) {
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
}

impl JsonLinesAgent for PiSession {
    fn output(&mut self) -> &mut AgentOutput {
        &mut self.output
    }

    fn delta(&mut self, line: &[u8], out: &mut Vec<Action>) -> bool {
        if !matches!(self.state, PiState::Ready(_)) {
            return false;
        }
        let Some(event) = PiDelta::event(line) else { return false };
        self.streamed = true;
        out.push(Action::Event(event));
        true
    }

    fn message(&mut self, line: &[u8], out: &mut Vec<Action>) -> bool {
        let message = match serde_json::from_slice::<Value>(line) {
            Ok(message @ Value::Object(_)) if !matches!(self.state, PiState::Over) => message,
            _ => {
                self.record_output(line);
                return false;
            }
        };
        match message["type"].as_str() {
            Some("response") => return self.handle_response(&message, line, out),
            Some("extension_ui_request") => self.handle_dialog(&message, out),
            Some(event) => self.event(event, &message, out),
            None => return false,
        }
        true
    }

    fn oversized(&mut self, head: Value, out: &mut Vec<Action>) {
        let id = head["id"].as_str();
        match head["type"].as_str() {
            Some("response") => {
                let pending = id.and_then(|id| self.pending.take(id.parse().ok()?));
                if let Some(pending) = pending {
                    self.handle_answer(pending, Err("its answer is longer than what is taken".to_owned()), &[], out);
                }
            }
            Some("extension_ui_request") => dialogs::dismiss(id.unwrap_or_default(), out),
            // The line repeats everything of the run.
            Some("agent_end") => self.event("agent_end", &head, out),
            // The line may have contained the end of a call.
            _ => self.calls.fail(|_| true, out),
        }
    }

    fn stderr_line(&mut self, line: &[u8], out: &mut Vec<Action>) {
        self.record_output(line);
        out.push(stderr_line(line));
    }
}

/// Returns the name of a model, as sessions have it.
pub(super) fn model_name(model: &Value) -> Option<String> {
    Some(words(&format!("{}/{}", model["provider"].as_str()?, model["id"].as_str()?)))
}

/// Returns the name of a conversation that has one.
fn conversation_name(name: &Value) -> Option<&str> {
    name.as_str().filter(|name| !name.trim().is_empty())
}

pub(super) fn status(status: &str, detail: String) -> Action {
    Action::Event(session_status(status, detail))
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
