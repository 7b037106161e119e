//! Facts of a session: plain data that its list entry, its record and the API share.
//!
//! [`SessionMetadata`] never changes while an incarnation lives. [`SessionState`], [`SessionSettings`],
//! [`NativeConversation`] and [`SupervisedProcesses`] do; a session publishes them, and its record copies them.

use std::time::{Duration, SystemTime};

use ipc_protocol::{
    EndReason, Event, Json, PermissionOption, PermissionRequest, ProcessId, Receipt, SessionId, SettingSource,
    SlashCommand, Usage, terminal::Surface,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Immutable facts of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SessionMetadata {
    /// Id of the session.
    pub session_id: SessionId,
    /// Catalog id of its agent.
    pub agent: String,
    /// Configured label for the agent's type.
    pub agent_type: Option<String>,
    /// Configured label for the user.
    pub user_id: Option<String>,
    /// Configured label for the workspace.
    pub workspace_id: Option<String>,
    /// Working directory.
    pub cwd: String,
    /// Profile that the session was started with.
    pub profile: Option<String>,
    /// Home directory that belongs to the session; `null` if it has the shared one.
    pub home: Option<String>,
    /// Nesting depth; 1 for a session that was started from outside any session.
    #[serde(default)]
    pub depth: u32,
    /// Ways in which it is driven.
    #[serde(default)]
    pub surface: Surface,
    /// Time of the `start_session` call. RFC 3339 in JSON.
    #[serde(with = "ipc_protocol::time_text")]
    #[cfg_attr(feature = "openapi", schemars(with = "ipc_protocol::json_schema::TimeText"))]
    pub started_at: SystemTime,
}

/// Settings that the agent was told to use; `null` for the agent's own choice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SessionSettings {
    /// Model, in the agent's own spelling.
    pub model: Option<String>,
    /// Mode to work in.
    pub mode: Option<String>,
    /// Thinking level.
    pub thinking: Option<String>,
}

/// What the agent tells of itself, as its last events have it: for who comes later, without a replay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct AgentStatus {
    /// The agent's own title of the conversation; `null` if it gave none.
    pub agent_title: Option<String>,
    /// Model that is in use, in the agent's own spelling; `null` where the agent does not tell it.
    pub current_model: Option<String>,
    /// Mode that is in use, in the agent's own spelling; `null` where the agent does not tell it.
    pub current_mode: Option<String>,
    /// Thinking level that is in use, in the agent's own spelling; `null` where the agent does not tell it.
    pub current_thinking: Option<String>,
    /// Slash commands that the agent offers; `null` where it tells none.
    pub commands: Option<Vec<SlashCommand>>,
}

impl AgentStatus {
    /// Applies an event. Returns true if it changed something.
    pub fn record(&mut self, event: &Event) -> bool {
        let (known, value) = match event {
            Event::SessionTitle { title, by } if *by != SettingSource::Caller => (&mut self.agent_title, title),
            Event::SessionModel { model, .. } => (&mut self.current_model, model),
            Event::SessionMode { mode, .. } => (&mut self.current_mode, mode),
            Event::SessionThinking { level, .. } => (&mut self.current_thinking, level),
            Event::SessionCommands { commands } if self.commands.as_ref() != Some(commands) => {
                self.commands = Some(commands.clone());
                return true;
            }
            _ => return false,
        };
        let is_new = known.as_ref() != Some(value);
        if is_new {
            *known = Some(value.clone());
        }
        is_new
    }
}

/// The agent's own conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NativeConversation {
    /// The agent's own id of the conversation; `null` until it is known, and if the agent has none.
    pub native_session_id: Option<String>,
    /// The file in which the agent keeps that conversation (OpenCode: its database of all). `null` until the file is
    /// found: agents create it with the first prompt. Always `null` for agents whose directory of conversations is
    /// unknown.
    pub native_session_file: Option<String>,
    /// True if another process can resume the conversation, as far as is known. `false` for an ephemeral session, or if
    /// the agent or its catalog row rules it out. Such a session is not suspended.
    pub resumable: bool,
}

impl NativeConversation {
    /// Returns the id of a conversation that another process can resume.
    pub fn resumable_id(&self) -> Option<&str> {
        self.native_session_id.as_deref().filter(|_| self.resumable)
    }

    /// Sets the conversation. The file of another conversation is not known yet.
    pub fn switch_to(&mut self, native_session_id: Option<String>) {
        if self.native_session_id != native_session_id {
            (self.native_session_id, self.native_session_file) = (native_session_id, None);
        }
    }
}

/// Processes of a session that its host knows by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SupervisedProcesses {
    /// Process of the proxy; `null` until it is known. For an ended session: the last one.
    pub proxy: Option<ProcessId>,
    /// Process of the agent; `null` until it is ready. For an ended session: the last one.
    pub agent_process: Option<ProcessId>,
}

/// Most bytes of an open request's input: of longer ones the long texts are cut.
const MAX_INPUT: usize = 128 * 1024;
/// Bytes that remain of a long text in such an input.
const SHORT_TEXT: usize = 16 * 1024;

