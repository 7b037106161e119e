//! OpenAI's Responses dialect.

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::{
    conversation::{Conversation, Entry, Tool, items, text, texts_of},
    dialect::{Dialect, Head, USAGE, merged, typed},
    script::Turn,
};

pub(super) struct Responses;

impl Dialect for Responses {
    fn read(&self, body: &Value) -> Conversation {
        let mut entries = Vec::new();
        for item in items(&body["input"]) {
            match (item["type"].as_str(), item["role"].as_str()) {
                (Some("message") | None, Some("user")) => entries.push(Entry::User(texts_of(&item["content"]))),
                (Some("message") | None, Some("assistant")) => entries.push(Entry::Said),
                (Some("function_call"), _) => entries.push(Entry::Call),
                (Some("function_call_output"), _) => entries.push(Entry::Output(texts_of(&item["output"]).concat())),
                _ => {}
            }
        }
        let tools = items(&body["tools"]).iter().flat_map(tools);
        Conversation { entries, tools: tools.collect(), schema: body["text"]["format"]["schema"].clone() }
    }

    fn events(&self, turn: &Turn, head: &Head) -> Vec<String> {
        let response = response(head, "in_progress", &[]);
        let mut events = Events(vec![typed("response.created", json!({ "response": response }))]);
        let items = output(turn, head);
        for (at, item) in items.iter().enumerate() {
            match item["type"].as_str() {
                Some("reasoning") => events.reasoning(at, item, &turn.thinking),
                Some("message") => events.message(at, item, &turn.text),
                _ => events.call(at, item),
            }
            events.push("response.output_item.done", json!({ "output_index": at, "item": item }));
        }
        events.push("response.completed", json!({ "response": self::response(head, "completed", &items) }));
        events.0
    }

    fn whole(&self, turn: &Turn, head: &Head) -> Value {
        response(head, "completed", &output(turn, head))
    }

    fn error(&self, status: StatusCode, message: &str) -> Value {
        error(status, message)
    }
}

/// Between the names of a namespace and of a tool in it.
const IN_NAMESPACE: char = '.';

/// A tool, or those of a namespace.
fn tools(tool: &Value) -> Vec<Tool> {
    let name = text(&tool["name"]);
    if tool["type"] != "namespace" {
        return vec![Tool { name, parameters: tool["parameters"].clone() }];
    }
    let inside = items(&tool["tools"]).iter().flat_map(tools);
    inside.map(|tool| Tool { name: format!("{name}{IN_NAMESPACE}{}", tool.name), ..tool }).collect()
}

/// The body of OpenAI's HTTP errors.
pub(super) fn error(status: StatusCode, message: &str) -> Value {
    let kind = match status.as_u16() {
        429 => "rate_limit_exceeded",
        400..500 => "invalid_request_error",
        _ => "server_error",
    };
    json!({ "error": { "message": message, "type": kind, "param": null, "code": kind } })
}

fn response(head: &Head, status: &str, output: &[Value]) -> Value {
    let input = USAGE.input + USAGE.cache_read;
    let usage = json!({
        "input_tokens": input, "input_tokens_details": { "cached_tokens": USAGE.cache_read },
        "output_tokens": USAGE.output, "output_tokens_details": { "reasoning_tokens": USAGE.reasoning },
        "total_tokens": input + USAGE.output,
    });
    json!({
        "id": format!("resp_{}", head.number), "object": "response", "created_at": 0, "model": head.model,
        "status": status, "output": output, "usage": if status == "completed" { usage } else { Value::Null },
    })
}

/// The items of the answer, whole.
fn output(turn: &Turn, head: &Head) -> Vec<Value> {
    let number = head.number;
    let mut output = Vec::new();
    if !turn.thinking.is_empty() {
        let summary = json!({ "type": "summary_text", "text": turn.thinking.concat() });
        output.push(json!({ "type": "reasoning", "id": format!("rs_{number}"), "summary": [summary] }));
    }
    if !turn.text.is_empty() {
        let content = json!({ "type": "output_text", "text": turn.text.concat(), "annotations": [] });
        output.push(json!({
            "type": "message", "id": format!("msg_{number}"), "status": "completed", "role": "assistant",
            "content": [content],
        }));
    }
    output.extend(turn.calls.iter().enumerate().map(|(index, call)| {
        let (namespace, name) = call.tool.split_once(IN_NAMESPACE).map_or((None, &*call.tool), |(a, b)| (Some(a), b));
        let mut item = json!({
            "type": "function_call", "id": format!("fc_{number}_{index}"), "call_id": format!("call_{number}_{index}"),
            "status": "completed", "name": name, "arguments": call.arguments.to_string(),
        });
        if let Some(namespace) = namespace {
            item["namespace"] = json!(namespace);
        }
        item
    }));
    output
}

