//! State machine of the conversation: handshake, turns, requests in both directions.

use std::collections::VecDeque;

use agent_client_protocol_schema::v1::{self, ContentBlock, ContentChunk, SessionUpdate};
use ipc_protocol::{AgentSessionConfig, Event, NativeResume, Prompt, StopReason, Usage};
use serde_json::{Value, json, value::RawValue};

use super::{
    errors,
    failures::{self, WrapperFailure},
    gemini::ConversationLookup,
    handshake::HandshakeRefusal,
    offer::{AcpSetting, AgentOffer},
    permissions::AcpPermissions,
    state::{AcpActivity, AcpPurpose, AcpState, SteeringMode},
    tools::AcpToolCalls,
    turn::{self, AcpTurn, ConversationCost},
    updates,
    wire::{self, AcpResponse, TextChunk},
};
use crate::{
    Action, Adapter as _, AdapterSetup, Result,
    kit::{
        json_lines::{AgentOutput, JsonLinesAgent},
        json_rpc::{RpcDropped, RpcIncoming, RpcMessage, RpcParams, RpcPeer},
        session_status, stderr_line,
        tool_calls::ended,
    },
};

/// Most text of a compaction that is kept for the reply, in bytes.
const MAX_COMPACTION_TEXT: usize = 64 * 1024;

#[derive(Debug)]
pub(super) struct AcpSession {
    pub(super) agent: String,
    pub(super) config: AgentSessionConfig,
    pub(super) steering: SteeringMode,
    /// True if `session/new` is sent before the answer to `initialize`: the row allows it, and nothing depends on that answer.
    pub(super) opens_at_once: bool,
    /// Prompt of the row that compacts the conversation.
    pub(super) compact_command: Option<String>,
    /// Configuration fields that the agent gets from a file or an argument.
    pub(super) provisioned: Vec<String>,
    pub(super) state: AcpState,
    pub(super) output: AgentOutput,
    pub(super) peer: RpcPeer<AcpPurpose>,
    /// System prompt that is not yet sent. Without a field in the agent's protocol it is put before the first prompt.
    pub(super) system_prompt: Option<String>,
    pub(super) resume: Option<NativeResume>,
    /// Settings that are not yet sent.
    pub(super) settings: VecDeque<AcpSetting>,
    pub(super) offer: AgentOffer,
    /// True until the first prompt of a loaded conversation: the agent's messages until then are a replay.
    pub(super) is_in_replay: bool,
    pub(super) cost: ConversationCost,
    pub(super) permissions: AcpPermissions,
    pub(super) calls: AcpToolCalls,
    /// Home directory of the agent.
    pub(super) home: Option<String>,
    /// Word that no other session has.
    pub(super) fresh_id: String,
    pub(super) lookups: Vec<ConversationLookup>,
    /// How it is logged in.
    pub(super) login: Option<String>,
    /// It says in `_meta` what fails, to who declares to understand it.
    pub(super) says_failures: bool,
}

impl AcpSession {
    pub(super) fn new(setup: AdapterSetup) -> Self {
        let AdapterSetup { mut config, agent, protocol_config, fresh_id, resume, mut directories, .. } = setup;
        let steering = match &protocol_config["steerByPrompt"] {
            serde_json::Value::Bool(true) => SteeringMode::Answered,
            serde_json::Value::String(word) if word == "unanswered" => SteeringMode::Unanswered,
            _ => SteeringMode::No,
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
            config.model.clone().map(AcpSetting::Model),
            config.mode.clone().map(AcpSetting::Mode),
            config.thinking.clone().map(AcpSetting::Thinking),
        ];
        Self {
            agent,
            config,
            steering,
            opens_at_once,
            compact_command: words(&protocol_config["compactCommand"]),
            provisioned: protocol_config["provisions"].as_array().into_iter().flatten().filter_map(words).collect(),
            state: AcpState::New,
            output: AgentOutput::default(),
            peer: RpcPeer::new(wire::RPC),
            system_prompt,
            resume,
            settings: settings.into_iter().flatten().collect(),
            offer: AgentOffer::default(),
            is_in_replay: false,
            cost: ConversationCost::default(),
            permissions: AcpPermissions::default(),
            calls: AcpToolCalls::default(),
            home: directories.remove("GEMINI_CLI_HOME").or_else(|| directories.remove("HOME")),
            fresh_id,
            lookups: Vec::new(),
            login: words(&protocol_config["login"]),
            says_failures: protocol_config["sessionFailures"] == true,
        }
    }

