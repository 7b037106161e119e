//! State machine of the conversation: handshake, turns, requests in both directions.

use std::collections::VecDeque;

use agent_client_protocol_schema::v1::{self, ContentBlock, ContentChunk, SessionUpdate};
use ipc_protocol::{
    AgentSessionConfig, Event, NativeResume, PermissionAnswer, Prompt, ResolvedBy, StopReason, Usage, WireError,
    message::RequestId,
};
use serde_json::{json, value::RawValue};

use super::{
    errors,
    failures::{self, Failure},
    gemini::{Look, Wanted},
    handshake::{self, Opening, Refused},
    offer::{self, Offer, Setting},
    operations::{List, Waiting},
    permissions::Permissions,
    tools::ToolCalls,
    turn::{self, Cost, MAX_STEERS, Turn},
    updates,
    wire::{self, Answer, Chunk, Message},
};
use crate::{
    Action, AdapterSetup,
    answer::OpenAnswer,
    command::stderr_line,
    jsonl::{self, ended, log},
};

/// Most text of a compaction that is kept for the reply, in bytes.
const MAX_SAID: usize = 64 * 1024;

/// Phase of the conversation. Numbers are ids of our requests.
#[derive(Debug)]
pub(super) enum State {
    New,
    Initializing {
        request: i64,
        /// Id of the request `session/new`, if it was sent without waiting for the answer to `initialize`.
        opening: Option<i64>,
    },
    /// Searching for the conversation in the agent's files.
    Looking,
    /// Searching for the most recent conversation.
    Finding {
        request: i64,
        list: List,
        fork: bool,
    },
    Opening {
        request: i64,
        opening: Opening,
    },
    /// Setting the values of the configuration.
    Configuring {
        request: i64,
        session: String,
        setting: Setting,
        asked: offer::Request,
    },
    /// The agent still replays the conversation that it loaded.
    Settling {
        session: String,
    },
    Ready {
        session: String,
        activity: Activity,
    },
    /// The session has failed, or the agent has ended.
    Over,
}

/// Activity of an agent that is ready.
#[derive(Debug)]
pub(super) enum Activity {
    Idle,
    Turn(Turn),
    /// The agent compacts its conversation, as the answer to a prompt.
    Compacting {
        request: i64,
        operation: RequestId,
        said: String,
    },
}

/// Effect of a prompt during a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Steering {
    /// The prompt cancels the turn, or its effect is unknown.
    No,
    /// The prompt steers the turn, and is answered like the turn's first prompt.
    Answered,
    /// The prompt steers the turn, and only one of the turn's prompts is answered.
    Unanswered,
}

#[derive(Debug)]
pub(super) struct Session {
    pub(super) agent: String,
    pub(super) config: AgentSessionConfig,
    steering: Steering,
    /// True if `session/new` is sent before the answer to `initialize`: the row allows it, and nothing depends on that answer.
    opens_at_once: bool,
    /// Prompt of the row that compacts the conversation.
    pub(super) compact_command: Option<String>,
    /// Configuration fields that the agent gets from a file or an argument.
    pub(super) provisioned: Vec<String>,
    pub(super) state: State,
    pub(super) requests: i64,
    /// System prompt that is not yet sent. Without a field in the agent's protocol it is put before the first prompt.
    pub(super) system_prompt: Option<String>,
    pub(super) resume: Option<NativeResume>,
    /// Settings that are not yet sent.
    pub(super) settings: VecDeque<Setting>,
    pub(super) offer: Offer,
    /// True until the first prompt of a loaded conversation: the agent's messages until then are a replay.
    pub(super) history: bool,
    pub(super) cost: Cost,
    permissions: Permissions,
    calls: ToolCalls,
    /// Operations that wait for the agent's answer.
    pub(super) waiting: Vec<Waiting>,
    /// Home directory of the agent.
    pub(super) home: Option<String>,
    /// Word that no other session has.
    pub(super) fresh_id: String,
    pub(super) looks: Vec<Look>,
    answer: OpenAnswer,
    /// How it is logged in.
    pub(super) login: Option<String>,
    /// It says in `_meta` what fails, to who declares to understand it.
    says_failures: bool,
}

