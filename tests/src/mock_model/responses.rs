//! OpenAI's Responses dialect.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::script::{self, Step, items, text_of};

/// The answer to `request` as server-sent events. `number` makes ids unique.
pub(super) fn stream(request: &Value, number: usize) -> String {
    let input = items(&request["input"]);
    let last_user = input.iter().rposition(|item| item["type"] == "message" && item["role"] == "user");
    let prompt = last_user.map_or_else(String::new, |at| text_of(&input[at]["content"]));
    let output = input[last_user.map_or(0, |at| at + 1)..]
        .iter()
        .rfind(|item| item["type"] == "function_call_output")
        .map(|item| text_of(&item["output"]));
    let tools: Vec<&str> = items(&request["tools"]).iter().filter_map(|tool| tool["name"].as_str()).collect();

    let mut events = Events(String::new());
    let response = format!("resp_{number}");
    events.push("response.created", json!({ "response": { "id": response } }));
    let item = match script::next(&prompt, output.as_deref(), &tools) {
        Step::Say(deltas) => {
            let id = format!("msg_{number}");
            let message =
                |content: Value| json!({ "type": "message", "id": id, "role": "assistant", "content": content });
            events.push("response.output_item.added", json!({ "output_index": 0, "item": message(json!([])) }));
            for delta in &deltas {
                let event = json!({ "item_id": id, "output_index": 0, "content_index": 0, "delta": delta });
                events.push("response.output_text.delta", event);
            }
            message(json!([{ "type": "output_text", "text": deltas.concat() }]))
        }
        Step::Call { tool, arguments } => json!({
            "type": "function_call", "id": format!("fc_{number}"), "call_id": format!("call_{number}"),
            "name": tool, "arguments": arguments.to_string(),
        }),
    };
    events.push("response.output_item.done", json!({ "output_index": 0, "item": item }));
    let usage = json!({ "input_tokens": 10, "input_tokens_details": null, "output_tokens": 5,
                        "output_tokens_details": null, "total_tokens": 15 });
    events.push("response.completed", json!({ "response": { "id": response, "usage": usage } }));
    events.0
}

struct Events(String);

impl Events {
    /// Adds an event; its type is in both the event's name and its data.
    fn push(&mut self, kind: &str, mut data: Value) {
        data["type"] = kind.into();
        // Writing to a String cannot fail.
        let _ = write!(self.0, "event: {kind}\ndata: {data}\n\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(text: &str) -> Value {
        json!({ "type": "message", "role": "user", "content": [{ "type": "input_text", "text": text }] })
    }

    #[test]
    fn a_shell_prompt_becomes_a_call_and_its_output_a_text() {
        let tools = json!([{ "type": "function", "name": "exec_command" }, { "type": "web_search" }]);
        let mut input = vec![user("<environment_context/>"), user("shell: echo hi")];
        let called = stream(&json!({ "input": input, "tools": tools }), 1);
        assert!(called.contains(r#""name":"exec_command""#), "{called}");
        assert!(called.contains(r#""arguments":"{\"cmd\":\"echo hi\"}""#), "{called}");
        assert!(called.ends_with("\n\n") && called.contains("event: response.completed\n"), "{called}");

        input.push(json!({ "type": "function_call", "call_id": "call_1" }));
        input.push(json!({ "type": "function_call_output", "call_id": "call_1", "output": "hi\n" }));
        let told = stream(&json!({ "input": input, "tools": tools }), 2);
        assert!(told.contains(r#""text":"done: hi\n""#), "{told}");

        // The output belongs to the turn before: the next prompt calls again.
        input.push(user("shell: echo again"));
        let again = stream(&json!({ "input": input, "tools": tools }), 3);
        assert!(again.contains("echo again") && again.contains("call_3"), "{again}");
    }
}
