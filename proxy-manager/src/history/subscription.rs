//! Cursors over one history or over all.

use std::{collections::VecDeque, fmt, sync::Arc, time::Duration};

use event_log::LogError;
use ipc_protocol::{Envelope, SessionId};
use tokio::{
    sync::{oneshot, watch},
    time::sleep,
};

use super::{History, PAGE, Page, Taken, gap};
use crate::{
    Result,
    blocking::{begun, panicked},
    directory::{Added, Directory, Forgotten},
};

/// Between two tries to read a log that cannot be read now.
const PAUSE: Duration = Duration::from_millis(250);
/// Tries, one after the other, before what cannot be read is given up as a gap: some minutes where each has to wait for a
/// reader.
const TRIES: u32 = 40;
/// What a page is read for.
const READING: &str = "reading the event log";

/// Events of one session, or of all. It reads from the sessions' histories at its own pace: a slow one holds up nobody.
/// With a state directory it gets all of them. Without one, if it falls so far behind that events were dropped, it gets one
/// `session:gap` in their place and goes on behind it.
///
/// Its futures may be dropped at any time (in `select!`, say) without losing an event.
pub struct Subscription {
    source: Source,
    /// Taken from the source and not yet given out by [`Subscription::next`].
    ready: VecDeque<Arc<Envelope>>,
    /// How often the log could not be read, one time after the other.
    failures: u32,
}

enum Source {
    /// Of many sessions nothing is read ahead: each would have a page in memory.
    One {
        cursor: Cursor,
        wake: watch::Receiver<()>,
        ahead: Option<Ahead>,
    },
    All(All),
}

/// A page of the log that is being read, while the one before it is used.
struct Ahead {
    /// Offset of its first event.
    next: u64,
    page: oneshot::Receiver<std::result::Result<Page, LogError>>,
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
    /// Whose events are to be read from the log.
    behind: Option<Arc<SessionId>>,
}

impl Subscription {
    /// Events of one session with an offset of at least `next`.
    pub(crate) fn one(history: Arc<History>, next: u64) -> Self {
        let wake = history.wake.subscribe();
        Self {
            source: Source::One { cursor: Cursor { history, next }, wake, ahead: None },
            ready: VecDeque::new(),
            failures: 0,
        }
    }

    /// Events of all sessions.
    pub(crate) fn all(directory: Arc<Directory>) -> Self {
        let wake = directory.everyone().subscribe();
        let all =
            All { directory, wake, cursors: Vec::new(), missed: VecDeque::new(), seen: 0, first: 0, behind: None };
        Self { source: Source::All(all), ready: VecDeque::new(), failures: 0 }
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

    /// Appends at least 1 event to `out`, as soon as there are any: at most 256, or a page of the event log (some 4,000). `false` at the end, as
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
            let (taken, behind) = match &mut self.source {
                Source::One { cursor, wake, ahead } => {
                    // Before the look: what is appended after it wakes us again.
                    wake.mark_unchanged();
                    (cursor.take(PAGE, out), Some((cursor, Some(ahead))))
                }
                Source::All(all) => {
                    all.wake.mark_unchanged();
                    let taken = all.take(out);
                    (taken, all.behind().map(|cursor| (cursor, None)))
                }
            };
            match (taken, behind) {
                (Taken::Some(_), _) => return true,
                (Taken::End, _) => return false,
                (Taken::Behind, Some((cursor, ahead))) => {
                    match cursor.catch_up(ahead, self.failures >= TRIES, out).await {
                        Ok(taken) => {
                            self.failures = 0;
                            if taken > 0 {
                                return true;
                            }
                        }
                        Err(error) => {
                            if self.failures == 0 {
                                tracing::warn!(%error, "the event log cannot be read now: it is tried again");
                            }
                            self.failures += 1;
                            sleep(PAUSE).await;
                        }
                    }
                }
                (Taken::Nothing | Taken::Behind, _) => {
                    let wake = match &mut self.source {
                        Source::One { wake, .. } => wake,
                        Source::All(all) => &mut all.wake,
                    };
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

    /// Appends what the log has next, and has the page behind that read into `ahead`, if there is one. A dropped future has
    /// moved nothing.
    ///
    /// # Errors
    /// Where the log cannot be read now; if it `gives_up`, a gap stands for what the log alone has.
    async fn catch_up(
        &mut self,
        ahead: Option<&mut Option<Ahead>>,
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
            _ => slot.insert(self.look_up()?),
        };
        let page = (&mut reading.page).await;
        *slot = None;
        let page = match page.map_err(|_| panicked(READING))? {
            Err(error) if gives_up => self.history.lost(self.next, &error),
            page => page?,
        };
        let taken = self.history.accept(page, &mut self.next, out);
        if goes_on && self.history.is_past(self.next) {
            // What cannot be had now is asked for again, when it is needed.
            *slot = self.look_up().ok();
        }
        Ok(taken)
    }

    fn look_up(&self) -> Result<Ahead> {
        let (history, next) = (self.history.clone(), self.next);
        Ok(Ahead { next, page: begun(READING, move || history.look_up(next))? })
    }
}

impl All {
    /// The cursor that has to read from the log, if one was found.
    fn behind(&mut self) -> Option<&mut Cursor> {
        let session = self.behind.take()?;
        self.cursors.iter_mut().find(|cursor| cursor.history.session == session)
    }

    fn take(&mut self, out: &mut Vec<Arc<Envelope>>) -> Taken {
        // Asked before the sessions are: one that is added later is seen at the next wake.
        let closed = self.directory.is_closed();
        let Added { histories, forgotten } = self.directory.added_since(&mut self.seen);
        self.cursors.extend(histories.into_iter().map(|history| Cursor { history, next: 1 }));
        self.missed.extend(forgotten.into_iter().filter(|forgotten| forgotten.last_offset > 0));
        let mut left = PAGE;
        while left > 0
            && let Some(missed) = self.missed.pop_front()
        {
            out.push(gap(&missed.session, 1, missed.last_offset));
            left -= 1;
        }
        let mut ended = Vec::new();
        self.behind = None;
        for step in 0..self.cursors.len() {
            let at = (self.first + step) % self.cursors.len();
            match self.cursors[at].take(left, out) {
                Taken::Some(taken) => left -= taken,
                Taken::Nothing => {}
                // They have their turns as the others do: which one is first changes.
                Taken::Behind if self.behind.is_none() && left == PAGE => {
                    self.behind = Some(self.cursors[at].history.session.clone());
                    break;
                }
                Taken::Behind => {}
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
        match PAGE - left {
            0 if self.behind.is_some() => Taken::Behind,
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
