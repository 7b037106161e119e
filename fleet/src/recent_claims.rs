//! Sessions that nodes have claimed since their last beats told their load. Pure.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use crate::{clock::BootTime, names::NodeName};

/// Time for which a claim counts whatever a beat says: that may have been on its way before.
const SETTLING: Duration = Duration::from_secs(1);
/// Most claims of a node that are counted.
const MAX_CLAIMS: usize = 10_000;

/// Claims by node. A start that is placed just after others counts them, though no beat has told of them yet.
#[derive(Debug, Default)]
pub(crate) struct RecentClaims(BTreeMap<NodeName, VecDeque<BootTime>>);

impl RecentClaims {
    /// Takes note that a node has claimed a session.
    pub(crate) fn claimed(&mut self, node: &NodeName, now: BootTime) {
        let claims = self.0.entry(node.clone()).or_default();
        if claims.len() < MAX_CLAIMS {
            claims.push_back(now);
        }
    }

    /// Takes note of a beat: its load has the claims that were made before.
    pub(crate) fn beat(&mut self, node: &NodeName, now: BootTime) {
        if let Some(claims) = self.0.get_mut(node) {
            claims.retain(|claimed| now.since(*claimed) < SETTLING);
            if claims.is_empty() {
                self.0.remove(node);
            }
        }
    }

    /// Returns the number of claims of a node that its last beat may not have.
    pub(crate) fn of(&self, node: &NodeName) -> u32 {
        self.0.get(node).map_or(0, |claims| u32::try_from(claims.len()).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_counts_until_a_beat_that_has_it() {
        let (a, b): (NodeName, NodeName) = ("a".parse().expect("a name"), "b".parse().expect("a name"));
        let mut claims = RecentClaims::default();
        claims.claimed(&a, BootTime::at(0));
        claims.claimed(&a, BootTime::at(900));
        assert_eq!((claims.of(&a), claims.of(&b)), (2, 0));
        claims.beat(&b, BootTime::at(5000));
        claims.beat(&a, BootTime::at(1200));
        assert_eq!(claims.of(&a), 1, "the beat may have been sent before the second");
        claims.beat(&a, BootTime::at(1900));
        assert_eq!(claims.of(&a), 0);
    }
}
