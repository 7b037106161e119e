//! Terminal of a session: a pseudo-terminal, a model of its screen, and those who view it.
//!
//! The proxy always reads what the program writes, so no viewer holds it up. The model answers the program's queries, alone.
//! Each viewer has a task of its own, which sends it frames: what its terminal lacks of the model's screen.
//!
//! ```text
//! program ⇄ pty ⇄ run (this file) ⇄ TerminalState ⇄ viewer::serve, one each ⇄ socket, or its own terminal ⇄ viewer
//!                                        | TerminalNotice
//!                                        v
//!                                  ProxySession (proxy/session/terminal.rs): events, prompts, the end
//! ```

mod bounded_model;
mod frame;
mod lent_terminal;
mod pipes;
mod pty;
mod recording;
mod screen;
mod sequence_guard;
#[cfg(test)]
mod tests;
mod viewer;

use std::{
    collections::VecDeque,
    future::pending,
    io, mem,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use ipc_protocol::{
    ExitStatus,
    terminal::{FromTerminal, KeyboardWish, OnDetach, TerminalConfig, TerminalSize},
};
use rustix::io::{Errno, retry_on_intr};
use tokio::{
    io::unix::AsyncFd,
    sync::{mpsc, watch},
    task::{AbortHandle, JoinSet},
};

use self::screen::{Screen, ScreenEffect};
pub(crate) use self::{
    pipes::ProgramPipes,
    pty::Pty,
    viewer::{NewViewer, ViewerLink},
};

/// Most viewers of one terminal.
const MAX_VIEWERS: usize = 32;
/// Most bytes that wait for a program that does not read.
const MAX_UNREAD: usize = 1 << 20;
/// Most bytes of one read, and of one turn of the model.
const CHUNK: usize = 64 * 1024;
/// Longest wait for the first viewer of a terminal that ends with its last one: the program may have ended by then.
const FIRST_VIEWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait for the last frames of all viewers.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// Number of a viewer in its terminal's life, from 1.
pub(crate) type ViewerId = u64;

/// What a session is told of its terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TerminalNotice {
    /// Somebody views it.
    Attached { viewer: ViewerId, size: TerminalSize },
    /// A viewer has left; `last` if it was the only one.
    Detached { viewer: ViewerId, last: bool },
    /// The program has reported its status (OSC 7501).
    Status(Vec<u8>),
    /// The program has changed its title (OSC 0, OSC 2).
    Title(String),
    /// Input is dropped, since the program does not read it.
    InputDropped,
    /// A viewer typed the key that suspends.
    Suspend,
    /// A viewer wants a stopped program to go on.
    Continue,
}

/// State that the terminal's tasks share.
struct TerminalState {
    screen: Screen,
    viewers: Vec<ViewerEntry>,
    next_viewer: ViewerId,
    /// Viewer that has the keyboard.
    typist: Option<ViewerId>,
    /// Our end of the pseudo-terminal; `None` where no program is behind it.
    controller: Option<Arc<AsyncFd<OwnedFd>>>,
    /// Typed bytes and answers that the program has not read.
    unread: VecDeque<u8>,
    /// True from the first input that was dropped until the program has read all that waited.
    drops_input: bool,
    /// Exit of the program, once it has ended.
    ended: Option<Option<ExitStatus>>,
    notices: VecDeque<TerminalNotice>,
    wake: Arc<tokio::sync::Notify>,
    session_wake: Arc<tokio::sync::Notify>,
    changes: watch::Sender<u64>,
}

struct ViewerEntry {
    id: ViewerId,
    size: TerminalSize,
    wish: KeyboardWish,
    /// Messages beside frames, one of each kind: a viewer that does not read gets the latest.
    words: Vec<FromTerminal>,
}

impl ViewerEntry {
    fn queue(&mut self, word: FromTerminal) {
        self.words.retain(|queued| mem::discriminant(queued) != mem::discriminant(&word));
        self.words.push(word);
    }
}

#[derive(Clone)]
struct SharedTerminal(Arc<Mutex<TerminalState>>);

impl SharedTerminal {
    fn lock(&self) -> MutexGuard<'_, TerminalState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.lock().changes.subscribe()
    }
}

