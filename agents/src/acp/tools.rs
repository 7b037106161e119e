//! Tool calls that were started, and those of them that have ended.

use agent_client_protocol_schema::v1::{
    Meta, ToolCall, ToolCallStatus, ToolCallUpdate, ToolCallUpdateFields, ToolKind,
};
use ipc_protocol::{Json, ToolStart, ToolStatus, ToolUpdate};
use serde_json::Value;

use super::{
    content::{output, word},
    details,
};
use crate::{
    Action,
    kit::{
        bounds::{MAX_ID, json},
        tool_calls::{ToolCallLedger, emit_update, no_update},
    },
};

/// Most bytes that are remembered of what one call would do.
const MAX_DETAILS: usize = 64 * 1024;

/// State of a tool call.
#[derive(Clone, Debug, Default)]
pub(super) struct AcpToolCall {
    pub(super) name: String,
    pub(super) kind: String,
    pub(super) parent: Option<String>,
    /// Command line and paths so far: a permission request may leave out what was sent before.
    pub(super) command: Option<String>,
    pub(super) paths: Vec<String>,
    /// True if command and paths are longer than the bound.
    pub(super) is_long: bool,
    /// True if it was started with an empty input: Qwen Code starts a call before its input is complete.
    is_prepared: bool,
    /// Only a permission request spoke of it yet.
    is_silent: bool,
    /// True if that request was allowed.
    is_allowed: bool,
}

impl AcpToolCall {
    /// Records the command and the paths that `fields` name.
    fn record_details(&mut self, fields: &ToolCallUpdateFields) {
        let command = details::command(&self.kind, fields.raw_input.as_ref());
        let paths = details::paths(fields);
        if command.is_none() && paths.is_empty() {
            return;
        }
        let bytes = command.as_ref().map_or(0, String::len) + paths.iter().map(String::len).sum::<usize>();
        self.is_long = bytes > MAX_DETAILS;
        if self.is_long {
            (self.command, self.paths) = (None, Vec::new());
            return;
        }
        self.command = command.or(self.command.take());
        if !paths.is_empty() {
            self.paths = paths;
        }
    }
}

/// Tool calls of the session. An update of a call that is known no more starts it again.
pub(super) type AcpToolCalls = ToolCallLedger<AcpToolCall>;

impl AcpToolCalls {
    /// Handles a new call. Returns `false` if it breaks a bound.
    pub(super) fn call(&mut self, call: ToolCall, out: &mut Vec<Action>) -> bool {
        // A call's first content describes what it will do, not its result.
        self.take(call.into(), false, out)
    }

    /// Handles an update; an update of an unknown call starts it. Returns `false` if it breaks a bound.
    pub(super) fn update(&mut self, update: ToolCallUpdate, out: &mut Vec<Action>) -> bool {
        self.take(update, true, out)
    }

    fn take(&mut self, update: ToolCallUpdate, is_output: bool, out: &mut Vec<Action>) -> bool {
        let ToolCallUpdate { tool_call_id, fields, meta, .. } = update;
        let id = tool_call_id.0.as_ref();
        if id.len() > MAX_ID {
            return false;
        }
        let begun = self.begin(id, &fields, meta.as_ref(), ToolStatus::InProgress, out);
        let status = fields.status.map(tool_status);
        let output = output(fields.content.as_deref(), fields.raw_output.as_ref());
        if let Some(call) = self.get_mut(id) {
            call.is_silent = false;
            call.is_prepared &= begun || fields.raw_input.is_none();
            call.record_details(&fields);
        }
        if let Some(piece) = details::terminal_output(meta.as_ref()) {
            // What its terminal shows is told in pieces beside the protocol.
            self.append_output(id, piece);
        }
        if let Some(status) = status.filter(|status| is_end(*status))
            && self.is_running(id)
        {
            self.end(id, status, output, out);
            return true;
        }
        let mut update = ToolUpdate {
            title: fields.title.filter(|_| !begun),
            status: status.filter(|_| !begun),
            input: fields.raw_input.as_ref().map(json).filter(|_| !begun),
            output: output.filter(|_| is_output || !begun),
            ..no_update(id)
        };
        // Some updates change `_meta` only.
        if update.output.is_none() && (update.title.is_some() || update.status.is_some() || update.input.is_some()) {
            update.output = self.take_unsent(id);
        }
        emit_update(update, out);
        true
    }

