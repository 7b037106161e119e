//! Writes a heartbeat of the live sessions, from which a later manager knows how long a dead one's sessions lived.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::time::{MissedTickBehavior, interval};

use super::ManagerInner;

/// Pause between two heartbeats. Each is one row for all sessions, and none is written if no session lives.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(30);

/// Writes heartbeats while the manager lives.
pub(super) fn start(inner: &Arc<ManagerInner>) {
    let inner = Arc::downgrade(inner);
    tokio::spawn(repeat_while(move || {
        let Some(inner) = inner.upgrade() else { return false };
        inner.roster.record_heartbeat(SystemTime::now());
        true
    }));
}

/// Calls `beat` at once and then every [`HEARTBEAT_INTERVAL`], until it returns false.
async fn repeat_while(mut beat: impl FnMut() -> bool) {
    let mut period = interval(HEARTBEAT_INTERVAL);
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
        repeat_while(|| {
            beats.push(began.elapsed().as_secs());
            beats.len() < 4
        })
        .await;
        assert_eq!(beats, [0, 30, 60, 90]);
    }
}
