//! Registry of a session's processes.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    time::{Duration, Instant},
};

use ipc_protocol::{ExitStatus, Pid, ProcessId, ProcessInfo, ProcessStatus, ReapedBy, SessionId, WireError};

use crate::{
    SessionHold, SpawnRequest, SpawnedProcess, cgroup, proc,
    sample::{CpuSampler, ProcessSample},
    spawn,
    stat::ProcStat,
    sys::{self, DeadChild},
    usage::ProcessReading,
};

/// Maximum number of finished processes that are remembered; the oldest are forgotten first.
const MAX_FINISHED: usize = 4096;
/// Maximum time of a pass that has to be complete. Tens of thousands of stopped processes are seen in that time.
const SCAN_TIMEOUT: Duration = Duration::from_millis(500);
/// Interval at which such a pass stops to reap.
const SCAN_SLICE: Duration = Duration::from_millis(10);
/// Maximum number of dead children reaped then.
const SCAN_REAPS: usize = 1024;
/// Maximum number of pending events; beyond it [`RegistryEvent::Lost`] counts.
const MAX_EVENTS: usize = 8192;

/// Event of a registry.
#[derive(Clone, Debug, PartialEq)]
pub enum RegistryEvent {
    /// A process was seen for the first time.
    Spawned(Box<ProcessInfo>),
    /// A process ended by itself, or with unknown status.
    Exited {
        /// The process.
        process: ProcessId,
        /// First word of its command line, if it was read.
        command: Option<String>,
        /// Exit status, if known.
        exit: Option<ExitStatus>,
    },
    /// A signal ended a process.
    Killed {
        /// The process.
        process: ProcessId,
        /// First word of its command line, if it was read.
        command: Option<String>,
        /// The signal's number.
        signal: i32,
    },
    /// An operation failed.
    Error {
        /// Operation that failed.
        operation: String,
        /// Reason for the failure.
        error: String,
    },
    /// This number of events was not taken in time and is lost.
    Lost(u64),
}

/// A dead process that was reaped.
#[derive(Clone, Debug)]
pub struct ReapedProcess {
    /// Identity of the process. The start time is 0 if `stat` is `None`.
    pub id: ProcessId,
    /// Exit status.
    pub exit: ExitStatus,
    /// Data from `/proc`; `None` if they could not be read.
    stat: Option<Box<ProcStat>>,
}

/// Result of reaping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReapOutcome {
    /// No child is left: ECHILD. Everything ever started below this subreaper is gone.
    None,
    /// There are children, none of them dead.
    Alive,
    /// The bound was reached and more dead children may wait.
    MoreDead,
}

/// Reaps up to `limit` dead children of this process, of any kind, and passes each to `reaped`.
///
/// Only the one reaper of a process may call it: it takes statuses that other waiters expect.
///
/// # Errors
/// An error of the system call; Linux has none left for these calls.
pub fn reap_children(limit: usize, mut reaped: impl FnMut(ReapedProcess)) -> io::Result<ReapOutcome> {
    for _ in 0..limit {
        match sys::peek_dead_child()? {
            DeadChild::NoChildren => return Ok(ReapOutcome::None),
            DeadChild::NoneYet => return Ok(ReapOutcome::Alive),
            DeadChild::Child(pid) => {
                // The child is unreaped, so its pid is still its own and /proc still has its data. It is reaped even if
                // nothing can be read (no descriptor left): otherwise it would be peeked for ever.
                let stat = proc::stat(pid).ok().map(Box::new);
                let Some(exit) = sys::reap(pid)? else { continue };
                let id = ProcessId { pid, start_time: stat.as_ref().map_or(0, |stat| stat.starttime) };
                reaped(ReapedProcess { id, exit, stat });
            }
        }
    }
    Ok(ReapOutcome::MoreDead)
}

/// Returns up to `limit` children of this process that were stopped since the last call. SIGCHLD signals that there may
/// be some. Nothing is reaped.
///
/// # Errors
/// An error of the system call; Linux has none left for this call.
pub fn stopped_children(limit: usize) -> io::Result<Vec<Pid>> {
    let mut stopped = Vec::new();
    while stopped.len() < limit
        && let Some(pid) = sys::take_stopped_child()?
    {
        stopped.push(pid);
    }
    Ok(stopped)
}

/// Position of a registry's processes in the tree.
#[derive(Debug)]
enum RegistryRoots {
    /// Below this process, which is their subreaper and reaps them.
    Own,
    /// Below these, for a process that this one guards; `None` if they could not be looked up.
    Guarded(Option<Vec<Pid>>),
}

