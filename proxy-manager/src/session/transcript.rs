//! A session's conversation as plain text, from its events.

use std::collections::VecDeque;

use ipc_protocol::{Event, ToolStatus};

/// Marker for events that are no longer retained.
const MISSING: &str = "[What was said before this is no longer kept.]";

/// Builds the conversation: prompts, answers and names of tools used, each in a paragraph.
///
/// ```text
/// User: fix the test
///
/// Assistant: I look at it first.
///
/// [tool: cargo test, failed]
/// ```
/// The end of a long conversation is retained. Memory is bounded by twice the limit, however long the events are.
#[derive(Debug)]
pub(crate) struct TranscriptWriter {
    /// Limit of the text in bytes.
    max_bytes: usize,
    paragraphs: VecDeque<String>,
    bytes: usize,
    /// Paragraphs that were dropped before these.
    omitted: usize,
    /// True if anything was dropped.
    is_cut: bool,
    /// True if the last paragraph is an answer that may continue.
    is_in_answer: bool,
    /// Tool calls in flight: id, and number of the paragraph.
    tools: Vec<(String, usize)>,
}

impl TranscriptWriter {
    /// Creates a transcript of the last `longest` bytes.
    pub(crate) fn new(max_bytes: usize) -> Self {
        let (paragraphs, tools) = Default::default();
        Self { max_bytes, paragraphs, bytes: 0, omitted: 0, is_cut: false, is_in_answer: false, tools }
    }

    /// Adds an event.
    pub(crate) fn record(&mut self, event: &Event) {
        match event {
            Event::TurnStarted { prompt, attachments } => {
                let mut text = format!("User: {prompt}");
                for attachment in attachments {
                    text.push_str(&format!("\n[attached: {attachment}]"));
                }
                self.add(text);
            }
            Event::Text { text } => self.answer(text),
            Event::Voided { text_bytes, .. } => self.void(*text_bytes),
            Event::ToolStart(tool) => {
                let title = if tool.title.is_empty() { &tool.name } else { &tool.title };
                self.add(format!("[tool: {title}]"));
                self.tools.push((tool.id.clone(), self.omitted + self.paragraphs.len() - 1));
            }
            Event::ToolEnd(tool) if tool.status == ToolStatus::Failed => {
                if let Some(at) = self.tools.iter().position(|(id, _)| *id == tool.id) {
                    let (_, at) = self.tools.swap_remove(at);
                    let paragraph = at.checked_sub(self.omitted).and_then(|at| self.paragraphs.get_mut(at));
                    if let Some(paragraph) = paragraph {
                        const FAILED: &str = ", failed";
                        paragraph.insert_str(paragraph.len().saturating_sub(1), FAILED);
                        self.bytes += FAILED.len();
                    }
                }
            }
            Event::ToolEnd(tool) => self.tools.retain(|(id, _)| *id != tool.id),
            Event::SessionGap(_) => self.add(MISSING.to_owned()),
            Event::Complete { .. } | Event::SessionIdle {} => {
                self.is_in_answer = false;
                self.tools.clear();
            }
            _ => {}
        }
    }

    fn add(&mut self, paragraph: String) {
        self.bytes += paragraph.len();
        self.paragraphs.push_back(paragraph);
        self.is_in_answer = false;
        self.shorten();
    }

    fn answer(&mut self, text: &str) {
        match self.paragraphs.back_mut().filter(|_| self.is_in_answer) {
            Some(last) => {
                last.push_str(text);
                self.bytes += text.len();
                self.shorten();
            }
            None => {
                self.add(format!("Assistant: {}", text.trim_start()));
                self.is_in_answer = true;
            }
        }
    }

    /// Takes back the end of the last answer, which is said again. What is of an answer before that stays.
    fn void(&mut self, bytes: u64) {
        const SPEAKER: &str = "Assistant: ";
        let Some(last) = self.paragraphs.back_mut().filter(|last| self.is_in_answer && last.starts_with(SPEAKER))
        else {
            return;
        };
        let before = last.len();
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        last.truncate(last.floor_char_boundary(before.saturating_sub(bytes).max(SPEAKER.len())));
        self.bytes -= before - last.len();
        if last.len() == SPEAKER.len() {
            self.bytes -= SPEAKER.len();
            self.paragraphs.pop_back();
            self.is_in_answer = false;
        }
    }

