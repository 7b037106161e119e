//! Decides when a limit is exceeded, and what follows. No I/O: readings and times go in; verdicts and the time of the
//! next reading come out.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use ipc_protocol::{ExitStatus, LimitAction, LimitExceeded, LimitForm, LimitInForce, LimitKind, Limits, ProcessId};
use nix::sys::signal::Signal;

use crate::usage::{LargeFile, ProcessUsage, ReadingScope, UsageReading};

/// Minimum interval between readings: a runaway of 1 GiB/s takes 10 MiB in that time.
const SHORTEST: Duration = Duration::from_millis(10);
/// Maximum interval between readings.
const LONGEST: Duration = Duration::from_millis(250);
/// Interval between looks at descriptors: a process that has run out of them seldom gets any back.
const LEAK_INTERVAL: Duration = Duration::from_millis(50);
/// Interval after a kill, if the limit is still exceeded.
const MIN_DELAY: Duration = Duration::from_millis(1);
/// Bytes per second that a working session is assumed to be able to allocate at any moment.
const FASTEST_GROWTH: f64 = (1 << 30) as f64;
/// Growth between two readings below this is noise.
const NOISE: u64 = 1 << 20;
/// Memory in bytes that a cgroup may have beyond its limit for a moment.
const SLACK: u64 = 4 << 20;
/// Time in which a fork bomb is assumed to double.
const DOUBLING: Duration = Duration::from_millis(5);
/// Divisor of one core's time that readings may take: a tenth.
const COST_SHARE: u32 = 10;
/// Minimum time over which CPU percent are measured.
const WINDOW: Duration = Duration::from_secs(1);
/// Interval between the readings that are retained for it.
const WINDOW_STEP: Duration = Duration::from_millis(100);
/// Interval between two warnings about one limit.
const WARN_INTERVAL: Duration = Duration::from_secs(1);
/// Time for which a killed process counts as gone, even if it is still there: a large process takes time to die.
const KILL_GRACE: Duration = Duration::from_secs(2);

/// A limit that is exceeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitVerdict {
    /// The limit, with the measured value. Its action is the one to take: also `KillSession` where the process to be
    /// killed is unknown, and `Warn` where nothing is left to do.
    pub exceeded: LimitExceeded,
    /// True if an event is due: once each time the limit is exceeded, however many processes have to be killed.
    pub announce: bool,
    /// Processes to be killed now; empty unless the action is `KillProcess`.
    pub victims: Vec<ProcessId>,
}

/// State of one watched limit.
#[derive(Debug)]
struct WatchedLimit {
    limit: LimitInForce,
    /// True from exceeding the limit until falling below it again.
    above: bool,
    /// True if the limit was exceeded and that was not announced yet.
    is_unreported: bool,
    last_reported: Option<Instant>,
    /// Value at which a limit whose measure never falls (CPU time) is exceeded again.
    next_threshold: u64,
    /// Last value of the cgroup's counter.
    counter: u64,
}

/// A reading from which CPU percent are computed.
#[derive(Debug)]
struct CpuMoment {
    at: Instant,
    total: Duration,
    /// Number of periods in which the kernel throttled the session.
    throttled: u64,
    each: BTreeMap<ProcessId, Duration>,
}

/// Values of the last reading, which determine the time of the next.
#[derive(Debug)]
struct LastReading {
    at: Instant,
    memory: u64,
    processes: u64,
    cpu_time: Duration,
    /// Growth in bytes per second.
    memory_growth: f64,
    more_memory: bool,
    more_processes: bool,
    more_cpu: bool,
    cost: Duration,
}

/// Watches the limits of one session.
#[derive(Debug)]
pub struct LimitWatchdog {
    watched: Vec<WatchedLimit>,
    action: LimitAction,
    agent: ProcessId,
    started: Instant,
    cores: u32,
    last: LastReading,
    /// Killed processes, and when they were killed.
    killed: BTreeMap<ProcessId, Instant>,
    window: VecDeque<CpuMoment>,
    /// Files over their limit by device and inode, with the size of each.
    files: BTreeMap<(u64, u64), u64>,
    /// Processes that have as many descriptors open as they may.
    at_fd_limit: BTreeSet<ProcessId>,
    /// Writer of the file that was reported last.
    writer: Option<ProcessId>,
    /// True if something was killed just now: the next reading checks at once that this was enough.
    is_verifying: bool,
    /// True if the session is being ended.
    is_ending: bool,
}