#[derive(Debug)]
pub(crate) struct RegistryEntry {
    pub(crate) info: ProcessInfo,
    pub(crate) reaped_by: Option<ReapedBy>,
    pub(crate) ended_at: Option<Instant>,
}

/// A pass over the tree, which may take several calls.
#[derive(Debug, Default)]
pub(crate) struct TreeWalk {
    /// Generation of the registry when the pass began.
    generation: u64,
    /// Pids to visit, each with the parent whose children list has it; `None` for a root.
    pending: Vec<(Pid, Option<Pid>)>,
    /// Processes that are listed for the session's group alone.
    members: BTreeSet<Pid>,
    /// When the roots were listed, in clock ticks since boot.
    began: u64,
    visited: BTreeSet<Pid>,
    /// True if a look failed.
    is_incomplete: bool,
}

/// Every process of one session: those it started itself, and all of their descendants.
///
/// It works only when called and has no thread of its own: call [`ProcessRegistry::reap`] on SIGCHLD,
/// [`ProcessRegistry::scan`] as often as spawns and exits are to be noticed, and [`crate::KillLoop::step`] while a kill
/// runs.
///
/// ```no_run
/// use registry::{ProcessRegistry, SpawnRequest};
/// use ipc_protocol::{KillCause, KillOptions, SessionId};
/// let mut registry = ProcessRegistry::new(SessionId::mint()).unwrap();
/// registry.spawn(SpawnRequest::new("/bin/true")).unwrap();
/// let receipt = registry.kill_all(KillOptions::default());
/// assert!(receipt.is_empty());
/// ```
#[derive(Debug)]
pub struct ProcessRegistry {
    session: SessionId,
    roots: RegistryRoots,
    entries: BTreeMap<ProcessId, RegistryEntry>,
    /// Live processes by pid.
    living_by_pid: BTreeMap<Pid, ProcessId>,
    events: VecDeque<RegistryEvent>,
    lost: u64,
    walk: Option<TreeWalk>,
    /// Number of passes that were given up.
    generation: u64,
    /// Readings of a pass, while a caller wants them.
    readings: Option<Vec<ProcessReading>>,
    /// True if the last complete pass could not see everything.
    last_pass_incomplete: bool,
    /// Containment besides the process tree.
    pub(crate) hold: SessionHold,
    /// Processes of the session found outside the tree.
    pub(crate) strays: Vec<ProcessId>,
    /// Number of ended processes that were forgotten because there were too many.
    pub(crate) forgotten: u64,
    /// Number of processes seen for the first time: two equal values mean that nothing new turned up in between.
    pub(crate) discoveries: u64,
    /// True if a pass looks only at the members of the cgroup, not below them: all of it is about to be killed at once,
    /// and the next pass sees processes that left the group.
    pub(crate) members_only: bool,
    /// The process that is being visited, if it was seen for the first time just now.
    newly_found: Option<ProcessId>,
    sampler: CpuSampler,
}

impl ProcessRegistry {
    /// Creates the registry of everything below this process, which becomes a subreaper: orphaned descendants become
    /// its children. A process can have one such registry only: it reaps all children.
    ///
    /// # Errors
    /// An error of the system call, if the system has no subreapers.
    pub fn new(session: SessionId) -> io::Result<Self> {
        nix::sys::prctl::set_child_subreaper(true)?;
        Ok(Self::with_roots(session, RegistryRoots::Own))
    }

    /// Creates the registry of a session whose proxy cannot keep its own. The caller provides the roots of its
    /// processes ([`ProcessRegistry::set_roots`]) and the processes it reaped ([`ProcessRegistry::record_reaped`]).
    pub fn guard(session: SessionId) -> Self {
        Self::with_roots(session, RegistryRoots::Guarded(None))
    }

    fn with_roots(session: SessionId, roots: RegistryRoots) -> Self {
        Self {
            session,
            roots,
            entries: BTreeMap::new(),
            living_by_pid: BTreeMap::new(),
            events: VecDeque::new(),
            lost: 0,
            walk: None,
            generation: 0,
            readings: None,
            last_pass_incomplete: false,
            hold: SessionHold::default(),
            strays: Vec::new(),
            forgotten: 0,
            discoveries: 0,
            members_only: false,
            newly_found: None,
            sampler: CpuSampler::default(),
        }
    }

    /// Id of the session.
    pub fn session(&self) -> &SessionId {
        &self.session
    }

