//! The caller's terminal, in raw mode.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    time::{Duration, Instant},
};

use ipc_protocol::terminal::TerminalSize;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::OFlags,
    termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr},
};
use tokio::io::unix::AsyncFd;

/// Turns off what a program may have turned on: mouse reports, focus reports, bracketed paste, application keys, kitty's keys,
/// synchronized updates, a link, a hidden cursor, colours.
const RESET: &[u8] = b"\x1b]8;;\x1b\\\x1b[?2026l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1005l\x1b[?1006l\x1b[?1004l\x1b[?2004l\x1b[?1l\x1b>\x1b[<u\x1b[>4;0m\x1b[0 q\x1b[?25h\x1b[m";
/// Queries for colours and the cursor's place, and one that every terminal answers.
const QUERIES: &[u8] = b"\x1b]10;?\x1b\\\x1b]11;?\x1b\\\x1b[6n\x1b[c";
/// Longest wait for the answers: those that come later would be typed into the program. Nearly every terminal answers the last query.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Terminal in raw mode; dropping it restores the mode and resets the terminal.
#[derive(Debug)]
pub(crate) struct RawTerminal {
    fd: AsyncFd<File>,
    before: Termios,
    /// True while the alternate screen is shown.
    pub(crate) alternate: bool,
    is_raw: bool,
}

/// What a terminal says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TerminalAnswers {
    pub(crate) foreground: Option<[u8; 3]>,
    pub(crate) background: Option<[u8; 3]>,
    /// Row and column of the cursor, from 1.
    pub(crate) cursor: Option<(u16, u16)>,
    /// What was typed meanwhile.
    pub(crate) typed: Vec<u8>,
}

impl RawTerminal {
    /// Opens the controlling terminal, and puts it into raw mode.
    ///
    /// # Errors
    /// There is none.
    #[expect(
        deprecated,
        reason = "what replaces it is unsafe; it is sound for an owner that lives as long as the watch"
    )]
    pub(crate) fn open() -> io::Result<Self> {
        // A description of its own: what is set on standard input others would have too.
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open("/dev/tty")?;
        let before = tcgetattr(&file)?;
        let mut terminal = Self { fd: AsyncFd::new(file)?, before, alternate: false, is_raw: false };
        terminal.enter()?;
        Ok(terminal)
    }

    /// Enters raw mode.
    pub(crate) fn enter(&mut self) -> io::Result<()> {
        let mut raw = self.before.clone();
        raw.make_raw();
        tcsetattr(self.fd.get_ref(), OptionalActions::Now, &raw)?;
        self.is_raw = true;
        Ok(())
    }

    /// Restores the mode and resets the terminal.
    pub(crate) fn leave(&mut self) {
        if !std::mem::take(&mut self.is_raw) {
            return;
        }
        let mut reset = RESET.to_vec();
        if std::mem::take(&mut self.alternate) {
            reset.extend_from_slice(b"\x1b[?1049l\x1b[?25h");
        }
        self.write_blocking(&reset);
        let _ = tcsetattr(self.fd.get_ref(), OptionalActions::Drain, &self.before);
    }

    pub(super) fn descriptor(&self) -> std::os::fd::BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(self.fd.get_ref())
    }

    pub(crate) fn size(&self) -> TerminalSize {
        let size = tcgetwinsize(self.fd.get_ref()).ok().filter(|size| size.ws_row > 0 && size.ws_col > 0);
        size.map_or_else(TerminalSize::default, |size| TerminalSize::bounded(size.ws_row, size.ws_col))
    }

    /// Writes all of it, or gives up after a second: the terminal may be stopped or gone.
    pub(crate) fn write_blocking(&self, mut bytes: &[u8]) {
        let until = Instant::now() + Duration::from_secs(1);
        while !bytes.is_empty() {
            match self.fd.get_ref().write(bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !self.wait(PollFlags::OUT, until) {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    /// Waits for the terminal; false if the time is over.
    fn wait(&self, flags: PollFlags, until: Instant) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).unwrap_or_default();
        let mut fds = [PollFd::new(self.fd.get_ref(), flags)];
        !left.is_zero() && poll(&mut fds, Some(&timeout)).is_ok_and(|ready| ready > 0)
    }

    /// Asks the terminal for its colours and the cursor's place.
    pub(crate) fn query(&self) -> TerminalAnswers {
        self.write_blocking(QUERIES);
        let until = Instant::now() + ANSWER_TIMEOUT;
        let mut bytes = Vec::new();
        let mut chunk = [0; 4096];
        while !ends_answers(&bytes) && self.wait(PollFlags::IN, until) {
            match self.fd.get_ref().read(&mut chunk) {
                Ok(read) if read > 0 => bytes.extend_from_slice(&chunk[..read]),
                _ => break,
            }
        }
        parse_answers(&bytes)
    }

    /// Waits for typed bytes. None are there any more once the terminal is gone.
    pub(crate) async fn read(&self, chunk: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut ready = self.fd.readable().await?;
            if let Ok(read) = ready.try_io(|fd| fd.get_ref().read(chunk)) {
                return read;
            }
        }
    }

    /// Writes as much as the terminal takes.
    pub(crate) async fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            let mut ready = self.fd.writable().await?;
            if let Ok(written) = ready.try_io(|fd| fd.get_ref().write(bytes)) {
                return written;
            }
        }
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Returns true once the last answer, to the query for the terminal's kind, is there.
fn ends_answers(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    text.match_indices("\x1b[?")
        .any(|(at, _)| text[at + 3..].trim_start_matches(|c: char| c.is_ascii_digit() || c == ';').starts_with('c'))
}

