//! State machine of a session. It does no I/O and reads no clock: commands, messages, results of writes and the time go in;
//! frames for the proxy, timers and [`SessionEffect`]s come out. [`driver`](super::driver) feeds it and carries the effects out.
//!
//! ARCHITECTURE.md has the chart of a session's life.

mod agent_status;
mod answers;
mod attach;
mod budget;
mod calls;
mod clocks;
mod effect;
mod exit_status_collector;
mod health;
mod launch_retry;
pub(super) mod lifecycle;
mod limits;
mod open_permissions;
mod process_ledger;
mod prompting;
mod screen_use;
mod timers;
mod usage;

use std::{collections::VecDeque, sync::Arc, time::Duration};

use ipc_protocol::{
    AgentSessionConfig, Budget, ContainmentSpec, EndReason, ErrorChain, Event, Json, KillOptions, KillScope, Lifecycle,
    LimitExceeded, Limits, OnUsageLimit, ProcessId, Receipt, SessionId, Timeouts, Usage,
    codec::Outbox,
    message::{AgentCommand, Hello, ProxyCommand, ToForkServer, ToProxy, VERSION},
    reattach::WireFormat,
    terminal::Surface,
};
use tokio::{sync::oneshot, time::Instant};

use self::{
    attach::DetachState,
    clocks::LastWords,
    exit_status_collector::ExitStatusCollector,
    launch_retry::LaunchRetry,
    lifecycle::{CrashHistory, LifecyclePolicy, SessionFate},
    limits::LimitSupervisor,
    open_permissions::OpenPermissions,
    process_ledger::ProcessLedger,
    prompting::UnsentPrompt,
    screen_use::ScreenUse,
    usage::UsageWait,
};
pub(crate) use self::{
    attach::HostHandover,
    effect::{CallerReply, HostConditions, LeasePurpose, SessionEffect},
    timers::{SessionTimers, TimerKind},
};
use super::{
    AcceptedPrompt, DesiredState, PromptQueue, SessionView, TurnEnd,
    clocks::SessionClocks,
    meter::UsageMeter,
    metrics::UsageCounters,
    pending_requests::{PendingAnswer, PendingRequests, SettingChange},
    process_listings::ProcessListings,
    pulse::ProxyPulse,
    session_ending::{EndingStep, SessionEnd, SessionEnding},
    turn::TurnSender,
};
use crate::{
    deadlines::Deadlines,
    description::{AfterSuspension, AgentStatus, SessionRemains, SessionState, TurnUsage},
    error::{Error, Result},
    fork_server::ForkServerEvent,
};

/// Kill options for a session that failed to start.
pub(crate) const FAILURE: KillOptions = KillOptions::grace(Duration::from_millis(500));
/// Longest delay of event log commits while the agent starts. Agents then sync files of their own, tens of them, and
/// start tools by the dozen: each of our commits would make them wait for the disk and for a processor. Most are ready
/// within this time.
const START_COMMITS: Duration = Duration::from_millis(250);
/// Number of events from which a commit is not delayed.
const MAX_EVENTS_AT_START: usize = 256;

/// The running turn.
#[derive(Debug)]
struct RunningTurn {
    end: TurnEnd,
    turn: u64,
    tickets: Vec<TurnSender>,
    /// What it was begun for, if that is in the log.
    accepted: Option<AcceptedPrompt>,
    usage_wait: UsageWait,
    last_words: LastWords,
}

#[derive(Debug)]
enum SessionPhase {
    /// The agent is not ready; `ready` has the waiting caller.
    Starting {
        ready: oneshot::Sender<Result<()>>,
        /// What is reported once the lease of the agent's conversation is taken, and whether the agent has turns.
        started: Option<(Event, bool)>,
    },
    Idle,
    Busy(Box<RunningTurn>),
    /// No call can be answered any more.
    Ending,
    Over,
}

/// What a core is made of: plain values, but for the queue, in which prompts wait over all lives of the session.
pub(crate) struct CoreSetup {
    pub(crate) id: SessionId,
    pub(crate) agent: String,
    /// Process of this host.
    pub(crate) host: ProcessId,
    pub(crate) deadlines: Deadlines,
    pub(crate) queue: Arc<PromptQueue>,
    pub(crate) past: SessionPast,
    pub(crate) conditions: HostConditions,
    pub(crate) rules: SessionRules,
    pub(crate) enclosure: ContainmentSpec,
    /// Encoding of messages to and from the proxy.
    pub(crate) wire: WireFormat,
    /// True if the host has a journal of its processes, and can sweep it.
    pub(crate) can_sweep: bool,
    /// True if it waits for a start that claims it.
    pub(crate) is_warm: bool,
    /// Number in the log from which the proxy's message numbers continue, if the session may outlive this host.
    pub(crate) source_base: Option<u64>,
}

