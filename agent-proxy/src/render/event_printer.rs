//! Live output of a turn: the answer on standard output, everything else in short lines on standard error.

use std::{
    collections::HashMap,
    io::{self, IsTerminal},
};

use proxy_manager::{Event, ToolStatus};

use super::event::{detail, output_size};
use crate::{
    problem::CommandFailure,
    term::{self, TermStyle, clip, printable},
};

/// Longest line besides the answer.
const WIDTH: usize = 100;

/// Writes events as they come.
#[derive(Debug)]
pub(crate) struct EventPrinter {
    out_is_terminal: bool,
    /// True if both streams go to one terminal: a line on one must not begin within a line of the other.
    shared: bool,
    style: TermStyle,
    place: CursorPosition,
    /// Titles of the running tool calls.
    tools: HashMap<String, String>,
}

/// Assumed place of the cursor.
#[derive(Clone, Copy, Debug, PartialEq)]
enum CursorPosition {
    LineStart,
    InAnswer,
    InThinking,
}

impl EventPrinter {
    /// Creates the output for this process's standard streams.
    pub(crate) fn new() -> Self {
        let out_is_terminal = io::stdout().is_terminal();
        Self {
            out_is_terminal,
            shared: out_is_terminal && io::stderr().is_terminal(),
            style: TermStyle::stderr(),
            place: CursorPosition::LineStart,
            tools: HashMap::new(),
        }
    }

    /// Writes the relevant part of an event.
    ///
    /// # Errors
    /// Same as [`term::out`].
    pub(crate) fn event(&mut self, event: &Event) -> Result<(), CommandFailure> {
        match event {
            Event::Text { text } => return self.text(text),
            Event::Thinking { text } => self.thinking(text),
            Event::ToolStart(tool) => {
                self.tools.insert(tool.id.clone(), tool.title.clone());
                self.print_note("*", &tool.title);
            }
            Event::ToolEnd(tool) => {
                let title = self.tools.remove(&tool.id).unwrap_or_default();
                let mark = if tool.status == ToolStatus::Failed { "x" } else { "=" };
                self.print_note(mark, &format!("{title}: {}", output_size(&tool.output)));
            }
            Event::PermissionRequested(request) => {
                self.print_note("?", &format!("permission {}: {}", request.id, request.title))
            }
            Event::PermissionResolved { option, .. } => {
                self.print_note("?", &format!("answered: {}", option.as_deref().unwrap_or("cancelled")));
            }
            Event::Plan { .. } => self.print_note("-", &format!("plan: {}", detail(event))),
            Event::Error { .. } | Event::ActionFailed { .. } | Event::SessionGap(_) | Event::Log { .. } => {
                self.print_note("!", &detail(event))
            }
            Event::TimeoutFired { .. } => self.print_note("!", &format!("clock: {}", detail(event))),
            Event::Voided { .. } => {
                self.print_note("!", "the answer broke off: what was said of it is void, and comes again")
            }
            Event::UsageLimited { .. } => self.print_note("!", &format!("usage limit: {}", detail(event))),
            Event::LimitExceeded(_) => self.print_note("!", &format!("limit: {}", detail(event))),
            Event::PermissionBypassed(_) => self.print_note("!", &detail(event)),
            Event::BudgetExceeded(passed) => self.print_note("!", &format!("budget used up: {passed}")),
            _ => {}
        }
        Ok(())
    }

    fn text(&mut self, text: &str) -> Result<(), CommandFailure> {
        if self.place == CursorPosition::InThinking {
            self.line_start();
        }
        // Bytes for another program stay unchanged.
        term::out(if self.out_is_terminal { printable(text, true) } else { text.to_owned() })?;
        if !text.is_empty() {
            self.place = if text.ends_with('\n') { CursorPosition::LineStart } else { CursorPosition::InAnswer };
        }
        Ok(())
    }

    fn thinking(&mut self, text: &str) {
        if self.place == CursorPosition::InAnswer {
            self.line_start();
        }
        term::error_text(self.style.dim(printable(text, true)));
        if !text.is_empty() {
            self.place = if text.ends_with('\n') { CursorPosition::LineStart } else { CursorPosition::InThinking };
        }
    }

    /// Writes a line to standard error.
    fn print_note(&mut self, mark: &str, text: &str) {
        self.line_start();
        let text = clip(printable(text.trim_end(), false).as_str(), WIDTH);
        term::error_line(self.style.dim(format_args!("{mark} {text}")));
    }

    /// Ends an unfinished line, if the next one would follow it on the same terminal line.
    pub(crate) fn line_start(&mut self) {
        if self.place == CursorPosition::InThinking || (self.shared && self.place == CursorPosition::InAnswer) {
            term::error_line("");
        }
        // An answer in a file continues after lines written elsewhere.
        if self.shared || self.place == CursorPosition::InThinking {
            self.place = CursorPosition::LineStart;
        }
    }

    /// Ends the answer with a newline.
    ///
    /// # Errors
    /// Same as [`term::out`].
    pub(crate) fn finish(&mut self) -> Result<(), CommandFailure> {
        let place = std::mem::replace(&mut self.place, CursorPosition::LineStart);
        match place {
            CursorPosition::InAnswer => term::out("\n"),
            CursorPosition::InThinking => {
                term::error_line("");
                Ok(())
            }
            CursorPosition::LineStart => Ok(()),
        }
    }
}
