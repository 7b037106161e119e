//! Watching of the session's processes: limits, and process events.

use std::time::Instant;

use ipc_protocol::{EndReason, Event, ExitStatus, LimitAction, ProcessInfo, Signal, message::FromProxy};
use registry::{LimitVerdict, ProcFs, RegistryEvent};

use super::ProxySession;
use crate::proxy::{egress::SessionEgress, file_audit::FileAudit, link::HostLink};

impl ProxySession<'_> {
    /// Checks the limits, if that is due. Returns whether all processes were scanned.
    pub(super) fn check_limits(&mut self, now: Instant, link: &mut HostLink) -> bool {
        let working = self.is_working(now);
        let limiter = self.limiter.as_ref().filter(|_| self.ending.is_none());
        let is_due = limiter.and_then(|limiter| limiter.next(working)).is_some_and(|next| next <= now);
        is_due && self.sample_limits(now, link)
    }

    /// Measures the session's usage. Returns whether all processes were scanned.
    pub(super) fn sample_limits(&mut self, now: Instant, link: &mut HostLink) -> bool {
        let Some(limiter) = &mut self.limiter else { return false };
        let verdicts = limiter.look(now, &mut self.registry);
        let has_scanned = limiter.scans();
        for verdict in verdicts {
            self.enforce(&verdict, link);
        }
        has_scanned
    }

    /// Reports an exceeded limit, and takes its action.
    fn enforce(&mut self, verdict: &LimitVerdict, link: &mut HostLink) {
        if verdict.announce {
            let event = Event::LimitExceeded(Box::new(verdict.exceeded));
            link.send(&FromProxy::Event { turn: self.turn.unwrap_or(0), event });
        }
        for victim in &verdict.victims {
            // A victim that has already ended needs no kill.
            if let Err(error) = self.registry.kill(*victim, Signal::Kill)
                && error.kind() != std::io::ErrorKind::NotFound
            {
                let action = format!("ending process {victim}, which takes more than the limit allows");
                let event = Event::ActionFailed { action, error: error.to_string() };
                link.send(&FromProxy::Event { turn: self.turn.unwrap_or(0), event });
            }
        }
        if verdict.exceeded.action == LimitAction::KillSession {
            let kind = verdict.exceeded.limit;
            self.end(EndReason::LimitExceeded(kind), kind.grace());
        }
    }

    /// Sends the events of the session's own network, and those of refused files.
    pub(super) fn emit_sandbox_events(&mut self, link: &mut HostLink) {
        let turn = self.turn.unwrap_or(0);
        let refusals = self.file_audit.iter().flat_map(FileAudit::take_events);
        for event in self.egress.iter().flat_map(SessionEgress::take_events).chain(refusals) {
            link.send(&FromProxy::Event { turn, event });
        }
    }

    /// Sends the registry's process events. While the host is behind they wait in the registry, in a bounded queue that counts its losses.
    /// If the fork server reports the processes, this sends none.
    pub(super) fn emit_process_events(&mut self, link: &mut HostLink, high_water: usize) {
        let turn = self.turn.unwrap_or(0);
        // A process that is about to be killed may never get to its exec.
        let may_wait = high_water < usize::MAX && self.kills.is_empty();
        let spawned = |told: Vec<ProcessInfo>, link: &mut HostLink| {
            for info in told {
                link.send(&FromProxy::Event { turn, event: Event::ProcessSpawned(Box::new(info)) });
            }
        };
        if link.unsent() < high_water {
            spawned(self.polling.take_ready(may_wait, &mut ProcFs), link);
        }
        while link.unsent() < high_water
            && self.polling.has_room()
            && let Some(event) = self.registry.next_event()
        {
            let event = match event {
                RegistryEvent::Error { operation, error } => Event::ActionFailed { action: operation, error },
                _ if self.observed => continue,
                RegistryEvent::Spawned(info) => {
                    spawned(self.polling.on_found(*info, may_wait, &mut ProcFs), link);
                    continue;
                }
                RegistryEvent::Exited { process, command, exit } => {
                    spawned(self.polling.on_exit(process.pid, &mut ProcFs), link);
                    Event::ProcessExited { process, command, exit }
                }
                RegistryEvent::Killed { process, command, signal } => {
                    spawned(self.polling.on_exit(process.pid, &mut ProcFs), link);
                    let exit = ExitStatus::Signal(signal);
                    // If the fork server observes, the host sees every end, and judges it.
                    let limiter = self.limiter.as_mut().filter(|_| !self.observed && self.ending.is_none());
                    if let Some(verdict) = limiter.and_then(|limiter| limiter.record_exit(process, exit)) {
                        self.enforce(&verdict, link);
                    }
                    Event::ProcessExited { process, command, exit: Some(exit) }
                }
                RegistryEvent::Lost(lost) => {
                    Event::SessionLossy { reason: format!("{lost} process events were not taken in time") }
                }
            };
            link.send(&FromProxy::Event { turn, event });
        }
    }
}
