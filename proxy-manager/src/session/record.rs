//! Record of a session, from its current state.

use std::{collections::BTreeSet, time::SystemTime};

use super::ManagedSession;
use crate::{
    description::SupervisedProcesses,
    session_store::{MODEL_KEY, RecordState, SessionRecord},
};

impl ManagedSession {
    /// State of a session that has processes, as its record has it, and the permission request that it waits for.
    pub(crate) fn live_state(&self) -> Option<(RecordState, Option<String>)> {
        let view = self.view.borrow();
        let state = RecordState::from(&view.state);
        let is_live = state.status().is_live();
        is_live.then(|| (state, view.open_permissions.first().map(|request| request.id.clone())))
    }

    /// Creates the session's record. `before` is the record that it replaces. `None` without a configuration.
    pub(super) fn record(&self, before: Option<&SessionRecord>, host_execution_id: &str) -> Option<SessionRecord> {
        let config = self.config()?;
        let info = self.snapshot();
        let state = RecordState::from(&info.state);
        let is_live = state.status().is_live();
        let now = SystemTime::now();
        // A session of this manager has been alive up to now.
        let rested =
            before.filter(|before| !(before.status().is_live() && before.host_execution_id == host_execution_id));
        let mut kept = config.without_secrets();
        kept.cwd = Some(info.metadata.cwd);
        kept.resume = None;
        // That of a session that was claimed since is its claimant's.
        let lifecycle = before.filter(|before| !before.warm).map(|before| before.config.lifecycle.clone());
        kept.lifecycle = lifecycle.unwrap_or(kept.lifecycle);
        let mut secrets: BTreeSet<String> = config.secrets().into_iter().collect();
        secrets.extend(self.absent_secrets().iter().cloned());
        secrets.extend(self.description.has_model_key.then(|| MODEL_KEY.to_owned()));
        Some(SessionRecord {
            session_id: info.metadata.session_id,
            state,
            // Another manager answers no request of this one's agent.
            waiting_for: None,
            archived: before.is_some_and(|before| before.archived),
            warm: info.warm,
            secrets: secrets.into_iter().collect(),
            endpoint: kept.endpoint.clone().or_else(|| self.endpoint().filter(|_| is_live)),
            config: kept,
            conversation: info.conversation,
            agent_status: info.agent_status,
            home: info.metadata.home,
            host_execution_id: host_execution_id.to_owned(),
            processes: if is_live { info.processes } else { SupervisedProcesses::default() },
            created_at: info.metadata.started_at,
            updated_at: now,
            heartbeat: rested.filter(|_| !is_live).map_or(now, |before| before.heartbeat),
            turns: info.turns,
            messages: info.metrics.messages,
            usage: info.metrics.usage,
            turn_usage: self.turn_usage(),
            // Events up to this offset are on the disk before the record is.
            last_offset: self.history().assigned(),
            queued: self.queue().len(),
        })
    }
}