    /// Starts the call `id`, unless it is known. Returns whether the call is new.
    fn begin(
        &mut self,
        id: &str,
        fields: &ToolCallUpdateFields,
        meta: Option<&Meta>,
        status: ToolStatus,
        out: &mut Vec<Action>,
    ) -> bool {
        if self.is_running(id) || self.has_ended(id) {
            return false;
        }
        let kind = kind(fields.kind.unwrap_or_default());
        let name = fields.name.clone().or_else(|| details::name(meta)).unwrap_or_else(|| kind.clone());
        let parent = details::parent(meta);
        let said = fields.status.map(tool_status).filter(|status| !is_end(*status));
        let start = ToolStart {
            id: id.to_owned(),
            name: name.clone(),
            title: fields.title.clone().unwrap_or_else(|| kind.clone()),
            kind: kind.clone(),
            input: fields.raw_input.as_ref().map_or_else(Json::null, json),
            status: said.unwrap_or(status),
            parent: parent.clone(),
        };
        let is_prepared = fields.raw_input.as_ref().is_some_and(|input| *input == serde_json::json!({}));
        self.start(start, AcpToolCall { name, kind, parent, is_prepared, ..AcpToolCall::default() }, out);
        true
    }

    /// Ends every call that has not ended. A call that was allowed, and about which the agent has sent nothing else, counts as
    /// completed.
    pub(super) fn end_all(&mut self, why: &str, out: &mut Vec<Action>) {
        let is_done = |call: &AcpToolCall| call.is_silent && call.is_allowed;
        let (done, failed) = ((ToolStatus::Completed, Some("")), (ToolStatus::Failed, Some(why)));
        self.end_each(|call| Some(if is_done(call) { done } else { failed }), out);
    }

    /// Starts the call `id` that the agent asks permission for, unless it is known. Tells the input that a known one lacks.
    pub(super) fn begin_for_permission(
        &mut self,
        id: &str,
        fields: &ToolCallUpdateFields,
        meta: Option<&Meta>,
        out: &mut Vec<Action>,
    ) {
        if self.begin(id, fields, meta, ToolStatus::Pending, out)
            && let Some(call) = self.get_mut(id)
        {
            call.is_silent = true;
        } else if let (Some(call), Some(input)) = (self.get_mut(id), &fields.raw_input)
            && std::mem::take(&mut call.is_prepared)
        {
            call.record_details(fields);
            emit_update(ToolUpdate { input: Some(json(input)), ..no_update(id) }, out);
        }
    }

    /// Records that the call `id` was allowed.
    pub(super) fn mark_allowed(&mut self, id: &str) {
        if let Some(call) = self.get_mut(id) {
            call.is_allowed = true;
        }
    }
}

fn is_end(status: ToolStatus) -> bool {
    matches!(status, ToolStatus::Completed | ToolStatus::Failed)
}

fn tool_status(status: ToolCallStatus) -> ToolStatus {
    match status {
        ToolCallStatus::Pending => ToolStatus::Pending,
        ToolCallStatus::Completed => ToolStatus::Completed,
        ToolCallStatus::Failed => ToolStatus::Failed,
        _ => ToolStatus::InProgress,
    }
}

/// Returns the protocol's word for the kind of a tool.
pub(super) fn kind(kind: ToolKind) -> String {
    word(&kind)
}

/// Returns the input of a call for events: the raw input, else the content.
pub(super) fn input(fields: &ToolCallUpdateFields) -> Json {
    match (&fields.raw_input, &fields.content) {
        (Some(input), _) => json(input),
        (None, Some(content)) => {
            serde_json::to_value(content).map_or_else(|_| Json::null(), |value: Value| json(&value))
        }
        (None, None) => Json::null(),
    }
}
