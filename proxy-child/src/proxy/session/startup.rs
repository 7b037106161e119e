//! Start of the agent, in its containment.

use std::{collections::VecDeque, ffi::OsString, os::fd::OwnedFd, path::Path};

use agents::{AdapterSetup, KnownVersions};
use ipc_protocol::{
    AgentSessionConfig, ContainmentSpec, ContainmentStatus, EndReason, Event, FileLayer, KillOptions, ObserverKind,
    UNTRIED_VERSION, WireError,
    message::{AgentCommand, FromProxy, RequestId},
    terminal::TerminalSize,
};
use registry::{LandlockAudit, LandlockScope, SpawnInput, SpawnOutput, SpawnRequest, SpawnedProcess};
use rustix::{
    fs::{CWD, FileType, Mode, OFlags, mknodat, open},
    process::Resource,
};

use super::{ProxySession, RunningAgent};
use crate::{
    fork_server::POLL_INTERVAL,
    proxy::{
        agent::AgentProcess,
        containment::{enclose, sees_own_cgroups_only},
        file_audit::FileAudit,
        hooks::WaitingHooks,
        limits::{self, SessionLimiter},
        link::HostLink,
        message_socket::{MessageSocket, SocketPipes},
        operations::OpenOperations,
        permissions::SessionPermissions,
        polling::FAST_INTERVAL,
        raw_lines::RawLineStream,
        reply_limit::ReplyLimit,
    },
    terminal::{Pty, Terminal},
};

