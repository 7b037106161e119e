//! This node's membership: beats, the tables of nodes and sessions, claims, requests to others.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_nats::{
    Client,
    jetstream::{
        Context,
        kv::{Entry, Operation, Watch},
        object_store::{self, ObjectStore},
    },
};
use futures_util::StreamExt as _;
use ipc_protocol::SessionId;
use tokio::{
    io::AsyncReadExt as _,
    sync::{Notify, oneshot, watch},
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    bucket::{Bucket, REPLICAS, Retention, StoredRow, has_too_few_servers},
    clock::BootTime,
    connection::{EngineAddress, connect},
    error::{ClaimError, CompareAndSetError, EngineError, ExchangeError, JoinError},
    exchange::{self, ExchangeHandler, ExchangeRequest, ReceivedAnswer},
    lease::{Lease, LeaseTimes},
    log::FleetLog,
    names::{NodeName, request_subject, session_of_token, session_token},
    node_table::{FleetNode, NodeChange, NodePresence, NodeTable},
    placement::{self, PlacementError, PlacementRequest},
    recent_claims::RecentClaims,
    records::{NodeRecord, OwnershipRecord, RememberedKill, SessionFacts, SessionPhase, StartKeyRecord},
    retention,
    session_table::{OwnedSession, SessionTable},
};

/// Object store of what other nodes need to go on with sessions.
const SNAPSHOTS: &str = "snaps";
/// Time for which the `Idempotency-Key` of a start is remembered.
const KEY_TIME: Duration = Duration::from_secs(24 * 3600);
/// Time for which a start with a key holds that for its node: longer than a start may take. From then on the session has it.
const START_TIME: Duration = Duration::from_secs(900);
/// Time for a row of this node to come back by the watch.
const WATCH_TIME: Duration = Duration::from_secs(2);
/// Silence after which a watch is compared with its bucket.
const WATCH_SILENCE: Duration = Duration::from_secs(3);
/// Time until a watch that broke off begins anew.
const WATCH_PAUSE: Duration = Duration::from_secs(1);
/// Time to read what the buckets have when a node joins.
const FIRST_READ: Duration = Duration::from_secs(10);
/// Time between two looks whether a session that is being given up is free.
const RELEASE_PAUSE: Duration = Duration::from_millis(10);
/// Least time between two beats.
const BEAT_PAUSE: Duration = Duration::from_millis(200);

/// What a node is, for the others.
#[derive(Clone, Debug)]
pub struct FleetConfig {
    /// Servers of the engine.
    pub engine: EngineAddress,
    /// Name of the node.
    pub node: NodeName,
    /// Place of the node's sessions: of two programs with the same, one is over when the other begins, as with the lock of a state directory.
    /// Such a node has its name back at once.
    pub identity: Option<String>,
    /// Length of the lease. It is the same for all nodes of a fleet.
    pub lease: Duration,
    /// Version of the program.
    pub version: String,
    /// Addresses at which the node's API is reached.
    pub addresses: Vec<String>,
    /// Labels of the node.
    pub labels: BTreeMap<String, String>,
    /// Sessions that the node may have at once.
    pub capacity: Option<u32>,
    /// Agents of which the node can start a session.
    pub agents: Vec<String>,
    /// True if the node's sessions end before its lease does, and it goes on with those of others.
    pub takes_over: bool,
    /// Layers of containment that the machine can do.
    pub layers: Vec<String>,
    /// Age from which on events of this node's sessions are removed from the fleet's log; `None` for never.
    pub log_max_age: Option<Duration>,
}

/// This node's membership in a fleet. A clone is the same.
#[derive(Clone, Debug)]
pub struct FleetMember(Arc<Membership>);

#[derive(derive_more::Debug)]
struct Membership {
    config: FleetConfig,
    times: LeaseTimes,
    incarnation: String,
    #[debug(skip)]
    client: Client,
    nodes: Bucket,
    sessions: Bucket,
    keys: Bucket,
    log: FleetLog,
    #[debug(skip)]
    snapshots: ObjectStore,
    tables: Mutex<Tables>,
    /// Number of changes of the sessions' rows that came in.
    changes: watch::Sender<u64>,
    /// Revision of the bucket of sessions up to which the watch has come.
    watched: watch::Sender<u64>,
    /// Time up to which this node's lease lasts, by its own count.
    deadline: watch::Sender<Option<BootTime>>,
    /// Wakes the beats.
    beat: Notify,
    /// Set once another program has this node's name.
    replaced: watch::Sender<bool>,
    /// Work of the membership; `None` once the node has left.
    tasks: Mutex<Option<JoinSet<()>>>,
}

