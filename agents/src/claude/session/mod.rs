//! State machine of the conversation: handshake, turns, and the handling of each line.

mod operate;
mod start;

use std::collections::BTreeMap;

use ipc_protocol::{
    AgentSessionConfig, Event, NativeResume, Operation, PermissionAnswer, Prompt, ResolvedBy, WireError,
    message::{AgentFact, RequestId},
};
use serde_json::{Value, json};

use self::operate::ClaudeCompaction;
use super::{
    messages::{self, ClaudeMessages},
    operations::{self, ClaudePending, ClaudeRequestPurpose, SingleRequest},
    outgoing,
    permissions::{CanUseTool, ClaudePermissions},
    stored_conversations,
    system::{self, HandshakeAnswer, SystemLine},
    turn::{ClaudeTurn, TurnResult},
    usage::{ClaudeUsage, ResultUsage},
    wire::{
        self, ClaudeDelta, CommandLifecycle, ControlCancel, ControlRequest, ControlResponse, ControlSubtype,
        InterruptResponse, LineHead,
    },
};
use crate::{
    Action, Adapter, AdapterSetup, ListedFile, Result,
    kit::{
        answer::OpenAnswer,
        bounds::{MAX_ID, words},
        cut_turn_short,
        json_lines::{AgentOutput, JsonLinesAgent},
        pending::PendingRequests,
        session_mode, session_model, session_title, stderr_line,
    },
};

/// Most prompts that steer a turn.
const MAX_STEERS: usize = 64;
/// Most events that are held back until the agent is ready.
const MAX_HELD_EVENTS: usize = 256;
/// Id of the file list that the start waits for; ids of operations follow.
const START_LIST: u64 = 0;

/// Phase of the conversation.
#[derive(Debug)]
enum ClaudeState {
    New,
    /// Searching for conversations of the working directory: a continued conversation must exist.
    Looking,
    /// Handshake, then the session's configuration.
    Starting,
    Ready(Option<ClaudeTurn>),
    /// The session has failed, or the agent has ended.
    Over,
}

#[derive(Debug)]
pub(in crate::claude) struct ClaudeSession {
    agent: String,
    config: AgentSessionConfig,
    resume: Option<NativeResume>,
    directories: BTreeMap<String, String>,
    /// The agent's id of the conversation, if known.
    native_id: Option<String>,
    /// Ids that the most recent conversation may have.
    recent_ids: Option<Vec<String>>,
    state: ClaudeState,
    pending: ClaudePending,
    permissions: ClaudePermissions,
    messages: ClaudeMessages,
    meter: ClaudeUsage,
    compaction: Option<ClaudeCompaction>,
    /// Operations that wait for a list of files.
    lists: PendingRequests<RequestId>,
    output: AgentOutput,
    /// Stem of the names of our messages; a number follows.
    name: String,
    messages_sent: u64,
    /// Working directory, as the agent reports it.
    cwd: Option<String>,
    /// Model and mode, as the agent reports them.
    current_model: Option<String>,
    current_mode: Option<String>,
    thinking_off: bool,
    /// True while the agent runs a turn that no prompt started.
    runs_unprompted: bool,
    tools_checked: bool,
    stderr: String,
    /// Events from before the agent was ready; `lost` counts those beyond the bound.
    held_events: Vec<Action>,
    lost_events: usize,
    /// What the answer to the handshake tells of the agent, until it is ready.
    handshake_news: Vec<Action>,
}

