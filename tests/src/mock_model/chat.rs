//! OpenAI's Chat Completions dialect.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::script::{self, Step, items, text_of};

/// The answer to `request` as server-sent events. `number` makes ids unique.
pub(super) fn stream(request: &Value, number: usize) -> String {
    let messages = items(&request["messages"]);
    let last_user = messages.iter().rposition(|message| message["role"] == "user");
    let prompt = last_user.map_or_else(String::new, |at| text_of(&messages[at]["content"]));
    let output = messages[last_user.map_or(0, |at| at + 1)..]
        .iter()
        .rfind(|message| message["role"] == "tool")
        .map(|message| text_of(&message["content"]));
    let tools: Vec<&str> =
        items(&request["tools"]).iter().filter_map(|tool| tool["function"]["name"].as_str()).collect();

    let (deltas, finish) = match script::next(&prompt, output.as_deref(), &tools) {
        Step::Say(deltas) => (deltas.iter().map(|text| json!({ "content": text })).collect(), "stop"),
        Step::Call { tool, arguments } => {
            let function = json!({ "name": tool, "arguments": arguments.to_string() });
            let call = json!({ "index": 0, "id": format!("call_{number}"), "type": "function", "function": function });
            (vec![json!({ "tool_calls": [call] })], "tool_calls")
        }
    };
    let usage = json!({ "prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15 });
    let chunks = deltas.into_iter().map(|delta| (delta, Value::Null, Value::Null));
    let last = (json!({}), json!(finish), usage);
    let mut events = String::new();
    for (delta, finish, usage) in chunks.chain([last]) {
        let chunk = json!({
            "id": format!("chatcmpl-{number}"), "object": "chat.completion.chunk", "created": 0,
            "model": request["model"], "usage": usage,
            "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }],
        });
        // Writing to a String cannot fail.
        let _ = write!(events, "data: {chunk}\n\n");
    }
    events + "data: [DONE]\n\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_prompt_becomes_a_call_and_its_output_a_text() {
        let tools = json!([{ "type": "function", "function": { "name": "bash" } }]);
        let mut messages = vec![json!({ "role": "user", "content": "shell: echo hi" })];
        let called = stream(&json!({ "messages": messages, "tools": tools }), 1);
        assert!(called.contains(r#""finish_reason":"tool_calls""#) && called.contains("echo hi"), "{called}");
        assert!(called.ends_with("data: [DONE]\n\n"), "{called}");

        messages.push(json!({ "role": "assistant", "tool_calls": [{ "id": "call_1" }] }));
        messages.push(json!({ "role": "tool", "tool_call_id": "call_1", "content": "hi\n" }));
        let told = stream(&json!({ "messages": messages, "tools": tools }), 2);
        assert!(told.contains("done: ") && told.contains(r#""finish_reason":"stop""#), "{told}");
    }
}
