//! Ending a session without its proxy: because that does not answer, or because it is dead.

use std::{
    collections::BTreeSet,
    path::Path,
    time::{Duration, Instant},
};

use ipc_protocol::{
    ContainmentSpec, ExitStatus, KillCause, KillOptions, Pid, ProcessId, ProcessOutcome, ReapedBy, Receipt,
    ReceiptEntry, SessionId, Signal,
};
use registry::{
    KillLoop, KillStep, KillTarget, MarkerLook, MarkerQuery, PidFd, ProcessRegistry, ReapedProcess, SessionCgroup,
    SessionHold,
};

use super::abandoned_sessions::AbandonedSessions;

/// A step's share of the fork server's one thread: forking and observing never wait longer for a kill.
const SLICE: Duration = Duration::from_millis(5);
/// Time for killing a living proxy's tree below it after the grace. A fork storm may never be quiet; what it still has
/// then becomes ours with the proxy's death.
const TREE_KILL_MARGIN: Duration = Duration::from_millis(100);
/// After SIGKILL to a proxy that does not die: it may be frozen again each time that it is thawed.
const AGAIN: Duration = Duration::from_millis(100);
/// First wait of a guard that begins with a look for the marker.
const LOOK_PATIENCE: Duration = Duration::from_millis(500);
/// Processes of doubtful origin that a receipt names at most.
const MAX_UNATTRIBUTED: usize = 1024;

enum GuardStage {
    /// The proxy lives (wedged), and is kept stopped: its tree is killed first, while it is still clear whose it is.
    KillingTree { proxy: Pid, until: Instant },
    /// The proxy was sent SIGKILL.
    KillingProxy { proxy: Pid },
    /// The proxy is dead, and what it left is ours.
    KillingOrphans { exit: ExitStatus },
    /// The session has ended.
    Done { exit: ExitStatus },
}

/// Session that the fork server ends.
pub(crate) struct SessionGuard {
    /// The proxy, alive or dead.
    proxy: ProcessId,
    /// In the environment of the session's processes.
    marker: String,
    /// Forks on this machine before the proxy's.
    forks: Option<u64>,
    registry: ProcessRegistry,
    kill: KillLoop,
    stage: GuardStage,
    next: Instant,
    /// Receipt, once the kill is over.
    receipt: Option<Receipt>,
    unattributed: Vec<ReceiptEntry>,
    /// Living orphans that may be another session's; killed all the same.
    maybe_foreign: BTreeSet<ProcessId>,
}

impl SessionGuard {
    /// For a session whose proxy is alive.
    pub(crate) fn of_proxy(
        session: &SessionId,
        enclosure: &ContainmentSpec,
        (proxy, forks): (ProcessId, Option<u64>),
        cause: KillCause,
        options: KillOptions,
    ) -> Self {
        let until = Instant::now() + options.grace + TREE_KILL_MARGIN;
        let mut kill = KillLoop::new(KillTarget::Guarded, cause, options, SLICE);
        // It is looked for when the proxy is dead.
        kill.set_marker_look(MarkerLook::Guard);
        Self::new(session, enclosure, (proxy, forks), kill, GuardStage::KillingTree { proxy: proxy.pid, until })
    }

    /// For a session whose proxy has died.
    pub(crate) fn of_orphans(
        session: &SessionId,
        enclosure: &ContainmentSpec,
        (proxy, forks): (ProcessId, Option<u64>),
        exit: ExitStatus,
        options: KillOptions,
    ) -> Self {
        // Where the proxy has ended its session, the grace is over for what carries the marker elsewhere, too.
        let options = if exit.success() { KillOptions::NOW } else { options };
        let mut kill = KillLoop::new(KillTarget::Guarded, KillCause::ProxyDied, options, SLICE);
        kill.set_marker_look(MarkerLook::Caller);
        // A proxy exits with 0 only after the kernel has told it that it has no child left.
        let kill = if exit.success() { kill.confirming().with_marker_look_first() } else { kill };
        let mut guard = Self::new(session, enclosure, (proxy, forks), kill, GuardStage::KillingOrphans { exit });
        if guard.wants_marker_look() {
            // The look wakes it. To list the orphans of all takes as long as there are sessions.
            guard.next += LOOK_PATIENCE;
        }
        guard
    }

    fn new(
        session: &SessionId,
        enclosure: &ContainmentSpec,
        (proxy, forks): (ProcessId, Option<u64>),
        kill: KillLoop,
        stage: GuardStage,
    ) -> Self {
        let mut registry = ProcessRegistry::guard(session.clone());
        registry.set_hold(SessionHold {
            marker: enclosure.marker.clone(),
            since: proxy.start_time,
            // It is not there any more where the proxy has proven its end, and not yet where it never began.
            group: enclosure.cgroup.as_ref().and_then(|path| SessionCgroup::open(Path::new(path)).ok()),
            strict: enclosure.strict,
            init: if enclosure.strict { registry::init_below(proxy.pid) } else { None },
        });
        Self {
            proxy,
            marker: enclosure.marker.clone(),
            forks,
            registry,
            kill,
            stage,
            next: Instant::now(),
            receipt: None,
            unattributed: Vec::new(),
            maybe_foreign: BTreeSet::new(),
        }
    }

