//! Questions of an observer to `/proc` about a process, behind a trait so that callers can be tested without processes.

use std::{io, time::Duration};

use ipc_protocol::Pid;

use crate::proc;

/// Time that a process may have without an exec before its start is emitted as it is. Most processes that execute
/// something do so within a millisecond.
pub(crate) const EXEC_WINDOW: Duration = Duration::from_millis(50);
/// Time after its fork at which a process's start is emitted in any case: a process that hangs in the kernel must not
/// stay hidden.
const MAX_EXEC_WINDOW: Duration = Duration::from_secs(5);

/// Snapshot of a process that is dead or alive, but not reaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessSight {
    /// Pid of its parent.
    pub parent: Pid,
    /// Process group.
    pub pgid: Pid,
    /// Session in the POSIX sense.
    pub sid: Pid,
    /// Start time: clock ticks since boot.
    pub start_time: u64,
    /// True if it has executed a program since it was forked.
    pub has_execed: bool,
    /// True if its first thread runs, waits for a processor, or is in the kernel and cannot be interrupted (mostly for
    /// the disk that a program is read from). Other threads sleep, or are dead.
    pub is_runnable: bool,
    /// Processor time used since its fork, in steps of a clock tick.
    pub cpu_time: Duration,
    /// True if its first thread is dead; with `is_dead` false others live on.
    pub leader_is_dead: bool,
    /// True if all of it is dead.
    pub is_dead: bool,
}

impl ProcessSight {
    /// Returns true if a process that was forked `age` ago has had its time to execute a program: 50 ms. For a sleeping
    /// process this is its age. For a runnable one it is the processor time it used, up to an age of 5 s: on a busy
    /// machine it may not have run at all.
    pub fn is_past_exec_window(&self, age: Duration) -> bool {
        age >= MAX_EXEC_WINDOW || (if self.is_runnable { self.cpu_time } else { age }) >= EXEC_WINDOW
    }
}

/// Questions to `/proc`. Facts that cannot be read are absent.
pub trait ProcLookup {
    /// Looks at the process that has this pid now.
    ///
    /// # Errors
    /// `NotFound` when there is none. Any other error says nothing about it.
    fn lookup(&mut self, pid: Pid) -> io::Result<ProcessSight>;
    /// Reads the command line, word by word; empty if it cannot be read.
    fn command_line(&mut self, pid: Pid) -> Vec<String>;
    /// Reads the working directory.
    fn cwd(&mut self, pid: Pid) -> Option<String>;
    /// Lists the children.
    fn children(&mut self, pid: Pid) -> Vec<Pid>;
    /// Lists the threads, without the first.
    fn threads(&mut self, pid: Pid) -> Vec<Pid>;
}

/// The real `/proc`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcFs;

/// Number of attempts to read an empty command line: each takes about 10 microseconds, and longer only if others wait
/// for the processor.
const MID_EXEC: usize = 20;

/// The kernel's flag of a process that has executed nothing since its fork.
const PF_FORKNOEXEC: u32 = 0x40;

impl ProcLookup for ProcFs {
    fn lookup(&mut self, pid: Pid) -> io::Result<ProcessSight> {
        let stat = proc::stat(pid)?;
        Ok(ProcessSight {
            parent: stat.ppid.unsigned_abs(),
            pgid: stat.pgrp.unsigned_abs(),
            sid: stat.session.unsigned_abs(),
            start_time: stat.starttime,
            has_execed: stat.flags & PF_FORKNOEXEC == 0,
            is_runnable: matches!(stat.state, 'R' | 'D'),
            cpu_time: proc::cpu_time(&stat),
            leader_is_dead: matches!(stat.state, 'Z' | 'X' | 'x'),
            is_dead: proc::is_dead(&stat),
        })
    }

    fn command_line(&mut self, pid: Pid) -> Vec<String> {
        // A process in the middle of an exec has no command line: it gets some turns to finish the exec.
        for _ in 0..MID_EXEC {
            if let Some(words) = proc::command_line(pid) {
                return words;
            }
            std::thread::yield_now();
        }
        Vec::new()
    }

    fn cwd(&mut self, pid: Pid) -> Option<String> {
        proc::cwd(pid)
    }

    fn children(&mut self, pid: Pid) -> Vec<Pid> {
        let mut found = Vec::new();
        // Children that could not be read are missing; nobody takes this for a proof.
        let _ = proc::children(pid, &mut found);
        found
    }

    fn threads(&mut self, pid: Pid) -> Vec<Pid> {
        let mut threads = proc::threads(pid).unwrap_or_default();
        threads.retain(|thread| *thread != pid);
        threads
    }
}
