//! The events of a session: one writer appends, any number of cursors read.
//!
//! The newest events are in a bounded ring in memory. With an event log (a state directory) an event enters the ring
//! only once the log has committed it, and a cursor that falls behind the ring reads from the log. Without a log such a
//! cursor gets a gap.
//!
//! With replication an event enters the ring only once it is acknowledged: see [`gate`].

mod feed;
mod gate;
mod log;
mod subscription;
mod writer;

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use event_log::{EventRing, LogError, QueueFull, ReadLimit};
use ipc_protocol::{Envelope, ErrorChain, Event, EventShape, OffsetGap, Receipt, SessionId};
use tokio::sync::{Notify, watch};

use crate::replication::ReplicationState;

pub(crate) use self::log::{InUse, LogHandle};
pub use feed::{EventFeed, FeedStart};
pub(crate) use gate::{FleetNotice, ReplicationGate};
pub use subscription::Subscription;
pub(crate) use subscription::{AddedHistories, ForgottenHistory, HistoryTable};
pub(crate) use writer::{HeldCommit, HistoryWriter, RETRY};

/// Bounds of each session's events in memory. Without a state directory, events dropped from memory are lost: a
/// subscriber that has not read them gets a `session:gap` in their place. With one, they are read from the event log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryLimits {
    /// Events per session. 65,536 by default; at least 1 is retained.
    pub events: usize,
    /// Bytes per session, as [`Event::weight`] counts them. 8 MiB by default, 2 MiB with a state directory.
    pub bytes: usize,
}

impl HistoryLimits {
    /// Bounds for events that the event log has as well: enough for readers that are not behind.
    pub const BESIDE_LOG: Self = Self { events: 65_536, bytes: 2 * 1024 * 1024 };
}

impl Default for HistoryLimits {
    fn default() -> Self {
        Self { events: 65_536, bytes: 8 * 1024 * 1024 }
    }
}

/// Policy for a session whose events cannot be written to the event log (a full disk, a read-only file).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFailure {
    /// The session continues after a `session:degraded`. Its events are in memory only until the log can be written
    /// again; a `session:gap` replaces them in the log.
    #[default]
    Degrade,
    /// The session ends as failed. A suspended session stays suspended.
    End,
}

/// Longest wait for the log to commit events that a caller waits for.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(10);

/// Events taken from a ring under one lock.
const PAGE: usize = 256;
/// Number of newest events searched for a suspended session's receipt: only events appended by others follow it.
const MAX_RECENT: u64 = 1024;

/// Notifies readers of all sessions.
pub(crate) type AllSessionsWaker = Arc<watch::Sender<()>>;

/// State shared by the histories of a manager.
#[derive(Clone, Debug, Default)]
pub(crate) struct StreamContext {
    pub(crate) limits: HistoryLimits,
    pub(crate) all_sessions_waker: AllSessionsWaker,
    pub(crate) log: LogHandle,
    pub(crate) log_failure: LogFailure,
    /// Events that are written in two shapes for a while.
    pub(crate) shapes: &'static [EventShape],
    /// The fleet, if there is one.
    pub(crate) replication: Option<Arc<ReplicationState>>,
}

/// The readable side of a session's events.
pub(crate) struct SessionHistory {
    session: Arc<SessionId>,
    ring: Mutex<HistoryRing>,
    limits: HistoryLimits,
    /// Offset of this manager's first event: those before it are of earlier managers.
    begin: u64,
    /// Offset of the last readable event, readable without the lock.
    last: AtomicU64,
    /// Last offset assigned.
    assigned: AtomicU64,
    /// Number of the last appended message of the proxy.
    source: AtomicU64,
    /// Number of the last message that the log has, or has failed to take.
    durable_source: AtomicU64,
    wake: watch::Sender<()>,
    all_sessions_waker: AllSessionsWaker,
    log: LogHandle,
    log_failure: LogFailure,
    shapes: &'static [EventShape],
    /// Weight of the events that wait for the log.
    waiting: AtomicUsize,
    /// Batches that found the log's queue full. They have their offsets, and go to the log before anything appended
    /// later by any writer.
    held_batches: Mutex<VecDeque<QueueFull>>,
    trouble: Mutex<LogTrouble>,
    /// Notifies the writer that there is room again, or that the log failed.
    writer_waker: Notify,
    /// True if the writer is also notified each time the log has taken a batch.
    notifies_of_all: AtomicBool,
    /// `None` without a fleet.
    gate: Option<ReplicationGate>,
}