impl TerminalState {
    /// Wakes the viewers.
    fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    fn notify(&mut self, notice: TerminalNotice) {
        // Of statuses and keys the latest counts; viewers are bounded, and none of them comes or goes unseen.
        if !matches!(notice, TerminalNotice::Attached { .. } | TerminalNotice::Detached { .. }) {
            self.notices.retain(|queued| mem::discriminant(queued) != mem::discriminant(&notice));
        }
        self.notices.push_back(notice);
        self.session_wake.notify_one();
    }

    fn types(&self, id: ViewerId) -> bool {
        self.typist == Some(id)
    }

    fn viewer(&mut self, id: ViewerId) -> Option<&mut ViewerEntry> {
        self.viewers.iter_mut().find(|viewer| viewer.id == id)
    }

    fn attach(&mut self, id: ViewerId, size: TerminalSize, wish: KeyboardWish) {
        self.viewers.push(ViewerEntry { id, size, wish: KeyboardWish::Watch, words: Vec::new() });
        self.notify(TerminalNotice::Attached { viewer: id, size });
        self.set_wish(id, wish);
        if wish != KeyboardWish::Watch && self.types(id) || self.viewers.len() == 1 {
            self.use_size(size);
        }
    }

    fn detach(&mut self, id: ViewerId) {
        self.viewers.retain(|viewer| viewer.id != id);
        if self.types(id) {
            let heir = self.viewers.iter().find(|viewer| viewer.wish == KeyboardWish::Type).map(|viewer| viewer.id);
            self.give_keyboard(heir);
        }
        let last = self.viewers.is_empty();
        self.notify(TerminalNotice::Detached { viewer: id, last });
    }

    fn set_wish(&mut self, id: ViewerId, wish: KeyboardWish) {
        let Some(viewer) = self.viewer(id) else { return };
        viewer.wish = if wish == KeyboardWish::Watch { wish } else { KeyboardWish::Type };
        if wish == KeyboardWish::Take || wish == KeyboardWish::Type && self.typist.is_none() {
            self.give_keyboard(Some(id));
        }
    }

    fn give_keyboard(&mut self, id: Option<ViewerId>) {
        let before = mem::replace(&mut self.typist, id);
        if before == id {
            return;
        }
        let mut size = None;
        for viewer in &mut self.viewers {
            if Some(viewer.id) == before || Some(viewer.id) == id {
                let types = Some(viewer.id) == id;
                viewer.queue(FromTerminal::Keyboard { types });
                size = if types { Some(viewer.size) } else { size };
            }
        }
        if let Some(size) = size {
            self.use_size(size);
        }
        self.changed();
    }

    /// Types what a viewer has typed, if it has the keyboard.
    fn type_bytes(&mut self, id: ViewerId, bytes: &[u8]) {
        if !self.types(id) {
            if let Some(viewer) = self.viewer(id) {
                viewer.queue(FromTerminal::Keyboard { types: false });
                self.changed();
            }
            return;
        }
        if let Some(size) = self.viewer(id).map(|viewer| viewer.size) {
            self.use_size(size);
        }
        self.write(bytes);
    }

    /// Writes to the program, or queues what it has no room for. What it does not read is dropped beyond a bound: the session is
    /// told, and who types hears the bell.
    fn write(&mut self, bytes: &[u8]) {
        if self.unread.len() + bytes.len() <= MAX_UNREAD {
            let is_next = self.unread.is_empty();
            self.unread.extend(bytes);
            if is_next {
                self.write_unread();
            }
            if !self.unread.is_empty() {
                self.wake.notify_one();
            }
        } else if !mem::replace(&mut self.drops_input, true) {
            self.notify(TerminalNotice::InputDropped);
            self.tell_typist(FromTerminal::Bell);
            self.changed();
        }
    }

    /// Writes what the program has room for. What waits for one that has ended is dropped.
    fn write_unread(&mut self) {
        let Some(controller) = self.controller.clone() else { return };
        let (front, _) = self.unread.as_slices();
        let suspends = pty::suspends(controller.get_ref(), front);
        match retry_on_intr(|| rustix::io::write(controller.get_ref(), front)) {
            Ok(written) => {
                self.take_unread(written);
                if suspends {
                    self.notify(TerminalNotice::Suspend);
                }
            }
            Err(Errno::AGAIN) => {}
            Err(_) => self.unread.clear(),
        }
    }

    /// Removes bytes that the program has been given.
    fn take_unread(&mut self, written: usize) {
        self.unread.drain(..written);
        self.drops_input &= !self.unread.is_empty();
    }

