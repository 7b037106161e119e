//! Kills of sessions whose owner was silent.

use ipc_protocol::SessionId;

use super::FleetMember;
use crate::{
    error::EngineError,
    records::{OwnershipRecord, RememberedKill},
};

impl FleetMember {
    /// Remembers a kill of a session whose owner is silent. Returns false where there is no such session any more.
    ///
    /// # Errors
    /// The engine's.
    pub async fn remember_kill(&self, session: &SessionId, by: &str) -> Result<bool, EngineError> {
        let kill = RememberedKill { by: by.to_owned(), at_node: self.name().clone() };
        self.change_kill(session, Some(kill)).await
    }

    /// Forgets a kill that was carried out.
    ///
    /// # Errors
    /// The engine's.
    pub async fn forget_kill(&self, session: &SessionId) -> Result<bool, EngineError> {
        self.change_kill(session, None).await
    }

    async fn change_kill(&self, session: &SessionId, kill: Option<RememberedKill>) -> Result<bool, EngineError> {
        let change = |record: &OwnershipRecord| Some(OwnershipRecord { kill: kill.clone(), ..record.clone() });
        Ok(self.change_row(session, true, change).await?.is_some())
    }

    /// Returns the sessions of this node whose kill was asked for while it was silent.
    pub fn remembered_kills(&self) -> Vec<(SessionId, RememberedKill)> {
        let own = self.tables().sessions.of_node(self.name());
        own.into_iter().filter_map(|owned| Some((owned.session, owned.record.kill?))).collect()
    }
}
