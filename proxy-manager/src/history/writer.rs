//! The one writer of a history.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use event_log::{CommitHold, EventBatch, EventLog, LogError, OnCommit, QueueFull};
use ipc_protocol::{Envelope, ErrorChain, Event, Json, OffsetGap};

use super::{
    FleetNotice, LogFailure, SessionHistory,
    gate::{CommittedBatch, OnRetained},
    log::InUse,
};
use crate::blocking::spawn_blocking;

/// Weight in bytes of the events that may wait for the log before the session's task stops reading from the proxy. A
/// slow disk then delays the agent, and does not fill the host's memory.
pub(super) const MAX_WAITING_BYTES: usize = 2 * 1024 * 1024;

/// `session:status` that follows a `session:degraded` of the fleet.
const RECOVERED: &str = "recovered";

/// Pause between two attempts to append to a log whose queue is full.
pub(crate) const RETRY: Duration = Duration::from_millis(1);

/// Event of a batch.
struct BatchedEvent {
    /// 0 for none.
    turn: u64,
    metadata: Option<Json>,
    event: Event,
}

impl BatchedEvent {
    fn new(turn: u64, event: Event) -> Self {
        Self { turn, metadata: None, event }
    }
}

/// The one writer of a [`SessionHistory`]. Dropping it closes the history: subscriptions then end.
pub(crate) struct HistoryWriter {
    history: Arc<SessionHistory>,
    next: u64,
    batch: Vec<BatchedEvent>,
    /// Notes the number of the proxy's last message in the batch.
    source: u64,
    /// Callback for the batch.
    on_retained: Option<OnRetained>,
    /// A consumer of the stream, and the offset that it has come to: stored with the batch, or not at all.
    cursor: Option<(&'static str, u64)>,
    keeps_open: bool,
}

/// Guard under which everything for the log is committed together: see [`EventLog::hold_commits`](event_log::EventLog::hold_commits).
pub(crate) struct HeldCommit {
    _commit_hold: CommitHold,
    // Dropped last, so that the log stays in use until then.
    _log: InUse,
}

impl HistoryWriter {
    pub(super) fn new(history: Arc<SessionHistory>) -> Self {
        let next = history.assigned.load(Ordering::Acquire) + 1;
        let source = history.source.load(Ordering::Acquire);
        Self { history, next, batch: Vec::new(), source, on_retained: None, cursor: None, keeps_open: false }
    }

    /// Leaves the history open for another writer; readers wait for it.
    pub(crate) fn keep_open(&mut self) {
        self.keeps_open = true;
    }

    /// Discards the batch and leaves the history open for another writer.
    pub(crate) fn discard(&mut self) {
        self.batch.clear();
        self.cursor = None;
        self.keep_open();
    }

    /// Adds an event to the batch, after its older shape while the event is in transition. `turn` 0 means none.
    pub(crate) fn push(&mut self, turn: u64, event: Event) {
        self.push_with(turn, None, event);
    }

    /// Adds an event like [`HistoryWriter::push`], with the metadata of who asked for it.
    pub(crate) fn push_with(&mut self, turn: u64, metadata: Option<Json>, event: Event) {
        let older = event.previous_shape(self.history.shapes);
        self.batch.extend(older.map(|older| BatchedEvent { turn, metadata: metadata.clone(), event: older }));
        self.batch.push(BatchedEvent { turn, metadata, event });
    }

    /// Moves a consumer's cursor with the batch.
    pub(crate) fn move_cursor(&mut self, consumer: &'static str, offset: u64) {
        // A batch has room for one.
        if self.cursor.is_some_and(|(other, _)| other != consumer) {
            self.commit();
        }
        self.cursor = Some((consumer, offset));
    }

    /// Offset of the event that is pushed next. Without a failure before: the marker for that would come first.
    pub(crate) fn next_offset(&self) -> u64 {
        self.next + self.batch.len() as u64 + u64::from(self.is_holed())
    }

    /// Notes the number of the proxy's last message in the batch.
    pub(crate) fn set_source(&mut self, source: u64) {
        self.source = source;
        self.history.source.store(source, Ordering::Release);
    }

