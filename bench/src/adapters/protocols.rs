//! Protocols: a recorded line of each, and the answers of its agent until it gets a prompt.

use agents::MakeAdapter;
use serde_json::{Value, json};

/// Placeholder for the piece of text in a recorded line, quotes included.
pub(super) const PIECE: &str = "\"PIECE\"";

/// Conversation id in the recorded lines of the agents that name it.
const THREAD: &str = "01a1fa29-7cb0-7031-883e-31b9360a0d6f";
const SESSION: &str = "ses_e05ccdcdaffe9vJ7cOptwz7RKg";

/// Protocol and recorded data of its agent.
#[derive(Debug)]
pub(super) struct BenchProtocol {
    pub(super) name: &'static str,
    pub(super) make: MakeAdapter,
    /// Line as the real agent wrote it, except for the text.
    pub(super) delta: &'static str,
    /// First output of the agent.
    pub(super) greeting: &'static str,
    /// Agent's answer to a line of the adapter, so that it starts and accepts a prompt.
    pub(super) answer: fn(&Value) -> Option<Value>,
    /// Lines that the agent writes before it answers a prompt.
    pub(super) opening: &'static [&'static str],
    /// True if it must reach the promised speed: every protocol of JSON lines.
    pub(super) has_bar: bool,
}

impl BenchProtocol {
    /// Returns the JSON of a line; `None` if there is none.
    pub(super) fn json<'a>(&self, line: &'a [u8]) -> Option<&'a [u8]> {
        let line = line.strip_prefix(b"data: ").unwrap_or(line);
        (!line.is_empty()).then_some(line)
    }
}

/// All protocols. OpenCode sends server-sent events, with a blank line after each.
pub(super) const ALL: [BenchProtocol; 5] = [
    BenchProtocol {
        name: "claude-code",
        make: agents::claude::make,
        delta: concat!(
            r#"{"type":"stream_event","event":{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"PIECE"}},"#,
            r#""session_id":"99d6a252-8cb2-4505-9926-321a474a00ac","parent_tool_use_id":null,"#,
            r#""uuid":"d8e08237-e567-4e89-8cd7-e1fd8bd88732","api_message_id":"msg_mock10"}"#,
            "\n"
        ),
        greeting: "",
        answer: |said| {
            let id = said.get("request_id")?;
            let response = json!({ "subtype": "success", "request_id": id, "response": {} });
            Some(json!({ "type": "control_response", "response": response }))
        },
        opening: &[],
        has_bar: true,
    },
    BenchProtocol {
        name: "codex",
        make: agents::codex::make,
        delta: concat!(
            r#"{"method":"item/agentMessage/delta","params":{"threadId":"01a1fa29-7cb0-7031-883e-31b9360a0d6f","#,
            r#""turnId":"01a1fa29-7ccc-7890-9660-042550d4a30e","itemId":"msg_mock11","delta":"PIECE"},"#,
            r#""emittedAtMs":1795198385440}"#,
            "\n"
        ),
        greeting: "",
        answer: |said| {
            let result =
                json!({ "thread": { "id": THREAD }, "turn": { "id": "01a1fa29-7ccc-7890-9660-042550d4a30e" } });
            Some(json!({ "id": said.get("id")?, "result": result }))
        },
        opening: &[],
        has_bar: true,
    },
    BenchProtocol {
        name: "pi",
        make: agents::pi::make,
        delta: concat!(
            r#"{"type":"message_update","usage":{"input":123,"output":1,"cacheRead":7,"cacheWrite":0,"totalTokens":131,"#,
            r#""cost":{"input":0,"output":0,"cacheRead":0,"cacheWrite":0,"total":0},"cacheWrite1h":0},"#,
            r#""assistantMessageEvent":{"type":"text_delta","contentIndex":0,"delta":"PIECE"}}"#,
            "\n"
        ),
        greeting: "",
        answer: |said| {
            let (id, command) = (said.get("id")?, said.get("type")?);
            let data = json!({ "sessionId": THREAD, "isStreaming": false });
            Some(json!({ "id": id, "type": "response", "command": command, "success": true, "data": data }))
        },
        opening: &[],
        has_bar: true,
    },
    BenchProtocol {
        name: "acp",
        make: agents::acp::make,
        delta: concat!(
            r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"ses_e05ccdcdaffe9vJ7cOptwz7RKg","update":{"#,
            r#""sessionUpdate":"agent_message_chunk","messageId":"msg_1fa33236b001k2hK0BK2rS8Hij","#,
            r#""content":{"type":"text","text":"PIECE"}}}}"#,
            "\n"
        ),
        greeting: "",
        answer: |said| {
            let result = match said["method"].as_str()? {
                "initialize" => json!({ "protocolVersion": 1 }),
                "session/new" => json!({ "sessionId": SESSION }),
                _ => return None,
            };
            Some(json!({ "jsonrpc": "2.0", "id": said["id"], "result": result }))
        },
        opening: &[],
        has_bar: true,
    },
    BenchProtocol {
        name: "opencode",
        make: agents::opencode::make,
        delta: concat!(
            r#"data: {"id":"evt_1fa350792001rTUJl3Mq1r6P5L","type":"message.part.delta","properties":{"#,
            r#""sessionID":"ses_e05ccdcdaffe9vJ7cOptwz7RKg","messageID":"msg_1fa3502aa001BhbRUJWatzzSgF","#,
            r#""partID":"prt_1fa35078b001oGg2w9QAoE2n5d","field":"text","delta":"PIECE"}}"#,
            "\n\n"
        ),
        greeting: "opencode server listening on http://127.0.0.1:4096\n",
        answer: |_| Some(json!({ "id": SESSION })),
        opening: &[
            concat!(
                r#"data: {"id":"evt_1fa3502aa002bf1W4NB1kBCuDw","type":"message.updated","properties":{"#,
                r#""sessionID":"ses_e05ccdcdaffe9vJ7cOptwz7RKg","info":{"id":"msg_1fa3502aa001BhbRUJWatzzSgF","#,
                r#""role":"assistant","sessionID":"ses_e05ccdcdaffe9vJ7cOptwz7RKg","time":{"created":1}}}}"#,
                "\n\n"
            ),
            concat!(
                r#"data: {"id":"evt_1fa35078c001Xy6ME8AYuDYd1U","type":"message.part.updated","properties":{"#,
                r#""sessionID":"ses_e05ccdcdaffe9vJ7cOptwz7RKg","part":{"id":"prt_1fa35078b001oGg2w9QAoE2n5d","#,
                r#""messageID":"msg_1fa3502aa001BhbRUJWatzzSgF","sessionID":"ses_e05ccdcdaffe9vJ7cOptwz7RKg","#,
                r#""type":"text","text":"","time":{"start":1}}}}"#,
                "\n\n"
            ),
        ],
        has_bar: false,
    },
];
