//! Session state as a host knows it, for a host that takes the session over.

use std::collections::BTreeMap;

use ipc_protocol::{
    Event, Operation, PermissionRequest,
    message::{AttachedSession, RequestId},
};

use super::ProxySession;
use crate::proxy::{agent::AgentProcess, link::HostLink, replay_buffer::ReplayBuffer};

/// Most permission requests remembered.
const MAX_REMEMBERED: usize = 1024;

/// Change that an operation makes if it succeeds.
#[derive(Debug)]
enum OperationChange {
    Model(String),
    Mode(String),
    Thinking(String),
}

/// State that was reported to the host.
#[derive(Debug, Default)]
pub(super) struct ReportedState {
    pub(super) native_session_id: Option<String>,
    /// Number of the last turn; for an agent without turns the number of prompts.
    turns: u64,
    /// Open permission requests.
    open_permissions: BTreeMap<String, PermissionRequest>,
    changes: BTreeMap<RequestId, OperationChange>,
    model: Option<String>,
    mode: Option<String>,
    thinking: Option<String>,
}

impl ReportedState {
    /// Records a prompt, the first of this turn; `turn` is 0 for an agent without turns.
    pub(super) fn record_prompt(&mut self, turn: u64) {
        self.turns = if turn == 0 { self.turns + 1 } else { turn };
    }

    /// Records an event.
    pub(super) fn record_event(&mut self, event: &Event) {
        match event {
            Event::PermissionRequested(request) if self.open_permissions.len() < MAX_REMEMBERED => {
                self.open_permissions.insert(request.id.clone(), request.as_ref().clone());
            }
            Event::PermissionResolved { id, .. } => _ = self.open_permissions.remove(id),
            _ => {}
        }
    }

    /// Records an operation. The number of operations is bounded elsewhere.
    pub(super) fn record_operation(&mut self, request: RequestId, operation: &Operation) {
        let change = match operation {
            Operation::SetModel { model } => OperationChange::Model(model.clone()),
            Operation::SetMode { mode } => OperationChange::Mode(mode.clone()),
            Operation::SetThinking { level } => OperationChange::Thinking(level.clone()),
            _ => return,
        };
        while self.changes.len() >= MAX_REMEMBERED {
            self.changes.pop_first();
        }
        self.changes.insert(request, change);
    }

    /// Records the answer to an operation; `done` says whether it succeeded.
    pub(super) fn record_answer(&mut self, request: RequestId, done: bool) {
        match self.changes.remove(&request).filter(|_| done) {
            Some(OperationChange::Model(model)) => self.model = Some(model),
            Some(OperationChange::Mode(mode)) => self.mode = Some(mode),
            Some(OperationChange::Thinking(level)) => self.thinking = Some(level),
            None => {}
        }
    }
}

impl ProxySession<'_> {
    /// Returns the session's state before the messages that the new host has missed, which follow. The rest is the current state.
    pub(crate) fn attached_state(&self, kept: &ReplayBuffer) -> AttachedSession {
        let started = self.running.as_ref().filter(|_| !kept.is_start_after(kept.acked()));
        AttachedSession {
            agent: started.map(|running| running.agent.as_ref().map_or(self.proxy, AgentProcess::id)),
            native_session_id: self.reported_state.native_session_id.clone(),
            turns: self.running.as_ref().is_some_and(|running| running.adapter.has_turns()),
            measures: started.map(|_| self.containment_in_force()),
            turn: kept.turn_after(kept.acked(), self.turn),
            turn_count: self.reported_state.turns,
            permissions: self.reported_state.open_permissions.values().cloned().collect(),
            model: self.reported_state.model.clone(),
            mode: self.reported_state.mode.clone(),
            thinking: self.reported_state.thinking.clone(),
            ending: self.ending.clone(),
            ..AttachedSession::default()
        }
    }

    /// Starts polling, since the fork server does not report the session's processes any more.
    pub(crate) fn fall_back_to_polling(&mut self, link: &mut HostLink) {
        if std::mem::take(&mut self.observed) && self.running.is_some() {
            self.emit_polling_notice(link);
            self.polling.poll_now();
        }
    }
}
