//! Which conversation of its agent's a session has open.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use ipc_protocol::SessionId;

use crate::{
    Result, leases,
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
    /// Whether it is one that was there before.
    resumes: bool,
    lease: Option<Lease>,
}

impl Conversation {
    /// One that is not known yet; `resumes` if it is one that was there before.
    pub(crate) fn new(
        leases: Arc<Leases>,
        family: String,
        store: Option<PathBuf>,
        agent: String,
        session: SessionId,
        resumes: bool,
    ) -> Self {
        Self { leases, family, store, agent, session, resumes, lease: None }
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
        let conversation =
            leases::Conversation { family: self.family.clone(), store: self.store.clone(), id: id.to_owned() };
        self.lease = Some(if self.resumes {
            self.leases.resume(conversation, &self.session, &self.agent)?
        } else {
            self.leases.begin(conversation, &self.session)
        });
        // A second one may be anybody's; a new one is nobody's, so it is free.
        self.resumes = true;
        Ok(())
    }

    /// It is to be a new one after all.
    pub(crate) fn begins_anew(&mut self) {
        (self.resumes, self.lease) = (false, None);
    }

    /// Nobody has it open any more.
    pub(crate) fn close(&mut self) {
        self.lease = None;
    }
}