impl LimitWatchdog {
    /// Watches `limits` for a session whose agent started at `now`, on a machine with `cores`.
    pub fn new(limits: &[LimitInForce], action: LimitAction, agent: ProcessId, cores: u32, now: Instant) -> Self {
        let watched = |limit: &LimitInForce| WatchedLimit {
            limit: *limit,
            above: false,
            is_unreported: false,
            last_reported: None,
            next_threshold: 0,
            counter: 0,
        };
        Self {
            watched: limits.iter().map(watched).collect(),
            action,
            agent,
            started: now,
            cores: cores.max(1),
            last: LastReading {
                at: now,
                memory: 0,
                processes: 1,
                cpu_time: Duration::ZERO,
                memory_growth: FASTEST_GROWTH,
                more_memory: true,
                more_processes: true,
                more_cpu: true,
                cost: Duration::ZERO,
            },
            killed: BTreeMap::new(),
            window: VecDeque::new(),
            files: BTreeMap::new(),
            at_fd_limit: BTreeSet::new(),
            writer: None,
            is_verifying: false,
            is_ending: false,
        }
    }

    /// Contents that a reading must have.
    pub fn reading_scope(&self) -> ReadingScope {
        let has = |kind: LimitKind| self.watched.iter().find(|watched| watched.limit.limit == kind);
        let sampled = |kind| has(kind).is_some_and(|watched| watched.limit.form != LimitForm::Cgroup);
        let cpu = has(LimitKind::CpuTime).is_some() || has(LimitKind::CpuPercent).is_some();
        // Should the kernel let too much pass, the processes responsible must be known.
        let by_group = |kind| has(kind).is_some() && self.action == LimitAction::KillProcess;
        let memory = sampled(LimitKind::Memory) || by_group(LimitKind::Memory);
        let open_files = has(LimitKind::OpenFiles).is_some();
        ReadingScope {
            tree: cpu
                || memory
                || sampled(LimitKind::Processes)
                || by_group(LimitKind::Processes)
                || has(LimitKind::FileSize).is_some()
                || open_files,
            memory,
            open_files,
            file_size: has(LimitKind::FileSize).map(|watched| watched.limit.value),
            group: cpu || self.watched.iter().any(|watched| watched.limit.form == LimitForm::Cgroup),
        }
    }

    /// Instant of the next reading, `None` for never. `working` is true if a turn runs, or something has just begun.
    pub fn next(&self, working: bool) -> Option<Instant> {
        if self.is_ending {
            return None;
        }
        let clock = self.watched.iter().filter(|w| w.limit.limit == LimitKind::WallClock && !w.above);
        let clock =
            clock.filter_map(|w| self.started.checked_add(Duration::from_millis(w.limit.value.saturating_add(1))));
        let interval = self.watched.iter().filter_map(|watched| self.interval(watched, working)).min();
        let least = if self.is_verifying { self.last.cost } else { self.last.cost * COST_SHARE };
        let reading = interval.map(|interval| self.last.at + interval.min(LONGEST).max(least));
        clock.chain(reading).min()
    }

    /// Longest time that one limit can go without a reading.
    fn interval(&self, watched: &WatchedLimit, working: bool) -> Option<Duration> {
        let LimitInForce { limit: kind, value, form } = watched.limit;
        let last = &self.last;
        if kind == LimitKind::WallClock {
            return None;
        }
        if self.is_verifying {
            return Some(MIN_DELAY);
        }
        if form == LimitForm::Cgroup || (watched.above && self.action == LimitAction::Warn) {
            return Some(LONGEST);
        }
        Some(match kind {
            LimitKind::Memory => {
                let headroom = value.saturating_sub(last.memory) as f64;
                let growth = 2.0 * last.memory_growth;
                let rate = if working || last.more_memory { growth.max(FASTEST_GROWTH) } else { growth };
                time_for(headroom / rate.max(1.0))
            }
            LimitKind::Processes if working || last.more_processes => {
                let doublings = (value.max(1) as f64 / last.processes.max(1) as f64).log2();
                time_for(DOUBLING.as_secs_f64() * doublings)
            }
            LimitKind::CpuTime if working || last.more_cpu => {
                let headroom = Duration::from_millis(value).saturating_sub(last.cpu_time);
                (headroom / self.cores).clamp(SHORTEST, LONGEST)
            }
            // A process that writes too much may not keep the file open for long.
            LimitKind::FileSize if working => SHORTEST,
            LimitKind::OpenFiles if working => LEAK_INTERVAL,
            _ => LONGEST,
        })
    }

