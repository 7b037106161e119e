//! Messages of the proxy: the requests they answer, and the changes they cause.

use ipc_protocol::{
    EndReason, Event, ExitStatus, Measures, NOT_KEPT, Observer, ProcessId, SERVER_LISTENS, WireError,
    message::{AgentFact, FromProxy, Hello, RequestId, VERSION},
};
use tokio::time::Instant;

use super::{Core, Phase};
use crate::{
    conversation_locks::Keeper,
    error::{Error, Result},
    session::{
        ENDED, SessionState, Task,
        pending::{Pending, Waiting},
    },
};

impl Core {
    /// Handles a message of the proxy.
    pub(crate) fn message(&mut self, message: FromProxy, now: Instant) {
        if self.proxy.is_none() && !matches!(message, FromProxy::Hello(_)) {
            return self.broken("its first message is no hello".to_owned(), now);
        }
        self.heard(now);
        if message.is_numbered() {
            self.count();
        }
        match message {
            FromProxy::Event { turn, event } => self.event(turn, event, now),
            FromProxy::TurnEnded { turn } => self.turn_ended(turn, now),
            FromProxy::Hello(hello) => self.hello(&hello, now),
            FromProxy::Started { request, process, native_session_id, turns, measures } => {
                // A host that adopted the session has not sent the request.
                if matches!(self.pending.take(request), Some(Waiting::Start)) || self.awaits_start() {
                    self.limits.started(now);
                    self.started(process, native_session_id, turns, measures, now);
                }
            }
            FromProxy::AgentExited { exit, kept } => self.agent_exited(exit, kept, now),
            FromProxy::Processes { request, processes } => match self.answered(request) {
                Some(Waiting::Processes(reply)) => Pending::answer(reply, Ok(processes)),
                other => self.mismatch(other, now),
            },
            FromProxy::Receipt { request, receipt } => match self.answered(request) {
                Some(Waiting::Receipt(reply)) => self.witness.answer(reply, receipt, now),
                other => self.mismatch(other, now),
            },
            FromProxy::Done { request } => match self.answered(request) {
                Some(Waiting::Done(reply)) => Pending::answer(reply, Ok(())),
                Some(Waiting::Prompt { caller, .. }) => {
                    // The agent has the prompt, and the preamble before it.
                    self.preamble = None;
                    if let Some((caller, turn)) = caller {
                        self.answer_later(move || Pending::answer(caller, Ok(turn)));
                    }
                }
                Some(Waiting::Ticket { caller, turn }) => Pending::answer(caller, Ok(turn)),
                Some(Waiting::EndTurn(_) | Waiting::Accepted(_) | Waiting::Pulse) => {}
                other => self.mismatch(other, now),
            },
            FromProxy::Reply { request, reply } => match self.answered(request) {
                Some(Waiting::Operation { change, caller, .. }) => self.operated(change, caller, reply),
                other => self.mismatch(other, now),
            },
            FromProxy::Fact(fact) => self.fact(fact, now),
            FromProxy::NativeSession { id } => self.native_session(id, now),
            FromProxy::Attached(attached) => self.attached(*attached, now),
            FromProxy::Failed { request, error } => self.failed(request, error, now),
            FromProxy::Ended { reason, receipt } => {
                self.log.commit();
                tracing::debug!(%reason, %receipt, "the proxy ended the session");
                self.ending.said(reason.clone(), receipt, now);
                if !self.retry.is_coming() {
                    self.stop(self.error_of(&reason));
                }
            }
        }
    }

    /// Takes the request that an answer is for. Events appended before are readable before the answer.
    fn answered(&mut self, request: RequestId) -> Option<Waiting> {
        let waiting = self.pending.take(request);
        if let Some(Waiting::Prompt { caller: Some(_), .. }) = waiting {
            self.hold_together();
        }
        self.log.commit();
        waiting
    }

    /// Fails a request that got an answer of the wrong kind. An answer without a request is late, and ignored.
    fn mismatch(&mut self, waiting: Option<Waiting>, now: Instant) {
        if let Some(waiting) = waiting {
            let reason = "an answer is not of the kind that was asked for".to_owned();
            waiting.fail(Error::Protocol { reason: reason.clone() });
            self.broken(reason, now);
        }
    }

