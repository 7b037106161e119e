//! Output to standard output and standard error, which no other module writes to.

use std::{
    fmt::Display,
    io::{self, IsTerminal, Write},
    os::fd::AsFd,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{FileType, fstat},
    process::getpgrp,
    termios::{LocalModes, OptionalActions, tcgetattr, tcgetpgrp, tcsetattr},
};

use unicode_width::UnicodeWidthChar as _;

use api_types::ProblemDetails;
use api_types::is_hidden;
pub(crate) use api_types::printable;

use crate::command_failure::CommandFailure;

/// Distance of a terminal's tab stops.
const TAB: usize = 8;

/// Time between two looks whether standard output is still read.
const CLOSED_INTERVAL: Duration = Duration::from_secs(1);

/// Writes to standard output and flushes, so that a stream is visible at once.
///
/// # Errors
/// [`CommandFailure::Closed`] when the reader has closed it; a problem for other errors such as a full disk.
pub(crate) fn out(text: impl Display) -> Result<(), CommandFailure> {
    let mut stdout = io::stdout().lock();
    write!(stdout, "{text}").and_then(|()| stdout.flush()).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => CommandFailure::Closed,
        _ => ProblemDetails::failed(format!("writing to standard output failed: {error}")).into(),
    })
}

/// Writes a line to standard output.
///
/// # Errors
/// Same as [`out`].
pub(crate) fn line(text: impl Display) -> Result<(), CommandFailure> {
    out(format_args!("{text}\n"))
}

/// Writes a JSON value as one line to standard output.
///
/// # Errors
/// Same as [`out`].
pub(crate) fn json(value: &impl serde::Serialize) -> Result<(), CommandFailure> {
    let text = serde_json::to_string(value).map_err(|error| ProblemDetails::failed(format!("JSON: {error}")))?;
    line(json_for_stdout(&text))
}

/// Prepares JSON for standard output: on a terminal, what could move the cursor or hide text is escaped as JSON can. The value stays the same.
pub(crate) fn json_for_stdout(text: &str) -> String {
    if io::stdout().is_terminal() { printable_json(text) } else { text.to_owned() }
}

/// Escapes hidden characters and the control characters that JSON may have in its strings.
fn printable_json(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        // Those below U+0020 are in no string; between the members they are line breaks.
        if is_hidden(c) || matches!(c, '\u{7f}'..='\u{9f}') {
            safe.extend(c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")));
        } else {
            safe.push(c);
        }
    }
    safe
}

/// Writes a line to standard error, broken between words on a terminal. A failure is ignored: there is nowhere else to
/// report it.
pub(crate) fn error_line(text: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{}", filled(&text.to_string(), columns_of(io::stderr())));
}

/// Returns the columns of the terminal on standard error; `None` if that is no terminal.
#[cfg(feature = "engine")]
pub(crate) fn error_columns() -> Option<usize> {
    columns_of(io::stderr())
}

/// Rings the bell of the terminal on standard error, if that is one.
pub(crate) fn ring_bell() {
    if io::stderr().is_terminal() {
        error_text("\x07");
    }
}

/// Writes to standard error, without a newline.
pub(crate) fn error_text(text: impl Display) {
    let _ = write!(io::stderr().lock(), "{text}");
}

/// Reports a problem on standard error: as a sentence, or as a problem object.
pub(crate) fn problem(problem: &ProblemDetails, as_json: bool) {
    if as_json && let Ok(text) = serde_json::to_string(problem) {
        let text = if io::stderr().is_terminal() { printable_json(&text) } else { text };
        // Not broken between words: it is one line of JSON.
        return error_text(format_args!("{text}\n"));
    }
    // Much of it is an agent's own words.
    error_line(format_args!("{} {}", TermStyle::stderr().red("error:"), printable(&problem.detail, true)));
}

/// Colours, used on a terminal only and never with `NO_COLOR`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TermStyle {
    on: bool,
}

impl TermStyle {
    /// Style without colour.
    #[cfg(test)]
    pub(crate) const PLAIN: Self = Self { on: false };

    /// Style without colour, for text that is drawn elsewhere.
    pub(crate) fn without_colour() -> Self {
        Self { on: false }
    }

    /// Style for standard output.
    pub(crate) fn stdout() -> Self {
        Self { on: io::stdout().is_terminal() && is_colour_enabled() }
    }

    /// Style for standard error.
    pub(crate) fn stderr() -> Self {
        Self { on: io::stderr().is_terminal() && is_colour_enabled() }
    }