/// Permission request of an agent that nobody has answered yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct OpenPermission {
    /// Id of the request, for its answer.
    pub id: String,
    /// Title for people, one line.
    pub title: String,
    /// Machine name of the tool, if the agent gives one; else the kind.
    pub tool: String,
    /// Kind of action, as in the event.
    #[serde(default)]
    pub kind: String,
    /// Command line, if the action runs one.
    pub command: Option<String>,
    /// Paths that the action would touch, if the agent names them, in the agent's form.
    #[serde(default)]
    pub paths: Vec<String>,
    /// Details as the agent gave them, such as the text that would be written; `null` if it did not. Of more than 128 KiB the long texts are
    /// cut, and say so: the event has all.
    #[serde(default = "Json::null")]
    pub input: Json,
    /// Possible answers.
    pub options: Vec<PermissionOption>,
}

impl From<&PermissionRequest> for OpenPermission {
    fn from(request: &PermissionRequest) -> Self {
        let PermissionRequest { id, title, tool, kind, command, paths, input, options, .. } = request;
        Self {
            id: id.clone(),
            title: title.clone(),
            tool: tool.clone(),
            kind: kind.clone(),
            command: command.clone(),
            paths: paths.clone(),
            input: bounded_input(input),
            options: options.clone(),
        }
    }
}

/// Returns the input of a request, with long texts cut if it is too large for a listing.
fn bounded_input(input: &Json) -> Json {
    if input.as_str().len() <= MAX_INPUT {
        return input.clone();
    }
    let mut value = input.value();
    cut_texts(&mut value);
    let cut = Json::from(&value);
    if cut.as_str().len() <= MAX_INPUT {
        return cut;
    }
    let note = format!("left out: {} bytes; the event permission:requested has them", input.as_str().len());
    Json::from(&Value::from(note))
}

fn cut_texts(value: &mut Value) {
    match value {
        Value::String(text) if text.len() > SHORT_TEXT => {
            let kept = text.floor_char_boundary(SHORT_TEXT);
            let missing = text.len() - kept;
            text.truncate(kept);
            text.push_str(&format!("\n… {missing} more bytes: the event permission:requested has them"));
        }
        Value::Array(values) => values.iter_mut().for_each(cut_texts),
        Value::Object(members) => members.values_mut().for_each(cut_texts),
        _ => {}
    }
}

/// Lifecycle state of a session: starting, then idle and busy by turns, then ended. A suspended session may start
/// again.
///
/// In JSON `"starting"`, `"idle"`, `{"busy":{"turn":1}}`, `{"ended":{"reason":"killed","receipt":{…}}}`; other facts are
/// left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum SessionState {
    /// The agent is not ready yet.
    Starting,
    /// The session waits for a prompt. An agent without turns is always idle.
    Idle,
    /// A turn runs.
    Busy {
        /// Number of the turn; the first is 1.
        turn: u64,
    },
    /// The processes have ended and the conversation is retained: `resume_session` resumes it.
    Suspended {
        /// Reason for the suspension.
        reason: EndReason,
        /// Receipt that proves nothing is left; `null` if nobody could tell.
        receipt: Option<Box<Receipt>>,
        /// Planned continuation.
        #[serde(skip)]
        next: AfterSuspension,
    },
    /// The session is over.
    Ended {
        /// Reason for the end.
        reason: EndReason,
        /// Receipt that proves nothing is left; `null` if nobody could tell.
        receipt: Option<Box<Receipt>>,
        /// Remains of the session.
        #[serde(skip)]
        remains: SessionRemains,
    },
}

/// Planned continuation of a suspended session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AfterSuspension {
    /// A resume or a prompt continues it.
    #[default]
    Resume,
    /// The manager restarts it after this pause, since it crashed.
    Restart(Duration),
    /// A user continues its conversation with the agent itself, until it is taken back.
    HandedOver,
}

/// Remains of an ended session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SessionRemains {
    /// Events, home and conversation, until it is deleted.
    #[default]
    Kept,
    /// Nothing: it never was ready. Its id is free.
    Nothing,
    /// The session itself: it continues without this manager.
    Detached,
}

impl SessionState {
    /// Creates the state of a session that a resume or a prompt continues.
    pub fn suspended(reason: EndReason, receipt: Option<Box<Receipt>>) -> Self {
        Self::Suspended { reason, receipt, next: AfterSuspension::Resume }
    }

    /// Creates the state of a session that is over.
    pub fn ended(reason: EndReason, receipt: Option<Box<Receipt>>) -> Self {
        Self::Ended { reason, receipt, remains: SessionRemains::Kept }
    }

    /// Reason and receipt of a session without processes; `None` while it has processes.
    pub fn stopped_by(&self) -> Option<(&EndReason, Option<&Receipt>)> {
        match self {
            Self::Suspended { reason, receipt, .. } | Self::Ended { reason, receipt, .. } => {
                Some((reason, receipt.as_deref()))
            }
            Self::Starting | Self::Idle | Self::Busy { .. } => None,
        }
    }

    /// Returns true if the session is suspended.
    pub fn is_suspended(&self) -> bool {
        matches!(self, Self::Suspended { .. })
    }

    /// Returns true if the session is suspended for somebody to use its conversation with the agent itself.
    pub fn is_handed_over(&self) -> bool {
        matches!(self, Self::Suspended { next: AfterSuspension::HandedOver, .. })
    }

    /// Pause before the manager restarts the session; `None` if it does not.
    pub fn restart_after(&self) -> Option<Duration> {
        match self {
            Self::Suspended { next: AfterSuspension::Restart(pause), .. } => Some(*pause),
            _ => None,
        }
    }
}

/// Model usage of one turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct TurnUsage {
    /// Number of the turn; 0 for usage outside any turn.
    pub turn: u64,
    /// Tokens and cost since the turn's beginning.
    pub usage: Usage,
}
