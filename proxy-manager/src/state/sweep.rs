//! Finding and killing what has no supervisor any more.
//!
//! A process is of a session, and is killed, if one of these holds; each is about a process with its start time, never
//! about a number:
//! * the journal names it, and pid and start time are the same;
//! * it is a member of the session's cgroup, whose manager is dead: the lock on its directory could be taken;
//! * the session's marker is in its environment, and it is not older than the session;
//! * its parent is of the session;
//! * it is in a POSIX session that the journal names, no older than what was seen in it, and that number cannot have become another
//!   POSIX session's: a process has it as its own pid, or too little was forked since. What left its process group is still in it;
//! * it is in the POSIX session (`setsid`) of a process that is of the session by its journal or its parent. One gets into a
//!   POSIX session by fork only, its first process was a process of ours, so all of it descends from that. This does not
//!   hold for what was found by marker or cgroup alone, which can be handed to strangers (`at` keeps the environment), nor
//!   for process groups: these are not looked at.
//!
//! The last two are read from `/proc`, where a number can change its owner between two reads. They count if they still hold
//! in a second look at the one, followed by one at the other: that one was there before and after, so the number was its.
//!
//! A process that ended while nobody watched may have forked another which none of this holds for: one without the marker, in a
//! POSIX session of its own. Where nothing holds it (no cgroup, no namespace) and there is any process that may be one (adopted from
//! dead parents, in the host's cgroup, started since), nobody knows: it is named as unattributed, left alone, and the receipt has no
//! proof.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    time::{Duration, Instant},
};

use ipc_protocol::{
    ContainmentLayer, KillCause, Pid, ProcessId, ProcessOutcome, Proof, ReapedBy, Receipt, ReceiptEntry, Signal,
};
use registry::{PidFd, SeenProcess};

use super::{
    group::{GroupLocks, StaleGroup},
    journal::{adopts_orphans, cgroup_of},
    record::JournalRecord,
    started,
};

/// Looks without anything alive or new that count as a proof.
const QUIET_ROUNDS: u32 = 3;
/// Time for watching the newest process after something was forked during a look, in processor time: on a machine that is
/// busy little of the time that passes is spent watching.
const CHASE: Duration = Duration::from_millis(20);
/// The same in time that passes.
const LONGEST_CHASE: Duration = Duration::from_millis(500);
/// The same for sessions of this manager, for whose end somebody may wait: what forks at every step is met many times in this.
const OWN_CHASE: Duration = Duration::from_millis(8);
const OWN_LONGEST_CHASE: Duration = Duration::from_millis(100);
/// A process that SIGKILL does not end in this time may be frozen.
const FROZEN: Duration = Duration::from_millis(100);

/// Processes that may be of a session, which a receipt names at most.
const MOST_DOUBTFUL: usize = 64;

/// Result of the sweep for one session.
pub(super) struct SweptSession {
    pub(super) receipt: Receipt,
    pub(super) supervisors: Vec<ProcessId>,
    pub(super) damaged_lines: usize,
    /// All that can be known to be the session's is gone: another look would find no more.
    pub(super) is_searched: bool,
}

/// Owner of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProcessOwner {
    /// Of this session.
    Session(usize),
    /// The proxy of this session: what is below it is the session's.
    Proxy(usize),
    /// A fork server, or below it a proxy that waits for a session.
    ForkServer,
}

struct SweepMember {
    owner: ProcessOwner,
    /// As it was first seen.
    seen: SeenProcess,
    command: Option<String>,
    /// Known from the journal or by its parent: its POSIX session is all ours.
    by_descent: bool,
    alive: bool,
}

struct SweepCase {
    record: JournalRecord,
    group: StaleGroup,
    quiet_rounds: u32,
    rounds: u32,
    unmarked: bool,
    proven_at: Option<Instant>,
    /// A process that was recorded as living had ended before the first look.
    has_gap: bool,
}

pub(super) struct SessionSweep {
    cases: Vec<SweepCase>,
    /// Of the directories that their groups are in.
    locks: GroupLocks,
    /// By marker.
    markers: BTreeMap<String, usize>,
    /// Processes that the journals name.
    named: BTreeMap<ProcessId, ProcessOwner>,
    members: BTreeMap<ProcessId, SweepMember>,
    /// Start time below which nothing is of any of the sessions.
    since: u64,
    own: Pid,
    /// True if this process adopts what its descendants leave.
    adopts: bool,
    /// Time for watching the newest process: in time that passes, and in processor time.
    chase: (Duration, Duration),
    began: Instant,
    /// The last look found nothing alive.
    quiet: bool,
    /// Processes of the last whole look; `true` for those with a marker.
    last: Vec<(SeenProcess, bool)>,
    has_looked: bool,
    /// Processes that may belong to each session though nothing proves it.
    doubts: Vec<Vec<SeenProcess>>,
}

