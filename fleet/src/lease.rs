//! Lease of a node: how long it may take its sessions for its own. Pure: the time comes in.

use std::time::Duration;

use crate::clock::BootTime;

/// Time for the ends of a node's sessions after its lease: longer than a kill may take.
const GRACE: Duration = Duration::from_secs(5);
/// Least time of a lease: the engine counts in whole seconds, and a beat has to fit several times.
pub const SHORTEST_LEASE: Duration = Duration::from_secs(2);

/// Times of a lease, which follow from its length. All nodes of a fleet have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTimes {
    /// Time after which the engine forgets a node that sends no beat.
    pub lease: Duration,
    /// Time between beats.
    pub beat: Duration,
    /// Time after the last acknowledged beat at which a node counts itself out, before anybody else does.
    pub fence: Duration,
    /// Time after the end of a lease for the ends of the sessions.
    pub grace: Duration,
}

impl LeaseTimes {
    /// Derives the times: a beat is a sixth of the lease, and a node gives up after two thirds.
    pub fn of(lease: Duration) -> Self {
        let lease = lease.max(SHORTEST_LEASE);
        Self { lease, beat: lease / 6, fence: lease * 2 / 3, grace: GRACE }
    }
}

/// Lease of this node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    times: LeaseTimes,
    /// Time at which the last beat that was acknowledged was sent.
    sent: Option<BootTime>,
}

impl Lease {
    /// Creates a lease that is not held yet.
    pub(crate) fn new(times: LeaseTimes) -> Self {
        Self { times, sent: None }
    }

    /// Takes note of an acknowledged beat. The time that counts is the one at which it was sent: the engine may have counted from then.
    pub(crate) fn acknowledged(&mut self, sent: BootTime) {
        self.sent = self.sent.max(Some(sent));
    }

    /// Returns true while nobody else may take over this node's sessions.
    pub(crate) fn is_held(&self, now: BootTime) -> bool {
        self.sent.is_some_and(|sent| now.since(sent) < self.times.fence)
    }

    /// Returns the time since the last acknowledged beat was sent; `None` before the first.
    pub(crate) fn age(&self, now: BootTime) -> Option<Duration> {
        self.sent.map(|sent| now.since(sent))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn times() -> LeaseTimes {
        LeaseTimes::of(Duration::from_secs(6))
    }

    #[test]
    fn a_lease_counts_from_the_time_it_was_sent() {
        let mut lease = Lease::new(times());
        assert!(!lease.is_held(BootTime::at(0)), "nobody has acknowledged anything");
        // Sent at 1 s, acknowledged at 4.9 s.
        lease.acknowledged(BootTime::at(1000));
        assert!(lease.is_held(BootTime::at(4999)));
        assert!(!lease.is_held(BootTime::at(5000)), "two thirds of six seconds after it was sent");
    }

    #[test]
    fn an_acknowledgement_of_an_older_beat_takes_nothing_away() {
        let mut lease = Lease::new(times());
        lease.acknowledged(BootTime::at(3000));
        lease.acknowledged(BootTime::at(1000));
        assert_eq!(lease.age(BootTime::at(3500)), Some(Duration::from_millis(500)));
    }

    proptest! {
        /// The engine holds a key for the lease from when it got the beat; that is never before the node has counted itself out.
        #[test]
        fn a_node_is_out_before_the_engine_forgets_it(sent in 0_u64..100_000, delay in 0_u64..60_000, seconds in 2_u64..120, now in 0_u64..400_000) {
            let times = LeaseTimes::of(Duration::from_secs(seconds));
            let mut lease = Lease::new(times);
            lease.acknowledged(BootTime::at(sent));
            let forgotten = BootTime::at(sent + delay).after(times.lease);
            let now = BootTime::at(now);
            prop_assert!(!(lease.is_held(now) && now >= forgotten));
        }
    }
}
