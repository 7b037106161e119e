//! Record of all processes that a command has started, from everything observed.

use std::collections::{BTreeSet, HashMap};

use ipc_protocol::ProcessOutcome;
use proxy_manager::{
    AgentPosition, ContainmentStatus, EndReason, EscapeMark, Event, ExitStatus, ObserverKind, Pid, ProcessId,
    ProcessInfo, ProcessStatus, Receipt, ReceiptEntry,
};

/// Number of processes recorded one by one; further ones are only counted.
const MAX_PROCESSES: usize = 20_000;

/// Number of doubts recorded about the completeness of the observation.
const MAX_DOUBTS: usize = 16;

/// Process in the record.
#[derive(Clone, Debug)]
pub(super) struct RecordedProcess {
    /// First observation, with the latest group, session and status.
    pub(super) info: ProcessInfo,
    /// True if the process was ever seen alive; else only its events came.
    pub(super) seen_alive: bool,
    /// Ways in which it left the command's reach before the command exited.
    pub(super) marks: BTreeSet<EscapeMark>,
    /// True if the process was alive when the kill began.
    pub(super) alive_at_kill: bool,
    /// True if the process survived the kill.
    pub(super) survived: bool,
}

/// Record of a session's processes, including the command itself.
#[derive(Debug, Default)]
pub(super) struct LeakRecord {
    agent: Option<AgentPosition>,
    agent_process: Option<ProcessId>,
    agent_exited: bool,
    agent_exit: Option<ExitStatus>,
    measures: Option<ContainmentStatus>,
    doubts: Vec<String>,
    processes: Vec<RecordedProcess>,
    places: HashMap<ProcessId, usize>,
    /// Children by their parent, as first observed.
    children: HashMap<Pid, Vec<ProcessId>>,
    omitted: u64,
    /// Processes alive in the last listing, without the command.
    alive: Vec<ProcessId>,
}

impl LeakRecord {
    /// Records an event.
    pub(super) fn event(&mut self, event: &Event) {
        match event {
            Event::SessionStarted { process, measures, .. } => {
                self.agent_process = Some(*process);
                self.measures = Some((**measures).clone());
            }
            Event::ProcessSpawned(info) => {
                self.record_process(info, false);
                if self.is_in_order() {
                    self.set_parent(info.id, info.ppid);
                }
            }
            Event::ProcessExited { process, exit, .. } => {
                if self.agent_process == Some(*process) {
                    self.agent_exit = self.agent_exit.or(*exit);
                }
                self.orphans_of(*process);
                self.ended(*process, *exit);
            }
            Event::SessionStatus { status, .. } if status == "agentExited" => self.agent_exited = true,
            Event::SessionEnded { reason: EndReason::AgentExited(exit), .. } => {
                self.agent_exit = self.agent_exit.or(*exit);
                self.agent_exited = true;
            }
            Event::SessionLossy { reason } => self.doubt(reason.clone()),
            Event::SessionGap(gap) => self.doubt(format!("events {} to {} are lost", gap.from, gap.to)),
            _ => {}
        }
    }

    /// Records a listing. Returns the number of live processes, without the command itself.
    pub(super) fn record_listing(&mut self, listing: &[ProcessInfo]) -> usize {
        if self.agent.is_none() {
            self.agent = AgentPosition::among(listing);
        }
        let pids: BTreeSet<_> =
            listing.iter().filter(|process| is_alive(process)).map(|process| process.id.pid).collect();
        let agent_lives = listing.iter().any(|process| process.tracked && is_alive(process));
        self.alive.clear();
        for process in listing {
            self.record_process(process, is_alive(process));
            if !is_alive(process) {
                self.ended(process.id, process.exit);
                continue;
            }
            // Once the agent is dead all its children have lost their parent, which means nothing.
            self.mark(process, |pid| !agent_lives || pids.contains(&pid), agent_lives);
            if !self.is_ours(process.id) {
                self.alive.push(process.id);
            }
        }
        self.alive.len()
    }

    /// Records that the live processes have to be killed.
    pub(super) fn begin_kill(&mut self) {
        for process in std::mem::take(&mut self.alive) {
            if let Some(known) = self.places.get(&process).and_then(|place| self.processes.get_mut(*place)) {
                known.alive_at_kill = true;
            }
        }
    }

