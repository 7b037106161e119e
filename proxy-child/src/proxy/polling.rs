//! Looking at `/proc` for processes that came and went, where nobody tells.
//!
//! A working session is looked at all the time. An idle one sleeps: the fork server looks, for all of them at once, whether
//! something came or went, and nudges the proxy it concerns.

use std::time::{Duration, Instant, SystemTime};

use ipc_protocol::ProcessInfo;
use registry::{Look, ProcFs};

/// Time between looks while a turn runs, or something has just happened.
pub(crate) const FAST: Duration = Duration::from_millis(10);
/// Time between looks at an idle session that nobody was nudged about: should a nudge have been lost.
const RARE: Duration = Duration::from_secs(10);
/// How long after a prompt or a start an agent without turns counts as working.
const AFTERGLOW: Duration = Duration::from_secs(2);

/// When to look, and what was seen too early to be told.
pub(crate) struct Polling {
    next: Instant,
    working_until: Instant,
    /// Seen after its fork and before its exec: what it will run is not known yet.
    held: Option<Box<ProcessInfo>>,
}

impl Polling {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self { next: now, working_until: now, held: None }
    }

    /// When the next look is due.
    pub(crate) fn next(&self) -> Instant {
        self.next
    }

    /// Whether a turn runs, or something has just begun.
    pub(crate) fn is_working(&self, now: Instant, has_turn: bool) -> bool {
        has_turn || now < self.working_until
    }

    /// The agent got something to do.
    pub(crate) fn work_begins(&mut self) {
        let now = Instant::now();
        self.working_until = now + AFTERGLOW;
        self.next = now + FAST;
    }

    /// Something came or went: look at once.
    pub(crate) fn hurry(&mut self) {
        self.next = Instant::now();
    }

    /// Whether to look now; the next look is due later. `has_turn` while a turn runs.
    pub(crate) fn is_due(&mut self, now: Instant, has_turn: bool) -> bool {
        let is_due = now >= self.next;
        if is_due {
            let is_working = self.is_working(now, has_turn) || self.held.is_some();
            self.next = now + if is_working { FAST } else { RARE };
        }
        is_due
    }

    /// Takes a process that was seen. Gives it back with what it runs, unless it is about to execute something: then this is
    /// asked again at the next look, and what was seen later waits.
    pub(crate) fn ready(&mut self, info: Box<ProcessInfo>, may_wait: bool) -> Option<Box<ProcessInfo>> {
        let mut info = info;
        // What we started ourselves is known from that.
        if info.tracked {
            return Some(info);
        }
        let Ok(seen) = ProcFs.see(info.id.pid) else { return Some(info) };
        if seen.start_time != info.id.start_time || seen.is_dead {
            return Some(info);
        }
        let age = SystemTime::now().duration_since(info.started_at).unwrap_or_default();
        if !seen.has_execed && !seen.has_had_its_time(age) && may_wait {
            self.held = Some(info);
            return None;
        }
        let mut words = ProcFs.command_line(info.id.pid).into_iter();
        if let Some(command) = words.next() {
            (info.command, info.args) = (Some(command), words.collect());
            info.cwd = ProcFs.cwd(info.id.pid).or(info.cwd);
        }
        Some(info)
    }

    /// Keeps a process for the next look.
    pub(crate) fn hold(&mut self, info: Box<ProcessInfo>) {
        self.held = Some(info);
    }

    /// What was not ready.
    pub(crate) fn take_held(&mut self) -> Option<Box<ProcessInfo>> {
        self.held.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_working_session_is_looked_at_often_and_an_idle_one_when_nudged() {
        let mut polling = Polling::new();
        let now = Instant::now();
        assert!(polling.is_due(now, true));
        assert!(!polling.is_due(now, true) && polling.is_due(now + FAST, false));
        assert!(!polling.is_due(now + RARE, false));
        polling.hurry();
        assert!(polling.is_due(Instant::now(), false));
        polling.work_begins();
        assert!(polling.next() <= Instant::now() + FAST);
    }
}
