//! Whether the end of its processes is the end of a session, and when an idle one is suspended. No I/O.

use std::{collections::VecDeque, time::Duration};

use ipc_protocol::{EndReason, ExitStatus, Lifecycle, Restart};
use tokio::time::Instant;

use crate::session::Session;

/// Crashes that are longer ago do not count any more.
const WINDOW: Duration = Duration::from_secs(600);
/// The longest pause before a session is started again.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// After a session is resumed it does not count as idle for so long.
const RESUMED: Duration = Duration::from_secs(5);

/// What becomes of a session whose processes have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is over.
    End,
    /// It is over, since it has crashed so often.
    GiveUp(usize),
    /// It is suspended.
    Rest,
    /// It is suspended, and started again after this pause.
    Restart(Duration),
}

/// When a session crashed, over all its lives. The oldest first.
#[derive(Debug, Default)]
pub(crate) struct Crashes(VecDeque<Instant>);

impl Crashes {
    /// Another crash: the pause before the session is started again, or how many there were if it is not.
    fn add(&mut self, max: u32, first_pause: Duration, now: Instant) -> Result<Duration, usize> {
        while self.0.front().is_some_and(|crash| now.duration_since(*crash) > WINDOW) {
            self.0.pop_front();
        }
        self.0.push_back(now);
        let count = self.0.len();
        if u32::try_from(count).is_ok_and(|count| count <= max) {
            let doublings = u32::try_from(count - 1).unwrap_or(u32::MAX).min(16);
            return Ok(first_pause.saturating_mul(1 << doublings).min(LONGEST_PAUSE));
        }
        Err(count)
    }
}

/// What is known of it in one life of the session.
#[derive(Debug)]
pub(super) struct Lasting {
    restart: Restart,
    idle: Option<Duration>,
    idle_since: Option<Instant>,
    /// It was suspended before.
    has_been: bool,
    is_ready: bool,
}

impl Lasting {
    pub(super) fn new(lifecycle: &Lifecycle, has_been: bool) -> Self {
        let idle = lifecycle.idle_suspend_ms.filter(|ms| *ms > 0).map(Duration::from_millis);
        Self { restart: lifecycle.restart, idle, idle_since: None, has_been, is_ready: false }
    }

    /// The agent is ready.
    pub(super) fn ready(&mut self, now: Instant) {
        self.is_ready = true;
        // Who has resumed it is about to say something.
        self.idle_since = if self.has_been { now.checked_add(RESUMED) } else { Some(now) };
    }

    /// It waits for a prompt from now on.
    pub(super) fn idle(&mut self, now: Instant) {
        self.idle_since = Some(now);
    }

    /// It has something to do.
    pub(super) fn busy(&mut self) {
        self.idle_since = None;
    }

    /// When it will have been idle for too long.
    pub(super) fn next(&self) -> Option<Instant> {
        self.idle_since?.checked_add(self.idle?)
    }

    /// Its processes have ended.
    pub(super) fn fate(&self, reason: &EndReason, session: &Session, now: Instant) -> Fate {
        // What has no conversation that is kept has nothing to go on with.
        if session.kept_conversation().is_none() {
            return Fate::End;
        }
        let restarts = matches!(self.restart, Restart::OnCrash { .. });
        match reason {
            EndReason::Suspended => Fate::Rest,
            // Another manager can go on with it, and this one with another fork server.
            EndReason::Shutdown if session.history().is_durable() => Fate::Rest,
            EndReason::ForkServerDied if !restarts && session.history().is_durable() => Fate::Rest,
            EndReason::ForkServerDied if !restarts => Fate::End,
            EndReason::Killed | EndReason::Shutdown | EndReason::HostDied => Fate::End,
            EndReason::AgentExited(Some(ExitStatus::Code(0))) if self.is_ready => Fate::End,
            reason => match self.restart {
                Restart::OnCrash { max, backoff_ms } if is_crash(reason) => {
                    match session.crashes().add(max, Duration::from_millis(backoff_ms), now) {
                        Ok(pause) => Fate::Restart(pause),
                        Err(count) => Fate::GiveUp(count),
                    }
                }
                // What was suspended and cannot be resumed is as it was.
                _ if self.has_been && !self.is_ready => Fate::Rest,
                _ => Fate::End,
            },
        }
    }
}

/// Whether a session may fare better once more.
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
    fn pauses_double_and_crash_loops_end() {
        let (mut crashes, now) = (Crashes::default(), Instant::now());
        let pauses: Vec<_> =
            (0..4).map(|n| crashes.add(3, Duration::from_millis(100), now + Duration::from_secs(n))).collect();
        let ms = Duration::from_millis;
        assert_eq!(pauses, [Ok(ms(100)), Ok(ms(200)), Ok(ms(400)), Err(4)]);
        // Long ago they do not count.
        assert_eq!(crashes.add(3, ms(100), now + 2 * WINDOW), Ok(ms(100)));
        assert_eq!(crashes.add(u32::MAX, LONGEST_PAUSE, now + 2 * WINDOW), Ok(LONGEST_PAUSE));
    }

    #[test]
    fn idle_time_is_counted_from_the_last_turn() {
        let lifecycle = Lifecycle { idle_suspend_ms: Some(1000), ..Lifecycle::default() };
        let (mut lasting, now) = (Lasting::new(&lifecycle, false), Instant::now());
        assert_eq!(lasting.next(), None);
        lasting.idle(now);
        assert_eq!(lasting.next(), Some(now + Duration::from_secs(1)));
        lasting.busy();
        assert_eq!(lasting.next(), None);
        let mut never = Lasting::new(&Lifecycle { idle_suspend_ms: Some(0), ..lifecycle }, false);
        never.idle(now);
        assert_eq!(never.next(), None);
    }
}
