//! JSON-RPC lines: what comes in, as little decoded as it can be, and what goes out.

use std::borrow::Cow;

use agent_client_protocol_schema::v1;
use ipc_protocol::{Event, WireError};
use serde::{Deserialize, Serialize, de::IgnoredAny};
use serde_json::value::RawValue;

use crate::{
    Action,
    jsonl::{hot, words},
};

/// One message. What is not needed to tell messages apart is left undecoded.
#[derive(Debug, Deserialize)]
pub(super) struct Message<'a> {
    /// Of the request, or of the request that this answers. Kept as it stands: ids may be numbers or strings.
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
    /// The parameters as `T`.
    pub(super) fn params<'b, T: Deserialize<'b>>(&'b self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.params.map_or("null", RawValue::get))
    }
}

/// The outcome of a request of ours.
pub(super) type Answer<'a> = Result<&'a str, v1::Error>;

/// What a response says: the result as JSON text, or the error.
pub(super) fn answer<'a>(message: &Message<'a>) -> Answer<'a> {
    match message.error {
        // Not every agent sends well-formed errors; an error it is all the same.
        Some(error) => Err(serde_json::from_str(error.get()).unwrap_or_else(|_| v1::Error::new(0, words(error.get())))),
        None => Ok(message.result.map_or("null", RawValue::get)),
    }
}

/// A chunk of text or thinking: all that a line of the hot path is decoded to.
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
    /// The event in `line`, if it is a chunk of text of `session`. Anything else is `None`, and for the full decoder.
    pub(super) fn event(line: &[u8], session: &str) -> Option<Event> {
        let chunk: Chunk<'_> = hot(line)?;
        if chunk.method != "session/update" || chunk.params.session_id != session {
            return None;
        }
        let ChunkUpdate { session_update, content, meta } = chunk.params.update;
        if meta.is_some() {
            // It may be a sub-agent's.
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

/// Writes a request, or without an id a notification.
pub(super) fn call(id: Option<i64>, method: &str, params: impl Serialize, out: &mut Vec<Action>) {
    write(&Call { jsonrpc: "2.0", id, method, params }, out);
}

/// Answers a request of the agent's.
pub(super) fn reply(id: &RawValue, result: impl Serialize, out: &mut Vec<Action>) {
    write(&Reply { jsonrpc: "2.0", id, result }, out);
}

/// Refuses a request of the agent's.
pub(super) fn refuse(id: &RawValue, error: v1::Error, out: &mut Vec<Action>) {
    write(&Refusal { jsonrpc: "2.0", id, error }, out);
}

fn write(message: &impl Serialize, out: &mut Vec<Action>) {
    match serde_json::to_vec(message) {
        Ok(mut line) => {
            line.push(b'\n');
            out.push(Action::Write(line));
        }
        // Types of ours with string keys always serialize; if one did not, waiting for its answer would be for ever.
        Err(error) => out.push(Action::Fail(WireError::Protocol { reason: format!("unwritable message: {error}") })),
    }
}