impl ClaudeSession {
    /// # Errors
    /// The missing ability, as the end of "agent … cannot".
    pub(in crate::claude) fn new(setup: AdapterSetup) -> Result<Self, String> {
        let AdapterSetup { agent, config, resume, fresh_id, directories, .. } = setup;
        if let Some(level) = &config.thinking {
            operations::thinking(level, false)?;
        }
        let native_id = match &resume {
            None => Some(fresh_id.clone()),
            Some(NativeResume { fork: true, .. }) => Some(fresh_id.clone()),
            Some(NativeResume { id, .. }) => id.clone(),
        };
        Ok(Self {
            thinking_off: config.thinking.as_deref() == Some("off"),
            meter: ClaudeUsage::new(resume.is_some()),
            name: fresh_id,
            agent,
            config,
            resume,
            directories,
            native_id,
            recent_ids: None,
            state: ClaudeState::New,
            pending: ClaudePending::default(),
            permissions: ClaudePermissions::default(),
            messages: ClaudeMessages::default(),
            compaction: None,
            lists: PendingRequests::default(),
            output: AgentOutput::default(),
            messages_sent: 0,
            cwd: None,
            current_model: None,
            current_mode: None,
            runs_unprompted: false,
            tools_checked: false,
            stderr: String::new(),
            held_events: Vec::new(),
            lost_events: 0,
            handshake_news: Vec::new(),
        })
    }

    fn refused(&self, reason: impl Into<String>) -> WireError {
        WireError::AgentRefused { agent: self.agent.clone(), reason: reason.into() }
    }

    /// Makes a unique name for one of our messages: a UUID.
    fn uuid(&mut self) -> String {
        self.messages_sent += 1;
        let stem = self.name.get(..24).filter(|stem| stem.ends_with('-'));
        format!("{}{:012x}", stem.unwrap_or("00000000-0000-4000-8000-"), self.messages_sent)
    }

    fn typed_message(&mut self, head: &LineHead<'_>, line: &[u8], out: &mut Vec<Action>) -> bool {
        let parent = head.parent_tool_use_id.as_deref().filter(|id| id.len() <= MAX_ID);
        if let (Some(agent), Some(parent)) = (head.agent_id.as_deref(), parent) {
            self.messages.agent(agent, parent);
        }
        match head.kind.as_ref() {
            "stream_event" => self.messages.streamed(line, parent, &mut self.meter, out),
            "assistant" => {
                let before = out.len();
                let understood = self.messages.assistant(line, parent, &mut self.meter, out);
                if matches!(self.state, ClaudeState::Ready(None))
                    && let Some(compaction) = &mut self.compaction
                {
                    // The text belongs to the compaction's reply only.
                    compaction.take_text(out, before);
                }
                understood
            }
            "user" => self.messages.user(line, parent, out),
            "system" => self.system(head, line, out),
            "result" => self.result(head, line, out),
            "control_request" => self.handle_request(line, out),
            "control_cancel_request" => {
                let Ok(ControlCancel { request_id }) = serde_json::from_slice(line) else { return false };
                let by = if self.cancelled() { ResolvedBy::Abort } else { ResolvedBy::Agent };
                self.permissions.withdraw(&request_id, &by, out);
                true
            }
            "control_response" => self.handle_response(line, out),
            "command_lifecycle" => self.lifecycle(line, out),
            "conversation_reset" => {
                self.meter.reset();
                out.push(status_action("conversationReset", "the agent's conversation begins anew"));
                true
            }
            "rate_limit_event" => system::rate_limit(line, out),
            // Signs of life, and contents that other lines repeat.
            "keep_alive" | "tool_progress" | "tool_use_summary" | "auth_status" | "prompt_suggestion" => true,
            _ => false,
        }
    }

    fn cancelled(&self) -> bool {
        matches!(&self.state, ClaudeState::Ready(Some(turn)) if turn.cancelled)
    }

    fn turn(&mut self) -> Option<&mut ClaudeTurn> {
        match &mut self.state {
            ClaudeState::Ready(turn) => turn.as_mut(),
            _ => None,
        }
    }

    /// Records the conversation id that the agent reports.
    fn conversation(&mut self, id: Option<&str>, out: &mut Vec<Action>) -> bool {
        let Some(id) = id.filter(|id| !id.is_empty() && id.len() <= MAX_ID) else { return true };
        if self.native_id.as_deref() == Some(id) || !matches!(self.state, ClaudeState::Ready(_)) {
            return true;
        }
        if self.recent_ids.take().is_some_and(|known| !known.iter().any(|known| known == id)) {
            self.fail_missing("it began a new one instead", out);
            return false;
        }
        self.native_id = Some(id.to_owned());
        out.push(Action::NativeSession(id.to_owned()));
        true
    }

