//! A permission request as text for people: all that an answer would allow, harmless on any screen.

use serde_json::{Map, Value};

use crate::{OpenPermission, printable};

/// Most lines of a request that are shown.
const MAX_LINES: usize = 2_000;
/// Most characters of a line that are shown.
const MAX_CHARS: usize = 16_000;
/// Longest name, in characters, beside which its text is: that of a longer one is below it.
const MAX_NAME: usize = 40;
/// Lines that are shown around a change.
const CONTEXT: usize = 3;
/// Members of an input with a text before and after a change.
const CHANGES: [(&str, &str); 4] =
    [("old_string", "new_string"), ("oldString", "newString"), ("oldText", "newText"), ("old_text", "new_text")];

impl OpenPermission {
    /// Returns what the request would do beside its title, line by line: the whole command, the paths, and the whole input, with
    /// changes as lines that begin with `-` and `+`. What continues a line is indented below its beginning, so no text of the agent
    /// can pass for a line of ours.
    ///
    /// What is too long ends in a line that says how much is missing, and where it is.
    pub fn details(&self) -> Vec<String> {
        let mut lines = RequestLines::of(self);
        if let Some(command) = self.command.as_deref().filter(|command| *command != self.title) {
            lines.field("", "command", command);
        }
        let input = self.input.value();
        let is_shown = |path: &&String| !has_text(&input, path);
        for path in self.paths.iter().filter(is_shown) {
            lines.field("", "path", path);
        }
        match &input {
            // Nested too deep to be read.
            Value::Null if self.input.as_str() != "null" => lines.field("", "input", self.input.as_str()),
            Value::Null => {}
            Value::Object(members) => lines.members("", members),
            other => lines.value("", "input", other),
        }
        lines.end()
    }
}

/// Lines of a request.
struct RequestLines<'a> {
    title: &'a str,
    command: Option<&'a str>,
    lines: Vec<String>,
    /// Lines that were too many.
    missing: usize,
    /// Where the rest of what is too long can be read.
    whole: String,
}

impl<'a> RequestLines<'a> {
    fn of(request: &'a OpenPermission) -> Self {
        Self {
            title: &request.title,
            command: request.command.as_deref(),
            lines: Vec::new(),
            missing: 0,
            whole: format!("see the event permission:requested of {}", printable(&request.id, false)),
        }
    }

    /// Adds a line, or counts it. What is too long is cut at once: a long name before each of many lines would be gigabytes.
    fn push(&mut self, line: impl FnOnce() -> String) {
        if self.lines.len() == MAX_LINES {
            self.missing += 1;
            return;
        }
        let mut line = line();
        if let Some((cut, _)) = line.char_indices().nth(MAX_CHARS) {
            let missing = line[cut..].chars().count();
            line.truncate(cut);
            line.push_str(&format!(" … {missing} more characters: {}", self.whole));
        }
        self.lines.push(line);
    }

    fn end(mut self) -> Vec<String> {
        if self.missing > 0 {
            self.lines.push(format!("… {} more lines: {}", self.missing, self.whole));
        }
        self.lines
    }

    /// Adds a text with its name; its further lines are below its first.
    fn field(&mut self, indent: &str, name: &str, text: &str) {
        let is_long = name.chars().nth(MAX_NAME).is_some();
        let name = if self.lines.len() == MAX_LINES { String::new() } else { printable(name, false) };
        let below = " ".repeat(if is_long { 2 } else { name.chars().count() + 2 });
        let mut parts = text.strip_suffix('\n').unwrap_or(text).split('\n');
        let first = parts.next().filter(|first| !first.is_empty()).unwrap_or("\"\"");
        if is_long {
            self.push(|| format!("{indent}{name}"));
            self.push(|| format!("{indent}{below}{}", line(first)));
        } else {
            self.push(|| format!("{indent}{name}  {}", line(first)));
        }
        parts.for_each(|part| self.push(|| format!("{indent}{below}{}", line(part))));
    }

    fn value(&mut self, indent: &str, name: &str, value: &Value) {
        match value {
            Value::Null => {}
            Value::String(text) => self.field(indent, name, text),
            Value::Object(members) => {
                self.push(|| format!("{indent}{}", printable(name, false)));
                self.members(&format!("{indent}  "), members);
            }
            Value::Array(values) if values.iter().all(|value| !value.is_object() && !value.is_array()) => {
                self.field(indent, name, &value.to_string());
            }
            Value::Array(values) => {
                for (at, value) in values.iter().enumerate() {
                    let is_counted = self.lines.len() == MAX_LINES;
                    let name = if is_counted { String::new() } else { format!("{name} {}", at + 1) };
                    self.value(indent, &name, value);
                }
            }
            other => self.field(indent, name, &other.to_string()),
        }
    }