/// Result of one look.
struct SweepLook {
    /// Members never seen before.
    new_members: Vec<ProcessId>,
    /// True if all could be looked at.
    is_complete: bool,
}

impl SessionSweep {
    /// Of dead managers' sessions.
    pub(super) fn new(records: Vec<JournalRecord>) -> Self {
        Self::with(records, StaleGroup::new)
    }

    /// Of this manager's own sessions: their groups need no lock.
    pub(super) fn of_own(records: Vec<JournalRecord>) -> Self {
        Self { chase: (OWN_LONGEST_CHASE, OWN_CHASE), ..Self::with(records, StaleGroup::of_own) }
    }

    fn with(records: Vec<JournalRecord>, group: impl Fn(Option<&str>) -> StaleGroup) -> Self {
        let mut named = BTreeMap::new();
        let mut markers = BTreeMap::new();
        for (at, record) in records.iter().enumerate() {
            named.extend(record.living.iter().map(|id| (*id, ProcessOwner::Session(at))));
            named.extend(record.proxy.map(|id| (id, ProcessOwner::Proxy(at))));
            named.extend(record.fork_server.map(|id| (id, ProcessOwner::ForkServer)));
            markers.insert(record.header.marker.clone(), at);
        }
        let since = records.iter().map(|record| record.header.since).min().unwrap_or(u64::MAX);
        let case = |record: JournalRecord| SweepCase {
            group: group(record.header.cgroup.as_deref()),
            record,
            quiet_rounds: 0,
            rounds: 0,
            unmarked: false,
            proven_at: None,
            has_gap: false,
        };
        let cases = records.into_iter().map(case).collect();
        let own = std::process::id();
        Self {
            cases,
            locks: GroupLocks::default(),
            markers,
            named,
            members: BTreeMap::new(),
            since,
            own,
            adopts: adopts_orphans(),
            chase: (LONGEST_CHASE, CHASE),
            began: Instant::now(),
            quiet: false,
            last: Vec::new(),
            has_looked: false,
            doubts: Vec::new(),
        }
    }

    /// Stops what is found; whether something new was.
    pub(super) fn look_and_stop(&mut self) -> bool {
        let look = self.look();
        for id in &look.new_members {
            signal(*id, Signal::Stop);
        }
        !look.is_complete || !look.new_members.is_empty()
    }

    /// Kills what is found; whether it has to be done again.
    pub(super) fn look_and_kill(&mut self) -> bool {
        let look = self.look();
        // The youngest first: with its parent dead a stopped process group is woken (SIGHUP, SIGCONT).
        let mut living: Vec<_> = self.members.iter().filter(|(_, m)| m.alive).map(|(id, m)| (*id, m.owner)).collect();
        living.sort_unstable_by_key(|(id, _)| std::cmp::Reverse((id.start_time, id.pid)));
        let frozen = self.began.elapsed() > FROZEN;
        for (id, _) in &living {
            signal(*id, Signal::Kill);
            if frozen {
                registry::thaw_v1(id.pid);
            }
        }
        for (at, case) in self.cases.iter_mut().enumerate() {
            let populated = case.group.kill(case.record.header.since);
            if case.proven_at.is_some() {
                continue;
            }
            case.rounds += 1;
            let of_case = |owner: ProcessOwner| owner == ProcessOwner::Session(at) || owner == ProcessOwner::Proxy(at);
            let alive = living.iter().any(|(_, owner)| of_case(*owner));
            let new =
                look.new_members.iter().any(|id| self.members.get(id).is_some_and(|member| of_case(member.owner)));
            case.quiet_rounds = if !look.is_complete || alive || new || populated || !case.unmarked {
                0
            } else {
                case.quiet_rounds + 1
            };
            if case.quiet_rounds >= QUIET_ROUNDS {
                case.proven_at = Some(Instant::now());
            }
        }
        self.quiet = look.is_complete && living.is_empty();
        let servers = living.iter().any(|(_, owner)| *owner == ProcessOwner::ForkServer);
        servers || self.cases.iter().any(|case| case.proven_at.is_none())
    }

