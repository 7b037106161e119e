//! Lines below the output of a turn: the tool calls that run, and a spinner. They are drawn on standard error, and
//! only on a terminal.
//!
//! The terminal echoes nothing while the lines are there: an echoed Enter would leave copies of them. What is typed is
//! for the next prompt. (The crate `indicatif` leaves the echo on, and fills its last line: a Ctrl-C wraps it.)

use std::{
    io::{self, IsTerminal},
    time::{Duration, Instant},
};

use ipc_protocol::{Event, PermissionRequest};
use unicode_width::UnicodeWidthChar;

use crate::term::{self, TermStyle, printable};

/// Time between two pictures of the spinner.
pub(crate) const FRAME: Duration = Duration::from_millis(100);

/// Pictures of the spinner.
const FRAMES: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];

/// Silence from which the spinner shows how long nothing was heard.
const SILENCE: Duration = Duration::from_secs(3);

/// Width of a terminal that does not say it.
const WIDTH: usize = 80;

/// Id of the line for thinking; no tool call has it.
const THINKING: &str = "";

/// Lines of a running turn.
#[derive(Debug)]
pub(crate) struct LiveStatus {
    /// Name of the agent, or of what else is waited for.
    agent: String,
    style: TermStyle,
    /// Ids of tool calls that wait for a permission.
    asking: Vec<String>,
    /// Number of lines on the screen.
    drawn: usize,
    /// True if the terminal's echo was turned off.
    is_muted: bool,
    calls: Vec<LiveCall>,
    begun: Instant,
    /// Time of the last event, whatever it was.
    last_sign: Instant,
    /// What is waited for, if not the agent: its start, an answer.
    waiting_for: Option<String>,
}

/// A tool call, or the thinking, while it runs.
#[derive(Debug)]
pub(crate) struct LiveCall {
    id: String,
    begun: Instant,
    /// Title for people.
    pub(crate) title: String,
}

impl LiveCall {
    /// Returns the time since its start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }
}

impl LiveStatus {
    /// Begins a turn; `None` if standard error is no terminal that can move its cursor.
    pub(crate) fn begin(agent: &str) -> Option<Self> {
        if !io::stderr().is_terminal() || std::env::var_os("TERM").is_none_or(|term| term == "dumb") {
            return None;
        }
        Some(Self::new(agent))
    }

    fn new(agent: &str) -> Self {
        let now = Instant::now();
        Self {
            agent: printable(agent, false),
            style: TermStyle::stderr(),
            asking: Vec::new(),
            drawn: 0,
            is_muted: false,
            calls: Vec::new(),
            begun: now,
            last_sign: now,
            waiting_for: None,
        }
    }

    /// Records an event. What the manager emits of itself is no sign of life of the agent.
    pub(crate) fn record_sign(&mut self, event: &Event) {
        let is_sign = !matches!(
            event,
            Event::SessionSilent { .. }
                | Event::SessionBusy {}
                | Event::SessionIdle {}
                | Event::TimeoutFired { .. }
                | Event::ProcessExited { .. }
                | Event::ActionFailed { .. }
                | Event::External { .. }
        );
        if is_sign {
            self.last_sign = Instant::now();
        }
    }

    /// Sets what is waited for; `None` for the agent's work.
    pub(crate) fn wait_for(&mut self, what: Option<String>) {
        self.waiting_for = what;
    }

    /// Adds a line for a tool call.
    pub(crate) fn begin_call(&mut self, id: &str, title: &str) {
        let title = printable(title, false);
        self.calls.push(LiveCall { id: id.to_owned(), begun: Instant::now(), title });
    }

    /// Sets the title of a running tool call.
    pub(crate) fn rename_call(&mut self, id: &str, title: &str) {
        if let Some(call) = self.calls.iter_mut().find(|call| call.id == id) {
            call.title = printable(title, false);
        }
    }

    /// Records a permission request. The tool call that it is about begins when it is answered.
    pub(crate) fn begin_request(&mut self, request: &PermissionRequest) {
        self.waiting_for = Some(format!("waiting for {}", request.id));
        self.asking.extend(request.tool_call_id.clone());
    }

    /// Records an answer to a permission request.
    pub(crate) fn end_request(&mut self) {
        self.waiting_for = None;
        let asking = std::mem::take(&mut self.asking);
        for call in self.calls.iter_mut().filter(|call| asking.contains(&call.id)) {
            call.begun = Instant::now();
        }
    }

    /// Removes the line of a tool call, and returns it.
    pub(crate) fn end_call(&mut self, id: &str) -> Option<LiveCall> {
        let at = self.calls.iter().position(|call| call.id == id)?;
        Some(self.calls.remove(at))
    }

    /// Adds to the thinking, whose last words are on a line.
    pub(crate) fn think(&mut self, text: &str) {
        if !self.calls.iter().any(|call| call.id == THINKING) {
            self.begin_call(THINKING, "");
        }
        let Some(call) = self.calls.iter_mut().find(|call| call.id == THINKING) else { return };
        let thought = format!("{}{}", call.title, printable(&text.replace('\n', " "), false));
        call.title = tail(&thought);
    }

