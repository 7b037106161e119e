//! Anthropic's Messages dialect.

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::{
    conversation::{Conversation, Entry, Tool, items, text, texts_of},
    dialect::{Dialect, Head, USAGE, typed},
    script::Turn,
};

pub(super) struct Anthropic;

impl Dialect for Anthropic {
    fn read(&self, body: &Value) -> Conversation {
        let entries = items(&body["messages"]).iter().flat_map(said).collect();
        let tools = items(&body["tools"]).iter();
        let tools = tools.map(|tool| Tool { name: text(&tool["name"]), parameters: tool["input_schema"].clone() });
        Conversation { entries, tools: tools.collect(), schema: body["output_config"]["format"]["schema"].clone() }
    }

    fn events(&self, turn: &Turn, head: &Head) -> Vec<String> {
        let mut begun = message(head, &[], Value::Null);
        begun["usage"]["output_tokens"] = json!(1);
        let mut events = vec![typed("message_start", json!({ "message": begun })), typed("ping", json!({}))];
        for (index, block) in blocks(turn, head).into_iter().enumerate() {
            let mut empty = block.clone();
            let mut deltas = Vec::new();
            match block["type"].as_str() {
                Some("thinking") => {
                    deltas
                        .extend(turn.thinking.iter().map(|text| json!({ "type": "thinking_delta", "thinking": text })));
                    deltas.push(json!({ "type": "signature_delta", "signature": block["signature"] }));
                    empty["thinking"] = json!("");
                    empty["signature"] = json!("");
                }
                Some("text") => {
                    deltas.extend(turn.text.iter().map(|text| json!({ "type": "text_delta", "text": text })));
                    empty["text"] = json!("");
                }
                _ => {
                    // In two pieces, as arguments come in several.
                    let input = block["input"].to_string();
                    let (head, tail) = input.split_at(1);
                    deltas.extend([head, tail].map(|json| json!({ "type": "input_json_delta", "partial_json": json })));
                    empty["input"] = json!({});
                }
            }
            events.push(typed("content_block_start", json!({ "index": index, "content_block": empty })));
            let deltas = deltas.into_iter().map(|delta| json!({ "index": index, "delta": delta }));
            events.extend(deltas.map(|delta| typed("content_block_delta", delta)));
            events.push(typed("content_block_stop", json!({ "index": index })));
        }
        let delta = json!({ "stop_reason": stop(turn), "stop_sequence": null });
        events.push(typed("message_delta", json!({ "delta": delta, "usage": usage() })));
        events.push(typed("message_stop", json!({})));
        events
    }

    fn whole(&self, turn: &Turn, head: &Head) -> Value {
        message(head, &blocks(turn, head), json!(stop(turn)))
    }

    fn error(&self, status: StatusCode, message: &str) -> Value {
        let kind = match status.as_u16() {
            401 => "authentication_error",
            404 => "not_found_error",
            429 => "rate_limit_error",
            529 => "overloaded_error",
            400..500 => "invalid_request_error",
            _ => "api_error",
        };
        json!({ "type": "error", "error": { "type": kind, "message": message }, "request_id": "req_mock" })
    }
}

/// The answer to a request that counts tokens.
pub(super) fn count() -> Value {
    json!({ "input_tokens": USAGE.input + USAGE.cache_read + USAGE.cache_write })
}

/// What a message says. The results of tools come before what the user says with them.
fn said(message: &Value) -> Vec<Entry> {
    let content = &message["content"];
    let blocks = |kind: &str| items(content).iter().filter(|block| block["type"] == kind).collect::<Vec<_>>();
    let mut said = Vec::new();
    let texts = texts_of(content);
    if message["role"] == "assistant" {
        said.extend((!texts.is_empty()).then_some(Entry::Said));
        said.extend(blocks("tool_use").iter().map(|_| Entry::Call));
    } else if message["role"] == "user" {
        let results = blocks("tool_result");
        said.extend(results.iter().map(|block| Entry::Output(texts_of(&block["content"]).concat())));
        said.extend((!texts.is_empty()).then_some(Entry::User(texts)));
    }
    said
}

fn message(head: &Head, content: &[Value], stop: Value) -> Value {
    json!({
        "id": format!("msg_{}", head.number), "type": "message", "role": "assistant", "model": head.model,
        "content": content, "stop_reason": stop, "stop_sequence": null, "usage": usage(),
    })
}

/// The blocks of the answer, whole.
fn blocks(turn: &Turn, head: &Head) -> Vec<Value> {
    let mut blocks = Vec::new();
    if !turn.thinking.is_empty() {
        blocks.push(json!({ "type": "thinking", "thinking": turn.thinking.concat(), "signature": "bW9jaw==" }));
    }
    if !turn.text.is_empty() {
        blocks.push(json!({ "type": "text", "text": turn.text.concat() }));
    }
    blocks.extend(turn.calls.iter().enumerate().map(|(index, call)| {
        let id = format!("toolu_{}_{index}", head.number);
        json!({ "type": "tool_use", "id": id, "name": call.tool, "input": call.arguments })
    }));
    blocks
}

fn stop(turn: &Turn) -> &'static str {
    if turn.calls.is_empty() { "end_turn" } else { "tool_use" }
}

fn usage() -> Value {
    json!({
        "input_tokens": USAGE.input, "cache_read_input_tokens": USAGE.cache_read,
        "cache_creation_input_tokens": USAGE.cache_write, "output_tokens": USAGE.output,
    })
}

#[cfg(test)]
mod tests {
    use super::{super::dialect::samples, *};

    #[test]
    fn it_reads_what_was_said() {
        let body = json!({
            "messages": [
                { "role": "user", "content": "hello" },
                { "role": "system", "content": "be brief" },
                { "role": "assistant", "content": [
                    { "type": "thinking", "thinking": "hm" }, { "type": "text", "text": "you said: hello" },
                ] },
                { "role": "user", "content": [{ "type": "text", "text": "shell: ls" }] },
                { "role": "assistant", "content": [{ "type": "tool_use", "id": "1" }, { "type": "tool_use", "id": "2" }] },
                { "role": "user", "content": [
                    { "type": "tool_result", "tool_use_id": "1", "content": "a" },
                    { "type": "tool_result", "tool_use_id": "2", "content": [{ "type": "text", "text": "b" }] },
                    { "type": "text", "text": "and now" },
                ] },
            ],
            "tools": [{ "name": "bash", "input_schema": { "properties": { "command": {} } } }],
            "output_config": { "format": { "type": "json_schema", "schema": { "type": "object" } } },
        });
        assert_eq!(Anthropic.read(&body), samples::conversation());
        assert_eq!(Anthropic.read(&Value::Null), Conversation::default());
    }

    #[test]
    fn it_streams_thoughts_then_text_then_calls() {
        insta::assert_snapshot!(Anthropic.events(&samples::turn(), &samples::head()).concat());
    }

    #[test]
    fn it_answers_in_one_piece_and_with_errors() {
        let whole = Anthropic.whole(&samples::turn(), &samples::head());
        assert_eq!(whole["content"][1]["text"], "you said: \"é\"");
        assert_eq!(whole["content"][3]["input"], json!({ "command": "echo b" }));
        assert_eq!(whole["usage"]["cache_creation_input_tokens"], 307);
        assert_eq!(Anthropic.error(StatusCode::TOO_MANY_REQUESTS, "why")["error"]["type"], "rate_limit_error");
    }
}
