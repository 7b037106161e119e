//! Gemini's dialect.

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::{
    conversation::{Conversation, Entry, Tool, items, text},
    dialect::{Dialect, Head, USAGE, event},
    script::Turn,
};

pub(super) struct Gemini;

impl Dialect for Gemini {
    fn read(&self, body: &Value) -> Conversation {
        let entries = items(&body["contents"]).iter().flat_map(said).collect();
        let tools = items(&body["tools"]).iter().flat_map(|tools| items(&tools["functionDeclarations"]));
        let tools = tools.map(|tool| {
            let parameters = ["parametersJsonSchema", "parameters"].map(|member| &tool[member]);
            let parameters = parameters.into_iter().find(|parameters| parameters.is_object());
            Tool { name: text(&tool["name"]), parameters: parameters.cloned().unwrap_or_default() }
        });
        Conversation { entries, tools: tools.collect(), schema: body["generationConfig"]["responseJsonSchema"].clone() }
    }

    fn events(&self, turn: &Turn, head: &Head) -> Vec<String> {
        let mut parts = thought(turn);
        parts.extend(turn.text.iter().map(|text| json!({ "text": text })));
        parts.extend(calls(turn, head));
        let last = chunk(head, &[json!({ "text": "" })], true);
        parts
            .into_iter()
            .map(|part| chunk(head, &[part], false))
            .chain([last])
            .map(|chunk| event(None, &chunk))
            .collect()
    }

    fn whole(&self, turn: &Turn, head: &Head) -> Value {
        let mut parts = thought(turn);
        if !turn.text.is_empty() {
            parts.push(json!({ "text": turn.text.concat() }));
        }
        parts.extend(calls(turn, head));
        chunk(head, &parts, true)
    }

    fn error(&self, status: StatusCode, message: &str) -> Value {
        let name = match status.as_u16() {
            401 => "UNAUTHENTICATED",
            404 => "NOT_FOUND",
            429 => "RESOURCE_EXHAUSTED",
            503 => "UNAVAILABLE",
            400..500 => "INVALID_ARGUMENT",
            _ => "INTERNAL",
        };
        json!({ "error": { "code": status.as_u16(), "message": message, "status": name } })
    }
}

/// The answer to a request that counts tokens.
pub(super) fn count() -> Value {
    json!({ "totalTokens": USAGE.input + USAGE.cache_read })
}

/// What a message says. The results of tools come before what the user says with them.
fn said(message: &Value) -> Vec<Entry> {
    let parts = items(&message["parts"]);
    let texts: Vec<String> = parts
        .iter()
        .filter(|part| part["thought"] != true)
        .filter_map(|part| part["text"].as_str())
        .map(str::to_owned)
        .collect();
    let mut said = Vec::new();
    if message["role"] == "model" {
        said.extend((!texts.concat().is_empty()).then_some(Entry::Said));
        said.extend(parts.iter().filter(|part| part["functionCall"].is_object()).map(|_| Entry::Call));
    } else {
        let responses = parts.iter().map(|part| &part["functionResponse"]).filter(|response| response.is_object());
        said.extend(responses.map(|response| Entry::Output(output(&response["response"]))));
        said.extend((!texts.is_empty()).then_some(Entry::User(texts)));
    }
    said
}

/// What a tool gave: its `output` or `error`, or all of it.
fn output(response: &Value) -> String {
    let told = [&response["output"], &response["error"]].into_iter().find_map(Value::as_str);
    told.map_or_else(|| response.to_string(), str::to_owned)
}

/// Thoughts come whole.
fn thought(turn: &Turn) -> Vec<Value> {
    let thought = (!turn.thinking.is_empty()).then(|| json!({ "text": turn.thinking.concat(), "thought": true }));
    thought.into_iter().collect()
}

fn calls(turn: &Turn, head: &Head) -> Vec<Value> {
    let call = |(index, call): (usize, &super::script::Call)| {
        let id = format!("call_{}_{index}", head.number);
        json!({ "functionCall": { "id": id, "name": call.tool, "args": call.arguments } })
    };
    turn.calls.iter().enumerate().map(call).collect()
}

fn chunk(head: &Head, parts: &[Value], last: bool) -> Value {
    let mut chunk = json!({
        "responseId": format!("resp_{}", head.number), "modelVersion": head.model,
        "candidates": [{ "index": 0, "content": { "role": "model", "parts": parts } }],
    });
    if last {
        let input = USAGE.input + USAGE.cache_read;
        chunk["candidates"][0]["finishReason"] = json!("STOP");
        chunk["usageMetadata"] = json!({
            "promptTokenCount": input, "cachedContentTokenCount": USAGE.cache_read,
            "candidatesTokenCount": USAGE.output, "thoughtsTokenCount": USAGE.reasoning,
            "totalTokenCount": input + USAGE.output + USAGE.reasoning,
        });
    }
    chunk
}

#[cfg(test)]
mod tests {
    use super::{super::dialect::samples, *};

    #[test]
    fn it_reads_what_was_said() {
        let body = json!({
            "contents": [
                { "role": "user", "parts": [{ "text": "hello" }] },
                { "role": "model", "parts": [{ "text": "hm", "thought": true }, { "text": "you said: hello" }] },
                { "role": "user", "parts": [{ "text": "shell: ls" }] },
                { "role": "model", "parts": [
                    { "text": "hm", "thought": true }, { "functionCall": { "id": "1" } }, { "functionCall": { "id": "2" } },
                ] },
                { "role": "user", "parts": [
                    { "functionResponse": { "id": "1", "response": { "output": "a" } } },
                    { "functionResponse": { "id": "2", "response": { "error": "b" } } },
                    { "text": "and now" },
                ] },
            ],
            "tools": [{ "functionDeclarations": [
                { "name": "bash", "parametersJsonSchema": { "properties": { "command": {} } } },
            ] }],
            "generationConfig": { "responseJsonSchema": { "type": "object" } },
        });
        assert_eq!(Gemini.read(&body), samples::conversation());
        assert_eq!(Gemini.read(&Value::Null), Conversation::default());
    }

    #[test]
    fn it_streams_thoughts_then_text_then_calls() {
        insta::assert_snapshot!(Gemini.events(&samples::turn(), &samples::head()).concat());
    }

    #[test]
    fn it_answers_in_one_piece_and_with_errors() {
        let whole = Gemini.whole(&samples::turn(), &samples::head());
        let parts = &whole["candidates"][0]["content"]["parts"];
        assert_eq!((&parts[0]["thought"], &parts[1]["text"]), (&json!(true), &json!("you said: \"é\"")));
        assert_eq!(parts[3]["functionCall"]["args"], json!({ "command": "echo b" }));
        assert_eq!(whole["usageMetadata"]["totalTokenCount"], 1140);
        assert_eq!(Gemini.error(StatusCode::TOO_MANY_REQUESTS, "why")["error"]["status"], "RESOURCE_EXHAUSTED");
    }
}