    /// When the next step is due.
    pub(crate) fn next(&self) -> Instant {
        self.next
    }

    /// Returns whether it waits for a look for its session's marker to begin.
    pub(crate) fn wants_marker_look(&self) -> bool {
        self.kill.wants_marker_look()
    }

    /// A look for its session's marker begins.
    pub(crate) fn begin_marker_look(&mut self) -> MarkerQuery {
        self.kill.begin_marker_look();
        MarkerQuery { marker: self.marker.clone(), proxy: self.proxy, forks: self.forks }
    }

    /// Asks for another look in the place of one that has failed.
    pub(crate) fn retry_marker_look(&mut self) {
        self.kill.retry_marker_look();
    }

    /// Takes the result of the look that was begun.
    pub(crate) fn end_marker_look(&mut self, found: std::io::Result<Vec<ProcessId>>) {
        if self.kill.end_marker_look(found) {
            self.next = Instant::now();
        }
    }

    /// In the environment of the session's processes.
    pub(crate) fn marker(&self) -> &str {
        &self.marker
    }

    /// Returns the session's id and marker.
    pub(crate) fn into_session(self) -> (SessionId, String) {
        (self.registry.session().clone(), self.marker)
    }

    pub(crate) fn guards_proxy(&self, pid: Pid) -> bool {
        matches!(self.stage, GuardStage::KillingTree { proxy, .. } | GuardStage::KillingProxy { proxy } if proxy == pid)
    }

    pub(crate) fn has_orphans(&self) -> bool {
        matches!(self.stage, GuardStage::KillingOrphans { .. })
    }

    pub(crate) fn has_seen(&self, id: ProcessId) -> bool {
        self.registry.has_seen(id)
    }

    /// A process was forked that is nobody's orphan.
    pub(crate) fn record_fork(&mut self) {
        self.registry.restart_pass();
    }

    pub(crate) fn shorten_grace(&mut self, options: KillOptions) {
        self.kill.shorten_grace(options);
        self.next = Instant::now();
    }

    pub(crate) fn record_reaped(&mut self, reaped: &ReapedProcess) {
        self.registry.record_reaped(reaped, ReapedBy::ForkServer);
        self.next = Instant::now();
    }

    /// A dead orphan that may have been this session's or another's.
    pub(crate) fn record_unattributed(&mut self, reaped: &ReapedProcess) {
        if self.unattributed.len() >= MAX_UNATTRIBUTED {
            return;
        }
        self.unattributed.push(ReceiptEntry {
            id: reaped.id,
            ppid: 0,
            pgid: 0,
            sid: 0,
            command: None,
            outcome: ProcessOutcome::Ended(reaped.exit),
            reaped_by: Some(ReapedBy::ForkServer),
        });
    }

    /// The proxy is dead: what is left of its tree is now below the fork server.
    pub(crate) fn proxy_died(&mut self, exit: ExitStatus) {
        // The tree has had its grace, or has lost its proxy in the middle of it.
        self.kill =
            KillLoop::new(KillTarget::Guarded, self.kill.cause(), KillOptions::NOW, SLICE).following(&self.kill);
        self.kill.set_marker_look(MarkerLook::Caller);
        self.stage = GuardStage::KillingOrphans { exit };
        self.next = Instant::now();
    }

    /// Does a part of the work. `proxy` finds a living proxy by its pid.
    pub(crate) fn step<'p>(&mut self, proxy: impl FnOnce(Pid) -> Option<&'p PidFd>) {
        match self.stage {
            GuardStage::KillingTree { proxy: pid, until } => {
                let proxy = proxy(pid);
                if let Some(proxy) = proxy {
                    // What it reaped now nobody would hear of: how its processes end is seen here, when it is dead. It fails
                    // only for one that is.
                    let _ = proxy.signal(Signal::Stop);
                }
                self.registry.set_roots_below(pid);
                let step = self.kill.step(&mut self.registry);
                let quiet = matches!(step, KillStep::Done(_));
                if quiet || Instant::now() >= until {
                    if let Some(proxy) = proxy {
                        // SIGCHLD tells of its end.
                        let _ = proxy.signal(Signal::Kill);
                        registry::free_supervisor(pid);
                    }
                    self.stage = GuardStage::KillingProxy { proxy: pid };
                    self.next = Instant::now() + AGAIN;
                } else if let KillStep::Continue(pause) = step {
                    self.next = Instant::now() + pause;
                }
            }
            GuardStage::KillingProxy { proxy: pid } => {
                // SIGKILL cannot be refused; one that is stuck in the kernel gets another one, and one that is
                // frozen in version 1 dies once it is thawed.
                if let Some(proxy) = proxy(pid) {
                    let _ = proxy.signal(Signal::Kill);
                    registry::free_supervisor(pid);
                }
                self.next = Instant::now() + AGAIN;
            }
            GuardStage::KillingOrphans { exit } => match self.kill.step(&mut self.registry) {
                KillStep::Continue(pause) => self.next = Instant::now() + pause,
                KillStep::Done(receipt) => {
                    self.receipt = Some(*receipt);
                    self.stage = GuardStage::Done { exit };
                }
            },
            GuardStage::Done { .. } => {}
        }
    }

    /// Returns the proxy, its exit status and the receipt, once the kill is over.
    pub(crate) fn take_end(&mut self) -> Option<(ProcessId, ExitStatus, Receipt)> {
        let GuardStage::Done { exit } = self.stage else { return None };
        let mut receipt = self.receipt.take()?;
        let doubtful = std::mem::take(&mut self.maybe_foreign);
        let (doubted, own) = receipt.processes.into_iter().partition(|entry| doubtful.contains(&entry.id));
        receipt.processes = own;
        receipt.unattributed.append(&mut self.unattributed);
        receipt.unattributed.extend::<Vec<_>>(doubted);
        Some((self.proxy, exit, receipt))
    }
}

