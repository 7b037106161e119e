//! What the manager logs, kept: a key must not be in it.

use std::{
    io,
    sync::{Mutex, PoisonError},
};

use tracing_subscriber::filter::LevelFilter;

/// The most that is kept, in bytes; what comes after is lost, and the scenario that looks for keys says so.
pub(super) const MOST: usize = 64 * 1024 * 1024;

static KEPT: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// From now on everything that is logged in this process is kept.
pub fn keep_logs() {
    let kept = tracing_subscriber::fmt().with_max_level(LevelFilter::TRACE).with_ansi(false).with_writer(|| Keeper);
    // Another subscriber stays: then there is nothing to look at, and the scenario fails.
    let _ = kept.try_init();
    tracing::info!("logs are kept");
}

/// What was logged so far.
pub(super) fn logged() -> Vec<u8> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

struct Keeper;

impl io::Write for Keeper {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        let room = MOST.saturating_sub(kept.len());
        kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
