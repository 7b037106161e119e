//! Connection to the host, on the proxy's side, with the replay buffer for the next host.

use std::{
    io,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use ipc_protocol::{
    Event, WireError,
    codec::{Inbox, MAX_MESSAGE, Outbox, decode_frames},
    message::{FromProxy, RequestId, ToProxy},
    reattach::{NumberedMessage, ReceivedMessage, WireFormat},
};
use tokio::net::UnixStream;

use super::{HIGH_WATER, replay_buffer::ReplayBuffer};

pub(crate) struct HostLink {
    stream: UnixStream,
    wire: WireFormat,
    inbox: Inbox,
    outbox: Outbox,
    /// True if the host closed its end, or sent something that is no message.
    closed: bool,
    /// Replay buffer, for a session that can be detached.
    replay_buffer: Option<ReplayBuffer>,
    /// Start of the time without a host, for a detached session.
    detached: Option<Instant>,
    /// Number of hosts so far.
    epoch: u64,
}

impl HostLink {
    pub(crate) fn new(socket: OwnedFd, kept: Option<ReplayBuffer>) -> io::Result<Self> {
        Ok(Self {
            stream: stream(socket)?,
            wire: WireFormat::Bincode,
            inbox: Inbox::default(),
            outbox: Outbox::default(),
            closed: false,
            replay_buffer: kept,
            detached: None,
            epoch: 1,
        })
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(crate) fn wire(&self) -> WireFormat {
        self.wire
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns whether the session goes on without a host.
    pub(crate) fn is_detachable(&self) -> bool {
        self.replay_buffer.is_some()
    }

    /// Returns the time since which the session has no host.
    pub(crate) fn detached(&self) -> Option<Instant> {
        self.detached
    }

    /// Returns whether there is a host, as far as is known.
    pub(crate) fn has_host(&self) -> bool {
        self.detached.is_none() && !self.closed
    }

    pub(crate) fn replay_buffer(&self) -> Option<&ReplayBuffer> {
        self.replay_buffer.as_ref()
    }

    /// Returns whether the host has acknowledged everything.
    pub(crate) fn is_acknowledged(&self) -> bool {
        self.replay_buffer.as_ref().is_none_or(ReplayBuffer::is_acknowledged)
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
        !self.outbox.is_empty() || (!self.closed && self.replay_buffer.as_ref().is_some_and(ReplayBuffer::is_behind))
    }

    /// Returns the bytes that wait for the host, plus [`HIGH_WATER`] if the replay buffer is full.
    pub(crate) fn unsent(&self) -> usize {
        let full = self.replay_buffer.as_ref().is_some_and(ReplayBuffer::is_full);
        self.outbox.len() + if full { HIGH_WATER } else { 0 }
    }

    /// Keeps all further messages for the next host, since this one is gone.
    pub(crate) fn detach(&mut self) {
        let Some(kept) = &mut self.replay_buffer else { return };
        (self.closed, self.inbox, self.outbox) = (true, Inbox::default(), Outbox::default());
        self.detached.get_or_insert_with(Instant::now);
        if let Err(error) = kept.detach() {
            let action = "keeping the session's events in a file while it has no host".to_owned();
            let event = Event::ActionFailed { action, error: error.to_string() };
            self.send(&FromProxy::Event { turn: 0, event });
        }
    }

    /// Connects to the socket of a new host, which replaces the old one. Returns the time without a host.
    ///
    /// # Errors
    /// The socket cannot be used: nothing has changed.
    pub(crate) fn attach(&mut self, socket: OwnedFd, wire: WireFormat) -> io::Result<Duration> {
        self.stream = stream(socket)?;
        (self.wire, self.closed) = (wire, false);
        (self.inbox, self.outbox) = (Inbox::default(), Outbox::default());
        self.epoch += 1;
        Ok(self.detached.take().map_or(Duration::ZERO, |since| since.elapsed()))
    }

    /// Starts the replay of the messages after `after`, before the new host gets anything else.
    pub(crate) fn start_replay(&mut self, after: u64) {
        if let Some(kept) = &mut self.replay_buffer {
            kept.attach(after);
        }
    }

    /// Removes the messages up to this number, since the host has them.
    pub(crate) fn acknowledge(&mut self, seq: u64) {
        if let Some(kept) = &mut self.replay_buffer {
            kept.acknowledge(seq);
        }
    }

    /// Removes the replay buffer's file.
    pub(crate) fn discard_replay(&mut self) {
        if let Some(kept) = &mut self.replay_buffer {
            kept.remove_spool();
        }
    }

    /// Queues a message. A message that is too long is replaced by a shorter one that reports it.
    pub(crate) fn send(&mut self, message: &FromProxy) {
        if self.queue(message).is_err() {
            // The replacements are short.
            let _ = self.queue(&truncated(message));
        }
    }

    fn queue(&mut self, message: &FromProxy) -> Result<(), ipc_protocol::codec::CodecError> {
        let Some(kept) = self.replay_buffer.as_mut().filter(|_| message.is_numbered()) else {
            return if self.closed { Ok(()) } else { push_message(&mut self.outbox, self.wire, 0, message) };
        };
        let seq = kept.next();
        match (kept.retain(message)?, self.wire) {
            (None, _) => Ok(()),
            (Some(_), _) if self.closed => Ok(()),
            (Some(frames), WireFormat::Bincode) => {
                self.outbox.push_encoded(frames);
                Ok(())
            }
            (Some(_), WireFormat::Json) => {
                // The message is kept: a lost copy is better than keeping it twice.
                let _ = push_message(&mut self.outbox, self.wire, seq, message);
                Ok(())
            }
        }
    }

    /// Queues more of the messages that the host has missed.
    fn refill(&mut self) {
        while self.outbox.len() < HIGH_WATER {
            let Some(kept) = self.replay_buffer.as_mut().filter(|kept| kept.is_behind()) else { return };
            let (outbox, wire) = (&mut self.outbox, self.wire);
            let replayed = kept.replay_chunk(|seq, frames| match wire {
                WireFormat::Bincode => outbox.push_encoded(frames),
                // A message that was encoded can be decoded.
                WireFormat::Json => match decode_frames::<FromProxy>(frames) {
                    Ok(message) => _ = push_message(outbox, wire, seq, &message),
                    Err(_) => _ = push_message(outbox, wire, seq, &unreadable_marker()),
                },
            });
            match replayed {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    let lost = kept.abandon_spool();
                    let reason = format!("what was kept while there was no host cannot be read ({error}): {lost} lost");
                    self.send(&FromProxy::Event { turn: 0, event: Event::SessionLossy { reason } });
                }
            }
        }
    }

    /// Writes what the host accepts.
    pub(crate) fn flush(&mut self) {
        if self.closed {
            if let Some(kept) = &mut self.replay_buffer {
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

    /// Returns the next message, or `None` if there is none now.
    pub(crate) fn receive(&mut self) -> Option<ToProxy> {
        loop {
            match self.wire.next_message(&mut self.inbox) {
                Ok(Some(ReceivedMessage::Understood(message))) => return Some(message),
                Ok(Some(ReceivedMessage::Unknown(text))) => {
                    self.refuse(&text);
                    continue;
                }
                Ok(None) => {}
                // After garbage nothing can be understood: the host counts as gone.
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

    /// Refuses a request of a later release, which this one does not know.
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

/// Queues a message in the host's wire format.
fn push_message(
    outbox: &mut Outbox,
    wire: WireFormat,
    seq: u64,
    message: &FromProxy,
) -> Result<(), ipc_protocol::codec::CodecError> {
    match wire {
        WireFormat::Bincode => outbox.push(message),
        WireFormat::Json => wire.push(outbox, &NumberedMessage { seq, say: message }),
    }
}

/// Makes the replacement of a kept message that cannot be read any more.
fn unreadable_marker() -> FromProxy {
    let reason = "an event that was kept while there was no host cannot be read: it is lost".to_owned();
    FromProxy::Event { turn: 0, event: Event::SessionLossy { reason } }
}

/// Returns the id of an unknown request: the field `request` of its only member.
fn request_of(text: &str) -> Option<RequestId> {
    let message: serde_json::Value = serde_json::from_str(text).ok()?;
    message.as_object()?.values().next()?.get("request")?.as_u64()
}

/// Makes the replacement of a message that is too long.
fn truncated(message: &FromProxy) -> FromProxy {
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
    use ipc_protocol::{KillCause, ProcessId, ProcessOutcome, Receipt, ReceiptEntry};

    use super::*;

    #[test]
    fn what_is_too_long_is_told_shorter() {
        let mut receipt = Receipt::begin("s".parse().expect("valid"), KillCause::KillSession);
        let id = ProcessId { pid: 1, start_time: 1 };
        let command = Some("x".repeat(MAX_MESSAGE));
        let entry =
            ReceiptEntry { id, ppid: 0, pgid: 1, sid: 1, command, outcome: ProcessOutcome::Gone, reaped_by: None };
        receipt.processes.push(entry);
        let too_long = Box::new(receipt);
        let mut outbox = Outbox::default();
        for message in [
            FromProxy::Receipt { request: 1, receipt: too_long.clone() },
            FromProxy::Ended { reason: ipc_protocol::EndReason::Killed, receipt: too_long },
            FromProxy::Event { turn: 1, event: Event::Text { text: "x".repeat(MAX_MESSAGE + 1) } },
        ] {
            assert!(outbox.push(&message).is_err());
            outbox.push(&truncated(&message)).expect("short enough");
        }
    }
}
