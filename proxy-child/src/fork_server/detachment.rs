//! Sessions that outlive their host: they wait for a new host, which takes over the fork server too.

use std::{
    os::fd::{AsFd, OwnedFd},
    path::Path,
    time::{Duration, Instant},
};

use ipc_protocol::{
    EndReason, ErrorChain, ExitStatus, Pid, Receipt, SessionId, WireError,
    codec::encode_packets,
    message::{DetachSpec, DetachedSession, FromForkServer, Hello, ProxyHandover, VERSION},
    packet::send_packet,
};

use super::{
    AdoptListener, ForkServer, HOST_DEATH_PATIENCE, HostChannel, LivingProxy, adopt_listener::CurrentOwner, is_readable,
};
use crate::proxy::detachment::{EndRecord, record_path, write_record};

/// Time beyond its own deadline in which a proxy that no host adopted has to end its session.
const ABANDON_GRACE: Duration = Duration::from_secs(5);
/// Time for the removal of a container, whose processes are dead by then: without its host the proxy asks the engine for that.
const ENGINE_PATIENCE: Duration = Duration::from_secs(10);

impl ForkServer<'_> {
    /// Opens the socket through which a new host finds the sessions that outlive this host.
    pub(super) fn open_adopt_listener(&mut self, detach: Option<&DetachSpec>) -> Result<(), WireError> {
        let Some(detach) = detach.filter(|_| self.adopt_listener.is_none()) else { return Ok(()) };
        let door = AdoptListener::open(Path::new(&detach.directory), self.own.id()).map_err(|error| {
            let operation = format!("listening in {} for a host that takes over", detach.directory);
            WireError::System { operation, reason: ErrorChain(&error).to_string() }
        })?;
        self.adopt_listener = Some(door);
        Ok(())
    }

    /// Notifies the proxies that outlive the host, since the host is gone.
    pub(super) fn detach_sessions(&mut self) {
        let outliving = self.proxies.all().filter(|proxy| proxy.detach.is_some());
        let pids: Vec<Pid> = outliving.map(|proxy| proxy.process.id().pid).collect();
        for pid in pids {
            crate::detach_stderr();
            self.proxies.enable_polling(pid);
            if let Some(handover) = self.proxies.get(pid).and_then(|proxy| proxy.handover.as_ref()) {
                // A proxy that does not receive this sees its own socket closed.
                let _ = send_handover(handover, &ProxyHandover::HostGone, None);
            }
        }
    }

    /// Handles clients that want to become the host.
    pub(super) fn poll_adopt_listener(&mut self) {
        if self.adopt_listener.is_none() {
            return;
        }
        let lives = self.control.is_some() && !is_readable(&self.host);
        // The host's identity is only used in a text for people.
        let owner =
            lives.then(|| registry::pid_of_pidfd(self.host.as_fd()).ok().and_then(|pid| registry::identify(pid).ok()));
        let owner = owner.map(|owner| owner.unwrap_or(self.own.id()));
        let Some(door) = &mut self.adopt_listener else { return };
        let Some(CurrentOwner { host, control, wire, .. }) = door.poll_clients(owner) else { return };
        self.handle_host_loss();
        (self.host, self.host_gone, self.is_adopted) = (host, None, true);
        self.proxies.cancel_abandon();
        let mut control = HostChannel::new(control, wire);
        control.send(&FromForkServer::Hello(Hello { version: VERSION, process: self.own.id() }));
        let detached = self.proxies.all().filter(|proxy| proxy.detach.is_some());
        let detached = detached.map(|proxy| DetachedSession {
            session: proxy.session.clone(),
            process: proxy.process.id(),
            card: proxy.handoff_record.clone(),
        });
        control.send(&FromForkServer::Detached(detached.collect()));
        self.control = Some(control);
    }

    /// Sends a proxy the socket of its new host. If that fails the socket is closed, which the host sees.
    pub(super) fn adopt(&mut self, session: &SessionId, after_seq: u64, socket: Option<&OwnedFd>) {
        let Some(described) = self.control.as_ref().map(|control| control.wire().is_json()) else { return };
        let proxy = self.proxies.all().find(|proxy| proxy.session == *session && proxy.detach.is_some());
        if let Some((handover, socket)) = proxy.and_then(|proxy| proxy.handover.as_ref()).zip(socket) {
            let _ = send_handover(handover, &ProxyHandover::Adopt { after_seq, described }, Some(socket));
        }
    }

    /// Sends a proxy the socket of somebody who views its terminal. If that fails the socket is closed, which the viewer sees.
    pub(super) fn add_viewer(&mut self, session: &SessionId, socket: Option<&OwnedFd>) {
        let proxy = self.proxies.all().find(|proxy| proxy.session == *session);
        if let Some((handover, socket)) = proxy.and_then(|proxy| proxy.handover.as_ref()).zip(socket) {
            let _ = send_handover(handover, &ProxyHandover::View, Some(socket));
        }
    }
}

/// Returns the time at which a proxy is ended whose host is gone since `gone`; `None` means never.
pub(super) fn abandon_at(gone: Instant, proxy: &LivingProxy) -> Option<Instant> {
    let patience = match &proxy.detach {
        None => HOST_DEATH_PATIENCE,
        Some(detach) => Duration::from_millis(detach.fetch_within_ms).saturating_add(ABANDON_GRACE),
    };
    let engine = if proxy.enclosure.container.is_some() { ENGINE_PATIENCE } else { Duration::ZERO };
    // A time beyond the clock's range is no deadline.
    gone.checked_add(patience.saturating_add(engine))
}

/// Sends a message to a proxy, which is of this very build.
fn send_handover(handover: &OwnedFd, word: &ProxyHandover, socket: Option<&OwnedFd>) -> std::io::Result<()> {
    let packets = encode_packets(word).map_err(std::io::Error::other)?;
    let packet = packets.first().map(Vec::as_slice).unwrap_or_default();
    send_packet(handover, packet, socket.map(AsFd::as_fd))
}

/// Cleans up after a session that could have outlived its host: removes the proxy's spool. Without a host, and if the proxy
/// failed without a record, this writes the record of the session's end.
pub(super) fn clean_up_detached(
    directory: &str,
    session: &SessionId,
    exit: ExitStatus,
    receipt: &Receipt,
    has_host: bool,
) {
    let path = record_path(directory, session.as_str());
    let spool = path.with_file_name(format!("{session}.spool"));
    // The proxy has removed it, if it could.
    let _ = std::fs::remove_file(spool);
    if !has_host && !exit.success() && !path.exists() {
        let reason = EndReason::ProxyDied(Some(exit));
        // A failure has nobody to be reported to: the next manager finds the session's journal, and that no process is left.
        let _ = write_record(&path, &EndRecord { session, reason: &reason, receipt, unheard: 0 });
    }
}
