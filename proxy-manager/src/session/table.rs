//! Place of a session in its manager's table of sessions.

use std::sync::{Arc, OnceLock, Weak};

/// The manager's table, as far as its sessions know it.
pub(crate) trait LiveSessions: Send + Sync {
    /// Returns true if the table takes no more sessions.
    fn is_closed(&self) -> bool;

    /// Records that the session with this serial number has ended.
    fn mark_ended(&self, serial: u64);
}

/// Place of one session; empty until the session is added to a table.
#[derive(Default)]
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
}
