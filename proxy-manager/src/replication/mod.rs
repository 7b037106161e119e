//! Replication of sessions' events to a fleet: what this manager asks of the fleet, and what the fleet tells it.
//!
//! A *fleet* is several managers, on machines of their own, with one replicated log. Nothing here knows what that log is. The
//! fleet's side implements [`Replicator`] and is given to [`ManagerBuilder::replication`](crate::ManagerBuilder::replication); it
//! then reads, ships and acknowledges events with the calls of [`ProxyManager`](crate::ProxyManager) that are named here.
//!
//! # Acknowledged events
//! A session's events are committed to the local event log first. The manager then calls [`Replicator::committed`]. The fleet reads
//! them with [`ProxyManager::read_unacknowledged`](crate::ProxyManager::read_unacknowledged), ships them, and calls
//! [`ProxyManager::acknowledge`](crate::ProxyManager::acknowledge). Only then do readers see them (subscriptions, pages, the feed of
//! all sessions, exports), and only then are callers answered whose answer waits for a commit (prompts, appended events).
//! The feed of all sessions keeps its order: it waits for the oldest event that is not acknowledged.
//!
//! # Ownership
//! One manager of the fleet owns a session, under an [`Epoch`] that grows with each change of the owner.
//!
//! | step | call |
//! |---|---|
//! | a session starts or is resumed here | the manager calls [`Replicator::claim`] before anything of it is started or written |
//! | the lease is renewed | [`ProxyManager::renew_lease`](crate::ProxyManager::renew_lease): the fork server ends all sessions by itself when it passes |
//! | ownership was lost | [`ProxyManager::fence`](crate::ProxyManager::fence): nothing more is offered or shown, the processes end with a receipt, the tail that was never acknowledged is put aside, the session is forgotten here |
//! | after each turn | the manager calls [`Replicator::turn_ended`]; [`ProxyManager::export_session`](crate::ProxyManager::export_session) is what another machine needs |
//! | a session of another machine is to go on here | [`ProxyManager::take_over`](crate::ProxyManager::take_over), then [`ProxyManager::resume_session`](crate::ProxyManager::resume_session) |
//! | a node has restarted | [`ProxyManager::replicated_streams`](crate::ProxyManager::replicated_streams): those that it no longer owns are to be fenced, the others shipped |
//!
//! # Limits
//! * Prompts that wait in the queue of a session are in its stream, and go on waiting at its next owner, as far as
//!   [`TakeOver::recent_events`] has them. One that was begun and that nobody saw begin is begun again there. Those that wait are lost if the
//!   next owner is started again before it has begun with them.
//! * A conversation moves only from a home of the session's own. Secrets move nowhere: a resume that needs some is given them again.
//! * Streams without a session are not claimed: they stay local, until a session goes on with one.
//! * A fork server of an earlier release, adopted with its sessions, knows no lease.

pub(crate) mod conversation;
mod export;
mod state;

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use ipc_protocol::{Envelope, Receipt, SessionId};
use serde::{Deserialize, Serialize};

pub use self::export::{ConversationFile, SessionExport};
pub(crate) use self::state::{FleetChange, ReplicationState};

/// Number of a session's ownership: 1 for its first owner, one more for each later one. 0 stands for a session that is not
/// replicated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Result of a [`Replicator::claim`].
pub type ClaimFuture<'a> = Pin<Box<dyn Future<Output = Result<Epoch, ClaimError>> + Send + 'a>>;

/// Result of a [`Replicator::forgetting`].
pub type ForgetFuture<'a> = Pin<Box<dyn Future<Output = Result<(), ClaimError>> + Send + 'a>>;

/// The fleet, as a manager sees it. Its calls come from the manager's tasks and from the thread that writes the event log: those
/// without a future must not block, and should do no more than mark a session and wake a task. They may come while the manager is
/// being built, before the fleet has it.
pub trait Replicator: Send + Sync + fmt::Debug {
    /// Claims a session for this manager, before anything of it is started or written. Returns the epoch under which its events
    /// are to be shipped from now on; for a resume, the one that it has, if this manager owns it still.
    ///
    /// The start or resume fails with the error. It waits no longer than its own deadline; a claim whose future was dropped may
    /// have been made.
    fn claim<'a>(&'a self, session: &'a SessionId, purpose: ClaimPurpose) -> ClaimFuture<'a>;

    /// Notes that a session is about to be deleted here, before anything of it is: nobody may go on with it from what the fleet has of it,
    /// also if this manager dies before it says [`Replicator::forgotten`].
    ///
    /// The deletion fails with the error.
    fn forgetting<'a>(&'a self, session: &'a SessionId) -> ForgetFuture<'a> {
        let _ = session;
        Box::pin(std::future::ready(Ok(())))
    }

    /// Notes that the local log has this session's events up to offset `last`, and that some of them may not be acknowledged.
    /// Called once for each commit, in order within a session.
    fn committed(&self, session: &SessionId, last: u64);

    /// Notes that a turn has ended: this is the time for [`ProxyManager::export_session`](crate::ProxyManager::export_session).
    fn turn_ended(&self, session: &SessionId);

    /// Notes that a session that was claimed is known here no longer: its start failed, or it was deleted.
    fn forgotten(&self, session: &SessionId);
}

/// Reason for a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimPurpose {
    /// A new session starts: nobody may have one of that id.
    Start,
    /// A suspended session of this manager is resumed.
    Resume,
}

