//! Classification of the agent's tools, by name and input.

use serde_json::{Value, value::RawValue};

use crate::{kit::bounds, permission};

/// Returns the kind of a tool.
///
/// A tool that changes nothing outside the conversation is `think`: notes, plans, a search for tools, a sub-agent (each call of
/// the sub-agent has a permission request of its own).
pub(crate) fn kind(name: &str) -> &'static str {
    match name {
        "Bash" | "PowerShell" | "Monitor" => "execute",
        "Read" | "NotebookRead" | "LS" | "BashOutput" | "TaskOutput" | "ReadMcpResource" | "ListMcpResources" => "read",
        "Glob" | "Grep" => "search",
        "Edit" | "MultiEdit" | "Write" | "NotebookEdit" => "edit",
        "WebFetch" | "WebSearch" => "fetch",
        "AskUserQuestion" => "question",
        "EnterPlanMode" | "ExitPlanMode" => "switch_mode",
        "Agent" | "Task" | "TodoWrite" | "TaskCreate" | "TaskUpdate" | "TaskGet" | "TaskList" | "ToolSearch"
        | "ListAgents" | "ReportFindings" => "think",
        _ => "other",
    }
}

/// Returns a one-line title of a call.
pub(crate) fn title(name: &str, input: &Value) -> String {
    let field = |key: &str| input.get(key)?.as_str().filter(|text| !text.trim().is_empty());
    let about = match name {
        "Bash" | "PowerShell" | "Monitor" => field("command"),
        "AskUserQuestion" => input.pointer("/questions/0/question").and_then(Value::as_str),
        _ => ["file_path", "notebook_path", "subject", "description", "pattern", "url", "query", "skill", "path"]
            .into_iter()
            .find_map(field),
    };
    match (kind(name), about) {
        ("execute" | "question", Some(about)) => bounds::title(about),
        (_, Some(about)) => bounds::title(&format!("{name} {about}")),
        (_, None) => bounds::title(name),
    }
}

/// Returns the command line that a call would run.
pub(crate) fn command(name: &str, input: &Value) -> Option<String> {
    (kind(name) == "execute").then(|| input.get("command")?.as_str().map(str::to_owned)).flatten()
}

/// Returns the paths that a call names. A command has none: the files that it touches are unknown beforehand.
pub(crate) fn paths(name: &str, input: &Value) -> Vec<String> {
    if kind(name) == "execute" {
        return Vec::new();
    }
    let text = |key: &str| input.get(key).and_then(Value::as_str);
    let paths = ["file_path", "notebook_path", "path"].into_iter().filter_map(text).map(str::to_owned);
    // A pattern can leave the directory that it starts in. (The pattern of `Grep` is for lines.)
    let pattern = text("pattern").filter(|_| name == "Glob");
    paths.chain(pattern.and_then(|pattern| permission::beginning(pattern, text("path")))).collect()
}

/// Parses JSON to a value; `null` if that fails.
pub(crate) fn value(json: Option<&RawValue>) -> Value {
    json.and_then(|json| serde_json::from_str(json.get()).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn calls_are_described_by_what_they_would_do() {
        let bash = json!({ "command": "make test\necho", "description": "run the tests" });
        assert_eq!((kind("Bash"), title("Bash", &bash)), ("execute", "make test …".to_owned()));
        assert_eq!(command("Bash", &bash).as_deref(), Some("make test\necho"));
        assert!(
            paths("Bash", &json!({ "command": "x", "path": "/etc" })).is_empty(),
            "a command's paths are not known"
        );
        let edit = json!({ "file_path": "/a b", "old_string": "x" });
        assert_eq!((title("Edit", &edit), paths("Edit", &edit)), ("Edit /a b".to_owned(), vec!["/a b".to_owned()]));
        assert_eq!(
            (kind("mcp__files__echo"), title("mcp__files__echo", &json!(7))),
            ("other", "mcp__files__echo".into())
        );
        let glob = |input: Value| paths("Glob", &input);
        assert_eq!(glob(json!({ "pattern": "/etc/**" })), ["/etc"]);
        assert_eq!(glob(json!({ "pattern": "../*", "path": "/w" })), ["/w", "/w/.."]);
        assert_eq!(glob(json!({ "pattern": "**/*.rs", "path": "/w" })), ["/w"]);
        assert_eq!(paths("Grep", &json!({ "pattern": "/etc/.*", "path": "/w" })), ["/w"]);
        let long = title("Bash", &json!({ "command": "ä".repeat(5000) }));
        assert_eq!(long.chars().count(), bounds::MAX_CHARS);
        assert_eq!(command("Read", &json!({ "command": "x" })), None);
    }
}