    fn system(&mut self, head: &LineHead<'_>, line: &[u8], out: &mut Vec<Action>) -> bool {
        let Ok(said) = serde_json::from_slice::<SystemLine>(line) else { return false };
        match head.subtype.as_deref().unwrap_or_default() {
            "init" => {
                if !self.conversation(head.session_id.as_deref(), out) {
                    return true;
                }
                self.recent_ids = None;
                self.runs_unprompted = self.turn().is_none() && self.compaction.is_none();
                self.cwd = said.cwd.clone().filter(|cwd| cwd.starts_with('/'));
                self.settings(said.model.as_deref(), said.permission_mode.as_deref(), out);
                self.check_tools(said.tools.as_deref().unwrap_or_default(), out);
            }
            "api_retry" => out.push(Action::Event(said.retry())),
            "status" => self.status(said, out),
            "session_title_changed" => {
                out.extend(said.title.as_deref().map(|title| Action::Event(session_title(title))));
            }
            "commands_changed" => {
                out.push(Action::Event(system::commands(said.commands.as_deref().unwrap_or_default())))
            }
            "compact_boundary" => {
                let metadata = said.compact_metadata.unwrap_or_default();
                let tokens = |key: &str| metadata.get(key).and_then(Value::as_u64);
                if let Some(after) = tokens("post_tokens") {
                    self.meter.compacted(after);
                    out.extend(self.meter.context_window().map(Action::Event));
                }
                let count = |tokens: Option<u64>| tokens.map_or_else(|| "?".to_owned(), |tokens| tokens.to_string());
                let detail = format!("{} tokens became {}", count(tokens("pre_tokens")), count(tokens("post_tokens")));
                out.push(status_action("compaction", detail));
                if let Some(compaction) = &mut self.compaction {
                    compaction.answer = Some(metadata);
                }
            }
            "task_started" => {
                if let (Some(agent), Some(call)) = (&said.task_id, &said.tool_use_id) {
                    self.messages.agent(agent, call);
                }
            }
            "task_progress" => {
                let title = said.description.as_deref().map(words);
                if let Some(call) = said.tool_use_id.as_deref().filter(|call| self.messages.has_call(call)) {
                    out.push(messages::update(call, title, None, None));
                }
            }
            "task_notification" => {
                if let Some(call) = &said.tool_use_id {
                    self.messages.agent_ended(call, out);
                }
                out.extend(said.event("task_notification").flatten().map(Action::Event));
            }
            subtype => {
                let Some(note) = said.event(subtype) else { return false };
                out.extend(note.map(Action::Event));
            }
        }
        true
    }

    fn status(&mut self, said: SystemLine, out: &mut Vec<Action>) {
        if said.status.as_ref().and_then(Value::as_str) == Some("compacting") {
            out.push(status_action("compaction", "begun"));
        }
        if let Some(mode) = &said.permission_mode {
            out.push(status_action("mode", words(mode)));
            self.settings(None, Some(mode), out);
        }
        if said.compact_result.as_deref() == Some("failed") {
            let reason = words(said.compact_error.as_deref().unwrap_or("compaction failed"));
            match &mut self.compaction {
                Some(compaction) => compaction.error = Some(reason),
                None => out.push(Action::Event(Event::error("compaction", reason, true))),
            }
        }
    }

