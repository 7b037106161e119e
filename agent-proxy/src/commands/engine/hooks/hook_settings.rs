//! Settings of Claude Code with our hooks: edits the text in place, so that all else stays as its user wrote it.

use jsonc_parser::{
    ParseOptions,
    cst::{CstArray, CstInputValue, CstNode, CstObject, CstRootNode},
};

/// Hooks that are recorded.
pub(super) const HOOK_EVENTS: [&str; 7] =
    ["SessionStart", "UserPromptSubmit", "MessageDisplay", "PreToolUse", "PostToolUse", "PostToolUseFailure", "Stop"];

/// End of the command of our hooks, behind the path of this program.
const COMMAND_END: &str = " hooks record claude-code || true";

/// Seconds after which Claude Code gives up on a hook.
const HOOK_TIMEOUT: usize = 5;

/// Whether our hooks are in settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HookState {
    Absent,
    /// Some are missing, or have a command of another program of ours.
    Partial,
    Installed,
}

/// Error for settings that cannot be edited.
#[derive(Debug, thiserror::Error)]
pub(super) enum SettingsError {
    #[error("it is not JSON: {0}")]
    Syntax(String),
    #[error("{0} is not {1}, as Claude Code has it")]
    Shape(String, &'static str),
}

/// Returns the command of our hooks. A program that was removed is no error of Claude Code's.
pub(super) fn hook_command(program: &str) -> String {
    let quoted = shlex::try_quote(program).map_or_else(|_| program.to_owned(), |quoted| quoted.into_owned());
    format!("{quoted}{COMMAND_END}")
}

/// Adds the hooks. Ours with another command get this one.
///
/// # Errors
/// The text is no such settings.
pub(super) fn with_hooks(text: &str, command: &str) -> Result<String, SettingsError> {
    let is_empty = text.trim_start_matches('\u{feff}').trim().is_empty();
    let root = parse(if is_empty { "{}\n" } else { text })?;
    let settings = object(root.value(), "the whole of it")?;
    let hooks = match settings.get("hooks") {
        Some(property) => object(property.value(), "\"hooks\"")?,
        None => {
            // A one-line file would get all of it in one line.
            settings.ensure_multiline();
            settings.object_value_or_set("hooks")
        }
    };
    // Nothing is edited unless all of it can be.
    for event in HOOK_EVENTS {
        if let Some(property) = hooks.get(event) {
            array(property.value(), event)?;
        }
    }
    for event in HOOK_EVENTS {
        let groups = hooks.array_value_or_set(event);
        let ours = our_commands(&groups);
        for found in &ours {
            if let Some(text) = found.command.as_string_lit().filter(|_| found.text != command) {
                text.replace_with(command.into());
            }
        }
        if ours.is_empty() {
            let hook = [("type", "command".into()), ("command", command.into()), ("timeout", HOOK_TIMEOUT.into())];
            let hook = hook.map(|(name, value): (&str, CstInputValue)| (name.to_owned(), value));
            let hooks = CstInputValue::Array(vec![CstInputValue::Object(hook.into())]);
            if groups.elements().is_empty() {
                groups.ensure_multiline();
            }
            groups.append(CstInputValue::Object(vec![("hooks".to_owned(), hooks)]));
        }
    }
    Ok(root.to_string())
}

/// Removes our hooks, and what holds nothing without them.
///
/// # Errors
/// The text is no such settings.
pub(super) fn without_hooks(text: &str) -> Result<String, SettingsError> {
    let root = parse(text)?;
    let Some(hooks) = root.object_value().and_then(|settings| settings.object_value("hooks")) else {
        return Ok(text.to_owned());
    };
    let mut has_removed = false;
    for property in hooks.properties() {
        let Some(groups) = property.array_value() else { continue };
        let ours = our_commands(&groups);
        if ours.is_empty() {
            continue;
        }
        has_removed = true;
        for found in ours {
            let group = found.group.clone();
            found.hook.remove();
            if group.array_value("hooks").is_some_and(|hooks| hooks.elements().is_empty()) {
                group.remove();
            }
        }
        if groups.elements().is_empty() {
            property.remove();
        }
    }
    if has_removed
        && hooks.properties().is_empty()
        && let Some(property) = root.object_value().and_then(|settings| settings.get("hooks"))
    {
        property.remove();
    }
    Ok(root.to_string())
}

/// Returns whether our hooks are there, with this command.
///
/// # Errors
/// The text is no JSON.
pub(super) fn hook_state(text: &str, command: &str) -> Result<HookState, SettingsError> {
    let commands = installed_commands(text)?;
    if commands.is_empty() {
        return Ok(HookState::Absent);
    }
    let is_whole = commands.len() >= HOOK_EVENTS.len() && commands.iter().all(|found| found == command);
    Ok(if is_whole { HookState::Installed } else { HookState::Partial })
}

/// Returns the commands of our hooks.
///
/// # Errors
/// The text is no JSON.
pub(super) fn installed_commands(text: &str) -> Result<Vec<String>, SettingsError> {
    if text.trim_start_matches('\u{feff}').trim().is_empty() {
        return Ok(Vec::new());
    }
    let root = parse(text)?;
    let hooks = root.object_value().and_then(|settings| settings.object_value("hooks"));
    let properties = hooks.map(|hooks| hooks.properties()).unwrap_or_default();
    let groups = properties.iter().filter_map(|property| property.array_value());
    Ok(groups.flat_map(|groups| our_commands(&groups)).map(|found| found.text).collect())
}

/// Returns true if the settings switch all hooks off.
pub(super) fn disables_hooks(text: &str) -> bool {
    let value = parse(text).ok().and_then(|root| root.object_value()?.get("disableAllHooks")?.value());
    value.and_then(|value| value.as_boolean_lit()).is_some_and(|value| value.value())
}

/// Hook of ours.
struct OurHook {
    group: CstObject,
    hook: CstObject,
    command: CstNode,
    text: String,
}

fn our_commands(groups: &CstArray) -> Vec<OurHook> {
    let groups = groups.elements();
    let groups = groups.iter().filter_map(|group| group.as_object());
    let hooks = groups.flat_map(|group| {
        let hooks = group.array_value("hooks").map(|hooks| hooks.elements()).unwrap_or_default();
        hooks.into_iter().map(move |hook| (group.clone(), hook))
    });
    let ours = hooks.filter_map(|(group, hook)| {
        let hook = hook.as_object()?;
        let command = hook.get("command")?.value()?;
        let text = command.as_string_lit()?.decoded_value().ok()?;
        text.ends_with(COMMAND_END).then_some(OurHook { group, hook, command, text })
    });
    ours.collect()
}

/// Parses JSON, in which comments and commas at the ends of lists are kept.
fn parse(text: &str) -> Result<CstRootNode, SettingsError> {
    let options = ParseOptions {
        allow_comments: true,
        allow_trailing_commas: true,
        allow_loose_object_property_names: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    };
    CstRootNode::parse(text, &options).map_err(|error| SettingsError::Syntax(error.to_string()))
}

fn object(node: Option<CstNode>, name: &str) -> Result<CstObject, SettingsError> {
    node.and_then(|node| node.as_object()).ok_or_else(|| SettingsError::Shape(name.to_owned(), "an object"))
}

fn array(node: Option<CstNode>, name: &str) -> Result<CstArray, SettingsError> {
    node.and_then(|node| node.as_array()).ok_or_else(|| SettingsError::Shape(format!("\"hooks.{name}\""), "an array"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const COMMAND: &str = "/bin/agent-proxy hooks record claude-code || true";

    fn value(text: &str) -> Value {
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    #[test]
    fn hooks_are_added_once_and_all_else_stays() {
        let text = "{\n    \"model\":   \"opus\",\n    \"hooks\": {\n        \"Notification\": [{ \"hooks\": [{ \"type\": \"command\", \"command\": \"beep\" }] }],\n        \"PreToolUse\": [\n            { \"matcher\": \"Bash\", \"hooks\": [{ \"type\": \"command\", \"command\": \"check\" }] }\n        ]\n    },\n    \"env\": { \"A\": \"1\" }\n}\n";
        let with = with_hooks(text, COMMAND).expect("settings");
        assert_eq!(with_hooks(&with, COMMAND).expect("settings"), with);
        assert_eq!(hook_state(&with, COMMAND).expect("settings"), HookState::Installed);
        let settings = value(&with);
        assert_eq!(settings["hooks"]["PreToolUse"][0]["hooks"][0]["command"], "check");
        let ours = json!({ "hooks": [{ "type": "command", "command": COMMAND, "timeout": 5 }] });
        assert_eq!(settings["hooks"]["PreToolUse"][1], ours);
        for event in HOOK_EVENTS {
            assert!(settings["hooks"][event].as_array().expect("groups").contains(&ours), "{event}: {with}");
        }
        for line in text.lines().filter(|line| line.contains("model") || line.contains("beep") || line.contains("env"))
        {
            assert!(with.contains(line), "{line}: {with}");
        }
        assert_eq!(value(&without_hooks(&with).expect("settings")), value(text));
        assert_eq!(without_hooks(&with).expect("settings"), text);
        // A list on one line that gets one of ours is put on several, and has its own elements again.
        let one_line = text.replace("Notification", "Stop");
        let with = with_hooks(&one_line, COMMAND).expect("settings");
        assert_eq!(value(&with)["hooks"]["Stop"].as_array().map(Vec::len), Some(2), "{with}");
        assert_eq!(value(&without_hooks(&with).expect("settings")), value(&one_line));
    }

    #[test]
    fn comments_and_indents_are_kept() {
        for text in [
            "{\n\t// mine\n\t\"model\": \"opus\", /* yes */\n}\n",
            "{\"a\":1}",
            "{}",
            "{ \"hooks\": {} }",
            "{\n  \"hooks\": { \"Stop\": [] }\n}",
        ] {
            let with = with_hooks(text, COMMAND).expect("settings");
            for part in ["// mine", "/* yes */"].iter().filter(|part| text.contains(**part)) {
                assert!(with.contains(part), "{with}");
            }
            assert_eq!(hook_state(&with, COMMAND).expect("settings"), HookState::Installed, "{with}");
            let without = without_hooks(&with).expect("settings");
            assert_eq!(hook_state(&without, COMMAND).expect("settings"), HookState::Absent, "{without}");
        }
    }

    #[test]
    fn hooks_of_a_program_that_was_moved_are_mended() {
        let old = with_hooks("", "'/old place/agent-proxy' hooks record claude-code || true").expect("settings");
        assert_eq!(hook_state(&old, COMMAND).expect("settings"), HookState::Partial);
        assert_eq!(with_hooks(&old, COMMAND).expect("settings"), with_hooks("", COMMAND).expect("settings"));
    }

    #[test]
    fn what_is_no_settings_is_refused() {
        for text in
            ["{", "[]", "nonsense", "{ \"hooks\": [] }", "{ \"hooks\": { \"PreToolUse\": {} } }", "{'a': 1}", "\"x\""]
        {
            assert!(with_hooks(text, COMMAND).is_err(), "{text}");
        }
        assert_eq!(without_hooks("{ \"hooks\": 1 }").expect("none of ours"), "{ \"hooks\": 1 }");
    }
}
