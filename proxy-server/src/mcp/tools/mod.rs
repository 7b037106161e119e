//! The tools: a table of them, and how one is run. Each group of tools is a file of its own.

mod agents;
mod permissions;
mod processes;
mod sessions;
mod turns;

use std::{any::Any, sync::Arc};

use futures_util::future::BoxFuture;
use rmcp::{
    RoleServer,
    handler::server::common::schema_for_type,
    model::{CallToolResult, ContentBlock, JsonObject, Tool, ToolAnnotations},
    service::RequestContext,
};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::ToolNames;
use crate::{
    ProblemDetails,
    api_client::{ApiClient, session_path},
    requests::RouteResult,
};

/// Group of all names.
const GROUP: &str = "coding_agent";

/// What a tool does to the world, as clients want it told before they call it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ToolEffect {
    /// Reads.
    Reads,
    /// Starts or continues what can be ended.
    Acts,
    /// Ends what cannot be begun again.
    Ends,
}

/// Arguments of a tool, which run it. The documentation of the type is the tool's description.
trait McpTool: DeserializeOwned + JsonSchema + Any + Send {
    const NAME: &'static str;
    const TITLE: &'static str;
    const EFFECT: ToolEffect;

    /// Runs the tool. What it returns is an object.
    fn run(self, call: ToolCall) -> impl Future<Output = RouteResult<Value>> + Send;

    /// Writes a result for a model to read.
    fn text(result: &Value) -> String {
        result.to_string()
    }
}

/// Call of a tool.
pub(super) struct ToolCall {
    pub(super) api: ApiClient,
    pub(super) context: RequestContext<RoleServer>,
}

impl ToolCall {
    /// Returns the whole id that `id` is, or is the beginning of, with what the API tells of the session.
    async fn session(&self, id: &str) -> RouteResult<(String, Value)> {
        let session = self.api.get(&session_path(id, "")).await?;
        let id = session["sessionId"].as_str().unwrap_or(id).to_owned();
        Ok((id, session))
    }
}

/// Row of the table.
pub(super) struct ToolEntry {
    name: &'static str,
    title: &'static str,
    effect: ToolEffect,
    schema: fn() -> Arc<JsonObject>,
    run: fn(JsonObject, ToolCall) -> BoxFuture<'static, CallToolResult>,
}

impl ToolEntry {
    const fn of<T: McpTool>() -> Self {
        Self {
            name: T::NAME,
            title: T::TITLE,
            effect: T::EFFECT,
            schema: schema_for_type::<T>,
            run: |arguments, call| Box::pin(run::<T>(arguments, call)),
        }
    }

    /// Describes the tool to a client.
    pub(super) fn describe(&self, names: ToolNames) -> Tool {
        let mut schema = (self.schema)().as_ref().clone();
        let description =
            schema.remove("description").and_then(|text| text.as_str().map(str::to_owned)).unwrap_or_default();
        schema.remove("title");
        schema.remove("$schema");
        // A schema without any property has none otherwise, and some clients want it.
        let properties = schema.entry("properties").or_insert_with(|| json!({}));
        properties.as_object_mut().into_iter().flat_map(|properties| properties.values_mut()).for_each(omit_null);
        let separator = match names {
            ToolNames::Underscores => '_',
            ToolNames::Dots => '.',
        };
        let annotations = ToolAnnotations::with_title(self.title)
            .read_only(self.effect == ToolEffect::Reads)
            .destructive(self.effect == ToolEffect::Ends)
            .open_world(self.effect == ToolEffect::Acts);
        let mut tool = Tool::new(format!("{GROUP}{separator}{}", self.name), description, schema);
        tool.title = Some(self.title.to_owned());
        tool.annotations = Some(annotations);
        tool
    }

    /// Runs the tool. What fails is a result that the client's model can read.
    pub(super) async fn run(&self, arguments: JsonObject, call: ToolCall) -> CallToolResult {
        (self.run)(arguments, call).await
    }
}