    /// Applies a reading, and returns a verdict for each exceeded limit.
    pub fn look(&mut self, now: Instant, usage: &UsageReading) -> Vec<LimitVerdict> {
        if self.is_ending {
            return Vec::new();
        }
        let there: BTreeSet<_> = usage.processes.iter().map(|process| process.id).collect();
        self.killed.retain(|id, killed| there.contains(id) && now.duration_since(*killed) < KILL_GRACE);
        let stays = |process: &&ProcessUsage| !self.killed.contains_key(&process.id);
        let living: Vec<ProcessUsage> = usage.processes.iter().filter(stays).copied().collect();
        self.update_last(now, usage, &living);
        self.is_verifying = false;
        let mut watched = std::mem::take(&mut self.watched);
        let mut verdicts = Vec::new();
        for watched in &mut watched {
            if let Some(verdict) = self.judge(watched, now, usage, &living) {
                self.is_ending |= verdict.exceeded.action == LimitAction::KillSession;
                self.is_verifying |= !verdict.victims.is_empty();
                self.killed.extend(verdict.victims.iter().map(|victim| (*victim, now)));
                verdicts.push(verdict);
            }
        }
        self.watched = watched;
        verdicts
    }

    fn update_last(&mut self, now: Instant, usage: &UsageReading, living: &[ProcessUsage]) {
        let memory = living.iter().map(|process| process.memory_bytes).sum::<u64>();
        let processes = living.len() as u64;
        let last = &self.last;
        let elapsed = now.duration_since(last.at).max(Duration::from_millis(1));
        let more = memory.saturating_sub(last.memory);
        self.last = LastReading {
            at: now,
            memory,
            processes,
            cpu_time: usage.cpu_time,
            memory_growth: if more < NOISE { 0.0 } else { more as f64 / elapsed.as_secs_f64() },
            more_memory: more >= NOISE,
            more_processes: processes > last.processes,
            more_cpu: usage.cpu_time > last.cpu_time,
            cost: usage.cost,
        };
    }

    fn judge(
        &mut self,
        watched: &mut WatchedLimit,
        now: Instant,
        usage: &UsageReading,
        living: &[ProcessUsage],
    ) -> Option<LimitVerdict> {
        let LimitInForce { limit: kind, value, form } = watched.limit;
        let taken: &dyn Fn(&ProcessUsage) -> u128;
        let measured = match kind {
            LimitKind::Memory | LimitKind::Processes if form == LimitForm::Cgroup => {
                let counter = if kind == LimitKind::Memory { usage.group.oom_kills } else { usage.group.forks_refused };
                let counter = counter.unwrap_or(watched.counter);
                if counter > std::mem::replace(&mut watched.counter, counter) {
                    return self.stopped_by_kernel(watched, now, living);
                }
                return self.let_through_by_kernel(watched, now, usage, living);
            }
            LimitKind::FileSize => return self.judge_files(watched, now, &usage.large_files, living),
            LimitKind::Memory => {
                taken = &|process| process.memory_bytes.into();
                self.last.memory
            }
            LimitKind::Processes => {
                taken = &|_| 0;
                self.last.processes
            }
            LimitKind::CpuTime => {
                taken = &|process| process.cpu_time.as_millis();
                millis(usage.cpu_time)
            }
            LimitKind::CpuPercent => return self.judge_percent(watched, now, usage, living),
            LimitKind::WallClock => {
                taken = &|_| 0;
                millis(now.duration_since(self.started))
            }
            LimitKind::OpenFiles => return self.judge_open_files(watched, now, living),
        };
        let announce = watched.record_measure(measured, now, self.action)?;
        let mut order: Vec<_> = living.iter().map(|process| (taken(process), process.id)).collect();
        // The largest consumer comes first; among equal ones, the youngest.
        order.sort_unstable_by_key(|(taken, id)| std::cmp::Reverse((*taken, id.start_time, id.pid)));
        let order: Vec<_> = order.into_iter().map(|(_, id)| id).collect();
        let excess = match kind {
            LimitKind::WallClock => None,
            LimitKind::Processes => Some(measured.saturating_sub(value)),
            LimitKind::CpuTime => (announce || measured >= watched.next_threshold).then_some(1),
            _ => Some(1),
        };
        if kind == LimitKind::CpuTime && self.action == LimitAction::KillProcess {
            // CPU time never falls again. A process that continues is ended when another tenth is used.
            let excess = excess?;
            watched.next_threshold = measured.saturating_add((value / 10).max(100));
            return self.verdict(watched, measured, true, &order, Some(excess));
        }
        self.verdict(watched, measured, announce, &order, excess)
    }