/// Splits answers from what was typed between them.
fn parse_answers(bytes: &[u8]) -> TerminalAnswers {
    let text = String::from_utf8_lossy(bytes);
    let mut answers = TerminalAnswers::default();
    let mut rest = &*text;
    while let Some(c) = rest.chars().next() {
        let (answer, after) = split_answer(rest);
        match answer {
            Some(answer) => {
                if let Some(color) = answer.strip_prefix("\x1b]10;") {
                    answers.foreground = parse_color(color);
                } else if let Some(color) = answer.strip_prefix("\x1b]11;") {
                    answers.background = parse_color(color);
                } else if let Some(place) = answer.strip_prefix("\x1b[").and_then(|place| place.strip_suffix('R')) {
                    answers.cursor =
                        place.split_once(';').and_then(|(row, column)| Some((row.parse().ok()?, column.parse().ok()?)));
                }
                rest = after;
            }
            None => {
                answers.typed.extend_from_slice(&rest.as_bytes()[..c.len_utf8()]);
                rest = &rest[c.len_utf8()..];
            }
        }
    }
    answers
}

/// Splits off an answer, if the text begins with one.
fn split_answer(text: &str) -> (Option<&str>, &str) {
    if text.starts_with("\x1b]1") {
        let end = [text.find("\x1b\\").map(|at| at + 2), text.find('\x07').map(|at| at + 1)];
        if let Some(end) = end.into_iter().flatten().min() {
            return (Some(&text[..end]), &text[end..]);
        }
    }
    if let Some(parameters) = text.strip_prefix("\x1b[") {
        let skipped = parameters.trim_start_matches(|c: char| c.is_ascii_digit() || matches!(c, ';' | '?'));
        let is_kind = parameters.starts_with('?') && skipped.starts_with('c');
        let is_place = parameters.len() - skipped.len() >= 3 && skipped.starts_with('R');
        if is_kind || is_place {
            let end = text.len() - skipped.len() + 1;
            return (Some(&text[..end]), &text[end..]);
        }
    }
    (None, text)
}

/// Parses `rgb:RRRR/GGGG/BBBB`.
fn parse_color(text: &str) -> Option<[u8; 3]> {
    let text = text.trim_end_matches(['\x1b', '\\', '\x07']).strip_prefix("rgb:")?;
    let mut parts = text.split('/').map(|part| u8::from_str_radix(part.get(..2)?, 16).ok());
    Some([parts.next()??, parts.next()??, parts.next()??])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_and_what_is_typed_between_them_are_told_apart() {
        let bytes = b"l\x1b]10;rgb:ffff/eeee/dddd\x1b\\s\x1b]11;rgb:0000/1111/2222\x07\x1b[7;1R\x1b[A\x1b[?62;22c\r";
        assert!(ends_answers(bytes));
        assert!(!ends_answers(b"\x1b[7;1R\x1b[?62;"));
        let expected = TerminalAnswers {
            foreground: Some([0xff, 0xee, 0xdd]),
            background: Some([0, 0x11, 0x22]),
            cursor: Some((7, 1)),
            typed: b"ls\x1b[A\r".to_vec(),
        };
        assert_eq!(parse_answers(bytes), expected);
        let typed = b"nothing but text \x1b";
        assert_eq!(parse_answers(typed), TerminalAnswers { typed: typed.to_vec(), ..TerminalAnswers::default() });
    }
}
