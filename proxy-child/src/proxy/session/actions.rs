//! Execution of the adapter's actions.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use agents::{Action, Adapter};
use ipc_protocol::{
    EndReason, Event, KillOptions, Operation, WireError,
    message::{AgentFact, FromProxy, RequestId},
};

use super::{ProxySession, RunningAgent};
use crate::proxy::{
    event_split,
    files::{self, FileListing},
    link::HostLink,
    message_socket::MessageSocket,
};

/// The lists' share of the proxy's one thread, after which kills and requests have their turn.
const LIST_SLICE: Duration = Duration::from_millis(5);

impl RunningAgent {
    /// Returns whether what is written to the agent is typed in its terminal.
    fn is_typed_to(&self) -> bool {
        self.terminal.is_some() && self.agent.as_ref().is_none_or(|agent| !agent.has_input())
    }

    /// Returns true if a list of files is being made for an adapter that wants it.
    pub(super) fn is_listing(&self) -> bool {
        self.exited.is_none() && !self.listings.is_empty()
    }

    /// Goes on with the oldest list for a slice, and gives its files to the adapter.
    fn step_listings(&mut self, out: &mut Vec<Action>) {
        let Some((id, listing)) = self.listings.front_mut() else { return };
        if let Some(files) = listing.step(Instant::now() + LIST_SLICE) {
            let id = *id;
            self.listings.pop_front();
            self.adapter.listed(id, files, out);
        }
    }
}