impl ProxySession<'_> {
    /// Starts the agent. The request is answered when the agent is ready, or has failed to start.
    pub(super) fn start(
        &mut self,
        request: RequestId,
        config: AgentSessionConfig,
        command: AgentCommand,
        enclosure: ContainmentSpec,
        link: &mut HostLink,
    ) {
        match self.try_start(request, config, command, enclosure) {
            Ok(()) => {
                self.polling.work_begins();
                let mut actions = Vec::new();
                if let Some(running) = &mut self.running {
                    running.adapter.start(&mut actions);
                }
                self.apply_actions_and_report(actions, link);
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
        enclosure: ContainmentSpec,
    ) -> Result<(), WireError> {
        let AgentCommand { agent, protocol, argv, env, cwd, protocol_config, .. } = command;
        let AgentCommand {
            fresh_id,
            resume,
            endpoint,
            max_turns,
            private,
            mut asking,
            companion,
            socket,
            upstream,
            ..
        } = command;
        // Its screen speaks its protocol, too.
        let speaks = config.terminal.as_ref().is_some_and(|terminal| terminal.commands.is_some());
        let is_screen = config.terminal.is_some() && !speaks;
        if is_screen {
            // On its screen it asks its user, of whose answers nothing is known here.
            asking.asks.clear();
        }
        if self.running.is_some() {
            return Err(WireError::Protocol { reason: "a second start of one session".into() });
        }
        let protocol = if is_screen { agents::TERMINAL_PROTOCOL.to_owned() } else { protocol };
        let make = self.adapters.get(&protocol).ok_or_else(|| WireError::Unsupported {
            agent: agent.clone(),
            operation: format!("be run: this child binary does not speak protocol {protocol:?}; build it with that feature, or link the adapter into it"),
        })?;
        // A server that already runs is connected to; nothing is started then.
        let connects = argv.is_empty() && endpoint.as_ref().is_some_and(|endpoint| endpoint.url.is_some());
        if argv.is_empty() && !connects {
            return Err(WireError::Protocol { reason: "a start without a program".into() });
        }
        let mut program = SpawnRequest {
            argv: argv.iter().map(Into::into).collect(),
            env: env.0.iter().map(|(name, value)| (name.into(), value.into())).collect(),
            cwd: cwd.as_ref().or(config.cwd.as_ref()).map(Into::into),
            stdin: SpawnInput::Pipe,
            stdout: SpawnOutput::Pipe,
            stderr: SpawnOutput::Pipe,
            ..SpawnRequest::new(argv.first().map_or("", String::as_str))
        };
        let on_detach = config.terminal.as_ref().map(|terminal| terminal.on_detach).unwrap_or_default();
        let (mut terminal, mut reports, mut commands) = (None, None, None);
        let wanted = config.terminal.as_ref().and_then(|wanted| wanted.reports.as_deref());
        let hooks = WaitingHooks::new(wanted, self.shells.wake.clone());
        if let Some(wanted) = config.terminal.clone() {
            let controller = set_terminal(&mut program, wanted.size)?;
            let failed = |error| WireError::system("making the pipes for the agent's screen", &error);
            reports = wanted.reports.as_deref().map(open_pipe).transpose().map_err(failed)?;
            commands = wanted.commands.as_deref().map(open_pipe).transpose().map_err(failed)?;
            terminal = Some((wanted, controller));
        }
        if socket.is_some() {
            (program.stdin, program.stdout) = (SpawnInput::Null, SpawnOutput::Null);
        }
        self.container.clone_from(&enclosure.container);
        let held = (enclosure, &private[..], upstream);
        let held = enclose(&mut self.registry, &mut program, self.proxy, &config, held, &self.shells.wake)?;
        self.containment = held.status;
        self.http.enter(held.network.as_ref().map(|network| network.entry.clone()));
        self.egress = held.network.map(|network| network.egress);
        self.containment.agent_sandbox.clone_from(&asking.sandbox);
        let known = KnownVersions { tried: asking.tried.clone(), program: asking.program.clone() };
        let permissions = SessionPermissions::new(&config, asking)
            .map_err(|error| WireError::Protocol { reason: error.to_string() })?;
        let on_exit = config.on_agent_exit;
        let limits = config.limits.clone();
        let verbatim = config.verbatim;
        let directories = env.0.iter().filter(|(name, _)| is_directory(name));
        let adapter = make(AdapterSetup {
            config,
            agent: agent.clone(),
            protocol_config: protocol_config.value(),
            fresh_id,
            resume,
            endpoint,
            directories: directories.map(|(name, value)| (name.clone(), value.clone())).collect(),
        })?;
        let verbatim = verbatim.unwrap_or_else(|| adapter.has_turns()).then(|| Box::from(agent));
        let in_force = limits::put_in_force(&limits, self.registry.session_hold().group.as_ref());
        program.rlimits = limits::rlimits(&limits, &in_force);
        if self.container.is_some() {
            // The engine sets the others, and this one is inherited.
            program.rlimits.retain(|(resource, _)| *resource == Resource::Core);
        }
        let template =
            program.beside().map_err(|error| WireError::system("keeping the session's containment", &error))?;
        self.shells.set_template(template, companion);
        // Of files that the kernel refuses it tells this process, if this may know.
        let is_told =
            self.containment.sandbox.as_ref().is_some_and(|sandbox| sandbox.layer == FileLayer::Landlock.to_string());
        let audit = is_told.then(LandlockAudit::open).and_then(Result::ok);
        if audit.is_some() {
            program.landlock = program.landlock.map(LandlockScope::logged);
        }
        let mut spawned = if connects { None } else { Some(self.registry.spawn(program)?) };
        if let Some(spawned) = &mut spawned {
            spawned.stdout = reports.take().or(spawned.stdout.take());
            spawned.stdin = commands.take().or(spawned.stdin.take());
        }
        // In a sandbox it may be in a directory of the session's own, `/tmp` say.
        let has_own_mounts =
            self.containment.sandbox.as_ref().is_some_and(|sandbox| sandbox.layer == FileLayer::Mounts.to_string());
        let root = spawned.as_ref().filter(|_| has_own_mounts);
        let root = root.and_then(|spawned| registry::open_proc_file(&format!("{}/root", spawned.id().pid)).ok());
        let connect = |path: String| MessageSocket::connect(Path::new(&path), root, self.shells.wake.clone());
        let socket = socket.map(connect).transpose();
        let socket = socket.map_err(|error| WireError::system("connecting to the agent's socket", &error))?;
        let (socket, pipes) = socket.unzip();
        if let (Some(spawned), Some(SocketPipes { stdin, stdout })) = (&mut spawned, pipes) {
            (spawned.stdin, spawned.stdout) = (Some(stdin), Some(stdout));
        }
        if let (Some(audit), Some(spawned)) = (audit, &spawned) {
            let started = FileAudit::start(audit, spawned.id().pid, self.shells.wake.clone());
            self.file_audit = Some(started.map_err(|error| WireError::system("reading refusals of files", &error))?);
        }
        sees_own_cgroups_only(&mut self.containment, spawned.as_ref());
        self.limiter = SessionLimiter::new(limits, in_force, spawned.as_ref().map_or(self.proxy, SpawnedProcess::id));
        let agent = spawned
            .map(AgentProcess::new)
            .transpose()
            .map_err(|error| WireError::system("taking the agent's pipes", &error))?;
        let terminal = terminal
            .map(|(config, controller)| Terminal::start(&config, controller, self.shells.wake.clone()))
            .transpose()
            .map_err(|error| WireError::system("starting the terminal", &error))?;
        self.running = Some(RunningAgent {
            adapter,
            agent,
            socket,
            terminal,
            on_detach,
            stdout: RawLineStream::new(verbatim.clone()),
            events: RawLineStream::new(verbatim),
            permissions,
            hooks,
            replies: ReplyLimit::new(max_turns),
            versions: known,
            operations: OpenOperations::default(),
            listings: VecDeque::new(),
            next_tick: None,
            on_exit,
            starting: Some(request),
            exited: None,
            last_stderr_line: String::new(),
        });
        Ok(())
    }

    /// Answers the start, since the agent is ready.
    pub(super) fn ready(&mut self, native_session_id: Option<String>, link: &mut HostLink) {
        let Some(running) = &mut self.running else { return };
        let Some(request) = running.starting.take() else { return };
        let measures = Box::new(with_limits_in_force(&self.containment, self.observed, self.limiter.as_ref()));
        let process = running.agent.as_ref().map_or(self.proxy, AgentProcess::id);
        self.reported_state.native_session_id.clone_from(&native_session_id);
        let turns = running.adapter.has_turns();
        if let Some(detail) = running.versions.untried() {
            let event = Event::SessionStatus { status: UNTRIED_VERSION.to_owned(), detail };
            link.send(&FromProxy::Event { turn: 0, event });
        }
        link.send(&FromProxy::Started { request, process, native_session_id, turns, measures });
        if !self.observed {
            self.emit_polling_notice(link);
        }
    }

    pub(super) fn emit_polling_notice(&mut self, link: &mut HostLink) {
        let reason = format!(
            "process events come from looking every {} to {} ms: what lives shorter can be missed",
            FAST_INTERVAL.as_millis(),
            POLL_INTERVAL.as_millis()
        );
        link.send(&FromProxy::Event { turn: 0, event: Event::SessionLossy { reason } });
    }

    /// Returns the containment, the observer and the limits that are currently in force.
    pub(super) fn containment_in_force(&self) -> ContainmentStatus {
        with_limits_in_force(&self.containment, self.observed, self.limiter.as_ref())
    }
}

fn with_limits_in_force(
    measures: &ContainmentStatus,
    observed: bool,
    limiter: Option<&SessionLimiter>,
) -> ContainmentStatus {
    ContainmentStatus {
        observer: if observed { ObserverKind::Connector } else { ObserverKind::Polling },
        limits: limiter.map(SessionLimiter::in_force).unwrap_or_default(),
        ..measures.clone()
    }
}

/// Makes a pipe for an agent's screen, and opens it. It is open in both directions, so that it has no end.
fn open_pipe(path: &str) -> std::io::Result<OwnedFd> {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
    Ok(open(path, OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?)
}

/// Gives a program a pseudo-terminal. Returns our end.
pub(super) fn set_terminal(program: &mut SpawnRequest, size: TerminalSize) -> Result<OwnedFd, WireError> {
    let failed = |error| WireError::system("making a pseudo-terminal", &error);
    let Pty { controller, user } = Pty::open(size).map_err(failed)?;
    let copy = || user.try_clone().map_err(failed);
    (program.stdout, program.stderr) = (SpawnOutput::Fd(copy()?), SpawnOutput::Fd(copy()?));
    (program.stdin, program.is_terminal) = (SpawnInput::Fd(user), true);
    add_terminal_variables(&mut program.env);
    Ok(controller)
}

/// Says what the terminal understands, where the environment says nothing of one, or is that of a host without one.
fn add_terminal_variables(env: &mut Vec<(OsString, OsString)>) {
    env.retain(|(name, value)| name != "TERM" || value != "dumb");
    if !env.iter().any(|(name, _)| name == "TERM") {
        env.push(("TERM".into(), "xterm-256color".into()));
        env.push(("COLORTERM".into(), "truecolor".into()));
    }
}

/// Returns whether a variable names a directory that adapters may need.
fn is_directory(name: &str) -> bool {
    name == "HOME" || name.ends_with("_HOME") || name.ends_with("_DIR")
}
