//! Lines of the app-server's protocol: JSON-RPC without the `jsonrpc` member.

use std::borrow::Cow;

use ipc_protocol::{Event, WireError};
use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};

use crate::{
    Action,
    jsonl::{hot, words},
};

/// Message with only the parts decoded that tell messages apart.
#[derive(Debug, Deserialize)]
pub(super) struct Message<'a> {
    /// Id of the request, or of the request that this answers. The ids of the two directions collide: both start near 0.
    #[serde(borrow, default)]
    pub(super) id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) method: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

impl Message<'_> {
    /// Returns the parameters; `null` if there are none.
    pub(super) fn params(&self) -> Value {
        value(self.params)
    }

    /// Returns the outcome in this answer.
    pub(super) fn answer(&self) -> Answer {
        match self.error {
            Some(error) => Err(Refusal::new(&value(Some(error)))),
            None => Ok(value(self.result)),
        }
    }
}

fn value(raw: Option<&RawValue>) -> Value {
    // The text was parsed once; only numbers beyond all bounds fail now.
    raw.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default()
}

/// Outcome of one of our requests.
pub(super) type Answer = Result<Value, Refusal>;

/// Error that answers one of our requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: i64,
    /// Message in one line.
    pub(super) message: String,
}

impl Refusal {
    fn new(error: &Value) -> Self {
        let message = match (error["message"].as_str(), &error["data"]) {
            (Some(message), Value::Null) => message.to_owned(),
            (Some(message), data) => format!("{message}: {data}"),
            (None, _) => error.to_string(),
        };
        Self { code: error["code"].as_i64().unwrap_or_default(), message: words(&message) }
    }
}

/// Piece of text: the only thing that a line of the hot path is decoded to.
#[derive(Debug, Deserialize)]
pub(super) struct Delta<'a> {
    method: DeltaKind,
    #[serde(borrow)]
    params: DeltaParams<'a>,
}

#[derive(Debug, Deserialize)]
enum DeltaKind {
    #[serde(rename = "item/agentMessage/delta", alias = "item/plan/delta")]
    Text,
    #[serde(rename = "item/reasoning/summaryTextDelta", alias = "item/reasoning/textDelta")]
    Thinking,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct DeltaParams<'a> {
    #[serde(borrow)]
    thread_id: Cow<'a, str>,
    #[serde(borrow)]
    item_id: Cow<'a, str>,
    delta: String,
}

impl<'a> Delta<'a> {
    /// Parses the piece of text in `line`, if it is one.
    pub(super) fn parse(line: &'a [u8]) -> Option<Self> {
        hot(line)
    }

    pub(super) fn thread(&self) -> &str {
        &self.params.thread_id
    }

    pub(super) fn item(&self) -> &str {
        &self.params.item_id
    }

    pub(super) fn event(self) -> Event {
        let text = self.params.delta;
        match self.method {
            DeltaKind::Text => Event::Text { text },
            DeltaKind::Thinking => Event::Thinking { text },
        }
    }
}

#[derive(Serialize)]
struct Call<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<i64>,
    method: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<&'a Value>,
}

#[derive(Serialize)]
struct Reply<'a> {
    id: &'a RawValue,
    result: &'a Value,
}

#[derive(Serialize)]
struct ErrorReply<'a> {
    id: &'a RawValue,
    error: Value,
}

/// Writes a request, or a notification if there is no id.
pub(super) fn call(id: Option<i64>, method: &str, params: Option<&Value>, out: &mut Vec<Action>) {
    write(&Call { id, method, params }, out);
}

/// Answers a request from the agent.
pub(super) fn reply(id: &RawValue, result: &Value, out: &mut Vec<Action>) {
    write(&Reply { id, result }, out);
}

/// Refuses a request from the agent: the agent may wait for ever for an answer.
pub(super) fn refuse(id: &RawValue, reason: &str, out: &mut Vec<Action>) {
    write(&ErrorReply { id, error: serde_json::json!({ "code": -32601, "message": reason }) }, out);
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
