//! What the model does next: the part that is the same in both dialects.

use serde_json::{Value, json};

/// The model's next step.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// Says this, one delta each.
    Say(Vec<String>),
    /// Calls this tool.
    Call {
        /// The tool's name.
        tool: String,
        /// Its arguments.
        arguments: Value,
    },
}

/// Decides the step from the last user message, the outputs of tools after it, and the tools on offer.
pub(super) fn next(prompt: &str, output: Option<&str>, tools: &[&str]) -> Step {
    let Some(command) = prompt.trim().strip_prefix("shell: ") else {
        return say(&format!("you said: {prompt}"));
    };
    match (output, tools.iter().find_map(|tool| shell_call(tool, command))) {
        (Some(output), _) => say(&format!("done: {}", output.chars().take(100).collect::<String>())),
        (None, Some(call)) => call,
        // Agents also ask for a title of the conversation, and offer no tool then.
        (None, None) => say(&format!("no shell among the tools: {}", tools.join(", "))),
    }
}

/// The call that runs `command`, if `tool` is a shell tool that we know.
fn shell_call(tool: &str, command: &str) -> Option<Step> {
    let arguments = match tool {
        // codex
        "exec_command" => json!({ "cmd": command }),
        // opencode
        "bash" => json!({ "command": command, "description": "a command of the script" }),
        _ => return None,
    };
    Some(Step::Call { tool: tool.to_owned(), arguments })
}

/// Splits `text` after its spaces.
fn say(text: &str) -> Step {
    Step::Say(text.split_inclusive(' ').map(str::to_owned).collect())
}

/// The text of a message's content: a string, or parts with a `text`.
pub(super) fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        _ => String::new(),
    }
}

/// The elements of an array; none if it is not one.
pub(super) fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prompt_decides() {
        let Step::Say(deltas) = next("good morning", None, &["bash"]) else { panic!("it should speak") };
        assert_eq!(deltas.concat(), "you said: good morning");
        assert!(deltas.len() > 1, "{deltas:?}");

        let call = |tool: &str, arguments| Step::Call { tool: tool.into(), arguments };
        let tools = ["update_plan", "exec_command"];
        assert_eq!(next("shell: echo hi", None, &tools), call("exec_command", json!({"cmd": "echo hi"})));
        let Step::Call { arguments, .. } = next("shell: ls", None, &["bash"]) else { panic!("it should call bash") };
        assert_eq!(arguments["command"], "ls");

        let long = "x".repeat(500);
        let Step::Say(deltas) = next("shell: ls", Some(&long), &tools) else { panic!("it should speak") };
        assert_eq!(deltas.concat(), format!("done: {}", "x".repeat(100)));
        assert!(matches!(next("shell: ls", None, &["edit"]), Step::Say(_)));
    }
}
