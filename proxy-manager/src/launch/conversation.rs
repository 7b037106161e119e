//! The native conversation that a session holds, and its lease.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use ipc_protocol::SessionId;

use crate::{
    conversation_locks::{self, Keeper, Lease, Leases},
    error::Result,
};

/// Conversation of a session, as far as it is known.
#[derive(Debug)]
pub(crate) struct Conversation {
    leases: Arc<Leases>,
    family: String,
    /// Directory in which the agent keeps it.
    store: Option<PathBuf>,
    agent: String,
    session: SessionId,
    /// False in a session's own home, which only one manager has.
    is_shared: bool,
    is: Is,
    lease: Option<Lease>,
    /// Proxy that keeps the agent alive, once the agent is ready.
    keeper: Option<Keeper>,
}

/// Relation of a conversation to its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Is {
    /// The conversation begins with the session.
    New,
    /// The conversation existed before the session.
    Old,
    /// The session has it open already, under an earlier host.
    Its,
}

/// Request for the lease of a conversation that another session may have open.
#[derive(Debug)]
pub(crate) struct LeaseRequest {
    leases: Arc<Leases>,
    conversation: conversation_locks::Conversation,
    session: SessionId,
    agent: String,
    by_force: bool,
    keeper: Option<Keeper>,
}

/// Lease that was taken.
#[derive(Debug)]
pub(crate) struct NewLease {
    lease: Lease,
    /// True if it is tied to the life of its keeper.
    is_kept: bool,
}

impl LeaseRequest {
    /// Takes the lease. Blocks.
    ///
    /// # Errors
    /// [`Error::NativeSessionBusy`](crate::Error::NativeSessionBusy).
    pub(crate) fn take(self) -> Result<NewLease> {
        let mut lease = self.leases.resume(self.conversation, &self.session, &self.agent, self.by_force)?;
        // Here already: a session that goes on without this host keeps it, even if nobody waits for this any more.
        self.keeper.into_iter().for_each(|keeper| lease.is_kept_by(keeper));
        Ok(NewLease { lease, is_kept: self.keeper.is_some() })
    }
}

impl Conversation {
    /// Creates a conversation whose id is not known yet.
    pub(crate) fn new(
        leases: Arc<Leases>,
        family: String,
        store: Option<PathBuf>,
        agent: String,
        session: SessionId,
        is: Is,
    ) -> Self {
        Self { leases, family, store, agent, session, is_shared: true, is, lease: None, keeper: None }
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
    pub(crate) fn is_now(&mut self, id: &str) -> Result<()> {
        if let Some(request) = self.request_lease(id) {
            self.leased(request.take()?);
        }
        Ok(())
    }

    /// Sets the agent's own id of the conversation, and takes its lease where nobody else is to be asked. Otherwise
    /// returns the request for it.
    pub(crate) fn request_lease(&mut self, id: &str) -> Option<LeaseRequest> {
        if self.lease.as_ref().is_some_and(|lease| lease.id() == id) {
            return None;
        }
        let (family, store) = (self.family.clone(), self.store.clone());
        let conversation =
            conversation_locks::Conversation { family, store, is_shared: self.is_shared, id: id.to_owned() };
        if self.is == Is::New {
            let lease = self.leases.begin(conversation, &self.session);
            self.leased(NewLease { lease, is_kept: false });
            return None;
        }
        Some(LeaseRequest {
            leases: self.leases.clone(),
            conversation,
            session: self.session.clone(),
            agent: self.agent.clone(),
            by_force: self.is == Is::Its,
            keeper: self.keeper,
        })
    }

    /// Goes over to the conversation whose lease was taken.
    pub(crate) fn leased(&mut self, NewLease { mut lease, is_kept }: NewLease) {
        self.keeper.filter(|_| !is_kept).into_iter().for_each(|keeper| lease.is_kept_by(keeper));
        self.close();
        self.lease = Some(lease);
        // The first new conversation is nobody else's, so it is free. A later one may be another session's.
        self.is = Is::Old;
    }

    /// Ties the conversation to the life of `keeper`, since the agent is ready.
    pub(crate) fn is_kept_by(&mut self, keeper: Keeper) {
        self.keeper = Some(keeper);
        self.lease.iter_mut().for_each(|lease| lease.is_kept_by(keeper));
    }

    /// Returns another session with a conversation in the same place.
    pub(crate) fn neighbour(&self) -> Option<SessionId> {
        self.leases.other(&self.family, self.store.as_deref(), &self.session)
    }

    /// Switches to a new conversation after all.
    pub(crate) fn begins_anew(&mut self) {
        self.close();
        self.is = Is::New;
    }

    /// Ends the lease.
    pub(crate) fn close(&mut self) {
        self.lease.take().into_iter().for_each(Lease::end);
    }

    /// Leaves the conversation open, detached from this manager.
    pub(crate) fn let_go(&mut self) {
        self.lease = None;
    }
}
