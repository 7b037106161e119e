//! Conversation file of Claude Code, which grows while its screen is used. It has what no hook reports: tokens, the result of a call that was
//! refused on the screen, and the end of a turn.
//!
//! The file is read from its end on: what it has already belongs to earlier turns. A fork copies those behind that, so tokens count
//! from the first prompt on that a hook has reported.

use std::{
    path::{Component, Path},
    time::{Duration, Instant},
};

use ipc_protocol::Usage;
use serde::Deserialize;
use serde_json::Value;

use crate::{Action, LineSplitter};

/// Pause between two looks at the file.
const POLL: Duration = Duration::from_millis(100);
/// Looks after which the end of a turn is not awaited any more.
const POLLS: u32 = 20;
/// Most pieces that are read at once: the proxy has other work.
const PIECES: u32 = 16;
/// Beginning of a message about a turn that was interrupted.
const INTERRUPTED: &str = "[Request interrupted by user";

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
enum FileLine {
    #[serde(rename_all = "camelCase")]
    User {
        prompt_id: Option<String>,
        message: UserMessage,
    },
    Assistant {
        message: ModelMessage,
    },
    System {
        subtype: Option<String>,
    },
    #[serde(other)]
    Other,
}

#[derive(Debug, Deserialize)]
struct UserMessage {
    #[serde(default)]
    content: Value,
}

#[derive(Debug, Deserialize)]
struct ModelMessage {
    id: Option<String>,
    usage: Option<MessageTokens>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct MessageTokens {
    input_tokens: u64,
    output_tokens: u64,
    cache_read_input_tokens: u64,
    cache_creation_input_tokens: u64,
}

impl MessageTokens {
    fn plus(self, other: Self) -> Self {
        Self {
            input_tokens: self.input_tokens.saturating_add(other.input_tokens),
            output_tokens: self.output_tokens.saturating_add(other.output_tokens),
            cache_read_input_tokens: self.cache_read_input_tokens.saturating_add(other.cache_read_input_tokens),
            cache_creation_input_tokens: self
                .cache_creation_input_tokens
                .saturating_add(other.cache_creation_input_tokens),
        }
    }
}

/// Fact of a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FileFact {
    /// A call has this result.
    Result { call: String, is_error: bool, output: String },
    /// The turn has ended.
    TurnEnded,
    /// The turn was interrupted.
    Interrupted,
}

/// File of the conversation, as far as it was read.
#[derive(Debug)]
pub(super) struct ScreenTranscript {
    /// Directories of conversations.
    roots: Vec<String>,
    path: Option<String>,
    /// Place of the next read; `None` for the end.
    offset: Option<u64>,
    lines: LineSplitter,
    /// Pieces that may still be read now.
    pieces: u32,
    /// Prompt that the hooks reported last.
    prompt: Option<String>,
    /// Prompt of the lines that are read.
    line_prompt: Option<String>,
    /// True if lines belong to prompts of this screen.
    is_current: bool,
    /// Tokens of the messages before the last one.
    earlier: MessageTokens,
    /// Last message, which may have several lines.
    message: (Option<String>, MessageTokens),
    reported: MessageTokens,
    /// Looks that are left, and the time of the next one.
    polls: u32,
    due: Option<Instant>,
}

impl ScreenTranscript {
    /// Makes the reader of an agent whose conversations are in one of the directories `roots`.
    pub(super) fn new(roots: Vec<String>) -> Self {
        Self {
            roots,
            path: None,
            offset: None,
            lines: LineSplitter::default(),
            pieces: 0,
            prompt: None,
            line_prompt: None,
            is_current: false,
            earlier: MessageTokens::default(),
            message: (None, MessageTokens::default()),
            reported: MessageTokens::default(),
            polls: 0,
            due: None,
        }
    }

    /// Returns true if there is a file to read.
    pub(super) fn is_known(&self) -> bool {
        self.path.is_some()
    }

    /// Takes what a report says of the file, and of the prompt.
    pub(super) fn note(&mut self, session: &str, path: Option<&str>, prompt: Option<&str>, out: &mut Vec<Action>) {
        if let Some(prompt) = prompt {
            self.prompt = Some(prompt.to_owned());
        }
        // Reports may come from anybody in the session: nothing but a conversation is read.
        let Some(path) = path.filter(|path| self.is_conversation(path, session)) else { return };
        if self.path.as_deref() != Some(path) {
            self.path = Some(path.to_owned());
            (self.offset, self.lines, self.is_current) = (None, LineSplitter::default(), false);
            self.read(out);
        }
    }

    fn is_conversation(&self, path: &str, session: &str) -> bool {
        let is_plain =
            Path::new(path).components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
        let is_inside = self.roots.iter().any(|root| Path::new(path).starts_with(Path::new(root).join("projects")));
        is_plain && is_inside && path.ends_with(&format!("/{session}.jsonl"))
    }

