//! Phases of a conversation, its turn, and the purposes of our requests.

use ipc_protocol::message::RequestId;
use serde_json::Value;

use super::usage::ThreadTokens;
use crate::kit::{
    bounds::words,
    settings::{AgentSettings, EmittedSettings},
};

/// Purpose of one of our requests.
#[derive(Debug)]
pub(super) enum CodexPurpose {
    Initialize,
    /// List that starts with the most recent conversation.
    Newest,
    /// Opening of the conversation.
    Thread,
    /// Mode and thinking, before the first prompt.
    Settings,
    TurnStart,
    Steer,
    Interrupt,
    /// Interrupt of a sub-agent's turn, or the end of its processes: the answer is ignored.
    Ignored,
    /// End of the processes that an interrupted turn left.
    Clean,
    Operation(RequestId, CodexReplyShape),
}

/// Phase of the conversation.
#[derive(Debug)]
pub(super) enum CodexState {
    New,
    /// Until all requests are answered; with the thread once it is known.
    Starting(Option<CodexThread>),
    Ready(CodexThread),
    /// The session has failed, or the agent has ended.
    Over,
}

/// Open conversation.
#[derive(Debug)]
pub(super) struct CodexThread {
    pub(super) id: String,
    pub(super) model: String,
    pub(super) effort: Value,
    /// Mode that Codex told last.
    pub(super) mode: Option<String>,
    pub(super) emitted: EmittedSettings,
    pub(super) tokens: ThreadTokens,
    pub(super) turn: Option<CodexTurn>,
    /// Turn that was begun elsewhere: on the agent's screen.
    pub(super) screen: Option<ScreenTurn>,
    /// Number of our inputs that were not shown as messages of the user yet.
    pub(super) unseen_inputs: usize,
    /// Operation that compacts the conversation, until the turn for it has ended.
    pub(super) compaction: Option<RequestId>,
}

impl CodexThread {
    /// Returns the settings that Codex told last.
    pub(super) fn settings(&self) -> AgentSettings {
        AgentSettings {
            model: Some(self.model.clone()).filter(|model| !model.is_empty()),
            mode: self.mode.clone(),
            thinking: self.effort.as_str().map(words),
        }
    }
}

/// Turn in progress that is not ours.
#[derive(Debug)]
pub(super) struct ScreenTurn {
    pub(super) id: String,
    /// True if its error was emitted.
    pub(super) error_is_reported: bool,
}

/// Turn in progress.
#[derive(Debug, Default)]
pub(super) struct CodexTurn {
    /// Input that waits for the end of a turn that is not ours: Codex would add it to that one.
    pub(super) held_input: Option<Value>,
    /// Id of the turn, once the agent has sent it.
    pub(super) id: Option<String>,
    /// True if the turn is to be interrupted.
    pub(super) aborting: bool,
    /// True once the interrupt was sent.
    pub(super) interrupt_sent: bool,
    pub(super) held_steers: Vec<Value>,
    /// Failed attempts since the last progress.
    pub(super) failed_attempts: u32,
    /// True if the turn's error was emitted.
    pub(super) error_is_reported: bool,
    /// True while the processes of the interrupted turn are being ended.
    pub(super) ending: bool,
}

/// Conversion of the agent's answer to a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CodexReplyShape {
    /// `null`: the request succeeded, and these settings are in use.
    Set(AgentSettings),
    /// The unchanged result.
    Result,
    /// The complete answer, even if it is an error.
    Reply,
    /// What there is to choose from, by the list of models.
    Choices,
    /// A list of conversations.
    Sessions,
    /// No reply yet: the end of the turn that compacts is the answer.
    Compact,
}
