//! What an agent can be asked beside a prompt.

use serde::{Deserialize, Serialize};

use crate::Json;

/// Something asked of the agent itself, answered with JSON. What an agent cannot do is
/// [`WireError::Unsupported`](crate::WireError::Unsupported).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Operation {
    /// Use this model from now on. Answer: `null`.
    SetModel {
        /// In the agent's own spelling.
        model: String,
    },
    /// Work in this mode from now on. Answer: `null`.
    SetMode {
        /// `build`, `plan`, or one of the agent's own.
        mode: String,
    },
    /// Think this hard from now on. Answer: `null`.
    SetThinking {
        /// `off`, `low`, `medium`, `high`, or one of the agent's own.
        level: String,
    },
    /// Shorten the conversation that the model sees. Answer: what the agent says to it, when it is done.
    Compact,
    /// What the agent says of its own state. Answer: as it says it.
    GetState,
    /// The conversation so far. Answer: as the agent gives it.
    GetMessages,
    /// The agent's conversations of this working directory. Answer: an array of objects that have at least `id`, and where
    /// the agent tells them `title`, `updatedAt` and `cwd`; newest first.
    ListSessions,
    /// A command of the agent's own protocol, passed on as it stands. Answer: the agent's reply as it stands.
    Native {
        /// The message, without an id of its own where the protocol has ids.
        message: Json,
    },
}

impl Operation {
    /// What is done, as the end of "agent … cannot".
    pub fn describe(&self) -> String {
        match self {
            Self::SetModel { .. } => "change its model".into(),
            Self::SetMode { mode } => format!("change to mode {mode:?}"),
            Self::SetThinking { .. } => "change how hard it thinks".into(),
            Self::Compact => "compact its conversation".into(),
            Self::GetState => "tell its state".into(),
            Self::GetMessages => "tell its conversation".into(),
            Self::ListSessions => "list its conversations".into(),
            Self::Native { .. } => "take a command of its own protocol".into(),
        }
    }
}

/// Which conversation of the agent's own a session goes on with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum ResumeFrom {
    /// The one with this id of the agent's.
    Native {
        /// The agent's id of it, or a file where the agent takes one.
        id: String,
    },
    /// The one that this session of the manager's had.
    Session {
        /// The session; it has ended.
        id: crate::SessionId,
    },
    /// The most recent one of the working directory.
    MostRecent,
}

/// What becomes of a session whose conversation cannot be gone on with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum OnMissing {
    /// It does not start.
    #[default]
    Fail,
    /// It starts a new conversation, and its stream says so.
    StartAnew,
    /// It starts a new conversation, whose first prompt begins with this.
    Inject {
        /// The history as text.
        history: String,
    },
}

/// To go on with a conversation in a new process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Resume {
    /// Which.
    pub from: ResumeFrom,
    /// Whether to go on with a copy and leave the original as it is.
    #[serde(default)]
    pub fork: bool,
    /// What if it cannot be had.
    #[serde(default)]
    pub on_missing: OnMissing,
}

/// A [`Resume`] as an adapter gets it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NativeResume {
    /// The agent's own id; `None` for the most recent conversation.
    pub id: Option<String>,
    /// Whether to go on with a copy.
    pub fork: bool,
}

/// A server that an agent speaks HTTP with.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Where it listens: `http://127.0.0.1:PORT`; `None` where the agent will say.
    pub url: Option<String>,
    /// For its HTTP basic authentication.
    pub user: String,
    /// Secret.
    pub password: Option<String>,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint").field("url", &self.url).field("user", &self.user).finish_non_exhaustive()
    }
}
