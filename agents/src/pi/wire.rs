//! Lines of Pi's RPC: commands and their responses, which share an id, and events.

use ipc_protocol::Event;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{
    Action,
    kit::{
        bounds::words,
        json_lines::{hot, write_line},
    },
};

/// Piece of text: the only thing that a line of the hot path is decoded to. Older agents also send the complete message so far.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PiDelta {
    #[serde(rename = "type")]
    _kind: UpdateKind,
    assistant_message_event: PiDeltaEvent,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum UpdateKind {
    MessageUpdate,
}

#[derive(Debug, Deserialize)]
struct PiDeltaEvent {
    #[serde(rename = "type")]
    kind: PiDeltaKind,
    delta: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PiDeltaKind {
    TextDelta,
    ThinkingDelta,
}

impl PiDelta {
    /// Returns the event of `line` if it is a piece of text.
    pub(super) fn event(line: &[u8]) -> Option<Event> {
        let Self { assistant_message_event: PiDeltaEvent { kind, delta: text }, .. } = hot(line)?;
        Some(match kind {
            PiDeltaKind::TextDelta => Event::Text { text },
            PiDeltaKind::ThinkingDelta => Event::Thinking { text },
        })
    }
}

/// Outcome of a command.
pub(super) type PiResponse = Result<Value, String>;

/// Returns the outcome in a response: its data, or the error in one line.
pub(super) fn answer(response: &Value) -> PiResponse {
    if response["success"] == true {
        return Ok(response["data"].clone());
    }
    Err(words(response["error"].as_str().unwrap_or("it failed, and did not say why")))
}

/// Writes a command.
pub(super) fn command(id: u64, name: &str, fields: Value, out: &mut Vec<Action>) {
    let mut message = Map::from_iter([("id".to_owned(), json!(id.to_string())), ("type".to_owned(), json!(name))]);
    if let Value::Object(fields) = fields {
        // Our own fields win: a message of the caller may contain an id.
        message.extend(fields.into_iter().filter(|(key, _)| key != "id" && key != "type"));
    }
    write_line(&message, out);
}

/// Answers a dialog.
pub(super) fn dialog(id: &str, answer: &Value, out: &mut Vec<Action>) {
    let mut message = json!({ "type": "extension_ui_response", "id": id });
    if let (Value::Object(message), Value::Object(answer)) = (&mut message, answer) {
        message.extend(answer.clone());
    }
    write_line(&message, out);
}
