//! Beats of this node, and what the buckets tell of others.

use std::time::Duration;

use async_nats::jetstream::kv::{Entry, Operation, Watch};
use futures_util::StreamExt as _;
use ipc_protocol::SessionId;
use tokio::{
    sync::oneshot,
    time::{sleep, timeout},
};

use super::{BEAT_PAUSE, FleetMember, chain, json, parse};
use crate::{
    bucket::{Bucket, Retention, StoredRow},
    clock::BootTime,
    error::{CompareAndSetError, JoinError},
    lease::LeaseTimes,
    names::{NodeName, session_of_token},
    node_table::NodeChange,
    records::{NodeRecord, OwnershipRecord, SessionPhase},
    session_table::OwnedSession,
};

/// Silence after which a watch is compared with its bucket.
const WATCH_SILENCE: Duration = Duration::from_secs(3);
/// Time until a watch that broke off begins anew.
const WATCH_PAUSE: Duration = Duration::from_secs(1);

impl FleetMember {
    /// Sends one beat, with the revision that is expected.
    pub(super) async fn send_beat(&self, expected: u64) -> Result<u64, CompareAndSetError> {
        let (sent, record) = (BootTime::now(), self.record());
        let row = json(&record);
        let revision =
            self.0.nodes.write(self.name().as_str(), row, expected, Retention::For(self.0.times.lease)).await?;
        let mut tables = self.tables();
        let now = BootTime::now();
        if !tables.lease.is_held(now) {
            // It was cut off, or stood still: others may have sent beats that it did not hear.
            tables.nodes.restart_silence(now);
        }
        tables.lease.acknowledged(sent);
        self.0.deadline.send_replace(Some(sent.after(self.0.times.fence)));
        tables.revision = revision;
        tables.nodes.observe(self.name(), revision, NodeChange::Beat(Box::new(record)), BootTime::now());
        tables.claims.beat(self.name(), BootTime::now());
        Ok(revision)
    }

    /// Takes the name of this node: at once if nobody has it, or the one that had it was this node before; else once its lease is over.
    pub(super) async fn take_name(&self) -> Result<(), JoinError> {
        let (name, deadline) = (self.name().clone(), BootTime::now().after(self.0.times.lease + self.0.times.beat));
        let mut first_seen = None;
        loop {
            let row = self.0.nodes.read(name.as_str()).await?;
            let revision = row.as_ref().map_or(0, |row| row.revision);
            let holder: Option<NodeRecord> = row.and_then(|row| parse(row.value?.as_slice()));
            let is_ours = |holder: &NodeRecord| {
                holder.incarnation == self.0.incarnation
                    || (holder.identity.is_some() && holder.identity == self.0.config.identity)
            };
            if holder.as_ref().is_none_or(is_ours) {
                match self.send_beat(revision).await {
                    Ok(_) => return Ok(()),
                    Err(CompareAndSetError::Changed) => continue,
                    Err(CompareAndSetError::Engine(error)) => return Err(error.into()),
                }
            }
            // Its beats change the row.
            if *first_seen.get_or_insert(revision) != revision || BootTime::now() > deadline {
                return Err(JoinError::NameTaken { node: name });
            }
            sleep(self.0.times.beat / 2).await;
        }
    }

    pub(super) async fn send_beats(self) {
        let LeaseTimes { beat, .. } = self.0.times;
        loop {
            sleep(BEAT_PAUSE.min(beat)).await;
            let _ = timeout(beat, self.0.beat.notified()).await;
            let expected = self.tables().revision;
            match self.send_beat(expected).await {
                Ok(_) => {}
                Err(CompareAndSetError::Changed) => {
                    if self.find_own_row().await.is_none() {
                        return;
                    }
                    self.0.beat.notify_one();
                }
                Err(CompareAndSetError::Engine(error)) => {
                    tracing::warn!(error = %chain(&error), "a beat was not acknowledged");
                    self.0.beat.notify_one();
                }
            }
        }
    }

    /// Finds the revision that the next beat has to expect, after one that was refused. `None` where another program has the name.
    pub(super) async fn find_own_row(&self) -> Option<()> {
        let row = match self.0.nodes.read(self.name().as_str()).await {
            Ok(row) => row,
            Err(error) => {
                tracing::warn!(error = %chain(&error), "the row of this node cannot be read");
                return Some(());
            }
        };
        let revision = row.as_ref().map_or(0, |row| row.revision);
        let holder: Option<NodeRecord> = row.and_then(|row| parse(row.value?.as_slice()));
        if let Some(other) = holder.filter(|holder| holder.incarnation != self.0.incarnation) {
            tracing::error!(
                node = %self.name(), incarnation = other.incarnation,
                "another program has the name of this node: this one is no longer of the fleet"
            );
            self.0.replaced.send_replace(true);
            return None;
        }
        self.tables().revision = revision;
        Some(())
    }

