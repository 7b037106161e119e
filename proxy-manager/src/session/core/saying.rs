//! What is said to the agent, in its order: prompts, what steers, and operations.

use ipc_protocol::{
    Event, Json, Operation, Prompt, PromptPart,
    codec::{CodecError, MAX_MESSAGE},
    message::ToProxy,
};
use tokio::{sync::oneshot, time::Instant};

use super::{Busy, Core, Phase, calls::Lane};
use crate::{
    Error, Result,
    session::{
        PromptMode, Reply, Say, SessionState, Turn, TurnEnd,
        metrics::Tally,
        pending::{Change, Pending, Waiting},
        prompts::Queued,
        turn::TurnSender,
    },
};

/// Longest prompt, in bytes: what surrounds it in a message is shorter than this leaves.
const LONGEST: usize = MAX_MESSAGE - 64;
/// What a part of a prompt takes in a message beside its bytes, at the most.
const PART: usize = 24;

impl Core {
    /// A prompt, a steer or an operation.
    pub(crate) fn say(&mut self, say: Say, now: Instant) {
        match say {
            Say::Prompt { prompt, mode, reply } => self.prompt(prompt, mode, reply, now),
            Say::Steer { prompt, reply } => self.steer(prompt, reply),
            Say::Operate { operation, reply } => self.operate(operation, reply),
            Say::Append { event, reply } => {
                if let Some(error) = &self.closing {
                    return Pending::answer(reply, Err(error.clone()));
                }
                self.log.push(self.turn(), event);
                self.log.commit_and(|kept| Pending::answer(reply, kept.map_err(Error::from)));
            }
        }
    }

    fn prompt(&mut self, prompt: Prompt, mode: PromptMode, reply: Reply<Turn>, now: Instant) {
        if let Some(error) = &self.closing {
            return Pending::answer(reply, Err(error.clone()));
        }
        // Before it is queued: there would be nobody left to tell.
        if let Err(error) = check(&prompt, self.preamble.as_ref().map_or(0, String::len)) {
            return Pending::answer(reply, Err(error));
        }
        if let Some(error) = self.refusal() {
            return Pending::answer(reply, Err(error));
        }
        let busy = !matches!(self.phase, Phase::Idle);
        if busy
            && mode == PromptMode::Steer
            && let Phase::Busy(busy) = &mut self.phase
        {
            let (ticket, turn) = Turn::new(Some(busy.turn), self.session.history());
            busy.tickets.retain(|ticket| !ticket.is_closed());
            busy.tickets.push(ticket);
            let waiting = Waiting::Ticket { caller: reply, turn };
            self.send(Lane::Bulk, waiting, |request| ToProxy::Steer { request, prompt });
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
            let (ticket, turn) = Turn::new(Some(number), self.session.history());
            self.queue.push(Queued { turn: number, prompt, ticket });
            return Pending::answer(reply, Ok(turn));
        }
        if !self.has_turns {
            return self.prompt_without_turn(prompt, reply);
        }
        let number = self.turns + 1;
        let (ticket, turn) = Turn::new(Some(number), self.session.history());
        self.begin_turn(number, prompt, ticket, Some((reply, turn)), now);
    }

    fn prompt_without_turn(&mut self, prompt: Prompt, reply: Reply<Turn>) {
        let (ticket, turn) = Turn::new(None, self.session.history());
        // Resolved before it is given out, which is when the agent has the prompt.
        let _ = ticket.send(Ok(TurnEnd::default()));
        let waiting = Waiting::Ticket { caller: reply, turn };
        if self.send(Lane::Bulk, waiting, |request| ToProxy::Prompt { request, turn: 0, prompt }).is_some() {
            self.turns += 1;
            self.session.tally(Tally::prompted);
            let turns = self.turns;
            self.session.show(|view| view.turns = turns);
        }
    }

    fn begin_turn(
        &mut self,
        turn: u64,
        prompt: Prompt,
        ticket: TurnSender,
        caller: Option<(Reply<Turn>, Turn)>,
        now: Instant,
    ) {
        let waiting = Waiting::Prompt { turn, caller };
        let (text, attachments) = (prompt.text(), prompt.attachments());
        let before = self.preamble.clone().map(PromptPart::Text);
        let prompt = Prompt { parts: before.into_iter().chain(prompt.parts).collect() };
        if self.send(Lane::Bulk, waiting, |request| ToProxy::Prompt { request, turn, prompt }).is_none() {
            // Its caller has the error; one that was queued has only this ticket, and its number is used up.
            self.turns = turn;
            let _ = ticket.send(Err(Error::Busy { session: self.session.id().clone() }));
            return;
        }
        self.turns = turn;
        self.hold_together();
        self.log.push(turn, Event::TurnStarted { prompt: text, attachments });
        self.log.push(turn, Event::SessionBusy {});
        self.log.commit();
        tracing::debug!(turn, "busy");
        let end = TurnEnd { turn: Some(turn), ..TurnEnd::default() };
        self.phase = Phase::Busy(Busy { end, turn, tickets: vec![ticket] });
        self.clocks.begin(now);
        self.session.tally(|tally| {
            tally.prompted();
            tally.is_busy(true);
        });
        self.lasting.busy();
        self.session.show(|view| {
            view.state = SessionState::Busy { turn };
            view.turns = turn;
        });
    }

