//! What an observer has to look up about a process: a few questions to `/proc`, behind a trait so that who asks can be
//! tested without processes.

use std::{io, time::Duration};

use ipc_protocol::Pid;

use crate::proc;

/// How long a process may have had without an exec before it is told of as it is. Most that will execute something have within
/// a millisecond.
pub(crate) const QUIET: Duration = Duration::from_millis(50);
/// How long after its fork a process is told of in any case: one that hangs in the kernel shall not stay hidden.
const LONGEST: Duration = Duration::from_secs(5);

/// A process, as it is at the moment of looking. Dead or alive, but not reaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sight {
    /// Its parent.
    pub parent: Pid,
    /// Its process group.
    pub pgid: Pid,
    /// Its session in the POSIX sense.
    pub sid: Pid,
    /// When it started: clock ticks since the boot.
    pub start_time: u64,
    /// Whether it has executed a program since it was forked.
    pub has_execed: bool,
    /// Whether its first thread runs, waits for a processor, or is in the kernel and cannot be interrupted (mostly for the disk
    /// that a program is read from). Others sleep, or are dead.
    pub is_runnable: bool,
    /// Processor time that it has used since it was forked, in steps of a clock tick.
    pub cpu_time: Duration,
    /// Whether its first thread is dead; with `is_dead` false others live on.
    pub leader_is_dead: bool,
    /// Whether all of it is dead.
    pub is_dead: bool,
}

impl Sight {
    /// Whether a process that was forked `age` ago has had its time to execute a program: 50 ms. For one that sleeps this is its
    /// age. For one that wants to run it is the time for which it ran, up to 5 s: on a busy machine it may not have run at all.
    pub fn has_had_its_time(&self, age: Duration) -> bool {
        age >= LONGEST || (if self.is_runnable { self.cpu_time } else { age }) >= QUIET
    }
}

/// Questions to `/proc`. What cannot be read is absent.
pub trait Look {
    /// The process that has this pid now.
    ///
    /// # Errors
    /// `NotFound` when there is none. Any other says nothing about it.
    fn see(&mut self, pid: Pid) -> io::Result<Sight>;
    /// Its command line, word by word; empty where it cannot be read.
    fn command_line(&mut self, pid: Pid) -> Vec<String>;
    /// Its working directory.
    fn cwd(&mut self, pid: Pid) -> Option<String>;
    /// Its children.
    fn children(&mut self, pid: Pid) -> Vec<Pid>;
    /// Its threads, without the first.
    fn threads(&mut self, pid: Pid) -> Vec<Pid>;
}

/// The real `/proc`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcFs;

/// Times that an empty command line is read: it takes about as many times 10 microseconds, and longer only where others wait
/// for the processor.
const MID_EXEC: usize = 20;

/// Of the kernel: the process was forked and has not executed anything since.
const PF_FORKNOEXEC: u32 = 0x40;

impl Look for ProcFs {
    fn see(&mut self, pid: Pid) -> io::Result<Sight> {
        let stat = proc::stat(pid)?;
        Ok(Sight {
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
        // In the middle of an exec there is none: the process gets some turns to come to its end.
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
        // What could not be looked at is not seen; nobody takes this for a proof.
        let _ = proc::children(pid, &mut found);
        found
    }

    fn threads(&mut self, pid: Pid) -> Vec<Pid> {
        let mut threads = proc::threads(pid).unwrap_or_default();
        threads.retain(|thread| *thread != pid);
        threads
    }
}
