//! CPU and memory of known processes.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant, SystemTime},
};

use ipc_protocol::ProcessId;
use sysinfo::{Pid, ProcessRefreshKind, ProcessesToUpdate, System};

/// CPU and memory of one process at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessSample {
    /// CPU use in percent of one core.
    pub(crate) cpu_percent: f32,
    pub(crate) rss_bytes: u64,
}

/// Remembers the last sample, from which the next one computes the CPU used since. Created on first use: an idle proxy
/// should not pay for it.
#[derive(Default)]
pub(crate) struct CpuSampler {
    system: Option<System>,
    tracked: BTreeSet<ProcessId>,
    last: Option<Instant>,
}

impl std::fmt::Debug for CpuSampler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sampler").field("known", &self.tracked.len()).finish_non_exhaustive()
    }
}

impl CpuSampler {
    /// Minimum interval between two samples; CPU time counts in ticks of 10 ms.
    const LEAST_INTERVAL: Duration = sysinfo::MINIMUM_CPU_UPDATE_INTERVAL;

    pub(crate) fn sample(&mut self, processes: &[ProcessId]) -> BTreeMap<ProcessId, ProcessSample> {
        if self.system.is_none() {
            self.system = System::new().ok();
        }
        let Some(system) = &mut self.system else { return BTreeMap::new() };
        let fresh = self.last.is_none_or(|last| last.elapsed() >= Self::LEAST_INTERVAL);
        let pids: Vec<_> = processes.iter().map(|id| Pid::from_u32(id.pid)).collect();
        let kind = ProcessRefreshKind::nothing().with_memory().without_tasks();
        let kind = if fresh { kind.with_cpu() } else { kind };
        system.refresh_processes_specifics(ProcessesToUpdate::Some(&pids), true, kind);
        let now = SystemTime::now();
        let mut samples = BTreeMap::new();
        for id in processes {
            let Some(process) = system.process(Pid::from_u32(id.pid)) else { continue };
            let cpu_percent = if self.tracked.contains(id) {
                process.cpu_usage()
            } else {
                let age = now.duration_since(crate::proc::started_at(id.start_time)).unwrap_or_default();
                let used = crate::proc::stat(id.pid).map_or(Duration::ZERO, |stat| crate::proc::cpu_time(&stat));
                // A process in its first tick has used either nothing or everything.
                (100.0 * used.as_secs_f64() / age.as_secs_f64().max(0.01)) as f32
            };
            samples.insert(*id, ProcessSample { cpu_percent, rss_bytes: process.memory() });
        }
        if fresh {
            self.tracked = processes.iter().copied().collect();
            self.last = Some(Instant::now());
        }
        samples
    }
}
