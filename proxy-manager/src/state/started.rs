//! Fork servers that this process has started and not yet reaped. A sweep spares them.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
};

use ipc_protocol::ProcessId;

static STARTED: Mutex<BTreeSet<ProcessId>> = Mutex::new(BTreeSet::new());

/// Adds a fork server.
pub(crate) fn add(process: ProcessId) {
    STARTED.lock().unwrap_or_else(PoisonError::into_inner).insert(process);
}

/// Removes a fork server that was reaped.
pub(crate) fn remove(process: ProcessId) {
    STARTED.lock().unwrap_or_else(PoisonError::into_inner).remove(&process);
}

/// Returns true if this process has started that fork server, which may live.
pub(super) fn contains(process: ProcessId) -> bool {
    STARTED.lock().unwrap_or_else(PoisonError::into_inner).contains(&process)
}