/// Bounds that a session's configuration sets, and what happens at them.
#[derive(Clone, Debug)]
pub(crate) struct SessionRules {
    pub(crate) max_prompts: Option<u32>,
    pub(crate) limits: Limits,
    pub(crate) timeouts: Timeouts,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) budget: Budget,
    pub(crate) on_usage_limit: OnUsageLimit,
    /// True while its user visits the agent's own screen: prompts wait.
    pub(crate) is_visit: bool,
    /// Ways in which it is driven.
    pub(crate) surface: Surface,
}

impl SessionRules {
    pub(crate) fn of(config: &AgentSessionConfig) -> Self {
        Self {
            max_prompts: config.max_prompts,
            limits: config.limits.clone(),
            timeouts: config.timeouts,
            lifecycle: config.lifecycle.clone(),
            budget: config.budget,
            on_usage_limit: config.on_usage_limit,
            is_visit: config.terminal.as_ref().is_some_and(|terminal| terminal.visit),
            surface: config.driving_surface(),
        }
    }
}

/// What earlier incarnations of a session leave to the next one.
pub(crate) struct SessionPast {
    /// True if there was one.
    pub(crate) has_been: bool,
    pub(crate) turns: u64,
    pub(crate) usage: Usage,
    pub(crate) turn_usage: TurnUsage,
    pub(crate) crashes: CrashHistory,
    /// The agent's own id of the conversation.
    pub(crate) native: Option<String>,
    /// True if another process can resume the conversation, as far as is known.
    pub(crate) is_kept: bool,
    /// What the agent told of itself.
    pub(crate) agent_status: AgentStatus,
    /// Model that it was started with.
    pub(crate) model: Option<String>,
    /// Number of events that wait to be committed.
    pub(crate) batched: usize,
}

/// What the proxy starts the agent from.
#[derive(Debug)]
pub(crate) struct AgentStart {
    pub(crate) config: AgentSessionConfig,
    pub(crate) command: AgentCommand,
    /// Text before the first prompt.
    pub(crate) preamble: Option<String>,
    /// Reason why it begins a new conversation instead of resuming one.
    pub(crate) anew: Option<String>,
}

/// The state of a session.
pub(crate) struct SessionCore {
    id: SessionId,
    agent_name: String,
    deadlines: Deadlines,
    queue: Arc<PromptQueue>,
    conditions: HostConditions,
    /// What is to be done, oldest first.
    effects: VecDeque<SessionEffect>,
    timers: SessionTimers,
    /// Number of events appended since the last commit.
    batched: usize,
    /// Process of this host.
    host: ProcessId,
    outbox: Outbox,
    pending: PendingRequests,
    listing: ProcessListings,
    phase: SessionPhase,
    /// Began, and the agent has it when the log says so.
    unsent: Option<UnsentPrompt>,
    /// They would overtake it.
    held_aborts: Vec<(ProxyCommand, PendingAnswer)>,
    ending: SessionEnding,
    /// Error of all calls from now on: the session is ending.
    closing: Option<Error>,
    /// The proxy, known from its hello.
    proxy: Option<ProcessId>,
    agent: Option<ProcessId>,
    /// The agent's own id of the conversation.
    native: Option<String>,
    /// True if another process can resume the conversation, as far as is known.
    is_kept: bool,
    has_turns: bool,
    /// Number of prompts accepted.
    turns: u64,
    max_prompts: Option<u32>,
    limits: LimitSupervisor,
    clocks: SessionClocks,
    meter: UsageMeter,
    pulse: ProxyPulse,
    /// Time for the agent to be ready, if bounded.
    start: Option<Duration>,
    /// Reason for which the turn was aborted, and for which the session ends if the turn does not.
    abort_deadline: Option<EndReason>,
    exit_statuses: ExitStatusCollector,
    process_ledger: ProcessLedger,
    /// Text before the first prompt.
    preamble: Option<String>,
    enclosure: ContainmentSpec,
    retry: LaunchRetry,
    /// Encoding of messages to and from the proxy.
    wire: WireFormat,
    /// Message counters, if the session may outlive this host.
    detach_state: Option<DetachState>,
    /// True while its user visits the agent's own screen.
    is_visit: bool,
    /// True while it waits for a start that claims it.
    is_warm: bool,
    surface: Surface,
    /// What people do on its screen.
    screen: ScreenUse,
    lifecycle_policy: LifecyclePolicy,
    crashes: CrashHistory,
    /// True if events were committed since this was last read.
    has_new_commit: bool,
    /// It goes on without this host.
    is_left: bool,
    /// What an earlier host began and did not see the end of, and the number of its turn.
    interrupted: Option<(AcceptedPrompt, u64)>,
    on_usage_limit: OnUsageLimit,
    can_sweep: bool,
    open_permissions: OpenPermissions,
    /// What the agent tells of itself.
    agent_status: AgentStatus,
    /// Model that the session was started with.
    model: Option<String>,
    /// Changes that the agent told while the operation that makes them was outstanding.
    told_changes: Vec<SettingChange>,
}

