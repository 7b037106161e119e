//! Frames in a second terminal show what the screen shows, and hostile output does no harm.

mod frames;
mod fuzz;
mod hostile;
mod viewing;

use std::{
    num::NonZero,
    sync::{Arc, Mutex},
};

use alacritty_terminal::{
    event::{Event, EventListener},
    grid::Dimensions,
    index::{Column, Line},
    term::{Config, Term, TermMode, cell::Cell, cell::Flags},
    vte::ansi::{Color, NamedColor, Processor},
};
use ipc_protocol::terminal::{TerminalConfig, TerminalSize};
use proptest::prelude::*;

use super::screen::{FOREIGN, Screen};

/// Modes that a frame passes on.
const MODES: TermMode = TermMode::APP_CURSOR
    .union(TermMode::APP_KEYPAD)
    .union(TermMode::MOUSE_REPORT_CLICK)
    .union(TermMode::MOUSE_DRAG)
    .union(TermMode::MOUSE_MOTION)
    .union(TermMode::FOCUS_IN_OUT)
    .union(TermMode::UTF8_MOUSE)
    .union(TermMode::SGR_MOUSE)
    .union(TermMode::BRACKETED_PASTE)
    .union(TermMode::SHOW_CURSOR)
    .union(TermMode::ALT_SCREEN)
    .union(TermMode::KITTY_KEYBOARD_PROTOCOL);

pub(super) fn size(rows: u16, columns: u16) -> TerminalSize {
    TerminalSize { rows, columns }
}

pub(super) fn screen(rows: u16, columns: u16) -> Screen {
    Screen::new(&TerminalConfig { size: size(rows, columns), ..TerminalConfig::default() })
}

/// Shows an update that waits for its end.
pub(super) fn end_update(screen: &mut Screen) {
    if screen.update_due().is_some() {
        screen.end_update();
    }
}

#[derive(Clone, Debug, Default)]
struct AnswerLog(Arc<Mutex<Vec<String>>>);

impl EventListener for AnswerLog {
    fn send_event(&self, event: Event) {
        let is_harmless = matches!(
            event,
            Event::Title(_) | Event::ResetTitle | Event::MouseCursorDirty | Event::CursorBlinkingChange
        );
        if !is_harmless {
            self.0.lock().expect("not poisoned").push(format!("{event:?}"));
        }
    }
}

struct ViewerSize(TerminalSize);

impl Dimensions for ViewerSize {
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

fn nonzero(size: TerminalSize) -> [NonZero<u16>; 2] {
    [size.rows, size.columns].map(|number| NonZero::new(number).expect("not 0"))
}

/// A viewer's terminal window.
pub(super) struct ViewerTerminal {
    term: Term<AnswerLog>,
    parser: Processor,
    answers: AnswerLog,
    /// Another one's opinion, of the text alone.
    other: vt100::Parser,
    pub(super) size: TerminalSize,
}

impl ViewerTerminal {
    pub(super) fn new(size: TerminalSize) -> Self {
        let answers = AnswerLog::default();
        let options = Config { kitty_keyboard: true, scrolling_history: 1000, ..Config::default() };
        let term = Term::new(options, &ViewerSize(size), answers.clone());
        let [rows, columns] = nonzero(size);
        let other = vt100::Parser::new(rows, columns, 0);
        Self { term, parser: Processor::new(), answers, other, size }
    }

    pub(super) fn show(&mut self, bytes: &[u8]) {
        self.parser.advance(&mut self.term, bytes);
        self.other.process(bytes);
        assert_eq!(*self.answers.0.lock().expect("not poisoned"), [""; 0], "{:?}", String::from_utf8_lossy(bytes));
        assert_eq!(self.parser.sync_bytes_count(), 0, "a frame ends its update");
    }

    pub(super) fn resize(&mut self, size: TerminalSize) {
        self.size = size;
        self.term.resize(ViewerSize(size));
        let [rows, columns] = nonzero(size);
        self.other.screen_mut().set_size(rows, columns);
    }

    pub(super) fn keyboard(&self) -> TermMode {
        *self.term.mode() & TermMode::KITTY_KEYBOARD_PROTOCOL
    }

    pub(super) fn line(&self, line: i32) -> String {
        let row = &self.term.grid()[Line(line)];
        let text: String = (0..usize::from(self.size.columns)).flat_map(|at| cell_text(&row[Column(at)])).collect();
        text.trim_end().to_owned()
    }

