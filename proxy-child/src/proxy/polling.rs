//! Polling of `/proc` for processes that came and went, without events from the kernel.
//!
//! A working session is scanned all the time. An idle one sleeps: the fork server checks for all of them at once whether something came
//! or went, and nudges the affected proxies.

use std::time::{Duration, Instant, SystemTime};

use ipc_protocol::{Pid, ProcessInfo};
use registry::ProcLookup;

/// Time between scans while a turn is in progress, or something has just happened.
pub(crate) const FAST_INTERVAL: Duration = Duration::from_millis(10);
/// Time between scans of an idle session without a nudge, in case a nudge was lost.
const RARE_INTERVAL: Duration = Duration::from_secs(10);
/// Time after a prompt or a start for which an agent without turns counts as working.
const WORK_COOLDOWN: Duration = Duration::from_secs(2);
/// Most processes held back at once until their exec: each is checked again whenever the proxy wakes.
const MAX_AWAITING_EXEC: usize = 16;

/// Schedule of the scans, and processes that are too new to be emitted.
pub(crate) struct ProcessPolling {
    next: Instant,
    working_until: Instant,
    /// Processes between their fork and their exec, in the order in which they were seen: their future program is unknown.
    awaiting_exec: Vec<ProcessInfo>,
}

impl ProcessPolling {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self { next: now, working_until: now, awaiting_exec: Vec::new() }
    }

    /// Returns the time of the next scan.
    pub(crate) fn next(&self) -> Instant {
        self.next
    }

    /// Returns whether a turn is in progress, or something has just begun.
    pub(crate) fn is_working(&self, now: Instant, has_turn: bool) -> bool {
        has_turn || now < self.working_until
    }

    /// Records that the agent got something to do.
    pub(crate) fn work_begins(&mut self) {
        let now = Instant::now();
        self.working_until = now + WORK_COOLDOWN;
        self.next = now + FAST_INTERVAL;
    }

    /// Makes a scan due at once, since something came or went.
    pub(crate) fn poll_now(&mut self) {
        self.next = Instant::now();
    }

    /// Returns whether a scan is due now, and schedules the next one. `has_turn` says whether a turn is in progress.
    pub(crate) fn is_due(&mut self, now: Instant, has_turn: bool) -> bool {
        let is_due = now >= self.next;
        if is_due {
            let is_working = self.is_working(now, has_turn) || !self.awaiting_exec.is_empty();
            self.next = now + if is_working { FAST_INTERVAL } else { RARE_INTERVAL };
        }
        is_due
    }

    /// Returns whether another process can be taken. Otherwise it waits in the registry.
    pub(crate) fn has_room(&self) -> bool {
        self.awaiting_exec.len() < MAX_AWAITING_EXEC
    }

    /// Takes a process that was seen. Returns the processes to emit now: this one after its parent, or none yet if it is about to execute
    /// a program.
    pub(crate) fn on_found(
        &mut self,
        info: ProcessInfo,
        may_wait: bool,
        look: &mut impl ProcLookup,
    ) -> Vec<ProcessInfo> {
        let mut told = Vec::new();
        if may_wait && is_before_exec(&info, look) {
            self.awaiting_exec.push(info);
            self.next = self.next.min(Instant::now() + FAST_INTERVAL);
        } else {
            self.release(info.ppid, look, &mut told);
            told.push(refreshed(info, look));
        }
        told
    }

    /// Checks the processes again that were held back, and returns those to emit now: all of them, unless they `may_wait`.
    pub(crate) fn take_ready(&mut self, may_wait: bool, look: &mut impl ProcLookup) -> Vec<ProcessInfo> {
        let due =
            self.awaiting_exec.iter().filter(|info| !may_wait || !is_before_exec(info, look)).map(|info| info.id.pid);
        let due: Vec<_> = due.collect();
        let mut told = Vec::new();
        due.into_iter().for_each(|pid| self.release(pid, look, &mut told));
        told
    }

    /// Returns the processes to emit before the end of the process with this pid.
    pub(crate) fn on_exit(&mut self, pid: Pid, look: &mut impl ProcLookup) -> Vec<ProcessInfo> {
        let mut told = Vec::new();
        self.release(pid, look, &mut told);
        told
    }

    /// Releases the process with this pid, after its parent.
    fn release(&mut self, pid: Pid, look: &mut impl ProcLookup, told: &mut Vec<ProcessInfo>) {
        if let Some(at) = self.awaiting_exec.iter().position(|info| info.id.pid == pid) {
            let info = self.awaiting_exec.remove(at);
            self.release(info.ppid, look, told);
            told.push(refreshed(info, look));
        }
    }
}

/// Returns whether a process is about to execute a program.
fn is_before_exec(info: &ProcessInfo, look: &mut impl ProcLookup) -> bool {
    let age = SystemTime::now().duration_since(info.started_at).unwrap_or_default();
    // A process that the proxy started itself is already known.
    !info.tracked
        && look.lookup(info.id.pid).is_ok_and(|seen| {
            let is_it = seen.start_time == info.id.start_time && !seen.is_dead;
            is_it && !seen.has_execed && !seen.is_past_exec_window(age)
        })
}

