//! Lines that the user types, each read only on request: reading ahead would take input meant for something else.
//!
//! What is typed while nothing is read is the terminal's. Before a question is asked it is taken from there, so that it answers nothing
//! that nobody has seen; it is the next prompt.

mod typed_ahead;

use std::{
    borrow::Cow,
    collections::VecDeque,
    io::{self, BufRead, IsTerminal, PipeReader, PipeWriter, Read, Write},
    sync::{Arc, Mutex},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    termios::{OptionalActions, Termios, tcgetattr, tcsetattr},
};
use rustyline::{
    ColorMode, Config, Context, Editor, Helper,
    completion::Completer,
    error::ReadlineError,
    highlight::{CmdKind, Highlighter},
    hint::Hinter,
    history::MemHistory,
    validate::Validator,
};
use tokio::sync::mpsc;

use self::typed_ahead::TypedAhead;
use crate::{render::shared_terminal::SharedTerminal, term};

/// Longest line in bytes, beyond which it is split: a prompt has to fit into a message.
const LONGEST: u64 = 1 << 20;

/// Longest time between the parts of a key in milliseconds, after which Esc is one by itself.
const KEY_TIME: u16 = 100;

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

/// What a line is read for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum InputPurpose {
    /// The next prompt. Text that was typed ahead comes first.
    Prompt,
    /// The answer to the question with this id. Nothing that was typed before it answers it.
    Answer(String),
    /// Whatever is typed on a terminal while something else goes on. Such a read can be given up for another.
    Ahead,
}

/// Request to the thread.
#[derive(Debug)]
struct ReadRequest {
    purpose: InputPurpose,
    /// Text in front, on a terminal.
    prompt: String,
    /// Text to begin with, before what was typed ahead: all of it is to be edited then, and nothing sent by itself.
    draft: Option<String>,
}

/// Standard input, read by a separate thread: reading a terminal blocks.
#[derive(Debug)]
pub(super) struct InputReader {
    requests: std::sync::mpsc::Sender<ReadRequest>,
    lines: mpsc::Receiver<Option<InputLine>>,
    /// Purpose of the thread's current request.
    pending: Option<InputPurpose>,
    /// Ends a read of [`InputPurpose::Ahead`].
    waker: Option<PipeWriter>,
    /// Lines that were typed ahead and are the next prompts.
    held: VecDeque<String>,
    /// True if these are to be edited first.
    edits_held: bool,
    /// Where lines are edited.
    terminal: SharedTerminal,
    /// Terminal settings from before the editor.
    saved_terminal: Option<Termios>,
}

impl InputReader {
    /// Starts the thread; with a line editor, if `edits` and standard input and output are a terminal.
    pub(super) fn new(edits: bool) -> Self {
        let saved_terminal = if io::stdin().is_terminal() { tcgetattr(io::stdin()).ok() } else { None };
        let (requests, asked) = std::sync::mpsc::channel();
        let (sender, lines) = mpsc::channel(1);
        let (wakes, waker) = io::pipe().ok().unzip();
        let terminal = SharedTerminal::default();
        let thread = InputThread::new(edits, wakes, terminal.clone());
        // The thread ends with the process: a blocked read delays no exit.
        std::thread::spawn(move || thread.run(&asked, &sender));
        Self {
            requests,
            lines,
            pending: None,
            waker,
            held: VecDeque::new(),
            edits_held: false,
            terminal,
            saved_terminal,
        }
    }

    /// Returns the terminal on which lines are edited.
    pub(super) fn terminal(&self) -> SharedTerminal {
        self.terminal.clone()
    }

    /// Returns true while a prompt is read.
    pub(super) fn reads_prompt(&self) -> bool {
        self.pending == Some(InputPurpose::Prompt)
    }

    /// Returns true while a line is read that is shown.
    pub(super) fn shows_line(&self) -> bool {
        self.pending.as_ref().is_some_and(|purpose| *purpose != InputPurpose::Ahead)
    }

    /// Reads the next line; `prompt` is shown on a terminal. May be dropped while it waits: the line is then for the next call with the
    /// same purpose. A line typed for another question is no answer to this one.
    pub(super) async fn next(&mut self, purpose: InputPurpose, prompt: &str) -> InputLine {
        loop {
            if purpose == InputPurpose::Prompt
                && !self.edits_held
                && let Some(line) = self.held.pop_front()
            {
                return typed_before(prompt, line);
            }
            if self.pending == Some(InputPurpose::Ahead) && purpose != InputPurpose::Ahead {
                self.wake();
            }
            if self.pending.is_none() {
                let is_draft = purpose == InputPurpose::Prompt && std::mem::take(&mut self.edits_held);
                let draft = is_draft.then(|| self.held.drain(..).collect::<Vec<_>>().join("\n"));
                let request = ReadRequest { purpose: purpose.clone(), prompt: prompt.to_owned(), draft };
                if self.requests.send(request).is_err() {
                    return InputLine::End;
                }
                self.pending = Some(purpose.clone());
            }
            let Some(typed) = self.lines.recv().await.unwrap_or(Some(InputLine::End)) else {
                // It was given up.
                self.pending = None;
                continue;
            };
            let was_for = self.pending.take();
            let InputLine::Line(text) = typed else { return typed };
            if was_for.as_ref() == Some(&purpose) {
                return InputLine::Line(text);
            }
            match (was_for, &purpose) {
                // An answer, to a question that nobody asks any more.
                (Some(InputPurpose::Answer(_)), InputPurpose::Answer(_)) => say_late(),
                (Some(InputPurpose::Answer(_)), _) if is_answer(&text) => say_late(),
                // The line that was edited when this question came.
                (Some(InputPurpose::Prompt), InputPurpose::Answer(_)) if is_answer(&text) => {}
                // A line that was typed before this question.
                (_, InputPurpose::Answer(_)) => self.hold(text),
                _ => return InputLine::Line(text),
            }
        }
    }

