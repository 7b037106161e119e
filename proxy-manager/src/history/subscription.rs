//! Cursors over one history or over all.

use std::{
    collections::VecDeque,
    fmt,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use event_log::LogError;
use futures_core::Stream;
use ipc_protocol::{Envelope, SessionId};
use tokio::{
    sync::{oneshot, watch},
    time::sleep,
};

use super::{AllSessionsWaker, CursorRead, HistoryPage, PAGE, SessionHistory, gap};
use crate::{
    blocking::{READING, panicked},
    error::Result,
    runtime,
};

/// Pause between two attempts to read a log that cannot be read now.
const RETRY_DELAY: Duration = Duration::from_millis(250);
/// Failed attempts in a row before unreadable events become a gap: some minutes where each attempt has to wait for a
/// reader.
const MAX_TRIES: u32 = 40;
/// Operation named in errors.
const READ: &str = "reading the event log";

/// Events of one session, or of all. Reads from the sessions' histories at its own pace; a slow subscriber delays
/// nobody. With a state directory it gets every event. Without one, a subscriber that falls too far behind gets one
/// `session:gap` in place of the dropped events, and continues after it.
///
/// It is a [`Stream`] of events, which ends after the last one; [`Subscription::next`] needs no trait in scope.
///
/// # Cancel safety
/// Dropping a future of its methods at any time (in `select!`, say) loses no event.
///
/// ```no_run
/// # async fn example(session: proxy_manager::SessionHandle) {
/// let mut events = session.subscribe();
/// while let Some(envelope) = events.next().await {
///     println!("{} {}", envelope.offset, envelope.event.kind());
/// }
/// # }
/// ```
pub struct Subscription {
    /// `None` while a fill that [`Stream::poll_next`] started has it.
    reader: Option<EventReader>,
    pending: Option<PendingFill>,
}

/// Fill that is polled by [`Stream::poll_next`]: returns the reader, and `false` at the end. In a mutex, which is never locked, as
/// a future alone is not `Sync`.
type PendingFill = Mutex<Pin<Box<dyn Future<Output = (EventReader, bool)> + Send>>>;

/// Reader behind a [`Subscription`].
struct EventReader {
    source: SubscriptionSource,
    /// Events taken from the source that [`Subscription::next`] has not returned yet.
    ready: VecDeque<Arc<Envelope>>,
    /// Failures in a row to read the log.
    failures: u32,
}

enum SubscriptionSource {
    /// Only a single session is read ahead: with many sessions each would have a page in memory.
    One {
        cursor: HistoryCursor,
        wake: watch::Receiver<()>,
        ahead: Option<ReadAhead>,
    },
    All(AllSessions),
}

/// Page of the log that is being read while the previous one is used.
struct ReadAhead {
    /// Offset of the page's first event.
    next: u64,
    page: oneshot::Receiver<std::result::Result<HistoryPage, LogError>>,
}

/// Position in one history.
struct HistoryCursor {
    history: Arc<SessionHistory>,
    next: u64,
}

/// The histories of all sessions of a manager.
pub(crate) trait HistoryTable: Send + Sync {
    /// Notifies readers of all sessions.
    fn everyone(&self) -> &AllSessionsWaker;

    /// Returns true if no history is added any more.
    fn is_closed(&self) -> bool;

    /// Returns the histories added after the serial number `seen`, and advances it.
    fn added_since(&self, seen: &mut u64) -> AddedHistories;
}

/// Histories added to a [`HistoryTable`].
#[derive(Default)]
pub(crate) struct AddedHistories {
    pub(crate) histories: Vec<Arc<SessionHistory>>,
    pub(crate) forgotten: Vec<ForgottenHistory>,
}

/// Remains of a history that is no longer remembered: enough to report that its events are gone.
#[derive(Clone, Debug)]
pub(crate) struct ForgottenHistory {
    pub(crate) serial: u64,
    pub(crate) session: Arc<SessionId>,
    pub(crate) last_offset: u64,
}

struct AllSessions {
    table: Arc<dyn HistoryTable>,
    /// True to leave out events of earlier managers.
    own: bool,
    wake: watch::Receiver<()>,
    cursors: Vec<HistoryCursor>,
    /// Sessions that were forgotten before this subscription saw them.
    missed: VecDeque<ForgottenHistory>,
    /// Serial number of the last session seen.
    last_serial: u64,
    /// Index of the cursor that is asked first, which rotates.
    next_cursor: usize,
    /// Session whose events have to be read from the log.
    lagging: Option<Arc<SessionId>>,
}

impl Subscription {
    /// Events of one session with an offset of at least `next`.
    pub(crate) fn one(history: Arc<SessionHistory>, next: u64) -> Self {
        let wake = history.wake.subscribe();
        Self::new(SubscriptionSource::One { cursor: HistoryCursor { history, next }, wake, ahead: None })
    }

    /// Events of all sessions; without those of earlier managers if `own` is true.
    pub(crate) fn all(table: Arc<dyn HistoryTable>, own: bool) -> Self {
        let wake = table.everyone().subscribe();
        let all = AllSessions {
            table,
            own,
            wake,
            cursors: Vec::new(),
            missed: VecDeque::new(),
            last_serial: 0,
            next_cursor: 0,
            lagging: None,
        };
        Self::new(SubscriptionSource::All(all))
    }

    fn new(source: SubscriptionSource) -> Self {
        Self { reader: Some(EventReader { source, ready: VecDeque::new(), failures: 0 }), pending: None }
    }

    /// Returns the next event, or `None` after the last one. A session's subscription ends after its `session:ended`; a
    /// subscription to all sessions ends once the manager is gone and the last session has ended.
    ///
    /// # Cancel safety
    /// Cancel safe: no event is lost.
    pub async fn next(&mut self) -> Option<Arc<Envelope>> {
        let reader = self.reader().await;
        if reader.ready.is_empty() {
            reader.fill_ready().await;
        }
        reader.ready.pop_front()
    }

    /// Waits for events and appends at least one to `out`: at most 256, or a page of the event log (some 4,000).
    /// Returns `false` at the end, as defined by [`Subscription::next`]; `out` is then unchanged.
    ///
    /// # Cancel safety
    /// Cancel safe: no event is lost.
    pub async fn next_batch(&mut self, out: &mut Vec<Arc<Envelope>>) -> bool {
        let reader = self.reader().await;
        if reader.ready.is_empty() {
            return reader.fill(out).await;
        }
        out.extend(reader.ready.drain(..));
        true
    }

    /// Returns the reader, once a fill that was started by polling has ended.
    async fn reader(&mut self) -> &mut EventReader {
        if self.pending.is_some() {
            std::future::poll_fn(|cx| self.poll_pending(cx)).await;
        }
        self.reader.as_mut().expect("a fill that has ended returns the reader")
    }

    /// Continues a fill, if there is one. Returns `false` if it came to the end.
    fn poll_pending(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        let Some(pending) = &mut self.pending else { return Poll::Ready(true) };
        let (reader, more) = ready!(pending.get_mut().unwrap_or_else(PoisonError::into_inner).as_mut().poll(cx));
        self.reader = Some(reader);
        self.pending = None;
        Poll::Ready(more)
    }
}

impl Stream for Subscription {
    type Item = Arc<Envelope>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if !ready!(self.poll_pending(cx)) {
                return Poll::Ready(None);
            }
            let Some(mut reader) = self.reader.take() else { return Poll::Ready(None) };
            if let Some(event) = reader.ready.pop_front() {
                self.reader = Some(reader);
                return Poll::Ready(Some(event));
            }
            self.pending = Some(Mutex::new(Box::pin(async move {
                let more = reader.fill_ready().await;
                (reader, more)
            })));
        }
    }
}

