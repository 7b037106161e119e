//! Place of a session in its manager's table of sessions.

use std::{
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use tokio::time::timeout;

use crate::runtime::HomeRuntime;

/// Longest time that a runtime takes from the end of the first of its tasks to that of the last.
const RUNTIME_END: Duration = Duration::from_secs(1);

/// The manager's table, as far as its sessions know it.
pub(crate) trait LiveSessions: Send + Sync {
    /// Returns true if the table takes no more sessions.
    fn is_closed(&self) -> bool;

    /// Runtime of the sessions' tasks, if it is known.
    fn runtime(&self) -> Option<HomeRuntime>;

    /// Records that the session with this serial number has ended.
    fn mark_ended(&self, serial: u64);
}

/// Place of one session; empty until the session is added to a table.
#[derive(Clone, Default)]
pub(super) struct TablePlace(OnceLock<(Weak<dyn LiveSessions>, u64)>);

impl TablePlace {
    /// Records that the session was added to `table`. The first place stays.
    pub(super) fn set(&self, table: &Arc<dyn LiveSessions>, serial: u64) {
        let _ = self.0.set((Arc::downgrade(table), serial));
    }

    /// Records in the table that the session has ended.
    pub(super) fn ended(&self) {
        if let Some((table, serial)) = self.0.get()
            && let Some(table) = table.upgrade()
        {
            table.mark_ended(*serial);
        }
    }

    /// Returns true if the session can no longer be in an open table.
    pub(super) fn is_closed(&self) -> bool {
        let table = self.0.get().and_then(|(table, _)| table.upgrade());
        table.is_none_or(|table| table.is_closed())
    }

    /// Runtime of the session's task, while there is a manager.
    pub(super) fn runtime(&self) -> Option<HomeRuntime> {
        self.0.get().and_then(|(table, _)| table.upgrade())?.runtime()
    }

    /// Returns true if the runtime of the session's task has ended, or is ending: that drops its tasks one after the other.
    pub(super) async fn has_lost_runtime(&self) -> bool {
        match self.runtime() {
            Some(runtime) if !self.is_closed() => timeout(RUNTIME_END, runtime.ended()).await.is_ok(),
            _ => false,
        }
    }
}
