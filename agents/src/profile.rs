//! Profiles: named defaults for the sessions of an agent.

use std::collections::BTreeMap;

use api_types::ProblemDetails;
use ipc_protocol::{
    AgentSessionConfig, ContainerEngine, ErrorChain, Lifecycle, LimitAction, Limits, NetworkAccess, PermissionMode,
    PermissionRule, SandboxMode, SessionContainer, SessionMount, SessionSandbox, TimeoutAction, Timeouts,
    WorkspaceKind,
};
use serde::{Deserialize, Serialize};
use serde_with::{DisplayFromStr, serde_as, skip_serializing_none};

use crate::AgentSpec;

/// Defaults of a session.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Profile {
    /// Name of the profile. In a file it is the name of the table.
    #[serde(skip)]
    pub name: String,
    /// True if the profile was made for an agent that was found, and is in no file.
    #[serde(skip)]
    pub computed: bool,
    /// Id of the agent's catalog row.
    pub agent: String,
    /// Purpose of the profile.
    pub description: Option<String>,
    /// Model, in the agent's own spelling.
    pub model: Option<String>,
    /// Name of the model configuration.
    pub model_config: Option<String>,
    /// Mode to work in.
    pub mode: Option<String>,
    /// Thinking level.
    pub thinking: Option<String>,
    /// System prompt.
    pub system_prompt: Option<String>,
    /// Handling of permission requests.
    #[serde(skip_serializing_if = "ProfilePermissions::is_default")]
    pub permissions: ProfilePermissions,
    /// Limits of the processes.
    #[serde(skip_serializing_if = "ProfileLimits::is_default")]
    pub limits: ProfileLimits,
    /// Clocks of the session.
    #[serde(skip_serializing_if = "ProfileTimeouts::is_default")]
    pub timeouts: ProfileTimeouts,
    /// Tree that the agent works in.
    pub workspace: Option<WorkspaceKind>,
    /// Files in reach.
    #[serde(skip_serializing_if = "ProfileSandbox::is_default")]
    pub sandbox: ProfileSandbox,
    /// Container of the agent.
    #[serde(skip_serializing_if = "ProfileContainer::is_default")]
    pub container: ProfileContainer,
    /// Shell command before a session's first start, unless the session names one.
    pub before_start: Option<String>,
    /// Shell command after a session's end, unless the session names one.
    pub after_end: Option<String>,
}

/// Container of the agent.
#[serde_as]
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ProfileContainer {
    /// Image, with or without a tag.
    pub image: Option<String>,
    /// Engine.
    pub engine: Option<ContainerEngine>,
    /// Mounts, each as `SOURCE:TARGET` or `SOURCE:TARGET:ro`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[serde_as(as = "Vec<DisplayFromStr>")]
    #[cfg_attr(feature = "openapi", schemars(with = "Vec<String>"))]
    pub mounts: Vec<SessionMount>,
}

/// Files in reach of the sessions.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ProfileSandbox {
    /// Files in reach.
    pub mode: Option<SandboxMode>,
    /// Absolute paths that are read although the sandbox hides them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub read: Vec<String>,
    /// Absolute paths that are written too.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub write: Vec<String>,
    /// Hosts in reach.
    pub network: Option<NetworkAccess>,
}

/// Handling of permission requests.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ProfilePermissions {
    /// Decision if no rule matches: `ask`, `allow`, `deny`, `readOnly`.
    pub mode: Option<PermissionMode>,
    /// Rules of which the first match decides. The session's own rules come before them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<ProfileRule>,
    /// Time that a request may wait for an answer, in milliseconds.
    pub deadline_ms: Option<u64>,
    /// True if the request is then allowed; otherwise it is rejected.
    pub allow_at_deadline: Option<bool>,
}

/// Permission rule; fields that it leaves open are absent.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ProfileRule {
    /// Glob on the tool's machine name, or on its kind.
    pub tool: Option<String>,
    /// Glob on the whole command line.
    pub command: Option<String>,
    /// Glob on a path that the action touches.
    pub path: Option<String>,
    /// Decision if the rule matches.
    pub decision: ipc_protocol::RuleDecision,
}

/// Limits, each in the unit that its name ends with.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ProfileLimits {
    /// Memory of all processes together.
    pub memory_bytes: Option<u64>,
    /// Number of processes at once.
    pub processes: Option<u64>,
    /// CPU time of each process.
    pub cpu_time_ms: Option<u64>,
    /// CPU of all processes together; 100 is one core.
    pub cpu_percent: Option<u64>,
    /// Open files of each process.
    pub open_files: Option<u64>,
    /// Size of a file that is written.
    pub file_size_bytes: Option<u64>,
    /// Time from the start of the session.
    pub wall_clock_ms: Option<u64>,
    /// False if no core dump is written.
    pub core_dumps: Option<bool>,
    /// Action when a limit is exceeded.
    pub on_limit: Option<LimitAction>,
}

