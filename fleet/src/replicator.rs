//! What ships the events of this node's sessions to the fleet's log.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ipc_protocol::{ErrorChain, SessionId};
use proxy_manager::{
    ProxyManager,
    replication::{
        ClaimError as ManagerClaimError, ClaimFuture, ClaimPurpose, Epoch, ForgetFuture, LeaseDeadline, Replicator,
    },
};
use tokio::{sync::Notify, task::JoinSet, time::sleep};

use crate::{
    error::ClaimError,
    member::{FleetMember, SessionClaim},
    records::SessionFacts,
    shipping::{EventBatch, ShippingStep},
    shipping_queue::ShippingQueue,
};

/// Sessions whose events are on their way at once.
const MAX_SHIPMENTS: usize = 64;
/// Attempts to ship a batch until it is another session's turn, where one waits.
const MAX_TURN: u32 = 16;
/// Most events of one message.
const BATCH_EVENTS: usize = 4096;
/// Bytes of one message, about.
const BATCH_BYTES: usize = 128 * 1024;
/// Time between two attempts, where the engine does not answer.
const PAUSE: Duration = Duration::from_millis(200);

/// The fleet, as a node's manager sees it. A clone is the same.
#[derive(Clone, Debug, Default)]
pub struct FleetReplicator(Arc<ReplicatorState>);

#[derive(Debug, Default)]
struct ReplicatorState {
    /// Set once the node has joined; before that no session starts.
    member: OnceLock<FleetMember>,
    /// Sessions that may have events to ship.
    pending: Mutex<ShippingQueue>,
    /// True from the first attempt that the engine did not answer to the next that it did.
    is_unavailable: AtomicBool,
    /// Sequence of each session's last message.
    sequences: Mutex<HashMap<SessionId, u64>>,
    wake: Notify,
    /// Sessions whose conversation is to be stored.
    turned: Mutex<BTreeSet<SessionId>>,
    /// Sessions that are here no longer, and whose rows go.
    forgotten: Mutex<BTreeSet<SessionId>>,
    /// The one of them that is worked on.
    deleting: Mutex<Option<SessionId>>,
    chore: Notify,
}

impl FleetReplicator {
    /// Begins to ship: the node has joined, and this is its manager. Ships what an earlier run left first.
    ///
    /// # Errors
    /// None of its own; sessions of other nodes that are here still are fenced.
    pub fn start(&self, member: FleetMember, manager: ProxyManager) {
        let unshipped = manager.replicated_streams().into_iter();
        let unshipped = unshipped.filter(|stream| stream.acknowledged < stream.last).map(|stream| stream.session);
        unshipped.for_each(|session| lock(&self.0.pending).push(session));
        let _ = self.0.member.set(member.clone());
        if member.takes_over() {
            member.spawn(hold_lease(member.clone(), manager.clone()));
        }
        member.spawn(self.clone().run_chores(member.clone(), manager.clone()));
        member.spawn(self.clone().run(member.clone(), manager));
    }

    async fn run(self, member: FleetMember, manager: ProxyManager) {
        let mut shipments: JoinSet<SessionId> = JoinSet::new();
        let mut under_way: HashSet<SessionId> = HashSet::new();
        loop {
            let room = MAX_SHIPMENTS.saturating_sub(under_way.len());
            let next = lock(&self.0.pending).take(room, &under_way);
            for session in next {
                under_way.insert(session.clone());
                let (shipper, member, manager) = (self.clone(), member.clone(), manager.clone());
                shipments.spawn(async move {
                    shipper.ship(&member, &manager, &session).await;
                    session
                });
            }
            tokio::select! {
                () = self.0.wake.notified() => {}
                Some(done) = shipments.join_next(), if !shipments.is_empty() => match done {
                    Ok(session) => drop(under_way.remove(&session)),
                    Err(error) => tracing::error!(%error, "shipping events broke off"),
                },
            }
        }
    }

