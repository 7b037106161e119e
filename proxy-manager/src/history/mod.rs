//! The events of a session: one writer appends to them, any number of cursors read.
//!
//! What was appended last is in a bounded ring in memory. With an event log (a state directory) an event is in the ring only
//! once the log has committed it, and a cursor that falls behind the ring reads from the log; without one it gets a gap.

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

use event_log::{Full, Limit, LogError};
use ipc_protocol::{Envelope, Event, Gap, Receipt, SessionId, Shape};
use tokio::sync::{Notify, watch};

use crate::roster::Roster;

pub(crate) use self::log::{InUse, Log};
pub use subscription::Subscription;
pub(crate) use writer::{Held, RETRY, Writer};

/// How much of each session's past is kept in memory. Without a state directory what falls out is gone: a subscriber that has
/// not read it gets a `session:gap` in its place. With one it is read from the event log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryLimits {
    /// Events per session. 65,536 by default; at least 1 is kept.
    pub events: usize,
    /// Bytes per session, as [`Event::weight`] counts them. 8 MiB by default, 2 MiB with a state directory.
    pub bytes: usize,
}

impl HistoryLimits {
    /// What is kept in memory of what is in the event log as well: enough for readers that are not behind.
    pub const BESIDE_LOG: Self = Self { events: 65_536, bytes: 2 * 1024 * 1024 };
}

impl Default for HistoryLimits {
    fn default() -> Self {
        Self { events: 65_536, bytes: 8 * 1024 * 1024 }
    }
}

/// What becomes of a session whose events cannot be written to the event log (a full disk, a file that is read-only).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFailure {
    /// It goes on with a `session:degraded`, and its events are in memory only until the log can be written again. A
    /// `session:gap` stands for them there.
    #[default]
    Degrade,
    /// It ends, as one that has failed. One that is suspended stays so.
    End,
}

/// How long the log may take for what is waited for.
const PUBLISHED: Duration = Duration::from_secs(10);

/// Events taken from a ring under one lock.
const PAGE: usize = 256;
/// How far back it is looked for what was ended of a suspended session: after that only what others append comes.
const RECENT: u64 = 1024;

/// Wakes whoever reads all sessions.
pub(crate) type Everyone = Arc<watch::Sender<()>>;

/// What the histories of a manager have in common.
#[derive(Clone, Debug, Default)]
pub(crate) struct Streams {
    pub(crate) limits: HistoryLimits,
    pub(crate) everyone: Everyone,
    pub(crate) log: Log,
    pub(crate) log_failure: LogFailure,
    pub(crate) roster: Arc<Roster>,
    /// Events of which there are two shapes for a while.
    pub(crate) shapes: &'static [Shape],
}

/// The readable side.
pub(crate) struct History {
    session: Arc<SessionId>,
    ring: Mutex<Ring>,
    limits: HistoryLimits,
    /// Offset of the last event that can be read, for a look without the lock.
    last: AtomicU64,
    /// Offset of the last event that has got one.
    assigned: AtomicU64,
    /// Number of the last of the proxy's messages that was appended.
    source: AtomicU64,
    /// The same of those that the log has, or has failed to take.
    kept_source: AtomicU64,
    wake: watch::Sender<()>,
    everyone: Everyone,
    log: Log,
    log_failure: LogFailure,
    shapes: &'static [Shape],
    /// Weight of the events that wait for the log.
    waiting: AtomicUsize,
    /// The log's queue was full. What is in here has its offsets, and goes to the log before anything that is appended later,
    /// whichever writer that is by.
    held: Mutex<VecDeque<Full>>,
    trouble: Mutex<Trouble>,
    /// Something changed for the writer: there is room again, or the log failed.
    news: Notify,
    /// Also that it has taken something.
    tells_all: AtomicBool,
}

/// What the log could not take.
#[derive(Default)]
struct Trouble {
    /// Offset of the first event that it lacks, until it was told.
    hole: Option<u64>,
    /// Why, until somebody has asked.
    error: Option<LogError>,
    /// Why the last batch failed, if it did.
    lasts: Option<LogError>,
}

#[derive(Default)]
struct Ring {
    events: VecDeque<Arc<Envelope>>,
    bytes: usize,
    /// Offset of the first event kept, or of the next one if none is.
    first: u64,
    closed: bool,
}

