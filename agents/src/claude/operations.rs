//! What the agent is asked beside prompts: control requests of ours, and who waits for their answers.

use ipc_protocol::{Json, Operation, WireError, message::RequestId};
use serde::Serialize;
use serde_json::{Value, json, value::RawValue};

use super::wire::{self, Answer, Refused};
use crate::Action;

/// Most requests that wait for their answer.
const MAX_PENDING: usize = 64;
/// Most of them that are to end the turn: those have room of their own.
const MAX_INTERRUPTS: usize = 8;
/// The efforts that the agent has. It takes any other word too, and does nothing then.
const EFFORTS: [&str; 5] = ["low", "medium", "high", "xhigh", "max"];

/// What a request of ours is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The handshake.
    Initialize,
    /// A part of the session's configuration: it is ready when the last is answered.
    Configure,
    /// The MCP servers of the session's configuration. The agent may try for long to reach one; it waits for them itself before its
    /// first turn.
    Servers,
    /// To end the turn.
    Interrupt,
    /// A step of an operation of which more follow.
    Step(RequestId),
    /// An operation that is answered with `null`.
    Change(RequestId),
    /// An operation that is answered with the response.
    Ask(RequestId),
    /// An operation that is answered with the whole answer.
    Native(RequestId),
}

impl Purpose {
    /// The operation it is a part of.
    fn operation(self) -> Option<RequestId> {
        match self {
            Self::Step(request) | Self::Change(request) | Self::Ask(request) | Self::Native(request) => Some(request),
            Self::Initialize | Self::Configure | Self::Servers | Self::Interrupt => None,
        }
    }
}

/// The requests that wait, oldest first.
#[derive(Debug, Default)]
pub(super) struct Pending {
    waiting: Vec<(String, Purpose)>,
    asked: u64,
}

impl Pending {
    /// Sends a request.
    pub(super) fn send(&mut self, purpose: Purpose, request: impl Serialize, out: &mut Vec<Action>) {
        self.asked += 1;
        let id = format!("agent-proxy-{}", self.asked);
        wire::request(&id, request, out);
        self.waiting.push((id, purpose));
    }

    /// What the request `id` was for. `None` if we asked no such thing.
    pub(super) fn answered(&mut self, id: &str) -> Option<Purpose> {
        let at = self.waiting.iter().position(|(waiting, _)| waiting == id)?;
        Some(self.waiting.remove(at).1)
    }

    /// Whether nothing of the session's configuration is open any more.
    pub(super) fn configured(&self) -> bool {
        !self.waiting.iter().any(|(_, purpose)| *purpose == Purpose::Configure)
    }

    pub(super) fn full(&self) -> bool {
        self.waiting.len() >= MAX_PENDING
    }

    /// Ends the turn. Whether there was room to ask for it.
    pub(super) fn interrupt(&mut self, out: &mut Vec<Action>) -> bool {
        let interrupts = self.waiting.iter().filter(|(_, purpose)| *purpose == Purpose::Interrupt).count();
        if interrupts < MAX_INTERRUPTS {
            self.send(Purpose::Interrupt, json!({ "subtype": "interrupt", "cancel_queued": true }), out);
        }
        interrupts < MAX_INTERRUPTS
    }

    /// Answers whoever waits for `purpose`, if somebody does.
    pub(super) fn reply(
        &mut self,
        purpose: Purpose,
        answer: &Answer<'_>,
        whole: &RawValue,
        agent: &str,
        out: &mut Vec<Action>,
    ) {
        let Some(request) = purpose.operation() else { return };
        let reply = match (purpose, answer.outcome()) {
            (Purpose::Native(_), _) => json(whole.get(), agent),
            (Purpose::Step(_), Ok(_)) => return,
            (Purpose::Ask(_), Ok(response)) => json(response, agent),
            (_, Ok(_)) => Ok(Json::null()),
            (_, Err(refused)) => Err(error(refused, agent)),
        };
        // It is answered once; what the agent says to its other steps is nobody's.
        self.waiting.retain(|(_, other)| other.operation() != Some(request));
        out.push(Action::Reply { request, reply });
    }

