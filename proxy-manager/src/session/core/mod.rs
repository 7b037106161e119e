//! State machine of a session, without I/O. Commands, messages and time go in; bytes for the proxy, orders for the fork
//! server, events and answers come out.

mod again;
mod answers;
mod attach;
mod budget;
mod calls;
mod clocks;
mod health;
mod known;
pub(super) mod lasting;
mod limits;
mod saying;
mod usage;
mod witness;

use std::{collections::VecDeque, sync::Arc, time::Duration};

use ipc_protocol::{
    Budget, Enclosure, EndReason, Event, KillOptions, KillScope, Lifecycle, LimitExceeded, Limits, OnUsageLimit,
    ProcessId, Receipt, Timeouts,
    codec::Outbox,
    message::{Hello, ProxyCommand, ToForkServer, ToProxy, VERSION},
    reattach::Wire,
};
use tokio::{sync::oneshot, time::Instant};

pub(crate) use self::attach::Adoption;
use self::{
    again::Retry,
    attach::Outliving,
    clocks::LastWords,
    known::Known,
    lasting::{Fate, Lasting},
    limits::{Overdue, Overseer},
    saying::Unsent,
    usage::UsageWait,
    witness::Witness,
};
use super::{
    Accepted, Demand, Session, SessionState, Task, TurnEnd,
    clocks::Clocks,
    ending::{End, Ending, Step},
    listing::Listing,
    meter::Meter,
    pending::{Pending, Waiting},
    pulse::Pulse,
    turn::TurnSender,
};
use crate::{
    error::{Error, Result},
    fork_server::Word,
    history::{Held, RETRY, Writer},
    launch::{Attempt, Conversation, Launch},
    state::{Journal, Record},
    supervision::Slot,
};

/// Longest delay of event log commits while the agent starts. Agents then sync files of their own, tens of them, and
/// start tools by the dozen: each of our commits would make them wait for the disk and for a processor. Most are ready
/// within this time.
const START_COMMITS: Duration = Duration::from_millis(250);
/// Number of events from which a commit is not delayed.
const MOST_AT_START: usize = 256;

/// Successful answer to a caller.
type Answer = Box<dyn FnOnce() + Send>;

/// The running turn.
#[derive(Debug)]
struct Busy {
    end: TurnEnd,
    turn: u64,
    tickets: Vec<TurnSender>,
    /// What it was begun for, if that is in the log.
    accepted: Option<Accepted>,
    usage_wait: UsageWait,
    last_words: LastWords,
}

#[derive(Debug)]
enum Phase {
    /// The agent is not ready; `ready` has the waiting caller.
    Starting {
        ready: oneshot::Sender<Result<()>>,
        deadline: Option<Instant>,
    },
    Idle,
    Busy(Box<Busy>),
    /// No call can be answered any more.
    Ending,
    Over,
}

/// Inputs of a core.
struct Parts {
    host: ProcessId,
    journal: Option<Journal>,
    max_prompts: Option<u32>,
    limits: Limits,
    timeouts: Timeouts,
    start: Option<Duration>,
    conversation: Conversation,
    enclosure: Enclosure,
    retry: Retry,
    wire: Wire,
    outliving: Option<Outliving>,
    lifecycle: Lifecycle,
    slot: Option<Slot>,
    budget: Budget,
    on_usage_limit: OnUsageLimit,
}

