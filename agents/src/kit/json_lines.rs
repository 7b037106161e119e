//! The driver of an agent that speaks JSON lines: one message a line, in both directions.
//!
//! It splits the agent's output, however the bytes arrive, and passes whole lines to the adapter ([`JsonLinesAgent`]): first to
//! [`JsonLinesAgent::delta`], the hot path, which decodes a piece of text and nothing else; then to [`JsonLinesAgent::message`].
//! A line that neither understands becomes a `log` event, so that nothing is lost. A line of more than [`MAX_MESSAGE_LINE`] bytes is
//! dropped with an error event; [`JsonLinesAgent::oversized`] gets what could be parsed of its beginning, so that nothing waits for
//! its contents for ever. (The agent's raw lines are events too, where a session asks for them: the proxy emits those itself.)

use ipc_protocol::{Event, WireError};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    answer::OpenAnswer,
    lines::{LineSplitter, MAX_LINE},
    stderr_line,
};
use crate::Action;

/// Longest line that is accepted as a message, in bytes. A longer line is dropped, with an error event.
pub(crate) const MAX_MESSAGE_LINE: usize = 8 * 1024 * 1024;

/// Adapter of an agent that speaks JSON lines. The `read_…` methods are for its [`Adapter`](crate::Adapter) implementation; it writes
/// the others.
pub(crate) trait JsonLinesAgent {
    /// Stream that lines belong to which are no messages, in their `log` events.
    const STREAM: &str = "stdout";

    /// The agent's output so far.
    fn output(&mut self) -> &mut AgentOutput;

    /// The model's answer that is in progress, which counts the text of each line.
    fn open_answer(&mut self) -> &mut OpenAnswer {
        &mut self.output().answer
    }

    /// Handles a line of the hot path: a piece of the model's text. Returns `false` for every other line.
    fn delta(&mut self, line: &[u8], out: &mut Vec<Action>) -> bool;

    /// Handles a line. Returns whether it was understood.
    fn message(&mut self, line: &[u8], out: &mut Vec<Action>) -> bool;

    /// Handles a line that was dropped because of its length: `head` has the complete members at its beginning, or is `null`. Nothing
    /// may go on waiting for the contents of that line.
    fn oversized(&mut self, head: Value, out: &mut Vec<Action>);

    /// Returns the part of a line's beginning that is JSON.
    fn json_of<'a>(&self, beginning: &'a [u8]) -> &'a [u8] {
        beginning
    }

    /// Handles a line of standard error.
    fn stderr_line(&mut self, line: &[u8], out: &mut Vec<Action>) {
        out.push(stderr_line(line));
    }

    /// Reads bytes of the agent's messages.
    fn read_messages(&mut self, bytes: &[u8], out: &mut Vec<Action>) {
        let mut messages = std::mem::take(&mut self.output().messages);
        messages.push(bytes, |line| match line {
            SplitLine::Whole(line) => self.read_line(line, out),
            SplitLine::TooLong(beginning) => {
                let message = format!("the agent wrote a line of more than {MAX_MESSAGE_LINE} bytes: dropped");
                out.push(Action::Event(Event::error("line-too-long", message, false)));
                self.oversized(head(self.json_of(beginning)), out);
            }
        });
        self.output().messages = messages;
    }

    /// Reads bytes of the agent's standard error.
    fn read_stderr(&mut self, bytes: &[u8], out: &mut Vec<Action>) {
        let mut lines = std::mem::take(&mut self.output().stderr);
        lines.push(bytes, |line| self.stderr_line(line, out));
        self.output().stderr = lines;
    }

    /// Reads what is left when the agent has ended: last lines without their newlines.
    fn read_rest(&mut self, out: &mut Vec<Action>) {
        let messages = std::mem::take(&mut self.output().messages);
        messages.finish(|line| self.read_line(line, out));
        let mut stderr = std::mem::take(&mut self.output().stderr);
        stderr.finish(|line| self.stderr_line(line, out));
    }

    /// Reads a whole line, and counts its text as part of the model's answer.
    fn read_line(&mut self, line: &[u8], out: &mut Vec<Action>) {
        let before = out.len();
        if !self.delta(line, out) && !line.trim_ascii().is_empty() && !self.message(line, out) {
            log(Self::STREAM, line, out);
        }
        self.open_answer().count(&out[before..]);
    }
}