impl ProxySession<'_> {
    /// Runs `work` on the adapter, and executes the resulting actions.
    pub(super) fn run_adapter(
        &mut self,
        link: &mut HostLink,
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
        let acted = self.apply_actions(actions, link);
        result.and(acted)
    }

    /// Starts an operation. Its answer is an action, now or later.
    pub(super) fn operate(&mut self, request: RequestId, operation: &Operation, link: &mut HostLink) {
        let begun = self.running.as_mut().map_or(Ok(None), |running| running.operations.begin(request, Instant::now()));
        self.reported_state.record_operation(request, operation);
        let result = begun.and_then(|pushed_out| {
            if let Some((request, error)) = pushed_out {
                link.send(&FromProxy::Failed { request, error });
            }
            let asked = self.run_adapter(link, |adapter, out| adapter.operate(request, operation, out));
            // A reply that was sent in spite of the error counts.
            let open = self.running.as_mut().is_none_or(|running| asked.is_ok() || running.operations.end(request));
            if open { asked } else { Ok(()) }
        });
        if let Err(error) = result {
            link.send(&FromProxy::Failed { request, error });
        }
    }

    /// Executes the actions in order. Actions that result from one come before the next.
    pub(super) fn apply_actions(&mut self, actions: Vec<Action>, link: &mut HostLink) -> Result<(), WireError> {
        let mut result = Ok(());
        let mut actions = VecDeque::from(actions);
        while let Some(action) = actions.pop_front() {
            let Some(running) = &mut self.running else { break };
            let mut first = Vec::new();
            match action {
                Action::Event(mut event) => {
                    if running.exited.is_none() {
                        first = running.permissions.handle_event(&event, Instant::now(), running.adapter.as_mut());
                        if self.turn.is_some() {
                            first.extend(running.replies.note(&mut event, running.adapter.as_mut()));
                        }
                    }
                    self.reported_state.record_event(&event);
                    let turn = self.turn.unwrap_or(0);
                    event_split::split_event(event, |event| link.send(&FromProxy::Event { turn, event }));
                }
                Action::Write(bytes) if running.is_typed_to() => {
                    running.terminal.iter().for_each(|terminal| terminal.type_prompt(&bytes));
                }
                Action::Write(bytes) => {
                    let written = running.agent.as_mut().map(|agent| agent.write(&bytes));
                    if let Err(error) = written.unwrap_or_else(|| Err(std::io::ErrorKind::BrokenPipe.into())) {
                        result = Err(match error.kind() {
                            // The agent lives, and reads too slowly.
                            std::io::ErrorKind::WouldBlock => WireError::system("writing to the agent", &error),
                            _ => WireError::AgentDied { reason: error.to_string() },
                        });
                    }
                }
                Action::CloseInput => running.agent.iter_mut().for_each(|agent| agent.close_input()),
                Action::Connect(endpoint) => self.http.connect(&endpoint),
                Action::Http(request) => self.http.request(request),
                Action::List { id, directory, suffix } => {
                    match FileListing::begin(&directory, suffix) {
                        None => running.adapter.listed(id, Vec::new(), &mut first),
                        Some(listing) => running.listings.push_back((id, listing)),
                    }
                    running.step_listings(&mut first);
                }
                Action::ReadFile { path, offset } => {
                    let (next, bytes) = files::read_on(&path, offset).unwrap_or((offset.unwrap_or(0), Vec::new()));
                    running.adapter.file_read(next, &bytes, &mut first);
                }
                Action::Rename { path, name } => {
                    if let Err(error) = files::rename(&path, &name) {
                        let action = format!("naming the agent's file {path:?} {name:?}");
                        let event = Event::ActionFailed { action, error: error.to_string() };
                        link.send(&FromProxy::Event { turn: self.turn.unwrap_or(0), event });
                    }
                }
                Action::OpenHook { id } => running.hooks.open(id),
                Action::AnswerHook { id, answer } => running.hooks.answer(id, answer),
                Action::Program(program) => running.versions.program = Some(program),
                Action::Fact(fact) => {
                    if let AgentFact::ServerListens { address } = &fact {
                        self.shells.set_endpoint(address);
                    }
                    link.send(&FromProxy::Fact(fact));
                }
                Action::NativeSession(id) => {
                    self.reported_state.native_session_id = Some(id.clone());
                    link.send(&FromProxy::NativeSession { id });
                }
                Action::Reply { request, reply } => {
                    if running.operations.end(request) {
                        self.reported_state.record_answer(request, reply.is_ok());
                        link.send(&match reply {
                            Ok(reply) => FromProxy::Reply { request, reply },
                            Err(error) => FromProxy::Failed { request, error },
                        });
                    }
                }
                Action::Signal(signal) => {
                    // This fails for an agent that has just exited, which is reported separately.
                    let _ = running.agent.as_ref().map(|agent| agent.process.signal(signal));
                }
                Action::Ready { native_session_id } => self.ready(native_session_id, link),
                Action::TurnEnded => {
                    // A turn that ended with its agent's death is not reported as ended: the host gets the death.
                    if let Some(turn) = self.turn.take()
                        && running.exited.is_none()
                    {
                        link.send(&FromProxy::TurnEnded { turn });
                    }
                }
                Action::Fail(error) => self.fail(error, link),
            }
            first.into_iter().rev().for_each(|action| actions.push_front(action));
        }
        result
    }

    /// Fails the session if the connection to the agent's socket has ended, and the agent has not.
    pub(super) fn check_socket(&mut self, link: &mut HostLink) {
        let Some(running) = self.running.as_mut().filter(|running| running.exited.is_none()) else { return };
        if let Some(reason) = running.socket.as_mut().and_then(MessageSocket::take_failure)
            && self.ending.is_none()
        {
            let agent = running.adapter.agent().to_owned();
            self.fail(WireError::AgentProtocol { agent, reason }, link);
        }
    }

    /// Fails the session, since the agent is not usable any more.
    fn fail(&mut self, error: WireError, link: &mut HostLink) {
        let exited =
            self.running.as_ref().filter(|running| running.starting.is_some()).and_then(|running| running.exited);
        let error = match (error, exited) {
            // The agent's own last words are more useful than the fact that it ended.
            (WireError::AgentDied { .. }, Some(exit)) => self.start_exit_error(exit),
            (error, _) => error,
        };
        let reason = EndReason::Failed(error.to_string());
        match self.running.as_mut().and_then(|running| running.starting.take()) {
            Some(request) => link.send(&FromProxy::Failed { request, error }),
            None => {
                let event = Event::error("agent-protocol", error.to_string(), false);
                link.send(&FromProxy::Event { turn: self.turn.unwrap_or(0), event });
            }
        }
        self.end(reason, KillOptions::default());
    }

    /// Goes on with the lists of files that are being made.
    pub(super) fn step_listings(&mut self, link: &mut HostLink) {
        let Some(running) = self.running.as_mut().filter(|running| running.is_listing()) else { return };
        let mut actions = Vec::new();
        running.step_listings(&mut actions);
        self.apply_actions_and_report(actions, link);
    }

    /// Same as [`ProxySession::apply_actions`], for actions without a caller that waits for the result.
    pub(super) fn apply_actions_and_report(&mut self, actions: Vec<Action>, link: &mut HostLink) {
        if let Err(error) = self.apply_actions(actions, link) {
            let event = Event::ActionFailed { action: "answering the agent".into(), error: error.to_string() };
            link.send(&FromProxy::Event { turn: self.turn.unwrap_or(0), event });
        }
    }

    /// Passes the time to the adapter, which emits what it held back.
    pub(super) fn tick_adapter(&mut self, now: Instant, link: &mut HostLink) {
        let Some(running) = self.running.as_mut().filter(|running| running.exited.is_none()) else { return };
        let mut actions = Vec::new();
        running.next_tick = running.adapter.tick(now, &mut actions);
        self.apply_actions_and_report(actions, link);
    }

    /// Returns the next deadline of a permission request or an operation, or the time at which the adapter has something to emit.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let running = self.running.as_ref().filter(|running| running.exited.is_none())?;
        running.permissions.next().into_iter().chain(running.operations.next()).chain(running.next_tick).min()
    }

    /// Handles the deadlines that have passed.
    pub(super) fn check_deadlines(&mut self, now: Instant, link: &mut HostLink) {
        if self.next_deadline().is_none_or(|next| now < next) {
            return;
        }
        let Some(running) = &mut self.running else { return };
        for (request, error) in running.operations.take_due(now) {
            link.send(&FromProxy::Failed { request, error });
        }
        let actions = running.permissions.expire(now, running.adapter.as_mut());
        self.apply_actions_and_report(actions, link);
    }
}