    /// Builds the verdict. `order` has the largest consumers first. `excess` is the number of processes over the limit,
    /// `None` if no process is responsible.
    fn verdict(
        &self,
        watched: &WatchedLimit,
        measured: u64,
        announce: bool,
        order: &[ProcessId],
        excess: Option<u64>,
    ) -> Option<LimitVerdict> {
        let LimitInForce { limit, value, form } = watched.limit;
        let mut action = self.action;
        let mut victims = Vec::new();
        match (action, excess) {
            (LimitAction::KillProcess, None) => action = LimitAction::KillSession,
            (LimitAction::KillProcess, Some(excess)) => {
                let excess = usize::try_from(excess).unwrap_or(usize::MAX);
                victims = order.iter().filter(|id| **id != self.agent).take(excess).copied().collect();
                if victims.is_empty() && excess > 0 && order == [self.agent] {
                    victims.push(self.agent);
                }
                if victims.is_empty() {
                    action = LimitAction::Warn;
                }
            }
            _ => {}
        }
        let process = victims.first().or_else(|| order.first().filter(|_| excess.is_some())).copied();
        let exceeded = LimitExceeded { limit, value, measured, form, action, process };
        (announce || !victims.is_empty() || action == LimitAction::KillSession).then_some(LimitVerdict {
            exceeded,
            announce,
            victims,
        })
    }

    /// Handles a limit that the kernel enforced: it killed for memory, or refused a fork.
    fn stopped_by_kernel(
        &self,
        watched: &mut WatchedLimit,
        now: Instant,
        living: &[ProcessUsage],
    ) -> Option<LimitVerdict> {
        let LimitInForce { limit: kind, value, .. } = watched.limit;
        let announce = watched.record_hit(now, self.action);
        let mut order: Vec<_> = living.iter().map(|process| process.id).collect();
        order.sort_unstable_by_key(|id| std::cmp::Reverse((id.start_time, id.pid)));
        match kind {
            // The process that asked for one too many is unknown; the youngest are the likely ones.
            LimitKind::Processes => self.verdict(watched, value, announce, &order, Some(1)),
            // One process is dead already, and its identity is unknown.
            _ if self.action == LimitAction::KillProcess => Some(LimitVerdict {
                exceeded: LimitExceeded {
                    limit: kind,
                    value,
                    measured: value,
                    form: LimitForm::Cgroup,
                    action: self.action,
                    process: None,
                },
                announce,
                victims: Vec::new(),
            }),
            _ => self.verdict(watched, value, announce, &[], Some(0)),
        }
    }