/// What a cursor found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// This many envelopes.
    Some(usize),
    /// Nothing yet.
    Nothing,
    /// What it wants is in the log.
    Behind,
    /// Nothing, ever.
    End,
}

impl History {
    /// The history of a session that begins, and the one writer to it. It goes on where the log ends, if that knows the session.
    pub(crate) fn new(session: Arc<SessionId>, streams: &Streams) -> (Arc<Self>, Writer) {
        let head = streams.log.get().and_then(|log| log.head(&session));
        let (last, source) = head.map_or((0, 0), |head| (head.last, head.source));
        let history = Arc::new(Self {
            session,
            ring: Mutex::new(Ring { first: last + 1, ..Ring::default() }),
            limits: streams.limits,
            last: AtomicU64::new(last),
            assigned: AtomicU64::new(last),
            source: AtomicU64::new(source),
            kept_source: AtomicU64::new(source),
            wake: watch::Sender::new(()),
            everyone: streams.everyone.clone(),
            log: streams.log.clone(),
            log_failure: streams.log_failure,
            shapes: streams.shapes,
            waiting: AtomicUsize::new(0),
            held: Mutex::default(),
            trouble: Mutex::default(),
            news: Notify::new(),
            tells_all: AtomicBool::new(false),
        });
        let writer = history.reopen();
        (history, writer)
    }

    /// Another writer, which goes on where the last one left it open ([`Writer::leave_open`]).
    pub(crate) fn reopen(self: &Arc<Self>) -> Writer {
        Writer::new(self.clone())
    }

    /// Nothing more comes, though nobody wrote a last event.
    pub(crate) fn close(&self) {
        self.ring().closed = true;
        self.wake();
    }

