//! Readers of event streams, and how far each is behind.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use proxy_manager::{ProxyManager, SessionId};

/// Most events of all sessions that are counted for one reader.
const COUNTED: usize = 1000;

/// Readers that follow event streams now.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReaderTable(Arc<Mutex<ReaderEntries>>);

#[derive(Debug, Default)]
struct ReaderEntries {
    next: u64,
    places: HashMap<u64, ReaderPlace>,
}

/// Reader of one stream; `None` for one of all sessions.
#[derive(Clone, Debug)]
struct ReaderPlace {
    session: Option<SessionId>,
    /// Offset, or position among those of all sessions, of the last event that it was sent.
    seen: Arc<AtomicU64>,
}

/// How far readers are behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ReaderLag {
    /// Number of readers.
    pub(super) readers: usize,
    /// Events that the slowest has not been sent yet.
    pub(super) most: u64,
    /// Events that all together have not been sent yet.
    pub(super) total: u64,
}

impl ReaderTable {
    /// Enters a reader that has everything up to `seen`.
    pub(crate) fn enter(&self, session: Option<SessionId>, seen: u64) -> CountedReader {
        let mut entries = self.entries();
        let (number, seen) = (entries.next, Arc::new(AtomicU64::new(seen)));
        entries.next += 1;
        entries.places.insert(number, ReaderPlace { session, seen: seen.clone() });
        CountedReader { table: self.clone(), number, seen }
    }

    /// Compares the readers' places with the ends of their streams.
    pub(super) async fn lag(&self, manager: &ProxyManager) -> ReaderLag {
        let places: Vec<ReaderPlace> = self.entries().places.values().cloned().collect();
        let mut ends: HashMap<SessionId, u64> = HashMap::new();
        let mut lag = ReaderLag { readers: places.len(), ..ReaderLag::default() };
        for ReaderPlace { session, seen } in places {
            let seen = seen.load(Ordering::Relaxed);
            let behind = match session {
                Some(session) => {
                    let end = ends
                        .entry(session)
                        .or_insert_with_key(|id| manager.session(id).map_or(0, |session| session.info().last_offset));
                    end.saturating_sub(seen)
                }
                None => count_after(manager, seen).await,
            };
            lag.most = lag.most.max(behind);
            lag.total = lag.total.saturating_add(behind);
        }
        lag
    }

    fn entries(&self) -> MutexGuard<'_, ReaderEntries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts the events of all sessions after a position, up to [`COUNTED`]: positions have holes.
async fn count_after(manager: &ProxyManager, mut position: u64) -> u64 {
    let mut count = 0;
    while count < COUNTED {
        // What cannot be read, nobody lacks.
        let page = manager.read_all(position, COUNTED - count).await.unwrap_or_default();
        let Some((last, _)) = page.last() else { break };
        position = *last;
        count += page.len();
    }
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// Reader in the table. Dropping it takes it out.
#[derive(Debug)]
pub(crate) struct CountedReader {
    table: ReaderTable,
    number: u64,
    seen: Arc<AtomicU64>,
}

impl CountedReader {
    /// Notes the offset, or the position, of the last event that was sent.
    pub(crate) fn advance(&self, seen: u64) {
        self.seen.store(seen, Ordering::Relaxed);
    }
}

impl Drop for CountedReader {
    fn drop(&mut self) {
        self.table.entries().places.remove(&self.number);
    }
}