    pub(super) fn lines(&self) -> Vec<String> {
        (0..i32::from(self.size.rows)).map(|line| self.line(line)).collect()
    }

    /// Lines that can be scrolled back to.
    pub(super) fn scrollback(&self) -> Vec<String> {
        let lines = i32::try_from(self.term.grid().history_size()).expect("few");
        (-lines..0).map(|line| self.line(line)).collect()
    }

    /// Checks that it shows as much of the screen as fits; rows above `from` are not compared.
    #[track_caller]
    pub(super) fn compare(&self, screen: &Screen, from: u16) {
        let (mine, theirs) = (self.term.grid(), screen.grid());
        let cursor = theirs.cursor.point;
        let row = u16::try_from(cursor.line.0).expect("on the screen");
        let top = if self.size.rows >= screen.size().rows { 0 } else { (row + 1).saturating_sub(self.size.rows) };
        let shown = self.other.screen();
        for at in from..self.size.rows {
            let mut text = String::new();
            for column in 0..self.size.columns {
                let here = &mine[Line(at.into())][Column(column.into())];
                let is_inside = top + at < screen.size().rows && column < screen.size().columns;
                let there = is_inside.then(|| &theirs[Line((top + at).into())][Column(column.into())]);
                let next = (column + 1 < screen.size().columns.min(self.size.columns) && is_inside)
                    .then(|| &theirs[Line((top + at).into())][Column((column + 1).into())]);
                let before =
                    (column > 0 && is_inside).then(|| &theirs[Line((top + at).into())][Column((column - 1).into())]);
                let expected = there.map_or_else(CellFace::default, |cell| CellFace::expected(cell, before, next));
                assert_eq!(CellFace::of(here), expected, "row {at}, column {column}: {:#?}", self.lines());
                text.push_str(&expected.text);
            }
            let other: String = shown.rows(0, self.size.columns).nth(at.into()).unwrap_or_default();
            // It has another opinion of some widths.
            if text.is_ascii() {
                assert_eq!(other.trim_end(), text.trim_end(), "row {at} of vt100");
            }
        }
        assert_eq!(*self.term.mode() & MODES, screen.mode() & MODES, "modes");
        assert_eq!(shown.alternate_screen(), screen.is_alternate());
        assert_eq!(shown.hide_cursor(), !screen.mode().contains(TermMode::SHOW_CURSOR));
        let column = u16::try_from(cursor.column.0).expect("on the screen").min(self.size.columns - 1);
        let place = mine.cursor.point;
        assert_eq!((place.line.0, place.column.0), (i32::from(row - top), usize::from(column)), "the cursor");
    }
}

fn cell_text(cell: &Cell) -> Vec<char> {
    if cell.flags.contains(Flags::WIDE_CHAR_SPACER) {
        return Vec::new();
    }
    let c = if cell.c.is_control() || cell.c == FOREIGN { ' ' } else { cell.c };
    std::iter::once(c).chain(cell.zerowidth().unwrap_or_default().iter().copied()).collect()
}

/// What is seen of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CellFace {
    text: String,
    foreground: Option<Color>,
    background: Color,
    flags: Flags,
    underline: Option<Color>,
    link: Option<String>,
}

impl Default for CellFace {
    fn default() -> Self {
        Self {
            text: " ".to_owned(),
            foreground: None,
            background: Color::Named(NamedColor::Background),
            flags: Flags::empty(),
            underline: None,
            link: None,
        }
    }
}

impl CellFace {
    fn of(cell: &Cell) -> Self {
        let layout = Flags::WRAPLINE | Flags::WIDE_CHAR | Flags::WIDE_CHAR_SPACER | Flags::LEADING_WIDE_CHAR_SPACER;
        let text: String = cell_text(cell).into_iter().collect();
        let flags = cell.flags - layout;
        let is_blank = text == " " && flags.is_empty();
        let foreground = (!is_blank).then_some(cell.fg);
        let underline = if flags.intersects(Flags::ALL_UNDERLINES) { cell.underline_color() } else { None };
        let link = cell.hyperlink().map(|link| link.uri().to_owned());
        Self { text, foreground, background: cell.bg, flags, underline, link }
    }

