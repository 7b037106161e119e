//! The wait for a session to be ready.

use ipc_protocol::EndReason;
use tokio::{select, sync::oneshot, time::timeout};

use super::{Session, SessionState, Task};
use crate::{Error, Result};

impl Session {
    /// Waits until its agent is ready, or it is over. Whether the agent is.
    pub(crate) async fn gets_ready(&self) -> bool {
        let mut view = self.watch();
        // It fails only without this.
        view.wait_for(|view| !matches!(view.state, SessionState::Starting))
            .await
            .is_ok_and(|view| view.state.at_rest().is_none())
    }

    /// Waits until it is ready, and that is written down. The agent has a clock of its own; from then on it is the event log that
    /// is waited for: where that takes too long the session is to end for `reason`, as one that was never ready.
    ///
    /// # Errors
    /// Why it did not start; [`Error::Deadline`].
    pub(crate) async fn has_begun(&self, ready: oneshot::Receiver<Result<()>>, reason: EndReason) -> Result<()> {
        let mut ready = std::pin::pin!(ready);
        let answer = select! {
            biased;
            answer = &mut ready => answer,
            _ = self.gets_ready() => {
                let after = self.deadlines.control;
                let Ok(answer) = timeout(after, ready).await else {
                    if !self.has_been {
                        self.show(|view| view.ready = false);
                    }
                    self.demand_end(Task::FAILED, reason);
                    let operation = format!("writing down that session {} is ready", self.id);
                    return Err(Error::Deadline { operation, after });
                };
                answer
            }
        };
        answer.unwrap_or(Err(Error::ShutDown))
    }
}
