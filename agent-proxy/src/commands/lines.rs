//! Lines that the user types, one at a time, each when it is asked for: who reads ahead takes what is for another.

use std::io::{self, BufRead, IsTerminal, Read};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use rustyline::{Config, Editor, error::ReadlineError, history::MemHistory};
use tokio::sync::mpsc;

use crate::term;

/// A longer line is taken for several, in bytes: a prompt has to fit into a message.
const LONGEST: u64 = 1 << 20;

/// What was typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Typed {
    /// A line, without its end.
    Line(String),
    /// Ctrl-C, where the line editor has the terminal: there is no signal then.
    Interrupted,
    /// Nothing will come any more.
    End,
}

/// Standard input, read by a thread of its own: reading a terminal blocks.
#[derive(Debug)]
pub(super) struct Lines {
    asks: std::sync::mpsc::Sender<String>,
    typed: mpsc::Receiver<Typed>,
    /// What the thread asks for now.
    asked: Option<String>,
    /// How the terminal was before an editor had it.
    before: Option<Termios>,
}

impl Lines {
    /// With a line editor, where `edits` and standard input and output are a terminal.
    pub(super) fn new(edits: bool) -> Self {
        let before = if edits { tcgetattr(io::stdin()).ok() } else { None };
        let (asks, asked) = std::sync::mpsc::channel();
        let (sender, typed) = mpsc::channel(1);
        // It ends with us: blocked in a read it holds up nobody's exit.
        std::thread::spawn(move || read(edits, &asked, &sender));
        Self { asks, typed, asked: None, before }
    }

    /// The next line; `prompt` is shown on a terminal. May be dropped while it waits: the line is then for the next call with
    /// the same prompt. One that was typed at another prompt is passed over.
    pub(super) async fn next(&mut self, prompt: &str) -> Typed {
        loop {
            if self.asked.is_none() {
                if self.asks.send(prompt.to_owned()).is_err() {
                    return Typed::End;
                }
                self.asked = Some(prompt.to_owned());
            }
            let typed = self.typed.recv().await.unwrap_or(Typed::End);
            let was_for = self.asked.take();
            if matches!(typed, Typed::Line(_)) && was_for.is_some_and(|was_for| was_for != prompt) {
                term::note("(nobody asks for that any more)");
                continue;
            }
            return typed;
        }
    }
}

impl Drop for Lines {
    /// The thread may be in the middle of a line, with a terminal that echoes nothing.
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }
}

fn read(edits: bool, asked: &std::sync::mpsc::Receiver<String>, typed: &mpsc::Sender<Typed>) {
    let is_terminal = io::stdin().is_terminal();
    let edits = edits && is_terminal && io::stdout().is_terminal();
    let mut editor = edits.then(editor).flatten();
    while let Ok(prompt) = asked.recv() {
        let line = match &mut editor {
            Some(editor) => edited(editor, &prompt),
            None => {
                if is_terminal {
                    term::part(&prompt);
                }
                plain()
            }
        };
        let is_end = line == Typed::End;
        if typed.blocking_send(line).is_err() || is_end {
            return;
        }
    }
}

fn editor() -> Option<Editor<(), MemHistory>> {
    Editor::with_history(Config::default(), MemHistory::new()).ok()
}

fn edited(editor: &mut Editor<(), MemHistory>, prompt: &str) -> Typed {
    match editor.readline(prompt) {
        Ok(line) => {
            // It is for convenience only.
            let _ = editor.add_history_entry(line.as_str());
            Typed::Line(line)
        }
        Err(ReadlineError::Interrupted) => Typed::Interrupted,
        Err(_) => Typed::End,
    }
}

fn plain() -> Typed {
    line_of(&mut io::stdin().lock())
}

/// A line; what of it is no UTF-8 is replaced. One that is too long goes on in the next.
fn line_of(input: &mut impl BufRead) -> Typed {
    let mut line = Vec::new();
    match input.take(LONGEST).read_until(b'\n', &mut line) {
        Ok(read) if read > 0 => Typed::Line(String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']).to_owned()),
        _ => Typed::End,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_is_lost() {
        let input = [&b"caf\xe9\r\nsecond\n"[..], &vec![b'x'; LONGEST as usize + 1], b"\n\nlast"].concat();
        let mut input = &input[..];
        let lines = std::iter::from_fn(|| match line_of(&mut input) {
            Typed::Line(line) => Some(line),
            _ => None,
        });
        let longest = "x".repeat(LONGEST as usize);
        assert_eq!(lines.collect::<Vec<_>>(), ["caf\u{fffd}", "second", &longest, "x", "", "last"]);
    }
}
