//! Conversion of messages and their parts to events.
//!
//! The server sends a part as its complete state, and text and thinking also in pieces. A piece does not contain its type: its part
//! does. The adapter remembers how much of a part it has emitted. So a repeated state emits nothing twice, and a state after a gap
//! emits the missing text.

use std::time::Instant;

use ipc_protocol::{Event, Json, ToolStart, ToolStatus, Usage};
use serde_json::Value;

use super::{
    diffs,
    wire::{self, MessageInfo, MessagePart, ToolState},
};
use crate::{
    Action,
    kit::{
        answer::OpenAnswer,
        bounded_map::BoundedMap,
        bounds::{self, MAX_ID},
        diffs::FoundDiff,
        image,
        tool_calls::{ToolCallLedger, emit_update, no_update},
    },
};

/// Most sub-agents remembered.
const MAX_CHILDREN: usize = 256;
/// Longest input of a running tool that is kept, in bytes.
const MAX_INPUT: usize = 64 * 1024;

/// Role of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessageRole {
    Prompt,
    Answer,
    /// Message that replaces the conversation after a compaction.
    Summary,
    /// Answer of a sub-agent.
    OfChild,
    /// Task of a sub-agent.
    ChildTask,
    /// A copy of one of the conversation that this one is a fork of: it was told there.
    Copied,
}

#[derive(Debug)]
enum PartState {
    Text {
        thinking: bool,
        /// Number of bytes that were emitted.
        told: usize,
        /// True if pieces are missing: only the complete state shows what comes next.
        holed: bool,
        /// Tool call of the sub-agent, if it is a sub-agent's text.
        parent: Option<Box<str>>,
    },
    /// End of a step, which counts once.
    StepEnd,
    /// Picture that was emitted.
    Picture,
}

/// Tool call that has not ended.
#[derive(Debug)]
struct OpenCodeToolCall {
    name: String,
    status: ToolStatus,
    title: String,
    input: Option<Value>,
    /// Tool call of the sub-agent, if it is a sub-agent's call.
    parent: Option<String>,
}

/// Conversation of a sub-agent.
#[derive(Debug, Default)]
struct ChildSession {
    /// Tool call that the sub-agent works for.
    call: Option<String>,
}

/// Tool call that a permission request is about.
pub(super) struct CallInfo<'a> {
    /// Our id of the call.
    pub(super) id: &'a str,
    pub(super) name: &'a str,
    pub(super) input: Option<&'a Value>,
}

/// Owner of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SessionOwner {
    Own,
    /// A sub-agent, with the tool call that it works for.
    Child(Option<String>),
    Foreign,
}

/// State of the conversation's messages, as far as events need it.
#[derive(Debug, Default)]
pub(super) struct ConversationContent {
    messages: BoundedMap<MessageRole>,
    parts: BoundedMap<PartState>,
    /// Tool calls, by the ids of their parts.
    tools: ToolCallLedger<OpenCodeToolCall>,
    /// Part of each tool call, by the server's id of the call.
    calls: BoundedMap<String>,
    children: BoundedMap<ChildSession, MAX_CHILDREN>,
    usage: Usage,
    /// Provider and model of the last answer.
    pub(super) model: Option<(String, String)>,
    /// When the conversation was made, if it is a fork, in milliseconds since 1970: copies of messages keep their own time, and may
    /// arrive while the first turn runs.
    pub(super) forked_at: Option<f64>,
    /// What paths in permission requests are relative to.
    pub(super) root: Option<String>,
    /// Tokens in the context window.
    pub(super) used: Option<u64>,
    pub(super) answer: OpenAnswer,
}

/// Effect of a part on its turn.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PartEffect {
    Nothing,
    /// A step of ours, or of a sub-agent, has ended.
    Step {
        ours: bool,
        /// True if the step has no stop reason.
        broken: bool,
    },
}

impl ConversationContent {
    /// Starts the token count of a turn or a compaction at zero.
    pub(super) fn turn_begins(&mut self) {
        self.usage = Usage::default();
        self.answer.begin();
    }

    /// Returns tokens and cost of the turn, including its sub-agents. The output includes thinking.
    /// A cost of 0 means a model without a price.
    pub(super) fn usage(&self) -> Option<Box<Usage>> {
        self.usage.output_tokens.is_some().then(|| Box::new(self.usage))
    }

    /// Returns the owner of session `id`.
    pub(super) fn owner(&self, id: &str, own: &str) -> SessionOwner {
        match self.children.get(id) {
            _ if id == own => SessionOwner::Own,
            Some(child) => SessionOwner::Child(child.call.clone()),
            None => SessionOwner::Foreign,
        }
    }

