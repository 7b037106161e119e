//! A session's events as updates of the protocol.

use serde_json::{Value, json};

/// Returns the updates that an event is for an editor. Its own prompts are not told (`tells_prompt`): it shows them already.
pub(super) fn updates(event: &Value, tells_prompt: bool) -> Vec<Value> {
    let payload = &event["payload"];
    let text = |kind: &str| json!({ "sessionUpdate": kind, "content": { "type": "text", "text": payload["text"] } });
    match event["type"].as_str().unwrap_or_default() {
        "turn:started" if tells_prompt => vec![json!({
            "sessionUpdate": "user_message_chunk", "content": { "type": "text", "text": prompt(payload) }
        })],
        // Somebody typed it on the agent's own screen.
        "terminal:prompted" => vec![text("user_message_chunk")],
        "stream:text" => vec![text("agent_message_chunk")],
        "stream:thinking" => vec![text("agent_thought_chunk")],
        "stream:subagent_text" => vec![json!({
            "sessionUpdate": "agent_thought_chunk", "content": { "type": "text", "text": payload["text"] },
            "_meta": { "parent": payload["parent"] },
        })],
        "stream:image" if payload["toolCallId"].is_null() && !payload["data"].is_null() => vec![json!({
            "sessionUpdate": "agent_message_chunk",
            "content": { "type": "image", "mimeType": payload["mimeType"], "data": payload["data"] },
        })],
        "stream:tool_start" => vec![present(json!({
            "sessionUpdate": "tool_call", "toolCallId": payload["id"], "title": payload["title"], "kind": kind(&payload["kind"]),
            "status": status(&payload["status"]), "rawInput": payload["input"],
        }))],
        "stream:tool_update" => vec![present(json!({
            "sessionUpdate": "tool_call_update", "toolCallId": payload["id"], "title": payload["title"],
            "status": status(&payload["status"]), "rawInput": payload["input"], "content": output(&payload["output"]),
        }))],
        "stream:tool_end" => vec![present(json!({
            "sessionUpdate": "tool_call_update", "toolCallId": payload["id"], "status": status(&payload["status"]),
            "content": output(&payload["output"]),
        }))],
        "stream:diff" => vec![json!({
            "sessionUpdate": "tool_call_update", "toolCallId": payload["toolCallId"], "content": diffs(payload),
            "locations": [{ "path": payload["path"] }],
        })],
        "stream:plan" => vec![json!({ "sessionUpdate": "plan", "entries": plan(&payload["entries"]) })],
        "session:commands" => vec![
            json!({ "sessionUpdate": "available_commands_update", "availableCommands": commands(&payload["commands"]) }),
        ],
        "session:title" => vec![json!({ "sessionUpdate": "session_info_update", "title": payload["title"] })],
        "session:mode" => vec![json!({ "sessionUpdate": "current_mode_update", "currentModeId": payload["mode"] })],
        "stream:context_window" if payload["size"].is_u64() => vec![json!({
            "sessionUpdate": "usage_update", "used": payload["used"], "size": payload["size"],
        })],
        "stream:error" => vec![json!({
            "sessionUpdate": "agent_thought_chunk",
            "content": { "type": "text", "text": format!("error: {}\n", payload["message"].as_str().unwrap_or_default()) },
        })],
        _ => Vec::new(),
    }
}

/// Text of a prompt, with a line for each of its other parts.
fn prompt(payload: &Value) -> String {
    let attachments = payload["attachments"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let text = payload["prompt"].as_str().filter(|text| !text.is_empty());
    text.into_iter().chain(attachments).collect::<Vec<_>>().join("\n")
}

/// Slash commands, as the protocol has them.
pub(super) fn commands(commands: &Value) -> Value {
    let command = |command: &Value| {
        let hint = &command["argumentHint"];
        let input = if hint.is_null() { Value::Null } else { json!({ "hint": hint }) };
        let description = command["description"].as_str().unwrap_or_default();
        present(json!({ "name": command["name"], "description": description, "input": input }))
    };
    commands.as_array().into_iter().flatten().map(command).collect()
}

/// Options of a permission request, as the protocol has them.
pub(super) fn options(options: &Value) -> Value {
    let option = |option: &Value| {
        let kind = match option["kind"].as_str().unwrap_or_default() {
            "allowOnce" => "allow_once",
            "allowAlways" => "allow_always",
            "rejectAlways" => "reject_always",
            _ => "reject_once",
        };
        json!({ "optionId": option["id"], "name": option["name"], "kind": kind })
    };
    options.as_array().into_iter().flatten().map(option).collect()
}

/// Kind of a tool call, in the protocol's words.
pub(super) fn kind(kind: &Value) -> &str {
    match kind.as_str().unwrap_or_default() {
        known @ ("read" | "edit" | "delete" | "move" | "search" | "execute" | "think" | "fetch") => known,
        "switchMode" => "switch_mode",
        _ => "other",
    }
}

/// Reason for the end of a turn, in the protocol's words.
pub(super) fn stop_reason(reason: &Value) -> &'static str {
    match reason.as_str().unwrap_or_default() {
        "cancelled" => "cancelled",
        "refusal" => "refusal",
        "maxTokens" => "max_tokens",
        "maxRequests" => "max_turn_requests",
        _ => "end_turn",
    }
}

