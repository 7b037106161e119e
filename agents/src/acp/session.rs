//! The state of the conversation: handshake, turns, requests in both directions.

use agent_client_protocol_schema::v1::{self, ContentBlock, PromptRequest, PromptResponse, SessionId};
use ipc_protocol::{
    AgentSessionConfig, Event, PermissionAnswer, PermissionMode, ResolvedBy, StopReason, Usage, WireError,
};
use serde_json::value::RawValue;

use super::{
    handshake::{self, Refused},
    permissions::Permissions,
    updates::{self, ToolCalls},
    wire::{self, Answer, Chunk, Message},
};
use crate::{Action, lines::MAX_LINE};

/// Most prompts that steer one turn.
const MAX_STEERS: usize = 64;
/// An internal error of the agent's: often its model's, and often gone the next time.
const INTERNAL_ERROR: i32 = -32603;

/// Where the conversation is. Numbers are ids of our requests.
#[derive(Debug)]
enum State {
    New,
    Initializing(i64),
    OpeningSession(i64),
    SettingModel(i64, SessionId),
    Ready(SessionId, Option<Turn>),
    /// Failed, or the agent is gone.
    Over,
}

/// A turn that runs.
#[derive(Debug)]
struct Turn {
    /// Our prompts that wait for an answer: the first, and those that steer it. The turn ends with the last answer.
    prompts: Vec<i64>,
    steers: usize,
    cancelled: bool,
    /// What the last answer said.
    answer: Option<(StopReason, Option<Box<Usage>>)>,
}

#[derive(Debug)]
pub(super) struct Session {
    agent: String,
    config: AgentSessionConfig,
    steer_by_prompt: bool,
    state: State,
    requests: i64,
    /// Not yet said; the protocol has no place for it but the first prompt.
    system_prompt: Option<String>,
    permissions: Permissions,
    calls: ToolCalls,
}

impl Session {
    pub(super) fn new(agent: String, mut config: AgentSessionConfig, steer_by_prompt: bool) -> Self {
        let system_prompt = config.system_prompt.take();
        Self {
            agent,
            config,
            steer_by_prompt,
            state: State::New,
            requests: 0,
            system_prompt,
            permissions: Permissions::default(),
            calls: ToolCalls::default(),
        }
    }

    /// Sends a request and returns its id.
    fn request(&mut self, method: &str, params: impl serde::Serialize, out: &mut Vec<Action>) -> i64 {
        self.requests += 1;
        wire::call(Some(self.requests), method, params, out);
        self.requests
    }

    fn unsupported(&self, operation: &str) -> WireError {
        WireError::Unsupported { agent: self.agent.clone(), operation: operation.to_owned() }
    }

    pub(super) fn start(&mut self, out: &mut Vec<Action>) {
        if matches!(self.state, State::New) {
            self.state = State::Initializing(self.request("initialize", handshake::initialize(), out));
        }
    }

    /// Takes a whole line.
    pub(super) fn line(&mut self, line: &[u8], out: &mut Vec<Action>) {
        if let State::Ready(session, _) = &self.state
            && let Some(event) = Chunk::event(line, &session.0)
        {
            out.push(Action::Event(event));
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
            (Some(id), None) => id.get().parse().is_ok_and(|id: i64| self.answered(id, wire::answer(&message), out)),
            (None, Some("session/update")) => self.updated(&message, out),
            (None, _) => false,
        };
        if !understood {
            log(line, out);
        }
    }

    /// A request of the agent's.
    fn asked(&mut self, id: &RawValue, method: &str, message: &Message<'_>, out: &mut Vec<Action>) -> bool {
        let State::Ready(_, turn) = &self.state else {
            wire::refuse(id, v1::Error::invalid_request().data("the session is not ready"), out);
            return false;
        };
        if method != "session/request_permission" {
            wire::refuse(id, v1::Error::method_not_found(), out);
            return false;
        }
        let cancelled = turn.as_ref().is_some_and(|turn| turn.cancelled);
        let asked =
            message.params().map_err(v1::Error::from).and_then(|request| self.permissions.ask(id, request, out));
        let permission = match asked {
            Ok(permission) => permission,
            Err(error) => {
                wire::refuse(id, error, out);
                return false;
            }
        };
        match self.config.permission_mode {
            // It is not to be answered any more, and the agent may wait for it before it ends the turn.
            _ if cancelled => self.permissions.cancel_all(out),
            PermissionMode::Ask => {}
            PermissionMode::Allow => self.permissions.answer_by_mode(&permission, &PermissionAnswer::Allow, out),
            PermissionMode::Deny => self.permissions.answer_by_mode(&permission, &PermissionAnswer::Deny, out),
        }
        true
    }