    /// Leaves out what is too much at the front, not each time.
    fn shorten(&mut self) {
        if self.bytes <= self.max_bytes.saturating_mul(2) {
            return;
        }
        self.is_cut = true;
        while let Some(first) = self.paragraphs.front_mut() {
            let surplus = self.bytes - self.max_bytes;
            if first.len() > surplus {
                let from = first.floor_char_boundary(surplus);
                self.bytes -= from;
                first.drain(..from);
                break;
            }
            self.bytes -= first.len();
            self.paragraphs.pop_front();
            self.omitted += 1;
        }
        let left_out = self.omitted;
        self.tools.retain(|(_, at)| *at >= left_out);
    }

    /// Returns the text, or its last bytes; empty if nothing was said.
    pub(crate) fn text(&self) -> String {
        let paragraphs: Vec<&str> = self.paragraphs.iter().map(|paragraph| paragraph.trim_end()).collect();
        let text = paragraphs.join("\n\n");
        if text.len() <= self.max_bytes && !self.is_cut {
            return text;
        }
        let from = text.len().saturating_sub(self.max_bytes.saturating_sub(MISSING.len() + 2));
        let from = text.ceil_char_boundary(from);
        format!("{MISSING}\n\n{}", &text[from..])
    }
}

#[cfg(test)]
mod tests {
    use ipc_protocol::{Json, OffsetGap, StopReason, ToolEnd, ToolStart};

    use super::*;

    fn text(text: &str) -> Event {
        Event::Text { text: text.into() }
    }

    fn tool(id: &str, title: &str) -> Event {
        Event::ToolStart(Box::new(ToolStart {
            id: id.into(),
            name: "shell".into(),
            title: title.into(),
            kind: "execute".into(),
            input: Json::null(),
            status: ToolStatus::InProgress,
            parent: None,
        }))
    }

    fn end(id: &str, status: ToolStatus) -> Event {
        Event::ToolEnd(Box::new(ToolEnd { id: id.into(), status, output: "a lot".into() }))
    }

    fn transcript(events: &[Event]) -> String {
        let mut transcript = TranscriptWriter::new(1000);
        events.iter().for_each(|event| transcript.record(event));
        transcript.text()
    }

    #[test]
    fn a_conversation_reads_as_it_was_held() {
        let events = [
            Event::SessionGap(OffsetGap { from: 1, to: 9 }),
            Event::TurnStarted { prompt: "fix it".into(), attachments: vec!["/a.png".into()] },
            Event::Thinking { text: "hm".into() },
            text("I l"),
            Event::Voided { text_bytes: 3, thinking_bytes: 2 },
            text("I look"),
            text(" at"),
            Event::Voided { text_bytes: 3, thinking_bytes: 0 },
            text(" at it.\n"),
            tool("1", "cargo test"),
            tool("2", ""),
            end("1", ToolStatus::Failed),
            end("2", ToolStatus::Completed),
            text("Done."),
            Event::Complete { stop_reason: StopReason::EndTurn, usage: None },
            Event::SessionIdle {},
            text("By the way."),
        ];
        let expected = format!(
            "{MISSING}\n\nUser: fix it\n[attached: /a.png]\n\nAssistant: I look at it.\n\n[tool: cargo test, failed]\n\n\
             [tool: shell]\n\nAssistant: Done.\n\nAssistant: By the way."
        );
        assert_eq!(transcript(&events), expected);
        assert_eq!(transcript(&[Event::SessionIdle {}]), "");
        let long = transcript(&[text(&"ü".repeat(1000))]);
        assert!(long.starts_with(MISSING) && long.len() <= 1000 && long.len() > 990, "{}", long.len());
    }

    #[test]
    fn a_long_one_takes_no_more_than_its_end() {
        let mut transcript = TranscriptWriter::new(1000);
        for turn in 0..10_000 {
            transcript.record(&Event::TurnStarted { prompt: format!("prompt {turn}"), attachments: Vec::new() });
            transcript.record(&tool("1", "cargo test"));
            transcript.record(&text(&"ü".repeat(100)));
            transcript.record(&text("."));
            assert!(transcript.paragraphs.iter().map(String::len).sum::<usize>() <= 2000);
            transcript.record(&end("1", ToolStatus::Failed));
            assert_eq!(transcript.paragraphs.iter().map(String::len).sum::<usize>(), transcript.bytes);
        }
        let last = transcript.text();
        assert!(last.starts_with(MISSING) && last.len() <= 1000 && last.len() > 900, "{}", last.len());
        assert!(last.contains("prompt 9999\n\n[tool: cargo test, failed]") && last.ends_with("ü."), "{last}");
        // One paragraph is no longer than that either, and a tool call that was left out may end.
        transcript.record(&tool("2", "cargo test"));
        transcript.record(&text(&"ü".repeat(10_000)));
        transcript.record(&end("2", ToolStatus::Failed));
        assert!(transcript.bytes <= 2000 && transcript.text().len() <= 1000);
    }
}
