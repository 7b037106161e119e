//! The fork server that a manager starts sessions with: another one takes its place when it dies.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use ipc_protocol::ProcessId;
use registry::ManagerCgroup;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use super::{ChildProgram, ForkServer};
use crate::{
    deadlines::Deadlines,
    error::{Error, Result},
    replication::LeaseDeadline,
};

/// Pause before the second try to start one; the first is made at once. Each pause is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Longest pause between two tries.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Life of a fork server that counts as short: a pause follows, which doubles too.
const SHORT_LIFE: Duration = Duration::from_secs(1);
/// Longest pause after a short life: starts wait for longer.
const LONGEST_REST: Duration = Duration::from_secs(2);

/// The current fork server of a manager.
#[derive(Debug)]
pub(crate) struct ForkServers {
    child: ChildProgram,
    deadlines: Deadlines,
    current: watch::Sender<CurrentForkServer>,
    /// Lease on the manager's sessions, for fork servers to come.
    lease: Mutex<Option<LeaseDeadline>>,
}

#[derive(Debug)]
struct CurrentForkServer {
    server: Arc<ForkServer>,
    /// Tries to replace it that failed, and the last error.
    failures: u32,
    error: Option<Error>,
    /// The manager is shut down: there is no other after this.
    is_closed: bool,
}

impl ForkServers {
    pub(crate) fn new(server: Arc<ForkServer>, child: ChildProgram, deadlines: Deadlines) -> Self {
        let current = CurrentForkServer { server, failures: 0, error: None, is_closed: false };
        Self { child, deadlines, current: watch::Sender::new(current), lease: Mutex::default() }
    }

    /// Extends the lease on all sessions.
    pub(crate) fn renew_lease(&self, deadline: LeaseDeadline) {
        *self.lease.lock().unwrap_or_else(PoisonError::into_inner) = Some(deadline);
        self.latest().renew_lease(deadline);
    }

    /// Checks that sessions may start here.
    ///
    /// # Errors
    /// [`Error::FleetUnavailable`] once the lease is over.
    pub(crate) fn check_lease(&self) -> Result<()> {
        let lease = *self.lease.lock().unwrap_or_else(PoisonError::into_inner);
        match lease {
            Some(LeaseDeadline(until)) if until <= LeaseDeadline::now() => {
                let reason = "the lease on this machine's sessions is over, and was not extended".to_owned();
                Err(Error::FleetUnavailable { reason })
            }
            _ => Ok(()),
        }
    }

    /// The newest, which may be dead.
    pub(crate) fn latest(&self) -> Arc<ForkServer> {
        self.current.borrow().server.clone()
    }

    /// The newest, if it lives; else its replacement is waited for, as long as one may take to say hello.
    ///
    /// # Errors
    /// [`Error::ForkServerDied`]; [`Error::ShutDown`].
    pub(crate) async fn living(&self) -> Result<Arc<ForkServer>> {
        let mut current = self.current.subscribe();
        let living = current.wait_for(|current| current.is_closed || !current.server.is_dying());
        match timeout(self.deadlines.hello, living).await {
            Ok(Ok(current)) if !current.is_closed => Ok(current.server.clone()),
            Ok(_) => Err(Error::ShutDown),
            Err(_) => Err(Error::ForkServerDied),
        }
    }

    /// Returns true unless fork servers could not be started lately.
    pub(crate) fn can_be_replaced(&self) -> bool {
        let current = self.current.borrow();
        !current.is_closed && current.error.is_none()
    }

    /// Returns the reason why sessions cannot be started now, if there is one.
    pub(crate) fn trouble(&self) -> Option<String> {
        let current = self.current.borrow();
        if current.is_closed || !current.server.is_dying() {
            return None;
        }
        let id = current.server.id();
        Some(match &current.error {
            None => format!("the fork server {id} died, and another one is being started"),
            Some(error) => {
                let failures = current.failures;
                format!(
                    "the fork server {id} died, and another one could not be started {failures} times: {}",
                    error.chain()
                )
            }
        })
    }

    /// There is no replacement from now on. The last one.
    pub(crate) fn close(&self) -> Arc<ForkServer> {
        self.current.send_modify(|current| current.is_closed = true);
        self.latest()
    }

    /// Waits for the death of the fork server and puts another one in its place, for as long as `groups` says that there is a manager: the
    /// groups whose lock it is to hold. `replaced` is called with each that died and its successor.
    pub(crate) async fn keep(
        self: Arc<Self>,
        groups: impl Fn() -> Option<Option<Arc<ManagerCgroup>>>,
        replaced: impl Fn(ProcessId, ProcessId),
    ) {
        let mut rest = Duration::ZERO;
        loop {
            let (server, since) = (self.latest(), Instant::now());
            server.dies().await;
            rest =
                if since.elapsed() < SHORT_LIFE { (2 * rest).clamp(FIRST_PAUSE, LONGEST_REST) } else { Duration::ZERO };
            if self.current.borrow().is_closed {
                return;
            }
            tracing::error!(fork_server = %server.id(), "the fork server died: another one is started");
            sleep(rest).await;
            let mut pause = FIRST_PAUSE;
            let next = loop {
                let Some(groups) = groups() else { return };
                match ForkServer::start(&self.child, &self.deadlines, groups).await {
                    Ok(server) => break server,
                    Err(error) => {
                        tracing::error!(error = %error.chain(), "another fork server cannot be started: it is tried again in {pause:?}");
                        self.current.send_modify(|current| {
                            (current.failures, current.error) = (current.failures + 1, Some(error));
                        });
                    }
                }
                sleep(pause).await;
                pause = (2 * pause).min(LONGEST_PAUSE);
                if self.current.borrow().is_closed {
                    return;
                }
            };
            let lease = *self.lease.lock().unwrap_or_else(PoisonError::into_inner);
            lease.into_iter().for_each(|deadline| next.renew_lease(deadline));
            replaced(server.id(), next.id());
            let is_current = self.current.send_if_modified(|current| {
                if !current.is_closed {
                    *current = CurrentForkServer { server: next.clone(), failures: 0, error: None, is_closed: false };
                }
                !current.is_closed
            });
            if !is_current {
                // Nobody else knows of it.
                return next.finish(self.deadlines.shutdown, true).await;
            }
        }
    }
}
