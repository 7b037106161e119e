//! Warm sessions: agents that are started ahead, so that a start has one at once.
//!
//! ```text
//!   missing: next_start --> begin (StartKind::Warm) --> waits in the pool --+-- a start that it serves: claim_warm --> the caller's
//!      ^                     | fails: a pause, doubled each time            +-- too old, or the configuration changed: ended, forgotten
//!      +---------------------+                                              +-- a start lacks a place: make_room
//! ```

use std::{sync::Arc, time::Duration};

use ipc_protocol::{AgentSessionConfig, EndReason, KillOptions, SessionId};
use tokio::time::{Instant, sleep_until};

use super::{ManagerInner, ProxyManager, start::EndIfDropped, start::StartKind};
use crate::{
    blocking::blocking,
    error::{Error, Result, SessionBound},
    launch::{AgentDefaults, SessionLaunch},
    session::{ManagedSession, SessionCommand, WarmClaim},
    supervision::SlotClaim,
};

/// Wait where nothing is due.
const IDLE_WAIT: Duration = Duration::from_secs(3600);

/// Keeps the pool filled while the manager lives.
pub(super) fn start(inner: &Arc<ManagerInner>) {
    let pool = inner.warm_pool.clone();
    if !pool.has_targets() {
        return;
    }
    let inner = Arc::downgrade(inner);
    tokio::spawn(async move {
        let mut defaults = None;
        while let Some(inner) = inner.upgrade().filter(|inner| !inner.warm_pool.is_closed()) {
            ProxyManager { inner }.tend_warm_pool(&mut defaults).await;
            let due = pool.next_deadline().unwrap_or_else(|| Instant::now() + IDLE_WAIT);
            tokio::select! {
                () = pool.changed.notified() => {}
                () = sleep_until(due) => {}
            }
        }
    });
}

impl ProxyManager {
    /// Number of warm sessions that a start may have now ([`ManagerBuilder::warm`](crate::ManagerBuilder::warm)).
    pub fn warm_sessions(&self) -> usize {
        self.inner.warm_pool.len()
    }

    /// Ends warm sessions that are not to be handed out any more, and starts those that are missing, one at a time.
    async fn tend_warm_pool(&self, known: &mut Option<Arc<AgentDefaults>>) {
        let pool = &self.inner.warm_pool;
        loop {
            let (defaults, now) = (self.agent_defaults(), Instant::now());
            if known.as_ref().is_none_or(|known| !Arc::ptr_eq(known, &defaults)) {
                pool.forget_failures();
            }
            *known = Some(defaults.clone());
            for session in pool.take_expired(&defaults, now) {
                self.end_warm(&session).await;
            }
            let Some((target, config)) = pool.next_start(Instant::now()) else { return };
            let profile = config.profile.clone().unwrap_or_default();
            match self.start_warm(config).await {
                Ok(session) => {
                    tracing::info!(session = %session.id(), profile, "started a warm session");
                    pool.add(target, session.clone(), Instant::now());
                    let changed = pool.changed.clone();
                    tokio::spawn(async move {
                        session.wait_unclaimable().await;
                        changed.notify_one();
                    });
                }
                Err(Error::TooManySessions { .. }) => {
                    tracing::debug!(profile, "no place for a warm session");
                    pool.wait_for_place(Some(target), Instant::now());
                }
                Err(Error::ShutDown | Error::Draining) => return,
                Err(error) => {
                    let pause = pool.record_failure(target, Instant::now());
                    tracing::warn!(profile, error = %error.chain(), ?pause, "failed to start a warm session");
                }
            }
        }
    }

    async fn start_warm(&self, config: AgentSessionConfig) -> Result<Arc<ManagedSession>> {
        let _reserved = self.inner.session_table.reserve(&config.session_id)?;
        let started = Box::pin(self.begin(config, StartKind::Warm)).await?;
        Ok(started.session().clone())
    }

    /// Hands out a warm session that is what `launch` would start, from the configuration that its caller gave. `None` if there is none.
    pub(super) async fn claim_warm(
        &self,
        launch: &SessionLaunch,
        given: &AgentSessionConfig,
        defaults: &Arc<AgentDefaults>,
    ) -> Option<Arc<ManagedSession>> {
        let pool = &self.inner.warm_pool;
        while let Some(warm) = pool.take(|session| session.serves(&launch.attempt.config, defaults)) {
            let session = warm.session.clone();
            // A caller that goes away now has not got it, and nobody else shall.
            let abandoned = EndIfDropped(Some((&session, EndReason::Killed)));
            let claim = Box::new(WarmClaim::new(&session, launch, given, warm.ready_at.elapsed()));
            let claimed =
                session.call("claiming", Duration::ZERO, |reply| SessionCommand::Claim { claim, reply }).await;
            match claimed {
                Ok(()) => {
                    abandoned.disarm();
                    return Some(session);
                }
                Err(Error::TooManySessions { .. }) => {
                    // The start waits for a place of its user's, as any other.
                    abandoned.disarm();
                    pool.put_back(warm);
                    return None;
                }
                Err(error) => {
                    tracing::debug!(session = %session.id(), error = %error.chain(), "failed to claim a warm session");
                    // Somebody may have prompted it: then it is theirs.
                    if !session.is_warm() && session.ended().is_none() {
                        abandoned.disarm();
                    }
                }
            }
        }
        None
    }

    /// Ends a warm session if a start would wait for its place.
    pub(super) async fn make_room(&self, claim: &SlotClaim) {
        let obstacle = self.inner.admission.obstacle(claim);
        let fits = |session: &ManagedSession| match &obstacle {
            Some(SessionBound::Total) => true,
            Some(SessionBound::Agent(agent)) => session.metadata().agent == *agent,
            _ => false,
        };
        if obstacle.is_some()
            && let Some(warm) = self.inner.warm_pool.take(fits)
        {
            self.inner.warm_pool.wait_for_place(None, Instant::now());
            self.end_warm(&warm.session).await;
        }
    }

    /// Ends a session that nobody claimed, and forgets it. One that somebody has used, or ended, is left as it is.
    async fn end_warm(&self, session: &Arc<ManagedSession>) {
        if !session.is_warm() || (session.ended().is_some() && !session.is_suspended()) {
            return;
        }
        match session.kill(KillOptions::default()).await {
            Ok(receipt) => {
                tracing::info!(session = %session.id(), %receipt, "ended a warm session");
                self.inner.forget_warm(session).await;
            }
            // It stays listed, with its receipt.
            Err(error) => {
                tracing::warn!(session = %session.id(), error = %error.chain(), "failed to end a warm session");
            }
        }
    }
}

impl ManagerInner {
    /// Forgets a warm session that has ended, unless something of it survived.
    pub(super) async fn forget_warm(&self, session: &Arc<ManagedSession>) {
        let id = session.id();
        let Ok((_reserved, _)) = self.session_table.reserve_ended(id) else { return };
        if session.left_survivors() {
            return;
        }
        let forgotten = match session.wait_settled().await {
            Ok(()) => {
                self.session_table.delete(id);
                self.forget_files(id).await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = forgotten {
            tracing::warn!(session = %id, error = %error.chain(), "failed to forget a warm session");
        }
    }

    /// Removes home, records and events of a session.
    pub(super) async fn forget_files(&self, session: &SessionId) -> Result<()> {
        let (homes, records, id) = (self.homes.clone(), self.records.clone(), session.clone());
        let remove = move || homes.delete(&id).and_then(|_| records.remove(&id));
        blocking("removing a session's home", remove).await??;
        self.forget(session).await.map(drop)
    }
}
