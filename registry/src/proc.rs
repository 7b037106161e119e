//! Reads processes from `/proc`. Everything read here can be out of date by the time it is used.

use std::{
    fs,
    io::{self, Read},
    os::fd::{AsRawFd, BorrowedFd},
    sync::OnceLock,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use ipc_protocol::{
    ExitStatus, Pid, ProcessId, ProcessInfo,
    errno::{is_process_gone, is_shortage},
};

use crate::{procfs, stat::ProcStat};

fn gone(pid: Pid) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("no process {pid}"))
}

/// Tries a look at `pid` once more, where `/proc` did not show what a signal finds: it may have come in between.
const LOOKS: usize = 4;

/// Looks at something of `pid` in `/proc`. What is not there is gone, unless something is mounted over its directory.
fn looked_at<T>(pid: Pid, look: impl Fn() -> io::Result<T>) -> io::Result<T> {
    for _ in 0..LOOKS {
        match look() {
            Err(error) if is_process_gone(&error) => {
                if !procfs::is_found_by_signals(pid) {
                    return Err(gone(pid));
                }
            }
            looked => return looked,
        }
        std::thread::yield_now();
    }
    Err(io::Error::other(format!(
        "process {pid} is there, but /proc does not show it: if /proc is mounted with hidepid, mount it for a group of this user (mount -o \
         remount,gid=GROUP /proc), or run as root"
    )))
}

/// Reads `/proc/PID/stat`.
///
/// # Errors
/// `NotFound` when there is no such process. Any other error means that the look failed (no descriptor left, say), and
/// says nothing about the process.
pub(crate) fn stat(pid: Pid) -> io::Result<ProcStat> {
    let path = format!("{pid}/stat");
    looked_at(pid, || procfs::open_proc_file(&path).and_then(ProcStat::read))
}

/// Reads `/proc/PID/status` of a process or a thread. The name in it is chosen by the program, and need not be UTF-8.
///
/// # Errors
/// As [`stat`].
pub(crate) fn status(pid: Pid) -> io::Result<String> {
    let path = format!("{pid}/status");
    let text = looked_at(pid, || procfs::read(&path))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Returns whether `pid` is a process, and no other thread of one. What is gone is none.
///
/// # Errors
/// A shortage of ours.
pub(crate) fn is_leader(pid: Pid) -> io::Result<bool> {
    match status(pid) {
        Ok(status) => Ok(status
            .lines()
            .find_map(|line| line.strip_prefix("Tgid:"))
            .is_some_and(|leader| leader.trim().parse() == Ok(pid))),
        Err(error) if is_shortage(&error) => Err(error),
        Err(_) => Ok(false),
    }
}

/// Returns the number of processes and threads; `None` where the system does not say.
pub(crate) fn tasks() -> Option<u64> {
    let load = procfs::read_text("loadavg").ok()?;
    load.split_ascii_whitespace().nth(3)?.split('/').nth(1)?.parse().ok()
}

/// Reads the identity of the process that has `pid` now.
///
/// # Errors
/// `NotFound` when there is no such process.
pub fn identify(pid: Pid) -> io::Result<ProcessId> {
    stat(pid).map(|stat| ProcessId { pid, start_time: stat.starttime })
}

/// Reads the pid of the process behind a pidfd, in the PID namespace of this process and its `/proc`.
///
/// # Errors
/// `NotFound` when the process is gone and reaped.
pub fn pid_of_pidfd(pidfd: BorrowedFd<'_>) -> io::Result<Pid> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
    let pid = info.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok());
    pid.filter(|pid| *pid > 0).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the process is gone"))
}

/// Returns true if the process is dead, though not reaped. A dead leader with live threads is alive.
pub(crate) fn is_dead(stat: &ProcStat) -> bool {
    matches!(stat.state, 'Z' | 'X' | 'x') && stat.num_threads <= 1
}

/// Returns true if the process is exiting or gone: its children may have been re-parented already.
pub fn is_exiting(id: ProcessId) -> bool {
    /// The kernel's PF_EXITING, set before a dying process gives its children away.
    const EXITING: u32 = 4;
    stat(id.pid).map_or(true, |stat| stat.starttime != id.start_time || stat.flags & EXITING != 0 || is_dead(&stat))
}

