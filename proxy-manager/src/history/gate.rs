//! Gate of a replicated history: events that are committed and not acknowledged yet, which no reader gets.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use event_log::LogError;
use ipc_protocol::{Envelope, ErrorChain, Event};

use super::SessionHistory;
use crate::replication::ReplicationState;

/// Callback called once, with the offset of a batch's last event, or with the error.
pub(super) type OnRetained = Box<dyn FnOnce(Result<u64, LogError>) + Send>;

/// Gate of a history in a manager with replication.
pub(crate) struct ReplicationGate {
    pub(super) replication: Arc<ReplicationState>,
    /// True from the session's claim on. Before that its events are its own manager's.
    is_replicated: AtomicBool,
    /// True once another manager may have the session: no event is shown or offered any more.
    is_fenced: AtomicBool,
    queue: Mutex<GateQueue>,
}

#[derive(Default)]
struct GateQueue {
    /// Batches in the order of their offsets.
    waiting: VecDeque<WaitingBatch>,
    /// True if the history is to be closed behind them.
    closes: bool,
    notice: Option<FleetNotice>,
}

/// Batch that waits for its acknowledgement.
struct WaitingBatch {
    first: u64,
    last: u64,
    batch: CommittedBatch,
}

/// Batch that the log has taken, or failed to take.
pub(super) struct CommittedBatch {
    pub(super) envelopes: Vec<Arc<Envelope>>,
    pub(super) weight: usize,
    pub(super) then: Option<OnRetained>,
    /// True if the session's task is to be notified however little waits.
    pub(super) is_news: bool,
}

/// Change of the fleet's availability, for a session's stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FleetNotice {
    /// The fleet is unavailable, for this reason. The session ends if `ends`.
    Degraded { reason: String, ends: bool },
    /// The fleet is available again, after this time.
    Recovered { after: Duration },
}

impl ReplicationGate {
    pub(super) fn new(replication: Arc<ReplicationState>, is_replicated: bool) -> Self {
        let (is_replicated, is_fenced) = (AtomicBool::new(is_replicated), AtomicBool::new(false));
        Self { replication, is_replicated, is_fenced, queue: Mutex::default() }
    }

    fn queue(&self) -> MutexGuard<'_, GateQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CommittedBatch {
    /// Makes the batch readable, unless it is withheld, and calls its callback.
    pub(super) fn finish(self, history: &SessionHistory, kept: Result<u64, LogError>, is_shown: bool) {
        let Self { envelopes, weight, then, is_news } = self;
        let is_news = is_news || then.is_some();
        if is_shown {
            history.publish(envelopes);
        }
        if let Some(then) = then {
            then(kept);
        }
        let before = history.waiting.fetch_sub(weight, Ordering::AcqRel);
        if before > super::writer::MAX_WAITING_BYTES || is_news || history.notifies_of_all.load(Ordering::Acquire) {
            history.writer_waker.notify_one();
        }
    }
}

impl SessionHistory {
    /// Gate of the history, if its session is replicated.
    pub(super) fn replicated(&self) -> Option<&ReplicationGate> {
        self.gate.as_ref().filter(|gate| gate.is_replicated.load(Ordering::Acquire))
    }

    /// Returns true if the session is replicated.
    pub(crate) fn is_replicated(&self) -> bool {
        self.replicated().is_some()
    }

    /// Returns true once another manager may have the session.
    pub(crate) fn is_fenced(&self) -> bool {
        self.gate.as_ref().is_some_and(|gate| gate.is_fenced.load(Ordering::Acquire))
    }

    /// Reason why the session is degraded, if it is: its fleet is unavailable, or the log has not taken its last events.
    pub(crate) fn degraded(&self) -> Option<String> {
        let fleet = self.replicated().and_then(|gate| gate.replication.degraded());
        fleet.or_else(|| self.trouble().current_error.as_ref().map(|error| ErrorChain(error).to_string()))
    }