    /// Emits model and mode, as far as they are others than before. What the agent tells first is no change.
    fn settings(&mut self, model: Option<&str>, mode: Option<&str>, out: &mut Vec<Action>) {
        let (model, mode) = (model.map(words), mode.map(words));
        let mut first = (None, None);
        if let Some(model) = model.filter(|model| self.current_model.as_ref() != Some(model)) {
            match self.current_model.replace(model.clone()) {
                Some(_) => out.push(Action::Event(session_model(&model))),
                None => first.0 = Some(model),
            }
        }
        if let Some(mode) = mode.filter(|mode| self.current_mode.as_ref() != Some(mode)) {
            match self.current_mode.replace(mode.clone()) {
                Some(_) => out.push(Action::Event(session_mode(&mode))),
                None => first.1 = Some(mode),
            }
        }
        if let (model, mode) = first
            && (model.is_some() || mode.is_some())
        {
            out.push(Action::Fact(AgentFact::Settings { model, mode, thinking: None }));
        }
    }

    /// Handles the answer to the handshake: the mode, and the slash commands. They are emitted once the agent is ready.
    fn initialized(&mut self, response: &str) {
        let HandshakeAnswer { commands, current_permission_mode } = serde_json::from_str(response).unwrap_or_default();
        let mut told = Vec::new();
        self.settings(None, current_permission_mode.as_deref(), &mut told);
        if !commands.is_empty() {
            told.push(Action::Event(system::commands(&commands)));
        }
        self.handshake_news = told;
    }

    /// Reports tools that are missing, since the agent ignores unknown tools silently.
    fn check_tools(&mut self, has: &[String], out: &mut Vec<Action>) {
        if std::mem::replace(&mut self.tools_checked, true) {
            return;
        }
        // The tool for sub-agents has two names.
        let same = |asked: &str, has: &str| asked == has || (asked == "Agent" && has == "Task");
        let built_in = self.config.tools.iter().filter(|tool| !tool.starts_with("mcp__") && !tool.is_empty());
        let missing: Vec<_> = built_in.filter(|tool| !has.iter().any(|has| same(tool, has))).cloned().collect();
        if !missing.is_empty() {
            let message = format!("the agent has no tool {}", missing.join(", "));
            out.push(Action::Event(Event::error("unknown-tool", message, false)));
        }
    }

    fn result(&mut self, head: &LineHead<'_>, line: &[u8], out: &mut Vec<Action>) -> bool {
        let Ok(outcome) = serde_json::from_slice::<TurnResult>(line) else { return false };
        if !matches!(self.state, ClaudeState::Ready(_)) {
            if !outcome.is_error() {
                return false;
            }
            self.start_failed(&outcome, out);
            return true;
        }
        if !self.conversation(head.session_id.as_deref(), out) {
            return true;
        }
        let taken = self.meter.record_result(serde_json::from_slice::<ResultUsage>(line).unwrap_or_default());
        let window = self.meter.context_window();
        self.runs_unprompted = false;
        self.messages.answered();
        let (usage, error) = match self.turn().filter(|turn| turn.has(&outcome)) {
            Some(turn) => turn.result(&outcome, taken),
            None => (taken, None),
        };
        out.push(Action::Event(Event::Usage(Box::new(usage))));
        out.extend(window.into_iter().chain(error).map(Action::Event));
        if let Some(compaction) = self.compaction.take_if(|compaction| outcome.answers(&compaction.uuid)) {
            out.push(self.compacted(compaction, &outcome));
        } else if !outcome.is_ours() {
            out.push(status_action("ownTurn", "the agent has ended a turn that it began by itself"));
        }
        self.end_finished_turn(out);
        true
    }

    fn end_finished_turn(&mut self, out: &mut Vec<Action>) {
        let ClaudeState::Ready(slot) = &mut self.state else { return };
        let Some(turn) = slot.take_if(|turn| turn.is_complete()) else { return };
        self.messages.turn_ended(out);
        out.extend(turn.complete().map(Action::Event));
        out.push(Action::TurnEnded);
    }

