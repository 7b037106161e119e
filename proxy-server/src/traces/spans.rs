//! Spans of sessions, turns and tool calls, from their events. No I/O.

use std::{collections::HashMap, sync::Arc, time::SystemTime};

use proxy_manager::{Envelope, Event, Receipt, SessionId, ToolStatus, Usage};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

/// Value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum AttributeValue {
    Text(String),
    Number(i64),
    Amount(f64),
    List(Vec<String>),
}

/// Names of attributes, with their values.
pub(super) type Attributes = Vec<(&'static str, AttributeValue)>;

/// Span that has ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FinishedSpan {
    pub(super) trace: [u8; 16],
    pub(super) id: [u8; 8],
    pub(super) parent: Option<[u8; 8]>,
    pub(super) name: String,
    pub(super) start: SystemTime,
    pub(super) end: SystemTime,
    pub(super) attributes: Attributes,
    /// What went wrong, if something did.
    pub(super) error: Option<String>,
}

/// Session whose span is open.
#[derive(Debug)]
struct OpenTrace {
    agent: String,
    model: Option<String>,
    start: SystemTime,
    turn: Option<OpenTurn>,
    tools: HashMap<String, OpenTool>,
}

#[derive(Debug)]
struct OpenTurn {
    number: u64,
    start: SystemTime,
    error: Option<String>,
}

#[derive(Debug)]
struct OpenTool {
    name: String,
    kind: String,
    parent: Option<String>,
    /// Turn that it is a call of.
    turn: Option<u64>,
    start: SystemTime,
}

/// Makes spans of events.
#[derive(Debug, Default)]
pub(super) struct SpanRecorder {
    open: HashMap<Arc<SessionId>, OpenTrace>,
}

/// Trace of a session: the same for each daemon that has it.
fn trace_id(session: &SessionId) -> [u8; 16] {
    let mut id = [0; 16];
    id.copy_from_slice(&Sha256::digest(session.as_str())[..16]);
    id
}

fn span_id(session: &SessionId, what: &str) -> [u8; 8] {
    let mut id = [0; 8];
    id.copy_from_slice(&Sha256::digest(format!("{session}\0{what}"))[..8]);
    id
}

/// Word that a value is in JSON.
fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        Ok(serde_json::Value::Object(members)) => members.into_iter().next().map(|(name, _)| name).unwrap_or_default(),
        _ => String::new(),
    }
}

impl SpanRecorder {
    /// Takes an event. Returns the spans that it ends. `model` tells the model that the session is set to.
    pub(super) fn record(&mut self, envelope: &Envelope, model: impl Fn() -> Option<String>) -> Vec<FinishedSpan> {
        let (session, at) = (&envelope.session, envelope.created_at);
        if let Event::SessionStarted { agent, .. } = &envelope.event {
            let trace =
                OpenTrace { agent: agent.clone(), model: model(), start: at, turn: None, tools: HashMap::new() };
            self.open.insert(session.clone(), trace);
            return Vec::new();
        }
        let Some(trace) = self.open.get_mut(session) else { return Vec::new() };
        match &envelope.event {
            Event::TurnStarted { .. } => {
                trace.model = model().or(trace.model.take());
                trace.turn = Some(OpenTurn { number: envelope.turn.unwrap_or_default(), start: at, error: None });
                Vec::new()
            }
            Event::ToolStart(tool) => {
                let turn = trace.turn.as_ref().map(|turn| turn.number);
                let (name, kind, parent) = (tool.name.clone(), tool.kind.clone(), tool.parent.clone());
                trace.tools.insert(tool.id.clone(), OpenTool { name, kind, parent, turn, start: at });
                Vec::new()
            }
            Event::ToolEnd(tool) => {
                let failed = (tool.status != ToolStatus::Completed).then(|| word(&tool.status));
                let ended = trace.tools.remove(&tool.id);
                ended.map(|open| tool_span(session, &trace.agent, &tool.id, open, at, failed)).into_iter().collect()
            }
            Event::Error { code, .. } => {
                if let Some(turn) = &mut trace.turn {
                    turn.error = Some(code.clone());
                }
                Vec::new()
            }
            Event::Complete { stop_reason, usage } => {
                trace.end_turn(session, at, Some(word(stop_reason)), usage.as_deref())
            }
            Event::SessionEnded { reason, receipt } | Event::SessionSuspended { reason, receipt } => {
                let mut spans = trace.end_turn(session, at, None, None);
                let mut attributes = vec![("agent_proxy.end_reason", AttributeValue::Text(word(reason)))];
                let mut error = None;
                if let Some(receipt) = receipt {
                    attributes.extend(receipt_attributes(receipt));
                    error = (!receipt.is_empty()).then(|| "survivors".to_owned());
                }
                spans.push(trace.session_span(session, at, attributes, error));
                self.open.remove(session);
                spans
            }
            _ => Vec::new(),
        }
    }

    /// Ends all that is open.
    pub(super) fn finish(&mut self, at: SystemTime) -> Vec<FinishedSpan> {
        let mut spans = Vec::new();
        for (session, mut trace) in self.open.drain() {
            spans.extend(trace.end_turn(&session, at, None, None));
            spans.push(trace.session_span(&session, at, Vec::new(), None));
        }
        spans
    }
}

