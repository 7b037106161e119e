//! Prompts and turns, as the caller sees them.

use std::{fmt, sync::Arc};

use ipc_protocol::{BudgetKind, StopReason, TimeoutKind};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::{Error, Result, history::History};

/// What becomes of a prompt while a turn is running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PromptMode {
    /// It fails with [`Error::Busy`].
    #[default]
    Refuse,
    /// It waits for its turn, behind those that came before it. At most 64 wait; then [`Error::Busy`]. Waiting or not, it is first
    /// appended to the session's stream as the action that it is from then on: done once or told as failed, over restarts too.
    Queue,
    /// It is said to the agent in the running turn, if the agent can be steered; else [`Error::Unsupported`].
    Steer,
}

/// How a turn ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TurnEnd {
    /// Its number, the first is 1; `null` for an agent without turns.
    pub turn: Option<u64>,
    /// Why the agent says it ended; `null` if it did not say.
    pub stop_reason: Option<StopReason>,
    /// The last `stream:error` of the turn, where there was no `stream:complete` after it.
    pub error: Option<String>,
    /// The clock that ran out, if that is why it was aborted.
    pub timed_out: Option<TimeoutKind>,
    /// What went wrong last before that: the last error, else the last line of the agent's standard error.
    pub last_words: Option<String>,
    /// The budget that was used up, if that is why it was aborted.
    pub over_budget: Option<BudgetKind>,
}

/// A ticket for a turn. Dropping it cancels nothing.
pub struct Turn {
    number: Option<u64>,
    history: Arc<History>,
    end: oneshot::Receiver<Result<TurnEnd>>,
}

/// The other end of a [`Turn`].
pub(crate) type TurnSender = oneshot::Sender<Result<TurnEnd>>;

impl Turn {
    pub(crate) fn new(number: Option<u64>, history: &Arc<History>) -> (TurnSender, Self) {
        let (sender, end) = oneshot::channel();
        (sender, Self { number, history: history.clone(), end })
    }

    /// The turn's number, the first is 1; of a queued prompt, the one it will have. `None` if the agent has no turns.
    pub fn number(&self) -> Option<u64> {
        self.number
    }

    /// Waits for the end of the turn: its events can be read then, and with a state directory they are durable. For an agent without turns there is nothing to wait for. A turn may take as long
    /// as its session's `timeouts` let it: this call alone has no deadline of its own.
    ///
    /// # Errors
    /// [`Error::AgentDied`], [`Error::ProxyDied`], [`Error::ForkServerDied`], [`Error::Ended`] and [`Error::ShutDown`]
    /// if the session ended first. For a queued prompt also why the agent did not take it.
    pub async fn wait(self) -> Result<TurnEnd> {
        let end = self.end.await.unwrap_or(Err(Error::ShutDown));
        self.history.published().await;
        end
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn").field("number", &self.number).finish_non_exhaustive()
    }
}