    /// Holds a line that was typed ahead, for the next prompt.
    pub(super) fn hold(&mut self, line: String) {
        self.held.push_back(line);
    }

    /// Has what was typed ahead be edited, and not sent by itself.
    pub(super) fn edit_held(&mut self) {
        self.edits_held = true;
    }

    fn wake(&self) {
        if let Some(waker) = &self.waker {
            let _ = (&*waker).write(&[0]);
        }
    }
}

impl Drop for InputReader {
    /// Restores the terminal: the thread may be within a line, with echo off, and be told of pastes.
    fn drop(&mut self) {
        if let Some(before) = &self.saved_terminal {
            if self.terminal.is_edited() {
                term::error_text("\x1b[?2004l");
            }
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }
}

fn say_late() {
    term::error_line("(nobody asks for that any more)");
}

/// Shows a line that was typed before its prompt as if it had been typed there.
fn typed_before(prompt: &str, line: String) -> InputLine {
    term::error_line(format_args!("{prompt}{}", term::printable(&line, true)));
    InputLine::Line(line)
}

/// Returns true for text that answers a question and is hardly a prompt.
fn is_answer(text: &str) -> bool {
    let text = text.trim().to_ascii_lowercase();
    text.is_empty() || ["y", "yes", "n", "no"].contains(&&*text) || text.parse::<usize>().is_ok()
}

/// Thread that reads.
struct InputThread {
    is_terminal: bool,
    edits: bool,
    terminal: SharedTerminal,
    editor: Option<LineEditor>,
    /// True once the editor may have read what it has not returned.
    has_edited: bool,
    wakes: Option<PipeReader>,
    ahead: TypedAhead,
}

type LineEditor = Editor<EditorHooks, MemHistory>;

impl InputThread {
    fn new(edits: bool, wakes: Option<PipeReader>, terminal: SharedTerminal) -> Self {
        let is_terminal = io::stdin().is_terminal();
        let edits = edits && is_terminal && io::stdout().is_terminal();
        let editor = edits.then(|| line_editor(&terminal)).flatten();
        Self { is_terminal, edits, terminal, editor, has_edited: false, wakes, ahead: TypedAhead::default() }
    }

    fn run(mut self, asked: &std::sync::mpsc::Receiver<ReadRequest>, typed: &mpsc::Sender<Option<InputLine>>) {
        while let Ok(ReadRequest { purpose, prompt, draft }) = asked.recv() {
            let line = match purpose {
                InputPurpose::Prompt => Some(self.prompt(&prompt, draft)),
                InputPurpose::Answer(_) => Some(self.answer(&prompt)),
                InputPurpose::Ahead => self.read_ahead(),
            };
            let is_end = line == Some(InputLine::End);
            if typed.blocking_send(line).is_err() || is_end {
                return;
            }
        }
    }

    /// Reads a prompt. What was typed ahead is the prompt if it is a line, and its beginning otherwise.
    fn prompt(&mut self, prompt: &str, draft: Option<String>) -> InputLine {
        if !self.is_terminal {
            return read_plain();
        }
        if !self.has_edited || draft.is_some() {
            // An editor that has read some of it reads the rest by itself.
            self.ahead.take_pending();
        }
        if let Some(draft) = draft {
            self.forget_read();
            self.ahead.begin_with(draft);
        } else if let Some(line) = self.ahead.next_line() {
            return typed_before(prompt, line);
        }
        let begun = self.ahead.take_begun();
        match &mut self.editor {
            Some(editor) => {
                self.has_edited = true;
                read_edited(editor, prompt, &begun)
            }
            None => {
                term::error_text(format_args!("{prompt}{}", term::printable(&begun, true)));
                match read_plain() {
                    InputLine::Line(line) => InputLine::Line(begun + &line),
                    other => other,
                }
            }
        }
    }

    /// Forgets what the editor has read and not returned: nothing of it is to be sent by itself.
    fn forget_read(&mut self) {
        if let Some(editor) = &mut self.editor
            && let Some(mut fresh) = line_editor(&self.terminal)
        {
            std::mem::swap(fresh.history_mut(), editor.history_mut());
            *editor = fresh;
        }
    }