    pub(super) fn cwd(&self) -> &str {
        self.config.cwd.as_deref().unwrap_or("/")
    }

    /// The agent makes its request to the model again.
    fn asks_again(&mut self, retry: Event, out: &mut Vec<Action>) {
        out.extend(self.output.answer.void());
        out.push(Action::Event(retry));
    }

    /// A piece of text or of thinking.
    fn emit_text(&mut self, event: Event, out: &mut Vec<Action>) {
        if let Event::Text { text } = &event {
            if self.offer.quirks.text()
                && let Some((status, detail)) = self.offer.quirks.status_in(text)
            {
                let event = session_status(status, detail.trim_end().to_owned());
                let mode = (status == "mode").then(|| detail.trim_end().to_owned());
                out.push(Action::Event(event));
                if let Some(mode) = mode {
                    self.offer.record_mode(&mode);
                    self.offer.emit_changes(out);
                }
                return;
            }
            if let AcpState::Ready { activity: AcpActivity::Compacting { said, .. }, .. } = &mut self.state {
                // The text belongs to the operation's reply.
                if said.len() + text.len() <= MAX_COMPACTION_TEXT {
                    said.push_str(text);
                }
                return;
            }
        }
        out.push(Action::Event(event));
    }

    /// Handles a request from the agent.
    fn handle_request(&mut self, id: &RawValue, method: &str, params: RpcParams<'_>, out: &mut Vec<Action>) -> bool {
        let AcpState::Ready { activity, .. } = &self.state else {
            wire::RPC.refuse(id, v1::Error::invalid_request().data("the session is not ready"), out);
            return false;
        };
        if method != "session/request_permission" {
            wire::RPC.refuse(id, v1::Error::method_not_found(), out);
            return false;
        }
        let cancelled = matches!(activity, AcpActivity::Turn(turn) if turn.cancelled);
        let Self { permissions, calls, offer, .. } = self;
        let asked = params
            .parse()
            .map_err(v1::Error::from)
            .and_then(|request| permissions.ask(id, request, calls, &offer.quirks, out));
        if let Err(error) = asked {
            wire::RPC.refuse(id, error, out);
            return false;
        }
        if cancelled {
            // The request is not answered any more, and the agent may wait for it before it ends the turn.
            self.cancel_requests(out);
        }
        true
    }

    fn handle_update(&mut self, params: RpcParams<'_>, out: &mut Vec<Action>) -> bool {
        let Ok(v1::SessionNotification { session_id, update, .. }) = params.parse() else { return false };
        let session = match &self.state {
            // A replay, or the available choices. The id of a copy is not known yet.
            AcpState::Opening { opening, .. } => return self.offer.record_update(&update) || opening.replays(),
            AcpState::Configuring { session, .. }
            | AcpState::Settling { session }
            | AcpState::Ready { session, .. } => session,
            _ => return false,
        };
        if session_id.0.as_ref() != session {
            return false;
        }
        let is_choice = self.offer.record_update(&update);
        if matches!((&self.state, &update), (AcpState::Settling { .. }, SessionUpdate::AvailableCommandsUpdate(_))) {
            let session = session.clone();
            self.ready(session, out);
            return true;
        }
        if is_choice {
            let understood = updates::events(update, &mut self.calls, out);
            self.offer.emit_changes(out);
            return understood;
        }
        if self.is_in_replay {
            return true;
        }
        match update {
            SessionUpdate::AgentMessageChunk(ContentChunk {
                content: ContentBlock::Text(text), meta: None, ..
            }) => {
                self.emit_text(Event::Text { text: text.text }, out);
                true
            }
            SessionUpdate::AgentMessageChunk(chunk) if let Some(usage) = turn::usage_of_call(&chunk) => {
                if let AcpState::Ready { activity: AcpActivity::Turn(turn), .. } = &mut self.state {
                    turn.add_call(usage);
                }
                true
            }
            SessionUpdate::SessionInfoUpdate(update)
                if let Some(failure) = WrapperFailure::of(update.meta.as_ref()) =>
            {
                match failure.retry() {
                    Some(retry) => self.asks_again(retry, out),
                    None => out.extend(failure.events().into_iter().map(Action::Event)),
                }
                true
            }
            SessionUpdate::UsageUpdate(update) => {
                // The wrappers count at the beginning and at the end of an answer.
                self.output.answer.settle();
                let is_news = self.cost.record(&update);
                let in_turn = matches!(self.state, AcpState::Ready { activity: AcpActivity::Turn(_), .. });
                let understood = updates::events(SessionUpdate::UsageUpdate(update), &mut self.calls, out);
                if let Some(cost) = self.cost.of_turn().filter(|_| is_news && in_turn) {
                    let usage = Usage { cost_usd: Some(cost), ..Usage::default() };
                    out.push(Action::Event(Event::Usage(Box::new(usage))));
                }
                understood
            }
            update => updates::events(update, &mut self.calls, out),
        }
    }