impl SessionCore {
    /// Creates the core of a session that is about to start, with the proxy's first messages queued.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if the configuration is too long to be sent.
    pub(crate) fn new(
        setup: CoreSetup,
        start: AgentStart,
        now: Instant,
    ) -> Result<(Self, oneshot::Receiver<Result<()>>)> {
        let (ready, is_ready) = oneshot::channel();
        let outliving = setup.source_base.map(DetachState::new);
        let phase = SessionPhase::Starting { ready, started: None };
        let mut core = Self::assemble(setup, phase, outliving);
        core.arm_start(now);
        core.begin(start, now)?;
        Ok((core, is_ready))
    }

    /// Discards an incarnation that does not begin: it emits nothing, and a suspended session stays suspended.
    pub(crate) fn cancel(&mut self) {
        self.effects.clear();
        self.phase = SessionPhase::Over;
    }

    fn assemble(setup: CoreSetup, phase: SessionPhase, detach_state: Option<DetachState>) -> Self {
        let start = start_clock(&setup);
        let CoreSetup { deadlines, past, rules, .. } = setup;
        Self {
            id: setup.id,
            agent_name: setup.agent,
            deadlines,
            queue: setup.queue,
            conditions: setup.conditions,
            effects: VecDeque::new(),
            timers: SessionTimers::default(),
            batched: past.batched,
            host: setup.host,
            outbox: Outbox::default(),
            pending: PendingRequests::default(),
            listing: ProcessListings::default(),
            phase,
            unsent: None,
            held_aborts: Vec::new(),
            ending: SessionEnding::new(deadlines.wedged, deadlines.kill),
            closing: None,
            proxy: None,
            agent: None,
            native: past.native,
            is_kept: past.is_kept,
            has_turns: true,
            turns: past.turns,
            max_prompts: rules.max_prompts,
            limits: LimitSupervisor::new(rules.limits, deadlines.wedged),
            clocks: SessionClocks::new(rules.timeouts),
            meter: UsageMeter::new(rules.budget, past.usage),
            pulse: ProxyPulse::new(deadlines.health),
            start,
            abort_deadline: None,
            exit_statuses: ExitStatusCollector::default(),
            process_ledger: ProcessLedger::default(),
            preamble: None,
            enclosure: setup.enclosure,
            retry: LaunchRetry::default(),
            wire: setup.wire,
            detach_state,
            lifecycle_policy: LifecyclePolicy::new(&rules.lifecycle, past.has_been, rules.is_visit),
            is_visit: rules.is_visit,
            is_warm: setup.is_warm,
            surface: rules.surface,
            screen: ScreenUse::new(rules.surface),
            crashes: past.crashes,
            has_new_commit: false,
            is_left: false,
            interrupted: None,
            on_usage_limit: rules.on_usage_limit,
            can_sweep: setup.can_sweep,
            open_permissions: OpenPermissions::default(),
            agent_status: past.agent_status,
            model: past.model,
            told_changes: Vec::new(),
        }
    }

    /// Queues the messages from which the proxy starts the agent.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if a message is too long to be sent.
    fn begin(&mut self, start: AgentStart, now: Instant) -> Result<()> {
        let AgentStart { config, command, preamble, anew } = start;
        self.preamble = preamble;
        self.delay_commits(now);
        if let Some(detail) = anew {
            self.effects.push_back(SessionEffect::DropLease);
            self.push(0, Event::SessionStatus { status: "resumeFailed".to_owned(), detail });
        }
        let request = self.pending.mint();
        self.pending.insert(request, PendingAnswer::Start);
        let enclosure = Box::new(self.enclosure.clone());
        let command = ProxyCommand::Start { config: Box::new(config), command: Box::new(command), enclosure };
        let start = ToProxy::Request { request, command };
        self.outbox
            .push_control(&ToProxy::Hello(Hello { version: VERSION, process: self.host }))
            .and_then(|()| self.outbox.push(&start))
            .map_err(|error| Error::InvalidConfig { field: "configuration", reason: ErrorChain(&error).to_string() })
    }

