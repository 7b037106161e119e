//! Session that outlives its host: adoption by a new host, and the record that is left without one.

use std::{
    os::fd::OwnedFd,
    path::PathBuf,
    time::{Duration, Instant},
};

use ipc_protocol::{
    EndReason, Event, KillOptions,
    codec::MessageAssembler,
    message::{AttachedSession, FromProxy, ProxyHandover},
    packet::recv_packet,
    reattach::WireFormat,
};
use tokio::io::Interest;

use super::{FLUSH_PATIENCE, ProxyLoop, ProxySupervision, SUPERVISOR_GRACE, session::SessionOutcome};

/// Messages of the fork server to a proxy that has its session.
#[derive(Debug, Default)]
pub(super) struct ForkServerNotices {
    /// True if a process came or went.
    pub(super) processes_changed: bool,
    /// True if the socket is closed.
    pub(super) closed: bool,
    /// True if the host is gone.
    pub(super) host_gone: bool,
    /// Adoption by a new host: socket, acknowledged number and wire format.
    pub(super) adopt: Option<(OwnedFd, u64, WireFormat)>,
    /// Sockets of new viewers of the terminal.
    pub(super) viewers: Vec<OwnedFd>,
}

impl ProxySupervision {
    /// Reads all messages that have arrived.
    pub(super) fn take_notices(&self) -> ForkServerNotices {
        let mut words = ForkServerNotices::default();
        let Some(handover) = &self.handover else { return words };
        let mut packet = Vec::new();
        loop {
            match handover.try_io(Interest::READABLE, |handover| recv_packet(handover, &mut packet)) {
                Ok(Some(fd)) => match (MessageAssembler::default().frame(&packet), fd) {
                    (Ok(Some(ProxyHandover::HostGone)), _) => words.host_gone = true,
                    (Ok(Some(ProxyHandover::Adopt { after_seq, described })), Some(socket)) => {
                        words.adopt = Some((socket, after_seq, WireFormat::from_is_json(described)));
                    }
                    (Ok(Some(ProxyHandover::View)), Some(socket)) => words.viewers.push(socket),
                    // A nudge is no message.
                    _ => words.processes_changed = true,
                },
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return words,
                Ok(None) | Err(_) => {
                    words.closed = true;
                    return words;
                }
            }
        }
    }
}

