//! Lines that the user types, each read only on request: reading ahead would take input meant for something else.

use std::io::{self, BufRead, IsTerminal, Read};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use rustyline::{Config, Editor, error::ReadlineError, history::MemHistory};
use tokio::sync::mpsc;

use crate::term;

/// Longest line in bytes, beyond which it is split: a prompt has to fit into a message.
const LONGEST: u64 = 1 << 20;

/// Input of the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum InputLine {
    /// Line, without its end.
    Line(String),
    /// Ctrl-C while the line editor has the terminal: there is no signal then.
    Interrupted,
    /// End of input.
    End,
}

/// Standard input, read by a separate thread: reading a terminal blocks.
#[derive(Debug)]
pub(super) struct InputReader {
    prompt_sender: std::sync::mpsc::Sender<String>,
    line_receiver: mpsc::Receiver<InputLine>,
    /// Prompt of the thread's current request.
    pending_prompt: Option<String>,
    /// Terminal settings from before the editor.
    saved_terminal: Option<Termios>,
}

impl InputReader {
    /// Starts the thread; with a line editor, if `edits` and standard input and output are a terminal.
    pub(super) fn new(edits: bool) -> Self {
        let saved_terminal = if edits { tcgetattr(io::stdin()).ok() } else { None };
        let (prompt_sender, asked) = std::sync::mpsc::channel();
        let (sender, line_receiver) = mpsc::channel(1);
        // The thread ends with the process: a blocked read delays no exit.
        std::thread::spawn(move || read(edits, &asked, &sender));
        Self { prompt_sender, line_receiver, pending_prompt: None, saved_terminal }
    }

    /// Reads the next line; `prompt` is shown on a terminal. May be dropped while it waits: the line is then for
    /// the next call with the same prompt. A line typed at another prompt is discarded.
    pub(super) async fn next(&mut self, prompt: &str) -> InputLine {
        loop {
            if self.pending_prompt.is_none() {
                if self.prompt_sender.send(prompt.to_owned()).is_err() {
                    return InputLine::End;
                }
                self.pending_prompt = Some(prompt.to_owned());
            }
            let typed = self.line_receiver.recv().await.unwrap_or(InputLine::End);
            let was_for = self.pending_prompt.take();
            if matches!(typed, InputLine::Line(_)) && was_for.is_some_and(|was_for| was_for != prompt) {
                term::error_line("(nobody asks for that any more)");
                continue;
            }
            return typed;
        }
    }
}

impl Drop for InputReader {
    /// Restores the terminal: the thread may be within a line, with echo off.
    fn drop(&mut self) {
        if let Some(before) = &self.saved_terminal {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }
}

fn read(edits: bool, asked: &std::sync::mpsc::Receiver<String>, typed: &mpsc::Sender<InputLine>) {
    let is_terminal = io::stdin().is_terminal();
    let edits = edits && is_terminal && io::stdout().is_terminal();
    let mut editor = edits.then(editor).flatten();
    while let Ok(prompt) = asked.recv() {
        let line = match &mut editor {
            Some(editor) => read_edited(editor, &prompt),
            None => {
                if is_terminal {
                    term::error_text(&prompt);
                }
                read_plain()
            }
        };
        let is_end = line == InputLine::End;
        if typed.blocking_send(line).is_err() || is_end {
            return;
        }
    }
}

fn editor() -> Option<Editor<(), MemHistory>> {
    Editor::with_history(Config::default(), MemHistory::new()).ok()
}

fn read_edited(editor: &mut Editor<(), MemHistory>, prompt: &str) -> InputLine {
    match editor.readline(prompt) {
        Ok(line) => {
            // The history is for convenience only.
            let _ = editor.add_history_entry(line.as_str());
            InputLine::Line(line)
        }
        Err(ReadlineError::Interrupted) => InputLine::Interrupted,
        Err(_) => InputLine::End,
    }
}

fn read_plain() -> InputLine {
    line_of(&mut io::stdin().lock())
}

/// Reads a line; invalid UTF-8 is replaced. The rest of a line that is too long comes as the next one.
fn line_of(input: &mut impl BufRead) -> InputLine {
    let mut line = Vec::new();
    match input.take(LONGEST).read_until(b'\n', &mut line) {
        Ok(read) if read > 0 => {
            InputLine::Line(String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']).to_owned())
        }
        _ => InputLine::End,
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
            InputLine::Line(line) => Some(line),
            _ => None,
        });
        let longest = "x".repeat(LONGEST as usize);
        assert_eq!(lines.collect::<Vec<_>>(), ["caf\u{fffd}", "second", &longest, "x", "", "last"]);
    }
}