/// Takes `null` from the types of a property that may be left out: some model APIs refuse several types.
fn omit_null(property: &mut Value) {
    if let Some([only, null]) = property["type"].as_array().map(Vec::as_slice)
        && null == "null"
    {
        property["type"] = only.clone();
    }
}

async fn run<T: McpTool>(arguments: JsonObject, call: ToolCall) -> CallToolResult {
    let result = match serde_path_to_error::deserialize::<_, T>(Value::Object(arguments)) {
        Ok(arguments) => arguments.run(call).await,
        Err(error) => {
            let place = match error.path().to_string() {
                path if path == "." => String::new(),
                path => format!(" in {path}"),
            };
            Err(ProblemDetails::usage(format!(
                "the arguments of {GROUP}.{} do not fit{place}: {}",
                T::NAME,
                error.inner()
            )))
        }
    };
    let (text, value, is_error) = match result {
        Ok(value) => (T::text(&value), value, false),
        Err(problem) => (problem.detail.clone(), json!({ "error": problem }), true),
    };
    let content = vec![ContentBlock::text(text)];
    let mut result = if is_error { CallToolResult::error(content) } else { CallToolResult::success(content) };
    result.structured_content = Some(value);
    result
}

/// All tools.
const TOOLS: &[ToolEntry] = &[
    ToolEntry::of::<sessions::StartSession>(),
    ToolEntry::of::<turns::SendMessage>(),
    ToolEntry::of::<turns::WaitForTurn>(),
    ToolEntry::of::<turns::Steer>(),
    ToolEntry::of::<turns::Abort>(),
    ToolEntry::of::<sessions::GetStatus>(),
    ToolEntry::of::<sessions::ListSessions>(),
    ToolEntry::of::<sessions::ReadEvents>(),
    ToolEntry::of::<sessions::SuspendSession>(),
    ToolEntry::of::<sessions::ResumeSession>(),
    ToolEntry::of::<processes::KillSession>(),
    ToolEntry::of::<processes::ListProcesses>(),
    ToolEntry::of::<processes::KillProcess>(),
    ToolEntry::of::<permissions::ListPermissions>(),
    ToolEntry::of::<permissions::AnswerPermission>(),
    ToolEntry::of::<agents::ListAgents>(),
];

/// Finds a tool by either of its names.
pub(super) fn find(name: &str) -> Option<&'static ToolEntry> {
    let name = name.strip_prefix(GROUP)?;
    let name = name.strip_prefix('.').or_else(|| name.strip_prefix('_'))?;
    TOOLS.iter().find(|tool| tool.name == name)
}

/// Describes all tools.
pub(super) fn list(names: ToolNames) -> Vec<Tool> {
    TOOLS.iter().map(|tool| tool.describe(names)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_found_by_both_names() {
        for names in [ToolNames::Underscores, ToolNames::Dots] {
            for tool in list(names) {
                assert!(find(&tool.name).is_some(), "{}", tool.name);
            }
        }
        assert!(
            find("start_session").is_none() && find("coding_agent.stop").is_none() && find("coding_agentx").is_none()
        );
    }

    #[test]
    fn each_tool_is_described_with_every_argument() {
        for tool in list(ToolNames::Underscores) {
            assert!(tool.description.as_ref().is_some_and(|text| text.len() > 20), "{}", tool.name);
            assert_eq!(tool.input_schema["type"], "object", "{}", tool.name);
            assert_eq!(tool.input_schema["additionalProperties"], false, "{}", tool.name);
            for (name, property) in tool.input_schema["properties"].as_object().expect("properties") {
                assert!(property["description"].is_string(), "{}: {name}", tool.name);
                assert!(property["type"].is_string(), "{}: {name}: one type", tool.name);
            }
            // What model APIs take for a name.
            assert!(tool.name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_') && tool.name.len() <= 64);
        }
    }
}
