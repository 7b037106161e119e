//! Ledger of the session's processes, from its events. A proxy that was killed in the middle of its work loses its
//! knowledge; receipts of those that continued without it are completed from here. No I/O.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ipc_protocol::{Event, ExitStatus, ProcessId, ProcessOutcome, Proof, ReapedBy, Receipt, ReceiptEntry};
use tokio::time::Instant;

/// Maximum number of live processes that are tracked, and of ended ones.
const MAX_ENDED: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct ProcessLedger {
    living: BTreeMap<ProcessId, ReceiptEntry>,
    /// Ended processes, oldest first, with the time at which their end was reported.
    record_exit: VecDeque<(Instant, ReceiptEntry)>,
    /// Instant at which the end of the session began.
    ending_since: Option<Instant>,
    /// Number of ends since then that are no longer tracked.
    forgotten: u64,
}

impl ProcessLedger {
    /// Applies an event.
    pub(super) fn record(&mut self, event: &Event, now: Instant) {
        match event {
            Event::ProcessSpawned(info) if self.living.len() < MAX_ENDED => {
                let entry = ReceiptEntry {
                    id: info.id,
                    ppid: info.ppid,
                    pgid: info.pgid,
                    sid: info.sid,
                    command: info.command.is_some().then(|| info.command_line()),
                    outcome: ProcessOutcome::Gone,
                    // A dead proxy cannot report that it was the reaper.
                    reaped_by: Some(ReapedBy::Parent),
                };
                self.living.insert(info.id, entry);
            }
            Event::ProcessExited { process, exit, .. } => self.ended(*process, *exit, now),
            _ => {}
        }
    }

    fn ended(&mut self, process: ProcessId, exit: Option<ExitStatus>, now: Instant) {
        let Some(mut entry) = self.living.remove(&process) else { return };
        entry.outcome = exit.map_or(ProcessOutcome::Gone, ProcessOutcome::Ended);
        self.record_exit.push_back((now, entry));
        if self.record_exit.len() > MAX_ENDED
            && let Some((told, _)) = self.record_exit.pop_front()
        {
            self.forgotten += u64::from(self.ending_since.is_some_and(|ending| told >= ending));
        }
    }

    /// Marks the beginning of the session's end: later ends belong on its receipt.
    pub(super) fn begin_end(&mut self, now: Instant) {
        self.ending_since.get_or_insert(now);
    }

    /// Adds processes that were alive when the end began and are missing on the receipt. The receipt's proof shows that
    /// they are dead; without a proof only processes reported dead are added.
    pub(super) fn complete(&mut self, receipt: &mut Receipt) {
        let named: BTreeSet<_> = receipt.processes.iter().chain(&receipt.unattributed).map(|entry| entry.id).collect();
        let ended = std::mem::take(&mut self.record_exit).into_iter();
        let since = |told: Instant| self.ending_since.is_some_and(|ending| told >= ending);
        let mut missing: Vec<_> = ended.filter(|(told, _)| since(*told)).map(|(_, entry)| entry).collect();
        if receipt.proof != Proof::None {
            missing.extend(self.living.values().cloned());
        }
        missing.retain(|entry| !named.contains(&entry.id));
        receipt.omitted += std::mem::take(&mut self.forgotten);
        if !missing.is_empty() {
            receipt.processes.append(&mut missing);
            receipt.processes.sort_by_key(|entry| (entry.id.start_time, entry.id.pid));
        }
    }

