//! Settings that a session states explicitly, although they may equal the default.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::{AgentSessionConfig, LimitAction, PermissionMode, Timeouts};

/// Setting of an [`AgentSessionConfig`] with a default other than nothing, which a profile may set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "each is the field of that name")]
pub enum ConfigSetting {
    PermissionMode,
    OnLimit,
    StartMs,
    FirstResponseMs,
    InactivityMs,
    TurnMs,
    ToolMs,
    SilenceMs,
    SilenceRepeatMs,
    Action,
}

impl ConfigSetting {
    /// All settings.
    pub const ALL: [Self; 10] = [
        Self::PermissionMode,
        Self::OnLimit,
        Self::StartMs,
        Self::FirstResponseMs,
        Self::InactivityMs,
        Self::TurnMs,
        Self::ToolMs,
        Self::SilenceMs,
        Self::SilenceRepeatMs,
        Self::Action,
    ];
}

/// Explicit settings of a configuration, saved before something else is applied to it.
#[derive(Clone, Debug)]
pub struct ExplicitSettings {
    settings: BTreeSet<ConfigSetting>,
    permission_mode: PermissionMode,
    on_limit: LimitAction,
    timeouts: Timeouts,
}

impl AgentSessionConfig {
    /// Saves the explicit settings.
    #[doc(hidden)]
    pub fn explicit_settings(&self) -> ExplicitSettings {
        ExplicitSettings {
            settings: self.explicit.clone(),
            permission_mode: self.permission_mode,
            on_limit: self.limits.on_limit,
            timeouts: self.timeouts,
        }
    }

    /// Restores the explicit settings.
    #[doc(hidden)]
    pub fn restore_explicit(&mut self, said: &ExplicitSettings) {
        let ExplicitSettings { settings, permission_mode, on_limit, timeouts } = said;
        for setting in settings {
            match setting {
                ConfigSetting::PermissionMode => self.permission_mode = *permission_mode,
                ConfigSetting::OnLimit => self.limits.on_limit = *on_limit,
                ConfigSetting::StartMs => self.timeouts.start_ms = timeouts.start_ms,
                ConfigSetting::FirstResponseMs => self.timeouts.first_response_ms = timeouts.first_response_ms,
                ConfigSetting::InactivityMs => self.timeouts.inactivity_ms = timeouts.inactivity_ms,
                ConfigSetting::TurnMs => self.timeouts.turn_ms = timeouts.turn_ms,
                ConfigSetting::ToolMs => self.timeouts.tool_ms = timeouts.tool_ms,
                ConfigSetting::SilenceMs => self.timeouts.silence_ms = timeouts.silence_ms,
                ConfigSetting::SilenceRepeatMs => self.timeouts.silence_repeat_ms = timeouts.silence_repeat_ms,
                ConfigSetting::Action => self.timeouts.action = timeouts.action,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TimeoutAction;

    #[test]
    fn each_stays_as_it_was_said() {
        let defaults = AgentSessionConfig::new("a");
        let changed = |config: &mut AgentSessionConfig| {
            config.permission_mode = PermissionMode::Deny;
            config.limits.on_limit = LimitAction::Warn;
            config.timeouts = Timeouts { start_ms: Some(1), action: TimeoutAction::KillSession, ..Timeouts::NONE };
        };
        for explicit in [BTreeSet::new(), BTreeSet::from(ConfigSetting::ALL)] {
            let mut config = AgentSessionConfig { explicit: explicit.clone(), ..defaults.clone() };
            let said = config.explicit_settings();
            changed(&mut config);
            config.restore_explicit(&said);
            let mut expected = AgentSessionConfig { explicit: explicit.clone(), ..defaults.clone() };
            if explicit.is_empty() {
                changed(&mut expected);
            }
            assert_eq!(config, expected);
        }
        let json = serde_json::json!({ "agent": "a", "explicit": ["turnMs", "onLimit"] });
        let config: AgentSessionConfig = serde_json::from_value(json).expect("parses");
        assert_eq!(config.explicit, [ConfigSetting::OnLimit, ConfigSetting::TurnMs].into());
    }
}
