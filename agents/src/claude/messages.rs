//! Messages of the model and its tools: their pieces, tool calls, sub-agents.

use ipc_protocol::{Event, ToolStart, ToolStatus, ToolUpdate};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use super::{
    diffs,
    plan::TodoPlan,
    tools,
    usage::{ClaudeUsage, RequestTokens},
};
use crate::{
    Action,
    kit::{
        answer::OpenAnswer,
        bounded_map::BoundedMap,
        bounds::{self, MAX_ID},
        image,
        tool_calls::{ToolCallLedger, emit_update, no_update},
    },
};

/// Most sub-agents remembered.
const MAX_AGENTS: usize = 256;
/// Most bytes of a change to the plan. The change is kept until the agent has made it.
const MAX_PLAN_INPUT: usize = 4096;

/// Tool call that has started and not ended.
#[derive(Debug)]
struct ClaudeToolCall {
    name: Box<str>,
    /// Id of the call whose sub-agent makes this call.
    parent: Option<Box<str>>,
    /// True while the input is still arriving.
    pending: bool,
    /// Input, for a call about the plan only.
    input: Value,
}

/// Contents of a `stream_event` line.
#[derive(Debug, Deserialize)]
struct StreamedLine<'a> {
    #[serde(borrow)]
    event: StreamedEvent<'a>,
    abandoned_blocks: Option<AbandonedBlocks>,
}

#[derive(Debug, Deserialize)]
struct StreamedEvent<'a> {
    #[serde(rename = "type")]
    kind: String,
    #[serde(borrow, default)]
    message: Option<MessageHead<'a>>,
    #[serde(borrow, default)]
    content_block: Option<ContentBlock<'a>>,
    #[serde(borrow, default)]
    delta: Option<ClaudeDeltaText<'a>>,
    usage: Option<RequestTokens>,
    #[serde(default)]
    index: u64,
}

/// Range of blocks in a message that broke off.
#[derive(Debug, Deserialize)]
struct AbandonedBlocks {
    from_block_index: u64,
}

#[derive(Debug, Deserialize)]
struct ClaudeDeltaText<'a> {
    #[serde(borrow, default)]
    text: Option<std::borrow::Cow<'a, str>>,
    #[serde(borrow, default)]
    thinking: Option<std::borrow::Cow<'a, str>>,
}

#[derive(Debug, Deserialize)]
struct MessageHead<'a> {
    id: Option<String>,
    model: Option<std::borrow::Cow<'a, str>>,
}

/// Contents of an `assistant` or `user` line.
#[derive(Debug, Deserialize)]
struct WholeMessageLine<'a> {
    #[serde(borrow)]
    message: ClaudeMessage<'a>,
    /// Set in a message that the agent makes up for a failed request.
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
    /// A tool's result, for programs.
    #[serde(borrow, default)]
    tool_use_result: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
struct ClaudeMessage<'a> {
    id: Option<String>,
    model: Option<String>,
    /// Array of blocks, or a text.
    #[serde(borrow)]
    content: &'a RawValue,
    usage: Option<RequestTokens>,
}

#[derive(Debug, Deserialize)]
struct ContentBlock<'a> {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
    thinking: Option<String>,
    id: Option<String>,
    name: Option<String>,
    #[serde(borrow, default)]
    input: Option<&'a RawValue>,
    tool_use_id: Option<String>,
    is_error: Option<bool>,
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
}

/// State of the conversation's messages.
#[derive(Debug, Default)]
pub(super) struct ClaudeMessages {
    /// Id of the last message of the main conversation that came in pieces. The complete message after it is not emitted again.
    streamed: Option<String>,
    /// Whether it has begun and not ended.
    is_open: bool,
    pub(super) answer: OpenAnswer,
    calls: ToolCallLedger<ClaudeToolCall>,
    /// Ids of sub-agents, each with the call that started it.
    agents: BoundedMap<Box<str>, MAX_AGENTS>,
    plan: TodoPlan,
}

