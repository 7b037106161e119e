//! Open conversations of this manager's sessions, and their leases.

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ipc_protocol::{ProcessId, SessionId};

use super::{
    Conversation, Keeper,
    shared::{Claims, Holder},
};
use crate::error::{Error, Result};

/// Open conversations and the sessions that hold them.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    open: Mutex<HashMap<Conversation, Holders>>,
    /// Claims shared with this user's other managers.
    claims: Option<Claims>,
}

/// This manager's sessions that have a conversation open.
#[derive(Debug, Default)]
struct Holders {
    /// More than one only for conversations that agents begin, since some agents give all of them the same id.
    sessions: Vec<SessionId>,
    /// True if other managers know of it.
    is_claimed: bool,
}

/// Lease of a session on a conversation, held until this is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    leases: Arc<Leases>,
    conversation: Conversation,
    session: SessionId,
    /// True if the claim outlives this lease: the session may outlive this manager.
    stays: bool,
}

impl Leases {
    pub(crate) fn new(claims: Option<Claims>) -> Self {
        Self { open: Mutex::default(), claims }
    }

    /// This manager has another fork server from now on.
    pub(crate) fn guarded_by(&self, fork_server: ProcessId) {
        self.claims.iter().for_each(|claims| claims.guarded_by(fork_server));
    }

    fn open(&self) -> MutexGuard<'_, HashMap<Conversation, Holders>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a session other than `session` that has a conversation of `family` in `store` open.
    pub(crate) fn other(&self, family: &str, store: Option<&Path>, session: &SessionId) -> Option<SessionId> {
        let holders = self.open();
        let there = holders.iter().filter(|(one, _)| one.family == family && one.store.as_deref() == store);
        there.flat_map(|(_, holders)| &holders.sessions).find(|holder| *holder != session).cloned()
    }

    /// Records that `session` begins a conversation. Other managers learn of it in [`Lease::is_kept_by`].
    pub(crate) fn begin(self: &Arc<Self>, conversation: Conversation, session: &SessionId) -> Lease {
        self.open().entry(conversation.clone()).or_default().sessions.push(session.clone());
        Lease { leases: self.clone(), conversation, session: session.clone(), stays: false }
    }

    /// Records that `session`, of `agent`, resumes a conversation. `by_force` if the session had it open already, under
    /// an earlier manager.
    ///
    /// # Errors
    /// [`Error::NativeSessionBusy`] if another session has it open.
    pub(crate) fn resume(
        self: &Arc<Self>,
        conversation: Conversation,
        session: &SessionId,
        agent: &str,
        by_force: bool,
    ) -> Result<Lease> {
        let busy = |holder: &SessionId, manager| {
            let (agent, id, session) = (agent.to_owned(), conversation.id.clone(), holder.clone());
            Error::NativeSessionBusy { agent, id, session, manager }
        };
        let mut open = self.open();
        let known = open.get(&conversation);
        if let Some(holder) = known.and_then(|known| known.sessions.iter().find(|holder| *holder != session)) {
            return Err(busy(holder, None));
        }
        let by_force = by_force || known.is_some_and(|known| known.is_claimed);
        let is_claimed = match self.claim(&conversation, session, None, by_force) {
            Ok(is_claimed) => is_claimed,
            Err(other) => return Err(busy(&other.session, other.processes.first().map(|process| process.pid))),
        };
        let known = open.entry(conversation.clone()).or_default();
        known.sessions.push(session.clone());
        known.is_claimed |= is_claimed;
        drop(open);
        Ok(Lease { leases: self.clone(), conversation, session: session.clone(), stays: false })
    }

