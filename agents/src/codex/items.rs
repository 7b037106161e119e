//! Tool calls, from the items of a turn.
//!
//! A call's output comes in pieces while the call runs, without the output at its very start. The end of the call contains all of it.

use ipc_protocol::{FileChange, ToolStart, ToolStatus, ToolUpdate};
use serde_json::{Value, json};

use crate::{
    Action,
    kit::{
        bounds::{self, MAX_ID, title},
        diffs::FoundDiff,
        image,
        tool_calls::{ToolCallLedger, emit_update, no_update},
    },
    permission,
};

/// Tool call that an item describes.
#[derive(Debug, PartialEq)]
pub(super) struct ToolItem {
    /// Type of the item, or the name of an MCP tool: Codex does not expose its tools' names.
    pub(super) name: String,
    pub(super) title: String,
    pub(super) kind: &'static str,
    pub(super) input: Value,
    /// Files that the call changes.
    pub(super) paths: Vec<String>,
    /// Command line that the call runs.
    pub(super) command: Option<String>,
}

/// Call in progress.
#[derive(Debug)]
pub(super) struct CodexToolCall {
    tool: ToolItem,
    thread: String,
}

/// Calls of the conversation and its sub-agents.
pub(super) type CodexToolCalls = ToolCallLedger<CodexToolCall>;

impl CodexToolCalls {
    /// Handles `item/started`. Returns whether the item is a tool call.
    pub(super) fn started(&mut self, item: &Value, thread: &str, parent: Option<&str>, out: &mut Vec<Action>) -> bool {
        let (Some(id), Some(tool)) = (id(item), tool(item)) else { return false };
        if !self.is_running(id) {
            let start = ToolStart {
                id: id.to_owned(),
                name: tool.name.clone(),
                title: tool.title.clone(),
                kind: tool.kind.to_owned(),
                input: bounds::json(&tool.input),
                status: ToolStatus::InProgress,
                parent: parent.map(str::to_owned),
            };
            self.start(start, CodexToolCall { tool, thread: thread.to_owned() }, out);
        }
        self.diff(id, parent, diffs(item), out);
        true
    }

    /// Handles `item/completed`. Returns whether the item is a tool call.
    pub(super) fn completed(
        &mut self,
        item: &Value,
        thread: &str,
        parent: Option<&str>,
        out: &mut Vec<Action>,
    ) -> bool {
        let (Some(id), Some(now)) = (id(item), tool(item)) else { return false };
        if self.has_ended(id) {
            return true;
        }
        self.started(item, thread, parent, out);
        emit_pictures(item, id, parent, out);
        // A search starts before its query is known.
        if let Some(begun) = self.tool(id).filter(|begun| begun.input != now.input && now.kind == "fetch") {
            let title = Some(now.title).filter(|title| *title != begun.title);
            emit_update(ToolUpdate { title, input: Some(bounds::json(&now.input)), ..no_update(id) }, out);
        }
        self.end(id, status(item), output(item), out);
        true
    }

    /// Returns the tool of the call `id`, while the call is in progress.
    pub(super) fn tool(&self, id: &str) -> Option<&ToolItem> {
        self.get(id).map(|call| &call.tool)
    }

    /// Returns the latest call in progress of the tool `name`.
    pub(super) fn latest(&self, name: &str) -> Option<&str> {
        self.newest(|call| call.tool.name == name)
    }

    /// Ends the calls in progress of `thread`, or all of them.
    pub(super) fn end_all(&mut self, thread: Option<&str>, out: &mut Vec<Action>) {
        self.fail(|call| thread.is_none_or(|thread| call.thread == thread), out);
    }
}

/// Returns the id of `item`, unless it is too long to be remembered.
pub(super) fn id(item: &Value) -> Option<&str> {
    item["id"].as_str().filter(|id| id.len() <= MAX_ID)
}

fn status(item: &Value) -> ToolStatus {
    match item["status"].as_str() {
        Some("failed" | "declined") => ToolStatus::Failed,
        _ if item["error"].is_object() || item["success"] == false => ToolStatus::Failed,
        _ => ToolStatus::Completed,
    }
}

fn text<'a>(item: &'a Value, key: &str) -> &'a str {
    item[key].as_str().unwrap_or_default()
}

