//! Health check of the session's proxy: sends a ping after a silence. Pure.

use tokio::time::Instant;

use crate::deadlines::Health;

/// Result of a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beat {
    Nothing,
    /// Send a ping to the proxy.
    Ping,
    /// The proxy has missed this many answers in a row. Reported once per silence.
    Unresponsive(u32),
}

#[derive(Debug)]
pub(crate) struct Pulse {
    health: Option<Health>,
    /// Instant of the next check; `None` before the session is ready.
    due: Option<Instant>,
    heard: Option<Instant>,
    /// True while a ping is outstanding.
    asked: bool,
    missed: u32,
}

impl Pulse {
    pub(crate) fn new(health: Option<Health>) -> Self {
        let health = health.filter(|health| !health.interval.is_zero());
        Self { health, due: None, heard: None, asked: false, missed: 0 }
    }

    /// Starts the checks, since the session is ready.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.due = self.health.and_then(|health| now.checked_add(health.interval));
    }

    /// Records a message of the proxy. Returns true if the proxy had been unresponsive.
    pub(crate) fn hear(&mut self, now: Instant) -> bool {
        self.heard = Some(now);
        self.asked = false;
        let missed = std::mem::take(&mut self.missed);
        self.health.is_some_and(|health| missed >= health.misses.max(1))
    }

    /// Returns true if an unresponsive session is to be ended.
    pub(crate) fn ends(&self) -> bool {
        self.health.is_some_and(|health| health.ends)
    }

    /// Number of unanswered pings in a row.
    pub(crate) fn missed(&self) -> u32 {
        self.missed
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.due
    }

    pub(crate) fn tick(&mut self, now: Instant) -> Beat {
        let (Some(health), Some(due)) = (self.health, self.due) else { return Beat::Nothing };
        if now < due {
            return Beat::Nothing;
        }
        if !self.asked {
            let quiet_until = self.heard.and_then(|heard| heard.checked_add(health.interval));
            if let Some(later) = quiet_until.filter(|later| *later > now) {
                self.due = Some(later);
                return Beat::Nothing;
            }
            self.asked = true;
            self.due = now.checked_add(health.interval);
            return Beat::Ping;
        }
        // The outstanding ping has no answer yet; another one would add nothing.
        self.missed = self.missed.saturating_add(1);
        self.due = now.checked_add(health.interval);
        if self.missed == health.misses.max(1) { Beat::Unresponsive(self.missed) } else { Beat::Nothing }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn pulse(misses: u32) -> (Pulse, Instant) {
        let (mut pulse, now) = (Pulse::new(Some(Health { interval: SECOND, misses, ends: false })), Instant::now());
        assert_eq!(pulse.next(), None);
        pulse.begin(now);
        (pulse, now)
    }

    /// What is done at each due time, with its second.
    fn run(pulse: &mut Pulse, begin: Instant, until: u32) -> Vec<(u64, Beat)> {
        let mut beats = Vec::new();
        while let Some(due) = pulse.next().filter(|due| *due <= begin + SECOND * until) {
            let beat = pulse.tick(due);
            if beat != Beat::Nothing {
                beats.push(((due - begin).as_secs(), beat));
            }
        }
        beats
    }

    #[test]
    fn silence_is_asked_and_then_told_once() {
        let (mut pulse, begin) = pulse(3);
        assert_eq!(run(&mut pulse, begin, 20), [(1, Beat::Ping), (4, Beat::Unresponsive(3))]);
        assert_eq!(pulse.missed(), 19);
        assert!(pulse.hear(begin + SECOND * 20), "it is there again");
        assert!(!pulse.hear(begin + SECOND * 20));
        let again = run(&mut pulse, begin, 30);
        assert_eq!(again, [(21, Beat::Ping), (24, Beat::Unresponsive(3))]);
    }

    #[test]
    fn who_talks_is_not_asked_and_an_answer_counts() {
        let (mut pulse, begin) = pulse(1);
        for half in 1..20 {
            let now = begin + SECOND / 2 * half;
            assert_eq!(pulse.tick(now), Beat::Nothing, "{half}");
            assert!(!pulse.hear(now));
        }
        let later = begin + SECOND * 11;
        assert_eq!(pulse.tick(later), Beat::Ping);
        assert!(!pulse.hear(later + SECOND / 10));
        assert_eq!(pulse.tick(later + SECOND), Beat::Nothing);
        assert_eq!(pulse.missed(), 0);
    }

    #[test]
    fn without_an_interval_nobody_is_asked() {
        for health in [None, Some(Health { interval: Duration::ZERO, ..Health::default() })] {
            let mut pulse = Pulse::new(health);
            pulse.begin(Instant::now());
            assert_eq!((pulse.next(), pulse.tick(Instant::now() + SECOND)), (None, Beat::Nothing));
        }
    }
}