/// Output of an agent: what is half received of its messages and its standard error, and the model's answer in progress.
#[derive(Debug, Default)]
pub(crate) struct AgentOutput {
    messages: MessageLines,
    stderr: LineSplitter,
    pub(crate) answer: OpenAnswer,
}

impl AgentOutput {
    /// Drops an incomplete message: the stream of messages begins anew.
    pub(crate) fn drop_incomplete(&mut self) {
        self.messages = MessageLines::default();
    }
}

/// Result of splitting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SplitLine<'a> {
    /// Complete line with its newline, or the last line without one.
    Whole(&'a [u8]),
    /// Beginning of a line that was too long. The rest of the line is dropped.
    TooLong(&'a [u8]),
}

/// Splitter of an agent's output into messages.
#[derive(Debug)]
struct MessageLines {
    lines: LineSplitter,
    dropping: bool,
}

impl Default for MessageLines {
    fn default() -> Self {
        Self { lines: LineSplitter::with_limit(MAX_MESSAGE_LINE), dropping: false }
    }
}

impl MessageLines {
    /// Adds `bytes` and calls `take` for each line that they complete.
    fn push(&mut self, bytes: &[u8], mut take: impl FnMut(SplitLine<'_>)) {
        let Self { lines, dropping } = self;
        lines.push(bytes, |line| {
            let whole = line.ends_with(b"\n");
            if *dropping {
                *dropping = !whole;
            } else if whole {
                take(SplitLine::Whole(line));
            } else {
                *dropping = true;
                take(SplitLine::TooLong(line));
            }
        });
    }

    /// Calls `take` with the rest: a last line without its newline.
    fn finish(mut self, take: impl FnOnce(&[u8])) {
        self.lines.finish(|line| {
            if !self.dropping {
                take(line);
            }
        });
    }
}

/// Decodes a line of the hot path, if it is one. Checking UTF-8 for the complete line is faster than checking each string.
pub(crate) fn hot<'a, T: Deserialize<'a>>(line: &'a [u8]) -> Option<T> {
    serde_json::from_str(std::str::from_utf8(line).ok()?).ok()
}

/// Most bytes of a line's beginning that are parsed.
const MAX_HEAD: usize = 64 * 1024;
/// Deepest nesting of objects and arrays that is parsed.
const MAX_NESTED: usize = 64;

/// Parses the beginning of a line: the object at its start, with its complete members. Returns `null` if the line starts with no
/// object.
fn head(beginning: &[u8]) -> Value {
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

/// Emits a line of `stream` that was not understood, in pieces of bounded length.
pub(crate) fn log(stream: &str, line: &[u8], out: &mut Vec<Action>) {
    out.extend(line.chunks(MAX_LINE).map(|piece| {
        let text = String::from_utf8_lossy(piece).into_owned();
        Action::Event(Event::Log { stream: stream.to_owned(), text })
    }));
}

/// Writes `message` to the agent as a line.
pub(crate) fn write_line(message: &impl Serialize, out: &mut Vec<Action>) {
    match serde_json::to_vec(message) {
        Ok(mut line) => {
            line.push(b'\n');
            out.push(Action::Write(line));
        }
        // Our types with string keys always serialize. If one did not, its answer would be awaited for ever.
        Err(error) => out.push(Action::Fail(WireError::Protocol { reason: format!("unwritable message: {error}") })),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_line_that_is_too_long_is_said_once_and_dropped() {
        let mut lines = MessageLines { lines: LineSplitter::with_limit(4), dropping: false };
        let mut seen = Vec::new();
        lines.push(b"ab\nabcdefghijk\nxy\nz", |line| {
            seen.push(match line {
                SplitLine::Whole(line) => (true, line.to_vec()),
                SplitLine::TooLong(line) => (false, line.to_vec()),
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
}
