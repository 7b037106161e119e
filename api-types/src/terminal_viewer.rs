//! Viewer of a session's terminal, over any stream.

use std::io;

use ipc_protocol::{
    codec::{Inbox, encode},
    terminal::{FromTerminal, ToTerminal},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::UnixStream,
};

/// Connection to a session's terminal. Dropping it is the viewer's leave.
#[derive(Debug)]
pub struct TerminalViewer<S = UnixStream> {
    stream: S,
    inbox: Inbox,
}

impl<S: AsyncRead + AsyncWrite + Unpin> TerminalViewer<S> {
    /// Creates a viewer over a stream that leads to a terminal: what [`TerminalViewer::into_stream`] gave, through any
    /// number of pipes.
    pub fn over(stream: S) -> Self {
        Self { stream, inbox: Inbox::default() }
    }

    /// Returns the stream, of which nothing was read yet.
    pub fn into_stream(self) -> S {
        self.stream
    }

    /// Waits for the next message; `None` once the terminal is gone.
    ///
    /// # Cancel safety
    /// Cancel safe: no message is lost.
    pub async fn next(&mut self) -> Option<FromTerminal> {
        loop {
            match self.inbox.next_message() {
                Ok(Some(message)) => return Some(message),
                Ok(None) => {}
                Err(_) => return None,
            }
            match self.stream.read(self.inbox.spare()).await {
                Ok(read) if read > 0 => self.inbox.filled(read),
                _ => return None,
            }
        }
    }

    /// Sends a message. The first has to be [`ToTerminal::Attach`].
    ///
    /// # Errors
    /// The terminal is gone.
    ///
    /// # Cancel safety
    /// Not cancel safe: a part may have been sent, after which the connection is of no use.
    pub async fn send(&mut self, message: &ToTerminal) -> io::Result<()> {
        let mut bytes = Vec::new();
        encode(message, &mut bytes).map_err(io::Error::other)?;
        self.stream.write_all(&bytes).await?;
        self.stream.flush().await
    }

    /// Leaves, and waits until the terminal has taken notice: what it painted until then is painted.
    ///
    /// # Cancel safety
    /// Cancel safe: the terminal takes notice all the same.
    pub async fn leave(&mut self) {
        if self.stream.shutdown().await.is_ok() {
            while self.next().await.is_some() {}
        }
    }
}
