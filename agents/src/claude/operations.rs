//! Operations: control requests to the agent, and the callers that wait for their answers.

use ipc_protocol::{Json, Operation, WireError, message::RequestId};
use serde::Serialize;
use serde_json::{Value, json, value::RawValue};

use super::wire::{self, ControlOutcome, ControlRefusal};
use crate::{
    Action, Result,
    kit::{
        choices::{AgentChoices, choices},
        pending::PendingRequests,
        unanswered,
    },
};

/// Most requests that wait for an answer.
const MAX_PENDING: usize = 64;
/// Most open requests to interrupt the turn; `MAX_PENDING` does not limit these.
const MAX_INTERRUPTS: usize = 8;
/// Modes that need no flag at the agent's start.
const MODES: [&str; 3] = ["default", "acceptEdits", "plan"];
/// Efforts of the agent. The agent accepts any other word too, and then does nothing.
const EFFORTS: [&str; 5] = ["low", "medium", "high", "xhigh", "max"];

/// Purpose of a control request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaudeRequestPurpose {
    /// The handshake.
    Initialize,
    /// Part of the session's configuration. The agent is ready when the last part is answered.
    Configure,
    /// MCP servers of the session's configuration. The agent may take long to reach one; it waits for them itself before its first
    /// turn.
    Servers,
    /// Interrupts the turn.
    Interrupt,
    /// Step of an operation that has further steps.
    Step(RequestId),
    /// Operation that is answered with `null`.
    Change(RequestId),
    /// Operation that is answered with the response.
    Ask(RequestId),
    /// Operation that is answered with the complete answer.
    Native(RequestId),
}

impl ClaudeRequestPurpose {
    /// Returns the operation that the request belongs to.
    fn operation(self) -> Option<RequestId> {
        match self {
            Self::Step(request) | Self::Change(request) | Self::Ask(request) | Self::Native(request) => Some(request),
            Self::Initialize | Self::Configure | Self::Servers | Self::Interrupt => None,
        }
    }
}

/// Beginning of the ids of our requests; a number follows.
const ID_PREFIX: &str = "agent-proxy-";

/// Requests that wait for an answer.
#[derive(Debug, Default)]
pub(super) struct ClaudePending(PendingRequests<ClaudeRequestPurpose>);

impl ClaudePending {
    /// Sends a request.
    pub(super) fn send(&mut self, purpose: ClaudeRequestPurpose, request: impl Serialize, out: &mut Vec<Action>) {
        let id = format!("{ID_PREFIX}{}", self.0.add(purpose));
        wire::request(&id, request, out);
    }

    /// Removes the request `id` and returns its purpose, or `None` if there is no such request.
    pub(super) fn take(&mut self, id: &str) -> Option<ClaudeRequestPurpose> {
        self.0.take(id.strip_prefix(ID_PREFIX)?.parse().ok()?)
    }

    /// Returns whether the session's configuration is complete.
    pub(super) fn is_configured(&self) -> bool {
        self.0.count(|purpose| *purpose == ClaudeRequestPurpose::Configure) == 0
    }

    pub(super) fn is_full(&self) -> bool {
        self.0.len() >= MAX_PENDING
    }

    /// Interrupts the turn. Returns whether there was room for the request.
    pub(super) fn interrupt(&mut self, out: &mut Vec<Action>) -> bool {
        let interrupts = self.0.count(|purpose| *purpose == ClaudeRequestPurpose::Interrupt);
        if interrupts < MAX_INTERRUPTS {
            self.send(ClaudeRequestPurpose::Interrupt, json!({ "subtype": "interrupt", "cancel_queued": true }), out);
        }
        interrupts < MAX_INTERRUPTS
    }

