//! Work that blocks, off the runtime.

use std::{io, thread};

use tokio::sync::oneshot;

use crate::{Error, Result};

/// Does it in a thread of its own. (The runtime's own pool panics where no thread can be had.) It is done to the end even if
/// nobody waits for it any more.
///
/// # Errors
/// [`Error::System`] where no thread can be had, or it panicked.
pub(crate) async fn blocking<T: Send + 'static>(
    operation: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    begun(operation, work)?.await.map_err(|_| panicked(operation))
}

/// As [`blocking`]; it is being done when this returns.
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
        // Whoever waited may be gone.
        let _ = done.send(work());
    };
    thread::Builder::new()
        .name("agent-proxy".to_owned())
        .spawn(run)
        .map_err(|error| Error::system(operation, &error))?;
    Ok(result)
}

/// Why there is no result.
pub(crate) fn panicked(operation: &str) -> Error {
    Error::system(operation, &io::Error::other("its thread panicked"))
}
