//! Reports of Claude Code's hooks, which tell what happens on its own screen.

use ipc_protocol::{Event, Json, ToolEnd, ToolStart, ToolStatus};
use serde::Deserialize;
use serde_json::Value;

use super::tools;
use crate::Action;

/// What a hook is told.
#[derive(Debug, Deserialize)]
struct HookReport {
    session_id: String,
    #[serde(flatten)]
    event: HookEvent,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "hook_event_name")]
enum HookEvent {
    SessionStart {},
    UserPromptSubmit {
        prompt: String,
    },
    MessageDisplay {
        delta: String,
        #[serde(default, rename = "final")]
        is_final: bool,
    },
    PreToolUse {
        tool_use_id: String,
        tool_name: String,
        #[serde(default)]
        tool_input: Value,
    },
    PostToolUse {
        tool_use_id: String,
        #[serde(default)]
        tool_response: Value,
    },
    PostToolUseFailure {
        tool_use_id: String,
        #[serde(default)]
        error: Value,
    },
    #[serde(other)]
    Other,
}

/// Takes a report. `conversation` is the agent's latest: `/clear` and `/resume` begin another one in the same process.
pub(crate) fn take_report(line: &[u8], conversation: &mut Option<String>, out: &mut Vec<Action>) {
    let Ok(HookReport { session_id, event }) = serde_json::from_slice(line) else { return };
    if conversation.as_ref() != Some(&session_id) {
        *conversation = Some(session_id.clone());
        out.push(Action::NativeSession(session_id));
    }
    out.push(Action::Event(match event {
        HookEvent::UserPromptSubmit { prompt } => Event::TerminalPrompted { text: prompt },
        HookEvent::MessageDisplay { delta, is_final } => {
            Event::Text { text: if is_final { format!("{delta}\n") } else { delta } }
        }
        HookEvent::PreToolUse { tool_use_id, tool_name, tool_input } => Event::ToolStart(Box::new(ToolStart {
            id: tool_use_id,
            title: tools::title(&tool_name, &tool_input),
            kind: tools::kind(&tool_name).to_owned(),
            name: tool_name,
            input: Json::from(&tool_input),
            status: ToolStatus::InProgress,
            parent: None,
        })),
        HookEvent::PostToolUse { tool_use_id, tool_response } => {
            tool_end(tool_use_id, ToolStatus::Completed, &tool_response)
        }
        HookEvent::PostToolUseFailure { tool_use_id, error } => tool_end(tool_use_id, ToolStatus::Failed, &error),
        HookEvent::SessionStart {} | HookEvent::Other => return,
    }));
}

fn tool_end(id: String, status: ToolStatus, output: &Value) -> Event {
    let output = match (output, output.get("stdout")) {
        (Value::String(text), _) | (_, Some(Value::String(text))) => text.clone(),
        (Value::Null, _) => String::new(),
        (other, _) => other.to_string(),
    };
    Event::ToolEnd(Box::new(ToolEnd { id, status, output }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn taken(conversation: &mut Option<String>, report: &Value) -> Vec<Action> {
        let mut out = Vec::new();
        take_report(report.to_string().as_bytes(), conversation, &mut out);
        out
    }

    #[test]
    fn what_happens_on_the_screen_becomes_events() {
        let mut conversation = Some("a".to_owned());
        let report = |event: &str, more: Value| {
            let mut report = json!({ "session_id": "a", "hook_event_name": event, "cwd": "/", "unknown": 1 });
            report.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
            report
        };
        let prompt = taken(&mut conversation, &report("UserPromptSubmit", json!({ "prompt": "hi" })));
        assert!(matches!(&prompt[..], [Action::Event(Event::TerminalPrompted { text })] if text == "hi"), "{prompt:?}");
        let text = taken(&mut conversation, &report("MessageDisplay", json!({ "delta": "yes", "final": true })));
        assert!(matches!(&text[..], [Action::Event(Event::Text { text })] if text == "yes\n"), "{text:?}");
        let tool = json!({ "tool_use_id": "t1", "tool_name": "Bash", "tool_input": { "command": "ls" } });
        let begun = taken(&mut conversation, &report("PreToolUse", tool));
        let [Action::Event(Event::ToolStart(begun))] = &begun[..] else { panic!("{begun:?}") };
        assert_eq!((&*begun.id, &*begun.title, &*begun.kind), ("t1", "ls", "execute"));
        let ended = json!({ "tool_use_id": "t1", "tool_response": { "stdout": "a.rs", "stderr": "" } });
        let ended = taken(&mut conversation, &report("PostToolUse", ended));
        let [Action::Event(Event::ToolEnd(ended))] = &ended[..] else { panic!("{ended:?}") };
        assert_eq!((&*ended.id, ended.status, &*ended.output), ("t1", ToolStatus::Completed, "a.rs"));
        assert!(taken(&mut conversation, &report("Stop", json!({}))).is_empty());
        assert!(taken(&mut conversation, &json!("no report")).is_empty());
    }

    #[test]
    fn another_conversation_is_told() {
        let mut conversation = Some("a".to_owned());
        let report = json!({ "session_id": "b", "hook_event_name": "SessionStart", "source": "clear" });
        let told = taken(&mut conversation, &report);
        assert!(matches!(&told[..], [Action::NativeSession(id)] if id == "b"), "{told:?}");
        assert!(taken(&mut conversation, &report).is_empty());
    }
}