    /// Handles the progress of one of our messages.
    fn lifecycle(&mut self, line: &[u8], out: &mut Vec<Action>) -> bool {
        let Ok(CommandLifecycle { command_uuid, state }) = serde_json::from_slice(line) else { return false };
        match state.as_ref() {
            "queued" | "started" => {
                if let Some(turn) = self.turn() {
                    turn.mark_taken(&command_uuid);
                }
            }
            // A message that the agent had started on has its result by now.
            "cancelled" => self.handle_dropped_line(&command_uuid, out),
            "completed" if self.turn().is_some_and(|turn| turn.mark_finished(&command_uuid)) => {
                let message = "the agent passed over the message: it has had one of that name";
                out.push(Action::Event(Event::error("message-dropped", message, false)));
                self.end_finished_turn(out);
            }
            _ => {}
        }
        true
    }

    fn handle_dropped_line(&mut self, uuid: &str, out: &mut Vec<Action>) {
        if let Some(compaction) = self.compaction.take_if(|compaction| compaction.uuid == uuid) {
            let reply = Err(self.refused("it was cancelled"));
            out.push(Action::Reply { request: compaction.request, reply });
        }
        if let Some(turn) = self.turn() {
            turn.remove(uuid);
            self.end_finished_turn(out);
        }
    }

    /// Handles a request from the agent.
    fn handle_request(&mut self, line: &[u8], out: &mut Vec<Action>) -> bool {
        let Ok(ControlRequest { request_id, request }) = serde_json::from_slice(line) else { return false };
        let Ok(ControlSubtype { subtype }) = serde_json::from_str(request.get()) else { return false };
        if subtype != "can_use_tool" {
            wire::refuse(&request_id, "this host has no such request", out);
            return false;
        }
        if !matches!(self.state, ClaudeState::Ready(_)) {
            wire::refuse(&request_id, "the session is not ready", out);
            return true;
        }
        match serde_json::from_str::<CanUseTool<'_>>(request.get()) {
            Ok(asked) => {
                let parent = asked.agent_id.as_deref().and_then(|agent| self.messages.caller(agent));
                self.permissions.ask(&request_id, asked, parent, out);
                true
            }
            Err(error) => {
                wire::refuse(&request_id, &format!("the request does not parse: {error}"), out);
                false
            }
        }
    }

    /// Handles the answer to one of our requests.
    fn handle_response(&mut self, line: &[u8], out: &mut Vec<Action>) -> bool {
        let Ok(ControlResponse { response }) = serde_json::from_slice(line) else { return false };
        let Ok(answer) = serde_json::from_str::<wire::ControlOutcome<'_>>(response.get()) else { return false };
        let Some(purpose) = self.pending.take(&answer.request_id) else { return false };
        match (purpose, answer.outcome()) {
            (ClaudeRequestPurpose::Initialize, Ok(response)) => {
                self.initialized(response);
                self.configure(out);
            }
            (ClaudeRequestPurpose::Initialize, Err(refused)) => {
                let error = self.refused(format!("initialize: {}", refused.reason));
                self.fail(error, out);
            }
            (ClaudeRequestPurpose::Configure, Ok(_)) => self.configured(out),
            (ClaudeRequestPurpose::Configure, Err(refused)) => {
                let error = operations::error(refused, &self.agent);
                self.fail(error, out);
            }
            (ClaudeRequestPurpose::Servers, Ok(response)) => system::server_errors(response, out),
            (ClaudeRequestPurpose::Servers, Err(refused)) => {
                out.push(Action::Event(Event::error("mcp-server", refused.reason, false)));
            }
            (ClaudeRequestPurpose::Interrupt, Ok(response)) => self.interrupted(response, out),
            (ClaudeRequestPurpose::Interrupt, Err(refused)) => {
                out.push(Action::Event(Event::error("interrupt", refused.reason, true)));
            }
            _ => self.pending.reply(purpose, &answer, response, &self.agent, out),
        }
        true
    }

    /// Handles messages that the cancelled turn had not started on: the agent drops them, and they get no result.
    fn interrupted(&mut self, response: &str, out: &mut Vec<Action>) {
        let InterruptResponse { cancelled } = serde_json::from_str(response).unwrap_or_default();
        for uuid in cancelled {
            self.handle_dropped_line(&uuid, out);
        }
    }
}

impl Adapter for ClaudeSession {
    fn agent(&self) -> &str {
        &self.agent
    }