    pub(super) async fn watch_nodes(self, read: oneshot::Sender<()>) {
        let observe = |member: &Self, entry: &Entry| {
            let Ok(node) = entry.key.parse::<NodeName>() else { return };
            let change = match entry.operation {
                Operation::Put => match parse(&entry.value) {
                    Some(record) => NodeChange::Beat(Box::new(record)),
                    None => return tracing::warn!(%node, "the row of a node is none of this version"),
                },
                Operation::Delete => NodeChange::Left,
                Operation::Purge => NodeChange::Expired,
            };
            let (mut tables, now) = (member.tables(), BootTime::now());
            let is_beat = matches!(change, NodeChange::Beat(_));
            // The last beat comes again where the watch begins anew.
            if tables.nodes.observe(&node, entry.revision, change, now) && is_beat {
                tables.claims.beat(&node, now);
            }
        };
        self.follow(&self.0.nodes, read, observe).await;
    }

    pub(super) async fn watch_sessions(self, read: oneshot::Sender<()>) {
        let observe = |member: &Self, entry: &Entry| {
            let Some(session) = session_of_token(&entry.key) else { return };
            let value = matches!(entry.operation, Operation::Put).then(|| entry.value.to_vec());
            // Of those that were there before the load of their nodes tells.
            member.observe_session(&session, &StoredRow { revision: entry.revision, value }, entry.seen_current);
            member.0.watched.send_replace(entry.revision);
        };
        self.follow(&self.0.sessions, read, observe).await;
    }

    /// Follows a bucket, from all that it has now. Says so once it has read that.
    pub(super) async fn follow(&self, bucket: &Bucket, read: oneshot::Sender<()>, observe: impl Fn(&Self, &Entry)) {
        let mut read = Some(read);
        loop {
            // A watch of no rows says nothing.
            if read.is_some() && bucket.last_revision().await.is_ok_and(|revision| revision == 0) {
                read.take().map(|read| read.send(()));
            }
            match bucket.watch().await {
                Ok(rows) => self.follow_watch(bucket, rows, &mut read, &observe).await,
                Err(error) => tracing::warn!(error = %chain(&error), "a bucket cannot be watched: it is tried again"),
            }
            sleep(WATCH_PAUSE).await;
        }
    }

    /// Follows one watch until it breaks off. One whose server has died may say nothing of it: a watch that is silent is compared with the
    /// bucket.
    pub(super) async fn follow_watch(
        &self,
        bucket: &Bucket,
        mut rows: Watch,
        read: &mut Option<oneshot::Sender<()>>,
        observe: &impl Fn(&Self, &Entry),
    ) {
        let mut seen = 0;
        loop {
            match timeout(WATCH_SILENCE, rows.next()).await {
                Ok(Some(Ok(entry))) => {
                    observe(self, &entry);
                    seen = entry.revision;
                    if entry.seen_current {
                        read.take().map(|read| read.send(()));
                    }
                }
                Ok(Some(Err(error))) => {
                    tracing::warn!(%error, "the watch of a bucket broke off: it begins anew");
                    return;
                }
                Ok(None) => return,
                Err(_) => {
                    if bucket.last_revision().await.is_ok_and(|revision| revision > seen) {
                        tracing::warn!("the watch of a bucket is behind: it begins anew");
                        return;
                    }
                }
            }
        }
    }

    /// Takes note of a row of the bucket of sessions.
    pub(super) fn observe_session(&self, session: &SessionId, row: &StoredRow, is_news: bool) -> Option<OwnedSession> {
        let record: Option<OwnershipRecord> = row.value.as_deref().and_then(parse);
        if row.value.is_some() && record.is_none() {
            tracing::warn!(%session, "the row of a session is none of this version");
            return None;
        }
        self.note(session, row.revision, record.clone(), is_news);
        Some(OwnedSession { session: session.clone(), record: record?, revision: row.revision })
    }

    pub(super) fn note(&self, session: &SessionId, revision: u64, record: Option<OwnershipRecord>, is_news: bool) {
        let claimed = record.as_ref().filter(|record| is_news && record.facts.phase == SessionPhase::Running);
        let claimed = claimed.map(|record| record.node.clone());
        {
            let mut tables = self.tables();
            let has_new_owner = tables.sessions.observe(session, revision, record);
            if let Some(node) = claimed.filter(|_| has_new_owner) {
                tables.claims.claimed(&node, BootTime::now());
            }
        }
        self.0.changes.send_modify(|changes| *changes = changes.wrapping_add(1));
    }
}
