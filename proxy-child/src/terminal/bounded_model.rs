//! Handler between the parser and the model: bounds what a program can make the model hold or do.

use std::collections::HashMap;

use alacritty_terminal::{
    event::EventListener,
    grid::Dimensions,
    index::{Column, Line},
    term::{
        Term, TermMode,
        cell::{Cell, Flags, Hyperlink as CellLink},
    },
    vte::ansi::{
        Attr, CharsetIndex, ClearMode, CursorShape, CursorStyle, Handler, Hyperlink, KeyboardModes,
        KeyboardModesApplyBehavior, LineClearMode, Mode, ModifyOtherKeys, PrivateMode, Rgb, StandardCharset,
        TabulationClearMode,
    },
};

/// Most characters of no width in one cell.
const MAX_ZERO_WIDTH: usize = 16;
/// Most characters of a title that the model keeps.
const MAX_TITLE: usize = 256;
/// Most keyboard modes on each screen's stack. (The model itself panics at 4,096.)
const MAX_KEYBOARD_MODES: usize = 64;
/// Characters that one byte of output may paint. A sequence repeats the last one 65,535 times.
const REPEATS_PER_BYTE: usize = 256;
/// Most characters of one turn.
const MAX_CHARACTERS: usize = 8 << 20;

/// Longest address of a link.
const MAX_LINK: usize = 1024;
/// Most links that cells of one screen have.
const MAX_LINKS: usize = 8192;
/// Links that are refused between two looks for those that no cell has any more.
const REFUSED_LINKS: usize = 4096;
/// Schemes of links that viewers get.
const LINK_SCHEMES: [&str; 3] = ["http://", "https://", "file://"];

/// What the handler knows of the model between turns.
#[derive(Clone, Debug, Default)]
pub(crate) struct ModelBounds {
    links: LinkTable,
    /// Keyboard modes on the shown screen's stack.
    keyboard_modes: usize,
    /// Keyboard modes on the other screen's stack.
    other_keyboard_modes: usize,
    /// Characters that are left of this turn.
    characters: usize,
    /// True if the scrollback was cleared in this turn.
    has_cleared: bool,
}

impl ModelBounds {
    /// Begins a turn, in which the model gets at most so many bytes.
    pub(crate) fn begin(&mut self, bytes: usize) {
        self.characters = bytes.saturating_mul(REPEATS_PER_BYTE).min(MAX_CHARACTERS);
    }

    /// Returns true if the scrollback was cleared since the last time.
    pub(crate) fn take_cleared(&mut self) -> bool {
        std::mem::take(&mut self.has_cleared)
    }
}

/// Links of the cells, each once.
#[derive(Clone, Debug, Default)]
struct LinkTable {
    links: HashMap<String, CellLink>,
    /// Number of the next link.
    next: u64,
    /// Links that are refused before the next look for those that no cell has.
    refuses: usize,
}

impl LinkTable {
    /// Finds the link with this address, or adds it; `None` for one that viewers do not get. `used` lists the links of all cells.
    fn find(&mut self, address: &str, used: impl FnOnce() -> Vec<CellLink>) -> Option<CellLink> {
        if let Some(link) = self.links.get(address) {
            return Some(link.clone());
        }
        let is_one = address.len() <= MAX_LINK
            && address.bytes().all(|byte| byte.is_ascii_graphic())
            && LINK_SCHEMES.iter().any(|scheme| address.starts_with(scheme));
        if !is_one {
            return None;
        }
        if self.links.len() >= MAX_LINKS {
            if self.refuses > 0 {
                self.refuses -= 1;
                return None;
            }
            self.links = used().into_iter().map(|link| (link.uri().to_owned(), link)).collect();
            // Else each of a flood of links would look through all cells.
            self.refuses = if self.links.len() > MAX_LINKS / 2 { REFUSED_LINKS } else { 0 };
            if self.links.len() >= MAX_LINKS {
                return None;
            }
        }
        self.next += 1;
        let link = CellLink::new(Some(format!("l{}", self.next)), address.to_owned());
        self.links.insert(address.to_owned(), link.clone());
        Some(link)
    }
}

/// The model with its bounds.
pub(crate) struct BoundedModel<'a, L> {
    pub(crate) term: &'a mut Term<L>,
    pub(crate) bounds: &'a mut ModelBounds,
}

impl<L: EventListener> BoundedModel<'_, L> {
    /// Returns true if the cell at the cursor takes one more character of no width.
    fn takes_zero_width(&self) -> bool {
        let cursor = &self.term.grid().cursor;
        let row = &self.term.grid()[cursor.point.line];
        let mut column = cursor.point.column;
        if !cursor.input_needs_wrap {
            column.0 = column.saturating_sub(1);
        }
        if row[column].flags.contains(Flags::WIDE_CHAR_SPACER) {
            column.0 = column.saturating_sub(1);
        }
        row[column].zerowidth().is_none_or(|extra| extra.len() < MAX_ZERO_WIDTH)
    }

    /// Does what may switch the screen: each has a stack of its own.
    fn switch(&mut self, set: impl FnOnce(&mut Term<L>)) {
        let before = self.term.mode().contains(TermMode::ALT_SCREEN);
        set(self.term);
        if self.term.mode().contains(TermMode::ALT_SCREEN) != before {
            std::mem::swap(&mut self.bounds.keyboard_modes, &mut self.bounds.other_keyboard_modes);
        }
    }
}

/// Passes calls on to the model.
macro_rules! pass_on {
    ($(fn $name:ident($($argument:ident: $type:ty),*);)*) => {
        $(#[inline]
        fn $name(&mut self, $($argument: $type),*) {
            Handler::$name(self.term, $($argument),*);
        })*
    };
}

