//! Open conversations of this manager's sessions, and their leases.

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    time::Duration,
};

use ipc_protocol::{ProcessId, SessionId};
use tokio::{sync::oneshot, time::timeout};

use super::{ConversationKey, LockKeeper, shared::SharedLocks};
use crate::error::{Error, Result};

/// Longest wait for claims that are given back.
const PATIENCE: Duration = Duration::from_secs(2);

/// Open conversations and the sessions that hold them.
#[derive(Debug, Default)]
pub(crate) struct ConversationLocks {
    /// More than one session only for conversations that agents begin, since some agents give all of them the same id.
    holders: Mutex<HashMap<ConversationKey, Vec<SessionId>>>,
    /// Claims shared with this user's other managers.
    shared_locks: Option<Arc<SharedLocks>>,
}

/// Lease of a session on a conversation, held until this is dropped.
#[derive(Debug)]
pub(crate) struct ConversationLock {
    locks: Arc<ConversationLocks>,
    conversation: ConversationKey,
    session: SessionId,
    /// True if the claim outlives this lease: the session may outlive this manager.
    persists: bool,
}

impl ConversationLocks {
    pub(crate) fn new(claims: Option<SharedLocks>) -> Self {
        Self { holders: Mutex::default(), shared_locks: claims.map(Arc::new) }
    }

    /// This manager has another fork server from now on.
    pub(crate) fn guarded_by(&self, fork_server: ProcessId) {
        self.shared_locks.iter().for_each(|claims| claims.guarded_by(fork_server));
    }

    fn open(&self) -> MutexGuard<'_, HashMap<ConversationKey, Vec<SessionId>>> {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the other managers know of the sessions that are over, or for [`PATIENCE`].
    pub(crate) async fn settled(&self) {
        let Some(claims) = &self.shared_locks else { return };
        let (tell, told) = oneshot::channel();
        let handed_over = claims.later(move |_| _ = tell.send(()));
        if handed_over.is_err() || timeout(PATIENCE, told).await.is_err() {
            tracing::warn!("failed to wait for the claims of conversations that are closed");
        }
    }

    /// Returns a session other than `session` that has a conversation of `family` in `store` open.
    pub(crate) fn other_holder(&self, family: &str, store: Option<&Path>, session: &SessionId) -> Option<SessionId> {
        let holders = self.open();
        let there = holders.iter().filter(|(one, _)| one.family == family && one.store.as_deref() == store);
        there.flat_map(|(_, holders)| holders).find(|holder| *holder != session).cloned()
    }

    /// Records that `session` begins a conversation. Other managers learn of it in [`ConversationLock::set_keeper`].
    pub(crate) fn acquire_new(
        self: &Arc<Self>,
        conversation: ConversationKey,
        session: &SessionId,
    ) -> ConversationLock {
        self.open().entry(conversation.clone()).or_default().push(session.clone());
        ConversationLock { locks: self.clone(), conversation, session: session.clone(), persists: false }
    }

    /// Records that `session`, of `agent`, resumes a conversation. `by_force` if the session had it open already, under
    /// an earlier manager. Blocks, also while others are recorded.
    ///
    /// # Errors
    /// [`Error::NativeSessionBusy`] if another session has it open.
    pub(crate) fn acquire_existing(
        self: &Arc<Self>,
        conversation: ConversationKey,
        session: &SessionId,
        agent: &str,
        by_force: bool,
    ) -> Result<ConversationLock> {
        let (native, agent) = (conversation.id.clone(), agent.to_owned());
        let busy = |session, manager| Error::NativeSessionBusy { agent, id: native, session, manager };
        let mut open = self.open();
        let known = open.entry(conversation.clone()).or_default();
        if let Some(holder) = known.iter().find(|holder| *holder != session) {
            return Err(busy(holder.clone(), None));
        }
        known.push(session.clone());
        drop(open);
        // Held from here on: nobody of this manager takes it while the other managers are asked.
        let lease = ConversationLock { locks: self.clone(), conversation, session: session.clone(), persists: false };
        let (answer, answered) = mpsc::sync_channel(1);
        let asked = lease.with_claims(move |claims, conversation, session| {
            let _ = answer.send(claims.acquire(conversation, session, None, by_force));
        });
        match asked.then(|| answered.recv()) {
            Some(Ok(Ok(Some(other)))) => Err(busy(other.session, other.processes.first().map(|process| process.pid))),
            Some(Ok(Err(error))) => {
                tracing::warn!(%session, %error, "failed to claim a conversation: other managers can open it too");
                Ok(lease)
            }
            Some(Ok(Ok(None)) | Err(_)) | None => Ok(lease),
        }
    }
}

impl ConversationLock {
    /// The agent's id of the conversation.
    pub(crate) fn id(&self) -> &str {
        &self.conversation.id
    }

    /// Ties the lease to the life of `keeper`, and updates the claim for other managers.
    pub(crate) fn set_keeper(&mut self, keeper: LockKeeper) {
        self.persists = keeper.may_outlive_host;
        self.with_claims(move |claims, conversation, session| {
            // Agents that give all conversations the same id can begin one that another manager has open.
            if let Err(error) = claims.acquire(conversation, session, Some(keeper), false) {
                tracing::warn!(%session, %error, "failed to claim a conversation: other managers can open it too");
            }
        });
    }

    /// Ends the lease because the session is over.
    pub(crate) fn release(mut self) {
        self.persists = false;
    }