    /// Sets the processes from which the next pass starts; `None` if they could not be looked up: such a pass sees
    /// nothing, and proves nothing.
    pub fn set_roots(&mut self, roots: Option<Vec<Pid>>) {
        self.roots = RegistryRoots::Guarded(roots);
    }

    /// Gives up a pass that is under way. Call it when a process was forked that is not this session's: it may have a
    /// pid that is still on the list.
    pub fn restart_pass(&mut self) {
        self.walk = None;
        self.generation += 1;
    }

    /// Exchanges the pass under way for another one: each kill has its own. A pass that was given up is dropped.
    pub(crate) fn swap_pass(&mut self, pass: &mut Option<TreeWalk>) {
        std::mem::swap(&mut self.walk, pass);
        self.walk.take_if(|walk| walk.generation != self.generation);
    }

    /// Returns true if the last complete pass could not see everything.
    pub(crate) fn was_incomplete(&self) -> bool {
        self.last_pass_incomplete
    }

    /// Makes the next pass start from the children of `pid`.
    pub fn set_roots_below(&mut self, pid: Pid) {
        let mut roots = Vec::new();
        let looked = proc::children(pid, &mut roots);
        self.set_roots(looked.is_ok().then_some(roots));
    }

    /// Returns true if this registry reaps its processes itself.
    pub(crate) fn is_own(&self) -> bool {
        matches!(self.roots, RegistryRoots::Own)
    }

    /// Starts a program and tracks it.
    ///
    /// # Errors
    /// As [`spawn()`].
    pub fn spawn(&mut self, program: SpawnRequest) -> Result<SpawnedProcess, WireError> {
        let mut words = program.argv.iter().map(|word| word.to_string_lossy().into_owned());
        let mut room = ProcessInfo::MAX_COMMAND_LINE;
        let mut fits = |word: &String| {
            room = room.saturating_sub(word.len() + 1);
            room > 0
        };
        let command = words.next();
        let args = words.by_ref().take_while(&mut fits).collect();
        let cwd = program.cwd.as_ref().map(|cwd| cwd.to_string_lossy().into_owned());
        let spawned = spawn::spawn(program)?;
        let id = spawned.id();
        // These facts need no look: the program was started with them.
        let info = ProcessInfo {
            id,
            ppid: std::process::id(),
            pgid: id.pid,
            sid: id.pid,
            session_id: self.session.clone(),
            command,
            args,
            cwd: cwd.or_else(|| proc::cwd(id.pid)),
            started_at: proc::started_at(id.start_time),
            status: ProcessStatus::Running,
            exit: None,
            error: None,
            cpu_percent: None,
            rss_bytes: None,
            tracked: true,
        };
        self.insert(id, info);
        Ok(spawned)
    }

    /// Adds what a process said last to the error of its end. Does nothing for one that has none.
    pub fn explain_error(&mut self, id: ProcessId, words: &str) {
        if let Some(error) = self.entries.get_mut(&id).and_then(|entry| entry.info.error.as_mut())
            && !words.is_empty()
        {
            *error = format!("{error}: {words}");
        }
    }

    /// Returns true if this registry has ever seen `id`.
    pub fn has_seen(&self, id: ProcessId) -> bool {
        self.entries.contains_key(&id)
    }

    /// Returns the live process with this pid, as last seen.
    pub fn find_living(&self, pid: Pid) -> Option<ProcessId> {
        self.living_by_pid.get(&pid).copied()
    }

    /// Returns the parent of a live process, as last seen; `None` if that is not this session's.
    pub(crate) fn parent_of(&self, id: ProcessId) -> Option<ProcessId> {
        self.find_living(self.entries.get(&id)?.info.ppid)
    }

