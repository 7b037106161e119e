//! Model of a terminal's screen: what a terminal window would show, and the answers that it would give.

use std::{
    mem,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use alacritty_terminal::{
    event::{Event, EventListener, WindowSize},
    grid::{Dimensions, Grid},
    index::{Column, Line},
    term::{
        Config, Osc52, Term, TermMode,
        cell::{Cell, Flags},
    },
    vte::ansi::{CursorShape, CursorStyle, NamedColor, Processor, Rgb},
};
use ipc_protocol::terminal::{TerminalConfig, TerminalSize};

use super::{
    bounded_model::{BoundedModel, ModelBounds},
    sequence_guard::{OutputPart, SequenceGuard},
};

/// Most lines of scrollback.
const MAX_SCROLLBACK: usize = 2000;
/// Most cells of scrollback, of 24 bytes each.
const MAX_SCROLLBACK_CELLS: usize = 320_000;
/// Bytes that the model gets at a time. No more lines than that scroll away in it, so each is counted.
const SLICE: usize = 1024;
/// Most effects that wait: nobody needs those of a flood.
const MAX_EFFECTS: usize = 256;
/// Character of the rows above the terminal's first: what they show is not the program's. (It is no character of Unicode.)
pub(crate) const FOREIGN: char = '\u{1FFFE}';

/// What the program does beside painting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ScreenEffect {
    /// The model answers a query.
    Answer(Vec<u8>),
    /// It puts a text on the clipboard.
    Clipboard(String),
    /// It rings the bell.
    Bell,
    /// It reports its status (OSC 7501).
    Status(Vec<u8>),
}

/// Answer to the query whether the terminal understands status reports.
const STATUS_ANSWER: &[u8] = b"\x1b]7501;?\x1b\\";

#[derive(Clone, Debug, Default)]
struct EventQueue(Arc<Mutex<Vec<Event>>>);

impl EventListener for EventQueue {
    fn send_event(&self, event: Event) {
        let mut events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A synchronized update comes at once, with as many as fit into it.
        if events.len() < MAX_EFFECTS {
            events.push(event);
        }
    }
}

struct GridSize(TerminalSize);

impl Dimensions for GridSize {
    fn total_lines(&self) -> usize {
        self.screen_lines()
    }

    fn screen_lines(&self) -> usize {
        self.0.rows.into()
    }

    fn columns(&self) -> usize {
        self.0.columns.into()
    }
}

pub(crate) struct Screen {
    term: Term<EventQueue>,
    parser: Processor,
    bounds: ModelBounds,
    guard: SequenceGuard,
    queue: EventQueue,
    size: TerminalSize,
    first_row: u16,
    title: Option<String>,
    has_new_title: bool,
    /// Foreground and background of the first viewer's terminal.
    colors: [Option<Rgb>; 2],
    effects: Vec<ScreenEffect>,
    /// Lines that have scrolled away from the normal screen.
    scrolled: u64,
    /// Lines of scrollback when the normal screen was last looked at.
    scrollback: usize,
    /// Number of times that the lines on the screen were arranged anew.
    arrangement: u64,
    /// True if that happened since the normal screen was last looked at.
    is_rearranged: bool,
}

impl Screen {
    pub(crate) fn new(config: &TerminalConfig) -> Self {
        let queue = EventQueue::default();
        let size = TerminalSize::bounded(config.size.rows, config.size.columns);
        let options = Config {
            scrolling_history: scrollback_limit(size),
            kitty_keyboard: true,
            osc52: Osc52::OnlyCopy,
            ..Config::default()
        };
        let mut term = Term::new(options, &GridSize(size), queue.clone());
        let first_row = config.first_row.min(size.rows - 1);
        for row in 0..i32::from(first_row) {
            term.grid_mut()[Line(row)][Column(0)].c = FOREIGN;
        }
        let mut parser = Processor::new();
        parser.advance(&mut term, format!("\x1b[{};1H", first_row + 1).as_bytes());
        let rgb = |[r, g, b]: [u8; 3]| Rgb { r, g, b };
        Self {
            term,
            parser,
            bounds: ModelBounds::default(),
            guard: SequenceGuard::new(),
            queue,
            size,
            first_row,
            title: None,
            has_new_title: false,
            colors: [config.foreground.map(rgb), config.background.map(rgb)],
            effects: Vec::new(),
            scrolled: 0,
            scrollback: 0,
            arrangement: 0,
            is_rearranged: false,
        }
    }

