//! Bounds on concurrent sessions, and the queue of starts.

mod admission;
mod descriptors;
mod slots;
mod warm_pool;

use std::time::Duration;

pub(crate) use admission::{Admission, SessionSlot};
pub(crate) use descriptors::DescriptorReserve;
pub(crate) use slots::SlotClaim;
pub(crate) use warm_pool::WarmPool;
pub use warm_pool::WarmTarget;

/// Bounds on concurrent sessions; unbounded by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionBounds {
    pub(crate) total: Option<usize>,
    pub(crate) per_user: Option<usize>,
    pub(crate) per_agent: Option<usize>,
    /// Maximum number of starts that wait for a place.
    pub(crate) queue: usize,
    pub(crate) longest_wait: Duration,
}

impl Default for SessionBounds {
    fn default() -> Self {
        Self { total: None, per_user: None, per_agent: None, queue: 0, longest_wait: Duration::from_secs(60) }
    }
}

/// Number of sessions, and of starts that wait for a place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Occupancy {
    /// Sessions that start or live.
    pub running: usize,
    /// Starts that wait for a place.
    pub waiting: usize,
}
