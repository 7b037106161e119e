//! Conversion of `session/update` notifications to events.

use agent_client_protocol_schema::v1::{SessionConfigKind, SessionUpdate};
use ipc_protocol::{Event, PlanEntry, ToolUpdate};

use super::{
    content::{text_of_chunk, word},
    details,
    tools::AcpToolCalls,
};
use crate::{
    Action,
    kit::{bounds, session_status as status, tool_calls::no_update},
};

/// Emits the events of `update`. Returns `false` if the update is unknown or breaks a bound.
pub(super) fn events(update: SessionUpdate, calls: &mut AcpToolCalls, out: &mut Vec<Action>) -> bool {
    let mut event = |event| out.push(Action::Event(event));
    match update {
        SessionUpdate::AgentMessageChunk(chunk) | SessionUpdate::AgentThoughtChunk(chunk)
            if let Some(parent) = details::parent(chunk.meta.as_ref()) =>
        {
            // A sub-agent's text is not part of the answer.
            let output = Some(bounds::output(text_of_chunk(chunk)));
            event(Event::ToolUpdate(Box::new(ToolUpdate { output, ..no_update(&parent) })));
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
