//! Viewing a session's terminal in the caller's own.

mod loan;
mod raw_terminal;

use std::{future::Future, io, time::Duration};

use api_types::{ProblemDetails, TerminalViewer};
use ipc_protocol::{
    ExitStatus, WireError,
    terminal::{DetachFilter, DetachKeys, FromTerminal, KeyboardWish, ToTerminal},
};
use nix::sys::signal::{Signal, kill};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    signal::unix::{SignalKind, signal},
};

use self::loan::{Loan, LoanAnswer};
pub(crate) use self::raw_terminal::{RawTerminal, TerminalAnswers};

/// Longest wait for the proxy to let go of a terminal that it was lent.
const RETURN_TIMEOUT: Duration = Duration::from_millis(500);

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
    /// True if the session's proxy may be on this machine, and is to read and write the caller's terminal itself.
    pub(crate) lends: bool,
    /// What was typed before.
    pub(crate) typed: Vec<u8>,
}

/// Shows the session's terminal in the caller's until one of them ends. `connect` connects to the session's.
///
/// # Errors
/// Those of `connect`; `failed` if the caller's terminal cannot be used.
pub(crate) async fn view<S: AsyncRead + AsyncWrite + Unpin>(
    connect: impl AsyncFn() -> Result<TerminalViewer<S>, ProblemDetails>,
    terminal: &mut RawTerminal,
    options: ViewOptions,
) -> Result<ViewEnd, ProblemDetails> {
    let ViewOptions { keyboard, in_place, .. } = options;
    let attach = ToTerminal::Attach { size: terminal.size(), keyboard, in_place };
    view_from(connect, terminal, attach, options).await
}

/// The same, with another first message.
///
/// # Errors
/// Same as [`view`].
pub(crate) async fn view_from<S: AsyncRead + AsyncWrite + Unpin>(
    connect: impl AsyncFn() -> Result<TerminalViewer<S>, ProblemDetails>,
    terminal: &mut RawTerminal,
    first: ToTerminal,
    options: ViewOptions,
) -> Result<ViewEnd, ProblemDetails> {
    let failed = |error: io::Error| ProblemDetails::failed(format!("showing the session in this terminal: {error}"));
    let mut viewer = connect().await?;
    let mut ends = EndSignals::new().map_err(failed)?;
    let is_reader = options.keyboard == KeyboardWish::Watch;
    let mut loan = None;
    if options.lends {
        let answer = tokio::select! {
            answer = loan::offer(&mut viewer, terminal, options.detach_keys.clone(), is_reader) => answer,
            () = ends.recv() => return Ok(ViewEnd::Signal),
        };
        match answer {
            LoanAnswer::Accepted(accepted) => loan = Some(accepted),
            LoanAnswer::Refused => {}
            LoanAnswer::Closed => viewer = connect().await?,
        }
    }
    let filter = DetachFilter::new(options.detach_keys);
    let mut view = View { viewer, terminal, filter, unwritten: Vec::new(), is_reader, loan };
    let end = view.run(&first, &options.typed, ends).await.map_err(failed)?;
    if view.loan.is_some() {
        // It may be about to paint.
        let _ = tokio::time::timeout(RETURN_TIMEOUT, view.viewer.leave()).await;
    }
    Ok(end)
}