    /// Bytes for the proxy.
    pub(crate) fn outbox(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    /// Takes what is to be done next.
    pub(crate) fn next_effect(&mut self) -> Option<SessionEffect> {
        self.effects.pop_front()
    }

    /// Takes the conditions under which the next input is handled.
    pub(crate) fn observe(&mut self, conditions: HostConditions) {
        self.conditions = conditions;
    }

    /// Returns true while messages of the proxy are read.
    pub(crate) fn is_listening(&self) -> bool {
        !self.ending.is_closed()
    }

    /// Returns true once the session's end is decided.
    pub(crate) fn is_ending(&self) -> bool {
        self.closing.is_some()
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(self.phase, SessionPhase::Over)
    }

    /// Commits the batched events, unless that is delayed.
    pub(crate) fn commit(&mut self, now: Instant) {
        let is_few = (1..MAX_EVENTS_AT_START).contains(&self.batched);
        if is_few && self.delays_commits() && self.timers.is_set(TimerKind::Commit) {
            return;
        }
        if self.batched > 0 {
            self.delay_commits(now);
            self.has_new_commit = true;
            if matches!(self.phase, SessionPhase::Starting { .. }) {
                self.commit_together();
            }
        }
        self.commit_log();
    }

    /// Returns true if a change of the visible state is to be recorded now. While the agent starts, records are written
    /// with the events.
    pub(crate) fn must_record(&mut self) -> bool {
        std::mem::take(&mut self.has_new_commit) || !self.delays_commits()
    }

    /// Commits to memory are never delayed.
    fn delays_commits(&self) -> bool {
        matches!(self.phase, SessionPhase::Starting { .. }) && self.closing.is_none() && self.conditions.is_durable
    }

    /// Delays the next commit, while the agent starts.
    fn delay_commits(&mut self, now: Instant) {
        let at = self.delays_commits().then(|| now + START_COMMITS);
        self.timers.set(TimerKind::Commit, at);
    }

    /// Starts the clock of the agent's start, if it is bounded.
    fn arm_start(&mut self, now: Instant) {
        let at = self.start.and_then(|start| now.checked_add(start));
        self.timers.set(TimerKind::Start, at);
    }

    /// Handles a failure to write the journal.
    pub(crate) fn journal_failed(&mut self, error: &str) {
        let action = "writing down the session's processes in the state directory".to_owned();
        self.push(0, Event::ActionFailed { action, error: error.to_owned() });
        // The failure may be found on the way to the next wait, behind which nobody commits.
        self.commit_log();
    }

    /// Appends an event to the batch. `turn` 0 means none.
    fn push(&mut self, turn: u64, event: Event) {
        self.batched += 1;
        self.effects.push_back(SessionEffect::Append { turn, event });
    }

    /// Appends the beginning of a turn.
    fn push_turn(&mut self, turn: u64, event: Event, metadata: Option<Json>) {
        match metadata {
            None => self.push(turn, event),
            Some(metadata) => {
                self.batched += 1;
                self.effects.push_back(SessionEffect::AppendTurn { turn, event, metadata });
            }
        }
    }

    fn move_cursor(&mut self, consumer: &'static str, offset: u64) {
        self.effects.push_back(SessionEffect::MoveCursor { consumer, offset });
    }

    fn commit_log(&mut self) {
        self.batched = 0;
        self.effects.push_back(SessionEffect::Commit);
    }

    /// Changes the visible state.
    fn show(&mut self, change: impl FnOnce(&mut SessionView) + Send + 'static) {
        self.effects.push_back(SessionEffect::Show(Box::new(change)));
    }

    /// Changes the counters.
    fn tally(&mut self, change: impl FnOnce(&mut UsageCounters) + Send + 'static) {
        self.effects.push_back(SessionEffect::Tally(Box::new(change)));
    }

    /// Answers a caller.
    fn reply<T: Send + 'static>(&mut self, caller: oneshot::Sender<T>, answer: T) {
        self.effects.push_back(SessionEffect::Reply(Box::new(move || _ = caller.send(answer))));
    }