impl ClaudeMessages {
    /// Handles a `stream_event` that was too unusual for the hot path.
    pub(super) fn streamed(
        &mut self,
        line: &[u8],
        parent: Option<&str>,
        meter: &mut ClaudeUsage,
        out: &mut Vec<Action>,
    ) -> bool {
        let Ok(StreamedLine { event, abandoned_blocks }) = serde_json::from_slice::<StreamedLine<'_>>(line) else {
            return false;
        };
        let main = parent.is_none();
        match event.kind.as_str() {
            "message_start" if main => {
                // The calls of a message that broke off do not go on.
                self.end_pending(out);
                let head = event.message.unwrap_or(MessageHead { id: None, model: None });
                // Older agents begin the next message without a word.
                if std::mem::replace(&mut self.is_open, true) {
                    out.extend(self.answer.void());
                }
                self.answer.begin();
                self.streamed = head.id.filter(|id| id.len() <= MAX_ID);
                if let Some(model) = head.model.as_deref().filter(|model| model.len() <= MAX_ID) {
                    meter.model(model);
                }
            }
            "content_block_start" => {
                if main {
                    self.answer.block(event.index);
                }
                if let Some(block) = event.content_block {
                    self.block_started(&block, parent, out);
                }
            }
            "content_block_delta" if main => {
                let delta = event.delta.unwrap_or(ClaudeDeltaText { text: None, thinking: None });
                emit_text(delta.text.as_deref(), delta.thinking.as_deref(), out);
            }
            "message_delta" if main => {
                if let Some(tokens) = event.usage {
                    meter.record_request(tokens);
                }
            }
            "message_stop" if main => {
                self.is_open = false;
                if let Some(gone) = abandoned_blocks {
                    out.extend(self.answer.void_from(gone.from_block_index));
                }
            }
            _ => {}
        }
        true
    }

    fn block_started(&mut self, block: &ContentBlock<'_>, parent: Option<&str>, out: &mut Vec<Action>) {
        if let (Some(id), Some(name)) = (&block.id, &block.name) {
            let start = ToolStart {
                id: id.clone(),
                name: name.clone(),
                title: name.clone(),
                kind: tools::kind(name).to_owned(),
                input: ipc_protocol::Json::null(),
                status: ToolStatus::Pending,
                parent: parent.map(str::to_owned),
            };
            self.begin(start, out);
        } else if parent.is_none() {
            emit_text(block.text.as_deref(), block.thinking.as_deref(), out);
        }
    }

    /// Handles an `assistant` line: a complete message, or one block of it.
    pub(super) fn assistant(
        &mut self,
        line: &[u8],
        parent: Option<&str>,
        meter: &mut ClaudeUsage,
        out: &mut Vec<Action>,
    ) -> bool {
        let Ok(WholeMessageLine { message, error, .. }) = serde_json::from_slice::<WholeMessageLine<'_>>(line) else {
            return false;
        };
        let Some(blocks) = blocks(message.content) else { return false };
        let told = message.id.is_some() && message.id == self.streamed;
        // The result reports the failure as an error.
        let failed = error.is_some_and(|error| error.get() != "null");
        let model = message.model.as_deref().filter(|model| model.len() <= MAX_ID && *model != "<synthetic>");
        if let Some(model) = model.filter(|_| parent.is_none() && !told && !failed) {
            meter.model(model);
            meter.record_request(message.usage.unwrap_or_default());
        }
        for block in blocks {
            match (block.kind.as_str(), parent) {
                ("text" | "thinking", None) if !told && !failed => {
                    emit_text(block.text.as_deref(), block.thinking.as_deref(), out);
                }
                // A sub-agent's text is not part of the answer.
                ("text", Some(parent)) => {
                    let text = block.text.filter(|text| !text.is_empty());
                    let event = |text| Event::SubagentText { parent: parent.to_owned(), text };
                    out.extend(text.map(event).map(Action::Event));
                }
                ("thinking", Some(parent)) => {
                    let text = block.thinking.filter(|text| !text.is_empty());
                    let event = |text| Event::SubagentThinking { parent: parent.to_owned(), text };
                    out.extend(text.map(event).map(Action::Event));
                }
                _ => {
                    self.called(&block, parent, out);
                    // Result of a tool that runs on the model's own server.
                    self.ended(&block, parent, None, out);
                }
            }
        }
        true
    }

    /// Handles a block that may be a complete tool call.
    fn called(&mut self, block: &ContentBlock<'_>, parent: Option<&str>, out: &mut Vec<Action>) {
        let (Some(id), Some(name), Some(raw)) = (&block.id, &block.name, block.input) else { return };
        let input = tools::value(Some(raw));
        let title = tools::title(name, &input);
        let start = ToolStart {
            id: id.clone(),
            name: name.clone(),
            title,
            kind: tools::kind(name).to_owned(),
            input: bounds::bounded(Some(raw)),
            status: ToolStatus::InProgress,
            parent: parent.map(str::to_owned),
        };
        if let Some(call) = self.calls.get_mut(id) {
            if std::mem::take(&mut call.pending) {
                let ToolStart { title, input, .. } = start;
                let (title, status) = (Some(title).filter(|title| title != name), Some(ToolStatus::InProgress));
                emit_update(ToolUpdate { title, status, input: Some(input), ..no_update(id) }, out);
            }
        } else {
            self.begin(start, out);
        }
        if self.calls.is_running(id) {
            self.calls.diff(id, parent, diffs::proposed(name, &input), out);
        }
        if parent.is_none() {
            out.extend(self.plan.called(name, &input).map(Action::Event));
            if name == "TaskUpdate"
                && raw.get().len() <= MAX_PLAN_INPUT
                && let Some(call) = self.calls.get_mut(id)
            {
                call.input = input;
            }
        }
    }

    /// Handles a `user` line: tool results, or text that the agent adds in the user's name.
    pub(super) fn user(&mut self, line: &[u8], parent: Option<&str>, out: &mut Vec<Action>) -> bool {
        let Ok(WholeMessageLine { message, tool_use_result, .. }) =
            serde_json::from_slice::<WholeMessageLine<'_>>(line)
        else {
            return false;
        };
        for block in blocks(message.content).unwrap_or_default() {
            self.ended(&block, parent, tool_use_result, out);
        }
        true
    }

    /// Handles a block that may be a tool result.
    fn ended(
        &mut self,
        block: &ContentBlock<'_>,
        parent: Option<&str>,
        result: Option<&RawValue>,
        out: &mut Vec<Action>,
    ) {
        let Some(id) = &block.tool_use_id else { return };
        let status = if block.is_error == Some(true) { ToolStatus::Failed } else { ToolStatus::Completed };
        if let Some(call) = self.calls.get(id) {
            let parent = call.parent.clone();
            if status == ToolStatus::Completed && tools::kind(&call.name) == "edit" {
                let done = diffs::done(&tools::value(result));
                self.calls.diff(id, parent.as_deref(), done, out);
            }
            emit_images(block.content, id, parent.as_deref(), out);
        }
        let Some(call) = self.calls.end(id, status, Some(output(block.content)), out) else { return };
        if parent.is_none() && status == ToolStatus::Completed {
            let result = tools::value(result);
            out.extend(self.plan.ended(&call.name, &call.input, &result).map(Action::Event));
        }
    }

    /// Begins a call, if it is new and fits the bounds.
    fn begin(&mut self, start: ToolStart, out: &mut Vec<Action>) {
        let ids = [Some(&start.id), Some(&start.name), start.parent.as_ref()];
        if ids.into_iter().flatten().all(|id| id.len() <= MAX_ID) && !self.has_call(&start.id) {
            let (name, parent) = (start.name.as_str().into(), start.parent.as_deref().map(Into::into));
            let call =
                ClaudeToolCall { name, parent, pending: start.status == ToolStatus::Pending, input: Value::Null };
            self.calls.start(start, call, out);
        }
    }

    pub(super) fn has_call(&self, id: &str) -> bool {
        self.calls.is_running(id)
    }

    /// Records that the call `call` started a sub-agent.
    pub(super) fn agent(&mut self, agent: &str, call: &str) {
        if agent.len() <= MAX_ID && call.len() <= MAX_ID && self.agents.get(agent).is_none() {
            self.agents.insert(agent, call.into());
        }
    }

    /// Returns the call that started a sub-agent.
    pub(super) fn caller(&self, agent: &str) -> Option<String> {
        self.agents.get(agent).map(ToString::to_string)
    }

    /// A turn of the agent's is over: its last answer stands.
    pub(super) fn answered(&mut self) {
        self.is_open = false;
        self.answer.begin();
    }

    /// Ends the calls whose input did not come to its end.
    fn end_pending(&mut self, out: &mut Vec<Action>) {
        self.calls.fail(|call| call.pending && call.parent.is_none(), out);
    }

    /// Ends the open calls of the main conversation, since the turn has ended. Calls of sub-agents go on.
    pub(super) fn turn_ended(&mut self, out: &mut Vec<Action>) {
        self.calls.fail(|call| call.parent.is_none(), out);
    }

    /// Ends the calls of the sub-agent that the call `parent` started.
    pub(super) fn agent_ended(&mut self, parent: &str, out: &mut Vec<Action>) {
        self.calls.fail(|call| call.parent.as_deref() == Some(parent), out);
    }

    /// Ends all calls, since the agent has ended.
    pub(super) fn end_all(&mut self, out: &mut Vec<Action>) {
        self.calls.fail(|_| true, out);
    }
}