    /// Replicates the session from now on: its events after `acknowledged` wait for their acknowledgement.
    pub(crate) fn replicate(&self, acknowledged: u64) {
        let Some(gate) = &self.gate else { return };
        let _queue = gate.queue();
        if !gate.is_replicated.swap(true, Ordering::AcqRel) {
            self.last.store(acknowledged, Ordering::Release);
            // What is in memory is read from the log, up to there.
            let mut ring = self.ring();
            (ring.events, ring.first) = (Default::default(), self.assigned() + 1);
        }
    }

    /// Has a batch that the log took, or failed to take, shown to readers: at once, or once it is acknowledged.
    pub(super) fn admit(&self, first: u64, kept: Result<u64, LogError>, batch: CommittedBatch) {
        let Some(gate) = &self.gate else { return batch.finish(self, kept, true) };
        // Locked, so that the session does not become replicated between the look and the batch's place.
        let mut queue = gate.queue();
        if !gate.is_replicated.load(Ordering::Acquire) {
            return batch.finish(self, kept, true);
        }
        let last = match kept {
            _ if self.is_fenced() => return batch.finish(self, Err(self.fenced_error()), false),
            // A marker comes in the place of these.
            Err(error) => return batch.finish(self, Err(error), false),
            Ok(last) if batch.envelopes.is_empty() => return batch.finish(self, Ok(last), false),
            Ok(last) => last,
        };
        queue.waiting.push_back(WaitingBatch { first, last, batch });
        drop(queue);
        if self.is_fenced() {
            return self.withhold(gate);
        }
        gate.replication.replicator().committed(&self.session, last);
    }

    /// Returns events that wait for their acknowledgement, from the one at `from` on: whole batches, up to so many events and bytes, and one
    /// batch where there is one. `None` where only the log has them so: those of an earlier manager, the rest of a batch, a batch that is
    /// too large.
    pub(crate) fn waiting_events(&self, from: u64, most: usize, bytes: usize) -> Option<Vec<Arc<Envelope>>> {
        let queue = self.replicated()?.queue();
        let mut events: Vec<Arc<Envelope>> = Vec::new();
        let (mut next, mut weight) = (from, 0);
        for WaitingBatch { first, last, batch } in &queue.waiting {
            weight += batch.weight;
            let count = batch.envelopes.len();
            let is_whole = *first == next && (last - first + 1) as usize == count;
            if !is_whole || events.len() + count > most || weight > bytes {
                break;
            }
            events.extend(batch.envelopes.iter().cloned());
            next = last + 1;
        }
        (!events.is_empty()).then_some(events)
    }

    /// Shows the events up to an offset: they are acknowledged.
    pub(crate) fn acknowledged(&self, through: u64) {
        let Some(gate) = self.replicated().filter(|_| !self.is_fenced()) else { return };
        let mut turn_ended = false;
        // Locked throughout, so that batches are shown in their order.
        let mut queue = gate.queue();
        while let Some(WaitingBatch { last, batch, .. }) = queue.waiting.pop_front_if(|batch| batch.last <= through) {
            turn_ended |= batch.envelopes.iter().any(|envelope| matches!(envelope.event, Event::SessionIdle {}));
            batch.finish(self, Ok(last), true);
        }
        // Events that an earlier manager committed are in the log only.
        let known = queue.waiting.front().map_or(through, |batch| through.min(batch.first - 1));
        self.last.fetch_max(known.min(self.assigned()), Ordering::AcqRel);
        if queue.closes && self.has_shown_all(&queue) {
            self.ring().closed = true;
        }
        drop(queue);
        self.wake();
        if turn_ended {
            gate.replication.replicator().turn_ended(&self.session);
        }
    }

    /// Closes the history once all of its events are readable.
    pub(super) fn close_behind_events(&self) {
        if let Some(gate) = self.replicated().filter(|_| !self.is_fenced()) {
            let mut queue = gate.queue();
            if !self.has_shown_all(&queue) {
                queue.closes = true;
                return;
            }
        }
        self.close();
    }

    /// Returns true if nothing is to come that readers have not: neither a batch that waits, nor events that an earlier manager
    /// committed. What the log refused for good never comes.
    fn has_shown_all(&self, queue: &GateQueue) -> bool {
        let committed = || self.log.get().and_then(|log| log.head(&self.session)).map_or(0, |head| head.last);
        self.last_offset() >= self.assigned() || (queue.waiting.is_empty() && self.last_offset() >= committed())
    }

