//! All deadlines of a session, in one map.

use std::collections::BTreeMap;

use tokio::time::Instant;

/// What is due, in the order in which it is done where more than one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TimerKind {
    /// The agent is to be ready, or the proxy of an adopted session to report its state.
    Start,
    /// The turn that was aborted is to be over.
    Abort,
    /// The next of the clocks of a turn ([`SessionClocks::next`](crate::session::clocks::SessionClocks::next)).
    Turn,
    /// The usage limit is reset, and the prompt asked again.
    Usage,
    /// The proxy is checked.
    Pulse,
    /// The session has been idle for too long.
    Idle,
    /// The limit of the session's time has passed.
    WallClock,
    /// The end for which a limit was exceeded is to be over.
    Limit,
    /// A receipt waits no longer for exit statuses.
    Receipt,
    /// The proxy is to have listed its processes.
    Listing,
    /// The next deadline of the session's end ([`SessionEnding::next`](crate::session::session_ending::SessionEnding::next)).
    End,
    /// Events are committed that were held back while the agent starts.
    Commit,
}

/// Deadlines of a session.
#[derive(Debug, Default)]
pub(crate) struct SessionTimers(BTreeMap<TimerKind, Instant>);

impl SessionTimers {
    /// Sets a timer, or cancels it.
    pub(crate) fn set(&mut self, kind: TimerKind, at: Option<Instant>) {
        match at {
            Some(at) => _ = self.0.insert(kind, at),
            None => _ = self.0.remove(&kind),
        }
    }

    /// Cancels a timer. Returns true if it was set.
    pub(crate) fn cancel(&mut self, kind: TimerKind) -> bool {
        self.0.remove(&kind).is_some()
    }

    pub(crate) fn is_set(&self, kind: TimerKind) -> bool {
        self.0.contains_key(&kind)
    }

    /// Instant of the next timer.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.0.values().min().copied()
    }

    /// Takes the timers that are due.
    pub(crate) fn expire(&mut self, now: Instant) -> Vec<TimerKind> {
        let due: Vec<_> = self.0.iter().filter(|(_, at)| **at <= now).map(|(kind, _)| *kind).collect();
        self.0.retain(|_, at| *at > now);
        due
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_due_is_taken_once_and_in_its_order() {
        let (mut timers, now) = (SessionTimers::default(), Instant::now());
        let later = now + Duration::from_secs(1);
        timers.set(TimerKind::End, Some(now));
        timers.set(TimerKind::Start, Some(now));
        timers.set(TimerKind::Idle, Some(later));
        timers.set(TimerKind::Pulse, Some(now));
        assert!(timers.cancel(TimerKind::Pulse) && !timers.cancel(TimerKind::Pulse));
        assert_eq!(timers.next_deadline(), Some(now));
        assert_eq!(timers.expire(now), [TimerKind::Start, TimerKind::End]);
        assert_eq!((timers.next_deadline(), timers.expire(now).len()), (Some(later), 0));
        timers.set(TimerKind::Idle, None);
        assert!(!timers.is_set(TimerKind::Idle) && timers.next_deadline().is_none());
    }
}
