//! Applies the retention policy to the event log every minute, and deletes the byte streams whose life is over.

use std::{sync::Arc, time::Duration};

use event_log::{LogError, Retention};
use tokio::time::{MissedTickBehavior, interval};

use super::ManagerInner;

/// Pause between two passes. The first is at the start.
const RETENTION_INTERVAL: Duration = Duration::from_secs(60);

/// Applies the retention policy while the manager lives and has a log.
pub(super) fn start(inner: &Arc<ManagerInner>, retention: Retention) {
    let inner = Arc::downgrade(inner);
    let pass = move || {
        // After a shutdown there is no log.
        let log = inner.upgrade().and_then(|inner| inner.streams.log.get());
        let Some(log) = log else { return false };
        log.expire_byte_streams();
        if retention != Retention::default() {
            log.retain(retention, Box::new(log_failure));
        }
        true
    };
    tokio::spawn(repeat_while(pass));
}

fn log_failure(result: Result<(), LogError>) {
    if let Err(error) = result {
        tracing::warn!(error = %ipc_protocol::ErrorChain(&error), "failed to apply the retention policy");
    }
}

/// Calls `pass` every [`RETENTION_INTERVAL`], until it returns false.
async fn repeat_while(mut pass: impl FnMut() -> bool) {
    let mut period = interval(RETENTION_INTERVAL);
    period.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        period.tick().await;
        if !pass() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn every_minute_until_there_is_no_log() {
        let (mut passes, begin) = (Vec::new(), Instant::now());
        repeat_while(|| {
            passes.push(begin.elapsed());
            passes.len() < 3
        })
        .await;
        assert_eq!(passes, [Duration::ZERO, RETENTION_INTERVAL, 2 * RETENTION_INTERVAL]);
    }
}
