//! Calls of the host: what they send to the proxy, and when they are refused.

use ipc_protocol::{
    Event, KillOptions, ProcessInfo,
    codec::{CodecError, MAX_MESSAGE},
    message::{RequestId, ToForkServer, ToProxy},
};
use tokio::{sync::oneshot, time::Instant};

use super::{Busy, Core, Phase};
use crate::{
    Error,
    session::{
        AbortReply, Control, PromptMode, Reply, Say, SessionState, Turn, TurnEnd,
        pending::{Pending, Waiting},
        prompts::Queued,
        turn::TurnSender,
    },
};

/// Longest text of a prompt, in bytes: what surrounds it in a message is shorter than this leaves.
const LONGEST_TEXT: usize = MAX_MESSAGE - 64;

/// How a message travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    /// Before waiting prompts.
    Control,
    /// In its order.
    Bulk,
}

impl Core {
    /// A call of the control lane.
    pub(crate) fn control(&mut self, control: Control, now: Instant) {
        let (lane, waiting, make): (_, _, Box<dyn FnOnce(RequestId) -> ToProxy>) = match control {
            Control::Abort { policy, reply } => {
                // It must not overtake the prompt that it is to cancel.
                let lane = if self.pending.has_prompt() { Lane::Bulk } else { Lane::Control };
                let waiting = match reply {
                    AbortReply::Done(reply) => Waiting::Done(reply),
                    AbortReply::Receipt(reply) => Waiting::Receipt(reply),
                };
                let options = KillOptions::default();
                (lane, waiting, Box::new(move |request| ToProxy::Abort { request, policy, options }))
            }
            Control::Permission { id, answer, reply } => {
                let make = move |request| ToProxy::Permission { request, id, answer };
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
    }

    /// Asks the fork server for the lists that the proxy has not given in time: one that is stopped or wedged never will.
    pub(super) fn list_without_proxy(&mut self, now: Instant) {
        if self.listing.is_late(now, |request| self.pending.is_waiting(request)) {
            self.orders.push_back(ToForkServer::List { session: self.session.id().clone() });
        }
    }

    /// The fork server has listed the session's processes.
    pub(super) fn listed(&mut self, processes: &[ProcessInfo]) {
        self.log.commit();
        for request in self.listing.answered() {
            if let Some(Waiting::Processes(reply)) = self.pending.take(request) {
                // The fork server does not know which of them is the agent.
                let agent = self.session.info().agent_process;
                let of_host = |info: &ProcessInfo| ProcessInfo { tracked: Some(info.id) == agent, ..info.clone() };
                Pending::answer(reply, Ok(processes.iter().map(of_host).collect()));
            }
        }
    }

    /// Sends a request; its answer is for `waiting`. Gives the message back if it was queued.
    fn send(&mut self, lane: Lane, waiting: Waiting, make: impl FnOnce(RequestId) -> ToProxy) -> Option<ToProxy> {
        if !self.pending.has_room() {
            waiting.fail(Error::Busy { session: self.session.id().clone() });
            return None;
        }
        let request = self.pending.mint();
        let message = make(request);
        let pushed = match lane {
            Lane::Control => self.outbox.push_control(&message),
            Lane::Bulk => self.outbox.push(&message),
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

    /// A prompt or a steer.
    pub(crate) fn say(&mut self, say: Say) {
        match say {
            Say::Prompt { text, mode, reply } => self.prompt(text, mode, reply),
            Say::Steer { text, reply } => self.steer(text, reply),
        }
    }

    fn prompt(&mut self, text: String, mode: PromptMode, reply: Reply<Turn>) {
        if let Some(error) = &self.closing {
            return Pending::answer(reply, Err(error.clone()));
        }
        if text.len() > LONGEST_TEXT {
            // Before it is queued: there would be nobody left to tell.
            return Pending::answer(reply, Err(unsendable(&CodecError::MessageLength { len: text.len() })));
        }
        let busy = !matches!(self.phase, Phase::Idle);
        if busy
            && mode == PromptMode::Steer
            && let Phase::Busy(busy) = &mut self.phase
        {
            let (ticket, turn) = Turn::new(Some(busy.turn));
            busy.tickets.retain(|ticket| !ticket.is_closed());
            busy.tickets.push(ticket);
            let waiting = Waiting::Ticket { caller: reply, turn };
            self.send(Lane::Bulk, waiting, |request| ToProxy::Steer { request, text });
            return;
        }
        if busy && (mode != PromptMode::Queue || self.queue.is_full()) {
            return Pending::answer(reply, Err(Error::Busy { session: self.session.id().clone() }));
        }
        if let Some(max_turns) = self.max_turns
            && self.turns + self.queue.len() >= u64::from(max_turns)
        {
            return Pending::answer(reply, Err(Error::MaxTurns { session: self.session.id().clone(), max_turns }));
        }
        if busy {
            let number = self.turns + self.queue.len() + 1;
            let (ticket, turn) = Turn::new(Some(number));
            self.queue.push(Queued { turn: number, text, ticket });
            return Pending::answer(reply, Ok(turn));
        }
        if !self.has_turns {
            return self.prompt_without_turn(text, reply);
        }
        let number = self.turns + 1;
        let (ticket, turn) = Turn::new(Some(number));
        self.begin_turn(number, text, ticket, Some((reply, turn)));
    }

    fn prompt_without_turn(&mut self, text: String, reply: Reply<Turn>) {
        let (ticket, turn) = Turn::new(None);
        // Resolved before it is given out, which is when the agent has the prompt.
        let _ = ticket.send(Ok(TurnEnd::default()));
        let waiting = Waiting::Ticket { caller: reply, turn };
        if self.send(Lane::Bulk, waiting, |request| ToProxy::Prompt { request, turn: 0, text }).is_some() {
            self.turns += 1;
            let turns = self.turns;
            self.session.show(|view| view.turns = turns);
        }
    }

    fn begin_turn(&mut self, turn: u64, text: String, ticket: TurnSender, caller: Option<(Reply<Turn>, Turn)>) {
        let waiting = Waiting::Prompt { turn, caller };
        let sent = self.send(Lane::Bulk, waiting, |request| ToProxy::Prompt { request, turn, text });
        let Some(ToProxy::Prompt { text: prompt, .. }) = sent else {
            // Its caller has the error; one that was queued has only this ticket, and its number is used up.
            self.turns = turn;
            let _ = ticket.send(Err(Error::Busy { session: self.session.id().clone() }));
            return;
        };
        self.turns = turn;
        self.log.push(turn, Event::TurnStarted { prompt });
        self.log.push(turn, Event::SessionBusy {});
        self.log.commit();
        tracing::debug!(turn, "busy");
        let end = TurnEnd { turn: Some(turn), ..TurnEnd::default() };
        self.phase = Phase::Busy(Busy { end, turn, tickets: vec![ticket] });
        self.session.show(|view| {
            view.state = SessionState::Busy { turn };
            view.turns = turn;
        });
    }

    fn steer(&mut self, text: String, reply: Reply<()>) {
        if let Some(error) = &self.closing {
            return Pending::answer(reply, Err(error.clone()));
        }
        // An agent without turns says itself why it cannot.
        if !matches!(self.phase, Phase::Busy(_)) && self.has_turns {
            let agent = self.session.labels().agent.clone();
            let operation = "be steered while no turn runs: prompt it".to_owned();
            return Pending::answer(reply, Err(Error::Unsupported { agent, operation }));
        }
        self.send(Lane::Bulk, Waiting::Done(reply), |request| ToProxy::Steer { request, text });
    }

    /// Gives the agent the prompts that wait, one after the other.
    pub(super) fn next_turn(&mut self) {
        while self.closing.is_none()
            && matches!(self.phase, Phase::Idle)
            && let Some(Queued { turn, text, ticket }) = self.queue.pop()
        {
            if self.has_turns {
                self.begin_turn(turn, text, ticket, None);
            } else {
                // Queued while the agent started, which then turned out to have no turns.
                let (caller, _) = oneshot::channel();
                self.prompt_without_turn(text, caller);
                let _ = ticket.send(Ok(TurnEnd::default()));
            }
        }
    }
}

fn unsendable(error: &CodecError) -> Error {
    Error::InvalidConfig { field: "message", reason: error.to_string() }
}