/// Clocks in milliseconds; 0 stops a clock.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ProfileTimeouts {
    /// Time until the agent is ready.
    pub start_ms: Option<u64>,
    /// Time from a prompt to the first sign of an answer.
    pub first_response_ms: Option<u64>,
    /// Time of a turn without any event.
    pub inactivity_ms: Option<u64>,
    /// Time of a whole turn.
    pub turn_ms: Option<u64>,
    /// Time of one tool call.
    pub tool_ms: Option<u64>,
    /// Time of silence before it is reported.
    pub silence_ms: Option<u64>,
    /// Time between further reports of silence.
    pub silence_repeat_ms: Option<u64>,
    /// Action when a clock runs out.
    pub action: Option<TimeoutAction>,
}

/// Reason why a profile cannot be used.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum ProfileError {
    /// No profile has that name.
    #[error("no profile is called {name:?}: {}", if known.is_empty() { "there are none".to_owned() } else { format!("there are {}", known.join(", ")) })]
    Unknown {
        /// Name that was asked for.
        name: String,
        /// Names of the known profiles.
        known: Vec<String>,
    },
    /// The session and the profile name different agents.
    #[error("profile {name:?} is of agent {theirs:?}, and the session of {ours:?}: leave one of them out")]
    OtherAgent {
        /// Name of the profile.
        name: String,
        /// Agent of the profile.
        theirs: String,
        /// Agent of the session.
        ours: String,
    },
}

impl From<ProfileError> for ProblemDetails {
    fn from(error: ProfileError) -> Self {
        let kind = match error {
            ProfileError::Unknown { .. } => "unknown-profile",
            ProfileError::OtherAgent { .. } => "usage",
        };
        Self::new(kind, ErrorChain(&error).to_string())
    }
}

impl Profile {
    /// Makes the default profile of an agent: the agent's own defaults.
    pub fn of_agent(spec: &AgentSpec) -> Self {
        Self {
            name: spec.id.clone(),
            computed: true,
            agent: spec.id.clone(),
            description: Some(format!("{} as it is", spec.title())),
            model: spec.default_model().map(str::to_owned),
            ..Self::default()
        }
    }

    /// Returns the profile as the table of a file, without its name.
    ///
    /// # Errors
    /// TOML cannot express a text of the profile; this never happens for a text from a file.
    pub fn to_toml(&self) -> Result<String, String> {
        toml::to_string(self).map_err(|error| error.to_string())
    }

    /// Sets the fields of `config` that are at their default and not marked as explicit. The rules of `config` come before the
    /// profile's. A `config` with an empty agent gets the profile's.
    ///
    /// # Errors
    /// [`ProfileError::OtherAgent`].
    pub fn apply(&self, config: &mut AgentSessionConfig) -> Result<(), ProfileError> {
        if config.agent.is_empty() {
            config.agent.clone_from(&self.agent);
        } else if config.agent != self.agent {
            let (name, theirs) = (self.name.clone(), self.agent.clone());
            return Err(ProfileError::OtherAgent { name, theirs, ours: config.agent.clone() });
        }
        let explicit = config.explicit_settings();
        for (said, ours) in [
            (&mut config.model, &self.model),
            (&mut config.model_config, &self.model_config),
            (&mut config.mode, &self.mode),
            (&mut config.thinking, &self.thinking),
            (&mut config.system_prompt, &self.system_prompt),
        ] {
            if said.is_none() {
                said.clone_from(ours);
            }
        }
        self.permissions.apply(config);
        self.limits.apply(&mut config.limits);
        self.timeouts.apply(&mut config.timeouts);
        self.sandbox.apply(&mut config.sandbox);
        self.container.apply(&mut config.container);
        config.workspace = config.workspace.or(self.workspace);
        self.apply_commands(&mut config.lifecycle);
        config.restore_explicit(&explicit);
        Ok(())
    }

    /// Sets the commands before start and after end that are not said.
    pub fn apply_commands(&self, lifecycle: &mut Lifecycle) {
        for (said, ours) in
            [(&mut lifecycle.before_start, &self.before_start), (&mut lifecycle.after_end, &self.after_end)]
        {
            if said.is_none() {
                said.clone_from(ours);
            }
        }
    }
}