    /// Records the session of a new sub-agent.
    pub(super) fn child(&mut self, id: &str) {
        if id.len() <= MAX_ID && self.children.get(id).is_none() {
            self.children.insert(id, ChildSession::default());
        }
    }

    pub(super) fn has_children(&self) -> bool {
        !self.children.is_empty()
    }

    /// Returns the tool call with the server's id `id`.
    pub(super) fn call(&self, id: &str) -> Option<CallInfo<'_>> {
        let part = self.calls.get(id)?;
        let tool = self.tools.get(part)?;
        Some(CallInfo { id: part, name: &tool.name, input: tool.input.as_ref() })
    }

    /// Records a message. Returns `true` if it is a prompt that was not known.
    pub(super) fn message(&mut self, info: &MessageInfo<'_>, whose: &SessionOwner) -> bool {
        if info.id.len() > MAX_ID {
            return false;
        }
        let message = match whose {
            SessionOwner::Child(_) if info.is_prompt() => MessageRole::ChildTask,
            SessionOwner::Child(_) if info.is_summary() => MessageRole::Summary,
            SessionOwner::Child(_) => MessageRole::OfChild,
            _ if self.is_copied(info) => MessageRole::Copied,
            _ if info.is_prompt() => MessageRole::Prompt,
            _ if info.is_summary() => MessageRole::Summary,
            _ => MessageRole::Answer,
        };
        let known = self.messages.get(&info.id).is_some();
        self.messages.insert(&info.id, message);
        if *whose == SessionOwner::Own {
            if let (Some(provider), Some(model)) = (&info.provider, &info.model) {
                self.model = Some((provider.clone(), model.clone()));
            }
            if let Some(root) = info.path.as_ref().and_then(|path| path.root.clone()) {
                self.root = Some(root);
            }
        }
        message == MessageRole::Prompt && !known
    }

    /// Whether a message of ours was copied when the conversation was forked.
    pub(super) fn is_copied(&self, info: &MessageInfo<'_>) -> bool {
        matches!((self.forked_at, info.time.created), (Some(forked), Some(created)) if created < forked)
    }

    /// A piece of `part`; `None` if it cannot be told (yet).
    pub(super) fn delta(&mut self, part: &str, text: String) -> Option<Event> {
        match self.parts.get_mut(part)? {
            // Signed thinking ends with an empty piece.
            PartState::Text { .. } if text.is_empty() => None,
            PartState::Text { thinking, told, holed: false, parent } => {
                *told += text.len();
                Some(text_event(text, *thinking, parent.as_deref()))
            }
            _ => None,
        }
    }

    /// Ends the calls that have not ended: their end will not come, or may have been missed.
    pub(super) fn end_calls(&mut self, out: &mut Vec<Action>) {
        self.tools.end_each(|_| Some((ToolStatus::Failed, Some(""))), out);
    }

    /// Emits the output of tool calls that is due.
    pub(super) fn tick(&mut self, now: Instant, out: &mut Vec<Action>) -> Option<Instant> {
        self.tools.tick(now, out)
    }

    /// Records that the event stream was cut, so that pieces of the current texts are missing.
    pub(super) fn mark_cut(&mut self) {
        for part in self.parts.values_mut() {
            if let PartState::Text { holed, .. } = part {
                *holed = true;
            }
        }
    }

    /// Handles the complete state of a part.
    pub(super) fn part(&mut self, part: MessagePart<'_>, whose: &SessionOwner, out: &mut Vec<Action>) -> PartEffect {
        let message = self.messages.get(&part.message).copied();
        if part.id.len() > MAX_ID {
            return PartEffect::Nothing;
        }
        match (part.kind.as_ref(), message) {
            ("text" | "reasoning", Some(MessageRole::Answer)) => self.text(&part, None, out),
            // Without the call it is not known whose text it is.
            ("text" | "reasoning", Some(MessageRole::OfChild)) => {
                if let SessionOwner::Child(Some(call)) = whose {
                    self.text(&part, Some(call), out);
                }
            }
            ("file", Some(MessageRole::Answer)) => {
                if self.parts.get(&part.id).is_none()
                    && let Some(data) = wire::picture(&part.mime, &part.url)
                {
                    self.parts.insert(&part.id, PartState::Picture);
                    out.push(Action::Event(image(&part.mime, data, None, None)));
                }
            }
            ("tool", Some(MessageRole::Answer | MessageRole::OfChild)) => {
                let parent = match whose {
                    SessionOwner::Child(call) => call.clone(),
                    _ => None,
                };
                self.tool(part, parent, out);
            }
            ("step-start", Some(MessageRole::Answer)) => self.answer.begin(),
            ("step-finish", Some(message))
                if !matches!(message, MessageRole::Prompt | MessageRole::ChildTask | MessageRole::Copied) =>
            {
                return self.step_end(&part, message, out);
            }
            _ => {}
        }
        PartEffect::Nothing
    }

    fn text(&mut self, part: &MessagePart<'_>, parent: Option<&str>, out: &mut Vec<Action>) {
        let thinking = part.kind == "reasoning";
        if self.parts.get(&part.id).is_none() {
            let parent = parent.map(Into::into);
            self.parts.insert(&part.id, PartState::Text { thinking, told: 0, holed: false, parent });
        }
        let Some(PartState::Text { told, holed, .. }) = self.parts.get_mut(&part.id) else { return };
        let text = part.text.as_deref().unwrap_or_default();
        if let Some(rest) = text.get(*told..).filter(|rest| !rest.is_empty()) {
            *told += rest.len();
            out.push(Action::Event(text_event(rest.to_owned(), thinking, parent)));
        }
        if part.time.end.is_some() {
            // The text is complete.
            *holed = true;
        }
    }

    fn tool(&mut self, part: MessagePart<'_>, parent: Option<String>, out: &mut Vec<Action>) {
        let (Some(name), Some(state)) = (part.tool, part.state) else { return };
        let call = part.call.filter(|call| call.len() <= MAX_ID);
        if name.len() > MAX_ID {
            return;
        }
        if let Some(call) = &call {
            self.calls.insert(call, part.id.clone());
        }
        let metadata = state.metadata();
        if let Some(session) = metadata.session_id.filter(|session| session.len() <= MAX_ID) {
            self.children.insert(&session, ChildSession { call: Some(part.id.clone()) });
        }
        if self.tools.has_ended(&part.id) {
            return;
        }
        if !self.tools.is_running(&part.id) {
            self.begin(&part.id, name, &state, parent, out);
        }
        self.update(&part.id, state, metadata.output, out);
    }

    /// Begins a tool call.
    fn begin(&mut self, id: &str, name: String, state: &ToolState<'_>, parent: Option<String>, out: &mut Vec<Action>) {
        let input = state.input.filter(|_| state.status != "pending");
        let known: Option<Value> = input.and_then(|input| serde_json::from_str(input.get()).ok());
        let title = title(&name, known.as_ref(), state.title.as_deref());
        let status = if state.status == "pending" { ToolStatus::Pending } else { ToolStatus::InProgress };
        let start = ToolStart {
            id: id.to_owned(),
            name: name.clone(),
            title: title.clone(),
            kind: kind(&name).to_owned(),
            input: input.map_or_else(Json::null, |input| bounds::document(input.get())),
            status,
            parent,
        };
        let parent = start.parent.clone();
        let proposed = known.as_ref().and_then(|input| diffs::proposed(&name, input));
        let input = known.filter(|_| input.is_some_and(|input| input.get().len() <= MAX_INPUT));
        self.tools.start(start, OpenCodeToolCall { name, status, title, input, parent }, out);
        self.diff(id, proposed.into_iter().collect(), out);
    }

    /// Emits what a running call changes in files.
    fn diff(&mut self, id: &str, found: Vec<FoundDiff>, out: &mut Vec<Action>) {
        let Some(tool) = self.tools.get(id).filter(|_| !found.is_empty()) else { return };
        let parent = tool.parent.clone();
        self.tools.diff(id, parent.as_deref(), found, out);
    }

    /// Emits what a permission request shows of the changes of the server's call `call`.
    pub(super) fn asked_diff(&mut self, call: &str, metadata: &Value, out: &mut Vec<Action>) {
        if let Some(part) = self.calls.get(call).cloned() {
            self.diff(&part, diffs::told(metadata), out);
        }
    }

    /// Handles the state of a tool call that has not ended.
    fn update(&mut self, id: &str, state: ToolState<'_>, so_far: Option<String>, out: &mut Vec<Action>) {
        let Some(tool) = self.tools.get_mut(id) else { return };
        let status = match state.status.as_str() {
            "pending" => ToolStatus::Pending,
            "completed" => ToolStatus::Completed,
            "error" => ToolStatus::Failed,
            _ => ToolStatus::InProgress,
        };
        let edits = kind(&tool.name) == "edit";
        let mut update = no_update(id);
        let mut found = Vec::new();
        if let Some(input) = state.input.filter(|_| tool.status == ToolStatus::Pending && status != ToolStatus::Pending)
        {
            let known: Option<Value> = serde_json::from_str(input.get()).ok();
            found.extend(known.as_ref().and_then(|input| diffs::proposed(&tool.name, input)));
            tool.input = known.filter(|_| input.get().len() <= MAX_INPUT);
            update.input = Some(bounds::document(input.get()));
        }
        let title = title(&tool.name, tool.input.as_ref(), state.title.as_deref());
        if title != tool.title {
            update.title = Some(title.clone());
            tool.title = title;
        }
        if status == ToolStatus::InProgress && status != tool.status {
            update.status = Some(status);
        }
        tool.status = status;
        if let Some(so_far) = so_far.filter(|_| status == ToolStatus::InProgress) {
            self.tools.set_output(id, &so_far);
        }
        if update != no_update(id) {
            update.output = self.tools.take_unsent(id);
        }
        emit_update(update, out);
        if edits && status != ToolStatus::Failed {
            let metadata = state.all_metadata();
            found.extend(diffs::told(&metadata));
            if let Some(input) = state.input.filter(|_| status == ToolStatus::Completed) {
                found.extend(serde_json::from_str(input.get()).ok().and_then(|input| diffs::made(&input, &metadata)));
            }
        }
        self.diff(id, found, out);
        for file in &state.attachments {
            if let (Some(data), Some(tool)) = (wire::picture(&file.mime, &file.url), self.tools.get(id)) {
                out.push(Action::Event(image(&file.mime, data, Some(id), tool.parent.as_deref())));
            }
        }
        if matches!(status, ToolStatus::Completed | ToolStatus::Failed) {
            self.tools.end(id, status, Some(state.output.or(state.error).unwrap_or_default()), out);
        }
    }

    fn step_end(&mut self, part: &MessagePart<'_>, message: MessageRole, out: &mut Vec<Action>) -> PartEffect {
        if self.parts.get(&part.id).is_some() {
            return PartEffect::Nothing;
        }
        self.parts.insert(&part.id, PartState::StepEnd);
        // A step that broke off has no tokens.
        if let Some(tokens) = part.tokens.filter(|tokens| tokens.all() > 0) {
            let add = |sum: &mut Option<u64>, more| *sum = Some(sum.unwrap_or(0).saturating_add(more));
            // The server counts tokens of the cache beside the input.
            let input = tokens.input().saturating_add(tokens.cache_read()).saturating_add(tokens.cache_write());
            add(&mut self.usage.input_tokens, input);
            add(&mut self.usage.output_tokens, tokens.output());
            add(&mut self.usage.cache_read_tokens, tokens.cache_read());
            add(&mut self.usage.cache_write_tokens, tokens.cache_write());
            if let Some(cost) = part.cost.filter(|cost| cost.is_finite() && *cost > 0.0) {
                self.usage.cost_usd = Some(self.usage.cost_usd.unwrap_or(0.0) + cost);
            }
            out.push(Action::Event(Event::Usage(Box::new(self.usage))));
            if message == MessageRole::Answer {
                self.used = Some(tokens.all());
            }
        }
        let broken = part.reason.as_deref() == Some("unknown");
        if message == MessageRole::Answer {
            if broken {
                out.extend(self.answer.void());
            } else {
                self.answer.settle();
            }
        }
        PartEffect::Step { ours: message == MessageRole::Answer, broken }
    }
}