    /// Handles the answer to a request of ours; `line` contains it.
    fn handle_response(&mut self, purpose: AcpPurpose, answer: AcpResponse<'_>, line: &[u8], out: &mut Vec<Action>) {
        let done = match (purpose, std::mem::replace(&mut self.state, AcpState::Over)) {
            (AcpPurpose::Operation(operation, asked), state) => {
                self.state = state;
                self.operated(operation, asked, answer, line, out);
                Ok(())
            }
            (AcpPurpose::Initialize, AcpState::Initializing { is_opening }) => {
                self.initialized(is_opening, answer, out)
            }
            (AcpPurpose::Open, AcpState::Initializing { .. }) if answer.is_err() => {
                // It takes no other request before that is answered: the conversation is asked for again then.
                self.state = AcpState::Initializing { is_opening: false };
                Ok(())
            }
            (AcpPurpose::Open, AcpState::Initializing { .. }) => {
                let reason =
                    "it answered session/new before initialize, which came first: its row must not say opensAtOnce";
                Err(HandshakeRefusal::Protocol(reason.to_owned()))
            }
            (AcpPurpose::Find, AcpState::Finding { list, fork }) => self.found(list, fork, answer, out),
            (AcpPurpose::Open, AcpState::Opening { opening }) => self.opened(opening, answer, out),
            (AcpPurpose::Configure, AcpState::Configuring { session, setting, asked }) => {
                self.configured(session, &setting, &asked, answer, out)
            }
            (AcpPurpose::Prompt, AcpState::Ready { session, activity: AcpActivity::Turn(turn) }) => {
                self.prompt_answered(session, turn, answer, out);
                Ok(())
            }
            (
                AcpPurpose::Compact,
                AcpState::Ready { session, activity: AcpActivity::Compacting { operation, said } },
            ) => {
                self.state = AcpState::Ready { session, activity: AcpActivity::Idle };
                self.end_open(ended::COMPACTED, out);
                self.compacted(operation, said, answer, out);
                Ok(())
            }
            (_, state) => {
                self.state = state;
                Ok(())
            }
        };
        if let Err(refused) = done {
            self.refuse(refused, out);
        }
    }

    /// Sends a prompt.
    pub(super) fn send_prompt(&mut self, session: &str, prompt: &Prompt, out: &mut Vec<Action>) -> Result<()> {
        let blocks = turn::blocks(prompt, self.cwd(), &self.offer.capabilities.prompt_capabilities);
        let mut blocks = blocks.map_err(|operation| self.unsupported(operation))?;
        if let Some(system_prompt) = self.system_prompt.take() {
            blocks.insert(0, system_prompt.into());
        }
        self.send_blocks(session, &blocks, AcpPurpose::Prompt, out);
        Ok(())
    }

    pub(super) fn send_blocks(
        &mut self,
        session: &str,
        blocks: &[ContentBlock],
        purpose: AcpPurpose,
        out: &mut Vec<Action>,
    ) {
        self.is_in_replay = false;
        self.output.answer.begin();
        let params = json!({ "sessionId": session, "prompt": blocks });
        self.peer.request("session/prompt", Some(params), purpose, out);
    }