/// Converts `item` to a tool call, or `None` if it is none.
pub(super) fn tool(item: &Value) -> Option<ToolItem> {
    let plain = |kind, title: &str, input| ToolItem {
        name: text(item, "type").to_owned(),
        title: self::title(title),
        kind,
        input,
        paths: Vec::new(),
        command: None,
    };
    Some(match text(item, "type") {
        "commandExecution" => {
            let command = script(text(item, "command"));
            let tool = plain("execute", &command, json!({ "command": command, "cwd": item["cwd"] }));
            ToolItem { command: Some(command), ..tool }
        }
        "fileChange" => {
            let paths = changed(&item["changes"]);
            ToolItem { paths: paths.clone(), ..plain(change_kind(&item["changes"]), &paths.join(", "), changes(item)) }
        }
        "mcpToolCall" => {
            let name = mcp_tool(text(item, "server"), text(item, "tool"));
            ToolItem { name: name.clone(), ..plain("other", &name, item["arguments"].clone()) }
        }
        "dynamicToolCall" => {
            let name = text(item, "tool");
            ToolItem { name: name.to_owned(), ..plain("other", name, item["arguments"].clone()) }
        }
        "collabAgentToolCall" => {
            let name = text(item, "tool");
            let input = json!({
                "prompt": item["prompt"], "model": item["model"], "receiverThreadIds": item["receiverThreadIds"],
            });
            let words = [name, text(item, "prompt")].join(" ");
            ToolItem { name: name.to_owned(), ..plain("other", &words, input) }
        }
        "webSearch" => plain("fetch", text(item, "query"), json!({ "query": item["query"], "action": item["action"] })),
        "imageView" => plain("read", text(item, "path"), json!({ "path": item["path"] })),
        "imageGeneration" => {
            plain("other", text(item, "revisedPrompt"), json!({ "revisedPrompt": item["revisedPrompt"] }))
        }
        "sleep" => plain("other", "sleep", json!({ "durationMs": item["durationMs"] })),
        _ => return None,
    })
}

/// Returns the model's name for a tool of an MCP server.
pub(super) fn mcp_tool(server: &str, tool: &str) -> String {
    format!("mcp__{server}__{tool}")
}

fn changes(item: &Value) -> Value {
    json!({ "changes": item["changes"] })
}

/// Returns the diffs of an item that changes files. A file that is made or deleted has its text, another one a unified diff.
pub(super) fn diffs(item: &Value) -> Vec<FoundDiff> {
    if text(item, "type") != "fileChange" {
        return Vec::new();
    }
    let diff = |change: &Value| {
        let (path, diff) = (change["path"].as_str()?, change["diff"].as_str().unwrap_or_default());
        let found = match change["kind"]["type"].as_str()? {
            "add" => FoundDiff::whole(path, None, Some(diff)),
            "delete" => FoundDiff::whole(path, Some(diff), None),
            _ => {
                let moved_to = change["kind"]["move_path"].as_str().map(str::to_owned);
                let change = if moved_to.is_some() { FileChange::Moved } else { FileChange::Modified };
                let unified = FoundDiff::unified(path, Some(change), diff);
                let bare = || FoundDiff { path: path.to_owned(), change: Some(change), ..FoundDiff::default() };
                FoundDiff { moved_to, ..unified.unwrap_or_else(bare) }
            }
        };
        Some(found)
    };
    item["changes"].as_array().into_iter().flatten().filter_map(diff).collect()
}

/// Emits the pictures that an item has made, or that its tool returned.
fn emit_pictures(item: &Value, id: &str, parent: Option<&str>, out: &mut Vec<Action>) {
    for content in item["result"]["content"].as_array().into_iter().flatten() {
        if let ("image", Some(data), Some(mime)) =
            (text(content, "type"), content["data"].as_str(), content["mimeType"].as_str())
        {
            out.push(Action::Event(image(mime, data, Some(id), parent)));
        }
    }
    if let ("imageGeneration", Some(data)) =
        (text(item, "type"), item["result"].as_str().filter(|data| !data.is_empty()))
    {
        out.push(Action::Event(image("image/png", data, Some(id), parent)));
    }
}

fn changed(changes: &Value) -> Vec<String> {
    let changes = changes.as_array().map(Vec::as_slice).unwrap_or_default();
    let moved = |change: &Value| change["kind"]["move_path"].as_str().map(str::to_owned);
    let paths = changes.iter().flat_map(|change| [change["path"].as_str().map(str::to_owned), moved(change)]);
    paths.flatten().collect()
}

/// Returns `delete` if the changes only delete; a moved file counts as edited.
fn change_kind(changes: &Value) -> &'static str {
    let changes = changes.as_array().map(Vec::as_slice).unwrap_or_default();
    let deletes = |change: &Value| change["kind"]["type"] == "delete";
    if !changes.is_empty() && changes.iter().all(deletes) { "delete" } else { "edit" }
}

