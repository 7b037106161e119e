//! The kill loop: signal, reap, look again, until there is a proof that nothing is left.
//!
//! ARCHITECTURE.md has who runs a kill, on what, and the chart of [`KillLoop::step`].

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use ipc_protocol::{KillCause, KillOptions, ProcessId, ProcessOutcome, Proof, ReapedBy, Receipt, ReceiptEntry, Signal};

use crate::{PidFd, ProcessRegistry, ReapOutcome, RegistryEvent, cgroup::thaw_v1, registry::TreeWalk};

/// Scope of a kill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KillTarget {
    /// Everything below this subreaper. Proof: it has no child left.
    All,
    /// Everything but these processes. Proof: quiet rounds, since there is always a child left.
    AllBut(BTreeSet<ProcessId>),
    /// This process alone. Proof: it is gone.
    One(ProcessId),
    /// This process and everything below it, now and while the kill lasts. Proof: quiet rounds.
    Tree(ProcessId),
    /// Everything below the given roots of a guarded session. Proof: quiet rounds.
    Guarded,
}

/// Side that looks for processes with the session's marker, once nothing else is left.
#[derive(Debug, Default)]
pub enum MarkerLook {
    /// The kill itself, by a pass of its own.
    #[default]
    Own,
    /// The session's guard, after this kill: the receipt says nothing of the marker.
    Guard,
    /// The caller, for many kills at once: see [`KillLoop::wants_marker_look`].
    Caller,
}

/// A look that the caller makes.
#[derive(Debug, Default)]
enum CallersLook {
    #[default]
    NotWanted,
    Wanted,
    UnderWay,
    Made(std::io::Result<Vec<ProcessId>>),
}

/// Progress of a kill.
#[derive(Debug)]
pub enum KillStep {
    /// Call again after this time, or earlier on SIGCHLD.
    Continue(Duration),
    /// The kill is over; see whether the receipt is empty.
    Done(Box<Receipt>),
}

/// Rounds without anything alive or new that count as a proof where ECHILD cannot be had.
const QUIET_ROUNDS: u32 = 3;
/// Time for a kill after its grace, before it reports survivors. A host waits 10 s for that report (`Deadlines` in
/// proxy-manager): on a busy machine too it has to come before that, else the call ends in a deadline that names nobody.
const KILL_TIMEOUT: Duration = Duration::from_secs(6);
/// The same where every process that is left is another user's, and may not be signalled: it will not be either later. Those
/// that drop or gain rights by an exec have been met in both states by then.
const REFUSED_PATIENCE: Duration = Duration::from_secs(1);
/// Dead children reaped in one step: more would starve the killing of a fork storm.
const REAP_BOUND: usize = 256;
/// After a SIGKILL to all at once: how long nothing may die before the living are killed one by one.
const KILL_AT_ONCE_TIMEOUT: Duration = Duration::from_millis(20);
/// Processes noted before the first of them is signalled, and for how long: a storm is not followed any further.
const MAX_FIRST_RECORDED: usize = 1024;
const FIRST_ROUND_TIMEOUT: Duration = Duration::from_millis(100);
/// After so long without effect a SIGKILL may be waiting for a frozen group to be thawed.
const THAW_DELAY: Duration = Duration::from_millis(20);
/// Name of the failed operation when the machine could not be looked through.
const FINDING_STRAYS: &str = "looking for processes with the session's marker";
/// Name of the failed operation when the session could not be sent SIGKILL at once.
const KILLING_AT_ONCE: &str = "killing the session's processes at once";
/// Between rounds while the caller looks for the marker; its answer comes earlier.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Between rounds while SIGKILLs take effect.
const KILL_INTERVAL: Duration = Duration::from_millis(1);
/// Between rounds while processes have their grace; SIGCHLD comes earlier for direct children.
const GRACE_INTERVAL: Duration = Duration::from_millis(10);

/// The first round only looks: a process may take others with it when it dies (the init of a PID namespace, a parent whose
/// death is a signal), and these shall be in the receipt too. The step ends there, so that the caller can tell of them
/// before anything happens.
#[derive(Debug)]
enum FirstRound {
    /// Met so far.
    Scanning(Vec<ProcessId>),
    /// To be signalled now; whether the round has met all.
    Signalling(Vec<ProcessId>, bool),
    Complete,
}

