//! End of a session in its core: who is asked to end it, what calls get from then on, and what becomes of the session.

use ipc_protocol::{
    EndReason, Event, KillOptions, KillScope, Receipt,
    message::{ProxyCommand, ToForkServer, ToProxy},
};
use tokio::time::Instant;

use super::{FAILURE, SessionCore, SessionEffect, SessionPhase, TimerKind, lifecycle::SessionFate};
use crate::{
    description::{AfterSuspension, SessionRemains, SessionState},
    error::Error,
    session::{
        DesiredState,
        session_ending::{EndingStep, SessionEnd},
    },
};

impl SessionCore {
    /// Handles a change of the desired state.
    pub(crate) fn set_desired_state(&mut self, demand: DesiredState, now: Instant) {
        match demand {
            DesiredState::Run => {}
            DesiredState::End { options, reason, .. } => self.end(options, reason, now),
            DesiredState::Detach => self.abandon(now),
        }
    }

    /// Begins to end the session.
    pub(super) fn end(&mut self, options: KillOptions, reason: EndReason, now: Instant) {
        tracing::debug!(?options, %reason, "ending");
        self.process_ledger.begin_end(now);
        self.stop_clocks();
        if self.closing.is_none() {
            self.closing = Some(self.error_of(&reason));
            self.close();
        }
        if matches!(self.phase, SessionPhase::Starting { .. }) {
            self.stop(self.error_of(&reason), now);
        }
        let step = self.ending.request(options, reason, now);
        self.perform(step, now);
    }

    /// From here on no call can be answered, and nothing is due but what ends the session.
    pub(super) fn close(&mut self) {
        self.effects.push_back(SessionEffect::Close);
        for kind in [TimerKind::Pulse, TimerKind::Idle, TimerKind::WallClock, TimerKind::Limit, TimerKind::Commit] {
            self.timers.cancel(kind);
        }
    }

    pub(super) fn perform(&mut self, step: EndingStep, now: Instant) {
        self.timers.set(TimerKind::End, self.ending.next());
        match step {
            EndingStep::Nothing => {}
            EndingStep::AskProxy(options, reason) => {
                // Its answer names no request: it is the proxy's last message.
                let (request, scope) = (self.pending.mint(), KillScope::Session);
                let kill = ToProxy::Request { request, command: ProxyCommand::Kill { scope, options, reason } };
                if let Err(error) = self.wire.push_control(&mut self.outbox, &kill) {
                    tracing::error!(%error, "failed to encode the kill of the session");
                }
            }
            EndingStep::AskForkServer(options) => {
                tracing::debug!(?options, "asking the fork server to end the session");
                let order = ToForkServer::Kill { session: self.id.clone(), options };
                self.effects.push_back(SessionEffect::Order(order));
            }
            EndingStep::Sweep => {
                tracing::warn!("the fork server is dead and the session has not ended: the host sweeps it");
                self.process_ledger.begin_end(now);
                self.effects.push_back(SessionEffect::Sweep);
            }
        }
    }

    /// The sweep has ended. `None` where it could not be done.
    pub(crate) fn swept(&mut self, receipt: Option<Receipt>, now: Instant) {
        self.ending.swept(receipt.map(Box::new), now);
        self.perform(EndingStep::Nothing, now);
    }

    /// What the proxy says is no longer to be trusted.
    pub(crate) fn broken(&mut self, reason: String, now: Instant) {
        tracing::warn!(reason, "the proxy broke the protocol");
        self.force(Error::protocol(format!("the session's proxy broke the protocol: {reason}")), now);
    }

    /// Ends the session without the proxy.
    pub(super) fn force(&mut self, error: Error, now: Instant) {
        let reason = EndReason::Failed(error.chain());
        self.stop(error, now);
        self.force_for(FAILURE, reason, now);
    }

