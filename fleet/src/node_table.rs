//! Nodes as this one sees them: their last beats, by its own clock. Pure.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;

use crate::{clock::BootTime, lease::LeaseTimes, names::NodeName, records::NodeRecord};

/// Most nodes that are gone and still listed.
const MAX_GONE: usize = 256;

/// Change of a row in the bucket of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NodeChange {
    /// A beat.
    Beat(Box<NodeRecord>),
    /// The node has left.
    Left,
    /// The engine has forgotten it: its lease is over.
    Expired,
}

/// Whether a node is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum NodePresence {
    /// Its beats come.
    Alive,
    /// Its lease is over.
    Silent,
    /// It has ended, and said so.
    Left,
}

/// Node of the fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FleetNode {
    /// What its last beat said. In JSON its fields are among these.
    #[serde(flatten)]
    pub record: NodeRecord,
    /// Whether it is there.
    pub presence: NodePresence,
    /// Seconds since the last beat came in at the node that was asked.
    pub silent_seconds: u64,
    /// True for the node that was asked.
    pub is_self: bool,
}

#[derive(Clone, Debug)]
struct NodeRow {
    record: NodeRecord,
    revision: u64,
    /// Time at which the last beat came in.
    heard: BootTime,
    /// How it went, if the engine said so.
    gone: Option<NodePresence>,
}

/// Table of the nodes.
#[derive(Debug)]
pub(crate) struct NodeTable {
    times: LeaseTimes,
    rows: BTreeMap<NodeName, NodeRow>,
    /// Time from which on this node has heard all beats: before, it may have been cut off itself.
    hears_since: Option<BootTime>,
}

impl NodeTable {
    /// Creates a table that knows no node.
    pub(crate) fn new(times: LeaseTimes) -> Self {
        Self { times, rows: BTreeMap::new(), hears_since: None }
    }

    /// Begins to count the silence of all nodes anew: this one has heard nothing for a while.
    pub(crate) fn restart_silence(&mut self, now: BootTime) {
        self.hears_since = Some(now);
    }

    /// Takes note of a change. One that was seen before is no sign of life, nor is the removal of a row. Returns true for one that was not.
    pub(crate) fn observe(&mut self, node: &NodeName, revision: u64, change: NodeChange, now: BootTime) -> bool {
        let known = self.rows.get(node).map_or(0, |row| row.revision);
        if revision <= known {
            return false;
        }
        match (change, self.rows.get_mut(node)) {
            (NodeChange::Beat(record), _) => {
                self.rows.insert(node.clone(), NodeRow { record: *record, revision, heard: now, gone: None });
            }
            (NodeChange::Left, Some(row)) => (row.revision, row.gone) = (revision, Some(NodePresence::Left)),
            (NodeChange::Expired, Some(row)) => (row.revision, row.gone) = (revision, Some(NodePresence::Silent)),
            (NodeChange::Left | NodeChange::Expired, None) => {}
        }
        self.forget_oldest();
        true
    }

    /// Forgets a node that is gone.
    pub(crate) fn forget(&mut self, node: &NodeName) {
        self.rows.remove(node);
    }

    /// Returns what is known of a node.
    pub(crate) fn node(&self, node: &NodeName, now: BootTime) -> Option<FleetNode> {
        self.rows.get(node).map(|row| self.describe(row, now))
    }

    /// Returns all nodes, by name.
    pub(crate) fn nodes(&self, now: BootTime) -> Vec<FleetNode> {
        self.rows.values().map(|row| self.describe(row, now)).collect()
    }

    /// Returns the nodes whose sessions may be taken: their leases are over, and the time for their ends as well.
    pub(crate) fn over(&self, now: BootTime) -> Vec<NodeRecord> {
        let is_over = |row: &&NodeRow| {
            let end = self.times.lease + self.times.grace;
            let is_silent = row.gone != Some(NodePresence::Left) && self.silence_of(row, now) >= end;
            is_silent && row.record.takes_over
        };
        self.rows.values().filter(is_over).map(|row| row.record.clone()).collect()
    }

    /// Returns the time until the sessions of the next silent node may be taken; `None` where there is none.
    pub(crate) fn until_over(&self, now: BootTime) -> Option<Duration> {
        let end = self.times.lease + self.times.grace;
        let waiting = self.rows.values().filter(|row| row.gone != Some(NodePresence::Left) && row.record.takes_over);
        let waiting = waiting
            .map(|row| self.silence_of(row, now))
            .filter(|silence| *silence >= self.times.lease && *silence < end);
        waiting.map(|silence| end - silence).min()
    }

    /// Returns the time for which a node has not been heard, though it could have been.
    fn silence_of(&self, row: &NodeRow, now: BootTime) -> Duration {
        now.since(self.hears_since.map_or(row.heard, |since| since.max(row.heard)))
    }

    fn describe(&self, row: &NodeRow, now: BootTime) -> FleetNode {
        let silence = now.since(row.heard);
        let presence = match row.gone {
            Some(gone) => gone,
            None if silence >= self.times.lease => NodePresence::Silent,
            None => NodePresence::Alive,
        };
        FleetNode { record: row.record.clone(), presence, silent_seconds: silence.as_secs(), is_self: false }
    }

