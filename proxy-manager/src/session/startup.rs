//! The wait for a session to be ready.

use ipc_protocol::EndReason;
use tokio::{select, sync::oneshot, time::timeout};

use super::{ManagedSession, SessionState, SessionTask};
use crate::error::{Error, Result};

impl ManagedSession {
    /// Waits until the agent is ready or the session is over. Returns true if the agent is ready.
    pub(crate) async fn wait_ready(&self) -> bool {
        let mut view = self.watch();
        let begun = async {
            // Fails only without the session.
            let begun = view.wait_for(|view| !matches!(view.state, SessionState::Starting)).await;
            begun.is_ok_and(|view| view.state.stopped_by().is_none())
        };
        select! {
            biased;
            begun = begun => begun,
            () = self.runtime_ended() => false,
        }
    }

    /// Waits until the session is ready and that is recorded. The agent's start has a deadline of its own; after it,
    /// the wait is for the event log. If that takes too long the session ends for `reason`, as one that was never
    /// ready.
    ///
    /// # Errors
    /// Error of the start; [`Error::Deadline`].
    pub(crate) async fn wait_started(&self, ready: oneshot::Receiver<Result<()>>, reason: EndReason) -> Result<()> {
        let mut ready = std::pin::pin!(ready);
        let answer = select! {
            biased;
            answer = &mut ready => answer,
            _ = self.wait_ready() => {
                let after = self.deadlines.control;
                let Ok(answer) = timeout(after, ready).await else {
                    self.abandon_start(reason);
                    let operation = format!("writing down that session {} is ready", self.id);
                    return Err(Error::Deadline { operation, after });
                };
                answer
            }
        };
        match answer {
            Ok(Err(error)) => Err(self.explain(error).await),
            Ok(answer) => answer,
            Err(_) => Err(self.gone_error().await),
        }
    }

    /// Ends the session, whose start nobody waits for any more: as one that was never ready, unless it was resumed. One that has ended
    /// stays so.
    pub(crate) fn abandon_start(&self, reason: EndReason) {
        if !self.is_resumed {
            self.update_view(|view| {
                if view.state.stopped_by().is_none() {
                    view.state = SessionState::Starting;
                }
            });
        }
        self.request_end(SessionTask::FAILED, reason);
    }
}
