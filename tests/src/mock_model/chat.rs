//! OpenAI's Chat Completions dialect.

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::{
    conversation::{Conversation, Entry, Tool, items, text, texts_of},
    dialect::{Dialect, Head, USAGE, event},
    responses,
    script::Turn,
};

pub(super) struct Chat;

impl Dialect for Chat {
    fn read(&self, body: &Value) -> Conversation {
        let mut entries = Vec::new();
        for message in items(&body["messages"]) {
            let content = &message["content"];
            match message["role"].as_str() {
                Some("user") => entries.push(Entry::User(texts_of(content))),
                Some("tool") => entries.push(Entry::Output(texts_of(content).concat())),
                Some("assistant") => {
                    if !texts_of(content).concat().is_empty() {
                        entries.push(Entry::Said);
                    }
                    entries.extend(items(&message["tool_calls"]).iter().map(|_| Entry::Call));
                }
                _ => {}
            }
        }
        let tools = items(&body["tools"]).iter().map(|tool| &tool["function"]);
        let tools = tools.map(|tool| Tool { name: text(&tool["name"]), parameters: tool["parameters"].clone() });
        Conversation {
            entries,
            tools: tools.collect(),
            schema: body["response_format"]["json_schema"]["schema"].clone(),
        }
    }

    fn events(&self, turn: &Turn, head: &Head) -> Vec<String> {
        let thinking = turn.thinking.iter().map(|delta| json!({ "reasoning_content": delta }));
        let text = turn.text.iter().map(|delta| json!({ "content": delta }));
        let calls = calls(turn, head).into_iter().enumerate().map(|(index, mut call)| {
            call["index"] = json!(index);
            json!({ "tool_calls": [call] })
        });
        let deltas =
            [json!({ "role": "assistant", "content": "" })].into_iter().chain(thinking).chain(text).chain(calls);
        let chunks = deltas.map(|delta| (delta, Value::Null, Value::Null));
        let last = (json!({}), json!(finish(turn)), usage());
        let chunks = chunks.chain([last]).map(|(delta, finish, usage)| {
            let chunk = json!({
                "id": format!("chatcmpl-{}", head.number), "object": "chat.completion.chunk", "created": 0,
                "model": head.model, "usage": usage,
                "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }],
            });
            event(None, &chunk)
        });
        chunks.chain(["data: [DONE]\n\n".to_owned()]).collect()
    }

    fn whole(&self, turn: &Turn, head: &Head) -> Value {
        let mut message = json!({ "role": "assistant", "content": turn.text.concat() });
        if !turn.thinking.is_empty() {
            message["reasoning_content"] = turn.thinking.concat().into();
        }
        if !turn.calls.is_empty() {
            message["tool_calls"] = calls(turn, head).into();
        }
        json!({
            "id": format!("chatcmpl-{}", head.number), "object": "chat.completion", "created": 0, "model": head.model,
            "usage": usage(), "choices": [{ "index": 0, "message": message, "finish_reason": finish(turn) }],
        })
    }

    fn error(&self, status: StatusCode, message: &str) -> Value {
        responses::error(status, message)
    }
}

fn calls(turn: &Turn, head: &Head) -> Vec<Value> {
    let call = |(index, call): (usize, &super::script::Call)| {
        let function = json!({ "name": call.tool, "arguments": call.arguments.to_string() });
        json!({ "id": format!("call_{}_{index}", head.number), "type": "function", "function": function })
    };
    turn.calls.iter().enumerate().map(call).collect()
}

fn finish(turn: &Turn) -> &'static str {
    if turn.calls.is_empty() { "stop" } else { "tool_calls" }
}

fn usage() -> Value {
    let input = USAGE.input + USAGE.cache_read;
    json!({
        "prompt_tokens": input, "prompt_tokens_details": { "cached_tokens": USAGE.cache_read },
        "completion_tokens": USAGE.output, "completion_tokens_details": { "reasoning_tokens": USAGE.reasoning },
        "total_tokens": input + USAGE.output,
    })
}

#[cfg(test)]
mod tests {
    use super::{super::dialect::samples, *};

    #[test]
    fn it_reads_what_was_said() {
        let body = json!({
            "messages": [
                { "role": "system", "content": "be brief" },
                { "role": "user", "content": "hello" },
                { "role": "assistant", "content": "you said: hello" },
                { "role": "user", "content": [{ "type": "text", "text": "shell: ls" }] },
                { "role": "assistant", "content": null, "tool_calls": [{ "id": "1" }, { "id": "2" }] },
                { "role": "tool", "tool_call_id": "1", "content": "a" },
                { "role": "tool", "tool_call_id": "2", "content": [{ "type": "text", "text": "b" }] },
                { "role": "user", "content": "and now" },
            ],
            "tools": [{ "function": { "name": "bash", "parameters": { "properties": { "command": {} } } } }],
            "response_format": { "json_schema": { "schema": { "type": "object" } } },
        });
        assert_eq!(Chat.read(&body), samples::conversation());
        assert_eq!(Chat.read(&Value::Null), Conversation::default());
    }

    #[test]
    fn it_streams_thoughts_then_text_then_calls() {
        insta::assert_snapshot!(Chat.events(&samples::turn(), &samples::head()).concat());
    }

    #[test]
    fn it_answers_in_one_piece_and_with_errors() {
        let whole = Chat.whole(&samples::turn(), &samples::head());
        assert_eq!(whole["choices"][0]["message"]["content"], "you said: \"é\"");
        assert_eq!(whole["choices"][0]["message"]["tool_calls"][1]["id"], "call_7_1");
        assert_eq!(whole["usage"]["total_tokens"], 1133);
        assert_eq!(Chat.error(StatusCode::TOO_MANY_REQUESTS, "why")["error"]["code"], "rate_limit_exceeded");
    }
}
