//! What a session does: its state machine, without I/O. Commands, messages and time go in; bytes for the proxy, orders for
//! the fork server, events and answers come out.

mod answers;
mod calls;

use std::{collections::VecDeque, sync::Arc};

use ipc_protocol::{
    EndReason, Event, KillOptions, LimitAction, Limits, ProcessId,
    codec::Outbox,
    message::{Hello, ToForkServer, ToProxy, VERSION},
};
use tokio::{sync::oneshot, time::Instant};

use super::{
    Demand, Session, SessionState, Task, TurnEnd,
    ending::{End, Ending, Step},
    listing::Listing,
    pending::{Pending, Waiting},
    prompts::Queue,
    turn::TurnSender,
};
use crate::{Error, Result, fork_server::Word, history::Writer, launch::Launch, state::Journal};

/// The running turn.
#[derive(Debug)]
struct Busy {
    end: TurnEnd,
    turn: u64,
    tickets: Vec<TurnSender>,
}

#[derive(Debug)]
enum Phase {
    /// The agent is not ready; who waits for it.
    Starting {
        ready: oneshot::Sender<Result<()>>,
        deadline: Option<Instant>,
    },
    Idle,
    Busy(Busy),
    /// No call can be answered any more.
    Ending,
    Over,
}

/// The state of a session.
pub(crate) struct Core {
    session: Arc<Session>,
    log: Writer,
    /// Where its processes are written down, if they are.
    journal: Option<Journal>,
    outbox: Outbox,
    orders: VecDeque<ToForkServer>,
    pending: Pending,
    listing: Listing,
    queue: Queue,
    phase: Phase,
    ending: Ending,
    /// What calls fail with from now on: the session is on its way out.
    closing: Option<Error>,
    /// Known from its hello.
    proxy: Option<ProcessId>,
    has_turns: bool,
    /// Prompts taken.
    turns: u64,
    max_turns: Option<u32>,
    limits: Limits,
}

impl Core {
    /// A session that is about to start: what its proxy needs is queued.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if the configuration is too long to be sent.
    pub(crate) fn new(
        session: Arc<Session>,
        log: Writer,
        launch: Launch,
        host: ProcessId,
        now: Instant,
    ) -> Result<(Self, oneshot::Receiver<Result<()>>)> {
        let deadlines = *session.deadlines();
        let (ready, is_ready) = oneshot::channel();
        let max_turns = launch.config.max_turns;
        let limits = launch.config.limits.clone();
        let mut core = Self {
            log,
            journal: launch.journal,
            outbox: Outbox::default(),
            orders: VecDeque::new(),
            pending: Pending::default(),
            listing: Listing::default(),
            queue: Queue::default(),
            phase: Phase::Starting { ready, deadline: now.checked_add(deadlines.start) },
            ending: Ending::new(deadlines.wedged, deadlines.kill),
            closing: None,
            proxy: None,
            has_turns: true,
            turns: 0,
            max_turns,
            limits,
            session,
        };
        let request = core.pending.mint();
        core.pending.insert(request, Waiting::Start);
        let start = ToProxy::Start {
            request,
            config: Box::new(launch.config),
            command: Box::new(launch.command),
            enclosure: Box::new(launch.enclosure),
        };
        let pushed = core
            .outbox
            .push_control(&ToProxy::Hello(Hello { version: VERSION, process: host }))
            .and_then(|()| core.outbox.push(&start));
        match pushed {
            Ok(()) => Ok((core, is_ready)),
            Err(error) => Err(Error::InvalidConfig { field: "configuration", reason: error.to_string() }),
        }
    }

