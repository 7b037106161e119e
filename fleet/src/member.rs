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
        object_store::{self, ObjectStore},
    },
};
use ipc_protocol::SessionId;
use tokio::{
    sync::{Notify, oneshot, watch},
    task::JoinSet,
    time::timeout,
};

use crate::{
    bucket::{Bucket, REPLICAS, has_too_few_servers},
    clock::BootTime,
    connection::{EngineAddress, connect},
    error::{CompareAndSetError, EngineError, ExchangeError, JoinError},
    exchange::{self, ExchangeHandler, ExchangeRequest, ReceivedAnswer},
    lease::{Lease, LeaseTimes},
    log::FleetLog,
    names::{NodeName, request_subject, session_token},
    node_table::{FleetNode, NodePresence, NodeTable},
    placement::{self, PlacementError, PlacementRequest},
    recent_claims::RecentClaims,
    records::{NodeRecord, OwnershipRecord, SessionPhase},
    retention,
    session_table::{OwnedSession, SessionTable},
};

mod claims;
mod keys;
mod kills;
mod takeovers;
mod watching;

pub use self::{
    claims::{SessionClaim, StartGuard},
    takeovers::{SessionToTake, SessionsToTake},
};

/// Object store of what other nodes need to go on with sessions.
const SNAPSHOTS: &str = "snaps";
/// Time to read what the buckets have when a node joins.
const FIRST_READ: Duration = Duration::from_secs(10);
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
        let mut expected = self.tables().revision;
        while let Err(error) = self.0.nodes.remove(self.name().as_str(), expected).await {
            // A beat was on its way: its revision counts, which nobody has read.
            if matches!(error, CompareAndSetError::Changed) && self.find_own_row().await.is_some() {
                let known = std::mem::replace(&mut expected, self.tables().revision);
                if known != expected {
                    continue;
                }
            }
            tracing::warn!(error = %chain(&error), "failed to leave the fleet: the others note it when the lease is over");
            return;
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

    /// Sends a request to another node.
    ///
    /// # Errors
    /// Nobody listens there, no answer came in time, or the request is too long.
    pub async fn send(&self, node: &NodeName, request: &ExchangeRequest) -> Result<ReceivedAnswer, ExchangeError> {
        exchange::send(&self.0.client, node, request).await
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
