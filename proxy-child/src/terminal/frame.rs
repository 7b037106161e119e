//! Frames: what a viewer's terminal has to be sent to show the screen.
//!
//! A frame holds text, colours and modes, all made from the model: never a query, and nothing that a terminal would answer.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    io::Write,
};

use alacritty_terminal::{
    grid::Row,
    index::{Column, Line},
    term::{
        TermMode,
        cell::{Cell, Flags, Hyperlink},
    },
    vte::ansi::{Color, NamedColor},
};
use ipc_protocol::terminal::TerminalSize;

use super::screen::{FOREIGN, Screen, is_blank};

/// Modes of a terminal that follow the program's, with their numbers (DECSET).
const MODES: [(TermMode, u16); 9] = [
    (TermMode::APP_CURSOR, 1),
    (TermMode::MOUSE_REPORT_CLICK, 1000),
    (TermMode::MOUSE_DRAG, 1002),
    (TermMode::MOUSE_MOTION, 1003),
    (TermMode::FOCUS_IN_OUT, 1004),
    (TermMode::UTF8_MOUSE, 1005),
    (TermMode::SGR_MOUSE, 1006),
    (TermMode::BRACKETED_PASTE, 2004),
    (TermMode::SHOW_CURSOR, 25),
];

/// Modes of the keyboard by kitty's protocol, with their bits.
const KEYBOARD_MODES: [(TermMode, u8); 5] = [
    (TermMode::DISAMBIGUATE_ESC_CODES, 1),
    (TermMode::REPORT_EVENT_TYPES, 2),
    (TermMode::REPORT_ALTERNATE_KEYS, 4),
    (TermMode::REPORT_ALL_KEYS_AS_ESC, 8),
    (TermMode::REPORT_ASSOCIATED_TEXT, 16),
];

/// Attributes of cells, with their numbers (SGR).
const ATTRIBUTES: [(Flags, &str); 11] = [
    (Flags::BOLD, ";1"),
    (Flags::DIM, ";2"),
    (Flags::ITALIC, ";3"),
    (Flags::UNDERLINE, ";4"),
    (Flags::DOUBLE_UNDERLINE, ";4:2"),
    (Flags::UNDERCURL, ";4:3"),
    (Flags::DOTTED_UNDERLINE, ";4:4"),
    (Flags::DASHED_UNDERLINE, ";4:5"),
    (Flags::INVERSE, ";7"),
    (Flags::HIDDEN, ";8"),
    (Flags::STRIKEOUT, ";9"),
];

/// Hash of what a row looks like.
type RowHash = u64;

/// Rows that a viewer's terminal shows on one of its two screens; empty where that is unknown.
type ShownRows = Vec<RowHash>;

/// Maker of the frames for one viewer: knows what its terminal shows.
#[derive(Debug)]
pub(super) struct FrameMaker {
    size: TerminalSize,
    normal: ShownRows,
    alternate: ShownRows,
    is_alternate: bool,
    modes: TermMode,
    keyboard: Option<u8>,
    cursor_style: u8,
    title: Option<String>,
    /// Lines that had scrolled away at the last frame.
    scrolled: u64,
    arrangement: u64,
    /// First row of the screen that is shown, where the viewer has fewer.
    top: u16,
    /// Position of the cursor.
    cursor: (u16, u16),
}

impl FrameMaker {
    /// Makes one for a viewer whose terminal shows something else; with `in_place` it shows what the screen's terminal did
    /// at its beginning.
    pub(super) fn new(size: TerminalSize, in_place: bool, screen: &Screen) -> Self {
        let mut maker = Self {
            size,
            normal: Vec::new(),
            alternate: Vec::new(),
            is_alternate: false,
            modes: TermMode::SHOW_CURSOR,
            keyboard: None,
            cursor_style: 0,
            title: None,
            scrolled: screen.scrolled(),
            arrangement: screen.arrangement(),
            top: 0,
            cursor: (0, 0),
        };
        if in_place && size == screen.size() && screen.arrangement() == 0 {
            maker.normal = vec![row_hash(b""); size.rows.into()];
            maker.normal[..screen.first_row().into()].fill(FOREIGN_HASH);
            maker.scrolled = 0;
        } else if !screen.is_alternate() {
            // What was there before goes where the viewer can scroll back to, and so does what has scrolled away here.
            maker.scrolled = screen.scrolled().saturating_sub(screen.grid_history() as u64);
        }
        maker
    }

