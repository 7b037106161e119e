//! Descriptors that the runtime watches.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

use registry::PidFd;
use tokio::io::{Interest, unix::AsyncFd};

use crate::runtime;

/// Types that own one descriptor, the same for as long as they live, as [`AsyncFd`] needs.
pub(crate) trait SteadyFd: AsFd + AsRawFd {}
impl SteadyFd for OwnedFd {}
impl SteadyFd for PidFd {}

/// Registers `fd` with the runtime.
///
/// # Errors
/// An error of the system call, or of a runtime without I/O.
#[expect(deprecated, reason = "the replacement is unsafe; `Steady` admits only types that keep its contract")]
pub(crate) fn watch<T: SteadyFd>(fd: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    runtime::driver("I/O", || AsyncFd::with_interest(fd, interest)).map_err(io::Error::other)?
}
