//! A session's events as running text: what was asked, said and done, as `logs` and `top` show it.

use ipc_protocol::{Event, ToolStatus};

use super::event::{detail, tool_status};
use crate::term::{TermStyle, clip, printable};

/// Longest line besides the agent's own text.
const WIDTH: usize = 160;

/// Formats events one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogText {
    style: TermStyle,
    /// True to make the agent's text safe for a terminal.
    is_safe: bool,
    /// What the last text belongs to.
    place: TextPlace,
}

/// Place within the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TextPlace {
    LineStart,
    Answer,
    Thinking,
}

impl LogText {
    pub(crate) fn new(style: TermStyle, is_safe: bool) -> Self {
        Self { style, is_safe, place: TextPlace::LineStart }
    }

    /// Formats an event; empty for one that is no part of the text.
    pub(crate) fn add(&mut self, event: &Event) -> String {
        match event {
            Event::Text { text } => self.running(text, TextPlace::Answer),
            Event::Thinking { text } => self.running(text, TextPlace::Thinking),
            Event::TurnStarted { prompt, .. } => {
                let prompt = printable(prompt, true).replace('\n', "\n  ");
                let line = self.style.bold(format_args!("> {prompt}"));
                format!("{}{line}\n", self.break_line())
            }
            Event::ToolStart(tool) => self.line("·", &format!("{} ({})", tool.title, tool.kind)),
            Event::ToolEnd(tool) if tool.status != ToolStatus::Completed => {
                self.line("·", &format!("{}: {} {}", tool.id, tool_status(tool.status), tool.output))
            }
            Event::PermissionRequested(_) => self.line("?", &detail(event)),
            Event::PermissionResolved { .. } => self.line("?", &detail(event)),
            Event::Error { .. }
            | Event::LimitExceeded(_)
            | Event::BudgetExceeded(_)
            | Event::TimeoutFired { .. }
            | Event::UsageLimited { .. }
            | Event::PermissionBypassed(_)
            | Event::ActionFailed { .. }
            | Event::SessionGap(_)
            | Event::SessionDegraded { .. }
            | Event::SessionLossy { .. } => {
                let line = self.line("!", &format!("{}: {}", event.kind(), detail(event)));
                self.style.yellow(line.trim_end_matches('\n')) + "\n"
            }
            Event::Log { text, .. } => self.line("|", text.trim_end()),
            Event::SessionEnded { .. } | Event::SessionSuspended { .. } | Event::SessionResumed { .. } => {
                self.line("=", &format!("{}: {}", event.kind(), detail(event)))
            }
            _ => String::new(),
        }
    }

    fn running(&mut self, text: &str, place: TextPlace) -> String {
        let begin = if self.place == place { "" } else { self.break_line() };
        let text = if self.is_safe { printable(text, true) } else { text.to_owned() };
        self.place = if text.ends_with('\n') { TextPlace::LineStart } else { place };
        if place == TextPlace::Thinking { format!("{begin}{}", self.style.dim(text)) } else { format!("{begin}{text}") }
    }

    fn line(&mut self, mark: &str, text: &str) -> String {
        let text = clip(&printable(text, false), WIDTH);
        format!("{}{}\n", self.break_line(), self.style.dim(format_args!("{mark} {text}")))
    }

    fn break_line(&mut self) -> &'static str {
        if std::mem::replace(&mut self.place, TextPlace::LineStart) == TextPlace::LineStart { "" } else { "\n" }
    }
}

#[cfg(test)]
mod tests {
    use ipc_protocol::EndReason;

    use super::*;

    #[test]
    fn a_turn_as_text() {
        let mut log = LogText::new(TermStyle::PLAIN, true);
        let text = |text: &str| Event::Text { text: text.into() };
        let events = [
            Event::SessionIdle {},
            Event::TurnStarted { prompt: "say\nhello".into(), attachments: Vec::new() },
            Event::Thinking { text: "hm".into() },
            text("hel"),
            text("lo\u{1b}"),
            Event::error("e-1", "broke", false),
            text("more\n"),
            Event::SessionEnded { reason: EndReason::Killed, receipt: None },
        ];
        let all: String = events.iter().map(|event| log.add(event)).collect();
        let expected = "> say\n  hello\nhm\nhello\\u{1b}\n! stream:error: e-1: broke\nmore\n= session:ended: killed\n";
        assert_eq!(all, expected);
    }

    #[test]
    fn another_program_gets_bytes_as_they_are() {
        let mut log = LogText::new(TermStyle::PLAIN, false);
        assert_eq!(log.add(&Event::Text { text: "\u{1b}[31m".into() }), "\u{1b}[31m");
    }
}
