//! Choice of a node for a session: a new one, one that moves, or those of a node that is dead. Pure.

use std::collections::BTreeMap;

use crate::{
    names::NodeName,
    node_table::{FleetNode, NodePresence},
};

/// What a start asks of its node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlacementRequest {
    /// Catalog id of the agent; `None` where a profile decides, which the node reads.
    pub agent: Option<String>,
    /// Node that it has to be.
    pub node: Option<NodeName>,
    /// Labels that the node has to have.
    pub labels: BTreeMap<String, String>,
    /// True where a node without room does not do: nobody waits for a place there.
    pub needs_room: bool,
    /// True for a session of a node that is dead: only nodes that go on with those of others do.
    pub is_take_over: bool,
}

/// Reason for which no node was chosen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// The node that was named is not there.
    #[error("node {node} is {}", describe_presence(*.presence))]
    NotThere {
        /// Its name.
        node: NodeName,
        /// What is known of it: `None` for a node that was never seen.
        presence: Option<NodePresence>,
    },
    /// No node that is alive does what is asked for.
    #[error("of {} no node fits: {}", count(*.nodes), .reasons.join("; "))]
    NoneFits {
        /// Number of nodes that are alive.
        nodes: usize,
        /// Each node's reason.
        reasons: Vec<String>,
    },
}

fn describe_presence(presence: Option<NodePresence>) -> &'static str {
    match presence {
        None => "none of this fleet",
        Some(NodePresence::Silent) => "silent",
        Some(NodePresence::Left) => "gone: it has left the fleet",
        Some(NodePresence::Alive) => "there",
    }
}

fn count(nodes: usize) -> String {
    if nodes == 1 { "1 node".to_owned() } else { format!("{nodes} nodes") }
}

/// Longest list of reasons in an error.
const MAX_REASONS: usize = 8;

/// Chooses the node for a start: one that is alive, fits and has room, the least loaded first. Where all that fit are full it is the least
/// loaded of these: its own queue and bounds decide. `excluded` have refused already.
///
/// # Errors
/// Says of each node why it is not the one.
pub(crate) fn choose(
    nodes: &[FleetNode],
    request: &PlacementRequest,
    excluded: &[NodeName],
) -> Result<NodeName, PlacementError> {
    if let Some(pinned) = &request.node {
        let found = nodes.iter().find(|node| node.record.node == *pinned);
        let presence = found.map(|node| node.presence);
        if presence != Some(NodePresence::Alive) {
            return Err(PlacementError::NotThere { node: pinned.clone(), presence });
        }
    }
    let alive: Vec<&FleetNode> = nodes.iter().filter(|node| node.presence == NodePresence::Alive).collect();
    let mut reasons = Vec::new();
    let mut best: Option<&FleetNode> = None;
    for node in &alive {
        match unfit(node, request, excluded) {
            Some(reason) => reasons.push(format!("{} {reason}", node.record.node)),
            None if best.is_none_or(|best| load(node) < load(best)) => best = Some(node),
            None => {}
        }
    }
    let too_many = reasons.len().saturating_sub(MAX_REASONS);
    reasons.truncate(MAX_REASONS);
    if too_many > 0 {
        reasons.push(format!("and {too_many} more"));
    }
    best.map(|node| node.record.node.clone()).ok_or(PlacementError::NoneFits { nodes: alive.len(), reasons })
}

/// Chooses nodes for the sessions of dead nodes, one after the other: each counts where the next is placed. Every node that knows the same
/// rows chooses the same.
pub(crate) fn spread(nodes: &[FleetNode], requests: &[PlacementRequest]) -> Vec<Result<NodeName, PlacementError>> {
    let mut nodes = nodes.to_vec();
    let mut chosen = Vec::with_capacity(requests.len());
    for request in requests {
        let node = choose(&nodes, request, &[]);
        // One that stays suspended takes no room.
        if let Some(node) = node.as_ref().ok().filter(|_| request.needs_room) {
            let taken = nodes.iter_mut().filter(|other| other.record.node == *node);
            taken.for_each(|node| node.record.sessions = node.record.sessions.saturating_add(1));
        }
        chosen.push(node);
    }
    chosen
}

