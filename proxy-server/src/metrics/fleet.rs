//! Metrics of a node of a fleet: of itself, and of the fleet as it sees it.

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    metrics::{
        counter::{ConstCounter, Counter},
        family::Family,
        gauge::{ConstGauge, Gauge},
    },
    registry::{Registry, Unit},
};

use super::LabelSet;

/// Numbers by one label.
pub(crate) type Labelled<T> = Vec<(T, u64)>;

/// What a node's metrics tell of its fleet.
#[cfg_attr(all(not(feature = "fleet"), not(test)), expect(dead_code, reason = "a node of a fleet makes them"))]
#[derive(Clone, Debug, Default)]
pub(crate) struct FleetFigures {
    /// Nodes by state: `alive`, `draining`, `silent`, `left`.
    pub(crate) nodes: Labelled<&'static str>,
    /// Sessions by node, as its last beat told.
    pub(crate) sessions: Labelled<String>,
    /// Capacity by node, of those that have one.
    pub(crate) capacity: Labelled<String>,
    /// Seconds since the last beat of this node that was acknowledged was sent.
    pub(crate) lease_age: f64,
    /// Seconds after which it counts itself out.
    pub(crate) lease_fence: f64,
    /// Events that the log does not have yet.
    pub(crate) backlog: u64,
    /// Those of the session with the most.
    pub(crate) backlog_max: u64,
    /// Requests that were passed on, by outcome.
    pub(crate) requests: Labelled<&'static str>,
    /// Sessions of dead nodes that went on here, or did not.
    pub(crate) take_overs: Labelled<&'static str>,
    /// Sessions that were given away, or stayed.
    pub(crate) moves: Labelled<&'static str>,
    /// Sessions that were over here because another node had them.
    pub(crate) fenced: u64,
}

fn gauges<T: ToString>(label: &'static str, numbers: Labelled<T>) -> Family<LabelSet, Gauge<u64, AtomicU64>> {
    let family = Family::<LabelSet, Gauge<u64, AtomicU64>>::default();
    for (value, number) in numbers {
        family.get_or_create(&vec![(label, value.to_string())]).set(number);
    }
    family
}

fn counters(label: &'static str, numbers: Labelled<&'static str>) -> Family<LabelSet, Counter> {
    let family = Family::<LabelSet, Counter>::default();
    for (value, number) in numbers {
        family.get_or_create(&vec![(label, value.to_owned())]).inc_by(number);
    }
    family
}

impl FleetFigures {
    /// Registers everything.
    pub(super) fn register(self, registry: &mut Registry) {
        let help = "Nodes of the fleet as this one sees them, by state";
        registry.register("fleet_nodes", help, gauges("state", self.nodes));
        let help = "Sessions of each node, as its last beat told";
        registry.register("fleet_sessions", help, gauges("node", self.sessions));
        let help = "Sessions that each node may have at once, of those with a bound";
        registry.register("fleet_capacity", help, gauges("node", self.capacity));
        let help = "Time since the last acknowledged beat of this node was sent";
        registry.register_with_unit("fleet_lease_age", help, Unit::Seconds, ConstGauge::new(self.lease_age));
        let help = "Age of its lease at which this node counts itself out";
        registry.register_with_unit("fleet_lease_fence", help, Unit::Seconds, ConstGauge::new(self.lease_fence));
        let number = |number: u64| ConstGauge::new(i64::try_from(number).unwrap_or(i64::MAX));
        let help = "Events of this node's sessions that the fleet's log has not acknowledged";
        registry.register("fleet_backlog_events", help, number(self.backlog));
        let help = "Of these, those of the session with the most";
        registry.register("fleet_backlog_events_max", help, number(self.backlog_max));
        let help = "Requests that this node passed on to others, by outcome";
        registry.register("fleet_requests", help, counters("outcome", self.requests));
        let help = "Sessions of dead nodes that were taken over here, by outcome";
        registry.register("fleet_takeovers", help, counters("outcome", self.take_overs));
        let help = "Moves of this node's sessions to others, by outcome";
        registry.register("fleet_moves", help, counters("outcome", self.moves));
        let help = "Sessions that ended here because another node has them";
        registry.register("fleet_fenced_sessions", help, ConstCounter::new(self.fenced));
    }

    /// Figures with a series of each family: one without a series is not written.
    #[cfg(test)]
    pub(super) fn of_each() -> Self {
        let one = || vec![("one", 1)];
        let node = || vec![("a".to_owned(), 1)];
        let (nodes, sessions, capacity) = (one(), node(), node());
        Self { nodes, sessions, capacity, requests: one(), take_overs: one(), moves: one(), ..Self::default() }
    }
}