impl EventReader {
    /// Waits for events and keeps them as ready. Returns `false` at the end.
    async fn fill_ready(&mut self) -> bool {
        // The batch is put back below, with no await in between, so a dropped future loses nothing.
        let mut batch = Vec::from(std::mem::take(&mut self.ready));
        let more = self.fill(&mut batch).await;
        self.ready = batch.into();
        more
    }

    async fn fill(&mut self, out: &mut Vec<Arc<Envelope>>) -> bool {
        loop {
            let (taken, behind) = match &mut self.source {
                SubscriptionSource::One { cursor, wake, ahead } => {
                    // Marked before looking: an event appended later wakes this task again.
                    wake.mark_unchanged();
                    (cursor.take(PAGE, out), Some((cursor, Some(ahead))))
                }
                SubscriptionSource::All(all) => {
                    all.wake.mark_unchanged();
                    let taken = all.take(out);
                    (taken, all.lagging_cursor().map(|cursor| (cursor, None)))
                }
            };
            match (taken, behind) {
                (CursorRead::Some(_), _) => return true,
                (CursorRead::End, _) => return false,
                (CursorRead::Behind, Some((cursor, ahead))) => {
                    match cursor.catch_up(ahead, self.failures >= MAX_TRIES, out).await {
                        Ok(taken) => {
                            self.failures = 0;
                            if taken > 0 {
                                return true;
                            }
                        }
                        Err(error) => {
                            if self.failures == 0 {
                                tracing::warn!(error = %error.chain(), "failed to read the event log: trying again");
                            }
                            self.failures += 1;
                            // Outside a runtime there is no timer: it is read again at once, a few times.
                            if runtime::require().is_ok() {
                                sleep(RETRY_DELAY).await;
                            }
                        }
                    }
                }
                (CursorRead::Nothing | CursorRead::Behind, _) => {
                    let wake = match &mut self.source {
                        SubscriptionSource::One { wake, .. } => wake,
                        SubscriptionSource::All(all) => &mut all.wake,
                    };
                    if wake.changed().await.is_err() {
                        return false;
                    }
                }
            }
        }
    }
}

