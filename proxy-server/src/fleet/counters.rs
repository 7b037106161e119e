//! Counts of what this node did in its fleet, and what there is now, for metrics.

use std::sync::atomic::{AtomicU64, Ordering};

use fleet::NodePresence;

use super::FleetGateway;
use crate::metrics::FleetFigures;

/// Counts since the node joined.
#[derive(Debug, Default)]
pub(super) struct FleetCounters {
    pub(super) forwarded: AtomicU64,
    pub(super) silent: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) taken: AtomicU64,
    pub(super) not_taken: AtomicU64,
    pub(super) moved: AtomicU64,
    pub(super) not_moved: AtomicU64,
    pub(super) fenced: AtomicU64,
}

/// Counts one.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl FleetGateway {
    /// Returns the figures of now.
    pub(crate) fn figures(&self) -> FleetFigures {
        let (member, counters) = (self.member(), &self.0.counters);
        let mut nodes = [("alive", 0), ("draining", 0), ("silent", 0), ("left", 0)];
        let (mut sessions, mut capacity) = (Vec::new(), Vec::new());
        for node in member.nodes() {
            let state = match node.presence {
                NodePresence::Alive if node.record.draining => 1,
                NodePresence::Alive => 0,
                NodePresence::Silent => 2,
                NodePresence::Left => 3,
            };
            nodes[state].1 += 1;
            if node.presence != NodePresence::Alive {
                continue;
            }
            sessions.push((node.record.node.to_string(), u64::from(node.record.sessions)));
            capacity.extend(node.record.capacity.map(|most| (node.record.node.to_string(), u64::from(most))));
        }
        let (backlog, backlog_max) = self.backlog();
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        FleetFigures {
            nodes: nodes.into(),
            sessions,
            capacity,
            lease_age: member.lease_age().map_or(f64::INFINITY, |age| age.as_secs_f64()),
            lease_fence: member.times().fence.as_secs_f64(),
            backlog,
            backlog_max,
            requests: vec![
                ("answered", of(&counters.forwarded)),
                ("silent", of(&counters.silent)),
                ("refused", of(&counters.refused)),
                ("failed", of(&counters.failed)),
            ],
            take_overs: vec![("done", of(&counters.taken)), ("failed", of(&counters.not_taken))],
            moves: vec![("done", of(&counters.moved)), ("failed", of(&counters.not_moved))],
            fenced: of(&counters.fenced),
        }
    }

    /// Counts the events that the fleet's log does not have yet: of all sessions, and of the one with the most.
    pub(super) fn backlog(&self) -> (u64, u64) {
        let streams = self.0.manager.replicated_streams().into_iter();
        streams
            .map(|stream| stream.last.saturating_sub(stream.acknowledged))
            .fold((0, 0), |(all, most), events| (all + events, most.max(events)))
    }
}