    /// Number of the last appended message of the proxy.
    pub(crate) fn source(&self) -> u64 {
        self.source
    }

    /// Number of the last committed message of the proxy. If nothing waits for the log, that is the last message, even
    /// if it produced no event.
    pub(crate) fn durable_source(&self) -> u64 {
        let nothing_waits =
            self.batch.is_empty() && !self.is_held() && self.history.waiting.load(Ordering::Acquire) == 0;
        if nothing_waits { self.source } else { self.history.durable_source.load(Ordering::Acquire) }
    }

    /// Makes [`SessionHistory::wait_for_log`] resolve whenever the log has taken a batch.
    pub(crate) fn notify_of_all(&self) {
        self.history.notifies_of_all.store(true, Ordering::Release);
    }

    /// Returns true if too much waits for the log to read more from the proxy.
    pub(crate) fn is_behind(&self) -> bool {
        self.is_held() || self.history.waiting.load(Ordering::Acquire) > MAX_WAITING_BYTES
    }

    /// Returns true if the log's queue was full; the caller retries soon.
    pub(crate) fn is_held(&self) -> bool {
        !self.history.held_batches().is_empty()
    }

    /// Returns true if a session ends when its events cannot be written.
    pub(crate) fn ends_on_failure(&self) -> bool {
        self.history.log_failure == LogFailure::End
    }

    /// Number of events in the batch.
    pub(crate) fn batched(&self) -> usize {
        self.batch.len()
    }

    /// Returns true if appended events go to a durable log.
    pub(crate) fn is_durable(&self) -> bool {
        self.history.is_durable()
    }

    /// Takes the log's error, once per failure, and adds an event about it to the batch.
    pub(crate) fn push_failure(&mut self) -> Option<LogError> {
        let error = self.history.trouble().error.take()?;
        self.push(0, Event::SessionDegraded { reason: ErrorChain(&error).to_string() });
        Some(error)
    }

    /// Takes a change of the fleet's availability, once per change, and adds an event about it to the batch.
    pub(crate) fn push_fleet_notice(&mut self) -> Option<FleetNotice> {
        let notice = self.history.take_notice()?;
        self.push(
            0,
            match &notice {
                FleetNotice::Degraded { reason, .. } => Event::SessionDegraded { reason: reason.clone() },
                FleetNotice::Recovered { after } => {
                    let detail = format!("the fleet is available again, after {} s", after.as_secs());
                    Event::SessionStatus { status: RECOVERED.to_owned(), detail }
                }
            },
        );
        Some(notice)
    }

    /// Commits everything appended from now on together, until the guard is dropped.
    pub(crate) fn hold_commits(&self) -> Option<HeldCommit> {
        let log = self.history.log.get()?;
        Some(HeldCommit { _commit_hold: log.hold_commits(), _log: log })
    }

    /// Appends the batch and notifies the readers once: now, or when the log has it.
    pub(crate) fn commit(&mut self) {
        let is_empty = self.batch.is_empty() && self.cursor.is_none();
        if is_empty && !self.is_held() {
            return;
        }
        let log = self.history.log.get();
        if log.is_none() {
            self.history.drop_held();
        }
        let next = if is_empty { None } else { self.finish_batch(log.is_some()) };
        if let Some(log) = log {
            self.history.submit(&log, next);
        }
    }

    /// Assigns offsets to the batch. Returns what the log has to append; without a log the readers get the batch at
    /// once.
    fn finish_batch(&mut self, has_log: bool) -> Option<QueueFull> {
        let created_at = now_in_ms();
        let session = &self.history.session;
        let cursor = self.cursor.take().map(|(consumer, offset)| (consumer.to_owned(), offset));
        let hole = if has_log { self.missing_gap() } else { None };
        let first = hole.map_or(self.next, |hole| hole.from);
        // Later readers of the log learn of the missing events by this marker.
        let marker = hole.map(|hole| BatchedEvent::new(0, Event::SessionGap(hole)));
        let envelopes: Vec<Arc<Envelope>> = marker
            .into_iter()
            .chain(self.batch.drain(..))
            .zip(self.next..)
            .map(|(BatchedEvent { turn, metadata, event }, offset)| {
                let turn = (turn > 0).then_some(turn);
                Arc::new(Envelope { offset, created_at, session: session.clone(), turn, metadata, event })
            })
            .collect();
        self.next += envelopes.len() as u64;
        self.history.assigned.store(self.next - 1, Ordering::Release);
        if !has_log {
            self.history.publish(envelopes);
            if let Some(then) = self.on_retained.take() {
                then(Ok(self.next - 1));
            }
            return None;
        }
        let weight = envelopes.iter().map(|envelope| envelope.weight()).sum::<usize>();
        self.history.waiting.fetch_add(weight, Ordering::AcqRel);
        let batch = EventBatch {
            session: session.clone(),
            created_at,
            first,
            events: envelopes.clone(),
            source: self.source,
            cursor,
        };
        let done = on_commit(self.history.clone(), envelopes, first, weight, self.source, self.on_retained.take());
        Some(QueueFull { batch, done })
    }