    /// Adds the members of an object. A text before and one after a change become one change.
    fn members(&mut self, indent: &str, members: &Map<String, Value>) {
        let text = |name: &str| members.get(name).and_then(Value::as_str);
        let change = CHANGES.iter().find(|(_, new)| text(new).is_some());
        let change = change.filter(|(old, _)| members.get(*old).is_none_or(|old| old.is_string() || old.is_null()));
        for (name, value) in members {
            let is_known = match value {
                // It is above already.
                Value::String(text) => indent.is_empty() && (text == self.title || Some(&**text) == self.command),
                _ => false,
            };
            let is_changed = change.is_some_and(|(old, new)| name == old || name == new);
            if !is_known && !is_changed {
                self.value(indent, name, value);
            }
        }
        if let Some((old, new)) = change {
            self.change(indent, text(old).unwrap_or_default(), text(new).unwrap_or_default());
        }
    }

    /// Adds a change, without what stays far from it.
    fn change(&mut self, indent: &str, old: &str, new: &str) {
        let last_newline = match (old.ends_with('\n'), new.ends_with('\n')) {
            _ if old.is_empty() || new.is_empty() => None,
            (true, false) => Some("(without the newline at the end)"),
            (false, true) => Some("(with a newline at the end)"),
            _ => None,
        };
        let (old, new): (Vec<&str>, Vec<&str>) =
            (old.split_terminator('\n').collect(), new.split_terminator('\n').collect());
        let head = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
        let (old_rest, new_rest) = (&old[head..], &new[head..]);
        let tail = old_rest.iter().rev().zip(new_rest.iter().rev()).take_while(|(old, new)| old == new).count();
        let (old_rest, new_rest) = (&old_rest[..old_rest.len() - tail], &new_rest[..new_rest.len() - tail]);
        let mut add =
            |sign: &str, text: &str| self.push(|| format!("{indent}{sign} {}", line(text)).trim_end().to_owned());
        let same = |lines: usize| format!("({lines} more as before)");
        if head > CONTEXT {
            add(" ", &same(head - CONTEXT));
        }
        old[head.saturating_sub(CONTEXT)..head].iter().for_each(|text| add(" ", text));
        old_rest.iter().for_each(|text| add("-", text));
        new_rest.iter().for_each(|text| add("+", text));
        let after = &old[old.len() - tail..];
        after.iter().take(CONTEXT).for_each(|text| add(" ", text));
        if tail > CONTEXT {
            add(" ", &same(tail - CONTEXT));
        }
        last_newline.into_iter().for_each(|text| add("+", text));
    }
}

/// Makes a line harmless. A tab is as wide everywhere as here.
fn line(text: &str) -> String {
    printable(&text.replace('\t', "    "), false)
}

