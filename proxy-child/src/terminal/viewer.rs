//! One viewer of a terminal.

use std::{
    io,
    os::{fd::OwnedFd, unix::net::UnixStream as StdStream},
    time::{Duration, Instant},
};

use ipc_protocol::{
    codec::{Inbox, Outbox},
    terminal::{FromTerminal, KeyboardWish, TerminalSize, ToTerminal},
};
use tokio::{io::Interest, net::UnixStream, sync::watch};

use super::{
    SharedTerminal, TerminalNotice, ViewerId,
    frame::FrameMaker,
    lent_terminal::{LentTerminal, Typed},
};

/// Shortest time between two frames.
pub(super) const FRAME_INTERVAL: Duration = Duration::from_millis(33);
/// Longest wait for the first message of a viewer.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(5);
/// Time between two looks for the leave of a viewer whose messages wait.
const LEAVE_INTERVAL: Duration = Duration::from_millis(500);
/// Longest time that a viewer's last frame may take.
const LAST_FRAME_TIMEOUT: Duration = Duration::from_millis(500);

/// Connection to a viewer.
pub(crate) struct ViewerLink {
    stream: UnixStream,
    inbox: Inbox,
    outbox: Outbox,
    lent: Option<LentTerminal>,
}

/// The viewer has left, or talks nonsense.
#[derive(Debug)]
pub(super) struct ViewerLeft;

