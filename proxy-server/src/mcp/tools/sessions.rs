//! Tools that start sessions and look at them.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{McpTool, ToolCall, ToolEffect, turns::SendMessage};
use crate::{
    ProblemDetails,
    api_client::{encode, session_path},
    requests::RouteResult,
};

/// Starts a coding agent in a session of its own. Every process that it starts is tracked, and is gone when the session is killed.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct StartSession {
    /// The agent: `claude-code`, `codex`, `opencode`, `pi`, `gemini`, or another that list_agents has. May be left out with a profile.
    agent_type: Option<String>,
    /// Directory that the agent works in: an absolute path on the server's machine. Its own directory if left out.
    working_dir: Option<String>,
    /// First message. The call returns when its turn has ended, as send_message does.
    initial_prompt: Option<String>,
    /// False to return at once instead of waiting for the first turn.
    wait: Option<bool>,
    /// Name of a profile of the server, for the settings left out here.
    profile: Option<String>,
    /// Model to use, by the agent's own name for it.
    model: Option<String>,
    /// What happens to actions that need a permission: with `ask` each waits for answer_permission, `allow` and `deny` decide, and `readOnly`
    /// allows those that only read. `ask` if left out, unless a profile says otherwise.
    permission_mode: Option<String>,
    /// Title for people.
    title: Option<String>,
    /// Command line of the agents `acp` and `command`.
    command: Option<Vec<String>>,
}

impl McpTool for StartSession {
    const NAME: &'static str = "start_session";
    const TITLE: &'static str = "Start a coding agent";
    const EFFECT: ToolEffect = ToolEffect::Acts;

    async fn run(self, call: ToolCall) -> RouteResult<Value> {
        if self.agent_type.is_none() && self.profile.is_none() {
            return Err(ProblemDetails::usage("agent_type: name an agent that list_agents has, or a profile"));
        }
        let mut config = Map::new();
        config.insert("agent".to_owned(), json!(self.agent_type.unwrap_or_default()));
        config.insert("depth".to_owned(), json!(call.api.depth));
        let settings = [
            ("cwd", self.working_dir.map(Value::from)),
            ("profile", self.profile.map(Value::from)),
            ("model", self.model.map(Value::from)),
            ("permissionMode", self.permission_mode.clone().map(Value::from)),
            ("explicit", self.permission_mode.map(|_| json!(["permissionMode"]))),
            ("command", self.command.map(Value::from)),
            ("lifecycle", self.title.map(|title| json!({ "title": title }))),
        ];
        config.extend(settings.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        let session = call.api.post("/v1/sessions", &Value::Object(config)).await?;
        let id = session["sessionId"].as_str().unwrap_or_default().to_owned();
        let Some(message) = self.initial_prompt else {
            return Ok(json!({ "session_id": id, "status": session["status"], "session": session }));
        };
        let first = SendMessage { session_id: id.clone(), message, wait: self.wait, timeout_seconds: None };
        // The session is there, whatever becomes of its first turn: the caller has to hear of it.
        match first.run(call).await {
            Ok(turn) => Ok(turn),
            Err(problem) => Err(ProblemDetails {
                detail: format!("session {id} has started, and its first message failed: {}", problem.detail),
                ..problem
            }),
        }
    }

    fn text(result: &Value) -> String {
        match result["session"].is_null() {
            true => SendMessage::text(result),
            false => format!("session_id: {}", result["session_id"].as_str().unwrap_or_default()),
        }
    }
}

/// Tells the state of a session: whether its agent works, is idle, or waits for a permission; its turns, tokens and cost.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GetStatus {
    /// Id of the session; of one that was minted, a unique beginning is enough.
    session_id: String,
}

impl McpTool for GetStatus {
    const NAME: &'static str = "get_status";
    const TITLE: &'static str = "Session status";
    const EFFECT: ToolEffect = ToolEffect::Reads;

    async fn run(self, call: ToolCall) -> RouteResult<Value> {
        Ok(call.session(&self.session_id).await?.1)
    }

    fn text(result: &Value) -> String {
        let shown =
            ["sessionId", "agent", "status", "title", "cwd", "turns", "queued", "openPermissions", "lastOffset"];
        let lines = shown.iter().filter(|name| !result[**name].is_null()).map(|name| match &result[*name] {
            Value::String(text) => format!("{name}: {text}"),
            value => format!("{name}: {value}"),
        });
        lines.chain([format!("usage: {}", result["metrics"]["usage"])]).collect::<Vec<_>>().join("\n")
    }
}