struct Events(Vec<String>);

impl Events {
    fn push(&mut self, kind: &str, data: Value) {
        self.0.push(typed(kind, data));
    }

    /// The item as it is added: its `member` is not there yet.
    fn added(&mut self, at: usize, item: &Value, member: &str, empty: Value) {
        let mut item = item.clone();
        item[member] = empty;
        self.push("response.output_item.added", json!({ "output_index": at, "item": item }));
    }

    fn reasoning(&mut self, at: usize, item: &Value, deltas: &[String]) {
        let about =
            |more: Value| merged(json!({ "item_id": item["id"], "output_index": at, "summary_index": 0 }), more);
        self.added(at, item, "summary", json!([]));
        let empty = json!({ "type": "summary_text", "text": "" });
        self.push("response.reasoning_summary_part.added", about(json!({ "part": empty })));
        for delta in deltas {
            self.push("response.reasoning_summary_text.delta", about(json!({ "delta": delta })));
        }
        self.push("response.reasoning_summary_text.done", about(json!({ "text": deltas.concat() })));
        self.push("response.reasoning_summary_part.done", about(json!({ "part": item["summary"][0] })));
    }

    fn message(&mut self, at: usize, item: &Value, deltas: &[String]) {
        let about =
            |more: Value| merged(json!({ "item_id": item["id"], "output_index": at, "content_index": 0 }), more);
        self.added(at, item, "content", json!([]));
        let empty = json!({ "type": "output_text", "text": "", "annotations": [] });
        self.push("response.content_part.added", about(json!({ "part": empty })));
        for delta in deltas {
            self.push("response.output_text.delta", about(json!({ "delta": delta })));
        }
        self.push("response.output_text.done", about(json!({ "text": deltas.concat() })));
        self.push("response.content_part.done", about(json!({ "part": item["content"][0] })));
    }

    fn call(&mut self, at: usize, item: &Value) {
        let about = |more: Value| merged(json!({ "item_id": item["id"], "output_index": at }), more);
        self.added(at, item, "arguments", json!(""));
        self.push("response.function_call_arguments.delta", about(json!({ "delta": item["arguments"] })));
        self.push("response.function_call_arguments.done", about(json!({ "arguments": item["arguments"] })));
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{dialect::samples, script::Call},
        *,
    };

    #[test]
    fn it_reads_what_was_said() {
        let body = json!({
            "input": [
                { "type": "message", "role": "developer", "content": [{ "type": "input_text", "text": "be brief" }] },
                { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "hello" }] },
                { "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "hi" }] },
                { "role": "user", "content": "shell: ls" },
                { "type": "reasoning", "summary": [] },
                { "type": "function_call", "call_id": "1" },
                { "type": "function_call", "call_id": "2" },
                { "type": "function_call_output", "call_id": "1", "output": "a" },
                { "type": "function_call_output", "call_id": "2", "output": [{ "type": "input_text", "text": "b" }] },
                { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "and now" }] },
            ],
            "tools": [{ "type": "function", "name": "bash", "parameters": { "properties": { "command": {} } } }],
            "text": { "format": { "schema": { "type": "object" } } },
        });
        assert_eq!(Responses.read(&body), samples::conversation());
        assert_eq!(Responses.read(&Value::Null), Conversation::default());
    }

    #[test]
    fn a_tool_of_a_namespace_is_called_in_it() {
        let inside = json!({ "type": "function", "name": "pick_plum", "parameters": { "type": "object" } });
        let body = json!({ "tools": [{ "type": "namespace", "name": "orchard", "tools": [inside] }] });
        let [tool] = &Responses.read(&body).tools[..] else { panic!("not one tool") };
        assert_eq!(tool.parameters["type"], "object");
        let call = Call { tool: tool.name.clone(), arguments: json!({}) };
        let item = &output(&Turn { calls: vec![call], ..Turn::default() }, &samples::head())[0];
        assert_eq!((&item["namespace"], &item["name"]), (&json!("orchard"), &json!("pick_plum")));
    }

    #[test]
    fn it_streams_thoughts_then_text_then_calls() {
        insta::assert_snapshot!(Responses.events(&samples::turn(), &samples::head()).concat());
    }

    #[test]
    fn it_answers_in_one_piece_and_with_errors() {
        let whole = Responses.whole(&samples::turn(), &samples::head());
        assert_eq!(whole["output"][1]["content"][0]["text"], "you said: \"é\"");
        assert_eq!(whole["output"][3]["call_id"], "call_7_1");
        assert_eq!((&whole["status"], &whole["usage"]["total_tokens"]), (&json!("completed"), &json!(1133)));
        assert_eq!(Responses.error(StatusCode::TOO_MANY_REQUESTS, "why")["error"]["code"], "rate_limit_exceeded");
    }
}
