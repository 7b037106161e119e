//! Kill of process trees that are no session's, and no children of this process.
//!
//! The kill is [`KillTarget::Tree`] of the kill loop, with one difference: what loses its parent becomes a child of init, where
//! nobody looks for it. So each step looks at all that was ever met, and whatever joined a POSIX session that a process of the tree
//! began is of the tree too: one gets into a POSIX session by fork only.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use ipc_protocol::{KillCause, KillOptions, Pid, ProcessId, Proof, Receipt, SessionId};

use crate::{
    KillLoop, KillStep, KillTarget, ProcessRegistry, forks_since_boot, pids_are_unique_since,
    process_table::all_processes,
};

/// Time of one step for each tree.
const SLICE: Duration = Duration::from_millis(5);
/// Further trees that a kill follows, of processes that got away from it.
const MAX_STRAY_ROUNDS: usize = 3;

/// Ends these processes and everything below them, all at once: SIGTERM and SIGCONT, then SIGKILL after the grace, until each is
/// proven gone. Returns one receipt for each, in their order, in the name of the session that `name` gives it.
///
/// Each signal goes through a pidfd that was opened and then checked against the start time. A process that is gone, or whose pid
/// is another's by now, is not on its receipt. Blocks for the grace and 6 s at most, and as long again for each
/// of three rounds of processes that got away; what is left after them is a survivor.
pub fn kill_trees(roots: &[ProcessId], options: KillOptions, name: impl Fn(ProcessId) -> SessionId) -> Vec<Receipt> {
    let forks = forks_since_boot();
    let mut kills: Vec<_> = roots.iter().map(|root| TreeKill::new(name(*root), *root, options)).collect();
    run(&mut kills);
    let mut receipts: Vec<_> = kills.iter_mut().map(TreeKill::take_receipt).collect();
    for _ in 0..MAX_STRAY_ROUNDS {
        let mut strays: Vec<(usize, TreeKill)> = Vec::new();
        for (at, kill) in kills.iter_mut().enumerate() {
            for id in kill.strays(forks) {
                strays.push((at, TreeKill::new(name(kill.root), id, options)));
            }
        }
        if strays.is_empty() {
            break;
        }
        let (owners, mut more): (Vec<_>, Vec<_>) = strays.into_iter().unzip();
        run(&mut more);
        for (at, mut stray) in owners.into_iter().zip(more) {
            let survivors = std::mem::take(&mut receipts[at].survivors);
            receipts[at].merge(stray.take_receipt());
            receipts[at].survivors.extend(survivors);
            kills[at].posix_sessions.append(&mut stray.posix_sessions);
            kills[at].met.append(&mut stray.met);
        }
    }
    for (kill, receipt) in kills.iter_mut().zip(&mut receipts) {
        receipt.survivors.extend(kill.strays(forks));
        if !receipt.survivors.is_empty() {
            receipt.proof = Proof::None;
        }
    }
    receipts
}

/// Steps them in turn until all are over.
fn run(kills: &mut [TreeKill]) {
    loop {
        let pauses = kills.iter_mut().filter_map(TreeKill::step);
        let Some(pause) = pauses.min() else { return };
        std::thread::sleep(pause);
    }
}

/// Kill of one tree.
#[derive(Debug)]
struct TreeKill {
    root: ProcessId,
    registry: ProcessRegistry,
    kill: KillLoop,
    /// All that was met.
    met: BTreeSet<ProcessId>,
    /// POSIX sessions that a process of the tree began.
    posix_sessions: BTreeSet<Pid>,
    receipt: Option<Receipt>,
    /// Time before which it need not go on.
    due: Instant,
}

impl TreeKill {
    fn new(session: SessionId, root: ProcessId, options: KillOptions) -> Self {
        Self {
            root,
            registry: ProcessRegistry::guard(session),
            kill: KillLoop::new(KillTarget::Tree(root), KillCause::KillProcess, options, SLICE),
            met: [root].into(),
            posix_sessions: BTreeSet::new(),
            receipt: None,
            due: Instant::now(),
        }
    }

    /// Goes on; returns the time to wait, or `None` once it is over.
    fn step(&mut self) -> Option<Duration> {
        if self.receipt.is_some() {
            return None;
        }
        let now = Instant::now();
        if now < self.due {
            return Some(self.due - now);
        }
        let living = self.registry.living().map(|id| id.pid);
        let roots: BTreeSet<_> = living.chain([self.root.pid]).collect();
        self.registry.set_roots(Some(roots.into_iter().collect()));
        let step = self.kill.step(&mut self.registry);
        for (id, entry) in self.registry.entries() {
            // A stranger that has a dead root's pid is on the walk, and is not of the tree.
            let is_ours = *id == self.root
                || self.met.contains(id)
                || self.met.iter().any(|met| met.pid == entry.info.ppid && met.start_time <= id.start_time);
            if is_ours {
                self.met.insert(*id);
                if entry.info.sid == id.pid {
                    self.posix_sessions.insert(id.pid);
                }
            }
        }
        match step {
            KillStep::Continue(pause) => {
                self.due = Instant::now() + pause;
                Some(pause)
            }
            KillStep::Done(receipt) => {
                self.receipt = Some(*receipt);
                None
            }
        }
    }

    fn take_receipt(&mut self) -> Receipt {
        let session = self.registry.session().clone();
        self.receipt.take().unwrap_or_else(|| Receipt::begin(session, KillCause::KillProcess))
    }

