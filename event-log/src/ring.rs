//! Newest events of a stream, in memory.

use std::{collections::VecDeque, sync::Arc};

use ipc_protocol::Envelope;

/// Bounded queue of a stream's newest events, which knows their weight.
#[derive(Debug, Default)]
pub struct EventRing {
    events: VecDeque<Arc<Envelope>>,
    bytes: usize,
}

impl EventRing {
    /// Appends an event.
    pub fn push(&mut self, event: Arc<Envelope>) {
        self.bytes += event.weight();
        self.events.push_back(event);
    }

    /// Removes the oldest event.
    pub fn pop(&mut self) -> Option<Arc<Envelope>> {
        let oldest = self.events.pop_front()?;
        self.bytes -= oldest.weight();
        Some(oldest)
    }

    /// Removes the newest event.
    pub(crate) fn pop_last(&mut self) -> Option<Arc<Envelope>> {
        let newest = self.events.pop_back()?;
        self.bytes -= newest.weight();
        Some(newest)
    }

    /// Newest event.
    pub(crate) fn last(&self) -> Option<&Arc<Envelope>> {
        self.events.back()
    }

    /// Removes and returns the oldest event if there are more events, or they weigh more. The newest one always stays.
    pub fn evict(&mut self, max_events: usize, max_bytes: usize) -> Option<Arc<Envelope>> {
        let is_over = self.events.len() > max_events || self.bytes > max_bytes;
        (self.events.len() > 1 && is_over).then(|| self.pop())?
    }

    /// Number of events.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Returns true if there is no event.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Weight of the events in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Oldest event.
    pub fn first(&self) -> Option<&Arc<Envelope>> {
        self.events.front()
    }

    /// Returns the events from this index on, oldest first.
    pub fn range(&self, from: usize) -> impl Iterator<Item = &Arc<Envelope>> {
        self.events.range(from.min(self.events.len())..)
    }

    /// Returns the events with an offset of at least `next`, oldest first.
    pub fn since(&self, next: u64) -> impl Iterator<Item = &Arc<Envelope>> {
        self.range(self.events.partition_point(|event| event.offset < next))
    }
}