impl Session {
    pub(super) fn new(setup: AdapterSetup) -> Self {
        let AdapterSetup { mut config, agent, protocol_config, fresh_id, resume, mut directories, .. } = setup;
        let steering = match &protocol_config["steerByPrompt"] {
            serde_json::Value::Bool(true) => Steering::Answered,
            serde_json::Value::String(word) if word == "unanswered" => Steering::Unanswered,
            _ => Steering::No,
        };
        let words = |value: &serde_json::Value| value.as_str().map(str::to_owned);
        let system_prompt = config.system_prompt.take();
        let depends = resume.is_some()
            || system_prompt.is_some()
            || !config.mcp_servers.is_empty()
            || !config.tools.is_empty()
            || config.ephemeral;
        let opens_at_once = protocol_config["opensAtOnce"] == true && !depends;
        let settings = [
            config.model.clone().map(Setting::Model),
            config.mode.clone().map(Setting::Mode),
            config.thinking.clone().map(Setting::Thinking),
        ];
        Self {
            agent,
            config,
            steering,
            opens_at_once,
            compact_command: words(&protocol_config["compactCommand"]),
            provisioned: protocol_config["provisions"].as_array().into_iter().flatten().filter_map(words).collect(),
            state: State::New,
            requests: 0,
            system_prompt,
            resume,
            settings: settings.into_iter().flatten().collect(),
            offer: Offer::default(),
            history: false,
            cost: Cost::default(),
            permissions: Permissions::default(),
            calls: ToolCalls::default(),
            waiting: Vec::new(),
            home: directories.remove("GEMINI_CLI_HOME").or_else(|| directories.remove("HOME")),
            fresh_id,
            looks: Vec::new(),
            answer: OpenAnswer::default(),
            login: words(&protocol_config["login"]),
            says_failures: protocol_config["sessionFailures"] == true,
        }
    }

    pub(super) fn cwd(&self) -> &str {
        self.config.cwd.as_deref().unwrap_or("/")
    }

    /// Sends a request and returns its id.
    pub(super) fn request(&mut self, method: &str, params: impl serde::Serialize, out: &mut Vec<Action>) -> i64 {
        self.requests += 1;
        wire::call(Some(self.requests), method, params, out);
        self.requests
    }

    pub(super) fn unsupported(&self, operation: &str) -> WireError {
        WireError::Unsupported { agent: self.agent.clone(), operation: operation.to_owned() }
    }

    pub(super) fn start(&mut self, out: &mut Vec<Action>) {
        if matches!(self.state, State::New) {
            let request = self.request("initialize", handshake::initialize(self.says_failures), out);
            let opening = self.opens_at_once.then(|| self.ask_for(&Opening::New, out));
            self.state = State::Initializing { request, opening };
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
        if let State::Ready { session, .. } = &self.state
            && !self.history
            && let Some(event) = Chunk::event(line, session)
        {
            self.said(event, out);
            return;
        }
        if line.trim_ascii().is_empty() {
            return;
        }
        let message = match serde_json::from_slice::<Message<'_>>(line) {
            Ok(message) if !matches!(self.state, State::Over) => message,
            _ => return log(line, out),
        };
        let understood = match (message.id, message.method.as_deref()) {
            (Some(id), Some(method)) => self.asked(id, method, &message, out),
            (Some(id), None) => {
                let id = id.get().parse::<i64>();
                id.is_ok_and(|id| self.answered(id, wire::answer(&message), line, out))
            }
            (None, Some("session/update")) => self.updated(&message, out),
            // An extension of the protocol: a client that does not know it ignores it.
            (None, Some(method)) if method.starts_with('_') => true,
            (None, _) => false,
        };
        if !understood {
            log(line, out);
        }
    }

    /// Handles the beginning of a line that was dropped. Nothing may go on waiting for the contents of that line.
    pub(super) fn dropped(&mut self, beginning: &[u8], out: &mut Vec<Action>) {
        jsonl::too_long(out);
        let head = jsonl::head(beginning);
        let error = v1::Error::internal_error().data("longer than what is taken");
        let id = head.get("id").and_then(|id| RawValue::from_string(id.to_string()).ok());
        match (id, head.get("method")) {
            (Some(id), Some(_)) => wire::refuse(&id, error, out),
            (Some(id), None) => {
                let answer = json!({ "jsonrpc": "2.0", "id": id, "error": error });
                self.line(answer.to_string().as_bytes(), out);
            }
            _ => self.calls.end_all(ended::DROPPED, out),
        }
    }

    /// Takes a line of its standard error.
    pub(super) fn complained(&mut self, line: &[u8], out: &mut Vec<Action>) {
        let in_turn = matches!(self.state, State::Ready { activity: Activity::Turn(_), .. });
        let retry = failures::retry_in_stderr(line).filter(|_| in_turn && self.offer.quirks.retries_in_stderr);
        if let Some(retry) = retry {
            self.asks_again(retry, out);
        }
        out.push(stderr_line(line));
    }