    /// Answers the operation that `purpose` belongs to, if there is one.
    pub(super) fn reply(
        &mut self,
        purpose: ClaudeRequestPurpose,
        answer: &ControlOutcome<'_>,
        whole: &RawValue,
        agent: &str,
        out: &mut Vec<Action>,
    ) {
        let Some(request) = purpose.operation() else { return };
        let reply = match (purpose, answer.outcome()) {
            (ClaudeRequestPurpose::Native(_), _) => json(whole.get(), agent),
            (ClaudeRequestPurpose::Step(_), Ok(_)) => return,
            (ClaudeRequestPurpose::Ask(_), Ok(response)) => json(response, agent),
            (_, Ok(_)) => Ok(Json::null()),
            (_, Err(refused)) => Err(error(refused, agent)),
        };
        // An operation gets one reply; answers to its other steps are dropped.
        self.0.forget(|other| other.operation() == Some(request));
        out.push(Action::Reply { request, reply });
    }

    /// Answers all waiting operations with an error, since the agent has ended.
    pub(super) fn close_all(&mut self, out: &mut Vec<Action>) {
        let mut closed = Vec::new();
        for request in self.0.drain().filter_map(ClaudeRequestPurpose::operation) {
            if !closed.contains(&request) {
                closed.push(request);
                out.push(Action::Reply { request, reply: Err(unanswered()) });
            }
        }
    }
}

/// Converts a refusal to an error.
pub(super) fn error(refused: ControlRefusal, agent: &str) -> WireError {
    let agent = agent.to_owned();
    if refused.unknown {
        return WireError::Unsupported { agent, operation: format!("do that in this version ({})", refused.reason) };
    }
    WireError::AgentRefused { agent, reason: refused.reason }
}

fn json(text: &str, agent: &str) -> Result<Json> {
    Json::new(text).map_err(|error| WireError::AgentProtocol { agent: agent.to_owned(), reason: error.to_string() })
}

/// Returns the agent's permission mode for `mode`, which is `build`, `plan`, or a mode of the agent's own.
pub(super) fn permission_mode(mode: &str) -> &str {
    if mode == "build" { "default" } else { mode }
}

/// Returns the requests that set the thinking level, in order. `off` says whether thinking was turned off before.
///
/// # Errors
/// The missing ability, as the end of "agent … cannot".
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

/// Returns what Claude Code offers to choose from. It has no list of its models, and more modes only if it was started for them.
pub(super) fn choices_of() -> AgentChoices {
    let thinking = choices(std::iter::once("off").chain(EFFORTS));
    AgentChoices { models: None, modes: Some(choices(MODES)), thinking: Some(thinking) }
}

/// Operation that takes a single request.
pub(super) enum SingleRequest {
    /// Answered with `null`.
    Change(Value),
    /// Answered with the response.
    Ask(Value),
    /// Answered with the complete answer.
    Native(Value),
}

/// Converts `operation` to a single request, or `Ok(None)` if it takes more.
///
/// # Errors
/// The missing ability, as the end of "agent … cannot".
pub(super) fn simple(operation: &Operation) -> Result<Option<SingleRequest>, String> {
    Ok(Some(match operation {
        Operation::SetModel { model } => SingleRequest::Change(json!({ "subtype": "set_model", "model": model })),
        Operation::SetMode { mode } => {
            SingleRequest::Change(json!({ "subtype": "set_permission_mode", "mode": permission_mode(mode) }))
        }
        Operation::GetState => SingleRequest::Ask(json!({ "subtype": "get_context_usage", "detail": "summary" })),
        Operation::Native { message } => SingleRequest::Native(native(message.value())?),
        Operation::GetMessages => {
            return Err(
                "tell its conversation: it keeps one in a file of its own, and has no request for it".to_owned()
            );
        }
        Operation::SetThinking { .. }
        | Operation::Compact
        | Operation::CompactWith { .. }
        | Operation::ListChoices
        | Operation::ListSessions => return Ok(None),
    }))
}

/// Returns the request in a message of the agent's protocol: a `control_request`, or the contents of its `request` field.
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
