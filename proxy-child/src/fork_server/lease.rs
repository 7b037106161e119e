//! Dead man's switch: the host extends a lease on its sessions, and once the lease is over the fork server ends them by itself. So
//! no agent goes on while its host stands still and another machine may have its session.

use std::time::{Duration, Instant};

use ipc_protocol::{KillCause, KillOptions, WireError};
use registry::boot_time;

use super::{ForkServer, SessionGuard};

/// Longest wait without a look at the clock: the clock of the wait stands still while the machine is suspended, and that of the
/// lease does not.
const TICK: Duration = Duration::from_secs(1);

/// Lease on the sessions of a host. A host that sets none needs none.
#[derive(Debug, Default)]
pub(super) struct SessionLease {
    /// Time since the machine's boot (`CLOCK_BOOTTIME`) at which it is over.
    until: Option<Duration>,
    /// True once the sessions are being ended for it.
    is_enforced: bool,
}

impl SessionLease {
    /// Sets the end of the lease.
    pub(super) fn renew(&mut self, until: Duration) {
        *self = Self { until: Some(until), is_enforced: false };
    }

    /// Returns true if there was a lease, and it is over.
    pub(super) fn is_over(&self, now: Duration) -> bool {
        self.until.is_some_and(|until| until <= now)
    }

    /// Returns the time until the next look at the clock; `None` where there is nothing to look for.
    fn next(&self, now: Duration) -> Option<Duration> {
        let left = self.until.filter(|_| !self.is_enforced)?.saturating_sub(now);
        Some(left.min(TICK))
    }

    /// Returns true once if the lease is over.
    fn take_end(&mut self, now: Duration) -> bool {
        self.is_over(now) && !std::mem::replace(&mut self.is_enforced, true)
    }
}

impl ForkServer<'_> {
    /// Returns the time of the next look at the lease.
    pub(super) fn next_lease_check(&self) -> Option<Instant> {
        self.lease.next(boot_time()).map(|left| Instant::now() + left)
    }

    /// Refuses to start anything once the lease is over.
    pub(super) fn check_lease(&self) -> Result<(), WireError> {
        if !self.lease.is_over(boot_time()) {
            return Ok(());
        }
        let reason = "the lease on this machine's sessions is over, and its host has not extended it".to_owned();
        Err(WireError::System { operation: "starting a session".to_owned(), reason })
    }

    /// Ends all sessions if the lease is over.
    pub(super) fn enforce_lease(&mut self) {
        if !self.lease.take_end(boot_time()) {
            return;
        }
        for proxy in self.proxies.all() {
            let process = proxy.process.id();
            match self.guards.iter_mut().find(|guard| guard.guards_proxy(process.pid)) {
                Some(guard) => guard.shorten_grace(KillOptions::NOW),
                None => {
                    let (origin, cause) = ((process, proxy.forks), KillCause::Lease);
                    let guard =
                        SessionGuard::of_proxy(&proxy.session, &proxy.enclosure, origin, cause, KillOptions::NOW);
                    self.guards.push(guard);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_lease_ends_once_and_a_host_without_one_has_no_end() {
        let mut lease = SessionLease::default();
        assert!(!lease.is_over(at(1000)) && !lease.take_end(at(1000)));
        assert_eq!(lease.next(at(1000)), None);
        lease.renew(at(10));
        assert_eq!((lease.next(at(5)), lease.next(at(10))), (Some(TICK), Some(Duration::ZERO)));
        assert!(!lease.take_end(at(9)));
        // A machine that was suspended finds it over.
        assert!(lease.take_end(at(500)) && !lease.take_end(at(501)));
        assert!(lease.is_over(at(501)), "nothing is started meanwhile");
        assert_eq!(lease.next(at(501)), None);
        lease.renew(at(510));
        assert!(!lease.is_over(at(501)));
        assert!(lease.take_end(at(510)));
    }
}
