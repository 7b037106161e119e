//! State shared by all incarnations of a session. Each resume begins another incarnation; only the latest may be ended
//! or written to.

use std::sync::{self, Arc, PoisonError, Weak};

use ipc_protocol::EndReason;
use tokio::sync::{Mutex, MutexGuard, OnceCell, watch};

use super::ManagedSession;
use crate::error::{Error, Result};

/// Incarnations of one session.
#[derive(Debug, Default)]
pub(crate) struct SessionIncarnations {
    resume_lock: Mutex<()>,
    write_lock: sync::Mutex<()>,
    current: watch::Sender<CurrentIncarnation>,
    /// Set once the command after its end has run.
    after_end: OnceCell<()>,
}

#[derive(Debug, Default)]
struct CurrentIncarnation {
    /// `None` during the first incarnation.
    latest: Option<Weak<ManagedSession>>,
    /// Reasons of all callers that want the session ended or suspended.
    end_reasons: Vec<EndReason>,
}

impl CurrentIncarnation {
    fn is_current(&self, session: &ManagedSession) -> bool {
        self.latest.as_ref().is_none_or(|latest| std::ptr::eq(latest.as_ptr(), session))
    }
}

/// Request to end or suspend the session: it is not resumed until this is dropped.
pub(super) struct EndWish<'a>(&'a SessionIncarnations, EndReason);

impl Drop for EndWish<'_> {
    fn drop(&mut self) {
        self.0.current.send_modify(|now| {
            if let Some(at) = now.end_reasons.iter().position(|reason| *reason == self.1) {
                now.end_reasons.swap_remove(at);
            }
        });
    }
}

impl SessionIncarnations {
    /// Locks out other resumes, and callers that end the session while it is suspended.
    pub(crate) async fn lock_resume(&self) -> MutexGuard<'_, ()> {
        self.resume_lock.lock().await
    }

    /// Locks out other writers to a suspended session. An incarnation created under the lock is the latest when the
    /// lock is released. A resume may take long, but this lock never does: its holder waits for nothing.
    pub(crate) fn lock_writes(&self) -> sync::MutexGuard<'_, ()> {
        self.write_lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes `session` the latest incarnation.
    pub(crate) fn begin(&self, session: &Arc<ManagedSession>) {
        self.current.send_modify(|now| now.latest = Some(Arc::downgrade(session)));
    }

    /// Runs the command after the session's end, unless it has run. Callers at the same time wait for one of them.
    pub(crate) async fn run_after_end(&self, command: impl Future<Output = ()>) {
        self.after_end.get_or_init(|| command).await;
    }

    /// Returns true if `session` is the latest incarnation.
    pub(crate) fn is_latest(&self, session: &ManagedSession) -> bool {
        self.current.borrow().is_current(session)
    }

    /// Returns the latest incarnation if it is not `session`.
    ///
    /// # Errors
    /// [`Error::UnknownSession`] if that one was forgotten.
    pub(super) fn successor(&self, session: &ManagedSession) -> Result<Option<Arc<ManagedSession>>> {
        let now = self.current.borrow();
        match now.latest.as_ref().filter(|_| !now.is_current(session)) {
            None => Ok(None),
            Some(latest) => {
                latest.upgrade().map(Some).ok_or_else(|| Error::UnknownSession { session: session.id().clone() })
            }
        }
    }

    /// Resolves when `session` is no longer the latest incarnation.
    pub(crate) async fn wait_superseded(&self, session: &ManagedSession) {
        // Fails only without the session.
        let _ = self.current.subscribe().wait_for(|now| !now.is_current(session)).await;
    }

    /// Requests the session's end or suspension until the result is dropped.
    pub(super) fn request_end(&self, reason: EndReason) -> EndWish<'_> {
        self.current.send_modify(|now| now.end_reasons.push(reason.clone()));
        EndWish(self, reason)
    }

    /// Resolves when no caller wants the session ended or suspended any more.
    pub(crate) async fn wait_no_end_requested(&self) {
        // Fails only without the session.
        let _ = self.current.subscribe().wait_for(|now| now.end_reasons.is_empty()).await;
    }

    /// Resolves with the reason when a caller wants the session ended or suspended, and `session` is the latest
    /// incarnation.
    pub(crate) async fn wait_end_requested(&self, session: &ManagedSession) -> EndReason {
        let mut now = self.current.subscribe();
        // Fails only without the session.
        let found = now.wait_for(|now| !now.end_reasons.is_empty() && now.is_current(session)).await;
        let reasons = found.iter().flat_map(|now| &now.end_reasons);
        // An end also satisfies callers that want a suspension.
        let ends = reasons.clone().find(|reason| **reason != EndReason::Suspended);
        ends.cloned().unwrap_or(EndReason::Suspended)
    }
}
