//! Clock of leases: it goes on while the machine sleeps, and no one can set it.

use std::time::Duration;

use proxy_manager::replication::LeaseDeadline;

/// Time since the machine was started, its sleep included (`CLOCK_BOOTTIME`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootTime(Duration);

impl BootTime {
    /// Reads the clock.
    pub fn now() -> Self {
        Self(LeaseDeadline::now())
    }

    /// Returns the time from `earlier` to this one; zero where that is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the time that is this much later.
    #[must_use]
    pub fn after(self, time: Duration) -> Self {
        Self(self.0.saturating_add(time))
    }

    /// Returns the time since the machine was started.
    #[must_use]
    pub fn since_boot(self) -> Duration {
        self.0
    }

    #[cfg(test)]
    pub(crate) fn at(milliseconds: u64) -> Self {
        Self(Duration::from_millis(milliseconds))
    }
}
