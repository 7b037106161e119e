//! Attribution of processes: turns the kernel's events on all processes into `process:spawned` and `process:exited` of
//! sessions.
//!
//! A pure state machine. A process belongs to the session of the process that forked it, whatever happens to that
//! parent later, so daemons and orphans stay with their session. The rules:
//!
//! * **Spawned** is emitted when a process first executes a program; or when it ends without having done so; or when
//!   its time for that is over ([`ProcessSight::is_past_exec_window`]): emitted earlier, it would carry its parent's command
//!   line. It always follows its parent's. Facts that `/proc` no longer has are left out (`command` is `None`), and the
//!   start time is then taken from the event.
//! * **Exited** is emitted when the first thread *and* all others have ended. A first thread may end long before the
//!   others: the set of threads decides, and the events report it exactly. The status is that of the thread that ended
//!   last, which is also the one the kernel gives the process (since Linux 6.0; before, that of a first thread which
//!   ended early by itself). A program executed by another thread looks like an end of the first thread, followed by an
//!   exec of the same pid: the process lives.
//! * **Before the first exec** of a session all its processes are the proxy's own: the init of a namespace, an
//!   intermediate process on the way to the agent, a failed attempt. Such a process is emitted only once it executes a
//!   program. From the first exec on every new process is the session's, even a child of the proxy itself: the agent
//!   can make one by `CLONE_PARENT`.
//! * **Reuse of a pid** shows in the events, which come in order: a fork of a known pid means that its end was missed.
//!   Events before a process's birth belong to an earlier one. Data from `/proc` count only if the process there is not
//!   younger than the one meant.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    time::Duration,
};

use ipc_protocol::{Event, ExitStatus, Pid, ProcessId, ProcessInfo, ProcessStatus, SessionId};

use crate::{ProcEvent, ProcLookup, ProcessSight, proc, process_sight::EXEC_WINDOW};

/// [`EXEC_WINDOW`] in nanoseconds, the unit of event times.
const EXEC_WINDOW_NANOS: u64 = EXEC_WINDOW.as_nanos() as u64;

/// Identifies one session's tree: minted when its proxy is added, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LineageRoot(u64);

/// Events to emit with their sessions, in order.
pub type LineageEvent = Vec<(LineageRoot, Event)>;

#[derive(Debug)]
struct LineageSession {
    id: SessionId,
    proxy: Pid,
    /// Time before which events are not the session's.
    since: u64,
    /// True after the first exec in the session.
    has_started: bool,
    /// True if a newer session has the same id: nothing can be emitted under it any more.
    is_superseded: bool,
}

#[derive(Debug)]
struct LineageProcess {
    root: LineageRoot,
    parent: Pid,
    /// Time of its fork: monotonic, in nanoseconds.
    forked_at: u64,
    /// Time of its fork in ticks since boot: its start time is not later.
    start: u64,
    executed: u64,
    threads: BTreeSet<Pid>,
    /// Exit status of its first thread.
    leader_exit: Option<ExitStatus>,
    /// True for the proxy's own process, as long as that executes nothing.
    is_helper: bool,
    /// Identity and command, once its start was emitted.
    reported: Option<(ProcessId, Option<String>)>,
}

/// A process that may not have been emitted, and when to look at it: monotonic nanoseconds.
#[derive(Debug)]
struct UnreportedProcess {
    pid: Pid,
    forked_at: u64,
    due: u64,
}

/// The live processes of all sessions.
#[derive(Debug)]
pub struct Lineage {
    sessions: BTreeMap<LineageRoot, LineageSession>,
    /// The newest session of each name.
    names: BTreeMap<SessionId, LineageRoot>,
    proxies: BTreeMap<Pid, LineageRoot>,
    processes: BTreeMap<Pid, LineageProcess>,
    /// Forked processes whose start was not emitted when they were queued here.
    unreported: VecDeque<UnreportedProcess>,
    last_root: u64,
    /// Difference in nanoseconds between the boot clock and the monotonic clock: the time that the machine slept.
    boot_clock_offset: u64,
    ticks_per_second: u64,
}

impl Default for Lineage {
    fn default() -> Self {
        Self {
            sessions: BTreeMap::new(),
            names: BTreeMap::new(),
            proxies: BTreeMap::new(),
            processes: BTreeMap::new(),
            unreported: VecDeque::new(),
            last_root: 0,
            boot_clock_offset: 0,
            ticks_per_second: proc::ticks_per_second(),
        }
    }
}

impl Lineage {
    /// Sets the difference between the boot clock and the monotonic clock, in nanoseconds.
    pub fn set_boot_clock_offset(&mut self, nanoseconds: u64) {
        self.boot_clock_offset = nanoseconds;
    }

