//! Health check of the session's proxy: sends a ping after a silence. Pure.

use tokio::time::Instant;

use crate::{
    deadlines::HealthPolicy,
    session::core::{SessionTimers, TimerKind},
};

/// Result of a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PulseAction {
    Nothing,
    /// Send a ping to the proxy.
    Ping,
    /// The proxy has missed this many answers in a row. Reported once per silence.
    Unresponsive(u32),
}

#[derive(Debug)]
pub(crate) struct ProxyPulse {
    health: Option<HealthPolicy>,
    last_heard: Option<Instant>,
    /// True while a ping is outstanding.
    ping_is_out: bool,
    missed_pings: u32,
    /// True if the host left the proxy unread at some time since the last tick.
    was_paused: bool,
}

impl ProxyPulse {
    pub(crate) fn new(health: Option<HealthPolicy>) -> Self {
        let health = health.filter(|health| !health.interval.is_zero());
        Self { health, last_heard: None, ping_is_out: false, missed_pings: 0, was_paused: false }
    }

    /// Starts the checks, since the session is ready.
    pub(crate) fn begin(&self, timers: &mut SessionTimers, now: Instant) {
        timers.set(TimerKind::Pulse, self.health.and_then(|health| now.checked_add(health.interval)));
    }

    /// Records a message of the proxy. Returns true if the proxy had been unresponsive.
    pub(crate) fn record_activity(&mut self, now: Instant) -> bool {
        self.last_heard = Some(now);
        self.ping_is_out = false;
        let missed = std::mem::take(&mut self.missed_pings);
        self.health.is_some_and(|health| missed >= health.misses.max(1))
    }

    /// Records that the host leaves the proxy unread: an answer may wait there, and the next check begins anew.
    pub(crate) fn pause(&mut self) {
        self.was_paused = true;
    }

    /// Returns true if an unresponsive session is to be ended.
    pub(crate) fn ends_session(&self) -> bool {
        self.health.is_some_and(|health| health.ends)
    }

    /// Number of unanswered pings in a row.
    pub(crate) fn missed(&self) -> u32 {
        self.missed_pings
    }

    /// Does the check that is due, and sets the timer of the next one.
    pub(crate) fn tick(&mut self, timers: &mut SessionTimers, now: Instant) -> PulseAction {
        let Some(health) = self.health else { return PulseAction::Nothing };
        if std::mem::take(&mut self.was_paused) {
            self.ping_is_out = false;
            timers.set(TimerKind::Pulse, now.checked_add(health.interval));
            return PulseAction::Nothing;
        }
        if !self.ping_is_out {
            let quiet_until = self.last_heard.and_then(|heard| heard.checked_add(health.interval));
            if let Some(later) = quiet_until.filter(|later| *later > now) {
                timers.set(TimerKind::Pulse, Some(later));
                return PulseAction::Nothing;
            }
            self.ping_is_out = true;
            timers.set(TimerKind::Pulse, now.checked_add(health.interval));
            return PulseAction::Ping;
        }
        // The outstanding ping has no answer yet; another one would add nothing.
        self.missed_pings = self.missed_pings.saturating_add(1);
        timers.set(TimerKind::Pulse, now.checked_add(health.interval));
        if self.missed_pings == health.misses.max(1) {
            PulseAction::Unresponsive(self.missed_pings)
        } else {
            PulseAction::Nothing
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn pulse(misses: u32) -> (ProxyPulse, SessionTimers, Instant) {
        let health = HealthPolicy { interval: SECOND, misses, ends: false };
        let (pulse, mut timers, now) = (ProxyPulse::new(Some(health)), SessionTimers::default(), Instant::now());
        pulse.begin(&mut timers, now);
        (pulse, timers, now)
    }

    /// What is done now, if anything is due.
    fn tick(pulse: &mut ProxyPulse, timers: &mut SessionTimers, now: Instant) -> PulseAction {
        if timers.expire(now).is_empty() { PulseAction::Nothing } else { pulse.tick(timers, now) }
    }

    /// What is done at each due time, with its second.
    fn run(pulse: &mut ProxyPulse, timers: &mut SessionTimers, begin: Instant, until: u32) -> Vec<(u64, PulseAction)> {
        let mut beats = Vec::new();
        while let Some(due) = timers.next_deadline().filter(|due| *due <= begin + SECOND * until) {
            let beat = tick(pulse, timers, due);
            if beat != PulseAction::Nothing {
                beats.push(((due - begin).as_secs(), beat));
            }
        }
        beats
    }

    #[test]
    fn silence_is_asked_and_then_told_once() {
        let (mut pulse, mut timers, begin) = pulse(3);
        assert_eq!(
            run(&mut pulse, &mut timers, begin, 20),
            [(1, PulseAction::Ping), (4, PulseAction::Unresponsive(3))]
        );
        assert_eq!(pulse.missed(), 19);
        assert!(pulse.record_activity(begin + SECOND * 20), "it is there again");
        assert!(!pulse.record_activity(begin + SECOND * 20));
        let again = run(&mut pulse, &mut timers, begin, 30);
        assert_eq!(again, [(21, PulseAction::Ping), (24, PulseAction::Unresponsive(3))]);
    }

    #[test]
    fn who_talks_is_not_asked_and_an_answer_counts() {
        let (mut pulse, mut timers, begin) = pulse(1);
        for half in 1..20 {
            let now = begin + SECOND / 2 * half;
            assert_eq!(tick(&mut pulse, &mut timers, now), PulseAction::Nothing, "{half}");
            assert!(!pulse.record_activity(now));
        }
        let later = begin + SECOND * 11;
        assert_eq!(tick(&mut pulse, &mut timers, later), PulseAction::Ping);
        assert!(!pulse.record_activity(later + SECOND / 10));
        assert_eq!(tick(&mut pulse, &mut timers, later + SECOND), PulseAction::Nothing);
        assert_eq!(pulse.missed(), 0);
    }

    #[test]
    fn a_host_that_does_not_read_counts_no_silence() {
        let (mut pulse, mut timers, begin) = pulse(1);
        assert_eq!(run(&mut pulse, &mut timers, begin, 1), [(1, PulseAction::Ping)]);
        // The answer waits in the socket for ten seconds.
        for second in 2..12 {
            pulse.pause();
            assert_eq!(tick(&mut pulse, &mut timers, begin + SECOND * second), PulseAction::Nothing, "{second}");
        }
        // A proxy that is silent afterwards too is found.
        assert_eq!(
            run(&mut pulse, &mut timers, begin, 20),
            [(12, PulseAction::Ping), (13, PulseAction::Unresponsive(1))]
        );
    }

    #[test]
    fn without_an_interval_nobody_is_asked() {
        for health in [None, Some(HealthPolicy { interval: Duration::ZERO, ..HealthPolicy::default() })] {
            let (mut pulse, mut timers, now) = (ProxyPulse::new(health), SessionTimers::default(), Instant::now());
            pulse.begin(&mut timers, now);
            assert_eq!((timers.next_deadline(), pulse.tick(&mut timers, now + SECOND)), (None, PulseAction::Nothing));
        }
    }
}
