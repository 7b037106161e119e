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

/// Longest wait for the editor. It takes no notice while it searches its history, for one.
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
    is_woken: bool,
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
    terminal: SharedTerminal,
    /// True if a line was taken away for it.
    pub(crate) is_above_line: bool,
}

impl SharedTerminal {
    /// Begins a line of the editor, once nothing else is written.
    pub(crate) fn begin(&self, text: &str, waker: Waker) {
        let mut state = self.wait_while(self.lock(), |state| state.is_held);
        let text = text.to_owned();
        state.edited = Some(EditedLine { text, waker, is_drawn: false, is_woken: false, follows_key: false });
    }

    /// Takes note of the text.
    pub(crate) fn record_text(&self, text: &str) {
        if let Some(line) = &mut self.lock().edited {
            text.clone_into(&mut line.text);
        }
    }

    /// Says that the next drawing follows a key.
    pub(crate) fn record_key(&self) {
        if let Some(line) = &mut self.lock().edited {
            line.follows_key = true;
        }
    }

    /// Gives way before the line is drawn, where the cursor is in an empty row.
    pub(crate) fn draw(&self) {
        let mut state = self.lock();
        let Some(line) = &mut state.edited else { return };
        let follows_key = std::mem::take(&mut line.follows_key);
        if std::mem::replace(&mut line.is_drawn, true) {
            if follows_key {
                return;
            }
            line.is_woken = false;
            // Whoever is woken has taken the line away, and begun another row for a text that is none.
            let mut terminal = io::stdout();
            let _ = terminal.write_all(b"\x1b[A").and_then(|()| terminal.flush());
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

    /// Has the editor take its line away until the value is dropped.
    pub(crate) fn hold(&self) -> TerminalHold {
        let mut state = self.lock();
        let is_above_line = state.edited.is_some();
        match &mut state.edited {
            None => state.is_held = true,
            Some(line) => {
                // Before the first drawing it gives way by itself.
                let waker = (line.is_drawn && !std::mem::replace(&mut line.is_woken, true)).then(|| line.waker.clone());
                state.is_wanted = true;
                drop(state);
                if let Some(waker) = waker {
                    let _ = waker.lock().unwrap_or_else(PoisonError::into_inner).print(String::new());
                }
                let (mut state, waited) = (self.0.changed)
                    .wait_timeout_while(self.lock(), PATIENCE, |state| state.is_wanted)
                    .unwrap_or_else(PoisonError::into_inner);
                if waited.timed_out() && std::mem::take(&mut state.is_wanted) {
                    // It has not heard, or will do so later.
                    state.edited.iter_mut().for_each(|line| line.is_woken = false);
                    crate::term::error_line("");
                }
            }
        }
        TerminalHold { terminal: self.clone(), is_above_line }
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
        self.terminal.lock().is_held = false;
        self.terminal.0.changed.notify_all();
    }
}
