//! Rows of this node's sessions: claimed at their start, compared with the sessions that there are, given up with them.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use async_nats::jetstream::object_store;
use ipc_protocol::SessionId;
use tokio::time::sleep;

use super::{FleetMember, chain, json};
use crate::{
    bucket::Retention,
    clock::BootTime,
    error::{ClaimError, CompareAndSetError, EngineError},
    names::session_token,
    records::{OwnershipRecord, SessionFacts},
    session_table::OwnedSession,
};

/// Time between two looks whether a session that is being given up is free.
const RELEASE_PAUSE: Duration = Duration::from_millis(10);

/// Claim of a session that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionClaim {
    /// Epoch under which this node has the session.
    pub epoch: u64,
    /// True if nobody had the session before.
    pub is_new: bool,
    /// Revision of its row.
    pub revision: u64,
}

/// Session that is being given up: as long as this lives, a claim of it waits.
#[derive(Debug)]
pub(super) struct ReleaseGuard<'a> {
    member: &'a FleetMember,
    session: &'a SessionId,
}

impl Drop for ReleaseGuard<'_> {
    fn drop(&mut self) {
        self.member.tables().releasing.remove(self.session);
    }
}

/// Session that is being started here: as long as this lives, nobody counts its row as one of a session that is gone.
#[derive(Debug)]
#[must_use = "the session's row counts as a stale one without this"]
pub struct StartGuard {
    member: FleetMember,
    session: SessionId,
}

impl Drop for StartGuard {
    fn drop(&mut self) {
        let mut tables = self.member.tables();
        if let Some(calls) = tables.starting.get_mut(&self.session) {
            *calls -= 1;
            if *calls == 0 {
                tables.starting.remove(&self.session);
            }
        }
    }
}

impl FleetMember {
    /// Takes note that a session is here no longer, and is not to be taken over by its row; or that this is over.
    pub(crate) fn mark_forgotten(&self, session: &SessionId, is_forgotten: bool) {
        let mut tables = self.tables();
        match is_forgotten {
            true => tables.forgotten.insert(session.clone()),
            false => tables.forgotten.remove(session),
        };
    }

    /// Returns true for a session that was deleted here, until the fleet has nothing of it.
    pub fn is_forgotten(&self, session: &SessionId) -> bool {
        self.tables().forgotten.contains(session)
    }

    /// Takes note that a session is about to start here.
    pub fn begin_start(&self, session: &SessionId) -> StartGuard {
        *self.tables().starting.entry(session.clone()).or_default() += 1;
        StartGuard { member: self.clone(), session: session.clone() }
    }

    /// Claims a session that is about to start, of which this node has nothing. What the log has of an earlier one with its id is removed.
    ///
    /// # Errors
    /// As for [`FleetMember::claim`]; nothing is claimed then.
    pub async fn claim_start(
        &self,
        session: &SessionId,
        facts: &SessionFacts,
        labels: &BTreeMap<String, String>,
    ) -> Result<SessionClaim, ClaimError> {
        let claim = self.claim(session, facts, labels).await?;
        if claim.is_new
            && let Err(error) = self.0.log.remove(session).await
        {
            if let Err(error) = self.release(session).await {
                tracing::warn!(%session, error = %chain(&error), "a session that did not start is still this node's");
            }
            return Err(error.into());
        }
        Ok(claim)
    }

    /// Claims a session for this node. One that it has already is its own. `facts` and `labels` count where nobody had it.
    ///
    /// # Errors
    /// Another node has it, this node's lease is over, or the engine does not answer.
    pub async fn claim(
        &self,
        session: &SessionId,
        facts: &SessionFacts,
        labels: &BTreeMap<String, String>,
    ) -> Result<SessionClaim, ClaimError> {
        while self.tables().releasing.contains(session) {
            sleep(RELEASE_PAUSE).await;
        }
        if !self.is_lease_held() {
            let silence = self.tables().lease.age(BootTime::now()).unwrap_or_default();
            return Err(ClaimError::LeaseOver { silence });
        }
        let token = session_token(session);
        let new = OwnershipRecord {
            node: self.name().clone(),
            incarnation: self.0.incarnation.clone(),
            epoch: 1,
            facts: facts.clone(),
            labels: labels.clone(),
            snapshot: None,
            kill: None,
            is_deleted: false,
            from: None,
        };
        let mut record = new.clone();
        loop {
            let row = match self.0.sessions.create(&token, json(&record), Retention::Keep).await? {
                Ok(revision) => {
                    self.note(session, revision, Some(record.clone()), true);
                    return Ok(SessionClaim { epoch: record.epoch, is_new: true, revision });
                }
                Err(row) => row,
            };
            let Some(owned) = self.observe_session(session, &row, true) else {
                let reason = std::io::Error::other("its row is none of this version");
                return Err(EngineError::new("claim", format!("session {session}"), reason).into());
            };
            if owned.record.node != *self.name() {
                return Err(ClaimError::Owned { node: owned.record.node });
            }
            // Of one that was deleted here nothing but the epoch counts for the next one with its id.
            let is_new = owned.record.is_deleted || self.is_forgotten(session);
            if owned.record.incarnation == self.0.incarnation && !is_new {
                return Ok(SessionClaim { epoch: owned.record.epoch, is_new: false, revision: owned.revision });
            }
            let (epoch, snapshot) = (owned.record.epoch, owned.record.snapshot.clone());
            record = match is_new {
                true => OwnershipRecord { epoch, ..new.clone() },
                // This node had it before its program was started anew.
                false => OwnershipRecord { incarnation: self.0.incarnation.clone(), ..owned.record },
            };
            match self.0.sessions.write(&token, json(&record), owned.revision, Retention::Keep).await {
                Ok(revision) => {
                    self.note(session, revision, Some(record.clone()), true);
                    if let Some(snapshot) = snapshot.filter(|_| is_new)
                        && let Err(error) = self.remove_snapshot(&snapshot).await
                    {
                        tracing::warn!(%session, error = %chain(&error), "the conversation of a session that is gone stays");
                    }
                    return Ok(SessionClaim { epoch, is_new, revision });
                }
                Err(CompareAndSetError::Changed) => {}
                Err(CompareAndSetError::Engine(error)) => return Err(error.into()),
            }
        }
    }

