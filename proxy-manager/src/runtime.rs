//! The tokio runtime that calls need. Outside one they fail, where a timer or a task of theirs would panic.

use tokio::runtime::Handle;

use crate::error::{Error, Result};

/// Fails outside a runtime.
///
/// # Errors
/// [`Error::NoRuntime`].
pub(crate) fn require() -> Result<()> {
    Handle::try_current().map(drop).map_err(|_| Error::NoRuntime)
}

/// Runs `work` in this runtime, else in `other`. `None` if that has ended.
pub(crate) async fn run_in<T: Send + 'static>(
    other: &Handle,
    work: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    match require() {
        Ok(()) => Some(work.await),
        Err(_) => other.spawn(work).await.ok(),
    }
}