    /// Reads on.
    pub(super) fn read(&mut self, out: &mut Vec<Action>) {
        self.pieces = PIECES;
        self.read_piece(out);
    }

    /// Reads the next piece, if there may be one.
    pub(super) fn read_piece(&mut self, out: &mut Vec<Action>) {
        let Some(pieces) = self.pieces.checked_sub(1) else { return };
        self.pieces = pieces;
        if let Some(path) = &self.path {
            out.push(Action::ReadFile { path: path.clone(), offset: self.offset });
        }
    }

    /// Takes what was read. Returns the facts in it.
    pub(super) fn take(&mut self, next: u64, bytes: &[u8]) -> Vec<FileFact> {
        self.offset = Some(next);
        let mut facts = Vec::new();
        let mut lines = std::mem::take(&mut self.lines);
        lines.push(bytes, |line| self.take_line(line, &mut facts));
        self.lines = lines;
        facts
    }

    fn take_line(&mut self, line: &[u8], facts: &mut Vec<FileFact>) {
        // Lines of other types are many, and of other forms.
        let Ok(line) = serde_json::from_slice(line) else { return };
        match line {
            FileLine::User { prompt_id, message } => {
                self.line_prompt = prompt_id.or(self.line_prompt.take());
                self.is_current |= self.is_at_prompt();
                let blocks = message.content.as_array().map(Vec::as_slice).unwrap_or_default();
                let is_past = |fact: &FileFact| *fact == FileFact::Interrupted && !self.is_at_prompt();
                facts.extend(blocks.iter().filter_map(fact_of_block).filter(|fact| !is_past(fact)));
            }
            FileLine::Assistant { message: ModelMessage { id, usage: Some(tokens) } } if self.is_current => {
                if self.message.0 != id {
                    let (_, last) = std::mem::replace(&mut self.message, (id, MessageTokens::default()));
                    self.earlier = self.earlier.plus(last);
                }
                self.message.1 = tokens;
            }
            FileLine::System { subtype } if subtype.as_deref() == Some("turn_duration") && self.is_at_prompt() => {
                facts.push(FileFact::TurnEnded);
            }
            FileLine::Assistant { .. } | FileLine::System { .. } | FileLine::Other => {}
        }
    }

    /// Returns true if the lines are those of the latest prompt. The end of a turn may be written after the next has begun.
    fn is_at_prompt(&self) -> bool {
        self.prompt.is_some() && self.line_prompt == self.prompt
    }

    /// Returns the tokens since the screen began, if they have changed.
    pub(super) fn usage(&mut self) -> Option<Usage> {
        let sum = self.earlier.plus(self.message.1);
        let is_new = std::mem::replace(&mut self.reported, sum) != sum;
        let usage = Usage {
            input_tokens: Some(sum.input_tokens),
            output_tokens: Some(sum.output_tokens),
            cache_read_tokens: Some(sum.cache_read_input_tokens),
            cache_write_tokens: Some(sum.cache_creation_input_tokens),
            ..Usage::default()
        };
        is_new.then(|| usage.with_cache_in_input())
    }

    /// Looks at the file until the turn's end is in it, for a while.
    pub(super) fn await_end(&mut self) {
        if self.polls == 0 {
            (self.polls, self.due) = (POLLS, None);
        }
    }

    /// Stops that.
    pub(super) fn stop(&mut self) {
        (self.polls, self.due) = (0, None);
    }

    /// Looks at the file if it is time. Returns the time of the next look, and whether there is none left.
    pub(super) fn tick(&mut self, now: Instant, out: &mut Vec<Action>) -> (Option<Instant>, bool) {
        if self.polls == 0 {
            return (None, false);
        }
        if self.due.is_some_and(|due| due <= now) {
            self.polls -= 1;
            if self.polls == 0 {
                self.due = None;
                return (None, true);
            }
            self.read(out);
            self.due = None;
        }
        (Some(*self.due.get_or_insert(now + POLL)), false)
    }
}

fn fact_of_block(block: &Value) -> Option<FileFact> {
    let text = |name: &str| block.get(name).and_then(Value::as_str);
    match text("type")? {
        "tool_result" => {
            let is_error = block.get("is_error").and_then(Value::as_bool).unwrap_or_default();
            let output = match block.get("content") {
                Some(Value::String(text)) => text.clone(),
                Some(Value::Array(parts)) => parts.iter().filter_map(|part| part.get("text")?.as_str()).collect(),
                _ => String::new(),
            };
            Some(FileFact::Result { call: text("tool_use_id")?.to_owned(), is_error, output })
        }
        "text" if text("text")?.starts_with(INTERRUPTED) => Some(FileFact::Interrupted),
        _ => None,
    }
}