    pub(super) fn size(&self) -> TerminalSize {
        self.size
    }

    pub(super) fn resize(&mut self, size: TerminalSize) {
        if size != self.size {
            self.size = size;
            self.forget();
        }
    }

    /// Paints everything in the next frame.
    fn forget(&mut self) {
        let rows = usize::from(self.size.rows);
        // A hash that no row has.
        self.normal = vec![UNKNOWN_HASH; rows];
        self.alternate = vec![UNKNOWN_HASH; rows];
    }

    /// Makes a frame. It is empty if nothing has changed.
    pub(super) fn frame(&mut self, screen: &Screen) -> Vec<u8> {
        let mut out = Vec::new();
        if self.arrangement != screen.arrangement() {
            self.arrangement = screen.arrangement();
            self.scrolled = screen.scrolled();
            self.forget();
        }
        let modes = screen.mode();
        self.switch_screen(screen.is_alternate(), &mut out);
        if !self.is_alternate {
            self.scroll(screen, &mut out);
        }
        self.paint_rows(screen, &mut out);
        self.set_modes(modes, &mut out);
        if self.cursor_style != screen.cursor_style() {
            self.cursor_style = screen.cursor_style();
            let _ = write!(out, "\x1b[{} q", self.cursor_style);
        }
        if self.title.as_deref() != screen.title() {
            self.title = screen.title().map(str::to_owned);
            let _ = write!(out, "\x1b]2;{}\x07", screen.title().unwrap_or_default());
        }
        let cursor = screen.grid().cursor.point;
        let row = u16::try_from(cursor.line.0).unwrap_or(0).saturating_sub(self.top) + 1;
        let column = u16::try_from(cursor.column.0 + 1).unwrap_or(u16::MAX).min(self.size.columns);
        if out.is_empty() && self.cursor == (row, column) {
            return out;
        }
        self.cursor = (row, column);
        let _ = write!(out, "\x1b[{row};{column}H");
        // The viewer's terminal shows all of it at once, where it knows of that.
        let mut frame = b"\x1b[?2026h".to_vec();
        frame.extend_from_slice(&out);
        frame.extend_from_slice(b"\x1b[?2026l");
        frame
    }

    fn shown(&mut self) -> &mut ShownRows {
        if self.is_alternate { &mut self.alternate } else { &mut self.normal }
    }

    fn switch_screen(&mut self, alternate: bool, out: &mut Vec<u8>) {
        if self.is_alternate != alternate {
            self.is_alternate = alternate;
            // Each screen has keyboard modes of its own.
            if self.keyboard.take().is_some() {
                out.extend_from_slice(b"\x1b[<u");
            }
            out.extend_from_slice(if alternate { b"\x1b[?1049h" } else { b"\x1b[?1049l" });
            if alternate {
                self.alternate.clear();
            }
        }
        let rows = usize::from(self.size.rows);
        if self.shown().is_empty() {
            if alternate {
                out.extend_from_slice(b"\x1b[m\x1b[2J");
            } else {
                // The viewer's own lines scroll away instead of being painted over.
                let _ = write!(out, "\x1b[m\x1b[{rows};1H");
                out.resize(out.len() + rows, b'\n');
            }
            *self.shown() = vec![row_hash(b""); rows];
        }
    }