    fn updated(&mut self, message: &Message<'_>, out: &mut Vec<Action>) -> bool {
        let (State::SettingModel(_, session) | State::Ready(session, _)) = &self.state else { return false };
        match message.params::<v1::SessionNotification>() {
            Ok(update) if update.session_id == *session => updates::events(update.update, &mut self.calls, out),
            _ => false,
        }
    }

    /// An answer to our request `id`. `false` if we asked no such thing.
    fn answered(&mut self, id: i64, answer: Answer<'_>, out: &mut Vec<Action>) -> bool {
        let done = match &mut self.state {
            State::Initializing(request) if *request == id => self.initialized(answer, out),
            State::OpeningSession(request) if *request == id => self.opened(answer, out),
            State::SettingModel(request, session) if *request == id => {
                let session = session.clone();
                self.model_set(answer, session, out)
            }
            State::Ready(_, Some(turn)) if turn.prompts.contains(&id) => {
                turn.prompts.retain(|prompt| *prompt != id);
                self.prompt_answered(answer, out);
                Ok(())
            }
            _ => return false,
        };
        if let Err(refused) = done {
            let error = refused.of(&self.agent);
            self.state = State::Over;
            out.push(Action::Fail(error));
        }
        true
    }

    fn initialized(&mut self, answer: Answer<'_>, out: &mut Vec<Action>) -> Result<(), Refused> {
        handshake::initialized(accepted("initialize", answer)?, &self.config)?;
        let params = handshake::new_session(&self.config);
        self.state = State::OpeningSession(self.request("session/new", params, out));
        Ok(())
    }

    fn opened(&mut self, answer: Answer<'_>, out: &mut Vec<Action>) -> Result<(), Refused> {
        match handshake::opened(accepted("session/new", answer)?, self.config.model.as_deref())? {
            (session, None) => self.ready(session, out),
            (session, Some(set)) => {
                self.state = State::SettingModel(self.request(set.method(), &set, out), session);
            }
        }
        Ok(())
    }

    fn model_set(&mut self, answer: Answer<'_>, session: SessionId, out: &mut Vec<Action>) -> Result<(), Refused> {
        accepted("the request to set its model", answer)?;
        self.ready(session, out);
        Ok(())
    }

    fn ready(&mut self, session: SessionId, out: &mut Vec<Action>) {
        out.push(Action::Ready { native_session_id: Some(session.0.as_ref().to_owned()) });
        self.state = State::Ready(session, None);
    }

    fn send_prompt(&mut self, session: SessionId, text: &str, out: &mut Vec<Action>) -> i64 {
        let mut blocks: Vec<ContentBlock> = self.system_prompt.take().into_iter().map(ContentBlock::from).collect();
        blocks.push(text.into());
        self.request("session/prompt", PromptRequest::new(session, blocks), out)
    }

    pub(super) fn prompt(&mut self, text: &str, out: &mut Vec<Action>) -> Result<(), WireError> {
        let session = match &self.state {
            State::Ready(session, None) => session.clone(),
            State::Ready(_, Some(_)) => return Err(WireError::Busy),
            _ => return Err(self.unsupported("take a prompt: its session is not ready, or over")),
        };
        let prompt = self.send_prompt(session.clone(), text, out);
        let turn = Turn { prompts: vec![prompt], steers: 0, cancelled: false, answer: None };
        self.state = State::Ready(session, Some(turn));
        Ok(())
    }

    pub(super) fn steer(&mut self, text: &str, out: &mut Vec<Action>) -> Result<(), WireError> {
        if !self.steer_by_prompt {
            return Err(self.unsupported("be steered while a turn runs: abort the turn, or queue the prompt"));
        }
        let State::Ready(session, Some(turn)) = &mut self.state else {
            return Err(self.unsupported("be steered: no turn runs"));
        };
        if turn.steers >= MAX_STEERS {
            return Err(WireError::Busy);
        }
        turn.steers += 1;
        let session = session.clone();
        let prompt = self.send_prompt(session, text, out);
        if let State::Ready(_, Some(turn)) = &mut self.state {
            turn.prompts.push(prompt);
        }
        Ok(())
    }

