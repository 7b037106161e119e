//! A session's running text, bounded, and wrapped for the window that shows it.

use std::collections::VecDeque;

use ipc_protocol::Event;

use crate::{
    render::log_text::LogText,
    term::{TermStyle, folded},
};

/// Lines that are kept.
const MAX_LINES: usize = 2_000;
/// Longest line that is kept, in bytes: the rest begins another.
const MAX_LINE: usize = 8 << 10;

/// Text of a session.
#[derive(Debug)]
pub(super) struct SessionText {
    log: LogText,
    lines: VecDeque<String>,
    /// Rows that the view is above the end; 0 follows the end.
    pub(super) scroll: usize,
}

impl SessionText {
    pub(super) fn new() -> Self {
        Self { log: LogText::new(TermStyle::without_colour(), true), lines: VecDeque::from([String::new()]), scroll: 0 }
    }

    /// Adds an event. Returns true if that adds text.
    pub(super) fn add(&mut self, event: &Event) -> bool {
        let text = self.log.add(event);
        for c in text.chars() {
            let full = self.lines.back().is_none_or(|line| line.len() >= MAX_LINE);
            if c == '\n' || full {
                self.lines.push_back(String::new());
                if self.lines.len() > MAX_LINES {
                    self.lines.pop_front();
                }
            }
            if c != '\n'
                && let Some(line) = self.lines.back_mut()
            {
                line.push(c);
            }
        }
        !text.is_empty()
    }

    /// Returns the rows of a window: the last ones, or those that it is scrolled to.
    pub(super) fn rows(&mut self, width: usize, height: usize) -> Vec<String> {
        let wanted = height.saturating_add(self.scroll);
        let mut rows: VecDeque<String> = VecDeque::new();
        for (at, line) in self.lines.iter().enumerate().rev() {
            if line.is_empty() && at + 1 == self.lines.len() {
                continue;
            }
            for row in folded(line, width, 0).into_iter().rev() {
                rows.push_front(row);
            }
            if rows.len() >= wanted {
                break;
            }
        }
        // Scrolled beyond the beginning.
        self.scroll = self.scroll.min(rows.len().saturating_sub(height));
        let end = rows.len().saturating_sub(self.scroll);
        rows.into_iter().take(end).skip(end.saturating_sub(height)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Event {
        Event::Text { text: text.into() }
    }

    #[test]
    fn the_end_is_shown_and_scrolling_goes_back() {
        let mut shown = SessionText::new();
        assert!(!shown.add(&Event::SessionIdle {}));
        assert!(shown.add(&text("one\ntwo\nthr")) && shown.add(&text("ee\nfour\n")));
        assert_eq!(shown.rows(10, 2), ["three", "four"]);
        shown.scroll = 1;
        assert_eq!(shown.rows(10, 2), ["two", "three"]);
        shown.scroll = 100;
        assert_eq!((shown.rows(10, 2), shown.scroll), (vec!["one".to_owned(), "two".to_owned()], 2));
    }

    #[test]
    fn memory_is_bounded() {
        let mut shown = SessionText::new();
        (0..3_000).for_each(|n| _ = shown.add(&text(&format!("{n}\n"))));
        assert!(shown.lines.len() <= MAX_LINES);
        shown.add(&text(&"x".repeat(5 * MAX_LINE)));
        assert!(shown.lines.iter().all(|line| line.len() <= MAX_LINE));
        assert_eq!(shown.rows(80, 1).len(), 1);
    }
}