    fn start(&mut self, out: &mut Vec<Action>) {
        if !matches!(self.state, ClaudeState::New) {
            return;
        }
        if !matches!(self.resume, Some(NativeResume { id: None, .. })) {
            return self.initialize(out);
        }
        // Asked to continue the most recent conversation, the agent silently starts a new one if there is none.
        match self.conversations() {
            Some(directory) => {
                self.state = ClaudeState::Looking;
                out.push(Action::List { id: START_LIST, directory, suffix: stored_conversations::SUFFIX });
            }
            None => self.fail_missing("where its conversations are is not known", out),
        }
    }

    fn stdout(&mut self, bytes: &[u8], out: &mut Vec<Action>) {
        self.read_messages(bytes, out);
    }

    fn stderr(&mut self, bytes: &[u8], out: &mut Vec<Action>) {
        self.read_stderr(bytes, out);
    }

    fn listed(&mut self, id: u64, files: Vec<ListedFile>, out: &mut Vec<Action>) {
        if id == START_LIST {
            return self.handle_lookup(&files, out);
        }
        let Some(request) = self.lists.take(id) else { return };
        let conversations = Value::Array(files.iter().filter_map(stored_conversations::describe).collect());
        out.push(Action::Reply { request, reply: Ok((&conversations).into()) });
    }

    fn finish(&mut self, out: &mut Vec<Action>) {
        self.read_rest(out);
        self.close(out);
        let waited_for = match std::mem::replace(&mut self.state, ClaudeState::Over) {
            ClaudeState::Ready(Some(_)) => return cut_turn_short(out),
            ClaudeState::Looking => "it was asked anything",
            ClaudeState::Starting => "it answered initialize",
            ClaudeState::New | ClaudeState::Ready(None) | ClaudeState::Over => return,
        };
        let said = self.stderr.trim();
        if self.resume.is_some() && said.contains("No conversation found") {
            let said = said.to_owned();
            return self.fail_missing(&said, out);
        }
        let said = if said.is_empty() { String::new() } else { format!(": {said}") };
        out.push(Action::Fail(WireError::AgentDied { reason: format!("its output ended before {waited_for}{said}") }));
    }

    fn prompt(&mut self, prompt: &Prompt, out: &mut Vec<Action>) -> Result<()> {
        match &self.state {
            ClaudeState::Ready(None) => {}
            ClaudeState::Ready(Some(_)) => return Err(WireError::Busy),
            _ => return Err(self.unsupported("take a prompt: its session is not ready, or over")),
        }
        let uuid = self.uuid();
        wire::user(&uuid, outgoing::content(prompt), out);
        self.state = ClaudeState::Ready(Some(ClaudeTurn::new(uuid)));
        Ok(())
    }

    fn steer(&mut self, prompt: &Prompt, out: &mut Vec<Action>) -> Result<()> {
        let uuid = self.uuid();
        match self.turn() {
            Some(turn) if turn.steers < MAX_STEERS => turn.steer(uuid.clone()),
            Some(_) => return Err(WireError::Busy),
            None => return Err(self.unsupported("be steered: no turn runs")),
        }
        wire::user(&uuid, outgoing::content(prompt), out);
        Ok(())
    }

    /// Cancels the turn. The agent withdraws its permission requests itself, and drops the messages that it has not started on.
    ///
    /// # Errors
    /// [`WireError::Busy`].
    fn abort(&mut self, out: &mut Vec<Action>) -> Result<()> {
        let runs = match self.turn() {
            Some(turn) => {
                turn.cancelled = true;
                true
            }
            None => self.runs_unprompted || self.compaction.is_some(),
        };
        if runs && !self.pending.interrupt(out) { Err(WireError::Busy) } else { Ok(()) }
    }

    fn permission(&mut self, id: &str, answer: &PermissionAnswer, by: ResolvedBy, out: &mut Vec<Action>) -> Result<()> {
        self.permissions.answer(id, answer, by, out)
    }