    /// Takes output of the program.
    pub(crate) fn feed(&mut self, output: &[u8]) {
        let mut parts = Vec::new();
        self.guard.divide(output, &mut parts);
        for part in parts {
            match part {
                OutputPart::Bytes(range) => output[range].chunks(SLICE).for_each(|slice| self.advance(slice)),
                OutputPart::Cancel => self.advance(b"\x18"),
                OutputPart::Status(status) if status == b"?" => {
                    self.push_effect(ScreenEffect::Answer(STATUS_ANSWER.to_vec()));
                }
                OutputPart::Status(status) => self.push_effect(ScreenEffect::Status(status)),
            }
        }
    }

    fn advance(&mut self, slice: &[u8]) {
        self.bounds.begin(slice.len() + self.parser.sync_bytes_count());
        let mut model = BoundedModel { term: &mut self.term, bounds: &mut self.bounds };
        self.parser.advance(&mut model, slice);
        self.after_change();
    }

    /// Returns the time at which an update that began synchronized is shown although it has not ended.
    pub(crate) fn update_due(&self) -> Option<Instant> {
        self.parser.sync_timeout().sync_timeout()
    }

    /// Shows an update that has not ended in time.
    pub(crate) fn end_update(&mut self) {
        self.bounds.begin(self.parser.sync_bytes_count());
        let mut model = BoundedModel { term: &mut self.term, bounds: &mut self.bounds };
        self.parser.stop_sync(&mut model);
        self.after_change();
    }

    /// Shows what the program leaves to whoever uses the terminal after it: an ended one needs its alternate screen no more.
    pub(crate) fn leave(&mut self) {
        self.end_update();
        if self.is_alternate() {
            // Whatever sequence it was in is over.
            self.advance(b"\x18\x1b[?1049l");
        }
    }

    fn after_change(&mut self) {
        self.count_scrolled();
        let events = mem::take(&mut *self.queue.0.lock().unwrap_or_else(PoisonError::into_inner));
        events.into_iter().for_each(|event| self.handle(event));
    }

    fn handle(&mut self, event: Event) {
        let effect = match event {
            Event::PtyWrite(text) => ScreenEffect::Answer(text.into_bytes()),
            Event::ColorRequest(index, answer) => {
                let set = self.term.colors()[index];
                let own = match index {
                    _ if index == NamedColor::Foreground as usize => self.colors[0],
                    _ if index == NamedColor::Background as usize => self.colors[1],
                    _ => None,
                };
                let Some(color) = set.or(own) else { return };
                ScreenEffect::Answer(answer(color).into_bytes())
            }
            Event::TextAreaSizeRequest(answer) => {
                let (num_lines, num_cols) = (self.size.rows, self.size.columns);
                // A common size of a cell, in pixels.
                let size = WindowSize { num_lines, num_cols, cell_width: 8, cell_height: 16 };
                ScreenEffect::Answer(answer(size).into_bytes())
            }
            Event::ClipboardStore(_, text) => ScreenEffect::Clipboard(text),
            Event::Bell => ScreenEffect::Bell,
            Event::Title(title) => return self.set_title(Some(title)),
            Event::ResetTitle => return self.set_title(None),
            _ => return,
        };
        self.push_effect(effect);
    }

    fn set_title(&mut self, title: Option<String>) {
        self.has_new_title |= self.title != title;
        self.title = title;
    }

    /// Returns the title if it has changed since the last call; an empty one if there is none.
    pub(crate) fn take_new_title(&mut self) -> Option<String> {
        mem::take(&mut self.has_new_title).then(|| self.title.clone().unwrap_or_default())
    }

    /// Nobody waits for effects while none is taken: those of a flood are dropped.
    fn push_effect(&mut self, effect: ScreenEffect) {
        if self.effects.len() < MAX_EFFECTS {
            self.effects.push(effect);
        }
    }

    /// Takes what the program has done beside painting.
    pub(crate) fn take_effects(&mut self) -> Vec<ScreenEffect> {
        mem::take(&mut self.effects)
    }

    fn count_scrolled(&mut self) {
        let has_cleared = self.bounds.take_cleared();
        if has_cleared {
            self.arrangement += 1;
            self.is_rearranged = true;
        }
        if self.is_alternate() {
            return;
        }
        let now = self.term.grid().history_size();
        if !mem::take(&mut self.is_rearranged) {
            self.scrolled += now.saturating_sub(self.scrollback) as u64;
        }
        self.scrollback = now;
        let limit = scrollback_limit(self.size);
        if now + SLICE > limit {
            let grid = self.term.grid_mut();
            grid.update_history(limit - SLICE);
            grid.update_history(limit);
            self.scrollback = grid.history_size();
        }
    }

