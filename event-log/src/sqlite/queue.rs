//! Queue of work for the writer, bounded in bytes.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use ipc_protocol::SessionId;

use super::rows::Entry;
use crate::{
    Done, LogError, Result, Retention,
    store::{Change, Target},
};

/// Fixed cost of a job, in addition to its own bytes.
const JOB_BYTES: usize = 256;
/// Bytes that one transaction takes; one job more, of any size.
const GROUP_BYTES: usize = 4 * 1024 * 1024;
const GROUP_JOBS: usize = 8192;
/// Longest time that waiting changes are held back: the holder may not get the processor.
const LONGEST_HOLD: Duration = Duration::from_millis(20);
/// Most callbacks that wait for one row that has no room yet.
const MOST_TOLD: usize = 64;

/// Work for the writer.
#[derive(Debug)]
pub(super) enum Work {
    Append(Entry, Target),
    Change(Change),
}

/// Work and its callbacks.
#[derive(derive_more::Debug)]
#[debug("{work:?}")]
pub(super) struct Job {
    pub(super) work: Work,
    done: Done,
    /// Callbacks of rows that this one replaced: they get the same result.
    also: VecDeque<Done>,
    bytes: usize,
}

impl Job {
    pub(super) fn new(work: Work, done: Done) -> Self {
        let own = match &work {
            Work::Append(entry, _) => usize::try_from(entry.bytes).unwrap_or(usize::MAX),
            Work::Change(Change::PutSession(_, record)) => record.len(),
            Work::Change(_) => 0,
        };
        Self { work, done, also: VecDeque::new(), bytes: own.saturating_add(JOB_BYTES) }
    }

    pub(super) fn tell(self, result: Result<()>) {
        self.also.into_iter().for_each(|done| tell(done, result.clone()));
        tell(self.done, result);
    }
}

/// Calls `done`, and survives its panic: a panic would end the writer, and with it the log of all callers.
pub(super) fn tell(done: Done, result: Result<()>) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| done(result))).is_err() {
        tracing::error!("event log callback panicked");
    }
}

/// Requested pass of retention, and its callbacks.
#[derive(derive_more::Debug)]
#[debug("{retention:?}")]
pub(super) struct Asked {
    pub(super) retention: Retention,
    pub(super) done: Vec<Done>,
}

#[derive(Debug, Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Newest row of each session for which there is no room among the jobs. Empty, unless the queue is crowded.
    rows: BTreeMap<SessionId, Job>,
    /// Bytes of the jobs, and of the group that is being committed.
    bytes: usize,
    retention: Option<Asked>,
    /// Number of callers that hold changes back until theirs are added.
    holders: usize,
    stopping: bool,
    /// Set once the writer has ended and takes no more jobs.
    ended: bool,
}

/// Queue between all callers and the writer.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    wake: Condvar,
    limit: usize,
}

/// Jobs that the writer takes at once.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) jobs: Vec<Job>,
    pub(super) bytes: usize,
    pub(super) retention: Option<Asked>,
    /// True for the last group.
    pub(super) last: bool,
}