    fn resize(&mut self, id: ViewerId, size: TerminalSize) {
        let Some(viewer) = self.viewer(id) else { return };
        viewer.size = size;
        if self.types(id) || self.viewers.len() == 1 {
            self.use_size(size);
        }
        self.changed();
    }

    fn use_size(&mut self, size: TerminalSize) {
        if self.screen.size() != size {
            self.screen.resize(size);
            if let Some(controller) = &self.controller {
                let _ = pty::set_size(controller.get_ref(), size);
            }
            self.changed();
        }
    }

    fn take_words(&mut self, id: ViewerId) -> Vec<FromTerminal> {
        self.viewer(id).map(|viewer| mem::take(&mut viewer.words)).unwrap_or_default()
    }

    /// Does what the program has done beside painting.
    fn apply_effects(&mut self) {
        for effect in self.screen.take_effects() {
            match effect {
                ScreenEffect::Answer(bytes) => self.write(&bytes),
                ScreenEffect::Clipboard(text) => self.tell_typist(FromTerminal::Clipboard(text)),
                ScreenEffect::Bell => self.tell_typist(FromTerminal::Bell),
                ScreenEffect::Status(status) => self.notify(TerminalNotice::Status(status)),
            }
        }
        if let Some(title) = self.screen.take_new_title() {
            self.notify(TerminalNotice::Title(title));
        }
    }

    fn tell_typist(&mut self, word: FromTerminal) {
        let Some(id) = self.typist else { return };
        if let Some(viewer) = self.viewer(id) {
            viewer.queue(word);
        }
    }
}

/// Terminal of a running session.
pub(crate) struct Terminal {
    shared: SharedTerminal,
    controller: Arc<AsyncFd<OwnedFd>>,
    new_viewers: mpsc::Sender<NewViewer>,
    /// End of the wait for the first viewer.
    first_viewer_due: Option<Instant>,
    run: AbortHandle,
    finished: watch::Receiver<bool>,
}

impl Terminal {
    /// Starts the terminal's task, with our end of its pseudo-terminal. `session_wake` is notified of what the session is to
    /// be told.
    pub(crate) fn start(
        config: &TerminalConfig,
        controller: OwnedFd,
        session_wake: Arc<tokio::sync::Notify>,
    ) -> io::Result<Self> {
        let controller = Arc::new(pty::watch(controller)?);
        let wake = Arc::<tokio::sync::Notify>::default();
        let screen = Screen::new(config);
        let recording =
            config.record.as_ref().map(|path| recording::Recording::create(path, screen.size())).transpose()?;
        let state = TerminalState {
            screen,
            viewers: Vec::new(),
            next_viewer: 0,
            typist: None,
            controller: Some(controller.clone()),
            unread: VecDeque::new(),
            drops_input: false,
            ended: None,
            notices: VecDeque::new(),
            wake: wake.clone(),
            session_wake,
            changes: watch::Sender::new(0),
        };
        let shared = SharedTerminal(Arc::new(Mutex::new(state)));
        let (new_viewers, viewers) = mpsc::channel(MAX_VIEWERS);
        let (done, finished) = watch::channel(false);
        let recorder = recording.map(|recording| tokio::spawn(recording.run(shared.clone())));
        let task =
            TerminalTask { shared: shared.clone(), controller: controller.clone(), wake, viewers, closed: false };
        let run = tokio::spawn(async move {
            task.run().await;
            if let Some(recorder) = recorder {
                let _ = tokio::time::timeout(END_TIMEOUT, recorder).await;
            }
            let _ = done.send(true);
        });
        let run = run.abort_handle();
        let first_viewer_due = (config.on_detach == OnDetach::End).then(|| Instant::now() + FIRST_VIEWER_TIMEOUT);
        Ok(Self { shared, controller, new_viewers, first_viewer_due, run, finished })
    }

    /// Lets somebody view it. With as many viewers as there may be, the connection is closed.
    pub(crate) fn view(&self, viewer: NewViewer) {
        let _ = self.new_viewers.try_send(viewer);
    }

    /// Returns the time until which a dead program's terminal waits for its first viewer.
    pub(crate) fn first_viewer_due(&self) -> Option<Instant> {
        let due = self.first_viewer_due.filter(|due| Instant::now() < *due)?;
        (self.shared.lock().next_viewer == 0).then_some(due)
    }

