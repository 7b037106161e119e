//! Prompts: which is accepted, which waits, and when each is given to the agent.

use ipc_protocol::{
    ErrorChain, Event, Json, Prompt, PromptPart,
    codec::{CodecError, MAX_MESSAGE},
    message::ProxyCommand,
};
use tokio::time::Instant;

use super::{RunningTurn, SessionCore, SessionEffect, SessionPhase, TimerKind, clocks::LastWords, usage::UsageWait};
use crate::{
    description::SessionState,
    error::{Error, Result},
    session::{
        AcceptedPrompt, BEGUN, ENDED, EventToAppend, PromptMode, ReplySender, TurnEnd, TurnTicket,
        metrics::UsageCounters,
        pending_requests::{PendingAnswer, SettingChange},
        prompts::WaitingPrompt,
        turn::TurnSender,
    },
};

/// A prompt that was accepted and has begun: the agent gets it as soon as the log says so.
pub(super) struct UnsentPrompt {
    /// 0 for an agent without turns.
    turn: u64,
    prompt: Prompt,
    accepted: AcceptedPrompt,
}

/// Longest prompt, in bytes: what surrounds it in a message is shorter than this leaves.
const LONGEST: usize = MAX_MESSAGE - 64;
/// Maximum overhead of a prompt's part in a message, in bytes.
const PART: usize = 24;

impl SessionCore {
    pub(super) fn append(&mut self, events: Vec<EventToAppend>, reply: ReplySender<u64>) {
        if let Some(error) = &self.closing {
            let error = error.clone();
            return self.reply(reply, Err(error));
        }
        let turn = self.turn();
        let has_accepted_turn = matches!(&self.phase, SessionPhase::Busy(busy) if busy.accepted.is_some());
        self.batched = 0;
        self.effects.push_back(SessionEffect::AppendActions { turn, events, has_accepted_turn, reply });
    }

    /// A prompt; with `accepted` where it is in the log already. One that may wait and is not in the log is refused as
    /// [`Error::Busy`]: it is to be appended first. Also where its turn would begin at once: what becomes of it is told then,
    /// whatever happens to this host.
    pub(super) fn accept_prompt(
        &mut self,
        prompt: Prompt,
        mode: PromptMode,
        accepted: Option<AcceptedPrompt>,
        metadata: Option<Json>,
        reply: ReplySender<TurnTicket>,
        now: Instant,
    ) {
        if let Some(error) = &self.closing {
            let error = error.clone();
            return self.reply(reply, Err(error));
        }
        // Checked before it is queued: later there is nobody to answer.
        if let Err(error) = check(&prompt, self.preamble.as_ref().map_or(0, String::len)) {
            return self.reply(reply, Err(error));
        }
        // What is in the log waits for the next host.
        let waits_for_next = accepted.is_some() && self.conditions.is_draining;
        if let Some(error) = self.refusal().filter(|_| !waits_for_next) {
            return self.reply(reply, Err(error));
        }
        if self.is_visit && mode != PromptMode::Queue {
            return self.reply(reply, Err(Error::HandedOver { session: self.id.clone() }));
        }
        let queued = self.queue.len();
        let waits = self.is_visit || !matches!(self.phase, SessionPhase::Idle) || queued > 0;
        if waits
            && mode == PromptMode::Steer
            && let SessionPhase::Busy(busy) = &mut self.phase
        {
            let (ticket, turn) = TurnTicket::new(Some(busy.turn));
            busy.tickets.retain(|ticket| !ticket.is_closed());
            busy.tickets.push(ticket);
            let waiting = PendingAnswer::Ticket { caller: reply, turn };
            self.send(waiting, ProxyCommand::Steer { prompt });
            return;
        }
        if waits && mode != PromptMode::Queue {
            let busy = self.busy_error();
            return self.reply(reply, Err(busy));
        }
        if let Some(max_prompts) = self.max_prompts
            && self.turns + queued >= u64::from(max_prompts)
        {
            return self.reply(reply, Err(Error::MaxPrompts { session: self.id.clone(), max_prompts }));
        }
        let Some(accepted) = accepted else {
            if waits || mode == PromptMode::Queue {
                let busy = self.busy_error();
                return self.reply(reply, Err(busy));
            }
            if !self.has_turns {
                return self.prompt_without_turn(prompt, reply);
            }
            let number = self.turns + 1;
            let (ticket, turn) = TurnTicket::new(Some(number));
            return self.begin_turn(number, prompt, metadata, Some(ticket), Some((reply, turn)), now);
        };
        // One before it may be dropped: those behind it have the turns that they were told.
        let number = (self.turns + queued).max(self.queue.last_turn().unwrap_or_default()) + 1;
        let number = Some(number).filter(|_| self.has_turns);
        let (ticket, turn) = TurnTicket::new(number);
        self.queue.push(WaitingPrompt { accepted, prompt, turn: number, ticket: Some(ticket) });
        self.reply(reply, Ok(turn));
        self.next_turn(now);
    }

