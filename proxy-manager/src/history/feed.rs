//! The events of all sessions as one stream with positions.

use std::sync::Arc;

use ipc_protocol::Envelope;
use tokio::sync::watch;

use crate::{error::Result, manager::ProxyManager};

/// Place in the order of all sessions' events at which a reader begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedStart {
    /// After this position; 0 for all events.
    After(u64),
    /// With the next event.
    Latest,
}

/// Events of all sessions in the order of the event log, those of earlier managers included, each with its position.
/// Reads at its own pace, and needs a state directory.
#[derive(Debug)]
pub struct EventFeed {
    manager: ProxyManager,
    wake: watch::Receiver<()>,
    from: u64,
}

impl EventFeed {
    pub(crate) fn new(manager: ProxyManager, wake: watch::Receiver<()>, from: u64) -> Self {
        Self { manager, wake, from }
    }

    /// Returns the position after which the next page begins.
    pub fn position(&self) -> u64 {
        self.from
    }

    /// Waits for events, and returns up to `most` of them, each with its position; at least one.
    ///
    /// # Errors
    /// As [`ProxyManager::read_all`].
    ///
    /// # Cancel safety
    /// Cancel safe: no event is lost.
    pub async fn next_page(&mut self, most: usize) -> Result<Vec<(u64, Arc<Envelope>)>> {
        loop {
            // Marked before reading: what is appended later wakes this task again.
            self.wake.mark_unchanged();
            let page = self.manager.read_all(self.from, most).await?;
            if let Some((last, _)) = page.last() {
                self.from = *last;
                return Ok(page);
            }
            // The table of sessions is part of the manager, which is held here.
            if self.wake.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}
