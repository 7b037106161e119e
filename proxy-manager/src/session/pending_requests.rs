//! Typed table of requests that wait for an answer of the proxy.

use std::collections::HashMap;

use ipc_protocol::{EndReason, Json, Operation, ProcessInfo, Receipt, message::RequestId};

use super::{AcceptedPrompt, ReplySender, TurnTicket};
use crate::error::Error;

/// Maximum number of outstanding answers.
const MAX_PENDING: usize = 1024;
/// Number of outstanding answers from which abandoned ones are looked for and dropped.
const PRUNE_AT: usize = 64;

/// Change of the session by an operation that succeeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SettingChange {
    Nothing,
    Model(String),
    Mode(String),
    Thinking(String),
}

impl SettingChange {
    /// Change that `operation` makes.
    pub(crate) fn of(operation: &Operation) -> Self {
        match operation {
            Operation::SetModel { model } => Self::Model(model.clone()),
            Operation::SetMode { mode } => Self::Mode(mode.clone()),
            Operation::SetThinking { level } => Self::Thinking(level.clone()),
            _ => Self::Nothing,
        }
    }
}

impl SettingChange {
    /// Returns true if both change the same setting.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

/// Purpose of an outstanding answer.
#[derive(Debug)]
pub(crate) enum PendingAnswer {
    /// The start of the agent.
    Start,
    /// A prompt that begins this turn, with its caller unless it was queued.
    Prompt { turn: u64, caller: Option<(ReplySender<TurnTicket>, TurnTicket)> },
    /// A prompt to an agent without turns, or a steering one: the caller gets its ticket when the agent has the prompt.
    Ticket { caller: ReplySender<TurnTicket>, turn: TurnTicket },
    /// A prompt that is in the log, to an agent without turns.
    Accepted(AcceptedPrompt),
    /// Something that is only done or not.
    Done(ReplySender<()>),
    /// An operation of the agent's own.
    Operation {
        change: SettingChange,
        caller: ReplySender<Json>,
        /// True if the proxy knows that the caller has given up.
        given_up: bool,
    },
    /// An abort, since the turn must not continue, with the reason.
    EndTurn(EndReason),
    /// A ping of the session's own health check.
    Pulse,
    /// A list of processes.
    Processes(ReplySender<Vec<ProcessInfo>>),
    /// A kill.
    Receipt(ReplySender<Receipt>),
}

impl PendingAnswer {
    /// Answers the caller with an error. A caller that has gone misses nothing.
    pub(crate) fn fail(self, error: Error) {
        match self {
            Self::Start | Self::Prompt { caller: None, .. } | Self::Accepted(_) | Self::EndTurn(_) | Self::Pulse => {}
            Self::Prompt { caller: Some((caller, _)), .. } | Self::Ticket { caller, .. } => {
                let _ = caller.send(Err(error));
            }
            Self::Done(reply) => {
                let _ = reply.send(Err(error));
            }
            Self::Operation { caller, .. } => {
                let _ = caller.send(Err(error));
            }
            Self::Processes(reply) => {
                let _ = reply.send(Err(error));
            }
            Self::Receipt(reply) => {
                let _ = reply.send(Err(error));
            }
        }
    }

    /// Returns true if the caller gave up and the answer matters to nobody else.
    fn is_abandoned(&self) -> bool {
        match self {
            Self::Start | Self::Prompt { .. } | Self::Accepted(_) | Self::EndTurn(_) | Self::Pulse => false,
            Self::Ticket { caller, .. } => caller.is_closed(),
            Self::Done(reply) => reply.is_closed(),
            // An operation that changes something must be tracked to its end, whoever waits. Any other one is dropped
            // only once the proxy knows, so that it does not keep its place there.
            Self::Operation { change, given_up, .. } => *change == SettingChange::Nothing && *given_up,
            Self::Processes(reply) => reply.is_closed(),
            Self::Receipt(reply) => reply.is_closed(),
        }
    }
}

/// Table of outstanding requests.
#[derive(Debug, Default)]
pub(crate) struct PendingRequests {
    last: RequestId,
    waiting: HashMap<RequestId, PendingAnswer>,
}

impl PendingRequests {
    /// Returns true if an operation is outstanding that changes the same setting as `change`.
    pub(crate) fn has_change_like(&self, change: &SettingChange) -> bool {
        let is_like = |answer: &PendingAnswer| matches!(answer, PendingAnswer::Operation { change: other, .. } if other.is_like(change));
        self.waiting.values().any(is_like)
    }