/// The state of a session.
pub(crate) struct Core {
    session: Arc<Session>,
    log: Writer,
    /// Process of this host.
    host: ProcessId,
    /// Journal of its processes, if there is one.
    journal: Option<Journal>,
    /// Place among the sessions, until the session is over.
    slot: Option<Slot>,
    outbox: Outbox,
    orders: VecDeque<ToForkServer>,
    pending: Pending,
    listing: Listing,
    phase: Phase,
    /// Began, and the agent has it when the log says so.
    unsent: Option<Unsent>,
    /// They would overtake it.
    held_aborts: Vec<(ProxyCommand, Waiting)>,
    ending: Ending,
    /// Error of all calls from now on: the session is ending.
    closing: Option<Error>,
    /// The proxy, known from its hello.
    proxy: Option<ProcessId>,
    has_turns: bool,
    /// Number of prompts accepted.
    turns: u64,
    max_prompts: Option<u32>,
    limits: Overseer,
    clocks: Clocks,
    meter: Meter,
    pulse: Pulse,
    /// Time for the agent to be ready, if bounded.
    start: Option<Duration>,
    /// Reason for which the turn was aborted, and the instant at which the agent is given up.
    overdue: Option<(EndReason, Instant)>,
    witness: Witness,
    known: Known,
    conversation: Conversation,
    /// Text before the first prompt.
    preamble: Option<String>,
    enclosure: Enclosure,
    retry: Retry,
    /// Encoding of messages to and from the proxy.
    wire: Wire,
    /// Message counters, if the session may outlive this host.
    outliving: Option<Outliving>,
    lasting: Lasting,
    /// Successful answers, sent when the state they report is durable.
    answers: Vec<Answer>,
    /// While present, events are committed with the record that follows them.
    together: Option<Held>,
    /// Instant before which the next commit is delayed, while the agent starts.
    commits_at: Option<Instant>,
    /// True if events were committed since this was last read.
    has_committed: bool,
    /// It goes on without this host.
    is_left: bool,
    /// What an earlier host began and did not see the end of, and the number of its turn.
    interrupted: Option<(Accepted, u64)>,
    on_usage_limit: OnUsageLimit,
    /// To be swept by the host, in the place of a dead fork server.
    sweep: Option<Record>,
}