/// Returns why a node cannot have the session.
fn unfit(node: &FleetNode, request: &PlacementRequest, excluded: &[NodeName]) -> Option<String> {
    let record = &node.record;
    if request.node.as_ref().is_some_and(|pinned| *pinned != record.node) {
        return Some("is another than the one asked for".into());
    }
    if record.draining {
        return Some("takes no new sessions (it drains)".into());
    }
    let missing = request.labels.iter().find(|(key, value)| record.labels.get(*key) != Some(*value));
    if let Some((key, value)) = missing {
        return Some(match record.labels.get(key) {
            Some(other) => format!("has the label {key}={other}, not {key}={value}"),
            None => format!("has no label {key}={value}"),
        });
    }
    if let Some(agent) = &request.agent
        && !record.agents.contains(agent)
    {
        return Some(format!("does not have the agent {agent:?}"));
    }
    if excluded.contains(&record.node) {
        return Some("has it, or has refused it".into());
    }
    if request.is_take_over && !record.takes_over {
        return Some("does not go on with sessions of others (--take-over)".into());
    }
    (request.needs_room && is_full(node)).then(|| {
        let capacity = record.capacity.unwrap_or_default();
        format!("has no room ({} of {capacity} sessions)", record.sessions)
    })
}

fn is_full(node: &FleetNode) -> bool {
    node.record.capacity.is_some_and(|capacity| node.record.sessions >= capacity)
}

