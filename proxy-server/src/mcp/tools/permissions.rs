//! Tools for permission requests.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{McpTool, ToolCall, ToolEffect};
use crate::{
    ProblemDetails,
    api_client::{encode, session_path},
    requests::RouteResult,
};

/// Lists the permission requests that wait for an answer, of one session or of all.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ListPermissions {
    /// Id of the session, or a unique beginning of it; all sessions if left out.
    session_id: Option<String>,
}

impl McpTool for ListPermissions {
    const NAME: &'static str = "list_permissions";
    const TITLE: &'static str = "List open permission requests";
    const EFFECT: ToolEffect = ToolEffect::Reads;

    async fn run(self, call: ToolCall) -> RouteResult<Value> {
        let route =
            self.session_id.map_or_else(|| "/v1/permissions".to_owned(), |id| session_path(&id, "/permissions"));
        Ok(json!({ "permissions": call.api.get(&route).await? }))
    }
}

/// Answers a permission request. The turn goes on: wait_for_turn waits for it.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AnswerPermission {
    /// Id of the session, or a unique beginning of it.
    session_id: String,
    /// Id of the request, as in `permission-1`.
    permission_id: String,
    /// `allow`, `deny`, or the id of one of the request's options.
    answer: String,
    /// With `deny`: the reason, which the agent's model reads.
    message: Option<String>,
}

impl McpTool for AnswerPermission {
    const NAME: &'static str = "answer_permission";
    const TITLE: &'static str = "Answer a permission request";
    const EFFECT: ToolEffect = ToolEffect::Acts;

    async fn run(self, call: ToolCall) -> RouteResult<Value> {
        if self.permission_id.is_empty() {
            return Err(ProblemDetails::usage("permission_id: give the id of a request that list_permissions has"));
        }
        let answer = match (self.answer.as_str(), self.message) {
            ("deny", Some(message)) => json!({ "denyWith": { "message": message } }),
            (_, Some(_)) => return Err(ProblemDetails::usage("message: it goes with the answer `deny` alone")),
            (answer @ ("allow" | "deny"), None) => json!(answer),
            (option, None) => json!({ "option": option }),
        };
        let id = encode(&self.permission_id);
        call.api
            .post(&session_path(&self.session_id, &format!("/permissions/{id}")), &json!({ "answer": answer }))
            .await?;
        Ok(json!({ "status": "answered" }))
    }
}
