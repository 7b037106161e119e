//! What an agent says beside the protocol of a request to the model that failed: whether it asks again, or gives up.
//!
//! The wrapper of Claude Code says it in `_meta` to a client that declares to understand it (a row's `sessionFailures`), and that of
//! Codex in a line of its standard error.

use agent_client_protocol_schema::v1::{self, Meta};
use ipc_protocol::Event;
use serde::Deserialize;
use serde_json::{Value, json};

use super::errors;
use crate::kit::{bounds::words, session_status};

/// Before what Codex's wrapper says of an error in the midst of a turn.
const HANDLED: &str = "Handled error during turn: ";

/// A failure, as the wrapper of Claude Code says it.
#[derive(Debug, Deserialize)]
pub(super) struct WrapperFailure {
    category: String,
    severity: String,
    title: String,
    #[serde(default)]
    actions: Vec<String>,
}

/// What a client declares that understands [`WrapperFailure`].
pub(super) fn declared() -> Option<Meta> {
    let meta = json!({ "jetbrains": { "air": { "version": 1, "capabilities": ["sessionFailure"] } } });
    meta.as_object().cloned()
}

impl WrapperFailure {
    /// The one in `_meta`.
    pub(super) fn of(meta: Option<&Meta>) -> Option<Self> {
        let failure = meta?.get("jetbrains")?.pointer("/air/sessionFailure")?;
        Self::deserialize(failure).ok()
    }

    /// The one in an answer.
    pub(super) fn of_answer(result: &str) -> Option<Self> {
        #[derive(Deserialize)]
        struct WrapperAnswer {
            #[serde(rename = "_meta")]
            meta: Meta,
        }
        Self::of(Some(&serde_json::from_str::<WrapperAnswer>(result).ok()?.meta))
    }

    /// The event that says that the agent asks again.
    pub(super) fn retry(&self) -> Option<Event> {
        let (_, counted) = self.title.split_once(", attempt ").filter(|_| self.severity == "warning")?;
        let attempt = counted.split_once(" of ")?.0.parse().ok()?;
        Some(Event::retry(words(&self.category), words(&self.title), Some(attempt), None))
    }

    /// The events that say it, if it is no retry.
    pub(super) fn events(&self) -> Vec<Event> {
        if self.severity == "warning" {
            return vec![session_status("notice", words(&self.title))];
        }
        let kind = if self.is_usage_limit() { "usage_limit" } else { &self.category };
        let error = v1::Error::new(-32603, self.title.clone()).data(json!({ "errorKind": kind }));
        let limited = self.is_usage_limit().then(|| Event::UsageLimited {
            limit: kind.to_owned(),
            message: words(&self.title),
            resets_at: None,
            waits: false,
        });
        limited.into_iter().chain([errors::event(&error)]).collect()
    }

    /// A limit after which nothing helps but to wait.
    fn is_usage_limit(&self) -> bool {
        self.category == "limit" && self.actions.is_empty()
    }
}

/// The retry that a line of the standard error of Codex's wrapper tells of.
pub(super) fn retry_in_stderr(line: &[u8]) -> Option<Event> {
    let line = String::from_utf8_lossy(line);
    let (_, said) = line.split_once(HANDLED)?;
    let (_, counted) = said.split_once("Reconnecting... ")?;
    let attempt = counted.split_once('/')?.0.parse().ok()?;
    // The rest is Rust's form of a code and of words: `Some(Code { .. }) Some("words")`.
    let mut parts = counted.split("Some(").skip(1);
    let code = parts.next().map(|code| code.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default());
    let detail = parts.next().and_then(|detail| detail.trim_end().strip_suffix(')'));
    let detail = detail.map(|detail| serde_json::from_str::<Value>(detail).ok());
    let message = match detail.as_ref().and_then(|detail| detail.as_ref()?.as_str()) {
        Some(detail) => detail.to_owned(),
        None => said.trim().to_owned(),
    };
    Some(Event::retry(code.filter(|code| !code.is_empty()).unwrap_or("retry"), words(&message), Some(attempt), None))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(failure: &Value) -> WrapperFailure {
        let meta = json!({ "jetbrains": { "air": { "version": 1, "sessionFailure": failure } } });
        WrapperFailure::of(meta.as_object()).expect("a failure")
    }

    #[test]
    fn a_retry_of_claude_codes_wrapper_says_which() {
        let title = "Retrying Claude, attempt 2 of 10.";
        let said = json!({ "category": "service", "severity": "warning", "title": title, "actions": [] });
        assert_eq!(failure(&said).retry(), Some(Event::retry("service", title, Some(2), None)));
        let over = failure(
            &json!({ "category": "service", "severity": "error", "title": "API Error: 500 no", "actions": ["retry"] }),
        );
        assert_eq!(over.retry(), None);
        assert_eq!(over.events(), [Event::error("500", "API Error: 500 no", true)]);
        let limit =
            json!({ "category": "limit", "severity": "error", "title": "You've hit your limit", "actions": [] });
        assert!(matches!(&failure(&limit).events()[..], [Event::UsageLimited { .. }, Event::Error { .. }]));
    }

    #[test]
    fn a_retry_of_codexs_wrapper_is_a_line_of_its_standard_error() {
        let line = "\u{1b}[2m2026-11-23T14:12:47Z\u{1b}[0m \u{1b}[31mERROR\u{1b}[0m codex_acp::thread: Handled error during turn: \
                    Reconnecting... 1/5 Some(ResponseStreamDisconnected { http_status_code: None }) \
                    Some(\"stream disconnected before completion\")\n";
        let said = Event::retry("ResponseStreamDisconnected", "stream disconnected before completion", Some(1), None);
        assert_eq!(retry_in_stderr(line.as_bytes()), Some(said));
        let bare = retry_in_stderr(b"Handled error during turn: Reconnecting... 3/5 None None\n");
        assert_eq!(bare, Some(Event::retry("retry", "Reconnecting... 3/5 None None", Some(3), None)));
        for other in ["Reconnecting... 1/5", "Handled error during turn: no", ""] {
            assert_eq!(retry_in_stderr(other.as_bytes()), None);
        }
    }
}