/// Failures of the log to take events.
#[derive(Default)]
struct LogTrouble {
    /// Offset of the first event that the log lacks, until its marker is appended.
    first_missing: Option<u64>,
    /// Error of the log, until the writer has asked for it.
    error: Option<LogError>,
    /// Error of the last batch, if it failed.
    current_error: Option<LogError>,
}

#[derive(Default)]
struct HistoryRing {
    events: EventRing,
    /// Offset of the first event retained, or of the next one if none is.
    first: u64,
    closed: bool,
}

/// Result of reading the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CursorRead {
    /// Number of envelopes taken.
    Some(usize),
    /// Nothing yet.
    Nothing,
    /// The cursor's next event is in the log.
    Behind,
    /// Nothing, ever.
    End,
}

impl SessionHistory {
    /// Creates the history of a session and its one writer. Continues after the log's last event if the log knows the
    /// session.
    pub(crate) fn new(session: Arc<SessionId>, streams: &StreamContext) -> (Arc<Self>, HistoryWriter) {
        let head = streams.log.get().and_then(|log| log.head(&session));
        let (last, source) = head.map_or((0, 0), |head| (head.last, head.source));
        let replication = streams.replication.clone();
        let gate = replication.map(|fleet| ReplicationGate::new(fleet, head.is_some_and(|head| head.epoch > 0)));
        let readable = head.filter(|_| gate.is_some()).map_or(last, |head| head.readable());
        let history = Arc::new(Self {
            session,
            ring: Mutex::new(HistoryRing { first: last + 1, ..HistoryRing::default() }),
            limits: streams.limits,
            begin: last + 1,
            last: AtomicU64::new(readable),
            assigned: AtomicU64::new(last),
            source: AtomicU64::new(source),
            durable_source: AtomicU64::new(source),
            wake: watch::Sender::new(()),
            all_sessions_waker: streams.all_sessions_waker.clone(),
            log: streams.log.clone(),
            log_failure: streams.log_failure,
            shapes: streams.shapes,
            waiting: AtomicUsize::new(0),
            held_batches: Mutex::default(),
            trouble: Mutex::default(),
            writer_waker: Notify::new(),
            notifies_of_all: AtomicBool::new(false),
            gate,
        });
        let writer = history.reopen();
        (history, writer)
    }

    /// Creates another writer, which continues where the last one left the history open ([`HistoryWriter::keep_open`]).
    pub(crate) fn reopen(self: &Arc<Self>) -> HistoryWriter {
        HistoryWriter::new(self.clone())
    }

    pub(crate) fn session(&self) -> &SessionId {
        &self.session
    }

    /// Ends the history, though no writer appended a last event.
    pub(crate) fn close(&self) {
        self.ring().closed = true;
        self.wake();
    }

    fn wake(&self) {
        self.wake.send_replace(());
        self.all_sessions_waker.send_replace(());
    }

    fn ring(&self) -> MutexGuard<'_, HistoryRing> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves when the log has room again, or has failed.
    pub(crate) async fn wait_for_log(&self) {
        self.writer_waker.notified().await;
    }

    fn trouble(&self) -> MutexGuard<'_, LogTrouble> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if the history outlives this manager.
    pub(crate) fn is_durable(&self) -> bool {
        self.log.is_open()
    }

    /// Offset of the last readable event; 0 if there is none.
    pub(crate) fn last_offset(&self) -> u64 {
        self.last.load(Ordering::Acquire)
    }

    /// Offset of the last appended event, readable or not.
    pub(crate) fn assigned(&self) -> u64 {
        self.assigned.load(Ordering::Acquire)
    }