    /// Types a text and the return key, as one paste where the program knows of that.
    pub(crate) fn type_prompt(&self, text: &[u8]) {
        use alacritty_terminal::term::TermMode;
        let mut terminal = self.shared.lock();
        let text: Vec<u8> = text.iter().map(|byte| if *byte == b'\n' { b'\r' } else { *byte }).collect();
        let line = text.strip_suffix(b"\r").unwrap_or(&text);
        let pastes = terminal.screen.mode().contains(TermMode::BRACKETED_PASTE);
        let typed = if pastes { [b"\x1b[200~", line, b"\x1b[201~\r"].concat() } else { [line, b"\r"].concat() };
        terminal.write(&typed);
    }

    pub(crate) fn take_notices(&self) -> VecDeque<TerminalNotice> {
        mem::take(&mut self.shared.lock().notices)
    }

    /// Tells who types that the program has stopped itself.
    pub(crate) fn stopped(&self) {
        let mut terminal = self.shared.lock();
        terminal.tell_typist(FromTerminal::Stopped);
        terminal.changed();
    }

    /// Returns the process group in the terminal's foreground.
    pub(crate) fn foreground(&self) -> Option<i32> {
        rustix::termios::tcgetpgrp(self.controller.get_ref()).ok().map(|group| group.as_raw_nonzero().get())
    }

    /// Ends the terminal: shows what the program has left there, and tells the viewers.
    pub(crate) fn end(&self, exit: Option<ExitStatus>) {
        let mut terminal = self.shared.lock();
        let mut chunk = vec![0; CHUNK];
        // What a dead program has written, up to a bound: a survivor may go on writing.
        for _ in 0..64 {
            match rustix::io::read(self.controller.get_ref(), &mut chunk) {
                Ok(read) if read > 0 => terminal.screen.feed(&chunk[..read]),
                _ => break,
            }
        }
        terminal.screen.leave();
        terminal.apply_effects();
        terminal.ended.get_or_insert(exit);
        terminal.changed();
        terminal.wake.notify_one();
    }

    /// Waits until all viewers have their last frame, for a second at most.
    pub(crate) async fn finished(&self) {
        let mut finished = self.finished.clone();
        let _ = tokio::time::timeout(END_TIMEOUT, finished.wait_for(|done| *done)).await;
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.run.abort();
    }
}

struct TerminalTask {
    shared: SharedTerminal,
    controller: Arc<AsyncFd<OwnedFd>>,
    wake: Arc<tokio::sync::Notify>,
    viewers: mpsc::Receiver<NewViewer>,
    /// True if nobody has the other end open any more.
    closed: bool,
}

impl TerminalTask {
    async fn run(mut self) {
        let mut serving = JoinSet::new();
        let mut chunk = vec![0; CHUNK];
        loop {
            let (has_unread, update_due, has_ended) = {
                let terminal = self.shared.lock();
                (!terminal.unread.is_empty(), terminal.screen.update_due(), terminal.ended.is_some())
            };
            if has_ended {
                break;
            }
            let update = async {
                match update_due {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                () = self.wake.notified() => {}
                Some(viewer) = self.viewers.recv() => self.accept(viewer, &mut serving),
                ready = self.controller.readable(), if !self.closed => {
                    let Ok(mut ready) = ready else { self.closed = true; continue };
                    match ready.try_io(|fd| Ok(rustix::io::read(fd.get_ref(), &mut chunk)?)) {
                        Ok(Ok(read)) if read > 0 => self.take_output(&chunk[..read]),
                        Ok(_) => self.closed = true,
                        Err(_would_block) => {}
                    }
                }
                () = pty::writable(self.controller.get_ref()), if has_unread && !self.closed => {
                    self.shared.lock().write_unread();
                }
                () = update => {
                    let mut terminal = self.shared.lock();
                    terminal.screen.end_update();
                    terminal.apply_effects();
                    terminal.changed();
                }
                Some(_) = serving.join_next(), if !serving.is_empty() => {}
            }
        }
        // Each has a bound of its own for its last frame.
        while serving.join_next().await.is_some() {}
    }

    fn take_output(&self, output: &[u8]) {
        let mut terminal = self.shared.lock();
        terminal.screen.feed(output);
        terminal.apply_effects();
        terminal.changed();
    }

    fn accept(&self, viewer: NewViewer, serving: &mut JoinSet<()>) {
        if serving.len() >= MAX_VIEWERS {
            return;
        }
        let id = {
            let mut terminal = self.shared.lock();
            terminal.next_viewer += 1;
            terminal.next_viewer
        };
        serving.spawn(viewer::serve(viewer, id, self.shared.clone()));
    }
}
