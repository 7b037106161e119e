//! Resource usage of a session's processes, in total and for each.
//!
//! Based on the registry's own pass over the tree, which has read each process's `stat`; only memory takes one more
//! file per process.

use std::{
    io::Read,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use ipc_protocol::{Pid, ProcessId};
use rustix::fs::{AtFlags, StatxFlags};

use crate::{GroupUsage, ProcessRegistry, proc, procfs, stat::ProcStat};

/// Maximum number of descriptors looked at in one process. Together with [`MAX_FILES`], the maximum number of large
/// files recorded in all, it keeps a session from slowing its proxy.
const MAX_FDS: usize = 1024;
/// Maximum number of descriptors counted one at a time in a process, if the kernel does not provide their number.
const MAX_COUNTED_FDS: usize = 65536;
const MAX_FILES: usize = 256;

/// Contents of a reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadingScope {
    /// Includes the processes and their CPU time.
    pub tree: bool,
    /// Includes the memory of each process.
    pub memory: bool,
    /// Includes files of at least this many bytes that the processes write to.
    pub file_size: Option<u64>,
    /// Includes the number of open descriptors of each process.
    pub open_files: bool,
    /// Includes the numbers of the session's cgroup.
    pub group: bool,
}

/// Resource usage of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessUsage {
    /// Identity of the process.
    pub id: ProcessId,
    /// Private memory in bytes: resident, less file-backed and shared memory. A page that a fork shares with its parent
    /// counts in both. 0 if it was not requested.
    pub memory_bytes: u64,
    /// CPU time of the process and of the children that it has waited for.
    pub cpu_time: Duration,
    /// Number of open descriptors. 0 if it was not requested.
    pub open_files: u64,
}

/// A large file that a process has open for writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LargeFile {
    /// The writing process; if several have the file open, the one farthest from the agent.
    pub process: ProcessId,
    /// Device and inode of the file.
    pub file: (u64, u64),
    /// Size in bytes.
    pub size: u64,
    /// True if the file was created after the meter: then all of it was written since.
    pub is_new: bool,
}

/// A reading of one session's usage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsageReading {
    /// Live processes (neither threads nor dead processes that wait to be reaped).
    pub processes: Vec<ProcessUsage>,
    /// CPU time of all processes ever, including dead ones. Never falls. Exact if the session has a cgroup. Without
    /// one, the usage of processes is missed that lived between two readings only, under a parent that waits for
    /// nobody.
    pub cpu_time: Duration,
    /// Large files that are written to; at most 256.
    pub large_files: Vec<LargeFile>,
    /// Numbers of its cgroup; empty if it has none, or nobody requested them.
    pub group: GroupUsage,
    /// CPU time that the reading took.
    pub cost: Duration,
}

/// Reading of one process in a pass of the registry.
#[derive(Debug)]
pub(crate) struct ProcessReading {
    id: ProcessId,
    /// True if it is alive, and the session's own.
    is_counted: bool,
    has_dead_leader: bool,
    cpu_time: Duration,
}

impl ProcessReading {
    /// Creates a reading. `is_init` marks the init of a namespace, which is ours and not the session's.
    pub(crate) fn new(id: ProcessId, stat: &ProcStat, is_init: bool) -> Self {
        Self {
            id,
            is_counted: !is_init && !proc::is_dead(stat),
            has_dead_leader: stat.state == 'Z',
            cpu_time: proc::cpu_time(stat) + waited_cpu_time(stat),
        }
    }
}

/// CPU time of the children that a process has waited for, and of theirs.
fn waited_cpu_time(stat: &ProcStat) -> Duration {
    proc::of_ticks(stat.cutime.unsigned_abs() + stat.cstime.unsigned_abs())
}

/// Meter of a session's usage.
#[derive(Debug)]
pub struct UsageReader {
    created_at: SystemTime,
    cpu: CpuTotal,
    /// The process that reaps the session's dead, if it is not this one.
    reaper: Option<Pid>,
}

impl Default for UsageReader {
    fn default() -> Self {
        /// Maximum lag of the file systems' clock, which ticks more slowly than ours.
        const COARSE: Duration = Duration::from_millis(10);
        Self { created_at: SystemTime::now() - COARSE, cpu: CpuTotal::default(), reaper: None }
    }
}

