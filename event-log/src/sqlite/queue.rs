//! Queue of work for the writer, bounded in bytes.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use ipc_protocol::SessionId;

use super::rows::EncodedBatch;
use crate::{
    ByteStreamChange, ByteStreamOutcome, LogError, OnCommit, Result, Retention,
    store::{BatchTarget, LogChange},
};

/// Fixed cost of a job, in addition to its own bytes.
const JOB_BYTES: usize = 256;
/// Bytes that one transaction takes; one job more, of any size.
const GROUP_BYTES: usize = 4 * 1024 * 1024;
const GROUP_JOBS: usize = 8192;
/// Longest time that waiting changes are held back: the holder may not get the processor.
const MAX_COMMIT_HOLD: Duration = Duration::from_millis(20);
/// Most callbacks that wait for one row that has no room yet.
const MAX_SUPERSEDED: usize = 64;

/// Work for the writer.
#[derive(Debug)]
pub(super) enum WorkItem {
    Append(EncodedBatch, BatchTarget),
    Change(LogChange),
    /// Change of a byte stream, and the place of its outcome.
    ByteStream(ByteStreamChange, Arc<Mutex<Option<ByteStreamOutcome>>>),
}

/// Work and its callbacks.
#[derive(derive_more::Debug)]
#[debug("{work:?}")]
pub(super) struct QueuedJob {
    pub(super) work: WorkItem,
    done: OnCommit,
    /// Callbacks of rows that this one replaced: they get the same result.
    superseded: VecDeque<OnCommit>,
    bytes: usize,
}

impl QueuedJob {
    pub(super) fn new(work: WorkItem, done: OnCommit) -> Self {
        let own = match &work {
            WorkItem::Append(entry, _) => usize::try_from(entry.bytes).unwrap_or(usize::MAX),
            WorkItem::Change(LogChange::PutSession(_, record) | LogChange::PutRequest(_, Some(record))) => record.len(),
            WorkItem::ByteStream(change, _) => change.len(),
            WorkItem::Change(_) => 0,
        };
        Self { work, done, superseded: VecDeque::new(), bytes: own.saturating_add(JOB_BYTES) }
    }

    pub(super) fn complete(self, result: Result<()>) {
        self.superseded.into_iter().for_each(|done| notify(done, result.clone()));
        notify(self.done, result);
    }
}

/// Calls `done`, and survives its panic: a panic would end the writer, and with it the log of all callers.
pub(super) fn notify(done: OnCommit, result: Result<()>) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| done(result))).is_err() {
        tracing::error!("event log callback panicked");
    }
}

/// Requested pass of retention, and its callbacks.
#[derive(derive_more::Debug)]
#[debug("{retention:?}")]
pub(super) struct RequestedPass {
    pub(super) retention: Retention,
    pub(super) done: Vec<OnCommit>,
}

#[derive(Debug, Default)]
struct QueueState {
    jobs: VecDeque<QueuedJob>,
    /// Newest row of each session for which there is no room among the jobs. Empty, unless the queue is crowded.
    session_rows: BTreeMap<SessionId, QueuedJob>,
    /// Bytes of the jobs, and of the group that is being committed.
    bytes: usize,
    retention: Option<RequestedPass>,
    /// Number of callers that hold changes back until theirs are added.
    commit_holds: usize,
    stopping: bool,
    /// Set once the writer has ended and takes no more jobs.
    ended: bool,
}

/// Queue between all callers and the writer.
#[derive(Debug)]
pub(super) struct WriterQueue {
    state: Mutex<QueueState>,
    wake: Condvar,
    limit: usize,
}

/// Jobs that the writer takes at once.
#[derive(Debug)]
pub(super) struct CommitGroup {
    pub(super) jobs: Vec<QueuedJob>,
    pub(super) bytes: usize,
    pub(super) retention: Option<RequestedPass>,
    /// True for the last group.
    pub(super) last: bool,
}

