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
    tokio::spawn(async move {
        let mut period = interval(PERIOD);
        period.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            period.tick().await;
            let Some(inner) = inner.upgrade() else { return };
            inner.streams.roster.beat(SystemTime::now());
        }
    });
}
