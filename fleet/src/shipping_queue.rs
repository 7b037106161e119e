//! Order in which sessions are shipped: whoever has waited the longest comes next. Pure.

use std::collections::{HashSet, VecDeque};

use ipc_protocol::SessionId;

/// Sessions that may have events to ship, each once.
#[derive(Debug, Default)]
pub(crate) struct ShippingQueue {
    order: VecDeque<SessionId>,
    members: HashSet<SessionId>,
}

impl ShippingQueue {
    /// Adds a session behind all others. One that waits keeps its place.
    pub(crate) fn push(&mut self, session: SessionId) {
        if self.members.insert(session.clone()) {
            self.order.push_back(session);
        }
    }

    /// Takes at most `room` sessions, the longest waiting first. Those that are being shipped stay where they are.
    pub(crate) fn take(&mut self, room: usize, under_way: &HashSet<SessionId>) -> Vec<SessionId> {
        let (mut taken, mut passed) = (Vec::new(), Vec::new());
        while taken.len() < room
            && let Some(session) = self.order.pop_front()
        {
            if under_way.contains(&session) {
                passed.push(session);
            } else {
                self.members.remove(&session);
                taken.push(session);
            }
        }
        passed.into_iter().rev().for_each(|session| self.order.push_front(session));
        taken
    }

    /// Returns true if another session than this one waits.
    pub(crate) fn has_others(&self, session: &SessionId) -> bool {
        self.members.len() > usize::from(self.members.contains(session))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(number: usize) -> SessionId {
        format!("s-{number}").parse().expect("an id")
    }

    #[test]
    fn each_waits_once_and_in_its_order() {
        let mut queue = ShippingQueue::default();
        [3, 1, 2, 3].into_iter().for_each(|number| queue.push(id(number)));
        assert_eq!(queue.take(1, &HashSet::from([id(3)])), [id(1)], "one that is under way is passed over");
        assert!(queue.has_others(&id(3)));
        assert_eq!(queue.take(9, &HashSet::new()), [id(3), id(2)], "and keeps its place");
        queue.push(id(3));
        assert!(!queue.has_others(&id(3)) && queue.has_others(&id(1)));
    }

    proptest! {
        /// Sessions that come back at once, as those with much to ship do, hold up nobody longer than a round.
        #[test]
        fn nobody_waits_longer_than_a_round(sessions in 2_usize..200, room in 1_usize..64, busy in 1_usize..100) {
            let mut queue = ShippingQueue::default();
            (0..sessions).for_each(|number| queue.push(id(number)));
            let last = id(sessions - 1);
            for turn in 0.. {
                let taken = queue.take(room, &HashSet::new());
                if taken.contains(&last) {
                    prop_assert!(turn <= sessions / room);
                    break;
                }
                taken.into_iter().take(busy).for_each(|session| queue.push(session));
            }
        }
    }
}
