//! JSON lines of the agent: lazy decoding of incoming lines, and encoding of outgoing ones.

use std::borrow::Cow;

use ipc_protocol::Event;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{
    Action,
    kit::{
        bounds::words,
        json_lines::{hot, write_line},
    },
};

/// Piece of the model's answer: the only thing that a line of the hot path is decoded to.
#[derive(Debug, Deserialize)]
pub(super) struct ClaudeDelta<'a> {
    #[serde(rename = "type")]
    _kind: StreamEvent,
    event: ClaudeDeltaEvent<'a>,
    #[serde(borrow, default)]
    parent_tool_use_id: Option<Cow<'a, str>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StreamEvent {
    StreamEvent,
}

#[derive(Debug, Deserialize)]
struct ClaudeDeltaEvent<'a> {
    #[serde(rename = "type")]
    _kind: BlockDelta,
    #[serde(borrow)]
    delta: DeltaText<'a>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum BlockDelta {
    ContentBlockDelta,
}

/// Text of a delta. The other types (signatures, citations) are not decoded.
#[derive(Debug, Deserialize)]
struct DeltaText<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    text: Option<String>,
    thinking: Option<String>,
}

impl ClaudeDelta<'_> {
    /// Decodes a line of the hot path. Returns `None` for any other line, and `Some(None)` for a piece that is no event of its own: a
    /// part of a tool's input, which comes complete later, or of a sub-agent's text.
    pub(super) fn of(line: &[u8]) -> Option<Option<Event>> {
        let delta: ClaudeDelta<'_> = hot(line)?;
        if delta.parent_tool_use_id.is_some() {
            return Some(None);
        }
        let DeltaText { kind, text, thinking } = delta.event.delta;
        Some(match kind.as_ref() {
            "text_delta" => text.map(|text| Event::Text { text }),
            "thinking_delta" => thinking.map(|text| Event::Thinking { text }),
            _ => None,
        })
    }
}

/// Fields that tell lines apart.
#[derive(Debug, Deserialize)]
pub(super) struct LineHead<'a> {
    #[serde(rename = "type", borrow)]
    pub(super) kind: Cow<'a, str>,
    #[serde(borrow, default)]
    pub(super) subtype: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(super) session_id: Option<Cow<'a, str>>,
    /// Tool call that started the line's sub-agent.
    #[serde(borrow, default)]
    pub(super) parent_tool_use_id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(super) agent_id: Option<Cow<'a, str>>,
}

/// Contents of a `control_request`: a request from the agent.
#[derive(Debug, Deserialize)]
pub(super) struct ControlRequest<'a> {
    #[serde(borrow)]
    pub(super) request_id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) request: &'a RawValue,
}

/// Contents of a `control_cancel_request`: the agent withdraws a request.
#[derive(Debug, Deserialize)]
pub(super) struct ControlCancel<'a> {
    #[serde(borrow)]
    pub(super) request_id: Cow<'a, str>,
}

/// Contents of a `control_response`: the answer to one of our requests.
#[derive(Debug, Deserialize)]
pub(super) struct ControlResponse<'a> {
    #[serde(borrow)]
    pub(super) response: &'a RawValue,
}

/// Kind of a request.
#[derive(Debug, Deserialize)]
pub(super) struct ControlSubtype<'a> {
    #[serde(borrow)]
    pub(super) subtype: Cow<'a, str>,
}

/// Answer to an interrupt.
#[derive(Debug, Default, Deserialize)]
pub(super) struct InterruptResponse {
    /// Messages of ours that the agent had not started on.
    #[serde(default)]
    pub(super) cancelled: Vec<String>,
}

/// Contents of a `command_lifecycle` line: the progress of one of our messages.
#[derive(Debug, Deserialize)]
pub(super) struct CommandLifecycle<'a> {
    #[serde(borrow)]
    pub(super) command_uuid: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) state: Cow<'a, str>,
}

/// Contents of a [`ControlResponse`].
#[derive(Debug, Deserialize)]
pub(super) struct ControlOutcome<'a> {
    #[serde(borrow)]
    pub(super) subtype: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) request_id: Cow<'a, str>,
    #[serde(borrow, default)]
    pub(super) response: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) error: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(super) error_code: Option<Cow<'a, str>>,
}

/// Reason why the agent did not do what we asked.
#[derive(Debug)]
pub(super) struct ControlRefusal {
    pub(super) reason: String,
    /// True if the agent does not know the request.
    pub(super) unknown: bool,
}

impl<'a> ControlOutcome<'a> {
    /// Returns the response as JSON text.
    pub(super) fn outcome(&self) -> Result<&'a str, ControlRefusal> {
        if self.subtype == "success" {
            return Ok(self.response.map_or("null", RawValue::get));
        }
        let reason = self.error.as_deref().unwrap_or("no reason given");
        let unknown = self.error_code.as_deref() == Some("unsupported_request")
            || reason.starts_with("Unsupported control request subtype");
        Err(ControlRefusal { reason: words(reason), unknown })
    }
}

#[derive(Serialize)]
struct OutgoingControlRequest<'a, R> {
    r#type: &'static str,
    request_id: &'a str,
    request: R,
}

#[derive(Serialize)]
struct OutgoingControlResponse<R> {
    r#type: &'static str,
    response: R,
}

#[derive(Serialize)]
struct ControlSuccess<'a, R> {
    subtype: &'static str,
    request_id: &'a str,
    response: R,
}

#[derive(Serialize)]
struct ControlFailure<'a> {
    subtype: &'static str,
    request_id: &'a str,
    error: &'a str,
}

#[derive(Serialize)]
struct OutgoingUserLine<'a, C> {
    r#type: &'static str,
    session_id: &'static str,
    parent_tool_use_id: Option<()>,
    uuid: &'a str,
    message: UserMessage<C>,
}

#[derive(Serialize)]
struct UserMessage<C> {
    role: &'static str,
    content: C,
}

/// Writes a request.
pub(super) fn request(id: &str, request: impl Serialize, out: &mut Vec<Action>) {
    write_line(&OutgoingControlRequest { r#type: "control_request", request_id: id, request }, out);
}

/// Answers a request from the agent.
pub(super) fn reply(id: &str, response: impl Serialize, out: &mut Vec<Action>) {
    let response = ControlSuccess { subtype: "success", request_id: id, response };
    write_line(&OutgoingControlResponse { r#type: "control_response", response }, out);
}

/// Refuses a request from the agent.
pub(super) fn refuse(id: &str, error: &str, out: &mut Vec<Action>) {
    let response = ControlFailure { subtype: "error", request_id: id, error };
    write_line(&OutgoingControlResponse { r#type: "control_response", response }, out);
}

/// Writes a user message, named `uuid`.
pub(super) fn user(uuid: &str, content: impl Serialize, out: &mut Vec<Action>) {
    let message = UserMessage { role: "user", content };
    write_line(&OutgoingUserLine { r#type: "user", session_id: "", parent_tool_use_id: None, uuid, message }, out);
}
