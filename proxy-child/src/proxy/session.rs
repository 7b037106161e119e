//! What the proxy does: requests in, events and receipts out.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use agents::{Action, Adapter, AdapterSetup, Adapters};
use ipc_protocol::{
    AbortPolicy, AgentSessionConfig, Enclosure, EndReason, Event, ExitStatus, KillCause, KillOptions, LimitAction,
    Measures, Observer, OnAgentExit, ProcessId, Receipt, SessionId, Signal, WireError,
    message::{AgentCommand, FromProxy, Hello, RequestId, ToProxy, VERSION},
};
use registry::{
    Input, Kill, KillScope, KillStep, Output as SpawnOutput, ProcessRegistry, RegistryEvent, Spawn, Verdict,
};

use crate::fork_server::LOOK_INTERVAL;

use super::{
    HIGH_WATER,
    agent::{Agent, Output},
    enclose::enclose,
    limits::{self, Limiter},
    link::Link,
    polling::{FAST, Polling},
};

/// A kill's share of the proxy's one thread.
const KILL_SLICE: Duration = Duration::from_millis(20);
/// Grace of what an agent leaves when it exits by itself.
const AGENT_EXIT_GRACE: Duration = Duration::from_millis(500);
/// Finished processes are remembered this long.
const REMEMBER: Duration = Duration::from_secs(600);
/// Kills at once; more are refused.
const MAX_KILLS: usize = 64;
/// Dead children reaped at a time.
const REAP_BOUND: usize = 256;
/// Agent output handled before looking at anything else.
const READS: usize = 4;
/// Enough reads for what a pipe holds at the most (1 MiB), when its writer is dead.
const DRAIN: usize = 32;

/// A kill in progress, and whom to tell.
struct ActiveKill {
    kill: Kill,
    /// Who asked; `None` for the one that ends the session.
    request: Option<RequestId>,
    next: Instant,
}

/// The agent and what speaks its protocol.
struct Running {
    adapter: Box<dyn Adapter>,
    agent: Agent,
    on_exit: OnAgentExit,
    /// The request that is answered when the agent is ready.
    starting: Option<RequestId>,
    exited: Option<ExitStatus>,
    /// Last line on its standard error, for the error of an agent that dies at start.
    last_words: String,
}

pub(crate) struct Session<'a> {
    adapters: &'a Adapters,
    /// Whether the fork server tells the host of the processes; else this does.
    observed: bool,
    /// This process.
    proxy: ProcessId,
    registry: ProcessRegistry,
    running: Option<Running>,
    /// What looks after its limits, if it has any.
    limiter: Option<Limiter>,
    /// What holds it.
    measures: Measures,
    turn: Option<u64>,
    /// What was alive when the last turn began.
    before_turn: BTreeSet<ProcessId>,
    kills: Vec<ActiveKill>,
    /// Why the session is being ended.
    ending: Option<EndReason>,
    /// Whether its processes are proven gone, once it has ended.
    ended: Option<bool>,
    polling: Polling,
    lost_guard: bool,
}

impl<'a> Session<'a> {
    /// A session without an agent yet; `observed` by the fork server, or not.
    pub(crate) fn new(
        session: SessionId,
        observed: bool,
        proxy: ProcessId,
        adapters: &'a Adapters,
    ) -> std::io::Result<Self> {
        Ok(Self {
            adapters,
            observed,
            proxy,
            registry: ProcessRegistry::new(session)?,
            running: None,
            limiter: None,
            measures: Measures::default(),
            turn: None,
            before_turn: BTreeSet::new(),
            kills: Vec::new(),
            ending: None,
            ended: None,
            polling: Polling::new(),
            lost_guard: false,
        })
    }

    pub(crate) fn ended(&self) -> Option<bool> {
        self.ended
    }

    pub(crate) fn agent(&self) -> Option<&Agent> {
        self.running.as_ref().map(|running| &running.agent)
    }

    pub(crate) fn lost_guard(&self) -> bool {
        self.lost_guard
    }

