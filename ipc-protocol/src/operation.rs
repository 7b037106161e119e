//! Operations that an agent can perform besides prompts.

use serde::{Deserialize, Serialize};

use crate::Json;

/// Operation of the agent itself, answered with JSON. An operation that an agent lacks is
/// [`WireError::Unsupported`](crate::WireError::Unsupported).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Operation {
    /// Uses this model from now on. Answer: `null`.
    SetModel {
        /// Model, in the agent's own spelling.
        model: String,
    },
    /// Works in this mode from now on. Answer: `null`.
    SetMode {
        /// `build`, `plan`, or one of the agent's own.
        mode: String,
    },
    /// Sets the thinking level from now on. Answer: `null`.
    SetThinking {
        /// `off`, `low`, `medium`, `high`, or one of the agent's own.
        level: String,
    },
    /// Shortens the conversation that the model sees. Answer: the agent's own, when it is done.
    Compact,
    /// Returns the agent's own state. Answer: in the agent's form.
    GetState,
    /// Returns the conversation so far. Answer: in the agent's form.
    GetMessages,
    /// Lists the agent's conversations in this working directory. Answer: an array of objects, newest first, that
    /// have at least `id`, and `title`, `updatedAt` and `cwd` if the agent reports them.
    ListSessions,
    /// Sends a command of the agent's own protocol, unchanged. Answer: the agent's reply, unchanged.
    Native {
        /// Message, without an id of its own if the protocol has ids.
        message: Json,
    },
    /// Shortens the conversation like [`Operation::Compact`], by instructions of the caller's for the summary. Answer: the same.
    CompactWith {
        /// Instructions: what to retain, what to leave out.
        instructions: String,
    },
    /// Lists what the agent offers. Answer: an object with `models`, `modes` and `thinking`, each an array of objects with `id`, `name` and,
    /// if the agent reports one, `description`; `id` is what [`Operation::SetModel`], [`Operation::SetMode`] and
    /// [`Operation::SetThinking`] take. A member is absent if the agent does not report it.
    ListChoices,
}

impl Operation {
    /// Describes the operation, as the end of "agent … cannot".
    pub fn describe(&self) -> String {
        match self {
            Self::SetModel { .. } => "change its model".into(),
            Self::SetMode { mode } => format!("change to mode {mode:?}"),
            Self::SetThinking { .. } => "change how hard it thinks".into(),
            Self::Compact => "compact its conversation".into(),
            Self::CompactWith { .. } => "compact its conversation by instructions".into(),
            Self::GetState => "tell its state".into(),
            Self::GetMessages => "tell its conversation".into(),
            Self::ListSessions => "list its conversations".into(),
            Self::ListChoices => "list its models, modes and thinking levels".into(),
            Self::Native { .. } => "take a command of its own protocol".into(),
        }
    }
}

/// Conversation of the agent that a session continues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum ResumeFrom {
    /// Conversation with this id of the agent's.
    Native {
        /// Agent's id of the conversation, or a file if the agent accepts one.
        id: String,
    },
    /// Conversation of this session of the manager's.
    Session {
        /// Id of the session, which has ended.
        id: crate::SessionId,
    },
    /// Most recent conversation of the working directory.
    MostRecent,
}

/// Fallback for a session whose conversation cannot be continued.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum OnMissing {
    /// Fails the start.
    #[default]
    Fail,
    /// Starts a new conversation, and reports that in the stream.
    StartAnew,
    /// Starts a new conversation, whose first prompt begins with this.
    Inject {
        /// History as text.
        history: String,
    },
}

/// Request to continue a conversation in a new process.
///
/// ```
/// use ipc_protocol::{AgentSessionConfig, OnMissing, ResumeFrom, ResumeRequest};
///
/// let mut config = AgentSessionConfig::new("claude-code");
/// config.resume = Some(ResumeRequest { from: ResumeFrom::MostRecent, fork: true, on_missing: OnMissing::Fail });
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ResumeRequest {
    /// Conversation to continue.
    pub from: ResumeFrom,
    /// True to continue a copy and leave the original unchanged.
    #[serde(default)]
    pub fork: bool,
    /// Fallback if the conversation is not available.
    #[serde(default)]
    pub on_missing: OnMissing,
}

/// Adapter's form of a [`ResumeRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NativeResume {
    /// Agent's own id; `None` for the most recent conversation.
    pub id: Option<String>,
    /// True to continue a copy.
    pub fork: bool,
}

/// Server of an agent that speaks HTTP.
#[derive(Clone, derive_more::Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentEndpoint {
    /// Address of the server: `http://127.0.0.1:PORT`; `None` if the agent will report it.
    pub url: Option<String>,
    /// User for HTTP basic authentication.
    pub user: String,
    /// Password for HTTP basic authentication; secret.
    #[debug(skip)]
    pub password: Option<String>,
}
