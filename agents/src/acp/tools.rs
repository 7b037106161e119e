//! Tool calls that were started, and those of them that have ended.

use std::{
    collections::hash_map::DefaultHasher,
    hash::{Hash as _, Hasher as _},
};

use agent_client_protocol_schema::v1::{
    Content, ContentBlock, Meta, ToolCall, ToolCallContent, ToolCallStatus, ToolCallUpdate, ToolCallUpdateFields,
    ToolKind,
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
        diffs::FoundDiff,
        image,
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
    /// Input and changes so far, for the same reason.
    details: CallDetails,
    /// True if command and paths are longer than the bound.
    pub(super) is_long: bool,
    /// True if it was started with an empty input: Qwen Code starts a call before its input is complete.
    is_prepared: bool,
    /// Only a permission request spoke of it yet.
    is_silent: bool,
    /// True if that request was allowed.
    is_allowed: bool,
    /// Title, status and input that were emitted last: some agents repeat them with each piece of output.
    emitted: EmittedFields,
}

/// What a call would do, as the agent has told it.
#[derive(Clone, Debug, Default)]
struct CallDetails {
    input: Option<Json>,
    /// Changes of files, or what else a request has in their place.
    changes: Option<Json>,
}

impl CallDetails {
    /// Takes what `fields` tell, and retains the rest.
    fn record(&mut self, fields: &ToolCallUpdateFields) {
        if let Some(input) = &fields.raw_input {
            self.input = Some(json(input));
        }
        let is_change = |content: &&ToolCallContent| matches!(content, ToolCallContent::Diff(_));
        let changes: Vec<_> = fields.content.iter().flatten().filter(is_change).collect();
        if !changes.is_empty() {
            self.changes = serde_json::to_value(changes).ok().map(|value| json(&value));
        }
    }

    /// Returns all of it as one document: the input, and the changes unless the input has their texts.
    fn document(self) -> Json {
        match (self.input, self.changes) {
            (Some(input), Some(changes)) if !has_texts(&input.value(), &changes.value()) => {
                json(&serde_json::json!({ "input": input.value(), "content": changes.value() }))
            }
            (Some(input), _) => input,
            (None, changes) => changes.unwrap_or_else(Json::null),
        }
    }

    /// Forgets what is too long to be remembered, and leaves a note.
    fn shorten(&mut self) {
        for document in [&mut self.input, &mut self.changes].into_iter().flatten() {
            let bytes = document.as_str().len();
            if bytes > MAX_DETAILS {
                *document =
                    Json::from(&Value::from(format!("left out: {bytes} bytes; the tool call's event has them")));
            }
        }
    }
}

/// Returns whether these are changes whose new texts are all in the input. That a file is emptied is in none.
fn has_texts(input: &Value, changes: &Value) -> bool {
    let is_known =
        |change: &Value| change["newText"].as_str().is_some_and(|text| !text.is_empty() && has_text(input, text));
    changes.as_array().is_some_and(|changes| changes.iter().all(is_known))
}

fn has_text(value: &Value, text: &str) -> bool {
    match value {
        Value::String(found) => found == text,
        Value::Array(values) => values.iter().any(|value| has_text(value, text)),
        Value::Object(members) => members.values().any(|value| has_text(value, text)),
        _ => false,
    }
}

/// What was emitted of a call last, as a hash of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct EmittedFields {
    title: Option<u64>,
    status: Option<ToolStatus>,
    input: Option<u64>,
}

impl EmittedFields {
    /// Removes what was emitted before from `update`, and records the rest.
    fn keep_news(&mut self, update: &mut ToolUpdate) {
        let news =
            |value: Option<u64>, known: &mut Option<u64>| value.is_some() && std::mem::replace(known, value) != value;
        if !news(update.title.as_deref().map(hash), &mut self.title) {
            update.title = None;
        }
        if !news(update.input.as_ref().map(|input| hash(input.as_str())), &mut self.input) {
            update.input = None;
        }
        if update.status.is_some() && std::mem::replace(&mut self.status, update.status) == update.status {
            update.status = None;
        }
    }
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

impl AcpToolCall {
    /// Returns all that the call would do, with what `fields` of a permission request tell of it.
    pub(super) fn input_with(&self, fields: &ToolCallUpdateFields) -> Json {
        let mut details = self.details.clone();
        details.record(fields);
        if let (None, Some(content)) = (&fields.raw_input, &fields.content) {
            // Whatever it is: the request is about it. Changes that were told before are so still, unless there are others.
            let has_changes = content.iter().any(|content| matches!(content, ToolCallContent::Diff(_)));
            let mut all = match details.changes.take().filter(|_| !has_changes).map(|known| known.value()) {
                Some(Value::Array(known)) => known,
                known => known.into_iter().collect(),
            };
            all.extend(content.iter().filter_map(|content| serde_json::to_value(content).ok()));
            details.changes = (!all.is_empty()).then(|| json(&Value::Array(all)));
        }
        details.document()
    }

