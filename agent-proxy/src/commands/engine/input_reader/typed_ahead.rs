//! Text that was typed while nobody read it.

use std::{collections::VecDeque, io};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    termios::{LocalModes, OptionalActions, SpecialCodeIndex, tcgetattr, tcsetattr},
};

/// Pause after which somebody who was typing has seen what came on the screen.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 400_000_000 };
/// Most of such a text, in bytes. Whoever holds a key down is asked all the same.
const MAX_TYPED: usize = 64 * 1024;

/// Lines that were typed ahead, and the line that was begun.
#[derive(Debug, Default)]
pub(super) struct TypedAhead {
    lines: VecDeque<String>,
    begun: String,
}

impl TypedAhead {
    /// Takes what the terminal holds.
    pub(super) fn take_pending(&mut self) {
        self.add(&read_pending(None));
    }

    /// Takes what the terminal holds and, if somebody is in the middle of typing, what comes until a pause.
    pub(super) fn take_typing(&mut self) {
        self.add(&read_pending(Some(&PAUSE)));
    }

    /// Returns the oldest line.
    pub(super) fn next_line(&mut self) -> Option<String> {
        self.lines.pop_front()
    }

    /// Returns the line that was begun.
    pub(super) fn take_begun(&mut self) -> String {
        std::mem::take(&mut self.begun)
    }

    /// Makes all of it one text that is begun, with `text` in front.
    pub(super) fn begin_with(&mut self, text: String) {
        let begun = self.take_begun();
        let parts = std::iter::once(text).chain(self.lines.drain(..)).chain(std::iter::once(begun));
        self.begun = parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n");
    }

    /// Adds what was typed.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        let mut characters = text.chars();
        while let Some(c) = characters.next() {
            match c {
                '\r' | '\n' => {
                    let line = self.take_begun();
                    if !line.trim().is_empty() {
                        self.lines.push_back(line);
                    }
                }
                // The keys that take back a character, and all.
                '\u{7f}' | '\u{8}' => _ = self.begun.pop(),
                '\u{15}' => self.begun.clear(),
                // A key with a name, and the marks around a paste: up to a letter or `~`.
                '\u{1b}' => {
                    if matches!(characters.clone().next(), Some('[' | 'O')) {
                        characters.next();
                        let _ = characters.by_ref().find(|c| c.is_ascii_alphabetic() || *c == '~');
                    }
                }
                '\t' => self.begun.push(c),
                c if c.is_control() => {}
                c => self.begun.push(c),
            }
        }
    }
}

/// Reads what the terminal on standard input holds, whether its lines are ended or not. With `pause`, anything there has it read on until
/// nothing comes for that long.
fn read_pending(pause: Option<&Timespec>) -> Vec<u8> {
    let (stdin, mut typed) = (io::stdin(), Vec::new());
    let Ok(before) = tcgetattr(&stdin) else { return typed };
    let mut raw = before.clone();
    raw.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
    raw.special_codes[SpecialCodeIndex::VMIN] = 0;
    raw.special_codes[SpecialCodeIndex::VTIME] = 0;
    // Neither discards what was typed.
    if tcsetattr(&stdin, OptionalActions::Now, &raw).is_err() {
        return typed;
    }
    let mut chunk = [0; 4096];
    while typed.len() < MAX_TYPED {
        let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
        let wait = pause.filter(|_| !typed.is_empty()).copied().unwrap_or_default();
        if poll(&mut fds, Some(&wait)) != Ok(1) {
            break;
        }
        match rustix::io::read(&stdin, &mut chunk) {
            Ok(read @ 1..) => typed.extend_from_slice(&chunk[..read]),
            _ => break,
        }
    }
    let _ = tcsetattr(&stdin, OptionalActions::Now, &before);
    typed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_become_lines_and_what_is_begun() {
        let mut ahead = TypedAhead::default();
        ahead.add(b"say on\x7fe\r\n  \rsay t\x1b[Dwo\n\x1b[200~sa");
        ahead.add("y ü\x1b[201~\u{0}".as_bytes());
        assert_eq!([ahead.next_line(), ahead.next_line()], [Some("say oe".into()), Some("say two".into())]);
        assert_eq!((ahead.next_line(), ahead.take_begun().as_str()), (None, "say ü"));
        ahead.add(b"wrong\x15a\rb\rc");
        ahead.begin_with("first".to_owned());
        assert_eq!((ahead.next_line(), ahead.take_begun().as_str()), (None, "first\na\nb\nc"));
    }
}
