//! The limits of a session: what enforces each, and the watch over those that the kernel does not enforce.

use std::time::Instant;

use ipc_protocol::{ExitStatus, LimitAction, LimitForm, LimitInForce, LimitKind, Limits, ProcessId};
use registry::{Group, Meter, ProcessRegistry, Verdict, Watchdog};
use rustix::process::Resource;

/// Looks after the limits of one session. A session without any has none.
pub(crate) struct Limiter {
    limits: Limits,
    in_force: Vec<LimitInForce>,
    watchdog: Watchdog,
    meter: Meter,
}

impl Limiter {
    /// For a session whose agent has just started; `None` where nothing is limited.
    pub(crate) fn new(limits: Limits, in_force: Vec<LimitInForce>, agent: ProcessId) -> Option<Self> {
        if in_force.is_empty() {
            return None;
        }
        let cores = std::thread::available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(1));
        let watchdog = Watchdog::new(&in_force, limits.on_limit, agent, cores, Instant::now());
        Some(Self { limits, in_force, watchdog, meter: Meter::default() })
    }

    /// For a session whose proxy is stopped: what that would look after, but for the wall clock, which the host knows.
    pub(crate) fn deputy(limits: &Limits, proxy: ProcessId, agent: ProcessId) -> Option<Self> {
        let limits = Limits { wall_clock_ms: None, ..limits.clone() };
        let in_force = put_in_force(&limits, None);
        let limiter = Self::new(limits, in_force, agent)?;
        Some(Self { meter: Meter::of_reaper(proxy.pid), ..limiter })
    }

    /// The limits, each with what enforces it.
    pub(crate) fn in_force(&self) -> Vec<LimitInForce> {
        self.in_force.clone()
    }

    /// When [`Limiter::look`] is due.
    pub(crate) fn next(&self, working: bool) -> Option<Instant> {
        self.watchdog.next(working)
    }

    /// Whether a look is one at all processes.
    pub(crate) fn scans(&self) -> bool {
        self.watchdog.wanted().tree
    }

    /// Looks at what the session uses.
    pub(crate) fn look(&mut self, now: Instant, registry: &mut ProcessRegistry) -> Vec<Verdict> {
        let usage = self.meter.read(registry, self.watchdog.wanted());
        self.watchdog.look(now, &usage)
    }

    /// A process of the session has ended.
    pub(crate) fn note_exit(&mut self, process: ProcessId, exit: ExitStatus) -> Option<Verdict> {
        self.watchdog.note_exit(&self.limits, process, exit, Instant::now())
    }
}

/// Gives each limit the strongest form that can be had, and has the session's cgroup enforce what it can. To be called
/// before anything is started in it.
pub(crate) fn put_in_force(limits: &Limits, group: Option<&Group>) -> Vec<LimitInForce> {
    let put = |(limit, value)| {
        // What the controller does not take (a value beyond its range, say) is watched in its place, and reported so.
        let by_group = group.is_some_and(|group| group.limit(limit, value, limits.on_limit).unwrap_or(false));
        let form = if by_group { LimitForm::Cgroup } else { form_without_group(limit, limits.on_limit) };
        LimitInForce { limit, value, form }
    };
    limits.set().map(put).collect()
}

fn form_without_group(limit: LimitKind, action: LimitAction) -> LimitForm {
    match limit {
        LimitKind::WallClock => LimitForm::Clock,
        LimitKind::OpenFiles => LimitForm::Rlimit,
        // The kernel does not only say it: it stops who goes on writing.
        LimitKind::FileSize if action != LimitAction::Warn => LimitForm::Rlimit,
        _ => LimitForm::Watchdog,
    }
}

/// The resource limits of an agent, which all below it inherit.
pub(crate) fn rlimits(limits: &Limits, in_force: &[LimitInForce]) -> Vec<(Resource, u64)> {
    let resource = |limit: &LimitInForce| match (limit.form, limit.limit) {
        (LimitForm::Rlimit, LimitKind::OpenFiles) => Some((Resource::Nofile, limit.value)),
        (LimitForm::Rlimit, LimitKind::FileSize) => Some((Resource::Fsize, limit.value)),
        _ => None,
    };
    let core = (!limits.core_dumps).then_some((Resource::Core, 0));
    core.into_iter().chain(in_force.iter().filter_map(resource)).collect()
}