/// Makes the event of a piece of text.
fn text_event(text: String, thinking: bool, parent: Option<&str>) -> Event {
    match (thinking, parent.map(str::to_owned)) {
        (false, None) => Event::Text { text },
        (true, None) => Event::Thinking { text },
        (false, Some(parent)) => Event::SubagentText { parent, text },
        (true, Some(parent)) => Event::SubagentThinking { parent, text },
    }
}

/// Returns a one-line title of a call of the tool `name`.
fn title(name: &str, input: Option<&Value>, given: Option<&str>) -> String {
    let of_input = ["command", "filePath", "path", "pattern", "url", "description", "query"]
        .iter()
        .find_map(|key| input?.get(key)?.as_str())
        .filter(|text| !text.is_empty());
    let text = match (of_input, given.filter(|given| !given.is_empty())) {
        // The command, or the complete path, is more precise than the server's title.
        (Some(text), _) if matches!(name, "bash" | "edit" | "read" | "write") => text,
        (_, Some(given)) => given,
        (Some(text), None) => text,
        (None, None) => name,
    };
    text.lines().next().unwrap_or(name).chars().take(200).collect()
}

/// Returns the kind of a tool.
pub(super) fn kind(tool: &str) -> &'static str {
    match tool {
        "bash" => "execute",
        "edit" | "write" | "apply_patch" | "patch" | "multiedit" => "edit",
        "read" | "list" | "lsp" => "read",
        "glob" | "grep" => "search",
        "webfetch" | "websearch" => "fetch",
        "todowrite" | "todoread" => "think",
        "question" => "question",
        _ => "other",
    }
}