impl OpenTrace {
    fn base(&self, session: &SessionId) -> Attributes {
        let mut attributes = vec![
            ("gen_ai.agent.name", AttributeValue::Text(self.agent.clone())),
            ("gen_ai.conversation.id", AttributeValue::Text(session.to_string())),
        ];
        if let Some(model) = &self.model {
            attributes.push(("gen_ai.request.model", AttributeValue::Text(model.clone())));
        }
        attributes
    }

    /// Ends the running turn, and calls of it that nobody has ended.
    fn end_turn(
        &mut self,
        session: &SessionId,
        at: SystemTime,
        reason: Option<String>,
        usage: Option<&Usage>,
    ) -> Vec<FinishedSpan> {
        let agent = self.agent.clone();
        let mut spans: Vec<FinishedSpan> = self
            .tools
            .drain()
            .map(|(id, open)| tool_span(session, &agent, &id, open, at, Some("unfinished".to_owned())))
            .collect();
        let Some(OpenTurn { number, start, error }) = self.turn.take() else { return spans };
        let mut attributes = self.base(session);
        attributes.push(("gen_ai.operation.name", AttributeValue::Text("invoke_agent".to_owned())));
        attributes.push(("agent_proxy.turn", count(number)));
        let error = error.or_else(|| reason.is_none().then(|| "ended".to_owned()));
        if let Some(reason) = reason {
            attributes.push(("gen_ai.response.finish_reasons", AttributeValue::List(vec![reason])));
        }
        if let Some(usage) = usage {
            attributes.extend(usage_attributes(usage));
        }
        if let Some(error) = &error {
            attributes.push(("error.type", AttributeValue::Text(error.clone())));
        }
        spans.push(FinishedSpan {
            trace: trace_id(session),
            id: span_id(session, &format!("turn {number}")),
            parent: Some(span_id(session, "session")),
            name: format!("invoke_agent {agent}"),
            start,
            end: at,
            attributes,
            error,
        });
        spans
    }

    fn session_span(
        &self,
        session: &SessionId,
        at: SystemTime,
        more: Attributes,
        error: Option<String>,
    ) -> FinishedSpan {
        FinishedSpan {
            trace: trace_id(session),
            id: span_id(session, "session"),
            parent: None,
            name: format!("session {}", self.agent),
            start: self.start,
            end: at,
            attributes: self.base(session).into_iter().chain(more).collect(),
            error,
        }
    }
}

fn tool_span(
    session: &SessionId,
    agent: &str,
    id: &str,
    open: OpenTool,
    at: SystemTime,
    error: Option<String>,
) -> FinishedSpan {
    let OpenTool { name, kind, parent, turn, start } = open;
    let text = |text: &str| AttributeValue::Text(text.to_owned());
    let mut attributes = vec![
        ("gen_ai.operation.name", text("execute_tool")),
        ("gen_ai.agent.name", text(agent)),
        ("gen_ai.conversation.id", text(session.as_str())),
        ("gen_ai.tool.name", text(&name)),
        ("gen_ai.tool.call.id", text(id)),
        ("gen_ai.tool.type", text("function")),
        ("agent_proxy.tool.kind", text(&kind)),
    ];
    if let Some(error) = &error {
        attributes.push(("error.type", text(error)));
    }
    // A call of a sub-agent is below the call that started the sub-agent.
    let parent = match (parent, turn) {
        (Some(parent), _) => span_id(session, &format!("tool {parent}")),
        (None, Some(turn)) => span_id(session, &format!("turn {turn}")),
        (None, None) => span_id(session, "session"),
    };
    FinishedSpan {
        trace: trace_id(session),
        id: span_id(session, &format!("tool {id}")),
        parent: Some(parent),
        name: format!("execute_tool {name}"),
        start,
        end: at,
        attributes,
        error,
    }
}

fn count(number: u64) -> AttributeValue {
    AttributeValue::Number(i64::try_from(number).unwrap_or(i64::MAX))
}

fn usage_attributes(usage: &Usage) -> Attributes {
    let tokens = [
        ("gen_ai.usage.input_tokens", usage.input_tokens),
        ("gen_ai.usage.output_tokens", usage.output_tokens),
        ("gen_ai.usage.cache_read.input_tokens", usage.cache_read_tokens),
        ("gen_ai.usage.cache_creation.input_tokens", usage.cache_write_tokens),
    ];
    let mut attributes: Attributes =
        tokens.into_iter().filter_map(|(name, tokens)| Some((name, count(tokens?)))).collect();
    if let Some(cost) = usage.cost_usd {
        attributes.push(("agent_proxy.cost_usd", AttributeValue::Amount(cost)));
    }
    attributes
}

fn receipt_attributes(receipt: &Receipt) -> Attributes {
    let number = |number: usize| count(u64::try_from(number).unwrap_or(u64::MAX));
    vec![
        ("agent_proxy.killed_processes", number(receipt.processes.len())),
        ("agent_proxy.survivors", number(receipt.survivors.len())),
    ]
}
