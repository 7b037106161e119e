//! Calls of the host that overtake prompts: their messages to the proxy, and when they are refused.

use ipc_protocol::{
    KillOptions, ProcessInfo,
    message::{RequestId, ToForkServer, ToProxy},
};
use tokio::time::Instant;

use super::{Core, saying::unsendable};
use crate::{
    error::Error,
    session::{
        AbortReply, Control,
        pending::{Pending, Waiting},
    },
};

/// Aborts that may wait for the prompt that they are to cancel.
const MOST_HELD: usize = 64;

/// How a message travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// Overtakes waiting prompts.
    Control,
    /// Keeps its order.
    Bulk,
}

impl Core {
    /// Handles a call of the control lane.
    pub(crate) fn control(&mut self, control: Control, now: Instant) {
        self.send_unsent(now);
        if self.has_unsent() && matches!(control, Control::Abort { .. }) && self.held_aborts.len() < MOST_HELD {
            return self.held_aborts.push(control);
        }
        let is_abort = matches!(control, Control::Abort { .. });
        let (lane, waiting, make): (_, _, Box<dyn FnOnce(RequestId) -> ToProxy>) = match control {
            Control::Abort { policy, reply } => {
                // An abort must not overtake the prompt that it cancels.
                let lane = if self.pending.has_prompt() { Lane::Bulk } else { Lane::Control };
                let waiting = match reply {
                    AbortReply::Done(reply) => Waiting::Done(reply),
                    AbortReply::Receipt(reply) => Waiting::Receipt(reply),
                };
                let options = KillOptions::default();
                (lane, waiting, Box::new(move |request| ToProxy::Abort { request, policy, options }))
            }
            Control::Permission { id, answer, by, reply } => {
                let make = move |request| ToProxy::Permission { request, id, answer, by };
                (Lane::Control, Waiting::Done(reply), Box::new(make))
            }
            Control::ListProcesses(reply) => {
                let make = |request| ToProxy::ListProcesses { request };
                (Lane::Control, Waiting::Processes(reply), Box::new(make))
            }
            Control::KillProcess { process, tree, options, reply } => {
                let make = move |request| ToProxy::KillProcess { request, process, tree, options };
                (Lane::Control, Waiting::Receipt(reply), Box::new(make))
            }
            Control::KillAll { options, reply } => {
                let make = move |request| ToProxy::KillAll { request, options };
                (Lane::Control, Waiting::Receipt(reply), Box::new(make))
            }
            Control::Ping(reply) => {
                (Lane::Control, Waiting::Pong(reply), Box::new(|request| ToProxy::Ping { request }))
            }
        };
        if let Some(error) = &self.closing {
            return waiting.fail(error.clone());
        }
        if let Some(ToProxy::ListProcesses { request }) = self.send(lane, waiting, make) {
            self.listing.asked(request, now);
        }
        if is_abort {
            // Behind the abort: it must not meet the next turn.
            self.abort_usage_wait(now);
        }
    }

    /// Asks the fork server for lists that the proxy has not sent in time: a stopped or wedged proxy never will.
    pub(super) fn list_without_proxy(&mut self, now: Instant) {
        if self.listing.is_late(now, |request| self.pending.is_waiting(request)) {
            self.orders.push_back(ToForkServer::List { session: self.session.id().clone() });
        }
    }

    /// Answers requests with the fork server's list of the session's processes.
    pub(super) fn listed(&mut self, processes: &[ProcessInfo]) {
        self.log.commit();
        for request in self.listing.answered() {
            if let Some(Waiting::Processes(reply)) = self.pending.take(request) {
                // The fork server does not know the agent.
                let agent = self.session.info().agent_process;
                let of_host = |info: &ProcessInfo| ProcessInfo { tracked: Some(info.id) == agent, ..info.clone() };
                Pending::answer(reply, Ok(processes.iter().map(of_host).collect()));
            }
        }
    }

    /// Sends a request whose answer is for `waiting`. Returns the message if it was queued.
    pub(super) fn send(
        &mut self,
        lane: Lane,
        waiting: Waiting,
        make: impl FnOnce(RequestId) -> ToProxy,
    ) -> Option<ToProxy> {
        if !self.pending.has_room() {
            waiting.fail(Error::Busy { session: self.session.id().clone() });
            return None;
        }
        let request = self.pending.mint();
        let message = make(request);
        let pushed = match lane {
            Lane::Control => self.wire.push_control(&mut self.outbox, &message),
            Lane::Bulk => self.wire.push(&mut self.outbox, &message),
        };
        match pushed {
            Ok(()) => {
                self.pending.insert(request, waiting);
                Some(message)
            }
            Err(error) => {
                waiting.fail(unsendable(&error));
                None
            }
        }
    }
}
