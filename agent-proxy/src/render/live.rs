//! Live output of a turn: the answer on standard output, everything else in short lines on standard error.

use std::{
    collections::HashMap,
    io::{self, IsTerminal},
};

use proxy_manager::{Event, ToolStatus};

use super::event::{detail, output_size};
use crate::{
    problem::Failure,
    term::{self, Style, clip, printable},
};

/// Longest line besides the answer.
const WIDTH: usize = 100;

/// Writes events as they come.
#[derive(Debug)]
pub(crate) struct Live {
    out_is_terminal: bool,
    /// True if both streams go to one terminal: a line on one must not begin within a line of the other.
    shared: bool,
    style: Style,
    place: Place,
    /// Titles of the running tool calls.
    tools: HashMap<String, String>,
}

/// Assumed place of the cursor.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    LineStart,
    InAnswer,
    InThinking,
}

impl Live {
    /// Creates the output for this process's standard streams.
    pub(crate) fn new() -> Self {
        let out_is_terminal = io::stdout().is_terminal();
        Self {
            out_is_terminal,
            shared: out_is_terminal && io::stderr().is_terminal(),
            style: Style::stderr(),
            place: Place::LineStart,
            tools: HashMap::new(),
        }
    }

    /// Writes the relevant part of an event.
    ///
    /// # Errors
    /// Same as [`term::out`].
    pub(crate) fn event(&mut self, event: &Event) -> Result<(), Failure> {
        match event {
            Event::Text { text } => return self.text(text),
            Event::Thinking { text } => self.thinking(text),
            Event::ToolStart(tool) => {
                self.tools.insert(tool.id.clone(), tool.title.clone());
                self.note("*", &tool.title);
            }
            Event::ToolEnd(tool) => {
                let title = self.tools.remove(&tool.id).unwrap_or_default();
                let mark = if tool.status == ToolStatus::Failed { "x" } else { "=" };
                self.note(mark, &format!("{title}: {}", output_size(&tool.output)));
            }
            Event::PermissionRequested(request) => {
                self.note("?", &format!("permission {}: {}", request.id, request.title))
            }
            Event::PermissionResolved { option, .. } => {
                self.note("?", &format!("answered: {}", option.as_deref().unwrap_or("cancelled")));
            }
            Event::Plan { .. } => self.note("-", &format!("plan: {}", detail(event))),
            Event::Error { .. } | Event::ActionFailed { .. } | Event::SessionGap(_) | Event::Log { .. } => {
                self.note("!", &detail(event))
            }
            Event::TimeoutFired { .. } => self.note("!", &format!("clock: {}", detail(event))),
            Event::Voided { .. } => {
                self.note("!", "the answer broke off: what was said of it is void, and comes again")
            }
            Event::UsageLimited { .. } => self.note("!", &format!("usage limit: {}", detail(event))),
            Event::LimitExceeded(_) => self.note("!", &format!("limit: {}", detail(event))),
            Event::PermissionBypassed(_) => self.note("!", &detail(event)),
            Event::BudgetExceeded(passed) => self.note("!", &format!("budget used up: {passed}")),
            _ => {}
        }
        Ok(())
    }

    fn text(&mut self, text: &str) -> Result<(), Failure> {
        if self.place == Place::InThinking {
            self.line_start();
        }
        // Bytes for another program stay unchanged.
        term::out(if self.out_is_terminal { printable(text, true) } else { text.to_owned() })?;
        if !text.is_empty() {
            self.place = if text.ends_with('\n') { Place::LineStart } else { Place::InAnswer };
        }
        Ok(())
    }

    fn thinking(&mut self, text: &str) {
        if self.place == Place::InAnswer {
            self.line_start();
        }
        term::part(self.style.dim(printable(text, true)));
        if !text.is_empty() {
            self.place = if text.ends_with('\n') { Place::LineStart } else { Place::InThinking };
        }
    }

    /// Writes a line to standard error.
    fn note(&mut self, mark: &str, text: &str) {
        self.line_start();
        let text = clip(printable(text.trim_end(), false).as_str(), WIDTH);
        term::note(self.style.dim(format_args!("{mark} {text}")));
    }

    /// Ends an unfinished line, if the next one would follow it on the same terminal line.
    pub(crate) fn line_start(&mut self) {
        if self.place == Place::InThinking || (self.shared && self.place == Place::InAnswer) {
            term::note("");
        }
        // An answer in a file continues after lines written elsewhere.
        if self.shared || self.place == Place::InThinking {
            self.place = Place::LineStart;
        }
    }

    /// Ends the answer with a newline.
    ///
    /// # Errors
    /// Same as [`term::out`].
    pub(crate) fn finish(&mut self) -> Result<(), Failure> {
        let place = std::mem::replace(&mut self.place, Place::LineStart);
        match place {
            Place::InAnswer => term::out("\n"),
            Place::InThinking => {
                term::note("");
                Ok(())
            }
            Place::LineStart => Ok(()),
        }
    }
}