    /// Handles a kernel-enforced limit that is exceeded all the same: somebody has lifted it, as root can for its own
    /// cgroup.
    fn let_through_by_kernel(
        &self,
        watched: &mut WatchedLimit,
        now: Instant,
        usage: &UsageReading,
        living: &[ProcessUsage],
    ) -> Option<LimitVerdict> {
        let LimitInForce { limit: kind, value, .. } = watched.limit;
        let (measured, slack) = match kind {
            // The kernel itself lets some pages pass.
            LimitKind::Memory => (usage.group.memory_bytes?, SLACK),
            _ => (usage.group.tasks?, 0),
        };
        let excess = if kind == LimitKind::Processes { measured.saturating_sub(value) } else { 1 };
        let announce = watched.record_measure(measured.saturating_sub(slack), now, self.action)?;
        let taken = |process: &ProcessUsage| if kind == LimitKind::Memory { process.memory_bytes } else { 0 };
        let mut order: Vec<_> =
            living.iter().map(|process| (taken(process), process.id.start_time, process.id)).collect();
        order.sort_unstable_by(|a, b| b.cmp(a));
        let order: Vec<_> = order.into_iter().map(|(.., id)| id).collect();
        let mut verdict = self.verdict(watched, measured, announce, &order, Some(excess))?;
        verdict.exceeded.form = LimitForm::Watchdog;
        Some(verdict)
    }

    /// Handles processes that can open no more files: reported each time one reaches its limit.
    fn judge_open_files(
        &mut self,
        watched: &mut WatchedLimit,
        now: Instant,
        living: &[ProcessUsage],
    ) -> Option<LimitVerdict> {
        let value = watched.limit.value;
        let full: BTreeSet<_> =
            living.iter().filter(|process| process.open_files >= value).map(|process| process.id).collect();
        let before = std::mem::replace(&mut self.at_fd_limit, full);
        let mut new: Vec<_> = self.at_fd_limit.difference(&before).copied().collect();
        if new.is_empty() {
            return None;
        }
        let announce = watched.record_hit(now, self.action);
        new.sort_by_key(|id| *id == self.agent);
        // Nobody else's end would give the agent descriptors, but the agent is spared while there are others.
        let is_alone = living.iter().all(|process| process.id == self.agent);
        let excess = new.iter().filter(|id| **id != self.agent || is_alone).count() as u64;
        let measured = living.iter().map(|process| process.open_files).max().unwrap_or(value);
        self.verdict(watched, measured, announce, &new, Some(excess))
    }

    fn judge_percent(
        &mut self,
        watched: &mut WatchedLimit,
        now: Instant,
        usage: &UsageReading,
        living: &[ProcessUsage],
    ) -> Option<LimitVerdict> {
        // The first entry becomes the youngest of those that are old enough.
        while self.window.get(1).is_some_and(|moment| now.duration_since(moment.at) >= WINDOW) {
            self.window.pop_front();
        }
        let throttled = usage.group.cpu_throttled.unwrap_or(0);
        let since = self.window.front().filter(|moment| now.duration_since(moment.at) >= WINDOW);
        let reading = since.map(|since| {
            let used = usage.cpu_time.saturating_sub(since.total).as_secs_f64();
            let mut percent = (100.0 * used / now.duration_since(since.at).as_secs_f64()) as u64;
            let LimitInForce { value, form, .. } = watched.limit;
            if form == LimitForm::Cgroup && throttled > since.throttled && percent >= value.saturating_mul(95) / 100 {
                // The kernel has throttled it at the limit for a whole second: it would take more.
                percent = percent.max(value.saturating_add(1));
            }
            let mut order: Vec<_> = living
                .iter()
                .map(|process| {
                    let before = since.each.get(&process.id).copied().unwrap_or_default();
                    (process.cpu_time.saturating_sub(before), process.id)
                })
                .collect();
            order.sort_unstable_by(|a, b| b.cmp(a));
            (percent, order.into_iter().map(|(_, id)| id).collect::<Vec<_>>())
        });
        if self.window.back().is_none_or(|moment| now.duration_since(moment.at) >= WINDOW_STEP) {
            let each = living.iter().map(|process| (process.id, process.cpu_time)).collect();
            self.window.push_back(CpuMoment { at: now, total: usage.cpu_time, throttled, each });
        }
        let (percent, order) = reading?;
        let announce = watched.record_measure(percent, now, self.action)?;
        let verdict = self.verdict(watched, percent, announce, &order, Some(1));
        if verdict.as_ref().is_some_and(|verdict| !verdict.victims.is_empty()) {
            // The usage of the dead process would count for a second more.
            self.window.clear();
        }
        verdict
    }

