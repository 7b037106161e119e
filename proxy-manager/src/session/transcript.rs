//! A session's conversation as plain text, from its events.

use std::sync::Arc;

use ipc_protocol::{Envelope, Event, ToolStatus};

/// What stands for events that are no longer kept.
const MISSING: &str = "[What was said before this is no longer kept.]";

/// The conversation: what was asked, what was answered, and which tools were used, each in a paragraph.
///
/// ```text
/// User: fix the test
///
/// Assistant: I look at it first.
///
/// [tool: cargo test, failed]
/// ```
#[derive(Debug, Default)]
pub(crate) struct Transcript {
    paragraphs: Vec<String>,
    /// Whether the last paragraph is an answer that goes on.
    answering: bool,
    /// Tool calls in flight: id, and where in the paragraphs.
    tools: Vec<(String, usize)>,
}

impl Transcript {
    /// Adds an event.
    pub(crate) fn note(&mut self, event: &Event) {
        match event {
            Event::TurnStarted { prompt, attachments } => {
                let mut text = format!("User: {prompt}");
                for attachment in attachments {
                    text.push_str(&format!("\n[attached: {attachment}]"));
                }
                self.add(text);
            }
            Event::Text { text } => self.answer(text),
            Event::ToolStart(tool) => {
                let title = if tool.title.is_empty() { &tool.name } else { &tool.title };
                self.add(format!("[tool: {title}]"));
                self.tools.push((tool.id.clone(), self.paragraphs.len() - 1));
            }
            Event::ToolEnd(tool) if tool.status == ToolStatus::Failed => {
                if let Some(at) = self.tools.iter().position(|(id, _)| *id == tool.id) {
                    let (_, at) = self.tools.swap_remove(at);
                    let paragraph = &mut self.paragraphs[at];
                    paragraph.insert_str(paragraph.len() - 1, ", failed");
                }
            }
            Event::ToolEnd(tool) => self.tools.retain(|(id, _)| *id != tool.id),
            Event::SessionGap(_) => self.add(MISSING.to_owned()),
            Event::Complete { .. } | Event::SessionIdle {} => {
                self.answering = false;
                self.tools.clear();
            }
            _ => {}
        }
    }

    fn add(&mut self, paragraph: String) {
        self.paragraphs.push(paragraph);
        self.answering = false;
    }

    fn answer(&mut self, text: &str) {
        match self.paragraphs.last_mut().filter(|_| self.answering) {
            Some(last) => last.push_str(text),
            None => {
                self.add(format!("Assistant: {}", text.trim_start()));
                self.answering = true;
            }
        }
    }

    /// All of it, or its last `longest` bytes; empty where nothing was said.
    pub(crate) fn text(&self, longest: usize) -> String {
        let paragraphs: Vec<&str> = self.paragraphs.iter().map(|paragraph| paragraph.trim_end()).collect();
        let text = paragraphs.join("\n\n");
        if text.len() <= longest {
            return text;
        }
        let from = text.len() - longest.saturating_sub(MISSING.len() + 2);
        let from = text.ceil_char_boundary(from);
        format!("{MISSING}\n\n{}", &text[from..])
    }
}

impl<'a> FromIterator<&'a Arc<Envelope>> for Transcript {
    fn from_iter<I: IntoIterator<Item = &'a Arc<Envelope>>>(events: I) -> Self {
        let mut transcript = Self::default();
        events.into_iter().for_each(|envelope| transcript.note(&envelope.event));
        transcript
    }
}

#[cfg(test)]
mod tests {
    use ipc_protocol::{Gap, Json, StopReason, ToolEnd, ToolStart};

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
        let mut transcript = Transcript::default();
        events.iter().for_each(|event| transcript.note(event));
        transcript.text(1000)
    }

    #[test]
    fn a_conversation_reads_as_it_was_held() {
        let events = [
            Event::SessionGap(Gap { from: 1, to: 9 }),
            Event::TurnStarted { prompt: "fix it".into(), attachments: vec!["/a.png".into()] },
            Event::Thinking { text: "hm".into() },
            text("I look"),
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
}
