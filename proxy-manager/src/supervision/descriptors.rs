//! Descriptors that no session takes: with none left nothing could be listed, read or ended.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};

/// Descriptors that a start opens at most.
const PER_START: u64 = 4;

/// The reserve of a manager.
#[derive(Debug)]
pub(crate) struct DescriptorReserve {
    descriptors: u64,
    /// Starts whose descriptors are not open yet.
    starting: AtomicU64,
}

/// A start that has room for its descriptors, until they are open.
#[derive(Debug)]
pub(crate) struct DescriptorClaim<'a>(&'a AtomicU64);

impl DescriptorReserve {
    pub(crate) fn new(descriptors: u64) -> Self {
        Self { descriptors, starting: AtomicU64::new(0) }
    }

    /// Lets a session start if enough descriptors stay free.
    ///
    /// # Errors
    /// [`Error::FdsExhausted`].
    pub(crate) fn claim(&self) -> Result<DescriptorClaim<'_>> {
        let starting = self.starting.fetch_add(1, Ordering::AcqRel) + 1;
        let claim = DescriptorClaim(&self.starting);
        // What cannot be counted may do; a start that is out of descriptors says so itself.
        let Ok(registry::DescriptorUse { limit, free }) = registry::descriptors() else { return Ok(claim) };
        let reserve = self.descriptors.min(limit / 4);
        if free >= reserve.saturating_add(starting.saturating_mul(PER_START)) {
            return Ok(claim);
        }
        let operation =
            format!("starting a session: {free} of {limit} are left, and {reserve} are kept to end sessions");
        Err(Error::FdsExhausted { operation })
    }
}

impl Drop for DescriptorClaim<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
