//! Content blocks and other values of the protocol as text.

use agent_client_protocol_schema::v1::{ContentBlock, ContentChunk, EmbeddedResourceResource, ToolCallContent};
use serde::Serialize;
use serde_json::Value;

use crate::kit::bounds;

/// Returns the protocol's word for a value that is serialized as a word.
pub(super) fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(word)) => word,
        _ => "other".to_owned(),
    }
}

/// Returns a tool's output as text, or `None` if it has none.
pub(super) fn output(content: Option<&[ToolCallContent]>, raw: Option<&Value>) -> Option<String> {
    whole_output(content, raw).map(bounds::output)
}

fn whole_output(content: Option<&[ToolCallContent]>, raw: Option<&Value>) -> Option<String> {
    let text: String = content.into_iter().flatten().map(text_of_tool).collect();
    if !text.is_empty() {
        return Some(text);
    }
    let raw = raw.filter(|raw| !raw.is_null())?;
    let text =
        [raw.as_str()].into_iter().chain(["aggregated_output", "output", "stdout"].map(|key| raw.get(key)?.as_str()));
    Some(text.flatten().next().map_or_else(|| bounds::json(raw).as_str().to_owned(), str::to_owned))
}

fn text_of_tool(content: &ToolCallContent) -> String {
    match content {
        ToolCallContent::Content(content) => text_of(&content.content).to_owned(),
        ToolCallContent::Diff(diff) => format!("changed {}\n", diff.path.display()),
        _ => String::new(),
    }
}

pub(super) fn text_of_chunk(chunk: ContentChunk) -> String {
    match chunk.content {
        ContentBlock::Text(text) => text.text,
        other => text_of(&other).to_owned(),
    }
}

fn text_of(block: &ContentBlock) -> &str {
    match block {
        ContentBlock::Text(text) => &text.text,
        ContentBlock::ResourceLink(link) => &link.uri,
        ContentBlock::Resource(resource) => match &resource.resource {
            EmbeddedResourceResource::TextResourceContents(text) => &text.text,
            _ => "[resource]",
        },
        ContentBlock::Image(_) => "[image]",
        ContentBlock::Audio(_) => "[audio]",
        _ => "[content]",
    }
}
