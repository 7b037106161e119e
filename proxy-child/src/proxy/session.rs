//! What the proxy does: requests in, events and receipts out.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use agents::{Action, Adapter, AdapterSetup, Adapters};
use ipc_protocol::{
    AbortPolicy, AgentSessionConfig, Enclosure, EndReason, Event, ExitStatus, KillCause, KillOptions, Measures,
    OnAgentExit, ProcessId, Receipt, SessionId, WireError,
    message::{AgentCommand, FromProxy, Hello, RequestId, ToProxy, VERSION},
};
use registry::{Input, Kill, KillScope, KillStep, Output as SpawnOutput, ProcessRegistry, RegistryEvent, Spawn};

use super::{
    HIGH_WATER,
    agent::{Agent, Output},
    link::Link,
};

/// A kill's share of the proxy's one thread.
const KILL_SLICE: Duration = Duration::from_millis(20);
/// Grace of what an agent leaves when it exits by itself.
const AGENT_EXIT_GRACE: Duration = Duration::from_millis(500);
/// Time between looks at the processes while a turn runs, or something has just happened.
const FAST: Duration = Duration::from_millis(10);
/// Time between looks at the processes of an idle session.
const SLOW: Duration = Duration::from_millis(250);
/// How long after a prompt or a start an agent without turns counts as working.
const AFTERGLOW: Duration = Duration::from_secs(2);
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
    turn: Option<u64>,
    /// What was alive when the last turn began.
    before_turn: BTreeSet<ProcessId>,
    kills: Vec<ActiveKill>,
    /// Why the session is being ended.
    ending: Option<EndReason>,
    /// Whether its processes are proven gone, once it has ended.
    ended: Option<bool>,
    next_scan: Instant,
    working_until: Instant,
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
        let now = Instant::now();
        Ok(Self {
            adapters,
            observed,
            proxy,
            registry: ProcessRegistry::new(session)?,
            running: None,
            turn: None,
            before_turn: BTreeSet::new(),
            kills: Vec::new(),
            ending: None,
            ended: None,
            next_scan: now,
            working_until: now,
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
        let scan = (self.running.is_some() && self.kills.is_empty()).then_some(self.next_scan);
        self.kills.iter().map(|kill| kill.next).chain(scan).min()
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
                self.working_until = Instant::now() + AFTERGLOW;
                self.next_scan = Instant::now() + FAST;
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
        let program = Spawn {
            argv: argv.iter().map(Into::into).collect(),
            env: env.0.iter().map(|(name, value)| (name.into(), value.into())).collect(),
            cwd: config.cwd.as_ref().map(Into::into),
            stdin: Input::Pipe,
            stdout: SpawnOutput::Pipe,
            stderr: SpawnOutput::Pipe,
            ..Spawn::new(program)
        };
        let on_exit = config.on_agent_exit;
        let adapter = make(AdapterSetup { config, agent, steer_by_prompt })?;
        let spawned = self.registry.spawn(program)?;
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
        self.working_until = Instant::now() + AFTERGLOW;
        self.next_scan = Instant::now() + FAST;
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
                        link.send(&FromProxy::Started {
                            request,
                            process,
                            native_session_id,
                            turns,
                            measures: Box::new(Measures::default()),
                        });
                        let reason = format!(
                            "process events come from looking every {} to {} ms: what lives shorter can be missed",
                            FAST.as_millis(),
                            SLOW.as_millis()
                        );
                        link.send(&FromProxy::Event { turn: 0, event: Event::SessionLossy { reason } });
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

    /// Collects the dead.
    pub(crate) fn reap(&mut self) {
        // What more there is, is found by the scan that is now due.
        let _ = self.registry.reap(REAP_BOUND);
        self.next_scan = Instant::now();
        for kill in &mut self.kills {
            kill.next = self.next_scan;
        }
    }

    /// Does what is due, after every wake.
    pub(crate) fn after(&mut self, link: &mut Link) {
        let now = Instant::now();
        if self.running.is_some() && now >= self.next_scan && self.kills.is_empty() {
            let _ = self.registry.reap(REAP_BOUND);
            self.registry.scan();
            self.registry.cleanup(REMEMBER);
            let working = self.turn.is_some() || now < self.working_until;
            self.next_scan = now + if working { FAST } else { SLOW };
        }
        self.step_kills(now, link);
        self.tell_process_events(link, HIGH_WATER);
        self.check_agent(link);
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
    /// it loses.
    fn tell_process_events(&mut self, link: &mut Link, high_water: usize) {
        let turn = self.turn.unwrap_or(0);
        while link.unsent() < high_water
            && let Some(event) = self.registry.next_event()
        {
            let event = match event {
                RegistryEvent::Spawned(info) => Event::ProcessSpawned(info),
                RegistryEvent::Exited { process, command, exit } => Event::ProcessExited { process, command, exit },
                RegistryEvent::Killed { process, command, signal } => {
                    Event::ProcessExited { process, command, exit: Some(ExitStatus::Signal(signal)) }
                }
                RegistryEvent::Error { operation, error } => Event::ActionFailed { action: operation, error },
                RegistryEvent::Lost(lost) => {
                    Event::SessionLossy { reason: format!("{lost} process events were not taken in time") }
                }
            };
            link.send(&FromProxy::Event { turn, event });
        }
    }
}

fn answer(link: &mut Link, request: RequestId, result: Result<(), WireError>) {
    link.send(&match result {
        Ok(()) => FromProxy::Done { request },
        Err(error) => FromProxy::Failed { request, error },
    });
}
