//! What is seen of the session's processes: limits, and the events of their coming and going.

use std::time::Instant;

use ipc_protocol::{EndReason, Event, ExitStatus, LimitAction, ProcessInfo, Signal, message::FromProxy};
use registry::{ProcFs, RegistryEvent, Verdict};

use super::Session;
use crate::proxy::link::Link;

impl Session<'_> {
    /// Looks after the limits, when that is due; says whether all processes were looked at.
    pub(super) fn check_limits(&mut self, now: Instant, link: &mut Link) -> bool {
        let working = self.is_working(now);
        let limiter = self.limiter.as_ref().filter(|_| self.ending.is_none());
        let is_due = limiter.and_then(|limiter| limiter.next(working)).is_some_and(|next| next <= now);
        is_due && self.look_at_limits(now, link)
    }

    /// Looks at what the session uses; says whether all processes were looked at.
    pub(super) fn look_at_limits(&mut self, now: Instant, link: &mut Link) -> bool {
        let Some(limiter) = &mut self.limiter else { return false };
        let verdicts = limiter.look(now, &mut self.registry);
        let has_scanned = limiter.scans();
        for verdict in verdicts {
            self.enforce(&verdict, link);
        }
        has_scanned
    }

    /// A limit is passed: says so, and does what is to be done.
    fn enforce(&mut self, verdict: &Verdict, link: &mut Link) {
        if verdict.announce {
            let event = Event::LimitExceeded(Box::new(verdict.exceeded));
            link.send(&FromProxy::Event { turn: self.turn.unwrap_or(0), event });
        }
        for victim in &verdict.victims {
            // One that is gone by now needs no killing.
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

    /// Passes on what the registry has seen. While the host is behind it waits there, in a bounded queue that counts what
    /// it loses. Where the fork server tells of the processes this does not.
    pub(super) fn tell_process_events(&mut self, link: &mut Link, high_water: usize) {
        let turn = self.turn.unwrap_or(0);
        // What is about to be killed may never come to its exec.
        let may_wait = high_water < usize::MAX && self.kills.is_empty();
        let spawned = |told: Vec<ProcessInfo>, link: &mut Link| {
            for info in told {
                link.send(&FromProxy::Event { turn, event: Event::ProcessSpawned(Box::new(info)) });
            }
        };
        if link.unsent() < high_water {
            spawned(self.polling.ready(may_wait, &mut ProcFs), link);
        }
        while link.unsent() < high_water
            && self.polling.has_room()
            && let Some(event) = self.registry.next_event()
        {
            let event = match event {
                RegistryEvent::Error { operation, error } => Event::ActionFailed { action: operation, error },
                _ if self.observed => continue,
                RegistryEvent::Spawned(info) => {
                    spawned(self.polling.seen(*info, may_wait, &mut ProcFs), link);
                    continue;
                }
                RegistryEvent::Exited { process, command, exit } => {
                    spawned(self.polling.ended(process.pid, &mut ProcFs), link);
                    Event::ProcessExited { process, command, exit }
                }
                RegistryEvent::Killed { process, command, signal } => {
                    spawned(self.polling.ended(process.pid, &mut ProcFs), link);
                    let exit = ExitStatus::Signal(signal);
                    // Where the fork server observes, the host sees every end, and judges it.
                    let limiter = self.limiter.as_mut().filter(|_| !self.observed && self.ending.is_none());
                    if let Some(verdict) = limiter.and_then(|limiter| limiter.note_exit(process, exit)) {
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
