//! Detection of processes that came or went below a proxy: one scan for all proxies, where the kernel reports nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    os::unix::fs::FileExt,
    time::{Duration, Instant},
};

use ipc_protocol::Pid;
use registry::{ProcFs, ProcLookup};

/// Time between scans.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Most processes on the machine, and most new ones among them (`MAX_NEW`), for which finding their proxies is worthwhile.
const MAX_PROCESSES: usize = 4096;
const MAX_NEW: usize = 64;
/// Most ancestors checked on the way to a proxy.
const MAX_DEPTH: usize = 64;

/// Processes of the last scan.
pub(crate) struct ProcChangeDetector {
    next: Instant,
    pulse: NamespacePulse,
    /// Known processes, each with the proxy that it is below, if any.
    owners: BTreeMap<Pid, Option<Pid>>,
}

impl ProcChangeDetector {
    pub(crate) fn new() -> Self {
        Self { next: Instant::now(), pulse: NamespacePulse { file: None, last: Vec::new() }, owners: BTreeMap::new() }
    }

    /// Returns the time of the next scan.
    pub(crate) fn next(&self) -> Instant {
        self.next
    }

    /// Returns the proxies below which a process came or went since the last scan; `None` if it may be any of them.
    pub(crate) fn detect(&mut self, is_proxy: impl Fn(Pid) -> bool) -> Option<BTreeSet<Pid>> {
        self.next = Instant::now() + POLL_INTERVAL;
        if !self.pulse.has_changed() {
            return Some(BTreeSet::new());
        }
        let pids = registry::numbers_in_proc(".", MAX_PROCESSES + 1).ok()?;
        let new = pids.iter().filter(|pid| !self.owners.contains_key(pid)).count();
        if pids.len() > MAX_PROCESSES || new > MAX_NEW {
            // These are recorded as known, without an owner: every proxy is nudged now.
            self.owners = pids.into_iter().take(MAX_PROCESSES).map(|pid| (pid, None)).collect();
            return None;
        }
        let mut now = BTreeMap::new();
        let mut concerned = BTreeSet::new();
        for pid in pids {
            let owner = self.owners.remove(&pid).unwrap_or_else(|| {
                let owner = owning_proxy(pid, &is_proxy);
                concerned.extend(owner);
                owner
            });
            now.insert(pid, owner);
        }
        // Processes still in `known` have ended.
        concerned.extend(self.owners.values().flatten());
        self.owners = now;
        Some(concerned)
    }
}

/// Returns the proxy that `pid` is below.
fn owning_proxy(pid: Pid, is_proxy: &impl Fn(Pid) -> bool) -> Option<Pid> {
    let mut pid = pid;
    for _ in 0..MAX_DEPTH {
        let parent = ProcFs.lookup(pid).ok()?.parent;
        if parent <= 1 {
            return None;
        }
        if is_proxy(parent) {
            return Some(parent);
        }
        pid = parent;
    }
    None
}

/// Detector of any fork or end in this PID namespace, by the number of threads and the last pid assigned. On a quiet machine it
/// saves the scan.
struct NamespacePulse {
    /// Opened on first use: not every process that is forked from here should inherit it.
    file: Option<File>,
    last: Vec<u8>,
}

impl NamespacePulse {
    fn has_changed(&mut self) -> bool {
        if self.file.is_none() {
            // A file of another file system in its place (as containers have) has other contents.
            let is_procfs =
                |file: &File| rustix::fs::fstatfs(file).is_ok_and(|fs| fs.f_type == rustix::fs::PROC_SUPER_MAGIC);
            self.file = registry::open_proc_file("loadavg").ok().filter(is_procfs);
        }
        let mut bytes = [0; 128];
        let Some(length) = self.file.as_ref().and_then(|file| file.read_at(&mut bytes, 0).ok()) else { return true };
        // The part after the slash of `0.00 0.01 0.05 1/123 4567`.
        let Some(at) = bytes[..length].iter().position(|byte| *byte == b'/') else { return true };
        let now = &bytes[at..length];
        let has_changed = now != self.last;
        if has_changed {
            self.last.clear();
            self.last.extend_from_slice(now);
        }
        has_changed
    }
}

#[cfg(test)]
mod tests {
    use registry::{SpawnRequest, spawn};

    use super::*;

    /// Scans until the wanted proxy is among the affected ones, since tests beside this one start processes too.
    fn until_concerned(newcomers: &mut ProcChangeDetector, own: Pid) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !newcomers.detect(|pid| pid == own).is_none_or(|concerned| concerned.contains(&own)) {
            assert!(Instant::now() < deadline, "not noticed");
        }
    }

    #[test]
    fn what_comes_and_what_goes_concerns_the_proxy_above() {
        let own = std::process::id();
        let mut newcomers = ProcChangeDetector::new();
        newcomers.detect(|_| false);
        let argv = ["sh", "-c", "read line"].map(Into::into).to_vec();
        let program = SpawnRequest { argv, stdin: registry::SpawnInput::Pipe, ..SpawnRequest::new("/bin/sh") };
        let mut child = spawn(program).expect("started");
        until_concerned(&mut newcomers, own);
        assert!(newcomers.owners[&child.id().pid] == Some(own));
        drop(child.stdin.take());
        let deadline = Instant::now() + Duration::from_secs(20);
        while child.process.try_reap().expect("our child").is_none() {
            assert!(Instant::now() < deadline, "it has not ended");
            std::thread::yield_now();
        }
        until_concerned(&mut newcomers, own);
        assert!(!newcomers.owners.contains_key(&child.id().pid));
        assert!(newcomers.next() > Instant::now());
    }
}
