//! Remains of dead managers.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use ipc_protocol::{Pid, ProcessId, Signal, errno::is_group_gone};
use rustix::event::{PollFd, PollFlags};

use super::{
    SessionCgroup,
    groups::{is_manager_name, lock},
};
use crate::{PidFd, proc};

/// Remains of a dead manager, and the outcome of their removal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweptCgroup {
    /// The manager's directory.
    pub path: PathBuf,
    /// Processes that were found in it and ended, each with its command line where that could be read.
    pub ended: Vec<(ProcessId, Option<String>)>,
    /// Processes that are still there.
    pub left: Vec<ProcessId>,
    /// Failure; `None` when the directory is gone with all that was in it.
    pub failure: Option<String>,
}

/// Time to wait for the end of what one manager left.
const SWEEP_TIMEOUT: Duration = Duration::from_secs(5);
/// Time to wait for a change before everything is looked at again.
const ROUND_INTERVAL: Duration = Duration::from_millis(20);

/// Sweeps the directories of dead managers beside `own`.
pub(super) fn sweep(own: &Path) -> Vec<SweptCgroup> {
    let Some(parent) = own.parent() else { return Vec::new() };
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let managers =
        entries.filter(|entry| entry.file_name().to_str().is_some_and(is_manager_name)).map(|entry| entry.path());
    managers.filter(|path| path != own).filter_map(|path| sweep_one(&path)).collect()
}

/// `None` when its manager lives, or somebody else sweeps it.
fn sweep_one(path: &Path) -> Option<SweptCgroup> {
    let mut swept = SweptCgroup { path: path.to_owned(), ended: Vec::new(), left: Vec::new(), failure: None };
    // Held until the end: nobody else sweeps it.
    let _lock = match lock(path) {
        Ok(lock) => lock?,
        // Another user's, most likely: not ours to look at.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return None,
        Err(error) => {
            swept.failure = Some(error.to_string());
            return Some(swept);
        }
    };
    if let Err(error) = SessionCgroup::open(path).and_then(|group| end(&group, started_at(path), &mut swept)) {
        swept.failure = Some(error.to_string());
    }
    Some(swept)
}

/// When the manager of a directory was started.
fn started_at(path: &Path) -> u64 {
    let name = path.file_name().and_then(|name| name.to_str());
    name.and_then(|name| name.split('.').nth(2)?.parse().ok()).unwrap_or(0)
}

/// Kills all members until there is none, and removes the group.
fn end(group: &SessionCgroup, since: u64, swept: &mut SweptCgroup) -> io::Result<()> {
    let deadline = Instant::now() + SWEEP_TIMEOUT;
    let mut known = BTreeSet::new();
    let mut pids = Vec::new();
    loop {
        pids.clear();
        // What is older than the manager was moved there.
        group.release_foreign(since)?;
        group.members(&mut pids)?;
        let mut note = |id: ProcessId| {
            if known.insert(id) {
                swept.ended.push((id, proc::command_line(id.pid).map(|words| words.join(" "))));
            }
        };
        pids.iter().filter_map(|pid| proc::identify(*pid).ok()).for_each(&mut note);
        let killed = group.kill();
        sweep_members(group, &mut pids, note)?;
        if !group.is_populated()? {
            break;
        }
        if Instant::now() > deadline {
            let is_there = |id: &ProcessId| proc::identify(id.pid).is_ok_and(|now| now == *id);
            swept.left = known.into_iter().filter(|id| pids.contains(&id.pid) && is_there(id)).collect();
            swept.ended.retain(|(id, _)| !swept.left.contains(id));
            killed?;
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("still populated after {SWEEP_TIMEOUT:?}")));
        }
        wait_for_change(group)?;
    }
    group.remove()
}

/// SIGKILL to each that is a member still: threads without their leader escape the group's kill. `pids` are those there.
fn sweep_members(group: &SessionCgroup, pids: &mut Vec<Pid>, mut note: impl FnMut(ProcessId)) -> io::Result<()> {
    /// So many descriptors at once.
    const CHUNK: usize = 64;
    pids.clear();
    group.members(pids)?;
    let mut now = Vec::new();
    for chunk in pids.chunks(CHUNK) {
        let open = |pid: &Pid| proc::identify(*pid).and_then(PidFd::open).ok();
        let processes: Vec<_> = chunk.iter().filter_map(open).collect();
        // A number may have been recycled between listing and opening: what is listed once more is a member, or dead.
        now.clear();
        group.members(&mut now)?;
        for process in processes.iter().filter(|process| now.contains(&process.id().pid)) {
            // Threads without a leader are listed only once nobody else is.
            note(process.id());
            if let Err(error) = process.signal(Signal::Kill)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::debug!(process = %process.id(), %error, "a member of a dead manager's group could not be killed");
            }
            super::thaw_v1(process.id().pid);
        }
    }
    Ok(())
}

fn wait_for_change(group: &SessionCgroup) -> io::Result<()> {
    let events = match group.dir().watch("cgroup.events") {
        Err(error) if is_group_gone(&error) => return Ok(()),
        events => events?,
    };
    // A change after this reading wakes the poll.
    if !group.is_populated()? {
        return Ok(());
    }
    let timeout = rustix::time::Timespec { tv_sec: 0, tv_nsec: i64::from(ROUND_INTERVAL.subsec_nanos()) };
    match rustix::event::poll(&mut [PollFd::new(&events, PollFlags::PRI)], Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
