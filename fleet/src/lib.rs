//! A fleet of nodes on NATS JetStream: who is there, who has which session, and requests from one node to another.
//!
//! This is the one crate that knows the engine. The engine is three servers of NATS (one is enough to try it out); nothing here elects a leader
//! or replicates anything itself.
//!
//! | bucket or subject | has |
//! |---|---|
//! | KV `nodes` | a row for each node, with the lease as its time to live: labels, capacity, load, agents |
//! | KV `sessions` | a row for each session: its owner and epoch |
//! | KV `keys` | where the start with an `Idempotency-Key`, or the first one with a key, was sent |
//! | stream `EV1` | the events that owners shipped, a subject for each session |
//! | `node.NAME.cmd` | requests to a node ([`exchange`]) |
//!
//! Every change names the revision that it expects, and every read that decides something is the leader's. Times are counted by
//! `CLOCK_BOOTTIME`; no node believes another one's clock.

mod accounts;
mod bucket;
mod clock;
mod connection;
mod error;
pub mod exchange;
mod feed;
mod lease;
mod log;
mod member;
mod names;
mod node_table;
mod offset_search;
mod placement;
mod recent_claims;
mod records;
mod replicator;
mod retention;
mod session_table;
mod shipping;
mod shipping_queue;

pub use self::{
    accounts::{NodeKey, account_configuration},
    clock::BootTime,
    connection::EngineAddress,
    error::{ClaimError, CompareAndSetError, EngineError, ExchangeError, ForgetError, JoinError},
    feed::{FeedBatch, FleetFeed},
    lease::{LeaseTimes, SHORTEST_LEASE},
    log::{FleetLog, FleetLogReader},
    member::{FleetConfig, FleetMember, SessionClaim, SessionToTake, SessionsToTake, StartGuard},
    names::{InvalidNodeName, NodeName},
    node_table::{FleetNode, NodePresence},
    placement::{PlacementError, PlacementRequest},
    records::{NodeRecord, OwnershipRecord, RememberedKill, SessionFacts, SessionPhase, StartKeyRecord},
    replicator::FleetReplicator,
    session_table::OwnedSession,
    shipping::{EventBatch, LogTail, PublishOutcome, ShippingStep},
};