impl UsageReader {
    /// Creates a meter for a session whose dead another process reaps: its proxy, as its guard sees it.
    pub fn of_reaper(pid: Pid) -> Self {
        Self { reaper: Some(pid), ..Self::default() }
    }

    /// Reads the usage of everything in the registry, which also notices processes that have died meanwhile.
    pub fn read(&mut self, registry: &mut ProcessRegistry, wanted: ReadingScope) -> UsageReading {
        let began = thread_time();
        let mut usage = UsageReading::default();
        if wanted.group
            && let Some(group) = &registry.session_hold().group
        {
            usage.group = group.usage();
        }
        if wanted.tree {
            // Read before the pass: a process that dies during it is missing from both, rather than counted twice.
            let reaped = self.reaper.map_or_else(reaped_cpu_time, reaped_cpu_time_of);
            let readings = registry.scan_with_readings();
            let raw = reaped + readings.iter().map(|reading| reading.cpu_time).sum::<Duration>();
            let by_group = usage.group.cpu_time_us.map(Duration::from_micros);
            usage.cpu_time = by_group.unwrap_or_else(|| self.cpu.add(raw));
            for reading in readings.iter().filter(|reading| reading.is_counted) {
                let memory_bytes = if wanted.memory { own_memory(reading) } else { 0 };
                let open_files = if wanted.open_files { open_files(reading.id.pid) } else { 0 };
                usage.processes.push(ProcessUsage {
                    id: reading.id,
                    memory_bytes,
                    cpu_time: reading.cpu_time,
                    open_files,
                });
                if let Some(least) = wanted.file_size {
                    self.large_files(reading.id, least, &mut usage.large_files);
                }
            }
        }
        usage.cost = thread_time().saturating_sub(began);
        usage
    }

    /// Adds the regular files of at least `least` bytes that the process has open for writing. There are none if we may
    /// not look (the process is another user's).
    fn large_files(&self, process: ProcessId, least: u64, out: &mut Vec<LargeFile>) {
        let fds = format!("{}/fd", process.pid);
        for fd in procfs::numbers_in_proc(&fds, MAX_FDS).unwrap_or_default() {
            /// The owner's permission to write, which such a link has if the descriptor can be written to.
            const WRITABLE: u32 = 0o200;
            if out.len() >= MAX_FILES {
                return;
            }
            let fd = format!("{fds}/{fd}");
            if !procfs::metadata(&fd, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|link| link.st_mode & WRITABLE != 0) {
                continue;
            }
            let Some((file, size, born)) = open_file(&fd) else { continue };
            if size < least {
                continue;
            }
            match out.iter_mut().find(|known| known.file == file) {
                // Parents come first: among processes that share the file, the child is more likely to be the writer.
                Some(known) => known.process = process,
                None => {
                    let is_new = born.is_some_and(|born| born >= self.created_at);
                    out.push(LargeFile { process, file, size, is_new });
                }
            }
        }
    }
}

/// Number of open descriptors of a process; 0 if we may not look.
fn open_files(pid: Pid) -> u64 {
    let path = format!("{pid}/fd");
    // Linux 6.2 says it as the size of the directory.
    match procfs::metadata(&path, AtFlags::empty()).map(|fds| fds.st_size.unsigned_abs()) {
        Ok(0) => procfs::numbers_in_proc(&path, MAX_COUNTED_FDS).map_or(0, |fds| fds.len() as u64),
        Ok(count) => count,
        Err(_) => 0,
    }
}

/// Device and inode, size and time of birth of the file behind a descriptor of another process, if it is a regular one.
/// What the system remembers is good enough: to ask a file system could take for ever, when the session itself serves it.
fn open_file(path: &str) -> Option<((u64, u64), u64, Option<SystemTime>)> {
    let wanted = StatxFlags::TYPE | StatxFlags::SIZE | StatxFlags::INO | StatxFlags::BTIME;
    let stat = rustix::fs::statx(&*procfs::root().ok()?, path, AtFlags::STATX_DONT_SYNC, wanted).ok()?;
    if rustix::fs::FileType::from_raw_mode(stat.stx_mode.into()) != rustix::fs::FileType::RegularFile {
        return None;
    }
    let device = u64::from(stat.stx_dev_major) << 32 | u64::from(stat.stx_dev_minor);
    let has_birth = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
    let since_epoch = Duration::new(stat.stx_btime.tv_sec.unsigned_abs(), stat.stx_btime.tv_nsec);
    Some(((device, stat.stx_ino), stat.stx_size, has_birth.then(|| UNIX_EPOCH + since_epoch)))
}

