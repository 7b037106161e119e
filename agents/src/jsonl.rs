//! Messages that are lines of JSON: how they are split off, and the bounds of what is passed on of them.

use ipc_protocol::{Event, Json, ToolEnd, ToolStatus};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use crate::{Action, Lines, lines::MAX_LINE};

/// Longest line that is taken as a message, in bytes. What is longer is dropped, with an error event that says so.
pub(crate) const MAX_MESSAGE_LINE: usize = 8 * 1024 * 1024;
/// Longest id of the agent's, in bytes.
pub(crate) const MAX_ID: usize = 1024;
/// Longest JSON document passed on in an event, in bytes.
const MAX_JSON: usize = 1024 * 1024;
/// Longest output of a tool passed on, in bytes. Of a longer one it is the end.
const MAX_OUTPUT: usize = 1024 * 1024;
/// Longest word, title or error of the agent's that is passed on, in characters.
pub(crate) const MAX_WORDS: usize = 2000;

/// What was split off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line<'a> {
    /// A line with its end, or the last one without.
    Whole(&'a [u8]),
    /// The beginning of a line that was too long. The rest of it is dropped.
    TooLong(&'a [u8]),
}

/// Splits an agent's output into messages.
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
    /// Takes `bytes` and calls `take` for each line that they complete.
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

    /// Gives out what is left: a last line without its end.
    pub(crate) fn finish(&mut self, take: impl FnOnce(&[u8])) {
        let dropping = std::mem::take(&mut self.dropping);
        self.lines.finish(|line| {
            if !dropping {
                take(line);
            }
        });
    }
}

/// A line of the hot path, if it is one. Checked as a whole, its text is faster to decode than string by string.
pub(crate) fn hot<'a, T: Deserialize<'a>>(line: &'a [u8]) -> Option<T> {
    serde_json::from_str(std::str::from_utf8(line).ok()?).ok()
}

/// Says that a line was dropped.
pub(crate) fn too_long(out: &mut Vec<Action>) {
    let message = format!("the agent wrote a line of more than {MAX_MESSAGE_LINE} bytes: dropped");
    out.push(Action::Event(Event::error("line-too-long", message, false)));
}

/// Most of a line's beginning that is looked at, in bytes.
const MAX_HEAD: usize = 64 * 1024;
/// Most objects and arrays within each other there.
const MAX_NESTED: usize = 64;

/// What the beginning of a line says: the object that it begins, with those of its members that are whole. `null` if it begins
/// none.
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

/// A line that is not understood, in pieces that can be passed on.
pub(crate) fn log(line: &[u8], out: &mut Vec<Action>) {
    log_of("stdout", line, out);
}

/// The same of another stream.
pub(crate) fn log_of(stream: &str, line: &[u8], out: &mut Vec<Action>) {
    out.extend(line.chunks(MAX_LINE).map(|piece| {
        let text = String::from_utf8_lossy(piece).into_owned();
        Action::Event(Event::Log { stream: stream.to_owned(), text })
    }));
}

/// `value`, unless it is larger than can be passed on.
pub(crate) fn json(value: &Value) -> Json {
    let json = Json::from(value);
    let len = json.as_str().len();
    if len <= MAX_JSON { json } else { Json::from(&Value::from(format!("left out: {len} bytes"))) }
}

/// The same of a document that is not decoded; `null` where there is none.
pub(crate) fn bounded(raw: Option<&RawValue>) -> Json {
    raw.map_or_else(Json::null, |raw| document(raw.get()))
}

/// The same of one that is text; `null` where that is none.
pub(crate) fn document(text: &str) -> Json {
    if text.len() > MAX_JSON {
        return Json::from(&Value::from(format!("left out: {} bytes", text.len())));
    }
    Json::new(text).unwrap_or_else(|_| Json::null())
}

/// The beginning of `text`: at most [`MAX_WORDS`] characters.
pub(crate) fn words(text: &str) -> String {
    text.chars().take(MAX_WORDS).collect()
}

/// `text` in one line.
pub(crate) fn title(text: &str) -> String {
    let line = text.trim().lines().next().unwrap_or_default();
    let more = if text.trim().lines().nth(1).is_some() { " …" } else { "" };
    words(line.trim_end()) + more
}

/// The end of `text`: at most `max` bytes, from the beginning of a character on.
pub(crate) fn tail(text: &str, max: usize) -> &str {
    let from = text.len().saturating_sub(max);
    let from = (from..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    &text[from..]
}

/// `text`, or its end if it is longer than a tool's output can be.
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
