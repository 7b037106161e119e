//! Command line and paths of a tool call, as the permission policy needs them.

use std::collections::HashSet;

use agent_client_protocol_schema::v1::{Meta, ToolCallContent, ToolCallUpdateFields, ToolKind};
use serde_json::Value;

use crate::permission;

/// Fields of a tool's input in which agents put a path.
const PATHS: [&str; 5] = ["file_path", "filePath", "path", "notebook_path", "abs_path"];

/// Returns the command line in `input`, for a call of this kind.
pub(super) fn command(kind: &str, input: Option<&Value>) -> Option<String> {
    let input = input?;
    let command = input.get("command").or_else(|| input.get("cmd"))?;
    match command {
        // Editing tools name their action `command`. A call of kind "read" may still run a command.
        Value::String(line) => (!matches!(kind, "edit" | "delete" | "move" | "other")).then(|| line.clone()),
        Value::Array(words) => {
            let words: Vec<_> = words.iter().map(Value::as_str).collect::<Option<_>>()?;
            Some(match permission::script(&words) {
                Some(script) => script.to_owned(),
                None => words.into_iter().map(quoted).collect::<Vec<_>>().join(" "),
            })
        }
        _ => None,
    }
}

/// Quotes a word for a shell, where it needs quotes.
fn quoted(word: &str) -> String {
    let is_plain = |char: char| char.is_alphanumeric() || "-_./=:,@%+".contains(char);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Returns the paths of a call, each once, in the order in which the call names them.
pub(super) fn paths(fields: &ToolCallUpdateFields) -> Vec<String> {
    let mut paths: Vec<String> = Vec::new();
    let mut known = HashSet::new();
    let mut add = |path: &str| {
        if !path.is_empty() && known.insert(path.to_owned()) {
            paths.push(path.to_owned());
        }
    };
    for location in fields.locations.iter().flatten() {
        add(&location.path.to_string_lossy());
    }
    for content in fields.content.iter().flatten() {
        if let ToolCallContent::Diff(diff) = content {
            add(&diff.path.to_string_lossy());
        }
    }
    if let Some(input) = &fields.raw_input {
        PATHS.iter().filter_map(|name| input.get(name)?.as_str()).for_each(&mut add);
        // A search pattern can leave the directory that the search starts in. A pattern for lines names no path that is certain.
        let pattern = input.get("pattern").and_then(Value::as_str).filter(|pattern| {
            fields.kind == Some(ToolKind::Search) && (pattern.starts_with(['/', '~']) || pattern.contains(".."))
        });
        let path = input.get("path").and_then(Value::as_str);
        if let Some(begins) = pattern.and_then(|pattern| permission::beginning(pattern, path)) {
            add(&begins);
        }
        if let Some(Value::Object(changes)) = input.get("changes") {
            for (path, change) in changes {
                add(path);
                // The target of a move.
                let changes = [change, &change["update"]];
                changes.iter().filter_map(|change| change["move_path"].as_str()).for_each(&mut add);
            }
        }
    }
    paths
}

/// Returns the tool's name, where the agent has a separate field for it.
pub(super) fn name(meta: Option<&Meta>) -> Option<String> {
    claude(meta, "toolName").or_else(|| text(meta?, "toolName"))
}

/// A piece of what a call's terminal shows, as `@agentclientprotocol/codex-acp` tells it.
pub(super) fn terminal_output(meta: Option<&Meta>) -> Option<&str> {
    meta?.get("terminal_output_delta")?.get("data")?.as_str()
}

/// The tool call of the sub-agent that is meant, as the wrapper of Claude Code or Qwen Code tells it.
pub(super) fn parent(meta: Option<&Meta>) -> Option<String> {
    claude(meta, "parentToolUseId").or_else(|| text(meta?, "parentToolCallId"))
}

fn claude(meta: Option<&Meta>, field: &str) -> Option<String> {
    text(meta?.get("claudeCode")?.as_object()?, field)
}

fn text(meta: &Meta, field: &str) -> Option<String> {
    let text = meta.get(field)?.as_str()?;
    (text.len() <= crate::kit::bounds::MAX_ID).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_command_is_what_a_shell_is_given() {
        for (kind, input, line) in [
            ("execute", json!({"command": "ls -l"}), Some("ls -l")),
            ("read", json!({"command": ["/bin/bash", "-lc", "cat a; rm b"]}), Some("cat a; rm b")),
            ("read", json!({"command": "cat a; rm b"}), Some("cat a; rm b")),
            ("execute", json!({"command": ["rm", "a b", "", "it's"]}), Some(r"rm 'a b' '' 'it'\''s'")),
            (
                "execute",
                json!({"command": ["/tmp/evil/bash", "-lc", "git status"]}),
                Some("/tmp/evil/bash -lc 'git status'"),
            ),
            ("execute", json!({"cmd": "ls"}), Some("ls")),
            ("edit", json!({"command": "view"}), None),
            ("execute", json!({"command": [1]}), None),
            ("execute", json!({}), None),
        ] {
            assert_eq!(command(kind, Some(&input)).as_deref(), line, "{input}");
        }
        assert_eq!(command("execute", None), None);
    }

    #[test]
    fn a_parent_is_found_in_either_place() {
        let of = |meta: serde_json::Value| parent(meta.as_object());
        assert_eq!(of(json!({"claudeCode": {"parentToolUseId": "a"}})).as_deref(), Some("a"));
        assert_eq!(of(json!({"parentToolCallId": "b", "subagentType": "general"})).as_deref(), Some("b"));
        assert_eq!((of(json!({"parentToolCallId": null})), of(json!({}))), (None, None));
    }

    #[test]
    fn paths_are_found_wherever_agents_put_them() {
        let fields: ToolCallUpdateFields = serde_json::from_value(json!({
            "locations": [{"path": "/a"}, {"path": "/b"}],
            "content": [{"type": "diff", "path": "/c", "newText": ""}, {"type": "content", "content": {"type": "text", "text": "x"}}],
            "rawInput": {"file_path": "/a", "filePath": "d", "changes": {
                "/e": {"type": "update", "move_path": "/f"}, "/g": {"update": {"move_path": "/h"}}, "/i": 7,
            }},
        }))
        .expect("fields");
        assert_eq!(paths(&fields), ["/a", "/b", "/c", "d", "/e", "/f", "/g", "/h", "/i"]);
        let found = |kind: &str, pattern: &str| {
            let fields = json!({"kind": kind, "rawInput": {"pattern": pattern, "path": "/w"}});
            paths(&serde_json::from_value(fields).expect("fields"))
        };
        assert_eq!(found("search", "/etc/**"), ["/w", "/etc"]);
        assert_eq!(found("search", "a/../../*"), ["/w", "/w/.."]);
        assert_eq!((found("search", "x*"), found("other", "/etc/**")), (vec!["/w".to_owned()], vec!["/w".to_owned()]));
    }
}
