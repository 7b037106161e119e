//! Tools for turns.

use std::time::Duration;

use ipc_protocol::SessionId;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{McpTool, ToolCall, ToolEffect};
use crate::{
    ProblemDetails,
    api_client::{last_offset, session_path},
    mcp::turn::{MESSAGE, TurnWait},
    requests::RouteResult,
};

/// How long a call waits for a turn, unless it says otherwise.
const DEFAULT_WAIT: Duration = Duration::from_secs(600);

/// Longest time that a call may wait.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3600);

fn deadline(seconds: Option<u64>) -> Instant {
    Instant::now() + seconds.map_or(DEFAULT_WAIT, Duration::from_secs).min(LONGEST_WAIT)
}

/// Sends a message to the agent, and returns its answer when the turn has ended. A turn that needs a permission returns before that, with
/// `status` `waitingForPermission` and the requests.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SendMessage {
    /// Id of the session, or a unique beginning of it.
    pub(super) session_id: String,
    /// The message. While a turn runs, it waits for its own.
    pub(super) message: String,
    /// False to return at once; wait_for_turn has the answer then.
    pub(super) wait: Option<bool>,
    /// Seconds to wait for the turn; 600 if left out. The turn goes on after that, and wait_for_turn waits on.
    pub(super) timeout_seconds: Option<u64>,
}

impl McpTool for SendMessage {
    const NAME: &'static str = "send_message";
    const TITLE: &'static str = "Send a message to the agent";
    const EFFECT: ToolEffect = ToolEffect::Acts;

    async fn run(self, call: ToolCall) -> RouteResult<Value> {
        let deadline = deadline(self.timeout_seconds);
        let (id, session) = call.session(&self.session_id).await?;
        let from = last_offset(&session);
        let message = SessionId::mint().to_string();
        let request = json!({ "text": self.message, "mode": "queue", "metadata": { MESSAGE: message } });
        let accepted = call.api.post(&session_path(&id, "/prompt"), &request).await?;
        let turn = accepted["turn"].as_u64();
        if turn.is_none() || self.wait == Some(false) {
            return Ok(json!({ "session_id": id, "turn": turn, "status": "accepted", "next_offset": from }));
        }
        let wait =
            TurnWait { api: &call.api, session: &id, turn, message: Some(&message), from, is_past: false, deadline };
        wait.follow(&call.context).await
    }

    fn text(result: &Value) -> String {
        turn_text(result)
    }
}

/// Waits for the turn that runs, and returns what it has said since an offset.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WaitForTurn {
    /// Id of the session, or a unique beginning of it.
    session_id: String,
    /// Offset after which the turn's events are read: `next_offset` of the call before. From now on if left out, or all of them for a turn that has
    /// ended.
    from: Option<u64>,
    /// Number of the turn; the one that runs if left out.
    turn: Option<u64>,
    /// Seconds to wait; 600 if left out.
    timeout_seconds: Option<u64>,
}

impl McpTool for WaitForTurn {
    const NAME: &'static str = "wait_for_turn";
    const TITLE: &'static str = "Wait for a turn";
    const EFFECT: ToolEffect = ToolEffect::Reads;

    async fn run(self, call: ToolCall) -> RouteResult<Value> {
        let (id, session) = call.session(&self.session_id).await?;
        let turns = session["turns"].as_u64().unwrap_or_default();
        let running = Some(turns).filter(|_| session["state"] != "idle" && session["state"] != "suspended");
        if let Some(turn) = self.turn.filter(|turn| *turn == 0 || *turn > turns && running.is_none()) {
            return Err(ProblemDetails::usage(format!("turn: {turn} was given, and the last turn so far is {turns}")));
        }
        // The events of a turn that has ended are before what is the last offset now.
        let is_past = self.turn.is_some_and(|turn| turn <= turns && running != Some(turn));
        if self.from.is_none() && running.is_none() && !is_past {
            let status = session["status"].clone();
            return Ok(
                json!({ "session_id": id, "status": "completed", "session_status": status, "next_offset": last_offset(&session) }),
            );
        }
        if self.from.is_none() && running.is_some() && self.turn.is_none_or(|turn| Some(turn) == running) {
            // What it asked before is not read again.
            let open = call.api.get(&format!("/v1/sessions/{id}/permissions")).await?;
            if open.as_array().is_some_and(|open| !open.is_empty()) {
                return Ok(json!({
                    "session_id": id,
                    "turn": running,
                    "status": "waitingForPermission",
                    "permissions": open,
                    "next_offset": last_offset(&session),
                }));
            }
        }
        let from = self.from.unwrap_or_else(|| if is_past { 0 } else { last_offset(&session) });
        TurnWait {
            api: &call.api,
            session: &id,
            turn: self.turn.or(running),
            message: None,
            from,
            is_past,
            deadline: deadline(self.timeout_seconds),
        }
        .follow(&call.context)
        .await
    }

    fn text(result: &Value) -> String {
        turn_text(result)
    }
}

/// Sends text into the running turn, for an agent that can take it.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Steer {
    /// Id of the session, or a unique beginning of it.
    session_id: String,
    /// What the agent is to consider from now on.
    message: String,
}

impl McpTool for Steer {
    const NAME: &'static str = "steer";
    const TITLE: &'static str = "Steer the running turn";
    const EFFECT: ToolEffect = ToolEffect::Acts;

    async fn run(self, call: ToolCall) -> RouteResult<Value> {
        call.api.post(&session_path(&self.session_id, "/steer"), &json!({ "text": self.message })).await?;
        Ok(json!({ "status": "steered" }))
    }
}

/// Aborts the running turn. The session goes on.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Abort {
    /// Id of the session, or a unique beginning of it.
    session_id: String,
    /// True to end the processes that the turn has started, too; then there is a receipt.
    #[serde(default)]
    kill_processes: bool,
}

impl McpTool for Abort {
    const NAME: &'static str = "abort";
    const TITLE: &'static str = "Abort the running turn";
    const EFFECT: ToolEffect = ToolEffect::Ends;

    async fn run(self, call: ToolCall) -> RouteResult<Value> {
        let body = match self.kill_processes {
            true => json!({ "policy": "killTurnProcesses" }),
            false => json!({}),
        };
        let receipt = call.api.post(&session_path(&self.session_id, "/abort"), &body).await?;
        Ok(json!({ "status": "aborting", "receipt": receipt }))
    }
}

/// Writes a turn for a model: its text, and what the model has to know to go on.
fn turn_text(result: &Value) -> String {
    let text = result["text"].as_str().unwrap_or_default().trim_end();
    let status = result["status"].as_str().unwrap_or_default();
    let id = result["session_id"].as_str().unwrap_or_default();
    let mut lines: Vec<String> = Vec::new();
    if !text.is_empty() {
        lines.push(text.to_owned());
        lines.push(String::new());
    }
    lines.push(format!(
        "[session_id: {id}; turn: {}; status: {status}; next_offset: {}]",
        result["turn"], result["next_offset"]
    ));
    for error in result["errors"].as_array().into_iter().flatten() {
        lines.push(format!("[error: {}]", error["message"].as_str().unwrap_or_default()));
    }
    for request in result["permissions"].as_array().into_iter().flatten() {
        let what = request["title"].as_str().or(request["command"].as_str()).unwrap_or("an action");
        let options: Vec<_> =
            request["options"].as_array().into_iter().flatten().filter_map(|option| option["id"].as_str()).collect();
        let permission = request["id"].as_str().unwrap_or_default();
        lines.push(format!("[{permission} waits for an answer: {what}; options: {}]", options.join(", ")));
    }
    lines.join("\n")
}