impl ProfilePermissions {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }

    fn apply(&self, config: &mut AgentSessionConfig) {
        fill(&mut config.permission_mode, &PermissionMode::default(), self.mode);
        config.permissions.rules.extend(self.rules.iter().cloned().map(PermissionRule::from));
        if config.permissions.deadline_ms.is_none() {
            config.permissions.deadline_ms = self.deadline_ms;
            fill(&mut config.permissions.allow_at_deadline, &false, self.allow_at_deadline);
        }
    }
}

impl From<ProfileRule> for PermissionRule {
    fn from(ProfileRule { tool, command, path, decision }: ProfileRule) -> Self {
        Self { tool, command, path, decision }
    }
}

impl From<PermissionRule> for ProfileRule {
    fn from(PermissionRule { tool, command, path, decision }: PermissionRule) -> Self {
        Self { tool, command, path, decision }
    }
}

impl ProfileSandbox {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }

    fn apply(&self, sandbox: &mut SessionSandbox) {
        sandbox.mode = sandbox.mode.or(self.mode);
        sandbox.network = sandbox.network.take().or_else(|| self.network.clone());
        // Without a sandbox there is nothing to add to.
        if sandbox.is_on() {
            sandbox.read.extend(self.read.iter().cloned());
            sandbox.write.extend(self.write.iter().cloned());
        }
    }
}

impl ProfileContainer {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }

    fn apply(&self, container: &mut SessionContainer) {
        container.image = container.image.take().or_else(|| self.image.clone());
        container.engine = container.engine.or(self.engine);
        container.mounts.extend(self.mounts.iter().cloned());
    }
}

impl ProfileLimits {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }

    fn apply(&self, limits: &mut Limits) {
        limits.memory_bytes = limits.memory_bytes.or(self.memory_bytes);
        limits.processes = limits.processes.or(self.processes);
        limits.cpu_time_ms = limits.cpu_time_ms.or(self.cpu_time_ms);
        limits.cpu_percent = limits.cpu_percent.or(self.cpu_percent);
        limits.open_files = limits.open_files.or(self.open_files);
        limits.file_size_bytes = limits.file_size_bytes.or(self.file_size_bytes);
        limits.wall_clock_ms = limits.wall_clock_ms.or(self.wall_clock_ms);
        fill(&mut limits.core_dumps, &false, self.core_dumps);
        fill(&mut limits.on_limit, &LimitAction::default(), self.on_limit);
    }
}

impl ProfileTimeouts {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }

    fn apply(&self, timeouts: &mut Timeouts) {
        let usual = Timeouts::default();
        let clock = |ms: Option<u64>| ms.map(|ms| Some(ms).filter(|ms| *ms > 0));
        // In `timeouts`, `None` stands for the manager's default.
        fill(&mut timeouts.start_ms, &usual.start_ms, self.start_ms.map(Some));
        fill(&mut timeouts.first_response_ms, &usual.first_response_ms, clock(self.first_response_ms));
        fill(&mut timeouts.inactivity_ms, &usual.inactivity_ms, clock(self.inactivity_ms));
        fill(&mut timeouts.turn_ms, &usual.turn_ms, clock(self.turn_ms));
        fill(&mut timeouts.tool_ms, &usual.tool_ms, clock(self.tool_ms));
        fill(&mut timeouts.silence_ms, &usual.silence_ms, clock(self.silence_ms));
        fill(&mut timeouts.silence_repeat_ms, &usual.silence_repeat_ms, clock(self.silence_repeat_ms));
        fill(&mut timeouts.action, &usual.action, self.action);
    }
}

/// Sets `said` to `ours`, if `ours` has a value and `said` is at its default.
fn fill<T: PartialEq>(said: &mut T, default: &T, ours: Option<T>) {
    if let Some(ours) = ours.filter(|_| said == default) {
        *said = ours;
    }
}

/// Profiles of a manager, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profiles(BTreeMap<String, Profile>);

impl Profiles {
    /// Adds a profile, or replaces the one of that name.
    pub fn add(&mut self, profile: Profile) {
        self.0.insert(profile.name.clone(), profile);
    }

    /// Adds a default profile for each of these agents, unless the name exists.
    pub fn add_defaults<'a>(&mut self, found: impl IntoIterator<Item = &'a AgentSpec>) {
        for spec in found {
            self.0.entry(spec.id.clone()).or_insert_with(|| Profile::of_agent(spec));
        }
    }

    /// Returns the profile of that name.
    ///
    /// # Errors
    /// [`ProfileError::Unknown`] lists the known names.
    pub fn get(&self, name: &str) -> Result<&Profile, ProfileError> {
        self.0
            .get(name)
            .ok_or_else(|| ProfileError::Unknown { name: name.to_owned(), known: self.0.keys().cloned().collect() })
    }

    /// Iterates over all profiles, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Profile> {
        self.0.values()
    }
}