    /// The agent makes its request to the model again.
    fn asks_again(&mut self, retry: Event, out: &mut Vec<Action>) {
        out.extend(self.answer.void());
        out.push(Action::Event(retry));
    }

    /// A piece of text or of thinking.
    fn said(&mut self, event: Event, out: &mut Vec<Action>) {
        if let Event::Text { text } = &event {
            if self.offer.quirks.text()
                && let Some((status, detail)) = self.offer.quirks.status_in(text)
            {
                let event = updates::status(status, detail.trim_end().to_owned());
                if status == "mode" {
                    let mode = detail.to_owned();
                    self.offer.note_mode(&mode);
                }
                out.push(Action::Event(event));
                return;
            }
            if let State::Ready { activity: Activity::Compacting { said, .. }, .. } = &mut self.state {
                // The text belongs to the operation's reply.
                if said.len() + text.len() <= MAX_SAID {
                    said.push_str(text);
                }
                return;
            }
        }
        out.push(Action::Event(event));
    }

    /// Handles a request from the agent.
    fn asked(&mut self, id: &RawValue, method: &str, message: &Message<'_>, out: &mut Vec<Action>) -> bool {
        let State::Ready { activity, .. } = &self.state else {
            wire::refuse(id, v1::Error::invalid_request().data("the session is not ready"), out);
            return false;
        };
        if method != "session/request_permission" {
            wire::refuse(id, v1::Error::method_not_found(), out);
            return false;
        }
        let cancelled = matches!(activity, Activity::Turn(turn) if turn.cancelled);
        let Self { permissions, calls, offer, .. } = self;
        let asked = message
            .params()
            .map_err(v1::Error::from)
            .and_then(|request| permissions.ask(id, request, calls, &offer.quirks, out));
        if let Err(error) = asked {
            wire::refuse(id, error, out);
            return false;
        }
        if cancelled {
            // The request is not answered any more, and the agent may wait for it before it ends the turn.
            self.cancel_requests(out);
        }
        true
    }

    fn updated(&mut self, message: &Message<'_>, out: &mut Vec<Action>) -> bool {
        let Ok(v1::SessionNotification { session_id, update, .. }) = message.params() else { return false };
        let session = match &self.state {
            // A replay, or the available choices. The id of a copy is not known yet.
            State::Opening { opening, .. } => return self.offer.note_update(&update) || opening.replays(),
            State::Configuring { session, .. } | State::Settling { session } | State::Ready { session, .. } => session,
            _ => return false,
        };
        if session_id.0.as_ref() != session {
            return false;
        }
        let is_choice = self.offer.note_update(&update);
        if matches!((&self.state, &update), (State::Settling { .. }, SessionUpdate::AvailableCommandsUpdate(_))) {
            let session = session.clone();
            self.ready(session, out);
            return true;
        }
        if self.history && !is_choice {
            return true;
        }
        match update {
            SessionUpdate::AgentMessageChunk(ContentChunk {
                content: ContentBlock::Text(text), meta: None, ..
            }) => {
                self.said(Event::Text { text: text.text }, out);
                true
            }
            SessionUpdate::AgentMessageChunk(chunk) if let Some(usage) = turn::usage_of_call(&chunk) => {
                if let State::Ready { activity: Activity::Turn(turn), .. } = &mut self.state {
                    turn.add_call(usage);
                }
                true
            }
            SessionUpdate::SessionInfoUpdate(update) if let Some(failure) = Failure::of(update.meta.as_ref()) => {
                match failure.retry() {
                    Some(retry) => self.asks_again(retry, out),
                    None => out.extend(failure.events().into_iter().map(Action::Event)),
                }
                true
            }
            SessionUpdate::UsageUpdate(update) => {
                // The wrappers count at the beginning and at the end of an answer.
                self.answer.settle();
                let is_news = self.cost.note(&update);
                let in_turn = matches!(self.state, State::Ready { activity: Activity::Turn(_), .. });
                let understood = updates::events(SessionUpdate::UsageUpdate(update), &mut self.calls, out);
                if is_news && in_turn {
                    let usage = Usage { cost_usd: self.cost.of_turn(), ..Usage::default() };
                    out.push(Action::Event(Event::Usage(Box::new(usage))));
                }
                understood
            }
            update => updates::events(update, &mut self.calls, out),
        }
    }