    /// Claims a conversation for `session` among all managers, unless another session holds it. Returns true if the
    /// claim was recorded.
    fn claim(
        &self,
        conversation: &Conversation,
        session: &SessionId,
        keeper: Option<Keeper>,
        by_force: bool,
    ) -> std::result::Result<bool, Holder> {
        // Without a store the id alone could be another agent's.
        let (Some(claims), Some(_), true) = (&self.claims, &conversation.store, conversation.is_shared) else {
            return Ok(false);
        };
        match claims.take(conversation, session, keeper, by_force) {
            Ok(None) => Ok(true),
            Ok(Some(other)) => Err(other),
            Err(error) => {
                tracing::warn!(%session, %error, "failed to claim a conversation: other managers can open it too");
                Ok(false)
            }
        }
    }
}

impl Lease {
    /// The agent's id of the conversation.
    pub(crate) fn id(&self) -> &str {
        &self.conversation.id
    }

    /// Ties the lease to the life of `keeper`, and updates the claim for other managers.
    pub(crate) fn is_kept_by(&mut self, keeper: Keeper) {
        self.stays = keeper.outlives;
        let mut open = self.leases.open();
        let Some(known) = open.get_mut(&self.conversation) else { return };
        // Agents that give all conversations the same id can begin one that another manager has open.
        if let Ok(true) = self.leases.claim(&self.conversation, &self.session, Some(keeper), known.is_claimed) {
            known.is_claimed = true;
        }
    }

    /// Ends the lease because the session is over.
    pub(crate) fn end(mut self) {
        self.stays = false;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut open = self.leases.open();
        let Some(known) = open.get_mut(&self.conversation) else { return };
        if let Some(at) = known.sessions.iter().position(|holder| *holder == self.session) {
            known.sessions.swap_remove(at);
        }
        if known.sessions.is_empty() {
            let is_claimed = known.is_claimed && !self.stays;
            open.remove(&self.conversation);
            if let Some(claims) = self.leases.claims.as_ref().filter(|_| is_claimed) {
                claims.leave(&self.conversation, &self.session);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversation(store: &str, id: &str) -> Conversation {
        Conversation { family: "claude".into(), store: Some(store.into()), is_shared: true, id: id.into() }
    }

    fn session(id: &str) -> SessionId {
        id.parse().expect("a valid id")
    }

    #[test]
    fn one_that_is_open_is_not_opened_again() {
        let leases = Arc::new(Leases::default());
        let first = leases.resume(conversation("/h", "c"), &session("s-1"), "claude", false).expect("free");
        match leases.resume(conversation("/h", "c"), &session("s-2"), "claude", false) {
            Err(Error::NativeSessionBusy { agent, id, session, manager: None }) => {
                assert_eq!((agent.as_str(), id.as_str(), session.as_str()), ("claude", "c", "s-1"));
            }
            other => panic!("{other:?}"),
        }
        // The same id elsewhere is another conversation.
        leases.resume(conversation("/other", "c"), &session("s-2"), "claude", false).expect("free");
        let other = |store, session| leases.other("claude", Some(Path::new(store)), &session);
        assert_eq!((other("/h", session("s-2")), other("/h", session("s-1"))), (Some(session("s-1")), None));
        assert_eq!((other("/other", session("s-2")), leases.other("pi", None, &session("s-2"))), (None, None));
        // A session may name its own again.
        drop(leases.resume(conversation("/h", "c"), &session("s-1"), "claude", false).expect("its own"));
        drop(first);
        leases.resume(conversation("/h", "c"), &session("s-2"), "claude", false).expect("free again");
        assert!(leases.open().is_empty());
    }

    #[test]
    fn one_that_is_begun_is_no_other_s_whatever_its_id() {
        let leases = Arc::new(Leases::default());
        let first = leases.begin(conversation("/h", "same"), &session("s-1"));
        let second = leases.begin(conversation("/h", "same"), &session("s-2"));
        drop(first);
        let busy = leases.resume(conversation("/h", "same"), &session("s-3"), "acp", false);
        assert!(matches!(busy, Err(Error::NativeSessionBusy { session, .. }) if session.as_str() == "s-2"));
        drop(second);
        assert!(leases.open().is_empty());
    }
}