    /// Records the result of the kill.
    pub(super) fn receipt(&mut self, receipt: &Receipt) {
        for entry in &receipt.processes {
            if !self.places.contains_key(&entry.id) {
                self.insert(from_receipt(receipt, entry), true);
            }
            let is_ours = self.is_ours(entry.id);
            let Some(known) = self.places.get(&entry.id).and_then(|place| self.processes.get_mut(*place)) else {
                continue;
            };
            known.seen_alive = true;
            known.survived = entry.outcome == ProcessOutcome::Survived;
            // The process may have started after the last listing.
            known.alive_at_kill = !is_ours;
            if let ProcessOutcome::Ended(exit) = entry.outcome {
                self.ended(entry.id, Some(exit));
            } else if entry.outcome == ProcessOutcome::Gone {
                self.ended(entry.id, None);
            }
        }
        self.omitted += receipt.omitted;
    }

    /// Returns true if the command is known to have exited.
    pub(super) fn agent_exited(&self) -> bool {
        self.agent_exited
    }

    /// Returns the exit status of the command. A short one may have exited before it is known which process it is.
    pub(super) fn agent_exit(&self) -> Option<ExitStatus> {
        let place = self.agent_process.and_then(|agent| self.places.get(&agent));
        self.agent_exit.or_else(|| self.processes.get(*place?)?.info.exit)
    }

    /// Returns the measures in force for the session.
    pub(super) fn measures(&self) -> Option<&ContainmentStatus> {
        self.measures.as_ref()
    }

    /// Returns the reasons why the record may be incomplete.
    pub(super) fn doubts(&self) -> &[String] {
        &self.doubts
    }

    /// Returns all processes, in the order seen, including the command.
    pub(super) fn processes(&self) -> &[RecordedProcess] {
        &self.processes
    }

    /// Returns the record of one process.
    pub(super) fn find(&self, process: ProcessId) -> Option<&RecordedProcess> {
        self.places.get(&process).and_then(|place| self.processes.get(*place))
    }

    /// Iterates over the processes that the command has started.
    pub(super) fn spawned(&self) -> impl Iterator<Item = &RecordedProcess> {
        self.processes.iter().filter(|known| !self.is_ours(known.info.id))
    }

    /// Returns true for the command, and for the init of its namespace.
    fn is_ours(&self, process: ProcessId) -> bool {
        self.agent_process == Some(process) || self.agent.is_some_and(|agent| agent.is_above(process))
    }

    /// Returns the number of processes that were seen and are in no list.
    pub(super) fn omitted(&self) -> u64 {
        self.omitted
    }

    fn record_process(&mut self, info: &ProcessInfo, alive: bool) {
        let Some(known) = self.places.get(&info.id).and_then(|place| self.processes.get_mut(*place)) else {
            return self.insert(info.clone(), alive);
        };
        known.seen_alive |= alive;
        if alive {
            (known.info.pgid, known.info.sid) = (info.pgid, info.sid);
        }
        if info.command.is_some() {
            known.info.command.clone_from(&info.command);
            known.info.args.clone_from(&info.args);
        }
        known.info.tracked |= info.tracked;
    }

    fn insert(&mut self, info: ProcessInfo, seen_alive: bool) {
        if self.processes.len() >= MAX_PROCESSES {
            self.omitted += 1;
            return;
        }
        if info.tracked && self.agent.is_none() {
            self.agent = Some(AgentPosition::from(&info));
        }
        self.places.insert(info.id, self.processes.len());
        self.children.entry(info.ppid).or_default().push(info.id);
        let known = RecordedProcess {
            info: info.clone(),
            seen_alive,
            marks: BTreeSet::new(),
            alive_at_kill: false,
            survived: false,
        };
        self.processes.push(known);
        // Only callers know if the current parent is the one that started it: no `Reparented` mark here.
        self.mark(&info, |_| true, false);
    }

    /// Adds the marks of a process. `Reparented` counts only if `orphans` is true.
    fn mark(&mut self, process: &ProcessInfo, known: impl Fn(u32) -> bool, orphans: bool) {
        let Some(agent) = self.agent else { return };
        let ids = [process.ppid, process.pgid, process.sid];
        let marks =
            agent.marks(process.id, ids, known).into_iter().filter(|mark| orphans || *mark != EscapeMark::Reparented);
        if let Some(known) = self.places.get(&process.id).and_then(|place| self.processes.get_mut(*place)) {
            known.marks.extend(marks);
            if known.marks.contains(&EscapeMark::LeftSession) {
                known.marks.remove(&EscapeMark::LeftGroup);
            }
        }
    }

