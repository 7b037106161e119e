//! `system` lines, and other lines about the session.

use std::collections::BTreeMap;

use ipc_protocol::Event;
use serde::Deserialize;
use serde_json::Value;

use crate::{
    Action,
    kit::{bounds::words, session_commands},
};

/// Fields of all `system` lines. A field that a line does not have is empty.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct SystemLine {
    pub(super) cwd: Option<String>,
    pub(super) tools: Option<Vec<String>>,
    /// A word, or `null`.
    pub(super) status: Option<Value>,
    #[serde(rename = "permissionMode")]
    pub(super) permission_mode: Option<String>,
    pub(super) compact_result: Option<String>,
    pub(super) compact_error: Option<String>,
    pub(super) compact_metadata: Option<Value>,
    pub(super) task_id: Option<String>,
    pub(super) tool_use_id: Option<String>,
    pub(super) description: Option<String>,
    summary: Option<String>,
    pub(super) content: Option<String>,
    text: Option<String>,
    tool_name: Option<String>,
    decision_reason: Option<String>,
    message: Option<String>,
    attempt: Option<u32>,
    max_retries: Option<u32>,
    retry_delay_ms: Option<f64>,
    error_status: Option<u16>,
    error: Option<Value>,
    pub(super) model: Option<String>,
    pub(super) title: Option<String>,
    pub(super) commands: Option<Vec<ClaudeCommand>>,
}

/// Slash command, as the agent describes it.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ClaudeCommand {
    name: String,
    description: Option<String>,
    /// A text; older agents have a list of texts.
    argument_hint: Option<Value>,
}

/// Contents of the answer to the handshake.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct HandshakeAnswer {
    pub(super) commands: Vec<ClaudeCommand>,
    pub(super) current_permission_mode: Option<String>,
}

/// Makes the event for slash commands.
pub(super) fn commands(commands: &[ClaudeCommand]) -> Event {
    let hint = |command: &'_ ClaudeCommand| match &command.argument_hint {
        Some(Value::String(hint)) => Some(hint.clone()),
        Some(Value::Array(hints)) => Some(hints.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ")),
        _ => None,
    };
    let hints: Vec<Option<String>> = commands.iter().map(hint).collect();
    let described = commands.iter().zip(&hints);
    session_commands(described.map(|(it, hint)| (it.name.as_str(), it.description.as_deref(), hint.as_deref())))
}

impl SystemLine {
    /// Converts an `api_retry` line: a request failed and is retried.
    pub(super) fn retry(&self) -> Event {
        let word = match (self.error.as_ref().and_then(Value::as_str), self.error_status) {
            (None | Some("unknown"), None) => "connection",
            (word, _) => word.unwrap_or("unknown"),
        };
        let code = self.error_status.map_or_else(|| words(word), |status| status.to_string());
        let delay = self.retry_delay_ms.unwrap_or_default().max(0.0) / 1000.0;
        let of = self.max_retries.map(|most| format!(" of {most}")).unwrap_or_default();
        let attempt = self.attempt.unwrap_or(1);
        let message = format!("{}: it is tried again in {delay:.1} s (retry {attempt}{of})", words(word));
        let delay_ms = self.retry_delay_ms.map(|ms| ms.max(0.0) as u64);
        Event::retry(code, message, Some(attempt), delay_ms)
    }

    /// Returns the event for a line of this subtype. The outer `None` means that the subtype is unknown.
    pub(super) fn event(&self, subtype: &str) -> Option<Option<Event>> {
        let text = |text: &Option<String>| words(text.as_deref().unwrap_or_default());
        let parts = |parts: [Option<&str>; 2]| parts.into_iter().flatten().map(words).collect::<Vec<_>>().join(": ");
        Some(match subtype {
            "informational" | "model_refusal_fallback" | "model_refusal_no_fallback" | "model_fallback" => {
                Some(status("notice", text(&self.content)))
            }
            "notification" => Some(status("notice", text(&self.text))),
            "task_notification" => {
                let word = self.status.as_ref().and_then(Value::as_str);
                Some(status("task", parts([word, self.summary.as_deref()])))
            }
            "permission_denied" => {
                let reason = self.decision_reason.as_deref().or(self.message.as_deref());
                Some(status("permissionDenied", parts([self.tool_name.as_deref(), reason])))
            }
            // The output is for the user who asked, like an answer.
            "local_command_output" => self.content.clone().map(|text| Event::Text { text }),
            // Contents that other lines repeat, or that only the agent's own screens use.
            "thinking_tokens"
            | "background_tasks_changed"
            | "task_updated"
            | "session_state_changed"
            | "commands_changed"
            | "control_request_progress"
            | "files_persisted"
            | "hook_started"
            | "hook_progress"
            | "hook_response"
            | "memory_recall"
            | "plugin_install"
            | "elicitation_complete"
            | "turn_duration" => None,
            _ => return None,
        })
    }
}

/// Most MCP servers whose errors are emitted.
const MAX_SERVERS: usize = 64;

/// The agent's answer about its MCP servers.
#[derive(Debug, Default, Deserialize)]
struct McpServerStates {
    #[serde(default)]
    errors: BTreeMap<String, String>,
}

/// Emits an error for each server that the agent could not reach.
pub(super) fn server_errors(response: &str, out: &mut Vec<Action>) {
    let McpServerStates { errors } = serde_json::from_str(response).unwrap_or_default();
    out.extend(errors.into_iter().take(MAX_SERVERS).map(|(name, reason)| {
        let message = format!("MCP server {:?}: {}", words(&name), words(&reason));
        Action::Event(Event::error("mcp-server", message, false))
    }));
}

/// Converts a `rate_limit_event` line.
pub(super) fn rate_limit(line: &[u8], out: &mut Vec<Action>) -> bool {
    let Ok(said) = serde_json::from_slice::<Value>(line) else { return false };
    let word = |key: &str| said.pointer(key).and_then(Value::as_str);
    let has = |key: &str| said.pointer(key) == Some(&Value::Bool(true));
    let goes_on = has("/rate_limit_info/isUsingOverage") || has("/rate_limit_info/overageInUse");
    if word("/rate_limit_info/status") == Some("rejected") && !goes_on {
        let limit = words(word("/rate_limit_info/rateLimitType").unwrap_or("limit"));
        let seconds = said.pointer("/rate_limit_info/resetsAt").and_then(Value::as_f64).filter(|at| *at > 0.0);
        let resets_at = seconds.map(|seconds| (seconds * 1000.0) as u64);
        let message = format!("the account's usage limit is reached: {limit}");
        out.push(Action::Event(Event::UsageLimited { limit, message, resets_at, waits: false }));
        return true;
    }
    if let Some(state) = word("/rate_limit_info/status").filter(|state| *state != "allowed") {
        let kind = word("/rate_limit_info/rateLimitType").unwrap_or("limit");
        out.push(Action::Event(status("rateLimit", words(&format!("{kind}: {state}")))));
    }
    true
}

pub(super) fn status(status: &str, detail: impl Into<String>) -> Event {
    Event::SessionStatus { status: status.to_owned(), detail: detail.into() }
}
