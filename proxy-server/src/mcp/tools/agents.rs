//! Tools for the catalog.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{McpTool, ToolCall, ToolEffect};
use crate::requests::RouteResult;

/// Lists the agents that can be started, with what is missing and how it is installed.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ListAgents {}

impl McpTool for ListAgents {
    const NAME: &'static str = "list_agents";
    const TITLE: &'static str = "List agents";
    const EFFECT: ToolEffect = ToolEffect::Reads;

    async fn run(self, call: ToolCall) -> RouteResult<Value> {
        Ok(json!({ "agents": call.api.get("/v1/agents").await? }))
    }
}
