//! Shells: programs that people start beside the agent, in its containment.
//!
//! Each belongs to one connection ([`ToTerminal::Shell`]), which is its terminal or its standard streams. When the connection
//! ends, the program gets SIGHUP; what it has deliberately left running stays the session's.

use std::{
    collections::VecDeque,
    ffi::OsString,
    os::fd::OwnedFd,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use ipc_protocol::{
    WireError,
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
/// Shell where the environment names none.
const DEFAULT_SHELL: &str = "/bin/sh";

/// Program with its connection.
struct Shell {
    process: PidFd,
    streams: ShellStreams,
    /// True once it was sent SIGHUP.
    is_hung_up: bool,
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
    living: Vec<Shell>,
    /// Connections that wait for their last messages.
    closing: JoinSet<()>,
    handshakes: JoinSet<()>,
    arrivals: Arc<Mutex<VecDeque<(ViewerLink, ToTerminal)>>>,
    /// Wakes the session for them and for all terminals.
    pub(super) wake: Arc<Notify>,
}

impl SessionShells {
    pub(super) fn set_template(&mut self, template: SpawnRequest) {
        self.template = Some(template);
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

impl Shell {
    fn hang_up(&mut self) {
        if !std::mem::replace(&mut self.is_hung_up, true) {
            signal_group(&self.process, Signal::HUP);
            // A stopped one has to go on to get it.
            signal_group(&self.process, Signal::CONT);
        }
    }

    /// Handles what its viewer does.
    fn handle_notices(&mut self) {
        let has_left = match &self.streams {
            ShellStreams::Terminal(terminal) => {
                let mut has_left = false;
                for notice in terminal.take_notices() {
                    match notice {
                        TerminalNotice::Detached { last, .. } => has_left |= last,
                        TerminalNotice::Suspend => super::terminal::suspend(terminal, &self.process),
                        TerminalNotice::Continue => signal_group(&self.process, Signal::CONT),
                        TerminalNotice::Attached { .. } | TerminalNotice::Status(_) => {}
                    }
                }
                has_left
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
    pub(super) fn handle_shells(&mut self) {
        while let Some((link, first)) = self.shells.next_arrival() {
            match first {
                ToTerminal::Attach { size, keyboard, in_place } => {
                    if let Some(terminal) = self.terminal() {
                        terminal.view(NewViewer { link, size, keyboard, in_place });
                    }
                }
                ToTerminal::Shell { argv, terminal, in_place } => self.start_shell(link, argv, terminal, in_place),
                _ => {}
            }
        }
        // The number of one that was reaped may be another's.
        self.check_shells();
        self.shells.living.iter_mut().for_each(Shell::handle_notices);
    }

    fn start_shell(
        &mut self,
        link: ViewerLink,
        argv: Vec<String>,
        terminal: Option<Box<TerminalConfig>>,
        in_place: bool,
    ) {
        let request = match self.shell_request(argv) {
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
        if let Some(older) = &mut self.before_turn {
            // No turn has started it.
            older.insert(process.id());
        }
        self.shells.living.push(Shell { process, streams, is_hung_up: false });
    }

    /// Builds the request for a shell, without its streams.
    fn shell_request(&self, argv: Vec<String>) -> Result<SpawnRequest, WireError> {
        let refused = |reason: String| WireError::System { operation: "starting a shell".into(), reason };
        if self.ending.is_some() {
            return Err(refused("the session is being ended".into()));
        }
        if self.shells.living.len() >= MAX_SHELLS {
            return Err(refused(format!("the session has {MAX_SHELLS} shells, the most there may be: leave one")));
        }
        let template = self.shells.template.as_ref().ok_or_else(|| refused("its agent was not started yet".into()))?;
        let mut request = template.beside().map_err(|error| WireError::system("starting a shell", &error))?;
        let mut argv: Vec<OsString> = argv.into_iter().map(OsString::from).collect();
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
        let Self { shells: SessionShells { living, closing, .. }, registry, .. } = self;
        while closing.try_join_next().is_some() {}
        living.retain_mut(|shell| {
            let Some(exit) = registry.exit_of(shell.process.id()) else { return true };
            let mut streams = std::mem::replace(&mut shell.streams, ShellStreams::Closed);
            match &streams {
                ShellStreams::Terminal(terminal) => terminal.end(Some(exit)),
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
