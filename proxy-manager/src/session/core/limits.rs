//! Limits of the session, as far as the host enforces them. The proxy enforces them first; a proxy that is stopped or
//! wedged does not, and is not waited for. No I/O.

use std::time::Duration;

use ipc_protocol::{ExitStatus, LimitAction, LimitExceeded, LimitForm, LimitKind, Limits, ProcessId};
use tokio::time::Instant;

use super::{SessionTimers, TimerKind};

/// Time by which the host's wall clock is later than the proxy's.
const MARGIN: Duration = Duration::from_secs(1);
#[derive(Debug)]
pub(super) struct LimitSupervisor {
    limits: Limits,
    /// Time that a proxy may take for a kill.
    wedged: Duration,
    /// Instant at which the agent was ready.
    started: Option<Instant>,
    /// True if the wall clock ran out, and that was reported.
    wall_clock_passed: bool,
    /// The limit for which the session ends.
    ending: Option<LimitKind>,
    /// Process whose file was last reported as too large by somebody else; `ended_writer` is the one whose end showed it.
    /// Both may name the same excess, which is announced once.
    writer: Option<ProcessId>,
    ended_writer: Option<ProcessId>,
}

impl LimitSupervisor {
    pub(super) fn new(limits: Limits, wedged: Duration) -> Self {
        Self { limits, wedged, started: None, wall_clock_passed: false, ending: None, writer: None, ended_writer: None }
    }

    /// Starts the wall clock, since the agent is ready; before that a deadline of the start holds.
    pub(super) fn started(&mut self, timers: &mut SessionTimers, now: Instant) {
        self.started = Some(now);
        let limit = self.limits.wall_clock_ms.filter(|_| !self.wall_clock_passed && self.ending.is_none());
        let due = limit.and_then(|limit| now.checked_add(Duration::from_millis(limit).saturating_add(MARGIN)));
        timers.set(TimerKind::WallClock, due);
    }

    /// Returns the limit that a process's end shows to be exceeded, unless that is known.
    pub(super) fn judge_exit(
        &mut self,
        process: ProcessId,
        exit: ExitStatus,
        timers: &mut SessionTimers,
        now: Instant,
    ) -> Option<LimitExceeded> {
        let passed = registry::file_size_exceeded(&self.limits, process, exit)?;
        self.ended_writer = Some(process);
        (self.writer != Some(process) && self.is_news(&passed, timers, now)).then_some(passed)
    }

    /// Records a reported limit. Returns true if that is news.
    pub(super) fn record(&mut self, passed: &LimitExceeded, timers: &mut SessionTimers, now: Instant) -> bool {
        if passed.limit == LimitKind::FileSize && passed.process.is_some() {
            self.writer = passed.process;
            if self.writer == self.ended_writer {
                return false;
            }
        }
        self.is_news(passed, timers, now)
    }

    /// Returns true for the first limit that ends the session, and for the first end of the wall clock.
    fn is_news(&mut self, passed: &LimitExceeded, timers: &mut SessionTimers, now: Instant) -> bool {
        if passed.limit == LimitKind::WallClock && std::mem::replace(&mut self.wall_clock_passed, true) {
            return false;
        }
        if self.wall_clock_passed {
            timers.cancel(TimerKind::WallClock);
        }
        if ends_session(passed) {
            if self.ending.is_some() {
                return false;
            }
            let deadline = now.checked_add(passed.limit.grace().grace.saturating_add(self.wedged));
            self.ending = Some(passed.limit);
            timers.cancel(TimerKind::WallClock);
            timers.set(TimerKind::Limit, deadline);
        }
        true
    }

    /// The limit that is exceeded, since the wall clock has run out.
    pub(super) fn wall_clock_passed(&self, now: Instant) -> Option<LimitExceeded> {
        let (value, started) = (self.limits.wall_clock_ms?, self.started?);
        Some(LimitExceeded {
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
        })
    }