/// Makes an update of a call.
pub(super) fn update(id: &str, title: Option<String>, status: Option<ToolStatus>, output: Option<String>) -> Action {
    let update = ToolUpdate { id: id.to_owned(), title, status, input: None, output };
    Action::Event(Event::ToolUpdate(Box::new(update)))
}

fn emit_text(text: Option<&str>, thinking: Option<&str>, out: &mut Vec<Action>) {
    let spoken = text.filter(|text| !text.is_empty()).map(|text| Event::Text { text: text.to_owned() });
    let thought = thinking.filter(|text| !text.is_empty()).map(|text| Event::Thinking { text: text.to_owned() });
    out.extend([spoken, thought].into_iter().flatten().map(Action::Event));
}

/// Parses the blocks of a message. A message that is a text is one block.
fn blocks(content: &RawValue) -> Option<Vec<ContentBlock<'_>>> {
    if content.get().starts_with('"') {
        let text = serde_json::from_str(content.get()).ok()?;
        return Some(vec![ContentBlock {
            kind: "text".to_owned(),
            text: Some(text),
            thinking: None,
            id: None,
            name: None,
            input: None,
            tool_use_id: None,
            is_error: None,
            content: None,
        }]);
    }
    serde_json::from_str(content.get()).ok()
}

/// Emits the pictures in a tool's output.
fn emit_images(content: Option<&RawValue>, call: &str, parent: Option<&str>, out: &mut Vec<Action>) {
    if content.is_none_or(|content| !content.get().contains("\"image\"")) {
        return;
    }
    let Value::Array(parts) = tools::value(content) else { return };
    for part in parts.iter().filter(|part| part["type"] == "image") {
        let source = &part["source"];
        if let (Some(kind), Some(data)) = (source["media_type"].as_str(), source["data"].as_str()) {
            out.push(Action::Event(image(kind, data, Some(call), parent)));
        }
    }
}

/// Returns a tool's output as text.
fn output(content: Option<&RawValue>) -> String {
    match tools::value(content) {
        Value::Null => String::new(),
        Value::String(text) => text,
        Value::Array(parts) => {
            let text = |part: &Value| match part.get("text").and_then(Value::as_str) {
                Some(text) => text.to_owned(),
                None => format!("[{}]", part.get("type").and_then(Value::as_str).unwrap_or("content")),
            };
            parts.iter().map(text).collect::<Vec<_>>().join("\n")
        }
        other => other.to_string(),
    }
}