    /// Removes the line of the thinking, and returns it.
    pub(crate) fn end_thinking(&mut self) -> Option<LiveCall> {
        self.end_call(THINKING)
    }

    /// Removes all lines, and returns those of tool calls.
    pub(crate) fn end_calls(&mut self) -> Vec<LiveCall> {
        let mut calls = std::mem::take(&mut self.calls);
        calls.retain(|call| call.id != THINKING);
        calls
    }

    /// Draws the lines anew, unless the program runs in the background. At the first time the cursor is at the start of
    /// a line.
    pub(crate) fn draw(&mut self) {
        if !term::is_foreground() {
            return;
        }
        self.is_muted |= term::set_echo(false);
        let lines = self.lines(term::rows().unwrap_or(usize::MAX), term::columns().unwrap_or(WIDTH));
        term::error_text(format_args!("{}{}", self.eraser(), lines.join("\n")));
        self.drawn = lines.len();
    }

    /// Returns the lines for a terminal of so many rows and columns: the last calls, and the spinner.
    fn lines(&self, rows: usize, columns: usize) -> Vec<String> {
        // The picture, the blanks and the ellipsis take four columns.
        let width = columns.saturating_sub(5);
        // What has scrolled out of the terminal cannot be erased: one row stays for what is above.
        let room = rows.saturating_sub(2).max(1);
        let hidden = if self.calls.len() > room { self.calls.len() - room + 1 } else { 0 };
        let mut lines = Vec::new();
        if hidden > 0 {
            lines.push(self.style.dim(format_args!("  {hidden} more")));
        }
        lines.extend(self.calls.iter().skip(hidden).map(|call| self.call_line(call, width)));
        let frame =
            FRAMES[usize::try_from(self.begun.elapsed().as_millis() / FRAME.as_millis()).unwrap_or(0) % FRAMES.len()];
        lines.push(format!("{frame} {}", self.style.dim(fit(&self.message(), width))));
        lines
    }

    /// Erases the lines; the cursor is where they began.
    pub(crate) fn clear(&mut self) {
        term::error_text(self.eraser());
        self.drawn = 0;
        if std::mem::take(&mut self.is_muted) {
            term::set_echo(true);
        }
    }

    /// Moves the cursor to the start of the lines, and erases all from there.
    fn eraser(&self) -> String {
        match self.drawn {
            0 => String::new(),
            1 => "\r\x1b[J".to_owned(),
            lines => format!("\r\x1b[{}A\x1b[J", lines - 1),
        }
    }

    fn call_line(&self, call: &LiveCall, width: usize) -> String {
        let time = format!("{} s", call.elapsed().as_secs());
        let thinking = if call.id == THINKING { "thinking: " } else { "" };
        let title = fit(&format!("{thinking}{}", call.title), width.saturating_sub(time.len()));
        format!("⏵ {title} {}", self.style.dim(time))
    }

    fn message(&self) -> String {
        let (total, silent) = (self.begun.elapsed(), self.last_sign.elapsed());
        let mut text = format!("{} · {} s", self.agent, total.as_secs());
        if let Some(what) = &self.waiting_for {
            text.push_str(&format!(" · {what}"));
        } else if silent >= SILENCE {
            text.push_str(&format!(" · last sign of life {} s ago", silent.as_secs()));
        }
        text
    }
}

impl Drop for LiveStatus {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Clips text to columns: some characters take two.
fn fit(text: &str, width: usize) -> String {
    let mut columns = 0;
    let mut fitting = String::new();
    for c in text.chars() {
        columns += c.width().unwrap_or_default();
        if columns >= width {
            fitting.push('…');
            break;
        }
        fitting.push(c);
    }
    fitting
}

/// Returns the last words of a text, for one line.
fn tail(text: &str) -> String {
    const LONGEST: usize = 60;
    let from = text.char_indices().rev().nth(LONGEST - 1).map_or(0, |(at, _)| at);
    text[from..].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_lines_than_the_terminal_has_rows() {
        let mut live = LiveStatus::new("acp");
        live.style = TermStyle::PLAIN;
        for n in 0..9 {
            live.begin_call(&n.to_string(), &format!("call {n}"));
        }
        let first =
            |rows| live.lines(rows, 80).iter().map(|line| line[..line.len().min(10)].to_owned()).collect::<Vec<_>>();
        for (rows, shown) in [(24, 10), (11, 10), (10, 9), (4, 3), (3, 2), (1, 2)] {
            assert_eq!(live.lines(rows, 80).len(), shown, "{rows}: {:?}", first(rows));
        }
        assert!(live.lines(4, 80)[0].contains("8 more") && live.lines(4, 80)[1].contains("call 8"), "{:?}", first(4));
    }

    #[test]
    fn lines_fit() {
        assert_eq!(fit("abc", 4), "abc");
        assert_eq!(fit("abcd", 4), "abc…");
        assert_eq!(fit("漢字です", 6), "漢字…");
        assert_eq!(tail(&"x".repeat(100)).len(), 60);
        assert_eq!(tail("über"), "über");
    }
}
