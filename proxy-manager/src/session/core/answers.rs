//! Messages of the proxy: the requests they answer, and the changes they cause.

use ipc_protocol::{
    CONVERSATION_NOT_KEPT, ContainmentStatus, EndReason, Event, ExitStatus, ObserverKind, ProcessId, SERVER_LISTENS,
    WireError,
    message::{AgentFact, FromProxy, Hello, RequestId, VERSION},
};
use tokio::time::Instant;

use super::{EndingStep, FAILURE, LeasePurpose, SessionCore, SessionEffect, SessionPhase, TimerKind};
use crate::{
    description::SessionState,
    error::{Error, Result},
    session::{ENDED, ReplySender, pending_requests::PendingAnswer},
};

impl SessionCore {
    /// Handles a message of the proxy.
    pub(crate) fn message(&mut self, message: FromProxy, now: Instant) {
        if self.proxy.is_none() && !matches!(message, FromProxy::Hello(_)) {
            return self.broken("its first message is no hello".to_owned(), now);
        }
        self.record_activity(now);
        if message.is_numbered() {
            self.count_message();
        }
        match message {
            FromProxy::Event { turn, event } => self.event(turn, event, now),
            FromProxy::TurnEnded { turn } => self.turn_ended(turn, now),
            FromProxy::Hello(hello) => self.hello(&hello, now),
            FromProxy::Started { request, process, native_session_id, turns, measures } => {
                // A host that adopted the session has not sent the request.
                if matches!(self.pending.take(request), Some(PendingAnswer::Start)) || self.awaits_start() {
                    self.limits.started(&mut self.timers, now);
                    self.started(process, native_session_id, turns, measures, now);
                }
            }
            FromProxy::AgentExited { exit, kept } => self.agent_exited(exit, kept, now),
            FromProxy::Processes { request, processes } => match self.take_pending(request) {
                Some(PendingAnswer::Processes(reply)) => self.reply(reply, Ok(processes)),
                other => self.mismatch(other, now),
            },
            FromProxy::Receipt { request, receipt } => match self.take_pending(request) {
                Some(PendingAnswer::Receipt(reply)) => {
                    self.exit_statuses.answer(reply, receipt, now);
                    self.answer_receipts();
                }
                other => self.mismatch(other, now),
            },
            FromProxy::Done { request } => match self.take_pending(request) {
                Some(PendingAnswer::Done(reply)) => self.reply(reply, Ok(())),
                Some(PendingAnswer::Prompt { caller, .. }) => {
                    // The agent has the prompt, and the preamble before it.
                    self.preamble = None;
                    if let Some((caller, turn)) = caller {
                        self.reply_durably(move || _ = caller.send(Ok(turn)));
                    }
                }
                Some(PendingAnswer::Ticket { caller, turn }) => self.reply(caller, Ok(turn)),
                Some(PendingAnswer::EndTurn(_) | PendingAnswer::Accepted(_) | PendingAnswer::Pulse) => {}
                other => self.mismatch(other, now),
            },
            FromProxy::Reply { request, reply } => match self.take_pending(request) {
                Some(PendingAnswer::Operation { change, caller, .. }) => self.operated(change, caller, reply),
                other => self.mismatch(other, now),
            },
            FromProxy::Fact(fact) => self.fact(fact, now),
            FromProxy::NativeSession { id } => {
                self.effects.push_back(SessionEffect::Lease { id, purpose: LeasePurpose::Switch });
            }
            FromProxy::Attached(attached) => self.attached(*attached, now),
            FromProxy::Failed { request, error } => self.failed(request, error, now),
            FromProxy::Ended { reason, receipt } => {
                self.commit_log();
                tracing::debug!(%reason, %receipt, "the proxy ended the session");
                self.ending.record_report(reason.clone(), receipt, now);
                self.perform(EndingStep::Nothing, now);
                if !self.retry.is_pending() {
                    self.stop(self.error_of(&reason), now);
                }
            }
        }
    }

    /// Takes the request that an answer is for. Events appended before are readable before the answer.
    fn take_pending(&mut self, request: RequestId) -> Option<PendingAnswer> {
        let waiting = self.pending.take(request);
        if let Some(PendingAnswer::Prompt { caller: Some(_), .. }) = waiting {
            self.commit_together();
        }
        self.commit_log();
        waiting
    }