    /// Returns true if colours are on.
    pub(crate) fn is_on(self) -> bool {
        self.on
    }

    fn paint(self, code: &str, text: impl Display) -> String {
        if self.on { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
    }

    /// Formats a heading or a name.
    pub(crate) fn bold(self, text: impl Display) -> String {
        self.paint("1", text)
    }

    /// Formats secondary text.
    pub(crate) fn dim(self, text: impl Display) -> String {
        self.paint("2", text)
    }

    /// Formats an error, or a process that is alive and should not be.
    pub(crate) fn red(self, text: impl Display) -> String {
        self.paint("31", text)
    }

    /// Formats a good result.
    pub(crate) fn green(self, text: impl Display) -> String {
        self.paint("32", text)
    }

    /// Formats a warning.
    pub(crate) fn yellow(self, text: impl Display) -> String {
        self.paint("33", text)
    }
}

fn is_colour_enabled() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()) && std::env::var_os("TERM").is_none_or(|t| t != "dumb")
}

/// Returns the columns of the terminal on standard output; `None` if that is no terminal.
pub(crate) fn columns() -> Option<usize> {
    columns_of(io::stdout())
}

/// Returns the rows of the terminal on standard output; `None` if that is no terminal.
pub(crate) fn rows() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    (size.ws_row > 0).then_some(usize::from(size.ws_row))
}

fn columns_of(terminal: impl AsFd) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(terminal).ok()?;
    (size.ws_col > 0).then_some(usize::from(size.ws_col))
}

/// Breaks lines that are longer than `width` columns between words. What follows is indented as its line is; a longer
/// word, such as an address, stays whole.
pub(crate) fn filled(text: &str, width: Option<usize>) -> String {
    let Some(width) = width else { return text.to_owned() };
    let fill = |line: &str| {
        let indent = &line[..line.len() - line.trim_start().len()];
        let options = textwrap::Options::new(width)
            .subsequent_indent(indent)
            .break_words(false)
            .word_splitter(textwrap::WordSplitter::NoHyphenation);
        textwrap::fill(line, options)
    };
    text.split('\n').map(fill).collect::<Vec<_>>().join("\n")
}

/// Cuts a line into rows of `width` columns, wherever words end. Further rows are indented by `indent` columns.
pub(crate) fn folded(line: &str, width: usize, indent: usize) -> Vec<String> {
    let width = width.max(1);
    let indent = if indent < width { indent } else { 0 };
    let (mut rows, mut row, mut columns) = (Vec::new(), String::new(), 0);
    for c in line.chars() {
        let taken = if c == '\t' { TAB - columns % TAB } else { c.width().unwrap_or(0) };
        if columns + taken > width && columns > 0 {
            rows.push(std::mem::replace(&mut row, " ".repeat(indent)));
            columns = indent;
        }
        if c == '\t' {
            row.extend(std::iter::repeat_n(' ', taken.min(width)));
        } else {
            row.push(c);
        }
        columns += taken;
    }
    rows.push(row);
    rows
}

/// Cuts the lines of a permission request for a terminal of `width` columns. What continues a line is indented more than it: no text of
/// an agent begins a row.
pub(crate) fn folded_details(details: &[String], width: Option<usize>) -> Vec<String> {
    let Some(width) = width else { return details.iter().map(|line| format!("  {line}")).collect() };
    let fold = |line: &String| {
        let line = format!("  {line}");
        let indent = (line.len() - line.trim_start().len() + 2).min(width / 2);
        folded(&line, width, indent)
    };
    details.iter().flat_map(fold).collect()
}

/// Returns true if another program reads standard output.
pub(crate) fn is_stdout_piped() -> bool {
    let kind = fstat(io::stdout()).map(|stat| FileType::from_raw_mode(stat.st_mode));
    matches!(kind, Ok(FileType::Fifo | FileType::Socket))
}

/// Waits until another program that reads standard output has closed it; for ever where that cannot be seen.
pub(crate) async fn closed() {
    if !is_stdout_piped() {
        return std::future::pending().await;
    }
    loop {
        tokio::time::sleep(CLOSED_INTERVAL).await;
        let stdout = io::stdout();
        let mut fds = [PollFd::new(&stdout, PollFlags::empty())];
        if poll(&mut fds, Some(&Timespec::default())).is_ok() && fds[0].revents().contains(PollFlags::ERR) {
            return;
        }
    }
}