    /// Lists every live process, as last seen.
    pub fn living(&self) -> impl ExactSizeIterator<Item = ProcessId> + use<'_> {
        self.living_by_pid.values().copied()
    }

    /// Exit status of `id`; `None` while it lives, if it is unknown, or if nobody saw the status.
    pub fn exit_of(&self, id: ProcessId) -> Option<ExitStatus> {
        self.entries.get(&id)?.info.exit
    }

    /// Reaps up to `limit` dead children.
    ///
    /// # Errors
    /// As [`reap_children`].
    pub fn reap(&mut self, limit: usize) -> io::Result<ReapOutcome> {
        let mut dead = Vec::new();
        let children = reap_children(limit, |reaped| dead.push(reaped))?;
        for reaped in dead {
            self.record_reaped(&reaped, ReapedBy::Proxy);
        }
        Ok(children)
    }

    /// Records a process of this session that was reaped.
    pub fn record_reaped(&mut self, reaped: &ReapedProcess, by: ReapedBy) {
        if self.is_init(reaped.id.pid) {
            return;
        }
        let id = match &reaped.stat {
            Some(stat) => {
                if !self.has_seen(reaped.id) {
                    // The process lived between two looks. Its command line is gone with its memory.
                    let info = self.describe(reaped.id, stat);
                    self.insert(reaped.id, info);
                }
                reaped.id
            }
            // Until it was reaped its pid was its own.
            None => match self.find_living(reaped.id.pid) {
                Some(id) => id,
                None => return self.emit(RegistryEvent::Lost(1)),
            },
        };
        self.record_exit(id, Some(reaped.exit), Some(by));
    }

    /// Looks for new and vanished processes. A storm of forks could be followed for ever: such a pass is given up, and
    /// has seen only a part.
    pub fn scan(&mut self) {
        let began = Instant::now();
        while !self.scan_slice(SCAN_SLICE, |_, _| ()) {
            if self.is_own() {
                // The dead of a storm would take every pid there is. Waiting for the dead meets an error again.
                let _ = self.reap(SCAN_REAPS);
            }
            if began.elapsed() > SCAN_TIMEOUT {
                self.walk = None;
                self.last_pass_incomplete = true;
                return;
            }
        }
    }

    /// Scans like [`ProcessRegistry::scan`], and returns a reading of each process met, including dead ones that wait
    /// to be reaped. A pass that is under way continues afterwards.
    pub(crate) fn scan_with_readings(&mut self) -> Vec<ProcessReading> {
        let under_way = self.walk.take();
        self.readings = Some(Vec::new());
        self.scan();
        self.walk = under_way;
        self.readings.take().unwrap_or_default()
    }

    /// Scans like [`ProcessRegistry::scan`], for about `budget` at a time, and calls `visit` for each live process.
    /// Returns true if the pass is complete; otherwise the next call continues it.
    pub(crate) fn scan_slice(&mut self, budget: Duration, mut visit: impl FnMut(&mut Self, ProcessId)) -> bool {
        let began = Instant::now();
        let own = std::process::id();
        let mut walk = self.walk.take().unwrap_or_else(|| self.begin_walk(own));
        let mut found = Vec::new();
        while let Some((pid, parent)) = walk.pending.pop() {
            if began.elapsed() > budget {
                walk.pending.push((pid, parent));
                self.walk = Some(walk);
                return false;
            }
            if !walk.visited.insert(pid) {
                continue;
            }
            let stat = match proc::stat(pid) {
                Ok(stat) => stat,
                Err(error) => {
                    walk.is_incomplete |= error.kind() != io::ErrorKind::NotFound;
                    continue;
                }
            };
            // The pid may have been reused since the list was read. A member's parent is the one it was listed under,
            // this subreaper, or another member.
            let ppid = stat.ppid.unsigned_abs();
            let is_ours = match parent {
                Some(parent) => ppid == parent || ppid == own || walk.visited.contains(&ppid),
                // A process that reused a root's pid since is younger than the list.
                None => stat.starttime <= walk.began,
            };
            if !is_ours {
                continue;
            }
            let id = ProcessId { pid, start_time: stat.starttime };
            if parent.is_none() && walk.members.contains(&pid) && self.is_foreign(id, ppid) {
                self.move_out(pid);
                continue;
            }
            self.newly_found = None;
            let is_init = self.is_init(pid);
            if let Some(readings) = &mut self.readings {
                readings.push(ProcessReading::new(id, &stat, is_init));
            }
            if !is_init && self.record_found(id, &stat) {
                visit(self, id);
            }
            if self.members_only && parent.is_none() {
                continue;
            }
            let children = if stat.num_threads == 1 { proc::children_of_single } else { proc::children };
            walk.is_incomplete |= children(pid, &mut found).is_err();
            walk.pending.extend(found.drain(..).map(|child| (child, Some(pid))));
        }
        self.record_vanished(&walk.visited);
        self.last_pass_incomplete = walk.is_incomplete;
        true
    }

    fn begin_walk(&mut self, own: Pid) -> TreeWalk {
        let mut roots = Vec::new();
        // Read before the roots are listed: a process that reuses the pid of one is younger.
        let began = proc::now_in_ticks();
        let mut blind = match &self.roots {
            RegistryRoots::Own => proc::children(own, &mut roots).is_err(),
            RegistryRoots::Guarded(Some(pids)) => {
                roots.clone_from(pids);
                false
            }
            RegistryRoots::Guarded(None) => true,
        };
        let mut members = Vec::new();
        if let Some(group) = &self.hold.group {
            blind |= group.members(&mut members).is_err();
        }
        if members.contains(&own) {
            self.move_out(own);
        }
        // What is below us as well is no stranger.
        members.retain(|pid| !roots.contains(pid));
        roots.extend_from_slice(&members);
        // One whose pid is another's by now is none of ours.
        roots.extend(
            self.strays.iter().filter(|id| proc::identify(id.pid).is_ok_and(|now| now == **id)).map(|id| id.pid),
        );
        roots.retain(|pid| *pid != own);
        TreeWalk {
            generation: self.generation,
            pending: roots.into_iter().map(|pid| (pid, None)).collect(),
            members: members.into_iter().collect(),
            began,
            visited: BTreeSet::new(),
            is_incomplete: blind,
        }
    }

    /// Moves a process out of the session's group that is none of the session's.
    fn move_out(&mut self, pid: Pid) {
        if let Err(error) = cgroup::move_home(pid) {
            let operation = "moving a process that is not the session's out of its cgroup".into();
            self.emit(RegistryEvent::Error { operation, error: error.to_string() });
        }
    }

    /// Takes note of a process found in the tree; says whether it is alive.
    fn record_found(&mut self, id: ProcessId, stat: &ProcStat) -> bool {
        let dead = proc::is_dead(stat);
        match self.entries.get_mut(&id) {
            Some(entry) => {
                entry.info.ppid = stat.ppid.unsigned_abs();
                entry.info.pgid = stat.pgrp.unsigned_abs();
                entry.info.sid = stat.session.unsigned_abs();
            }
            None => {
                let info = self.describe(id, stat);
                self.insert(id, info);
            }
        }
        if dead {
            self.record_exit(id, proc::exit_of(stat), None);
        }
        !dead
    }

    /// Ends entries whose processes are gone. A process that a pass missed, because it changed parents meanwhile, is
    /// still there.
    fn record_vanished(&mut self, visited: &BTreeSet<Pid>) {
        let missing: Vec<_> = self.living_by_pid.values().filter(|id| !visited.contains(&id.pid)).copied().collect();
        for id in missing {
            let gone = match proc::identify(id.pid) {
                Ok(now) => now != id,
                Err(error) => error.kind() == io::ErrorKind::NotFound,
            };
            if gone {
                self.record_exit(id, None, Some(ReapedBy::Parent));
            }
        }
    }

    fn describe(&self, id: ProcessId, stat: &ProcStat) -> ProcessInfo {
        let mut words = proc::command_line(id.pid).unwrap_or_default().into_iter();
        ProcessInfo {
            id,
            ppid: stat.ppid.unsigned_abs(),
            pgid: stat.pgrp.unsigned_abs(),
            sid: stat.session.unsigned_abs(),
            session_id: self.session.clone(),
            command: words.next(),
            args: words.collect(),
            // Costs a look of its own; callers that show a process read it then.
            cwd: None,
            started_at: proc::started_at(id.start_time),
            status: ProcessStatus::Running,
            exit: None,
            error: None,
            cpu_percent: None,
            rss_bytes: None,
            tracked: false,
        }
    }

    fn insert(&mut self, id: ProcessId, info: ProcessInfo) {
        self.discoveries += 1;
        self.newly_found = Some(id);
        // Another process can have this pid only if its end was missed.
        if let Some(before) = self.living_by_pid.insert(id.pid, id) {
            self.record_exit(before, None, Some(ReapedBy::Parent));
            self.living_by_pid.insert(id.pid, id);
        }
        self.emit(RegistryEvent::Spawned(Box::new(info.clone())));
        self.entries.insert(id, RegistryEntry { info, reaped_by: None, ended_at: None });
        self.forget_beyond_bound();
    }

    fn record_exit(&mut self, id: ProcessId, exit: Option<ExitStatus>, by: Option<ReapedBy>) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        entry.reaped_by = entry.reaped_by.or(by);
        if entry.ended_at.is_some() {
            // Seen dead before it was reaped: reaping is surer about the status.
            entry.info.exit = exit.or(entry.info.exit);
            entry.info.error = entry.info.error.take().or(exit.and_then(ExitStatus::error));
            return;
        }
        entry.ended_at = Some(Instant::now());
        entry.info.exit = exit;
        entry.info.error = exit.and_then(ExitStatus::error);
        entry.info.status = ProcessStatus::of_exit(exit);
        (entry.info.cpu_percent, entry.info.rss_bytes) = (None, None);
        let command = entry.info.command.clone();
        if self.living_by_pid.get(&id.pid) == Some(&id) {
            self.living_by_pid.remove(&id.pid);
        }
        self.emit(match exit {
            Some(ExitStatus::Signal(signal)) => RegistryEvent::Killed { process: id, command, signal },
            exit => RegistryEvent::Exited { process: id, command, exit },
        });
    }

    pub(crate) fn emit(&mut self, event: RegistryEvent) {
        if self.events.len() >= MAX_EVENTS {
            self.lost += 1;
            return;
        }
        self.events.push_back(event);
    }

    /// Takes the next event; `None` when all were taken.
    pub fn next_event(&mut self) -> Option<RegistryEvent> {
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        (self.lost > 0).then(|| RegistryEvent::Lost(std::mem::take(&mut self.lost)))
    }

    /// Lists every process as it is now: live ones first, by start time, then finished ones that are still remembered.
    pub fn list(&mut self) -> Vec<ProcessInfo> {
        self.scan();
        let live: Vec<_> = self.living_by_pid.values().copied().collect();
        let samples = self.sampler.sample(&live);
        self.list_with(&samples)
    }

    /// Lists like [`ProcessRegistry::list`], without CPU and memory: cheaper, and leaves the sampler's state alone.
    pub fn list_unmeasured(&mut self) -> Vec<ProcessInfo> {
        self.scan();
        self.list_with(&BTreeMap::new())
    }

    fn list_with(&mut self, samples: &BTreeMap<ProcessId, ProcessSample>) -> Vec<ProcessInfo> {
        let live: Vec<_> = self.living_by_pid.values().copied().collect();
        for id in live {
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            // An exec since the last look changes these.
            if let Some(words) = proc::command_line(id.pid) {
                let mut words = words.into_iter();
                (entry.info.command, entry.info.args) = (words.next(), words.collect());
            }
            entry.info.cwd = proc::cwd(id.pid).or(entry.info.cwd.take());
            if let Some(sample) = samples.get(&id) {
                entry.info.cpu_percent = Some(sample.cpu_percent);
                entry.info.rss_bytes = Some(sample.rss_bytes);
            }
        }
        let mut all: Vec<_> = self.entries.values().map(|entry| entry.info.clone()).collect();
        all.sort_by_key(|info| (info.status != ProcessStatus::Running, info.id.start_time, info.id.pid));
        all
    }

    /// Forgets finished processes that ended longer ago than `max_age`. Returns their number.
    pub fn cleanup(&mut self, max_age: Duration) -> usize {
        let before = self.entries.len();
        self.entries.retain(|_, entry| entry.ended_at.is_none_or(|ended| ended.elapsed() <= max_age));
        before - self.entries.len()
    }

    fn forget_beyond_bound(&mut self) {
        let finished = self.entries.len() - self.living_by_pid.len().min(self.entries.len());
        if finished <= MAX_FINISHED {
            return;
        }
        // A quarter at a time, so that the search for the oldest is rare.
        let mut ends: Vec<_> = self.entries.values().filter_map(|entry| entry.ended_at).collect();
        ends.sort_unstable();
        if let Some(cut) = ends.get(MAX_FINISHED / 4).copied() {
            let before = self.entries.len();
            self.entries.retain(|_, entry| entry.ended_at.is_none_or(|ended| ended > cut));
            self.forgotten += (before - self.entries.len()) as u64;
        }
    }

    /// Entries for receipts.
    pub(crate) fn entries(&self) -> &BTreeMap<ProcessId, RegistryEntry> {
        &self.entries
    }

    /// Reads the command line of a live process again, unless it was read a moment ago.
    pub(crate) fn refresh_command(&mut self, id: ProcessId) {
        if self.newly_found == Some(id) {
            return;
        }
        let (Some(entry), Some(words)) = (self.entries.get_mut(&id), proc::command_line(id.pid)) else { return };
        let mut words = words.into_iter();
        (entry.info.command, entry.info.args) = (words.next(), words.collect());
    }

    /// Returns true if nothing is alive, as last seen.
    pub fn is_empty(&self) -> bool {
        self.living_by_pid.is_empty()
    }
}
