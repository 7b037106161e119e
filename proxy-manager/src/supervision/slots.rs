//! Allocation of places to sessions, and the order of the queue. Pure.
//!
//! Users take turns: among users with a waiting start, the one served longest ago is next, so that a user with a
//! hundred starts delays nobody else. Each user's starts keep their order. A start held back by the bound of its user
//! or agent delays no other.

use std::collections::{HashMap, VecDeque};

use super::{Occupancy, SessionBounds};
use crate::error::SessionBound;

/// User and agent that a place is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlotClaim {
    pub(crate) user: Option<String>,
    pub(crate) agent: String,
}

/// Identifies a waiting start.
pub(super) type SlotTicket = u64;

/// Result of a claim.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SlotVerdict {
    Admitted,
    Waits(SlotTicket),
    /// The bound is reached, and the queue is full.
    Refused(SessionBound, usize),
}

#[derive(Debug, Default)]
pub(super) struct SlotPolicy {
    bounds: SessionBounds,
    running: usize,
    users: HashMap<String, usize>,
    agents: HashMap<String, usize>,
    /// Waiting starts, oldest first.
    waiting: VecDeque<(SlotTicket, SlotClaim)>,
    /// Users with a waiting start, the next one first.
    user_rotation: VecDeque<Option<String>>,
    last: SlotTicket,
}

impl SlotPolicy {
    pub(super) fn new(bounds: SessionBounds) -> Self {
        Self { bounds, ..Self::default() }
    }

    pub(super) fn occupancy(&self) -> Occupancy {
        Occupancy { running: self.running, waiting: self.waiting.len() }
    }

    /// Returns the bound that a claim would exceed, with its value.
    pub(super) fn reached_bound(&self, claim: &SlotClaim) -> Option<(SessionBound, usize)> {
        let full = |bound: Option<usize>, running: usize| bound.filter(|bound| running >= *bound);
        let count = |counts: &HashMap<String, usize>, name: &str| counts.get(name).copied().unwrap_or_default();
        if let Some(bound) = full(self.bounds.total, self.running) {
            return Some((SessionBound::Total, bound));
        }
        if let Some(user) = &claim.user
            && let Some(bound) = full(self.bounds.per_user, count(&self.users, user))
        {
            return Some((SessionBound::User(user.clone()), bound));
        }
        let bound = full(self.bounds.per_agent, count(&self.agents, &claim.agent))?;
        Some((SessionBound::Agent(claim.agent.clone()), bound))
    }

    /// Claims a place for a start. It cannot overtake: starts in the queue are held back by their own bounds, or by one
    /// that holds this start back too.
    pub(super) fn claim(&mut self, claim: &SlotClaim) -> SlotVerdict {
        let Some((bound, limit)) = self.reached_bound(claim) else {
            self.take(claim);
            return SlotVerdict::Admitted;
        };
        if self.waiting.len() >= self.bounds.queue {
            return SlotVerdict::Refused(bound, limit);
        }
        self.last += 1;
        self.waiting.push_back((self.last, claim.clone()));
        if !self.user_rotation.contains(&claim.user) {
            self.user_rotation.push_back(claim.user.clone());
        }
        SlotVerdict::Waits(self.last)
    }

    /// Makes a place that is nobody's a user's.
    ///
    /// # Errors
    /// The bound of the user's sessions, if it is reached.
    pub(super) fn assign(&mut self, user: &str) -> Result<(), (SessionBound, usize)> {
        let running = self.users.get(user).copied().unwrap_or_default();
        if let Some(bound) = self.bounds.per_user.filter(|bound| running >= *bound) {
            return Err((SessionBound::User(user.to_owned()), bound));
        }
        *self.users.entry(user.to_owned()).or_default() += 1;
        Ok(())
    }

    /// Takes a place regardless of the bounds.
    pub(super) fn take(&mut self, claim: &SlotClaim) {
        self.running += 1;
        if let Some(user) = &claim.user {
            *self.users.entry(user.clone()).or_default() += 1;
        }
        *self.agents.entry(claim.agent.clone()).or_default() += 1;
    }

