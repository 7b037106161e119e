//! Conversion of `session/update` notifications to events.

use agent_client_protocol_schema::v1::{
    ContentBlock, ContentChunk, EmbeddedResourceResource, SessionConfigKind, SessionUpdate, ToolCallContent,
};
use ipc_protocol::{Event, PlanEntry, ToolUpdate};
use serde::Serialize;
use serde_json::Value;

use super::{details, tools::ToolCalls};
use crate::{Action, jsonl};

/// Emits the events of `update`. Returns `false` if the update is unknown or breaks a bound.
pub(super) fn events(update: SessionUpdate, calls: &mut ToolCalls, out: &mut Vec<Action>) -> bool {
    let mut event = |event| out.push(Action::Event(event));
    match update {
        SessionUpdate::AgentMessageChunk(chunk) | SessionUpdate::AgentThoughtChunk(chunk)
            if let Some(parent) = details::parent(chunk.meta.as_ref()) =>
        {
            // A sub-agent's text is not part of the answer.
            event(Event::ToolUpdate(Box::new(ToolUpdate {
                id: parent,
                title: None,
                status: None,
                input: None,
                output: Some(jsonl::output(text_of_chunk(chunk))),
            })));
        }
        SessionUpdate::AgentMessageChunk(chunk) => event(Event::Text { text: text_of_chunk(chunk) }),
        SessionUpdate::AgentThoughtChunk(chunk) => event(Event::Thinking { text: text_of_chunk(chunk) }),
        SessionUpdate::ToolCall(call) => return calls.call(call, out),
        SessionUpdate::ToolCallUpdate(update) => return calls.update(update, out),
        SessionUpdate::Plan(plan) => event(Event::Plan {
            entries: plan
                .entries
                .into_iter()
                .map(|entry| PlanEntry {
                    status: word(&entry.status),
                    priority: word(&entry.priority),
                    content: entry.content,
                })
                .collect(),
        }),
        // The turn handles the cost.
        SessionUpdate::UsageUpdate(update) => event(Event::context_window(update.used, update.size)),
        SessionUpdate::CurrentModeUpdate(update) => event(status("mode", update.current_mode_id.to_string())),
        SessionUpdate::ConfigOptionUpdate(update) => {
            let options = update.config_options.iter().filter_map(|option| match &option.kind {
                SessionConfigKind::Select(select) => Some(format!("{} = {}", option.id, select.current_value)),
                SessionConfigKind::Boolean(value) => Some(format!("{} = {}", option.id, value.current_value)),
                _ => None,
            });
            event(status("configOption", options.collect::<Vec<_>>().join(", ")));
        }
        SessionUpdate::SessionInfoUpdate(update) => {
            if let Some(title) = update.title.take() {
                event(status("title", title));
            }
        }
        SessionUpdate::Notice(notice) => {
            let description = notice.description.map(|text| format!(": {text}")).unwrap_or_default();
            event(status("notice", format!("{}{description}", notice.title)));
        }
        SessionUpdate::CompactionUpdate(update) => event(status("compaction", word(&update.status))),
        // Our own prompt, a menu of slash commands, and a summary for the model: no events.
        SessionUpdate::UserMessageChunk(_)
        | SessionUpdate::AvailableCommandsUpdate(_)
        | SessionUpdate::CompactionSummaryChunk(_) => {}
        _ => return false,
    }
    true
}

pub(super) fn status(status: &str, detail: String) -> Event {
    Event::SessionStatus { status: status.to_owned(), detail }
}

/// Returns the protocol's word for a value that is serialized as a word.
pub(super) fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(word)) => word,
        _ => "other".to_owned(),
    }
}

/// Returns a tool's output as text, or `None` if it has none.
pub(super) fn output(content: Option<&[ToolCallContent]>, raw: Option<&Value>) -> Option<String> {
    whole_output(content, raw).map(jsonl::output)
}

fn whole_output(content: Option<&[ToolCallContent]>, raw: Option<&Value>) -> Option<String> {
    let text: String = content.into_iter().flatten().map(text_of_tool).collect();
    if !text.is_empty() {
        return Some(text);
    }
    let raw = raw.filter(|raw| !raw.is_null())?;
    let text =
        [raw.as_str()].into_iter().chain(["aggregated_output", "output", "stdout"].map(|key| raw.get(key)?.as_str()));
    Some(text.flatten().next().map_or_else(|| jsonl::json(raw).as_str().to_owned(), str::to_owned))
}

fn text_of_tool(content: &ToolCallContent) -> String {
    match content {
        ToolCallContent::Content(content) => text_of(&content.content).to_owned(),
        ToolCallContent::Diff(diff) => format!("changed {}\n", diff.path.display()),
        _ => String::new(),
    }
}

fn text_of_chunk(chunk: ContentChunk) -> String {
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
