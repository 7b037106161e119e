//! Model, mode and thinking level of a session, as its agent tells them: a value that is known for the first time is a fact, and another
//! one after it is an event.

use ipc_protocol::message::AgentFact;

use super::{session_mode, session_model, session_thinking};
use crate::Action;

/// Settings, in the agent's own spelling; `None` for one that is not told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AgentSettings {
    pub(crate) model: Option<String>,
    pub(crate) mode: Option<String>,
    pub(crate) thinking: Option<String>,
}

impl AgentSettings {
    /// Makes settings of a model alone.
    pub(crate) fn of_model(model: impl Into<String>) -> Self {
        Self { model: Some(model.into()), ..Self::default() }
    }

    /// Makes settings of a mode alone.
    pub(crate) fn of_mode(mode: impl Into<String>) -> Self {
        Self { mode: Some(mode.into()), ..Self::default() }
    }

    /// Makes settings of a thinking level alone.
    pub(crate) fn of_thinking(level: impl Into<String>) -> Self {
        Self { thinking: Some(level.into()), ..Self::default() }
    }

    /// Returns these settings, with those of `other` where they have none.
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            model: self.model.or(other.model),
            mode: self.mode.or(other.mode),
            thinking: self.thinking.or(other.thinking),
        }
    }

    fn events(&self) -> impl Iterator<Item = Action> {
        let model = self.model.as_deref().map(session_model);
        let mode = self.mode.as_deref().map(session_mode);
        let thinking = self.thinking.as_deref().map(session_thinking);
        [model, mode, thinking].into_iter().flatten().map(Action::Event)
    }
}

/// Settings that were emitted.
#[derive(Debug, Default)]
pub(crate) struct EmittedSettings(AgentSettings);

impl EmittedSettings {
    /// Emits the settings in `now` that differ.
    pub(crate) fn change(&mut self, now: AgentSettings, out: &mut Vec<Action>) {
        let before = std::mem::take(&mut self.0);
        self.0 = now.clone().or(before.clone());
        let (mut first, mut changed) = (AgentSettings::default(), AgentSettings::default());
        for (before, now, first, changed) in [
            (before.model, now.model, &mut first.model, &mut changed.model),
            (before.mode, now.mode, &mut first.mode, &mut changed.mode),
            (before.thinking, now.thinking, &mut first.thinking, &mut changed.thinking),
        ] {
            match before {
                None => *first = now,
                Some(before) => *changed = now.filter(|now| *now != before),
            }
        }
        out.extend(changed.events());
        if first != AgentSettings::default() {
            let AgentSettings { model, mode, thinking } = first;
            out.push(Action::Fact(AgentFact::Settings { model, mode, thinking }));
        }
    }

    /// Emits all settings in `set`, since an operation has set them: the caller may spell them in another way.
    pub(crate) fn set(&mut self, set: AgentSettings, out: &mut Vec<Action>) {
        out.extend(set.events());
        self.0 = set.or(std::mem::take(&mut self.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_first_is_no_change() {
        let (mut emitted, mut out) = (EmittedSettings::default(), Vec::new());
        emitted.change(AgentSettings::of_model("a"), &mut out);
        let fact = |model: &str| AgentFact::Settings { model: Some(model.to_owned()), mode: None, thinking: None };
        assert_eq!(std::mem::take(&mut out), [Action::Fact(fact("a"))]);
        emitted.change(AgentSettings::of_model("a"), &mut out);
        emitted.change(AgentSettings::default(), &mut out);
        assert_eq!(out, []);
        emitted.change(AgentSettings { mode: Some("m".to_owned()), ..AgentSettings::of_model("b") }, &mut out);
        let mode = AgentFact::Settings { model: None, mode: Some("m".to_owned()), thinking: None };
        assert_eq!(std::mem::take(&mut out), [Action::Event(session_model("b")), Action::Fact(mode)]);
        emitted.set(AgentSettings::of_thinking("low"), &mut out);
        emitted.set(AgentSettings::of_mode("m"), &mut out);
        emitted.change(AgentSettings::of_thinking("low"), &mut out);
        assert_eq!(out, [Action::Event(session_thinking("low")), Action::Event(session_mode("m"))]);
    }
}