/// Extracts the command line from Codex's display of it: Codex starts every command through a shell.
pub(super) fn script(command: &str) -> String {
    let words = shlex::split(command).unwrap_or_default();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    permission::script(&words).unwrap_or(command).to_owned()
}

/// Returns the output of an item that has ended, or `None` if the item has none.
fn output(item: &Value) -> Option<String> {
    match text(item, "type") {
        "commandExecution" => item["aggregatedOutput"].as_str().map(str::to_owned),
        "fileChange" => {
            let changes = item["changes"].as_array()?.iter();
            let line =
                |change: &Value| Some(format!("{} {}\n", change["kind"]["type"].as_str()?, change["path"].as_str()?));
            Some(changes.filter_map(line).collect())
        }
        "mcpToolCall" => match (&item["error"]["message"], &item["result"]["content"]) {
            (Value::String(message), _) => Some(message.clone()),
            (_, Value::Array(content)) => Some(content.iter().map(content_text).collect()),
            _ => None,
        },
        "dynamicToolCall" => Some(item["contentItems"].as_array()?.iter().map(content_text).collect()),
        "collabAgentToolCall" => {
            let states = item["agentsStates"].as_object()?.values();
            Some(states.filter_map(|state| state["message"].as_str()).collect::<Vec<_>>().join("\n"))
        }
        "webSearch" => item["results"].as_array().map(|results| bounds::json(&json!(results)).as_str().to_owned()),
        "imageGeneration" => item["savedPath"].as_str().map(str::to_owned),
        _ => None,
    }
}

fn content_text(content: &Value) -> String {
    match content["text"].as_str() {
        Some(text) => text.to_owned(),
        None => format!("[{}]", content["type"].as_str().unwrap_or("content")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shell_around_a_command_is_taken_off() {
        for (shown, command) in [
            ("/bin/bash -lc 'touch x && echo \"a b\"'", "touch x && echo \"a b\""),
            ("/bin/bash -lc false", "false"),
            ("bash -c ls", "ls"),
            ("/bin/bash -lc ls -l", "/bin/bash -lc ls -l"),
            ("ls -l", "ls -l"),
            ("python3 -c 'x'", "python3 -c 'x'"),
            ("bash -lc 'open", "bash -lc 'open"),
            ("/tmp/evil/bash -lc 'git status'", "/tmp/evil/bash -lc 'git status'"),
            ("bash --norc 'git status'", "bash --norc 'git status'"),
        ] {
            assert_eq!(script(shown), command);
        }
    }

    #[test]
    fn changes_have_their_texts() {
        let change = |kind: Value, diff: &str| json!({ "path": "/a", "kind": kind, "diff": diff });
        let of = |change: Value| diffs(&json!({ "type": "fileChange", "changes": [change] })).remove(0);
        let made = of(change(json!({ "type": "add" }), "x\n"));
        assert_eq!((made.change, made.hunks[0].new_text.as_deref()), (Some(FileChange::Created), Some("x\n")));
        let gone = of(change(json!({ "type": "delete" }), "x\n"));
        assert_eq!((gone.change, gone.hunks[0].old_text.as_deref()), (Some(FileChange::Deleted), Some("x\n")));
        let moved = of(change(json!({ "type": "update", "move_path": "/b" }), "@@ -1 +1 @@\n-x\n+y\n\nMoved to: /b"));
        assert_eq!((moved.change, moved.moved_to.as_deref()), (Some(FileChange::Moved), Some("/b")));
        let [hunk] = &moved.hunks[..] else { panic!("{moved:?}") };
        assert_eq!(
            (hunk.old_text.as_deref(), hunk.new_text.as_deref(), hunk.old_line),
            (Some("x\n"), Some("y\n"), Some(1))
        );
        assert_eq!(of(change(json!({ "type": "update", "move_path": "/b" }), "")).hunks, []);
    }

    #[test]
    fn changes_are_edits_unless_all_are_deletions() {
        let change = |kind: &str| json!({ "path": "/a", "kind": { "type": kind }, "diff": "" });
        let tool =
            |changes: Value| tool(&json!({ "type": "fileChange", "id": "x", "changes": changes })).expect("a tool");
        assert_eq!(tool(json!([change("delete")])).kind, "delete");
        assert_eq!(tool(json!([change("delete"), change("add")])).kind, "edit");
        let moved = json!([{ "path": "/a", "kind": { "type": "update", "move_path": "/b" }, "diff": "" }]);
        assert_eq!((tool(moved.clone()).kind, tool(moved).paths), ("edit", vec!["/a".to_owned(), "/b".to_owned()]));
    }
}
