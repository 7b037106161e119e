//! Session of the proxy: requests in, events and receipts out.

mod actions;
mod monitoring;
mod reported_state;
mod shells;
mod startup;
mod streams;
mod terminal;
mod termination;

use std::{
    collections::{BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use agents::{Adapter, Adapters, KnownVersions};
use ipc_protocol::{
    AbortPolicy, ContainerSpec, ContainmentStatus, EndReason, Event, ExitStatus, KillCause, KillOptions, KillScope,
    OnAgentExit, ProcessId, Prompt, Receipt, ResolvedBy, SessionId, StopReason, WireError,
    message::{FromProxy, Hello, ProxyCommand, RequestId, ToProxy, VERSION},
    terminal::OnDetach,
};
use registry::ProcessRegistry;

use self::{reported_state::ReportedState, shells::SessionShells, termination::ActiveKill};
use super::{
    HIGH_WATER, agent::AgentProcess, egress::SessionEgress, file_audit::FileAudit, files::FileListing,
    hooks::WaitingHooks, http::HttpClients, limits::SessionLimiter, link::HostLink, message_socket::MessageSocket,
    operations::OpenOperations, permissions::SessionPermissions, polling::ProcessPolling, raw_lines::RawLineStream,
    reply_limit::ReplyLimit,
};
use crate::terminal::Terminal;

/// Grace of the processes that an agent leaves when it exits by itself.
const AGENT_EXIT_GRACE: Duration = Duration::from_millis(500);
/// Time for which ended processes are remembered.
const FINISHED_RETENTION: Duration = Duration::from_secs(600);
/// Most dead children reaped at a time.
const REAP_BOUND: usize = 256;

/// Running agent with its adapter.
struct RunningAgent {
    adapter: Box<dyn Adapter>,
    /// Process of the agent; `None` if its server was already running.
    agent: Option<AgentProcess>,
    /// Connection to its socket, if it speaks there.
    socket: Option<MessageSocket>,
    /// Terminal that it runs in.
    terminal: Option<Terminal>,
    /// Effect of the last viewer's leave.
    on_detach: OnDetach,
    /// Standard output as lines.
    stdout: RawLineStream,
    /// Event stream of the agent's server as lines.
    events: RawLineStream,
    permissions: SessionPermissions,
    /// Hooks of the agent's own screen that wait for an answer.
    hooks: WaitingHooks,
    replies: ReplyLimit,
    /// Version, and those that this release was tried with.
    versions: KnownVersions,
    operations: OpenOperations,
    /// Time at which the adapter emits what it holds back.
    next_tick: Option<Instant>,
    on_exit: OnAgentExit,
    /// Lists of files that are being made, with the adapter's ids. As many as the adapter has open operations.
    listings: VecDeque<(u64, FileListing)>,
    /// Request that is answered when the agent is ready.
    starting: Option<RequestId>,
    exited: Option<ExitStatus>,
    /// Last line on standard error, for the error of an agent that dies at start.
    last_stderr_line: String,
}

/// End of the session.
#[derive(Clone, Debug)]
pub(crate) struct SessionOutcome {
    pub(crate) reason: EndReason,
    pub(crate) receipt: Receipt,
}

pub(crate) struct ProxySession<'a> {
    id: SessionId,
    adapters: &'a Adapters,
    /// True if the fork server reports the processes to the host; otherwise this session does.
    observed: bool,
    /// Process id of the proxy itself.
    proxy: ProcessId,
    registry: ProcessRegistry,
    running: Option<RunningAgent>,
    /// Client for the agent's server, if the agent is one.
    http: HttpClients,
    /// Limiter of the session, if it has limits.
    limiter: Option<SessionLimiter>,
    /// Containment of the agent.
    containment: ContainmentStatus,
    turn: Option<u64>,
    /// Processes that were alive when the last turn began. `None` before the first one of this proxy.
    before_turn: Option<BTreeSet<ProcessId>>,
    kills: Vec<ActiveKill>,
    /// Prompt that waits for the kill of the last turn's processes, which would also hit those of the next turn.
    held_prompt: Option<(RequestId, u64, Prompt)>,
    /// Reason why the session is being ended.
    ending: Option<EndReason>,
    /// Result, once the session has ended.
    ended: Option<SessionOutcome>,
    /// State as a host knows it, for the next host.
    reported_state: ReportedState,
    polling: ProcessPolling,
    shells: SessionShells,
    /// Way out of a network of the session's own.
    egress: Option<SessionEgress>,
    /// Refusals of files, where the kernel tells them.
    file_audit: Option<FileAudit>,
    lost_guard: bool,
    /// Container of the agent.
    container: Option<Box<ContainerSpec>>,
}

impl<'a> ProxySession<'a> {
    /// Makes a session without an agent; `observed` says whether the fork server observes its processes.
    pub(crate) fn new(
        session: SessionId,
        observed: bool,
        proxy: ProcessId,
        adapters: &'a Adapters,
    ) -> std::io::Result<Self> {
        Ok(Self {
            id: session.clone(),
            adapters,
            observed,
            proxy,
            registry: ProcessRegistry::new(session)?,
            running: None,
            http: HttpClients::default(),
            limiter: None,
            containment: ContainmentStatus::default(),
            turn: None,
            before_turn: None,
            kills: Vec::new(),
            held_prompt: None,
            ending: None,
            ended: None,
            reported_state: ReportedState::default(),
            polling: ProcessPolling::new(),
            shells: SessionShells::default(),
            egress: None,
            file_audit: None,
            lost_guard: false,
            container: None,
        })
    }

    pub(crate) fn id(&self) -> &SessionId {
        &self.id
    }

    /// Returns whether its processes are proven gone, once it has ended.
    pub(crate) fn ended(&self) -> Option<bool> {
        self.ended.as_ref().map(|ended| ended.receipt.is_empty())
    }

    /// Returns the end of the session.
    pub(crate) fn outcome(&self) -> Option<&SessionOutcome> {
        self.ended.as_ref()
    }

    /// Returns whether nobody has asked for the session's end.
    pub(crate) fn is_live(&self) -> bool {
        self.ending.is_none()
    }

    /// Returns the sources of the agent's output: its pipes, what wakes for terminals, and its server.
    pub(crate) fn agent_io(&mut self) -> (Option<&AgentProcess>, &tokio::sync::Notify, &mut HttpClients) {
        let agent = self.running.as_ref().and_then(|running| running.agent.as_ref());
        (agent, &self.shells.wake, &mut self.http)
    }

    pub(crate) fn lost_guard(&self) -> bool {
        self.lost_guard
    }

    pub(crate) fn handle_guard_death(&mut self) {
        self.lost_guard = true;
    }

    /// Returns the time at which the next work is due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        // A kill scans the processes itself.
        let polls = !self.observed && self.running.is_some() && self.kills.is_empty();
        let scan = polls.then(|| self.polling.next());
        let limits = self.limiter.as_ref().filter(|_| self.ending.is_none());
        let limits = limits.and_then(|limiter| limiter.next(self.is_working(Instant::now())));
        let is_listing = self.running.as_ref().is_some_and(RunningAgent::is_listing);
        self.kills
            .iter()
            .map(|kill| kill.next)
            .chain(scan)
            .chain(limits)
            .chain(self.next_deadline())
            .chain(self.http.next_due())
            .chain(self.first_viewer_due().filter(|_| self.ending.is_none()))
            .chain(is_listing.then(Instant::now))
            .min()
    }

    /// Returns whether a turn is in progress, or something has just begun.
    fn is_working(&self, now: Instant) -> bool {
        self.polling.is_working(now, self.turn.is_some())
    }

    pub(crate) fn greet(&mut self, link: &mut HostLink) {
        link.send(&FromProxy::Hello(Hello { version: VERSION, process: self.proxy }));
    }

    /// Handles a message of the host.
    pub(crate) fn receive(&mut self, message: ToProxy, link: &mut HostLink) {
        match message {
            ToProxy::Hello(hello) if hello.version == VERSION || link.wire().is_json() => {}
            // The host has our Hello and reports the mismatch; this side can only stop.
            ToProxy::Hello(_) => self.end(EndReason::Failed("the host is of another version".into()), KillOptions::NOW),
            ToProxy::Request { request, command } => self.command(request, command, link),
            ToProxy::GiveUp { request } => {
                self.running.iter_mut().for_each(|running| running.operations.abandon(request));
            }
            ToProxy::Ack { seq } => link.acknowledge(seq),
        }
    }

    /// Carries out a command of the host.
    fn command(&mut self, request: RequestId, command: ProxyCommand, link: &mut HostLink) {
        let result = match command {
            ProxyCommand::Start { config, command, enclosure } => {
                return self.start(request, *config, *command, *enclosure, link);
            }
            ProxyCommand::Prompt { turn, prompt } if self.must_hold_prompt() => {
                if self.held_prompt.is_none() {
                    self.held_prompt = Some((request, turn, prompt));
                    return;
                }
                Err(WireError::Busy)
            }
            ProxyCommand::Prompt { turn, prompt } => self.prompt(turn, &prompt, link),
            ProxyCommand::Steer { prompt } => self.run_adapter(link, |adapter, out| adapter.steer(&prompt, out)),
            ProxyCommand::Operate { operation } => return self.operate(request, &operation, link),
            ProxyCommand::Abort { policy, options } => {
                self.cancel_held_prompt(link);
                let result = self.run_adapter(link, |adapter, out| adapter.abort(out));
                if policy == AbortPolicy::KillTurnProcesses && result.is_ok() {
                    let Some(older) = self.before_turn.clone() else {
                        return self.answer_nothing_started(request, link);
                    };
                    let scope = registry::KillTarget::AllBut(older);
                    return self.begin_kill(scope, KillCause::AbortTurn, options, request, link);
                }
                result
            }
            ProxyCommand::Permission { id, answer: chosen, by } => {
                let by = ResolvedBy::User { name: by };
                self.run_adapter(link, |adapter, out| adapter.permission(&id, &chosen, by, out))
            }
            ProxyCommand::ListProcesses => {
                let processes = self.registry.list();
                return link.send(&FromProxy::Processes { request, processes });
            }
            ProxyCommand::Kill { scope: KillScope::Session, options, reason } => return self.end(reason, options),
            ProxyCommand::Kill { scope: KillScope::AllButAgent, options, .. } => {
                let living = self.running.as_ref().filter(|running| running.exited.is_none());
                let agent = living.and_then(|running| running.agent.as_ref());
                let scope =
                    agent.map_or(registry::KillTarget::All, |agent| registry::KillTarget::AllBut([agent.id()].into()));
                return self.begin_kill(scope, KillCause::KillAll, options, request, link);
            }
            ProxyCommand::Kill { scope: KillScope::Process { pid, tree }, options, .. } => {
                self.registry.scan();
                match self.registry.find_living(pid) {
                    Some(process) => {
                        let scope = if tree { registry::KillTarget::Tree } else { registry::KillTarget::One };
                        return self.begin_kill(scope(process), KillCause::KillProcess, options, request, link);
                    }
                    None => Err(WireError::UnknownProcess { pid }),
                }
            }
            ProxyCommand::Ping => Ok(()),
        };
        answer(link, request, result);
    }

    fn prompt(&mut self, turn: u64, prompt: &Prompt, link: &mut HostLink) -> Result<(), WireError> {
        if self.turn.is_some() {
            return Err(WireError::Busy);
        }
        let has_turns = self.running.as_ref().is_some_and(|running| running.adapter.has_turns());
        self.polling.work_begins();
        self.turn = has_turns.then_some(turn);
        self.reported_state.record_prompt(turn);
        self.running.iter_mut().for_each(|running| running.replies.begin());
        self.registry.scan();
        self.before_turn = Some(self.registry.living().collect());
        let result = self.run_adapter(link, |adapter, out| adapter.prompt(prompt, out));
        if result.is_err() {
            self.turn = None;
        }
        result
    }

    /// Returns whether a turn cannot start yet: the processes of the last one are being killed, and new ones would be too.
    fn must_hold_prompt(&self) -> bool {
        self.turn.is_none() && self.kills.iter().any(|active| active.cause() == KillCause::AbortTurn)
    }

    /// Sends the agent the prompt that had to wait.
    fn send_held_prompt(&mut self, link: &mut HostLink) {
        if self.ending.is_none()
            && !self.must_hold_prompt()
            && let Some((request, turn, prompt)) = self.held_prompt.take()
        {
            let result = self.prompt(turn, &prompt, link);
            answer(link, request, result);
        }
    }

    /// Aborts a turn whose prompt was not sent yet.
    fn cancel_held_prompt(&mut self, link: &mut HostLink) {
        let Some((request, turn, _)) = self.held_prompt.take() else { return };
        answer(link, request, Ok(()));
        let event = Event::Complete { stop_reason: StopReason::Cancelled, usage: None };
        link.send(&FromProxy::Event { turn, event });
        link.send(&FromProxy::TurnEnded { turn });
    }

    /// Makes a scan due, since the fork server saw that something came or went.
    pub(crate) fn processes_changed(&mut self) {
        self.polling.poll_now();
    }

    /// Reaps dead children.
    pub(crate) fn reap(&mut self) {
        // Remaining ones are found by the scan that is now due.
        let _ = self.registry.reap(REAP_BOUND);
        self.registry.cleanup(FINISHED_RETENTION);
        self.polling.poll_now();
        self.check_stopped();
        for kill in &mut self.kills {
            kill.next = Instant::now();
        }
    }

    /// Does the work that is due, after every wake.
    pub(crate) fn run_due(&mut self, link: &mut HostLink) {
        let now = Instant::now();
        let has_scanned = self.check_limits(now, link);
        let polls = !self.observed && self.running.is_some() && self.kills.is_empty();
        if polls && self.polling.is_due(now, self.turn.is_some()) && !has_scanned {
            let _ = self.registry.reap(REAP_BOUND);
            self.registry.scan();
            self.registry.cleanup(FINISHED_RETENTION);
        }
        self.step_kills(now, link);
        self.step_listings(link);
        self.send_held_prompt(link);
        self.emit_process_events(link, HIGH_WATER);
        self.emit_sandbox_events(link);
        self.check_agent(link);
        self.check_socket(link);
        self.check_shells();
        self.tick_adapter(now, link);
        self.check_deadlines(now, link);
    }
}

/// Answers a request that has no result.
fn answer(link: &mut HostLink, request: RequestId, result: Result<(), WireError>) {
    link.send(&match result {
        Ok(()) => FromProxy::Done { request },
        Err(error) => FromProxy::Failed { request, error },
    });
}