    pub(crate) fn guard_died(&mut self) {
        self.lost_guard = true;
    }

    /// When something is due without anybody's doing.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        // A kill looks at the processes itself.
        let polls = !self.observed && self.running.is_some() && self.kills.is_empty();
        let scan = polls.then(|| self.polling.next());
        let limits = self.limiter.as_ref().filter(|_| self.ending.is_none());
        let limits = limits.and_then(|limiter| limiter.next(self.is_working(Instant::now())));
        self.kills.iter().map(|kill| kill.next).chain(scan).chain(limits).min()
    }

    /// Whether a turn runs, or something has just begun.
    fn is_working(&self, now: Instant) -> bool {
        self.polling.is_working(now, self.turn.is_some())
    }

    pub(crate) fn greet(&mut self, link: &mut Link) {
        link.send(&FromProxy::Hello(Hello { version: VERSION, process: self.proxy }));
    }

    /// Does what the host asks.
    pub(crate) fn request(&mut self, message: ToProxy, link: &mut Link) {
        match message {
            ToProxy::Hello(hello) if hello.version == VERSION => {}
            // The host has our Hello and reports it; this side can only stop.
            ToProxy::Hello(_) => self.end(EndReason::Failed("the host is of another version".into()), KillOptions::NOW),
            ToProxy::Start { request, config, command, enclosure } => {
                self.start(request, *config, *command, *enclosure, link);
            }
            ToProxy::Prompt { request, turn, text } => {
                let result = self.prompt(turn, &text, link);
                answer(link, request, result);
            }
            ToProxy::Steer { request, text } => {
                let result = self.adapt(link, |adapter, out| adapter.steer(&text, out));
                answer(link, request, result);
            }
            ToProxy::Abort { request, policy, options } => {
                let result = self.adapt(link, |adapter, out| adapter.abort(out));
                match (policy, result) {
                    (AbortPolicy::KillTurnProcesses, Ok(())) => {
                        let before = self.before_turn.clone();
                        self.begin_kill(KillScope::AllBut(before), KillCause::AbortTurn, options, request, link);
                    }
                    (_, result) => answer(link, request, result),
                }
            }
            ToProxy::Permission { request, id, answer: chosen } => {
                let result = self.adapt(link, |adapter, out| adapter.permission(&id, &chosen, out));
                answer(link, request, result);
            }
            ToProxy::ListProcesses { request } => {
                let processes = self.registry.list();
                link.send(&FromProxy::Processes { request, processes });
            }
            ToProxy::KillProcess { request, process, tree, options } => {
                self.registry.scan();
                if self.registry.live(process.pid) != Some(process) {
                    return answer(link, request, Err(WireError::UnknownProcess { process }));
                }
                let scope = if tree { KillScope::Tree(process) } else { KillScope::One(process) };
                self.begin_kill(scope, KillCause::KillProcess, options, request, link);
            }
            ToProxy::KillAll { request, options } => {
                let living = self.running.as_ref().filter(|running| running.exited.is_none());
                let scope = living.map_or(KillScope::All, |running| KillScope::AllBut([running.agent.id()].into()));
                self.begin_kill(scope, KillCause::KillAll, options, request, link);
            }
            ToProxy::Shutdown { options, reason } => self.end(reason, options),
            ToProxy::Ping { request } => link.send(&FromProxy::Pong { request }),
        }
    }

    fn start(
        &mut self,
        request: RequestId,
        config: AgentSessionConfig,
        command: AgentCommand,
        enclosure: Enclosure,
        link: &mut Link,
    ) {
        match self.try_start(request, config, command, enclosure) {
            Ok(()) => {
                self.polling.work_begins();
                let mut actions = Vec::new();
                if let Some(running) = &mut self.running {
                    running.adapter.start(&mut actions);
                }
                self.act_and_report(actions, link);
            }
            Err(error) => {
                let reason = EndReason::Failed(error.to_string());
                link.send(&FromProxy::Failed { request, error });
                self.end(reason, KillOptions::NOW);
            }
        }
    }

    fn try_start(
        &mut self,
        request: RequestId,
        config: AgentSessionConfig,
        command: AgentCommand,
        enclosure: Enclosure,
    ) -> Result<(), WireError> {
        let AgentCommand { agent, protocol, argv, env, steer_by_prompt } = command;
        if self.running.is_some() {
            return Err(WireError::Protocol { reason: "a second start of one session".into() });
        }
        let make = self.adapters.get(&protocol).ok_or_else(|| WireError::Unsupported {
            agent: agent.clone(),
            operation: format!("be run: this child binary does not speak protocol {protocol:?}"),
        })?;
        let Some(program) = argv.first() else {
            return Err(WireError::Protocol { reason: "a start without a program".into() });
        };
        let mut program = Spawn {
            argv: argv.iter().map(Into::into).collect(),
            env: env.0.iter().map(|(name, value)| (name.into(), value.into())).collect(),
            cwd: config.cwd.as_ref().map(Into::into),
            stdin: Input::Pipe,
            stdout: SpawnOutput::Pipe,
            stderr: SpawnOutput::Pipe,
            ..Spawn::new(program)
        };
        self.measures = enclose(&mut self.registry, &mut program, self.proxy, &config, enclosure)?;
        let on_exit = config.on_agent_exit;
        let limits = config.limits.clone();
        let adapter = make(AdapterSetup { config, agent, steer_by_prompt })?;
        let in_force = limits::put_in_force(&limits, self.registry.held().group.as_ref());
        program.rlimits = limits::rlimits(&limits, &in_force);
        let spawned = self.registry.spawn(program)?;
        self.limiter = Limiter::new(limits, in_force, spawned.id());
        let agent_io = Agent::new(spawned).map_err(|error| WireError::System {
            operation: "taking the agent's pipes".into(),
            reason: error.to_string(),
        })?;
        self.running = Some(Running {
            adapter,
            agent: agent_io,
            on_exit,
            starting: Some(request),
            exited: None,
            last_words: String::new(),
        });
        Ok(())
    }

    fn prompt(&mut self, turn: u64, text: &str, link: &mut Link) -> Result<(), WireError> {
        if self.turn.is_some() {
            return Err(WireError::Busy);
        }
        let has_turns = self.running.as_ref().is_some_and(|running| running.adapter.has_turns());
        self.polling.work_begins();
        self.turn = has_turns.then_some(turn);
        self.registry.scan();
        self.before_turn = self.registry.living().collect();
        let result = self.adapt(link, |adapter, out| adapter.prompt(text, out));
        if result.is_err() {
            self.turn = None;
        }
        result
    }

    /// Lets the adapter do something, and does what it wants done.
    fn adapt(
        &mut self,
        link: &mut Link,
        work: impl FnOnce(&mut dyn Adapter, &mut Vec<Action>) -> Result<(), WireError>,
    ) -> Result<(), WireError> {
        let Some(running) = &mut self.running else {
            return Err(WireError::Protocol { reason: "the session has no agent yet".into() });
        };
        if let Some(exit) = running.exited {
            return Err(WireError::AgentDied { reason: exit.to_string() });
        }
        let mut actions = Vec::new();
        let result = work(running.adapter.as_mut(), &mut actions);
        let acted = self.act(actions, link);
        result.and(acted)
    }

    fn act(&mut self, actions: Vec<Action>, link: &mut Link) -> Result<(), WireError> {
        let mut result = Ok(());
        for action in actions {
            let Some(running) = &mut self.running else { break };
            match action {
                Action::Event(event) => {
                    link.send(&FromProxy::Event { turn: self.turn.unwrap_or(0), event });
                }
                Action::Write(bytes) => {
                    if let Err(error) = running.agent.write(&bytes) {
                        result = Err(WireError::AgentDied { reason: error.to_string() });
                    }
                }
                Action::Signal(signal) => {
                    // It fails for an agent that has just exited, which is then told as such.
                    let _ = running.agent.process.signal(signal);
                }
                Action::Ready { native_session_id } => {
                    if let Some(request) = running.starting.take() {
                        let process = running.agent.id();
                        let turns = running.adapter.has_turns();
                        let observer = if self.observed { Observer::Connector } else { Observer::Polling };
                        link.send(&FromProxy::Started {
                            request,
                            process,
                            native_session_id,
                            turns,
                            measures: Box::new(Measures {
                                observer,
                                limits: self.limiter.as_ref().map(Limiter::in_force).unwrap_or_default(),
                                ..self.measures.clone()
                            }),
                        });
                        if !self.observed {
                            let reason = format!(
                                "process events come from looking every {} to {} ms: what lives shorter can be missed",
                                FAST.as_millis(),
                                LOOK_INTERVAL.as_millis()
                            );
                            link.send(&FromProxy::Event { turn: 0, event: Event::SessionLossy { reason } });
                        }
                    }
                }
                Action::TurnEnded => {
                    // A turn that its agent's death ended is no turn that ended: the host is told of the death.
                    if let Some(turn) = self.turn.take()
                        && running.exited.is_none()
                    {
                        link.send(&FromProxy::TurnEnded { turn });
                    }
                }
                Action::Fail(error) => {
                    let reason = EndReason::Failed(error.to_string());
                    match running.starting.take() {
                        Some(request) => link.send(&FromProxy::Failed { request, error }),
                        None => {
                            let event = Event::Error {
                                code: "agent-protocol".into(),
                                message: error.to_string(),
                                retryable: false,
                            };
                            link.send(&FromProxy::Event { turn: self.turn.unwrap_or(0), event });
                        }
                    }
                    self.end(reason, KillOptions::default());
                }
            }
        }
        result
    }

    /// As [`Session::act`], where nobody has asked and waits for the answer.
    fn act_and_report(&mut self, actions: Vec<Action>, link: &mut Link) {
        if let Err(error) = self.act(actions, link) {
            let event = Event::ActionFailed { action: "answering the agent".into(), error: error.to_string() };
            link.send(&FromProxy::Event { turn: self.turn.unwrap_or(0), event });
        }
    }

    /// Hands the agent's standard output to its adapter, until the host is behind by `high_water`.
    pub(crate) fn read_stdout(&mut self, link: &mut Link, high_water: usize) {
        self.read(Output::Stdout, link, READS, high_water);
    }

    /// As [`Session::read_stdout`], for its standard error.
    pub(crate) fn read_stderr(&mut self, link: &mut Link, high_water: usize) {
        self.read(Output::Stderr, link, READS, high_water);
    }

    fn read(&mut self, output: Output, link: &mut Link, reads: usize, high_water: usize) {
        let mut actions = Vec::new();
        for _ in 0..reads {
            let Some(running) = &mut self.running else { return };
            let Some(bytes) = running.agent.read(output) else { return };
            match output {
                Output::Stdout => running.adapter.stdout(bytes, &mut actions),
                Output::Stderr => {
                    running.adapter.stderr(bytes, &mut actions);
                    if running.starting.is_some() {
                        let text = String::from_utf8_lossy(bytes);
                        let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
                        running.last_words = last.chars().take(300).collect();
                    }
                }
            }
            self.act_and_report(std::mem::take(&mut actions), link);
            link.flush();
            if link.unsent() >= high_water {
                return;
            }
        }
    }

    /// Writes to the agent what waits for it.
    pub(crate) fn write_stdin(&mut self, link: &mut Link) {
        let Some(running) = &mut self.running else { return };
        if let Err(error) = running.agent.flush() {
            let event = Event::ActionFailed { action: "writing to the agent".into(), error: error.to_string() };
            link.send(&FromProxy::Event { turn: self.turn.unwrap_or(0), event });
        }
    }

    /// The fork server saw that something came or went.
    pub(crate) fn nudged(&mut self) {
        self.polling.hurry();
    }

    /// Collects the dead.
    pub(crate) fn reap(&mut self) {
        // What more there is, is found by the look that is now due.
        let _ = self.registry.reap(REAP_BOUND);
        self.registry.cleanup(REMEMBER);
        self.polling.hurry();
        for kill in &mut self.kills {
            kill.next = Instant::now();
        }
    }

    /// Does what is due, after every wake.
    pub(crate) fn after(&mut self, link: &mut Link) {
        let now = Instant::now();
        let has_scanned = self.check_limits(now, link);
        let polls = !self.observed && self.running.is_some() && self.kills.is_empty();
        if polls && self.polling.is_due(now, self.turn.is_some()) && !has_scanned {
            let _ = self.registry.reap(REAP_BOUND);
            self.registry.scan();
            self.registry.cleanup(REMEMBER);
        }
        self.step_kills(now, link);
        self.tell_process_events(link, HIGH_WATER);
        self.check_agent(link);
    }

    /// Looks after the limits, when that is due; says whether all processes were looked at.
    fn check_limits(&mut self, now: Instant, link: &mut Link) -> bool {
        let working = self.is_working(now);
        let limiter = self.limiter.as_ref().filter(|_| self.ending.is_none());
        let is_due = limiter.and_then(|limiter| limiter.next(working)).is_some_and(|next| next <= now);
        is_due && self.look_at_limits(now, link)
    }

    fn look_at_limits(&mut self, now: Instant, link: &mut Link) -> bool {
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
            self.end(EndReason::LimitExceeded(kind), limits::grace(kind));
        }
    }

    fn step_kills(&mut self, now: Instant, link: &mut Link) {
        let mut at = 0;
        while at < self.kills.len() {
            let active = &mut self.kills[at];
            if active.next > now {
                at += 1;
                continue;
            }
            match active.kill.step(&mut self.registry) {
                KillStep::Again(pause) => {
                    active.next = Instant::now() + pause;
                    at += 1;
                }
                KillStep::Done(receipt) => {
                    let active = self.kills.swap_remove(at);
                    match active.request {
                        Some(request) => link.send(&FromProxy::Receipt { request, receipt }),
                        None => self.finish(*receipt, link),
                    }
                }
            }
        }
    }

    fn begin_kill(
        &mut self,
        scope: KillScope,
        cause: KillCause,
        options: KillOptions,
        request: RequestId,
        link: &mut Link,
    ) {
        if self.kills.len() >= MAX_KILLS {
            return answer(link, request, Err(WireError::Busy));
        }
        let kill = Kill::new(scope, cause, options, KILL_SLICE);
        self.kills.push(ActiveKill { kill, request: Some(request), next: Instant::now() });
    }

    /// Ends the session: everything is killed, and the receipt is the last that is heard of it. A second call can only
    /// shorten the grace.
    pub(crate) fn end(&mut self, reason: EndReason, options: KillOptions) {
        if self.ending.is_some() {
            for active in self.kills.iter_mut().filter(|active| active.request.is_none()) {
                active.kill.hurry(options);
                active.next = Instant::now();
            }
            return;
        }
        let cause = match &reason {
            EndReason::Killed => KillCause::KillSession,
            EndReason::AgentExited(_) => KillCause::AgentExit,
            EndReason::Failed(_) => KillCause::Failed,
            EndReason::ProxyDied(_) => KillCause::ProxyDied,
            EndReason::ForkServerDied => KillCause::ForkServerDied,
            EndReason::HostDied => KillCause::HostDied,
            EndReason::LimitExceeded(_) => KillCause::Limit,
            EndReason::Shutdown => KillCause::Shutdown,
        };
        self.ending = Some(reason);
        let kill = Kill::new(KillScope::All, cause, options, KILL_SLICE);
        self.kills.push(ActiveKill { kill, request: None, next: Instant::now() });
    }

    /// Everything is dead: gives out what is left to say.
    fn finish(&mut self, receipt: Receipt, link: &mut Link) {
        self.tell_process_events(link, usize::MAX);
        self.drain_agent(link);
        if let Some(request) = self.running.as_mut().and_then(|running| running.starting.take()) {
            let reason = self.ending.as_ref().map_or_else(String::new, ToString::to_string);
            link.send(&FromProxy::Failed { request, error: WireError::AgentDied { reason } });
        }
        for active in std::mem::take(&mut self.kills) {
            // Whatever these were to end has ended too.
            if let Some(request) = active.request {
                let receipt = Box::new(Receipt { cause: active.kill.cause(), ..receipt.clone() });
                link.send(&FromProxy::Receipt { request, receipt });
            }
        }
        let reason = self.ending.clone().unwrap_or(EndReason::Killed);
        self.ended = Some(receipt.is_empty());
        link.send(&FromProxy::Ended { reason, receipt: Box::new(receipt) });
    }

    /// Reads what a dead agent left in its pipes, and lets the adapter end what is open. What survivors that hold the pipes
    /// write later is not waited for.
    fn drain_agent(&mut self, link: &mut Link) {
        self.read(Output::Stdout, link, DRAIN, usize::MAX);
        self.read(Output::Stderr, link, DRAIN, usize::MAX);
        let mut actions = Vec::new();
        if let Some(running) = &mut self.running {
            running.adapter.finish(&mut actions);
        }
        self.act_and_report(actions, link);
        self.turn = None;
    }

    fn check_agent(&mut self, link: &mut Link) {
        let Some(running) = &mut self.running else { return };
        if running.exited.is_some() {
            return;
        }
        let Some(exit) = self.registry.exit_of(running.agent.id()) else { return };
        if self.ending.is_none() && exit == ExitStatus::Signal(Signal::Kill.number()) {
            // It may have been the kernel, for want of memory in the session's cgroup.
            self.look_at_limits(Instant::now(), link);
        }
        let Some(running) = &mut self.running else { return };
        if self.ending.is_some() {
            // It was ended; that is told as such.
            running.exited = Some(exit);
            return;
        }
        // What it said last may be the end of its turn.
        self.read(Output::Stdout, link, DRAIN, usize::MAX);
        self.read(Output::Stderr, link, DRAIN, usize::MAX);
        let Some(running) = &mut self.running else { return };
        running.exited = Some(exit);
        let mut kept = running.on_exit == OnAgentExit::Keep;
        if let Some(request) = running.starting.take() {
            kept = false;
            let reason = match running.last_words.as_str() {
                "" => format!("{exit} before it was ready"),
                words => format!("{exit} before it was ready; its last words: {words}"),
            };
            link.send(&FromProxy::Failed { request, error: WireError::AgentDied { reason } });
        }
        self.drain_agent(link);
        link.send(&FromProxy::AgentExited { exit, kept });
        if !kept {
            self.end(EndReason::AgentExited(Some(exit)), KillOptions::grace(AGENT_EXIT_GRACE));
        }
    }

    /// Passes on what the registry has seen. While the host is behind it waits there, in a bounded queue that counts what
    /// it loses. Where the fork server tells of the processes this does not.
    fn tell_process_events(&mut self, link: &mut Link, high_water: usize) {
        let turn = self.turn.unwrap_or(0);
        let mut waiting = self.polling.take_held().map(RegistryEvent::Spawned);
        while link.unsent() < high_water
            && let Some(event) = waiting.take().or_else(|| self.registry.next_event())
        {
            let event = match event {
                RegistryEvent::Error { operation, error } => Event::ActionFailed { action: operation, error },
                _ if self.observed => continue,
                RegistryEvent::Spawned(info) => match self.polling.ready(info, high_water < usize::MAX) {
                    Some(info) => Event::ProcessSpawned(info),
                    None => return,
                },
                RegistryEvent::Exited { process, command, exit } => Event::ProcessExited { process, command, exit },
                RegistryEvent::Killed { process, command, signal } => {
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
        if let Some(RegistryEvent::Spawned(info)) = waiting {
            self.polling.hold(info);
        }
    }
}

fn answer(link: &mut Link, request: RequestId, result: Result<(), WireError>) {
    link.send(&match result {
        Ok(()) => FromProxy::Done { request },
        Err(error) => FromProxy::Failed { request, error },
    });
}