/// Returns the process with its current program, if it still exists.
fn refreshed(mut info: ProcessInfo, look: &mut impl ProcLookup) -> ProcessInfo {
    let is_it = |seen: registry::ProcessSight| seen.start_time == info.id.start_time && !seen.is_dead;
    if !info.tracked && look.lookup(info.id.pid).is_ok_and(is_it) {
        let mut words = look.command_line(info.id.pid).into_iter();
        if let Some(command) = words.next() {
            (info.command, info.args) = (Some(command), words.collect());
            info.cwd = look.cwd(info.id.pid).or(info.cwd);
        }
    }
    info
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, io};

    use ipc_protocol::{ProcessId, ProcessStatus};
    use registry::ProcessSight;

    use super::*;

    /// Fake `/proc` with a configured state: whether a process has executed a program, and whether it wants to run.
    #[derive(Default)]
    struct Fake(BTreeMap<Pid, (bool, bool)>);

    impl ProcLookup for Fake {
        fn lookup(&mut self, pid: Pid) -> io::Result<ProcessSight> {
            let (has_execed, is_runnable) = *self.0.get(&pid).ok_or(io::ErrorKind::NotFound)?;
            Ok(ProcessSight {
                parent: 1,
                pgid: pid,
                sid: pid,
                start_time: 7,
                has_execed,
                is_runnable,
                cpu_time: Duration::ZERO,
                leader_is_dead: false,
                is_dead: false,
            })
        }

        fn command_line(&mut self, pid: Pid) -> Vec<String> {
            vec![format!("runs-{pid}")]
        }

        fn cwd(&mut self, _: Pid) -> Option<String> {
            None
        }

        fn children(&mut self, _: Pid) -> Vec<Pid> {
            Vec::new()
        }

        fn threads(&mut self, _: Pid) -> Vec<Pid> {
            Vec::new()
        }
    }

    /// Makes a process that was forked just now.
    fn forked(pid: Pid, ppid: Pid) -> ProcessInfo {
        ProcessInfo {
            id: ProcessId { pid, start_time: 7 },
            ppid,
            pgid: pid,
            sid: pid,
            session_id: "s-1".parse().expect("an id"),
            command: None,
            args: Vec::new(),
            cwd: None,
            started_at: SystemTime::now(),
            status: ProcessStatus::Running,
            exit: None,
            error: None,
            cpu_percent: None,
            rss_bytes: None,
            tracked: false,
        }
    }

    fn commands(told: &[ProcessInfo]) -> Vec<&str> {
        told.iter().filter_map(|info| info.command.as_deref()).collect()
    }

    /// A process that hangs in the kernel before its exec (for the disk, in a vfork) is awaited for seconds.
    #[test]
    fn one_that_is_on_its_way_to_its_exec_holds_up_no_other() {
        let (mut polling, mut proc) = (ProcessPolling::new(), Fake::default());
        proc.0.insert(10, (false, true));
        assert!(polling.is_due(Instant::now(), false) && polling.next() > Instant::now() + FAST_INTERVAL);
        assert!(polling.on_found(forked(10, 1), true, &mut proc).is_empty());
        assert!(polling.next() <= Instant::now() + FAST_INTERVAL, "it is looked at again soon");
        proc.0.insert(11, (true, false));
        assert_eq!(commands(&polling.on_found(forked(11, 1), true, &mut proc)), ["runs-11"]);
        assert!(polling.on_exit(11, &mut proc).is_empty() && polling.take_ready(true, &mut proc).is_empty());
        proc.0.insert(10, (true, true));
        assert_eq!(commands(&polling.take_ready(true, &mut proc)), ["runs-10"]);
    }

    #[test]
    fn a_parent_is_told_of_before_its_child_and_an_end_after_its_process() {
        let (mut polling, mut proc) = (ProcessPolling::new(), Fake::default());
        proc.0.extend([(10, (false, true)), (11, (false, true)), (12, (false, true))]);
        for (pid, ppid) in [(10, 1), (11, 10), (12, 11)] {
            assert!(polling.on_found(forked(pid, ppid), true, &mut proc).is_empty());
        }
        proc.0.insert(11, (true, true));
        assert_eq!(commands(&polling.take_ready(true, &mut proc)), ["runs-10", "runs-11"]);
        proc.0.insert(13, (true, true));
        assert_eq!(commands(&polling.on_found(forked(13, 12), true, &mut proc)), ["runs-12", "runs-13"]);
        proc.0.insert(14, (false, true));
        assert!(polling.on_found(forked(14, 1), true, &mut proc).is_empty());
        assert_eq!(polling.on_exit(14, &mut proc).len(), 1);
        assert!(polling.take_ready(false, &mut proc).is_empty());
    }

    #[test]
    fn only_so_many_are_held() {
        let (mut polling, mut proc) = (ProcessPolling::new(), Fake::default());
        for pid in 1000.. {
            if !polling.has_room() {
                break;
            }
            proc.0.insert(pid, (false, true));
            assert!(polling.on_found(forked(pid, 1), true, &mut proc).is_empty());
        }
        assert_eq!(polling.take_ready(false, &mut proc).len(), MAX_AWAITING_EXEC);
        assert!(polling.has_room());
    }

    #[test]
    fn a_working_session_is_looked_at_often_and_an_idle_one_when_nudged() {
        let mut polling = ProcessPolling::new();
        let now = Instant::now();
        assert!(polling.is_due(now, true));
        assert!(!polling.is_due(now, true) && polling.is_due(now + FAST_INTERVAL, false));
        assert!(!polling.is_due(now + RARE_INTERVAL, false));
        polling.poll_now();
        assert!(polling.is_due(Instant::now(), false));
        polling.work_begins();
        assert!(polling.next() <= Instant::now() + FAST_INTERVAL);
    }
}