/// A kill in progress. Each step takes about as long as its slice, so that one thread can do other things between.
#[derive(Debug)]
pub struct KillLoop {
    scope: KillTarget,
    cause: KillCause,
    options: KillOptions,
    began: Instant,
    /// Start of the receipt: before `began` if this kill goes on with another one's work.
    receipt_since: Instant,
    slice: Duration,
    rounds: u32,
    quiet_rounds: u32,
    quiet_rounds_needed: u32,
    /// Of the registry, when the last round began.
    discoveries_at_round: Option<u64>,
    /// Met, with their command line as it was then.
    recorded: BTreeSet<ProcessId>,
    signalled: BTreeSet<ProcessId>,
    /// The last SIGKILL to them was refused.
    refused: BTreeSet<ProcessId>,
    alive_in_round: bool,
    /// A SIGKILL to a living process was not refused.
    reached_in_round: bool,
    /// Members of the tree that is to be ended.
    tree: BTreeSet<ProcessId>,
    /// A process was found in this round that belongs to it.
    tree_has_grown: bool,
    /// A whole round has found none: all of the tree stands still.
    tree_is_stopped: bool,
    /// When everything at once was sent SIGKILL, by the cgroup or the namespace, or when something died of it last.
    killed_at_once: Option<Instant>,
    /// The kill at once has failed: the living are killed one by one, and it is tried again in each round.
    kill_at_once_failed: bool,
    /// When SIGKILL was first due.
    killing_since: Option<Instant>,
    /// Pass over the processes that is under way.
    walk: Option<TreeWalk>,
    first: FirstRound,
    /// Of the registry, when the kill began.
    forgotten_at_start: Option<u64>,
    marker_look: MarkerLook,
    callers_look: CallersLook,
}

impl KillLoop {
    /// A kill that begins with its first step. A step takes about `slice`.
    pub fn new(scope: KillTarget, cause: KillCause, options: KillOptions, slice: Duration) -> Self {
        let tree = if let KillTarget::Tree(root) = scope { [root].into() } else { BTreeSet::new() };
        Self {
            scope,
            cause,
            options,
            began: Instant::now(),
            receipt_since: Instant::now(),
            slice,
            rounds: 0,
            quiet_rounds: 0,
            quiet_rounds_needed: QUIET_ROUNDS,
            discoveries_at_round: None,
            recorded: BTreeSet::new(),
            signalled: BTreeSet::new(),
            refused: BTreeSet::new(),
            alive_in_round: false,
            reached_in_round: false,
            tree,
            tree_has_grown: false,
            tree_is_stopped: false,
            killed_at_once: None,
            kill_at_once_failed: false,
            killing_since: None,
            walk: None,
            first: FirstRound::Scanning(Vec::new()),
            forgotten_at_start: None,
            marker_look: MarkerLook::default(),
            callers_look: CallersLook::default(),
        }
    }

    /// Returns the cause of the kill.
    pub fn cause(&self) -> KillCause {
        self.cause
    }

    /// Returns the scope of the kill.
    pub fn scope(&self) -> &KillTarget {
        &self.scope
    }

    /// Says who looks for the session's marker.
    pub fn set_marker_look(&mut self, look: MarkerLook) {
        self.marker_look = look;
    }

    /// Has the caller look for the marker at once: nothing else is left, as somebody has proven already.
    #[must_use]
    pub fn with_marker_look_first(mut self) -> Self {
        self.marker_look = MarkerLook::Caller;
        self.callers_look = CallersLook::Wanted;
        self
    }

    /// Returns whether the caller is to look for the session's marker, by a pass that begins after this call.
    pub fn wants_marker_look(&self) -> bool {
        matches!(self.callers_look, CallersLook::Wanted)
    }

    /// The caller begins to look.
    pub fn begin_marker_look(&mut self) {
        self.callers_look = CallersLook::UnderWay;
    }

    /// The look that was begun has failed, and another is to be made.
    pub fn retry_marker_look(&mut self) {
        if matches!(self.callers_look, CallersLook::UnderWay) {
            self.callers_look = CallersLook::Wanted;
        }
    }

