//! Limits of the session, as far as the host enforces them. The proxy enforces them first; a proxy that is stopped or
//! wedged does not, and is not waited for. No I/O.

use std::time::Duration;

use ipc_protocol::{ExitStatus, LimitAction, LimitExceeded, LimitForm, LimitKind, Limits, ProcessId};
use tokio::time::Instant;

/// Time by which the host's wall clock is later than the proxy's.
const MARGIN: Duration = Duration::from_secs(1);
/// Action that the proxy failed to take.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Overdue {
    /// Report that this limit was exceeded.
    Said(LimitExceeded),
    /// End of the session after reporting that it exceeded this limit.
    Ended(LimitKind),
}

#[derive(Debug)]
pub(super) struct Overseer {
    limits: Limits,
    /// Time that a proxy may take for a kill.
    wedged: Duration,
    /// Instant at which the agent was ready.
    started: Option<Instant>,
    /// True if the wall clock ran out, and that was reported.
    is_late: bool,
    /// The limit for which the session ends, and the deadline for that end.
    ends: Option<(LimitKind, Option<Instant>)>,
    /// Process whose file was last reported as too large by somebody else; `ended_writer` is the one whose end showed it.
    /// Both may name the same excess, which is announced once.
    writer: Option<ProcessId>,
    ended_writer: Option<ProcessId>,
}

impl Overseer {
    pub(super) fn new(limits: Limits, wedged: Duration) -> Self {
        Self { limits, wedged, started: None, is_late: false, ends: None, writer: None, ended_writer: None }
    }

    /// Starts the wall clock, since the agent is ready; before that a deadline of the start holds.
    pub(super) fn started(&mut self, now: Instant) {
        self.started = Some(now);
    }

    /// Returns the limit that a process's end shows to be exceeded, unless that is known.
    pub(super) fn judge_exit(&mut self, process: ProcessId, exit: ExitStatus, now: Instant) -> Option<LimitExceeded> {
        let passed = registry::file_size_exceeded(&self.limits, process, exit)?;
        self.ended_writer = Some(process);
        (self.writer != Some(process) && self.is_news(&passed, now)).then_some(passed)
    }

    /// Records a reported limit. Returns true if that is news.
    pub(super) fn take(&mut self, passed: &LimitExceeded, now: Instant) -> bool {
        if passed.limit == LimitKind::FileSize && passed.process.is_some() {
            self.writer = passed.process;
            if self.writer == self.ended_writer {
                return false;
            }
        }
        self.is_news(passed, now)
    }

    /// Returns true for the first limit that ends the session, and for the first end of the wall clock.
    fn is_news(&mut self, passed: &LimitExceeded, now: Instant) -> bool {
        if passed.limit == LimitKind::WallClock && std::mem::replace(&mut self.is_late, true) {
            return false;
        }
        if ends_session(passed) {
            if self.ends.is_some() {
                return false;
            }
            let deadline = now.checked_add(passed.limit.grace().grace.saturating_add(self.wedged));
            self.ends = Some((passed.limit, deadline));
        }
        true
    }

    fn clock(&self) -> Option<Instant> {
        let limit = self.limits.wall_clock_ms.filter(|_| !self.is_late && self.ends.is_none())?;
        self.started?.checked_add(Duration::from_millis(limit).saturating_add(MARGIN))
    }

    /// Instant at which [`Overseer::tick`] is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.clock().or_else(|| self.ends?.1)
    }

    /// Advances the time. Each overdue action is returned once.
    pub(super) fn tick(&mut self, now: Instant) -> Option<Overdue> {
        if self.clock().is_some_and(|clock| clock <= now) {
            let (value, started) = (self.limits.wall_clock_ms?, self.started?);
            return Some(Overdue::Said(LimitExceeded {
                limit: LimitKind::WallClock,
                value,
                measured: u64::try_from(now.duration_since(started).as_millis()).unwrap_or(u64::MAX),
                form: LimitForm::Clock,
                // The wall clock has no culprit process.
                action: match self.limits.on_limit {
                    LimitAction::Warn => LimitAction::Warn,
                    LimitAction::KillProcess | LimitAction::KillSession => LimitAction::KillSession,
                },
                process: None,
            }));
        }
        let (limit, deadline) = self.ends.as_mut()?;
        deadline.take_if(|deadline| *deadline <= now).map(|_| Overdue::Ended(*limit))
    }
}

