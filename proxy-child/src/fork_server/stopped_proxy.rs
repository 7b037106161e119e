//! Handling of a stopped proxy: it is continued, and while it is stopped repeatedly its limits are enforced here.
//!
//! SIGCHLD reports a stop, so no polling is needed.

use std::time::{Duration, Instant};

use ipc_protocol::{Event, LimitAction, Limits, ProcessId, SessionId, Signal};
use registry::{PidFd, ProcFs, ProcLookup, ProcessRegistry, SessionHold, init_below};

use crate::proxy::limits::SessionLimiter;

/// Least time between two continuations, so that stopping a proxy in a loop does not keep the fork server busy.
const INTERVAL: Duration = Duration::from_millis(10);
/// Time without a stop after which a proxy is forgotten here.
const SETTLE_TIME: Duration = Duration::from_secs(1);

/// Proxy that was stopped, until it is left alone.
pub(crate) struct StoppedProxy {
    /// Time of the last stop.
    last: Instant,
    /// True while the proxy is stopped and has to be continued.
    is_stopped: bool,
    stops: u32,
    next: Instant,
    deputy: Option<LimitDeputy>,
}

/// Enforcement of a session's limits in its proxy's place.
struct LimitDeputy {
    registry: ProcessRegistry,
    limiter: SessionLimiter,
}

impl StoppedProxy {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self { last: now, is_stopped: false, stops: 0, next: now, deputy: None }
    }

    /// Records a stop.
    pub(crate) fn record_stop(&mut self) {
        (self.last, self.is_stopped, self.stops) = (Instant::now(), true, self.stops.saturating_add(1));
        if self.deputy.is_some() {
            // The next step is due anyway.
            return;
        }
        self.next = if self.stops == 1 { self.last } else { self.last + INTERVAL };
    }

    /// Returns the time of the next step.
    pub(crate) fn next(&self) -> Instant {
        self.next
    }

    /// Returns whether the proxy was not stopped for a while.
    pub(crate) fn is_settled(&self, now: Instant) -> bool {
        !self.is_stopped && now.duration_since(self.last) >= SETTLE_TIME
    }

    /// Continues the proxy, and enforces its limits if it was stopped more than once. Returns the events for the host.
    pub(crate) fn step(&mut self, session: &SessionId, limits: &Limits, proxy: &PidFd) -> Vec<Event> {
        let mut told = Vec::new();
        if std::mem::take(&mut self.is_stopped) {
            if self.stops == 1 {
                let detail = format!("somebody has stopped the session's proxy ({}): it is continued", proxy.id().pid);
                told.push(Event::SessionStatus { status: "proxyStopped".into(), detail });
            }
            // This fails only for a dead proxy.
            let _ = proxy.signal(Signal::Cont);
        }
        let now = Instant::now();
        if self.stops > 1 && self.deputy.is_none() {
            self.deputy = LimitDeputy::new(session, limits, proxy.id());
        }
        let next = self.deputy.as_mut().and_then(|deputy| {
            deputy.step(proxy.id(), &mut told);
            deputy.limiter.next(true)
        });
        let latest = if self.stops > 1 { now + INTERVAL } else { self.last + SETTLE_TIME };
        self.next = next.map_or(latest, |next| next.min(latest)).max(now + Duration::from_millis(1));
        told
    }
}

impl LimitDeputy {
    /// Returns `None` if nothing is limited, or there is no agent.
    fn new(session: &SessionId, limits: &Limits, proxy: ProcessId) -> Option<Self> {
        limits.iter_set().next()?;
        let mut registry = ProcessRegistry::guard(session.clone());
        // The cgroup is left out: the kernel enforces its limits.
        let init = init_below(proxy.pid).map(|init| (init.id().pid, init));
        let agent = agent_below(proxy.pid, init.as_ref().map(|(pid, _)| *pid))?;
        registry.set_hold(SessionHold { init: init.map(|(_, init)| init), ..SessionHold::default() });
        Some(Self { registry, limiter: SessionLimiter::deputy(limits, proxy, agent)? })
    }

    fn step(&mut self, proxy: ProcessId, told: &mut Vec<Event>) {
        let now = Instant::now();
        if self.limiter.next(true).is_none_or(|next| next > now) {
            return;
        }
        self.registry.set_roots_below(proxy.pid);
        for verdict in self.limiter.look(now, &mut self.registry) {
            for victim in &verdict.victims {
                // A victim that has already ended needs no kill; any other is found again by the next look.
                let _ = self.registry.kill(*victim, Signal::Kill);
            }
            // The host ends the session if that is the action.
            if verdict.announce || verdict.exceeded.action == LimitAction::KillSession {
                told.push(Event::LimitExceeded(Box::new(verdict.exceeded)));
            }
        }
        // The host sees every end, or the proxy reports what it finds.
        while self.registry.next_event().is_some() {}
    }
}

/// Returns the first child that the proxy has started.
fn agent_below(proxy: u32, init: Option<u32>) -> Option<ProcessId> {
    let children = ProcFs.children(proxy).into_iter().filter(|pid| Some(*pid) != init);
    let started = |pid| ProcFs.lookup(pid).ok().map(|seen| ProcessId { pid, start_time: seen.start_time });
    children.filter_map(started).min_by_key(|id| (id.start_time, id.pid))
}
