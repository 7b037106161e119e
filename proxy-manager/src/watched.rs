//! Descriptors that the runtime watches.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

use registry::PidFd;
use tokio::io::{Interest, unix::AsyncFd};

/// Types whose descriptor is theirs for as long as they live, and always the same: what [`AsyncFd`] needs.
pub(crate) trait Steady: AsFd + AsRawFd {}
impl Steady for OwnedFd {}
impl Steady for PidFd {}

/// Has the runtime watch `fd`.
///
/// # Errors
/// The system's.
#[expect(deprecated, reason = "the replacement is unsafe; `Steady` admits only types that keep its contract")]
pub(crate) fn watch<T: Steady>(fd: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(fd, interest)
}