    /// Returns true if events come in the kernel's order: a parent before its children, with their original parent.
    fn is_in_order(&self) -> bool {
        self.measures.as_ref().is_some_and(|measures| measures.observer == ObserverKind::Connector)
    }

    /// Corrects the parent of a process, if a listing came too late to see the original one.
    fn set_parent(&mut self, process: ProcessId, parent: Pid) {
        let Some(known) = self.places.get(&process).and_then(|place| self.processes.get_mut(*place)) else { return };
        let before = std::mem::replace(&mut known.info.ppid, parent);
        if before != parent {
            if let Some(children) = self.children.get_mut(&before) {
                children.retain(|child| *child != process);
            }
            self.children.entry(parent).or_default().push(process);
        }
    }

    /// Marks the children of a process that ended before the command. Needs events in the kernel's order.
    fn orphans_of(&mut self, parent: ProcessId) {
        let children = self.children.remove(&parent.pid).unwrap_or_default();
        if !self.is_in_order() || self.is_ours(parent) || self.agent_exited {
            return;
        }
        for child in children {
            let known = self.places.get(&child).and_then(|place| self.processes.get_mut(*place));
            if let Some(known) = known.filter(|known| is_alive(&known.info)) {
                known.marks.insert(EscapeMark::Reparented);
            }
        }
    }

    fn ended(&mut self, process: ProcessId, exit: Option<ExitStatus>) {
        if let Some(known) = self.places.get(&process).and_then(|place| self.processes.get_mut(*place)) {
            known.info.exit = known.info.exit.or(exit);
            known.info.status = ProcessStatus::of_exit(known.info.exit);
        }
    }

    fn doubt(&mut self, reason: String) {
        if self.doubts.len() < MAX_DOUBTS && !self.doubts.contains(&reason) {
            self.doubts.push(reason);
        }
    }
}

fn is_alive(process: &ProcessInfo) -> bool {
    process.status == ProcessStatus::Running
}

/// Describes a process that only the receipt has.
fn from_receipt(receipt: &Receipt, entry: &ReceiptEntry) -> ProcessInfo {
    ProcessInfo {
        id: entry.id,
        ppid: entry.ppid,
        pgid: entry.pgid,
        sid: entry.sid,
        session_id: receipt.session_id.clone(),
        command: entry.command.clone(),
        args: Vec::new(),
        cwd: None,
        started_at: std::time::SystemTime::UNIX_EPOCH,
        status: ProcessStatus::Running,
        exit: None,
        error: None,
        cpu_percent: None,
        rss_bytes: None,
        tracked: false,
    }
}

#[cfg(test)]
mod tests {
    use ipc_protocol::{KillCause, ReapedBy};

    use super::*;
    use crate::render::tree::tests::process;

    fn id(pid: Pid) -> ProcessId {
        ProcessId { pid, start_time: u64::from(pid) }
    }

    /// Creates the command (10) below its proxy (2).
    fn agent() -> ProcessInfo {
        ProcessInfo { tracked: true, ..process(10, 2, 10, 10, "agent") }
    }

    fn spawned(process: ProcessInfo) -> Event {
        Event::ProcessSpawned(Box::new(process))
    }

    fn exited(pid: Pid) -> Event {
        Event::ProcessExited { process: id(pid), command: None, exit: Some(ExitStatus::Code(0)) }
    }

    fn started(observer: ObserverKind) -> Event {
        Event::SessionStarted {
            agent: "command".into(),
            process: id(10),
            proxy: id(2),
            native_session_id: None,
            measures: Box::new(ContainmentStatus { observer, ..ContainmentStatus::default() }),
            surface: proxy_manager::terminal::Surface::Machine,
        }
    }

    fn record(observer: ObserverKind) -> LeakRecord {
        let mut record = LeakRecord::default();
        record.event(&started(observer));
        record.event(&spawned(agent()));
        record
    }

    #[test]
    fn a_command_that_exits_at_once_has_its_exit_status() {
        let mut record = LeakRecord::default();
        for event in [spawned(agent()), exited(10), started(ObserverKind::Connector)] {
            record.event(&event);
        }
        assert_eq!(record.agent_exit(), Some(ExitStatus::Code(0)));
    }