    /// Changes the row of a session by compare-and-set: `change` says what it becomes, or that there is nothing to change. `is_news` is false
    /// where the change counts as no claim of its node. Returns the record before and after.
    pub(super) async fn change_row(
        &self,
        session: &SessionId,
        is_news: bool,
        change: impl Fn(&OwnershipRecord) -> Option<OwnershipRecord>,
    ) -> Result<Option<(OwnershipRecord, OwnershipRecord)>, EngineError> {
        // Each attempt that fails is one that another has made.
        loop {
            let Some(owned) = self.owner_now(session).await? else { return Ok(None) };
            let Some(record) = change(&owned.record) else { return Ok(None) };
            let written =
                self.0.sessions.write(&session_token(session), json(&record), owned.revision, Retention::Keep).await;
            match written {
                Ok(revision) => {
                    self.note(session, revision, Some(record.clone()), is_news);
                    return Ok(Some((owned.record, record)));
                }
                Err(CompareAndSetError::Changed) => {}
                Err(CompareAndSetError::Engine(error)) => return Err(error),
            }
        }
    }

    /// Notes in its row that a session of this node is about to be deleted: nobody goes on with it from here on, also if this node dies before
    /// all of it is gone.
    ///
    /// # Errors
    /// The engine's.
    pub async fn announce_deletion(&self, session: &SessionId) -> Result<(), EngineError> {
        // Nobody goes on with one of which the fleet has no conversation.
        let known = self.owner(session).map(|owned| owned.record);
        let is_noted = known.as_ref().is_some_and(|known| known.is_deleted);
        if is_noted || (!self.takes_over() && known.is_none_or(|known| known.snapshot.is_none())) {
            return Ok(());
        }
        let change = |record: &OwnershipRecord| {
            let is_ours = record.node == *self.name() && !record.is_deleted;
            is_ours.then(|| OwnershipRecord { is_deleted: true, ..record.clone() })
        };
        self.change_row(session, true, change).await.map(drop)
    }

    /// Ends a deletion that an earlier run of this node has announced, if nobody has begun anew with the id.
    pub(super) async fn finish_deletion(&self, session: &SessionId) -> Result<(), EngineError> {
        let Some(_releasing) = self.begin_release(session) else { return Ok(()) };
        // A claim from here on waits, and one before has changed the row.
        let is_deleted = self.owner_now(session).await?.is_some_and(|owned| owned.record.is_deleted);
        if is_deleted && self.remove_contents(session).await?.is_some() {
            self.remove_row(session).await?;
        }
        Ok(())
    }

    /// Deletes a session of this node from the fleet: its events, its conversation, then its row. One of another node is left alone, and one
    /// that is here again: that starts now, or that `is_here` says so of: then it
    /// returns false.
    ///
    /// # Errors
    /// The engine's; also while this node's lease is over.
    pub async fn delete(&self, session: &SessionId, is_here: impl FnOnce() -> bool) -> Result<bool, EngineError> {
        let Some(_releasing) = self.begin_release(session) else { return Ok(false) };
        // A start that begins from here on waits.
        let starts = self.tables().starting.contains_key(session);
        if starts || is_here() {
            return Ok(false);
        }
        if self.remove_contents(session).await?.is_some() {
            self.remove_row(session).await?;
        }
        Ok(true)
    }

    /// Removes what the fleet has of a session of this node whose id another one has from now on, and keeps its row.
    ///
    /// # Errors
    /// As for [`FleetMember::delete`].
    pub async fn begin_anew(&self, session: &SessionId) -> Result<(), EngineError> {
        self.remove_contents(session).await?;
        let change = |record: &OwnershipRecord| {
            let is_ours = record.node == *self.name();
            is_ours.then(|| OwnershipRecord { snapshot: None, kill: None, is_deleted: false, ..record.clone() })
        };
        self.change_row(session, true, change).await.map(drop)
    }