fn status(status: &Value) -> Value {
    match status.as_str() {
        Some("inProgress") => json!("in_progress"),
        Some(other) => json!(other),
        None => Value::Null,
    }
}

fn output(output: &Value) -> Value {
    match output.as_str() {
        Some(text) if !text.is_empty() => json!([{ "type": "content", "content": { "type": "text", "text": text } }]),
        _ => Value::Null,
    }
}

fn diffs(diff: &Value) -> Value {
    let hunks = diff["hunks"].as_array().map_or(&[][..], Vec::as_slice);
    let block = |hunk: &Value| {
        let new = hunk["newText"].as_str().unwrap_or_default();
        json!({ "type": "diff", "path": diff["path"], "oldText": hunk["oldText"], "newText": new })
    };
    hunks.iter().map(block).collect()
}

fn plan(entries: &Value) -> Value {
    let entry = |entry: &Value| {
        let status = match entry["status"].as_str().unwrap_or_default() {
            "completed" | "done" => "completed",
            "in_progress" | "inProgress" | "active" => "in_progress",
            _ => "pending",
        };
        let priority =
            entry["priority"].as_str().filter(|priority| matches!(*priority, "high" | "low")).unwrap_or("medium");
        json!({ "content": entry["content"], "priority": priority, "status": status })
    };
    entries.as_array().into_iter().flatten().map(entry).collect()
}

/// Leaves out members that are null: to the protocol they say that nothing changed.
fn present(mut update: Value) -> Value {
    if let Some(members) = update.as_object_mut() {
        members.retain(|_, value| !value.is_null());
    }
    update
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_become_updates() {
        let of = |kind: &str, payload: Value| json!(updates(&json!({ "type": kind, "payload": payload }), false));
        for (kind, payload, expected) in [
            (
                "stream:text",
                json!({ "text": "hi" }),
                json!([{ "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": "hi" } }]),
            ),
            (
                "stream:tool_start",
                json!({ "id": "1", "name": "Bash", "title": "ls", "kind": "execute", "input": null, "status": "inProgress", "parent": null }),
                json!([{ "sessionUpdate": "tool_call", "toolCallId": "1", "title": "ls", "kind": "execute", "status": "in_progress" }]),
            ),
            (
                "stream:tool_end",
                json!({ "id": "1", "status": "failed", "output": "no" }),
                json!([{
                    "sessionUpdate": "tool_call_update", "toolCallId": "1", "status": "failed",
                    "content": [{ "type": "content", "content": { "type": "text", "text": "no" } }],
                }]),
            ),
            (
                "stream:diff",
                json!({ "toolCallId": "1", "path": "/a", "hunks": [{ "oldText": null, "newText": "x" }] }),
                json!([{
                    "sessionUpdate": "tool_call_update", "toolCallId": "1", "locations": [{ "path": "/a" }],
                    "content": [{ "type": "diff", "path": "/a", "oldText": null, "newText": "x" }],
                }]),
            ),
            (
                "stream:plan",
                json!({ "entries": [{ "content": "a", "status": "in_progress", "priority": null }] }),
                json!([{ "sessionUpdate": "plan", "entries": [{ "content": "a", "priority": "medium", "status": "in_progress" }] }]),
            ),
            (
                "session:commands",
                json!({ "commands": [{ "name": "a", "description": null, "argumentHint": "b" }, { "name": "c", "description": "d", "argumentHint": null }] }),
                json!([{
                    "sessionUpdate": "available_commands_update",
                    "availableCommands": [{ "name": "a", "description": "", "input": { "hint": "b" } }, { "name": "c", "description": "d" }],
                }]),
            ),
            ("session:idle", json!({}), json!([])),
            ("turn:started", json!({ "prompt": "x" }), json!([])),
        ] {
            assert_eq!(of(kind, payload), expected, "{kind}");
        }
        let payload = json!({ "prompt": "x", "attachments": ["image/png (3 bytes)"] });
        let replayed = updates(&json!({ "type": "turn:started", "payload": payload }), true);
        assert_eq!(replayed[0]["sessionUpdate"], "user_message_chunk");
        assert_eq!(replayed[0]["content"]["text"], "x\nimage/png (3 bytes)");
    }
}
