//! Limits of a session: the mechanism that enforces each, and the watchdog for those that the kernel does not enforce.

use std::time::Instant;

use ipc_protocol::{ExitStatus, LimitAction, LimitForm, LimitInForce, LimitKind, Limits, ProcessId};
use registry::{LimitVerdict, LimitWatchdog, ProcessRegistry, SessionCgroup, UsageReader};
use rustix::process::Resource;

/// Enforcement of the limits of a session; a session without limits has none.
pub(crate) struct SessionLimiter {
    limits: Limits,
    in_force: Vec<LimitInForce>,
    watchdog: LimitWatchdog,
    meter: UsageReader,
}

impl SessionLimiter {
    /// Makes the limiter of a session whose agent has just started, or `None` if nothing is limited.
    pub(crate) fn new(limits: Limits, in_force: Vec<LimitInForce>, agent: ProcessId) -> Option<Self> {
        if in_force.is_empty() {
            return None;
        }
        let cores = std::thread::available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(1));
        let watchdog = LimitWatchdog::new(&in_force, limits.on_limit, agent, cores, Instant::now());
        Some(Self { limits, in_force, watchdog, meter: UsageReader::default() })
    }

    /// Makes the limiter of a session whose proxy is stopped. It replaces the proxy's, except for the wall clock, which the host watches.
    pub(crate) fn deputy(limits: &Limits, proxy: ProcessId, agent: ProcessId) -> Option<Self> {
        let limits = Limits { wall_clock_ms: None, ..limits.clone() };
        let in_force = put_in_force(&limits, None);
        let limiter = Self::new(limits, in_force, agent)?;
        Some(Self { meter: UsageReader::of_reaper(proxy.pid), ..limiter })
    }

    /// Returns the limits, each with the mechanism that enforces it.
    pub(crate) fn in_force(&self) -> Vec<LimitInForce> {
        self.in_force.clone()
    }

    /// Returns the time at which [`SessionLimiter::look`] is due.
    pub(crate) fn next(&self, working: bool) -> Option<Instant> {
        self.watchdog.next(working)
    }

    /// Returns whether a look reads all processes.
    pub(crate) fn scans(&self) -> bool {
        self.watchdog.reading_scope().tree
    }

    /// Measures the session's usage.
    pub(crate) fn look(&mut self, now: Instant, registry: &mut ProcessRegistry) -> Vec<LimitVerdict> {
        let usage = self.meter.read(registry, self.watchdog.reading_scope());
        self.watchdog.look(now, &usage)
    }

    /// Records that a process of the session has ended.
    pub(crate) fn record_exit(&mut self, process: ProcessId, exit: ExitStatus) -> Option<LimitVerdict> {
        self.watchdog.record_exit(&self.limits, process, exit, Instant::now())
    }
}

/// Gives each limit the strongest form that is available, and sets the limits of the session's cgroup. Must be called before anything
/// is started in it.
pub(crate) fn put_in_force(limits: &Limits, group: Option<&SessionCgroup>) -> Vec<LimitInForce> {
    let put = |(limit, value)| {
        // A limit that the controller refuses (for example a value out of range) is watched instead, and reported so.
        let by_group = group.is_some_and(|group| group.limit(limit, value, limits.on_limit).unwrap_or(false));
        let form = if by_group { LimitForm::Cgroup } else { form_without_group(limit, limits.on_limit) };
        LimitInForce { limit, value, form }
    };
    limits.iter_set().map(put).collect()
}

fn form_without_group(limit: LimitKind, action: LimitAction) -> LimitForm {
    match limit {
        LimitKind::WallClock => LimitForm::Clock,
        LimitKind::OpenFiles => LimitForm::Rlimit,
        // The kernel not only reports this limit: it stops the writer.
        LimitKind::FileSize if action != LimitAction::Warn => LimitForm::Rlimit,
        _ => LimitForm::Watchdog,
    }
}

/// Returns the resource limits of an agent, which all processes below it inherit.
pub(crate) fn rlimits(limits: &Limits, in_force: &[LimitInForce]) -> Vec<(Resource, u64)> {
    let resource = |limit: &LimitInForce| match (limit.form, limit.limit) {
        (LimitForm::Rlimit, LimitKind::OpenFiles) => Some((Resource::Nofile, limit.value)),
        (LimitForm::Rlimit, LimitKind::FileSize) => Some((Resource::Fsize, limit.value)),
        _ => None,
    };
    let core = (!limits.core_dumps).then_some((Resource::Core, 0));
    core.into_iter().chain(in_force.iter().filter_map(resource)).collect()
}