    fn operate(&mut self, request: RequestId, operation: &Operation, out: &mut Vec<Action>) -> Result<()> {
        if !matches!(self.state, ClaudeState::Ready(_)) {
            return Err(self.unsupported("be asked anything: its session is not ready, or over"));
        }
        if self.pending.is_full() {
            return Err(self.refused("too many requests wait for its answer"));
        }
        match operations::simple(operation).map_err(|operation| self.unsupported(&operation))? {
            Some(SingleRequest::Change(message)) => {
                self.pending.send(ClaudeRequestPurpose::Change(request), message, out)
            }
            Some(SingleRequest::Ask(message)) => self.pending.send(ClaudeRequestPurpose::Ask(request), message, out),
            Some(SingleRequest::Native(message)) => {
                self.pending.send(ClaudeRequestPurpose::Native(request), message, out)
            }
            None => match operation {
                Operation::SetThinking { level } => self.set_thinking(request, level, out)?,
                Operation::ListSessions => self.list(request, out)?,
                Operation::ListChoices => {
                    out.push(Action::Reply { request, reply: Ok(operations::choices_of().to_json()) });
                }
                Operation::CompactWith { instructions } => self.compact(request, Some(instructions), out)?,
                _ => self.compact(request, None, out)?,
            },
        }
        Ok(())
    }
}

impl JsonLinesAgent for ClaudeSession {
    fn output(&mut self) -> &mut AgentOutput {
        &mut self.output
    }

    fn open_answer(&mut self) -> &mut OpenAnswer {
        &mut self.messages.answer
    }

    fn delta(&mut self, line: &[u8], out: &mut Vec<Action>) -> bool {
        if !matches!(self.state, ClaudeState::Ready(_)) {
            return false;
        }
        let Some(event) = ClaudeDelta::of(line) else { return false };
        out.extend(event.map(Action::Event));
        true
    }

    fn message(&mut self, line: &[u8], out: &mut Vec<Action>) -> bool {
        let before = out.len();
        let understood = match serde_json::from_slice::<LineHead<'_>>(line) {
            Ok(head) if !matches!(self.state, ClaudeState::Over) => self.typed_message(&head, line, out),
            _ => false,
        };
        if matches!(self.state, ClaudeState::Starting) {
            // No event is emitted before the agent is ready.
            let early = out.extract_if(before.., |action| matches!(action, Action::Event(_)));
            self.held_events.extend(early);
            self.lost_events += self.held_events.len().saturating_sub(MAX_HELD_EVENTS);
            self.held_events.truncate(MAX_HELD_EVENTS);
        }
        understood
    }

    fn oversized(&mut self, mut head: Value, out: &mut Vec<Action>) {
        if head.get("type").is_none() && head.get("duration_api_ms").is_some() {
            // Its type is behind the answer, of which it has the whole text. A failure is not that long.
            (head["type"], head["subtype"]) = ("result".into(), "success".into());
        }
        let text = |at: &str| head.pointer(at).and_then(Value::as_str);
        match text("/type") {
            Some("control_request") => {
                if let Some(id) = text("/request_id") {
                    wire::refuse(id, "the request is longer than what is taken", out);
                }
            }
            Some("control_response") => {
                let error = "the answer is longer than what is taken";
                let response =
                    json!({ "subtype": "error", "request_id": head["response"]["request_id"], "error": error });
                let line = json!({ "type": "control_response", "response": response });
                self.read_line(line.to_string().as_bytes(), out);
            }
            // The beginning contains the fields about the turn's end.
            Some("result") => self.read_line(head.to_string().as_bytes(), out),
            // The line may have contained the end of a call.
            _ => self.messages.end_all(out),
        }
    }

    fn stderr_line(&mut self, line: &[u8], out: &mut Vec<Action>) {
        self.record_stderr(line);
        out.push(stderr_line(line));
    }
}

fn status_action(status: &str, detail: impl Into<String>) -> Action {
    Action::Event(system::status(status, detail))
}
