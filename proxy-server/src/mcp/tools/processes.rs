//! Tools for the processes of sessions.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{McpTool, ToolCall, ToolEffect};
use crate::{api_client::session_path, requests::RouteResult};

/// Kills a session: every process that it ever started gets SIGTERM, and after the grace SIGKILL, until none is left. The receipt proves it.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct KillSession {
    /// Id of the session, or a unique beginning of it.
    session_id: String,
    /// Milliseconds between SIGTERM and SIGKILL.
    grace_ms: Option<u64>,
}

impl McpTool for KillSession {
    const NAME: &'static str = "kill_session";
    const TITLE: &'static str = "Kill a session";
    const EFFECT: ToolEffect = ToolEffect::Ends;

    async fn run(self, call: ToolCall) -> RouteResult<Value> {
        kill(&call, &self.session_id, json!({ "graceMs": self.grace_ms })).await
    }

    fn text(result: &Value) -> String {
        receipt_text(result)
    }
}

/// Lists the processes of a session: each with its parent, command, CPU, memory and listening ports.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ListProcesses {
    /// Id of the session, or a unique beginning of it.
    session_id: String,
}

impl McpTool for ListProcesses {
    const NAME: &'static str = "list_processes";
    const TITLE: &'static str = "List a session's processes";
    const EFFECT: ToolEffect = ToolEffect::Reads;

    async fn run(self, call: ToolCall) -> RouteResult<Value> {
        let processes = call.api.get(&session_path(&self.session_id, "/processes")).await?;
        Ok(json!({ "processes": processes }))
    }

    fn text(result: &Value) -> String {
        let line = |process: &Value| {
            let words = |name: &str| -> Vec<String> {
                process[name]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map(|word| word.as_str().map_or_else(|| word.to_string(), str::to_owned))
                    .collect()
            };
            let (args, ports) = (words("args").join(" "), words("listening").join(" "));
            let mib = process["rssBytes"].as_u64().unwrap_or(0) / (1024 * 1024);
            let command = process["command"].as_str().unwrap_or_default();
            let ports = if ports.is_empty() { ports } else { format!("  listening: {ports}") };
            format!("{} (parent {})  {mib} MiB  {command} {args}{ports}", process["id"]["pid"], process["ppid"])
        };
        result["processes"].as_array().into_iter().flatten().map(line).collect::<Vec<_>>().join("\n")
    }
}

/// Kills one process of a session, with or without its descendants. The session goes on.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct KillProcess {
    /// Id of the session, or a unique beginning of it.
    session_id: String,
    /// Process to kill, as list_processes shows it.
    pid: u32,
    /// True for its descendants too.
    #[serde(default)]
    tree: bool,
    /// Milliseconds between SIGTERM and SIGKILL.
    grace_ms: Option<u64>,
}

impl McpTool for KillProcess {
    const NAME: &'static str = "kill_process";
    const TITLE: &'static str = "Kill a process";
    const EFFECT: ToolEffect = ToolEffect::Ends;

    async fn run(self, call: ToolCall) -> RouteResult<Value> {
        kill(&call, &self.session_id, json!({ "pid": self.pid, "tree": self.tree, "graceMs": self.grace_ms })).await
    }

    fn text(result: &Value) -> String {
        receipt_text(result)
    }
}

async fn kill(call: &ToolCall, id: &str, order: Value) -> RouteResult<Value> {
    let receipt = call.api.post(&session_path(id, "/kill"), &order).await?;
    Ok(json!({ "receipt": receipt }))
}

fn receipt_text(result: &Value) -> String {
    let receipt = &result["receipt"];
    let count = |name: &str| receipt[name].as_array().map_or(0, Vec::len);
    format!("{} survivors, {} processes ended\n{receipt}", count("survivors"), count("processes"))
}
