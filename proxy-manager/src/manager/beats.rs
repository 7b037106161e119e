//! That the sessions live is written down now and then: a later manager knows how long those of a dead one did.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::time::{MissedTickBehavior, interval};

use super::Inner;

/// Between two beats. Each is one row for all sessions, and none if no session lives.
const PERIOD: Duration = Duration::from_secs(30);

/// Beats as long as there is a manager.
pub(super) fn keep(inner: &Arc<Inner>) {
    let inner = Arc::downgrade(inner);
    tokio::spawn(as_long_as(move || {
        let Some(inner) = inner.upgrade() else { return false };
        inner.streams.roster.beat(SystemTime::now());
        true
    }));
}

/// Calls `beat` at once and then again each [`PERIOD`], as long as it wants that.
async fn as_long_as(mut beat: impl FnMut() -> bool) {
    let mut period = interval(PERIOD);
    period.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        period.tick().await;
        if !beat() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    /// What a beat does is tested with the roster.
    #[tokio::test(start_paused = true)]
    async fn a_heart_beats_every_thirty_seconds_until_the_end() {
        let (began, mut beats) = (Instant::now(), Vec::new());
        as_long_as(|| {
            beats.push(began.elapsed().as_secs());
            beats.len() < 4
        })
        .await;
        assert_eq!(beats, [0, 30, 60, 90]);
    }
}