/// Lists the sessions, the latest first.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ListSessions {
    /// Only those of this status: `idle`, `busy`, `suspended`, `ended`, and others that the list shows.
    status: Option<String>,
    /// Only those of this agent.
    agent_type: Option<String>,
    /// Most sessions to list, 1 to 1000; 50 if left out.
    limit: Option<u32>,
}

impl McpTool for ListSessions {
    const NAME: &'static str = "list_sessions";
    const TITLE: &'static str = "List sessions";
    const EFFECT: ToolEffect = ToolEffect::Reads;

    async fn run(self, call: ToolCall) -> RouteResult<Value> {
        let mut query = vec![("sort", "-startedAt".to_owned()), ("limit", self.limit.unwrap_or(50).to_string())];
        query.extend(self.status.map(|status| ("status", status)));
        query.extend(self.agent_type.map(|agent| ("agent", agent)));
        let sessions = call.api.get(&format!("/v1/sessions?{}", query_text(&query))).await?;
        Ok(json!({ "sessions": sessions }))
    }

    fn text(result: &Value) -> String {
        let sessions = result["sessions"].as_array().map_or(&[][..], Vec::as_slice);
        let line = |session: &Value| {
            let text =
                |name: &str| session[name].as_str().or(session["metadata"][name].as_str()).unwrap_or("-").to_owned();
            format!("{}  {}  {}  {}", text("sessionId"), text("agent"), text("status"), text("title"))
        };
        match sessions {
            [] => "no sessions".to_owned(),
            sessions => sessions.iter().map(line).collect::<Vec<_>>().join("\n"),
        }
    }
}

/// Reads the events of a session from an offset on: text, tool calls, permission requests, receipts.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadEvents {
    /// Id of the session; of one that was minted, a unique beginning is enough.
    session_id: String,
    /// Offset after which events are read; 0 if left out, for the first ones. Give `next_offset` of the last answer to go on.
    from: Option<u64>,
    /// Most events, 1 to 10000; 100 if left out.
    limit: Option<u32>,
    /// Types to read, as in `stream:*,permission:*`; all but the agent's raw lines if left out.
    types: Option<String>,
}

impl McpTool for ReadEvents {
    const NAME: &'static str = "read_events";
    const TITLE: &'static str = "Read events";
    const EFFECT: ToolEffect = ToolEffect::Reads;

    async fn run(self, call: ToolCall) -> RouteResult<Value> {
        let from = self.from.unwrap_or(0);
        let mut query = vec![
            ("from", from.to_string()),
            ("limit", self.limit.unwrap_or(100).to_string()),
            ("raw", "false".to_owned()),
        ];
        query.extend(self.types.map(|types| ("type", types)));
        let page = call.api.get(&session_path(&self.session_id, &format!("/events?{}", query_text(&query)))).await?;
        let next = page["next"].as_str().and_then(|offset| offset.parse().ok()).unwrap_or(from);
        Ok(json!({ "events": page["events"], "next_offset": next, "more": page["more"] }))
    }
}

/// Suspends an idle session: its processes end, with a receipt, and its conversation stays. A message resumes it.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SuspendSession {
    /// Id of the session; of one that was minted, a unique beginning is enough.
    session_id: String,
}

impl McpTool for SuspendSession {
    const NAME: &'static str = "suspend_session";
    const TITLE: &'static str = "Suspend a session";
    const EFFECT: ToolEffect = ToolEffect::Acts;

    async fn run(self, call: ToolCall) -> RouteResult<Value> {
        call.api.post(&session_path(&self.session_id, "/suspend"), &json!({})).await
    }
}

/// Resumes a suspended session.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ResumeSession {
    /// Id of the session; of one that was minted, a unique beginning is enough.
    session_id: String,
}

impl McpTool for ResumeSession {
    const NAME: &'static str = "resume_session";
    const TITLE: &'static str = "Resume a session";
    const EFFECT: ToolEffect = ToolEffect::Acts;

    async fn run(self, call: ToolCall) -> RouteResult<Value> {
        call.api.post(&session_path(&self.session_id, "/resume"), &json!({})).await
    }
}

/// Writes a query.
fn query_text(query: &[(&str, String)]) -> String {
    query.iter().map(|(name, value)| format!("{name}={}", encode(value))).collect::<Vec<_>>().join("&")
}