    /// Resolves when the event with this offset is readable, or never will be.
    pub(crate) async fn wait_readable(&self, offset: u64) {
        let mut wake = self.wake.subscribe();
        // Fails only without a history. What is fenced, or refused by the log at the end, is never readable.
        let is_over = || self.is_fenced() || self.ring().closed;
        let _ = wake.wait_for(|()| self.last_offset() >= offset || is_over()).await;
    }

    /// Resolves once another manager may have the session.
    pub(crate) async fn wait_fenced(&self) {
        // Fails only without a history.
        let _ = self.wake.subscribe().wait_for(|()| self.is_fenced()).await;
    }

    /// Resolves when all appended events are readable, or the log has taken too long.
    pub(crate) async fn wait_published(&self) {
        let last = self.assigned();
        if self.replicated().is_some() {
            // Nobody is told of a turn's end while it may be undone, however long the fleet takes.
            return self.wait_readable(last).await;
        }
        if tokio::time::timeout(PUBLISH_TIMEOUT, self.wait_readable(last)).await.is_err() {
            tracing::warn!(session = %self.session, last, "timed out waiting for the event log to commit events");
        }
    }

    /// Offset of the first event still retained.
    pub(crate) fn first_offset(&self) -> u64 {
        match self.log.get().and_then(|log| log.head(&self.session)) {
            Some(head) => head.first.max(1),
            None => self.ring().first,
        }
    }

    /// Passes every retained event to `note`, after a gap for those that are lost. Reads a page at a time. Blocks where
    /// events are in the log.
    pub(crate) fn read(&self, note: impl FnMut(&Event)) {
        self.read_from(1, note);
    }

    /// Receipt of the session's last suspension, if that is among the newest events. Blocks where events are in the
    /// log.
    pub(crate) fn last_receipt(&self) -> Option<Box<Receipt>> {
        let mut found: Option<Box<Receipt>> = None;
        self.read_from(self.last_offset().saturating_sub(MAX_RECENT) + 1, |event| {
            if let Event::SessionSuspended { receipt, .. } = event {
                found.clone_from(receipt);
            }
        });
        found
    }

    fn read_from(&self, mut next: u64, mut note: impl FnMut(&Event)) {
        let (last, mut page) = (self.last_offset(), Vec::new());
        while next <= last {
            match self.take(&mut next, PAGE, &mut page) {
                CursorRead::Some(_) => {}
                CursorRead::Behind => {
                    let found = self.read_log(next).unwrap_or_else(|error| self.lost_page(next, &error));
                    self.accept(found, &mut next, &mut page);
                }
                CursorRead::Nothing | CursorRead::End => return,
            }
            page.drain(..).for_each(|envelope| note(&envelope.event));
        }
    }

    /// Appends at most `limit` waiting events to `out` for a cursor at offset `next`, and advances the cursor.
    fn take(&self, next: &mut u64, limit: usize, out: &mut Vec<Arc<Envelope>>) -> CursorRead {
        let ring = self.ring();
        let before = out.len();
        let mut limit = limit;
        if *next < ring.first && limit > 0 {
            if self.is_withheld(*next) {
                return if ring.closed { CursorRead::End } else { CursorRead::Nothing };
            }
            if self.log.is_open() {
                return CursorRead::Behind;
            }
            out.push(gap(&self.session, *next, ring.first - 1));
            *next = ring.first;
            limit -= 1;
        }
        out.extend(ring.events.since(*next).take(limit).cloned());
        let taken = out.len() - before;
        match out.last() {
            Some(last) if taken > 0 => {
                *next = last.offset + 1;
                CursorRead::Some(taken)
            }
            _ if ring.closed => CursorRead::End,
            _ => CursorRead::Nothing,
        }
    }

    /// Returns true if the event at `next` is not readable yet, in a fleet: it is in the log, or will be, and is not acknowledged.
    fn is_withheld(&self, next: u64) -> bool {
        self.gate.is_some() && next > self.last_offset()
    }

