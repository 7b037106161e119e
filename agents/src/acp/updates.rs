//! Conversion of `session/update` notifications to events.

use agent_client_protocol_schema::v1::{ContentBlock, ContentChunk, SessionConfigKind, SessionUpdate};
use ipc_protocol::{Event, PlanEntry};

use super::{
    content::{text_of_chunk, word},
    details,
    tools::AcpToolCalls,
};
use crate::{
    Action,
    kit::{image, session_status as status, session_title},
};

/// Emits the events of `update`. Returns `false` if the update is unknown or breaks a bound.
pub(super) fn events(update: SessionUpdate, calls: &mut AcpToolCalls, out: &mut Vec<Action>) -> bool {
    let mut event = |event| out.push(Action::Event(event));
    match update {
        // A sub-agent's text is not part of the answer.
        SessionUpdate::AgentMessageChunk(chunk) if let Some(parent) = details::parent(chunk.meta.as_ref()) => {
            event(Event::SubagentText { parent, text: text_of_chunk(chunk) });
        }
        SessionUpdate::AgentThoughtChunk(chunk) if let Some(parent) = details::parent(chunk.meta.as_ref()) => {
            event(Event::SubagentThinking { parent, text: text_of_chunk(chunk) });
        }
        SessionUpdate::AgentMessageChunk(ContentChunk { content: ContentBlock::Image(picture), .. }) => {
            event(image(&picture.mime_type, &picture.data, None, None));
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
                    priority: Some(word(&entry.priority)),
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
                event(status("title", title.clone()));
                event(session_title(&title));
            }
        }
        SessionUpdate::Notice(notice) => {
            let description = notice.description.map(|text| format!(": {text}")).unwrap_or_default();
            event(status("notice", format!("{}{description}", notice.title)));
        }
        SessionUpdate::CompactionUpdate(update) => event(status("compaction", word(&update.status))),
        // Our own prompt, and a summary for the model: no events. The session emits the commands.
        SessionUpdate::UserMessageChunk(_)
        | SessionUpdate::AvailableCommandsUpdate(_)
        | SessionUpdate::CompactionSummaryChunk(_) => {}
        _ => return false,
    }
    true
}
