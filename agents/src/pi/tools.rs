//! Tool calls: started while the model still writes their arguments, run later, ended with their turn at the latest.

use ipc_protocol::{ToolStart, ToolStatus, ToolUpdate};
use serde_json::Value;

use super::diffs;
use crate::{
    Action,
    kit::{
        bounds::{self, MAX_ID, title, words},
        image,
        tool_calls::{ToolCallLedger, emit_update, no_update},
    },
    permission,
};

/// Call that has not ended.
#[derive(Debug)]
pub(super) struct PiToolCall {
    /// True once the input was emitted.
    input_is_complete: bool,
    /// File that the call edits.
    edited: Option<String>,
}

/// Calls of the conversation.
pub(super) type PiToolCalls = ToolCallLedger<PiToolCall>;

impl PiToolCalls {
    /// Handles a call by the model. The arguments are `null` until they are complete.
    pub(super) fn called(&mut self, id: &str, name: &str, input: &Value, out: &mut Vec<Action>) {
        if id.is_empty() || id.len() > MAX_ID {
            return;
        }
        match self.get_mut(id) {
            None => {
                let start = ToolStart {
                    id: id.to_owned(),
                    name: words(name),
                    title: describe(name, input),
                    kind: kind(name).to_owned(),
                    input: bounds::json(input),
                    status: ToolStatus::Pending,
                    parent: None,
                };
                self.start(start, PiToolCall { input_is_complete: !input.is_null(), edited: None }, out);
                self.propose(id, name, input, out);
            }
            Some(call) if !call.input_is_complete && !input.is_null() => {
                call.input_is_complete = true;
                let (title, shown) = (Some(describe(name, input)), Some(bounds::json(input)));
                emit_update(ToolUpdate { title, input: shown, ..no_update(id) }, out);
                self.propose(id, name, input, out);
            }
            Some(_) => {}
        }
    }

    /// Emits what the input of a call would change.
    fn propose(&mut self, id: &str, name: &str, input: &Value, out: &mut Vec<Action>) {
        if let (Some(diff), Some(call)) = (diffs::proposed(name, input), self.get_mut(id)) {
            call.edited = Some(diff.path.clone());
            self.diff(id, None, vec![diff], out);
        }
    }

    /// Handles the start of a call's execution.
    pub(super) fn started(&mut self, id: &str, name: &str, input: &Value, out: &mut Vec<Action>) {
        self.called(id, name, input, out);
        if self.is_running(id) {
            emit_update(ToolUpdate { status: Some(ToolStatus::InProgress), ..no_update(id) }, out);
        }
    }

    /// Handles the output so far, which the agent sends whole each time.
    pub(super) fn output(&mut self, id: &str, name: &str, result: &Value, out: &mut Vec<Action>) {
        let text = content(result);
        if !text.is_empty() {
            self.called(id, name, &Value::Null, out);
            self.set_output(id, &text);
        }
    }

    /// Handles the end of a call.
    pub(super) fn ended(&mut self, id: &str, name: &str, result: &Value, failed: bool, out: &mut Vec<Action>) {
        self.called(id, name, &Value::Null, out);
        let status = if failed { ToolStatus::Failed } else { ToolStatus::Completed };
        if let Some(path) = self.get(id).and_then(|call| call.edited.clone()).filter(|_| !failed) {
            self.diff(id, None, diffs::done(&path, result).into_iter().collect(), out);
        }
        if self.is_running(id) {
            out.extend(pictures(result).map(|(mime, data)| Action::Event(image(mime, data, Some(id), None))));
        }
        self.end(id, status, Some(content(result)), out);
    }
}

/// Returns the kind of the tool `name`.
pub(super) fn kind(name: &str) -> &'static str {
    match name {
        "bash" | "powershell" => "execute",
        "read" => "read",
        "edit" | "write" => "edit",
        "grep" | "find" | "ls" => "search",
        _ => "other",
    }
}

/// Returns the command line that a call runs.
pub(super) fn command(name: &str, input: &Value) -> Option<String> {
    (kind(name) == "execute").then(|| input["command"].as_str().unwrap_or_default().to_owned())
}

/// Returns the paths that a call names.
pub(super) fn paths(name: &str, input: &Value) -> Vec<String> {
    let path = input["path"].as_str().map(plain);
    // A pattern can leave the directory that it starts in.
    let pattern = input["pattern"].as_str().filter(|_| name == "find");
    let found = pattern.and_then(|pattern| permission::beginning(pattern, path.as_deref()));
    path.into_iter().chain(found).collect()
}

/// Normalizes a path as Pi's tools do: without a leading `@`, and with plain spaces.
pub(super) fn plain(path: &str) -> String {
    let is_space = |char| matches!(char, '\u{a0}' | '\u{2000}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{3000}');
    path.strip_prefix('@').unwrap_or(path).replace(is_space, " ")
}

/// Returns a one-line title of a call.
pub(super) fn describe(name: &str, input: &Value) -> String {
    let about = ["command", "path", "pattern"].into_iter().find_map(|key| input[key].as_str());
    match about {
        Some(command) if kind(name) == "execute" => title(command),
        Some(about) => title(&format!("{name} {about}")),
        None => title(name),
    }
}

/// Returns types and contents of the pictures in a result.
fn pictures(result: &Value) -> impl Iterator<Item = (&str, &str)> {
    let parts = result["content"].as_array().into_iter().flatten();
    let pictures = parts.filter(|part| part["type"] == "image");
    pictures.filter_map(|part| Some((part["mimeType"].as_str()?, part["data"].as_str()?)))
}

/// Returns the text of a result.
fn content(result: &Value) -> String {
    let part = |part: &Value| match part["text"].as_str() {
        Some(text) => text.to_owned(),
        None => format!("[{}]", part["type"].as_str().unwrap_or("content")),
    };
    result["content"].as_array().into_iter().flatten().map(part).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_are_those_that_the_tools_take() {
        assert_eq!(paths("read", &json!({ "path": "@/etc/passwd" })), ["/etc/passwd"]);
        assert_eq!(paths("edit", &json!({ "path": "/a\u{a0}b\u{2003}c" })), ["/a b c"]);
        assert_eq!(paths("find", &json!({ "pattern": "../*", "path": "@d" })), ["d", "d/.."]);
        assert_eq!(paths("write", &json!({ "path": "a@b" })), ["a@b"]);
    }
}