    /// Bytes for the proxy.
    pub(crate) fn outbox(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    /// The next order for the fork server.
    pub(crate) fn order(&mut self) -> Option<ToForkServer> {
        self.orders.pop_front()
    }

    /// Whether the proxy is still listened to.
    pub(crate) fn listens(&self) -> bool {
        !self.ending.is_closed()
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    /// Appends what has happened, under one lock.
    pub(crate) fn commit(&mut self) {
        self.write_journal();
        self.log.commit();
    }

    /// Writes down which processes there are. Called before the proxy is asked for anything: nothing shall run unrecorded.
    pub(crate) fn write_journal(&mut self) {
        if let Some(error) = self.journal.as_mut().and_then(Journal::commit) {
            let action = "writing down the session's processes in the state directory".to_owned();
            self.log.push(0, Event::ActionFailed { action, error: error.to_string() });
        }
    }

    /// What the manager wants of the session.
    pub(crate) fn demand(&mut self, demand: Demand, now: Instant) {
        match demand {
            Demand::Live => {}
            Demand::End { options, reason, .. } => self.end(options, reason, now),
            Demand::LetGo => self.finish(End { reason: EndReason::Shutdown, receipt: None }),
        }
    }

    /// Begins to end the session.
    fn end(&mut self, options: KillOptions, reason: EndReason, now: Instant) {
        tracing::debug!(?options, %reason, "ending");
        if self.closing.is_none() {
            self.closing = Some(self.error_of(&reason));
        }
        if matches!(self.phase, Phase::Starting { .. }) {
            self.stop(self.error_of(&reason));
        }
        let step = self.ending.request(options, reason, now);
        self.take(step);
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Nothing => {}
            Step::AskProxy(options, reason) => {
                let pushed = self.outbox.push_control(&ToProxy::Shutdown { options, reason });
                if let Err(error) = pushed {
                    tracing::error!(%error, "the order to shut down cannot be encoded");
                }
            }
            Step::AskForkServer(options) => {
                tracing::debug!(?options, "the fork server is asked to end the session");
                self.orders.push_back(ToForkServer::Kill { session: self.session.id().clone(), options });
            }
        }
    }

    /// What the proxy says is no longer to be trusted.
    pub(crate) fn broken(&mut self, reason: String, now: Instant) {
        tracing::warn!(reason, "the proxy broke the protocol");
        self.force(Error::Protocol { reason: format!("the session's proxy broke the protocol: {reason}") }, now);
    }

    /// Ends the session without the proxy.
    fn force(&mut self, error: Error, now: Instant) {
        let reason = EndReason::Failed(error.to_string());
        self.stop(error);
        let step = self.ending.force(Task::FAILED, reason, now);
        self.take(step);
    }

    /// The fork server says something of this session.
    pub(crate) fn word(&mut self, word: Word, now: Instant) {
        match word {
            Word::Forked(Ok(process)) => {
                self.session.show(|view| view.proxy = Some(process));
                if let Some(journal) = &mut self.journal {
                    journal.proxy(process);
                }
                self.write_journal();
            }
            Word::Forked(Err(error)) => {
                // Nothing was started.
                self.journal.take().into_iter().for_each(Journal::remove);
                let error = Error::from_wire(self.session.id(), error);
                let reason = EndReason::Failed(error.to_string());
                self.stop(error);
                self.finish(End { reason, receipt: None });
            }
            Word::Observed(event) => self.observed(event, now),
            Word::Listed(processes) => self.listed(&processes),
            Word::Gone(gone) => {
                tracing::debug!(exit = ?gone.exit, receipt = %gone.receipt, "the proxy is gone");
                self.ending.gone(gone, now);
            }
        }
    }

    /// The fork server saw something of the session's processes. How each ends is seen here only: one end tells of a limit.
    fn observed(&mut self, event: Event, now: Instant) {
        let turn = if let Phase::Busy(busy) = &self.phase { busy.turn } else { 0 };
        let passed = match &event {
            Event::ProcessExited { process, exit: Some(exit), .. } => {
                registry::file_size_exceeded(&self.limits, *process, *exit)
            }
            _ => None,
        };
        self.event(turn, event);
        if let Some(passed) = passed {
            let (limit, action) = (passed.limit, passed.action);
            self.log.push(turn, Event::LimitExceeded(Box::new(passed)));
            if action == LimitAction::KillSession && self.closing.is_none() {
                self.end(KillOptions::NOW, EndReason::LimitExceeded(limit), now);
            }
        }
    }

    /// The fork server will never say anything again.
    pub(crate) fn guard_died(&mut self, now: Instant) {
        self.ending.guard_dead(now);
        self.stop(Error::ForkServerDied);
    }

    /// The connection to the proxy is at its end.
    pub(crate) fn closed(&mut self, now: Instant) {
        self.log.commit();
        self.ending.closed(now);
        let error = if self.ending.is_guard_dead() {
            Error::ForkServerDied
        } else {
            let reason = "it closed its connection".to_owned();
            Error::ProxyDied { session: self.session.id().clone(), reason }
        };
        self.stop(error);
    }

    /// When [`Core::tick`] is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        let start = if let Phase::Starting { deadline, .. } = self.phase { deadline } else { None };
        [start, self.listing.next(), self.ending.next()].into_iter().flatten().min()
    }

