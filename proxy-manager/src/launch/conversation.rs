//! Which conversation of its agent's a session has open.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use ipc_protocol::SessionId;

use crate::{
    Result,
    claims::Keeper,
    leases,
    leases::{Lease, Leases},
};

/// The conversation that a session has open, as far as it is known.
#[derive(Debug)]
pub(crate) struct Conversation {
    leases: Arc<Leases>,
    family: String,
    /// Where the agent keeps it.
    store: Option<PathBuf>,
    agent: String,
    session: SessionId,
    /// Whether it is not in a session's own home, which one manager has alone.
    is_shared: bool,
    is: Is,
    lease: Option<Lease>,
    /// What keeps its agent alive, once that is ready.
    keeper: Option<Keeper>,
}

/// What a conversation is to its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Is {
    /// It begins with it.
    New,
    /// It was there before.
    Old,
    /// The session has it already, with another host before this one.
    Its,
}

impl Conversation {
    /// One that is not known yet.
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

    /// The same, in a session's own home if there is one: no other manager can come to it.
    pub(crate) fn within(self, has_home: bool) -> Self {
        Self { is_shared: !has_home, ..self }
    }

    /// Whose conversations they are, and where the agent keeps them.
    pub(crate) fn place(&self) -> (&str, Option<&Path>) {
        (&self.family, self.store.as_deref())
    }

    /// The agent's own id of it is `id` from now on.
    ///
    /// # Errors
    /// [`Error::NativeSessionBusy`](crate::Error::NativeSessionBusy) if it was there before, and another session has it open.
    pub(crate) fn is_now(&mut self, id: &str) -> Result<()> {
        if self.lease.as_ref().is_some_and(|lease| lease.id() == id) {
            return Ok(());
        }
        let (family, store) = (self.family.clone(), self.store.clone());
        let conversation = leases::Conversation { family, store, is_shared: self.is_shared, id: id.to_owned() };
        let mut lease = match self.is {
            Is::New => self.leases.begin(conversation, &self.session),
            Is::Old | Is::Its => self.leases.resume(conversation, &self.session, &self.agent, self.is == Is::Its)?,
        };
        self.keeper.into_iter().for_each(|keeper| lease.is_kept_by(keeper));
        self.close();
        self.lease = Some(lease);
        // A second one may be anybody's; a new one is nobody's, so it is free.
        self.is = Is::Old;
        Ok(())
    }

    /// Its agent is ready, and lives as long as `keeper`.
    pub(crate) fn is_kept_by(&mut self, keeper: Keeper) {
        self.keeper = Some(keeper);
        self.lease.iter_mut().for_each(|lease| lease.is_kept_by(keeper));
    }

    /// Another session with a conversation in the same place.
    pub(crate) fn neighbour(&self) -> Option<SessionId> {
        self.leases.other(&self.family, self.store.as_deref(), &self.session)
    }

    /// It is to be a new one after all.
    pub(crate) fn begins_anew(&mut self) {
        self.close();
        self.is = Is::New;
    }

    /// Nobody has it open any more.
    pub(crate) fn close(&mut self) {
        self.lease.take().into_iter().for_each(Lease::end);
    }

    /// It stays open, without this manager.
    pub(crate) fn let_go(&mut self) {
        self.lease = None;
    }
}
