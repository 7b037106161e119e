//! End of a manager that lets running turns finish.

use std::time::Duration;

use ipc_protocol::Receipt;
use tokio::{
    sync::mpsc,
    time::{Instant, timeout_at},
};

use super::{ProxyManager, ShutdownScope};
use crate::{description::SessionState, error::Error, runtime};

/// Pause between two looks at the running turns.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Reports that may wait for a caller outside the runtime.
const REPORTS: usize = 64;

/// Progress of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DrainProgress {
    /// Number of sessions that have not ended.
    pub sessions: usize,
    /// Number of running turns.
    pub turns: usize,
}

impl ProxyManager {
    /// Accepts no new session and no new prompt ([`Error::Draining`]; waiting ones are refused), lets running turns
    /// finish for at most `longest`, then shuts down. `progress` is called with the running turns, at first and
    /// whenever that changes. Dropping this future still leaves the manager draining: call [`ProxyManager::shutdown`]
    /// then.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the manager closed to new work: call
    /// [`ProxyManager::shutdown`](crate::ProxyManager::shutdown).
    pub async fn drain(&self, longest: Duration, progress: impl FnMut(DrainProgress) + Send) -> Vec<Receipt> {
        self.drain_with(longest, ShutdownScope::Everything, progress).await
    }

    /// Drains as [`ProxyManager::drain`] does, but ends as [`ProxyManager::shutdown_detaching`]: turns of sessions that outlive this
    /// host run on, and are not waited for.
    ///
    /// # Cancel safety
    /// As [`ProxyManager::drain`].
    pub async fn drain_detaching(&self, longest: Duration, progress: impl FnMut(DrainProgress) + Send) -> Vec<Receipt> {
        self.drain_with(longest, ShutdownScope::Attached, progress).await
    }

    async fn drain_with(
        &self,
        longest: Duration,
        scope: ShutdownScope,
        mut progress: impl FnMut(DrainProgress) + Send,
    ) -> Vec<Receipt> {
        if runtime::require().is_ok() {
            return self.drain_here(longest, scope, progress).await;
        }
        let (sender, mut reports) = mpsc::channel(REPORTS);
        let manager = self.clone();
        let drained = self.inner.runtime.handle().spawn(async move {
            // A report that finds no room is followed by later ones.
            manager.drain_here(longest, scope, move |report| _ = sender.try_send(report)).await
        });
        while let Some(report) = reports.recv().await {
            progress(report);
        }
        drained.await.unwrap_or_default()
    }

    async fn drain_here(
        &self,
        longest: Duration,
        scope: ShutdownScope,
        mut progress: impl FnMut(DrainProgress) + Send,
    ) -> Vec<Receipt> {
        let deadline = Instant::now().checked_add(longest);
        let directory = &self.inner.session_table;
        self.inner.warm_pool.close();
        self.inner.admission.close(Error::Draining);
        // Any event of any session wakes this task, including a session's beginning and a turn's end.
        let mut wake = directory.all_sessions_waker().subscribe();
        let mut told = None;
        loop {
            wake.mark_unchanged();
            let mut now = DrainProgress { sessions: 0, turns: 0 };
            for session in directory.all().into_iter().filter(|session| !scope.spares(session)) {
                session.drain();
                match session.info().state {
                    SessionState::Suspended { .. } | SessionState::Ended { .. } => {}
                    SessionState::Busy { .. } => {
                        now.sessions += 1;
                        now.turns += 1;
                    }
                    SessionState::Starting | SessionState::Idle => now.sessions += 1,
                }
            }
            if told != Some(now) {
                told = Some(now);
                progress(now);
            }
            if now.turns == 0 {
                break;
            }
            let changed = wake.changed();
            let in_time = match deadline {
                Some(deadline) => timeout_at(deadline, changed).await.is_ok(),
                None => changed.await.is_ok(),
            };
            // Events come by the thousand; ends of turns do not.
            tokio::time::sleep(POLL_INTERVAL).await;
            if !in_time {
                tracing::info!(turns = now.turns, "drain timed out: ending the running turns");
                break;
            }
        }
        drop(progress);
        self.end_all(scope).await
    }
}
