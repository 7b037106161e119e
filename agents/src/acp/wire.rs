//! JSON-RPC lines: lazy decoding of incoming messages, and encoding of outgoing ones.

use std::borrow::Cow;

use agent_client_protocol_schema::v1;
use ipc_protocol::{Event, WireError};
use serde::{Deserialize, Serialize, de::IgnoredAny};
use serde_json::value::RawValue;

use crate::{
    Action,
    jsonl::{hot, words},
};

/// Message with only the parts decoded that tell messages apart.
#[derive(Debug, Deserialize)]
pub(super) struct Message<'a> {
    /// Id of the request, or of the request that this message answers, as raw JSON: ids may be numbers or strings.
    #[serde(borrow, default)]
    pub(super) id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) method: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(super) params: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) error: Option<&'a RawValue>,
}

impl Message<'_> {
    /// Decodes the parameters as `T`.
    pub(super) fn params<'b, T: Deserialize<'b>>(&'b self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.params.map_or("null", RawValue::get))
    }
}

/// Outcome of one of our requests.
pub(super) type Answer<'a> = Result<&'a str, v1::Error>;

/// Returns the outcome in a response: the result as JSON text, or the error.
pub(super) fn answer<'a>(message: &Message<'a>) -> Answer<'a> {
    match message.error {
        // Some agents send malformed errors; they are errors all the same.
        Some(error) => Err(serde_json::from_str(error.get()).unwrap_or_else(|_| v1::Error::new(0, words(error.get())))),
        None => Ok(message.result.map_or("null", RawValue::get)),
    }
}

/// Chunk of text or thinking: the only thing that a line of the hot path is decoded to.
#[derive(Debug, Deserialize)]
pub(super) struct Chunk<'a> {
    #[serde(borrow)]
    method: Cow<'a, str>,
    #[serde(borrow)]
    params: ChunkParams<'a>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ChunkParams<'a> {
    #[serde(borrow)]
    session_id: Cow<'a, str>,
    update: ChunkUpdate,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ChunkUpdate {
    session_update: ChunkKind,
    content: ChunkContent,
    #[serde(rename = "_meta", default)]
    meta: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ChunkKind {
    AgentMessageChunk,
    AgentThoughtChunk,
}

#[derive(Debug, Deserialize)]
struct ChunkContent {
    #[serde(rename = "type")]
    _kind: TextKind,
    text: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum TextKind {
    Text,
}

impl Chunk<'_> {
    /// Returns the event of `line` if it is a chunk of text of `session`. Any other line is `None` and needs the full decoder.
    pub(super) fn event(line: &[u8], session: &str) -> Option<Event> {
        let chunk: Chunk<'_> = hot(line)?;
        if chunk.method != "session/update" || chunk.params.session_id != session {
            return None;
        }
        let ChunkUpdate { session_update, content, meta } = chunk.params.update;
        if meta.is_some() {
            // The chunk may be a sub-agent's.
            return None;
        }
        Some(match session_update {
            ChunkKind::AgentMessageChunk => Event::Text { text: content.text },
            ChunkKind::AgentThoughtChunk => Event::Thinking { text: content.text },
        })
    }
}

#[derive(Serialize)]
struct Call<'a, P> {
    jsonrpc: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<i64>,
    method: &'a str,
    params: P,
}

#[derive(Serialize)]
struct Reply<'a, R> {
    jsonrpc: &'static str,
    id: &'a RawValue,
    result: R,
}

#[derive(Serialize)]
struct Refusal<'a> {
    jsonrpc: &'static str,
    id: &'a RawValue,
    error: v1::Error,
}

/// Writes a request, or a notification if there is no id.
pub(super) fn call(id: Option<i64>, method: &str, params: impl Serialize, out: &mut Vec<Action>) {
    write(&Call { jsonrpc: "2.0", id, method, params }, out);
}

/// Answers a request from the agent.
pub(super) fn reply(id: &RawValue, result: impl Serialize, out: &mut Vec<Action>) {
    write(&Reply { jsonrpc: "2.0", id, result }, out);
}

/// Refuses a request from the agent.
pub(super) fn refuse(id: &RawValue, error: v1::Error, out: &mut Vec<Action>) {
    write(&Refusal { jsonrpc: "2.0", id, error }, out);
}

fn write(message: &impl Serialize, out: &mut Vec<Action>) {
    match serde_json::to_vec(message) {
        Ok(mut line) => {
            line.push(b'\n');
            out.push(Action::Write(line));
        }
        // Our types with string keys always serialize. If one did not, its answer would be awaited for ever.
        Err(error) => out.push(Action::Fail(WireError::Protocol { reason: format!("unwritable message: {error}") })),
    }
}