/// Returns true if the session is to be ended.
pub(super) fn ends_session(passed: &LimitExceeded) -> bool {
    passed.action == LimitAction::KillSession
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEDGED: Duration = Duration::from_secs(2);

    fn overseer(on_limit: LimitAction) -> (Overseer, Instant) {
        let limits = Limits { wall_clock_ms: Some(100), on_limit, ..Limits::default() };
        let (mut overseer, now) = (Overseer::new(limits, WEDGED), Instant::now());
        assert_eq!(overseer.next(), None, "the start has a deadline of its own");
        overseer.started(now);
        (overseer, now)
    }

    fn over(overseer: &mut Overseer, started: Instant) -> LimitExceeded {
        let due = overseer.next().expect("a clock");
        assert_eq!(due, started + Duration::from_millis(100) + MARGIN);
        assert_eq!(overseer.tick(due - Duration::from_millis(1)), None);
        match overseer.tick(due) {
            Some(Overdue::Said(passed)) => passed,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_clock_of_a_proxy_that_says_nothing_is_the_host_s() {
        for (on_limit, action) in [
            (LimitAction::Warn, LimitAction::Warn),
            (LimitAction::KillProcess, LimitAction::KillSession),
            (LimitAction::KillSession, LimitAction::KillSession),
        ] {
            let (mut overseer, now) = overseer(on_limit);
            let passed = over(&mut overseer, now);
            assert_eq!((passed.limit, passed.action, passed.measured), (LimitKind::WallClock, action, 1100));
            assert!(overseer.take(&passed, now));
            assert!(!overseer.take(&passed, now), "the proxy says it too late");
        }
    }

    #[test]
    fn a_proxy_that_acts_in_time_is_left_to_it_and_one_that_only_says_so_is_not() {
        let (mut overseer, now) = overseer(LimitAction::KillSession);
        let said = over(&mut overseer, now);
        assert!(overseer.take(&said, now));
        let due = now + LimitKind::WallClock.grace().grace + WEDGED;
        assert_eq!((overseer.next(), overseer.tick(due - Duration::from_millis(1))), (Some(due), None));
        assert_eq!(overseer.tick(due), Some(Overdue::Ended(LimitKind::WallClock)));
        assert_eq!((overseer.next(), overseer.tick(due)), (None, None), "once");
    }

    #[test]
    fn a_writer_that_was_seen_at_the_limit_and_then_ended_there_is_told_of_once() {
        let (process, other) = (ProcessId { pid: 5, start_time: 1 }, ProcessId { pid: 6, start_time: 1 });
        let on_limit = LimitAction::KillProcess;
        let limits = Limits { file_size_bytes: Some(100), on_limit, ..Limits::default() };
        let (mut overseer, now) = (Overseer::new(limits, WEDGED), Instant::now());
        let stopped = ExitStatus::Signal(rustix::process::Signal::XFSZ.as_raw());
        let passed = overseer.judge_exit(process, stopped, now).expect("it is told of");
        assert!(!overseer.take(&passed, now), "the proxy says it too late");
        let seen = LimitExceeded { process: Some(other), ..passed };
        assert!(overseer.take(&seen, now));
        assert_eq!(overseer.judge_exit(other, stopped, now), None);
        assert!(overseer.judge_exit(ProcessId { start_time: 2, ..other }, stopped, now).is_some(), "the next one");
    }

    #[test]
    fn only_one_limit_ends_a_session() {
        let (mut overseer, now) = overseer(LimitAction::KillSession);
        let mut passed = over(&mut overseer, now);
        passed.limit = LimitKind::Memory;
        assert!(overseer.take(&passed, now));
        passed.limit = LimitKind::Processes;
        assert!(!overseer.take(&passed, now));
        passed.action = LimitAction::Warn;
        assert!(overseer.take(&passed, now) && overseer.take(&passed, now), "what ends nothing may be said again");
    }
}
