//! Lines of the app-server's protocol: JSON-RPC without the `jsonrpc` member.

use std::borrow::Cow;

use ipc_protocol::Event;
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use crate::{
    Action,
    kit::{
        bounds::words,
        json_lines::hot,
        json_rpc::{self, RpcDialect},
    },
};

/// Form of the protocol's messages.
pub(super) const RPC: RpcDialect = RpcDialect::Unversioned;

/// Outcome of one of our requests.
pub(super) type CodexResponse = Result<Value, OutgoingError>;

/// Error that answers one of our requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OutgoingError {
    pub(super) code: i64,
    /// Message in one line.
    pub(super) message: String,
}

/// Decodes the outcome in an answer.
pub(super) fn answer(answer: Result<&RawValue, &RawValue>) -> CodexResponse {
    answer.map(json_rpc::value).map_err(|error| OutgoingError::new(&json_rpc::value(error)))
}

impl OutgoingError {
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
pub(super) struct CodexDelta<'a> {
    method: CodexDeltaKind,
    #[serde(borrow)]
    params: DeltaParams<'a>,
}

#[derive(Debug, Deserialize)]
enum CodexDeltaKind {
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

impl<'a> CodexDelta<'a> {
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
            CodexDeltaKind::Text => Event::Text { text },
            CodexDeltaKind::Thinking => Event::Thinking { text },
        }
    }
}

/// Refuses a request from the agent: the agent may wait for ever for an answer.
pub(super) fn refuse(id: &RawValue, reason: &str, out: &mut Vec<Action>) {
    RPC.refuse(id, json!({ "code": -32601, "message": reason }), out);
}
