//! State shared by all incarnations of a session. Each resume begins another incarnation; only the latest may be ended
//! or written to.

use std::sync::{self, Arc, PoisonError, Weak};

use ipc_protocol::EndReason;
use tokio::sync::{Mutex, MutexGuard, watch};

use super::Session;
use crate::error::{Error, Result};

/// Incarnations of one session.
#[derive(Debug, Default)]
pub(crate) struct Lives {
    resuming: Mutex<()>,
    still: sync::Mutex<()>,
    now: watch::Sender<Now>,
}

#[derive(Debug, Default)]
struct Now {
    /// `None` during the first incarnation.
    latest: Option<Weak<Session>>,
    /// Reasons of all callers that want the session ended or suspended.
    wanted: Vec<EndReason>,
}

impl Now {
    fn is(&self, session: &Session) -> bool {
        self.latest.as_ref().is_none_or(|latest| std::ptr::eq(latest.as_ptr(), session))
    }
}

/// Request to end or suspend the session: it is not resumed until this is dropped.
pub(super) struct Wanted<'a>(&'a Lives, EndReason);

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        self.0.now.send_modify(|now| {
            if let Some(at) = now.wanted.iter().position(|reason| *reason == self.1) {
                now.wanted.swap_remove(at);
            }
        });
    }
}

impl Lives {
    /// Locks out other resumes, and callers that end the session while it is suspended.
    pub(crate) async fn alone(&self) -> MutexGuard<'_, ()> {
        self.resuming.lock().await
    }

    /// Locks out other writers to a suspended session. An incarnation created under the lock is the latest when the
    /// lock is released. A resume may take long, but this lock never does: its holder waits for nothing.
    pub(crate) fn hold_still(&self) -> sync::MutexGuard<'_, ()> {
        self.still.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes `session` the latest incarnation.
    pub(crate) fn begin(&self, session: &Arc<Session>) {
        self.now.send_modify(|now| now.latest = Some(Arc::downgrade(session)));
    }

    /// Returns true if `session` is the latest incarnation.
    pub(crate) fn is_latest(&self, session: &Session) -> bool {
        self.now.borrow().is(session)
    }

    /// Returns the latest incarnation if it is not `session`.
    ///
    /// # Errors
    /// [`Error::UnknownSession`] if that one was forgotten.
    pub(super) fn after(&self, session: &Session) -> Result<Option<Arc<Session>>> {
        let now = self.now.borrow();
        match now.latest.as_ref().filter(|_| !now.is(session)) {
            None => Ok(None),
            Some(latest) => {
                latest.upgrade().map(Some).ok_or_else(|| Error::UnknownSession { session: session.id().clone() })
            }
        }
    }

    /// Resolves when `session` is no longer the latest incarnation.
    pub(super) async fn goes_on_after(&self, session: &Session) {
        // Fails only without the session.
        let _ = self.now.subscribe().wait_for(|now| !now.is(session)).await;
    }

    /// Requests the session's end or suspension until the result is dropped.
    pub(super) fn want_end(&self, reason: EndReason) -> Wanted<'_> {
        self.now.send_modify(|now| now.wanted.push(reason.clone()));
        Wanted(self, reason)
    }

    /// Resolves with the reason when a caller wants the session ended or suspended, and `session` is the latest
    /// incarnation.
    pub(crate) async fn unwanted(&self, session: &Session) -> EndReason {
        let mut now = self.now.subscribe();
        // Fails only without the session.
        let found = now.wait_for(|now| !now.wanted.is_empty() && now.is(session)).await;
        let reasons = found.iter().flat_map(|now| &now.wanted);
        // An end also satisfies callers that want a suspension.
        let ends = reasons.clone().find(|reason| **reason != EndReason::Suspended);
        ends.cloned().unwrap_or(EndReason::Suspended)
    }
}