impl Queue {
    pub(super) fn new(limit: usize) -> Self {
        Self { state: Mutex::default(), wake: Condvar::new(), limit }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the bytes that wait or are being committed.
    pub(super) fn bytes(&self) -> usize {
        self.state().bytes
    }

    /// Returns true if another batch is accepted. Batches appended at the same moment may all be accepted.
    pub(super) fn has_room(&self) -> bool {
        let state = self.state();
        state.bytes < self.limit && !state.stopping
    }

    /// Adds a job, however much is queued. Returns it if the writer has ended.
    pub(super) fn push(&self, job: Job) -> Option<Job> {
        self.add(self.state(), job)
    }

    fn add(&self, mut state: MutexGuard<'_, State>, job: Job) -> Option<Job> {
        if state.ended {
            return Some(job);
        }
        state.bytes = state.bytes.saturating_add(job.bytes);
        state.jobs.push_back(job);
        drop(state);
        self.wake.notify_one();
        None
    }

    /// Adds a session's row. While the queue is crowded the row is kept aside until there is room, in place of an
    /// older one. Returns it if the writer has ended.
    pub(super) fn push_row(&self, session: &SessionId, mut job: Job) -> Option<Job> {
        let mut state = self.state();
        if state.ended || state.bytes < self.crowd() {
            return self.add(state, job);
        }
        let bytes = state.bytes;
        if let Some(before) = state.rows.remove(session) {
            job.also = before.also;
            job.also.push_back(before.done);
        }
        let late = if job.also.len() > MOST_TOLD { job.also.pop_front() } else { None };
        state.rows.insert(session.clone(), job);
        drop(state);
        if let Some(done) = late {
            tell(done, Err(LogError::Busy { bytes }));
        }
        None
    }

    /// Returns true if even small changes, other than batches, are refused.
    pub(super) fn is_crowded(&self) -> bool {
        self.state().bytes >= self.crowd()
    }

    fn crowd(&self) -> usize {
        self.limit.saturating_mul(2).max(1)
    }

    /// Marks the writer as ended. Returns the jobs left undone.
    pub(super) fn end(&self) -> VecDeque<Job> {
        let mut state = self.state();
        (state.ended, state.bytes, state.retention) = (true, 0, None);
        let rows = std::mem::take(&mut state.rows);
        let mut jobs = std::mem::take(&mut state.jobs);
        jobs.extend(rows.into_values());
        jobs
    }

    /// Requests a pass of retention, in place of one that has not begun yet.
    pub(super) fn retain(&self, retention: Retention, tell: Done) {
        let mut state = self.state();
        let mut done = state.retention.take().map(|asked| asked.done).unwrap_or_default();
        done.push(tell);
        state.retention = Some(Asked { retention, done });
        drop(state);
        self.wake.notify_one();
    }

    /// Makes the writer end once everything is done.
    pub(super) fn stop(&self) {
        self.state().stopping = true;
        self.wake.notify_one();
    }

    /// Starts or ends holding changes back until further ones are added.
    pub(super) fn hold(&self, hold: bool) {
        let mut state = self.state();
        state.holders = if hold { state.holders + 1 } else { state.holders.saturating_sub(1) };
        drop(state);
        if !hold {
            self.wake.notify_one();
        }
    }

    /// Takes the next group. Waits for one, unless `idle` is false; never returns before `not_before`.
    pub(super) fn take(&self, idle: bool, not_before: Option<Instant>) -> Group {
        let mut state = self.state();
        let mut held_until = None;
        loop {
            let pause = not_before.map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now()));
            let hold = match state.holders > 0 && !state.jobs.is_empty() {
                true => held_until
                    .get_or_insert_with(|| Instant::now() + LONGEST_HOLD)
                    .saturating_duration_since(Instant::now()),
                false => Duration::ZERO,
            };
            let pause = pause.max(hold);
            if !pause.is_zero() && !state.stopping {
                state = self.wake.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0;
            } else if state.jobs.is_empty() && state.retention.is_none() && idle && !state.stopping {
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
            } else {
                break;
            }
        }
        let mut group = Group { jobs: Vec::new(), bytes: 0, retention: state.retention.take(), last: false };
        while group.bytes < GROUP_BYTES && group.jobs.len() < GROUP_JOBS {
            let Some(job) = state.jobs.pop_front() else { break };
            group.bytes += job.bytes;
            group.jobs.push(job);
        }
        group.last = state.stopping && state.jobs.is_empty() && state.rows.is_empty();
        group
    }

    /// Frees the bytes of a finished group. Rows kept aside get the room.
    pub(super) fn finished(&self, bytes: usize) {
        let mut state = self.state();
        state.bytes = state.bytes.saturating_sub(bytes);
        while state.bytes < self.crowd()
            && let Some((_, job)) = state.rows.pop_first()
        {
            state.bytes = state.bytes.saturating_add(job.bytes);
            state.jobs.push_back(job);
        }
    }
}
