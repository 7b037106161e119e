//! Decides whether the end of its processes is the end of a session, and when an idle session is suspended. No I/O.

use std::{collections::VecDeque, time::Duration};

use ipc_protocol::{EndReason, ExitStatus, Lifecycle, Restart};
use tokio::time::Instant;

/// Crashes older than this do not count any more.
const CRASH_WINDOW: Duration = Duration::from_secs(600);
/// Longest pause before a session is restarted.
const MAX_RESTART_PAUSE: Duration = Duration::from_secs(60);

/// Time after a resume during which a session does not count as idle.
const RESUMED: Duration = Duration::from_secs(5);

/// Decision about a session whose processes have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionFate {
    /// The session is over.
    End,
    /// The session is over, since it has crashed too often; with the number of crashes.
    Abandon(usize),
    /// The session is suspended.
    Suspend,
    /// The session is suspended, and restarted after this pause.
    Restart(Duration),
}

/// Crashes of a session over all its incarnations, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct CrashHistory(VecDeque<Instant>);

impl CrashHistory {
    /// Adds a crash. Returns the pause before the restart, or the number of crashes if there is none.
    fn add(&mut self, max: u32, first_pause: Duration, now: Instant) -> Result<Duration, usize> {
        while self.0.front().is_some_and(|crash| now.duration_since(*crash) > CRASH_WINDOW) {
            self.0.pop_front();
        }
        self.0.push_back(now);
        let count = self.0.len();
        if u32::try_from(count).is_ok_and(|count| count <= max) {
            let doublings = u32::try_from(count - 1).unwrap_or(u32::MAX).min(16);
            return Ok(first_pause.saturating_mul(1 << doublings).min(MAX_RESTART_PAUSE));
        }
        Err(count)
    }
}

/// Lifecycle state of one incarnation of the session.
#[derive(Debug)]
pub(super) struct LifecyclePolicy {
    restart: Restart,
    idle: Option<Duration>,
    /// True if this is not the first incarnation.
    is_resumed: bool,
    is_ready: bool,
    /// True while its user visits the agent's own screen, whose end is not the session's.
    is_visit: bool,
}

impl LifecyclePolicy {
    pub(super) fn new(lifecycle: &Lifecycle, is_resumed: bool, is_visit: bool) -> Self {
        let idle = lifecycle.idle_suspend_ms.filter(|ms| *ms > 0 && !is_visit).map(Duration::from_millis);
        Self { restart: lifecycle.restart, idle, is_resumed, is_ready: false, is_visit }
    }

    /// Records that the agent is ready. Returns the instant at which the session has been idle for too long.
    pub(super) fn ready(&mut self, now: Instant) -> Option<Instant> {
        self.is_ready = true;
        // A caller that resumed it is about to send a prompt.
        self.idle(if self.is_resumed { now.checked_add(RESUMED)? } else { now })
    }

    /// Returns the instant at which a session that is idle from now on has been so for too long.
    pub(super) fn idle(&self, now: Instant) -> Option<Instant> {
        now.checked_add(self.idle?)
    }

    /// Returns true if an idle session is suspended at some time.
    pub(super) fn suspends(&self) -> bool {
        self.idle.is_some()
    }

    /// Returns true if this is the first incarnation.
    pub(super) fn is_first(&self) -> bool {
        !self.is_resumed
    }

