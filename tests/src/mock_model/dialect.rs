//! What a dialect is.

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::{conversation::Conversation, script::Turn};

/// The tokens that every answer claims, whatever its size. Each dialect says them in its own members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Input that was in no cache.
    pub input: u64,
    /// Input that was read from a cache.
    pub cache_read: u64,
    /// Input that was written to a cache; only Anthropic tells.
    pub cache_write: u64,
    /// Output. OpenAI's has the reasoning in it; for Gemini the reasoning comes on top.
    pub output: u64,
    /// Reasoning; Anthropic does not tell.
    pub reasoning: u64,
}

/// See [`Usage`].
pub const USAGE: Usage = Usage { input: 101, cache_read: 1009, cache_write: 307, output: 23, reasoning: 7 };

/// What an answer needs to know beside what is said.
#[derive(Clone, Debug)]
pub(super) struct Head {
    /// Number of the request, from 1: it makes ids unique.
    pub(super) number: usize,
    /// The model that was asked for.
    pub(super) model: String,
}

/// A dialect: how a request is read, and how an answer is written.
pub(super) trait Dialect: Sync {
    /// What a request says. Whatever is missing or misshapen counts as not said.
    fn read(&self, body: &Value) -> Conversation;

    /// The answer as server-sent events.
    fn events(&self, turn: &Turn, head: &Head) -> Vec<String>;

    /// The answer in one piece, for a request that did not ask for a stream.
    fn whole(&self, turn: &Turn, head: &Head) -> Value;

    /// The body of an HTTP error.
    fn error(&self, status: StatusCode, message: &str) -> Value;
}

/// A server-sent event whose type is in both its name and its data.
pub(super) fn typed(kind: &str, data: Value) -> String {
    event(Some(kind), &merged(json!({ "type": kind }), data))
}

/// An object with the members of both.
pub(super) fn merged(mut object: Value, more: Value) -> Value {
    if let (Value::Object(object), Value::Object(more)) = (&mut object, more) {
        object.extend(more);
    }
    object
}

/// A server-sent event.
pub(super) fn event(name: Option<&str>, data: &Value) -> String {
    name.map_or_else(|| format!("data: {data}\n\n"), |name| format!("event: {name}\ndata: {data}\n\n"))
}

#[cfg(test)]
pub(super) mod samples {
    //! What the dialects' tests share.

    use super::{
        super::{
            conversation::{Entry, Tool},
            script::Call,
        },
        *,
    };

    /// A turn with a bit of everything.
    pub(in super::super) fn turn() -> Turn {
        let call = |command| Call { tool: "bash".into(), arguments: json!({ "command": command }) };
        Turn {
            thinking: vec!["think".into(), "ing".into()],
            text: vec!["you ".into(), "said: \"é\"".into()],
            calls: vec![call("echo a"), call("echo b")],
            ..Turn::default()
        }
    }

    /// What is said in the requests of the dialects' tests.
    pub(in super::super) fn conversation() -> Conversation {
        let user = |text: &str| Entry::User(vec![text.into()]);
        let entries = vec![
            user("hello"),
            Entry::Said,
            user("shell: ls"),
            Entry::Call,
            Entry::Call,
            Entry::Output("a".into()),
            Entry::Output("b".into()),
            user("and now"),
        ];
        let tool = Tool { name: "bash".into(), parameters: json!({ "properties": { "command": {} } }) };
        Conversation { entries, tools: vec![tool], schema: json!({ "type": "object" }) }
    }

    /// The head of an answer.
    pub(in super::super) fn head() -> Head {
        Head { number: 7, model: "mock-model".into() }
    }
}
