//! Whether anything came or went below a proxy: one look for all of them, where the kernel does not tell.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    os::unix::fs::FileExt,
    time::{Duration, Instant},
};

use ipc_protocol::Pid;
use registry::{Look, ProcFs};

/// Time between looks.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// Processes on the machine, and new ones among them, up to which it is worth finding out whose they are.
const MAX_PROCESSES: usize = 4096;
const MAX_NEW: usize = 64;
/// Ancestors looked at on the way to a proxy.
const MAX_DEPTH: usize = 64;

/// The processes of the last look.
pub(crate) struct Newcomers {
    next: Instant,
    pulse: Pulse,
    /// With the proxy that each is below, if any.
    known: BTreeMap<Pid, Option<Pid>>,
}

impl Newcomers {
    pub(crate) fn new() -> Self {
        Self { next: Instant::now(), pulse: Pulse { file: None, last: Vec::new() }, known: BTreeMap::new() }
    }

    /// When to look next.
    pub(crate) fn next(&self) -> Instant {
        self.next
    }

    /// The proxies below which something came or went since the last look; `None` if it may be any.
    pub(crate) fn look(&mut self, is_proxy: impl Fn(Pid) -> bool) -> Option<BTreeSet<Pid>> {
        self.next = Instant::now() + LOOK_INTERVAL;
        if !self.pulse.has_changed() {
            return Some(BTreeSet::new());
        }
        let pids = registry::numbers_in_proc(".", MAX_PROCESSES + 1).ok()?;
        let new = pids.iter().filter(|pid| !self.known.contains_key(pid)).count();
        if pids.len() > MAX_PROCESSES || new > MAX_NEW {
            // Taken for known, but not for anybody's: whoever has them looks now.
            self.known = pids.into_iter().take(MAX_PROCESSES).map(|pid| (pid, None)).collect();
            return None;
        }
        let mut now = BTreeMap::new();
        let mut concerned = BTreeSet::new();
        for pid in pids {
            let owner = self.known.remove(&pid).unwrap_or_else(|| {
                let owner = owner(pid, &is_proxy);
                concerned.extend(owner);
                owner
            });
            now.insert(pid, owner);
        }
        // What is left of the known ones has gone.
        concerned.extend(self.known.values().flatten());
        self.known = now;
        Some(concerned)
    }
}

/// The proxy that `pid` is below.
fn owner(pid: Pid, is_proxy: &impl Fn(Pid) -> bool) -> Option<Pid> {
    let mut pid = pid;
    for _ in 0..MAX_DEPTH {
        let parent = ProcFs.see(pid).ok()?.parent;
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

/// Whether anything at all was forked or has ended in this PID namespace: the number of threads, and the last pid given
/// out. On a quiet machine it spares the look.
struct Pulse {
    /// Opened when it is needed: not everything that is forked from here shall have it.
    file: Option<File>,
    last: Vec<u8>,
}

impl Pulse {
    fn has_changed(&mut self) -> bool {
        if self.file.is_none() {
            // A file of another file system in its place (containers have such) says something else.
            let is_procfs =
                |file: &File| rustix::fs::fstatfs(file).is_ok_and(|fs| fs.f_type == rustix::fs::PROC_SUPER_MAGIC);
            self.file = registry::open_proc_file("loadavg").ok().filter(is_procfs);
        }
        let mut bytes = [0; 128];
        let Some(length) = self.file.as_ref().and_then(|file| file.read_at(&mut bytes, 0).ok()) else { return true };
        // `0.00 0.01 0.05 1/123 4567`: after the slash.
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
    use registry::{Spawn, spawn};

    use super::*;

    /// The proxies that a look concerns; looked for until the wanted one is among them, as tests beside this one start
    /// processes too.
    fn until_concerned(newcomers: &mut Newcomers, own: Pid) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !newcomers.look(|pid| pid == own).is_none_or(|concerned| concerned.contains(&own)) {
            assert!(Instant::now() < deadline, "not noticed");
        }
    }

    #[test]
    fn what_comes_and_what_goes_concerns_the_proxy_above() {
        let own = std::process::id();
        let mut newcomers = Newcomers::new();
        newcomers.look(|_| false);
        let argv = ["sh", "-c", "read line"].map(Into::into).to_vec();
        let program = Spawn { argv, stdin: registry::Input::Pipe, ..Spawn::new("/bin/sh") };
        let mut child = spawn(program).expect("started");
        until_concerned(&mut newcomers, own);
        assert!(newcomers.known[&child.id().pid] == Some(own));
        drop(child.stdin.take());
        let deadline = Instant::now() + Duration::from_secs(20);
        while child.process.try_reap().expect("our child").is_none() {
            assert!(Instant::now() < deadline, "it has not ended");
            std::thread::yield_now();
        }
        until_concerned(&mut newcomers, own);
        assert!(!newcomers.known.contains_key(&child.id().pid));
        assert!(newcomers.next() > Instant::now());
    }
}