    /// Takes the result of the look that was begun. Returns whether the kill goes on with it.
    pub fn end_marker_look(&mut self, found: std::io::Result<Vec<ProcessId>>) -> bool {
        let is_awaited = matches!(self.callers_look, CallersLook::UnderWay);
        if is_awaited {
            self.callers_look = CallersLook::Made(found);
        }
        is_awaited
    }

    /// Makes one quiet round proof enough: somebody has proven already that nothing is left below.
    #[must_use]
    pub fn confirming(mut self) -> Self {
        self.quiet_rounds_needed = 1;
        self
    }

    /// Goes on with the work of `earlier`: the receipt is of both.
    #[must_use]
    pub fn following(mut self, earlier: &Self) -> Self {
        self.receipt_since = earlier.receipt_since;
        self.rounds = earlier.rounds;
        self.forgotten_at_start = earlier.forgotten_at_start;
        self
    }

    /// Shortens what is left of the grace.
    pub fn shorten_grace(&mut self, options: KillOptions) {
        let left = self.options.grace.saturating_sub(self.began.elapsed());
        if options.grace < left {
            self.options.grace = self.began.elapsed() + options.grace;
        }
    }

    /// Does a part of the work.
    pub fn step(&mut self, registry: &mut ProcessRegistry) -> KillStep {
        if self.rounds == 0
            && matches!(self.callers_look, CallersLook::Wanted | CallersLook::UnderWay)
            && self.began.elapsed() <= self.options.grace + KILL_TIMEOUT
        {
            return KillStep::Continue(LOOK_INTERVAL);
        }
        let living = registry.living().len();
        let children = if registry.is_own() {
            match registry.reap(REAP_BOUND) {
                Ok(children) => children,
                Err(error) => {
                    registry.emit(RegistryEvent::Error { operation: "reaping".into(), error: error.to_string() });
                    ReapOutcome::Alive
                }
            }
        } else {
            ReapOutcome::Alive
        };
        self.forgotten_at_start.get_or_insert(registry.forgotten);
        if children == ReapOutcome::None && matches!(self.scope, KillTarget::All | KillTarget::AllBut(_)) {
            // Burying also ends what others reaped.
            registry.scan();
            if let Some(done) = self.finish(registry, Proof::NoChildren) {
                return done;
            }
        }
        if self.killed_at_once.is_some() && registry.living().len() < living {
            self.killed_at_once = Some(Instant::now());
        }
        if self.is_killing_at_once() && registry.is_own() {
            // Looking at a thousand dying processes would only hold them up; each end wakes us.
            let more = children == ReapOutcome::MoreDead;
            return KillStep::Continue(if more { Duration::ZERO } else { KILL_INTERVAL });
        }
        let known = *self.discoveries_at_round.get_or_insert(registry.discoveries);
        let killing = self.began.elapsed() >= self.options.grace;
        if killing {
            self.killing_since.get_or_insert_with(Instant::now);
        }
        registry.swap_pass(&mut self.walk);
        let strikes_next =
            killing && self.spares_nothing() && self.killed_at_once.is_none() && !self.kill_at_once_failed;
        registry.members_only = strikes_next && registry.has_group();
        let complete = match std::mem::replace(&mut self.first, FirstRound::Complete) {
            FirstRound::Signalling(met, complete) => {
                met.into_iter().for_each(|id| self.signal(registry, id, killing));
                complete
            }
            first => {
                self.first = first;
                self.scan(registry, killing)
            }
        };
        registry.members_only = false;
        registry.swap_pass(&mut self.walk);
        if complete && matches!(&self.first, FirstRound::Scanning(met) if met.is_empty()) {
            // Nobody to be told of, and nothing that could take others with it.
            self.first = FirstRound::Complete;
        }
        if let FirstRound::Scanning(met) = &mut self.first {
            if complete || met.len() >= MAX_FIRST_RECORDED || self.began.elapsed() > FIRST_ROUND_TIMEOUT {
                self.first = FirstRound::Signalling(std::mem::take(met), complete);
            }
            return KillStep::Continue(Duration::ZERO);
        }
        if complete {
            self.rounds += 1;
            // What could not be looked at may be alive.
            let new = registry.discoveries != known || registry.was_incomplete();
            self.discoveries_at_round = Some(registry.discoveries);
            let alive = std::mem::take(&mut self.alive_in_round);
            let reached = std::mem::take(&mut self.reached_in_round);
            if alive && !reached && !new && killing && self.began.elapsed() > self.options.grace + REFUSED_PATIENCE {
                return self.done(registry, Proof::None);
            }
            self.tree_is_stopped = killing && !std::mem::take(&mut self.tree_has_grown);
            self.quiet_rounds = if alive || new { 0 } else { self.quiet_rounds + 1 };
            match &self.scope {
                KillTarget::One(_) if !alive => {
                    registry.scan();
                    return self.done(registry, Proof::ProcessGone);
                }
                KillTarget::Tree(_) if self.quiet_rounds >= self.quiet_rounds_needed => {
                    return self.done(registry, Proof::ProcessGone);
                }
                KillTarget::AllBut(_) if self.quiet_rounds >= self.quiet_rounds_needed => {
                    return self.done(registry, Proof::QuietRounds(self.quiet_rounds));
                }
                KillTarget::Guarded if self.quiet_rounds >= self.quiet_rounds_needed => {
                    if let Some(done) = self.finish(registry, Proof::QuietRounds(self.quiet_rounds)) {
                        return done;
                    }
                }
                _ => {}
            }
            let is_over = registry.has_init() && self.quiet_rounds > 0;
            if (killing && alive || is_over) && self.spares_nothing() && self.killed_at_once.is_none() {
                // By now everything alive has been noted for the receipt.
                self.kill_at_once(registry);
            }
        }
        if self.began.elapsed() > self.options.grace + KILL_TIMEOUT {
            return self.done(registry, Proof::None);
        }
        KillStep::Continue(match (complete && children != ReapOutcome::MoreDead, killing) {
            (false, _) => Duration::ZERO,
            (true, true) => KILL_INTERVAL,
            (true, false) if self.quiet_rounds > 0 => KILL_INTERVAL,
            (true, false) => GRACE_INTERVAL.min(self.options.grace.saturating_sub(self.began.elapsed())),
        })
    }