    /// Reads an answer, with an editor of its own: one that has read prompts may hold text that was typed before the question.
    fn answer(&mut self, prompt: &str) -> InputLine {
        if self.is_terminal {
            self.ahead.take_typing();
        }
        match self.edits.then(|| line_editor(&self.terminal)).flatten() {
            Some(mut editor) => read_edited(&mut editor, prompt, ""),
            None => {
                if self.is_terminal {
                    term::error_text(prompt);
                }
                read_plain()
            }
        }
    }

    /// Reads what is typed meanwhile; `None` if it is given up. Several lines at once, as from a paste, are one.
    fn read_ahead(&mut self) -> Option<InputLine> {
        if let Some(line) = self.ahead.next_line() {
            return Some(InputLine::Line(line));
        }
        let (stdin, wakes) = (io::stdin(), self.wakes.as_ref()?);
        let is_ready = |timeout: Option<&Timespec>| {
            let mut fds = [PollFd::new(&stdin, PollFlags::IN), PollFd::new(wakes, PollFlags::IN)];
            let polled = poll(&mut fds, timeout);
            (polled.is_ok() && !fds[0].revents().is_empty(), polled.is_ok() && !fds[1].revents().is_empty())
        };
        let (mut typed, mut chunk) = (Vec::new(), [0; 4096]);
        loop {
            let (has_line, is_woken) = is_ready(None);
            if is_woken {
                let _ = (&*wakes).read(&mut [0; 64]);
                self.ahead.add(&typed);
                return None;
            }
            if !has_line {
                // Interrupted by a signal.
                continue;
            }
            match rustix::io::read(&stdin, &mut chunk) {
                Ok(read @ 1..) => typed.extend_from_slice(&chunk[..read]),
                _ => return Some(InputLine::End),
            }
            // Ctrl-D hands over a line that is not ended.
            if typed.ends_with(b"\n") && !is_ready(Some(&Timespec::default())).0 {
                let text = self.ahead.take_begun() + &String::from_utf8_lossy(&typed);
                return Some(InputLine::Line(text.trim_end_matches('\n').to_owned()));
            }
        }
    }
}

/// Tells the terminal's other writers what the editor does.
#[derive(Debug)]
struct EditorHooks(SharedTerminal);

impl Hinter for EditorHooks {
    type Hint = String;

    fn hint(&self, line: &str, _pos: usize, _ctx: &Context<'_>) -> Option<String> {
        self.0.record_text(line);
        None
    }
}

impl Highlighter for EditorHooks {
    /// Is asked at each key. With true the line is drawn at once.
    fn highlight_char(&self, line: &str, _pos: usize, _kind: CmdKind) -> bool {
        self.0.record_key(line)
    }

    /// Is asked before the line is drawn.
    fn highlight_prompt<'b, 's: 'b, 'p: 'b>(&'s self, prompt: &'p str, _default: bool) -> Cow<'b, str> {
        self.0.draw();
        prompt.into()
    }
}

impl Completer for EditorHooks {
    type Candidate = String;
}
impl Validator for EditorHooks {}
impl Helper for EditorHooks {}

fn line_editor(terminal: &SharedTerminal) -> Option<LineEditor> {
    // Without colours nothing of a helper's is asked.
    let config = Config::builder().color_mode(ColorMode::Forced).keyseq_timeout(Some(KEY_TIME)).build();
    let mut editor = Editor::with_history(config, MemHistory::new()).ok()?;
    // A terminal that cannot do it has no editor either.
    editor.create_external_printer().ok()?;
    editor.set_helper(Some(EditorHooks(terminal.clone())));
    Some(editor)
}

/// Reads a line. Ctrl-C in a line with text clears it.
fn read_edited(editor: &mut LineEditor, prompt: &str, begun: &str) -> InputLine {
    let mut begun = begun.to_owned();
    let terminal = editor.helper().map(|hooks| hooks.0.clone()).unwrap_or_default();
    loop {
        if let Ok(waker) = editor.create_external_printer() {
            terminal.begin(&begun, Arc::new(Mutex::new(waker)));
        }
        let read = editor.readline_with_initial(prompt, (&begun, ""));
        let text = terminal.end();
        match read {
            Ok(line) => {
                // The history is for convenience only.
                let _ = editor.add_history_entry(line.as_str());
                return InputLine::Line(line);
            }
            Err(ReadlineError::Interrupted) if !text.is_empty() => begun.clear(),
            Err(ReadlineError::Interrupted) => return InputLine::Interrupted,
            Err(_) => return InputLine::End,
        }
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

    #[test]
    fn an_answer_that_comes_too_late_is_no_prompt() {
        for text in ["y", " NO ", "2", ""] {
            assert!(is_answer(text), "{text:?}");
        }
        for text in ["yes, do it", "2 files", "none"] {
            assert!(!is_answer(text), "{text:?}");
        }
    }
}