    /// Adds a session, whose processes will be descendants of `proxy`. `since` is a time after the proxy's fork and
    /// before its first fork for the session. Call it before applying any event of these.
    pub fn add(&mut self, id: SessionId, proxy: Pid, since: u64) -> LineageRoot {
        self.last_root += 1;
        let root = LineageRoot(self.last_root);
        let before = self.names.insert(id.clone(), root);
        if let Some(session) = before.and_then(|before| self.sessions.get_mut(&before)) {
            session.is_superseded = true;
        }
        self.sessions.insert(root, LineageSession { id, proxy, since, has_started: false, is_superseded: false });
        self.proxies.insert(proxy, root);
        root
    }

    /// Lists every session.
    pub fn roots(&self) -> impl Iterator<Item = LineageRoot> + use<'_> {
        self.sessions.keys().copied()
    }

    /// Returns the id of a session; `None` if a newer session has it.
    pub fn session(&self, root: LineageRoot) -> Option<&SessionId> {
        self.sessions.get(&root).filter(|session| !session.is_superseded).map(|session| &session.id)
    }

    /// Returns true if a session has no known process. Its proxy does not count.
    pub fn is_empty(&self, root: LineageRoot) -> bool {
        !self.processes.values().any(|process| process.root == root)
    }

    /// Applies an event of the kernel.
    pub fn apply(&mut self, event: ProcEvent, look: &mut impl ProcLookup, told: &mut LineageEvent) {
        match event {
            ProcEvent::Fork { parent, child, at } => self.on_fork(parent, child, at, look, told),
            ProcEvent::ThreadStarted { process, thread, at } => {
                if let Some(process) = self.alive_at(process, at) {
                    process.threads.insert(thread);
                }
            }
            ProcEvent::Exec { pid, at } => self.on_exec(pid, at, look, told),
            ProcEvent::LeaderExited { pid, exit, at } => {
                self.on_proxy_exit(pid, at);
                let Some(process) = self.alive_at(pid, at) else { return };
                // A program executed by another thread takes over the pid; the thread that had it may report its end
                // later.
                if at < process.executed {
                    return;
                }
                process.leader_exit = Some(exit);
                if process.threads.is_empty() {
                    self.on_exit(pid, Some(exit), look, told);
                }
            }
            ProcEvent::ThreadExited { process: pid, thread, exit, at } => {
                let Some(process) = self.alive_at(pid, at) else { return };
                let was_last = process.threads.remove(&thread) && process.threads.is_empty();
                if was_last && process.leader_exit.is_some() {
                    self.on_exit(pid, Some(exit), look, told);
                }
            }
        }
    }

    fn alive_at(&mut self, pid: Pid, at: u64) -> Option<&mut LineageProcess> {
        self.processes.get_mut(&pid).filter(|process| process.forked_at <= at)
    }

    fn on_proxy_exit(&mut self, pid: Pid, at: u64) {
        if let Some(root) = self.proxies.get(&pid)
            && self.sessions.get(root).is_none_or(|session| session.since <= at)
        {
            self.proxies.remove(&pid);
        }
    }

    fn on_fork(&mut self, parent: Pid, child: Pid, at: u64, look: &mut impl ProcLookup, told: &mut LineageEvent) {
        if let Some(known) = self.processes.get(&child) {
            let start = known.start;
            let is_the_same =
                self.ticks(at) <= start + 1 || look.lookup(child).is_ok_and(|seen| seen.start_time <= start + 1);
            // A resynchronization found the process before its fork was read.
            if is_the_same {
                return;
            }
            self.on_exit(child, None, look, told);
        }
        self.on_proxy_exit(child, at);
        let root = match (self.proxies.get(&parent), self.processes.get(&parent)) {
            (Some(root), _) if self.sessions.get(root).is_some_and(|session| session.since <= at) => *root,
            (_, Some(parent)) if parent.forked_at <= at => parent.root,
            _ => return,
        };
        let is_helper = self.sessions.get(&root).is_some_and(|session| !session.has_started);
        self.insert(child, LineageProcess::new(root, parent, at, self.ticks(at), is_helper));
    }

    fn insert(&mut self, pid: Pid, process: LineageProcess) {
        self.unreported.push_back(UnreportedProcess {
            pid,
            forked_at: process.forked_at,
            due: process.forked_at + EXEC_WINDOW_NANOS,
        });
        self.processes.insert(pid, process);
    }

    fn on_exec(&mut self, pid: Pid, at: u64, look: &mut impl ProcLookup, told: &mut LineageEvent) {
        let Some(process) = self.alive_at(pid, at) else { return };
        process.executed = at;
        process.threads.clear();
        process.leader_exit = None;
        process.is_helper = false;
        let root = process.root;
        self.report_started(pid, root, look, told);
    }

    /// Emits the start of a process that executed a program. The first one marks its session as started.
    fn report_started(&mut self, pid: Pid, root: LineageRoot, look: &mut impl ProcLookup, told: &mut LineageEvent) {
        self.report(pid, look, told);
        if let Some(session) = self.sessions.get_mut(&root) {
            session.has_started = true;
        }
    }

    /// Emits the start of a process if that is due, after those of its ancestors.
    fn report(&mut self, pid: Pid, look: &mut impl ProcLookup, told: &mut LineageEvent) {
        let mut line = Vec::new();
        let mut next = Some(pid);
        while let Some(pid) = next
            && let Some(process) = self.processes.get(&pid)
            && process.reported.is_none()
        {
            line.push(pid);
            // A parent is older than its child; a younger process merely reused the parent's pid.
            let parent = self.processes.get(&process.parent);
            next =
                parent.filter(|p| p.root == process.root && p.forked_at <= process.forked_at).map(|_| process.parent);
        }
        for pid in line.into_iter().rev() {
            self.report_one(pid, look, told);
        }
    }

    fn report_one(&mut self, pid: Pid, look: &mut impl ProcLookup, told: &mut LineageEvent) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        let Some(session) = self.sessions.get(&process.root) else { return };
        if process.is_helper {
            return;
        }
        let seen = look.lookup(pid).ok().filter(|seen| seen.start_time <= process.start + 1);
        let (mut words, mut cwd) = (Vec::new(), None);
        if seen.is_some_and(|seen| !seen.is_dead) {
            words = look.command_line(pid);
            cwd = look.cwd(pid);
        }
        let start_time = seen.map_or(process.start, |seen| seen.start_time);
        process.start = start_time;
        let id = ProcessId { pid, start_time };
        let mut words = words.into_iter();
        let command = words.next();
        process.reported = Some((id, command.clone()));
        if session.is_superseded {
            return;
        }
        let info = ProcessInfo {
            id,
            ppid: process.parent,
            pgid: seen.map_or(0, |seen| seen.pgid),
            sid: seen.map_or(0, |seen| seen.sid),
            session_id: session.id.clone(),
            command,
            args: words.collect(),
            cwd,
            started_at: proc::started_at(start_time),
            status: ProcessStatus::Running,
            exit: None,
            error: None,
            cpu_percent: None,
            rss_bytes: None,
            // The agent is the first program that the session executes.
            tracked: !session.has_started,
        };
        told.push((process.root, Event::ProcessSpawned(Box::new(info))));
    }

    /// Emits the end of a process, after its start if that was not emitted yet.
    fn on_exit(&mut self, pid: Pid, exit: Option<ExitStatus>, look: &mut impl ProcLookup, told: &mut LineageEvent) {
        self.report(pid, look, told);
        let Some(process) = self.processes.remove(&pid) else { return };
        if let Some((process_id, command)) = process.reported
            && self.session(process.root).is_some()
        {
            told.push((process.root, Event::ProcessExited { process: process_id, command, exit }));
        }
    }

    /// Time at which [`Lineage::tick`] is due, in monotonic nanoseconds.
    pub fn due(&mut self) -> Option<u64> {
        while let Some(quiet) = self.unreported.front() {
            let waits = |process: &LineageProcess| process.forked_at == quiet.forked_at && process.reported.is_none();
            if self.processes.get(&quiet.pid).is_some_and(waits) {
                return Some(quiet.due);
            }
            self.unreported.pop_front();
        }
        None
    }

    /// Advances the time: emits the starts of processes whose time without an exec is over.
    pub fn tick(&mut self, now: u64, look: &mut impl ProcLookup, told: &mut LineageEvent) {
        while self.due().is_some_and(|due| due <= now)
            && let Some(quiet) = self.unreported.pop_front()
        {
            let age = Duration::from_nanos(now.saturating_sub(quiet.forked_at));
            if look.lookup(quiet.pid).is_ok_and(|seen| !seen.is_past_exec_window(age)) {
                self.unreported.push_back(UnreportedProcess { due: now + EXEC_WINDOW_NANOS, ..quiet });
                continue;
            }
            // Emits nothing for a helper, which stays hidden until it executes a program.
            self.report(quiet.pid, look, told);
        }
    }

    /// Rebuilds a session from `/proc` after events were lost: looks below its proxy and below its known processes.
    /// Missing processes have ended with unknown status. One session per call, since it may take some milliseconds.
    pub fn resynchronize(&mut self, root: LineageRoot, look: &mut impl ProcLookup, told: &mut LineageEvent) {
        let known: Vec<Pid> =
            self.processes.iter().filter(|(_, process)| process.root == root).map(|(pid, _)| *pid).collect();
        for pid in known {
            let Some(process) = self.processes.get_mut(&pid) else { continue };
            match look.lookup(pid) {
                Ok(seen) if seen.start_time <= process.start + 1 && !seen.is_dead => {
                    process.update_from_proc(pid, seen, look);
                    if seen.has_execed {
                        self.report_started(pid, root, look, told);
                    }
                }
                // The look failed, so nothing is known to have changed.
                Err(error) if error.kind() != io::ErrorKind::NotFound => {}
                _ => self.on_exit(pid, None, look, told),
            }
        }
        let proxy = self.proxies.iter().find(|(_, of)| **of == root).map(|(pid, _)| *pid);
        let known = self.processes.iter().filter(|(_, process)| process.root == root).map(|(pid, _)| *pid);
        let mut todo: VecDeque<Pid> = proxy.into_iter().chain(known).collect();
        let mut visited = BTreeSet::new();
        while let Some(parent) = todo.pop_front() {
            if !visited.insert(parent) {
                continue;
            }
            for child in look.children(parent) {
                if let Ok(seen) = look.lookup(child)
                    && seen.parent == parent
                {
                    self.on_found(root, parent, child, seen, look, told);
                    todo.push_back(child);
                }
            }
        }
    }

    /// Adds a process that was found in the tree.
    fn on_found(
        &mut self,
        root: LineageRoot,
        parent: Pid,
        pid: Pid,
        seen: ProcessSight,
        look: &mut impl ProcLookup,
        told: &mut LineageEvent,
    ) {
        if let Some(known) = self.processes.get(&pid) {
            if seen.start_time <= known.start + 1 {
                return;
            }
            self.on_exit(pid, None, look, told);
        }
        if seen.is_dead {
            // Its remaining events are still to come, or were lost.
            return;
        }
        let Some(session) = self.sessions.get_mut(&root) else { return };
        let is_helper = !session.has_started && !seen.has_execed;
        let born = self.monotonic(seen.start_time);
        let mut process = LineageProcess::new(root, parent, born, seen.start_time, is_helper);
        process.update_from_proc(pid, seen, look);
        self.insert(pid, process);
        if seen.has_execed {
            self.report_started(pid, root, look, told);
        }
    }

    /// Removes a session that is proven over: processes not known to have ended have ended.
    pub fn remove(&mut self, root: LineageRoot, look: &mut impl ProcLookup, told: &mut LineageEvent) {
        let left: Vec<Pid> =
            self.processes.iter().filter(|(_, process)| process.root == root).map(|(pid, _)| *pid).collect();
        for pid in left {
            self.on_exit(pid, None, look, told);
        }
        let Some(session) = self.sessions.remove(&root) else { return };
        if self.proxies.get(&session.proxy) == Some(&root) {
            self.proxies.remove(&session.proxy);
        }
        if self.names.get(&session.id) == Some(&root) {
            self.names.remove(&session.id);
        }
    }

    /// Converts a fork's time to the process's start time in ticks.
    fn ticks(&self, at: u64) -> u64 {
        let since_boot = u128::from(at) + u128::from(self.boot_clock_offset);
        u64::try_from(since_boot * u128::from(self.ticks_per_second) / 1_000_000_000).unwrap_or(u64::MAX)
    }

    /// Converts ticks to the monotonic time at which the tick began.
    fn monotonic(&self, ticks: u64) -> u64 {
        let since_boot = u128::from(ticks) * 1_000_000_000 / u128::from(self.ticks_per_second);
        u64::try_from(since_boot).unwrap_or(u64::MAX).saturating_sub(self.boot_clock_offset)
    }
}

impl LineageProcess {
    fn new(root: LineageRoot, parent: Pid, forked_at: u64, start: u64, is_helper: bool) -> Self {
        Self {
            root,
            parent,
            forked_at,
            start,
            executed: 0,
            threads: BTreeSet::new(),
            leader_exit: None,
            is_helper,
            reported: None,
        }
    }

    /// Takes from `/proc` the state that events would have reported.
    fn update_from_proc(&mut self, pid: Pid, seen: ProcessSight, look: &mut impl ProcLookup) {
        self.threads = look.threads(pid).into_iter().collect();
        // The status was lost with its event. It counts only if no other thread ends later.
        self.leader_exit = seen.leader_is_dead.then(|| self.leader_exit.unwrap_or(ExitStatus::Code(0)));
        self.is_helper &= !seen.has_execed;
    }
}

#[cfg(test)]
mod tests;