#[cfg(test)]
mod tests {
    use ipc_protocol::{ConfigSetting, RuleDecision};

    use super::*;

    fn rule(decision: RuleDecision) -> PermissionRule {
        PermissionRule { tool: Some("bash".into()), command: None, path: None, decision }
    }

    fn profile() -> Profile {
        Profile {
            name: "review".into(),
            agent: "codex".into(),
            model: Some("big".into()),
            mode: Some("plan".into()),
            permissions: ProfilePermissions {
                mode: Some(PermissionMode::ReadOnly),
                rules: vec![rule(RuleDecision::Deny).into()],
                deadline_ms: Some(5),
                allow_at_deadline: Some(true),
            },
            limits: ProfileLimits { processes: Some(9), memory_bytes: Some(7), ..ProfileLimits::default() },
            timeouts: ProfileTimeouts { turn_ms: Some(1), inactivity_ms: Some(0), ..ProfileTimeouts::default() },
            ..Profile::default()
        }
    }

    #[test]
    fn it_gives_what_is_not_said() {
        let mut config = AgentSessionConfig::new("");
        profile().apply(&mut config).expect("no other agent");
        assert_eq!(
            (config.agent.as_str(), config.model.as_deref(), config.mode.as_deref()),
            ("codex", Some("big"), Some("plan"))
        );
        assert_eq!(
            (config.permission_mode, config.permissions.rules),
            (PermissionMode::ReadOnly, vec![rule(RuleDecision::Deny)])
        );
        assert_eq!((config.permissions.deadline_ms, config.permissions.allow_at_deadline), (Some(5), true));
        assert_eq!((config.limits.processes, config.limits.memory_bytes), (Some(9), Some(7)));
        let clocks = config.timeouts;
        assert_eq!((clocks.turn_ms, clocks.inactivity_ms, clocks.first_response_ms), (Some(1), None, Some(30_000)));
    }

    #[test]
    fn what_the_session_says_wins() {
        let mut config = AgentSessionConfig {
            model: Some("small".into()),
            permission_mode: PermissionMode::Deny,
            limits: Limits { processes: Some(3), ..Limits::default() },
            timeouts: Timeouts { turn_ms: Some(2), ..Timeouts::default() },
            ..AgentSessionConfig::new("codex")
        };
        config.permissions.rules.push(rule(RuleDecision::Allow));
        config.permissions.deadline_ms = Some(6);
        profile().apply(&mut config).expect("its agent");
        assert_eq!((config.model.as_deref(), config.permission_mode), (Some("small"), PermissionMode::Deny));
        assert_eq!(config.permissions.rules, [rule(RuleDecision::Allow), rule(RuleDecision::Deny)]);
        assert_eq!((config.permissions.deadline_ms, config.permissions.allow_at_deadline), (Some(6), false));
        assert_eq!((config.limits.processes, config.limits.memory_bytes), (Some(3), Some(7)));
        assert_eq!(config.timeouts.turn_ms, Some(2));
    }

    #[test]
    fn what_the_session_says_wins_also_where_it_is_the_default() {
        let usual = AgentSessionConfig::new("codex");
        let mut config = AgentSessionConfig {
            explicit: [ConfigSetting::PermissionMode, ConfigSetting::TurnMs].into(),
            ..usual.clone()
        };
        profile().apply(&mut config).expect("its agent");
        assert_eq!((config.permission_mode, config.timeouts.turn_ms), (PermissionMode::Ask, usual.timeouts.turn_ms));
        assert_eq!(config.timeouts.inactivity_ms, None, "the profile's");
    }

    #[test]
    fn it_is_of_one_agent() {
        let error = profile().apply(&mut AgentSessionConfig::new("pi")).expect_err("another agent");
        assert!(error.to_string().contains("\"codex\"") && error.to_string().contains("\"pi\""), "{error}");
    }

    #[test]
    fn every_agent_found_has_one_unless_somebody_made_it() {
        let mut profiles = Profiles::default();
        profiles.add(Profile {
            name: "pi".into(),
            agent: "pi".into(),
            mode: Some("plan".into()),
            ..Profile::default()
        });
        profiles.add_defaults(&[AgentSpec::new("pi", "pi", &["pi"]), AgentSpec::new("codex", "codex", &["codex"])]);
        assert_eq!(profiles.get("pi").expect("there").mode.as_deref(), Some("plan"));
        assert!(profiles.get("codex").expect("there").computed);
        assert!(profiles.get("cdoex").expect_err("not there").to_string().contains("there are codex, pi"));
    }
}