struct View<'a, S> {
    viewer: TerminalViewer<S>,
    terminal: &'a mut RawTerminal,
    filter: DetachFilter,
    /// Frames that the caller's terminal has not taken.
    unwritten: Vec<u8>,
    is_reader: bool,
    /// The caller's terminal, where the proxy reads and writes it.
    loan: Option<Loan>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> View<'_, S> {
    async fn run(&mut self, first: &ToTerminal, typed: &[u8], mut ends: EndSignals) -> io::Result<ViewEnd> {
        let mut resized = signal(SignalKind::window_change())?;
        if self.viewer.send(first).await.is_err() {
            return Ok(ViewEnd::Lost);
        }
        if let Some(end) = self.typed(typed).await {
            return Ok(end);
        }
        let mut chunk = vec![0; 16 * 1024];
        loop {
            tokio::select! {
                biased;
                () = ends.recv() => return Ok(ViewEnd::Signal),
                _ = resized.recv() => {
                    if self.viewer.send(&ToTerminal::Resize(self.terminal.size())).await.is_err() {
                        return Ok(ViewEnd::Lost);
                    }
                }
                read = self.terminal.read(&mut chunk), if self.loan.is_none() => match read {
                    Ok(read) if read > 0 => {
                        if let Some(end) = self.typed(&chunk[..read]).await {
                            return Ok(end);
                        }
                    }
                    _ => return Ok(ViewEnd::TerminalGone),
                },
                written = self.terminal.write(&self.unwritten), if !self.unwritten.is_empty() => match written {
                    Ok(written) => drop(self.unwritten.drain(..written)),
                    Err(_) => return Ok(ViewEnd::TerminalGone),
                },
                // The session's terminal waits with its next frame until this one is shown.
                message = self.viewer.next(), if self.unwritten.is_empty() => {
                    let Some(message) = message else { return Ok(ViewEnd::Lost) };
                    if let Some(end) = self.receive(message).await {
                        return Ok(end);
                    }
                }
                detached = returned(&mut self.loan) => {
                    let given_back = if detached { ViewEnd::Detached } else { ViewEnd::TerminalGone };
                    // The session says so, too, unless its daemon hangs.
                    let told = tokio::time::timeout(RETURN_TIMEOUT, self.end_of_session());
                    return Ok(told.await.unwrap_or(given_back));
                }
            }
        }
    }

    /// Waits for what ends viewing.
    async fn end_of_session(&mut self) -> ViewEnd {
        while let Some(message) = self.viewer.next().await {
            if let Some(end) = self.receive(message).await {
                return end;
            }
        }
        ViewEnd::Lost
    }

    async fn typed(&mut self, bytes: &[u8]) -> Option<ViewEnd> {
        let mut out = Vec::new();
        let detaches = self.filter.take(bytes, &mut out);
        if !out.is_empty() && !self.is_reader && self.viewer.send(&ToTerminal::Input(out)).await.is_err() {
            return Some(ViewEnd::Lost);
        }
        // Who only watches leaves with Ctrl-C, too.
        (detaches || self.is_reader && bytes.contains(&3)).then_some(ViewEnd::Detached)
    }

    async fn receive(&mut self, message: FromTerminal) -> Option<ViewEnd> {
        match message {
            FromTerminal::Frame { alternate, .. } => {
                self.terminal.alternate = alternate;
                message.paint(&mut self.unwritten);
            }
            FromTerminal::Bell | FromTerminal::Clipboard(_) => drop(message.paint(&mut self.unwritten)),
            FromTerminal::Attached { .. }
            | FromTerminal::Keyboard { .. }
            | FromTerminal::Output { .. }
            | FromTerminal::Lent { .. } => {}
            FromTerminal::Returned { detached: true } => return Some(ViewEnd::Detached),
            FromTerminal::Returned { detached: false } => return Some(ViewEnd::TerminalGone),
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

/// Waits until a lent terminal is given back; for ever without one.
async fn returned(loan: &mut Option<Loan>) -> bool {
    match loan {
        Some(loan) => loan.returned().await,
        None => std::future::pending().await,
    }
}

/// Signals that ask this process to end.
pub(crate) struct EndSignals([tokio::signal::unix::Signal; 3]);

impl EndSignals {
    /// Handles them from now on.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self([signal(SignalKind::terminate())?, signal(SignalKind::hangup())?, signal(SignalKind::interrupt())?]))
    }

    /// Waits for one of them.
    pub(crate) fn recv(&mut self) -> impl Future<Output = ()> {
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
