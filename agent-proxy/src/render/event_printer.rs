//! Live output of a turn: the answer on standard output, everything else in short lines on standard error. On a
//! terminal, tool calls and thinking are lines that finish, above a spinner.

use std::{
    borrow::Cow,
    collections::HashMap,
    convert::Infallible,
    io::{self, IsTerminal},
    time::{Duration, Instant},
};

use ipc_protocol::{Event, ToolStatus};
use tokio::time::{Interval, MissedTickBehavior};
use unicode_width::UnicodeWidthChar;

#[cfg(feature = "engine")]
use super::shared_terminal::{SharedTerminal, TerminalHold};
use super::{
    duration,
    event::{detail, output_size, resolved_by},
    live_status::{FRAME, LiveCall, LiveStatus},
};
use crate::{
    command_failure::CommandFailure,
    term::{self, TermStyle, clip, printable},
};

/// Longest line besides the answer.
const WIDTH: usize = 100;

/// Silence within a line of the answer from which the spinner is drawn below that line.
const PAUSE: Duration = Duration::from_secs(1);

/// Time in which a policy has answered a permission request.
const POLICY_TIME: Duration = Duration::from_millis(300);

/// Distance of a terminal's tab stops.
const TAB: usize = 8;

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
    /// Tool calls and spinner of a running turn, on a terminal.
    live: Option<LiveStatus>,
    /// Times to draw them.
    frames: Option<Interval>,
    /// Columns of the answer's unfinished line.
    column: usize,
    last_text: Instant,
    /// Command that answers permission requests, if they are not answered here; the request's id and the answer follow it.
    answers_with: Option<String>,
    /// Permission requests that nobody has answered, and the time each came. Those that were told to wait are not among them.
    unanswered: Vec<(String, Instant)>,
    /// True while the spinner is below the unfinished line, where the answer does not go on.
    is_below: bool,
    /// The terminal, while a line may be edited on it.
    #[cfg(feature = "engine")]
    terminal: Option<SharedTerminal>,
    /// Keeps the editor from writing.
    #[cfg(feature = "engine")]
    hold: Option<TerminalHold>,
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
            live: None,
            frames: None,
            column: 0,
            last_text: Instant::now(),
            answers_with: None,
            unanswered: Vec::new(),
            is_below: false,
            #[cfg(feature = "engine")]
            terminal: None,
            #[cfg(feature = "engine")]
            hold: None,
        }
    }

    /// Begins to write where a line may be edited: what is written comes above it.
    #[cfg(feature = "engine")]
    pub(crate) fn begin_above(&mut self, terminal: Option<SharedTerminal>) {
        self.terminal = terminal;
    }

    /// Ends what [`Self::begin_above`] began. The line comes again if it had to be taken away.
    #[cfg(feature = "engine")]
    pub(crate) fn end_above(&mut self) {
        if self.hold.as_ref().is_some_and(|hold| hold.is_above_line) {
            self.line_start();
        }
        (self.terminal, self.hold) = (None, None);
    }

    /// Sets the command that answers permission requests from elsewhere: no keyboard answers them here.
    pub(crate) fn answer_with(&mut self, command: String) {
        self.answers_with = Some(command);
    }

    /// Begins a turn of this agent: on a terminal its running tool calls and a spinner are shown until [`Self::finish`].
    pub(crate) fn begin(&mut self, agent: &str, waiting_for: Option<&str>) {
        // Whoever reads a pipe may write to the same terminal.
        self.live = if term::is_stdout_piped() { None } else { LiveStatus::begin(agent) };
        self.frames = self.live.is_some().then(frames);
        self.wait_for(waiting_for);
    }

    /// Sets what the turn waits for, if not for the agent's work.
    pub(crate) fn wait_for(&mut self, what: Option<&str>) {
        if let Some(live) = &mut self.live {
            live.wait_for(what.map(str::to_owned));
        }
    }

    /// Draws the spinner again and again. May be dropped at any time.
    pub(crate) async fn animate(printer: Option<&mut Self>) -> Infallible {
        let Some(printer) = printer.filter(|printer| printer.live.is_some()) else {
            return std::future::pending().await;
        };
        loop {
            // Not a sleep: each event would begin it again.
            match &mut printer.frames {
                Some(frames) => frames.tick().await,
                None => return std::future::pending().await,
            };
            printer.call_user();
            printer.draw();
        }
    }

    /// Says once how each request is answered that no policy has answered at once, and rings the bell.
    fn call_user(&mut self) {
        let Some(command) = self.answers_with.clone() else { return };
        // The first is the oldest.
        while self.unanswered.first().is_some_and(|(_, since)| since.elapsed() >= POLICY_TIME) {
            let (id, _) = self.unanswered.remove(0);
            let id = shlex::try_quote(&id).map(Cow::into_owned).unwrap_or_default();
            self.print_whole("?", &format!("it waits: {command} shows all of it\n{command} {id} allow|deny answers"));
            term::ring_bell();
        }
    }

    fn draw(&mut self) {
        let Some(live) = &mut self.live else { return };
        if self.shared && self.place == CursorPosition::InAnswer && !self.is_below {
            if self.last_text.elapsed() < PAUSE {
                return;
            }
            term::error_line("");
            self.is_below = true;
        }
        live.draw();
    }

    /// Takes the line that is edited and the spinner away, and returns to the end of the answer's unfinished line.
    fn clear(&mut self) {
        #[cfg(feature = "engine")]
        if let Some(terminal) = self.terminal.as_ref().filter(|_| self.hold.is_none()) {
            self.hold = Some(terminal.hold());
        }
        let Some(live) = &mut self.live else { return };
        live.clear();
        if std::mem::take(&mut self.is_below) {
            // A line that was full continues where the cursor is.
            match term::columns() {
                Some(width) if self.column > 0 && self.column < width => {
                    term::error_text(format_args!("\x1b[A\x1b[{}C", self.column));
                }
                _ => self.column = 0,
            }
        }
    }

    /// Writes the relevant part of an event.
    ///
    /// # Errors
    /// Same as [`term::out`].
    pub(crate) fn event(&mut self, event: &Event) -> Result<(), CommandFailure> {
        if self.live.is_some() {
            self.live_event(event);
        }
        match event {
            Event::Text { text } => return self.text(text),
            Event::Thinking { text } => self.thinking(text),
            Event::ToolStart(_) | Event::ToolEnd(_) if self.live.is_some() => {}
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
                self.print_whole("?", &format!("permission {}: {}", request.id, request.title));
                self.unanswered.push((request.id.clone(), Instant::now()));
            }
            Event::PermissionResolved { id, option, by } => {
                let answer = option.as_deref().unwrap_or("cancelled");
                self.print_whole("?", &format!("answered: {answer}, by {}", resolved_by(by)));
                self.unanswered.retain(|(open, _)| open != id);
            }
            Event::Plan { .. } => self.print_note("-", &format!("plan: {}", detail(event))),
            Event::Error { .. } | Event::ActionFailed { .. } | Event::SessionGap(_) | Event::Log { .. } => {
                self.print_whole("!", &detail(event))
            }
            Event::TimeoutFired { .. } => self.print_whole("!", &format!("clock: {}", detail(event))),
            Event::Voided { .. } => {
                self.print_whole("!", "the answer broke off: what was said of it is void, and comes again")
            }
            Event::UsageLimited { .. } => self.print_whole("!", &format!("usage limit: {}", detail(event))),
            Event::LimitExceeded(_) => self.print_whole("!", &format!("limit: {}", detail(event))),
            Event::NetworkRefused(_) | Event::FileRefused(_) => {
                self.print_whole("!", &format!("refused: {}", detail(event)))
            }
            Event::PermissionBypassed(_) => self.print_whole("!", &detail(event)),
            Event::BudgetExceeded(passed) => self.print_whole("!", &format!("budget used up: {passed}")),
            _ => {}
        }
        Ok(())
    }

    /// Shows an event in the lines of the running turn.
    fn live_event(&mut self, event: &Event) {
        let Some(live) = &mut self.live else { return };
        live.record_sign(event);
        if matches!(event, Event::Text { .. } | Event::ToolStart(_) | Event::Complete { .. })
            && let Some(thought) = live.end_thinking()
        {
            self.print_finished(self.style.green("✓"), "thought", &thought, "");
        }
        let Some(live) = &mut self.live else { return };
        match event {
            Event::ToolStart(tool) => live.begin_call(&tool.id, &tool.title),
            Event::ToolUpdate(tool) => {
                tool.title.iter().for_each(|title| live.rename_call(&tool.id, title));
            }
            Event::ToolEnd(tool) => {
                let Some(call) = live.end_call(&tool.id) else { return };
                let has_failed = tool.status == ToolStatus::Failed;
                let mark = if has_failed { self.style.red("✗") } else { self.style.green("✓") };
                self.print_finished(mark, &call.title, &call, &output_size(&tool.output));
            }
            Event::PermissionRequested(request) => live.begin_request(request),
            Event::PermissionResolved { .. } => live.end_request(),
            Event::SessionStarted { .. } => live.wait_for(None),
            _ => {}
        }
    }

    /// Writes the line of a tool call, or of the thinking, that has ended.
    fn print_finished(&mut self, mark: String, title: &str, call: &LiveCall, output: &str) {
        let time = duration(call.elapsed());
        let room = line_width().saturating_sub(time.len() + 6);
        let title = clip(title, room);
        let output = clip(&printable(output, false), room.saturating_sub(title.chars().count() + 3));
        let output = if output.chars().count() > 1 { format!(" · {output}") } else { String::new() };
        self.line_start();
        term::error_line(format_args!("{mark} {title} {}", self.style.dim(format_args!("{time}{output}"))));
    }

    fn text(&mut self, text: &str) -> Result<(), CommandFailure> {
        self.clear();
        if self.place == CursorPosition::InThinking {
            self.line_start();
        }
        // Bytes for another program stay unchanged.
        term::out(if self.out_is_terminal { printable(text, true) } else { text.to_owned() })?;
        if !text.is_empty() {
            self.place = if text.ends_with('\n') { CursorPosition::LineStart } else { CursorPosition::InAnswer };
            self.advance(text);
        }
        Ok(())
    }

    /// Follows the cursor through the answer.
    fn advance(&mut self, text: &str) {
        self.last_text = Instant::now();
        let Some(width) = term::columns().filter(|_| self.shared && self.live.is_some()) else { return };
        for c in printable(text, true).chars() {
            self.column = match c {
                '\n' => 0,
                '\t' => (self.column / TAB * TAB + TAB).min(width - 1),
                c => match c.width().unwrap_or_default() {
                    wide if self.column + wide > width => wide,
                    wide => self.column + wide,
                },
            };
        }
    }

    fn thinking(&mut self, text: &str) {
        if let Some(live) = &mut self.live {
            return live.think(text);
        }
        self.clear();
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
        let width = if self.live.is_some() { line_width().saturating_sub(2) } else { WIDTH };
        let text = clip(printable(text.trim_end(), false).as_str(), width);
        term::error_line(self.style.dim(format_args!("{mark} {text}")));
    }

    /// Writes all of a text to standard error, broken between words on a terminal: a reason that is cut is none.
    fn print_whole(&mut self, mark: &str, text: &str) {
        self.line_start();
        let text = printable(text.trim_end(), true).replace('\n', "\n  ");
        let lines: Vec<_> = text.split('\n').map(|line| self.style.dim(line)).collect();
        term::error_line(format_args!("{} {}", self.style.dim(mark), lines.join("\n")));
    }

    /// Makes room for a permission request that the user is asked about here.
    #[cfg(feature = "engine")]
    pub(crate) fn begin_request(&mut self, request: &ipc_protocol::PermissionRequest) {
        if let Some(live) = &mut self.live {
            live.begin_request(request);
        }
        self.line_start();
    }

    /// Ends an unfinished line, if the next one would follow it on the same terminal line.
    pub(crate) fn line_start(&mut self) {
        if std::mem::take(&mut self.is_below) {
            // The spinner's line is the next one.
            self.place = CursorPosition::LineStart;
        }
        self.clear();
        if self.place == CursorPosition::InThinking || (self.shared && self.place == CursorPosition::InAnswer) {
            term::error_line("");
            self.column = 0;
        }
        // An answer in a file continues after lines written elsewhere.
        if self.shared || self.place == CursorPosition::InThinking {
            self.place = CursorPosition::LineStart;
        }
    }

    /// Ends the turn: erases the spinner, and leaves a line for each tool call that has not finished.
    pub(crate) fn end_turn(&mut self) {
        for call in self.live.as_mut().map(LiveStatus::end_calls).unwrap_or_default() {
            self.print_finished(self.style.yellow("–"), &call.title, &call, "not finished");
        }
        self.clear();
        self.live = None;
    }

    /// Ends the turn, and its answer with a newline.
    ///
    /// # Errors
    /// Same as [`term::out`].
    pub(crate) fn finish(&mut self) -> Result<(), CommandFailure> {
        self.end_turn();
        self.column = 0;
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

fn frames() -> Interval {
    let mut frames = tokio::time::interval_at(tokio::time::Instant::now() + FRAME, FRAME);
    frames.set_missed_tick_behavior(MissedTickBehavior::Skip);
    frames
}

/// Returns the width of a line on the terminal.
fn line_width() -> usize {
    term::columns().unwrap_or(WIDTH).min(WIDTH)
}