    /// Goes on with a round, for one slice; says whether it is complete.
    fn scan(&mut self, registry: &mut ProcessRegistry, killing: bool) -> bool {
        match self.scope {
            KillTarget::One(id) => {
                let alive = is_alive(id);
                if alive {
                    self.visit(registry, id, killing);
                }
                self.alive_in_round |= alive;
                true
            }
            KillTarget::Tree(_) => {
                registry.scan_slice(self.slice, |registry, id| self.step_tree(registry, id, killing))
            }
            _ => registry.scan_slice(self.slice, |registry, id| {
                if !self.spares(id) {
                    self.alive_in_round = true;
                    self.visit(registry, id, killing);
                }
            }),
        }
    }

    /// A living process was met that is to end.
    fn visit(&mut self, registry: &mut ProcessRegistry, id: ProcessId, killing: bool) {
        if self.recorded.insert(id) {
            registry.refresh_command(id);
        }
        match &mut self.first {
            FirstRound::Scanning(met) if met.len() < MAX_FIRST_RECORDED => met.push(id),
            _ => self.signal(registry, id, killing),
        }
        self.reached_in_round |= !self.refused.contains(&id);
    }

    /// Returns whether nothing is to be spared.
    fn spares_nothing(&self) -> bool {
        matches!(self.scope, KillTarget::All | KillTarget::Guarded)
    }

    /// Returns whether everything has been sent SIGKILL at once, a moment ago.
    fn is_killing_at_once(&self) -> bool {
        self.killed_at_once.is_some_and(|struck| struck.elapsed() < KILL_AT_ONCE_TIMEOUT)
    }