    pub(super) fn force_for(&mut self, options: KillOptions, reason: EndReason, now: Instant) {
        self.process_ledger.begin_end(now);
        self.stop(self.error_of(&reason), now);
        let step = self.ending.force(options, reason, now);
        self.perform(step, now);
    }

    /// Handles the death of the fork server.
    pub(crate) fn guard_died(&mut self, now: Instant) {
        let step = self.ending.record_guard_death(self.can_sweep, now);
        self.stop(Error::ForkServerDied, now);
        self.perform(step, now);
    }

    /// Handles the end of the connection to the proxy.
    pub(crate) fn closed(&mut self, now: Instant) {
        self.commit_log();
        self.process_ledger.begin_end(now);
        let step = self.ending.record_close(now);
        self.perform(step, now);
        let error = if self.ending.is_guard_dead() {
            Error::ForkServerDied
        } else if self.proxy.is_none() {
            // It has not said hello: there may be none, and its end of the socket was in the hands of a fork server that died.
            // Either the fork server's word comes, or its death.
            return;
        } else {
            let reason = "it closed its connection".to_owned();
            Error::ProxyDied { session: self.id.clone(), reason }
        };
        if !self.retry.is_pending() {
            self.stop(error, now);
        }
    }

    /// Ends a session that has been idle for too long. One without a retained conversation could not be resumed, and is
    /// not suspended.
    pub(super) fn suspend(&mut self, now: Instant) {
        if self.closing.is_none() && matches!(self.phase, SessionPhase::Idle) && self.keeps_conversation() {
            self.end(KillOptions::default(), EndReason::Suspended, now);
        }
    }

    /// Ends the session if enough is known of its end.
    pub(crate) fn settle(&mut self, now: Instant) {
        if !self.is_over()
            && let Some(end) = self.ending.outcome(now)
        {
            self.finish(end, false, now);
        }
    }

    /// Fails all calls from now on; waiting ones get the first reason.
    pub(super) fn stop(&mut self, error: Error, now: Instant) {
        let error = self.closing.get_or_insert(error).clone();
        self.close();
        self.timers.cancel(TimerKind::Start);
        self.retry.first_error = None;
        self.commit_log();
        for accepted in self.pending.take_accepted() {
            self.fail_accepted(0, &accepted, &error);
        }
        self.fail_pending(&error);
        // The prompts themselves wait for what becomes of the session.
        self.fail_tickets(self.queue.take_tickets(), &error);
        self.unsent = None;
        for (_, waiting) in std::mem::take(&mut self.held_aborts) {
            self.fail(waiting, error.clone());
        }
        self.stop_clocks();
        self.tally(move |tally| tally.set_busy(false, now));
        match std::mem::replace(&mut self.phase, SessionPhase::Ending) {
            SessionPhase::Starting { ready, .. } => {
                self.reply(ready, Err(error));
            }
            SessionPhase::Busy(busy) => {
                // The turn of one that is let go of goes on.
                if let Some(accepted) = busy.accepted.filter(|_| !self.is_left) {
                    self.fail_accepted(busy.turn, &accepted, &error);
                }
                self.fail_tickets(busy.tickets, &error);
            }
            SessionPhase::Over => self.phase = SessionPhase::Over,
            SessionPhase::Idle | SessionPhase::Ending => {}
        }
    }

