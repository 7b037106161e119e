//! JSON line messages: splitting of the stream, and bounds for events.

use ipc_protocol::{Event, Json, ToolEnd, ToolStatus};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use crate::{Action, Lines, lines::MAX_LINE};

/// Longest line that is accepted as a message, in bytes. A longer line is dropped, with an error event.
pub(crate) const MAX_MESSAGE_LINE: usize = 8 * 1024 * 1024;
/// Longest id from the agent, in bytes.
pub(crate) const MAX_ID: usize = 1024;
/// Longest JSON document in an event, in bytes.
const MAX_JSON: usize = 1024 * 1024;
/// Longest tool output in an event, in bytes. Of longer output the end is kept.
const MAX_OUTPUT: usize = 1024 * 1024;
/// Longest word, title or error text from the agent, in characters.
pub(crate) const MAX_WORDS: usize = 2000;

/// Result of splitting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line<'a> {
    /// Complete line with its newline, or the last line without one.
    Whole(&'a [u8]),
    /// Beginning of a line that was too long. The rest of the line is dropped.
    TooLong(&'a [u8]),
}

/// Splitter of an agent's output into messages.
#[derive(Debug)]
pub(crate) struct MessageLines {
    lines: Lines,
    dropping: bool,
}

impl Default for MessageLines {
    fn default() -> Self {
        Self { lines: Lines::with_limit(MAX_MESSAGE_LINE), dropping: false }
    }
}

impl MessageLines {
    /// Adds `bytes` and calls `take` for each line that they complete.
    pub(crate) fn push(&mut self, bytes: &[u8], mut take: impl FnMut(Line<'_>)) {
        let Self { lines, dropping } = self;
        lines.push(bytes, |line| {
            let whole = line.ends_with(b"\n");
            if *dropping {
                *dropping = !whole;
            } else if whole {
                take(Line::Whole(line));
            } else {
                *dropping = true;
                take(Line::TooLong(line));
            }
        });
    }

    /// Calls `take` with the rest: a last line without its newline.
    pub(crate) fn finish(&mut self, take: impl FnOnce(&[u8])) {
        let dropping = std::mem::take(&mut self.dropping);
        self.lines.finish(|line| {
            if !dropping {
                take(line);
            }
        });
    }
}

/// Decodes a line of the hot path, if it is one. Checking UTF-8 for the complete line is faster than checking each string.
pub(crate) fn hot<'a, T: Deserialize<'a>>(line: &'a [u8]) -> Option<T> {
    serde_json::from_str(std::str::from_utf8(line).ok()?).ok()
}

/// Emits the error that a line was dropped.
pub(crate) fn too_long(out: &mut Vec<Action>) {
    let message = format!("the agent wrote a line of more than {MAX_MESSAGE_LINE} bytes: dropped");
    out.push(Action::Event(Event::error("line-too-long", message, false)));
}

/// Most bytes of a line's beginning that are parsed.
const MAX_HEAD: usize = 64 * 1024;
/// Deepest nesting of objects and arrays that is parsed.
const MAX_NESTED: usize = 64;

/// Parses the beginning of a line: the object at its start, with its complete members. Returns `null` if the line starts with no
/// object.
pub(crate) fn head(beginning: &[u8]) -> Value {
    let beginning = &beginning[..beginning.len().min(MAX_HEAD)];
    let (mut open, mut whole) = (Vec::new(), 0);
    let (mut quoted, mut escaped) = (false, false);
    for (at, byte) in beginning.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            _ if quoted => {}
            b'{' | b'[' if open.len() < MAX_NESTED => {
                open.push(if *byte == b'{' { b'}' } else { b']' });
                whole = at + 1;
            }
            b'{' | b'[' => break,
            b'}' | b']' => {
                open.pop();
                whole = at + 1;
            }
            b',' => whole = at,
            _ => {}
        }
    }
    let closed = [&beginning[..whole], &open.into_iter().rev().collect::<Vec<_>>()].concat();
    serde_json::from_slice(&closed).ok().filter(Value::is_object).unwrap_or_default()
}

/// Emits a line that was not understood, in pieces of bounded length.
pub(crate) fn log(line: &[u8], out: &mut Vec<Action>) {
    log_of("stdout", line, out);
}

/// Does the same for another stream.
pub(crate) fn log_of(stream: &str, line: &[u8], out: &mut Vec<Action>) {
    out.extend(line.chunks(MAX_LINE).map(|piece| {
        let text = String::from_utf8_lossy(piece).into_owned();
        Action::Event(Event::Log { stream: stream.to_owned(), text })
    }));
}

/// Returns `value`, or a note instead if the value is too large for an event.
pub(crate) fn json(value: &Value) -> Json {
    let json = Json::from(value);
    let len = json.as_str().len();
    if len <= MAX_JSON { json } else { Json::from(&Value::from(format!("left out: {len} bytes"))) }
}

/// Does the same for an undecoded document; `null` if there is none.
pub(crate) fn bounded(raw: Option<&RawValue>) -> Json {
    raw.map_or_else(Json::null, |raw| document(raw.get()))
}

