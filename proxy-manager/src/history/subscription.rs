//! Cursors over one history or over all.

use std::{collections::VecDeque, fmt, sync::Arc};

use ipc_protocol::Envelope;
use tokio::sync::watch;

use super::{History, Taken, gap};
use crate::directory::{Added, Directory, Forgotten};

/// Envelopes copied under one lock.
const BATCH: usize = 256;

/// Events of one session, or of all. It reads from the sessions' histories at its own pace: a slow one holds up nobody.
/// If it falls so far behind that events were dropped, it gets one `session:gap` in their place and goes on behind it.
///
/// Its futures may be dropped at any time (in `select!`, say) without losing an event.
pub struct Subscription {
    source: Source,
    /// Taken from the source and not yet given out by [`Subscription::next`].
    ready: VecDeque<Arc<Envelope>>,
}

enum Source {
    One { cursor: Cursor, wake: watch::Receiver<()> },
    All(All),
}

/// A place in one history.
struct Cursor {
    history: Arc<History>,
    next: u64,
}

struct All {
    directory: Arc<Directory>,
    wake: watch::Receiver<()>,
    cursors: Vec<Cursor>,
    /// Sessions that were forgotten before they were seen here.
    missed: VecDeque<Forgotten>,
    /// Sessions up to this serial number were seen.
    seen: u64,
    /// Which cursor is first asked: each in its turn.
    first: usize,
}

impl Subscription {
    /// Events of one session with an offset of at least `next`.
    pub(crate) fn one(history: Arc<History>, next: u64) -> Self {
        let wake = history.wake.subscribe();
        Self { source: Source::One { cursor: Cursor { history, next }, wake }, ready: VecDeque::new() }
    }

    /// Events of all sessions.
    pub(crate) fn all(directory: Arc<Directory>) -> Self {
        let wake = directory.everyone().subscribe();
        let all = All { directory, wake, cursors: Vec::new(), missed: VecDeque::new(), seen: 0, first: 0 };
        Self { source: Source::All(all), ready: VecDeque::new() }
    }

    /// The next event. `None` after the last: a session's subscription ends behind its `session:ended`, one of all
    /// sessions when the manager is gone and the last of them has ended.
    pub async fn next(&mut self) -> Option<Arc<Envelope>> {
        if self.ready.is_empty() {
            // Taken back below, without a wait between: a dropped future loses nothing.
            let mut batch = Vec::from(std::mem::take(&mut self.ready));
            self.fill(&mut batch).await;
            self.ready = batch.into();
        }
        self.ready.pop_front()
    }

    /// Appends at least 1 and at most 256 events to `out`, as soon as there are any. `false` at the end, as
    /// [`Subscription::next`] has it; `out` is then as it was.
    pub async fn next_batch(&mut self, out: &mut Vec<Arc<Envelope>>) -> bool {
        if self.ready.is_empty() {
            return self.fill(out).await;
        }
        out.extend(self.ready.drain(..));
        true
    }

    async fn fill(&mut self, out: &mut Vec<Arc<Envelope>>) -> bool {
        loop {
            let (taken, wake) = match &mut self.source {
                Source::One { cursor, wake } => {
                    // Before the look: what is appended after it wakes us again.
                    wake.mark_unchanged();
                    (cursor.take(BATCH, out), wake)
                }
                Source::All(all) => {
                    all.wake.mark_unchanged();
                    (all.take(out), &mut all.wake)
                }
            };
            match taken {
                Taken::Some(_) => return true,
                Taken::End => return false,
                Taken::Nothing => {
                    if wake.changed().await.is_err() {
                        return false;
                    }
                }
            }
        }
    }
}

impl Cursor {
    fn take(&mut self, limit: usize, out: &mut Vec<Arc<Envelope>>) -> Taken {
        self.history.take(&mut self.next, limit, out)
    }
}

impl All {
    fn take(&mut self, out: &mut Vec<Arc<Envelope>>) -> Taken {
        // Asked before the sessions are: one that is added later is seen at the next wake.
        let closed = self.directory.is_closed();
        let Added { histories, forgotten } = self.directory.added_since(&mut self.seen);
        self.cursors.extend(histories.into_iter().map(|history| Cursor { history, next: 1 }));
        self.missed.extend(forgotten.into_iter().filter(|forgotten| forgotten.last_offset > 0));
        let mut left = BATCH;
        while left > 0
            && let Some(missed) = self.missed.pop_front()
        {
            out.push(gap(&missed.session, 1, missed.last_offset));
            left -= 1;
        }
        let mut ended = Vec::new();
        for step in 0..self.cursors.len() {
            let at = (self.first + step) % self.cursors.len();
            match self.cursors[at].take(left, out) {
                Taken::Some(taken) => left -= taken,
                Taken::Nothing => {}
                Taken::End => ended.push(at),
            }
            if left == 0 {
                break;
            }
        }
        self.first = self.first.wrapping_add(1) % self.cursors.len().max(1);
        ended.sort_unstable();
        for at in ended.into_iter().rev() {
            self.cursors.swap_remove(at);
        }
        match BATCH - left {
            0 if closed && self.cursors.is_empty() && self.missed.is_empty() => Taken::End,
            0 => Taken::Nothing,
            taken => Taken::Some(taken),
        }
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Subscription");
        match &self.source {
            Source::One { cursor, .. } => debug.field("session", &cursor.history.session).field("next", &cursor.next),
            Source::All(all) => debug.field("sessions", &all.cursors.len()),
        };
        debug.finish_non_exhaustive()
    }
}