    fn prompt_answered(&mut self, session: String, turn: AcpTurn, answer: AcpResponse<'_>, out: &mut Vec<Action>) {
        let mut turn = turn;
        let is_prompt = |purpose: &AcpPurpose| matches!(purpose, AcpPurpose::Prompt);
        if self.steering == SteeringMode::Unanswered {
            self.peer.pending.forget(is_prompt);
        }
        if let Some(failure) = answer.as_ref().ok().and_then(|result| WrapperFailure::of_answer(result)) {
            out.extend(failure.events().into_iter().map(Action::Event));
        } else {
            match answer.and_then(turn::complete) {
                // An agent that ends its turn at a refusal may do so before it hears the cancellation.
                Ok((StopReason::EndTurn, usage)) if turn.refused => turn.record_answer((StopReason::Cancelled, usage)),
                Ok(complete) => turn.record_answer(complete),
                // However an agent puts it, it does as it was told.
                Err(_) if turn.cancelled => turn.record_answer((StopReason::Cancelled, None)),
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
        if self.peer.pending.count(is_prompt) > 0 {
            self.state = AcpState::Ready { session, activity: AcpActivity::Turn(turn) };
            return;
        }
        self.state = AcpState::Ready { session, activity: AcpActivity::Idle };
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
    pub(super) fn cancel_requests(&mut self, out: &mut Vec<Action>) {
        if let AcpState::Ready { activity: AcpActivity::Turn(turn), .. } = &mut self.state {
            turn.refused |= !self.permissions.is_empty();
        }
        self.permissions.cancel_all(out);
    }
}

impl JsonLinesAgent for AcpSession {
    fn output(&mut self) -> &mut AgentOutput {
        &mut self.output
    }

    fn delta(&mut self, line: &[u8], out: &mut Vec<Action>) -> bool {
        if let AcpState::Ready { session, .. } = &self.state
            && !self.is_in_replay
            && let Some(event) = TextChunk::event(line, session)
        {
            self.emit_text(event, out);
            return true;
        }
        false
    }

    fn message(&mut self, line: &[u8], out: &mut Vec<Action>) -> bool {
        let message = match serde_json::from_slice::<RpcMessage<'_>>(line) {
            Ok(message) if !matches!(self.state, AcpState::Over) => message,
            _ => return false,
        };
        match message.incoming() {
            RpcIncoming::Request { id, method, params } => self.handle_request(id, method, params, out),
            RpcIncoming::Notification { method: "session/update", params } => self.handle_update(params, out),
            // An extension of the protocol: a client that does not know it ignores it.
            RpcIncoming::Notification { method, .. } => method.starts_with('_'),
            RpcIncoming::Answer { id, answer } => {
                let Some(purpose) = self.peer.answered(id) else { return false };
                self.handle_response(purpose, wire::answer(answer), line, out);
                true
            }
            RpcIncoming::Invalid => false,
        }
    }

    fn oversized(&mut self, head: Value, out: &mut Vec<Action>) {
        let error = v1::Error::internal_error().data("longer than what is taken");
        match self.peer.dropped(&head) {
            RpcDropped::Request(id) => wire::RPC.refuse(&id, error, out),
            RpcDropped::Answer(purpose) => {
                let answer = json!({ "jsonrpc": "2.0", "id": head["id"], "error": error });
                self.handle_response(purpose, Err(error), answer.to_string().as_bytes(), out);
            }
            RpcDropped::Unknown => {}
            RpcDropped::Notification => self.calls.end_all(ended::DROPPED, out),
        }
    }

    fn stderr_line(&mut self, line: &[u8], out: &mut Vec<Action>) {
        let in_turn = matches!(self.state, AcpState::Ready { activity: AcpActivity::Turn(_), .. });
        let retry = failures::retry_in_stderr(line).filter(|_| in_turn && self.offer.quirks.retries_in_stderr);
        if let Some(retry) = retry {
            self.asks_again(retry, out);
        }
        out.push(stderr_line(line));
    }
}
