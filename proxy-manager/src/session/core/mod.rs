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
mod commits;
mod effect;
mod ending;
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
    AgentSessionConfig, Budget, ContainmentSpec, EndReason, ErrorChain, Event, KillOptions, Lifecycle, LimitExceeded,
    Limits, OnUsageLimit, ProcessId, SessionId, Timeouts, Usage,
    codec::Outbox,
    message::{AgentCommand, Hello, ProxyCommand, ToProxy, VERSION},
    reattach::WireFormat,
    terminal::Surface,
};
use tokio::{sync::oneshot, time::Instant};

use self::{
    attach::DetachState,
    clocks::LastWords,
    exit_status_collector::ExitStatusCollector,
    launch_retry::LaunchRetry,
    lifecycle::{CrashHistory, LifecyclePolicy},
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
    AcceptedPrompt, PromptQueue, SessionView, TurnEnd,
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
    description::{AgentStatus, TurnUsage},
    error::{Error, Result},
    fork_server::ForkServerEvent,
};

/// Kill options for a session that failed to start.
pub(crate) const FAILURE: KillOptions = KillOptions::grace(Duration::from_millis(500));

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

    /// Starts the clock of the agent's start, if it is bounded.
    fn arm_start(&mut self, now: Instant) {
        let at = self.start.and_then(|start| now.checked_add(start));
        self.timers.set(TimerKind::Start, at);
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

    /// Instant at which [`SessionCore::tick`] is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.timers.next_deadline()
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

    /// Sends the receipts that are complete.
    fn answer_receipts(&mut self) {
        for (caller, receipt) in self.exit_statuses.take_answers() {
            self.reply(caller, Ok(*receipt));
        }
        self.timers.set(TimerKind::Receipt, self.exit_statuses.next());
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
