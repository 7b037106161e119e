//! Restriction of processes to one CPU.

use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};

use crate::error::{Error, Result};

/// Runs `start` while this thread may use one CPU only. Processes and threads started by it stay there.
///
/// # Errors
/// The system's.
pub(crate) fn on_one_cpu<T>(start: impl FnOnce() -> T) -> Result<T> {
    let this_thread = Pid::from_raw(0);
    let all = sched_getaffinity(this_thread).map_err(Error::system("reading the CPU affinity"))?;
    let mut one = CpuSet::new();
    // The last one: interrupts tend to run on the first.
    let last = (0..CpuSet::count()).rev().find(|cpu| all.is_set(*cpu).unwrap_or(false)).unwrap_or(0);
    one.set(last).map_err(Error::system("choosing a CPU"))?;
    sched_setaffinity(this_thread, &one).map_err(Error::system("moving to one CPU"))?;
    let started = start();
    sched_setaffinity(this_thread, &all).map_err(Error::system("moving back to all CPUs"))?;
    Ok(started)
}