    /// Hands work with the shared claims over, which is done in its order. Returns false if there is none.
    fn with_claims(&self, work: impl FnOnce(&SharedLocks, &ConversationKey, &SessionId) + Send + 'static) -> bool {
        // Without a store the id alone could be another agent's.
        let (Some(claims), Some(_), true) =
            (&self.locks.shared_locks, &self.conversation.store, self.conversation.is_shared)
        else {
            return false;
        };
        let (conversation, session) = (self.conversation.clone(), self.session.clone());
        let handed_over = claims.later(move |claims| work(claims, &conversation, &session));
        if let Err(error) = &handed_over {
            let session = &self.session;
            tracing::warn!(%session, %error, "failed to claim a conversation, or to give it back");
        }
        handed_over.is_ok()
    }
}

impl Drop for ConversationLock {
    fn drop(&mut self) {
        let mut open = self.locks.open();
        let Some(known) = open.get_mut(&self.conversation) else { return };
        if let Some(at) = known.iter().position(|holder| *holder == self.session) {
            known.swap_remove(at);
        }
        if !known.is_empty() {
            return;
        }
        open.remove(&self.conversation);
        drop(open);
        let stays = self.persists;
        self.with_claims(move |claims, conversation, session| match stays {
            true => claims.forget(conversation),
            false => claims.release(conversation, session),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversation(store: &str, id: &str) -> ConversationKey {
        ConversationKey { family: "claude".into(), store: Some(store.into()), is_shared: true, id: id.into() }
    }

    fn session(id: &str) -> SessionId {
        id.parse().expect("a valid id")
    }

    #[test]
    fn one_that_is_open_is_not_opened_again() {
        let leases = Arc::new(ConversationLocks::default());
        let first = leases.acquire_existing(conversation("/h", "c"), &session("s-1"), "claude", false).expect("free");
        match leases.acquire_existing(conversation("/h", "c"), &session("s-2"), "claude", false) {
            Err(Error::NativeSessionBusy { agent, id, session, manager: None }) => {
                assert_eq!((agent.as_str(), id.as_str(), session.as_str()), ("claude", "c", "s-1"));
            }
            other => panic!("{other:?}"),
        }
        // The same id elsewhere is another conversation.
        leases.acquire_existing(conversation("/other", "c"), &session("s-2"), "claude", false).expect("free");
        let other = |store, session| leases.other_holder("claude", Some(Path::new(store)), &session);
        assert_eq!((other("/h", session("s-2")), other("/h", session("s-1"))), (Some(session("s-1")), None));
        assert_eq!((other("/other", session("s-2")), leases.other_holder("pi", None, &session("s-2"))), (None, None));
        // A session may name its own again.
        drop(leases.acquire_existing(conversation("/h", "c"), &session("s-1"), "claude", false).expect("its own"));
        drop(first);
        leases.acquire_existing(conversation("/h", "c"), &session("s-2"), "claude", false).expect("free again");
        assert!(leases.open().is_empty());
    }

    #[tokio::test]
    async fn the_runtime_goes_on_while_somebody_has_the_claims_locked() {
        let scratch = tempfile::tempdir().expect("a directory");
        let place = scratch.path().join("claims");
        let me = registry::identify(std::process::id()).expect("alive");
        let leases =
            |place: &Path| Arc::new(ConversationLocks::new(Some(SharedLocks::within(place.to_owned(), me, me))));
        let (ours, theirs) = (leases(&place), leases(&place));
        let taken = |leases: &Arc<ConversationLocks>, id: &str| {
            let (leases, id) = (leases.clone(), session(id));
            crate::blocking::blocking("resuming", move || {
                leases.acquire_existing(conversation("/h", "c"), &id, "claude", false)
            })
        };
        let mut lease = taken(&ours, "s-1").await.expect("a thread").expect("free");
        let lock = rustix::fs::open(&place, rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty()).expect("there");
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("locked");
        let before = std::time::Instant::now();
        lease.set_keeper(LockKeeper { proxy: me, may_outlive_host: false });
        drop(lease);
        let mut other = Box::pin(taken(&theirs, "s-2"));
        assert!(timeout(Duration::from_millis(1), &mut other).await.is_err(), "it is locked");
        assert!(before.elapsed() < Duration::from_secs(1), "{:?}", before.elapsed());
        drop(lock);
        // Both wait for the directory, and either may have it first: the other manager finds the conversation given back, or sees whose
        // it still is.
        let at_once = other.await.expect("a thread");
        ours.settled().await;
        if let Err(error) = at_once {
            assert!(
                matches!(&error, Error::NativeSessionBusy { session, .. } if session.as_str() == "s-1"),
                "{error:?}"
            );
            let _ = taken(&theirs, "s-2").await.expect("a thread").expect("given back");
        }
    }

    #[test]
    fn one_that_is_begun_is_no_other_s_whatever_its_id() {
        let leases = Arc::new(ConversationLocks::default());
        let first = leases.acquire_new(conversation("/h", "same"), &session("s-1"));
        let second = leases.acquire_new(conversation("/h", "same"), &session("s-2"));
        drop(first);
        let busy = leases.acquire_existing(conversation("/h", "same"), &session("s-3"), "acp", false);
        assert!(matches!(busy, Err(Error::NativeSessionBusy { session, .. }) if session.as_str() == "s-2"));
        drop(second);
        assert!(leases.open().is_empty());
    }
}