    fn prompt_answered(&mut self, answer: Answer<'_>, out: &mut Vec<Action>) {
        let State::Ready(_, slot @ Some(_)) = &mut self.state else { return };
        let Some(turn) = slot else { return };
        match answer.and_then(complete) {
            Ok(complete) => turn.answer = Some(complete),
            Err(error) => out.push(Action::Event(Event::Error {
                code: i32::from(error.code).to_string(),
                message: wire::describe(&error),
                retryable: i32::from(error.code) == INTERNAL_ERROR,
            })),
        }
        if !turn.prompts.is_empty() {
            return;
        }
        let answer = turn.answer.take();
        *slot = None;
        self.permissions.cancel_all(out);
        if let Some((stop_reason, usage)) = answer {
            out.push(Action::Event(Event::Complete { stop_reason, usage }));
        }
        out.push(Action::TurnEnded);
    }

    pub(super) fn abort(&mut self, out: &mut Vec<Action>) {
        let State::Ready(session, Some(turn)) = &mut self.state else { return };
        turn.cancelled = true;
        // First of all: some agents do not hear the cancellation while they wait for an answer.
        self.permissions.cancel_all(out);
        wire::call(None, "session/cancel", v1::CancelNotification::new(session.clone()), out);
    }

    pub(super) fn permission(
        &mut self,
        id: &str,
        answer: &PermissionAnswer,
        out: &mut Vec<Action>,
    ) -> Result<(), WireError> {
        self.permissions.answer(id, answer, ResolvedBy::User, out)
    }

    /// The agent is gone.
    pub(super) fn finish(&mut self, out: &mut Vec<Action>) {
        self.permissions.close_all(out);
        let waited_for = match std::mem::replace(&mut self.state, State::Over) {
            State::Ready(_, Some(_)) => {
                out.push(Action::Event(Event::Error {
                    code: "agent-exited".to_owned(),
                    message: "the agent's output ended during the turn".to_owned(),
                    retryable: false,
                }));
                out.push(Action::TurnEnded);
                return;
            }
            State::Initializing(_) => "initialize",
            State::OpeningSession(_) => "session/new",
            State::SettingModel(..) => "the request to set its model",
            State::New | State::Ready(_, None) | State::Over => return,
        };
        let reason = format!("its output ended before it answered {waited_for}");
        out.push(Action::Fail(WireError::AgentDied { reason }));
    }
}

fn accepted<'a>(what: &str, answer: Answer<'a>) -> Result<&'a str, Refused> {
    answer.map_err(|error| {
        let hint = match error.code {
            v1::ErrorCode::AuthRequired => "; log it in, or give it a key in its environment",
            _ => "",
        };
        let (code, text) = (i32::from(error.code), wire::describe(&error));
        Refused::Protocol(format!("it answered {what} with error {code}: {text}{hint}"))
    })
}

/// What the answer to a prompt says.
fn complete(result: &str) -> Result<(StopReason, Option<Box<Usage>>), v1::Error> {
    let response = match serde_json::from_str::<PromptResponse>(result) {
        Ok(response) => response,
        Err(error) => {
            let value: serde_json::Value = serde_json::from_str(result).unwrap_or_default();
            let reason = value.get("stopReason").and_then(serde_json::Value::as_str).ok_or(error)?;
            return Ok((StopReason::Other(reason.chars().take(200).collect()), None));
        }
    };
    let reason = match response.stop_reason {
        v1::StopReason::EndTurn => StopReason::EndTurn,
        v1::StopReason::Cancelled => StopReason::Cancelled,
        v1::StopReason::Refusal => StopReason::Refusal,
        v1::StopReason::MaxTokens => StopReason::MaxTokens,
        v1::StopReason::MaxTurnRequests => StopReason::MaxRequests,
        other => StopReason::Other(format!("{other:?}")),
    };
    let usage = match (response.usage, response.meta) {
        (Some(usage), _) => Some(Usage {
            input_tokens: Some(usage.input_tokens),
            output_tokens: Some(usage.output_tokens),
            cache_read_tokens: usage.cached_read_tokens,
            cache_write_tokens: usage.cached_write_tokens,
            cost_usd: None,
        }),
        // Gemini's place for it.
        (None, Some(meta)) => meta.get("quota").and_then(|quota| quota.get("token_count")).map(|count| Usage {
            input_tokens: count.get("input_tokens").and_then(serde_json::Value::as_u64),
            output_tokens: count.get("output_tokens").and_then(serde_json::Value::as_u64),
            ..Usage::default()
        }),
        (None, None) => None,
    };
    Ok((reason, usage.map(Box::new)))
}

/// A line that is not understood, in pieces that can be passed on.
fn log(line: &[u8], out: &mut Vec<Action>) {
    out.extend(line.chunks(MAX_LINE).map(|piece| {
        let text = String::from_utf8_lossy(piece).into_owned();
        Action::Event(Event::Log { stream: "stdout".to_owned(), text })
    }));
}