    /// Fences the history: nothing more becomes readable, who waits for that is told, and readers come to the end.
    pub(crate) fn fence(&self) {
        let Some(gate) = &self.gate else { return };
        gate.is_fenced.store(true, Ordering::Release);
        self.withhold(gate);
        self.close();
    }

    fn withhold(&self, gate: &ReplicationGate) {
        let waiting = std::mem::take(&mut gate.queue().waiting);
        for WaitingBatch { batch, .. } in waiting {
            batch.finish(self, Err(self.fenced_error()), false);
        }
    }

    fn fenced_error(&self) -> LogError {
        let detail = "another machine may have the session: list it there".to_owned();
        LogError::Replication { session: self.session.as_ref().clone(), operation: "append to", detail }
    }

    /// Notes a change of the fleet's availability, for the session's task to append. A recovery cancels a degradation that was not
    /// appended yet.
    pub(crate) fn notice(&self, notice: FleetNotice) {
        let Some(gate) = self.replicated().filter(|_| !self.is_fenced()) else { return };
        let mut queue = gate.queue();
        queue.notice = match (&queue.notice, notice) {
            (Some(FleetNotice::Degraded { .. }), FleetNotice::Recovered { .. }) => None,
            (_, notice) => Some(notice),
        };
        drop(queue);
        self.writer_waker.notify_one();
    }

