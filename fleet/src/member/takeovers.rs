//! Sessions of others that go on here, and those of this node that go on elsewhere: what is kept of them, and whose they are next.

use std::time::Duration;

use ipc_protocol::SessionId;
use tokio::{io::AsyncReadExt as _, time::sleep};

use super::{BEAT_PAUSE, FIRST_READ, FleetMember, elsewhere, json};
use crate::{
    bucket::Retention,
    clock::BootTime,
    error::{CompareAndSetError, EngineError},
    names::{NodeName, session_token},
    placement::{self, PlacementError, PlacementRequest},
    records::{OwnershipRecord, SessionPhase},
    session_table::OwnedSession,
};

/// Session of a dead node that is to go on here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionToTake {
    /// The session.
    pub session: SessionId,
    /// True if it ran there.
    pub resume: bool,
}

/// Sessions of dead nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionsToTake {
    /// Those that are to go on here.
    pub here: Vec<SessionToTake>,
    /// Those that no node fits, with the reason.
    pub nowhere: Vec<(SessionId, PlacementError)>,
}

impl FleetMember {
    /// Returns true if this node goes on with the sessions of others.
    pub fn takes_over(&self) -> bool {
        self.0.config.takes_over
    }

    /// Returns the sessions of dead nodes that have a conversation and are not over, spread over the nodes that fit: those for this one, and
    /// those that no node fits.
    pub fn sessions_to_take(&self) -> SessionsToTake {
        if !self.0.config.takes_over || !self.is_lease_held() {
            return SessionsToTake::default();
        }
        let rows: Vec<OwnedSession> = {
            let tables = self.tables();
            let over = tables.nodes.over(BootTime::now());
            let rows = over.iter().flat_map(|node| tables.sessions.of_node(&node.node));
            let goes_on = |OwnershipRecord { snapshot, kill, facts, is_deleted, .. }: &OwnershipRecord| {
                snapshot.is_some() && kill.is_none() && !is_deleted && facts.phase != SessionPhase::Ended
            };
            rows.filter(|row| goes_on(&row.record)).collect()
        };
        let requests: Vec<PlacementRequest> = rows.iter().map(|row| elsewhere(&row.record, true)).collect();
        let mut found = SessionsToTake::default();
        for (OwnedSession { session, record, .. }, chosen) in
            rows.into_iter().zip(placement::spread(&self.placeable_nodes(), &requests))
        {
            let resume = record.facts.phase == SessionPhase::Running;
            match chosen {
                Ok(node) if node == *self.name() => {
                    found.here.push(SessionToTake { session, resume });
                }
                Ok(_) => {}
                Err(error) => found.nowhere.push((session, error)),
            }
        }
        found
    }

    /// Returns the time until sessions of a node that is silent may be taken; `None` where none is.
    pub fn until_take_over(&self) -> Option<Duration> {
        self.tables().nodes.until_over(BootTime::now())
    }

    /// Chooses a node for a session that this node is to give away.
    ///
    /// # Errors
    /// Says of each node why it is not the one.
    pub fn place_elsewhere(&self, owned: &OwnershipRecord, to: Option<NodeName>) -> Result<NodeName, PlacementError> {
        let request = PlacementRequest { node: to, ..elsewhere(owned, false) };
        self.place(&request, std::slice::from_ref(self.name()))
    }

    /// Returns true for a session that another node has given to this one, if nobody has deleted it since. `is_here` says whether it was taken.
    pub fn is_given(&self, session: &SessionId, is_here: bool) -> bool {
        let tables = self.tables();
        let given = tables.sessions.owner(session).filter(|owned| owned.record.node == *self.name());
        !is_here && given.is_some_and(|owned| owned.record.snapshot.is_some()) && !tables.forgotten.contains(session)
    }

    /// Returns the sessions that are this node's by their rows, with a conversation that another node has stored.
    pub fn given_sessions(&self) -> Vec<SessionId> {
        let tables = self.tables();
        let own = tables.sessions.of_node(self.name()).into_iter();
        let own = own.filter(|row| row.record.snapshot.is_some() && !tables.starting.contains_key(&row.session));
        let own =
            own.filter(|row| !tables.releasing.contains(&row.session) && !tables.forgotten.contains(&row.session));
        own.filter(|row| !row.record.is_deleted).map(|row| row.session).collect()
    }

