//! Phases of a conversation, its turn, and the purposes of our commands.

use ipc_protocol::{Usage, message::RequestId};

/// Purpose of one of our commands.
#[derive(Debug)]
pub(super) enum PiPurpose {
    /// First command: the agent is ready when it responds.
    Probe,
    /// Copy of the most recent conversation, before the first prompt.
    Clone,
    Prompt,
    /// Check whether the prompt of this turn started a run: commands of extensions do not.
    Handled(u64),
    /// Check whether the run that ended is the last one of this turn.
    Settled(u64),
    Steer,
    /// Query of the conversation's id, after a command of the caller.
    Identity,
    /// The response is ignored.
    Ignored,
    Operation(RequestId, PiReplyShape),
}

#[derive(Debug)]
pub(super) struct PiPending {
    pub(super) command: String,
    pub(super) purpose: PiPurpose,
}

/// Phase of the conversation.
#[derive(Debug)]
pub(super) enum PiState {
    New,
    Starting,
    Ready(Option<PiTurn>),
    /// The session has failed, or the agent has ended.
    Over,
}

/// Turn in progress.
#[derive(Debug, Default)]
pub(super) struct PiTurn {
    /// Number of the turn: the response to a question about one turn may arrive in the next.
    pub(super) number: u64,
    /// True once a run has started.
    pub(super) has_begun: bool,
    /// True if the turn is to be aborted.
    pub(super) aborting: bool,
    /// True if a prompt has steered the turn.
    pub(super) steered: bool,
    /// Messages that the agent has not taken yet.
    pub(super) queued: usize,
    /// True while the agent is about to retry a failed request.
    pub(super) retrying: bool,
    /// True if the retries have failed.
    pub(super) retries_exhausted: bool,
    /// True for an agent that does not report when it is done.
    pub(super) legacy: bool,
    pub(super) last: Option<LastAnswer>,
    pub(super) usage: Option<Usage>,
}

/// End of the model's last answer.
#[derive(Debug)]
pub(super) struct LastAnswer {
    pub(super) stop: String,
    pub(super) error: Option<String>,
}

/// Conversion of the agent's answer to a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PiReplyShape {
    /// `null`: the command succeeded.
    Done,
    /// The unchanged data.
    Data,
    /// The complete response, even if it is an error.
    Reply,
    /// No reply yet: the list of models is searched for this name.
    Models(String),
    /// What there is to choose from, by the list of models.
    Choices,
    /// No reply yet: the next command checks that the level is set.
    Level(String),
    /// `null` if the model now thinks at this level.
    CheckThinking(String),
    /// The data, after a compaction of the conversation.
    Compacted,
}