    /// Ships what a session has that the log has not.
    async fn ship(&self, member: &FleetMember, manager: &ProxyManager, session: &SessionId) {
        let log = member.log();
        // Sequence that the next publish expects; `None` where the log has to say it first, as after a restart.
        let mut known = lock(&self.0.sequences).get(session).copied();
        let mut most_events = BATCH_EVENTS;
        for attempt in 0.. {
            if member.is_forgotten(session) {
                return;
            }
            if attempt >= MAX_TURN && lock(&self.0.pending).has_others(session) {
                return self.note(session);
            }
            let events = match manager.read_unacknowledged(session, most_events, BATCH_BYTES).await {
                Ok(events) if events.events > 0 || events.last >= events.first && events.first > 0 => events,
                Ok(_) => return,
                Err(error) => {
                    tracing::warn!(%session, error = %ErrorChain(&error), "a session's events are not shipped");
                    return;
                }
            };
            let (bytes, most_bytes) = (events.lines.len(), log.max_bytes());
            if bytes > most_bytes && events.events > 1 {
                most_events = 1;
                continue;
            }
            if bytes > most_bytes {
                // It will never be in the log, and what comes after it cannot be there without it.
                tracing::error!(
                    %session, offset = events.first, bytes, most_bytes,
                    "an event is longer than a message of the fleet's engine may be (max_payload): its session ends, and what follows is put aside"
                );
                lock(&self.0.sequences).remove(session);
                end_here(manager, session).await;
                return;
            }
            most_events = BATCH_EVENTS;
            let batch = EventBatch { epoch: events.epoch.0, first: events.first, last: events.last };
            let step = match known {
                Some(expected) => ShippingStep::Again { expected },
                // What the log has already is not published again, and nothing is after a later owner.
                None => match log.tail(session).await {
                    Ok(tail) => batch.compare(tail),
                    Err(error) => {
                        self.unavailable(manager, &error).await;
                        continue;
                    }
                },
            };
            let (step, error) = match step {
                ShippingStep::Again { expected } => {
                    let (outcome, error) = log.publish(session, batch, events.lines, expected).await;
                    (batch.decide(expected, outcome), error)
                }
                step => (step, None),
            };
            match step {
                ShippingStep::Acknowledged { through, sequence } => {
                    self.0.is_unavailable.store(false, Ordering::Relaxed);
                    let _ = manager.set_fleet_available(Ok(()));
                    match manager.acknowledge(session, through).await {
                        Ok(()) => {
                            known = Some(sequence);
                            lock(&self.0.sequences).insert(session.clone(), sequence);
                        }
                        Err(error) => {
                            tracing::warn!(%session, error = %ErrorChain(&error), "an acknowledgement is not noted: it is tried again");
                            // The log has events that are read again from here: its tail says which.
                            known = None;
                            lock(&self.0.sequences).remove(session);
                            sleep(PAUSE).await;
                        }
                    }
                }
                ShippingStep::Again { expected } => known = Some(expected),
                ShippingStep::From { offset, expected } => {
                    tracing::error!(%session, offset, next = batch.first, "the fleet's log lacks events that it had: its readers miss them");
                    known = Some(expected);
                }
                ShippingStep::Fenced { epoch } => {
                    tracing::warn!(%session, epoch, "another node has the session: it ends here");
                    lock(&self.0.sequences).remove(session);
                    end_here(manager, session).await;
                    return;
                }
            }
            if let Some(error) = error {
                self.unavailable(manager, &error).await;
            }
        }
    }

    /// Stores the conversations of sessions whose turn has ended, so that another node can go on with them, and removes the rows of those that
    /// were deleted.
    async fn run_chores(self, member: FleetMember, manager: ProxyManager) {
        loop {
            let turned = lock(&self.0.turned).pop_first();
            let forgotten = self.next_forgotten();
            if turned.is_none() && forgotten.is_none() {
                self.0.chore.notified().await;
            }
            if let Some(session) = turned
                && let Err(error) = store_conversation(&member, &manager, &session).await
            {
                tracing::warn!(%session, error, "a session's conversation is not stored: another node goes on with the one before");
            }
            if let Some(session) = forgotten {
                self.delete(&member, &manager, session).await;
            }
        }
    }

    /// Takes the next session whose row goes.
    fn next_forgotten(&self) -> Option<SessionId> {
        let mut forgotten = lock(&self.0.forgotten);
        let next = forgotten.pop_first();
        lock(&self.0.deleting).clone_from(&next);
        next
    }

    /// Deletes from the fleet what it has of a session that is here no longer, if that is so still.
    async fn delete(&self, member: &FleetMember, manager: &ProxyManager, session: SessionId) {
        let deleted = member.delete(&session, || is_here(manager, &session)).await;
        let is_done = match &deleted {
            Ok(is_deleted) => *is_deleted || is_here(manager, &session),
            Err(error) => {
                tracing::warn!(%session, error = %ErrorChain(error), "a session that is gone is still this node's");
                false
            }
        };
        {
            let mut forgotten = lock(&self.0.forgotten);
            *lock(&self.0.deleting) = None;
            if is_done {
                // It may have been forgotten once more.
                if !forgotten.contains(&session) {
                    member.mark_forgotten(&session, false);
                }
                return;
            }
            forgotten.insert(session);
        }
        // It is being started, or the engine does not answer.
        sleep(PAUSE).await;
        self.0.chore.notify_one();
    }

