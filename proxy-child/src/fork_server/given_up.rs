//! Sessions that ended with survivors: their remaining processes belong to no other session.

use std::collections::{BTreeSet, VecDeque};

use ipc_protocol::ProcessId;

/// Most sessions remembered; the oldest are forgotten first.
const MOST: usize = 64;
/// Most processes remembered of a session.
const MOST_PROCESSES: usize = 1024;

/// Sessions with survivors, oldest first.
#[derive(Debug, Default)]
pub(crate) struct GivenUp(VecDeque<Session>);

#[derive(Debug)]
struct Session {
    marker: String,
    left: BTreeSet<ProcessId>,
}

impl GivenUp {
    /// Records the survivors of a session whose end was reported.
    pub(crate) fn remember(&mut self, marker: String, survivors: &[ProcessId]) {
        if survivors.is_empty() {
            return;
        }
        if self.0.len() >= MOST {
            self.0.pop_front();
        }
        let left = survivors.iter().take(MOST_PROCESSES).copied().collect();
        self.0.push_back(Session { marker, left });
    }

    /// Returns whether a living process with this marker belongs to one of the sessions.
    pub(crate) fn has(&mut self, id: ProcessId, marker: Option<&str>) -> bool {
        if self.0.iter().any(|session| session.left.contains(&id)) {
            return true;
        }
        let Some(marker) = marker.filter(|marker| !marker.is_empty()) else { return false };
        let Some(session) = self.0.iter_mut().find(|session| session.marker == marker) else { return false };
        // A dead process has no marker any more, so its id is recorded now.
        if session.left.len() < MOST_PROCESSES {
            session.left.insert(id);
        }
        true
    }

    /// Removes a dead process. Returns whether it belonged to one of the sessions.
    pub(crate) fn bury(&mut self, id: ProcessId) -> bool {
        self.0.iter_mut().any(|session| session.left.remove(&id))
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
        let mut given_up = GivenUp::default();
        given_up.remember("well".into(), &[]);
        given_up.remember("badly".into(), &[process(1)]);
        assert!(given_up.has(process(1), None), "by sight");
        assert!(given_up.has(process(2), Some("badly")), "by its marker");
        for marker in [None, Some(""), Some("well"), Some("other")] {
            assert!(!given_up.has(process(3), marker), "{marker:?}");
        }
        assert!(!given_up.bury(process(3)));
        for pid in [1, 2] {
            assert!(given_up.bury(process(pid)), "its marker is gone with it");
            assert!(!given_up.bury(process(pid)), "another of that id is another");
        }
        assert!(given_up.has(process(4), Some("badly")), "what is started later");
    }

    #[test]
    fn it_is_bounded() {
        let mut given_up = GivenUp::default();
        for pid in 0..100 {
            given_up.remember(pid.to_string(), &[process(pid)]);
        }
        assert!(!given_up.has(process(0), Some("0")) && given_up.has(process(99), None));
        for pid in 1000..4000 {
            assert!(given_up.has(process(pid), Some("99")));
        }
        assert!(given_up.0.iter().all(|session| session.left.len() <= MOST_PROCESSES) && given_up.0.len() <= MOST);
    }
}