    /// Answers the caller of a request with an error.
    fn fail(&mut self, waiting: PendingAnswer, error: Error) {
        self.effects.push_back(SessionEffect::Reply(Box::new(move || waiting.fail(error))));
    }

    /// Answers all who wait for the proxy with an error.
    fn fail_pending(&mut self, error: &Error) {
        for waiting in self.pending.take_all() {
            self.fail(waiting, error.clone());
        }
    }

    /// Answers those who wait for turns to come with an error; the prompts stay.
    fn fail_tickets(&mut self, tickets: Vec<TurnSender>, error: &Error) {
        for ticket in tickets {
            self.reply(ticket, Err(error.clone()));
        }
    }

    /// Handles a change of the desired state.
    pub(crate) fn set_desired_state(&mut self, demand: DesiredState, now: Instant) {
        match demand {
            DesiredState::Run => {}
            DesiredState::End { options, reason, .. } => self.end(options, reason, now),
            DesiredState::Detach => self.abandon(now),
        }
    }

    /// Begins to end the session.
    fn end(&mut self, options: KillOptions, reason: EndReason, now: Instant) {
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
    fn close(&mut self) {
        self.effects.push_back(SessionEffect::Close);
        for kind in [TimerKind::Pulse, TimerKind::Idle, TimerKind::WallClock, TimerKind::Limit, TimerKind::Commit] {
            self.timers.cancel(kind);
        }
    }

    fn perform(&mut self, step: EndingStep, now: Instant) {
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
    fn force(&mut self, error: Error, now: Instant) {
        let reason = EndReason::Failed(error.chain());
        self.stop(error, now);
        self.force_for(FAILURE, reason, now);
    }

    fn force_for(&mut self, options: KillOptions, reason: EndReason, now: Instant) {
        self.process_ledger.begin_end(now);
        self.stop(self.error_of(&reason), now);
        let step = self.ending.force(options, reason, now);
        self.perform(step, now);
    }

    /// Handles an event of the fork server about this session.
    pub(crate) fn fork_server_event(&mut self, word: ForkServerEvent, now: Instant) {
        match word {
            ForkServerEvent::Forked(Ok(process)) => {
                self.show(move |view| view.processes.proxy = Some(process));
                self.effects.push_back(SessionEffect::NoteProxy(process));
            }
            ForkServerEvent::Forked(Err(error)) => {
                let error = Error::from_wire(&self.id, error);
                let reason = EndReason::Failed(error.chain());
                self.stop(error, now);
                // Nothing was started.
                self.finish(SessionEnd { reason, receipt: None }, true, now);
            }
            ForkServerEvent::Observed(event) => self.observed(event, now),
            ForkServerEvent::Listed(processes) => self.listed(&processes),
            ForkServerEvent::Gone(gone) => {
                tracing::debug!(exit = ?gone.exit, receipt = %gone.receipt, "proxy exited");
                self.ending.record_gone(gone, now);
                self.perform(EndingStep::Nothing, now);
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
                    self.exit_statuses.record_exit(*process, *exit);
                    self.answer_receipts();
                }
                let passed = match &event {
                    Event::ProcessExited { process, exit: Some(exit), .. } => {
                        self.limits.judge_exit(*process, *exit, &mut self.timers, now)
                    }
                    _ => None,
                };
                self.event(turn, event, now);
                if let Some(passed) = passed {
                    let limit = passed.limit;
                    let ends = limits::ends_session(&passed);
                    self.push(turn, Event::LimitExceeded(Box::new(passed)));
                    if ends && self.closing.is_none() {
                        self.end(KillOptions::NOW, EndReason::LimitExceeded(limit), now);
                    }
                }
            }
        }
    }

    fn turn(&self) -> u64 {
        if let SessionPhase::Busy(busy) = &self.phase { busy.turn } else { 0 }
    }

    /// Handles an exceeded limit on which the proxy does not act.
    fn passed(&mut self, turn: u64, passed: LimitExceeded, now: Instant) {
        if !self.limits.record(&passed, &mut self.timers, now) {
            return;
        }
        let limit = passed.limit;
        let ends = limits::ends_session(&passed);
        self.push(turn, Event::LimitExceeded(Box::new(passed)));
        if ends && self.closing.is_none() {
            self.force_for(limit.grace(), EndReason::LimitExceeded(limit), now);
        }
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
        } else {
            let reason = "it closed its connection".to_owned();
            Error::ProxyDied { session: self.id.clone(), reason }
        };
        if !self.retry.is_pending() {
            self.stop(error, now);
        }
    }