    /// Commits a batch that is not empty, as [`HistoryWriter::commit`] does. `then` is called when the batch is committed and
    /// readable, or with the error.
    pub(crate) fn commit_then(&mut self, then: impl FnOnce(Result<u64, LogError>) + Send + 'static) {
        self.on_retained = Some(Box::new(then));
        self.commit();
    }

    /// Returns whether the log lacks something that no marker stands for yet.
    fn is_holed(&self) -> bool {
        self.is_durable() && self.history.trouble().first_missing.is_some()
    }

    /// Returns the gap of the log, up to the marker itself, which gets the next offset. Once for each failure: another one makes it
    /// longer.
    fn missing_gap(&self) -> Option<OffsetGap> {
        let from = self.history.trouble().first_missing.take()?;
        Some(OffsetGap { from, to: self.next })
    }
}

impl SessionHistory {
    fn held_batches(&self) -> MutexGuard<'_, VecDeque<QueueFull>> {
        self.held_batches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends the batches that found no room, then `next`. Returns `false` if there is still no room.
    fn submit(&self, log: &EventLog, next: Option<QueueFull>) -> bool {
        // Locked throughout, so that another caller's batch cannot come in between.
        let mut held = self.held_batches();
        held.extend(next);
        while let Some(QueueFull { batch, done }) = held.pop_front() {
            if let Err(full) = log.append(batch, done) {
                held.push_front(full);
                return false;
            }
        }
        true
    }

