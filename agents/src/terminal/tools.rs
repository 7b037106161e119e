//! Classification of tools that hooks report: those of Claude Code, Codex and Gemini CLI.

use serde_json::Value;

use crate::{claude::tools, kit::bounds};

/// Beginnings of the lines of a patch that name a file.
const PATCH_FILES: [&str; 4] = ["*** Add File: ", "*** Update File: ", "*** Delete File: ", "*** Move to: "];

/// Returns the kind of a tool.
pub(super) fn kind(name: &str) -> &'static str {
    match name {
        "run_shell_command" => "execute",
        "read_file" | "read_many_files" | "list_directory" => "read",
        "write_file" | "replace" | "edit" | "apply_patch" => "edit",
        "glob" | "grep_search" | "search_file_content" => "search",
        "web_fetch" | "google_web_search" => "fetch",
        "write_todos" | "update_plan" => "think",
        "ask_user" => "question",
        name => tools::kind(name),
    }
}

/// Returns a one-line title of a call.
pub(super) fn title(name: &str, input: &Value) -> String {
    match (command(name, input), paths(name, input).first()) {
        (Some(command), _) => bounds::title(&command),
        (None, Some(path)) => bounds::title(&format!("{name} {path}")),
        (None, None) => tools::title(name, input),
    }
}

/// Returns the command line that a call would run.
pub(super) fn command(name: &str, input: &Value) -> Option<String> {
    let command = || input.get("command")?.as_str().map(str::to_owned);
    if kind(name) == "execute" { command() } else { None }
}

/// Returns the paths that a call names.
pub(super) fn paths(name: &str, input: &Value) -> Vec<String> {
    let text = |key: &str| input.get(key).and_then(Value::as_str);
    match name {
        "run_shell_command" => Vec::new(),
        "apply_patch" => {
            let lines = text("command").or_else(|| text("input")).unwrap_or_default().lines();
            let file =
                |line: &str| PATCH_FILES.iter().find_map(|beginning| line.strip_prefix(beginning)).map(str::to_owned);
            lines.filter_map(file).collect()
        }
        _ => {
            let directory = ["dir_path", "absolute_path"].into_iter().filter_map(text).map(str::to_owned);
            tools::paths(name, input).into_iter().chain(directory).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn calls_of_each_agent_are_described() {
        let patch = json!({ "command": "*** Begin Patch\n*** Update File: src/a b.rs\n@@\n-x\n+y\n*** End Patch" });
        assert_eq!((kind("apply_patch"), paths("apply_patch", &patch)), ("edit", vec!["src/a b.rs".to_owned()]));
        assert_eq!(command("apply_patch", &patch), None, "a patch is no command");
        let shell = json!({ "command": "make", "dir_path": "/w" });
        assert_eq!(command("run_shell_command", &shell).as_deref(), Some("make"));
        assert!(paths("run_shell_command", &shell).is_empty());
        assert_eq!(title("write_file", &json!({ "file_path": "/a" })), "write_file /a");
        assert_eq!((kind("Bash"), kind("list_directory"), kind("mcp__x")), ("execute", "read", "other"));
    }
}
