//! Phases of a conversation, and the purposes of our requests.

use ipc_protocol::message::RequestId;

use super::{
    handshake::ConversationOpening,
    listing::ConversationPages,
    offer::{self, AcpSetting},
    turn::AcpTurn,
};

/// Phase of the conversation.
#[derive(Debug)]
pub(super) enum AcpState {
    New,
    Initializing {
        /// True if `session/new` was sent without waiting for the answer to `initialize`.
        is_opening: bool,
    },
    /// Searching for the conversation in the agent's files.
    Looking,
    /// Searching for the most recent conversation.
    Finding {
        list: ConversationPages,
        fork: bool,
    },
    Opening {
        opening: ConversationOpening,
    },
    /// Setting the values of the configuration.
    Configuring {
        session: String,
        setting: AcpSetting,
        asked: offer::SetRequest,
    },
    /// The agent still replays the conversation that it loaded.
    Settling {
        session: String,
    },
    Ready {
        session: String,
        activity: AcpActivity,
    },
    /// The session has failed, or the agent has ended.
    Over,
}

/// Activity of an agent that is ready.
#[derive(Debug)]
pub(super) enum AcpActivity {
    Idle,
    Turn(AcpTurn),
    /// The agent compacts its conversation, as the answer to a prompt.
    Compacting {
        operation: RequestId,
        said: String,
    },
}

/// Effect of a prompt during a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SteeringMode {
    /// The prompt cancels the turn, or its effect is unknown.
    No,
    /// The prompt steers the turn, and is answered like the turn's first prompt.
    Answered,
    /// The prompt steers the turn, and only one of the turn's prompts is answered.
    Unanswered,
}

/// Purpose of one of our requests.
#[derive(Debug)]
pub(super) enum AcpPurpose {
    Initialize,
    /// Search for the most recent conversation.
    Find,
    Open,
    /// Setting of a configured value.
    Configure,
    /// Prompt of the turn.
    Prompt,
    /// Prompt that compacts the conversation.
    Compact,
    Operation(RequestId, AcpOperationRequest),
}

/// Request of an operation.
#[derive(Debug)]
pub(super) enum AcpOperationRequest {
    Set(AcpSetting, offer::SetRequest),
    /// Page of the conversation list, with the pages before it.
    List(ConversationPages),
    Native,
}
