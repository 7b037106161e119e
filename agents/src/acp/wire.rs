//! JSON-RPC lines of the agent: the hot path, and the outcomes of our requests.

use std::borrow::Cow;

use agent_client_protocol_schema::v1;
use ipc_protocol::Event;
use serde::{Deserialize, de::IgnoredAny};
use serde_json::value::RawValue;

use crate::kit::{bounds::words, json_lines::hot, json_rpc::RpcDialect};

/// Form of the protocol's messages.
pub(super) const RPC: RpcDialect = RpcDialect::Standard;

/// Outcome of one of our requests.
pub(super) type AcpResponse<'a> = Result<&'a str, v1::Error>;

/// Decodes the outcome in an answer: the result as JSON text, or the error.
pub(super) fn answer<'a>(answer: Result<&'a RawValue, &'a RawValue>) -> AcpResponse<'a> {
    // Some agents send malformed errors; they are errors all the same.
    let error =
        |error: &RawValue| serde_json::from_str(error.get()).unwrap_or_else(|_| v1::Error::new(0, words(error.get())));
    answer.map(RawValue::get).map_err(error)
}

/// Chunk of text or thinking: the only thing that a line of the hot path is decoded to.
#[derive(Debug, Deserialize)]
pub(super) struct TextChunk<'a> {
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

impl TextChunk<'_> {
    /// Returns the event of `line` if it is a chunk of text of `session`. Any other line is `None` and needs the full decoder.
    pub(super) fn event(line: &[u8], session: &str) -> Option<Event> {
        let chunk: TextChunk<'_> = hot(line)?;
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
