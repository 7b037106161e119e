//! Age of events in the fleet's log: a session's owner removes those that are too old, but for the last message, by which its stream goes on.

use std::{
    ops::ControlFlow,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use ipc_protocol::SessionId;
use tokio::time::sleep;

use crate::{
    error::EngineError,
    log::{FleetLog, subject},
    member::FleetMember,
};

/// Longest time between two looks.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);
/// Shortest one.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);

/// Search for the first message of a session that is not too old. Pure: see [`FleetLog::remove_before`].
#[derive(Debug)]
struct AgeSearch {
    /// All before this one are too old.
    low: u64,
    /// This one is not, or there is none from here on.
    high: u64,
}

impl AgeSearch {
    /// Takes an answer: the first message at or after the probe, and whether it is too old. Returns the next probe, or the result.
    fn answer(&mut self, probe: u64, found: Option<(u64, bool)>) -> ControlFlow<u64, u64> {
        match found {
            Some((sequence, true)) => self.low = self.low.max(sequence + 1),
            Some((_, false)) | None => self.high = probe,
        }
        self.step()
    }

    fn step(&self) -> ControlFlow<u64, u64> {
        match self.low < self.high {
            true => ControlFlow::Continue(self.low + (self.high - self.low) / 2),
            false => ControlFlow::Break(self.low.min(self.high)),
        }
    }
}

impl FleetLog {
    /// Removes the events of a session that were stored before a time, but for its last message. Returns true where there were some.
    ///
    /// # Errors
    /// The engine's.
    pub async fn remove_before(&self, session: &SessionId, time: SystemTime) -> Result<bool, EngineError> {
        let oldest =
            i128::try_from(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos()).unwrap_or(i128::MAX);
        let Some((first, _)) = self.stored_at(session, 1).await?.filter(|(_, stored)| *stored < oldest) else {
            return Ok(false);
        };
        let tail = self.tail(session).await?;
        let mut search = AgeSearch { low: first, high: tail.sequence };
        let mut next = search.step();
        let first_kept = loop {
            match next {
                ControlFlow::Break(first_kept) => break first_kept,
                ControlFlow::Continue(probe) => {
                    let found = self.stored_at(session, probe).await?;
                    next = search.answer(probe, found.map(|(sequence, stored)| (sequence, stored < oldest)));
                }
            }
        };
        if first >= first_kept {
            return Ok(false);
        }
        let purged = self.stream.purge().sequence(first_kept).filter(subject(session)).await;
        let purged = purged
            .map_err(|error| EngineError::new("remove the old events of", format!("session {session}"), error))?;
        Ok(purged.purged > 0)
    }
}

/// Removes what is too old of this node's sessions, again and again.
pub(crate) async fn run(member: FleetMember, most: Duration) {
    let pause = (most / 10).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
    loop {
        sleep(pause).await;
        let Some(oldest) = SystemTime::now().checked_sub(most) else { continue };
        for session in member.own_sessions() {
            if !member.is_lease_held() {
                break;
            }
            match member.log().remove_before(&session, oldest).await {
                Ok(true) => tracing::debug!(%session, "old events are gone from the fleet's log"),
                Ok(false) => {}
                Err(error) => {
                    let error = ipc_protocol::ErrorChain(&error).to_string();
                    tracing::warn!(%session, error, "old events stay in the fleet's log");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever messages of other sessions are between them, the first that is not too old is found, or the last one.
        #[test]
        fn the_first_that_is_not_too_old_is_found(gaps in proptest::collection::vec(1_u64..50, 1..40), old in 0_usize..40) {
            let sequences: Vec<u64> = gaps.iter().scan(0, |at, gap| { *at += gap; Some(*at) }).collect();
            let last = *sequences.last().expect("some");
            let is_old = |sequence: u64| sequences.iter().position(|at| *at == sequence).is_some_and(|at| at < old);
            let mut search = AgeSearch { low: 1, high: last };
            let (mut next, mut steps) = (search.step(), 0);
            let found = loop {
                match next {
                    ControlFlow::Break(found) => break found,
                    ControlFlow::Continue(probe) => {
                        let found = sequences.iter().find(|at| **at >= probe).map(|at| (*at, is_old(*at)));
                        next = search.answer(probe, found);
                    }
                }
                steps += 1;
                prop_assert!(steps < 64);
            };
            // All that are old are before it, and none that is not; the last one stays.
            for sequence in &sequences {
                prop_assert_eq!(*sequence < found, is_old(*sequence) && *sequence < last, "{} of {:?}, found {}", sequence, sequences, found);
            }
        }
    }
}