    /// Lets lines scroll away that have scrolled away on the screen, so that the viewer can scroll back to them.
    fn scroll(&mut self, screen: &Screen, out: &mut Vec<u8>) {
        let behind = usize::try_from(screen.scrolled() - self.scrolled).unwrap_or(usize::MAX);
        self.scrolled = screen.scrolled();
        let rows = usize::from(self.size.rows);
        if behind == 0 || rows < usize::from(screen.size().rows) {
            return;
        }
        let grid = screen.grid();
        let mut left = behind.min(screen.grid_history());
        let mut row_bytes = Vec::new();
        while left > 0 {
            let batch = left.min(rows);
            for at in 0..batch {
                #[expect(
                    clippy::cast_possible_wrap,
                    clippy::cast_possible_truncation,
                    reason = "bounded by the scrollback"
                )]
                let line = Line((at as i32) - (left as i32));
                self.paint_row(&grid[line], screen.size().columns, at, &mut row_bytes, out);
            }
            // The rows that come in would get the last colour.
            let _ = write!(out, "\x1b[m\x1b[{rows};1H");
            out.resize(out.len() + batch, b'\n');
            self.normal.rotate_left(batch);
            self.normal[rows - batch..].fill(row_hash(b""));
            left -= batch;
        }
    }

    fn paint_rows(&mut self, screen: &Screen, out: &mut Vec<u8>) {
        let (rows, size) = (self.size.rows, screen.size());
        let grid = screen.grid();
        let cursor = u16::try_from(grid.cursor.point.line.0).unwrap_or(0);
        self.top = if rows >= size.rows { 0 } else { (cursor + 1).saturating_sub(rows) };
        let mut row_bytes = Vec::new();
        for at in 0..rows {
            let row = self.top + at;
            if row < size.rows {
                self.paint_row(&grid[Line(row.into())], size.columns, at.into(), &mut row_bytes, out);
            } else {
                self.place_row(at.into(), row_hash(b""), b"", true, out);
            }
        }
    }

    fn paint_row(&mut self, row: &Row<Cell>, columns: u16, at: usize, bytes: &mut Vec<u8>, out: &mut Vec<u8>) {
        bytes.clear();
        let columns = columns.min(self.size.columns);
        let end = paint_cells(row, columns, bytes);
        if row[Column(0)].c == FOREIGN && end == 0 && self.shown()[at] == FOREIGN_HASH {
            return;
        }
        let hash = row_hash(bytes);
        let bytes = std::mem::take(bytes);
        self.place_row(at, hash, &bytes, end < usize::from(self.size.columns), out);
    }

    /// Puts a row in its place, unless it is there already; `clear` erases what follows it.
    fn place_row(&mut self, at: usize, hash: RowHash, bytes: &[u8], clear: bool, out: &mut Vec<u8>) {
        if self.shown()[at] == hash {
            return;
        }
        let shown = std::mem::replace(&mut self.shown()[at], hash);
        let _ = write!(out, "\x1b[{};1H\x1b[m", at + 1);
        if shown == UNKNOWN_HASH {
            // A narrower window may have cut a wide character in two; Alacritty erases what stands before its half when
            // something is written over it.
            out.extend_from_slice(b"\x1b[2K");
        }
        out.extend_from_slice(bytes);
        if clear {
            out.extend_from_slice(b"\x1b[m\x1b[K");
        }
    }

    fn set_modes(&mut self, modes: TermMode, out: &mut Vec<u8>) {
        for (mode, number) in MODES {
            if self.modes.contains(mode) != modes.contains(mode) {
                let _ = write!(out, "\x1b[?{number}{}", if modes.contains(mode) { 'h' } else { 'l' });
            }
        }
        if self.modes.contains(TermMode::APP_KEYPAD) != modes.contains(TermMode::APP_KEYPAD) {
            out.extend_from_slice(if modes.contains(TermMode::APP_KEYPAD) { b"\x1b=" } else { b"\x1b>" });
        }
        self.modes = modes;
        let bits = KEYBOARD_MODES.iter().filter(|(mode, _)| modes.contains(*mode)).map(|(_, bit)| bit).sum();
        if self.keyboard != Some(bits) && (bits != 0 || self.keyboard.is_some()) {
            if self.keyboard.is_none() {
                // Beside what the viewer's shell has set.
                out.extend_from_slice(b"\x1b[>0u");
            }
            self.keyboard = Some(bits);
            let _ = write!(out, "\x1b[={bits};1u");
        }
    }
}

/// Hash of a row that shows what was there before the program.
const FOREIGN_HASH: RowHash = 1;
/// Hash of a row of which nothing is known.
const UNKNOWN_HASH: RowHash = 2;

