//! Prompts and turns, as the caller sees them.

use std::sync::Arc;

use api_types::PromptMode;
use ipc_protocol::{BudgetKind, Json, SessionId, StopReason, TimeoutKind};
use serde::Serialize;
use tokio::sync::oneshot;

use super::{ManagedSession, table::TablePlace};
use crate::{
    error::{Error, Result},
    history::SessionHistory,
};

/// Options of a prompt. A [`PromptMode`] alone converts to them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PromptOptions {
    /// Treatment while a turn runs.
    pub mode: PromptMode,
    /// Name of who sends it, for the list of those that wait.
    pub by: Option<String>,
    /// Metadata that comes back with the `turn:started`, and with the event that a prompt in the queue is: a JSON object of at most
    /// 16 KiB, without the member `turn`.
    pub metadata: Option<Json>,
}

impl PromptOptions {
    /// Adds metadata.
    #[must_use]
    pub fn with_metadata(self, metadata: Option<Json>) -> Self {
        Self { metadata, ..self }
    }

    /// Names who sends it.
    #[must_use]
    pub fn with_by(self, by: impl Into<String>) -> Self {
        Self { by: Some(by.into()), ..self }
    }
}

impl From<PromptMode> for PromptOptions {
    fn from(mode: PromptMode) -> Self {
        Self { mode, ..Self::default() }
    }
}

/// Result of a turn.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TurnEnd {
    /// Number of the turn, the first is 1; `null` for an agent without turns.
    pub turn: Option<u64>,
    /// Reason for the end, as the agent reports it; `null` if it reported none.
    pub stop_reason: Option<StopReason>,
    /// The last `stream:error` of the turn, if no `stream:complete` followed it.
    pub error: Option<String>,
    /// The clock that ran out, if the turn was aborted for it.
    pub timed_out: Option<TimeoutKind>,
    /// Last failure before that: the last error, else the last line of the agent's standard error.
    pub last_words: Option<String>,
    /// The budget that was used up, if that is why it was aborted.
    pub over_budget: Option<BudgetKind>,
}

/// A ticket for a turn. Dropping it cancels nothing.
///
/// ```no_run
/// # async fn example(session: proxy_manager::SessionHandle) -> proxy_manager::Result<()> {
/// use proxy_manager::PromptMode;
///
/// let turn = session.prompt("hello", PromptMode::Queue).await?;
/// println!("turn {:?}", turn.number());
/// let end = turn.wait().await?;
/// println!("{:?}", end.stop_reason);
/// # Ok(())
/// # }
/// ```
#[derive(derive_more::Debug)]
#[debug("Turn({number:?})")]
pub struct Turn {
    number: Option<u64>,
    session: SessionId,
    history: Arc<SessionHistory>,
    place: TablePlace,
    end: oneshot::Receiver<Result<TurnEnd>>,
}

/// Sender for a [`Turn`].
pub(crate) type TurnSender = oneshot::Sender<Result<TurnEnd>>;

/// A ticket for a turn, on its way to the caller.
#[derive(Debug)]
pub(crate) struct TurnTicket {
    number: Option<u64>,
    end: oneshot::Receiver<Result<TurnEnd>>,
}

impl TurnTicket {
    pub(crate) fn new(number: Option<u64>) -> (TurnSender, Self) {
        let (sender, end) = oneshot::channel();
        (sender, Self { number, end })
    }

    /// Gives it to the caller, who waits for the events of `session` too.
    pub(crate) fn into_turn(self, session: &ManagedSession) -> Turn {
        let Self { number, end } = self;
        let (place, history, session) = (session.place.clone(), session.history().clone(), session.id().clone());
        Turn { number, session, history, place, end }
    }
}

impl Turn {
    /// Number of the turn, the first is 1; for a queued prompt, the number it will have. `None` if the agent has no
    /// turns.
    pub fn number(&self) -> Option<u64> {
        self.number
    }

    /// Waits for the end of the turn. Its events are readable then, and durable with a state directory; in a fleet they are
    /// acknowledged. Returns at once
    /// for an agent without turns. This is the only call without a deadline of its own: a turn may take as long as its
    /// session's `timeouts` allow.
    ///
    /// # Errors
    /// [`Error::AgentDied`], [`Error::ProxyDied`], [`Error::ForkServerDied`], [`Error::Ended`], [`Error::ShutDown`] and
    /// [`Error::RuntimeEnded`] if the session ended first; [`Error::Fenced`]. For a queued prompt also the agent's reason for not accepting it.
    ///
    /// # Cancel safety
    /// Dropping the future cancels nothing: the turn continues.
    pub async fn wait(self) -> Result<TurnEnd> {
        let end = self.end.await.unwrap_or(Err(Error::ShutDown));
        if matches!(end, Err(Error::ShutDown)) && self.place.has_lost_runtime().await {
            return Err(Error::RuntimeEnded { operation: format!("waiting for a turn of session {}", self.session) });
        }
        self.history.wait_published().await;
        if self.history.is_fenced() {
            return Err(Error::Fenced { session: self.history.session().clone() });
        }
        end
    }
}