/// Returns true unless another job has the terminal on standard error.
pub(crate) fn is_foreground() -> bool {
    tcgetpgrp(io::stderr()).map_or(true, |group| group == getpgrp())
}

/// Turns the echo of the terminal on standard error on or off. Returns true if that changed it: in the raw mode of a
/// line editor it is off, and to a job in the background it is denied.
pub(crate) fn set_echo(on: bool) -> bool {
    let Ok(mut settings) = tcgetattr(io::stderr()) else { return false };
    if settings.local_modes.contains(LocalModes::ECHO) == on || !is_foreground() {
        return false;
    }
    settings.local_modes.set(LocalModes::ECHO, on);
    tcsetattr(io::stderr(), OptionalActions::Now, &settings).is_ok()
}

/// Prepares the agent's text for standard output: bytes for another program stay unchanged.
pub(crate) fn for_stdout(text: &str) -> String {
    if io::stdout().is_terminal() { printable(text, true) } else { text.to_owned() }
}

/// Clips `text` to `width` characters, with an ellipsis if some were cut.
pub(crate) fn clip(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(width.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

/// Clips `text` to its last `width` characters, with an ellipsis if some were cut.
pub(crate) fn clip_start(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.to_owned();
    }
    let cut = length - width.saturating_sub(1);
    format!("…{}", text.chars().skip(cut).collect::<String>())
}

/// Prints what one does next, dim on standard error, if that is a terminal.
pub(crate) fn tip(lines: &[(String, &str)]) {
    if !io::stderr().is_terminal() {
        return;
    }
    let width = lines.iter().map(|(command, _)| command.chars().count()).max().unwrap_or(0);
    for (at, (command, what)) in lines.iter().enumerate() {
        let lead = if at == 0 { "next:" } else { "" };
        error_line(TermStyle::stderr().dim(format_args!("{lead:<5} {command:<width$}  {what}")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_on_a_terminal_has_the_same_value() {
        let value = serde_json::json!({ "a\u{9b}": "\u{1b}[2J\n\u{202e}b\u{e0041}ü", "c": ["\u{7f}"] });
        for text in [value.to_string(), format!("{value:#}")] {
            let safe = printable_json(&text);
            assert!(safe.chars().all(|c| !is_hidden(c) && (c == '\n' || !c.is_control())), "{safe}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&safe).expect("JSON"), value);
        }
    }

    #[test]
    fn clipped_text_fits() {
        assert_eq!(clip("abc", 3), "abc");
        assert_eq!(clip("abcd", 3), "ab…");
        assert_eq!(clip("äöüß", 3), "äö…");
        assert_eq!(clip_start("abc", 3), "abc");
        assert_eq!(clip_start("äöüß", 3), "…üß");
    }

    #[test]
    fn lines_are_cut_by_columns() {
        assert_eq!(folded("abcdef", 4, 0), ["abcd", "ef"]);
        assert_eq!(folded("漢字漢", 4, 0), ["漢字", "漢"]);
        assert_eq!(folded("a\tb", 10, 0), ["a       b"]);
        assert_eq!(folded("", 4, 0), [""]);
        assert_eq!(folded("abcdefg", 4, 2), ["abcd", "  ef", "  g"]);
        assert_eq!(folded("abc", 1, 2), ["a", "b", "c"]);
    }

    #[test]
    fn no_text_of_an_agent_begins_a_row() {
        let details = ["command  xxxxxxxxxx".to_owned(), "         y = allow".to_owned()];
        for width in 8..40 {
            let rows = folded_details(&details, Some(width));
            assert!(rows.iter().all(|row| row.starts_with("  ")), "{width}: {rows:?}");
        }
        assert_eq!(folded_details(&details, None), ["  command  xxxxxxxxxx", "           y = allow"]);
    }

    #[test]
    fn long_lines_are_broken_between_words() {
        assert_eq!(filled("one two\n  three four five\n", Some(12)), "one two\n  three four\n  five\n");
        assert_eq!(filled("at http://127.0.0.1:8080/ now", Some(12)), "at\nhttp://127.0.0.1:8080/\nnow");
        assert_eq!(filled("\x1b[2mone two\x1b[0m three", Some(7)), "\x1b[2mone two\x1b[0m\nthree");
        assert_eq!(filled("one two", None), "one two");
    }

    #[test]
    fn plain_style_adds_nothing() {
        assert_eq!(TermStyle::PLAIN.red("x"), "x");
        assert_eq!(TermStyle { on: true }.red("x"), "\x1b[31mx\x1b[0m");
    }
}
