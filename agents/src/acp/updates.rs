//! `session/update` notifications as events.

use std::collections::{HashSet, VecDeque};

use agent_client_protocol_schema::v1::{
    ContentBlock, ContentChunk, EmbeddedResourceResource, SessionConfigKind, SessionUpdate, ToolCall, ToolCallContent,
    ToolCallStatus, ToolCallUpdate, ToolKind, UsageUpdate,
};
use ipc_protocol::{Event, Json, PlanEntry, ToolEnd, ToolStart, ToolStatus, ToolUpdate, Usage};
use serde::Serialize;
use serde_json::Value;

use super::wire::MAX_ID;
use crate::Action;

/// Most tool calls remembered. An update of one that was forgotten begins it again.
const MAX_CALLS: usize = 1024;
/// Longest JSON document passed on, in bytes.
const MAX_JSON: usize = 1024 * 1024;

/// The tool calls that were begun.
#[derive(Debug, Default)]
pub(super) struct ToolCalls {
    known: HashSet<Box<str>>,
    order: VecDeque<Box<str>>,
}

impl ToolCalls {
    /// Remembers `id`. Whether it is new.
    fn begin(&mut self, id: &str) -> bool {
        if !self.known.insert(id.into()) {
            return false;
        }
        self.order.push_back(id.into());
        if self.order.len() > MAX_CALLS
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        true
    }
}

/// The events of `update`. `false` if it is none that is known, or breaks a bound.
pub(super) fn events(update: SessionUpdate, calls: &mut ToolCalls, out: &mut Vec<Action>) -> bool {
    let mut event = |event| out.push(Action::Event(event));
    match update {
        SessionUpdate::AgentMessageChunk(chunk) => event(Event::Text { text: text_of_chunk(chunk) }),
        SessionUpdate::AgentThoughtChunk(chunk) => event(Event::Thinking { text: text_of_chunk(chunk) }),
        SessionUpdate::ToolCall(call) => return tool_call(call, calls, out),
        SessionUpdate::ToolCallUpdate(update) => return tool_call_update(update, calls, out),
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
        SessionUpdate::UsageUpdate(update) => usage(&update, event),
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
        // Our own words, a menu of slash commands, and a summary for the model: nothing that happened.
        SessionUpdate::UserMessageChunk(_)
        | SessionUpdate::AvailableCommandsUpdate(_)
        | SessionUpdate::CompactionSummaryChunk(_) => {}
        _ => return false,
    }
    true
}

fn status(status: &str, detail: String) -> Event {
    Event::SessionStatus { status: status.to_owned(), detail }
}

fn usage(update: &UsageUpdate, mut event: impl FnMut(Event)) {
    event(Event::ContextWindow { used: update.used, size: update.size });
    if let Some(cost) = update.cost.as_ref().filter(|cost| cost.currency == "USD") {
        event(Event::Usage(Box::new(Usage { cost_usd: Some(cost.amount), ..Usage::default() })));
    }
}

fn tool_call(call: ToolCall, calls: &mut ToolCalls, out: &mut Vec<Action>) -> bool {
    let id = call.tool_call_id.0.as_ref();
    if id.len() > MAX_ID {
        return false;
    }
    if !calls.begin(id) {
        return tool_call_update(call.into(), calls, out);
    }
    let status = tool_status(call.status);
    let kind = kind(call.kind);
    out.push(Action::Event(Event::ToolStart(Box::new(ToolStart {
        id: id.to_owned(),
        name: call.name.unwrap_or_else(|| kind.clone()),
        title: call.title,
        kind,
        input: call.raw_input.as_ref().map_or_else(Json::null, json),
        status,
    }))));
    if is_end(status) {
        let output = output(Some(&call.content), call.raw_output.as_ref()).unwrap_or_default();
        out.push(Action::Event(Event::ToolEnd(Box::new(ToolEnd { id: id.to_owned(), status, output }))));
    }
    true
}

fn tool_call_update(update: ToolCallUpdate, calls: &mut ToolCalls, out: &mut Vec<Action>) -> bool {
    let ToolCallUpdate { tool_call_id, fields, .. } = update;
    let id = tool_call_id.0.as_ref();
    if id.len() > MAX_ID {
        return false;
    }
    let status = fields.status.map(tool_status);
    let input = fields.raw_input.as_ref().map(json);
    let output = output(fields.content.as_deref(), fields.raw_output.as_ref());
    let begun = calls.begin(id);
    if begun {
        let kind = kind(fields.kind.unwrap_or_default());
        out.push(Action::Event(Event::ToolStart(Box::new(ToolStart {
            id: id.to_owned(),
            name: fields.name.clone().unwrap_or_else(|| kind.clone()),
            title: fields.title.clone().unwrap_or_else(|| kind.clone()),
            kind,
            input: input.clone().unwrap_or_else(Json::null),
            status: status.filter(|status| !is_end(*status)).unwrap_or(ToolStatus::InProgress),
        }))));
    }
    if let Some(status) = status.filter(|status| is_end(*status)) {
        let output = output.unwrap_or_default();
        out.push(Action::Event(Event::ToolEnd(Box::new(ToolEnd { id: id.to_owned(), status, output }))));
    } else {
        let update = ToolUpdate {
            id: id.to_owned(),
            title: fields.title.filter(|_| !begun),
            status: status.filter(|_| !begun),
            input: input.filter(|_| !begun),
            output,
        };
        // Some updates change nothing but what is in `_meta`.
        if update.title.is_some() || update.status.is_some() || update.input.is_some() || update.output.is_some() {
            out.push(Action::Event(Event::ToolUpdate(Box::new(update))));
        }
    }
    true
}

fn is_end(status: ToolStatus) -> bool {
    matches!(status, ToolStatus::Completed | ToolStatus::Failed)
}

fn tool_status(status: ToolCallStatus) -> ToolStatus {
    match status {
        ToolCallStatus::Pending => ToolStatus::Pending,
        ToolCallStatus::Completed => ToolStatus::Completed,
        ToolCallStatus::Failed => ToolStatus::Failed,
        _ => ToolStatus::InProgress,
    }
}

fn kind(kind: ToolKind) -> String {
    word(&kind)
}

/// The protocol's word for a value that is a word in it.
fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(word)) => word,
        _ => "other".to_owned(),
    }
}

/// `value`, unless it is larger than can be passed on.
pub(super) fn json(value: &Value) -> Json {
    let json = Json::from(value);
    let len = json.as_str().len();
    if len <= MAX_JSON { json } else { Json::from(&Value::from(format!("left out: {len} bytes"))) }
}

/// A tool's output as text; `None` where there is none.
fn output(content: Option<&[ToolCallContent]>, raw: Option<&Value>) -> Option<String> {
    let text: String = content.into_iter().flatten().map(text_of_tool).collect();
    if !text.is_empty() {
        return Some(text);
    }
    let raw = raw.filter(|raw| !raw.is_null())?;
    let text =
        [raw.as_str()].into_iter().chain(["aggregated_output", "output", "stdout"].map(|key| raw.get(key)?.as_str()));
    Some(text.flatten().next().map_or_else(|| json(raw).as_str().to_owned(), str::to_owned))
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
