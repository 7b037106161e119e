//! The proxy's end of the stream to the host.

use std::{io, os::fd::OwnedFd};

use ipc_protocol::{
    Event, WireError,
    codec::{Inbox, MAX_MESSAGE, Outbox},
    message::{FromProxy, ToProxy},
};
use tokio::net::UnixStream;

pub(crate) struct Link {
    stream: UnixStream,
    inbox: Inbox,
    outbox: Outbox,
    /// The host closed its end, or sent what is no message.
    closed: bool,
}

impl Link {
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        let stream = std::os::unix::net::UnixStream::from(socket);
        stream.set_nonblocking(true)?;
        let stream = UnixStream::from_std(stream)?;
        Ok(Self { stream, inbox: Inbox::default(), outbox: Outbox::default(), closed: false })
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(crate) async fn readable(&self) {
        if self.closed || self.stream.readable().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    pub(crate) async fn writable(&self) {
        if self.closed || self.stream.writable().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    pub(crate) fn has_unsent(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Bytes that wait for the host to read.
    pub(crate) fn unsent(&self) -> usize {
        self.outbox.len()
    }

    /// Queues a message. One that is too long goes as a shorter one that says so.
    pub(crate) fn send(&mut self, message: &FromProxy) {
        if self.closed || self.outbox.push(message).is_ok() {
            return;
        }
        // Short by their nature.
        let _ = self.outbox.push(&shorter(message));
    }

    /// Writes what the host takes.
    pub(crate) fn flush(&mut self) {
        while !self.closed && !self.outbox.is_empty() {
            match self.stream.try_write(self.outbox.chunk()) {
                Ok(written) => self.outbox.advance(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.closed = true,
            }
        }
    }

    /// The next message; `None` when there is none now.
    pub(crate) fn receive(&mut self) -> Option<ToProxy> {
        loop {
            match self.inbox.next_message() {
                Ok(Some(message)) => return Some(message),
                Ok(None) => {}
                // After garbage nothing that comes can be understood: as good as gone.
                Err(_) => self.closed = true,
            }
            if self.closed {
                return None;
            }
            match self.stream.try_read(self.inbox.spare()) {
                Ok(0) => self.closed = true,
                Ok(read) => self.inbox.filled(read),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(_) => self.closed = true,
            }
        }
    }
}

/// What stands for a message that is longer than a message may be.
fn shorter(message: &FromProxy) -> FromProxy {
    let reason = format!("what is to be told is longer than a message may be ({MAX_MESSAGE} bytes)");
    match message {
        FromProxy::Ended { reason, receipt } => {
            FromProxy::Ended { reason: reason.clone(), receipt: Box::new(receipt.as_ref().clone().without_commands()) }
        }
        FromProxy::Receipt { request, receipt } => {
            FromProxy::Receipt { request: *request, receipt: Box::new(receipt.as_ref().clone().without_commands()) }
        }
        FromProxy::Processes { request, .. } => {
            FromProxy::Failed { request: *request, error: WireError::Protocol { reason } }
        }
        FromProxy::Event { turn, .. } => FromProxy::Event { turn: *turn, event: Event::SessionLossy { reason } },
        FromProxy::Failed { request, .. } => {
            FromProxy::Failed { request: *request, error: WireError::Protocol { reason } }
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use ipc_protocol::{KillCause, Outcome, ProcessId, Receipt, ReceiptEntry};

    use super::*;

    #[test]
    fn what_is_too_long_is_told_shorter() {
        let mut receipt = Receipt::begin("s".parse().expect("valid"), KillCause::KillSession);
        let id = ProcessId { pid: 1, start_time: 1 };
        let command = Some("x".repeat(MAX_MESSAGE));
        let entry = ReceiptEntry { id, ppid: 0, pgid: 1, sid: 1, command, outcome: Outcome::Gone, reaped_by: None };
        receipt.processes.push(entry);
        let too_long = Box::new(receipt);
        let mut outbox = Outbox::default();
        for message in [
            FromProxy::Receipt { request: 1, receipt: too_long.clone() },
            FromProxy::Ended { reason: ipc_protocol::EndReason::Killed, receipt: too_long },
            FromProxy::Event { turn: 1, event: Event::Text { text: "x".repeat(MAX_MESSAGE + 1) } },
        ] {
            assert!(outbox.push(&message).is_err());
            outbox.push(&shorter(&message)).expect("short enough");
        }
    }
}