    /// The agent is gone: nobody waits any more.
    pub(super) fn close_all(&mut self, out: &mut Vec<Action>) {
        let mut closed = Vec::new();
        for request in std::mem::take(&mut self.waiting).into_iter().filter_map(|(_, purpose)| purpose.operation()) {
            if !closed.contains(&request) {
                closed.push(request);
                out.push(Action::Reply { request, reply: Err(gone()) });
            }
        }
    }
}

/// The agent went before it answered.
pub(super) fn gone() -> WireError {
    WireError::AgentDied { reason: "its output ended before it answered".to_owned() }
}

/// A refusal as an error.
pub(super) fn error(refused: Refused, agent: &str) -> WireError {
    let agent = agent.to_owned();
    if refused.unknown {
        return WireError::Unsupported { agent, operation: format!("do that in this version ({})", refused.reason) };
    }
    WireError::AgentRefused { agent, reason: refused.reason }
}

fn json(text: &str, agent: &str) -> Result<Json, WireError> {
    Json::new(text).map_err(|error| WireError::AgentProtocol { agent: agent.to_owned(), reason: error.to_string() })
}

/// The permission mode of the agent that `mode` is: `build` and `plan`, or one of its own.
pub(super) fn permission_mode(mode: &str) -> &str {
    if mode == "build" { "default" } else { mode }
}

/// The requests that set how hard it thinks, in order. `off` was it that thinking was turned off before.
///
/// # Errors
/// What the agent cannot, as the end of "agent … cannot".
pub(super) fn thinking(level: &str, off: bool) -> Result<Vec<Value>, String> {
    let budget = |tokens: Value| json!({ "subtype": "set_max_thinking_tokens", "max_thinking_tokens": tokens });
    if level == "off" {
        return Ok(vec![budget(json!(0))]);
    }
    if let Ok(tokens) = level.parse::<u32>() {
        return Ok(vec![budget(json!(tokens))]);
    }
    if !EFFORTS.contains(&level) {
        return Err(format!("think {level:?}: it has off, {}, or a number of tokens", EFFORTS.join(", ")));
    }
    let effort = json!({ "subtype": "apply_flag_settings", "settings": { "effortLevel": level } });
    Ok(if off { vec![budget(Value::Null), effort] } else { vec![effort] })
}

/// The one request that an operation is.
pub(super) enum Simple {
    /// Answered with `null`.
    Change(Value),
    /// Answered with the response.
    Ask(Value),
    /// Answered with the whole answer.
    Native(Value),
}

/// `operation` as a single request; `Ok(None)` for one that takes more than that.
///
/// # Errors
/// What the agent cannot, as the end of "agent … cannot".
pub(super) fn simple(operation: &Operation) -> Result<Option<Simple>, String> {
    Ok(Some(match operation {
        Operation::SetModel { model } => Simple::Change(json!({ "subtype": "set_model", "model": model })),
        Operation::SetMode { mode } => {
            Simple::Change(json!({ "subtype": "set_permission_mode", "mode": permission_mode(mode) }))
        }
        Operation::GetState => Simple::Ask(json!({ "subtype": "get_context_usage", "detail": "summary" })),
        Operation::Native { message } => Simple::Native(native(message.value())?),
        Operation::GetMessages => {
            return Err(
                "tell its conversation: it keeps one in a file of its own, and has no request for it".to_owned()
            );
        }
        Operation::SetThinking { .. } | Operation::Compact | Operation::ListSessions => return Ok(None),
    }))
}

/// The request in a message of the agent's protocol: a `control_request`, or what one has in `request`.
fn native(message: Value) -> Result<Value, String> {
    let request = match message.get("type").and_then(Value::as_str) {
        Some("control_request") => message.get("request").cloned().unwrap_or_default(),
        Some(other) => {
            return Err(format!(
                "take a message of type {other:?} so: only a control_request has an answer; prompts and answers to permission \
                 requests have calls of their own"
            ));
        }
        None => message,
    };
    match request.get("subtype") {
        Some(Value::String(_)) => Ok(request),
        _ => Err("take a control_request without a subtype".to_owned()),
    }
}