impl<L: EventListener> Handler for BoundedModel<'_, L> {
    #[inline]
    fn input(&mut self, c: char) {
        let Some(left) = self.bounds.characters.checked_sub(1) else { return };
        self.bounds.characters = left;
        // Below it none is of no width.
        if c < '\u{300}' || unicode_width::UnicodeWidthChar::width(c) != Some(0) || self.takes_zero_width() {
            self.term.input(c);
        }
    }

    fn set_title(&mut self, title: Option<String>) {
        let bounded = |title: String| title.chars().filter(|c| !c.is_control()).take(MAX_TITLE).collect();
        self.term.set_title(title.map(bounded));
    }

    /// Gives the cells a link of the table: the model itself would keep an address for each sequence.
    fn set_hyperlink(&mut self, link: Option<Hyperlink>) {
        let link = link.and_then(|link| {
            let grid = self.term.grid();
            let columns = Column(0)..Column(grid.columns());
            let lines = (grid.topmost_line().0..=grid.bottommost_line().0).map(Line);
            let cells = lines.flat_map(|line| &grid[line][columns.clone()]);
            self.bounds.links.find(&link.uri, || cells.filter_map(Cell::hyperlink).collect())
        });
        self.term.grid_mut().cursor.template.set_hyperlink(link);
    }

    fn push_keyboard_mode(&mut self, mode: KeyboardModes) {
        if self.bounds.keyboard_modes == MAX_KEYBOARD_MODES {
            self.term.pop_keyboard_modes(1);
        } else {
            self.bounds.keyboard_modes += 1;
        }
        self.term.push_keyboard_mode(mode);
    }

    fn pop_keyboard_modes(&mut self, to_pop: u16) {
        self.bounds.keyboard_modes = self.bounds.keyboard_modes.saturating_sub(to_pop.into());
        self.term.pop_keyboard_modes(to_pop);
    }

    fn set_private_mode(&mut self, mode: PrivateMode) {
        self.switch(|term| term.set_private_mode(mode));
    }

    fn unset_private_mode(&mut self, mode: PrivateMode) {
        self.switch(|term| term.unset_private_mode(mode));
    }

    fn reset_state(&mut self) {
        (self.bounds.keyboard_modes, self.bounds.other_keyboard_modes) = (0, 0);
        self.bounds.has_cleared = true;
        self.term.reset_state();
    }

    fn clear_screen(&mut self, mode: ClearMode) {
        // The alternate screen has no scrollback.
        self.bounds.has_cleared |= matches!(mode, ClearMode::Saved) && !self.term.mode().contains(TermMode::ALT_SCREEN);
        self.term.clear_screen(mode);
    }

    /// Fills the whole screen: three bytes would do as much as half a million characters.
    fn decaln(&mut self) {
        if self.bounds.characters > 0 {
            let cells = self.term.screen_lines() * self.term.columns();
            self.bounds.characters = self.bounds.characters.saturating_sub(cells);
            self.term.decaln();
        }
    }

    pass_on! {
        fn set_cursor_style(style: Option<CursorStyle>);
        fn set_cursor_shape(shape: CursorShape);
        fn goto(line: i32, column: usize);
        fn goto_line(line: i32);
        fn goto_col(column: usize);
        fn insert_blank(count: usize);
        fn move_up(count: usize);
        fn move_down(count: usize);
        fn identify_terminal(intermediate: Option<char>);
        fn device_status(kind: usize);
        fn move_forward(count: usize);
        fn move_backward(count: usize);
        fn move_down_and_cr(count: usize);
        fn move_up_and_cr(count: usize);
        fn put_tab(count: u16);
        fn backspace();
        fn carriage_return();
        fn linefeed();
        fn bell();
        fn substitute();
        fn newline();
        fn set_horizontal_tabstop();
        fn scroll_up(count: usize);
        fn scroll_down(count: usize);
        fn insert_blank_lines(count: usize);
        fn delete_lines(count: usize);
        fn erase_chars(count: usize);
        fn delete_chars(count: usize);
        fn move_backward_tabs(count: u16);
        fn move_forward_tabs(count: u16);
        fn save_cursor_position();
        fn restore_cursor_position();
        fn clear_line(mode: LineClearMode);
        fn clear_tabs(mode: TabulationClearMode);
        fn set_tabs(interval: u16);
        fn reverse_index();
        fn terminal_attribute(attribute: Attr);
        fn set_mode(mode: Mode);
        fn unset_mode(mode: Mode);
        fn report_mode(mode: Mode);
        fn report_private_mode(mode: PrivateMode);
        fn set_scrolling_region(top: usize, bottom: Option<usize>);
        fn set_keypad_application_mode();
        fn unset_keypad_application_mode();
        fn set_active_charset(index: CharsetIndex);
        fn configure_charset(index: CharsetIndex, charset: StandardCharset);
        fn set_color(index: usize, color: Rgb);
        fn dynamic_color_sequence(prefix: String, index: usize, terminator: &str);
        fn reset_color(index: usize);
        fn clipboard_store(clipboard: u8, text: &[u8]);
        fn clipboard_load(clipboard: u8, terminator: &str);
        fn push_title();
        fn pop_title();
        fn text_area_size_pixels();
        fn text_area_size_chars();
        fn report_keyboard_mode();
        fn set_keyboard_mode(mode: KeyboardModes, behavior: KeyboardModesApplyBehavior);
        fn set_modify_other_keys(mode: ModifyOtherKeys);
        fn report_modify_other_keys();
    }
}
