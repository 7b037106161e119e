//! Availability of the fleet, as all sessions of a manager see it.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::{Replication, Replicator, UnavailablePolicy};

/// Replication of a manager.
#[derive(Debug)]
pub(crate) struct ReplicationState {
    replication: Replication,
    fleet: Mutex<FleetState>,
}

#[derive(Debug, Default)]
struct FleetState {
    outage: Option<FleetOutage>,
    /// Number of outages so far.
    outages: u64,
}

#[derive(Debug)]
struct FleetOutage {
    since: Instant,
    reason: String,
    is_degraded: bool,
}

/// Effect of a report about the fleet's availability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FleetChange {
    None,
    /// An outage began, with this number: sessions are degraded after a while.
    OutageBegan(u64),
    /// An outage ended, after which sessions were degraded.
    Recovered(Duration),
}

impl ReplicationState {
    pub(crate) fn new(replication: Replication) -> Self {
        Self { replication, fleet: Mutex::default() }
    }

    pub(crate) fn replicator(&self) -> &Arc<dyn Replicator> {
        &self.replication.replicator
    }

    pub(crate) fn settings(&self) -> &Replication {
        &self.replication
    }

    fn fleet(&self) -> MutexGuard<'_, FleetState> {
        self.fleet.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the fleet is available, or the reason why it is not.
    pub(crate) fn set_available(&self, available: Result<(), String>) -> FleetChange {
        let mut fleet = self.fleet();
        match (available, &mut fleet.outage) {
            (Ok(()), None) => FleetChange::None,
            (Ok(()), Some(_)) => match fleet.outage.take() {
                Some(outage) if outage.is_degraded => FleetChange::Recovered(outage.since.elapsed()),
                _ => FleetChange::None,
            },
            (Err(reason), Some(outage)) => {
                outage.reason = reason;
                FleetChange::None
            }
            (Err(reason), None) => {
                fleet.outages += 1;
                fleet.outage = Some(FleetOutage { since: Instant::now(), reason, is_degraded: false });
                FleetChange::OutageBegan(fleet.outages)
            }
        }
    }

    /// Degrades the sessions if the outage of this number still lasts. Returns its reason, and whether sessions end.
    pub(crate) fn degrade(&self, number: u64) -> Option<(String, bool)> {
        let mut fleet = self.fleet();
        let is_it = fleet.outages == number;
        let outage = fleet.outage.as_mut().filter(|_| is_it)?;
        outage.is_degraded = true;
        Some((reason_of(outage), self.replication.on_unavailable == UnavailablePolicy::End))
    }

    /// Returns true while the fleet is unavailable.
    pub(crate) fn is_out(&self) -> bool {
        self.fleet().outage.is_some()
    }

    /// Reason why sessions are degraded, if they are.
    pub(crate) fn degraded(&self) -> Option<String> {
        self.fleet().outage.as_ref().filter(|outage| outage.is_degraded).map(reason_of)
    }
}

fn reason_of(outage: &FleetOutage) -> String {
    format!("the fleet is unavailable, so nobody sees what happens here: {}", outage.reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replication::tests::PlayedFleet;

    #[test]
    fn only_an_outage_that_lasts_degrades_and_only_then_there_is_a_recovery() {
        let state = PlayedFleet::state();
        let down = |reason: &str| state.set_available(Err(reason.to_owned()));
        assert_eq!(state.set_available(Ok(())), FleetChange::None);
        assert_eq!(down("one"), FleetChange::OutageBegan(1));
        assert_eq!(down("two"), FleetChange::None, "it is the same outage");
        assert_eq!(state.set_available(Ok(())), FleetChange::None, "nobody was told");
        assert_eq!(state.degrade(1), None);
        assert_eq!(down("three"), FleetChange::OutageBegan(2));
        assert_eq!((state.degrade(1), state.degraded()), (None, None), "that one is over");
        let (reason, ends) = state.degrade(2).expect("it lasts");
        assert!(reason.contains("three") && !ends, "{reason}");
        assert_eq!(state.degraded(), Some(reason));
        assert!(matches!(state.set_available(Ok(())), FleetChange::Recovered(_)));
        assert_eq!(state.degraded(), None);
    }
}
