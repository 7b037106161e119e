//! Session state as a host knows it, for a host that takes the session over.

use std::collections::BTreeMap;

use ipc_protocol::{
    Event, Operation, PermissionRequest,
    message::{Attached, RequestId},
};

use super::Session;
use crate::proxy::{agent::Agent, kept::Kept, link::Link};

/// Most permission requests remembered.
const MOST: usize = 1024;

/// Change that an operation makes if it succeeds.
#[derive(Debug)]
enum Change {
    Model(String),
    Mode(String),
    Thinking(String),
}

/// State that was reported to the host.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) native_session_id: Option<String>,
    /// Number of the last turn; for an agent without turns the number of prompts.
    turns: u64,
    /// Open permission requests.
    open: BTreeMap<String, PermissionRequest>,
    changes: BTreeMap<RequestId, Change>,
    model: Option<String>,
    mode: Option<String>,
    thinking: Option<String>,
}

impl Told {
    /// Records a prompt, the first of this turn; `turn` is 0 for an agent without turns.
    pub(super) fn prompted(&mut self, turn: u64) {
        self.turns = if turn == 0 { self.turns + 1 } else { turn };
    }

    /// Records an event.
    pub(super) fn note(&mut self, event: &Event) {
        match event {
            Event::PermissionRequested(request) if self.open.len() < MOST => {
                self.open.insert(request.id.clone(), request.as_ref().clone());
            }
            Event::PermissionResolved { id, .. } => _ = self.open.remove(id),
            _ => {}
        }
    }

    /// Records an operation. The number of operations is bounded elsewhere.
    pub(super) fn asked(&mut self, request: RequestId, operation: &Operation) {
        let change = match operation {
            Operation::SetModel { model } => Change::Model(model.clone()),
            Operation::SetMode { mode } => Change::Mode(mode.clone()),
            Operation::SetThinking { level } => Change::Thinking(level.clone()),
            _ => return,
        };
        while self.changes.len() >= MOST {
            self.changes.pop_first();
        }
        self.changes.insert(request, change);
    }

    /// Records the answer to an operation; `done` says whether it succeeded.
    pub(super) fn answered(&mut self, request: RequestId, done: bool) {
        match self.changes.remove(&request).filter(|_| done) {
            Some(Change::Model(model)) => self.model = Some(model),
            Some(Change::Mode(mode)) => self.mode = Some(mode),
            Some(Change::Thinking(level)) => self.thinking = Some(level),
            None => {}
        }
    }
}

impl Session<'_> {
    /// Returns the session's state before the messages that the new host has missed, which follow. The rest is the current state.
    pub(crate) fn attached(&self, kept: &Kept) -> Attached {
        let started = self.running.as_ref().filter(|_| !kept.is_start_after(kept.acked()));
        Attached {
            agent: started.map(|running| running.agent.as_ref().map_or(self.proxy, Agent::id)),
            native_session_id: self.told.native_session_id.clone(),
            turns: self.running.as_ref().is_some_and(|running| running.adapter.has_turns()),
            measures: started.map(|_| self.measures_in_force()),
            turn: kept.turn_after(kept.acked(), self.turn),
            turn_count: self.told.turns,
            permissions: self.told.open.values().cloned().collect(),
            model: self.told.model.clone(),
            mode: self.told.mode.clone(),
            thinking: self.told.thinking.clone(),
            ending: self.ending.clone(),
            ..Attached::default()
        }
    }

    /// Starts polling, since the fork server does not report the session's processes any more.
    pub(crate) fn unobserved(&mut self, link: &mut Link) {
        if std::mem::take(&mut self.observed) && self.running.is_some() {
            self.tell_of_polling(link);
            self.polling.hurry();
        }
    }
}