impl Core {
    /// Creates the core of a session that is about to start, with the proxy's first messages queued.
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
        let (ready, is_ready) = oneshot::channel();
        let Launch { attempt, fallback, resumed, enclosure, conversation, journal, slot, detach, .. } = launch;
        let config = &attempt.config;
        let timeouts = config.timeouts;
        let start = Self::start_clock(&session, &timeouts);
        let outliving = detach.map(|_| Outliving::new(&log));
        let parts = Parts {
            host,
            journal,
            max_prompts: config.max_prompts,
            limits: config.limits.clone(),
            timeouts,
            start,
            conversation,
            enclosure,
            retry: Retry { fallback, resumed, ..Retry::default() },
            wire: Wire::Plain,
            outliving,
            lifecycle: config.lifecycle.clone(),
            slot,
            budget: config.budget,
            on_usage_limit: config.on_usage_limit,
        };
        let phase = Phase::Starting { ready, deadline: start.and_then(|start| now.checked_add(start)) };
        let mut core = Self::assemble(session, log, phase, parts);
        if let Err(error) = core.begin(attempt) {
            core.call_off();
            return Err(error);
        }
        Ok((core, is_ready))
    }

    /// Time for an agent to be ready, if bounded.
    fn start_clock(session: &Session, timeouts: &Timeouts) -> Option<Duration> {
        match timeouts.start_ms {
            Some(0) => None,
            Some(ms) => Some(Duration::from_millis(ms)),
            None => Some(session.deadlines().start),
        }
    }

    /// Discards an incarnation that does not begin: it emits nothing, and a suspended session stays suspended.
    pub(crate) fn call_off(&mut self) {
        self.log.call_off();
        self.phase = Phase::Over;
    }

    fn assemble(session: Arc<Session>, log: Writer, phase: Phase, parts: Parts) -> Self {
        let deadlines = *session.deadlines();
        let Parts {
            host,
            journal,
            max_prompts,
            limits,
            timeouts,
            start,
            conversation,
            enclosure,
            retry,
            wire,
            outliving,
            lifecycle,
            slot,
            budget,
            on_usage_limit,
        } = parts;
        Self {
            log,
            host,
            journal,
            slot,
            outbox: Outbox::default(),
            orders: VecDeque::new(),
            pending: Pending::default(),
            listing: Listing::default(),
            phase,
            unsent: None,
            held_aborts: Vec::new(),
            ending: Ending::new(deadlines.wedged, deadlines.kill),
            closing: None,
            proxy: None,
            has_turns: true,
            turns: session.info().turns,
            max_prompts,
            limits: Overseer::new(limits, deadlines.wedged),
            clocks: Clocks::new(timeouts),
            meter: Meter::new(budget, session.metrics().usage),
            pulse: Pulse::new(deadlines.health),
            start,
            overdue: None,
            witness: Witness::default(),
            known: Known::default(),
            conversation,
            preamble: None,
            enclosure,
            retry,
            answers: Vec::new(),
            together: None,
            commits_at: None,
            has_committed: false,
            is_left: false,
            interrupted: None,
            on_usage_limit,
            sweep: None,
            wire,
            outliving,
            lasting: Lasting::new(&lifecycle, session.has_been()),
            session,
        }
    }

    /// Queues the messages from which the proxy starts the agent.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if a message is too long to be sent.
    fn begin(&mut self, attempt: Attempt) -> Result<()> {
        let Attempt { config, command, preamble, anew, .. } = attempt;
        self.preamble = preamble;
        self.commits_at = Some(Instant::now() + START_COMMITS);
        if let Some(detail) = anew {
            self.conversation.begins_anew();
            self.log.push(0, Event::SessionStatus { status: "resumeFailed".to_owned(), detail });
        }
        let request = self.pending.mint();
        self.pending.insert(request, Waiting::Start);
        let enclosure = Box::new(self.enclosure.clone());
        let command = ProxyCommand::Start { config: Box::new(config), command: Box::new(command), enclosure };
        let start = ToProxy::Request { request, command };
        self.outbox
            .push_control(&ToProxy::Hello(Hello { version: VERSION, process: self.host }))
            .and_then(|()| self.outbox.push(&start))
            .map_err(|error| Error::InvalidConfig { field: "configuration", reason: error.to_string() })
    }

    /// Bytes for the proxy.
    pub(crate) fn outbox(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    /// Takes the next order for the fork server.
    pub(crate) fn order(&mut self) -> Option<ToForkServer> {
        self.orders.pop_front()
    }

    /// Returns true while messages of the proxy are read.
    pub(crate) fn listens(&self) -> bool {
        !self.ending.is_closed()
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    /// Appends the batched events, under one lock.
    pub(crate) fn commit(&mut self) {
        self.write_journal();
        if self.commit_due().is_some_and(|due| Instant::now() < due) {
            return;
        }
        if self.log.batched() > 0 {
            self.commits_at = Some(Instant::now() + START_COMMITS);
            self.has_committed = true;
            if matches!(self.phase, Phase::Starting { .. }) {
                self.hold_together();
            }
        }
        self.log.commit();
        self.acknowledge();
    }

    /// Returns true if a change of the visible state is to be recorded now. While the agent starts, records are written
    /// with the events.
    pub(crate) fn is_to_be_noted(&mut self) -> bool {
        let has_committed = std::mem::take(&mut self.has_committed);
        let waits = matches!(self.phase, Phase::Starting { .. }) && self.closing.is_none() && self.log.is_kept();
        has_committed || !waits
    }

    /// Instant of a delayed commit. Commits to memory are never delayed.
    fn commit_due(&self) -> Option<Instant> {
        let starts = matches!(self.phase, Phase::Starting { .. }) && self.closing.is_none() && self.log.is_kept();
        self.commits_at.filter(|_| starts && (1..MOST_AT_START).contains(&self.log.batched()))
    }

    /// Writes the changed processes to the journal. Called before the proxy receives anything: no process shall run
    /// unrecorded.
    pub(crate) fn write_journal(&mut self) {
        if let Some(error) = self.journal.as_mut().and_then(Journal::commit) {
            let action = "writing down the session's processes in the state directory".to_owned();
            self.log.push(0, Event::ActionFailed { action, error: error.to_string() });
        }
    }

    /// Handles a change of the desired state.
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
        self.known.end_begins(now);
        self.stop_clocks();
        if self.closing.is_none() {
            self.closing = Some(self.error_of(&reason));
            self.session.closes();
        }
        if matches!(self.phase, Phase::Starting { .. }) {
            self.stop(self.error_of(&reason));
        }
        let step = self.ending.request(options, reason, now);
        self.take(step, now);
    }

    fn take(&mut self, step: Step, now: Instant) {
        match step {
            Step::Nothing => {}
            Step::AskProxy(options, reason) => {
                // Its answer names no request: it is the proxy's last message.
                let (request, scope) = (self.pending.mint(), KillScope::Session);
                let kill = ToProxy::Request { request, command: ProxyCommand::Kill { scope, options, reason } };
                if let Err(error) = self.wire.push_control(&mut self.outbox, &kill) {
                    tracing::error!(%error, "failed to encode the kill of the session");
                }
            }
            Step::AskForkServer(options) => {
                tracing::debug!(?options, "asking the fork server to end the session");
                self.orders.push_back(ToForkServer::Kill { session: self.session.id().clone(), options });
            }
            Step::Sweep => {
                tracing::warn!("the fork server is dead and the session has not ended: the host sweeps it");
                self.known.end_begins(now);
                self.sweep = self.journal.as_ref().map(Journal::record);
            }
        }
    }

    /// The session, if it is to be swept now.
    pub(crate) fn take_sweep(&mut self) -> Option<Record> {
        self.sweep.take()
    }

    /// The sweep has ended. `None` where it could not be done.
    pub(crate) fn swept(&mut self, receipt: Option<Receipt>, now: Instant) {
        self.ending.swept(receipt.map(Box::new), now);
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
        self.force_for(Task::FAILED, reason, now);
    }

    fn force_for(&mut self, options: KillOptions, reason: EndReason, now: Instant) {
        self.known.end_begins(now);
        self.stop(self.error_of(&reason));
        let step = self.ending.force(options, reason, now);
        self.take(step, now);
    }

    /// Handles an event of the fork server about this session.
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
                tracing::debug!(exit = ?gone.exit, receipt = %gone.receipt, "proxy exited");
                self.ending.gone(gone, now);
            }
        }
    }

    /// Handles a process event of the fork server. Ends of processes are seen only here, and one kind of end shows an
    /// exceeded limit.
    fn observed(&mut self, event: Event, now: Instant) {
        let turn = self.turn();
        match event {
            // The proxy is kept from reporting it.
            Event::LimitExceeded(passed) => self.passed(turn, *passed, now),
            event => {
                if let Event::ProcessExited { process, exit: Some(exit), .. } = &event {
                    self.witness.saw(*process, *exit);
                }
                let passed = match &event {
                    Event::ProcessExited { process, exit: Some(exit), .. } => {
                        self.limits.judge_exit(*process, *exit, now)
                    }
                    _ => None,
                };
                self.event(turn, event, now);
                if let Some(passed) = passed {
                    let limit = passed.limit;
                    let ends = limits::ends_session(&passed);
                    self.log.push(turn, Event::LimitExceeded(Box::new(passed)));
                    if ends && self.closing.is_none() {
                        self.end(KillOptions::NOW, EndReason::LimitExceeded(limit), now);
                    }
                }
            }
        }
    }

    fn turn(&self) -> u64 {
        if let Phase::Busy(busy) = &self.phase { busy.turn } else { 0 }
    }

    /// Handles an exceeded limit on which the proxy does not act.
    fn passed(&mut self, turn: u64, passed: LimitExceeded, now: Instant) {
        if !self.limits.take(&passed, now) {
            return;
        }
        let limit = passed.limit;
        let ends = limits::ends_session(&passed);
        self.log.push(turn, Event::LimitExceeded(Box::new(passed)));
        if ends && self.closing.is_none() {
            self.force_for(limit.grace(), EndReason::LimitExceeded(limit), now);
        }
    }

    /// Handles the death of the fork server.
    pub(crate) fn guard_died(&mut self, now: Instant) {
        let step = self.ending.guard_dead(self.journal.is_some(), now);
        self.stop(Error::ForkServerDied);
        self.take(step, now);
    }

    /// Handles the end of the connection to the proxy.
    pub(crate) fn closed(&mut self, now: Instant) {
        self.log.commit();
        self.known.end_begins(now);
        let step = self.ending.closed(now);
        self.take(step, now);
        let error = if self.ending.is_guard_dead() {
            Error::ForkServerDied
        } else {
            let reason = "it closed its connection".to_owned();
            Error::ProxyDied { session: self.session.id().clone(), reason }
        };
        if !self.retry.is_coming() {
            self.stop(error);
        }
    }

    /// Instant at which [`Core::tick`] is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        let start = if let Phase::Starting { deadline, .. } = self.phase { deadline } else { None };
        let limits = self.limits.next().filter(|_| self.closing.is_none());
        let suspend = self.suspension();
        let log = self.log.is_held().then(|| Instant::now() + RETRY);
        let all = [
            start,
            suspend,
            log,
            limits,
            self.listing.next(),
            self.ending.next(),
            self.witness.next(),
            self.next_clock(),
            self.next_usage(),
            self.next_beat(),
            self.commit_due(),
        ];
        all.into_iter().flatten().min()
    }

    /// Instant at which an idle session is suspended. A session without a retained conversation could not be resumed,
    /// and is not suspended.
    fn suspension(&self) -> Option<Instant> {
        let can_rest = self.closing.is_none() && matches!(self.phase, Phase::Idle);
        let due = self.lasting.next().filter(|_| can_rest)?;
        self.session.kept_conversation().map(|_| due)
    }

    /// Advances the time.
    pub(crate) fn tick(&mut self, now: Instant) {
        self.look_at_clocks(now);
        self.look_at_usage(now);
        self.take_pulse(now);
        if self.suspension().is_some_and(|due| due <= now) {
            self.lasting.busy();
            self.end(KillOptions::default(), EndReason::Suspended, now);
        }
        match self.limits.tick(now).filter(|_| self.closing.is_none()) {
            None => {}
            Some(Overdue::Said(passed)) => self.passed(self.turn(), passed, now),
            Some(Overdue::Ended(limit)) => self.force_for(KillOptions::NOW, EndReason::LimitExceeded(limit), now),
        }
        self.witness.tick(now);
        self.list_without_proxy(now);
        let step = self.ending.tick(now);
        self.take(step, now);
        if self.commit_due().is_some() {
            self.commit();
        }
    }

    /// Commits events appended from now on together with the record that follows.
    fn hold_together(&mut self) {
        self.together = self.together.take().or_else(|| self.log.together());
    }

    /// Answers a caller once everything appended and shown so far is durable: after any crash the caller finds what it
    /// was answered.
    fn answer_later(&mut self, answer: impl FnOnce() + Send + 'static) {
        self.answers.push(Box::new(answer));
    }

    /// Takes the answers that wait for the record. Writes are committed with the answers' events while the guard is
    /// held.
    pub(crate) fn take_answers(&mut self) -> (Vec<Answer>, Option<Held>) {
        (std::mem::take(&mut self.answers), self.together.take())
    }

    /// Returns true if too much waits for the event log to read more from the proxy.
    pub(crate) fn is_behind(&self) -> bool {
        self.log.is_behind()
    }

    /// Retries events for which the event log had no room, and reports its failure.
    pub(crate) fn look_at_log(&mut self, now: Instant) {
        if let Some(error) = self.log.push_failure() {
            tracing::error!(%error, "failed to append events to the log");
            if self.log.ends_on_failure() && self.closing.is_none() {
                self.end(KillOptions::default(), EndReason::Failed(error.to_string()), now);
            }
            self.log.commit();
        } else if self.log.is_held() {
            self.log.commit();
        }
        self.acknowledge();
    }

    /// Ends the session if enough is known of its end.
    pub(crate) fn settle(&mut self, now: Instant) {
        if !self.is_over()
            && let Some(end) = self.ending.verdict(now)
        {
            self.finish(end);
        }
    }

    /// Fails all calls from now on; waiting ones get the first reason.
    fn stop(&mut self, error: Error) {
        let error = self.closing.get_or_insert(error).clone();
        self.session.closes();
        self.retry.missing = None;
        self.log.commit();
        for accepted in self.pending.take_accepted() {
            self.fail_accepted(0, &accepted, &error);
        }
        self.pending.fail_all(&error);
        // The prompts themselves wait for what becomes of the session.
        self.session.queue().fail_tickets(&error);
        self.unsent = None;
        for (_, waiting) in std::mem::take(&mut self.held_aborts) {
            waiting.fail(error.clone());
        }
        self.stop_clocks();
        self.session.tally(|tally| tally.is_busy(false));
        match std::mem::replace(&mut self.phase, Phase::Ending) {
            Phase::Starting { ready, .. } => {
                let _ = ready.send(Err(error));
            }
            Phase::Busy(busy) => {
                // The turn of one that is let go of goes on.
                if let Some(accepted) = busy.accepted.filter(|_| !self.is_left) {
                    self.fail_accepted(busy.turn, &accepted, &error);
                }
                for ticket in busy.tickets {
                    let _ = ticket.send(Err(error.clone()));
                }
            }
            Phase::Over => self.phase = Phase::Over,
            Phase::Idle | Phase::Ending => {}
        }
    }

    fn finish(&mut self, End { reason, mut receipt }: End) {
        if self.is_over() {
            return;
        }
        if let Some(receipt) = &mut receipt {
            // A proxy that reports its end knows the processes alive when its kill began; the ledger learns of them later.
            if !self.ending.has_said() {
                self.known.complete(receipt);
            }
            self.witness.complete(receipt);
            for exit in self.known.take_untold_exits(receipt) {
                self.log.push(0, exit);
            }
        }
        self.witness.give_up();
        if self.tries_again(receipt.as_deref()) {
            return;
        }
        let is_let_go = self.is_let_go(&reason, receipt.as_deref());
        self.is_left = is_let_go;
        self.stop(self.error_of(&reason));
        self.phase = Phase::Over;
        if is_let_go {
            self.conversation.let_go();
        } else {
            self.conversation.close();
        }
        self.slot = None;
        tracing::debug!(%reason, receipt = receipt.as_ref().map(ToString::to_string), "ended");
        match self.journal.take() {
            Some(journal) if receipt.as_ref().is_some_and(|receipt| receipt.is_empty()) => journal.remove(),
            // Processes that are left, or may be, are for the next manager.
            Some(mut journal) => _ = journal.commit(),
            None => {}
        }
        if is_let_go {
            // The next host continues the stream.
            self.log.leave_open();
            self.log.commit();
            self.session.show(|view| (view.state, view.let_go) = (SessionState::Ended { reason, receipt }, true));
            return;
        }
        let fate = self.lasting.fate(&reason, &self.session, Instant::now());
        let (told, shown) = (reason.clone(), receipt.clone());
        let (state, restart_after) = match fate {
            Fate::Rest | Fate::Restart(_) => {
                self.log.push(0, Event::SessionSuspended { reason: told, receipt: shown });
                self.log.leave_open();
                let pause = if let Fate::Restart(pause) = fate { Some(pause) } else { None };
                (SessionState::Suspended { reason, receipt }, pause)
            }
            Fate::End | Fate::GiveUp(_) => {
                if let Fate::GiveUp(crashes) = fate {
                    let (action, error) =
                        ("starting the session again".to_owned(), format!("it crashed {crashes} times"));
                    self.log.push(0, Event::ActionFailed { action, error });
                }
                let error = self.error_of(&reason);
                for action in self.session.queue().give_up(&error) {
                    self.log.push(0, Event::ActionFailed { action, error: error.to_string() });
                }
                self.log.push(0, Event::SessionEnded { reason: told, receipt: shown });
                (SessionState::Ended { reason, receipt }, None)
            }
        };
        self.log.commit();
        self.session.show(|view| (view.state, view.restart_after) = (state, restart_after));
    }

    /// Error of calls when the session ends for `reason`.
    fn error_of(&self, reason: &EndReason) -> Error {
        let session = self.session.id().clone();
        let text = reason.to_string();
        match reason {
            EndReason::AgentExited(_) => Error::AgentDied { session, reason: text },
            EndReason::ProxyDied(_) => Error::ProxyDied { session, reason: text },
            EndReason::ForkServerDied => Error::ForkServerDied,
            EndReason::Shutdown => Error::ShutDown,
            EndReason::Suspended => Error::Suspended { session },
            EndReason::Killed
            | EndReason::Failed(_)
            | EndReason::HostDied
            | EndReason::LimitExceeded(_)
            | EndReason::BudgetExceeded(_)
            | EndReason::Unresponsive(_)
            | EndReason::TimedOut(_) => Error::Ended { session, reason: text },
        }
    }
}

impl Drop for Core {
    /// The task was dropped with its runtime: nobody can tell how the session ends, but it does end.
    fn drop(&mut self) {
        self.finish(End { reason: EndReason::Shutdown, receipt: None });
    }
}