    /// Handles an answer to our request `id`. Returns `false` if there is no such request.
    fn answered(&mut self, id: i64, answer: Answer<'_>, line: &[u8], out: &mut Vec<Action>) -> bool {
        if let Some(at) = self.waiting.iter().position(|waiting| waiting.id == id) {
            let waiting = self.waiting.remove(at);
            self.operated(waiting, answer, line, out);
            return true;
        }
        let done = match std::mem::replace(&mut self.state, State::Over) {
            State::Initializing { request, opening } if request == id => self.initialized(opening, answer, out),
            State::Initializing { request, opening: Some(early) } if early == id && answer.is_err() => {
                // It takes no other request before that is answered: the conversation is asked for again then.
                self.state = State::Initializing { request, opening: None };
                Ok(())
            }
            State::Initializing { opening: Some(request), .. } if request == id => {
                let reason =
                    "it answered session/new before initialize, which came first: its row must not say opensAtOnce";
                Err(Refused::Protocol(reason.to_owned()))
            }
            State::Finding { request, list, fork } if request == id => self.found(list, fork, answer, out),
            State::Opening { request, opening } if request == id => self.opened(opening, answer, out),
            State::Configuring { request, session, setting, asked } if request == id => {
                self.configured(session, &setting, &asked, answer, out)
            }
            State::Ready { session, activity: Activity::Turn(turn) } if turn.prompts.contains(&id) => {
                self.prompt_answered(session, turn, id, answer, out);
                Ok(())
            }
            State::Ready { session, activity: Activity::Compacting { request, operation, said } } if request == id => {
                self.state = State::Ready { session, activity: Activity::Idle };
                self.end_open(ended::COMPACTED, out);
                self.compacted(operation, said, answer, out);
                Ok(())
            }
            other => {
                self.state = other;
                return false;
            }
        };
        if let Err(refused) = done {
            self.refuse(refused, out);
        }
        true
    }

    /// Sends a prompt and returns its id.
    fn send_prompt(&mut self, session: &str, prompt: &Prompt, out: &mut Vec<Action>) -> Result<i64, WireError> {
        let blocks = turn::blocks(prompt, self.cwd(), &self.offer.capabilities.prompt_capabilities);
        let mut blocks = blocks.map_err(|operation| self.unsupported(operation))?;
        if let Some(system_prompt) = self.system_prompt.take() {
            blocks.insert(0, system_prompt.into());
        }
        Ok(self.send_blocks(session, &blocks, out))
    }

    pub(super) fn send_blocks(&mut self, session: &str, blocks: &[ContentBlock], out: &mut Vec<Action>) -> i64 {
        self.history = false;
        self.answer.begin();
        self.request("session/prompt", json!({ "sessionId": session, "prompt": blocks }), out)
    }

    pub(super) fn prompt(&mut self, prompt: &Prompt, out: &mut Vec<Action>) -> Result<(), WireError> {
        let session = match &self.state {
            State::Ready { session, activity: Activity::Idle } => session.clone(),
            State::Ready { .. } => return Err(WireError::Busy),
            _ => return Err(self.unsupported("take a prompt: its session is not ready, or over")),
        };
        let id = self.send_prompt(&session, prompt, out)?;
        self.cost.turn_begins();
        self.state = State::Ready { session, activity: Activity::Turn(Turn::new(id)) };
        Ok(())
    }

    pub(super) fn steer(&mut self, prompt: &Prompt, out: &mut Vec<Action>) -> Result<(), WireError> {
        if self.steering == Steering::No {
            return Err(self.unsupported("be steered while a turn runs: abort the turn, or queue the prompt"));
        }
        let State::Ready { session, activity: Activity::Turn(turn) } = &self.state else {
            return Err(self.unsupported("be steered: no turn runs"));
        };
        if turn.steers >= MAX_STEERS {
            return Err(WireError::Busy);
        }
        let session = session.clone();
        let id = self.send_prompt(&session, prompt, out)?;
        if let State::Ready { activity: Activity::Turn(turn), .. } = &mut self.state {
            turn.steers += 1;
            turn.prompts.push(id);
        }
        Ok(())
    }