    /// Face of a cell beside these: half a wide character is a blank.
    fn expected(cell: &Cell, before: Option<&Cell>, next: Option<&Cell>) -> Self {
        let is_orphan = cell.flags.contains(Flags::WIDE_CHAR_SPACER)
            && !before.is_some_and(|before| before.flags.contains(Flags::WIDE_CHAR));
        let is_cut = cell.flags.contains(Flags::WIDE_CHAR)
            && !next.is_some_and(|next| next.flags.contains(Flags::WIDE_CHAR_SPACER));
        if is_orphan || is_cut {
            let mut blank = cell.clone();
            blank.c = ' ';
            blank.flags.remove(Flags::WIDE_CHAR | Flags::WIDE_CHAR_SPACER);
            let (underline, link) = (blank.underline_color(), blank.hyperlink());
            blank.extra = None;
            blank.set_underline_color(underline);
            blank.set_hyperlink(link);
            return Self::of(&blank);
        }
        Self::of(cell)
    }
}

/// Sequences that programs write.
pub(super) fn piece() -> impl Strategy<Value = Vec<u8>> {
    let text = proptest::sample::select(vec![
        "a",
        "hello ",
        "a longer text of some words ",
        "\r\n",
        "\n",
        "\r",
        "\t",
        "\x08",
        "日本",
        "🦀",
        "e\u{301}",
        "\u{300}\u{301}",
        "é",
    ]);
    let fixed = proptest::sample::select(vec![
        "\x1b[?1049h",
        "\x1b[?1049l",
        "\x1b[?1049h",
        "\x1b[?1049l",
        "\x1b[?25l",
        "\x1b[?25h",
        "\x1b[?7l",
        "\x1b[?7h",
        "\x1b[4h",
        "\x1b[4l",
        "\x1b[?6h",
        "\x1b[?6l",
        "\x1b[?2004h",
        "\x1b[?1006h",
        "\x1b[?1003h",
        "\x1b[?1l",
        "\x1b[?1h",
        "\x1b=",
        "\x1b>",
        "\x1b[?1004h",
        "\x1b[?2026h",
        "\x1b[?2026l",
        "\x1b[3J",
        "\x1b[2J",
        "\x1b[H",
        "\x1bc",
        "\x1b7",
        "\x1b8",
        "\x1bM",
        "\x1bD",
        "\x1b#8",
        "\x1b(0",
        "\x1b(B",
        "\x0e",
        "\x0f",
        "\x1b[r",
        "\x1b[>1u",
        "\x1b[>7u",
        "\x1b[<u",
        "\x1b[=5;1u",
        "\x1b[!p",
        "\x1b]0;title\x07",
        "\x1b[22t",
        "\x1b[23t",
        "\x1b]8;;http://a\x1b\\",
        "\x1b]8;;file://b/c\x1b\\",
        "\x1b]8;;\x1b\\",
        "\x1b[1;3;4m",
        "\x1b[0m",
        "\x1b[38;5;200m",
        "\x1b[48;2;1;2;3m",
        "\x1b[7m",
        "\x1b[4:3m",
        "\x1b[58;5;3m",
        "\x1b[91;104m",
        "\x1b[2;9m",
        "\x1b[c",
        "\x1b[6n",
        "\x1b[?u",
        "\x1b]11;?\x07",
        "\x1b[14t",
        "\x1bP+q544e\x1b\\",
        "\x1b[>q",
        "\x1b[21t",
        "\x1b]52;c;?\x07",
    ]);
    let finals = proptest::sample::select(b"ABCDEFGHIJKLMPSTXZ@bdfghlmrsu`a".to_vec());
    let sequence = (finals, 0..30_u16, 0..90_u16).prop_map(|(last, first, second)| match last {
        b'A'..=b'D' | b'X' | b'@' | b'L' | b'M' | b'P' | b'S' | b'T' | b'b' => {
            format!("\x1b[{first}{}", char::from(last))
        }
        b'J' | b'K' => format!("\x1b[{}{}", first % 4, char::from(last)),
        _ => format!("\x1b[{first};{second}{}", char::from(last)),
    });
    prop_oneof![
        6 => text.prop_map(|text| text.as_bytes().to_vec()),
        3 => fixed.prop_map(|text| text.as_bytes().to_vec()),
        3 => sequence.prop_map(String::into_bytes),
        1 => proptest::collection::vec(any::<u8>(), 0..12),
    ]
}