    fn wake(&self) {
        self.wake.send_replace(());
        self.everyone.send_replace(());
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves when the log has room again, or has failed.
    pub(crate) async fn changed(&self) {
        self.news.notified().await;
    }

    fn trouble(&self) -> MutexGuard<'_, Trouble> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it outlives this manager.
    pub(crate) fn is_durable(&self) -> bool {
        self.log.is_there()
    }

    /// Offset of the last event; 0 if there is none.
    pub(crate) fn last_offset(&self) -> u64 {
        self.last.load(Ordering::Acquire)
    }

    /// Offset of the last event that was appended, whether it can be read yet or not.
    pub(crate) fn assigned(&self) -> u64 {
        self.assigned.load(Ordering::Acquire)
    }

    /// Resolves when the event with this offset can be read.
    pub(crate) async fn reaches(&self, offset: u64) {
        let mut wake = self.wake.subscribe();
        // It fails only without a history.
        let _ = wake.wait_for(|()| self.last_offset() >= offset).await;
    }

    /// Resolves when all that has been appended can be read, or the log has taken too long for it.
    pub(crate) async fn published(&self) {
        let last = self.assigned();
        if tokio::time::timeout(PUBLISHED, self.reaches(last)).await.is_err() {
            tracing::warn!(session = %self.session, last, "events cannot be read yet");
        }
    }

    /// Offset of the first event still kept.
    pub(crate) fn first_offset(&self) -> u64 {
        match self.log.get().and_then(|log| log.head(&self.session)) {
            Some(head) => head.first.max(1),
            None => self.ring().first,
        }
    }

    /// Shows every event still kept to `note`, behind a gap for those that are not; some at a time. Blocks where they are in the
    /// log.
    pub(crate) fn read(&self, note: impl FnMut(&Event)) {
        self.read_from(1, note);
    }

    /// What was ended when the session was suspended, if that is among the newest events. Blocks where they are in the log.
    pub(crate) fn last_receipt(&self) -> Option<Box<Receipt>> {
        let mut found: Option<Box<Receipt>> = None;
        self.read_from(self.last_offset().saturating_sub(RECENT) + 1, |event| {
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
                Taken::Some(_) => {}
                Taken::Behind => {
                    let found = self.look_up(next).unwrap_or_else(|error| self.lost(next, &error));
                    self.accept(found, &mut next, &mut page);
                }
                Taken::Nothing | Taken::End => return,
            }
            page.drain(..).for_each(|envelope| note(&envelope.event));
        }
    }

    /// Appends what a cursor at `next` (the offset it wants) has waiting, at most `limit`, and moves it.
    fn take(&self, next: &mut u64, limit: usize, out: &mut Vec<Arc<Envelope>>) -> Taken {
        let ring = self.ring();
        let before = out.len();
        let mut limit = limit;
        if *next < ring.first && limit > 0 {
            if self.log.is_there() {
                return Taken::Behind;
            }
            out.push(gap(&self.session, *next, ring.first - 1));
            *next = ring.first;
            limit -= 1;
        }
        // Offsets in the ring have no holes.
        let skip = usize::try_from(next.saturating_sub(ring.first)).unwrap_or(usize::MAX).min(ring.events.len());
        out.extend(ring.events.range(skip..).take(limit).cloned());
        let taken = out.len() - before;
        match out.last() {
            Some(last) if taken > 0 => {
                *next = last.offset + 1;
                Taken::Some(taken)
            }
            _ if ring.closed => Taken::End,
            _ => Taken::Nothing,
        }
    }

    /// Whether what a cursor at `next` wants is in the log.
    fn is_past(&self, next: u64) -> bool {
        next < self.ring().first && self.log.is_there()
    }

    /// What the log has from `next` on. Blocks.
    ///
    /// # Errors
    /// Where it cannot be read now, and perhaps later.
    fn look_up(&self, next: u64) -> std::result::Result<Page, LogError> {
        let Some(log) = self.log.get() else { return Ok(self.in_ring(next)) };
        match log.read(&self.session, next - 1, Limit::default()) {
            // What it could not take: the marker for that may not be there yet.
            Ok(page) if page.events.is_empty() => Ok(match page.gap(next - 1) {
                Some(gap) => Page { gap: Some(gap), events: Vec::new() },
                None => self.in_ring(next),
            }),
            Ok(page) => Ok(Page { gap: page.gap(next - 1), events: page.events }),
            Err(LogError::Corrupt { lost: Some(lost), detail, .. }) => {
                tracing::error!(session = %self.session, detail, "a part of the event log cannot be read");
                Ok(Page { gap: Some(lost), events: Vec::new() })
            }
            Err(error @ (LogError::Corrupt { .. } | LogError::Unknown { .. })) => Ok(self.lost(next, &error)),
            Err(error) => Err(error),
        }
    }

    /// A gap in place of what only the log has.
    fn lost(&self, next: u64, error: &LogError) -> Page {
        tracing::error!(session = %self.session, %error, "the event log cannot be read");
        self.in_ring(next)
    }

    fn in_ring(&self, next: u64) -> Page {
        let gap = Gap { from: next, to: self.ring().first.saturating_sub(1).max(next) };
        Page { gap: Some(gap), events: Vec::new() }
    }

    /// Gives a cursor at `next` what was looked up for it. Says how many envelopes that is.
    fn accept(&self, page: Page, next: &mut u64, out: &mut Vec<Arc<Envelope>>) -> usize {
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

    /// Shows events to readers. They follow those before them.
    fn publish(&self, events: Vec<Arc<Envelope>>) {
        let Some(last) = events.last().map(|event| event.offset) else { return };
        // Dropped when the lock is released: readers do not wait for it.
        let mut evicted = Vec::new();
        {
            let mut ring = self.ring();
            if ring.events.is_empty()
                && let Some(first) = events.first()
            {
                ring.first = first.offset;
            }
            ring.bytes += events.iter().map(|event| event.event.weight()).sum::<usize>();
            ring.events.extend(events);
            while ring.events.len() > 1
                && (ring.events.len() > self.limits.events || ring.bytes > self.limits.bytes)
                && let Some(oldest) = ring.events.pop_front()
            {
                ring.bytes -= oldest.event.weight();
                ring.first = oldest.offset + 1;
                evicted.push(oldest);
            }
            self.last.store(last, Ordering::Release);
        }
        self.wake();
    }
}

/// What was found in the log.
#[derive(Default)]
struct Page {
    /// What is not to be had any more, before the events.
    gap: Option<Gap>,
    events: Vec<Arc<Envelope>>,
}

/// The marker in place of lost events.
fn gap(session: &Arc<SessionId>, from: u64, to: u64) -> Arc<Envelope> {
    Arc::new(Envelope {
        offset: to,
        created_at: SystemTime::now(),
        session: session.clone(),
        turn: None,
        event: Event::SessionGap(Gap { from, to }),
    })
}

#[cfg(test)]
mod tests;