    /// Takes a session of a node whose lease is over for this one, if nothing has changed and the engine's leader does not know that node
    /// either. Returns false where somebody else was faster.
    ///
    /// # Errors
    /// The engine's.
    pub async fn take(&self, session: &SessionId) -> Result<bool, EngineError> {
        let owned = self.owner_now(session).await?.filter(|owned| !owned.record.is_deleted);
        let Some(owned) = owned else { return Ok(false) };
        let row = self.0.nodes.read(owned.record.node.as_str()).await?;
        if row.is_some_and(|row| row.value.is_some()) || !self.is_lease_held() {
            return Ok(false);
        }
        let record = OwnershipRecord {
            node: self.name().clone(),
            incarnation: self.0.incarnation.clone(),
            epoch: owned.record.epoch + 1,
            from: Some(owned.record.node),
            ..owned.record
        };
        match self.0.sessions.write(&session_token(session), json(&record), owned.revision, Retention::Keep).await {
            Ok(revision) => {
                self.note(session, revision, Some(record), true);
                Ok(true)
            }
            Err(CompareAndSetError::Changed) => Ok(false),
            Err(CompareAndSetError::Engine(error)) => Err(error),
        }
    }

    /// Notes the snapshot of a session of this node, and removes the one before it. One of an earlier epoch changes nothing.
    ///
    /// # Errors
    /// The engine's.
    pub async fn note_snapshot(&self, session: &SessionId, epoch: u64, object: &str) -> Result<(), EngineError> {
        let change = |record: &OwnershipRecord| {
            let is_ours = record.node == *self.name() && record.epoch == epoch;
            is_ours.then(|| OwnershipRecord { snapshot: Some(object.to_owned()), ..record.clone() })
        };
        let Some((before, _)) = self.change_row(session, true, change).await? else { return Ok(()) };
        if let Some(before) = before.snapshot.filter(|before| before != object)
            && let Err(error) = self.0.snapshots.delete(&before).await
        {
            tracing::debug!(%error, before, "an old snapshot stays");
        }
        Ok(())
    }

    /// Stores what another node needs to go on with a session. An object is written once.
    ///
    /// # Errors
    /// The engine's.
    pub async fn store_snapshot(&self, object: &str, bytes: Vec<u8>) -> Result<(), EngineError> {
        let failed = |error: async_nats::Error| EngineError::new("store", format!("the snapshot {object}"), error);
        let put = self.0.snapshots.put(object, &mut bytes.as_slice()).await;
        put.map(drop).map_err(|error| failed(error.into()))
    }

    /// Reads what another node has stored. A follower may not have it yet: that is tried again.
    ///
    /// # Errors
    /// The engine's.
    pub async fn snapshot(&self, object: &str) -> Result<Vec<u8>, EngineError> {
        let failed = |error: async_nats::Error| EngineError::new("read", format!("the snapshot {object}"), error);
        let deadline = tokio::time::Instant::now() + FIRST_READ;
        let mut found = loop {
            match self.0.snapshots.get(object).await {
                Ok(found) => break found,
                Err(error) if tokio::time::Instant::now() > deadline => return Err(failed(error.into())),
                Err(_) => sleep(BEAT_PAUSE).await,
            }
        };
        let mut bytes = Vec::new();
        found.read_to_end(&mut bytes).await.map_err(|error| failed(error.into()))?;
        Ok(bytes)
    }

    /// Gives a session of this node to another one, which goes on from a snapshot. Returns its epoch there.
    ///
    /// # Errors
    /// The engine's; also for a session that is not this node's.
    pub async fn hand_over(&self, session: &SessionId, to: &NodeName, snapshot: &str) -> Result<u64, EngineError> {
        let change = |record: &OwnershipRecord| {
            (record.node == *self.name()).then(|| OwnershipRecord {
                node: to.clone(),
                incarnation: String::new(),
                epoch: record.epoch + 1,
                snapshot: Some(snapshot.to_owned()),
                from: Some(self.name().clone()),
                ..record.clone()
            })
        };
        let Some((_, given)) = self.change_row(session, false, change).await? else {
            let reason = std::io::Error::other("it is not this node's");
            return Err(EngineError::new("hand over", format!("session {session}"), reason));
        };
        // It is resumed there in a moment, and the next one is placed before that node's beat tells.
        self.tables().claims.claimed(to, BootTime::now());
        Ok(given.epoch)
    }
}