impl ProxyLoop<'_> {
    /// Returns the time at which the wait for a host ends.
    pub(super) fn abandon_at(&self) -> Option<Instant> {
        let since = self.link.detached()?;
        since.checked_add(Duration::from_millis(self.detach.as_ref()?.fetch_within_ms))
    }

    /// Ends the session, or detaches it, since the host is gone.
    pub(super) fn handle_host_loss(&mut self) {
        if !self.link.is_detachable() {
            return self.session.end(EndReason::HostDied, KillOptions::grace(SUPERVISOR_GRACE));
        }
        crate::detach_stderr();
        self.link.detach();
        self.session.fall_back_to_polling(&mut self.link);
        self.link.flush();
    }

    /// Handles the fork server's messages.
    pub(super) fn handle_notices(&mut self, words: ForkServerNotices) {
        if words.closed {
            self.supervision.handover = None;
        }
        if words.processes_changed {
            self.session.processes_changed();
        }
        for socket in words.viewers {
            self.session.accept_viewer(socket);
        }
        if words.host_gone && self.link.detached().is_none() {
            self.handle_host_loss();
        }
        if let Some((socket, after, wire)) = words.adopt {
            self.attach_host(socket, after, wire);
        }
    }

    /// Connects to a new host: drops the old one, and sends the new one the session's state.
    fn attach_host(&mut self, socket: OwnedFd, after: u64, wire: WireFormat) {
        if self.link.detached().is_none() {
            self.handle_host_loss();
        }
        // A socket that cannot be watched is useless; its host sees it closed, and the session waits for another.
        let Ok(without) = self.link.attach(socket, wire) else { return };
        self.link.start_replay(after);
        self.session.greet(&mut self.link);
        let Some(kept) = self.link.replay_buffer() else { return };
        let attached = AttachedSession {
            epoch: self.link.epoch(),
            next_seq: kept.acked() + 1,
            waiting: kept.pending_count(),
            detached_ms: u64::try_from(without.as_millis()).unwrap_or(u64::MAX),
            ..self.session.attached_state(kept)
        };
        self.link.send(&FromProxy::Attached(Box::new(attached)));
        self.link.flush();
    }

    /// Ends the session, since no host has come in time.
    pub(super) fn abandon(&mut self) {
        let within = self.detach.as_ref().map_or(0, |detach| detach.fetch_within_ms);
        let action = "waiting for a host".to_owned();
        let error = format!("none came within {within} ms of the death of the last");
        self.link.send(&FromProxy::Event { turn: 0, event: Event::ActionFailed { action, error } });
        self.session.end(EndReason::HostDied, KillOptions::grace(SUPERVISOR_GRACE));
    }

    /// Reports the end of the session to this host or the next one. If none comes in time, a file is the report.
    pub(super) async fn deliver_end(&mut self) {
        let mut until = Instant::now() + FLUSH_PATIENCE;
        loop {
            self.link.flush();
            if self.link.is_closed() {
                // Without its fork server no host finds this proxy.
                let findable = self.supervision.handover.is_some() && !self.session.lost_guard();
                if !self.link.is_detachable() || !findable {
                    break;
                }
                self.link.detach();
                match self.abandon_at() {
                    Some(at) if at > Instant::now() => until = at,
                    _ => break,
                }
            } else if !self.link.has_unsent() && self.link.is_acknowledged() {
                break;
            }
            let link = &self.link;
            tokio::select! {
                () = link.writable(), if link.has_unsent() => {}
                () = link.readable(), if link.is_detachable() => {
                    while let Some(message) = self.link.receive() {
                        self.session.receive(message, &mut self.link);
                    }
                }
                _ = self.supervision.guard.readable(), if !self.session.lost_guard() => self.session.handle_guard_death(),
                () = super::handover_readable(self.supervision.handover.as_ref()) => {
                    let words = self.supervision.take_notices();
                    if words.adopt.is_some() {
                        until = Instant::now() + FLUSH_PATIENCE;
                    }
                    self.handle_notices(words);
                }
                () = tokio::time::sleep_until(until.into()) => break,
            }
        }
        if self.link.is_detachable() && !self.link.is_acknowledged() {
            self.write_end_record();
        }
        self.link.discard_replay();
    }

    /// Writes the record of the session's end, for the next manager.
    fn write_end_record(&self) {
        let (Some(detach), Some(SessionOutcome { reason, receipt })) = (&self.detach, self.session.outcome()) else {
            return;
        };
        let path = record_path(&detach.directory, self.session.id().as_str());
        let unheard = self.link.replay_buffer().map_or(0, super::replay_buffer::ReplayBuffer::pending_count);
        let record = EndRecord { session: self.session.id(), reason, receipt, unheard };
        // A failure has nobody to be reported to. The fork server then writes its own record.
        let _ = write_record(&path, &record);
    }
}

/// Record `ID.ended.json` in the directory for detached sessions: the end of a session that no host has received.
#[derive(Debug, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EndRecord<'a> {
    pub(crate) session: &'a ipc_protocol::SessionId,
    pub(crate) reason: &'a EndReason,
    pub(crate) receipt: &'a ipc_protocol::Receipt,
    /// Number of messages that no host has received or will receive.
    pub(crate) unheard: u64,
}

/// Returns the path of that record.
pub(crate) fn record_path(directory: &str, session: &str) -> PathBuf {
    PathBuf::from(directory).join(format!("{session}.ended.json"))
}

/// Writes the record atomically.
pub(crate) fn write_record(path: &std::path::Path, record: &EndRecord<'_>) -> std::io::Result<()> {
    use std::{io::Write, os::unix::fs::OpenOptionsExt};

    let draft = path.with_extension("json.draft");
    let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    serde_json::to_writer(&mut file, record)?;
    file.write_all(b"\n")?;
    std::fs::rename(&draft, path)
}