impl ViewerLink {
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        let stream = StdStream::from(socket);
        stream.set_nonblocking(true)?;
        let (inbox, outbox) = Default::default();
        Ok(Self { stream: UnixStream::from_std(stream)?, inbox, outbox, lent: None })
    }

    /// Waits for the first message, for some seconds at most. A terminal that is lent before it is taken.
    pub(crate) async fn receive_first(&mut self) -> Option<ToTerminal> {
        let received = tokio::time::timeout(ATTACH_TIMEOUT, async {
            let first = self.receive().await?;
            let ToTerminal::Lend { socket, secret, detach_keys, watches } = first else { return Some(first) };
            let lent = LentTerminal::borrow(&socket, &secret, detach_keys, watches).await.ok();
            self.queue(&FromTerminal::Lent { accepted: lent.is_some() });
            self.flush().await.ok()?;
            // What is typed is for the program that the next message names.
            let first = self.receive().await?;
            self.lent = lent;
            Some(first)
        });
        received.await.ok().flatten()
    }

    /// Waits for the next message; `None` if the viewer has left, or talks nonsense.
    ///
    /// # Cancel safety
    /// Cancel safe: no message is lost.
    pub(super) async fn receive(&mut self) -> Option<ToTerminal> {
        loop {
            if let Some(message) = self.try_receive().ok()? {
                return Some(message);
            }
            self.ready(false).await.ok()?;
        }
    }

    /// Returns the next message, if it is there. What is typed on a lent terminal is one, too.
    fn try_receive(&mut self) -> Result<Option<ToTerminal>, ViewerLeft> {
        loop {
            match self.inbox.next_message() {
                Ok(Some(message)) => {
                    if let (Some(lent), ToTerminal::Continue) = (&mut self.lent, &message) {
                        lent.resume();
                    }
                    return Ok(Some(message));
                }
                Ok(None) => {}
                Err(_) => return Err(ViewerLeft),
            }
            match self.stream.try_read(self.inbox.spare()) {
                Ok(0) => return Err(ViewerLeft),
                Ok(read) => self.inbox.filled(read),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return Err(ViewerLeft),
            }
        }
        match self.lent.as_mut().map_or(Typed::Nothing, LentTerminal::try_read) {
            Typed::Nothing => Ok(None),
            Typed::Bytes(bytes) => Ok(Some(ToTerminal::Input(bytes))),
            Typed::Detach => Err(self.give_back(true)),
            Typed::Gone => Err(self.give_back(false)),
        }
    }

    /// Gives a lent terminal back.
    fn give_back(&mut self, detached: bool) -> ViewerLeft {
        let lent = self.lent.take();
        self.queue(&FromTerminal::Returned { detached });
        // A viewer that does not read sees the end of the connection.
        let _ = self.try_flush();
        lent.into_iter().for_each(|lent| lent.give_back(detached));
        ViewerLeft
    }

    /// Waits until there may be something to receive, or to send if that is wanted.
    async fn ready(&self, sends: bool) -> io::Result<()> {
        // Messages wait for what is painted.
        let paints = self.lent.as_ref().is_some_and(LentTerminal::has_unwritten);
        let sends_message = sends && !paints && !self.outbox.is_empty();
        let interest = if sends_message { Interest::READABLE | Interest::WRITABLE } else { Interest::READABLE };
        let Some(lent) = &self.lent else { return self.stream.ready(interest).await.map(drop) };
        tokio::select! {
            ready = self.stream.ready(interest) => ready.map(drop),
            ready = lent.ready(sends) => ready,
        }
    }

    pub(super) fn queue(&mut self, message: &FromTerminal) {
        if let Some(lent) = &mut self.lent {
            let mut painted = Vec::new();
            if message.paint(&mut painted) {
                lent.queue(&painted);
                if let FromTerminal::Frame { alternate, .. } = *message
                    && lent.switches_to(alternate)
                {
                    // Its mode is the viewer's to restore.
                    let _ = self.outbox.push(&FromTerminal::Frame { bytes: Vec::new(), alternate });
                }
                return;
            }
            if *message == FromTerminal::Stopped {
                lent.pause();
            }
        }
        // A frame is bounded by the screen; the clipboard by its sequence.
        let _ = self.outbox.push(message);
    }

    /// Writes what is queued, as far as it is taken. Returns true if that was all. What is painted goes before what is told.
    ///
    /// # Errors
    /// The viewer is gone.
    pub(super) fn try_flush(&mut self) -> io::Result<bool> {
        if let Some(lent) = &mut self.lent {
            match lent.try_write() {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(error) => {
                    self.give_back(false);
                    return Err(error);
                }
            }
        }
        while !self.outbox.is_empty() {
            match self.stream.try_write(self.outbox.chunk()) {
                Ok(written) => self.outbox.advance(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Writes what is queued, and receives nothing meanwhile.
    ///
    /// # Errors
    /// The viewer is gone.
    pub(super) async fn flush(&mut self) -> io::Result<()> {
        while !self.try_flush()? {
            match &self.lent {
                Some(lent) if lent.has_unwritten() => lent.writable().await,
                _ => self.stream.writable().await?,
            }
        }
        Ok(())
    }

    /// Waits until the viewer has left, without receiving: looks every now and then.
    pub(super) async fn left(&self) {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        loop {
            tokio::time::sleep(LEAVE_INTERVAL).await;
            let mut fds = [PollFd::new(&self.stream, PollFlags::RDHUP)];
            if poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
                return;
            }
        }
    }

    pub(super) fn has_unsent(&self) -> bool {
        !self.outbox.is_empty() || self.lent.as_ref().is_some_and(LentTerminal::has_unwritten)
    }

    /// Sends the last message, to a viewer that may not read.
    pub(crate) async fn close(mut self, message: &FromTerminal) {
        self.queue(message);
        let _ = tokio::time::timeout(LAST_FRAME_TIMEOUT, self.flush()).await;
    }
}

/// Viewer with its first message, for a terminal.
pub(crate) struct NewViewer {
    pub(crate) link: ViewerLink,
    pub(crate) size: TerminalSize,
    pub(crate) keyboard: KeyboardWish,
    pub(crate) in_place: bool,
}

/// Serves a viewer until it leaves or the terminal ends.
pub(super) async fn serve(viewer: NewViewer, id: ViewerId, shared: SharedTerminal) {
    let NewViewer { link, size, keyboard, in_place } = viewer;
    let size = TerminalSize::bounded(size.rows, size.columns);
    let changed = shared.changes();
    shared.lock().attach(id, size, keyboard);
    let frames = FrameMaker::new(size, in_place, &shared.lock().screen);
    Viewer { id, link, shared: shared.clone(), frames, changed, last_frame: None }.run().await;
    shared.lock().detach(id);
}

struct Viewer {
    id: ViewerId,
    link: ViewerLink,
    shared: SharedTerminal,
    frames: FrameMaker,
    changed: watch::Receiver<u64>,
    last_frame: Option<Instant>,
}

/// Event that wakes a viewer's task.
enum ViewerWake {
    Message(Option<ToTerminal>),
    Changed,
    FrameDue,
}

impl Viewer {
    async fn run(mut self) {
        let (size, types) = {
            let terminal = self.shared.lock();
            (terminal.screen.size(), terminal.types(self.id))
        };
        self.link.queue(&FromTerminal::Attached { size, types });
        // The whole screen, at once.
        let mut is_dirty = true;
        loop {
            let due = self.last_frame.map(|last| last + FRAME_INTERVAL).filter(|due| *due > Instant::now());
            let until_due = async {
                // The runtime's clock has milliseconds: what is due now does not wait for the next one.
                if let Some(due) = due {
                    tokio::time::sleep_until(due.into()).await;
                }
            };
            let wake = tokio::select! {
                biased;
                message = self.link.receive() => ViewerWake::Message(message),
                changed = self.changed.changed(), if !is_dirty => match changed {
                    Ok(()) => ViewerWake::Changed,
                    // The terminal is gone without a word.
                    Err(_) => return,
                },
                () = until_due, if is_dirty => ViewerWake::FrameDue,
            };
            match wake {
                ViewerWake::Message(Some(message)) => self.handle(message),
                ViewerWake::Message(None) => return,
                ViewerWake::Changed => {
                    is_dirty = true;
                    continue;
                }
                ViewerWake::FrameDue => {
                    is_dirty = false;
                    self.changed.mark_unchanged();
                    let has_ended = self.queue_frame();
                    let flushed = self.flush_while_reading(has_ended).await;
                    if has_ended || flushed.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Queues what the viewer lacks. Returns true if it was the last.
    fn queue_frame(&mut self) -> bool {
        let (frame, in_line, alternate, own, ended) = {
            let mut terminal = self.shared.lock();
            let own = terminal.take_words(self.id);
            let frame = self.frames.frame(&terminal.screen);
            let in_line = terminal.screen.is_in_line();
            (frame, in_line, terminal.screen.is_alternate(), own, terminal.ended)
        };
        if !frame.is_empty() {
            self.last_frame = Some(Instant::now());
            self.link.queue(&FromTerminal::Frame { bytes: frame, alternate });
        }
        own.iter().for_each(|message| self.link.queue(message));
        if let Some(exit) = ended {
            self.link.queue(&FromTerminal::Ended { exit, in_line });
        }
        ended.is_some()
    }

    /// Writes what is queued. What the viewer types meanwhile is taken: a viewer that only writes cannot block itself.
    async fn flush_while_reading(&mut self, is_last: bool) -> io::Result<()> {
        if is_last {
            let _ = tokio::time::timeout(LAST_FRAME_TIMEOUT, self.link.flush()).await;
            return Ok(());
        }
        while !self.link.try_flush()? {
            self.link.ready(true).await?;
            while let Some(message) = self.link.try_receive().map_err(|ViewerLeft| io::ErrorKind::BrokenPipe)? {
                self.handle(message);
            }
        }
        Ok(())
    }

    fn handle(&mut self, message: ToTerminal) {
        let mut terminal = self.shared.lock();
        match message {
            // These begin a connection, or are for a program without a terminal.
            ToTerminal::Attach { .. } | ToTerminal::Shell { .. } | ToTerminal::EndOfInput | ToTerminal::Lend { .. } => {
            }
            ToTerminal::Input(bytes) => {
                terminal.type_bytes(self.id, &bytes);
                // What answers a key goes at once.
                self.last_frame = None;
            }
            ToTerminal::Resize(size) => {
                let size = TerminalSize::bounded(size.rows, size.columns);
                self.frames.resize(size);
                terminal.resize(self.id, size);
            }
            ToTerminal::Take => terminal.set_wish(self.id, KeyboardWish::Take),
            ToTerminal::Continue => {
                // Its terminal shows something else by now.
                self.frames = FrameMaker::new(self.frames.size(), false, &terminal.screen);
                terminal.changed();
                terminal.notify(TerminalNotice::Continue);
            }
        }
    }
}