    /// Frees a place. Returns the starts that get one now.
    pub(super) fn release(&mut self, claim: &SlotClaim) -> Vec<SlotTicket> {
        self.running = self.running.saturating_sub(1);
        if let Some(user) = &claim.user {
            decrement(&mut self.users, user);
        }
        decrement(&mut self.agents, &claim.agent);
        std::iter::from_fn(|| self.next()).collect()
    }

    /// Gives the next start in the queue its place.
    fn next(&mut self) -> Option<SlotTicket> {
        for turn in 0..self.user_rotation.len() {
            let user = &self.user_rotation[turn];
            let mut of_user = self.waiting.iter().enumerate().filter(|(_, (_, claim))| claim.user == *user);
            let Some(at) = of_user.find(|(_, (_, claim))| self.reached_bound(claim).is_none()).map(|(at, _)| at) else {
                continue;
            };
            let (ticket, claim) = self.waiting.remove(at)?;
            self.take(&claim);
            self.user_rotation.remove(turn);
            if self.waiting.iter().any(|(_, other)| other.user == claim.user) {
                self.user_rotation.push_back(claim.user);
            }
            return Some(ticket);
        }
        None
    }

    /// Removes a start from the queue. Returns `false` if it was not there.
    pub(super) fn leave(&mut self, ticket: SlotTicket) -> bool {
        let Some(at) = self.waiting.iter().position(|(waiting, _)| *waiting == ticket) else { return false };
        let Some((_, claim)) = self.waiting.remove(at) else { return false };
        if !self.waiting.iter().any(|(_, other)| other.user == claim.user) {
            self.user_rotation.retain(|user| *user != claim.user);
        }
        true
    }
}