    /// Nothing is left in the tree. What has left the tree is looked for; if there is any, the kill goes on with it.
    fn finish(&mut self, registry: &mut ProcessRegistry, proof: Proof) -> Option<KillStep> {
        if !self.spares_nothing() {
            return Some(self.done(registry, proof));
        }
        let looked = match self.look_for_marker(registry) {
            Ok(looked) => looked,
            Err(pause) => return Some(KillStep::Continue(pause)),
        };
        let is_group_empty = registry.is_group_empty();
        if let Some(Err(error)) = &looked {
            registry.emit(RegistryEvent::Error { operation: FINDING_STRAYS.into(), error: error.to_string() });
        }
        if is_group_empty == Some(false) || matches!(looked, Some(Ok(false))) {
            self.quiet_rounds = 0;
            // What was proven was not all there is.
            self.quiet_rounds_needed = QUIET_ROUNDS;
            self.killed_at_once = None;
            // They are on the walk from now on.
            registry.restart_pass();
            return (self.began.elapsed() > self.options.grace + KILL_TIMEOUT).then(|| {
                let mut receipt = self.receipt(registry, Proof::None);
                receipt.cgroup_empty = is_group_empty;
                receipt.unmarked = looked.and_then(Result::ok);
                KillStep::Done(Box::new(receipt))
            });
        }
        registry.remove_group();
        let mut receipt = self.receipt(registry, proof);
        receipt.cgroup_empty = is_group_empty;
        receipt.unmarked = looked.map(|looked| looked.is_ok());
        Some(KillStep::Done(Box::new(receipt)))
    }

    /// Returns whether no process has the session's marker; `None` where that is not for this kill to say. An error says that the look
    /// is under way, and how long to wait for it.
    fn look_for_marker(&mut self, registry: &mut ProcessRegistry) -> Result<Option<std::io::Result<bool>>, Duration> {
        if registry.session_hold().marker.is_empty() {
            return Ok(None);
        }
        match self.marker_look {
            MarkerLook::Own => Ok(Some(registry.find_strays())),
            MarkerLook::Guard => Ok(None),
            MarkerLook::Caller => match std::mem::take(&mut self.callers_look) {
                CallersLook::Made(found) => Ok(Some(found.map(|found| registry.set_strays(found)))),
                _ if self.began.elapsed() > self.options.grace + KILL_TIMEOUT => {
                    Ok(Some(Err(std::io::Error::new(std::io::ErrorKind::TimedOut, "the look was not over in time"))))
                }
                look => {
                    self.callers_look = match look {
                        CallersLook::NotWanted => CallersLook::Wanted,
                        look => look,
                    };
                    Err(LOOK_INTERVAL)
                }
            },
        }
    }

    /// Returns whether this process is not to be ended.
    fn spares(&self, id: ProcessId) -> bool {
        matches!(&self.scope, KillTarget::AllBut(spared) if spared.contains(&id))
    }

    /// A living process was met on the walk. Parents come before their children there, so one look suffices to tell whether
    /// it is of the tree.
    fn step_tree(&mut self, registry: &mut ProcessRegistry, id: ProcessId, killing: bool) {
        let parent = registry.parent_of(id);
        if parent.is_some_and(|parent| self.tree.contains(&parent)) && self.tree.insert(id) {
            self.tree_has_grown = true;
        }
        if !self.tree.contains(&id) {
            return;
        }
        self.alive_in_round = true;
        // What is killed gives its children away, and they are then anybody's. So all stand still first, until a whole
        // round has found no new one.
        match (killing, self.tree_is_stopped) {
            (true, false) => self.stop(registry, id),
            (killing, _) => self.visit(registry, id, killing),
        }
    }

    fn stop(&mut self, registry: &mut ProcessRegistry, id: ProcessId) {
        if self.recorded.insert(id) {
            registry.refresh_command(id);
        }
        if let Ok(process) = PidFd::open(id) {
            // What cannot be stopped is not ours to kill either; it is named as a survivor in the end.
            let _ = process.signal(Signal::Stop);
        }
    }

    /// Sends SIGKILL to everything at once, where there is something to do that with.
    fn kill_at_once(&mut self, registry: &mut ProcessRegistry) {
        match registry.kill_at_once() {
            Ok(true) => self.killed_at_once = Some(Instant::now()),
            Ok(false) => self.kill_at_once_failed = true,
            Err(error) => {
                if !std::mem::replace(&mut self.kill_at_once_failed, true) {
                    let error = format!("{error}; its processes are killed one by one");
                    registry.emit(RegistryEvent::Error { operation: KILLING_AT_ONCE.into(), error });
                }
            }
        }
    }