    /// Returns whether nothing was alive in the last look: what is missing is only the proof.
    pub(super) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Looks at all processes once.
    fn look(&mut self) -> SweepLook {
        let mut look = SweepLook { new_members: Vec::new(), is_complete: true };
        for case in &mut self.cases {
            // Once the fork server is dead, which has had its lock.
            case.group.take(&mut self.locks);
        }
        let newest = registry::newest_pid();
        let found = match registry::all_processes(self.since) {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!(%error, "a look at /proc was not whole");
                look.is_complete = false;
                return look;
            }
        };
        let all: BTreeMap<Pid, SeenProcess> = found.iter().map(|(seen, _)| (seen.id.pid, *seen)).collect();
        for member in self.members.values_mut() {
            member.alive = all.get(&member.seen.id.pid).is_some_and(|now| now.id == member.seen.id);
        }
        for seen in all.values() {
            if let Some(owner) = self.named.get(&seen.id).copied() {
                self.add(seen, owner, true, &mut look);
            }
        }
        if !std::mem::replace(&mut self.has_looked, true) {
            for case in &mut self.cases {
                case.has_gap = case.record.living.iter().any(|id| !self.members.contains_key(id));
            }
        }
        self.add_posix_sessions(&all, &mut look);
        self.last = found.iter().map(|(seen, marker)| (*seen, marker.is_some())).collect();
        self.cases.iter_mut().for_each(|case| case.unmarked = true);
        for (seen, marker) in &found {
            let Some(at) = marker.as_ref().and_then(|marker| self.markers.get(marker)).copied() else { continue };
            if seen.id.start_time >= self.cases[at].record.header.since {
                self.cases[at].unmarked = false;
                self.add(seen, ProcessOwner::Session(at), false, &mut look);
            }
        }
        for at in 0..self.cases.len() {
            let mut pids = Vec::new();
            // A pid that was there before it was in the group is the same process, or has another start time by now.
            look.is_complete &= self.cases[at].group.members(&mut pids).is_ok();
            // Root can move anybody there; what is older than the session is none of it.
            let since = self.cases[at].record.header.since;
            for seen in pids.iter().filter_map(|pid| all.get(pid)).filter(|seen| seen.id.start_time >= since) {
                self.add(seen, ProcessOwner::Session(at), false, &mut look);
            }
        }
        self.follow(&all, &mut look);
        if registry::newest_pid() != newest {
            self.chase(&mut look);
        }
        look
    }

    /// Adds what is in POSIX sessions that are recorded.
    fn add_posix_sessions(&mut self, all: &BTreeMap<Pid, SeenProcess>, look: &mut SweepLook) {
        let mut more = Vec::new();
        for (at, case) in self.cases.iter().enumerate() {
            for seen in all.values() {
                let Some(posix) = case.record.posix.get(&seen.sid) else { continue };
                if seen.id.start_time < posix.since || self.members.contains_key(&seen.id) {
                    continue;
                }
                // Its first process may live. Another process with that pid began a POSIX session of its own.
                let is_others = all.get(&posix.sid).is_some_and(|first| first.id.start_time > posix.since);
                let is_proxys = case.record.header.fork_server.pid == posix.sid;
                if !is_others && !is_proxys && holds(seen, |now| now.sid == posix.sid) {
                    more.push((*seen, at, posix.forks));
                }
            }
        }
        for (seen, at, forks) in more {
            // Looked at after the process was: it had the number then.
            if registry::pids_are_unique_since(forks) {
                self.add(&seen, ProcessOwner::Session(at), true, look);
            }
        }
    }

    /// Returns whether a process that was known ended while nobody watched: there may be others.
    pub(super) fn has_gaps(&self) -> bool {
        self.cases.iter().any(|case| case.has_gap && !case.record.header.strict && !case.group.is_taken())
    }

    /// Takes note of what the last look found that may be of a session though nothing says so. Whether there was anything.
    pub(super) fn note_doubts(&mut self) -> bool {
        let doubts: Vec<_> = self.cases.iter().map(|case| self.doubtful_of(case)).collect();
        let any = doubts.iter().any(|doubts| !doubts.is_empty());
        if any {
            self.doubts = doubts;
        }
        any
    }

    /// Drops the doubtful processes: they are gone, and nothing else came.
    pub(super) fn drop_doubts(&mut self) {
        self.doubts.clear();
    }

    fn doubtful_of(&self, case: &SweepCase) -> Vec<SeenProcess> {
        let may_be = case.has_gap && !case.record.header.strict && !case.group.is_taken();
        if may_be { self.doubtful(&case.record) } else { Vec::new() }
    }

    /// Finds processes that may belong to a session though nothing proves it.
    fn doubtful(&self, record: &JournalRecord) -> Vec<SeenProcess> {
        let is_reaper = |pid: Pid| match record.reapers.as_slice() {
            [] => pid == 1,
            // Of itself this process knows whether it adopts.
            reapers => (pid != self.own || self.adopts) && reapers.iter().any(|reaper| reaper.pid == pid),
        };
        let look = |reaper: &ProcessId| registry::find_process(reaper.pid).ok().flatten();
        // Nobody gets into a POSIX session that was there before.
        let old = self.last.iter().map(|(seen, _)| seen).filter(|seen| seen.id.start_time < record.header.since);
        let reapers = record.reapers.iter().filter_map(look);
        let sids: BTreeSet<_> = reapers.map(|seen| seen.sid).chain(old.map(|seen| seen.sid)).collect();
        let is_here = |seen: &SeenProcess| match (&record.host_cgroup, cgroup_of(&seen.id.pid.to_string())) {
            (Some(host), Some(its)) => *host == its,
            _ => true,
        };
        let all = self.last.iter().filter(|(seen, is_marked)| {
            !is_marked
                && seen.id.start_time >= record.unwatched_since
                && is_reaper(seen.ppid)
                && !sids.contains(&seen.sid)
                // Proxies are in that of their fork server.
                && seen.sid != record.header.fork_server.pid
                && !self.members.contains_key(&seen.id)
                && seen.id.pid != self.own
                && !started::contains(seen.id)
                && is_here(seen)
                && holds(seen, |_| true)
        });
        all.map(|(seen, _)| *seen).collect()
    }

    /// Meets a process that forks at every step, and ends before `/proc` is read, at the newest pid, and stops it there.
    fn chase(&mut self, look: &mut SweepLook) {
        let (longest, enough) = self.chase;
        let (until, enough) = (Instant::now() + longest, registry::thread_time() + enough);
        let mut last = None;
        while registry::thread_time() < enough && Instant::now() < until {
            let newest = registry::newest_pid();
            if newest == last {
                std::thread::yield_now();
                continue;
            }
            last = newest;
            let Some(Ok(Some((seen, Some(marker))))) = newest.map(registry::find_process_with_marker) else { continue };
            let Some(at) = self.markers.get(&marker).copied() else { continue };
            if seen.id.start_time >= self.cases[at].record.header.since {
                signal(seen.id, Signal::Stop);
                self.cases[at].unmarked = false;
                self.add(&seen, ProcessOwner::Session(at), false, look);
            }
        }
    }

    /// Adds what is a child of a member, or in the POSIX session of one, until there is nothing to add.
    fn follow(&mut self, all: &BTreeMap<Pid, SeenProcess>, look: &mut SweepLook) {
        loop {
            let mut sessions = BTreeMap::new();
            for member in self.members.values().filter(|member| member.alive && member.by_descent) {
                if let (ProcessOwner::Session(_), Some(now)) = (member.owner, all.get(&member.seen.id.pid)) {
                    sessions.entry(now.sid).or_insert(now.id);
                }
            }
            let mut more = Vec::new();
            for seen in all.values().filter(|seen| !self.members.contains_key(&seen.id)) {
                let parent = all.get(&seen.ppid).map(|parent| parent.id).filter(|id| self.is_alive(*id));
                let by_parent = parent.filter(|parent| holds(seen, |now| now.ppid == parent.pid) && is_same(*parent));
                let mate = sessions.get(&seen.sid).copied().filter(|_| seen.sid != 0);
                let by_session = || {
                    let still = |mate: &ProcessId| matches!(registry::find_process(mate.pid), Ok(Some(now)) if now.id == *mate && now.sid == seen.sid);
                    mate.filter(|mate| holds(seen, |now| now.sid == seen.sid) && still(mate))
                };
                if let Some(relative) = by_parent.or_else(by_session) {
                    more.push((*seen, relative));
                }
            }
            let before = look.new_members.len();
            for (seen, relative) in more {
                let Some(member) = self.members.get(&relative) else { continue };
                let by_descent = member.by_descent;
                let owner = match member.owner {
                    ProcessOwner::Session(at) | ProcessOwner::Proxy(at) => ProcessOwner::Session(at),
                    ProcessOwner::ForkServer => ProcessOwner::ForkServer,
                };
                self.add(&seen, owner, by_descent, look);
            }
            if look.new_members.len() == before {
                return;
            }
        }
    }

    fn is_alive(&self, id: ProcessId) -> bool {
        self.members.get(&id).is_some_and(|member| member.alive)
    }

    fn add(&mut self, seen: &SeenProcess, owner: ProcessOwner, by_descent: bool, look: &mut SweepLook) {
        if let Some(known) = self.members.get_mut(&seen.id) {
            known.by_descent |= by_descent;
            return;
        }
        // This manager may itself have been started from what is to be ended; and a journal is no reason to end init.
        if seen.id.pid == self.own || seen.id.pid == 1 {
            return;
        }
        let command = registry::command_line(seen.id.pid).map(|words| words.join(" "));
        self.members.insert(seen.id, SweepMember { owner, seen: *seen, command, by_descent, alive: true });
        look.new_members.push(seen.id);
    }

    /// The receipts, in the order of the records.
    pub(super) fn finish(self, began: Instant) -> Vec<SweptSession> {
        // The locks are kept till the groups are removed.
        let Self { cases, members, mut doubts, locks: _locks, .. } = self;
        doubts.resize(cases.len(), Vec::new());
        let mut told = BTreeSet::new();
        let end = |(at, case): (usize, SweepCase)| {
            let SweepCase { record, group, rounds, unmarked, proven_at, .. } = case;
            let mut receipt = Receipt::begin(record.header.session.clone(), KillCause::Recovery);
            receipt.rounds = rounds;
            let took = proven_at.unwrap_or_else(Instant::now).saturating_duration_since(began);
            receipt.duration_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
            for member in members.values().filter(|member| member.owner == ProcessOwner::Session(at)) {
                let SeenProcess { id, ppid, pgid, sid, .. } = member.seen;
                if member.alive {
                    receipt.survivors.push(id);
                }
                let outcome = if member.alive { ProcessOutcome::Survived } else { ProcessOutcome::Gone };
                let reaped_by = (!member.alive).then_some(ReapedBy::System);
                let command = member.command.clone();
                receipt.processes.push(ReceiptEntry { id, ppid, pgid, sid, command, outcome, reaped_by });
            }
            receipt.processes.sort_by_key(|entry| (entry.id.start_time, entry.id.pid));
            receipt.unmarked = Some(unmarked);
            receipt.cgroup_empty = group.remove();
            if receipt.cgroup_empty.is_some() {
                receipt.layers.push(ContainmentLayer::Cgroup);
            }
            if record.header.strict {
                receipt.layers.push(ContainmentLayer::Strict);
            }
            receipt.proof = match proven_at {
                Some(_) => Proof::QuietRounds(QUIET_ROUNDS),
                None => Proof::None,
            };
            let is_searched =
                receipt.survivors.is_empty() && proven_at.is_some() && receipt.cgroup_empty != Some(false);
            if receipt.cgroup_empty != Some(true) && !doubts[at].is_empty() {
                receipt.proof = Proof::None;
                receipt.unattributed = doubts[at].iter().take(MOST_DOUBTFUL).map(entry_of).collect();
                receipt.omitted += (doubts[at].len() - receipt.unattributed.len()) as u64;
            }
            let ours = |owner: ProcessOwner| owner == ProcessOwner::Proxy(at) || owner == ProcessOwner::ForkServer;
            let supervisors = members.iter().filter(|(_, member)| ours(member.owner)).map(|(id, _)| *id);
            // A fork server had several sessions: it is named with the first.
            let supervisors = supervisors.filter(|id| told.insert(*id)).collect();
            SweptSession { receipt, supervisors, damaged_lines: record.damaged, is_searched }
        };
        cases.into_iter().enumerate().map(end).collect()
    }
}

/// A process that may be of a session.
fn entry_of(seen: &SeenProcess) -> ReceiptEntry {
    let SeenProcess { id, ppid, pgid, sid, .. } = *seen;
    let command = registry::command_line(id.pid).map(|words| words.join(" "));
    ReceiptEntry { id, ppid, pgid, sid, command, outcome: ProcessOutcome::Survived, reaped_by: None }
}

/// Returns whether `seen` is still there and `relation` holds.
fn holds(seen: &SeenProcess, relation: impl FnOnce(&SeenProcess) -> bool) -> bool {
    matches!(registry::find_process(seen.id.pid), Ok(Some(now)) if now.id == seen.id && relation(&now))
}

fn is_same(id: ProcessId) -> bool {
    registry::identify(id.pid).is_ok_and(|now| now == id)
}

fn signal(id: ProcessId, signal: Signal) {
    let sent = PidFd::open(id).and_then(|process| process.signal(signal));
    match sent {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        // Another user's, or no descriptor is left: it is tried again, and named as a survivor in the end.
        Err(error) => tracing::debug!(%id, %error, "a process of a session without supervisors cannot be signalled"),
    }
}