    /// Returns true if the event at `next` has to be read from the log.
    fn is_in_log(&self, next: u64) -> bool {
        next < self.ring().first && !self.is_withheld(next) && self.log.is_open()
    }

    /// Reads a page of the log from `next` on. Blocks.
    ///
    /// # Errors
    /// An error if the log cannot be read now, but perhaps later.
    fn read_log(&self, next: u64) -> std::result::Result<HistoryPage, LogError> {
        let Some(log) = self.log.get() else { return Ok(self.ring_page(next)) };
        // Looked at before the log is: events that become readable meanwhile are no gap.
        let is_withheld = self.is_withheld(next);
        let read = match &self.gate {
            Some(_) => log.acknowledged().read(&self.session, next - 1, ReadLimit::default()),
            None => log.read(&self.session, next - 1, ReadLimit::default()),
        };
        match read {
            Ok(page) if page.events.is_empty() && is_withheld => Ok(HistoryPage::default()),
            // The log failed to take these events; their marker may not be there yet.
            Ok(page) if page.events.is_empty() => Ok(match page.gap(next - 1) {
                Some(gap) => HistoryPage { gap: Some(gap), events: Vec::new() },
                None => self.ring_page(next),
            }),
            Ok(page) => Ok(HistoryPage { gap: page.gap(next - 1), events: page.events }),
            Err(LogError::Corrupt { lost: Some(lost), detail, .. }) => {
                tracing::error!(session = %self.session, detail, "failed to read a part of the event log");
                Ok(HistoryPage { gap: Some(lost), events: Vec::new() })
            }
            Err(error @ (LogError::Corrupt { .. } | LogError::Unknown { .. })) => Ok(self.lost_page(next, &error)),
            Err(error) => Err(error),
        }
    }

    /// Replaces the events that only the log has by a gap.
    fn lost_page(&self, next: u64, error: &LogError) -> HistoryPage {
        tracing::error!(session = %self.session, error = %ErrorChain(error), "failed to read the event log");
        self.ring_page(next)
    }

    fn ring_page(&self, next: u64) -> HistoryPage {
        let gap = OffsetGap { from: next, to: self.ring().first.saturating_sub(1).max(next) };
        HistoryPage { gap: Some(gap), events: Vec::new() }
    }

    /// Appends a page to `out` for a cursor at `next`. Returns the number of envelopes.
    fn accept(&self, page: HistoryPage, next: &mut u64, out: &mut Vec<Arc<Envelope>>) -> usize {
        let before = out.len();
        if let Some(lost) = page.gap {
            out.push(gap(&self.session, lost.from.max(*next), lost.to));
            *next = lost.to + 1;
        }
        for event in page.events {
            *next = event.offset + 1;
            out.push(event);
        }
        out.len() - before
    }

    /// Makes events readable. They follow those published before.
    fn publish(&self, events: Vec<Arc<Envelope>>) {
        let Some(last) = events.last().map(|event| event.offset) else { return };
        // Dropped after the lock is released, so that readers do not wait for it.
        let mut evicted = Vec::new();
        {
            let mut ring = self.ring();
            if ring.events.is_empty()
                && let Some(first) = events.first()
            {
                ring.first = first.offset;
            }
            events.into_iter().for_each(|event| ring.events.push(event));
            while let Some(oldest) = ring.events.evict(self.limits.events, self.limits.bytes) {
                ring.first = oldest.offset + 1;
                evicted.push(oldest);
            }
            self.last.store(last, Ordering::Release);
        }
        self.wake();
    }
}

/// Result of reading the log.
#[derive(Default)]
struct HistoryPage {
    /// Events before the page that are lost.
    gap: Option<OffsetGap>,
    events: Vec<Arc<Envelope>>,
}

/// Creates the marker for lost events.
fn gap(session: &Arc<SessionId>, from: u64, to: u64) -> Arc<Envelope> {
    Arc::new(Envelope {
        offset: to,
        created_at: SystemTime::now(),
        session: session.clone(),
        turn: None,
        metadata: None,
        event: Event::SessionGap(OffsetGap { from, to }),
    })
}

#[cfg(test)]
mod tests;