    fn prompt_answered(&mut self, session: String, turn: Turn, id: i64, answer: Answer<'_>, out: &mut Vec<Action>) {
        let mut turn = turn;
        turn.prompts.retain(|prompt| *prompt != id && self.steering != Steering::Unanswered);
        if let Some(failure) = answer.as_ref().ok().and_then(|result| Failure::of_answer(result)) {
            out.extend(failure.events().into_iter().map(Action::Event));
        } else {
            match answer.and_then(turn::complete) {
                // An agent that ends its turn at a refusal may do so before it hears the cancellation.
                Ok((StopReason::EndTurn, usage)) if turn.refused => turn.answered((StopReason::Cancelled, usage)),
                Ok(complete) => turn.answered(complete),
                // However an agent puts it, it does as it was told.
                Err(_) if turn.cancelled => turn.answered((StopReason::Cancelled, None)),
                Err(error) if error.code == v1::ErrorCode::AuthRequired => {
                    let message = self.not_logged_in(&errors::describe(&error));
                    out.push(Action::Event(Event::error("not-logged-in", message, false)));
                }
                Err(error) => {
                    out.extend(errors::usage_limit(&error).map(Action::Event));
                    out.push(Action::Event(errors::event(&error)));
                }
            }
        }
        if !turn.prompts.is_empty() {
            self.state = State::Ready { session, activity: Activity::Turn(turn) };
            return;
        }
        self.state = State::Ready { session, activity: Activity::Idle };
        self.end_open(ended::TURN, out);
        if let Some(stop_reason) = turn.stop_reason {
            let mut usage = turn.usage;
            if let Some(cost) = self.cost.of_turn() {
                usage.get_or_insert_default().cost_usd = Some(cost);
            }
            out.push(Action::Event(Event::Complete { stop_reason, usage: usage.map(Box::new) }));
        }
        out.push(Action::TurnEnded);
    }

    /// Ends the permission requests and tool calls that are still open.
    fn end_open(&mut self, why: &str, out: &mut Vec<Action>) {
        self.permissions.cancel_all(out);
        self.calls.end_all(why, out);
    }

    /// Cancels the permission requests of a cancelled turn.
    fn cancel_requests(&mut self, out: &mut Vec<Action>) {
        if let State::Ready { activity: Activity::Turn(turn), .. } = &mut self.state {
            turn.refused |= !self.permissions.is_empty();
        }
        self.permissions.cancel_all(out);
    }

    pub(super) fn abort(&mut self, out: &mut Vec<Action>) {
        let State::Ready { session, activity } = &mut self.state else { return };
        let session = session.clone();
        match activity {
            Activity::Idle => return,
            Activity::Turn(turn) => turn.cancelled = true,
            Activity::Compacting { .. } => {}
        }
        // Requests go first: some agents do not read the cancellation while they wait for an answer.
        self.cancel_requests(out);
        wire::call(None, "session/cancel", v1::CancelNotification::new(session), out);
    }

    pub(super) fn permission(
        &mut self,
        id: &str,
        answer: &PermissionAnswer,
        by: ResolvedBy,
        out: &mut Vec<Action>,
    ) -> Result<(), WireError> {
        let (call, allowed) = self.permissions.answer(id, answer, by, &self.agent, out)?;
        if allowed {
            self.calls.allowed(&call);
        } else if self.offer.quirks.drops_rejected {
            self.calls.fail(&call, "rejected", out);
        }
        Ok(())
    }

    /// Ends everything that is open, since the agent has ended.
    pub(super) fn finish(&mut self, out: &mut Vec<Action>) {
        self.permissions.close_all(out);
        self.calls.end_all(ended::GONE, out);
        let reason = "its output ended before it answered".to_owned();
        for waiting in std::mem::take(&mut self.waiting) {
            let reply = Err(WireError::AgentDied { reason: reason.clone() });
            out.push(Action::Reply { request: waiting.operation, reply });
        }
        for look in std::mem::take(&mut self.looks) {
            if let Wanted::Tell(operation) = look.wanted {
                out.push(Action::Reply {
                    request: operation,
                    reply: Err(WireError::AgentDied { reason: reason.clone() }),
                });
            }
        }
        let waited_for = match std::mem::replace(&mut self.state, State::Over) {
            State::Ready { activity: Activity::Turn(_), .. } => {
                let message = "the agent's output ended during the turn";
                out.push(Action::Event(Event::error("agent-exited", message, false)));
                out.push(Action::TurnEnded);
                return;
            }
            State::Ready { activity: Activity::Compacting { operation, .. }, .. } => {
                out.push(Action::Reply { request: operation, reply: Err(WireError::AgentDied { reason }) });
                return;
            }
            State::Initializing { .. } => "initialize",
            State::Looking => "what files it has",
            State::Finding { .. } => "session/list",
            State::Opening { opening, .. } => opening.method(),
            State::Configuring { .. } => "the request to set its model, mode or thinking",
            State::Settling { .. } => "session/load to its end",
            State::New | State::Ready { .. } | State::Over => return,
        };
        let reason = format!("its output ended before it answered {waited_for}");
        out.push(Action::Fail(WireError::AgentDied { reason }));
    }
}
