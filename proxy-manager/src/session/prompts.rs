//! Prompts that wait for their turn.

use std::collections::VecDeque;

use ipc_protocol::Prompt;

use super::turn::TurnSender;
use crate::Error;

/// Prompts that may wait.
pub(crate) const MOST_QUEUED: usize = 64;

/// A prompt that waits.
pub(crate) struct Queued {
    /// Number of the turn it will begin.
    pub(crate) turn: u64,
    pub(crate) prompt: Prompt,
    pub(crate) ticket: TurnSender,
}

/// The queue.
#[derive(Default)]
pub(crate) struct Queue(VecDeque<Queued>);

impl Queue {
    pub(crate) fn is_full(&self) -> bool {
        self.0.len() >= MOST_QUEUED
    }

    pub(crate) fn len(&self) -> u64 {
        self.0.len() as u64
    }

    pub(crate) fn push(&mut self, prompt: Queued) {
        self.0.push_back(prompt);
    }

    pub(crate) fn pop(&mut self) -> Option<Queued> {
        self.0.pop_front()
    }

    /// None of them will be sent. A ticket that was dropped misses nothing.
    pub(crate) fn fail_all(&mut self, error: &Error) {
        for prompt in self.0.drain(..) {
            let _ = prompt.ticket.send(Err(error.clone()));
        }
    }
}