    /// Ends the session. `never_began`: it has no process.
    pub(super) fn finish(&mut self, SessionEnd { reason, mut receipt }: SessionEnd, never_began: bool, now: Instant) {
        if self.is_over() {
            return;
        }
        if let Some(receipt) = &mut receipt {
            // A proxy that reports its end knows the processes alive when its kill began; the ledger learns of them later.
            if !self.ending.has_report() {
                self.process_ledger.complete(receipt);
            }
            self.exit_statuses.complete(receipt);
            for exit in self.process_ledger.take_untold_exits(receipt) {
                self.push(0, exit);
            }
        }
        self.exit_statuses.answer_all();
        self.answer_receipts();
        if self.will_retry(receipt.as_deref(), now) {
            return;
        }
        self.is_left = self.is_detached(&reason, receipt.as_deref());
        self.stop(self.error_of(&reason), now);
        self.phase = SessionPhase::Over;
        tracing::debug!(%reason, receipt = receipt.as_ref().map(ToString::to_string), "ended");
        // Processes that are left, or may be, are for the next manager.
        let is_clean = never_began || receipt.as_ref().is_some_and(|receipt| receipt.is_empty());
        self.effects.push_back(SessionEffect::Release { is_left: self.is_left, is_clean });
        if self.is_left {
            // The next host continues the stream.
            self.effects.push_back(SessionEffect::LeaveOpen);
            self.commit_log();
            let remains = SessionRemains::Detached;
            return self.show(move |view| view.state = SessionState::Ended { reason, receipt, remains });
        }
        let (told, shown) = (reason.clone(), receipt.clone());
        let state = match self.fate(&reason, now) {
            fate @ (SessionFate::Suspend | SessionFate::Restart(_)) => {
                self.push(0, Event::SessionSuspended { reason: told, receipt: shown });
                self.effects.push_back(SessionEffect::LeaveOpen);
                let next = match fate {
                    SessionFate::Restart(pause) => AfterSuspension::Restart(pause),
                    _ => AfterSuspension::Resume,
                };
                SessionState::Suspended { reason, receipt, next }
            }
            fate @ (SessionFate::End | SessionFate::Abandon(_)) => {
                if let SessionFate::Abandon(crashes) = fate {
                    let (action, error) =
                        ("starting the session again".to_owned(), format!("it crashed {crashes} times"));
                    self.push(0, Event::ActionFailed { action, error });
                }
                let error = self.error_of(&reason);
                self.fail_tickets(self.queue.take_tickets(), &error);
                for action in self.queue.give_up() {
                    self.push(0, Event::ActionFailed { action, error: error.chain() });
                }
                self.push(0, Event::SessionEnded { reason: told, receipt: shown });
                SessionState::ended(reason, receipt)
            }
        };
        self.commit_log();
        let is_first = self.lifecycle_policy.is_first();
        self.show(move |view| view.end(state, is_first));
    }

    /// Decides what becomes of a session whose processes have ended.
    pub(super) fn fate(&mut self, reason: &EndReason, now: Instant) -> SessionFate {
        // A session without a retained conversation cannot be resumed.
        if !self.keeps_conversation() {
            return SessionFate::End;
        }
        let fate = self.lifecycle_policy.fate(reason, self.conditions.is_durable, &mut self.crashes, now);
        if matches!(fate, SessionFate::Restart(_) | SessionFate::Abandon(_)) {
            self.effects.push_back(SessionEffect::KeepCrashes(self.crashes.clone()));
        }
        fate
    }

    /// Returns true if another process can resume the conversation, as far as is known.
    pub(super) fn keeps_conversation(&self) -> bool {
        self.is_kept && self.native.is_some()
    }

    /// The host loses sight of the session: its manager is gone, or its runtime. Nobody can tell how it ends, but it does end.
    pub(crate) fn abandon(&mut self, now: Instant) {
        self.finish(SessionEnd { reason: EndReason::Shutdown, receipt: None }, false, now);
    }

    /// Error of calls when the session ends for `reason`.
    pub(super) fn error_of(&self, reason: &EndReason) -> Error {
        let session = self.id.clone();
        let text = reason.to_string();
        match reason {
            EndReason::AgentExited(_) => Error::AgentDied { session, reason: text },
            EndReason::ProxyDied(_) => Error::ProxyDied { session, reason: text },
            EndReason::ForkServerDied => Error::ForkServerDied,
            EndReason::Shutdown => Error::ShutDown,
            EndReason::Suspended => Error::Suspended { session },
            _ => Error::Ended { session, reason: text },
        }
    }
}