    fn marks(record: &LeakRecord, pid: Pid) -> Vec<EscapeMark> {
        record.find(id(pid)).expect("known").marks.iter().copied().collect()
    }

    #[test]
    fn what_nobody_saw_alive_counts() {
        let mut record = record(ObserverKind::Connector);
        // Gone before /proc could be read: no group, no session.
        record.event(&spawned(process(11, 10, 0, 0, "")));
        record.event(&exited(11));
        assert_eq!(record.record_listing(&[agent()]), 0);
        assert_eq!(record.spawned().count(), 1);
        let known = record.find(id(11)).expect("known");
        assert!(!known.seen_alive && !known.alive_at_kill && known.marks.is_empty(), "{known:?}");
        assert_eq!(known.info.exit, Some(ExitStatus::Code(0)));
    }

    #[test]
    fn a_daemon_has_left_its_session_and_lost_its_parent() {
        let mut record = record(ObserverKind::Connector);
        record.event(&spawned(process(11, 10, 10, 10, "sh")));
        record.event(&spawned(process(12, 11, 10, 10, "sh")));
        record.event(&exited(11));
        assert_eq!(marks(&record, 12), [EscapeMark::Reparented]);
        record.record_listing(&[agent(), process(12, 2, 12, 12, "daemon")]);
        assert_eq!(marks(&record, 12), [EscapeMark::LeftSession, EscapeMark::Reparented]);
        assert_eq!(record.find(id(12)).expect("known").info.ppid, 11, "the tree shows who started it");
    }

    #[test]
    fn only_the_kernel_s_order_tells_who_outlived_its_parent() {
        let mut record = record(ObserverKind::Polling);
        record.event(&spawned(process(11, 10, 10, 10, "sh")));
        record.event(&spawned(process(12, 11, 10, 10, "sh")));
        record.event(&exited(11));
        assert!(marks(&record, 12).is_empty());
    }

    #[test]
    fn what_the_command_leaves_at_its_exit_has_not_slipped_away() {
        let mut record = record(ObserverKind::Connector);
        record.event(&spawned(process(11, 10, 10, 10, "sleep 9")));
        record.event(&exited(10));
        record.event(&Event::SessionStatus { status: "agentExited".into(), detail: String::new() });
        assert!(record.agent_exited() && record.agent_exit() == Some(ExitStatus::Code(0)));
        let dead = ProcessInfo { status: ProcessStatus::Completed, ..agent() };
        assert_eq!(record.record_listing(&[dead, process(11, 2, 10, 10, "sleep 9")]), 1);
        record.begin_kill();
        let known = record.find(id(11)).expect("known");
        assert!(known.alive_at_kill && known.seen_alive && known.marks.is_empty(), "{known:?}");
    }

    #[test]
    fn an_event_corrects_a_look_that_came_too_late() {
        let mut record = record(ObserverKind::Connector);
        let dead = ProcessInfo { status: ProcessStatus::Completed, ..agent() };
        // The command is dead, but its exit was not reported yet; its child belongs to the proxy now.
        record.record_listing(&[dead, process(11, 2, 11, 11, "sleep 9")]);
        record.event(&spawned(process(11, 10, 10, 10, "sleep 9")));
        assert_eq!(marks(&record, 11), [EscapeMark::LeftSession]);
        assert_eq!(record.find(id(11)).expect("known").info.ppid, 10);
    }

    #[test]
    fn the_receipt_brings_what_came_last_and_not_the_init() {
        let mut record = record(ObserverKind::Connector);
        let entry = |pid, outcome| ReceiptEntry {
            id: id(pid),
            ppid: 10,
            pgid: 10,
            sid: 10,
            command: Some("late".into()),
            outcome,
            reaped_by: Some(ReapedBy::Proxy),
        };
        let mut receipt = Receipt::begin("s-1".parse().expect("a valid id"), KillCause::KillSession);
        receipt.processes = vec![
            entry(2, ProcessOutcome::Gone),
            entry(10, ProcessOutcome::Gone),
            entry(13, ProcessOutcome::Ended(ExitStatus::Signal(9))),
        ];
        receipt.omitted = 4;
        record.receipt(&receipt);
        let left: Vec<_> =
            record.spawned().filter(|known| known.alive_at_kill).map(|known| known.info.id.pid).collect();
        assert_eq!((left, record.omitted()), (vec![13], 4));
    }
}
