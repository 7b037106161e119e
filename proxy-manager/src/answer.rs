//! Answer of an agent, as callers and errors carry it.

use ipc_protocol::{BudgetKind, Json, Receipt, SessionId, StopReason, TimeoutKind, ToolStatus, Usage};
use serde::Serialize;

/// Answer of an agent to one prompt.
///
/// ```no_run
/// # async fn example(session: proxy_manager::SessionHandle) -> proxy_manager::Result<()> {
/// let answer = session.ask("what does this project do?").await?;
/// println!("{}", answer.reply);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// Full text of the turn; text before a tool call is a paragraph of its own.
    pub reply: String,
    /// The session. It has ended if `receipt` is present.
    pub session_id: SessionId,
    /// Number of the turn in the session.
    pub turn: u64,
    /// Tool calls, in the order in which they began.
    pub tool_calls: Vec<ToolCall>,
    /// Tokens and cost of the turn, as far as the agent reports them.
    pub usage: Option<Usage>,
    /// Reason for the turn's end; `null` if the agent gave none.
    pub stop_reason: Option<StopReason>,
    /// The clock that ran out, if that ended the turn.
    pub timed_out: Option<TimeoutKind>,
    /// The budget that was used up, if that ended the turn.
    pub over_budget: Option<BudgetKind>,
    /// Titles of permission requests that [`StreamOptions::unanswered`](crate::StreamOptions::unanswered) answered.
    pub unanswered: Vec<String>,
    /// Number of session events lost before they were read here; if not 0, text may be missing.
    pub missed_events: u64,
    /// Bytes left out because the answer was too long ([`StreamOptions::longest`](crate::StreamOptions::longest)).
    pub cut_bytes: u64,
    /// Reason why the handler was no longer called, if it was stopped.
    pub handler_stopped: Option<String>,
    /// Proof that nothing is left of a session that was started for this question, and ended with it.
    pub receipt: Option<Box<Receipt>>,
}

impl Answer {
    /// Returns true if no text is missing.
    pub fn is_complete(&self) -> bool {
        self.missed_events == 0 && self.cut_bytes == 0
    }
}

/// A tool call of a turn.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ToolCall {
    /// Id of the call within the session.
    pub id: String,
    /// The tool's machine name if the agent gives one, else its kind.
    pub name: String,
    /// Input as the agent gave it; `null` if it gave none.
    pub input: Json,
    /// Output so far, as text.
    pub output: String,
    /// Status of the call.
    pub state: ToolStatus,
}
