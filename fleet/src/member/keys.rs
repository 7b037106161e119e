//! Keys of starts and of sessions, and nodes that are gone for good.

use std::time::Duration;

use ipc_protocol::SessionId;
use tokio::time::timeout;

use super::{FleetMember, SessionClaim, json, parse};
use crate::{
    bucket::Retention,
    error::{CompareAndSetError, EngineError, ForgetError},
    names::{NodeName, session_token},
    node_table::NodePresence,
    records::{OwnershipRecord, StartKeyRecord},
    session_table::OwnedSession,
};

/// Time for which the `Idempotency-Key` of a start is remembered.
const KEY_TIME: Duration = Duration::from_secs(24 * 3600);
/// Time for which a start with a key holds that for its node: longer than a start may take. From then on the session has it.
const START_TIME: Duration = Duration::from_secs(900);
/// Time for a row of this node to come back by the watch.
const WATCH_TIME: Duration = Duration::from_secs(2);

/// Row of a start that has begun with a key.
#[derive(Debug)]
pub(super) struct BegunKey {
    key: String,
    revision: u64,
}

impl FleetMember {
    /// Remembers where the start with an `Idempotency-Key` was sent. Returns what was remembered before, if anything was.
    ///
    /// # Errors
    /// The engine's.
    pub async fn remember_start(&self, key: &str, start: &StartKeyRecord) -> Result<StartKeyRecord, EngineError> {
        self.remember(&format!("start-{key}"), start, Retention::For(KEY_TIME)).await
    }

    /// Finds the node of the conversation with a key: that of the session which has it, or of the start that was sent first with it. Of two
    /// at once one is `node`. What is remembered of a start ends by itself: then its session has the key, or nobody.
    ///
    /// # Errors
    /// The engine's.
    pub async fn node_with_key(&self, key: &str, node: &NodeName) -> Result<NodeName, EngineError> {
        if let Some(owned) = self.session_with_key(key) {
            return Ok(owned.record.node);
        }
        let begun = self.remember(&format!("begun-{key}"), node, Retention::For(START_TIME)).await?;
        // It may have ended, or moved, since.
        let moved = self.session_with_key(key).map(|owned| owned.record.node);
        let is_there = || self.node(&begun).is_some_and(|begun| begun.presence == NodePresence::Alive);
        match moved {
            Some(moved) => Ok(moved),
            None if is_there() => Ok(begun),
            // A start that came to nothing: no session has the key.
            None => self.begin_key_anew(key, node).await,
        }
    }

    /// Has another node begin with a key whose start was sent to one that is dead, and made no session.
    pub(super) async fn begin_key_anew(&self, key: &str, node: &NodeName) -> Result<NodeName, EngineError> {
        let name = format!("begun-{key}");
        let row = self.0.keys.read(&name).await?;
        let expected = row.map_or(0, |row| row.revision);
        match self.0.keys.write(&name, json(node), expected, Retention::For(START_TIME)).await {
            Ok(_) => Ok(node.clone()),
            // Somebody else was faster.
            Err(CompareAndSetError::Changed) => self.remember(&name, node, Retention::For(START_TIME)).await,
            Err(CompareAndSetError::Engine(error)) => Err(error),
        }
    }

    /// Reads the row of the start that has begun with a session's key, before the session goes: a start that begins later has a row of its own.
    pub(super) async fn begun_key(&self, record: &OwnershipRecord) -> Result<Option<BegunKey>, EngineError> {
        let Some(key) = record.facts.key.clone() else { return Ok(None) };
        let row = self.0.keys.read(&format!("begun-{key}")).await?.filter(|row| row.value.is_some());
        Ok(row.map(|row| BegunKey { key, revision: row.revision }))
    }

