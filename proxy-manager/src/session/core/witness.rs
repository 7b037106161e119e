//! Collects exit statuses of processes that the proxy did not reap. The proxy finds them gone, but the kernel reports
//! their statuses to the fork server, which reports them to the host. Receipts are completed from here. No I/O.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use ipc_protocol::{ExitStatus, Outcome, ProcessId, Receipt};
use tokio::time::Instant;

use crate::session::Reply;

/// Maximum number of statuses that are remembered.
const MOST: usize = 1024;
/// Wait of a receipt for statuses that the fork server has not reported yet; the fork server gathers them for some
/// milliseconds.
const PATIENCE: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
pub(super) struct Witness {
    /// True if the fork server reports the session's processes.
    sees: bool,
    exits: BTreeMap<ProcessId, ExitStatus>,
    /// The same processes, oldest first.
    order: VecDeque<ProcessId>,
    /// Incomplete receipts, oldest first.
    waiting: VecDeque<(Instant, Reply<Receipt>, Box<Receipt>)>,
    /// Receipts that are to be sent.
    answers: Vec<(Reply<Receipt>, Box<Receipt>)>,
}

impl Witness {
    /// Sets whether the fork server reports the session's processes.
    pub(super) fn sees(&mut self, sees: bool) {
        self.sees = sees;
    }

    /// Records the exit status of a process.
    pub(super) fn saw(&mut self, process: ProcessId, exit: ExitStatus) {
        if self.exits.insert(process, exit).is_none() {
            self.order.push_back(process);
        }
        if self.order.len() > MOST
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
    pub(super) fn answer(&mut self, reply: Reply<Receipt>, mut receipt: Box<Receipt>, now: Instant) {
        if self.complete(&mut receipt) || !self.sees {
            return self.answers.push((reply, receipt));
        }
        self.waiting.push_back((now + PATIENCE, reply, receipt));
    }

    /// Instant at which [`Witness::tick`] is due.
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
    pub(super) fn give_up(&mut self) {
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
    pub(super) fn take_answers(&mut self) -> Vec<(Reply<Receipt>, Box<Receipt>)> {
        std::mem::take(&mut self.answers)
    }
}

fn fill(receipt: &mut Receipt, exits: &BTreeMap<ProcessId, ExitStatus>) -> bool {
    let mut is_complete = true;
    for entry in receipt.processes.iter_mut().chain(&mut receipt.unattributed) {
        if entry.outcome == Outcome::Gone {
            match exits.get(&entry.id) {
                Some(exit) => entry.outcome = Outcome::Ended(*exit),
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
            outcome: Outcome::Gone,
            reaped_by: Some(ReapedBy::Parent),
        }));
        Box::new(receipt)
    }

    fn answered(witness: &mut Witness) -> Vec<Receipt> {
        witness.take_answers().into_iter().map(|(_, receipt)| *receipt).collect()
    }

    #[test]
    fn what_is_told_before_or_after_is_in_the_receipt() {
        let (mut witness, now) = (Witness::default(), Instant::now());
        witness.sees(true);
        witness.saw(id(1), STATUS);
        witness.answer(oneshot::channel().0, gone(&[1, 2]), now);
        assert!(answered(&mut witness).is_empty() && witness.next() == Some(now + PATIENCE));
        witness.saw(id(2), STATUS);
        let [receipt] = &answered(&mut witness)[..] else { panic!("no receipt") };
        assert!(receipt.processes.iter().all(|entry| entry.outcome == Outcome::Ended(STATUS)));
        assert!(receipt.processes.iter().all(|entry| entry.reaped_by == Some(ReapedBy::Parent)));
        assert_eq!(witness.next(), None);
    }

    #[test]
    fn nobody_waits_for_ever_and_where_nobody_tells_not_at_all() {
        let (mut witness, now) = (Witness::default(), Instant::now());
        witness.answer(oneshot::channel().0, gone(&[1]), now);
        assert_eq!(answered(&mut witness).len(), 1);
        witness.sees(true);
        witness.answer(oneshot::channel().0, gone(&[1]), now);
        assert!(answered(&mut witness).is_empty());
        witness.tick(now + PATIENCE);
        assert_eq!(answered(&mut witness)[0].processes[0].outcome, Outcome::Gone);
    }

    #[test]
    fn a_bounded_number_of_ends_is_remembered() {
        let mut witness = Witness::default();
        let most = u32::try_from(MOST).expect("it fits");
        (0..most + 10).for_each(|pid| witness.saw(id(pid), STATUS));
        assert_eq!((witness.exits.len(), witness.order.len()), (MOST, MOST));
        assert!(!witness.exits.contains_key(&id(9)) && witness.exits.contains_key(&id(10)));
    }
}
