//! Messages of the server, decoded as little as possible.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, de::IgnoredAny};
use serde_json::{Value, value::RawValue};

use crate::kit::bounds::words;

/// Deserializes a field that may be missing or `null`.
pub(super) fn or_default<'de, T: Default + Deserialize<'de>, D: Deserializer<'de>>(d: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(d)?.unwrap_or_default())
}

/// Piece of text or thinking: the only thing that its line is decoded to.
#[derive(Debug, Deserialize)]
pub(super) struct OpenCodeDelta<'a> {
    #[serde(rename = "type")]
    _kind: OpenCodeDeltaKind,
    #[serde(borrow)]
    pub(super) properties: DeltaProperties<'a>,
}

#[derive(Debug, Deserialize)]
enum OpenCodeDeltaKind {
    #[serde(rename = "message.part.delta")]
    Delta,
}

#[derive(Debug, Deserialize)]
pub(super) struct DeltaProperties<'a> {
    #[serde(rename = "sessionID")]
    pub(super) session: &'a str,
    #[serde(rename = "partID")]
    pub(super) part: &'a str,
    pub(super) field: &'a str,
    pub(super) delta: String,
}

/// Event of the server.
#[derive(Debug, Deserialize)]
pub(super) struct ServerEvent<'a> {
    #[serde(rename = "type", borrow)]
    pub(super) kind: Cow<'a, str>,
    #[serde(borrow, default)]
    properties: Option<&'a RawValue>,
}

impl<'a> ServerEvent<'a> {
    /// Decodes the properties as `T`.
    pub(super) fn properties<T: Deserialize<'a>>(&self) -> Option<T> {
        serde_json::from_str(self.properties?.get()).ok()
    }
}

/// Properties of `session.status`.
#[derive(Debug, Deserialize)]
pub(super) struct StatusChanged {
    #[serde(rename = "sessionID")]
    pub(super) session: String,
    pub(super) status: RunStatus,
}

/// Activity of a session. `GET /session/status` lists it too, without the idle sessions.
#[derive(Debug, Deserialize)]
pub(super) struct RunStatus {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) attempt: Option<u32>,
    pub(super) message: Option<String>,
}

/// Properties of an event that only names its session.
#[derive(Debug, Deserialize)]
pub(super) struct SessionReference {
    #[serde(rename = "sessionID")]
    pub(super) session: String,
}

/// Properties of `session.created` and `session.updated`.
#[derive(Debug, Deserialize)]
pub(super) struct SessionChanged {
    pub(super) info: SessionInfo,
}

/// Conversation on the server.
#[derive(Debug, Deserialize)]
pub(super) struct SessionInfo {
    pub(super) id: String,
    #[serde(rename = "parentID", default)]
    pub(super) parent: Option<String>,
    pub(super) title: Option<String>,
    pub(super) directory: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) time: MessageTimes,
    /// Mode of the last prompt. Not every server tells it, nor the model.
    #[serde(default)]
    pub(super) agent: Value,
    /// Model of the last prompt: `id`, `providerID` and `variant`.
    #[serde(default)]
    pub(super) model: Value,
}

/// Slash command, as an entry of `GET /command`.
#[derive(Debug, Deserialize)]
pub(super) struct CommandInfo {
    pub(super) name: String,
    #[serde(default)]
    pub(super) description: Option<String>,
    /// Placeholders of the command's template.
    #[serde(default, deserialize_with = "or_default")]
    pub(super) hints: Vec<String>,
}

/// Times in milliseconds since 1970.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct MessageTimes {
    pub(super) created: Option<f64>,
    pub(super) updated: Option<f64>,
    pub(super) end: Option<IgnoredAny>,
    pub(super) completed: Option<IgnoredAny>,
}

/// Properties of `session.error`.
#[derive(Debug, Deserialize)]
pub(super) struct SessionError {
    #[serde(rename = "sessionID", default)]
    pub(super) session: Option<String>,
    pub(super) error: Option<ServerError>,
}

/// Error of the server or of the model.
#[derive(Debug, Deserialize)]
pub(super) struct ServerError {
    pub(super) name: String,
    #[serde(default, deserialize_with = "or_default")]
    data: ErrorData,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ErrorData {
    message: Option<String>,
    status_code: Option<u16>,
    is_retryable: Option<bool>,
}

impl ServerError {
    /// Returns the model's HTTP status, else the error's name.
    pub(super) fn code(&self) -> String {
        self.data.status_code.map_or_else(|| words(&self.name), |status| status.to_string())
    }

