//! Terminal that a line editor shares with what else is written: the editor has a thread of its own.
//!
//! Nothing is written beside a line that is shown. The editor is asked to take it away, waits until the rest is written, and draws the
//! line again below that.

use std::{
    io::{self, Write},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rustyline::ExternalPrinter;

use crate::term::{self, folded};

/// Longest wait for the editor. It takes no notice while it searches its history, for one: then all is written beside the line, until it
/// has taken notice.
const PATIENCE: Duration = Duration::from_secs(1);

/// The two sides of the terminal: the editor's, which begins, draws and ends lines, and that of all others, which hold it.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedTerminal(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    edited: Option<EditedLine>,
    /// True while somebody waits for the editor to take its line away.
    is_wanted: bool,
    /// True while something else is written.
    is_held: bool,
}

/// Line that is edited.
struct EditedLine {
    text: String,
    /// Has the editor draw its line again.
    waker: Waker,
    is_drawn: bool,
    /// True while it has not taken notice of being woken.
    is_woken: bool,
    /// True if the line has more rows than the terminal: it cannot be taken away.
    is_tall: bool,
    /// True if the next drawing follows a key.
    follows_key: bool,
}

impl std::fmt::Debug for EditedLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EditedLine").field("text", &self.text).finish_non_exhaustive()
    }
}

/// Wakes an editor that waits for a key.
pub(crate) type Waker = Arc<Mutex<dyn ExternalPrinter + Send>>;

/// Time in which no editor writes to the terminal.
#[derive(Debug)]
pub(crate) struct TerminalHold {
    /// What is to be released.
    terminal: Option<SharedTerminal>,
    /// True if a line was taken away for it.
    pub(crate) is_above_line: bool,
}

impl SharedTerminal {
    /// Begins a line of the editor, once nothing else is written.
    pub(crate) fn begin(&self, text: &str, waker: Waker) {
        let mut state = self.wait_while(self.lock(), |state| state.is_held);
        state.edited = Some(EditedLine {
            text: text.to_owned(),
            waker,
            is_drawn: false,
            is_woken: false,
            is_tall: false,
            follows_key: false,
        });
    }

    /// Takes note of the text.
    pub(crate) fn record_text(&self, text: &str) {
        if let Some(line) = &mut self.lock().edited {
            text.clone_into(&mut line.text);
        }
    }

    /// Takes note of a key. Returns true if the line is to be drawn again at once: a drawing that follows no key is for other writers.
    pub(crate) fn record_key(&self, text: &str) -> bool {
        let mut state = self.lock();
        let Some(line) = &mut state.edited else { return false };
        line.is_tall = is_tall(text);
        line.follows_key = !line.is_tall;
        // Whatever became of it, the editor hears again.
        line.is_woken = false;
        line.follows_key
    }

    /// Gives way before the line is drawn, where the cursor is in an empty row.
    pub(crate) fn draw(&self) {
        let mut state = self.lock();
        let Some(line) = &mut state.edited else { return };
        let follows_key = std::mem::take(&mut line.follows_key) || line.is_tall;
        if std::mem::replace(&mut line.is_drawn, true) {
            if follows_key {
                return;
            }
            line.is_woken = false;
            // Whoever is woken has taken the line away, and begun another row for a text that is none.
            write("\x1b[A");
        }
        if std::mem::take(&mut state.is_wanted) {
            state.is_held = true;
            self.0.changed.notify_all();
            let _state = self.wait_while(state, |state| state.is_held);
        }
    }

    /// Ends the editor's line. Returns its text.
    pub(crate) fn end(&self) -> String {
        let mut state = self.lock();
        if std::mem::take(&mut state.is_wanted) {
            state.is_held = true;
            self.0.changed.notify_all();
        }
        state.edited.take().map(|line| line.text).unwrap_or_default()
    }

    /// Returns true while a line is edited.
    pub(crate) fn is_edited(&self) -> bool {
        self.lock().edited.is_some()
    }

    /// Has the editor take its line away until the value is dropped. A second time meanwhile changes nothing.
    pub(crate) fn hold(&self) -> TerminalHold {
        let mut state = self.lock();
        if state.is_held {
            return TerminalHold { terminal: None, is_above_line: false };
        }
        let is_above_line = state.edited.is_some();
        match &mut state.edited {
            None => state.is_held = true,
            Some(line) => {
                let is_deaf = line.is_tall || line.is_woken;
                let wakes = line.is_drawn && !is_deaf;
                line.is_woken |= wakes;
                let waker = line.waker.clone();
                state.is_wanted = !is_deaf;
                if wakes {
                    wake(waker);
                }
                // Before the first drawing it gives way by itself.
                let (mut state, _) = (self.0.changed)
                    .wait_timeout_while(state, PATIENCE, |state| state.is_wanted)
                    .unwrap_or_else(PoisonError::into_inner);
                if std::mem::take(&mut state.is_wanted) || is_deaf {
                    write("\n");
                    return TerminalHold { terminal: None, is_above_line };
                }
            }
        }
        TerminalHold { terminal: Some(self.clone()), is_above_line }
    }

    /// Has the editor take its line away for good.
    pub(crate) fn close(&self) {
        let hold = self.hold();
        if hold.is_above_line {
            // It gives way within a drawing, which terminals that can show all at once wait for.
            write("\x1b[?2026l");
        }
        std::mem::forget(hold);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while<'a>(&self, state: MutexGuard<'a, State>, is: fn(&mut State) -> bool) -> MutexGuard<'a, State> {
        self.0.changed.wait_while(state, is).unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for TerminalHold {
    fn drop(&mut self) {
        if let Some(terminal) = &self.terminal {
            terminal.lock().is_held = false;
            terminal.0.changed.notify_all();
        }
    }
}

/// Wakes an editor. An editor that takes no notice blocks whoever wakes it a second time.
fn wake(waker: Waker) {
    // Without a thread it is not woken.
    let _ = std::thread::Builder::new().spawn(move || {
        let _ = waker.lock().unwrap_or_else(PoisonError::into_inner).print(String::new());
    });
}

/// Writes to the editor's terminal.
fn write(text: &str) {
    let mut terminal = io::stdout();
    let _ = terminal.write_all(text.as_bytes()).and_then(|()| terminal.flush());
}

/// Returns true if a text has more rows than the terminal, with a prompt.
fn is_tall(text: &str) -> bool {
    let (Some(rows), Some(columns)) = (term::rows(), term::columns()) else { return false };
    // Most texts are short: they are not looked at.
    text.len() >= rows.min(columns)
        && text.split('\n').map(|line| folded(line, columns, 0).len()).sum::<usize>() >= rows
}
