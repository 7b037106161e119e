//! Blocking work, off the runtime.

use std::{io, thread};

use tokio::sync::oneshot;

use crate::error::{Error, Result};

/// Runs `work` in a thread of its own. (The runtime's own pool panics where no thread can be had.) The work finishes
/// even if the caller stops waiting.
///
/// # Errors
/// [`Error::System`] where no thread can be had, or the work panicked.
pub(crate) async fn blocking<T: Send + 'static>(
    operation: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    begun(operation, work)?.await.map_err(|_| panicked(operation))
}

/// Starts `work` like [`blocking`], and returns once its thread runs.
///
/// # Errors
/// [`Error::System`] where no thread can be had.
pub(crate) fn begun<T: Send + 'static>(
    operation: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<oneshot::Receiver<T>> {
    let (done, result) = oneshot::channel();
    let span = tracing::Span::current();
    let run = move || {
        let _entered = span.enter();
        // The caller may have stopped waiting.
        let _ = done.send(work());
    };
    thread::Builder::new()
        .name("agent-proxy".to_owned())
        .spawn(run)
        .map_err(|error| Error::system(operation, &error))?;
    Ok(result)
}

/// Error for work that ended without a result.
pub(crate) fn panicked(operation: &str) -> Error {
    Error::system(operation, &io::Error::other("its thread panicked"))
}