    /// The exits that nobody has told, of processes whose end is on the receipt. Who would have seen them is dead.
    pub(super) fn take_untold_exits(&mut self, receipt: &Receipt) -> Vec<Event> {
        let listed = receipt.processes.iter().chain(&receipt.unattributed);
        let ended = listed.filter(|entry| self.living.remove(&entry.id).is_some());
        let exit = |entry: &ReceiptEntry| {
            let exit = match entry.outcome {
                ProcessOutcome::Ended(exit) => Some(exit),
                ProcessOutcome::Gone => None,
                ProcessOutcome::Survived => return None,
            };
            let command = entry.command.as_deref().and_then(|line| line.split(' ').next()).map(str::to_owned);
            Some(Event::ProcessExited { process: entry.id, command, exit })
        };
        ended.filter_map(exit).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ipc_protocol::{KillCause, ProcessInfo, ProcessStatus};

    use super::*;

    fn id(pid: u32) -> ProcessId {
        ProcessId { pid, start_time: u64::from(pid) }
    }

    fn spawned(pid: u32) -> Event {
        Event::ProcessSpawned(Box::new(ProcessInfo {
            id: id(pid),
            ppid: 1,
            pgid: pid,
            sid: pid,
            session_id: "s".parse().expect("valid"),
            command: Some("sleep".into()),
            args: vec!["9".into()],
            cwd: None,
            started_at: std::time::SystemTime::UNIX_EPOCH,
            status: ProcessStatus::Running,
            exit: None,
            error: None,
            cpu_percent: None,
            rss_bytes: None,
            tracked: true,
        }))
    }

    fn exited(pid: u32, code: i32) -> Event {
        Event::ProcessExited { process: id(pid), command: None, exit: Some(ExitStatus::Code(code)) }
    }

    fn receipt(proof: Proof) -> Receipt {
        Receipt { proof, ..Receipt::begin("s".parse().expect("valid"), KillCause::KillSession) }
    }

    fn outcomes(receipt: &Receipt) -> Vec<(u32, ProcessOutcome)> {
        receipt.processes.iter().map(|entry| (entry.id.pid, entry.outcome)).collect()
    }

    #[test]
    fn what_died_before_anybody_else_looked_is_named() {
        let (mut known, now) = (ProcessLedger::default(), Instant::now());
        (1..=4).for_each(|pid| known.record(&spawned(pid), now));
        known.record(&exited(1, 0), now);
        let later = now + Duration::from_millis(1);
        known.begin_end(later);
        known.begin_end(later + Duration::from_secs(1));
        known.record(&exited(2, 7), later);
        // The fork server has seen this one, and knows better.
        let mut receipt = receipt(Proof::QuietRounds(3));
        let seen =
            ReceiptEntry { outcome: ProcessOutcome::Ended(ExitStatus::Signal(9)), ..known.living[&id(4)].clone() };
        receipt.processes.push(seen);
        known.complete(&mut receipt);
        let named = [
            (2, ProcessOutcome::Ended(ExitStatus::Code(7))),
            (3, ProcessOutcome::Gone),
            (4, ProcessOutcome::Ended(ExitStatus::Signal(9))),
        ];
        assert_eq!(outcomes(&receipt), named);
        assert_eq!(receipt.processes[0].command.as_deref(), Some("sleep 9"));
        assert!(receipt.is_empty());
        // The exits of these were told by nobody; each is told once.
        let told = |pid, exit| Event::ProcessExited { process: id(pid), command: Some("sleep".into()), exit };
        assert_eq!(known.take_untold_exits(&receipt), [told(3, None), told(4, Some(ExitStatus::Signal(9)))]);
        assert_eq!(known.take_untold_exits(&receipt), []);
    }

    #[test]
    fn without_a_proof_nobody_is_said_to_be_gone() {
        let (mut known, now) = (ProcessLedger::default(), Instant::now());
        (1..=2).for_each(|pid| known.record(&spawned(pid), now));
        known.begin_end(now);
        known.record(&exited(1, 0), now);
        let mut receipt = receipt(Proof::None);
        known.complete(&mut receipt);
        assert_eq!(outcomes(&receipt), [(1, ProcessOutcome::Ended(ExitStatus::Code(0)))]);
    }

    #[test]
    fn what_is_forgotten_is_counted() {
        let (mut known, now) = (ProcessLedger::default(), Instant::now());
        known.begin_end(now);
        let most = u32::try_from(MAX_ENDED).expect("it fits");
        for pid in 1..=most + 3 {
            known.record(&spawned(pid), now);
            known.record(&exited(pid, 0), now);
        }
        let mut receipt = receipt(Proof::NoChildren);
        known.complete(&mut receipt);
        assert_eq!((receipt.processes.len(), receipt.omitted), (MAX_ENDED, 3));
    }
}
