//! The end of a manager that lets running turns finish.

use std::time::Duration;

use ipc_protocol::Receipt;
use tokio::time::{Instant, timeout_at};

use super::ProxyManager;
use crate::{Error, SessionState};

/// Between two looks at what still runs.
const LOOK: Duration = Duration::from_millis(5);

/// How far a drain is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DrainProgress {
    /// Sessions that have not ended.
    pub sessions: usize,
    /// Turns that run.
    pub turns: usize,
}

impl ProxyManager {
    /// Takes no new session and no new prompt ([`Error::Draining`]; those that wait are refused), lets running turns finish for
    /// at most `longest`, then shuts down. `progress` is told how many turns run, at first and whenever that changes. If this
    /// future is dropped, nothing new begins all the same: call [`ProxyManager::shutdown`] then.
    pub async fn drain(&self, longest: Duration, mut progress: impl FnMut(DrainProgress) + Send) -> Vec<Receipt> {
        let deadline = Instant::now().checked_add(longest);
        let directory = &self.inner.directory;
        self.inner.admission.close(Error::Draining);
        // Whatever happens in any session wakes us, its beginning and the end of a turn among it.
        let mut wake = directory.everyone().subscribe();
        let mut told = None;
        loop {
            wake.mark_unchanged();
            let mut now = DrainProgress { sessions: 0, turns: 0 };
            for session in directory.all() {
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
            tokio::time::sleep(LOOK).await;
            if !in_time {
                tracing::info!(turns = now.turns, "turns that are not done in time are ended");
                break;
            }
        }
        self.shutdown().await
    }
}