    /// Living processes of the tree's POSIX sessions that were not met.
    fn strays(&mut self, forks: Option<u64>) -> Vec<ProcessId> {
        // The number of a session could be another's by now.
        if self.posix_sessions.is_empty() || !forks.is_some_and(pids_are_unique_since) {
            return Vec::new();
        }
        let all = all_processes(u64::MAX).unwrap_or_default();
        let strays = all.into_iter().map(|(seen, _)| seen);
        let strays: Vec<_> = strays
            .filter(|seen| self.posix_sessions.contains(&seen.sid) && !self.met.contains(&seen.id))
            .filter(|seen| seen.id.start_time >= self.root.start_time)
            .map(|seen| seen.id)
            .collect();
        self.met.extend(&strays);
        strays
    }
}

#[cfg(test)]
mod tests {
    use ipc_protocol::{ProcessOutcome, Signal};

    use super::*;
    use crate::{PidFd, SpawnInput, SpawnOutput, SpawnRequest, SpawnedProcess};

    fn name(id: ProcessId) -> SessionId {
        format!("tree-{}", id.pid).parse().expect("an id")
    }

    fn shell(script: &str) -> SpawnedProcess {
        let argv = ["sh", "-c", script].map(Into::into).to_vec();
        let env = vec![("PATH".into(), "/usr/bin:/bin".into())];
        let stdin = SpawnInput::Null;
        let shell = SpawnRequest { argv, env, stdin, stdout: SpawnOutput::Null, ..SpawnRequest::new("/bin/sh") };
        crate::spawn(shell).expect("started")
    }

    /// Waits until the tree has a process with each of these arguments.
    fn grown(root: ProcessId, wanted: &[&str]) -> Vec<ProcessId> {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let mut registry = ProcessRegistry::guard(name(root));
            registry.set_roots(Some(vec![root.pid]));
            let all = registry.list_unmeasured();
            if wanted.iter().all(|word| all.iter().any(|info| info.args.len() == 1 && info.args[0] == *word)) {
                return all.iter().map(|info| info.id).collect();
            }
            assert!(Instant::now() < deadline, "{all:?}");
            std::thread::yield_now();
        }
    }

    /// Reaps our child from a thread, as its parent init would do.
    fn reaped(process: SpawnedProcess) -> std::thread::JoinHandle<()> {
        std::thread::spawn(move || {
            while process.process.try_reap().is_ok_and(|exit| exit.is_none()) {
                std::thread::sleep(Duration::from_millis(1));
            }
        })
    }

    fn is_there(id: ProcessId) -> bool {
        crate::find_process(id.pid).expect("a look").is_some_and(|seen| seen.id == id)
    }

    #[test]
    fn what_outlives_its_parent_is_ended_too_and_a_bystander_lives_on() {
        // The root dies of SIGTERM at once; its children ignore that, and one of them is in a POSIX session of its own.
        let tree =
            shell("(trap '' TERM; while :; do sleep 300; done) & (trap '' TERM; setsid sleep 301) & sleep 302 & wait");
        let bystander = shell("exec sleep 303");
        let root = tree.id();
        let members = grown(root, &["300", "301", "302"]);
        let reaper = reaped(tree);
        let receipts = kill_trees(&[root], KillOptions::grace(Duration::from_millis(200)), name);
        reaper.join().expect("reaped");
        let [receipt] = &receipts[..] else { panic!("{receipts:?}") };
        assert!(receipt.is_empty() && receipt.proof == Proof::ProcessGone, "{receipt:?}");
        for member in members {
            assert!(!is_there(member), "{member} of {receipt:?}");
            let entry = receipt.processes.iter().find(|entry| entry.id == member);
            assert!(entry.is_some_and(|entry| entry.outcome != ProcessOutcome::Survived), "{member} in {receipt:?}");
        }
        assert!(is_there(bystander.id()));
        bystander.process.signal(Signal::Kill).expect("ours");
        reaped(bystander).join().expect("reaped");
    }

    #[test]
    fn what_lost_its_parent_before_the_kill_is_ended_by_its_posix_session() {
        let tree = shell("(sh -c 'sleep 307 & sleep 308' &) ; exec sleep 309");
        let root = tree.id();
        let deadline = Instant::now() + Duration::from_secs(20);
        let mates = loop {
            let all = all_processes(u64::MAX).expect("a look");
            let mates: Vec<_> =
                all.into_iter().filter(|(seen, _)| seen.sid == root.pid).map(|(seen, _)| seen).collect();
            let lost = mates.iter().any(|seen| seen.id != root && mates.iter().all(|other| other.id.pid != seen.ppid));
            let has = |word: &str| {
                mates.iter().any(|seen| {
                    crate::command_line(seen.id.pid).is_some_and(|words| words.len() == 2 && words[1] == word)
                })
            };
            if lost && ["307", "308", "309"].into_iter().all(has) {
                break mates;
            }
            assert!(Instant::now() < deadline, "{mates:?}");
            std::thread::yield_now();
        };
        let reaper = reaped(tree);
        let receipts = kill_trees(&[root], KillOptions::default(), name);
        reaper.join().expect("reaped");
        assert!(receipts[0].is_empty(), "{receipts:?}");
        for mate in mates {
            assert!(!is_there(mate.id), "{mate:?}");
            assert!(receipts[0].processes.iter().any(|entry| entry.id == mate.id), "{mate:?} in {receipts:?}");
        }
    }

    #[test]
    fn a_pid_that_is_another_s_by_now_is_left_alone() {
        let stranger = shell("exec sleep 304");
        let before = ProcessId { start_time: stranger.id().start_time - 1, ..stranger.id() };
        let receipts = kill_trees(&[before], KillOptions::NOW, name);
        assert!(receipts[0].is_empty() && receipts[0].processes.is_empty(), "{receipts:?}");
        assert!(is_there(stranger.id()));
        PidFd::open(stranger.id()).and_then(|process| process.signal(Signal::Kill)).expect("ours");
        reaped(stranger).join().expect("reaped");
    }
}