    /// Records the input, the command and the paths that `fields` name.
    fn record_details(&mut self, fields: &ToolCallUpdateFields) {
        self.details.record(fields);
        self.details.shorten();
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
        let ends = status.is_some_and(is_end) && self.is_running(id);
        self.emit_diffs(id, fields.content.as_deref(), ends, meta.as_ref(), out);
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
            ..no_update(id)
        };
        if let Some(call) = self.get_mut(id) {
            call.emitted.keep_news(&mut update);
        }
        // What a terminal shows is on its way.
        if let Some(output) = output.filter(|output| (is_output || !begun) && !output.is_empty()) {
            update.output = self.offer_output(id, output);
        }
        // Some updates change `_meta` only.
        if update.output.is_none() && (update.title.is_some() || update.status.is_some() || update.input.is_some()) {
            update.output = self.take_unsent(id);
        }
        emit_update(update, out);
        true
    }

    /// Emits the diffs in a call's content, and at its end the pictures. Parts of one file come as several diffs.
    fn emit_diffs(
        &mut self,
        id: &str,
        content: Option<&[ToolCallContent]>,
        is_end: bool,
        meta: Option<&Meta>,
        out: &mut Vec<Action>,
    ) {
        let mut found: Vec<FoundDiff> = Vec::new();
        let is_deletion = self.get(id).is_some_and(|call| call.kind == "delete");
        for content in content.into_iter().flatten() {
            let diff = match content {
                ToolCallContent::Diff(diff) => diff,
                ToolCallContent::Content(Content { content: ContentBlock::Image(picture), .. }) if is_end => {
                    let parent = details::parent(meta).or_else(|| self.get(id)?.parent.clone());
                    out.push(Action::Event(image(&picture.mime_type, &picture.data, Some(id), parent.as_deref())));
                    continue;
                }
                _ => continue,
            };
            let path = diff.path.to_string_lossy();
            // The protocol has no word for a file that is gone.
            let is_gone = is_deletion && diff.new_text.is_empty() && diff.old_text.is_some();
            let new = Some(diff.new_text.as_str()).filter(|_| !is_gone);
            let part = FoundDiff::told(&path, diff.old_text.as_deref(), new);
            match found.iter_mut().find(|known| known.path == path) {
                Some(known) => known.hunks.extend(part.hunks),
                None => found.push(part),
            }
        }
        if !found.is_empty() {
            let parent = details::parent(meta).or_else(|| self.get(id)?.parent.clone());
            self.diff(id, parent.as_deref(), found, out);
        }
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
        let parent = details::parent(meta).filter(|parent| parent != id);
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
        let emitted = EmittedFields {
            title: Some(hash(&start.title)),
            status: Some(start.status),
            input: Some(hash(start.input.as_str())),
        };
        let is_prepared = fields.raw_input.as_ref().is_some_and(|input| *input == serde_json::json!({}));
        self.start(start, AcpToolCall { name, kind, parent, is_prepared, emitted, ..AcpToolCall::default() }, out);
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
        self.emit_diffs(id, fields.content.as_deref(), false, meta, out);
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

#[cfg(test)]
mod tests {
    use serde_json::json as value;

    use super::*;

    fn fields(fields: Value) -> ToolCallUpdateFields {
        serde_json::from_value(fields).expect("fields")
    }

    fn input(told: Value, asked: Value) -> Value {
        let mut call = AcpToolCall::default();
        call.record_details(&fields(told));
        call.input_with(&fields(asked)).value()
    }

    #[test]
    fn a_request_has_the_changes_that_its_input_has_not() {
        let diff = |new: &str| value!({"type": "diff", "path": "/a", "oldText": "old", "newText": new});
        // A file that is emptied, and a text that is a part of another one.
        for new in ["", "a"] {
            let told = value!({"rawInput": {"path": "/a"}, "content": [diff(new)]});
            let all = input(told, value!({}));
            assert_eq!(all, value!({"input": {"path": "/a"}, "content": [diff(new)]}));
        }
        let told = value!({"rawInput": {"path": "/a", "text": "new"}, "content": [diff("new")]});
        assert_eq!(input(told, value!({})), value!({"path": "/a", "text": "new"}));
    }

    #[test]
    fn other_words_of_a_request_take_no_change_away() {
        let diff = |new: &str| value!({"type": "diff", "path": "/a", "oldText": "old", "newText": new});
        let told = || value!({"content": [diff("new")]});
        let words = value!({"type": "content", "content": {"type": "text", "text": "Proceed?"}});
        assert_eq!(input(told(), value!({"content": []})), value!([diff("new")]));
        assert_eq!(input(told(), value!({"content": [words]})), value!([diff("new"), words]));
        assert_eq!(input(told(), value!({"content": [diff("other")]})), value!([diff("other")]));
    }
}
