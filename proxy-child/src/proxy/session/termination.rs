//! Kills, and the end of the session.

use std::time::{Duration, Instant};

use ipc_protocol::{
    EndReason, KillCause, KillOptions, Proof, Receipt, WireError,
    message::{FromProxy, RequestId},
};
use registry::{KillLoop, KillStep, KillTarget, MarkerLook};
use rustix::process::Signal;

use super::{ProxySession, REAP_BOUND, SessionOutcome, answer};
use crate::proxy::link::HostLink;

/// A kill's share of the proxy's one thread.
const KILL_SLICE: Duration = Duration::from_millis(20);
/// Kills at once; more are refused.
const MAX_KILLS: usize = 64;

/// A kill in progress, and whom to tell.
pub(super) struct ActiveKill {
    kill: KillLoop,
    /// Request to answer; `None` for the kill that ends the session.
    request: Option<RequestId>,
    pub(super) next: Instant,
}

impl ActiveKill {
    pub(super) fn cause(&self) -> KillCause {
        self.kill.cause()
    }
}

impl ProxySession<'_> {
    /// Goes on with the kills that are due.
    pub(super) fn step_kills(&mut self, now: Instant, link: &mut HostLink) {
        // The fork server looks for the marker after the proxy's end, once for all that end: each proxy by itself would look at
        // every process of the machine. A session that waits for another host may not have its end seen soon, and one without
        // fork server has nobody else.
        let is_guarded = !self.lost_guard && (!link.is_detachable() || link.has_host());
        let mut at = 0;
        while at < self.kills.len() {
            let active = &mut self.kills[at];
            if active.next > now {
                at += 1;
                continue;
            }
            let ends = active.request.is_none();
            active.kill.set_marker_look(if ends && is_guarded { MarkerLook::Guard } else { MarkerLook::Own });
            match active.kill.step(&mut self.registry) {
                KillStep::Continue(pause) => {
                    active.next = Instant::now() + pause;
                    at += 1;
                }
                KillStep::Done(receipt) => {
                    let active = self.kills.swap_remove(at);
                    match active.request {
                        Some(request) => link.send(&FromProxy::Receipt { request, receipt }),
                        None => {
                            let receipt = self.with_container_removed(*receipt, link);
                            self.finish(receipt, link);
                        }
                    }
                }
            }
        }
    }

    /// Begins a kill that somebody asked for.
    pub(super) fn begin_kill(
        &mut self,
        scope: KillTarget,
        cause: KillCause,
        options: KillOptions,
        request: RequestId,
        link: &mut HostLink,
    ) {
        if self.kills.len() >= MAX_KILLS {
            return answer(link, request, Err(WireError::Busy));
        }
        let kill = KillLoop::new(scope, cause, options, KILL_SLICE);
        self.kills.push(ActiveKill { kill, request: Some(request), next: Instant::now() });
    }

    /// Answers an abort before the first turn: no turn has started a process, so none is ended.
    pub(super) fn answer_nothing_started(&self, request: RequestId, link: &mut HostLink) {
        let mut receipt = Receipt::begin(self.id.clone(), KillCause::AbortTurn);
        receipt.proof = Proof::QuietRounds(0);
        link.send(&FromProxy::Receipt { request, receipt: Box::new(receipt) });
    }

    /// Ends the session: everything is killed, and the receipt is the last that is heard of it. A second call can only
    /// shorten the grace.
    pub(crate) fn end(&mut self, reason: EndReason, options: KillOptions) {
        if self.ending.is_some() {
            for active in self.kills.iter_mut().filter(|active| active.request.is_none()) {
                active.kill.shorten_grace(options);
                active.next = Instant::now();
            }
            return;
        }
        let cause = KillCause::of(&reason);
        self.ending = Some(reason);
        // As a terminal window that is closed: shells ignore SIGTERM.
        if self.terminal().is_some() && !options.grace.is_zero() {
            self.signal_leader(Signal::HUP);
        }
        if !options.grace.is_zero() {
            self.hang_up_shells();
        }
        let kill = KillLoop::new(KillTarget::All, cause, options, KILL_SLICE);
        self.kills.push(ActiveKill { kill, request: None, next: Instant::now() });
    }

    /// Removes the session's container where nobody else does: a living host does it once the proxy is gone. Blocks, since nothing
    /// of the session is left to be waited for.
    fn with_container_removed(&self, receipt: Receipt, link: &HostLink) -> Receipt {
        let is_last = self.lost_guard || !link.has_host();
        let Some(container) = self.container.as_deref().filter(|_| is_last) else { return receipt };
        let removal = registry::remove_container(&container.program, &container.env, &container.name);
        // The engine leaves helpers to its subreaper.
        let _ = registry::reap_children(REAP_BOUND, |_| {});
        Receipt { container: Some(removal), ..receipt }
    }

    /// Everything is dead: gives out what is left to say.
    fn finish(&mut self, receipt: Receipt, link: &mut HostLink) {
        self.emit_process_events(link, usize::MAX);
        self.drain_agent(link);
        if let Some(request) = self.running.as_mut().and_then(|running| running.starting.take()) {
            let reason = self.ending.as_ref().map_or_else(String::new, ToString::to_string);
            link.send(&FromProxy::Failed { request, error: WireError::AgentDied { reason } });
        }
        for active in std::mem::take(&mut self.kills) {
            // Whatever these were to end has ended too.
            if let Some(request) = active.request {
                let receipt = Box::new(active.kill.superseded_receipt(&self.registry, &receipt));
                link.send(&FromProxy::Receipt { request, receipt });
            }
        }
        let reason = self.ending.clone().unwrap_or(EndReason::Killed);
        link.send(&FromProxy::Ended { reason: reason.clone(), receipt: Box::new(receipt.clone()) });
        self.ended = Some(SessionOutcome { reason, receipt });
    }
}
