//! Tool calls that ran although nobody decided on them.
//!
//! An agent asks for what it thinks it has to ask for. A wrapper of another version may not, and then no policy is ever heard. So each
//! tool call that an agent tells of is held against the policy again once it is clear that it has run.

use std::collections::BTreeSet;

use ipc_protocol::{
    BypassAction, Event, Json, PermissionBypassed, PermissionOptionKind, PermissionRequest, ToolStart, ToolStatus,
    message::PermissionSupport,
};
use serde_json::Value;

use super::{AND, CompiledPolicy, EXECUTE, PolicyVerdict, QUESTION, READING};
use crate::{
    kit::{bounded_map::BoundedMap, tool_calls::is_ours},
    permission,
};

/// Most calls, decisions and open requests that are remembered, each.
const MAX_REMEMBERED: usize = 1024;
/// Kinds of tool calls that touch nothing outside the conversation, beside those that read.
const HARMLESS: [&str; 2] = [QUESTION, "switch_mode"];
/// Names of a path in a tool's input.
const PATHS: [&str; 9] = [
    "path",
    "file_path",
    "filePath",
    "notebook_path",
    "abs_path",
    "absolute_path",
    "source",
    "destination",
    "move_path",
];

/// A permission request without its answer.
#[derive(Debug)]
struct PendingVerdict {
    tool_call_id: Option<String>,
    kind: String,
    /// The options that hold for later calls too.
    lasting: Vec<String>,
}

/// Tool calls and the decisions on them.
#[derive(Debug)]
pub struct BypassDetector {
    asking: PermissionSupport,
    /// The policy leaves nothing to decide: no agent has to ask.
    allows_all: bool,
    calls: BoundedMap<ToolStart, MAX_REMEMBERED>,
    /// Calls that were decided on, or reported.
    settled: BoundedMap<(), MAX_REMEMBERED>,
    open: BoundedMap<PendingVerdict, MAX_REMEMBERED>,
    /// Kinds that somebody allowed for good.
    lasting: BTreeSet<String>,
    /// Decisions on calls that were not named, by their kind.
    unnamed: Vec<String>,
}

impl BypassDetector {
    /// For a session of `policy`, of an agent of which this is known.
    pub fn new(policy: &CompiledPolicy, asking: PermissionSupport) -> Self {
        Self {
            asking,
            allows_all: policy.allows_all(),
            calls: BoundedMap::default(),
            settled: BoundedMap::default(),
            open: BoundedMap::default(),
            lasting: BTreeSet::new(),
            unnamed: Vec::new(),
        }
    }

    /// Takes an event of the agent's; a call of which it says that it has run, and on which nobody decided.
    pub fn note(&mut self, event: &Event, policy: &CompiledPolicy) -> Option<PermissionBypassed> {
        if self.allows_all {
            return None;
        }
        match event {
            Event::PermissionRequested(request) => self.requested(request),
            Event::PermissionResolved { id, option, .. } => self.resolved(id, option.as_deref()),
            Event::ToolStart(start) => drop(self.calls.insert(&start.id, (**start).clone())),
            Event::ToolUpdate(update) => {
                let call = self.calls.get_mut(&update.id)?;
                call.status = update.status.unwrap_or(call.status);
                if let Some(input) = &update.input {
                    call.input = input.clone();
                }
                if let Some(title) = &update.title {
                    call.title.clone_from(title);
                }
                let output = update.output.as_deref().unwrap_or_default();
                return self.ran(&update.id, output, policy);
            }
            Event::ToolEnd(end) => {
                self.calls.get_mut(&end.id)?.status = end.status;
                let output = if is_ours(&end.output) { "" } else { end.output.as_str() };
                let found = self.ran(&end.id, output, policy);
                self.calls.remove(&end.id);
                return found;
            }
            Event::Complete { .. } => self.unnamed.clear(),
            _ => {}
        }
        None
    }

    fn requested(&mut self, request: &PermissionRequest) {
        let lasts = |kind| matches!(kind, PermissionOptionKind::AllowAlways | PermissionOptionKind::Other);
        let lasting = request.options.iter().filter(|option| lasts(option.kind)).map(|option| option.id.clone());
        let open = PendingVerdict {
            tool_call_id: request.tool_call_id.clone(),
            kind: request.kind.clone(),
            lasting: lasting.collect(),
        };
        self.open.insert(&request.id, open);
    }