/// Gives every child of this process that is no proxy to the guard of the session it belongs to. What is left of those that were
/// given up is nobody's: it was told.
///
/// `is_proxy` tells proxies by their pid; `has_dead_proxy` whether a session's proxy is dead and not yet reaped, so that
/// its guard is still to come.
pub(crate) fn assign_orphans(
    guards: &mut [SessionGuard],
    given_up: &mut AbandonedSessions,
    is_proxy: impl Fn(Pid) -> bool,
    has_dead_proxy: impl Fn(&str) -> bool,
) {
    let dying: Vec<_> = (0..guards.len()).filter(|at| guards[*at].has_orphans()).collect();
    let mut roots = vec![Vec::new(); guards.len()];
    let mut is_blind = false;
    let children = registry::own_children().unwrap_or_else(|_| {
        is_blind = true;
        Vec::new()
    });
    for pid in children {
        if is_proxy(pid) {
            continue;
        }
        // Nobody else reaps it, so it is there: what cannot be looked at may be anybody's, and alive.
        let Ok(id) = registry::identify(pid) else {
            is_blind = true;
            continue;
        };
        let marker = registry::find_process_with_marker(pid).ok().flatten().and_then(|(_, marker)| marker);
        let marked = |at: &&usize| marker.as_deref() == Some(guards[**at].marker.as_str());
        let owner = dying.iter().find(|at| guards[**at].has_seen(id)).or_else(|| dying.iter().find(marked));
        // A living proxy has no orphans here, whatever a marker says.
        let mut is_others =
            || marker.as_deref().is_some_and(&has_dead_proxy) || given_up.contains(id, marker.as_deref());
        if owner.is_none() && is_others() {
            continue;
        }
        match (owner, dying.as_slice()) {
            (Some(at), _) => roots[*at].push(pid),
            (None, []) => {}
            (None, [only]) => roots[*only].push(pid),
            (None, many) => {
                for at in many {
                    guards[*at].maybe_foreign.insert(id);
                }
                roots[many[0]].push(pid);
            }
        }
    }
    for at in dying {
        let roots = std::mem::take(&mut roots[at]);
        guards[at].registry.set_roots((!is_blind).then_some(roots));
    }
}

#[cfg(test)]
mod tests {
    use ipc_protocol::MARKER;
    use registry::SpawnRequest;

    use super::*;

    /// One session's guard beside one that was given up, and a child that carries the marker of that.
    #[test]
    fn what_another_session_left_is_no_orphan_of_this_one() {
        let env = [(MARKER.into(), "given-up".into())].into();
        let sleep =
            SpawnRequest { argv: ["sleep", "300"].map(Into::into).to_vec(), env, ..SpawnRequest::new("/bin/sleep") };
        let child = registry::spawn(sleep).expect("started").process;
        // The exec is told before the new environment can be seen.
        while registry::find_process_with_marker(child.id().pid)
            .expect("looked")
            .is_none_or(|(_, marker)| marker.is_none())
        {
            std::thread::yield_now();
        }
        let us = registry::identify(std::process::id()).expect("alive");
        let enclosure = ContainmentSpec { marker: "this".into(), ..ContainmentSpec::default() };
        let session = SessionId::mint();
        let listed = |given_up: &mut AbandonedSessions| {
            let options = KillOptions::NOW;
            let mut guards = [SessionGuard::of_orphans(&session, &enclosure, (us, None), ExitStatus::Code(1), options)];
            // Other tests have children too.
            assign_orphans(&mut guards, given_up, |pid| pid != child.id().pid, |_| false);
            guards[0].registry.list().iter().any(|info| info.id == child.id())
        };
        let is_its = listed(&mut AbandonedSessions::default());
        let mut given_up = AbandonedSessions::default();
        given_up.record("given-up".into(), &[us]);
        let is_its_then = listed(&mut given_up);
        child.signal(Signal::Kill).expect("ours");
        while child.try_reap().expect("ours").is_none() {
            std::thread::yield_now();
        }
        assert!(is_its, "whose else");
        assert!(!is_its_then, "it was told with that");
        assert!(given_up.remove(child.id()));
    }
}