    /// Handles a file that was stopped at its limit, or has grown beyond it where nothing stops it.
    fn judge_files(
        &mut self,
        watched: &mut WatchedLimit,
        now: Instant,
        files: &[LargeFile],
        living: &[ProcessUsage],
    ) -> Option<LimitVerdict> {
        let LimitInForce { value, form, .. } = watched.limit;
        let stopped = |file: &LargeFile| form == LimitForm::Rlimit && file.size == value;
        let before = std::mem::take(&mut self.files);
        let mut passed = None;
        for file in files {
            let known = before.get(&file.file).copied();
            self.files.insert(file.file, file.size);
            // A file older than the session exceeds the limit by growing; one of the session's own by being too large
            // at all.
            let grown = match known {
                None => file.is_new,
                Some(known) => known < file.size && (known <= value || !file.is_new),
            };
            if (stopped(file) && known.is_none()) || (file.size > value && grown) {
                passed.get_or_insert(file);
            }
        }
        let file = passed?;
        self.writer = Some(file.process);
        let announce = watched.record_hit(now, self.action);
        let others = living.iter().any(|process| process.id != self.agent);
        // Nobody else's end would make the file smaller, but the agent is spared while there are others.
        let excess = if file.process == self.agent && others { 0 } else { 1 };
        self.verdict(watched, file.size, announce, &[file.process], Some(excess))
    }

    /// Handles a process that was ended by SIGXFSZ: the kernel stopped it from exceeding the limit on a file's size.
    pub fn record_exit(
        &mut self,
        limits: &Limits,
        process: ProcessId,
        exit: ExitStatus,
        now: Instant,
    ) -> Option<LimitVerdict> {
        let mut exceeded = file_size_exceeded(limits, process, exit)?;
        if self.is_ending || self.writer == Some(process) {
            return None;
        }
        let watched = self.watched.iter_mut().find(|watched| watched.limit.limit == LimitKind::FileSize)?;
        let announce = watched.record_hit(now, self.action);
        exceeded.value = watched.limit.value;
        self.is_ending |= exceeded.action == LimitAction::KillSession;
        (announce || self.is_ending).then_some(LimitVerdict { exceeded, announce, victims: Vec::new() })
    }
}

impl WatchedLimit {
    /// Applies a measured value. `None` while the limit holds; else true if the event is due now.
    fn record_measure(&mut self, measured: u64, now: Instant, action: LimitAction) -> Option<bool> {
        let value = self.limit.value;
        if measured <= value {
            self.is_unreported = false;
            // Below 90 %; or, if one unit is more than a tenth, at the limit.
            self.above &= measured >= value.saturating_mul(9).div_ceil(10) && value >= 10;
            return None;
        }
        self.is_unreported |= !std::mem::replace(&mut self.above, true);
        Some(self.is_unreported && self.may_report(now, action))
    }

    /// Records that the limit was hit. Returns true if the event is due now.
    fn record_hit(&mut self, now: Instant, action: LimitAction) -> bool {
        self.may_report(now, action)
    }

    fn may_report(&mut self, now: Instant, action: LimitAction) -> bool {
        let quiet = self.last_reported.is_none_or(|said| now.duration_since(said) >= WARN_INTERVAL);
        let may = action != LimitAction::Warn || quiet;
        if may {
            self.is_unreported = false;
            self.last_reported = Some(now);
        }
        may
    }
}

/// Interprets the end of a process under a session's limit on file sizes: the kernel ends a process that writes beyond
/// it by SIGXFSZ. `None` for any other end, and for a session without that limit.
///
/// Used by the observer of the session's processes: the proxy if it looks itself, else the host, which sees every end
/// that the fork server observes. The caller emits a `limit:exceeded` event, and ends the session if `action` requires
/// it; the process is dead already.
pub fn file_size_exceeded(limits: &Limits, process: ProcessId, exit: ExitStatus) -> Option<LimitExceeded> {
    let value = limits.file_size_bytes?;
    (exit == ExitStatus::Signal(Signal::SIGXFSZ as i32)).then_some(LimitExceeded {
        limit: LimitKind::FileSize,
        value,
        measured: value,
        form: LimitForm::Rlimit,
        action: limits.on_limit,
        process: Some(process),
    })
}

/// Converts seconds to an interval between readings.
fn time_for(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.clamp(SHORTEST.as_secs_f64(), LONGEST.as_secs_f64()))
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