    /// Time has passed.
    pub(crate) fn tick(&mut self, now: Instant) {
        if let Phase::Starting { deadline: Some(deadline), .. } = self.phase
            && deadline <= now
        {
            let operation = format!("starting the agent of session {}", self.session.id());
            let error = Error::Deadline { operation, after: self.session.deadlines().start };
            let reason = EndReason::Failed(error.to_string());
            self.stop(error);
            self.end(Task::FAILED, reason, now);
        }
        self.list_without_proxy(now);
        let step = self.ending.tick(now);
        self.take(step);
    }

    /// Ends the session if enough is known of its end.
    pub(crate) fn settle(&mut self, now: Instant) {
        if !self.is_over()
            && let Some(end) = self.ending.verdict(now)
        {
            self.finish(end);
        }
    }

    /// From now on every call fails: those that wait, with the reason first given.
    fn stop(&mut self, error: Error) {
        let error = self.closing.get_or_insert(error).clone();
        self.log.commit();
        self.pending.fail_all(&error);
        self.queue.fail_all(&error);
        match std::mem::replace(&mut self.phase, Phase::Ending) {
            Phase::Starting { ready, .. } => {
                let _ = ready.send(Err(error));
            }
            Phase::Busy(busy) => {
                for ticket in busy.tickets {
                    let _ = ticket.send(Err(error.clone()));
                }
            }
            Phase::Over => self.phase = Phase::Over,
            Phase::Idle | Phase::Ending => {}
        }
    }

    fn finish(&mut self, End { reason, receipt }: End) {
        if self.is_over() {
            return;
        }
        self.stop(self.error_of(&reason));
        self.phase = Phase::Over;
        tracing::debug!(%reason, receipt = receipt.as_ref().map(ToString::to_string), "ended");
        match self.journal.take() {
            Some(journal) if receipt.as_ref().is_some_and(|receipt| receipt.is_empty()) => journal.remove(),
            // What is left, or may be, is for the next manager.
            Some(mut journal) => _ = journal.commit(),
            None => {}
        }
        self.log.push(0, Event::SessionEnded { reason: reason.clone(), receipt: receipt.clone() });
        self.log.commit();
        self.session.show(|view| view.state = SessionState::Ended { reason, receipt });
    }

    /// What calls fail with when the session ends for `reason`.
    fn error_of(&self, reason: &EndReason) -> Error {
        let session = self.session.id().clone();
        let text = reason.to_string();
        match reason {
            EndReason::AgentExited(_) => Error::AgentDied { session, reason: text },
            EndReason::ProxyDied(_) => Error::ProxyDied { session, reason: text },
            EndReason::ForkServerDied => Error::ForkServerDied,
            EndReason::Shutdown => Error::ShutDown,
            EndReason::Killed | EndReason::Failed(_) | EndReason::HostDied | EndReason::LimitExceeded(_) => {
                Error::Ended { session, reason: text }
            }
        }
    }
}

impl Drop for Core {
    /// The task was dropped with its runtime: nobody can tell how the session ends, but end it does.
    fn drop(&mut self) {
        self.finish(End { reason: EndReason::Shutdown, receipt: None });
    }
}