    /// Starts request ids after `last`: answers to earlier requests match none of these.
    pub(crate) fn begin_after(&mut self, last: RequestId) {
        self.last = last;
    }

    /// Creates a fresh request id.
    pub(crate) fn mint(&mut self) -> RequestId {
        self.last += 1;
        self.last
    }

    /// Returns true if there is room for one more.
    pub(crate) fn has_room(&mut self) -> bool {
        if self.waiting.len() >= PRUNE_AT {
            self.waiting.retain(|_, waiting| !waiting.is_abandoned());
        }
        self.waiting.len() < MAX_PENDING
    }

    /// Marks operations whose callers gave up, and returns those newly marked, oldest first.
    pub(crate) fn abandon_operations(&mut self) -> Vec<RequestId> {
        let mut given_up = Vec::new();
        for (request, waiting) in &mut self.waiting {
            if let PendingAnswer::Operation { caller, given_up: told, .. } = waiting
                && caller.is_closed()
                && !std::mem::replace(told, true)
            {
                given_up.push(*request);
            }
        }
        given_up.sort_unstable();
        given_up
    }

    pub(crate) fn insert(&mut self, request: RequestId, waiting: PendingAnswer) {
        self.waiting.insert(request, waiting);
    }

    /// Takes the purpose of the answer to `request`; `None` if nobody waits for it (any more).
    pub(crate) fn take(&mut self, request: RequestId) -> Option<PendingAnswer> {
        self.waiting.remove(&request)
    }

    /// Returns true if `request` is unanswered.
    pub(crate) fn is_waiting(&self, request: RequestId) -> bool {
        self.waiting.contains_key(&request)
    }

    /// Returns true if a prompt is unanswered by the proxy.
    pub(crate) fn has_prompt(&self) -> bool {
        self.waiting.values().any(|waiting| {
            matches!(waiting, PendingAnswer::Prompt { .. } | PendingAnswer::Ticket { .. } | PendingAnswer::Accepted(_))
        })
    }

    /// Takes out the prompts that are in the log: somebody has to tell how they failed.
    pub(crate) fn take_accepted(&mut self) -> Vec<AcceptedPrompt> {
        let taken = self.waiting.extract_if(|_, waiting| matches!(waiting, PendingAnswer::Accepted(_)));
        let accepted = taken.filter_map(|(_, waiting)| match waiting {
            PendingAnswer::Accepted(accepted) => Some(accepted),
            _ => None,
        });
        accepted.collect()
    }

    /// Takes out the kills: the proxy answers them, with or without the agent.
    pub(crate) fn take_kills(&mut self) -> Vec<(RequestId, PendingAnswer)> {
        self.waiting.extract_if(|_, waiting| matches!(waiting, PendingAnswer::Receipt(_))).collect()
    }

    /// Takes out all requests.
    pub(crate) fn take_all(&mut self) -> Vec<PendingAnswer> {
        self.waiting.drain().map(|(_, waiting)| waiting).collect()
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[test]
    fn abandoned_requests_make_room_and_live_ones_do_not() {
        let mut pending = PendingRequests::default();
        let mut kept = Vec::new();
        for n in 0..MAX_PENDING {
            assert!(pending.has_room(), "{n}");
            let (reply, answer) = oneshot::channel();
            let request = pending.mint();
            pending.insert(request, PendingAnswer::Done(reply));
            if n % 2 == 0 {
                kept.push((request, answer));
            }
        }
        assert!(pending.has_room(), "half of them were given up");
        while kept.len() < MAX_PENDING {
            let (reply, answer) = oneshot::channel();
            let request = pending.mint();
            pending.insert(request, PendingAnswer::Done(reply));
            kept.push((request, answer));
        }
        assert!(!pending.has_room());
        pending.take_all().into_iter().for_each(|waiting| waiting.fail(Error::ForkServerDied));
        assert!(kept.iter_mut().all(|(_, answer)| matches!(answer.try_recv(), Ok(Err(Error::ForkServerDied)))));
        assert!(pending.has_room());
    }
}