/// Refusal of a claim.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// Another manager of the fleet has a session of that id.
    #[error("{owner} has it")]
    Owned {
        /// Name of the manager that has it, and since when it is silent, if it is.
        owner: String,
    },
    /// The fleet cannot be asked, or this manager's own lease is over.
    #[error("the fleet cannot be asked: {reason}")]
    Unavailable {
        /// What was tried, and the error.
        reason: String,
    },
}

/// Replication, for [`ManagerBuilder::replication`](crate::ManagerBuilder::replication).
#[derive(Clone, Debug)]
pub struct Replication {
    /// The fleet.
    pub replicator: Arc<dyn Replicator>,
    /// Time for which the fleet may be unavailable ([`ProxyManager::set_fleet_available`](crate::ProxyManager::set_fleet_available))
    /// until sessions are degraded.
    pub degrade_after: Duration,
    /// What becomes of a session then.
    pub on_unavailable: UnavailablePolicy,
    /// Most bytes of an exported conversation, see [`ProxyManager::export_session`](crate::ProxyManager::export_session).
    pub max_conversation_bytes: u64,
}

impl Replication {
    /// Replication by `replicator`: sessions are degraded after 10 seconds and held; conversations have 64 MiB at the most.
    pub fn new(replicator: Arc<dyn Replicator>) -> Self {
        Self {
            replicator,
            degrade_after: Duration::from_secs(10),
            on_unavailable: UnavailablePolicy::default(),
            max_conversation_bytes: 64 * 1024 * 1024,
        }
    }
}

/// Policy for sessions while the fleet is unavailable.
///
/// Either way the session's [`SessionInfo::degraded`](crate::sessions::SessionInfo::degraded) says why, and its stream has a
/// `session:degraded`, which readers see with everything else once it is acknowledged, and a `session:status` of `recovered` after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnavailablePolicy {
    /// The session goes on, unseen. Prompts wait for their answer until their deadline. The agent is held up once 2 MiB of its
    /// events are not acknowledged.
    #[default]
    Hold,
    /// The session ends as failed; one that is suspended stays so.
    End,
}

/// A stream of a session that is replicated, as the local log has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicatedStream {
    /// The session.
    pub session: SessionId,
    /// Epoch of its last claim here.
    pub epoch: Epoch,
    /// Offset of the first event that the local log has; one more than `last` if it has none.
    pub first: u64,
    /// Offset of the last acknowledged event; 0 for none.
    pub acknowledged: u64,
    /// Offset of the last event; 0 for none.
    pub last: u64,
}

/// Consecutive events of a session that are not acknowledged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnacknowledgedEvents {
    /// Epoch of the session's last claim here.
    pub epoch: Epoch,
    /// Offset of the first event; 0 where there is none.
    pub first: u64,
    /// Offset of the last event; 0 where there is none.
    pub last: u64,
    /// Public JSON envelopes, each with its newline. There may be fewer lines than offsets: a `session:gap` covers several.
    pub lines: Vec<u8>,
    /// Number of lines.
    pub events: usize,
}

/// A session that was fenced.
#[derive(Clone, Debug)]
pub struct FencedSession {
    /// The session.
    pub session: SessionId,
    /// Receipt of its processes; `None` where it had none.
    pub receipt: Option<Box<Receipt>>,
    /// Events that were put aside, never shown to a reader.
    pub put_aside: u64,
}

/// A session of another machine that is to go on here.
#[derive(Clone, Debug)]
pub struct TakeOver {
    /// What its last owner exported.
    pub export: SessionExport,
    /// Epoch under which this manager owns it.
    pub epoch: Epoch,
    /// Offset of the last event that the fleet's log has of it. Its events go on after that.
    pub tail: u64,
    /// True if nobody else had the session since this manager had it: events that the local log has beyond `tail` are retained,
    /// and are to be shipped. Else they are put aside.
    pub keeps_local_tail: bool,
    /// Newest events of the fleet's log up to `tail`, in order, as far back as they were read: prompts among them that wait in the
    /// session's queue go on waiting here.
    pub recent_events: Vec<Envelope>,
}

/// Instant up to which this manager's lease lasts, as time since the machine's boot, suspends included (`CLOCK_BOOTTIME`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeaseDeadline(pub Duration);

impl LeaseDeadline {
    /// Time since boot now, on the clock of leases. To be read before the renewal is sent, and `lasts` added to it.
    pub fn now() -> Duration {
        registry::boot_time()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::{Mutex, MutexGuard};

    use super::*;

    /// A fleet that notes what it is told.
    #[derive(Debug, Default)]
    pub(crate) struct PlayedFleet {
        committed: Mutex<Vec<u64>>,
        turns: Mutex<u32>,
    }

    impl PlayedFleet {
        pub(crate) fn state() -> ReplicationState {
            ReplicationState::new(Replication::new(Arc::new(Self::default())))
        }

        /// Offsets of commits that it was told of.
        pub(crate) fn committed(&self) -> MutexGuard<'_, Vec<u64>> {
            self.committed.lock().expect("not poisoned")
        }

        pub(crate) fn turns(&self) -> u32 {
            *self.turns.lock().expect("not poisoned")
        }
    }

    impl Replicator for PlayedFleet {
        fn claim<'a>(&'a self, _: &'a SessionId, _: ClaimPurpose) -> ClaimFuture<'a> {
            Box::pin(std::future::ready(Ok(Epoch(1))))
        }

        fn committed(&self, _: &SessionId, last: u64) {
            self.committed().push(last);
        }

        fn turn_ended(&self, _: &SessionId) {
            *self.turns.lock().expect("not poisoned") += 1;
        }

        fn forgotten(&self, _: &SessionId) {}
    }
}