    /// Discards the batches that found no room (each refers to this history), and reports the log as closed to their
    /// callbacks.
    fn drop_held(&self) {
        // The callbacks run without the lock.
        let lost = std::mem::take(&mut *self.held_batches());
        for QueueFull { done, .. } in lost {
            done(Err(LogError::Closed { session: self.session.as_ref().clone() }));
        }
    }
}

/// Creates the callback that runs when the log has taken a batch or failed to. Readers get the batch either way, where the session
/// is not replicated.
fn on_commit(
    history: Arc<SessionHistory>,
    envelopes: Vec<Arc<Envelope>>,
    first: u64,
    weight: usize,
    source: u64,
    then: Option<OnRetained>,
) -> OnCommit {
    let last = envelopes.last().map_or(0, |envelope| envelope.offset);
    Box::new(move |result| {
        let mut is_news = false;
        let kept = {
            let mut trouble = history.trouble();
            let before = trouble.current_error.take();
            match result {
                Ok(()) => {
                    // The log continues after this batch. An earlier batch that failed while this one waited is covered
                    // by this one's marker.
                    trouble.first_missing = trouble.first_missing.filter(|from| *from > last);
                    Ok(last)
                }
                Err(error) => {
                    trouble.first_missing = Some(trouble.first_missing.map_or(first, |from| from.min(first)));
                    is_news = before.is_none();
                    let error = match (error, before) {
                        // This batch failed only because the previous one did.
                        (LogError::Order { .. }, Some(before)) => before,
                        (error, _) => error,
                    };
                    if is_news {
                        trouble.error = Some(error.clone());
                    }
                    trouble.current_error = Some(error.clone());
                    Err(error)
                }
            }
        };
        // Events that a failed log lacks are marked by a gap; the proxy need not send them again.
        history.durable_source.fetch_max(source, Ordering::AcqRel);
        history.admit(first, kept, CommittedBatch { envelopes, weight, then, is_news });
    })
}

impl Drop for HistoryWriter {
    fn drop(&mut self) {
        self.commit();
        let (history, leaves_open) = (self.history.clone(), self.keeps_open);
        match self.history.log.get() {
            None if leaves_open => {}
            None => history.close(),
            Some(log) if self.is_held() => finish_later(log, history, leaves_open),
            Some(log) if leaves_open => drop(log),
            Some(log) => close(&log, history),
        }
    }
}

/// Current time as the log stores it, so that an event read again is equal.
fn now_in_ms() -> SystemTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UNIX_EPOCH + Duration::from_millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// End of a history whose last batches found no room in the log.
struct UnfinishedHistory {
    log: InUse,
    history: Arc<SessionHistory>,
    leaves_open: bool,
}

/// Ends of histories that wait for the log. One thread appends them all.
struct FinishQueue {
    waiting: Vec<UnfinishedHistory>,
    is_running: bool,
}

static FINISHING: Mutex<FinishQueue> = Mutex::new(FinishQueue { waiting: Vec::new(), is_running: false });

fn finishing() -> MutexGuard<'static, FinishQueue> {
    FINISHING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Appends in a thread the batches that found no room when their writer was dropped, since a drop cannot wait. The next
/// writer's batches go the same way, after them.
fn finish_later(log: InUse, history: Arc<SessionHistory>, leaves_open: bool) {
    let mut queue = finishing();
    queue.waiting.push(UnfinishedHistory { log, history, leaves_open });
    if std::mem::replace(&mut queue.is_running, true) {
        return;
    }
    drop(queue);
    if let Err(error) = spawn_blocking("appending the last events of sessions to the log", finish_all) {
        tracing::error!(%error, "failed to append the last events of sessions to the log");
        let mut queue = finishing();
        queue.is_running = false;
        let lost = std::mem::take(&mut queue.waiting);
        drop(queue);
        for UnfinishedHistory { history, leaves_open, .. } in lost {
            history.drop_held();
            if !leaves_open {
                history.close();
            }
        }
    }
}

/// Appends until nobody waits.
fn finish_all() {
    loop {
        let mut queue = finishing();
        let waiting = std::mem::take(&mut queue.waiting);
        queue.is_running = !waiting.is_empty();
        drop(queue);
        if waiting.is_empty() {
            return;
        }
        let (done, left): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|unfinished| unfinished.history.submit(&unfinished.log, None));
        for UnfinishedHistory { log, history, leaves_open } in done {
            if !leaves_open {
                close(&log, history);
            }
        }
        if !left.is_empty() {
            finishing().waiting.extend(left);
            thread::sleep(RETRY);
        }
    }
}