/// Returns whether the process is on its way out or gone, or SIGKILL waits for it.
pub fn is_doomed(id: ProcessId) -> bool {
    /// SIGKILL in the masks of `/proc/PID/status`.
    const KILL: u64 = 1 << (libc::SIGKILL - 1);
    let is_killed = || {
        let status = status(id.pid).unwrap_or_default();
        let masks =
            status.lines().filter_map(|line| line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:")));
        masks.filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok()).any(|mask| mask & KILL != 0)
    };
    is_exiting(id) || is_killed()
}

/// Returns the exit status of a dead process, from its stat; `None` where we may not see it.
pub(crate) fn exit_of(stat: &ProcStat) -> Option<ExitStatus> {
    Some(exit_of_wait_status(stat.exit_code))
}

/// Decodes an exit status as `wait` encodes it.
pub(crate) fn exit_of_wait_status(status: i32) -> ExitStatus {
    match status & 0x7f {
        0 => ExitStatus::Code((status >> 8) & 0xff),
        signal => ExitStatus::Signal(signal),
    }
}

/// Reads the command line, word by word; `None` for a process that is gone, dead or has none. It may be megabytes long:
/// the part beyond [`ProcessInfo::MAX_COMMAND_LINE`] is replaced by `…`.
pub fn command_line(pid: Pid) -> Option<Vec<String>> {
    const MAX: usize = ProcessInfo::MAX_COMMAND_LINE;
    let mut bytes = Vec::new();
    procfs::open_proc_file(&format!("{pid}/cmdline")).ok()?.take(MAX as u64 + 1).read_to_end(&mut bytes).ok()?;
    let is_cut = bytes.len() > MAX;
    bytes.truncate(MAX);
    let text = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
    if text.is_empty() {
        return None;
    }
    let mut words: Vec<_> = text.split(|b| *b == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    if is_cut && let Some(last) = words.last_mut() {
        last.push('…');
    }
    Some(words)
}

/// Reads the working directory; `None` if it cannot be read.
pub(crate) fn cwd(pid: Pid) -> Option<String> {
    procfs::read_link(&format!("{pid}/cwd")).ok().map(|path| path.to_string_lossy().into_owned())
}

/// Returns true if the kernel has the children lists (CONFIG_PROC_CHILDREN).
pub fn has_children_lists() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| fs::exists(format!("/proc/self/task/{}/children", std::process::id())).unwrap_or(false))
}

/// The threads of a process, the first among them.
///
/// # Errors
/// As [`stat`].
pub(crate) fn threads(pid: Pid) -> io::Result<Vec<Pid>> {
    let path = format!("{pid}/task");
    looked_at(pid, || procfs::numbers_in_proc(&path, usize::MAX))
}

/// Appends the children of every thread of `pid`. A process that is gone has none.
///
/// # Errors
/// An error if the look failed, which says nothing about its children.
pub(crate) fn children(pid: Pid, out: &mut Vec<Pid>) -> io::Result<()> {
    if !has_children_lists() {
        return children_by_scan(pid, out);
    }
    let tasks = match threads(pid) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        tasks => tasks?,
    };
    for task in tasks {
        let list = match procfs::read_text(&format!("{pid}/task/{task}/children")) {
            Err(error) if is_process_gone(&error) => continue,
            list => list?,
        };
        out.extend(list.split_ascii_whitespace().filter_map(|word| word.parse::<Pid>().ok()));
    }
    Ok(())
}

/// Appends children like [`children`], for a process with a single thread at the last look: saves reading the list of
/// its threads.
pub(crate) fn children_of_single(pid: Pid, out: &mut Vec<Pid>) -> io::Result<()> {
    if !has_children_lists() {
        return children_by_scan(pid, out);
    }
    let path = format!("{pid}/task/{pid}/children");
    match looked_at(pid, || procfs::read_text(&path)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        list => out.extend(list?.split_ascii_whitespace().filter_map(|word| word.parse::<Pid>().ok())),
    }
    Ok(())
}

