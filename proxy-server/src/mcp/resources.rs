//! Sessions and their transcripts as resources.

use rmcp::{
    ErrorData,
    model::{
        ListResourceTemplatesResult, ListResourcesResult, ReadResourceResult, Resource, ResourceContents,
        ResourceTemplate,
    },
};
use serde_json::Value;

use crate::ProblemDetails;
use crate::api_client::ApiClient;

const SCHEME: &str = "agent-proxy://";

/// Most sessions in a list of resources: the latest.
const MOST: usize = 100;

/// Lists the sessions, and the transcript of each.
pub(super) async fn list(api: &ApiClient) -> Result<ListResourcesResult, ErrorData> {
    let sessions =
        api.get(&format!("/v1/sessions?sort=-startedAt&limit={MOST}")).await.map_err(|problem| failed(&problem))?;
    let mut resources = vec![
        Resource::new(format!("{SCHEME}sessions"), "sessions")
            .with_description("The sessions, as JSON.")
            .with_mime_type("application/json"),
    ];
    for session in sessions.as_array().into_iter().flatten() {
        let id = session["sessionId"].as_str().unwrap_or_default();
        let agent = session["agent"].as_str().or(session["metadata"]["agent"].as_str()).unwrap_or("agent");
        resources.push(
            Resource::new(format!("{SCHEME}sessions/{id}"), id)
                .with_description(format!("State of the {agent} session."))
                .with_mime_type("application/json"),
        );
        resources.push(
            Resource::new(format!("{SCHEME}sessions/{id}/transcript"), format!("{id} transcript"))
                .with_description(format!("Conversation of the {agent} session."))
                .with_mime_type("text/markdown"),
        );
    }
    Ok(ListResourcesResult::with_all_items(resources))
}

/// Describes the addresses of resources.
pub(super) fn templates() -> ListResourceTemplatesResult {
    let template = |path: &str, name: &str, what: &str, mime: &str| {
        ResourceTemplate::new(format!("{SCHEME}sessions/{path}"), name).with_description(what).with_mime_type(mime)
    };
    ListResourceTemplatesResult::with_all_items(vec![
        template("{session_id}", "session", "State of a session.", "application/json"),
        template("{session_id}/transcript", "transcript", "Conversation of a session.", "text/markdown"),
    ])
}

/// Reads a resource.
pub(super) async fn read(api: &ApiClient, uri: &str) -> Result<ReadResourceResult, ErrorData> {
    let unknown = || {
        ErrorData::resource_not_found(
            format!("there is no resource {uri:?}: resources/list has those that there are"),
            None,
        )
    };
    let path = uri.strip_prefix(SCHEME).ok_or_else(unknown)?;
    let parts: Vec<&str> = path.split('/').collect();
    let (route, is_transcript) = match parts[..] {
        ["sessions"] => ("/v1/sessions".to_owned(), false),
        ["sessions", id] if !id.is_empty() => (format!("/v1/sessions/{id}"), false),
        ["sessions", id, "transcript"] if !id.is_empty() => (format!("/v1/sessions/{id}/transcript"), true),
        _ => return Err(unknown()),
    };
    let value =
        api.get(&route).await.map_err(|problem| if problem.status == 404 { unknown() } else { failed(&problem) })?;
    let contents = match value {
        Value::Object(mut object) if is_transcript => {
            let text =
                object.remove("transcript").and_then(|text| text.as_str().map(str::to_owned)).unwrap_or_default();
            ResourceContents::text(text, uri).with_mime_type("text/markdown")
        }
        value => ResourceContents::text(format!("{value:#}"), uri).with_mime_type("application/json"),
    };
    Ok(ReadResourceResult::new(vec![contents]))
}

fn failed(problem: &ProblemDetails) -> ErrorData {
    ErrorData::internal_error(problem.detail.clone(), serde_json::to_value(problem).ok())
}