    fn hello(&mut self, hello: &Hello, now: Instant) {
        if self.proxy.is_some() {
            return self.broken("it said hello twice".to_owned(), now);
        }
        self.proxy = Some(hello.process);
        self.session.show(|view| view.proxy = Some(hello.process));
        if hello.version != VERSION && !self.wire.is_described() {
            let error = Error::VersionMismatch { ours: VERSION, theirs: hello.version };
            self.force(error, now);
        }
    }

    fn started(
        &mut self,
        process: ProcessId,
        native_session_id: Option<String>,
        turns: bool,
        measures: Box<Measures>,
        now: Instant,
    ) {
        self.session.show(|view| {
            view.agent = Some(process);
            view.measures = Some((*measures).clone());
            view.converses(native_session_id.clone());
        });
        self.witness.sees(measures.observer == Observer::Connector);
        if let Some(journal) = &mut self.journal {
            journal.spawned(process);
        }
        let Some(proxy) = self.proxy else { return };
        if !matches!(self.phase, Phase::Starting { .. }) {
            return;
        }
        if let Err(error) = self.fits(native_session_id.as_deref(), turns) {
            self.stop(error.clone());
            return self.end(Task::FAILED, EndReason::Failed(error.to_string()), now);
        }
        let Phase::Starting { ready, .. } = std::mem::replace(&mut self.phase, Phase::Idle) else { return };
        self.has_turns = turns;
        // Done before the log is held.
        self.keep_conversation();
        self.hold_together();
        let agent = self.session.labels().agent.clone();
        self.log.push(0, Event::SessionStarted { agent, process, proxy, native_session_id, measures });
        self.log.push(0, Event::SessionIdle {});
        self.log.commit();
        tracing::debug!(%process, "ready");
        self.became_ready(now);
        self.session.show(|view| {
            view.state = SessionState::Idle;
            (view.ready, view.has_turns) = (true, turns);
        });
        // A caller that stopped waiting dropped its future, which asks for the session's end.
        self.answer_later(move || _ = ready.send(Ok(())));
        self.next_turn(now);
    }

    /// Starts the health check and the idle clock.
    pub(super) fn became_ready(&mut self, now: Instant) {
        self.pulse.begin(now);
        self.lasting.ready(now);
    }

    /// Ties the conversation to the proxy's life for other managers.
    pub(super) fn keep_conversation(&mut self) {
        if let Some(proxy) = self.proxy {
            self.conversation.is_kept_by(Keeper { proxy, outlives: self.outliving.is_some() });
        }
    }

    /// Checks that the agent that is ready meets the request.
    fn fits(&mut self, native_session_id: Option<&str>, turns: bool) -> Result<()> {
        if let Some(id) = native_session_id {
            self.conversation.is_now(id)?;
        }
        if self.preamble.is_some() && !turns {
            let agent = self.session.labels().agent.clone();
            let operation = "be told anything before its first prompt: it has no turns".to_owned();
            return Err(Error::Unsupported { agent, operation });
        }
        Ok(())
    }

    /// Records a fact that the agent reported, and emits it.
    fn fact(&mut self, fact: AgentFact, now: Instant) {
        let (status, detail) = match fact {
            AgentFact::NotResumable { detail } => {
                self.session.show(|view| view.not_kept = true);
                (NOT_KEPT, detail)
            }
            AgentFact::ServerListens { address } => {
                self.session.show(|view| view.endpoint = Some(address.clone()));
                (SERVER_LISTENS, address)
            }
        };
        self.event(self.turn(), Event::SessionStatus { status: status.to_owned(), detail }, now);
    }

    /// Records that the agent switched to another conversation.
    fn native_session(&mut self, id: String, now: Instant) {
        if let Err(error) = self.conversation.is_now(&id) {
            let action = "going over to another conversation".to_owned();
            self.log.push(0, Event::ActionFailed { action, error: error.to_string() });
            let reason = EndReason::Failed(error.to_string());
            self.stop(error);
            return self.end(Task::FAILED, reason, now);
        }
        self.log.push(0, Event::SessionStatus { status: "nativeSession".to_owned(), detail: id.clone() });
        self.session.show(|view| view.converses(Some(id)));
    }

