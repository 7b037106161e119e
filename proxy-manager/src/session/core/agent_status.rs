//! Title, model, mode, thinking level and commands, as the agent tells them: each change is one event, whoever made it.

use ipc_protocol::{Event, SettingSource, terminal::Surface};

use super::{SessionCore, SessionPhase};
use crate::session::pending_requests::SettingChange;

impl SessionCore {
    /// Records what a setting event says. Returns true for an event that changes nothing, and is not emitted.
    pub(super) fn note_setting(&mut self, event: &mut Event) -> bool {
        let (by, change) = match event {
            Event::SessionTitle { by, .. } => (by, None),
            Event::SessionModel { model, by } => (by, Some(SettingChange::Model(model.clone()))),
            Event::SessionMode { mode, by } => (by, Some(SettingChange::Mode(mode.clone()))),
            Event::SessionThinking { level, by } => (by, Some(SettingChange::Thinking(level.clone()))),
            Event::SessionCommands { .. } => {
                let is_same = !self.agent_status.record(event);
                if !is_same {
                    self.show_status();
                }
                return is_same;
            }
            _ => return false,
        };
        if *by == SettingSource::Agent {
            if let Some(change) = change.filter(|change| self.pending.has_change_like(change)) {
                *by = SettingSource::Caller;
                if !self.told_changes.iter().any(|told| told.is_like(&change)) {
                    self.told_changes.push(change);
                }
            } else if self.is_on_screen() {
                *by = SettingSource::Terminal;
            }
        }
        if !self.agent_status.record(event) {
            return true;
        }
        self.show_status();
        false
    }

    /// Records with what the agent began.
    pub(super) fn began_with(&mut self, model: Option<String>, mode: Option<String>, thinking: Option<String>) {
        let status = &mut self.agent_status;
        for (known, value) in [
            (&mut status.current_model, model),
            (&mut status.current_mode, mode),
            (&mut status.current_thinking, thinking),
        ] {
            if value.is_some() {
                *known = value;
            }
        }
        self.show_status();
    }

    /// Emits the change that an operation made, unless the agent told it before it answered.
    pub(super) fn changed(&mut self, turn: u64, change: &SettingChange) {
        let told = self.told_changes.len();
        self.told_changes.retain(|told| !told.is_like(change));
        if self.told_changes.len() != told {
            return;
        }
        let by = SettingSource::Caller;
        let event = match change {
            SettingChange::Nothing => return,
            SettingChange::Model(model) => Event::SessionModel { model: model.clone(), by },
            SettingChange::Mode(mode) => Event::SessionMode { mode: mode.clone(), by },
            SettingChange::Thinking(level) => Event::SessionThinking { level: level.clone(), by },
        };
        if self.agent_status.record(&event) {
            self.show_status();
            self.push(turn, event);
        }
    }

    /// Emits the title that a caller gave, or the agent's own where the caller's was removed.
    pub(super) fn renamed(&mut self, title: Option<String>) {
        let own = |title: &String| (title.clone(), SettingSource::Agent);
        let title = title.map(|title| (title, SettingSource::Caller));
        if let Some((title, by)) = title.or_else(|| self.agent_status.agent_title.as_ref().map(own)) {
            self.push(self.turn(), Event::SessionTitle { title, by });
            self.commit_log();
        }
    }

    fn show_status(&mut self) {
        let status = self.agent_status.clone();
        self.show(move |view| view.agent_status = status);
    }

    /// Whether somebody at the agent's own screen is who changes it now.
    fn is_on_screen(&self) -> bool {
        match self.surface {
            Surface::Machine => false,
            Surface::Terminal => true,
            Surface::Both => !matches!(self.phase, SessionPhase::Busy(_)),
        }
    }
}