    /// Lets another node begin with the key of a session that is gone, unless another session has it.
    pub(super) async fn release_key(&self, begun: Option<BegunKey>) -> Result<(), EngineError> {
        let begun = begun.filter(|begun| self.session_with_key(&begun.key).is_none());
        let Some(BegunKey { key, revision }) = begun else { return Ok(()) };
        match self.0.keys.remove(&format!("begun-{key}"), revision).await {
            // Another start has begun with it.
            Ok(()) | Err(CompareAndSetError::Changed) => Ok(()),
            Err(CompareAndSetError::Engine(error)) => Err(error),
        }
    }

    /// Returns the session with a key, as far as this node knows.
    pub fn session_with_key(&self, key: &str) -> Option<OwnedSession> {
        self.tables().sessions.with_key(key)
    }

    /// Counts the running sessions of a user over the fleet, those that were claimed before a claim of this node. Of two claims at once the
    /// later one counts the other.
    ///
    /// # Errors
    /// The watch does not come as far in time.
    pub async fn count_of_user(&self, user: &str, claim: SessionClaim, but: &SessionId) -> Result<usize, EngineError> {
        let mut watched = self.0.watched.subscribe();
        let seen = timeout(WATCH_TIME, watched.wait_for(|watched| *watched >= claim.revision)).await;
        if !seen.is_ok_and(|seen| seen.is_ok()) {
            let reason = std::io::Error::other(format!("the watch is behind for {WATCH_TIME:?}"));
            return Err(EngineError::new("count", format!("the sessions of user {user}"), reason));
        }
        Ok(self.tables().sessions.running_of_user(user, but))
    }

    /// Removes what the fleet has of a node that is gone for good: its sessions' rows, their events and conversations, and with them their
    /// keys. Returns the sessions. Of one that comes back meanwhile the others stay.
    ///
    /// # Errors
    /// [`ForgetError::NotOver`] for a node that is alive by the engine's leader; else the engine's: call it again.
    pub async fn forget_node(&self, node: &NodeName) -> Result<Vec<SessionId>, ForgetError> {
        let mut forgotten = Vec::new();
        let sessions = self.tables().sessions.of_node(node);
        self.check_gone(node).await?;
        for OwnedSession { session, .. } in sessions {
            self.check_gone(node).await?;
            // Who takes it over meanwhile has it. From here on nobody does, and what is left has a row until all of it is gone.
            let change = |record: &OwnershipRecord| {
                (record.node == *node).then(|| OwnershipRecord { is_deleted: true, ..record.clone() })
            };
            let Some((_, record)) = self.change_row(&session, true, change).await? else { continue };
            self.0.log.remove(&session).await?;
            if let Some(object) = &record.snapshot {
                self.remove_snapshot(object).await?;
            }
            let key = self.begun_key(&record).await?;
            let owned = self.owner_now(&session).await?.filter(|owned| owned.record == record);
            let Some(owned) = owned else { continue };
            match self.0.sessions.remove(&session_token(&session), owned.revision).await {
                Ok(()) => self.note(&session, owned.revision + 1, None, true),
                Err(CompareAndSetError::Changed) => continue,
                Err(CompareAndSetError::Engine(error)) => return Err(error.into()),
            }
            self.release_key(key).await?;
            forgotten.push(session);
        }
        self.tables().nodes.forget(node);
        Ok(forgotten)
    }

    async fn check_gone(&self, node: &NodeName) -> Result<(), ForgetError> {
        let row = self.0.nodes.read(node.as_str()).await?;
        match row.is_some_and(|row| row.value.is_some()) {
            true => Err(ForgetError::NotOver { node: node.clone() }),
            false => Ok(()),
        }
    }

    pub(super) async fn remember<T>(&self, key: &str, value: &T, retention: Retention) -> Result<T, EngineError>
    where
        T: Clone + serde::Serialize + serde::de::DeserializeOwned,
    {
        match self.0.keys.create(key, json(value), retention).await? {
            Ok(_) => Ok(value.clone()),
            Err(row) => parse(row.value.as_deref().unwrap_or_default()).ok_or_else(|| {
                let reason = std::io::Error::other("its row is none of this version");
                EngineError::new("read", format!("the key {key}"), reason)
            }),
        }
    }
}