    fn signal(&mut self, registry: &mut ProcessRegistry, id: ProcessId, killing: bool) {
        let first = self.signalled.insert(id);
        if !killing && !first {
            return;
        }
        if killing && self.spares_nothing() && registry.can_kill_at_once() {
            match self.killed_at_once {
                // All at once, when this round has seen them all.
                None if !self.kill_at_once_failed => return,
                None => {}
                Some(_) if self.is_killing_at_once() => return,
                // A dead leader with living threads, or one that is in another group or namespace: one by one.
                Some(_) => {}
            }
        }
        if killing && self.killing_since.is_some_and(|since| since.elapsed() > THAW_DELAY) {
            // SIGKILL waits for the thaw in a frozen group of version 1.
            thaw_v1(id.pid);
        }
        // A process that is gone needs no signal; one that is another user's is named as a survivor in the end.
        let Ok(process) = PidFd::open(id) else { return };
        let signals: &[Signal] = if killing { &[Signal::Kill] } else { &[Signal::Term, Signal::Cont] };
        for signal in signals {
            match process.signal(*signal) {
                Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                    if killing {
                        self.refused.insert(id);
                    }
                    if first {
                        let operation = format!("sending SIG{signal} to process {id}");
                        registry.emit(RegistryEvent::Error { operation, error: error.to_string() });
                    }
                }
                _ => _ = self.refused.remove(&id),
            }
        }
    }

    /// The receipt of this kill where another one, whose receipt is `whole`, has meanwhile ended everything that there was.
    pub fn superseded_receipt(&self, registry: &ProcessRegistry, whole: &Receipt) -> Receipt {
        Receipt {
            rounds: self.rounds + whole.rounds,
            cgroup_empty: whole.cgroup_empty,
            unmarked: whole.unmarked,
            ..self.receipt(registry, whole.proof)
        }
    }

    fn done(&self, registry: &ProcessRegistry, proof: Proof) -> KillStep {
        KillStep::Done(Box::new(self.receipt(registry, proof)))
    }

    fn receipt(&self, registry: &ProcessRegistry, proof: Proof) -> Receipt {
        let mut receipt = Receipt::begin(registry.session().clone(), self.cause);
        receipt.rounds = self.rounds;
        receipt.layers = registry.session_hold().layers();
        receipt.omitted = registry.forgotten - self.forgotten_at_start.unwrap_or(registry.forgotten);
        receipt.duration_us = u64::try_from(self.receipt_since.elapsed().as_micros()).unwrap_or(u64::MAX);
        let in_scope = |id: ProcessId| match &self.scope {
            KillTarget::All | KillTarget::Guarded => true,
            KillTarget::AllBut(_) => !self.spares(id),
            KillTarget::One(one) => id == *one,
            KillTarget::Tree(_) => self.tree.contains(&id),
        };
        let during = |ended: Option<Instant>| ended.is_none_or(|ended| ended >= self.receipt_since);
        let mut entries: Vec<_> =
            registry.entries().iter().filter(|(id, entry)| in_scope(**id) && during(entry.ended_at)).collect();
        entries.sort_by_key(|(id, _)| (id.start_time, id.pid));
        for (id, entry) in entries {
            let alive = entry.ended_at.is_none() && is_alive(*id);
            if alive {
                receipt.survivors.push(*id);
            }
            receipt.processes.push(ReceiptEntry {
                id: *id,
                ppid: entry.info.ppid,
                pgid: entry.info.pgid,
                sid: entry.info.sid,
                command: entry.info.command.is_some().then(|| entry.info.command_line()),
                outcome: match (alive, entry.info.exit) {
                    (true, _) => ProcessOutcome::Survived,
                    (false, Some(exit)) => ProcessOutcome::Ended(exit),
                    (false, None) => ProcessOutcome::Gone,
                },
                reaped_by: (!alive).then_some(entry.reaped_by.unwrap_or(ReapedBy::Parent)),
            });
        }
        receipt.proof = if receipt.survivors.is_empty() { proof } else { Proof::None };
        receipt
    }
}

