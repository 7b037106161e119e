//! Asking an agent and waiting for its answer, and handlers that are told of an answer as it grows.

mod reply;
mod stream;
mod turn_stream;

use ipc_protocol::{BudgetKind, Receipt, SessionId, StopReason, TimeoutKind, Usage};
use serde::Serialize;

pub use reply::ToolCall;
pub(crate) use stream::stream;
pub use stream::{Chunk, Quiet, StreamHandler, StreamInfo, StreamOptions};
pub use turn_stream::{TurnStep, TurnStream};

/// What an agent answered to one prompt.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// All that it said in the turn; what came before a tool call is a paragraph of its own.
    pub reply: String,
    /// The session. It has ended where `receipt` is there.
    pub session_id: SessionId,
    /// Number of the turn in the session.
    pub turn: u64,
    /// What it did, in the order in which it began.
    pub tool_calls: Vec<ToolCall>,
    /// Tokens and cost of the turn, as far as the agent says.
    pub usage: Option<Usage>,
    /// Why the turn ended; `null` if the agent did not say.
    pub stop_reason: Option<StopReason>,
    /// The clock that ran out, if that is why it ended.
    pub timed_out: Option<TimeoutKind>,
    /// The budget that was used up, if that is why it ended.
    pub over_budget: Option<BudgetKind>,
    /// Permission requests that were answered by [`StreamOptions::unanswered`]: their titles.
    pub unanswered: Vec<String>,
    /// Events of the session that were lost before they were read here: where there are any, text may be missing.
    pub missed_events: u64,
    /// Bytes that were left out since the answer was too long ([`StreamOptions::longest`]).
    pub cut_bytes: u64,
    /// Why the handler was not called to the end, if it was not.
    pub handler_stopped: Option<String>,
    /// The proof that nothing is left of a session that was started for this question, and ended with it.
    pub receipt: Option<Box<Receipt>>,
}

impl Answer {
    /// Whether none of its text is missing.
    pub fn is_complete(&self) -> bool {
        self.missed_events == 0 && self.cut_bytes == 0
    }
}