#[derive(Debug)]
struct Tables {
    lease: Lease,
    /// Revision of this node's own row.
    revision: u64,
    sessions_now: u32,
    /// Events that the log does not have yet.
    backlog: u64,
    draining: bool,
    nodes: NodeTable,
    claims: RecentClaims,
    sessions: SessionTable,
    /// Sessions that are being started here, with the number of calls that do.
    starting: HashMap<SessionId, u32>,
    /// Sessions that are being given up.
    releasing: HashSet<SessionId>,
    /// Sessions that are here no longer, and whose rows are there still.
    forgotten: HashSet<SessionId>,
}

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

/// Session of a dead node that is to go on here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionToTake {
    /// The session.
    pub session: SessionId,
    /// Node that had it.
    pub from: NodeName,
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

/// Session that is being given up: as long as this lives, a claim of it waits.
#[derive(Debug)]
struct ReleaseGuard<'a> {
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
    /// Joins the fleet: connects, sends the first beat, and reads who is there. Returns once all of that is done.
    ///
    /// # Errors
    /// No server answers, it does not do JetStream, or the name is taken.
    pub async fn join(config: FleetConfig) -> Result<Self, JoinError> {
        let (client, context) = connect(&config.engine, &config.node).await?;
        let nodes = Bucket::open(&context, "nodes").await?;
        let sessions = Bucket::open(&context, "sessions").await?;
        let keys = Bucket::open(&context, "keys").await?;
        let incarnation = uuid::Uuid::now_v7().to_string();
        let log = FleetLog::open(&context, format!("{}.{incarnation}", config.node)).await?;
        let snapshots = open_snapshots(&context).await?;
        let times = LeaseTimes::of(config.lease);
        let member = Self(Arc::new(Membership {
            times,
            incarnation,
            client,
            nodes,
            sessions,
            keys,
            log,
            snapshots,
            tables: Mutex::new(Tables {
                lease: Lease::new(times),
                revision: 0,
                sessions_now: 0,
                backlog: 0,
                draining: false,
                nodes: NodeTable::new(times),
                claims: RecentClaims::default(),
                sessions: SessionTable::default(),
                starting: HashMap::new(),
                releasing: HashSet::new(),
                forgotten: HashSet::new(),
            }),
            changes: watch::Sender::new(0),
            watched: watch::Sender::new(0),
            deadline: watch::Sender::new(None),
            beat: Notify::new(),
            replaced: watch::Sender::new(false),
            tasks: Mutex::new(Some(JoinSet::new())),
            config,
        }));
        member.take_name().await?;
        member.spawn(member.clone().send_beats());
        let (nodes_read, nodes_done) = oneshot::channel();
        let (sessions_read, sessions_done) = oneshot::channel();
        member.spawn(member.clone().watch_nodes(nodes_read));
        member.spawn(member.clone().watch_sessions(sessions_read));
        let both = async { (nodes_done.await, sessions_done.await) };
        if let Some(most) = member.0.config.log_max_age {
            member.spawn(retention::run(member.clone(), most));
        }
        let read = timeout(FIRST_READ, both).await;
        if !matches!(read, Ok((Ok(()), Ok(())))) {
            member.leave().await;
            let reason = std::io::Error::other(format!("no whole answer within {FIRST_READ:?}"));
            return Err(EngineError::new("read", "the buckets of nodes and sessions", reason).into());
        }
        Ok(member)
    }

    /// Answers requests of other nodes from now on, until another program has this node's name.
    ///
    /// # Errors
    /// The engine's.
    pub async fn serve(&self, handler: ExchangeHandler) -> Result<(), EngineError> {
        let subject = request_subject(&self.0.config.node);
        let requests = self.0.client.subscribe(subject.clone()).await;
        let requests = requests.map_err(|error| EngineError::new("subscribe to", subject, error))?;
        // An answer on the same connection: the server has read the subscription before.
        self.0.sessions.last_revision().await?;
        let replaced = self.0.replaced.subscribe();
        self.spawn(exchange::serve(self.0.client.clone(), requests, handler, replaced));
        Ok(())
    }

    /// Leaves the fleet: the others know at once that this node is gone. Its sessions' rows stay.
    pub async fn leave(&self) {
        let Some(mut tasks) = lock(&self.0.tasks).take() else { return };
        tasks.shutdown().await;
        let revision = self.tables().revision;
        if let Err(error) = self.0.nodes.remove(self.name().as_str(), revision).await {
            tracing::warn!(error = %chain(&error), "failed to leave the fleet: the others note it when the lease is over");
        }
    }

    /// Returns true once this node has left.
    pub fn has_left(&self) -> bool {
        lock(&self.0.tasks).is_none()
    }

    /// Name of this node.
    pub fn name(&self) -> &NodeName {
        &self.0.config.node
    }

    /// Times of the fleet's leases.
    pub fn times(&self) -> LeaseTimes {
        self.0.times
    }

    /// Returns true while this node's lease is held: nobody else may take its sessions.
    pub fn is_lease_held(&self) -> bool {
        !*self.0.replaced.borrow() && self.tables().lease.is_held(BootTime::now())
    }

    /// Returns the time since the last beat of this node that was acknowledged was sent.
    pub fn lease_age(&self) -> Option<Duration> {
        self.tables().lease.age(BootTime::now())
    }

    /// Returns all nodes, by name, as far as this one knows.
    pub fn nodes(&self) -> Vec<FleetNode> {
        let nodes = self.tables().nodes.nodes(BootTime::now());
        nodes.into_iter().map(|node| self.marked(node)).collect()
    }

    /// Returns what this node knows of one.
    pub fn node(&self, node: &NodeName) -> Option<FleetNode> {
        self.tables().nodes.node(node, BootTime::now()).map(|node| self.marked(node))
    }

    fn marked(&self, node: FleetNode) -> FleetNode {
        FleetNode { is_self: node.record.node == *self.name(), ..node }
    }

    /// Returns the other nodes that are alive, and the names of those that are silent.
    pub fn others(&self) -> (Vec<NodeName>, Vec<NodeName>) {
        let others = self.nodes().into_iter().filter(|node| !node.is_self && node.presence != NodePresence::Left);
        let (alive, silent): (Vec<_>, Vec<_>) = others.partition(|node| node.presence == NodePresence::Alive);
        let names = |nodes: Vec<FleetNode>| nodes.into_iter().map(|node| node.record.node).collect();
        (names(alive), names(silent))
    }

    /// Chooses a node for a start. `excluded` have refused it.
    ///
    /// # Errors
    /// Says of each node why it is not the one.
    pub fn place(&self, request: &PlacementRequest, excluded: &[NodeName]) -> Result<NodeName, PlacementError> {
        placement::choose(&self.placeable_nodes(), request, excluded)
    }

    /// Returns all nodes with the load that they have by now: that of the last beat, and what was claimed since.
    fn placeable_nodes(&self) -> Vec<FleetNode> {
        let mut nodes = self.nodes();
        let tables = self.tables();
        for FleetNode { record, .. } in &mut nodes {
            record.sessions = record.sessions.saturating_add(tables.claims.of(&record.node));
        }
        nodes
    }

    /// Returns the owner of a session, as far as this node knows.
    pub fn owner(&self, session: &SessionId) -> Option<OwnedSession> {
        self.tables().sessions.owner(session)
    }

    /// Returns the owner of a session as the engine's leader has it.
    ///
    /// # Errors
    /// The engine's.
    pub async fn owner_now(&self, session: &SessionId) -> Result<Option<OwnedSession>, EngineError> {
        let row = self.0.sessions.read(&session_token(session)).await?;
        Ok(row.and_then(|row| self.observe_session(session, &row, true)))
    }

    /// Returns the sessions whose id begins with this text, `most` at most.
    pub fn sessions_beginning_with(&self, text: &str, most: usize) -> Vec<OwnedSession> {
        self.tables().sessions.beginning_with(text, most)
    }

    /// Returns all sessions of the fleet, by id.
    pub fn sessions(&self) -> Vec<OwnedSession> {
        self.tables().sessions.sessions()
    }

    /// Returns the sessions of this node, by id.
    pub(crate) fn own_sessions(&self) -> Vec<SessionId> {
        let own = self.tables().sessions.of_node(self.name()).into_iter();
        own.map(|owned| owned.session).collect()
    }

    /// Follows changes of who has which session.
    pub fn session_changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// Follows the time up to which this node's lease lasts.
    pub fn lease_deadline(&self) -> watch::Receiver<Option<BootTime>> {
        self.0.deadline.subscribe()
    }

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
                    found.here.push(SessionToTake { session, from: record.node, resume });
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
        loop {
            let owned = self.owner_now(session).await?;
            let owned = owned.filter(|owned| owned.record.node == *self.name() && owned.record.epoch == epoch);
            let Some(owned) = owned else { return Ok(()) };
            let before = owned.record.snapshot.clone();
            let record = OwnershipRecord { snapshot: Some(object.to_owned()), ..owned.record };
            let written =
                self.0.sessions.write(&session_token(session), json(&record), owned.revision, Retention::Keep).await;
            match written {
                Ok(revision) => {
                    self.note(session, revision, Some(record), true);
                    if let Some(before) = before.filter(|before| before != object)
                        && let Err(error) = self.0.snapshots.delete(&before).await
                    {
                        tracing::debug!(%error, before, "an old snapshot stays");
                    }
                    return Ok(());
                }
                Err(CompareAndSetError::Changed) => {}
                Err(CompareAndSetError::Engine(error)) => return Err(error),
            }
        }
    }

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
    pub async fn claim_start(&self, session: &SessionId, user: Option<&str>) -> Result<SessionClaim, ClaimError> {
        self.claim_start_as(session, &of_user(user), &BTreeMap::new()).await
    }

    /// Claims a session that is about to start like [`FleetMember::claim_start`], with more that is known of it.
    ///
    /// # Errors
    /// As for [`FleetMember::claim`]; nothing is claimed then.
    pub async fn claim_start_as(
        &self,
        session: &SessionId,
        facts: &SessionFacts,
        labels: &BTreeMap<String, String>,
    ) -> Result<SessionClaim, ClaimError> {
        let claim = self.claim_as(session, facts, labels).await?;
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

    /// Claims a session for this node. One that it has already is its own.
    ///
    /// # Errors
    /// Another node has it, this node's lease is over, or the engine does not answer.
    pub async fn claim(&self, session: &SessionId, user: Option<&str>) -> Result<SessionClaim, ClaimError> {
        self.claim_as(session, &of_user(user), &BTreeMap::new()).await
    }

    /// Claims a session like [`FleetMember::claim`]. What is known of it counts where nobody had it.
    ///
    /// # Errors
    /// As for [`FleetMember::claim`].
    pub async fn claim_as(
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
        let mut record = OwnershipRecord {
            node: self.name().clone(),
            incarnation: self.0.incarnation.clone(),
            epoch: 1,
            facts: facts.clone(),
            labels: labels.clone(),
            snapshot: None,
            kill: None,
            is_deleted: false,
        };
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
            if owned.record.incarnation == self.0.incarnation && !owned.record.is_deleted {
                return Ok(SessionClaim { epoch: owned.record.epoch, is_new: false, revision: owned.revision });
            }
            // This node had it before its program was started anew, or has begun to delete it.
            let snapshot = owned.record.snapshot.filter(|_| !owned.record.is_deleted);
            let incarnation = self.0.incarnation.clone();
            record = OwnershipRecord { incarnation, snapshot, is_deleted: false, ..owned.record };
            match self.0.sessions.write(&token, json(&record), owned.revision, Retention::Keep).await {
                Ok(revision) => {
                    self.note(session, revision, Some(record.clone()), true);
                    return Ok(SessionClaim { epoch: record.epoch, is_new: false, revision });
                }
                Err(CompareAndSetError::Changed) => {}
                Err(CompareAndSetError::Engine(error)) => return Err(error.into()),
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
        loop {
            let own = self.owner_now(session).await?.filter(|owned| owned.record.node == *self.name());
            let Some(owned) = own.filter(|owned| !owned.record.is_deleted) else { return Ok(()) };
            let record = OwnershipRecord { is_deleted: true, ..owned.record };
            let written =
                self.0.sessions.write(&session_token(session), json(&record), owned.revision, Retention::Keep).await;
            match written {
                Ok(revision) => {
                    self.note(session, revision, Some(record), true);
                    return Ok(());
                }
                Err(CompareAndSetError::Changed) => {}
                Err(CompareAndSetError::Engine(error)) => return Err(error),
            }
        }
    }

    /// Ends a deletion that an earlier run of this node has announced, if nobody has begun anew with the id.
    async fn finish_deletion(&self, session: &SessionId) -> Result<(), EngineError> {
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
        while let Some(owned) = self.remove_contents(session).await? {
            let record = OwnershipRecord { snapshot: None, kill: None, is_deleted: false, ..owned.record };
            let written =
                self.0.sessions.write(&session_token(session), json(&record), owned.revision, Retention::Keep).await;
            match written {
                Ok(revision) => {
                    self.note(session, revision, Some(record), true);
                    return Ok(());
                }
                Err(CompareAndSetError::Changed) => {}
                Err(CompareAndSetError::Engine(error)) => return Err(error),
            }
        }
        Ok(())
    }

    /// Removes the events and the conversation of a session of this node. Returns its row; `None` where it is not this node's.
    async fn remove_contents(&self, session: &SessionId) -> Result<Option<OwnedSession>, EngineError> {
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
    fn begin_release<'a>(&'a self, session: &'a SessionId) -> Option<ReleaseGuard<'a>> {
        let begun = self.tables().releasing.insert(session.clone());
        begun.then_some(ReleaseGuard { member: self, session })
    }

    async fn remove_snapshot(&self, object: &str) -> Result<(), EngineError> {
        match self.0.snapshots.delete(object).await {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == object_store::DeleteErrorKind::NotFound => Ok(()),
            Err(error) => Err(EngineError::new("delete", format!("the snapshot {object}"), error)),
        }
    }

    async fn remove_row(&self, session: &SessionId) -> Result<(), EngineError> {
        let token = session_token(session);
        loop {
            let Some(owned) = self.owner_now(session).await? else { return Ok(()) };
            if owned.record.node != *self.name() {
                return Ok(());
            }
            match self.0.sessions.remove(&token, owned.revision).await {
                Ok(()) => {
                    self.note(session, owned.revision + 1, None, true);
                    return self.release_key(&owned.record).await;
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
            match self.claim_as(session, facts, &BTreeMap::new()).await {
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
    async fn change_facts(&self, session: &SessionId, facts: &SessionFacts) -> Result<(), EngineError> {
        loop {
            let own = self.owner_now(session).await?.filter(|owned| owned.record.node == *self.name());
            let Some(owned) = own else { return Ok(()) };
            let record = OwnershipRecord { facts: facts.or(&owned.record.facts), ..owned.record };
            let written =
                self.0.sessions.write(&session_token(session), json(&record), owned.revision, Retention::Keep).await;
            match written {
                Ok(revision) => {
                    self.note(session, revision, Some(record), true);
                    return Ok(());
                }
                Err(CompareAndSetError::Changed) => {}
                Err(CompareAndSetError::Engine(error)) => return Err(error),
            }
        }
    }

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
    async fn begin_key_anew(&self, key: &str, node: &NodeName) -> Result<NodeName, EngineError> {
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

    /// Lets another node begin with the key of a session that is gone, unless another session has it.
    async fn release_key(&self, gone: &OwnershipRecord) -> Result<(), EngineError> {
        let key = gone.facts.key.as_deref().filter(|key| self.session_with_key(key).is_none());
        let Some(name) = key.map(|key| format!("begun-{key}")) else { return Ok(()) };
        let Some(row) = self.0.keys.read(&name).await?.filter(|row| row.value.is_some()) else { return Ok(()) };
        match self.0.keys.remove(&name, row.revision).await {
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
    /// keys. Returns the sessions. Without effect on one that is there, or back.
    ///
    /// # Errors
    /// The engine's; also for a node that is alive by the engine's leader.
    pub async fn forget_node(&self, node: &NodeName) -> Result<Vec<SessionId>, EngineError> {
        let row = self.0.nodes.read(node.as_str()).await?;
        if row.is_some_and(|row| row.value.is_some()) {
            let reason = std::io::Error::other("its lease is not over: stop it first");
            return Err(EngineError::new("forget", format!("node {node}"), reason));
        }
        let mut forgotten = Vec::new();
        let sessions = self.tables().sessions.of_node(node);
        for OwnedSession { session, .. } in sessions {
            // Who takes it over meanwhile has it.
            let Some(owned) = self.owner_now(&session).await?.filter(|owned| owned.record.node == *node) else {
                continue;
            };
            match self.0.sessions.remove(&session_token(&session), owned.revision).await {
                Ok(()) => self.note(&session, owned.revision + 1, None, true),
                Err(CompareAndSetError::Changed) => continue,
                Err(CompareAndSetError::Engine(error)) => return Err(error),
            }
            self.0.log.remove(&session).await?;
            if let Some(object) = &owned.record.snapshot {
                self.remove_snapshot(object).await?;
            }
            self.release_key(&owned.record).await?;
            forgotten.push(session);
        }
        self.tables().nodes.forget(node);
        Ok(forgotten)
    }

    async fn remember<T>(&self, key: &str, value: &T, retention: Retention) -> Result<T, EngineError>
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
        loop {
            let Some(owned) = self.owner_now(session).await? else { return Ok(false) };
            let record = OwnershipRecord { kill: kill.clone(), ..owned.record };
            let written =
                self.0.sessions.write(&session_token(session), json(&record), owned.revision, Retention::Keep).await;
            match written {
                Ok(revision) => {
                    self.note(session, revision, Some(record), true);
                    return Ok(true);
                }
                Err(CompareAndSetError::Changed) => {}
                Err(CompareAndSetError::Engine(error)) => return Err(error),
            }
        }
    }

    /// Returns the sessions of this node whose kill was asked for while it was silent.
    pub fn remembered_kills(&self) -> Vec<(SessionId, RememberedKill)> {
        let own = self.tables().sessions.of_node(self.name());
        own.into_iter().filter_map(|owned| Some((owned.session, owned.record.kill?))).collect()
    }

    /// Sends a request to another node.
    ///
    /// # Errors
    /// Nobody listens there, no answer came in time, or the request is too long.
    pub async fn send(&self, node: &NodeName, request: &ExchangeRequest) -> Result<ReceivedAnswer, ExchangeError> {
        exchange::send(&self.0.client, node, request).await
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
        loop {
            let owned = self.owner_now(session).await?.filter(|owned| owned.record.node == *self.name());
            let Some(owned) = owned else {
                let reason = std::io::Error::other("it is not this node's");
                return Err(EngineError::new("hand over", format!("session {session}"), reason));
            };
            let record = OwnershipRecord {
                node: to.clone(),
                incarnation: String::new(),
                epoch: owned.record.epoch + 1,
                snapshot: Some(snapshot.to_owned()),
                ..owned.record
            };
            let written =
                self.0.sessions.write(&session_token(session), json(&record), owned.revision, Retention::Keep).await;
            match written {
                Ok(revision) => {
                    let epoch = record.epoch;
                    self.note(session, revision, Some(record), false);
                    // It is resumed there in a moment, and the next one is placed before that node's beat tells.
                    self.tables().claims.claimed(to, BootTime::now());
                    return Ok(epoch);
                }
                Err(CompareAndSetError::Changed) => {}
                Err(CompareAndSetError::Engine(error)) => return Err(error),
            }
        }
    }

    /// The fleet's log.
    pub fn log(&self) -> &FleetLog {
        &self.0.log
    }

    /// Sets the number of sessions that the next beat tells, and that of the events that the log does not have.
    pub fn set_load(&self, sessions: u32, backlog: u64) {
        let mut tables = self.tables();
        tables.backlog = backlog;
        if tables.sessions_now != sessions {
            tables.sessions_now = sessions;
            self.0.beat.notify_one();
        }
    }

    /// Takes no more sessions from now on, or takes some again.
    pub fn set_draining(&self, draining: bool) {
        self.tables().draining = draining;
        self.0.beat.notify_one();
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        lock(&self.0.tables)
    }

    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(tasks) = lock(&self.0.tasks).as_mut() {
            tasks.spawn(work);
        }
    }

    fn record(&self) -> NodeRecord {
        let FleetConfig { node, version, addresses, labels, capacity, agents, takes_over, layers, .. } = &self.0.config;
        let tables = self.tables();
        NodeRecord {
            node: node.clone(),
            incarnation: self.0.incarnation.clone(),
            identity: self.0.config.identity.clone(),
            version: version.clone(),
            addresses: addresses.clone(),
            labels: labels.clone(),
            capacity: *capacity,
            sessions: tables.sessions_now,
            agents: agents.clone(),
            takes_over: *takes_over,
            draining: tables.draining,
            layers: layers.clone(),
            backlog: tables.backlog,
        }
    }

    /// Sends one beat, with the revision that is expected.
    async fn send_beat(&self, expected: u64) -> Result<u64, CompareAndSetError> {
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
    async fn take_name(&self) -> Result<(), JoinError> {
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

    async fn send_beats(self) {
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
    async fn find_own_row(&self) -> Option<()> {
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

    async fn watch_nodes(self, read: oneshot::Sender<()>) {
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
            if matches!(change, NodeChange::Beat(_)) {
                tables.claims.beat(&node, now);
            }
            tables.nodes.observe(&node, entry.revision, change, now);
        };
        self.follow(&self.0.nodes, read, observe).await;
    }

    async fn watch_sessions(self, read: oneshot::Sender<()>) {
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
    async fn follow(&self, bucket: &Bucket, read: oneshot::Sender<()>, observe: impl Fn(&Self, &Entry)) {
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
    async fn follow_watch(
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
    fn observe_session(&self, session: &SessionId, row: &StoredRow, is_news: bool) -> Option<OwnedSession> {
        let record: Option<OwnershipRecord> = row.value.as_deref().and_then(parse);
        if row.value.is_some() && record.is_none() {
            tracing::warn!(%session, "the row of a session is none of this version");
            return None;
        }
        self.note(session, row.revision, record.clone(), is_news);
        Some(OwnedSession { session: session.clone(), record: record?, revision: row.revision })
    }

    fn note(&self, session: &SessionId, revision: u64, record: Option<OwnershipRecord>, is_news: bool) {
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

fn of_user(user: Option<&str>) -> SessionFacts {
    SessionFacts { user: user.map(str::to_owned), ..SessionFacts::default() }
}

/// What a session asks of another node that is to go on with it.
fn elsewhere(OwnershipRecord { facts, labels, .. }: &OwnershipRecord, is_take_over: bool) -> PlacementRequest {
    PlacementRequest {
        agent: facts.agent.clone(),
        node: None,
        labels: labels.clone(),
        needs_room: facts.phase == SessionPhase::Running,
        is_take_over,
    }
}

/// Opens the store of snapshots, or creates it.
async fn open_snapshots(context: &Context) -> Result<ObjectStore, EngineError> {
    let mut replicas = REPLICAS;
    loop {
        if let Ok(store) = context.get_object_store(SNAPSHOTS).await {
            return Ok(store);
        }
        let config = object_store::Config {
            bucket: SNAPSHOTS.to_owned(),
            num_replicas: replicas,
            ..object_store::Config::default()
        };
        match context.create_object_store(config).await {
            Ok(store) => return Ok(store),
            Err(error) if replicas > 1 && has_too_few_servers(&error) => replicas -= 1,
            // Another node may have made it meanwhile.
            Err(error) => match context.get_object_store(SNAPSHOTS).await {
                Ok(store) => return Ok(store),
                Err(_) => return Err(EngineError::new("create the object store", SNAPSHOTS, error)),
            },
        }
    }
}

/// Locks what outlives a panic of its holder.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn json(value: &impl serde::Serialize) -> Vec<u8> {
    // Records of plain fields: there is nothing that JSON cannot say.
    serde_json::to_vec(value).unwrap_or_default()
}

fn parse<T: serde::de::DeserializeOwned>(value: &[u8]) -> Option<T> {
    serde_json::from_slice(value).ok()
}

fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    ipc_protocol::ErrorChain(error).to_string()
}
