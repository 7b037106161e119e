//! All processes of the machine, and the sessions' markers they carry.

use std::io::{self, Read};

use ipc_protocol::{MARKER, Pid, ProcessId, errno::is_shortage};

use crate::{proc, procfs, stat::ProcStat};

/// Snapshot of one process from `/proc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenProcess {
    /// Identity of the process.
    pub id: ProcessId,
    /// Pid of its parent.
    pub ppid: Pid,
    /// Process group.
    pub pgid: Pid,
    /// POSIX session.
    pub sid: Pid,
    /// True if a signal has stopped it.
    pub is_stopped: bool,
}

impl From<(Pid, &ProcStat)> for SeenProcess {
    fn from((pid, stat): (Pid, &ProcStat)) -> Self {
        Self {
            id: ProcessId { pid, start_time: stat.starttime },
            ppid: stat.ppid.unsigned_abs(),
            pgid: stat.pgrp.unsigned_abs(),
            sid: stat.session.unsigned_abs(),
            is_stopped: stat.state == 'T',
        }
    }
}

/// Looks at the live process that has `pid` now; `None` if it is dead or there is none.
///
/// # Errors
/// An error if the look failed, which says nothing about the process.
pub fn find_process(pid: Pid) -> io::Result<Option<SeenProcess>> {
    match proc::stat(pid) {
        Ok(stat) => Ok((!proc::is_dead(&stat)).then(|| SeenProcess::from((pid, &stat)))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Lists every live process on the machine, with the marker ([`MARKER`]) in its environment if it started no earlier
/// than `not_before` (in clock ticks since boot): the environment of an older process says nothing about a later
/// session.
///
/// One look is no proof. It does not show a single moment: a process forked meanwhile may be missed, and a process in
/// the middle of an exec shows no environment. Callers look until several looks find nothing. Environments that this
/// process may not read (another user's, or not dumpable, such as proxies') count as unmarked, and so do emptied ones.
/// The marker finds processes that left tree and cgroup; it does not replace these.
///
/// # Errors
/// An error if the look was incomplete (for lack of descriptors or memory, say): processes that could not be looked at
/// prove nothing.
pub fn all_processes(not_before: u64) -> io::Result<Vec<(SeenProcess, Option<String>)>> {
    let mut all = Vec::new();
    for pid in procfs::numbers_in_proc(".", usize::MAX)? {
        all.extend(look_for_marker_of(pid, not_before)?);
    }
    Ok(all)
}

/// The living process that has `pid` now, and its marker if it started not before `not_before`.
///
/// # Errors
/// As [`all_processes`].
pub(crate) fn look_for_marker_of(pid: Pid, not_before: u64) -> io::Result<Option<(SeenProcess, Option<String>)>> {
    let stat = match proc::stat(pid) {
        Ok(stat) => stat,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if proc::is_dead(&stat) {
        return Ok(None);
    }
    let marker = match stat.state {
        _ if stat.starttime < not_before => None,
        // A dead leader has given up its memory; its threads have not.
        'Z' => marker_of_threads(pid)?,
        _ => marker_in(&format!("{pid}/environ"))?,
    };
    Ok(Some((SeenProcess::from((pid, &stat)), marker)))
}

/// The pid that was given out last in this PID namespace: while it stays the same, nothing was forked. `None` where the
/// system does not say.
pub fn newest_pid() -> Option<Pid> {
    procfs::read_text("loadavg").ok()?.split_ascii_whitespace().nth(4)?.parse().ok()
}

/// Processes and threads that were forked since the boot, on the whole machine. `None` where the system does not say.
pub fn forks_since_boot() -> Option<u64> {
    let text = procfs::read_text("stat").ok()?;
    text.lines().find_map(|line| line.strip_prefix("processes ")?.trim().parse().ok())
}

/// Returns true if no pid that was in use when `forks` had been forked since the boot can be another process's by now. The
/// kernel gives out pids in order, passes over those in use, and begins anew after the greatest. A fork that fails late takes a
/// pid and is not counted: twice the count makes room for those, and half of the pids for what else is not counted.
pub fn pids_are_unique_since(forks: u64) -> bool {
    let taken = || {
        let forked = forks_since_boot()?.checked_sub(forks)?;
        Some(forked.saturating_mul(2).saturating_add(proc::tasks()?))
    };
    let greatest = || procfs::read_text("sys/kernel/pid_max").ok()?.trim().parse::<u64>().ok();
    matches!((taken(), greatest()), (Some(taken), Some(greatest)) if taken < greatest / 2)
}

/// Looks at the live process that has `pid` now, and the marker in its environment.
///
/// # Errors
/// As [`find_process`].
pub fn find_process_with_marker(pid: Pid) -> io::Result<Option<(SeenProcess, Option<String>)>> {
    let Some(seen) = find_process(pid)? else { return Ok(None) };
    Ok(Some((seen, marker_in(&format!("{pid}/environ"))?)))
}

/// Lists every live process that carries the marker of one run of one session, and is not older than `not_before`.
///
/// # Errors
/// As [`all_processes`], whose remarks on what it does not see apply here too.
pub fn processes_with_marker(marker: &str, not_before: u64) -> io::Result<Vec<ProcessId>> {
    let all = all_processes(not_before)?;
    Ok(all.into_iter().filter_map(|(seen, value)| (value? == marker).then_some(seen.id)).collect())
}

/// The marker in an `environ`, a path below `/proc`. Where several are, the first is what the process itself would find.
///
/// # Errors
/// A shortage of resources in this process. A file unreadable for any other reason has no marker.
fn marker_in(environ: &str) -> io::Result<Option<String>> {
    /// Maximum number of bytes read; the marker is placed near the front. A process can move the bounds of its
    /// environment (PR_SET_MM_MAP) and show gigabytes at no cost: it must not make us read them.
    const MAX: u64 = 256 << 10;
    let mut bytes = Vec::new();
    match procfs::open_proc_file(environ).and_then(|file| file.take(MAX).read_to_end(&mut bytes)) {
        Err(error) if is_shortage(&error) => return Err(error),
        _ => {}
    }
    let value = |variable: &[u8]| {
        let value = variable.strip_prefix(MARKER.as_bytes())?.strip_prefix(b"=")?;
        Some(String::from_utf8_lossy(value).into_owned())
    };
    Ok(bytes.split(|b| *b == 0).find_map(value))
}

fn marker_of_threads(pid: Pid) -> io::Result<Option<String>> {
    let threads = match proc::threads(pid) {
        Err(error) if is_shortage(&error) => return Err(error),
        Err(_) => return Ok(None),
        Ok(threads) => threads,
    };
    for thread in threads {
        if let Some(marker) = marker_in(&format!("{pid}/task/{thread}/environ"))? {
            return Ok(Some(marker));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pids_come_again_after_many_forks_only() {
        let forks = forks_since_boot().expect("the system says");
        assert!(forks > 0 && pids_are_unique_since(forks));
        assert!(!pids_are_unique_since(forks + (1 << 40)), "it never was so many");
        assert!(!pids_are_unique_since(0) || forks < 1 << 21);
    }

    #[test]
    fn a_marker_is_found_whole_and_not_in_what_is_older() {
        let marker = format!("marked-{}", std::process::id());
        let env = vec![("A".into(), "b".into()), (MARKER.into(), marker.clone().into())];
        // It ends when its pipe is closed.
        let cat = crate::SpawnRequest { env, stdin: crate::SpawnInput::Pipe, ..crate::SpawnRequest::new("/bin/cat") };
        let child = crate::spawn(cat).expect("started");
        let id = child.id();
        // An exec is confirmed a moment before its environment is in place.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while processes_with_marker(&marker, id.start_time).expect("a look") != [id] {
            assert!(std::time::Instant::now() < deadline, "never seen");
        }
        assert_eq!(processes_with_marker(&marker, 0).expect("a look"), [id]);
        assert_eq!(processes_with_marker(&marker, id.start_time + 1).expect("a look"), []);
        assert_eq!(processes_with_marker(&marker[..marker.len() - 1], 0).expect("a look"), []);
        assert!(all_processes(0).expect("a look").iter().any(|(seen, _)| seen.id == id && seen.sid == id.pid));
        child.process.signal(ipc_protocol::Signal::Kill).expect("alive");
        rustix::process::waitid(
            rustix::process::WaitId::PidFd(std::os::fd::AsFd::as_fd(&child.process)),
            rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT,
        )
        .expect("dead");
        assert_eq!(processes_with_marker(&marker, 0).expect("a look"), [], "a dead process that waits to be reaped");
        assert_eq!(find_process(id.pid).expect("a look"), None);
        child.process.try_reap().expect("reaped");
    }
}
