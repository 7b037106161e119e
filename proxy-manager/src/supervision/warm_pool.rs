//! Warm sessions that wait for a start, and what is started next. No I/O: [`manager::warm`](crate::manager) starts and ends them.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use ipc_protocol::{AgentSessionConfig, SessionId};
use tokio::{sync::Notify, time::Instant};

use crate::{launch::AgentDefaults, session::ManagedSession};

/// Pause after the first failure to start a warm session; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// Pause where the bounds on sessions leave no place.
const PAUSE_FOR_PLACE: Duration = Duration::from_secs(5);

/// Sessions to keep warm.
#[derive(Clone, Debug)]
pub struct WarmTarget {
    /// Configuration of each, as a start would give it: with a profile, for example. Labels and the id are left out.
    pub config: AgentSessionConfig,
    /// Number of them.
    pub sessions: usize,
}

/// The warm sessions of a manager.
#[derive(Debug)]
pub(crate) struct WarmPool {
    max_age: Duration,
    state: Mutex<PoolState>,
    /// Notified when a session is to be started or ended.
    pub(crate) changed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct PoolState {
    is_closed: bool,
    targets: Vec<TargetState>,
}

#[derive(Debug)]
struct TargetState {
    target: WarmTarget,
    sessions: Vec<WarmSession>,
    failures: u32,
    /// Nothing is started before.
    retry_at: Option<Instant>,
}

/// A session that waits.
#[derive(Clone, Debug)]
pub(crate) struct WarmSession {
    pub(crate) session: Arc<ManagedSession>,
    /// Time at which its agent was ready.
    pub(crate) ready_at: Instant,
    target: usize,
}

impl WarmPool {
    pub(crate) fn new(targets: Vec<WarmTarget>, max_age: Duration) -> Self {
        let new = |target| TargetState { target, sessions: Vec::new(), failures: 0, retry_at: None };
        let targets = targets.into_iter().map(new).collect();
        Self { max_age, state: Mutex::new(PoolState { is_closed: false, targets }), changed: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn has_targets(&self) -> bool {
        !self.state().targets.is_empty()
    }

    /// Number of sessions that a start may have now.
    pub(crate) fn len(&self) -> usize {
        let state = self.state();
        state.targets.iter().flat_map(|target| &target.sessions).filter(|warm| warm.session.is_claimable()).count()
    }

    /// Hands nothing out from now on, and starts nothing.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        state.targets.iter_mut().for_each(|target| target.sessions.clear());
        drop(state);
        self.changed.notify_one();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state().is_closed
    }

    /// Adds a session that is ready.
    pub(crate) fn add(&self, target: usize, session: Arc<ManagedSession>, now: Instant) {
        let mut state = self.state();
        if !state.is_closed
            && let Some(state) = state.targets.get_mut(target)
        {
            (state.failures, state.retry_at) = (0, None);
            state.sessions.push(WarmSession { session, ready_at: now, target });
        }
    }

    /// Takes the oldest session that fits. Another one is started once it is claimed, or has ended: it may come back.
    pub(crate) fn take(&self, fits: impl Fn(&ManagedSession) -> bool) -> Option<WarmSession> {
        let mut state = self.state();
        let sessions = state.targets.iter_mut().flat_map(|target| {
            let at = target.sessions.iter().position(|warm| fits(&warm.session))?;
            Some((&mut target.sessions, at))
        });
        let (sessions, at) = sessions.min_by_key(|(sessions, at)| sessions[*at].ready_at)?;
        Some(sessions.remove(at))
    }

    /// Puts a session back that was not handed out.
    pub(crate) fn put_back(&self, warm: WarmSession) {
        let mut state = self.state();
        if !state.is_closed
            && let Some(target) = state.targets.get_mut(warm.target)
        {
            target.sessions.push(warm);
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Takes the sessions that are to end: too old, of an earlier configuration, or more than wanted. Those that have ended, or are
    /// claimed, are among them.
    pub(crate) fn take_expired(&self, defaults: &Arc<AgentDefaults>, now: Instant) -> Vec<Arc<ManagedSession>> {
        let mut expired = Vec::new();
        for target in &mut self.state().targets {
            target.sessions.retain(|warm| {
                let is_kept = warm.session.is_claimable()
                    && warm.session.is_current(defaults)
                    && now.saturating_duration_since(warm.ready_at) < self.max_age;
                if !is_kept {
                    expired.push(warm.session.clone());
                }
                is_kept
            });
            let wanted = target.target.sessions.min(target.sessions.len());
            expired.extend(target.sessions.drain(wanted..).map(|warm| warm.session));
        }
        expired
    }

    /// Begins anew after a change of the configuration: an earlier failure is no reason to wait.
    pub(crate) fn forget_failures(&self) {
        for target in &mut self.state().targets {
            (target.failures, target.retry_at) = (0, None);
        }
    }

    /// Returns the target that lacks a session which may be started now, with its configuration under a fresh id.
    pub(crate) fn next_start(&self, now: Instant) -> Option<(usize, AgentSessionConfig)> {
        let state = self.state();
        let is_due = |target: &TargetState| {
            target.sessions.len() < target.target.sessions && target.retry_at.is_none_or(|at| at <= now)
        };
        let due = state.targets.iter().position(is_due).filter(|_| !state.is_closed)?;
        let config = state.targets[due].target.config.clone();
        Some((due, AgentSessionConfig { session_id: SessionId::mint(), ..config }))
    }

    /// Records a failure to start a session. Returns the pause before the next attempt.
    pub(crate) fn record_failure(&self, target: usize, now: Instant) -> Duration {
        let mut state = self.state();
        let Some(target) = state.targets.get_mut(target) else { return LONGEST_PAUSE };
        let pause = FIRST_PAUSE.saturating_mul(1 << target.failures.min(16)).min(LONGEST_PAUSE);
        target.failures = target.failures.saturating_add(1);
        target.retry_at = now.checked_add(pause);
        pause
    }

    /// Records that there is no place for the next session of a target; of all without one.
    pub(crate) fn wait_for_place(&self, target: Option<usize>, now: Instant) {
        for (at, state) in self.state().targets.iter_mut().enumerate() {
            if target.is_none_or(|target| target == at) {
                state.retry_at = state.retry_at.max(now.checked_add(PAUSE_FOR_PLACE));
            }
        }
    }

    /// Instant at which a session is too old, or one may be started again.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let state = self.state();
        let ages = state.targets.iter().flat_map(|target| &target.sessions);
        let ages = ages.filter_map(|warm| warm.ready_at.checked_add(self.max_age));
        let lacks = |target: &&TargetState| target.sessions.len() < target.target.sessions;
        let retries = state.targets.iter().filter(lacks).filter_map(|target| target.retry_at);
        ages.chain(retries).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(sessions: usize) -> WarmPool {
        let config = AgentSessionConfig::new("fake");
        WarmPool::new(vec![WarmTarget { config, sessions }], Duration::from_secs(60))
    }

    #[test]
    fn failures_are_further_and_further_apart() {
        let (pool, mut now) = (pool(1), Instant::now());
        let mut pauses = Vec::new();
        for _ in 0..12 {
            let (target, config) = pool.next_start(now).expect("due");
            let (_, other) = pool.next_start(now).expect("due");
            assert_ne!(config.session_id, other.session_id);
            let pause = pool.record_failure(target, now);
            assert!(pool.next_start(now).is_none(), "not at once");
            assert_eq!(pool.next_deadline(), Some(now + pause));
            now += pause;
            pauses.push(pause.as_secs());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
        pool.record_failure(0, now);
        pool.forget_failures();
        assert!(pool.next_start(now).is_some(), "the configuration is another one");
        pool.wait_for_place(None, now);
        assert!(pool.next_start(now).is_none());
        assert_eq!(pool.next_deadline(), Some(now + PAUSE_FOR_PLACE));
    }

    #[test]
    fn a_closed_pool_starts_nothing() {
        let pool = pool(2);
        assert!(pool.has_targets() && !pool.is_closed());
        pool.close();
        assert!(pool.is_closed() && pool.next_start(Instant::now()).is_none());
        assert!(pool.take(|_| true).is_none());
    }
}