    /// Returns the message in one line of bounded length.
    pub(super) fn message(&self) -> String {
        let text = self.data.message.as_deref().unwrap_or(&self.name);
        words(text.lines().next().unwrap_or_default())
    }

    pub(super) fn is_retryable(&self) -> bool {
        self.data.is_retryable.unwrap_or(false)
    }

    pub(super) fn is_abort(&self) -> bool {
        self.name == "MessageAbortedError"
    }

    /// Returns whether the error means that a prompt did not start a run: those errors contain the server's stack trace.
    pub(super) fn is_of_prompt(&self) -> bool {
        self.data.message.as_ref().is_some_and(|message| message.contains("\n    at "))
    }
}

/// Properties of `message.updated`.
#[derive(Debug, Deserialize)]
pub(super) struct MessageChanged<'a> {
    #[serde(borrow)]
    pub(super) info: MessageInfo<'a>,
}

/// Message: a prompt, or one answer of the model.
#[derive(Debug, Deserialize)]
pub(super) struct MessageInfo<'a> {
    pub(super) id: String,
    #[serde(rename = "sessionID")]
    pub(super) session: String,
    pub(super) role: String,
    /// Message that this answer belongs to.
    #[serde(rename = "parentID", default)]
    pub(super) parent: Option<String>,
    /// `true` for the message that replaces the conversation after a compaction; an object for a prompt.
    #[serde(borrow, default)]
    summary: Option<&'a RawValue>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) time: MessageTimes,
    pub(super) error: Option<ServerError>,
    pub(super) finish: Option<String>,
    #[serde(rename = "providerID", default)]
    pub(super) provider: Option<String>,
    #[serde(rename = "modelID", default)]
    pub(super) model: Option<String>,
    pub(super) path: Option<MessagePath>,
    /// Mode of a prompt.
    #[serde(default)]
    pub(super) agent: Value,
    /// Model of a prompt: `modelID`, `providerID` and `variant`.
    #[serde(rename = "model", default)]
    pub(super) prompt_model: Value,
}

/// Directory in which an answer is made.
#[derive(Debug, Deserialize)]
pub(super) struct MessagePath {
    /// Directory that paths in permission requests are relative to.
    pub(super) root: Option<String>,
}

impl MessageInfo<'_> {
    pub(super) fn is_prompt(&self) -> bool {
        self.role == "user"
    }

    pub(super) fn is_summary(&self) -> bool {
        self.summary.is_some_and(|summary| summary.get() == "true")
    }
}

/// A message with its parts, as `GET /session/ID/message` has it.
#[derive(Debug, Deserialize)]
pub(super) struct WholeMessage<'a> {
    #[serde(borrow)]
    pub(super) info: MessageInfo<'a>,
    #[serde(borrow, default, deserialize_with = "or_default")]
    pub(super) parts: Vec<MessagePart<'a>>,
}

/// Properties of `message.part.updated`.
#[derive(Debug, Deserialize)]
pub(super) struct PartChanged<'a> {
    #[serde(borrow)]
    pub(super) part: MessagePart<'a>,
}

/// Part of a message.
#[derive(Debug, Deserialize)]
pub(super) struct MessagePart<'a> {
    pub(super) id: String,
    #[serde(rename = "messageID")]
    pub(super) message: String,
    #[serde(rename = "sessionID")]
    pub(super) session: String,
    #[serde(rename = "type", borrow)]
    pub(super) kind: Cow<'a, str>,
    #[serde(borrow, default)]
    pub(super) text: Option<Cow<'a, str>>,
    /// True for a text that nobody has typed.
    #[serde(default, deserialize_with = "or_default")]
    pub(super) synthetic: bool,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) time: MessageTimes,
    pub(super) tool: Option<String>,
    #[serde(rename = "callID", default)]
    pub(super) call: Option<String>,
    #[serde(borrow, default)]
    pub(super) state: Option<ToolState<'a>>,
    /// Stop reason of the model, at the end of a step.
    pub(super) reason: Option<String>,
    pub(super) tokens: Option<StepTokens>,
    pub(super) cost: Option<f64>,
    /// Type and contents of a file in an answer.
    #[serde(default, deserialize_with = "or_default")]
    pub(super) mime: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) url: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct ToolState<'a> {
    pub(super) status: String,
    #[serde(borrow, default)]
    pub(super) input: Option<&'a RawValue>,
    pub(super) title: Option<String>,
    pub(super) output: Option<String>,
    pub(super) error: Option<String>,
    #[serde(borrow, default)]
    metadata: Option<&'a RawValue>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) attachments: Vec<AttachedFile>,
}