    /// Removes the events and the conversation of a session of this node. Returns its row; `None` where it is not this node's.
    pub(super) async fn remove_contents(&self, session: &SessionId) -> Result<Option<OwnedSession>, EngineError> {
        let own = self.owner_now(session).await?.filter(|owned| owned.record.node == *self.name());
        let Some(owned) = own else { return Ok(None) };
        if !self.is_lease_held() {
            let reason = std::io::Error::other("this node's lease is over, so that another one may have it");
            return Err(EngineError::new("delete", format!("session {session}"), reason));
        }
        self.0.log.remove(session).await?;
        if let Some(object) = &owned.record.snapshot {
            self.remove_snapshot(object).await?;
        }
        Ok(Some(owned))
    }

    /// Gives a session of this node up, and leaves the events that it may have. One of another node is left alone.
    ///
    /// # Errors
    /// The engine's.
    pub async fn release(&self, session: &SessionId) -> Result<(), EngineError> {
        let Some(_releasing) = self.begin_release(session) else { return Ok(()) };
        self.remove_row(session).await
    }

    /// Begins to give a session up; `None` where that is under way.
    pub(super) fn begin_release<'a>(&'a self, session: &'a SessionId) -> Option<ReleaseGuard<'a>> {
        let begun = self.tables().releasing.insert(session.clone());
        begun.then_some(ReleaseGuard { member: self, session })
    }

    pub(super) async fn remove_snapshot(&self, object: &str) -> Result<(), EngineError> {
        match self.0.snapshots.delete(object).await {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == object_store::DeleteErrorKind::NotFound => Ok(()),
            Err(error) => Err(EngineError::new("delete", format!("the snapshot {object}"), error)),
        }
    }

    pub(super) async fn remove_row(&self, session: &SessionId) -> Result<(), EngineError> {
        let token = session_token(session);
        loop {
            let Some(owned) = self.owner_now(session).await? else { return Ok(()) };
            if owned.record.node != *self.name() {
                return Ok(());
            }
            let key = self.begun_key(&owned.record).await?;
            match self.0.sessions.remove(&token, owned.revision).await {
                Ok(()) => {
                    self.note(session, owned.revision + 1, None, true);
                    return self.release_key(key).await;
                }
                Err(CompareAndSetError::Changed) => {}
                Err(CompareAndSetError::Engine(error)) => return Err(error),
            }
        }
    }

    /// Makes the rows of this node's sessions those of the sessions that it has: claims those without a row, and removes the rows of those
    /// that are gone. `local` lists them, with what is known of them. Returns those that another node has.
    ///
    /// # Errors
    /// The engine's.
    pub async fn reconcile(
        &self,
        local: impl FnOnce() -> Vec<(SessionId, SessionFacts)>,
    ) -> Result<Vec<SessionId>, EngineError> {
        // Before the list is made: what is claimed later is no concern of it.
        let (rows, starting) = {
            let tables = self.tables();
            (tables.sessions.of_node(self.name()), tables.starting.keys().cloned().collect::<Vec<_>>())
        };
        let local: BTreeMap<SessionId, SessionFacts> = local().into_iter().collect();
        let own: HashMap<&SessionId, &OwnershipRecord> = rows
            .iter()
            .filter(|row| row.record.incarnation == self.0.incarnation)
            .map(|row| (&row.session, &row.record))
            .collect();
        let mut foreign = Vec::new();
        for (session, facts) in &local {
            if let Some(record) = own.get(session) {
                // They change, and a start that came by another way than a request to this node names them here alone.
                if record.facts != facts.or(&record.facts) {
                    self.change_facts(session, facts).await?;
                }
                continue;
            }
            match self.claim(session, facts, &BTreeMap::new()).await {
                Ok(_) => {}
                Err(ClaimError::Engine(error)) => return Err(error),
                Err(ClaimError::Owned { .. }) => foreign.push(session.clone()),
                // The next time.
                Err(ClaimError::LeaseOver { .. }) => return Ok(foreign),
            }
        }
        // One that was given to this node and not taken yet is where its object says.
        for row in rows.into_iter().filter(|row| row.record.snapshot.is_none() || row.record.is_deleted) {
            if local.contains_key(&row.session) || starting.contains(&row.session) {
                continue;
            }
            match row.record.is_deleted {
                // The one that is deleted now is seen to.
                true if self.is_forgotten(&row.session) => {}
                true => self.finish_deletion(&row.session).await?,
                false => self.release(&row.session).await?,
            }
        }
        Ok(foreign)
    }

    /// Notes what is known of a session of this node.
    pub(super) async fn change_facts(&self, session: &SessionId, facts: &SessionFacts) -> Result<(), EngineError> {
        let change = |record: &OwnershipRecord| {
            let is_ours = record.node == *self.name();
            is_ours.then(|| OwnershipRecord { facts: facts.or(&record.facts), ..record.clone() })
        };
        self.change_row(session, true, change).await.map(drop)
    }
}
