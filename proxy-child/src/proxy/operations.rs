//! Operations that the agent has not answered yet.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use ipc_protocol::{WireError, message::RequestId};

/// Most operations that are open at once.
const MAX_OPEN: usize = 64;
/// Longest time that an operation is awaited: compacting a long conversation takes minutes.
pub(crate) const OPERATION_TIMEOUT: Duration = Duration::from_secs(600);

/// Open operations.
#[derive(Debug, Default)]
pub(crate) struct OpenOperations {
    open: BTreeMap<RequestId, OpenOperation>,
}

#[derive(Debug)]
struct OpenOperation {
    requested_at: Instant,
    /// True if the caller has given up. The answer is still useful for its change, as long as there is room.
    is_abandoned: bool,
}

impl OpenOperations {
    /// Adds an operation. Without room it replaces the oldest one that was given up; the result is that one with its error.
    /// # Errors
    /// [`WireError::Busy`] if too many operations are open that somebody waits for.
    pub(crate) fn begin(
        &mut self,
        request: RequestId,
        now: Instant,
    ) -> Result<Option<(RequestId, WireError)>, WireError> {
        let mut pushed_out = None;
        if self.open.len() >= MAX_OPEN {
            let given_up = self.open.iter().filter(|(_, open)| open.is_abandoned);
            let (&oldest, open) = given_up.min_by_key(|(_, open)| open.requested_at).ok_or(WireError::Busy)?;
            pushed_out = Some((oldest, deadline(now.saturating_duration_since(open.requested_at))));
            self.open.remove(&oldest);
        }
        self.open.insert(request, OpenOperation { requested_at: now, is_abandoned: false });
        Ok(pushed_out)
    }

    /// Records that the caller of this operation has given up.
    pub(crate) fn abandon(&mut self, request: RequestId) {
        if let Some(open) = self.open.get_mut(&request) {
            open.is_abandoned = true;
        }
    }

    /// Removes an operation. Returns `false` if it is not open, so that nobody waits for its answer.
    pub(crate) fn end(&mut self, request: RequestId) -> bool {
        self.open.remove(&request).is_some()
    }

    /// Returns the deadline of the next operation that expires.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.open.values().map(|open| open.requested_at + OPERATION_TIMEOUT).min()
    }

    /// Removes the operations that have expired, and returns each with its error.
    pub(crate) fn take_due(&mut self, now: Instant) -> Vec<(RequestId, WireError)> {
        if self.next().is_none_or(|next| now < next) {
            return Vec::new();
        }
        let due = self.open.extract_if(.., |_, open| open.requested_at + OPERATION_TIMEOUT <= now);
        due.map(|(request, _)| (request, deadline(OPERATION_TIMEOUT))).collect()
    }

    /// Removes all operations, since the agent has ended.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = RequestId> + use<> {
        std::mem::take(&mut self.open).into_keys()
    }
}

fn deadline(after: Duration) -> WireError {
    let after_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
    WireError::Deadline { operation: "the agent's answer to an operation".into(), after_ms }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_bounded_answered_once_and_not_waited_for_for_ever() {
        let (mut operations, start) = (OpenOperations::default(), Instant::now());
        for request in 0..64 {
            assert_eq!(operations.begin(request, start + Duration::from_secs(request)), Ok(None));
        }
        assert_eq!(operations.begin(64, start), Err(WireError::Busy));
        assert!(operations.end(0) && !operations.end(0));
        assert_eq!(operations.next(), Some(start + Duration::from_secs(1) + OPERATION_TIMEOUT));
        assert!(operations.take_due(start + OPERATION_TIMEOUT).is_empty());
        let due = operations.take_due(start + Duration::from_secs(2) + OPERATION_TIMEOUT);
        assert_eq!(due.iter().map(|(request, _)| *request).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(operations.take_all().collect::<Vec<_>>(), (3..64).collect::<Vec<_>>());
        assert_eq!(operations.next(), None);
    }

    #[test]
    fn what_was_given_up_makes_room_the_oldest_first() {
        let (mut operations, start) = (OpenOperations::default(), Instant::now());
        for request in 0..64 {
            operations.begin(request, start + Duration::from_secs(request)).expect("room");
        }
        for request in [7, 5, 99] {
            operations.abandon(request);
        }
        let now = start + Duration::from_secs(100);
        for (new, old) in [(64, 5), (65, 7)] {
            let (pushed_out, error) = operations.begin(new, now).expect("room").expect("one goes");
            assert_eq!((pushed_out, error), (old, deadline(Duration::from_secs(100 - old))));
            assert!(!operations.end(old), "it is forgotten");
        }
        assert_eq!(operations.begin(66, now), Err(WireError::Busy), "somebody waits for each of them");
        // An abandoned operation stays while there is room.
        assert!(operations.end(0));
        operations.abandon(1);
        assert_eq!(operations.begin(67, now), Ok(None));
        assert!(operations.end(1));
    }
}
