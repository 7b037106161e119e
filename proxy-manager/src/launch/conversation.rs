//! The native conversation that a session holds, and its lease.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use ipc_protocol::SessionId;

use crate::{
    conversation_locks::{self, ConversationLock, ConversationLocks, LockKeeper},
    error::Result,
};

/// Conversation of a session, as far as it is known.
#[derive(Debug)]
pub(crate) struct OpenConversation {
    locks: Arc<ConversationLocks>,
    family: String,
    /// Directory in which the agent keeps it.
    store: Option<PathBuf>,
    agent: String,
    session: SessionId,
    /// False in a session's own home, which only one manager has.
    is_shared: bool,
    origin: ConversationOrigin,
    lock: Option<ConversationLock>,
    /// Proxy that keeps the agent alive, once the agent is ready.
    keeper: Option<LockKeeper>,
}

/// Relation of a conversation to its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConversationOrigin {
    /// The conversation begins with the session.
    New,
    /// The conversation existed before the session.
    Existing,
    /// The session has it open already, under an earlier host.
    Adopted,
}

/// Request for the lease of a conversation that another session may have open.
#[derive(Debug)]
pub(crate) struct LeaseRequest {
    leases: Arc<ConversationLocks>,
    conversation: conversation_locks::ConversationKey,
    session: SessionId,
    agent: String,
    by_force: bool,
    keeper: Option<LockKeeper>,
}

/// Lease that was taken.
#[derive(Debug)]
pub(crate) struct NewLease {
    lease: ConversationLock,
    /// True if it is tied to the life of its keeper.
    is_kept: bool,
}

impl LeaseRequest {
    /// Takes the lease. Blocks.
    ///
    /// # Errors
    /// [`Error::NativeSessionBusy`](crate::Error::NativeSessionBusy).
    pub(crate) fn take(self) -> Result<NewLease> {
        let mut lease = self.leases.acquire_existing(self.conversation, &self.session, &self.agent, self.by_force)?;
        // Here already: a session that goes on without this host keeps it, even if nobody waits for this any more.
        self.keeper.into_iter().for_each(|keeper| lease.set_keeper(keeper));
        Ok(NewLease { lease, is_kept: self.keeper.is_some() })
    }
}

impl OpenConversation {
    /// Creates a conversation whose id is not known yet.
    pub(crate) fn new(
        locks: Arc<ConversationLocks>,
        family: String,
        store: Option<PathBuf>,
        agent: String,
        session: SessionId,
        origin: ConversationOrigin,
    ) -> Self {
        Self { locks, family, store, agent, session, is_shared: true, origin, lock: None, keeper: None }
    }

    /// Marks the conversation as not shared if it is in a session's own home, where no other manager can open it.
    pub(crate) fn within(self, has_home: bool) -> Self {
        Self { is_shared: !has_home, ..self }
    }

    /// Family of the conversation, and the directory in which the agent keeps it.
    pub(crate) fn place(&self) -> (&str, Option<&Path>) {
        (&self.family, self.store.as_deref())
    }

    /// Sets the agent's own id of the conversation, and takes its lease. Blocks.
    ///
    /// # Errors
    /// [`Error::NativeSessionBusy`](crate::Error::NativeSessionBusy) if it existed before, and another session has it
    /// open.
    pub(crate) fn set_id(&mut self, id: &str) -> Result<()> {
        if let Some(request) = self.request_lease(id) {
            self.leased(request.take()?);
        }
        Ok(())
    }

    /// Sets the agent's own id of the conversation, and takes its lease where nobody else is to be asked. Otherwise
    /// returns the request for it.
    pub(crate) fn request_lease(&mut self, id: &str) -> Option<LeaseRequest> {
        if self.lock.as_ref().is_some_and(|lease| lease.id() == id) {
            return None;
        }
        let (family, store) = (self.family.clone(), self.store.clone());
        let conversation =
            conversation_locks::ConversationKey { family, store, is_shared: self.is_shared, id: id.to_owned() };
        if self.origin == ConversationOrigin::New {
            let lease = self.locks.acquire_new(conversation, &self.session);
            self.leased(NewLease { lease, is_kept: false });
            return None;
        }
        Some(LeaseRequest {
            leases: self.locks.clone(),
            conversation,
            session: self.session.clone(),
            agent: self.agent.clone(),
            by_force: self.origin == ConversationOrigin::Adopted,
            keeper: self.keeper,
        })
    }

    /// Goes over to the conversation whose lease was taken.
    pub(crate) fn leased(&mut self, NewLease { mut lease, is_kept }: NewLease) {
        self.keeper.filter(|_| !is_kept).into_iter().for_each(|keeper| lease.set_keeper(keeper));
        self.close();
        self.lock = Some(lease);
        // The first new conversation is nobody else's, so it is free. A later one may be another session's.
        self.origin = ConversationOrigin::Existing;
    }

    /// Ties the conversation to the life of `keeper`, since the agent is ready.
    pub(crate) fn set_keeper(&mut self, keeper: LockKeeper) {
        self.keeper = Some(keeper);
        self.lock.iter_mut().for_each(|lease| lease.set_keeper(keeper));
    }

    /// Returns another session with a conversation in the same place.
    pub(crate) fn neighbour(&self) -> Option<SessionId> {
        self.locks.other_holder(&self.family, self.store.as_deref(), &self.session)
    }

    /// Switches to a new conversation after all.
    pub(crate) fn reset_to_new(&mut self) {
        self.close();
        self.origin = ConversationOrigin::New;
    }

    /// Ends the lease.
    pub(crate) fn close(&mut self) {
        self.lock.take().into_iter().for_each(ConversationLock::release);
    }

    /// Leaves the conversation open, detached from this manager.
    pub(crate) fn detach(&mut self) {
        self.lock = None;
    }
}
