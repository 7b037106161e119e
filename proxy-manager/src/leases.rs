//! Which conversations of agents are open: each has one living process.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ipc_protocol::SessionId;

use crate::{Error, Result};

/// A conversation: whose files it is in, where these are, and the agent's id of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Conversation {
    /// Agents that read each other's conversations have the same.
    pub(crate) family: String,
    /// The directory that they are in, spelled in one way, if it is known.
    pub(crate) store: Option<PathBuf>,
    pub(crate) id: String,
}

/// Who has which conversation open.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    /// More than one for those that agents begin: there are agents that give each of them the same id.
    holders: Mutex<HashMap<Conversation, Vec<SessionId>>>,
}

/// A conversation of a session's, open until this is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    leases: Arc<Leases>,
    conversation: Conversation,
    session: SessionId,
}

impl Leases {
    fn holders(&self) -> MutexGuard<'_, HashMap<Conversation, Vec<SessionId>>> {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that `session` begins a conversation.
    pub(crate) fn begin(self: &Arc<Self>, conversation: Conversation, session: &SessionId) -> Lease {
        self.holders().entry(conversation.clone()).or_default().push(session.clone());
        Lease { leases: self.clone(), conversation, session: session.clone() }
    }

    /// Notes that `session`, of `agent`, goes on with a conversation.
    ///
    /// # Errors
    /// [`Error::NativeSessionBusy`] if another session has it open.
    pub(crate) fn resume(
        self: &Arc<Self>,
        conversation: Conversation,
        session: &SessionId,
        agent: &str,
    ) -> Result<Lease> {
        let mut holders = self.holders();
        let known = holders.entry(conversation.clone()).or_default();
        if let Some(holder) = known.iter().find(|holder| *holder != session) {
            let (agent, id) = (agent.to_owned(), conversation.id);
            return Err(Error::NativeSessionBusy { agent, id, session: holder.clone() });
        }
        known.push(session.clone());
        drop(holders);
        Ok(Lease { leases: self.clone(), conversation, session: session.clone() })
    }
}

impl Lease {
    /// The agent's id of the conversation.
    pub(crate) fn id(&self) -> &str {
        &self.conversation.id
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut holders = self.leases.holders();
        let Some(known) = holders.get_mut(&self.conversation) else { return };
        if let Some(at) = known.iter().position(|holder| *holder == self.session) {
            known.swap_remove(at);
        }
        if known.is_empty() {
            holders.remove(&self.conversation);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversation(store: &str, id: &str) -> Conversation {
        Conversation { family: "claude".into(), store: Some(store.into()), id: id.into() }
    }

    fn session(id: &str) -> SessionId {
        id.parse().expect("a valid id")
    }

    #[test]
    fn one_that_is_open_is_not_opened_again() {
        let leases = Arc::new(Leases::default());
        let first = leases.resume(conversation("/h", "c"), &session("s-1"), "claude").expect("free");
        match leases.resume(conversation("/h", "c"), &session("s-2"), "claude") {
            Err(Error::NativeSessionBusy { agent, id, session }) => {
                assert_eq!((agent.as_str(), id.as_str(), session.as_str()), ("claude", "c", "s-1"));
            }
            other => panic!("{other:?}"),
        }
        // The same id elsewhere is another conversation.
        leases.resume(conversation("/other", "c"), &session("s-2"), "claude").expect("free");
        // A session may name its own again.
        drop(leases.resume(conversation("/h", "c"), &session("s-1"), "claude").expect("its own"));
        drop(first);
        leases.resume(conversation("/h", "c"), &session("s-2"), "claude").expect("free again");
        assert!(leases.holders().is_empty());
    }

    #[test]
    fn one_that_is_begun_is_no_other_s_whatever_its_id() {
        let leases = Arc::new(Leases::default());
        let first = leases.begin(conversation("/h", "same"), &session("s-1"));
        let second = leases.begin(conversation("/h", "same"), &session("s-2"));
        drop(first);
        let busy = leases.resume(conversation("/h", "same"), &session("s-3"), "acp");
        assert!(matches!(busy, Err(Error::NativeSessionBusy { session, .. }) if session.as_str() == "s-2"));
        drop(second);
        assert!(leases.holders().is_empty());
    }
}