    /// Fails a request that got an answer of the wrong kind. An answer without a request is late, and ignored.
    fn mismatch(&mut self, waiting: Option<PendingAnswer>, now: Instant) {
        if let Some(waiting) = waiting {
            let reason = "an answer is not of the kind that was asked for".to_owned();
            self.fail(waiting, Error::protocol(reason.clone()));
            self.broken(reason, now);
        }
    }

    fn hello(&mut self, hello: &Hello, now: Instant) {
        if self.proxy.is_some() {
            return self.broken("it said hello twice".to_owned(), now);
        }
        self.proxy = Some(hello.process);
        let process = hello.process;
        self.show(move |view| view.processes.proxy = Some(process));
        if hello.version != VERSION && !self.wire.is_json() {
            let error = Error::VersionMismatch { ours: VERSION, theirs: hello.version };
            self.force(error, now);
        }
    }

    fn started(
        &mut self,
        process: ProcessId,
        native_session_id: Option<String>,
        turns: bool,
        measures: Box<ContainmentStatus>,
        now: Instant,
    ) {
        (self.agent, self.native) = (Some(process), native_session_id.clone());
        let (native, seen) = (native_session_id.clone(), (*measures).clone());
        self.show(move |view| {
            (view.processes.agent_process, view.measures) = (Some(process), Some(seen));
            view.conversation.switch_to(native);
        });
        self.exit_statuses.set_observing(measures.observer == ObserverKind::Connector);
        self.effects.push_back(SessionEffect::NoteAgent(process));
        let Some(proxy) = self.proxy else { return };
        let surface = self.surface;
        let SessionPhase::Starting { started, .. } = &mut self.phase else { return };
        let event = |agent| Event::SessionStarted {
            agent,
            process,
            proxy,
            native_session_id: native_session_id.clone(),
            measures,
            surface,
        };
        *started = Some((event(self.agent_name.clone()), turns));
        match native_session_id {
            Some(id) => self.effects.push_back(SessionEffect::Lease { id, purpose: LeasePurpose::Start }),
            None => self.leased_at_start(Ok(()), now),
        }
    }

    /// Goes on with the start: the agent is ready, and the lease of its conversation is taken, or not.
    pub(crate) fn leased_at_start(&mut self, leased: Result<()>, now: Instant) {
        let SessionPhase::Starting { started, .. } = &mut self.phase else { return };
        let Some((event, turns)) = started.take() else { return };
        if let Err(error) = leased.and_then(|()| self.check_started(turns)) {
            let reason = EndReason::Failed(error.chain());
            self.stop(error, now);
            return self.end(FAILURE, reason, now);
        }
        let SessionPhase::Starting { ready, .. } = std::mem::replace(&mut self.phase, SessionPhase::Idle) else {
            return;
        };
        self.has_turns = turns;
        // Done before the log is held.
        self.share_conversation_lock();
        self.commit_together();
        self.push(0, event);
        self.push(0, Event::SessionIdle {});
        self.commit_log();
        tracing::debug!("ready");
        self.became_ready(now);
        self.show(move |view| {
            view.state = SessionState::Idle;
            view.has_turns = turns;
        });
        // A caller that stopped waiting dropped its future, which asks for the session's end.
        self.reply_durably(move || _ = ready.send(Ok(())));
        self.next_turn(now);
    }

    /// Starts the health check and the idle clock.
    pub(super) fn became_ready(&mut self, now: Instant) {
        self.timers.cancel(TimerKind::Start);
        self.timers.cancel(TimerKind::Commit);
        self.pulse.begin(&mut self.timers, now);
        let at = self.lifecycle_policy.ready(now).filter(|_| !self.screen.is_used() && !self.is_warm);
        self.timers.set(TimerKind::Idle, at);
    }

    /// Reports the hand-out of a warm session, whose labels are its claimant's by now.
    pub(crate) fn claimed(&mut self, event: Event, reply: ReplySender<()>, now: Instant) {
        self.commit_together();
        self.push(0, event);
        self.commit_log();
        self.be_used();
        self.timers.set(TimerKind::Idle, self.lifecycle_policy.idle(now).filter(|_| !self.screen.is_used()));
        self.reply_durably(move || _ = reply.send(Ok(())));
    }

    /// Ends the wait of a warm session.
    pub(super) fn be_used(&mut self) {
        if std::mem::take(&mut self.is_warm) {
            self.show(|view| view.is_warm = false);
        }
    }