    /// Instant at which [`Core::tick`] is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.timers.next_deadline()
    }

    /// Returns true if another process can resume the conversation, as far as is known.
    fn keeps_conversation(&self) -> bool {
        self.is_kept && self.native.is_some()
    }

    /// Advances the time.
    pub(crate) fn tick(&mut self, now: Instant) {
        for kind in self.timers.expire(now) {
            match kind {
                TimerKind::Start => self.start_timed_out(now),
                TimerKind::Abort => self.abort_took_too_long(now),
                TimerKind::Turn => self.check_clocks(now),
                TimerKind::Usage => self.ask_again(now),
                TimerKind::Pulse => self.check_pulse(now),
                TimerKind::Idle => self.suspend(now),
                TimerKind::WallClock => self.wall_clock_passed(now),
                TimerKind::Limit => self.limit_took_too_long(now),
                TimerKind::Receipt => {
                    self.exit_statuses.tick(now);
                    self.answer_receipts();
                }
                TimerKind::Listing => self.list_without_proxy(now),
                TimerKind::End => {
                    let step = self.ending.tick(now);
                    self.perform(step, now);
                }
                TimerKind::Commit => self.commit(now),
            }
        }
    }

    /// Ends a session that has been idle for too long. One without a retained conversation could not be resumed, and is
    /// not suspended.
    fn suspend(&mut self, now: Instant) {
        if self.closing.is_none() && matches!(self.phase, SessionPhase::Idle) && self.keeps_conversation() {
            self.end(KillOptions::default(), EndReason::Suspended, now);
        }
    }

    /// Handles the end of the session's time, of which its proxy says nothing.
    fn wall_clock_passed(&mut self, now: Instant) {
        if let Some(passed) = self.limits.wall_clock_passed(now).filter(|_| self.closing.is_none()) {
            self.passed(self.turn(), passed, now);
        }
    }

    /// Handles a proxy that has not ended its session though a limit was exceeded.
    fn limit_took_too_long(&mut self, now: Instant) {
        if let Some(limit) = self.limits.overdue().filter(|_| self.closing.is_none()) {
            self.force_for(KillOptions::NOW, EndReason::LimitExceeded(limit), now);
        }
    }

    /// Commits events appended from now on together with the record that follows.
    fn commit_together(&mut self) {
        self.effects.push_back(SessionEffect::CommitTogether);
    }

    /// Answers a caller once everything appended and shown so far is durable: after any crash the caller finds what it
    /// was answered.
    fn reply_durably(&mut self, answer: impl FnOnce() + Send + 'static) {
        self.effects.push_back(SessionEffect::ReplyDurably(Box::new(answer)));
    }

    /// Sends the receipts that are complete.
    fn answer_receipts(&mut self) {
        for (caller, receipt) in self.exit_statuses.take_answers() {
            self.reply(caller, Ok(*receipt));
        }
        self.timers.set(TimerKind::Receipt, self.exit_statuses.next());
    }

    /// Handles a failure of the event log. `ends`: the session ends for it.
    pub(crate) fn log_failed(&mut self, error: &str, ends: bool, now: Instant) {
        if ends && self.closing.is_none() {
            self.end(KillOptions::default(), EndReason::Failed(error.to_owned()), now);
        }
        self.commit_log();
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
    fn stop(&mut self, error: Error, now: Instant) {
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
    fn finish(&mut self, SessionEnd { reason, mut receipt }: SessionEnd, never_began: bool, now: Instant) {
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
    fn fate(&mut self, reason: &EndReason, now: Instant) -> SessionFate {
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

    /// The host loses sight of the session: its manager is gone, or its runtime. Nobody can tell how it ends, but it does end.
    pub(crate) fn abandon(&mut self, now: Instant) {
        self.finish(SessionEnd { reason: EndReason::Shutdown, receipt: None }, false, now);
    }

    /// Error of calls when the session ends for `reason`.
    fn error_of(&self, reason: &EndReason) -> Error {
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

/// Time for an agent to be ready, if bounded.
fn start_clock(setup: &CoreSetup) -> Option<Duration> {
    match setup.rules.timeouts.start_ms {
        Some(0) => None,
        Some(ms) => Some(Duration::from_millis(ms)),
        None => Some(setup.deadlines.start),
    }
}
