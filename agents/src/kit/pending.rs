//! Requests of ours that the agent has not answered.

use std::collections::BTreeMap;

/// Most requests that wait for their answers at once, where an adapter has no bound of its own.
const MAX_PENDING: usize = 256;

/// Table of unanswered requests: each has an id that is used once, and the purpose that decides what its answer means.
#[derive(Debug)]
pub(crate) struct PendingRequests<P> {
    last_id: u64,
    open: BTreeMap<u64, P>,
}

impl<P> Default for PendingRequests<P> {
    fn default() -> Self {
        Self { last_id: 0, open: BTreeMap::new() }
    }
}

impl<P> PendingRequests<P> {
    /// Returns an id that no request has: for what is answered elsewhere.
    pub(crate) fn fresh_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Adds a request, and returns its id.
    pub(crate) fn add(&mut self, purpose: P) -> u64 {
        let id = self.fresh_id();
        self.open.insert(id, purpose);
        id
    }

    /// Removes the request `id` and returns its purpose, if it is unanswered.
    pub(crate) fn take(&mut self, id: u64) -> Option<P> {
        self.open.remove(&id)
    }

    /// Returns the unanswered request `id`.
    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut P> {
        self.open.get_mut(&id)
    }

    /// Returns the id of the oldest request that satisfies `is`.
    pub(crate) fn find(&self, is: impl Fn(&P) -> bool) -> Option<u64> {
        self.open.iter().find(|(_, purpose)| is(purpose)).map(|(id, _)| *id)
    }

    /// Counts the requests that satisfy `is`.
    pub(crate) fn count(&self, is: impl Fn(&P) -> bool) -> usize {
        self.open.values().filter(|purpose| is(purpose)).count()
    }

    /// Counts all requests.
    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    /// Returns whether `more` further requests fit.
    pub(crate) fn has_room(&self, more: usize) -> bool {
        self.open.len() + more <= MAX_PENDING
    }

    /// Removes the requests that satisfy `is`: their answers are not awaited any more.
    pub(crate) fn forget(&mut self, is: impl Fn(&P) -> bool) {
        self.open.retain(|_, purpose| !is(purpose));
    }

    /// Removes all requests, oldest first.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = P> + use<P> {
        std::mem::take(&mut self.open).into_values()
    }
}