    /// Ties the conversation to the proxy's life for other managers.
    pub(super) fn share_conversation_lock(&mut self) {
        if let Some(proxy) = self.proxy {
            let outlives = self.detach_state.is_some();
            self.effects.push_back(SessionEffect::KeepLease { proxy, outlives });
        }
    }

    /// Checks that the agent that is ready meets the request.
    fn check_started(&self, turns: bool) -> Result<()> {
        if self.preamble.is_some() && !turns {
            let agent = self.agent_name.clone();
            let operation = "be told anything before its first prompt: it has no turns".to_owned();
            return Err(Error::Unsupported { agent, operation });
        }
        Ok(())
    }

    /// Records a fact that the agent reported, and emits it.
    fn fact(&mut self, fact: AgentFact, now: Instant) {
        let (status, detail) = match fact {
            AgentFact::NotResumable { detail } => {
                self.is_kept = false;
                self.show(|view| view.conversation.resumable = false);
                (CONVERSATION_NOT_KEPT, detail)
            }
            AgentFact::ServerListens { address } => {
                let endpoint = Some(address.clone());
                self.show(|view| view.endpoint = endpoint);
                (SERVER_LISTENS, address)
            }
            AgentFact::Settings { model, mode, thinking } => return self.began_with(model, mode, thinking),
        };
        self.event(self.turn(), Event::SessionStatus { status: status.to_owned(), detail }, now);
    }

    /// Handles the agent's switch to the conversation `id`, whose lease is taken, or not.
    pub(crate) fn leased_by_agent(&mut self, id: String, leased: Result<()>, now: Instant) {
        if let Err(error) = leased {
            let action = "going over to another conversation".to_owned();
            self.push(0, Event::ActionFailed { action, error: error.chain() });
            let reason = EndReason::Failed(error.chain());
            self.stop(error, now);
            return self.end(FAILURE, reason, now);
        }
        self.push(0, Event::SessionStatus { status: "nativeSession".to_owned(), detail: id.clone() });
        self.native = Some(id.clone());
        if matches!(self.phase, SessionPhase::Idle)
            && self.lifecycle_policy.suspends()
            && !self.timers.is_set(TimerKind::Idle)
        {
            // It has been idle for too long already, and could not be suspended.
            self.timers.set(TimerKind::Idle, Some(now));
        }
        self.show(move |view| view.conversation.switch_to(Some(id)));
    }

    pub(super) fn event(&mut self, turn: u64, mut event: Event, now: Instant) {
        if let Event::LimitExceeded(passed) = &event
            && !self.limits.record(passed, &mut self.timers, now)
        {
            return;
        }
        if self.is_duplicate(&event) || self.note_setting(&mut event) {
            return;
        }
        if let SessionPhase::Busy(busy) = &mut self.phase
            && busy.turn == turn
        {
            self.clocks.record(&event, now);
            self.timers.set(TimerKind::Turn, self.clocks.next());
            busy.last_words.note(&event);
            match &event {
                Event::Complete { stop_reason, .. } => {
                    busy.end.stop_reason = Some(stop_reason.clone());
                    busy.end.error = None;
                }
                Event::Error { message, .. } => busy.end.error = Some(message.clone()),
                _ => {}
            }
            self.note_usage_limit(&mut event);
        }
        self.note_permission(&event);
        let surface = self.screen.surface_of(turn, &event);
        self.note_screen(turn, &event, now);
        self.process_ledger.record(&event, now);
        if let Some(price) = self.price() {
            self.meter.price(turn, &mut event, &price);
        }
        let metered = self.meter.record(turn, &event);
        let turn_is_over = matches!(event, Event::Complete { .. });
        self.batched += 1;
        self.effects.push_back(SessionEffect::Record { turn, surface, event });
        if let Some(passed) = metered {
            self.metered(turn, passed, turn_is_over, now);
        }
    }

    /// Shows the screen's status. Stops the idle clock while somebody uses it.
    fn note_screen(&mut self, turn: u64, event: &Event, now: Instant) {
        if let Some(status) = self.screen.status_of(turn, event) {
            self.show(move |view| view.screen_status = Some(status));
        }
        if !self.screen.note(event) {
            return;
        }
        if self.screen.is_used() {
            self.timers.cancel(TimerKind::Idle);
        } else if matches!(self.phase, SessionPhase::Idle) {
            self.timers.set(TimerKind::Idle, self.lifecycle_policy.idle(now));
        }
    }

