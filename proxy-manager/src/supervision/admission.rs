//! Admission of sessions to the manager's places.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::oneshot, time::timeout};

use super::{
    Occupancy, SessionBounds,
    slots::{SlotClaim, SlotPolicy, SlotTicket, SlotVerdict},
};
use crate::error::{Error, Result, SessionBound};

/// The places of a manager's sessions.
#[derive(Debug)]
pub(crate) struct Admission {
    bounds: SessionBounds,
    state: Mutex<AdmissionState>,
}

#[derive(Debug)]
struct AdmissionState {
    slots: SlotPolicy,
    /// Notifies the waiting starts.
    waiters: HashMap<SlotTicket, oneshot::Sender<Result<()>>>,
    /// Starts that were given a place and have not taken it yet.
    admitted: HashSet<SlotTicket>,
    /// Reason why no start is admitted any more.
    closed: Option<Error>,
}

/// Place of a session, freed when this is dropped.
#[derive(Debug)]
pub(crate) struct SessionSlot {
    admission: Arc<Admission>,
    claimant: SlotClaim,
}

/// Place in the queue, left when this is dropped.
struct QueuePlace<'a> {
    admission: &'a Admission,
    claimant: &'a SlotClaim,
    ticket: SlotTicket,
}

impl Admission {
    pub(crate) fn new(bounds: SessionBounds) -> Self {
        let state = AdmissionState {
            slots: SlotPolicy::new(bounds),
            waiters: HashMap::new(),
            admitted: HashSet::new(),
            closed: None,
        };
        Self { bounds, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, AdmissionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn occupancy(&self) -> Occupancy {
        self.state().slots.occupancy()
    }

    /// Longest wait of a start for a place.
    pub(crate) fn longest_wait(&self) -> Duration {
        self.bounds.longest_wait
    }

    /// Waits for a place, as far as the bounds allow it. Dropping the future leaves the queue.
    ///
    /// # Errors
    /// [`Error::TooManySessions`], and the error given to [`Admission::close`].
    pub(crate) async fn admit(self: &Arc<Self>, claim: SlotClaim) -> Result<SessionSlot> {
        let (place, called) = {
            let mut state = self.state();
            if let Some(error) = &state.closed {
                return Err(error.clone());
            }
            match state.slots.claim(&claim) {
                SlotVerdict::Admitted => return Ok(SessionSlot { admission: self.clone(), claimant: claim }),
                SlotVerdict::Refused(bound, limit) => {
                    let waiting = state.slots.occupancy().waiting;
                    return Err(Error::TooManySessions { bound, limit, waiting, waited: None });
                }
                SlotVerdict::Waits(ticket) => {
                    let (sender, called) = oneshot::channel();
                    state.waiters.insert(ticket, sender);
                    (QueuePlace { admission: self, claimant: &claim, ticket }, called)
                }
            }
        };
        tracing::debug!(?claim, "start waits for a place");
        match timeout(self.bounds.longest_wait, called).await {
            Ok(called) => {
                called.unwrap_or(Err(Error::ShutDown))?;
                place.take();
                Ok(SessionSlot { admission: self.clone(), claimant: claim })
            }
            Err(_) => {
                let state = self.state();
                let Occupancy { running, waiting } = state.slots.occupancy();
                let obstacle = state.slots.reached_bound(&claim);
                let is_called = state.admitted.contains(&place.ticket);
                drop(state);
                if is_called {
                    // The place came at the very last moment.
                    place.take();
                    return Ok(SessionSlot { admission: self.clone(), claimant: claim });
                }
                let (bound, limit) = obstacle.unwrap_or((SessionBound::Total, running));
                Err(Error::TooManySessions { bound, limit, waiting, waited: Some(self.bounds.longest_wait) })
            }
        }
    }

    /// Takes a place if there is one at once, and no start waits for one.
    ///
    /// # Errors
    /// As [`Admission::admit`].
    pub(crate) fn admit_now(self: &Arc<Self>, claim: SlotClaim) -> Result<SessionSlot> {
        let mut state = self.state();
        if let Some(error) = &state.closed {
            return Err(error.clone());
        }
        let Occupancy { running, waiting } = state.slots.occupancy();
        let obstacle = state.slots.reached_bound(&claim).or((waiting > 0).then_some((SessionBound::Total, running)));
        if let Some((bound, limit)) = obstacle {
            return Err(Error::TooManySessions { bound, limit, waiting, waited: None });
        }
        state.slots.take(&claim);
        drop(state);
        Ok(SessionSlot { admission: self.clone(), claimant: claim })
    }

    /// Returns the bound that keeps a start waiting now, if there is one.
    pub(crate) fn obstacle(&self, claim: &SlotClaim) -> Option<SessionBound> {
        self.state().slots.reached_bound(claim).map(|(bound, _)| bound)
    }

    /// Takes a place for a session that runs already, regardless of the bounds.
    pub(crate) fn take(self: &Arc<Self>, claim: SlotClaim) -> SessionSlot {
        self.state().slots.take(&claim);
        SessionSlot { admission: self.clone(), claimant: claim }
    }

    /// Refuses all starts from now on; waiting starts receive the error. The first error stays.
    pub(crate) fn close(&self, error: Error) {
        let mut state = self.state();
        let error = state.closed.get_or_insert(error).clone();
        let waiters = std::mem::take(&mut state.waiters);
        for (ticket, waiter) in waiters {
            state.slots.leave(ticket);
            let _ = waiter.send(Err(error.clone()));
        }
    }

    fn release(&self, state: &mut AdmissionState, claim: &SlotClaim) {
        for ticket in state.slots.release(claim) {
            state.admitted.insert(ticket);
            // A start that has just gone frees the place itself: its `Place` still exists.
            let _ = state.waiters.remove(&ticket).map(|waiter| waiter.send(Ok(())));
        }
    }
}

impl SessionSlot {
    /// Makes the place of a session that is nobody's a user's.
    ///
    /// # Errors
    /// [`Error::TooManySessions`] if the user has as many sessions as it may.
    pub(crate) fn assign(&mut self, user: Option<&str>) -> Result<()> {
        let Some(user) = user.filter(|_| self.claimant.user.is_none()) else { return Ok(()) };
        let mut state = self.admission.state();
        let waiting = state.slots.occupancy().waiting;
        let assigned = state.slots.assign(user);
        drop(state);
        assigned.map_err(|(bound, limit)| Error::TooManySessions { bound, limit, waiting, waited: None })?;
        self.claimant.user = Some(user.to_owned());
        Ok(())
    }
}

impl QueuePlace<'_> {
    fn take(self) {
        self.admission.state().admitted.remove(&self.ticket);
    }
}

impl Drop for QueuePlace<'_> {
    fn drop(&mut self) {
        let mut state = self.admission.state();
        state.waiters.remove(&self.ticket);
        if state.admitted.remove(&self.ticket) {
            self.admission.release(&mut state, self.claimant);
        } else {
            state.slots.leave(self.ticket);
        }
    }
}

impl Drop for SessionSlot {
    fn drop(&mut self) {
        let mut state = self.admission.state();
        self.admission.release(&mut state, &self.claimant);
    }
}