impl HistoryCursor {
    fn take(&mut self, limit: usize, out: &mut Vec<Arc<Envelope>>) -> CursorRead {
        self.history.take(&mut self.next, limit, out)
    }

    /// Appends the log's next events, and starts reading the following page into `ahead`, if there is one. Cancel-safe:
    /// dropping the future moves nothing.
    ///
    /// # Errors
    /// An error if the log cannot be read now. With `gives_up`, a gap replaces the events that only the log has.
    async fn catch_up(
        &mut self,
        ahead: Option<&mut Option<ReadAhead>>,
        gives_up: bool,
        out: &mut Vec<Arc<Envelope>>,
    ) -> Result<usize> {
        let mut now = None;
        let (slot, goes_on) = match ahead {
            Some(ahead) => (ahead, true),
            None => (&mut now, false),
        };
        let reading = match slot {
            Some(ahead) if ahead.next == self.next => ahead,
            _ => slot.insert(self.look_up().await?),
        };
        let page = (&mut reading.page).await;
        *slot = None;
        let page = match page.map_err(|_| panicked(READ))? {
            Err(error) if gives_up => self.history.lost_page(self.next, &error),
            page => page?,
        };
        let taken = self.history.accept(page, &mut self.next, out);
        if goes_on && self.history.is_in_log(self.next) {
            // A page that cannot be read ahead now is read when it is needed.
            *slot = self.look_ahead();
        }
        Ok(taken)
    }

    /// Starts reading the log when a thread of its readers is free.
    async fn look_up(&self) -> Result<ReadAhead> {
        let (history, next) = (self.history.clone(), self.next);
        Ok(ReadAhead { next, page: READING.start(READ, move || history.read_log(next)).await? })
    }

    /// Starts reading the log if a thread of its readers is free now.
    fn look_ahead(&self) -> Option<ReadAhead> {
        let (history, next) = (self.history.clone(), self.next);
        Some(ReadAhead { next, page: READING.try_start(READ, move || history.read_log(next))? })
    }
}

impl AllSessions {
    /// Returns the cursor that has to read from the log, if one was found.
    fn lagging_cursor(&mut self) -> Option<&mut HistoryCursor> {
        let session = self.lagging.take()?;
        self.cursors.iter_mut().find(|cursor| cursor.history.session == session)
    }

    fn take(&mut self, out: &mut Vec<Arc<Envelope>>) -> CursorRead {
        // Read before the sessions are: a session added later is seen at the next wake.
        let closed = self.table.is_closed();
        let AddedHistories { histories, forgotten } = self.table.added_since(&mut self.last_serial);
        let first = |history: &SessionHistory| if self.own { history.begin } else { 1 };
        self.cursors.extend(histories.into_iter().map(|history| HistoryCursor { next: first(&history), history }));
        self.missed.extend(forgotten.into_iter().filter(|forgotten| forgotten.last_offset > 0));
        let mut left = PAGE;
        while left > 0
            && let Some(missed) = self.missed.pop_front()
        {
            out.push(gap(&missed.session, 1, missed.last_offset));
            left -= 1;
        }
        let mut ended = Vec::new();
        self.lagging = None;
        for step in 0..self.cursors.len() {
            let at = (self.next_cursor + step) % self.cursors.len();
            match self.cursors[at].take(left, out) {
                CursorRead::Some(taken) => left -= taken,
                CursorRead::Nothing => {}
                // Cursors that are behind take turns too, since `first` rotates.
                CursorRead::Behind if self.lagging.is_none() && left == PAGE => {
                    self.lagging = Some(self.cursors[at].history.session.clone());
                    break;
                }
                CursorRead::Behind => {}
                CursorRead::End => ended.push(at),
            }
            if left == 0 {
                break;
            }
        }
        self.next_cursor = self.next_cursor.wrapping_add(1) % self.cursors.len().max(1);
        ended.sort_unstable();
        for at in ended.into_iter().rev() {
            self.cursors.swap_remove(at);
        }
        match PAGE - left {
            0 if self.lagging.is_some() => CursorRead::Behind,
            0 if closed && self.cursors.is_empty() && self.missed.is_empty() => CursorRead::End,
            0 => CursorRead::Nothing,
            taken => CursorRead::Some(taken),
        }
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Subscription");
        match self.reader.as_ref().map(|reader| &reader.source) {
            Some(SubscriptionSource::One { cursor, .. }) => {
                debug.field("session", &cursor.history.session).field("next", &cursor.next);
            }
            Some(SubscriptionSource::All(all)) => {
                debug.field("sessions", &all.cursors.len());
            }
            None => {}
        }
        debug.finish_non_exhaustive()
    }
}