fn decrement(counts: &mut HashMap<String, usize>, name: &str) {
    if let Some(count) = counts.get_mut(name) {
        *count -= 1;
        if *count == 0 {
            counts.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn claim(user: &str, agent: &str) -> SlotClaim {
        SlotClaim { user: (!user.is_empty()).then(|| user.to_owned()), agent: agent.to_owned() }
    }

    fn bounds(total: usize, queue: usize) -> SessionBounds {
        SessionBounds { total: Some(total), queue, ..SessionBounds::default() }
    }

    #[test]
    fn a_place_that_is_nobody_s_becomes_a_user_s_within_that_user_s_bound() {
        let mut slots = SlotPolicy::new(SessionBounds { per_user: Some(1), ..SessionBounds::default() });
        for _ in 0..2 {
            assert_eq!(slots.claim(&claim("", "a")), SlotVerdict::Admitted);
        }
        assert_eq!(slots.assign("ada"), Ok(()));
        assert_eq!(slots.assign("ada"), Err((SessionBound::User("ada".into()), 1)));
        assert_eq!(slots.occupancy().running, 2, "it is the same place");
        assert!(slots.release(&claim("ada", "a")).is_empty());
        assert_eq!((slots.assign("ada"), slots.occupancy().running), (Ok(()), 1));
    }

    #[test]
    fn users_take_turns_and_each_one_s_starts_keep_their_order() {
        let mut slots = SlotPolicy::new(bounds(1, 10));
        let (a, b, c) = (claim("a", "x"), claim("b", "x"), claim("", "x"));
        assert_eq!(slots.claim(&a), SlotVerdict::Admitted);
        for (claim, ticket) in [(&a, 1), (&a, 2), (&a, 3), (&b, 4), (&c, 5), (&b, 6)] {
            assert_eq!(slots.claim(claim), SlotVerdict::Waits(ticket));
        }
        let mut order = Vec::new();
        for ended in [&a, &a, &b, &c, &a, &b] {
            order.extend(slots.release(ended));
        }
        assert_eq!(order, [1, 4, 5, 2, 6, 3]);
        assert_eq!(slots.occupancy(), Occupancy { running: 1, waiting: 0 });
    }

    #[test]
    fn who_waits_for_a_bound_of_its_own_holds_up_nobody() {
        let bounds = SessionBounds { per_user: Some(1), per_agent: Some(2), ..bounds(3, 2) };
        let mut slots = SlotPolicy::new(bounds);
        assert_eq!(slots.claim(&claim("a", "x")), SlotVerdict::Admitted);
        assert_eq!(slots.claim(&claim("a", "y")), SlotVerdict::Waits(1));
        assert_eq!(slots.claim(&claim("b", "x")), SlotVerdict::Admitted);
        assert_eq!(slots.claim(&claim("c", "x")), SlotVerdict::Waits(2));
        assert_eq!(slots.claim(&claim("d", "x")), SlotVerdict::Refused(SessionBound::Agent("x".into()), 2));
        assert_eq!(slots.claim(&claim("", "y")), SlotVerdict::Admitted, "there is a place");
        assert_eq!(slots.claim(&claim("", "y")), SlotVerdict::Refused(SessionBound::Total, 3));
        assert!(slots.leave(1) && !slots.leave(1));
        assert_eq!(slots.claim(&claim("a", "y")), SlotVerdict::Waits(3));
        assert_eq!(slots.release(&claim("b", "x")), [2], "the user of 3 has a session");
        assert_eq!(slots.release(&claim("a", "x")), [3]);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Claim(SlotClaim),
        Release(usize),
        Leave(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            ("[abc]?", "[xy]").prop_map(|(user, agent)| Step::Claim(claim(&user, &agent))),
            any::<usize>().prop_map(Step::Release),
            any::<usize>().prop_map(Step::Leave),
        ]
    }

    fn some_bound() -> impl Strategy<Value = Option<usize>> {
        prop_oneof![Just(None), (0..4_usize).prop_map(Some)]
    }

    proptest! {
        /// No bound is ever passed, nobody waits who need not, and of the same user and agent the older one is first.
        #[test]
        fn bounds_hold_and_places_are_used(
            total in some_bound(), per_user in some_bound(), per_agent in some_bound(), queue in 0..6_usize,
            steps in prop::collection::vec(step(), 0..120),
        ) {
            let bounds = SessionBounds { total, per_user, per_agent, queue, ..SessionBounds::default() };
            let mut slots = SlotPolicy::new(bounds);
            let mut running: Vec<SlotClaim> = Vec::new();
            let mut waiting: Vec<(SlotTicket, SlotClaim)> = Vec::new();
            for step in steps {
                match step {
                    Step::Claim(claim) => match slots.claim(&claim) {
                        SlotVerdict::Admitted => running.push(claim),
                        SlotVerdict::Waits(ticket) => waiting.push((ticket, claim)),
                        SlotVerdict::Refused(..) => prop_assert!(waiting.len() >= queue),
                    },
                    Step::Release(at) if !running.is_empty() => {
                        let claim = running.swap_remove(at % running.len());
                        for ticket in slots.release(&claim) {
                            let at = waiting.iter().position(|(waiting, _)| *waiting == ticket);
                            let at = at.expect("only who waits is admitted");
                            let (_, claim) = waiting.remove(at);
                            prop_assert!(waiting.iter().all(|(other, same)| *same != claim || *other > ticket));
                            running.push(claim);
                        }
                    }
                    Step::Leave(at) if !waiting.is_empty() => {
                        let (ticket, _) = waiting.remove(at % waiting.len());
                        prop_assert!(slots.leave(ticket));
                    }
                    Step::Release(_) | Step::Leave(_) => {}
                }
                prop_assert_eq!(slots.occupancy(), Occupancy { running: running.len(), waiting: waiting.len() });
                prop_assert!(total.is_none_or(|total| running.len() <= total) && waiting.len() <= queue);
                for claim in &running {
                    let of_user = running.iter().filter(|other| other.user == claim.user).count();
                    let of_agent = running.iter().filter(|other| other.agent == claim.agent).count();
                    prop_assert!(claim.user.is_none() || per_user.is_none_or(|bound| of_user <= bound));
                    prop_assert!(per_agent.is_none_or(|bound| of_agent <= bound));
                }
                prop_assert!(waiting.iter().all(|(_, claim)| slots.reached_bound(claim).is_some()));
            }
        }
    }
}