/// Resident memory less shared memory, in bytes.
fn own_memory(reading: &ProcessReading) -> u64 {
    let pid = reading.id.pid;
    let pages = if reading.has_dead_leader {
        // The leader's own file says 0: the leader has released the memory in which its threads live.
        own_pages_of_a_thread(pid)
    } else {
        own_pages(&format!("{pid}/statm"))
    };
    pages.unwrap_or(0).saturating_mul(rustix::param::page_size() as u64)
}

fn own_pages_of_a_thread(pid: Pid) -> Option<u64> {
    let threads = proc::threads(pid).ok()?;
    threads.into_iter().filter_map(|thread| own_pages(&format!("{pid}/task/{thread}/statm"))).max()
}

/// `/proc/PID/statm`: size, resident, shared, … in pages.
fn own_pages(statm: &str) -> Option<u64> {
    let mut bytes = [0; 128];
    let read = procfs::open_proc_file(statm).ok()?.read(&mut bytes).ok()?;
    let text = std::str::from_utf8(&bytes[..read]).ok()?;
    let mut words = text.split_ascii_whitespace().skip(1).map(str::parse::<u64>);
    let (resident, shared) = (words.next()?.ok()?, words.next()?.ok()?);
    Some(resident.saturating_sub(shared))
}

/// CPU time of the children that this process has reaped, and of theirs.
fn reaped_cpu_time() -> Duration {
    use nix::sys::{
        resource::{UsageWho, getrusage},
        time::TimeValLike,
    };
    let Ok(usage) = getrusage(UsageWho::RUSAGE_CHILDREN) else { return Duration::ZERO };
    let time = usage.user_time() + usage.system_time();
    Duration::from_micros(time.num_microseconds().unsigned_abs())
}

/// CPU time of the children of another process; 0 if it cannot be read.
fn reaped_cpu_time_of(pid: Pid) -> Duration {
    proc::stat(pid).map_or(Duration::ZERO, |stat| waited_cpu_time(&stat))
}

/// Processor time used by the calling thread.
pub fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Computes a sum that never falls from readings that may.
///
/// A reading is the time of live processes, including the children they waited for, and of processes reaped here. It
/// falls when a process dies between the visits to it and to its parent (the next reading has it again), or when its
/// parent waits for nobody (later readings lack it for good, so it is remembered here).
#[derive(Debug, Default)]
struct CpuTotal {
    highest: Duration,
    lost: Duration,
    has_fallen: bool,
}

impl CpuTotal {
    fn add(&mut self, raw: Duration) -> Duration {
        if raw >= self.highest {
            self.highest = raw;
            self.has_fallen = false;
        } else if self.has_fallen {
            self.lost += self.highest - raw;
            self.highest = raw;
            self.has_fallen = false;
        } else {
            self.has_fallen = true;
        }
        self.highest + self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(readings: &[u64]) -> Vec<u64> {
        let mut total = CpuTotal::default();
        readings.iter().map(|raw| total.add(Duration::from_secs(*raw)).as_secs()).collect()
    }

    #[test]
    fn cpu_time_never_falls_and_what_is_lost_still_counts() {
        // One reading misses what died meanwhile.
        assert_eq!(totals(&[5, 3, 6]), [5, 5, 6]);
        // 4 seconds were used by a process that nobody waited for.
        assert_eq!(totals(&[5, 1, 1, 3]), [5, 5, 5, 7]);
        assert_eq!(totals(&[5, 1, 2, 3, 0, 0, 1]), [5, 5, 5, 6, 6, 6, 7]);
    }

    #[test]
    fn memory_of_this_process_is_read() {
        let pid = std::process::id();
        let before = own_pages(&format!("{pid}/statm")).expect("readable");
        let block = vec![1_u8; 8 << 20];
        let after = own_pages(&format!("{pid}/statm")).expect("readable");
        let pages = (8 << 20) / rustix::param::page_size() as u64;
        assert!(after >= before + pages * 9 / 10, "{before} {after} {}", block.len());
        assert!(own_pages_of_a_thread(pid).is_some());
    }
}