/// Returns whether the process is there and not dead.
fn is_alive(id: ProcessId) -> bool {
    match crate::proc::stat(id.pid) {
        Ok(stat) => stat.starttime == id.start_time && !crate::proc::is_dead(&stat),
        // Not to be able to look is no sign of death.
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    }
}

impl ProcessRegistry {
    /// Ends everything and waits for it: SIGTERM + SIGCONT, SIGKILL after the grace.
    ///
    /// For programs that have nothing else to do meanwhile; others step a [`KillLoop`].
    pub fn kill_all(&mut self, options: KillOptions) -> Receipt {
        self.run(KillLoop::new(KillTarget::All, KillCause::KillAll, options, Duration::MAX))
    }

    /// Ends one process and waits for it.
    pub fn kill_process(&mut self, process: ProcessId, options: KillOptions) -> Receipt {
        self.run(KillLoop::new(KillTarget::One(process), KillCause::KillProcess, options, Duration::MAX))
    }

    /// Sends one signal to one process of the session.
    ///
    /// # Errors
    /// `NotFound` when the session has no such process alive; `PermissionDenied` when it is another user's.
    pub fn kill(&self, process: ProcessId, signal: Signal) -> std::io::Result<()> {
        if self.find_living(process.pid) != Some(process) {
            let text = format!("session {} has no living process {process}", self.session());
            return Err(std::io::Error::new(std::io::ErrorKind::NotFound, text));
        }
        PidFd::open(process)?.signal(signal)
    }

    fn run(&mut self, mut kill: KillLoop) -> Receipt {
        loop {
            match kill.step(self) {
                KillStep::Done(receipt) => return *receipt,
                KillStep::Continue(pause) => std::thread::sleep(pause),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SessionHold, SpawnInput, SpawnOutput, SpawnRequest, cgroup::fake::FakeCgroupFs};

    /// What root can bring about with a mount over `cgroup.kill`.
    #[test]
    fn where_the_group_cannot_be_struck_its_processes_are_killed_one_by_one() {
        let argv = vec!["sleep".into(), "1000".into()];
        let program = SpawnRequest {
            argv,
            stdin: SpawnInput::Null,
            stderr: SpawnOutput::Null,
            ..SpawnRequest::new("/bin/sleep")
        };
        let member = crate::spawn(program).expect("started").process;
        let pid = member.id().pid;
        let files = [("cgroup.events", "populated 1\n"), ("cgroup.procs", &format!("{pid}\n")), ("cgroup.freeze", "0")];
        let fake = FakeCgroupFs::new("unstruck", &files);
        let mut registry = ProcessRegistry::guard("s-1".parse().expect("an id"));
        registry.set_hold(SessionHold { group: Some(fake.group()), ..SessionHold::default() });
        registry.set_roots(Some(Vec::new()));
        let mut kill =
            KillLoop::new(KillTarget::Guarded, KillCause::KillSession, KillOptions::NOW, Duration::from_millis(5));
        let receipt = loop {
            match kill.step(&mut registry) {
                KillStep::Done(receipt) => break receipt,
                KillStep::Continue(pause) => std::thread::sleep(pause),
            }
            if member.try_reap().is_ok_and(|exit| exit.is_some()) {
                fake.write("cgroup.events", "populated 0\n");
                fake.write("cgroup.procs", "");
            }
        };
        let _ = member.signal(Signal::Kill);
        assert!(receipt.proof != Proof::None && receipt.survivors.is_empty(), "{receipt:?}");
        assert!(receipt.duration_us < 5_000_000, "{receipt:?}");
        let errors = std::iter::from_fn(|| registry.next_event()).filter_map(|event| match event {
            RegistryEvent::Error { operation, error } => Some((operation, error)),
            _ => None,
        });
        let errors: Vec<_> = errors.filter(|(operation, _)| operation == KILLING_AT_ONCE).collect();
        assert!(matches!(&errors[..], [(_, error)] if error.contains("killing the cgroup")), "{errors:?}");
    }
}