    pub(super) fn event(&mut self, turn: u64, mut event: Event, now: Instant) {
        if let Event::LimitExceeded(passed) = &event
            && !self.limits.take(passed, now)
        {
            return;
        }
        if self.is_known_already(&event) {
            return;
        }
        if let Phase::Busy(busy) = &mut self.phase
            && busy.turn == turn
        {
            self.clocks.note(&event, now);
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
        if let Some(journal) = &mut self.journal {
            journal.note(&event);
        }
        self.known.note(&event, now);
        self.session.tally(|tally| tally.note(&event));
        let metered = self.meter.note(turn, &event);
        let turn_is_over = matches!(event, Event::Complete { .. });
        self.log.push(turn, event);
        if let Some(passed) = metered {
            self.metered(turn, passed, turn_is_over, now);
        }
    }

    pub(super) fn turn_ended(&mut self, turn: u64, now: Instant) {
        if self.waits_for_usage(turn, now) {
            return;
        }
        let busy = match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Busy(busy) if busy.turn == turn => busy,
            other => {
                self.phase = other;
                return tracing::debug!(turn, "turn end dropped: the turn does not run");
            }
        };
        self.hold_together();
        if let Some(accepted) = &busy.accepted {
            self.log.move_cursor(ENDED, accepted.offset);
        }
        self.idle(turn);
        // A ticket that was dropped misses nothing.
        self.answer_later(move || busy.tickets.into_iter().for_each(|ticket| _ = ticket.send(Ok(busy.end.clone()))));
        self.next_turn(now);
    }

    /// Handles the agent's exit: waiting callers fail at once.
    fn agent_exited(&mut self, exit: ExitStatus, kept: bool, now: Instant) {
        self.log.commit();
        tracing::debug!(%exit, kept, "agent exited");
        if self.retry.is_coming() {
            return;
        }
        let reason = EndReason::AgentExited(Some(exit));
        let error = self.error_of(&reason);
        if !kept {
            // The agent may have exited because a kill ended its tools: the kill's receipt is still to come.
            let kills = self.pending.take_kills();
            self.stop(error);
            kills.into_iter().for_each(|(request, waiting)| self.pending.insert(request, waiting));
            return;
        }
        let busy = match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Idle => None,
            Phase::Busy(busy) => Some(busy),
            other => {
                // An agent that never was ready leaves nothing to retain; a session that is ending continues to end.
                let starting = matches!(other, Phase::Starting { .. });
                self.phase = other;
                if starting {
                    self.stop(error);
                    self.end(Task::FAILED, reason, now);
                }
                return;
            }
        };
        let detail = format!("{exit}; what it left is kept until the kill");
        self.log.push(0, Event::SessionStatus { status: "agentExited".into(), detail });
        self.log.commit();
        self.session.queue().fail_tickets(&error);
        if let Some(busy) = busy {
            if let Some(accepted) = &busy.accepted {
                self.fail_accepted(busy.turn, accepted, &error);
            }
            self.idle(busy.turn);
            for ticket in busy.tickets {
                let _ = ticket.send(Err(error.clone()));
            }
        }
    }

    /// Ends the turn: the session waits for a prompt.
    fn idle(&mut self, turn: u64) {
        self.stop_clocks();
        self.session.tally(|tally| tally.is_busy(false));
        self.log.push(turn, Event::SessionIdle {});
        self.log.commit();
        tracing::debug!(turn, "idle");
        self.lasting.idle(Instant::now());
        self.session.show(|view| view.state = SessionState::Idle);
    }

    /// Handles a request that failed.
    fn failed(&mut self, request: RequestId, error: WireError, now: Instant) {
        let Some(waiting) = self.answered(request) else { return };
        let error = Error::from_wire(self.session.id(), error);
        match waiting {
            Waiting::Start => self.start_failed(error, now),
            Waiting::Prompt { turn, caller } => {
                self.prompt_failed(turn, &error);
                if let Some((caller, _)) = caller {
                    Pending::answer(caller, Err(error));
                }
                self.next_turn(now);
            }
            Waiting::Accepted(accepted) => self.fail_accepted(0, &accepted, &error),
            Waiting::EndTurn(why) => self.abort_failed(why, &error, now),
            waiting => waiting.fail(error),
        }
    }

    /// The agent did not take the prompt of `turn`.
    pub(super) fn prompt_failed(&mut self, turn: u64, error: &Error) {
        let busy = match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Busy(busy) if busy.turn == turn => busy,
            other => {
                self.phase = other;
                return;
            }
        };
        match &busy.accepted {
            Some(accepted) => self.fail_accepted(turn, accepted, error),
            None => self.log.push(turn, Event::ActionFailed { action: "prompt".to_owned(), error: error.to_string() }),
        }
        self.idle(turn);
        for ticket in busy.tickets {
            let _ = ticket.send(Err(error.clone()));
        }
    }
}