    fn resolved(&mut self, id: &str, option: Option<&str>) {
        let Some(open) = self.open.remove(id) else { return };
        match &open.tool_call_id {
            Some(id) => drop(self.settled.insert(id, ())),
            None if open.kind != QUESTION && self.unnamed.len() < MAX_REMEMBERED => {
                self.unnamed.push(open.kind.clone())
            }
            None => {}
        }
        if option.is_some_and(|option| open.lasting.iter().any(|lasting| lasting == option)) {
            self.lasting.extend(open.kind.split(AND).map(str::to_owned));
        }
    }

    fn ran(&mut self, id: &str, output: &str, policy: &CompiledPolicy) -> Option<PermissionBypassed> {
        let call = self.calls.get(id)?;
        let harmless = READING.contains(&call.kind.as_str()) || HARMLESS.contains(&call.kind.as_str());
        if harmless || self.settled.get(id).is_some() || !has_run(call, output) {
            return None;
        }
        if let Some(at) = self.unnamed.iter().position(|kind| kind.split(AND).any(|kind| kind == call.kind)) {
            // The decision on it did not say which call it was about.
            self.unnamed.remove(at);
            self.settled.insert(id, ());
            return None;
        }
        let (denied_by, action) = match policy.decide(&request(call)) {
            PolicyVerdict::Deny(by) => (Some(by), BypassAction::AbortTurn),
            PolicyVerdict::Ask if self.should_have_asked(&call.kind) => (None, BypassAction::Warn),
            PolicyVerdict::Allow(_) | PolicyVerdict::Ask => return None,
        };
        let bypassed = PermissionBypassed {
            tool_call_id: id.to_owned(),
            tool: call.name.clone(),
            kind: call.kind.clone(),
            title: call.title.clone(),
            denied_by,
            action,
        };
        self.settled.insert(id, ());
        Some(bypassed)
    }

    /// Whether the agent asks about calls of this kind, unless its user allowed them.
    fn should_have_asked(&self, kind: &str) -> bool {
        let PermissionSupport { asks, has_user_settings, .. } = &self.asking;
        asks.iter().any(|asked| asked == kind) && !has_user_settings && !self.lasting.contains(kind)
    }
}

/// Whether a call of which the agent told this output has run: announced is not begun, and what fails with a word may have been
/// refused by the agent itself. A command that fails has run, and its output is its own.
fn has_run(call: &ToolStart, output: &str) -> bool {
    match call.status {
        ToolStatus::Completed => true,
        // What is shown of an edit before its end may be what it would do.
        ToolStatus::Failed | ToolStatus::InProgress => call.kind == EXECUTE && !output.trim().is_empty(),
        ToolStatus::Pending => false,
    }
}

/// A call as the request that should have been made for it.
fn request(call: &ToolStart) -> PermissionRequest {
    let input = call.input.value();
    let runs = call.kind == EXECUTE;
    // Some agents say the command in the title alone.
    let command = runs.then(|| command(&input).unwrap_or_else(|| call.title.clone()));
    let mut paths = Vec::new();
    if !runs {
        find_paths(&input, 3, &mut paths);
    }
    PermissionRequest {
        id: String::new(),
        tool_call_id: Some(call.id.clone()),
        title: call.title.clone(),
        tool: call.name.clone(),
        kind: call.kind.clone(),
        command,
        paths,
        input: Json::null(),
        options: Vec::new(),
        parent: call.parent.clone(),
    }
}

fn command(input: &Value) -> Option<String> {
    match input.get("command").or_else(|| input.get("cmd"))? {
        Value::String(line) => Some(line.clone()),
        Value::Array(words) => {
            let words: Vec<&str> = words.iter().map(Value::as_str).collect::<Option<_>>()?;
            Some(permission::script(&words).map_or_else(|| words.join(" "), str::to_owned))
        }
        _ => None,
    }
}

/// The paths in a tool's input, as far as names of fields tell them; of changes by path the paths.
fn find_paths(input: &Value, depth: usize, paths: &mut Vec<String>) {
    match input {
        Value::Object(fields) if depth > 0 => {
            for (name, value) in fields.iter().take(MAX_REMEMBERED) {
                match value {
                    Value::String(path) if PATHS.contains(&name.as_str()) => paths.push(path.clone()),
                    Value::Object(_) | Value::Array(_) => {
                        if name.contains('/') {
                            paths.push(name.clone());
                        }
                        find_paths(value, depth - 1, paths);
                    }
                    _ => {}
                }
            }
        }
        Value::Array(items) if depth > 0 => {
            items.iter().take(MAX_REMEMBERED).for_each(|item| find_paths(item, depth, paths));
        }
        _ => {}
    }
}