    /// Decides what happens to a session whose processes have ended, and whose conversation is retained.
    pub(super) fn fate(
        &self,
        reason: &EndReason,
        is_durable: bool,
        crashes: &mut CrashHistory,
        now: Instant,
    ) -> SessionFate {
        let restarts = matches!(self.restart, Restart::OnCrash { .. });
        match reason {
            EndReason::Suspended => SessionFate::Suspend,
            EndReason::AgentExited(_) if self.is_visit => SessionFate::Suspend,
            // Another manager can go on with it, and this one with another fork server.
            EndReason::Shutdown | EndReason::HostDied if is_durable => SessionFate::Suspend,
            EndReason::ForkServerDied if !restarts && (is_durable || self.is_resumed && !self.is_ready) => {
                SessionFate::Suspend
            }
            EndReason::ForkServerDied if !restarts => SessionFate::End,
            EndReason::Killed | EndReason::Shutdown | EndReason::HostDied => SessionFate::End,
            EndReason::AgentExited(Some(ExitStatus::Code(0))) if self.is_ready => SessionFate::End,
            reason => match self.restart {
                Restart::OnCrash { max, backoff_ms } if is_crash(reason) => {
                    match crashes.add(max, Duration::from_millis(backoff_ms), now) {
                        Ok(pause) => SessionFate::Restart(pause),
                        Err(count) => SessionFate::Abandon(count),
                    }
                }
                // A suspended session whose resume failed stays suspended.
                _ if self.is_resumed && !self.is_ready => SessionFate::Suspend,
                // Nobody has told how it ended, as where this host stood still meanwhile: no reason to give the conversation up.
                _ if is_durable && *reason == EndReason::ProxyDied(None) => SessionFate::Suspend,
                _ => SessionFate::End,
            },
        }
    }
}

/// Returns true if a restart may succeed.
fn is_crash(reason: &EndReason) -> bool {
    matches!(
        reason,
        EndReason::AgentExited(_)
            | EndReason::ProxyDied(_)
            | EndReason::ForkServerDied
            | EndReason::Failed(_)
            | EndReason::Unresponsive(_)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_whose_lease_is_over_goes_on_where_its_events_are_kept() {
        let now = Instant::now();
        let fate = |is_durable| {
            let policy = LifecyclePolicy::new(&Lifecycle::default(), false, false);
            policy.fate(&EndReason::HostDied, is_durable, &mut CrashHistory::default(), now)
        };
        assert!(matches!(fate(true), SessionFate::Suspend));
        let unknown = EndReason::ProxyDied(None);
        let policy = LifecyclePolicy::new(&Lifecycle::default(), false, false);
        assert!(matches!(policy.fate(&unknown, true, &mut CrashHistory::default(), now), SessionFate::Suspend));
        assert!(matches!(fate(false), SessionFate::End));
    }

    #[test]
    fn a_resume_that_fails_leaves_the_session_suspended_without_a_log_too() {
        let fate = |is_resumed, is_ready| {
            let mut policy = LifecyclePolicy::new(&Lifecycle::default(), is_resumed, false);
            if is_ready {
                policy.ready(Instant::now());
            }
            policy.fate(&EndReason::ForkServerDied, false, &mut CrashHistory::default(), Instant::now())
        };
        assert!(matches!(fate(true, false), SessionFate::Suspend));
        assert!(matches!((fate(true, true), fate(false, true)), (SessionFate::End, SessionFate::End)));
    }

    #[test]
    fn pauses_double_and_crash_loops_end() {
        let (mut crashes, now) = (CrashHistory::default(), Instant::now());
        let pauses: Vec<_> =
            (0..4).map(|n| crashes.add(3, Duration::from_millis(100), now + Duration::from_secs(n))).collect();
        let ms = Duration::from_millis;
        assert_eq!(pauses, [Ok(ms(100)), Ok(ms(200)), Ok(ms(400)), Err(4)]);
        // Long ago they do not count.
        assert_eq!(crashes.add(3, ms(100), now + 2 * CRASH_WINDOW), Ok(ms(100)));
        assert_eq!(crashes.add(u32::MAX, MAX_RESTART_PAUSE, now + 2 * CRASH_WINDOW), Ok(MAX_RESTART_PAUSE));
    }

    #[test]
    fn idle_time_is_counted_from_the_last_turn() {
        let lifecycle = Lifecycle { idle_suspend_ms: Some(1000), ..Lifecycle::default() };
        let (mut lasting, now) = (LifecyclePolicy::new(&lifecycle, false, false), Instant::now());
        assert_eq!(lasting.idle(now), Some(now + Duration::from_secs(1)));
        assert_eq!(lasting.ready(now), lasting.idle(now));
        let mut resumed = LifecyclePolicy::new(&lifecycle, true, false);
        assert_eq!(resumed.ready(now), lasting.idle(now + RESUMED));
        let never = LifecyclePolicy::new(&Lifecycle { idle_suspend_ms: Some(0), ..lifecycle }, false, false);
        assert_eq!((never.idle(now), never.suspends()), (None, false));
    }
}