    fn steer(&mut self, prompt: Prompt, reply: Reply<()>) {
        if let Some(error) = &self.closing {
            return Pending::answer(reply, Err(error.clone()));
        }
        if let Err(error) = check(&prompt, 0) {
            return Pending::answer(reply, Err(error));
        }
        // An agent without turns says itself why it cannot.
        if !matches!(self.phase, Phase::Busy(_)) && self.has_turns {
            let agent = self.session.labels().agent.clone();
            let operation = "be steered while no turn runs: prompt it".to_owned();
            return Pending::answer(reply, Err(Error::Unsupported { agent, operation }));
        }
        self.send(Lane::Bulk, Waiting::Done(reply), |request| ToProxy::Steer { request, prompt });
    }

    /// Asks something else of the agent: in its order with prompts, also while a turn runs.
    fn operate(&mut self, operation: Operation, reply: Reply<Json>) {
        if let Some(error) = &self.closing {
            return Pending::answer(reply, Err(error.clone()));
        }
        if matches!(self.phase, Phase::Starting { .. }) {
            return Pending::answer(reply, Err(Error::Busy { session: self.session.id().clone() }));
        }
        let change = match &operation {
            Operation::SetModel { model } => Change::Model(model.clone()),
            Operation::SetMode { mode } => Change::Mode(mode.clone()),
            Operation::SetThinking { level } => Change::Thinking(level.clone()),
            _ => Change::Nothing,
        };
        // Where the agent does not answer, those that were given up would be all that the proxy has room for.
        for request in self.pending.give_up_operations() {
            if let Err(error) = self.outbox.push(&ToProxy::GiveUp { request }) {
                tracing::warn!(%error, "an operation that nobody waits for keeps its place");
            }
        }
        let waiting = Waiting::Operation { change, caller: reply, given_up: false };
        self.send(Lane::Bulk, waiting, |request| ToProxy::Operate { request, operation });
    }

    /// An operation was done: what it changed is shown, and said.
    pub(super) fn operated(&mut self, change: Change, caller: Reply<Json>, reply: Json) {
        let (status, detail) = match change {
            Change::Nothing => return Pending::answer(caller, Ok(reply)),
            Change::Model(model) => ("model", model),
            Change::Mode(mode) => ("mode", mode),
            Change::Thinking(level) => ("thinking", level),
        };
        self.session.show(|view| {
            let shown = match status {
                "model" => &mut view.model,
                "mode" => &mut view.mode,
                _ => &mut view.thinking,
            };
            *shown = Some(detail.clone());
        });
        let turn = self.turn();
        self.log.push(turn, Event::SessionStatus { status: status.to_owned(), detail });
        self.log.commit();
        Pending::answer(caller, Ok(reply));
    }

    /// Gives the agent the prompts that wait, one after the other.
    pub(super) fn next_turn(&mut self, now: Instant) {
        self.refuse_waiting();
        while self.closing.is_none()
            && matches!(self.phase, Phase::Idle)
            && let Some(Queued { turn, prompt, ticket }) = self.queue.pop()
        {
            if self.has_turns {
                self.begin_turn(turn, prompt, ticket, None, now);
            } else {
                // Queued while the agent started, which then turned out to have no turns.
                let (caller, _) = oneshot::channel();
                self.prompt_without_turn(prompt, caller);
                let _ = ticket.send(Ok(TurnEnd::default()));
            }
        }
    }
}

/// Whether a prompt says something, and can be sent with so many bytes before it.
fn check(prompt: &Prompt, before: usize) -> Result<()> {
    if prompt.parts.is_empty() {
        return Err(Error::InvalidConfig { field: "prompt", reason: "it has no part: say something".to_owned() });
    }
    let len = before + prompt.len() + PART * (1 + prompt.parts.len());
    if len > LONGEST { Err(unsendable(&CodecError::MessageLength { len })) } else { Ok(()) }
}

pub(super) fn unsendable(error: &CodecError) -> Error {
    Error::InvalidConfig { field: "message", reason: error.to_string() }
}
