//! How a session lives on when its processes do not: what it is called, when it is suspended, when it is started again.

use serde::{Deserialize, Serialize};

/// What becomes of a session beyond one life of its agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Lifecycle {
    /// Names the conversation for the caller (a chat's id): a start with the key of a suspended session goes on with that.
    pub key: Option<String>,
    /// A name for people.
    pub title: Option<String>,
    /// Labels to find it by.
    pub tags: Vec<String>,
    /// How long it may be idle before it is suspended, in milliseconds; 0 for never, `null` for the manager's default
    /// (300 seconds with a state directory).
    pub idle_suspend_ms: Option<u64>,
    /// Whether a prompt to it resumes it when it is suspended.
    pub resume_on_prompt: bool,
    /// Whether it is started again when its agent or its proxy dies.
    pub restart: Restart,
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
        }
    }
}

/// Whether a session is started again, with its conversation, when its agent or its proxy dies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Restart {
    /// It is not: the session ends.
    #[default]
    Never,
    /// It is, after a pause that doubles with each crash.
    OnCrash {
        /// Crashes within ten minutes beyond which the session ends.
        max: u32,
        /// The first pause, in milliseconds; the longest is a minute.
        backoff_ms: u64,
    },
}
