//! Viewing a session's terminal in the caller's own.

mod detach_keys;
mod raw_terminal;

use std::{future::Future, io};

use api_types::TerminalViewer;
use ipc_protocol::{
    ExitStatus, WireError,
    terminal::{FromTerminal, KeyboardWish, ToTerminal},
};
use nix::sys::signal::{Signal, kill};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    signal::unix::{SignalKind, signal},
};

use self::detach_keys::DetachFilter;
pub(crate) use self::{
    detach_keys::DetachKeys,
    raw_terminal::{RawTerminal, TerminalAnswers},
};

/// Leaves the line in which a program has its cursor, and erases what it shows below: the program does not tidy up for one who leaves.
pub(crate) const LEAVE_LINE: &str = "\r\n\x1b[J";

/// Reason why viewing has ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ViewEnd {
    /// The program has ended; `None` if the session ended with the program running.
    Ended(Option<ExitStatus>),
    /// The viewer typed the keys that detach.
    Detached,
    /// This process was asked to end.
    Signal,
    /// The caller's terminal is gone.
    TerminalGone,
    /// The connection broke off.
    Lost,
    /// The program was not started.
    Refused(WireError),
}

/// How a terminal is viewed.
#[derive(Debug)]
pub(crate) struct ViewOptions {
    pub(crate) keyboard: KeyboardWish,
    /// True if the caller's terminal shows what the session's does at its beginning.
    pub(crate) in_place: bool,
    /// Keys that detach; `None` where that is not possible.
    pub(crate) detach_keys: Option<DetachKeys>,
    /// What was typed before.
    pub(crate) typed: Vec<u8>,
}

/// Shows the session's terminal in the caller's until one of them ends.
///
/// # Errors
/// The caller's terminal cannot be used.
pub(crate) async fn view<S: AsyncRead + AsyncWrite + Unpin>(
    viewer: TerminalViewer<S>,
    terminal: &mut RawTerminal,
    options: ViewOptions,
) -> io::Result<ViewEnd> {
    let ViewOptions { keyboard, in_place, .. } = options;
    let attach = ToTerminal::Attach { size: terminal.size(), keyboard, in_place };
    view_from(viewer, terminal, attach, options).await
}

/// The same, with another first message.
///
/// # Errors
/// The caller's terminal cannot be used.
pub(crate) async fn view_from<S: AsyncRead + AsyncWrite + Unpin>(
    viewer: TerminalViewer<S>,
    terminal: &mut RawTerminal,
    first: ToTerminal,
    options: ViewOptions,
) -> io::Result<ViewEnd> {
    let mut resized = signal(SignalKind::window_change())?;
    let mut ends = EndSignals::new()?;
    let filter = DetachFilter::new(options.detach_keys);
    let is_reader = options.keyboard == KeyboardWish::Watch;
    let mut view = View { viewer, terminal, filter, unwritten: Vec::new(), is_reader };
    if view.viewer.send(&first).await.is_err() {
        return Ok(ViewEnd::Lost);
    }
    if let Some(end) = view.typed(&options.typed).await {
        return Ok(end);
    }
    let mut chunk = vec![0; 16 * 1024];
    loop {
        tokio::select! {
            biased;
            () = ends.recv() => return Ok(ViewEnd::Signal),
            _ = resized.recv() => {
                if view.viewer.send(&ToTerminal::Resize(view.terminal.size())).await.is_err() {
                    return Ok(ViewEnd::Lost);
                }
            }
            read = view.terminal.read(&mut chunk) => match read {
                Ok(read) if read > 0 => {
                    if let Some(end) = view.typed(&chunk[..read]).await {
                        return Ok(end);
                    }
                }
                _ => return Ok(ViewEnd::TerminalGone),
            },
            written = view.terminal.write(&view.unwritten), if !view.unwritten.is_empty() => match written {
                Ok(written) => drop(view.unwritten.drain(..written)),
                Err(_) => return Ok(ViewEnd::TerminalGone),
            },
            // The session's terminal waits with its next frame until this one is shown.
            message = view.viewer.next(), if view.unwritten.is_empty() => {
                let Some(message) = message else { return Ok(ViewEnd::Lost) };
                if let Some(end) = view.receive(message).await {
                    return Ok(end);
                }
            }
        }
    }
}

struct View<'a, S> {
    viewer: TerminalViewer<S>,
    terminal: &'a mut RawTerminal,
    filter: DetachFilter,
    /// Frames that the caller's terminal has not taken.
    unwritten: Vec<u8>,
    is_reader: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> View<'_, S> {
    async fn typed(&mut self, bytes: &[u8]) -> Option<ViewEnd> {
        let mut out = Vec::new();
        let detaches = self.filter.take(bytes, &mut out);
        // Who only watches leaves with Ctrl-C, too.
        if detaches || self.is_reader && bytes.contains(&3) {
            return Some(ViewEnd::Detached);
        }
        if out.is_empty() || self.is_reader {
            return None;
        }
        self.viewer.send(&ToTerminal::Input(out)).await.err().map(|_| ViewEnd::Lost)
    }

    async fn receive(&mut self, message: FromTerminal) -> Option<ViewEnd> {
        match message {
            FromTerminal::Frame { bytes, alternate } => {
                self.terminal.alternate = alternate;
                self.unwritten.extend_from_slice(&bytes);
            }
            FromTerminal::Bell => self.unwritten.push(7),
            FromTerminal::Clipboard(text) => {
                use base64::Engine as _;
                let text = base64::engine::general_purpose::STANDARD.encode(text);
                self.unwritten.extend_from_slice(format!("\x1b]52;c;{text}\x07").as_bytes());
            }
            FromTerminal::Attached { .. } | FromTerminal::Keyboard { .. } | FromTerminal::Output { .. } => {}
            FromTerminal::Refused(error) => return Some(ViewEnd::Refused(error)),
            FromTerminal::Stopped => return self.suspend().await,
            FromTerminal::Ended { exit, in_line } => {
                if in_line {
                    self.unwritten.extend_from_slice(b"\r\n");
                }
                self.terminal.write_blocking(&self.unwritten);
                return Some(ViewEnd::Ended(exit));
            }
        }
        None
    }

    /// Stops this process too, as the shell that started it expects; goes on when that continues it.
    async fn suspend(&mut self) -> Option<ViewEnd> {
        self.terminal.write_blocking(&std::mem::take(&mut self.unwritten));
        self.terminal.leave();
        // Without a shell that could continue it, the kernel does not stop it.
        let _ = kill(nix::unistd::Pid::from_raw(0), Signal::SIGTSTP);
        if self.terminal.enter().is_err() {
            return Some(ViewEnd::TerminalGone);
        }
        let size = self.terminal.size();
        let (resize, proceed) = (ToTerminal::Resize(size), ToTerminal::Continue);
        for message in [resize, proceed] {
            if self.viewer.send(&message).await.is_err() {
                return Some(ViewEnd::Lost);
            }
        }
        None
    }
}

/// Signals that ask this process to end.
struct EndSignals([tokio::signal::unix::Signal; 3]);

impl EndSignals {
    fn new() -> io::Result<Self> {
        Ok(Self([signal(SignalKind::terminate())?, signal(SignalKind::hangup())?, signal(SignalKind::interrupt())?]))
    }

    fn recv(&mut self) -> impl Future<Output = ()> {
        let [terminate, hangup, interrupt] = &mut self.0;
        async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
                _ = interrupt.recv() => {}
            }
        }
    }
}
