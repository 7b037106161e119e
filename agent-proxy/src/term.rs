//! The only module that writes to standard output and standard error.

use std::{
    fmt::Display,
    io::{self, IsTerminal, Write},
};

use crate::problem::{Failure, Problem};

/// Writes to standard output and flushes, so that a stream is seen as it comes.
///
/// # Errors
/// [`Failure::Closed`] when the reader has gone; a problem for a full disk and the like.
pub(crate) fn out(text: impl Display) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    write!(stdout, "{text}").and_then(|()| stdout.flush()).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::Closed,
        _ => Problem::failed(format!("writing to standard output failed: {error}")).into(),
    })
}

/// Writes a line to standard output.
///
/// # Errors
/// As [`out`].
pub(crate) fn line(text: impl Display) -> Result<(), Failure> {
    out(format_args!("{text}\n"))
}

/// Writes a JSON value as one line to standard output.
///
/// # Errors
/// As [`out`].
pub(crate) fn json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value).map_err(|error| Problem::failed(format!("JSON: {error}")))?;
    line(text)
}

/// Writes a line to standard error. Nobody can be told if that fails.
pub(crate) fn note(text: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Writes to standard error, without a newline.
pub(crate) fn part(text: impl Display) {
    let _ = write!(io::stderr().lock(), "{text}");
}

/// Tells of a problem on standard error: as a sentence, or as a problem object.
pub(crate) fn problem(problem: &Problem, as_json: bool) {
    if as_json && let Ok(text) = serde_json::to_string(problem) {
        return note(text);
    }
    note(format_args!("{} {}", Style::stderr().red("error:"), problem.detail));
}

/// Colours, on a terminal only and never with `NO_COLOR`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    on: bool,
}

impl Style {
    /// No colour.
    #[cfg(test)]
    pub(crate) const PLAIN: Self = Self { on: false };

    /// For standard output.
    pub(crate) fn stdout() -> Self {
        Self { on: io::stdout().is_terminal() && colour_wanted() }
    }

    /// For standard error.
    pub(crate) fn stderr() -> Self {
        Self { on: io::stderr().is_terminal() && colour_wanted() }
    }

    /// Whether there is colour.
    pub(crate) fn is_on(self) -> bool {
        self.on
    }

    fn paint(self, code: &str, text: impl Display) -> String {
        if self.on { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
    }

    /// A heading, a name.
    pub(crate) fn bold(self, text: impl Display) -> String {
        self.paint("1", text)
    }

    /// What is beside the point.
    pub(crate) fn dim(self, text: impl Display) -> String {
        self.paint("2", text)
    }

    /// What went wrong, what is alive and should not be.
    pub(crate) fn red(self, text: impl Display) -> String {
        self.paint("31", text)
    }

    /// What is as it should be.
    pub(crate) fn green(self, text: impl Display) -> String {
        self.paint("32", text)
    }

    /// What needs a look.
    pub(crate) fn yellow(self, text: impl Display) -> String {
        self.paint("33", text)
    }
}

fn colour_wanted() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()) && std::env::var_os("TERM").is_none_or(|t| t != "dumb")
}

/// Columns of the terminal on standard output; `None` where it is none.
pub(crate) fn columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    (size.ws_col > 0).then_some(usize::from(size.ws_col))
}

/// Text of an agent's or a process's for a terminal: its control characters, which could move the cursor or hide what
/// stands there, become `\u{…}`; newlines and tabs stay where `multiline`.
pub(crate) fn printable(text: &str, multiline: bool) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() && !(multiline && matches!(c, '\n' | '\t')) {
            safe.extend(c.escape_default());
        } else {
            safe.push(c);
        }
    }
    safe
}

/// The agent's text for standard output: bytes for another program stay as they are.
pub(crate) fn for_stdout(text: &str) -> String {
    if io::stdout().is_terminal() { printable(text, true) } else { text.to_owned() }
}

/// At most `width` characters of `text`, with an ellipsis where some were cut.
pub(crate) fn clip(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(width.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(printable("a\x1b[2Jb\tc\n", true), "a\\u{1b}[2Jb\tc\n");
        assert_eq!(printable("two\nlines", false), "two\\nlines");
        assert_eq!(printable("\u{9b}31m ü", true), "\\u{9b}31m ü");
    }

    #[test]
    fn clipped_text_fits() {
        assert_eq!(clip("abc", 3), "abc");
        assert_eq!(clip("abcd", 3), "ab…");
        assert_eq!(clip("äöüß", 3), "äö…");
    }

    #[test]
    fn plain_style_adds_nothing() {
        assert_eq!(Style::PLAIN.red("x"), "x");
        assert_eq!(Style { on: true }.red("x"), "\x1b[31mx\x1b[0m");
    }
}