/// Lists the children of this process.
///
/// # Errors
/// An error if `/proc` could not be read, which says nothing about them.
pub fn own_children() -> io::Result<Vec<Pid>> {
    let mut pids = Vec::new();
    children(std::process::id(), &mut pids)?;
    Ok(pids)
}

/// Finds children the slow way: by the parent of every process.
fn children_by_scan(parent: Pid, out: &mut Vec<Pid>) -> io::Result<()> {
    for pid in procfs::numbers_in_proc(".", usize::MAX)? {
        match stat(pid) {
            Ok(stat) if stat.ppid.unsigned_abs() == parent => out.push(pid),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// User and system time that a process has used.
pub(crate) fn cpu_time(stat: &ProcStat) -> Duration {
    of_ticks(stat.utime + stat.stime)
}

/// Converts clock ticks to a duration.
pub(crate) fn of_ticks(ticks: u64) -> Duration {
    Duration::from_millis(ticks.saturating_mul(1000) / ticks_per_second())
}

/// Number of clock ticks per second, as start times count.
pub(crate) fn ticks_per_second() -> u64 {
    rustix::param::clock_ticks_per_second()
}

/// Time since the machine's boot, suspends included (`CLOCK_BOOTTIME`).
pub fn boot_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Start time that a process started now would have: clock ticks since boot.
pub fn now_in_ticks() -> u64 {
    let nanoseconds = boot_time().as_nanos();
    u64::try_from(nanoseconds * u128::from(ticks_per_second()) / 1_000_000_000).unwrap_or(u64::MAX)
}

/// The start time that a process had which started so long ago: clock ticks since boot.
pub fn ticks_ago(ago: Duration) -> u64 {
    let ticks = ago.as_millis() * u128::from(ticks_per_second()) / 1000;
    now_in_ticks().saturating_sub(u64::try_from(ticks).unwrap_or(u64::MAX))
}

/// When a process with this start time started.
pub(crate) fn started_at(start_time: u64) -> SystemTime {
    static BOOT: OnceLock<SystemTime> = OnceLock::new();
    let boot = BOOT.get_or_init(|| {
        let now = SystemTime::now();
        now.checked_sub(boot_time()).unwrap_or(UNIX_EPOCH)
    });
    *boot + Duration::from_millis(start_time.saturating_mul(1000) / ticks_per_second())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_described() {
        let pid = std::process::id();
        let id = identify(pid).expect("alive");
        assert_eq!(identify(pid).expect("alive"), id);
        assert!(command_line(pid).is_some_and(|words| !words.is_empty()));
        assert!(cwd(pid).is_some());
        assert!(id.start_time <= now_in_ticks());
        let age = SystemTime::now().duration_since(started_at(id.start_time)).expect("in the past");
        assert!(age < Duration::from_secs(3600), "{age:?}");
    }

    #[test]
    fn what_is_gone_is_not_found() {
        assert_eq!(identify(u32::MAX >> 2).expect_err("no such pid").kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn one_that_was_killed_is_doomed() {
        assert!(!is_doomed(identify(std::process::id()).expect("alive")));
        let argv = vec!["sleep".into(), "300".into()];
        let sleep =
            crate::spawn(crate::SpawnRequest { argv, ..crate::SpawnRequest::new("/bin/sleep") }).expect("started");
        assert!(!is_doomed(sleep.id()));
        sleep.process.signal(ipc_protocol::Signal::Kill).expect("alive");
        assert!(is_doomed(sleep.id()), "at once, and ever after");
        while sleep.process.try_reap().expect("our child").is_none() {
            assert!(is_doomed(sleep.id()));
        }
        assert!(is_doomed(sleep.id()));
    }

    #[test]
    fn wait_statuses_are_read() {
        assert_eq!(exit_of_wait_status(7 << 8), ExitStatus::Code(7));
        assert_eq!(exit_of_wait_status(9), ExitStatus::Signal(9));
        assert_eq!(exit_of_wait_status(0x80 | 11), ExitStatus::Signal(11));
    }
}