    fn forget_oldest(&mut self) {
        let gone = || self.rows.iter().filter(|(_, row)| row.gone.is_some());
        if gone().count() > MAX_GONE
            && let Some(oldest) = gone().min_by_key(|(_, row)| row.heard).map(|(name, _)| name.clone())
        {
            self.rows.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(name: &str) -> NodeRecord {
        NodeRecord {
            node: name.parse().expect("a name"),
            incarnation: "1".into(),
            identity: None,
            version: "0".into(),
            addresses: Vec::new(),
            labels: BTreeMap::new(),
            capacity: None,
            sessions: 0,
            agents: Vec::new(),
            takes_over: false,
            draining: false,
            layers: Vec::new(),
            backlog: 0,
        }
    }

    fn table() -> (NodeTable, NodeName) {
        (NodeTable::new(LeaseTimes::of(Duration::from_secs(6))), "a".parse().expect("a name"))
    }

    fn presence(table: &NodeTable, node: &NodeName, at: u64) -> (NodePresence, u64) {
        let node = table.node(node, BootTime::at(at)).expect("known");
        (node.presence, node.silent_seconds)
    }

    #[test]
    fn a_node_without_beats_is_silent_after_the_lease() {
        let (mut table, a) = table();
        table.observe(&a, 1, NodeChange::Beat(Box::new(record("a"))), BootTime::at(0));
        assert_eq!(presence(&table, &a, 5999), (NodePresence::Alive, 5));
        assert_eq!(presence(&table, &a, 6000), (NodePresence::Silent, 6));
        table.observe(&a, 2, NodeChange::Beat(Box::new(record("a"))), BootTime::at(9000));
        assert_eq!(presence(&table, &a, 9000), (NodePresence::Alive, 0));
    }

    #[test]
    fn the_end_of_a_row_is_no_sign_of_life() {
        let (mut table, a) = table();
        table.observe(&a, 1, NodeChange::Beat(Box::new(record("a"))), BootTime::at(0));
        table.observe(&a, 2, NodeChange::Expired, BootTime::at(6100));
        assert_eq!(presence(&table, &a, 7000), (NodePresence::Silent, 7), "counted from the beat");
        table.observe(&a, 3, NodeChange::Left, BootTime::at(8000));
        assert_eq!(presence(&table, &a, 8000), (NodePresence::Left, 8));
    }

    #[test]
    fn a_beat_that_is_seen_again_is_no_sign_of_life() {
        let (mut table, a) = table();
        table.observe(&a, 7, NodeChange::Beat(Box::new(record("a"))), BootTime::at(0));
        // As after a watch that began anew.
        table.observe(&a, 7, NodeChange::Beat(Box::new(record("a"))), BootTime::at(5000));
        assert_eq!(presence(&table, &a, 6000), (NodePresence::Silent, 6));
    }

    #[test]
    fn sessions_are_taken_after_lease_and_grace_where_they_end_before() {
        let (mut table, a) = table();
        table.observe(
            &a,
            1,
            NodeChange::Beat(Box::new(NodeRecord { takes_over: true, ..record("a") })),
            BootTime::at(0),
        );
        let b: NodeName = "b".parse().expect("a name");
        table.observe(&b, 2, NodeChange::Beat(Box::new(record("b"))), BootTime::at(0));
        let over = |at| table.over(BootTime::at(at)).into_iter().map(|node| node.node).collect::<Vec<_>>();
        assert_eq!(over(10_999), []);
        assert_eq!(over(11_000), [a], "six seconds and five");
        let until = |at| table.until_over(BootTime::at(at)).map(|time| time.as_millis());
        assert_eq!((until(5000), until(6000), until(10_990), until(11_000)), (None, Some(5000), Some(10), None));
    }

    #[test]
    fn the_silence_that_a_node_had_no_ears_for_does_not_count() {
        let (mut table, a) = table();
        table.observe(
            &a,
            1,
            NodeChange::Beat(Box::new(NodeRecord { takes_over: true, ..record("a") })),
            BootTime::at(0),
        );
        table.restart_silence(BootTime::at(9000));
        assert!(table.over(BootTime::at(19_999)).is_empty());
        assert_eq!(table.over(BootTime::at(20_000)).len(), 1);
        assert_eq!(presence(&table, &a, 20_000), (NodePresence::Silent, 20), "what is shown of it is as it was");
    }

    #[test]
    fn nodes_that_are_gone_are_bounded() {
        let (mut table, _) = table();
        for number in 0..300_u64 {
            let name = format!("n{number}");
            let node: NodeName = name.parse().expect("a name");
            table.observe(&node, 2 * number + 1, NodeChange::Beat(Box::new(record(&name))), BootTime::at(number));
            table.observe(&node, 2 * number + 2, NodeChange::Left, BootTime::at(number));
        }
        assert_eq!(table.nodes(BootTime::at(300)).len(), MAX_GONE);
        assert!(table.node(&"n0".parse().expect("a name"), BootTime::at(300)).is_none(), "the oldest is forgotten");
    }
}