    /// Takes the change of the fleet's availability that is to be appended.
    pub(super) fn take_notice(&self) -> Option<FleetNotice> {
        self.gate.as_ref()?.queue().notice.take()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use event_log::{EventLog, MemoryLimits, StreamOwnership};
    use ipc_protocol::SessionId;

    use super::*;
    use crate::{
        history::{HistoryWriter, LogHandle, StreamContext, Subscription},
        replication::{Replication, tests::PlayedFleet},
    };

    struct Place {
        log: EventLog,
        fleet: Arc<PlayedFleet>,
        streams: StreamContext,
        session: Arc<SessionId>,
    }

    impl Place {
        fn new() -> Self {
            let (log, fleet) = (EventLog::memory(MemoryLimits::default()), Arc::new(PlayedFleet::default()));
            let state = Arc::new(ReplicationState::new(Replication::new(fleet.clone())));
            let handle = LogHandle::new(Some(log.clone()));
            let streams = StreamContext { log: handle, replication: Some(state), ..StreamContext::default() };
            Self { log, fleet, streams, session: Arc::new("s".parse().expect("a valid id")) }
        }

        fn owned(epoch: u64) -> Self {
            let place = Self::new();
            place.own(epoch, 0);
            place
        }

        fn own(&self, epoch: u64, tail: u64) {
            let ownership = StreamOwnership { epoch, tail, keeps_tail: true };
            self.log.continue_from(&self.session, ownership, Box::new(|done| done.expect("owned")));
        }

        fn history(&self) -> (Arc<SessionHistory>, HistoryWriter) {
            SessionHistory::new(self.session.clone(), &self.streams)
        }

        /// The fleet has the events up to this offset.
        fn acknowledge(&self, history: &SessionHistory, through: u64) {
            self.log.acknowledge(&self.session, through, Box::new(|done| done.expect("acknowledged")));
            history.acknowledged(through);
        }
    }

    fn append(writer: &mut HistoryWriter, events: u64) {
        (0..events).for_each(|_| writer.push(0, Event::SessionIdle {}));
        writer.commit();
    }

    /// Offsets that a reader gets without a wait; `None` at the end of the stream.
    async fn now(events: &mut Subscription) -> (Vec<u64>, bool) {
        let mut seen = Vec::new();
        loop {
            match tokio::time::timeout(Duration::ZERO, events.next()).await {
                Err(_) => return (seen, false),
                Ok(None) => return (seen, true),
                Ok(Some(event)) => seen.push(event.offset),
            }
        }
    }

    #[tokio::test]
    async fn a_batch_is_readable_and_answered_once_all_of_it_is_acknowledged() {
        let place = Place::owned(1);
        let (history, mut writer) = place.history();
        let mut events = Subscription::one(history.clone(), 1);
        let (tell, told) = mpsc::channel();
        append(&mut writer, 2);
        writer.push(0, Event::SessionBusy {});
        writer.push(0, Event::SessionIdle {});
        writer.commit_then(move |kept| tell.send(kept).expect("heard"));
        assert_eq!((place.fleet.committed().clone(), history.assigned(), history.last_offset()), (vec![2, 4], 4, 0));
        assert_eq!(now(&mut events).await, (vec![], false));
        place.acknowledge(&history, 1);
        assert_eq!(now(&mut events).await.0, [] as [u64; 0], "half a batch");
        place.acknowledge(&history, 3);
        assert_eq!(now(&mut events).await.0, [1, 2]);
        assert!(told.try_recv().is_err());
        place.acknowledge(&history, 4);
        assert!(matches!(told.try_recv(), Ok(Ok(4))));
        assert_eq!((now(&mut events).await.0, place.fleet.turns()), (vec![3, 4], 2));
        // The last ones come before the end.
        writer.push(0, Event::SessionBusy {});
        drop(writer);
        assert_eq!(now(&mut events).await, (vec![], false));
        place.acknowledge(&history, 5);
        assert_eq!(now(&mut events).await, (vec![5], true));
    }

    #[test]
    fn whole_batches_that_wait_are_there_without_the_log() {
        let place = Place::owned(1);
        let (history, mut writer) = place.history();
        [2, 3, 1].into_iter().for_each(|events| append(&mut writer, events));
        let offsets = |from, most, bytes| {
            let events = history.waiting_events(from, most, bytes)?;
            Some(events.iter().map(|event| event.offset).collect::<Vec<_>>())
        };
        assert_eq!(offsets(1, 100, usize::MAX), Some(vec![1, 2, 3, 4, 5, 6]));
        assert_eq!(offsets(1, 5, usize::MAX), Some(vec![1, 2, 3, 4, 5]));
        assert_eq!((offsets(1, 1, usize::MAX), offsets(1, 100, 1)), (None, None), "parts are in the log");
        place.acknowledge(&history, 2);
        assert_eq!(offsets(3, 4, usize::MAX), Some(vec![3, 4, 5, 6]));
        assert_eq!((offsets(1, 100, usize::MAX), offsets(4, 100, usize::MAX)), (None, None));
        place.acknowledge(&history, 6);
        assert_eq!(offsets(7, 100, usize::MAX), None);
    }

    #[tokio::test]
    async fn the_end_of_a_stream_is_no_fence() {
        let place = Place::owned(1);
        let (history, mut writer) = place.history();
        append(&mut writer, 1);
        drop(writer);
        place.acknowledge(&history, 1);
        assert!(now(&mut Subscription::one(history.clone(), 1)).await.1, "it is at its end");
        assert!(tokio::time::timeout(Duration::ZERO, history.wait_fenced()).await.is_err());
        history.fence();
        history.wait_fenced().await;
    }

    #[tokio::test]
    async fn readers_come_to_the_end_where_the_log_refused_the_last_events() {
        for is_acknowledged_before in [true, false] {
            let place = Place::owned(1);
            let (history, mut writer) = place.history();
            let mut events = Subscription::one(history.clone(), 1);
            append(&mut writer, 1);
            if is_acknowledged_before {
                place.acknowledge(&history, 1);
            }
            // The disk refuses this one: the log's next offset is another.
            let refused = Arc::new(Envelope {
                offset: 2,
                created_at: std::time::UNIX_EPOCH,
                session: place.session.clone(),
                turn: None,
                metadata: None,
                event: Event::SessionBusy {},
            });
            history.assigned.store(2, Ordering::Release);
            let error = LogError::Closed { session: place.session.as_ref().clone() };
            let batch = CommittedBatch { envelopes: vec![refused], weight: 0, then: None, is_news: false };
            history.admit(2, Err(error), batch);
            drop(writer);
            if !is_acknowledged_before {
                assert_eq!(now(&mut events).await, (vec![], false), "there is one to come");
                place.acknowledge(&history, 1);
            }
            assert_eq!(now(&mut events).await, (vec![1], true));
            tokio::time::timeout(Duration::from_secs(10), history.wait_published()).await.expect("nobody waits for it");
        }
    }

    #[tokio::test]
    async fn a_fenced_history_shows_nothing_more_and_tells_who_waits() {
        let place = Place::owned(1);
        let (history, mut writer) = place.history();
        let mut events = Subscription::one(history.clone(), 1);
        append(&mut writer, 1);
        place.acknowledge(&history, 1);
        let (tell, told) = mpsc::channel();
        let later = tell.clone();
        writer.push(0, Event::SessionBusy {});
        writer.commit_then(move |kept| tell.send(kept).expect("heard"));
        history.fence();
        assert!(matches!(told.try_recv(), Ok(Err(LogError::Replication { .. }))));
        writer.push(0, Event::SessionIdle {});
        writer.commit_then(move |kept| later.send(kept).expect("heard"));
        assert!(matches!(told.try_recv(), Ok(Err(LogError::Replication { .. }))), "what comes later, too");
        history.acknowledged(3);
        history.wait_published().await;
        assert_eq!((now(&mut events).await, history.last_offset()), ((vec![1], true), 1));
        assert_eq!(*place.fleet.committed(), [1, 2], "it is not offered");
    }

    #[tokio::test]
    async fn what_an_earlier_manager_left_is_readable_once_it_is_acknowledged() {
        let place = Place::owned(1);
        {
            let (history, mut writer) = place.history();
            writer.keep_open();
            append(&mut writer, 3);
            place.acknowledge(&history, 1);
        }
        let (history, mut writer) = place.history();
        assert_eq!((history.last_offset(), history.assigned()), (1, 3));
        // One that has read all there is to read is no further.
        let mut early = Subscription::one(history.clone(), 1);
        assert_eq!(early.next().await.expect("the first").offset, 1);
        assert!(tokio::time::timeout(Duration::from_millis(50), early.next()).await.is_err(), "nothing is readable");
        append(&mut writer, 1);
        place.acknowledge(&history, 3);
        assert_eq!(history.last_offset(), 3);
        place.acknowledge(&history, 4);
        let mut events = Subscription::one(history, 1);
        let mut seen = Vec::new();
        while seen.len() < 4 {
            seen.push(events.next().await.expect("more").offset);
        }
        assert_eq!(seen, [1, 2, 3, 4], "without a gap");
        for offset in 2..=4 {
            let event = early.next().await.expect("more");
            assert_eq!((event.offset, event.event.kind()), (offset, "session:idle".into()), "{event:?}");
        }
    }

    #[tokio::test]
    async fn a_session_of_before_waits_from_its_claim_on() {
        let place = Place::new();
        let (history, mut writer) = place.history();
        append(&mut writer, 2);
        assert_eq!((history.last_offset(), place.fleet.committed().len()), (2, 0), "it is nobody else's");
        let mut late = Subscription::one(history.clone(), 1);
        history.replicate(0);
        place.own(1, 0);
        append(&mut writer, 1);
        assert_eq!((history.last_offset(), now(&mut late).await), (0, (vec![], false)));
        place.acknowledge(&history, 3);
        let mut seen = Vec::new();
        while seen.len() < 3 {
            seen.push(late.next().await.expect("more").offset);
        }
        assert_eq!(seen, [1, 2, 3]);
    }

    #[test]
    fn a_recovery_cancels_a_degradation_that_nobody_was_told_of() {
        let place = Place::owned(1);
        let (history, mut writer) = place.history();
        let degraded = || FleetNotice::Degraded { reason: "it is away".into(), ends: false };
        let recovered = || FleetNotice::Recovered { after: Duration::from_secs(3) };
        history.notice(degraded());
        history.notice(recovered());
        assert_eq!(writer.push_fleet_notice(), None);
        history.notice(degraded());
        assert_eq!(writer.push_fleet_notice(), Some(degraded()));
        history.notice(recovered());
        assert_eq!((writer.push_fleet_notice(), writer.push_fleet_notice()), (Some(recovered()), None));
        assert_eq!(writer.batched(), 2);
        writer.discard();
    }
}