/// File that a tool returns beside its text.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct AttachedFile {
    pub(super) mime: String,
    /// Contents, as a `data:` URL.
    pub(super) url: String,
}

/// Returns the contents of a file in base64, if it is a picture.
pub(super) fn picture<'a>(mime: &str, url: &'a str) -> Option<&'a str> {
    let (_, data) = url.strip_prefix("data:")?.split_once(";base64,")?;
    Some(data).filter(|_| mime.starts_with("image/"))
}

/// Fields of a tool's metadata that are used.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ToolMetadata {
    /// Output so far.
    pub(super) output: Option<String>,
    /// Conversation of a sub-agent.
    pub(super) session_id: Option<String>,
}

impl ToolState<'_> {
    pub(super) fn metadata(&self) -> ToolMetadata {
        self.metadata.and_then(|metadata| serde_json::from_str(metadata.get()).ok()).unwrap_or_default()
    }

    /// Returns all of the metadata; `null` if there is none.
    pub(super) fn all_metadata(&self) -> Value {
        self.metadata.and_then(|metadata| serde_json::from_str(metadata.get()).ok()).unwrap_or_default()
    }
}

/// Tokens of a step.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StepTokens {
    #[serde(deserialize_with = "or_default")]
    input: f64,
    #[serde(deserialize_with = "or_default")]
    output: f64,
    #[serde(deserialize_with = "or_default")]
    reasoning: f64,
    #[serde(deserialize_with = "or_default")]
    cache: CacheTokens,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
struct CacheTokens {
    #[serde(deserialize_with = "or_default")]
    read: f64,
    #[serde(deserialize_with = "or_default")]
    write: f64,
}

impl StepTokens {
    pub(super) fn input(&self) -> u64 {
        whole(self.input)
    }

    /// Returns the output tokens, including thinking.
    pub(super) fn output(&self) -> u64 {
        whole(self.output) + whole(self.reasoning)
    }

    pub(super) fn cache_read(&self) -> u64 {
        whole(self.cache.read)
    }

    pub(super) fn cache_write(&self) -> u64 {
        whole(self.cache.write)
    }

    /// Returns the tokens that the step leaves in the context window.
    pub(super) fn all(&self) -> u64 {
        self.input() + self.output() + self.cache_read() + self.cache_write()
    }
}

/// Converts a count, which is any number in JSON.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded just before")]
fn whole(number: f64) -> u64 {
    number.clamp(0.0, 1e15) as u64
}

/// Properties of `permission.asked`, and entry of `GET /permission`.
#[derive(Debug, Deserialize)]
pub(super) struct PermissionAsked {
    pub(super) id: String,
    #[serde(rename = "sessionID")]
    pub(super) session: String,
    pub(super) permission: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) patterns: Vec<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) metadata: Value,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) always: Vec<String>,
    pub(super) tool: Option<CallReference>,
}

/// Properties of `question.asked`, and entry of `GET /question`.
#[derive(Debug, Deserialize)]
pub(super) struct QuestionAsked {
    pub(super) id: String,
    #[serde(rename = "sessionID")]
    pub(super) session: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) questions: Value,
    pub(super) tool: Option<CallReference>,
}

/// Tool call that a request is about.
#[derive(Debug, Deserialize)]
pub(super) struct CallReference {
    #[serde(rename = "callID", default, deserialize_with = "or_default")]
    pub(super) call: String,
}

/// Properties of `permission.replied`, `question.replied` and `question.rejected`.
#[derive(Debug, Deserialize)]
pub(super) struct PermissionReplied {
    #[serde(rename = "requestID")]
    pub(super) id: String,
    pub(super) reply: Option<String>,
}

/// Properties of `todo.updated`.
#[derive(Debug, Deserialize)]
pub(super) struct TodoUpdated {
    #[serde(rename = "sessionID")]
    pub(super) session: String,
    pub(super) todos: Vec<TodoItem>,
}

#[derive(Debug, Deserialize)]
pub(super) struct TodoItem {
    pub(super) content: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) status: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) priority: String,
}

/// Mode of the server, as an entry of `GET /agent`.
#[derive(Debug, Deserialize)]
pub(super) struct AgentInfo {
    pub(super) name: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) mode: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) hidden: bool,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) permission: Vec<ServerRule>,
}

/// Rule of the server: the last rule that matches decides.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, serde::Serialize)]
pub(super) struct ServerRule {
    pub(super) permission: String,
    pub(super) pattern: String,
    pub(super) action: String,
}
