//! Commands of the host: what the task makes of each, their messages to the proxy, and when they are refused.

use ipc_protocol::{
    ProcessInfo,
    message::{ProxyCommand, RequestId, ToForkServer, ToProxy},
};
use tokio::time::Instant;

use super::{SessionCore, SessionEffect, SessionPhase, TimerKind, prompting};
use crate::{
    error::{Error, Result},
    session::{SessionCommand, pending_requests::PendingAnswer},
};

/// Aborts that may wait for the prompt that they are to cancel.
const MOST_HELD: usize = 64;

impl SessionCore {
    /// Handles a command, of either lane.
    pub(crate) fn command(&mut self, command: SessionCommand, now: Instant) {
        match command {
            SessionCommand::Prompt { prompt, mode, accepted, metadata, reply } => {
                self.accept_prompt(prompt, mode, accepted, metadata, reply, now);
            }
            SessionCommand::Append { events, reply } => self.append(events, reply),
            SessionCommand::Claim { claim, reply } => match &self.closing {
                Some(error) => {
                    let error = error.clone();
                    self.reply(reply, Err(error));
                }
                None if self.is_warm && matches!(self.phase, SessionPhase::Idle) => {
                    self.effects.push_back(SessionEffect::Claim { claim, reply });
                }
                None => {
                    let busy = self.busy_error();
                    self.reply(reply, Err(busy));
                }
            },
            SessionCommand::Rename { title, reply } => {
                self.renamed(title);
                self.reply(reply, Ok(()));
            }
            SessionCommand::Request { command, waiting } => self.request(command, waiting, now),
        }
    }

    /// Carries a command to the proxy.
    pub(super) fn request(&mut self, command: ProxyCommand, waiting: PendingAnswer, now: Instant) {
        let is_abort = matches!(command, ProxyCommand::Abort { .. });
        if is_abort && self.has_unsent() && self.held_aborts.len() < MOST_HELD {
            return self.held_aborts.push((command, waiting));
        }
        if let Err(error) = self.accepts(&command) {
            return self.fail(waiting, error);
        }
        let is_list = matches!(command, ProxyCommand::ListProcesses);
        let is_operation = matches!(command, ProxyCommand::Operate { .. });
        if is_operation {
            self.give_up_operations();
        }
        if let Some(request) = self.send(waiting, command)
            && is_list
        {
            self.listing.record_request(request, now);
            self.timers.set(TimerKind::Listing, self.listing.next());
        }
        if is_abort {
            // Behind the abort: it must not meet the next turn.
            self.abort_usage_wait(now);
        }
    }

    /// Refuses a command that the session cannot carry out now.
    fn accepts(&self, command: &ProxyCommand) -> Result<()> {
        // The processes of a session that is about to end can be listed as long as there are some.
        let is_served = matches!(command, ProxyCommand::ListProcesses) && !self.is_over();
        if let Some(error) = self.closing.as_ref().filter(|_| !is_served) {
            return Err(error.clone());
        }
        match command {
            ProxyCommand::Steer { prompt } => {
                prompting::check(prompt, 0)?;
                // An agent without turns reports itself why it cannot be steered.
                if !matches!(self.phase, SessionPhase::Busy(_)) && self.has_turns {
                    let agent = self.agent_name.clone();
                    let operation = "be steered while no turn runs: prompt it".to_owned();
                    return Err(Error::Unsupported { agent, operation });
                }
                Ok(())
            }
            ProxyCommand::Operate { .. } if matches!(self.phase, SessionPhase::Starting { .. }) => {
                Err(self.busy_error())
            }
            _ => Ok(()),
        }
    }

    /// Tells the proxy which operations nobody waits for: if the agent does not answer, they would use up its room.
    fn give_up_operations(&mut self) {
        for request in self.pending.abandon_operations() {
            if let Err(error) = self.wire.push(&mut self.outbox, &ToProxy::GiveUp { request }) {
                tracing::warn!(%error, "failed to encode the cancellation of an operation");
            }
        }
    }

    /// Asks the fork server for lists that the proxy has not sent in time: a stopped or wedged proxy never will.
    pub(super) fn list_without_proxy(&mut self, now: Instant) {
        if self.listing.is_late(now, |request| self.pending.is_waiting(request)) {
            let order = ToForkServer::List { session: self.id.clone() };
            self.effects.push_back(SessionEffect::Order(order));
        }
        self.timers.set(TimerKind::Listing, self.listing.next());
    }

    /// Answers requests with the fork server's list of the session's processes.
    pub(super) fn listed(&mut self, processes: &[ProcessInfo]) {
        self.commit_log();
        for request in self.listing.take_answered() {
            if let Some(PendingAnswer::Processes(reply)) = self.pending.take(request) {
                // The fork server does not know the agent.
                let agent = self.agent;
                let of_host = |info: &ProcessInfo| ProcessInfo { tracked: Some(info.id) == agent, ..info.clone() };
                self.reply(reply, Ok(processes.iter().map(of_host).collect()));
            }
        }
    }

    /// Sends a command whose answer is for `waiting`. Returns the number of the request if it was queued.
    pub(super) fn send(&mut self, waiting: PendingAnswer, command: ProxyCommand) -> Option<RequestId> {
        if !self.pending.has_room() {
            let busy = self.busy_error();
            self.fail(waiting, busy);
            return None;
        }
        // An abort must not overtake the prompt that it cancels.
        let follows = matches!(command, ProxyCommand::Abort { .. }) && self.pending.has_prompt();
        let is_urgent = command.is_urgent() && !follows;
        let request = self.pending.mint();
        let message = ToProxy::Request { request, command };
        let pushed = if is_urgent {
            self.wire.push_control(&mut self.outbox, &message)
        } else {
            self.wire.push(&mut self.outbox, &message)
        };
        match pushed {
            Ok(()) => {
                self.pending.insert(request, waiting);
                Some(request)
            }
            Err(error) => {
                self.fail(waiting, prompting::unsendable(&error));
                None
            }
        }
    }
}
