//! The events of a session: a bounded ring that one writer appends to and any number of cursors read from.

mod subscription;

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

use ipc_protocol::{Envelope, Event, Gap, SessionId};
use tokio::sync::watch;

pub use subscription::Subscription;

/// How much of each session's past is kept in memory. What falls out is gone: a subscriber that has not read it gets a
/// `session:gap` in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryLimits {
    /// Events per session. 65,536 by default; at least 1 is kept.
    pub events: usize,
    /// Bytes per session, as [`Event::weight`] counts them. 8 MiB by default.
    pub bytes: usize,
}

impl Default for HistoryLimits {
    fn default() -> Self {
        Self { events: 65_536, bytes: 8 * 1024 * 1024 }
    }
}

/// Wakes whoever reads all sessions.
pub(crate) type Everyone = Arc<watch::Sender<()>>;

/// The readable side.
pub(crate) struct History {
    session: Arc<SessionId>,
    ring: Mutex<Ring>,
    /// Offset of the last event, for a look without the lock.
    last: AtomicU64,
    wake: watch::Sender<()>,
    everyone: Everyone,
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
    /// Nothing, ever.
    End,
}

impl History {
    /// An empty history, and the one writer to it.
    pub(crate) fn new(session: Arc<SessionId>, limits: HistoryLimits, everyone: Everyone) -> (Arc<Self>, Writer) {
        let history = Arc::new(Self {
            session,
            ring: Mutex::new(Ring { first: 1, ..Ring::default() }),
            last: AtomicU64::new(0),
            wake: watch::Sender::new(()),
            everyone,
        });
        let writer = Writer { history: history.clone(), limits, next: 1, batch: Vec::new(), evicted: Vec::new() };
        (history, writer)
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Offset of the last event; 0 if there is none.
    pub(crate) fn last_offset(&self) -> u64 {
        self.last.load(Ordering::Acquire)
    }

    /// Offset of the first event still kept.
    pub(crate) fn first_offset(&self) -> u64 {
        self.ring().first
    }

    /// Appends what a cursor at `next` (the offset it wants) has waiting, at most `limit`, and moves it.
    fn take(&self, next: &mut u64, limit: usize, out: &mut Vec<Arc<Envelope>>) -> Taken {
        let ring = self.ring();
        let before = out.len();
        let mut limit = limit;
        if *next < ring.first && limit > 0 {
            out.push(gap(&self.session, *next, ring.first - 1));
            *next = ring.first;
            limit -= 1;
        }
        // Offsets in the ring have no holes.
        let skip = usize::try_from(*next - ring.first).unwrap_or(usize::MAX).min(ring.events.len());
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

/// The one writer of a [`History`]. Dropping it closes the history: subscriptions then end.
pub(crate) struct Writer {
    history: Arc<History>,
    limits: HistoryLimits,
    next: u64,
    batch: Vec<(u64, Event)>,
    evicted: Vec<Arc<Envelope>>,
}

impl Writer {
    /// Adds an event to the batch. `turn` 0 means none.
    pub(crate) fn push(&mut self, turn: u64, event: Event) {
        self.batch.push((turn, event));
    }

    /// Appends the batch under one lock and wakes the readers once.
    pub(crate) fn commit(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let created_at = SystemTime::now();
        let session = &self.history.session;
        // Envelopes are made before the lock is taken and dropped after it is released: readers wait for neither.
        let mut added = 0;
        let first = self.next;
        let envelopes: Vec<Arc<Envelope>> = self
            .batch
            .drain(..)
            .zip(first..)
            .map(|((turn, event), offset)| {
                added += event.weight();
                let turn = (turn > 0).then_some(turn);
                Arc::new(Envelope { offset, created_at, session: session.clone(), turn, event })
            })
            .collect();
        self.next += envelopes.len() as u64;
        {
            let mut ring = self.history.ring();
            ring.bytes += added;
            ring.events.extend(envelopes);
            while ring.events.len() > 1
                && (ring.events.len() > self.limits.events || ring.bytes > self.limits.bytes)
                && let Some(oldest) = ring.events.pop_front()
            {
                ring.bytes -= oldest.event.weight();
                ring.first = oldest.offset + 1;
                self.evicted.push(oldest);
            }
            self.history.last.store(self.next - 1, Ordering::Release);
        }
        self.wake();
        self.evicted.clear();
    }

    fn wake(&self) {
        self.history.wake.send_replace(());
        self.history.everyone.send_replace(());
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.commit();
        self.history.ring().closed = true;
        self.wake();
    }
}

#[cfg(test)]
mod tests;