    pub(crate) fn resize(&mut self, size: TerminalSize) {
        if size == self.size {
            return;
        }
        for columns in widths_between(self.size.columns, size.columns).chain([size.columns]) {
            let size = TerminalSize { columns, ..size };
            self.term.resize(GridSize(size));
            if !self.is_alternate() {
                self.term.grid_mut().update_history(scrollback_limit(size));
            }
        }
        self.size = size;
        if self.is_alternate() {
            // The normal screen was arranged anew, too.
            self.is_rearranged = true;
        } else {
            self.scrollback = self.term.grid().history_size();
        }
        self.arrangement += 1;
    }

    pub(crate) fn size(&self) -> TerminalSize {
        self.size
    }

    /// Returns true if the cursor is in the middle of a line of the normal screen.
    pub(crate) fn is_in_line(&self) -> bool {
        !self.is_alternate() && self.term.grid().cursor.point.column.0 > 0
    }

    /// Returns the row at which the program began.
    pub(crate) fn first_row(&self) -> u16 {
        self.first_row
    }

    pub(crate) fn title(&self) -> Option<&str> {
        self.title.as_deref()
    }

    pub(crate) fn mode(&self) -> TermMode {
        *self.term.mode()
    }

    pub(crate) fn is_alternate(&self) -> bool {
        self.mode().contains(TermMode::ALT_SCREEN)
    }

    pub(crate) fn grid(&self) -> &Grid<Cell> {
        self.term.grid()
    }

    /// Returns the number of lines that can be scrolled back to.
    pub(crate) fn grid_history(&self) -> usize {
        self.term.grid().history_size()
    }

    /// Returns the number of lines that have scrolled away from the normal screen since the beginning.
    pub(crate) fn scrolled(&self) -> u64 {
        self.scrolled
    }

    pub(crate) fn arrangement(&self) -> u64 {
        self.arrangement
    }

    /// Returns the number of the cursor's style in DECSCUSR; 0 for the terminal's own.
    pub(crate) fn cursor_style(&self) -> u8 {
        let style = self.term.cursor_style();
        if style == CursorStyle::default() {
            return 0;
        }
        let steady = u8::from(!style.blinking);
        match style.shape {
            CursorShape::Underline => 3 + steady,
            CursorShape::Beam => 5 + steady,
            _ => 1 + steady,
        }
    }

    /// Returns the screen's text, a line each, without blanks at the ends.
    #[cfg(test)]
    pub(crate) fn text(&self) -> Vec<String> {
        (0..i32::from(self.size.rows)).map(|row| row_text(&self.grid()[Line(row)], self.size.columns)).collect()
    }

    /// Returns the text of the lines that can be scrolled back to.
    #[cfg(test)]
    pub(crate) fn scrollback_text(&self) -> Vec<String> {
        let lines = i32::try_from(self.grid_history()).expect("few");
        (-lines..0).map(|line| row_text(&self.grid()[Line(line)], self.size.columns)).collect()
    }
}

#[cfg(test)]
fn row_text(row: &alacritty_terminal::grid::Row<Cell>, columns: u16) -> String {
    let mut text = String::new();
    for cell in &row[Column(0)..Column(columns.into())] {
        if !cell.flags.intersects(Flags::WIDE_CHAR_SPACER | Flags::LEADING_WIDE_CHAR_SPACER) {
            text.push(if cell.c == FOREIGN { ' ' } else { cell.c });
            text.extend(cell.zerowidth().unwrap_or_default());
        }
    }
    text.trim_end().to_owned()
}

/// Widths on the way to a narrower screen, each half of the one before. A row that is cut keeps the memory of its width, and so does each
/// piece of the rest: cut to 2 columns at once, 1,000 columns of text would take 6 MB a row.
fn widths_between(from: u16, to: u16) -> impl Iterator<Item = u16> {
    std::iter::successors(Some(from / 2), |width| Some(width / 2)).take_while(move |width| *width > to)
}

/// Most lines of scrollback at this width, with those of one slice.
fn scrollback_limit(size: TerminalSize) -> usize {
    (MAX_SCROLLBACK_CELLS / usize::from(size.columns)).min(MAX_SCROLLBACK) + SLICE
}

/// Returns true if a cell shows nothing.
pub(crate) fn is_blank(cell: &Cell) -> bool {
    use alacritty_terminal::vte::ansi::Color;
    cell.c == ' '
        && cell.bg == Color::Named(NamedColor::Background)
        && cell.extra.is_none()
        && (cell.flags - Flags::WRAPLINE).is_empty()
}