/// Returns true if a text is one of those in a value.
fn has_text(value: &Value, text: &str) -> bool {
    match value {
        Value::String(found) => found == text,
        Value::Array(values) => values.iter().any(|value| has_text(value, text)),
        Value::Object(members) => {
            // A member without a value is not shown.
            members.iter().any(|(name, value)| (name == text && !value.is_null()) || has_text(value, text))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use ipc_protocol::Json;
    use serde_json::json;

    use super::*;

    fn request(title: &str, command: Option<&str>, input: Json) -> OpenPermission {
        OpenPermission {
            id: "permission-1".into(),
            title: title.into(),
            tool: "tool".into(),
            kind: "other".into(),
            command: command.map(str::to_owned),
            paths: vec!["/a".into(), "/b\u{1b}[2J".into()],
            input,
            options: Vec::new(),
        }
    }

    fn details(title: &str, command: Option<&str>, input: &Value) -> Vec<String> {
        request(title, command, Json::from(input)).details()
    }

    #[test]
    fn every_line_of_a_command_is_there_and_harmless() {
        let command = "echo one\nrm -rf ~ \u{1b}[1A\u{202e}\r\n\tlast";
        assert_eq!(
            details("echo one …", Some(command), &json!({ "command": command, "path": "/a", "timeout": 5 })),
            [
                "command  echo one",
                "         rm -rf ~ \\u{1b}[1A\\u{202e}\\r",
                "             last",
                "path  /b\\u{1b}[2J",
                "path  /a",
                "timeout  5",
            ]
        );
        assert_eq!(details("ls", Some("ls"), &json!({ "command": "ls" })), ["path  /a", "path  /b\\u{1b}[2J"]);
        assert_eq!(details("x", None, &json!(["left\u{7}", 1])).last().expect("a line"), "input  [\"left\\u0007\",1]");
    }

    #[test]
    fn what_would_be_written_is_there() {
        assert_eq!(
            details("Write /a", None, &json!({ "content": "one\n  two\n", "empty": "", "file_path": "/a" }))[1..],
            ["content  one", "           two", "empty  \"\"", "file_path  /a"]
        );
        let old: String = (0..10).map(|number| format!("{number}\n")).collect();
        let new = old.replace("5\n", "five\nfive and a half\n");
        let edits = json!({ "edits": [{ "oldText": old, "newText": new }, { "newText": "all\n", "path": "/c", "type": "diff" }] });
        assert_eq!(
            details("Edit", None, &edits)[2..],
            [
                "edits 1",
                "    (2 more as before)",
                "    2",
                "    3",
                "    4",
                "  - 5",
                "  + five",
                "  + five and a half",
                "    6",
                "    7",
                "    8",
                "    (1 more as before)",
                "edits 2",
                "  path  /c",
                "  type  diff",
                "  + all",
            ]
        );
    }

    #[test]
    fn a_long_name_is_not_before_each_line_of_its_text() {
        let name = "n".repeat(1 << 16);
        for value in [json!("\n".repeat(1 << 15)), json!(vec![json!({}); 1 << 14])] {
            let lines = details("x", None, &json!({ &name: value }));
            let bytes: usize = lines.iter().map(String::len).sum();
            assert!(lines.len() == MAX_LINES + 1 && bytes <= (MAX_LINES + 1) * (MAX_CHARS + 100), "{bytes}");
            assert!(lines.last().is_some_and(|line| line.contains(" more lines: ")), "{:?}", lines.last());
        }
        let lines = details("x", None, &json!({ "n".repeat(MAX_NAME + 1): "one\ntwo" }));
        assert_eq!(lines[2..], ["n".repeat(MAX_NAME + 1), "  one".to_owned(), "  two".to_owned()]);
    }

    #[test]
    fn nothing_hides_in_what_is_not_shown() {
        // A member without a value is left out, its name too.
        assert!(details("x", None, &json!({ "/a": null })).contains(&"path  /a".to_owned()));
        let deep = format!("{}\"rm\"{}", "[".repeat(200), "]".repeat(200));
        let nested = request("x", None, Json::new(deep.clone()).expect("JSON"));
        assert_eq!(nested.details().last(), Some(&format!("input  {deep}")));
        let change = |old: &str, new: &str| details("x", None, &json!({ "oldText": old, "newText": new }));
        assert_eq!(change("a", "a\n")[2..], ["  a", "+ (with a newline at the end)"]);
        assert_eq!(change("a\n", "a")[2..], ["  a", "+ (without the newline at the end)"]);
    }

    #[test]
    fn what_is_left_out_is_said() {
        let mut request = ipc_protocol::PermissionRequest {
            id: "permission-1".into(),
            tool_call_id: None,
            title: "Write".into(),
            tool: "Write".into(),
            kind: "edit".into(),
            command: None,
            paths: Vec::new(),
            input: Json::from(&json!({ "content": "ä\n".repeat(1 << 17), "path": "/a" })),
            options: Vec::new(),
            parent: None,
        };
        let lines = OpenPermission::from(&request).details();
        assert!(lines.iter().any(|line| line.contains("more lines: see the event")), "{lines:?}");
        request.input = Json::from(&json!({ "content": "x".repeat(1 << 20), "path": "/a" }));
        let lines = OpenPermission::from(&request).details();
        assert_eq!(lines[1], "         … 1032192 more bytes: the event permission:requested has them");
        request.input = Json::from(&json!(vec![1; 1 << 18]));
        assert_eq!(
            OpenPermission::from(&request).details(),
            ["input  left out: 524289 bytes; the event permission:requested has them"]
        );
        let lines = details("x", Some(&"line\n".repeat(2 * MAX_LINES)), &Value::Null);
        assert_eq!(lines.len(), MAX_LINES + 1);
        assert_eq!(
            lines.last().expect("a line"),
            &format!("… {} more lines: see the event permission:requested of permission-1", MAX_LINES + 2)
        );
        let lines = details("x", Some(&"x".repeat(2 * MAX_CHARS)), &Value::Null);
        assert!(
            lines[0].contains(&format!(" … {} more characters: see the event", MAX_CHARS + 9)),
            "{}",
            lines[0].len()
        );
    }
}
