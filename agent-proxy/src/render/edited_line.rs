//! Line that the user edits while something else is written to the same terminal.

use crate::term::{error_text, folded, printable};

/// What a line editor shows, with the cursor at its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct EditedLine {
    pub(crate) prompt: String,
    pub(crate) text: String,
}

impl EditedLine {
    /// Erases it on a terminal of `columns` columns. What is written then comes in its place.
    pub(crate) fn erase(&self, columns: usize) {
        let up = match self.rows_above(columns) {
            0 => String::new(),
            rows => format!("\x1b[{rows}A"),
        };
        error_text(format_args!("\r{up}\x1b[J"));
    }

    /// Draws it again. The editor moves its cursor relative to the row that it was in, so it may go on in another one.
    pub(crate) fn draw(&self) {
        error_text(format_args!("{}{}", self.prompt, printable(&self.text, true)));
    }

    /// Returns the rows between its first one and the cursor's, which is in the next row where a row is full.
    fn rows_above(&self, columns: usize) -> usize {
        let shown = format!("{}{} ", self.prompt, self.text);
        shown.split('\n').map(|line| folded(line, columns, 0).len()).sum::<usize>() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_above_the_cursor() {
        for (text, rows) in
            [("", 0), ("1234567", 0), ("12345678", 1), ("漢字漢字", 1), ("a\nb", 1), ("a\n1234567890", 2)]
        {
            let line = EditedLine { prompt: "> ".to_owned(), text: text.to_owned() };
            assert_eq!(line.rows_above(10), rows, "{text:?}");
        }
    }
}
