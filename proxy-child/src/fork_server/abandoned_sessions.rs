//! Sessions that ended with survivors: their remaining processes belong to no other session.

use std::collections::{BTreeSet, VecDeque};

use ipc_protocol::ProcessId;

/// Most sessions remembered; the oldest are forgotten first.
const MAX_SESSIONS: usize = 64;
/// Most processes remembered of a session.
const MAX_PROCESSES: usize = 1024;

/// Sessions with survivors, oldest first.
#[derive(Debug, Default)]
pub(crate) struct AbandonedSessions(VecDeque<AbandonedSession>);

#[derive(Debug)]
struct AbandonedSession {
    marker: String,
    survivors: BTreeSet<ProcessId>,
}

impl AbandonedSessions {
    /// Records the survivors of a session whose end was reported.
    pub(crate) fn record(&mut self, marker: String, survivors: &[ProcessId]) {
        if survivors.is_empty() {
            return;
        }
        if self.0.len() >= MAX_SESSIONS {
            self.0.pop_front();
        }
        let left = survivors.iter().take(MAX_PROCESSES).copied().collect();
        self.0.push_back(AbandonedSession { marker, survivors: left });
    }

    /// Returns whether a living process with this marker belongs to one of the sessions.
    pub(crate) fn contains(&mut self, id: ProcessId, marker: Option<&str>) -> bool {
        if self.0.iter().any(|session| session.survivors.contains(&id)) {
            return true;
        }
        let Some(marker) = marker.filter(|marker| !marker.is_empty()) else { return false };
        let Some(session) = self.0.iter_mut().find(|session| session.marker == marker) else { return false };
        // A dead process has no marker any more, so its id is recorded now.
        if session.survivors.len() < MAX_PROCESSES {
            session.survivors.insert(id);
        }
        true
    }

    /// Removes a dead process. Returns whether it belonged to one of the sessions.
    pub(crate) fn remove(&mut self, id: ProcessId) -> bool {
        self.0.iter_mut().any(|session| session.survivors.remove(&id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32) -> ProcessId {
        ProcessId { pid, start_time: 7 }
    }

    #[test]
    fn what_survived_and_what_it_starts_is_theirs() {
        let mut given_up = AbandonedSessions::default();
        given_up.record("well".into(), &[]);
        given_up.record("badly".into(), &[process(1)]);
        assert!(given_up.contains(process(1), None), "by sight");
        assert!(given_up.contains(process(2), Some("badly")), "by its marker");
        for marker in [None, Some(""), Some("well"), Some("other")] {
            assert!(!given_up.contains(process(3), marker), "{marker:?}");
        }
        assert!(!given_up.remove(process(3)));
        for pid in [1, 2] {
            assert!(given_up.remove(process(pid)), "its marker is gone with it");
            assert!(!given_up.remove(process(pid)), "another of that id is another");
        }
        assert!(given_up.contains(process(4), Some("badly")), "what is started later");
    }

    #[test]
    fn it_is_bounded() {
        let mut given_up = AbandonedSessions::default();
        for pid in 0..100 {
            given_up.record(pid.to_string(), &[process(pid)]);
        }
        assert!(!given_up.contains(process(0), Some("0")) && given_up.contains(process(99), None));
        for pid in 1000..4000 {
            assert!(given_up.contains(process(pid), Some("99")));
        }
        assert!(
            given_up.0.iter().all(|session| session.survivors.len() <= MAX_PROCESSES)
                && given_up.0.len() <= MAX_SESSIONS
        );
    }
}
