//! JSON-RPC on lines: incoming messages, and outgoing requests, notifications, replies and refusals.
//!
//! Both sides number their requests, so the ids of the two directions collide: an id is one of ours only in an answer. Agents may
//! use strings too, so an agent's id is kept as raw JSON.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};

use super::{json_lines::write_line, pending::PendingRequests};
use crate::Action;

/// Form of a protocol's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RpcDialect {
    /// JSON-RPC 2.0.
    Standard,
    /// The same without the member `jsonrpc`.
    Unversioned,
}

/// Message of which only the parts are decoded that tell messages apart.
#[derive(Debug, Deserialize)]
pub(crate) struct RpcMessage<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

/// Meaning of an incoming message.
#[derive(Debug)]
pub(crate) enum RpcIncoming<'a> {
    /// Request of the agent. It waits for a reply.
    Request {
        /// The agent's id of it.
        id: &'a RawValue,
        method: &'a str,
        params: RpcParams<'a>,
    },
    Notification {
        method: &'a str,
        params: RpcParams<'a>,
    },
    /// Answer to one of our requests: its result, or its error.
    Answer {
        id: &'a RawValue,
        answer: Result<&'a RawValue, &'a RawValue>,
    },
    /// No message of JSON-RPC.
    Invalid,
}

/// Undecoded parameters; none are `null`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RpcParams<'a>(&'a RawValue);

impl<'a> RpcParams<'a> {
    /// Decodes the parameters.
    pub(crate) fn parse<T: Deserialize<'a>>(self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.0.get())
    }

    /// Decodes the parameters as a value.
    pub(crate) fn value(self) -> Value {
        value(self.0)
    }
}

/// Decodes a document that was parsed once: only numbers beyond all bounds fail now, and give `null`.
pub(crate) fn value(raw: &RawValue) -> Value {
    serde_json::from_str(raw.get()).unwrap_or_default()
}

impl<'a> RpcMessage<'a> {
    /// Tells what the message is.
    pub(crate) fn incoming(&'a self) -> RpcIncoming<'a> {
        let params = RpcParams(self.params.unwrap_or(RawValue::NULL));
        match (self.id, self.method.as_deref()) {
            (Some(id), Some(method)) => RpcIncoming::Request { id, method, params },
            (None, Some(method)) => RpcIncoming::Notification { method, params },
            (Some(id), None) => RpcIncoming::Answer {
                id,
                answer: self.error.map_or_else(|| Ok(self.result.unwrap_or(RawValue::NULL)), Err),
            },
            (None, None) => RpcIncoming::Invalid,
        }
    }
}

/// Our side of the connection: requests of ours, each with its purpose `P`.
#[derive(Debug)]
pub(crate) struct RpcPeer<P> {
    dialect: RpcDialect,
    pub(crate) pending: PendingRequests<P>,
}

impl<P> RpcPeer<P> {
    pub(crate) fn new(dialect: RpcDialect) -> Self {
        Self { dialect, pending: PendingRequests::default() }
    }

    /// Sends a request. Its answer is for `purpose`.
    pub(crate) fn request(&mut self, method: &str, params: Option<impl Serialize>, purpose: P, out: &mut Vec<Action>) {
        let id = self.pending.add(purpose);
        self.dialect.call(Some(id), method, params, out);
    }

    /// Removes the request that an answer with `id` belongs to, and returns its purpose.
    pub(crate) fn answered(&mut self, id: &RawValue) -> Option<P> {
        self.pending.take(id.get().parse().ok()?)
    }
}

/// Beginning of a message that was dropped because of its length, as far as it asks or answers.
pub(crate) enum RpcDropped<P> {
    /// Request of the agent with this id, which has to be refused.
    Request(Box<RawValue>),
    /// Answer to a request of ours.
    Answer(P),
    /// Answer to nothing that we asked.
    Unknown,
    /// Notification.
    Notification,
}

impl<P> RpcPeer<P> {
    /// Tells what a message was, from its beginning.
    pub(crate) fn dropped(&mut self, head: &Value) -> RpcDropped<P> {
        let id = head.get("id").and_then(|id| RawValue::from_string(id.to_string()).ok());
        match (id, head["method"].is_string()) {
            (Some(id), true) => RpcDropped::Request(id),
            (Some(id), false) => self.answered(&id).map_or(RpcDropped::Unknown, RpcDropped::Answer),
            (None, _) => RpcDropped::Notification,
        }
    }
}

#[derive(Serialize)]
struct RpcCall<'a, P> {
    #[serde(skip_serializing_if = "Option::is_none")]
    jsonrpc: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    method: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<P>,
}

#[derive(Serialize)]
struct RpcReply<'a, R> {
    #[serde(skip_serializing_if = "Option::is_none")]
    jsonrpc: Option<&'static str>,
    id: &'a RawValue,
    #[serde(flatten)]
    outcome: RpcOutcome<R>,
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum RpcOutcome<R> {
    Result(R),
    Error(R),
}

impl RpcDialect {
    fn version(self) -> Option<&'static str> {
        (self == Self::Standard).then_some("2.0")
    }

    fn call(self, id: Option<u64>, method: &str, params: Option<impl Serialize>, out: &mut Vec<Action>) {
        write_line(&RpcCall { jsonrpc: self.version(), id, method, params }, out);
    }

    /// Sends a notification.
    pub(crate) fn notify(self, method: &str, params: Option<impl Serialize>, out: &mut Vec<Action>) {
        self.call(None, method, params, out);
    }

    /// Answers a request of the agent.
    pub(crate) fn reply(self, id: &RawValue, result: impl Serialize, out: &mut Vec<Action>) {
        write_line(&RpcReply { jsonrpc: self.version(), id, outcome: RpcOutcome::Result(result) }, out);
    }

    /// Refuses a request of the agent, which may wait for ever for an answer.
    pub(crate) fn refuse(self, id: &RawValue, error: impl Serialize, out: &mut Vec<Action>) {
        write_line(&RpcReply { jsonrpc: self.version(), id, outcome: RpcOutcome::Error(error) }, out);
    }
}
