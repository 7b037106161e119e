//! What all lives of a session share: each resume begins another one, and only the latest may be ended or written to.

use std::sync::{self, Arc, PoisonError, Weak};

use ipc_protocol::EndReason;
use tokio::sync::{Mutex, MutexGuard, watch};

use super::Session;
use crate::{Error, Result};

/// The lives of one session.
#[derive(Debug, Default)]
pub(crate) struct Lives {
    resuming: Mutex<()>,
    still: sync::Mutex<()>,
    now: watch::Sender<Now>,
}

#[derive(Debug, Default)]
struct Now {
    /// `None` in its first life.
    latest: Option<Weak<Session>>,
    /// For what each of those who want it to end, or suspended, wants that.
    wanted: Vec<EndReason>,
}

impl Now {
    fn is(&self, session: &Session) -> bool {
        self.latest.as_ref().is_none_or(|latest| std::ptr::eq(latest.as_ptr(), session))
    }
}

/// Somebody wants the session to end, or suspended: until this is dropped it is not resumed.
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
    /// One resume at a time: the others wait for it, and so does who ends it while it is suspended.
    pub(crate) async fn alone(&self) -> MutexGuard<'_, ()> {
        self.resuming.lock().await
    }

    /// Meanwhile nobody else writes to it while it is suspended, and a life that is made is its latest when that is over. A resume
    /// may take long, and this never does: who has it waits for nothing.
    pub(crate) fn hold_still(&self) -> sync::MutexGuard<'_, ()> {
        self.still.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `session` is its life from now on.
    pub(crate) fn begin(&self, session: &Arc<Session>) {
        self.now.send_modify(|now| now.latest = Some(Arc::downgrade(session)));
    }

    /// Whether `session` is its latest life.
    pub(crate) fn is_latest(&self, session: &Session) -> bool {
        self.now.borrow().is(session)
    }

    /// The life after `session`, if there is one.
    ///
    /// # Errors
    /// [`Error::UnknownSession`] if that was forgotten.
    pub(super) fn after(&self, session: &Session) -> Result<Option<Arc<Session>>> {
        let now = self.now.borrow();
        match now.latest.as_ref().filter(|_| !now.is(session)) {
            None => Ok(None),
            Some(latest) => {
                latest.upgrade().map(Some).ok_or_else(|| Error::UnknownSession { session: session.id().clone() })
            }
        }
    }

    /// Resolves when `session` is not its latest life.
    pub(super) async fn goes_on_after(&self, session: &Session) {
        // It fails only without this.
        let _ = self.now.subscribe().wait_for(|now| !now.is(session)).await;
    }

    /// From now on it is to end, or to be suspended.
    pub(super) fn want_end(&self, reason: EndReason) -> Wanted<'_> {
        self.now.send_modify(|now| now.wanted.push(reason.clone()));
        Wanted(self, reason)
    }

    /// Resolves when somebody wants it to end, or suspended, and `session` is its latest life. Says for what.
    pub(crate) async fn unwanted(&self, session: &Session) -> EndReason {
        let mut now = self.now.subscribe();
        // It fails only without this.
        let found = now.wait_for(|now| !now.wanted.is_empty() && now.is(session)).await;
        let reasons = found.iter().flat_map(|now| &now.wanted);
        // Whoever wants it suspended is content with its end.
        let ends = reasons.clone().find(|reason| **reason != EndReason::Suspended);
        ends.cloned().unwrap_or(EndReason::Suspended)
    }
}