    pub(super) fn turn_ended(&mut self, turn: u64, now: Instant) {
        if self.waits_for_usage(turn, now) {
            return;
        }
        let busy = match std::mem::replace(&mut self.phase, SessionPhase::Idle) {
            SessionPhase::Busy(busy) if busy.turn == turn => busy,
            other => {
                self.phase = other;
                return tracing::debug!(turn, "turn end dropped: the turn does not run");
            }
        };
        self.commit_together();
        if let Some(accepted) = &busy.accepted {
            self.move_cursor(ENDED, accepted.offset);
        }
        self.idle(turn, now);
        // A ticket that was dropped misses nothing.
        self.reply_durably(move || busy.tickets.into_iter().for_each(|ticket| _ = ticket.send(Ok(busy.end.clone()))));
        self.next_turn(now);
    }

    /// Handles the agent's exit: waiting callers fail at once.
    fn agent_exited(&mut self, exit: ExitStatus, kept: bool, now: Instant) {
        self.commit_log();
        tracing::debug!(%exit, kept, "agent exited");
        if self.retry.is_pending() {
            return;
        }
        let reason = EndReason::AgentExited(Some(exit));
        let error = self.error_of(&reason);
        if !kept {
            // The agent may have exited because a kill ended its tools: the kill's receipt is still to come.
            let kills = self.pending.take_kills();
            self.stop(error, now);
            kills.into_iter().for_each(|(request, waiting)| self.pending.insert(request, waiting));
            return;
        }
        let busy = match std::mem::replace(&mut self.phase, SessionPhase::Idle) {
            SessionPhase::Idle => None,
            SessionPhase::Busy(busy) => Some(busy),
            other => {
                // An agent that never was ready leaves nothing to retain; a session that is ending continues to end.
                let starting = matches!(other, SessionPhase::Starting { .. });
                self.phase = other;
                if starting {
                    self.stop(error, now);
                    self.end(FAILURE, reason, now);
                }
                return;
            }
        };
        let detail = format!("{exit}; what it left is kept until the kill");
        self.push(0, Event::SessionStatus { status: "agentExited".into(), detail });
        self.commit_log();
        self.fail_tickets(self.queue.take_tickets(), &error);
        if let Some(busy) = busy {
            if let Some(accepted) = &busy.accepted {
                self.fail_accepted(busy.turn, accepted, &error);
            }
            self.idle(busy.turn, now);
            self.fail_tickets(busy.tickets, &error);
        }
    }

    /// Ends the turn: the session waits for a prompt.
    fn idle(&mut self, turn: u64, now: Instant) {
        self.stop_clocks();
        self.tally(move |tally| tally.set_busy(false, now));
        self.push(turn, Event::SessionIdle {});
        self.commit_log();
        tracing::debug!(turn, "idle");
        self.timers.set(TimerKind::Idle, self.lifecycle_policy.idle(now).filter(|_| !self.screen.is_used()));
        self.show(|view| view.state = SessionState::Idle);
    }

    /// Handles a request that failed.
    fn failed(&mut self, request: RequestId, error: WireError, now: Instant) {
        let Some(waiting) = self.take_pending(request) else { return };
        let error = Error::from_wire(&self.id, error);
        if let PendingAnswer::Operation { change, .. } = &waiting {
            self.told_changes.retain(|told| !told.is_like(change));
        }
        match waiting {
            PendingAnswer::Start => self.effects.push_back(SessionEffect::Diagnose(error)),
            PendingAnswer::Prompt { turn, caller } => {
                self.prompt_failed(turn, &error, now);
                if let Some((caller, _)) = caller {
                    self.reply(caller, Err(error));
                }
                self.next_turn(now);
            }
            PendingAnswer::Accepted(accepted) => self.fail_accepted(0, &accepted, &error),
            PendingAnswer::EndTurn(why) => self.abort_failed(why, &error, now),
            waiting => self.fail(waiting, error),
        }
    }

    /// The agent did not take the prompt of `turn`.
    pub(super) fn prompt_failed(&mut self, turn: u64, error: &Error, now: Instant) {
        let busy = match std::mem::replace(&mut self.phase, SessionPhase::Idle) {
            SessionPhase::Busy(busy) if busy.turn == turn => busy,
            other => {
                self.phase = other;
                return;
            }
        };
        match &busy.accepted {
            Some(accepted) => self.fail_accepted(turn, accepted, error),
            None => self.push(turn, Event::ActionFailed { action: "prompt".to_owned(), error: error.chain() }),
        }
        self.idle(turn, now);
        self.fail_tickets(busy.tickets, error);
    }
}