/// Order of nodes for a start: those with room first, then by the share that is in use, in parts of a million, then by sessions and name. A
/// node without a capacity counts as one for a thousand.
fn load(node: &FleetNode) -> (bool, u64, u32, &NodeName) {
    let record = &node.record;
    let capacity = record.capacity.map_or(1000, |capacity| capacity.max(1));
    let share = u64::from(record.sessions) * 1_000_000 / u64::from(capacity);
    (is_full(node), share, record.sessions, &record.node)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::records::NodeRecord;

    fn node(name: &str, sessions: u32, capacity: Option<u32>, labels: &[(&str, &str)], agents: &[&str]) -> FleetNode {
        let record = NodeRecord {
            node: name.parse().expect("a name"),
            incarnation: "1".into(),
            identity: None,
            version: "0".into(),
            addresses: Vec::new(),
            labels: labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            capacity,
            sessions,
            agents: agents.iter().map(|agent| (*agent).to_owned()).collect(),
            takes_over: false,
            draining: false,
            layers: Vec::new(),
            backlog: 0,
        };
        FleetNode { record, presence: NodePresence::Alive, silent_seconds: 0, is_self: false }
    }

    fn request(agent: &str, labels: &[(&str, &str)]) -> PlacementRequest {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        PlacementRequest { agent: Some(agent.into()), labels, ..PlacementRequest::default() }
    }

    fn chosen(nodes: &[FleetNode], request: &PlacementRequest) -> Result<String, String> {
        choose(nodes, request, &[]).map(|node| node.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_least_loaded_that_fits_gets_it() {
        let nodes = [
            node("a", 5, Some(10), &[], &["pi"]),
            node("b", 6, Some(40), &[], &["pi"]),
            node("c", 0, Some(40), &[], &["codex"]),
        ];
        assert_eq!(chosen(&nodes, &request("pi", &[])), Ok("b".into()), "a smaller share is in use");
        assert_eq!(chosen(&nodes, &request("codex", &[])), Ok("c".into()));
    }

    #[test]
    fn labels_and_a_pin_decide_before_load() {
        let nodes = [
            node("a", 0, None, &[("gpu", "0")], &["pi"]),
            node("b", 900, None, &[("gpu", "1"), ("disk", "ssd")], &["pi"]),
        ];
        assert_eq!(chosen(&nodes, &request("pi", &[("gpu", "1")])), Ok("b".into()));
        let pinned = PlacementRequest { node: Some("b".parse().expect("a name")), ..request("pi", &[]) };
        assert_eq!(chosen(&nodes, &pinned), Ok("b".into()));
    }

    #[test]
    fn a_refusal_says_of_each_node_why() {
        let mut nodes = [
            node("a", 0, None, &[("gpu", "0")], &["pi"]),
            node("b", 0, None, &[], &["pi"]),
            node("c", 0, None, &[("gpu", "1")], &[]),
            node("d", 0, None, &[("gpu", "1")], &["pi"]),
        ];
        nodes[3].record.draining = true;
        assert_eq!(
            chosen(&nodes, &request("pi", &[("gpu", "1")])),
            Err("of 4 nodes no node fits: a has the label gpu=0, not gpu=1; b has no label gpu=1; c does not have the agent \"pi\"; d takes no \
                 new sessions (it drains)"
                .into())
        );
    }

    #[test]
    fn a_pin_on_a_node_that_is_not_there_says_so() {
        let mut silent = node("a", 0, None, &[], &["pi"]);
        silent.presence = NodePresence::Silent;
        let pinned = |name: &str| PlacementRequest { node: Some(name.parse().expect("a name")), ..request("pi", &[]) };
        assert_eq!(chosen(std::slice::from_ref(&silent), &pinned("a")), Err("node a is silent".into()));
        assert_eq!(chosen(&[silent], &pinned("z")), Err("node z is none of this fleet".into()));
    }

    #[test]
    fn a_full_fleet_leaves_it_to_the_least_loaded() {
        let nodes = [node("a", 4, Some(2), &[], &["pi"]), node("b", 2, Some(2), &[], &["pi"])];
        assert_eq!(chosen(&nodes, &request("pi", &[])), Ok("b".into()));
        let refused = choose(&nodes, &request("pi", &[]), &["b".parse().expect("a name")]);
        assert_eq!(refused.map(|node| node.to_string()), Ok("a".into()), "another than the one that refused");
    }

    fn take_over(agent: &str, labels: &[(&str, &str)]) -> PlacementRequest {
        PlacementRequest { needs_room: true, is_take_over: true, ..request(agent, labels) }
    }

    fn spread_names(nodes: &[FleetNode], requests: &[PlacementRequest]) -> Vec<String> {
        let chosen = spread(nodes, requests).into_iter();
        chosen.map(|node| node.map_or_else(|error| error.to_string(), |node| node.to_string())).collect()
    }

    #[test]
    fn sessions_of_a_dead_node_are_spread_over_those_that_fit() {
        let taking = |name: &str, sessions, capacity, labels: &[(&str, &str)]| {
            let mut node = node(name, sessions, capacity, labels, &["pi"]);
            node.record.takes_over = true;
            node
        };
        let nodes = [
            taking("a", 0, Some(10), &[]),
            taking("b", 2, Some(10), &[("gpu", "1")]),
            taking("full", 10, Some(10), &[("gpu", "1")]),
            node("idle", 0, None, &[("gpu", "1")], &["pi"]),
        ];
        let requests =
            [take_over("pi", &[]), take_over("pi", &[]), take_over("pi", &[]), take_over("pi", &[("gpu", "1")])];
        assert_eq!(spread_names(&nodes, &requests), ["a", "a", "a", "b"], "a has as much as b from then on");
        let more = [&requests[..], &requests[..2]].concat();
        assert_eq!(spread_names(&nodes, &more)[4..], ["a", "b"], "in turns");
        assert_eq!(
            spread_names(&nodes, &[take_over("codex", &[])]),
            [
                "of 4 nodes no node fits: a does not have the agent \"codex\"; b does not have the agent \"codex\"; full does not have the agent \
              \"codex\"; idle does not have the agent \"codex\""
            ]
        );
    }

    #[test]
    fn a_session_that_goes_on_elsewhere_needs_room_and_one_that_stays_suspended_does_not() {
        let mut only = node("a", 1, Some(2), &[], &["pi"]);
        only.record.takes_over = true;
        let nodes = [only];
        let resumed = take_over("pi", &[]);
        let refused = "of 1 node no node fits: a has no room (2 of 2 sessions)";
        assert_eq!(spread_names(&nodes, &[resumed.clone(), resumed.clone()]), ["a", refused]);
        let suspended = PlacementRequest { needs_room: false, ..resumed.clone() };
        assert_eq!(spread_names(&nodes, &[suspended.clone(), suspended, resumed]), ["a", "a", "a"]);
    }

    proptest! {
        /// No session goes where there is no room, and none waits where there is some.
        #[test]
        fn spreading_fills_the_nodes_and_no_more(loads in proptest::collection::vec((0_u32..10, 1_u32..10), 1..8), sessions in 0_usize..40) {
            let nodes: Vec<FleetNode> = loads.iter().enumerate().map(|(number, (sessions, capacity))| {
                let mut node = node(&format!("n{number}"), *sessions, Some(*capacity), &[], &["pi"]);
                node.record.takes_over = true;
                node
            }).collect();
            let room: u32 = loads.iter().map(|(sessions, capacity)| capacity.saturating_sub(*sessions)).sum();
            let placed = spread(&nodes, &vec![take_over("pi", &[]); sessions]);
            prop_assert_eq!(placed.iter().filter(|node| node.is_ok()).count(), sessions.min(room as usize));
            for node in &nodes {
                let here = placed.iter().filter(|chosen| chosen.as_ref() == Ok(&node.record.node)).count();
                prop_assert!(here == 0 || node.record.sessions as usize + here <= node.record.capacity.unwrap_or_default() as usize);
            }
        }

        #[test]
        fn no_other_node_with_room_is_less_loaded(loads in proptest::collection::vec((0_u32..50, proptest::option::of(1_u32..50)), 1..20)) {
            let nodes: Vec<FleetNode> = loads.iter().enumerate().map(|(number, (sessions, capacity))| node(&format!("n{number}"), *sessions, *capacity, &[], &["pi"])).collect();
            let chosen = choose(&nodes, &request("pi", &[]), &[]).expect("all fit");
            let chosen = nodes.iter().find(|node| node.record.node == chosen).expect("one of them");
            prop_assert!(nodes.iter().all(|node| load(chosen) <= load(node)));
        }
    }
}
