//! Tool calls: started while the model still writes their arguments, run later, ended with their turn at the latest.

use std::collections::VecDeque;

use ipc_protocol::{Event, ToolStart, ToolStatus, ToolUpdate};
use serde_json::Value;

use crate::{
    Action,
    jsonl::{self, MAX_ID, end, tail, title, words},
    permission,
};

/// Most calls remembered. An update of a forgotten call starts it again.
const MAX_CALLS: usize = 1024;
/// Most bytes of output in an update of a running call: the agent sends the complete output each time.
const MAX_SO_FAR: usize = 16 * 1024;

#[derive(Debug)]
struct Call {
    id: String,
    /// True once the input was emitted.
    complete: bool,
    so_far: String,
}

/// Calls that have not ended, oldest first.
#[derive(Debug, Default)]
pub(super) struct Calls(VecDeque<Call>);

impl Calls {
    fn begin(&mut self, id: &str, name: &str, input: &Value, out: &mut Vec<Action>) {
        out.push(Action::Event(Event::ToolStart(Box::new(ToolStart {
            id: id.to_owned(),
            name: words(name),
            title: describe(name, input),
            kind: kind(name).to_owned(),
            input: jsonl::json(input),
            status: ToolStatus::Pending,
            parent: None,
        }))));
        self.0.push_back(Call { id: id.to_owned(), complete: !input.is_null(), so_far: String::new() });
        if self.0.len() > MAX_CALLS
            && let Some(oldest) = self.0.pop_front()
        {
            // Nothing waits for the oldest call any more.
            out.push(end(&oldest.id, ToolStatus::Failed, oldest.so_far));
        }
    }

    fn get(&mut self, id: &str) -> Option<&mut Call> {
        self.0.iter_mut().rev().find(|call| call.id == id)
    }

    /// Handles a call by the model. The arguments are `null` until they are complete.
    pub(super) fn called(&mut self, id: &str, name: &str, input: &Value, out: &mut Vec<Action>) {
        if id.is_empty() || id.len() > MAX_ID {
            return;
        }
        match self.get(id) {
            None => self.begin(id, name, input, out),
            Some(call) if !call.complete && !input.is_null() => {
                call.complete = true;
                let (title, input) = (Some(describe(name, input)), Some(jsonl::json(input)));
                update(ToolUpdate { id: id.to_owned(), title, status: None, input, output: None }, out);
            }
            Some(_) => {}
        }
    }

    /// Handles the start of a call's execution.
    pub(super) fn started(&mut self, id: &str, name: &str, input: &Value, out: &mut Vec<Action>) {
        self.called(id, name, input, out);
        if self.get(id).is_some() {
            let status = Some(ToolStatus::InProgress);
            update(ToolUpdate { id: id.to_owned(), title: None, status, input: None, output: None }, out);
        }
    }

    /// Handles the output so far.
    pub(super) fn output(&mut self, id: &str, name: &str, result: &Value, out: &mut Vec<Action>) {
        let text = content(result);
        if id.len() > MAX_ID || text.is_empty() {
            return;
        }
        self.called(id, name, &Value::Null, out);
        let Some(call) = self.get(id) else { return };
        tail(&text, MAX_SO_FAR).clone_into(&mut call.so_far);
        let output = Some(call.so_far.clone());
        update(ToolUpdate { id: id.to_owned(), title: None, status: None, input: None, output }, out);
    }

    /// Handles the end of a call.
    pub(super) fn ended(&mut self, id: &str, name: &str, result: &Value, failed: bool, out: &mut Vec<Action>) {
        self.called(id, name, &Value::Null, out);
        if self.get(id).is_none() {
            return;
        }
        self.0.retain(|call| call.id != id);
        let status = if failed { ToolStatus::Failed } else { ToolStatus::Completed };
        out.push(end(id, status, content(result)));
    }

    /// Ends all calls, since the turn has ended: calls that have not run never will.
    pub(super) fn end_all(&mut self, out: &mut Vec<Action>) {
        out.extend(self.0.drain(..).map(|call| end(&call.id, ToolStatus::Failed, call.so_far)));
    }
}

fn update(update: ToolUpdate, out: &mut Vec<Action>) {
    out.push(Action::Event(Event::ToolUpdate(Box::new(update))));
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
fn plain(path: &str) -> String {
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