fn close(log: &EventLog, history: Arc<SessionHistory>) {
    let session = history.session.clone();
    log.close(
        &session,
        Box::new(move |result| {
            if let Err(error) = result {
                let error = ErrorChain(&error);
                tracing::warn!(session = %history.session, %error, "failed to close a session's events in the log");
            }
            history.close_behind_events();
        }),
    );
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use event_log::{Heartbeat, LogOptions, MemoryLimits};

    use super::*;
    use crate::history::{LogHandle, StreamContext, Subscription};

    fn envelope(history: &SessionHistory, offset: u64) -> Arc<Envelope> {
        let (created_at, event) = (now_in_ms(), Event::SessionIdle {});
        Arc::new(Envelope { offset, created_at, session: history.session.clone(), turn: None, metadata: None, event })
    }

    /// A batch of one event that waits for the log.
    fn waits(writer: &mut HistoryWriter, first: Option<u64>) -> OnCommit {
        let (history, offset) = (writer.history.clone(), writer.next);
        writer.next += 1;
        let envelopes = vec![envelope(&history, offset)];
        on_commit(history, envelopes, first.unwrap_or(offset), 0, 0, None)
    }

    #[test]
    fn what_fails_behind_a_failure_is_no_hole_when_the_marker_is_in_the_log() {
        let log = LogHandle::new(Some(EventLog::memory(MemoryLimits::default())));
        let session = Arc::new("s".parse().expect("a valid id"));
        let (history, mut writer) = SessionHistory::new(session, &StreamContext { log, ..StreamContext::default() });
        let order = || LogError::Order { session: (*history.session).clone(), expected: 1, found: 2 };
        let (told, tells) = mpsc::channel();
        let first = waits(&mut writer, None);
        let second = {
            let (history, offset) = (writer.history.clone(), writer.next);
            writer.next += 1;
            let then = move |kept| told.send(kept).expect("heard");
            on_commit(history.clone(), vec![envelope(&history, offset)], offset, 0, 0, Some(Box::new(then)))
        };
        first(Err(LogError::Closed { session: (*history.session).clone() }));
        let hole = writer.missing_gap().expect("it failed");
        assert_eq!((hole.from, hole.to), (1, 3));
        let marker = waits(&mut writer, Some(hole.from));
        // The log does the two that wait: it is well again.
        second(Err(order()));
        // Who waits for the second is told what was wrong with the first.
        assert!(matches!(tells.recv(), Ok(Err(LogError::Closed { .. }))));
        marker(Ok(()));
        assert_eq!(writer.missing_gap(), None);
        // What fails later is one.
        waits(&mut writer, None)(Err(order()));
        waits(&mut writer, None)(Err(order()));
        assert_eq!(writer.missing_gap().map(|hole| hole.from), Some(4));
    }

    /// A session's history in a log with a short queue, whose writer stands still.
    struct Stalled {
        folder: tempfile::TempDir,
        log: EventLog,
        streams: StreamContext,
        history: Arc<SessionHistory>,
        writer: HistoryWriter,
        go_on: mpsc::Sender<()>,
    }

    /// The log's writer stands still in telling that this change is done.
    fn stalled(change: impl FnOnce(&EventLog, OnCommit)) -> Stalled {
        let folder = tempfile::tempdir().expect("a directory");
        let options = LogOptions { queue_bytes: 4096, ..LogOptions::default() };
        let log = EventLog::open(folder.path().join("log.sqlite"), options).expect("a log");
        let streams = StreamContext { log: LogHandle::new(Some(log.clone())), ..StreamContext::default() };
        let (history, writer) = SessionHistory::new(Arc::new("s".parse().expect("a valid id")), &streams);
        let (go_on, waits) = mpsc::channel::<()>();
        let (told, tells) = mpsc::channel();
        let stall = move |_| {
            told.send(()).expect("heard");
            _ = waits.recv();
        };
        log.flush(Duration::from_secs(10)).expect("empty");
        change(&log, Box::new(stall));
        tells.recv().expect("it stalls");
        Stalled { folder, log, streams, history, writer, go_on }
    }

    #[tokio::test]
    async fn the_last_events_wait_behind_what_the_log_has_no_room_for() {
        // Its queue will be full.
        let other = "other".parse().expect("a valid id");
        let Stalled { folder: _folder, log, streams, history, mut writer, go_on } =
            stalled(|log, done| log.put_session(&other, String::new(), done));
        let mut pushed = 0;
        while !writer.is_held() {
            pushed += 1;
            writer.push(0, Event::SessionIdle {});
            writer.commit();
        }
        writer.push(0, Event::Text { text: "last".into() });
        writer.commit();
        assert_eq!(history.assigned(), pushed + 1, "it is known to be on its way");
        drop(writer);
        drop(log);
        go_on.send(()).expect("heard");
        let mut events = Subscription::one(history, 1);
        let mut last = None;
        while let Some(event) = events.next().await {
            last = Some((event.offset, event.event.clone()));
        }
        assert_eq!(last, Some((pushed + 1, Event::Text { text: "last".into() })));
        drop(events);
        streams.log.close();
    }

    #[tokio::test]
    async fn who_waits_for_what_a_closed_log_had_no_room_for_is_told() {
        let other = "other".parse().expect("a valid id");
        let Stalled { folder: _folder, log, streams, history, mut writer, go_on } =
            stalled(|log, done| log.put_session(&other, String::new(), done));
        while !writer.is_held() {
            writer.push(0, Event::SessionIdle {});
            writer.commit();
        }
        let (told, tells) = mpsc::channel();
        writer.push(0, Event::Text { text: "held".into() });
        writer.commit_then(move |kept| told.send(kept).expect("heard"));
        let held = history.assigned();
        go_on.send(()).expect("heard");
        drop(log);
        streams.log.close();
        writer.push(0, Event::Text { text: "last".into() });
        writer.commit();
        assert!(matches!(tells.try_recv(), Ok(Err(LogError::Closed { .. }))));
        // Readers have all of it.
        drop(writer);
        let mut events = Subscription::one(history, held);
        for (offset, text) in [(held, "held"), (held + 1, "last")] {
            let event = events.next().await.expect("an event");
            assert_eq!((event.offset, &event.event), (offset, &Event::Text { text: text.into() }));
        }
        assert!(events.next().await.is_none());
    }

    #[tokio::test]
    async fn the_next_writers_wait_behind_what_the_log_had_no_room_for() {
        // Were each to append on its own, it would be chance that all do so in the order in which they came.
        const WRITERS: u64 = 50;
        let folder = tempfile::tempdir().expect("a directory");
        let options = LogOptions { queue_bytes: 4096, ..LogOptions::default() };
        let log = EventLog::open(folder.path().join("log.sqlite"), options).expect("a log");
        let streams = StreamContext { log: LogHandle::new(Some(log.clone())), ..StreamContext::default() };
        let (history, mut writer) = SessionHistory::new(Arc::new("s".parse().expect("a valid id")), &streams);
        // The log's writer stands still in this, and its queue is full.
        let (go_on, waits) = mpsc::channel::<()>();
        let (told, tells) = mpsc::channel();
        let stall = move |_| {
            told.send(()).expect("heard");
            _ = waits.recv();
        };
        log.put_session(&"other".parse().expect("a valid id"), String::new(), Box::new(stall));
        tells.recv().expect("it stalls");
        while !writer.is_held() {
            writer.push(0, Event::SessionIdle {});
            writer.commit();
        }
        writer.keep_open();
        drop(writer);
        for n in 0..WRITERS {
            let mut writer = history.reopen();
            writer.keep_open();
            writer.push(0, Event::Text { text: n.to_string() });
        }
        let last = history.assigned();
        go_on.send(()).expect("heard");
        let soon = Duration::from_secs(20);
        tokio::time::timeout(soon, history.wait_readable(last)).await.expect("in time");
        let page = log.read(&history.session, 0, event_log::ReadLimit::default()).expect("read");
        assert!(page.events.iter().map(|event| event.offset).eq(1..=last), "{:?}", page.events);
        let mut events = Subscription::one(history, 1);
        for offset in 1..=last {
            let event = tokio::time::timeout(soon, events.next()).await.expect("in time").expect("an event");
            let is_gap = matches!(event.event, Event::SessionGap(_));
            assert!(event.offset == offset && !is_gap, "{event:?} instead of {offset}");
        }
        drop((events, log));
        streams.log.close();
    }

    #[tokio::test]
    async fn a_stream_ends_behind_its_last_events_however_much_waits_for_the_log() {
        let beat = || Heartbeat { host: String::new(), at: UNIX_EPOCH };
        let Stalled { folder: _folder, log, streams, history, mut writer, go_on } =
            stalled(|log, done| log.put_heartbeat(beat(), done));
        writer.push(0, Event::Text { text: "last".into() });
        writer.commit();
        assert!(!writer.is_held(), "it is queued");
        let (told, refused) = mpsc::channel();
        while refused.try_recv().is_err() {
            let told = told.clone();
            log.put_heartbeat(beat(), Box::new(move |result| _ = result.map_err(|error| told.send(error))));
        }
        drop(writer);
        let mut events = Subscription::one(history, 1);
        let early = tokio::time::timeout(Duration::ZERO, events.next()).await;
        assert!(early.is_err(), "what waits is to come: {early:?}");
        go_on.send(()).expect("heard");
        let last = events.next().await.map(|last| last.event.clone());
        assert_eq!(last, Some(Event::Text { text: "last".into() }));
        assert!(events.next().await.is_none());
        assert!(log.head(&"s".parse().expect("a valid id")).expect("a stream").closed);
        drop((events, log));
        streams.log.close();
    }
}
