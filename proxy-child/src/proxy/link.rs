//! The proxy's end of the stream to the host, and what is kept for the next one.

use std::{
    io,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use ipc_protocol::{
    Event, WireError,
    codec::{Inbox, MAX_MESSAGE, Outbox, decode_frames},
    message::{FromProxy, RequestId, ToProxy},
    reattach::{Heard, Said, Wire},
};
use tokio::net::UnixStream;

use super::{HIGH_WATER, kept::Kept};

pub(crate) struct Link {
    stream: UnixStream,
    wire: Wire,
    inbox: Inbox,
    outbox: Outbox,
    /// The host closed its end, or sent what is no message.
    closed: bool,
    /// Of a session that can be detached.
    kept: Option<Kept>,
    /// Since when there is no host, for a session that is detached.
    detached: Option<Instant>,
    /// How many hosts there were.
    epoch: u64,
}

impl Link {
    pub(crate) fn new(socket: OwnedFd, kept: Option<Kept>) -> io::Result<Self> {
        Ok(Self {
            stream: stream(socket)?,
            wire: Wire::Plain,
            inbox: Inbox::default(),
            outbox: Outbox::default(),
            closed: false,
            kept,
            detached: None,
            epoch: 1,
        })
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(crate) fn wire(&self) -> Wire {
        self.wire
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether the session goes on without a host.
    pub(crate) fn outlives_host(&self) -> bool {
        self.kept.is_some()
    }

    /// Since when the session has no host.
    pub(crate) fn detached(&self) -> Option<Instant> {
        self.detached
    }

    /// Whether there is a host, as far as is known.
    pub(crate) fn has_host(&self) -> bool {
        self.detached.is_none() && !self.closed
    }

    pub(crate) fn kept(&self) -> Option<&Kept> {
        self.kept.as_ref()
    }

    /// Whether nothing waits for the host to keep it.
    pub(crate) fn is_acknowledged(&self) -> bool {
        self.kept.as_ref().is_none_or(Kept::is_acknowledged)
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
        !self.outbox.is_empty() || (!self.closed && self.kept.as_ref().is_some_and(Kept::is_behind))
    }

    /// Bytes that wait for the host to read, or as good as that.
    pub(crate) fn unsent(&self) -> usize {
        let full = self.kept.as_ref().is_some_and(Kept::is_full);
        self.outbox.len() + if full { HIGH_WATER } else { 0 }
    }

    /// The host is gone: what is told from now on is kept for the next one.
    pub(crate) fn detach(&mut self) {
        let Some(kept) = &mut self.kept else { return };
        (self.closed, self.inbox, self.outbox) = (true, Inbox::default(), Outbox::default());
        self.detached.get_or_insert_with(Instant::now);
        if let Err(error) = kept.detach() {
            let action = "keeping the session's events in a file while it has no host".to_owned();
            let event = Event::ActionFailed { action, error: error.to_string() };
            self.send(&FromProxy::Event { turn: 0, event });
        }
    }

    /// Another host takes over, which has the messages up to `after`. Its socket replaces the old one; for how long there was
    /// none.
    ///
    /// # Errors
    /// The socket cannot be used: all is as it was.
    pub(crate) fn attach(&mut self, socket: OwnedFd, wire: Wire) -> io::Result<Duration> {
        self.stream = stream(socket)?;
        (self.wire, self.closed) = (wire, false);
        (self.inbox, self.outbox) = (Inbox::default(), Outbox::default());
        self.epoch += 1;
        Ok(self.detached.take().map_or(Duration::ZERO, |since| since.elapsed()))
    }

    /// Notes what the new host has, before it is told what there is.
    pub(crate) fn replay_after(&mut self, after: u64) {
        if let Some(kept) = &mut self.kept {
            kept.attach(after);
        }
    }

    /// The host has what was said up to this one.
    pub(crate) fn acknowledge(&mut self, seq: u64) {
        if let Some(kept) = &mut self.kept {
            kept.acknowledge(seq);
        }
    }

    /// Removes what is kept.
    pub(crate) fn forget(&mut self) {
        if let Some(kept) = &mut self.kept {
            kept.remove_spool();
        }
    }

    /// Queues a message. One that is too long goes as a shorter one that says so.
    pub(crate) fn send(&mut self, message: &FromProxy) {
        if self.queue(message).is_err() {
            // Short by their nature.
            let _ = self.queue(&shorter(message));
        }
    }

    fn queue(&mut self, message: &FromProxy) -> Result<(), ipc_protocol::codec::CodecError> {
        let Some(kept) = self.kept.as_mut().filter(|_| message.is_numbered()) else {
            return if self.closed { Ok(()) } else { put(&mut self.outbox, self.wire, 0, message) };
        };
        let seq = kept.next();
        match (kept.keep(message)?, self.wire) {
            (None, _) => Ok(()),
            (Some(_), _) if self.closed => Ok(()),
            (Some(frames), Wire::Plain) => {
                self.outbox.push_encoded(frames);
                Ok(())
            }
            (Some(_), Wire::Described) => {
                // It is kept: to be sent in vain is better than to be kept twice.
                let _ = put(&mut self.outbox, self.wire, seq, message);
                Ok(())
            }
        }
    }

    /// Queues more of what a host has missed.
    fn refill(&mut self) {
        while self.outbox.len() < HIGH_WATER {
            let Some(kept) = self.kept.as_mut().filter(|kept| kept.is_behind()) else { return };
            let (outbox, wire) = (&mut self.outbox, self.wire);
            let replayed = kept.replayed(|seq, frames| match wire {
                Wire::Plain => outbox.push_encoded(frames),
                // What was encoded can be decoded.
                Wire::Described => match decode_frames::<FromProxy>(frames) {
                    Ok(message) => _ = put(outbox, wire, seq, &message),
                    Err(_) => _ = put(outbox, wire, seq, &unreadable()),
                },
            });
            match replayed {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    let lost = kept.give_up_file();
                    let reason = format!("what was kept while there was no host cannot be read ({error}): {lost} lost");
                    self.send(&FromProxy::Event { turn: 0, event: Event::SessionLossy { reason } });
                }
            }
        }
    }

    /// Writes what the host takes.
    pub(crate) fn flush(&mut self) {
        if self.closed {
            if let Some(kept) = &mut self.kept {
                kept.flush();
            }
            return;
        }
        loop {
            self.refill();
            if self.outbox.is_empty() {
                return;
            }
            match self.stream.try_write(self.outbox.chunk()) {
                Ok(written) => self.outbox.advance(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.closed = true;
                    return;
                }
            }
        }
    }

    /// The next message; `None` when there is none now.
    pub(crate) fn receive(&mut self) -> Option<ToProxy> {
        loop {
            match self.wire.next_message(&mut self.inbox) {
                Ok(Some(Heard::Known(message))) => return Some(message),
                Ok(Some(Heard::Unknown(text))) => {
                    self.refuse(&text);
                    continue;
                }
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

    /// Answers a request that a later release has and this one has not.
    fn refuse(&mut self, text: &str) {
        if let Some(request) = request_of(text) {
            let reason = "the session's proxy is of an earlier release, which does not know this request".to_owned();
            self.send(&FromProxy::Failed { request, error: WireError::Protocol { reason } });
        }
    }
}

fn stream(socket: OwnedFd) -> io::Result<UnixStream> {
    let stream = std::os::unix::net::UnixStream::from(socket);
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

/// Queues a message in the form in which the host wants it.
fn put(outbox: &mut Outbox, wire: Wire, seq: u64, message: &FromProxy) -> Result<(), ipc_protocol::codec::CodecError> {
    match wire {
        Wire::Plain => outbox.push(message),
        Wire::Described => wire.push(outbox, &Said { seq, say: message }),
    }
}

/// Stands for a kept message that cannot be read any more.
fn unreadable() -> FromProxy {
    let reason = "an event that was kept while there was no host cannot be read: it is lost".to_owned();
    FromProxy::Event { turn: 0, event: Event::SessionLossy { reason } }
}

/// The name of a request that is not known: its only field's `request`.
fn request_of(text: &str) -> Option<RequestId> {
    let message: serde_json::Value = serde_json::from_str(text).ok()?;
    message.as_object()?.values().next()?.get("request")?.as_u64()
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
