//! Collects exit statuses of processes that the proxy did not reap. The proxy finds them gone, but the kernel reports
//! their statuses to the fork server, which reports them to the host. Receipts are completed from here. No I/O.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use ipc_protocol::{ExitStatus, ProcessId, ProcessOutcome, Receipt};
use tokio::time::Instant;

use crate::session::ReplySender;

/// Maximum number of statuses that are remembered.
const MAX_EXITS: usize = 1024;
/// Wait of a receipt for statuses that the fork server has not reported yet; the fork server gathers them for some
/// milliseconds, and has to be scheduled for that.
const WAIT_TIMEOUT: Duration = Duration::from_millis(250);

#[derive(Debug, Default)]
pub(super) struct ExitStatusCollector {
    /// True if the fork server reports the session's processes.
    is_observing: bool,
    exits: BTreeMap<ProcessId, ExitStatus>,
    /// The same processes, oldest first.
    order: VecDeque<ProcessId>,
    /// Incomplete receipts, oldest first.
    waiting: VecDeque<(Instant, ReplySender<Receipt>, Box<Receipt>)>,
    /// Receipts that are to be sent.
    answers: Vec<(ReplySender<Receipt>, Box<Receipt>)>,
}

impl ExitStatusCollector {
    /// Sets whether the fork server reports the session's processes.
    pub(super) fn set_observing(&mut self, sees: bool) {
        self.is_observing = sees;
    }

    /// Records the exit status of a process.
    pub(super) fn record_exit(&mut self, process: ProcessId, exit: ExitStatus) {
        if self.exits.insert(process, exit).is_none() {
            self.order.push_back(process);
        }
        if self.order.len() > MAX_EXITS
            && let Some(oldest) = self.order.pop_front()
        {
            self.exits.remove(&oldest);
        }
        while let Some((_, _, receipt)) = self.waiting.front_mut() {
            if !fill(receipt, &self.exits) {
                return;
            }
            self.answer_first();
        }
    }

    /// Fills in the known statuses. Returns true if none is missing.
    pub(super) fn complete(&self, receipt: &mut Receipt) -> bool {
        fill(receipt, &self.exits)
    }

    /// Answers with a receipt, once it is complete or its time is up.
    pub(super) fn answer(&mut self, reply: ReplySender<Receipt>, mut receipt: Box<Receipt>, now: Instant) {
        if self.complete(&mut receipt) || !self.is_observing {
            return self.answers.push((reply, receipt));
        }
        self.waiting.push_back((now + WAIT_TIMEOUT, reply, receipt));
    }

    /// Instant at which [`ExitStatusCollector::tick`] is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.waiting.front().map(|(deadline, ..)| *deadline)
    }

    /// Advances the time.
    pub(super) fn tick(&mut self, now: Instant) {
        while self.next().is_some_and(|deadline| deadline <= now) {
            self.answer_first();
        }
    }

    /// Answers the waiting receipts, since the session is over and no more statuses come.
    pub(super) fn answer_all(&mut self) {
        while !self.waiting.is_empty() {
            self.answer_first();
        }
    }

    fn answer_first(&mut self) {
        if let Some((_, reply, receipt)) = self.waiting.pop_front() {
            self.answers.push((reply, receipt));
        }
    }

    /// Takes the receipts that are to be sent.
    pub(super) fn take_answers(&mut self) -> Vec<(ReplySender<Receipt>, Box<Receipt>)> {
        std::mem::take(&mut self.answers)
    }
}

fn fill(receipt: &mut Receipt, exits: &BTreeMap<ProcessId, ExitStatus>) -> bool {
    let mut is_complete = true;
    for entry in receipt.processes.iter_mut().chain(&mut receipt.unattributed) {
        if entry.outcome == ProcessOutcome::Gone {
            match exits.get(&entry.id) {
                Some(exit) => entry.outcome = ProcessOutcome::Ended(*exit),
                None => is_complete = false,
            }
        }
    }
    is_complete
}

#[cfg(test)]
mod tests {
    use ipc_protocol::{KillCause, ReapedBy, ReceiptEntry};
    use tokio::sync::oneshot;

    use super::*;

    const STATUS: ExitStatus = ExitStatus::Code(7);

    fn id(pid: u32) -> ProcessId {
        ProcessId { pid, start_time: 1 }
    }

    fn gone(pids: &[u32]) -> Box<Receipt> {
        let mut receipt = Receipt::begin("s".parse().expect("valid"), KillCause::KillAll);
        receipt.processes.extend(pids.iter().map(|pid| ReceiptEntry {
            id: id(*pid),
            ppid: 1,
            pgid: 1,
            sid: 1,
            command: None,
            outcome: ProcessOutcome::Gone,
            reaped_by: Some(ReapedBy::Parent),
        }));
        Box::new(receipt)
    }

    fn answered(witness: &mut ExitStatusCollector) -> Vec<Receipt> {
        witness.take_answers().into_iter().map(|(_, receipt)| *receipt).collect()
    }

    #[test]
    fn what_is_told_before_or_after_is_in_the_receipt() {
        let (mut witness, now) = (ExitStatusCollector::default(), Instant::now());
        witness.set_observing(true);
        witness.record_exit(id(1), STATUS);
        witness.answer(oneshot::channel().0, gone(&[1, 2]), now);
        assert!(answered(&mut witness).is_empty() && witness.next() == Some(now + WAIT_TIMEOUT));
        witness.record_exit(id(2), STATUS);
        let [receipt] = &answered(&mut witness)[..] else { panic!("no receipt") };
        assert!(receipt.processes.iter().all(|entry| entry.outcome == ProcessOutcome::Ended(STATUS)));
        assert!(receipt.processes.iter().all(|entry| entry.reaped_by == Some(ReapedBy::Parent)));
        assert_eq!(witness.next(), None);
    }

    #[test]
    fn nobody_waits_for_ever_and_where_nobody_tells_not_at_all() {
        let (mut witness, now) = (ExitStatusCollector::default(), Instant::now());
        witness.answer(oneshot::channel().0, gone(&[1]), now);
        assert_eq!(answered(&mut witness).len(), 1);
        witness.set_observing(true);
        witness.answer(oneshot::channel().0, gone(&[1]), now);
        assert!(answered(&mut witness).is_empty());
        witness.tick(now + WAIT_TIMEOUT);
        assert_eq!(answered(&mut witness)[0].processes[0].outcome, ProcessOutcome::Gone);
    }

    #[test]
    fn a_bounded_number_of_ends_is_remembered() {
        let mut witness = ExitStatusCollector::default();
        let most = u32::try_from(MAX_EXITS).expect("it fits");
        (0..most + 10).for_each(|pid| witness.record_exit(id(pid), STATUS));
        assert_eq!((witness.exits.len(), witness.order.len()), (MAX_EXITS, MAX_EXITS));
        assert!(!witness.exits.contains_key(&id(9)) && witness.exits.contains_key(&id(10)));
    }
}