/// Does the same for a text; `null` if the text is no JSON.
pub(crate) fn document(text: &str) -> Json {
    if text.len() > MAX_JSON {
        return Json::from(&Value::from(format!("left out: {} bytes", text.len())));
    }
    Json::new(text).unwrap_or_else(|_| Json::null())
}

/// Returns the beginning of `text`: at most [`MAX_WORDS`] characters.
pub(crate) fn words(text: &str) -> String {
    text.chars().take(MAX_WORDS).collect()
}

/// Shortens `text` to one line.
pub(crate) fn title(text: &str) -> String {
    let line = text.trim().lines().next().unwrap_or_default();
    let more = if text.trim().lines().nth(1).is_some() { " …" } else { "" };
    words(line.trim_end()) + more
}

/// Returns the end of `text`: at most `max` bytes, from a character boundary on.
pub(crate) fn tail(text: &str, max: usize) -> &str {
    let from = text.len().saturating_sub(max);
    let from = (from..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    &text[from..]
}

/// Returns `text`, or its end if it is too long for a tool's output.
pub(crate) fn output(text: String) -> String {
    if text.len() <= MAX_OUTPUT {
        return text;
    }
    let end = tail(&text, MAX_OUTPUT);
    format!("[{} bytes left out]\n{end}", text.len() - end.len())
}

/// Reasons for the end of a call that its agent has not ended, in the place of its output.
pub(crate) mod ended {
    pub(crate) const TURN: &str = "the turn has ended";
    pub(crate) const COMPACTED: &str = "it has been compacted";
    pub(crate) const GONE: &str = "the agent is gone";
    pub(crate) const DROPPED: &str = "a line that may have told its end was too long";
    pub(crate) const FORGOTTEN: &str = "it was forgotten for newer ones";
}

/// Whether a call's output is a reason of ours.
pub(crate) fn is_ours(output: &str) -> bool {
    [ended::TURN, ended::COMPACTED, ended::GONE, ended::DROPPED, ended::FORGOTTEN].contains(&output)
}

/// The end of the call `id`.
pub(crate) fn end(id: &str, status: ToolStatus, text: String) -> Action {
    let end = ToolEnd { id: id.to_owned(), status, output: output(text) };
    Action::Event(Event::ToolEnd(Box::new(end)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_line_that_is_too_long_is_said_once_and_dropped() {
        let mut lines = MessageLines { lines: Lines::with_limit(4), dropping: false };
        let mut seen = Vec::new();
        lines.push(b"ab\nabcdefghijk\nxy\nz", |line| {
            seen.push(match line {
                Line::Whole(line) => (true, line.to_vec()),
                Line::TooLong(line) => (false, line.to_vec()),
            });
        });
        lines.finish(|line| assert_eq!(line, b"z"));
        assert_eq!(seen, [(true, b"ab\n".to_vec()), (false, b"abcd".to_vec()), (true, b"xy\n".to_vec())]);
    }

    #[test]
    fn a_beginning_says_what_is_whole_in_it() {
        for (beginning, says) in [
            (
                r#"{"id":7,"method":"x","params":{"a":["b",{"c":"dddd"#,
                json!({"id":7,"method":"x","params":{"a":["b",{}]}}),
            ),
            (r#"{"id":"a\"},{","type":"x","data":"yyyy"#, json!({"id":"a\"},{","type":"x"})),
            (r#"{"a":{"b":1},"c":12"#, json!({"a":{"b":1}})),
            (r#"{"a":{"b":1}"#, json!({"a":{"b":1}})),
            (r#"{"a":"#, json!({})),
            (r#"{"a":1]]]"#, Value::Null),
            (r#"{"a":1}} x"#, Value::Null),
            ("[1,2", Value::Null),
            ("xxxx", Value::Null),
            ("", Value::Null),
        ] {
            assert_eq!(head(beginning.as_bytes()), says, "{beginning}");
        }
        let deep = format!("{{\"a\":1,\"b\":{}", "[".repeat(100_000));
        assert_eq!(head(deep.as_bytes())["a"], 1);
        let long = format!("{{\"a\":1,\"b\":\"{}", "x".repeat(100_000));
        assert_eq!(head(long.as_bytes()), json!({"a":1}));
    }

    #[test]
    fn text_is_cut_between_characters() {
        assert_eq!((tail("añb", 2), tail("añb", 3), tail("añb", 9), tail("ñ", 1)), ("b", "ñb", "añb", ""));
        let long = "ñ".repeat(MAX_OUTPUT);
        let cut = output(long);
        assert!(cut.starts_with("[1048576 bytes left out]\nñ") && cut.len() == MAX_OUTPUT + 25, "{}", cut.len());
        assert_eq!(output("a".repeat(MAX_OUTPUT)).len(), MAX_OUTPUT);
        assert_eq!((title(" one \ntwo").as_str(), title("one").as_str(), title("").as_str()), ("one …", "one", ""));
    }
}