impl WriterQueue {
    pub(super) fn new(limit: usize) -> Self {
        Self { state: Mutex::default(), wake: Condvar::new(), limit }
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
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
    pub(super) fn push(&self, job: QueuedJob) -> Option<QueuedJob> {
        self.add(self.state(), job)
    }

    fn add(&self, mut state: MutexGuard<'_, QueueState>, job: QueuedJob) -> Option<QueuedJob> {
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
    pub(super) fn push_row(&self, session: &SessionId, mut job: QueuedJob) -> Option<QueuedJob> {
        let mut state = self.state();
        if state.ended || state.bytes < self.crowded_at() {
            return self.add(state, job);
        }
        let bytes = state.bytes;
        if let Some(before) = state.session_rows.remove(session) {
            job.superseded = before.superseded;
            job.superseded.push_back(before.done);
        }
        let late = if job.superseded.len() > MAX_SUPERSEDED { job.superseded.pop_front() } else { None };
        state.session_rows.insert(session.clone(), job);
        drop(state);
        if let Some(done) = late {
            notify(done, Err(LogError::Busy { bytes }));
        }
        None
    }

    /// Returns true if even small changes, other than batches, are refused.
    pub(super) fn is_crowded(&self) -> bool {
        self.state().bytes >= self.crowded_at()
    }

    fn crowded_at(&self) -> usize {
        self.limit.saturating_mul(2).max(1)
    }

    /// Marks the writer as ended. Returns the jobs left undone.
    pub(super) fn end(&self) -> VecDeque<QueuedJob> {
        let mut state = self.state();
        (state.ended, state.bytes, state.retention) = (true, 0, None);
        let rows = std::mem::take(&mut state.session_rows);
        let mut jobs = std::mem::take(&mut state.jobs);
        jobs.extend(rows.into_values());
        jobs
    }

    /// Requests a pass of retention, in place of one that has not begun yet.
    pub(super) fn retain(&self, retention: Retention, tell: OnCommit) {
        let mut state = self.state();
        let mut done = state.retention.take().map(|asked| asked.done).unwrap_or_default();
        done.push(tell);
        state.retention = Some(RequestedPass { retention, done });
        drop(state);
        self.wake.notify_one();
    }

    /// Makes the writer end once everything is done.
    pub(super) fn stop(&self) {
        self.state().stopping = true;
        self.wake.notify_one();
    }

    /// Starts or ends holding changes back until further ones are added.
    pub(super) fn hold_commits(&self, hold: bool) {
        let mut state = self.state();
        state.commit_holds = if hold { state.commit_holds + 1 } else { state.commit_holds.saturating_sub(1) };
        drop(state);
        if !hold {
            self.wake.notify_one();
        }
    }

    /// Takes the next group. Waits for one, unless `idle` is false; never returns before `not_before`.
    pub(super) fn take(&self, idle: bool, not_before: Option<Instant>) -> CommitGroup {
        let mut state = self.state();
        let mut held_until = None;
        loop {
            let pause = not_before.map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now()));
            let hold = match state.commit_holds > 0 && !state.jobs.is_empty() {
                true => held_until
                    .get_or_insert_with(|| Instant::now() + MAX_COMMIT_HOLD)
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
        let mut group = CommitGroup { jobs: Vec::new(), bytes: 0, retention: state.retention.take(), last: false };
        while group.bytes < GROUP_BYTES && group.jobs.len() < GROUP_JOBS {
            let Some(job) = state.jobs.pop_front() else { break };
            group.bytes += job.bytes;
            group.jobs.push(job);
        }
        group.last = state.stopping && state.jobs.is_empty() && state.session_rows.is_empty();
        group
    }

    /// Frees the bytes of a finished group. Rows kept aside get the room.
    pub(super) fn release(&self, bytes: usize) {
        let mut state = self.state();
        state.bytes = state.bytes.saturating_sub(bytes);
        while state.bytes < self.crowded_at()
            && let Some((_, job)) = state.session_rows.pop_first()
        {
            state.bytes = state.bytes.saturating_add(job.bytes);
            state.jobs.push_back(job);
        }
    }
}
