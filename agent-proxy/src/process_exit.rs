//! Wait for the end of a process that is held by a pidfd.

use std::{io, os::fd::OwnedFd};

use registry::PidFd;
use tokio::io::{Interest, unix::AsyncFd};

/// End of a process.
#[derive(Debug)]
pub(crate) struct ProcessExit(AsyncFd<OwnedFd>);

impl ProcessExit {
    /// Watches `process`.
    ///
    /// # Errors
    /// An error of the system call, when out of descriptors.
    #[expect(deprecated, reason = "the replacement is unsafe; an owned descriptor keeps its contract")]
    pub(crate) fn of(process: &PidFd) -> io::Result<Self> {
        AsyncFd::with_interest(process.try_clone()?.into(), Interest::READABLE).map(Self)
    }

    /// Returns when the process is dead. May be dropped while it waits.
    ///
    /// # Errors
    /// When the runtime ends.
    pub(crate) async fn wait(&self) -> io::Result<()> {
        self.0.readable().await.map(drop)
    }
}
