//! The tokio runtime that calls need, and the one that a manager's tasks run in. Outside of one, in one without a driver, or after the
//! end of the manager's, calls fail where a timer or a task of theirs would panic, or wait in vain.

use std::{
    future::pending,
    io,
    os::{fd::OwnedFd, unix::net::UnixStream as StdUnixStream},
    panic::{self, AssertUnwindSafe},
    time::Duration,
};

use ipc_protocol::packet;
use tokio::{
    net::UnixStream,
    runtime::{EnterGuard, Handle},
    sync::watch,
    time::sleep,
};

use crate::error::{Error, Result};

/// Fails outside a runtime, and in one without timers.
///
/// # Errors
/// [`Error::NoRuntime`], [`Error::RuntimeIncomplete`].
pub(crate) fn require() -> Result<()> {
    Handle::try_current().map_err(|_| Error::NoRuntime)?;
    driver("time", || drop(sleep(Duration::ZERO)))
}

/// Fails where a manager cannot be built: as [`require`] does, and in a runtime without I/O.
///
/// # Errors
/// [`Error::NoRuntime`], [`Error::RuntimeIncomplete`], [`Error::System`].
pub(crate) fn require_io() -> Result<()> {
    require()?;
    let (one, _other) = packet::stream_pair().map_err(|error| Error::system("trying the runtime", error))?;
    watch_stream(one).map(drop)
}

/// Registers a stream with this runtime.
///
/// # Errors
/// [`Error::RuntimeIncomplete`] in a runtime without I/O; [`Error::System`].
pub(crate) fn watch_stream(stream: OwnedFd) -> Result<UnixStream> {
    let watched = driver("I/O", || UnixStream::from_std(StdUnixStream::from(stream)))?;
    watched.map_err(|error: io::Error| Error::system("watching a socket", error))
}

/// Makes what needs a driver of the runtime. Tokio has no other sign of a missing one than its panic.
pub(crate) fn driver<T>(missing: &'static str, make: impl FnOnce() -> T) -> Result<T> {
    panic::catch_unwind(AssertUnwindSafe(make)).map_err(|_| Error::RuntimeIncomplete { missing })
}

/// Runs `work` in this runtime, else in `other`. `None` if that has ended.
pub(crate) async fn run_in<T: Send + 'static>(
    other: &HomeRuntime,
    work: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    match require() {
        Ok(()) => Some(work.await),
        Err(_) => other.handle().spawn(work).await.ok(),
    }
}

/// The runtime that a manager was built in. The tasks of the manager and of all its sessions run there.
#[derive(Clone, Debug)]
pub(crate) struct HomeRuntime {
    handle: Handle,
    /// Closed with the runtime, whose tasks are dropped then.
    life: watch::Receiver<()>,
}

impl HomeRuntime {
    /// Takes the current runtime. Panics outside of one.
    pub(crate) fn current() -> Self {
        let handle = Handle::current();
        let (alive, life) = watch::channel(());
        // Ends with the last of those who watch it.
        handle.spawn(async move { alive.closed().await });
        Self { handle, life }
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Makes this the current runtime of the thread.
    pub(crate) fn enter(&self) -> EnterGuard<'_> {
        self.handle.enter()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.life.has_changed().is_err()
    }

    /// Resolves when the runtime has ended.
    pub(crate) async fn ended(mut self) {
        // Nothing is ever sent.
        while self.life.changed().await.is_ok() {}
    }

    /// Fails if the runtime has ended.
    ///
    /// # Errors
    /// [`Error::RuntimeEnded`].
    pub(crate) fn check(&self, operation: &str) -> Result<()> {
        if self.has_ended() { Err(Error::RuntimeEnded { operation: operation.to_owned() }) } else { Ok(()) }
    }
}

/// Resolves when `runtime` has ended; never without one.
pub(crate) async fn ended(runtime: Option<HomeRuntime>) {
    match runtime {
        Some(runtime) => runtime.ended().await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Builder;

    use super::*;

    #[test]
    fn a_runtime_without_a_driver_is_an_error_and_no_panic() {
        let check = |builder: &mut Builder| builder.build().expect("a runtime").block_on(async { require_io() });
        let missing = |error| match error {
            Err(Error::RuntimeIncomplete { missing }) => missing,
            other => panic!("{other:?}"),
        };
        assert_eq!(missing(check(&mut Builder::new_current_thread())), "time");
        assert_eq!(missing(check(Builder::new_current_thread().enable_time())), "I/O");
        assert_eq!(missing(check(Builder::new_multi_thread().worker_threads(1).enable_io())), "time");
        check(Builder::new_current_thread().enable_all()).expect("complete");
        assert!(matches!(require(), Err(Error::NoRuntime)));
    }

    #[test]
    fn the_end_of_a_runtime_is_known_in_another_one() {
        for mut builder in [Builder::new_current_thread(), Builder::new_multi_thread()] {
            let first = builder.enable_all().build().expect("a runtime");
            let home = first.block_on(async { HomeRuntime::current() });
            home.check("living").expect("it lives");
            drop(first);
            assert!(
                matches!(home.check("starting"), Err(Error::RuntimeEnded { operation }) if operation == "starting")
            );
            let second = Builder::new_current_thread().enable_time().build().expect("a runtime");
            let ended = async { tokio::time::timeout(Duration::from_secs(20), home.ended()).await };
            second.block_on(ended).expect("at once");
        }
    }
}
