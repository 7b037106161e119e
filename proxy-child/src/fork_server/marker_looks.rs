//! The look for the markers of sessions that end: one pass for all guards that wait for one.
//!
//! Each end needs a pass that began after the session's last process was gone. A thousand ends at once share a few passes.

use std::{
    io,
    time::{Duration, Instant},
};

use ipc_protocol::ProcessId;
use registry::{MarkerPass, forks_since_boot};

use super::guard::SessionGuard;

/// A pass's share of the fork server's one thread at a time.
const SLICE: Duration = Duration::from_millis(2);
/// The longest pause after a pass.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// Passes in a row that may fail before the guards are told so.
const RETRIES: u32 = 10;
/// Greatest age of a number of forks: an older one only makes a session seem older.
const COUNT_AGE: Duration = Duration::from_millis(100);

/// Passes for the guards of a fork server.
#[derive(Default)]
pub(super) struct MarkerLooks {
    /// Under way, and since when.
    pass: Option<(MarkerPass, Instant)>,
    /// The next pass does not begin before: as long as the last one took, others have the thread, and ends gather.
    not_before: Option<Instant>,
    /// Passes that have failed in a row.
    failures: u32,
    /// Forks on this machine, and when they were read.
    forks: Option<(Instant, u64)>,
}

impl MarkerLooks {
    /// Forks on this machine at some time before this call; `None` where the system does not say.
    pub(super) fn forks(&mut self) -> Option<u64> {
        self.forks = match self.forks {
            Some((read, forks)) if read.elapsed() < COUNT_AGE => Some((read, forks)),
            _ => forks_since_boot().map(|forks| (Instant::now(), forks)),
        };
        self.forks.map(|(_, forks)| forks)
    }

    /// When [`MarkerLooks::turn`] is due.
    pub(super) fn next(&self, guards: &[SessionGuard]) -> Option<Instant> {
        if self.pass.is_some() {
            return Some(Instant::now());
        }
        guards.iter().any(SessionGuard::wants_marker_look).then(|| self.not_before.unwrap_or_else(Instant::now))
    }

    /// Begins a pass where somebody waits for one, and goes on with it for a slice.
    pub(super) fn turn(&mut self, guards: &mut [SessionGuard]) {
        let now = Instant::now();
        if self.pass.is_none() {
            let is_due = self.not_before.is_none_or(|at| at <= now);
            let waiting = guards.iter_mut().filter(|guard| is_due && guard.wants_marker_look());
            let queries: Vec<_> = waiting.map(SessionGuard::begin_marker_look).collect();
            if queries.is_empty() {
                return;
            }
            match MarkerPass::begin(queries.clone()) {
                Ok(pass) => self.pass = Some((pass, now)),
                Err(error) => {
                    return self.fail(guards, &error, |marker| queries.iter().any(|query| query.marker == marker));
                }
            }
        }
        let Some((mut pass, began)) = self.pass.take() else { return };
        match pass.step(SLICE) {
            Ok(false) => self.pass = Some((pass, began)),
            Ok(true) => {
                self.failures = 0;
                self.not_before = Some(Instant::now() + began.elapsed().min(LONGEST_PAUSE));
                end(guards, |marker| pass.has(marker).then(|| Ok(pass.take(marker))));
            }
            Err(error) => self.fail(guards, &error, |marker| pass.has(marker)),
        }
    }

    /// Has a failed pass made once more after a pause, or gives it up: somebody may have lowered this process's limits a moment ago.
    fn fail(&mut self, guards: &mut [SessionGuard], error: &io::Error, concerns: impl Fn(&str) -> bool) {
        self.failures += 1;
        if self.failures > RETRIES {
            self.failures = 0;
            return end(guards, |marker| concerns(marker).then(|| Err(copy(error))));
        }
        self.not_before = Some(Instant::now() + LONGEST_PAUSE);
        guards.iter_mut().filter(|guard| concerns(guard.marker())).for_each(SessionGuard::retry_marker_look);
    }
}

/// Gives the guards their answers.
fn end(guards: &mut [SessionGuard], mut answer: impl FnMut(&str) -> Option<io::Result<Vec<ProcessId>>>) {
    for guard in guards {
        if let Some(found) = answer(guard.marker()) {
            guard.end_marker_look(found);
        }
    }
}

fn copy(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), error.to_string())
}
