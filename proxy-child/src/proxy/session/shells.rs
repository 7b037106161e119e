//! Shells: programs that people start beside the agent, in its containment.
//!
//! Each belongs to one connection ([`ToTerminal::Shell`]), which is its terminal or its standard streams. When the connection
//! ends, the program gets SIGHUP; what it has deliberately left running stays the session's.
//!
//! The *companion* is the agent's own screen beside its protocol: a second client of what the session runs. The first viewer of a
//! session without a terminal starts it, all viewers share it, and it stays when they leave. Its end is not the agent's.

use std::{
    collections::VecDeque,
    ffi::OsString,
    os::fd::OwnedFd,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use ipc_protocol::{
    ContainerSpec, Event, WireError,
    terminal::{FromTerminal, KeyboardWish, TerminalConfig, ToTerminal},
};
use registry::{PidFd, SpawnInput, SpawnOutput, SpawnRequest};
use rustix::process::Signal;
use tokio::{sync::Notify, task::JoinSet};

use super::{ProxySession, startup::set_terminal, terminal::signal_group};
use crate::terminal::{NewViewer, ProgramPipes, Terminal, TerminalNotice, ViewerLink};

/// Most shells of a session at a time.
const MAX_SHELLS: usize = 8;
/// Most connections that have not sent their first message.
const MAX_HANDSHAKES: usize = 32;
/// Operations, for errors.
const STARTING: &str = "starting a shell";
const SHOWING: &str = "showing the agent's screen";
/// Shell where the environment names none.
const DEFAULT_SHELL: &str = "/bin/sh";

/// Program with its connection.
struct Shell {
    process: PidFd,
    streams: ShellStreams,
    /// True once it was sent SIGHUP.
    is_hung_up: bool,
    /// True for the agent's screen, which no viewer's leave ends.
    is_companion: bool,
}

enum ShellStreams {
    Terminal(Terminal),
    Pipes(ProgramPipes),
    /// Nobody has the other end.
    Closed,
}

impl ShellStreams {
    async fn finished(&mut self) {
        match self {
            Self::Terminal(terminal) => terminal.finished().await,
            Self::Pipes(pipes) => pipes.finished().await,
            Self::Closed => {}
        }
    }
}

/// Shells of a session, and the connections of viewers.
#[derive(Default)]
pub(super) struct SessionShells {
    /// What a shell is started with.
    template: Option<SpawnRequest>,
    /// Program and arguments of the companion; empty where the agent has none.
    companion: Vec<String>,
    /// Address that the agent's server has reported.
    endpoint: Option<String>,
    living: Vec<Shell>,
    /// Connections that wait for their last messages.
    closing: JoinSet<()>,
    handshakes: JoinSet<()>,
    arrivals: Arc<Mutex<VecDeque<(ViewerLink, ToTerminal)>>>,
    /// Wakes the session for them and for all terminals.
    pub(super) wake: Arc<Notify>,
}

impl SessionShells {
    pub(super) fn set_template(&mut self, template: SpawnRequest, companion: Vec<String>) {
        (self.template, self.companion) = (Some(template), companion);
    }

    pub(super) fn set_endpoint(&mut self, address: &str) {
        self.endpoint = Some(address.to_owned());
    }

    /// Returns the terminal of the companion that runs.
    fn companion_terminal(&self) -> Option<&Terminal> {
        self.living.iter().filter(|shell| shell.is_companion).find_map(|shell| match &shell.streams {
            ShellStreams::Terminal(terminal) => Some(terminal),
            _ => None,
        })
    }

    /// Returns the companion's command for a conversation, once the agent is ready.
    fn companion_argv(&self, conversation: Option<&str>) -> Option<Vec<String>> {
        let fill = |word: &String| match (word.contains("{endpoint}"), word.contains("{id}")) {
            (false, false) => Some(word.clone()),
            (true, _) => Some(word.replace("{endpoint}", self.endpoint.as_deref()?)),
            (false, true) => Some(word.replace("{id}", conversation?)),
        };
        self.companion.iter().map(fill).collect()
    }

    /// Waits for the first message of a connection, then wakes the session. Beyond a bound the socket is closed.
    fn accept(&mut self, socket: OwnedFd) {
        while self.handshakes.try_join_next().is_some() {}
        let Ok(mut link) = ViewerLink::new(socket) else { return };
        if self.handshakes.len() >= MAX_HANDSHAKES {
            return;
        }
        let (arrivals, wake) = (self.arrivals.clone(), self.wake.clone());
        self.handshakes.spawn(async move {
            let Some(first) = link.receive_first().await else { return };
            arrivals.lock().unwrap_or_else(PoisonError::into_inner).push_back((link, first));
            wake.notify_one();
        });
    }

    fn next_arrival(&self) -> Option<(ViewerLink, ToTerminal)> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    fn refuse(&mut self, link: ViewerLink, error: WireError) {
        self.closing.spawn(async move { link.close(&FromTerminal::Refused(error)).await });
    }
}

/// Has the container's engine run a program in it.
fn enter_container(request: &mut SpawnRequest, container: &ContainerSpec, is_terminal: bool) {
    let options = ["exec", "--interactive"]
        .into_iter()
        .chain(is_terminal.then_some(["--tty", "--env=TERM"]).into_iter().flatten());
    let words = std::iter::once(container.program.as_str()).chain(options).chain([container.name.as_str()]);
    let program = std::mem::take(&mut request.argv);
    request.argv = words.map(OsString::from).chain(program).collect();
    request.program = OsString::from(&container.program);
}

impl Shell {
    fn hang_up(&mut self) {
        if !std::mem::replace(&mut self.is_hung_up, true) {
            signal_group(&self.process, Signal::HUP);
            // A stopped one has to go on to get it.
            signal_group(&self.process, Signal::CONT);
        }
    }

    /// Handles what its viewers do. Those of the companion are the session's: their events go to `out`.
    fn handle_notices(&mut self, out: &mut Vec<Event>) {
        let has_left = match &self.streams {
            ShellStreams::Terminal(terminal) => {
                let mut has_left = false;
                for notice in terminal.take_notices() {
                    match &notice {
                        TerminalNotice::Detached { last, .. } => has_left |= last,
                        TerminalNotice::Suspend => super::terminal::suspend(terminal, &self.process),
                        TerminalNotice::Continue => signal_group(&self.process, Signal::CONT),
                        TerminalNotice::Attached { .. }
                        | TerminalNotice::Status(_)
                        | TerminalNotice::Title(_)
                        | TerminalNotice::InputDropped => {}
                    }
                    out.extend(super::terminal::notice_event(&notice).filter(|_| self.is_companion));
                }
                has_left && !self.is_companion
            }
            ShellStreams::Pipes(pipes) => pipes.is_over(),
            ShellStreams::Closed => false,
        };
        if has_left {
            // Without its terminal, what is in the foreground there gets the signal from the kernel.
            self.streams = ShellStreams::Closed;
            self.hang_up();
        }
    }
}

impl ProxySession<'_> {
    /// Takes the connection of somebody who views the terminal, or starts a shell.
    pub(crate) fn accept_viewer(&mut self, socket: OwnedFd) {
        self.shells.accept(socket);
    }

    /// Handles the connections that have sent their first message, and what the shells' viewers do.
    pub(super) fn handle_shells(&mut self) -> Vec<Event> {
        while let Some((link, first)) = self.shells.next_arrival() {
            match first {
                ToTerminal::Attach { size, keyboard, in_place } => {
                    self.view_screen(NewViewer { link, size, keyboard, in_place });
                }
                ToTerminal::Shell { argv, terminal, in_place } => self.start_shell(link, argv, terminal, in_place),
                _ => {}
            }
        }
        // The number of one that was reaped may be another's.
        self.check_shells();
        let mut events = Vec::new();
        self.shells.living.iter_mut().for_each(|shell| shell.handle_notices(&mut events));
        events
    }

    /// Shows somebody the agent's terminal, or its screen beside its protocol, which is started if it does not run.
    fn view_screen(&mut self, viewer: NewViewer) {
        // The number of one that was reaped may be another's.
        self.check_shells();
        if let Some(terminal) = self.terminal().or_else(|| self.shells.companion_terminal()) {
            return terminal.view(viewer);
        }
        let config = TerminalConfig { size: viewer.size, ..TerminalConfig::default() };
        let started = self.companion_request().and_then(|request| self.start_on_terminal(request, config));
        match started {
            Ok((process, StartedStreams::Terminal(terminal, _))) => {
                terminal.view(viewer);
                self.add_shell(process, ShellStreams::Terminal(terminal), true);
            }
            Ok((_, StartedStreams::Pipes(_))) => {}
            Err(error) => self.shells.refuse(viewer.link, error),
        }
    }

    /// Builds the request for the companion, without its streams.
    fn companion_request(&self) -> Result<SpawnRequest, WireError> {
        let refused = |reason: &str| WireError::System { operation: SHOWING.into(), reason: reason.into() };
        if self.shells.companion.is_empty() {
            return Err(refused("the session has no terminal, and its agent no screen beside its protocol"));
        }
        if self.running.as_ref().is_none_or(|running| running.starting.is_some() || running.exited.is_some()) {
            return Err(refused("the agent does not run, or is not ready yet"));
        }
        let argv = self.shells.companion_argv(self.reported_state.native_session_id.as_deref());
        let argv = argv.ok_or_else(|| refused("the agent has reported no address or no conversation"))?;
        self.beside_request(argv.into_iter().map(OsString::from).collect(), SHOWING)
    }

    fn add_shell(&mut self, process: PidFd, streams: ShellStreams, is_companion: bool) {
        if let Some(older) = &mut self.before_turn {
            // No turn has started it.
            older.insert(process.id());
        }
        self.shells.living.push(Shell { process, streams, is_hung_up: false, is_companion });
    }

    fn start_shell(
        &mut self,
        link: ViewerLink,
        argv: Vec<String>,
        terminal: Option<Box<TerminalConfig>>,
        in_place: bool,
    ) {
        let request = match self.shell_request(argv, terminal.is_some()) {
            Ok(request) => request,
            Err(error) => return self.shells.refuse(link, error),
        };
        let started = match terminal {
            Some(config) => self.start_on_terminal(request, *config),
            None => self.start_on_pipes(request),
        };
        let streams = match started {
            Err(error) => return self.shells.refuse(link, error),
            Ok((process, StartedStreams::Terminal(terminal, size))) => {
                terminal.view(NewViewer { link, size, keyboard: KeyboardWish::Type, in_place });
                Ok((process, ShellStreams::Terminal(terminal)))
            }
            Ok((process, StartedStreams::Pipes(spawned))) => {
                let pipes = ProgramPipes::start(spawned, link, self.shells.wake.clone());
                pipes.map(|pipes| (process, ShellStreams::Pipes(pipes)))
            }
        };
        // Without descriptors for its streams it ends as its viewer does.
        let Ok((process, streams)) = streams else { return };
        self.add_shell(process, streams, false);
    }

    /// Builds the request for a shell, without its streams.
    fn shell_request(&self, argv: Vec<String>, is_terminal: bool) -> Result<SpawnRequest, WireError> {
        if self.shells.living.iter().filter(|shell| !shell.is_companion).count() >= MAX_SHELLS {
            let reason = format!("the session has {MAX_SHELLS} shells, the most there may be: leave one");
            return Err(WireError::System { operation: STARTING.into(), reason });
        }
        let argv = argv.into_iter().map(OsString::from).collect();
        let mut request = self.beside_request(argv, STARTING)?;
        if let Some(container) = self.container.as_deref() {
            enter_container(&mut request, container, is_terminal);
        }
        Ok(request)
    }

    /// Builds the request for a program beside the agent, which is the user's shell without words of its own.
    fn beside_request(&self, mut argv: Vec<OsString>, operation: &str) -> Result<SpawnRequest, WireError> {
        let refused = |reason: &str| WireError::System { operation: operation.into(), reason: reason.into() };
        if self.ending.is_some() {
            return Err(refused("the session is being ended"));
        }
        let template = self.shells.template.as_ref().ok_or_else(|| refused("its agent was not started yet"))?;
        let mut request = template.beside().map_err(|error| WireError::system(operation, &error))?;
        if argv.is_empty() && self.container.is_some() {
            argv.push(DEFAULT_SHELL.into());
        }
        if argv.is_empty() {
            let named = request.env.iter().find(|(name, _)| name == "SHELL").map(|(_, value)| value.clone());
            argv.push(named.filter(|shell| Path::new(shell).is_file()).unwrap_or_else(|| DEFAULT_SHELL.into()));
        }
        request.program.clone_from(&argv[0]);
        request.argv = argv;
        Ok(request)
    }

    fn start_on_terminal(
        &mut self,
        mut request: SpawnRequest,
        config: TerminalConfig,
    ) -> Result<(PidFd, StartedStreams), WireError> {
        let config = TerminalConfig { record: None, ..config };
        let controller = set_terminal(&mut request, config.size)?;
        let failed = |error| WireError::system("starting the terminal", &error);
        let terminal = Terminal::start(&config, controller, self.shells.wake.clone()).map_err(failed)?;
        let process = self.registry.spawn(request)?.process;
        Ok((process, StartedStreams::Terminal(terminal, config.size)))
    }

    fn start_on_pipes(&mut self, mut request: SpawnRequest) -> Result<(PidFd, StartedStreams), WireError> {
        (request.stdin, request.stdout, request.stderr) = (SpawnInput::Pipe, SpawnOutput::Pipe, SpawnOutput::Pipe);
        let spawned = self.registry.spawn(request)?;
        let process = spawned.process.try_clone();
        let process = process.map_err(|error| WireError::system("watching a shell", &error))?;
        Ok((process, StartedStreams::Pipes(spawned)))
    }

    /// Sends all shells SIGHUP.
    pub(super) fn hang_up_shells(&mut self) {
        self.check_shells();
        self.shells.living.iter_mut().for_each(Shell::hang_up);
    }

    /// Sends the viewers of shells that have exited what these have left.
    pub(super) fn check_shells(&mut self) {
        let Self { shells: SessionShells { living, closing, .. }, registry, ending, .. } = self;
        while closing.try_join_next().is_some() {}
        living.retain_mut(|shell| {
            let Some(exit) = registry.exit_of(shell.process.id()) else { return true };
            let mut streams = std::mem::replace(&mut shell.streams, ShellStreams::Closed);
            match &streams {
                // A companion that ends with its session has not ended by itself.
                ShellStreams::Terminal(terminal) => {
                    terminal.end(Some(exit).filter(|_| !shell.is_companion || ending.is_none()));
                }
                ShellStreams::Pipes(pipes) => pipes.end(exit),
                ShellStreams::Closed => return false,
            }
            closing.spawn(async move { streams.finished().await });
            false
        });
    }

    /// Waits until all viewers have their last messages, each for a second at most.
    pub(crate) async fn finish_terminals(&mut self) {
        self.check_shells();
        if let Some(terminal) = self.terminal() {
            terminal.finished().await;
        }
        while self.shells.closing.join_next().await.is_some() {}
    }
}

/// Streams of a program that was just started.
enum StartedStreams {
    Terminal(Terminal, ipc_protocol::terminal::TerminalSize),
    Pipes(registry::SpawnedProcess),
}