    fn prompt_without_turn(&mut self, prompt: Prompt, reply: ReplySender<TurnTicket>) {
        let (ticket, turn) = TurnTicket::new(None);
        // Resolved before the caller gets it, which is when the agent has the prompt.
        self.reply(ticket, Ok(TurnEnd::default()));
        let waiting = PendingAnswer::Ticket { caller: reply, turn };
        self.send_without_turn(prompt, waiting);
    }

    fn send_without_turn(&mut self, prompt: Prompt, waiting: PendingAnswer) {
        if self.send(waiting, ProxyCommand::Prompt { turn: 0, prompt }).is_some() {
            self.turns += 1;
            self.be_used();
            self.tally(UsageCounters::record_prompt);
            let turns = self.turns;
            self.show(move |view| view.turns = turns);
        }
    }

    fn begin_turn(
        &mut self,
        turn: u64,
        prompt: Prompt,
        metadata: Option<Json>,
        ticket: Option<TurnSender>,
        caller: Option<(ReplySender<TurnTicket>, TurnTicket)>,
        now: Instant,
    ) {
        let waiting = PendingAnswer::Prompt { turn, caller };
        let (text, attachments) = (prompt.text(), prompt.attachments());
        let usage_wait = UsageWait::new(self.on_usage_limit, &prompt);
        let prompt = self.with_preamble(prompt);
        self.turns = turn;
        if self.send(waiting, ProxyCommand::Prompt { turn, prompt }).is_none() {
            // Its caller has the error. Its number is used up.
            return;
        }
        self.commit_together();
        self.push_turn(turn, Event::TurnStarted { prompt: text, attachments }, metadata);
        self.push(turn, Event::SessionBusy {});
        self.commit_log();
        self.is_busy(turn, ticket, None, usage_wait, now);
    }

    fn with_preamble(&self, prompt: Prompt) -> Prompt {
        let before = self.preamble.clone().map(PromptPart::Text);
        Prompt { parts: before.into_iter().chain(prompt.parts).collect() }
    }

    /// Begins a prompt that is in the log. The agent gets it when the log has that: whatever dies, it is begun once.
    fn begin_accepted(&mut self, waiting: WaitingPrompt, now: Instant) {
        let WaitingPrompt { accepted, prompt, turn: promised, ticket } = waiting;
        self.queue.settle(accepted.offset);
        let accepted = accepted.without_room();
        let turn = if self.has_turns { promised.unwrap_or_default().max(self.turns + 1) } else { 0 };
        let (text, attachments) = (prompt.text(), prompt.attachments());
        let usage_wait = UsageWait::new(self.on_usage_limit, &prompt);
        let prompt = self.with_preamble(prompt);
        self.unsent = Some(UnsentPrompt { turn, prompt, accepted: accepted.clone() });
        if self.has_turns {
            self.commit_together();
            self.push_turn(turn, Event::TurnStarted { prompt: text, attachments }, accepted.metadata.clone());
            self.push(turn, Event::SessionBusy {});
            self.turns = turn;
        }
        self.move_cursor(BEGUN, accepted.offset);
        self.batched = 0;
        self.effects.push_back(SessionEffect::CommitPrompt);
        if self.has_turns {
            self.is_busy(turn, ticket, Some(accepted), usage_wait, now);
        } else if let Some(ticket) = ticket {
            self.reply(ticket, Ok(TurnEnd::default()));
        }
    }

    /// Whether the log has yet to say that a prompt has begun: what is said next waits for that.
    pub(crate) fn has_unsent(&self) -> bool {
        self.unsent.is_some()
    }

