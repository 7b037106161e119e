//! Lifecycle of a session beyond its processes: name, suspension and restart.

use serde::{Deserialize, Serialize};

/// Lifecycle of a session beyond one incarnation of its agent.
///
/// ```
/// use ipc_protocol::AgentSessionConfig;
///
/// let mut config = AgentSessionConfig::new("pi");
/// config.lifecycle.key = Some("chat-7".into());
/// config.lifecycle.idle_suspend_ms = Some(300_000);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Lifecycle {
    /// Caller's name for the conversation (a chat's id): a start with the key of a suspended session continues that
    /// one.
    pub key: Option<String>,
    /// Title for people.
    pub title: Option<String>,
    /// Labels for searches.
    pub tags: Vec<String>,
    /// Idle time after which the session is suspended, in milliseconds; 0 for never, `null` for the manager's
    /// default (300 seconds with a state directory).
    pub idle_suspend_ms: Option<u64>,
    /// True if a prompt resumes the suspended session.
    pub resume_on_prompt: bool,
    /// Policy for restarts after its agent or its proxy dies.
    pub restart: Restart,
    /// True to delete an ended session with the same id first. Of this start alone: no record keeps it.
    pub replace: bool,
    /// Fallback if the session with this key has lost its conversation. Of this start alone: no record keeps it.
    pub on_missing: ResumeFallback,
    /// Shell command that runs before the session's first start; the agent starts only if it exits with 0. No place for a secret:
    /// records keep it.
    pub before_start: Option<String>,
    /// Shell command that runs when the session has ended and nothing of it is left, also after a failed start or a crash of the host.
    /// The session's record has it until it has run.
    pub after_end: Option<String>,
}

/// Fallback of a suspended session whose conversation is gone: its agent cannot load it any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum ResumeFallback {
    /// Refuses the resume; the session stays suspended.
    #[default]
    Fail,
    /// Goes on with a new conversation, and reports that in the stream.
    New,
    /// The same, and the first prompt begins with what was said, as text.
    History,
}

impl Default for Lifecycle {
    fn default() -> Self {
        Self {
            key: None,
            title: None,
            tags: Vec::new(),
            idle_suspend_ms: None,
            resume_on_prompt: true,
            restart: Restart::default(),
            replace: false,
            on_missing: ResumeFallback::default(),
            before_start: None,
            after_end: None,
        }
    }
}

/// Policy for restarting a session, with its conversation, when its agent or its proxy dies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Restart {
    /// Ends the session.
    #[default]
    Never,
    /// Restarts the session after a pause that doubles with each crash.
    OnCrash {
        /// Crashes within ten minutes beyond which the session ends.
        max: u32,
        /// First pause, in milliseconds; the longest is a minute.
        backoff_ms: u64,
    },
}