    /// The limit for which the session should have ended by now.
    pub(super) fn overdue(&self) -> Option<LimitKind> {
        self.ending
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

    fn overseer(on_limit: LimitAction) -> (LimitSupervisor, SessionTimers, Instant) {
        let limits = Limits { wall_clock_ms: Some(100), on_limit, ..Limits::default() };
        let (mut overseer, mut timers, now) =
            (LimitSupervisor::new(limits, WEDGED), SessionTimers::default(), Instant::now());
        // Before that the start has a deadline of its own.
        overseer.started(&mut timers, now);
        (overseer, timers, now)
    }

    fn over(overseer: &LimitSupervisor, timers: &mut SessionTimers, started: Instant) -> LimitExceeded {
        let due = timers.next_deadline().expect("a clock");
        assert_eq!(due, started + Duration::from_millis(100) + MARGIN);
        assert_eq!(timers.expire(due - Duration::from_millis(1)), []);
        assert_eq!(timers.expire(due), [TimerKind::WallClock]);
        overseer.wall_clock_passed(due).expect("a limit")
    }

    #[test]
    fn the_clock_of_a_proxy_that_says_nothing_is_the_host_s() {
        for (on_limit, action) in [
            (LimitAction::Warn, LimitAction::Warn),
            (LimitAction::KillProcess, LimitAction::KillSession),
            (LimitAction::KillSession, LimitAction::KillSession),
        ] {
            let (mut overseer, mut timers, now) = overseer(on_limit);
            let passed = over(&overseer, &mut timers, now);
            assert_eq!((passed.limit, passed.action, passed.measured), (LimitKind::WallClock, action, 1100));
            assert!(overseer.record(&passed, &mut timers, now));
            assert!(!overseer.record(&passed, &mut timers, now), "the proxy says it too late");
        }
    }

    #[test]
    fn a_proxy_that_acts_in_time_is_left_to_it_and_one_that_only_says_so_is_not() {
        let (mut overseer, mut timers, now) = overseer(LimitAction::KillSession);
        let said = over(&overseer, &mut timers, now);
        assert!(overseer.record(&said, &mut timers, now));
        let due = now + LimitKind::WallClock.grace().grace + WEDGED;
        assert_eq!((timers.next_deadline(), timers.expire(due - Duration::from_millis(1)).len()), (Some(due), 0));
        assert_eq!((timers.expire(due), overseer.overdue()), (vec![TimerKind::Limit], Some(LimitKind::WallClock)));
        assert_eq!(timers.next_deadline(), None, "once");
    }

    #[test]
    fn a_writer_that_was_seen_at_the_limit_and_then_ended_there_is_told_of_once() {
        let (process, other) = (ProcessId { pid: 5, start_time: 1 }, ProcessId { pid: 6, start_time: 1 });
        let on_limit = LimitAction::KillProcess;
        let limits = Limits { file_size_bytes: Some(100), on_limit, ..Limits::default() };
        let (mut overseer, mut timers, now) =
            (LimitSupervisor::new(limits, WEDGED), SessionTimers::default(), Instant::now());
        let stopped = ExitStatus::Signal(nix::sys::signal::Signal::SIGXFSZ as i32);
        let passed = overseer.judge_exit(process, stopped, &mut timers, now).expect("it is told of");
        assert!(!overseer.record(&passed, &mut timers, now), "the proxy says it too late");
        let seen = LimitExceeded { process: Some(other), ..passed };
        assert!(overseer.record(&seen, &mut timers, now));
        assert_eq!(overseer.judge_exit(other, stopped, &mut timers, now), None);
        assert!(
            overseer.judge_exit(ProcessId { start_time: 2, ..other }, stopped, &mut timers, now).is_some(),
            "the next one"
        );
    }

    #[test]
    fn only_one_limit_ends_a_session() {
        let (mut overseer, mut timers, now) = overseer(LimitAction::KillSession);
        let mut passed = over(&overseer, &mut timers, now);
        passed.limit = LimitKind::Memory;
        assert!(overseer.record(&passed, &mut timers, now));
        passed.limit = LimitKind::Processes;
        assert!(!overseer.record(&passed, &mut timers, now));
        passed.action = LimitAction::Warn;
        assert!(
            overseer.record(&passed, &mut timers, now) && overseer.record(&passed, &mut timers, now),
            "what ends nothing may be said again"
        );
    }
}