fn row_hash(bytes: &[u8]) -> RowHash {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// Writes the first `columns` cells of a row, without blank ones at the end. Returns the number of those written.
fn paint_cells(row: &Row<Cell>, columns: u16, out: &mut Vec<u8>) -> usize {
    let cells = &row[Column(0)..Column(columns.into())];
    let end = cells.iter().rposition(|cell| !is_blank(cell) && cell.c != FOREIGN).map_or(0, |last| last + 1);
    let mut look = CellLook::default();
    let mut link: Option<Hyperlink> = None;
    let mut text = [0; 4];
    for (at, cell) in cells[..end].iter().enumerate() {
        let is_covered = at > 0 && cells[at - 1].flags.contains(Flags::WIDE_CHAR);
        if is_covered && cell.flags.contains(Flags::WIDE_CHAR_SPACER) {
            continue;
        }
        let next = CellLook::of(cell);
        if next != look {
            next.write(out);
            look = next;
        }
        let next_link = cell.hyperlink();
        if next_link != link {
            write_link(next_link.as_ref(), out);
            link = next_link;
        }
        // One half of a wide character may be painted over, or beyond the viewer's last column.
        let is_spacer = |cell: &Cell| cell.flags.contains(Flags::WIDE_CHAR_SPACER);
        let is_cut = cell.flags.contains(Flags::WIDE_CHAR) && !cells.get(at + 1).is_some_and(is_spacer);
        let c = if is_cut || cell.c.is_control() || cell.c == FOREIGN { ' ' } else { cell.c };
        out.extend_from_slice(c.encode_utf8(&mut text).as_bytes());
        // What is left of a wide character that was painted over is a blank.
        if !is_cut && !is_spacer(cell) {
            for c in cell.zerowidth().unwrap_or_default().iter().filter(|c| !c.is_control()) {
                out.extend_from_slice(c.encode_utf8(&mut text).as_bytes());
            }
        }
    }
    if link.is_some() {
        write_link(None, out);
    }
    end
}

/// Begins a link, or ends one. Its address is bounded, and has no control character: `bounded_model.rs`.
fn write_link(link: Option<&Hyperlink>, out: &mut Vec<u8>) {
    let _ = match link {
        Some(link) => write!(out, "\x1b]8;id={};{}\x1b\\", link.id(), link.uri()),
        None => write!(out, "\x1b]8;;\x1b\\"),
    };
}

/// Colours and attributes of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CellLook {
    foreground: Color,
    background: Color,
    underline: Option<Color>,
    flags: Flags,
}

impl Default for CellLook {
    fn default() -> Self {
        let (foreground, background) = (NamedColor::Foreground, NamedColor::Background);
        Self {
            foreground: Color::Named(foreground),
            background: Color::Named(background),
            underline: None,
            flags: Flags::empty(),
        }
    }
}

impl CellLook {
    fn of(cell: &Cell) -> Self {
        let layout = Flags::WRAPLINE | Flags::WIDE_CHAR | Flags::WIDE_CHAR_SPACER | Flags::LEADING_WIDE_CHAR_SPACER;
        let underline = cell.underline_color();
        Self { foreground: cell.fg, background: cell.bg, underline, flags: cell.flags - layout }
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"\x1b[0");
        for (flag, number) in ATTRIBUTES {
            if self.flags.contains(flag) {
                out.extend_from_slice(number.as_bytes());
            }
        }
        write_color(self.foreground, 30, out);
        write_color(self.background, 40, out);
        if let Some(color) = self.underline {
            write_color(color, 50, out);
        }
        out.push(b'm');
    }
}

/// Writes a colour; `base` is 30 for the foreground, 40 for the background, 50 for the underline, which has no short form.
fn write_color(color: Color, base: u16, out: &mut Vec<u8>) {
    let extended = base + 8;
    let _ = match color {
        Color::Named(named) => match named as u16 {
            index @ 0..8 if base != 50 => write!(out, ";{}", base + index),
            index @ 8..16 if base != 50 => write!(out, ";{}", base + 60 + index - 8),
            index @ 0..16 => write!(out, ";58;5;{index}"),
            _ => Ok(()),
        },
        Color::Indexed(index) => write!(out, ";{extended};5;{index}"),
        Color::Spec(rgb) => write!(out, ";{extended};2;{};{};{}", rgb.r, rgb.g, rgb.b),
    };
}