    /// Gives the agent the prompt that has begun, since the log says so now, or tells that it failed.
    pub(crate) fn prompt_written(&mut self, written: Result<()>, now: Instant) {
        let Some(UnsentPrompt { turn, prompt, accepted }) = self.unsent.take() else { return };
        match written {
            Err(error) => {
                if turn > 0 {
                    self.prompt_failed(turn, &error, now);
                } else {
                    self.fail_accepted(0, &accepted, &error);
                }
                self.next_turn(now);
            }
            _ if turn > 0 => {
                let waiting = PendingAnswer::Prompt { turn, caller: None };
                if self.send(waiting, ProxyCommand::Prompt { turn, prompt }).is_none() {
                    let busy = self.busy_error();
                    self.prompt_failed(turn, &busy, now);
                    self.next_turn(now);
                }
            }
            _ => {
                // There is no turn whose end it could wait for.
                self.move_cursor(ENDED, accepted.offset);
                self.commit_log();
                self.send_without_turn(prompt, PendingAnswer::Accepted(accepted));
                self.next_turn(now);
            }
        }
        for (abort, waiting) in std::mem::take(&mut self.held_aborts) {
            self.request(abort, waiting, now);
        }
    }

    /// A prompt that was accepted and begun is told as failed.
    pub(super) fn fail_accepted(&mut self, turn: u64, accepted: &AcceptedPrompt, error: &Error) {
        self.push(turn, Event::ActionFailed { action: accepted.name.clone(), error: error.chain() });
        self.move_cursor(ENDED, accepted.offset);
        self.commit_log();
    }

    fn is_busy(
        &mut self,
        turn: u64,
        ticket: Option<TurnSender>,
        accepted: Option<AcceptedPrompt>,
        usage_wait: UsageWait,
        now: Instant,
    ) {
        tracing::debug!(turn, "busy");
        let end = TurnEnd { turn: Some(turn), ..TurnEnd::default() };
        let (tickets, last_words) = (ticket.into_iter().collect(), LastWords::default());
        self.phase = SessionPhase::Busy(Box::new(RunningTurn { end, turn, tickets, accepted, usage_wait, last_words }));
        self.begin_clocks(now);
        self.tally(move |tally| {
            tally.record_prompt();
            tally.set_busy(true, now);
        });
        self.timers.cancel(TimerKind::Idle);
        self.be_used();
        self.show(move |view| {
            view.state = SessionState::Busy { turn };
            view.turns = turn;
        });
    }

    /// Records and emits the change that an operation made.
    pub(super) fn operated(&mut self, change: SettingChange, caller: ReplySender<Json>, reply: Json) {
        let changed = change.clone();
        let (status, detail) = match change {
            SettingChange::Nothing => return self.reply(caller, Ok(reply)),
            SettingChange::Model(model) => ("model", model),
            SettingChange::Mode(mode) => ("mode", mode),
            SettingChange::Thinking(level) => ("thinking", level),
        };
        let set = detail.clone();
        self.show(move |view| {
            let shown = match status {
                "model" => &mut view.settings.model,
                "mode" => &mut view.settings.mode,
                _ => &mut view.settings.thinking,
            };
            *shown = Some(set);
        });
        let turn = self.turn();
        self.push(turn, Event::SessionStatus { status: status.to_owned(), detail });
        self.changed(turn, &changed);
        self.commit_log();
        self.reply(caller, Ok(reply));
    }

    /// Sends the next queued prompts to the agent, one at a time.
    pub(super) fn next_turn(&mut self, now: Instant) {
        self.refuse_waiting();
        if self.may_begin()
            && let Some(queued) = self.queue.pop()
        {
            self.begin_accepted(queued, now);
        }
    }

    /// Whether a prompt that waits may have its turn now.
    fn may_begin(&self) -> bool {
        matches!(self.phase, SessionPhase::Idle)
            && !self.is_visit
            && self.closing.is_none()
            && self.unsent.is_none()
            && !self.conditions.is_draining
    }
}

/// Checks that a prompt has content, and fits into a message after `before` bytes.
pub(super) fn check(prompt: &Prompt, before: usize) -> Result<()> {
    if prompt.parts.is_empty() {
        return Err(Error::InvalidConfig { field: "prompt", reason: "it has no part: say something".to_owned() });
    }
    let len = before + prompt.len() + PART * (1 + prompt.parts.len());
    if len > LONGEST { Err(unsendable(&CodecError::MessageLength { len })) } else { Ok(()) }
}

pub(super) fn unsendable(error: &CodecError) -> Error {
    Error::InvalidConfig { field: "message", reason: ErrorChain(error).to_string() }
}