    /// Claims a session that starts. What one of its id that was deleted here has left in the fleet goes before.
    async fn claim_start(&self, member: &FleetMember, session: &SessionId) -> Result<SessionClaim, ClaimError> {
        let claim = member.claim_start(session, &SessionFacts::default(), &BTreeMap::new()).await?;
        // Both are read at once: the chore puts back what it left.
        let was_deleted = {
            let mut forgotten = lock(&self.0.forgotten);
            let is_being_deleted = lock(&self.0.deleting).as_ref() == Some(session);
            member.mark_forgotten(session, false);
            forgotten.remove(session) || is_being_deleted
        };
        if was_deleted && let Err(error) = member.begin_anew(session).await {
            self.forgotten(session);
            return Err(error.into());
        }
        Ok(claim)
    }

    async fn unavailable(&self, manager: &ProxyManager, error: &crate::EngineError) {
        let reason = ErrorChain(error).to_string();
        // Each session tries it several times a second.
        match self.0.is_unavailable.swap(true, Ordering::Relaxed) {
            false => tracing::warn!(reason, "events are not shipped: they are tried again"),
            true => tracing::debug!(reason, "events are not shipped: they are tried again"),
        }
        let _ = manager.set_fleet_available(Err(reason));
        sleep(PAUSE).await;
    }

    fn note(&self, session: &SessionId) {
        lock(&self.0.pending).push(session.clone());
        self.0.wake.notify_one();
    }
}

impl Replicator for FleetReplicator {
    fn claim<'a>(&'a self, session: &'a SessionId, purpose: ClaimPurpose) -> ClaimFuture<'a> {
        Box::pin(async move {
            let unavailable = |reason: String| ManagerClaimError::Unavailable { reason };
            let member = self.0.member.get().ok_or_else(|| unavailable("this node has not joined yet".into()))?;
            let _starting = member.begin_start(session);
            let claimed = match purpose {
                ClaimPurpose::Start => self.claim_start(member, session).await,
                ClaimPurpose::Resume => member.claim(session, &SessionFacts::default(), &BTreeMap::new()).await,
            };
            match claimed {
                Ok(claim) => Ok(Epoch(claim.epoch)),
                Err(ClaimError::Owned { node }) => Err(ManagerClaimError::Owned { owner: format!("node {node}") }),
                Err(error) => Err(unavailable(ErrorChain(&error).to_string())),
            }
        })
    }

    fn forgetting<'a>(&'a self, session: &'a SessionId) -> ForgetFuture<'a> {
        Box::pin(async move {
            let unavailable = |reason: String| ManagerClaimError::Unavailable { reason };
            let member = self.0.member.get().ok_or_else(|| unavailable("this node has not joined yet".into()))?;
            member.announce_deletion(session).await.map_err(|error| unavailable(ErrorChain(&error).to_string()))
        })
    }

    fn committed(&self, session: &SessionId, _: u64) {
        self.note(session);
    }

    fn turn_ended(&self, session: &SessionId) {
        if self.0.member.get().is_some_and(FleetMember::takes_over) {
            lock(&self.0.turned).insert(session.clone());
            self.0.chore.notify_one();
        }
    }

    fn forgotten(&self, session: &SessionId) {
        lock(&self.0.sequences).remove(session);
        let mut forgotten = lock(&self.0.forgotten);
        forgotten.insert(session.clone());
        if let Some(member) = self.0.member.get() {
            member.mark_forgotten(session, true);
        }
        drop(forgotten);
        self.0.chore.notify_one();
    }
}

/// Returns true if the manager has a session, or a record of it.
fn is_here(manager: &ProxyManager, session: &SessionId) -> bool {
    manager.session(session).is_ok() || manager.record(session).is_ok()
}

/// Has the fork server end all sessions when this node's lease is over.
async fn hold_lease(member: FleetMember, manager: ProxyManager) {
    let mut deadline = member.lease_deadline();
    loop {
        let lasts = *deadline.borrow_and_update();
        if let Some(lasts) = lasts {
            manager.renew_lease(LeaseDeadline(lasts.since_boot()));
        }
        if deadline.changed().await.is_err() {
            return;
        }
    }
}

/// Ends a session whose events cannot be in the fleet's log.
async fn end_here(manager: &ProxyManager, session: &SessionId) {
    if let Err(error) = manager.fence(session).await {
        tracing::error!(%session, error = %ErrorChain(&error), "a session whose events are not shipped did not end");
    }
}

async fn store_conversation(member: &FleetMember, manager: &ProxyManager, session: &SessionId) -> Result<(), String> {
    let text = |error: &dyn std::error::Error| error.to_string();
    let export = manager.export_session(session).await.map_err(|error| text(&error))?;
    if let Some(reason) = export.incomplete {
        tracing::debug!(%session, reason, "a session stays with its node");
        return Ok(());
    }
    let (epoch, object) = (export.epoch.0, format!("{session}/{}/{}", export.epoch, export.offset));
    let bytes = export.to_bytes().map_err(|error| text(&error))?;
    member.store_snapshot(&object, bytes).await.map_err(|error| ErrorChain(&error).to_string())?;
    member.note_snapshot(session, epoch, &object).await.map_err(|error| ErrorChain(&error).to_string())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
