//! What waits for the writer: bounded in bytes.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use ipc_protocol::SessionId;

use super::rows::Entry;
use crate::{
    Done, LogError, Retention,
    store::{Change, Target},
};

/// Beyond its own bytes: what a job takes at least.
const JOB_BYTES: usize = 256;
/// What one transaction takes at most; one job more, of any size.
const GROUP_BYTES: usize = 4 * 1024 * 1024;
const GROUP_JOBS: usize = 8192;
/// How long what waits is held, at most: whoever holds it may be kept from the processor.
const LONGEST_HOLD: Duration = Duration::from_millis(20);
/// Who waits for one row that has no room yet, at most.
const MOST_TOLD: usize = 64;

/// One thing to do.
#[derive(Debug)]
pub(super) enum Work {
    Append(Entry, Target),
    Change(Change),
}

/// One thing to do, and whom to tell.
pub(super) struct Job {
    pub(super) work: Work,
    done: Done,
    /// Of rows that this one took the place of: they are told the same.
    also: VecDeque<Done>,
    bytes: usize,
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.work.fmt(f)
    }
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

    pub(super) fn tell(self, result: Result<(), LogError>) {
        self.also.into_iter().for_each(|done| tell(done, result.clone()));
        tell(self.done, result);
    }
}

/// A panic of the caller's would end the writer, and with it everybody's log.
pub(super) fn tell(done: Done, result: Result<(), LogError>) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| done(result))).is_err() {
        tracing::error!("a callback of the event log panicked");
    }
}

/// A pass of retention that is asked for, and whom to tell.
pub(super) struct Asked {
    pub(super) retention: Retention,
    pub(super) done: Vec<Done>,
}

impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.retention.fmt(f)
    }
}

#[derive(Debug, Default)]
struct State {
    jobs: VecDeque<Job>,
    /// What the rows of sessions are to be, for which there is no room among the jobs: the newest of each. None, unless the queue
    /// is crowded.
    rows: BTreeMap<SessionId, Job>,
    /// Of the jobs, and of the group that is being committed.
    bytes: usize,
    retention: Option<Asked>,
    /// How many want what waits to be taken together with what they are about to add.
    holders: usize,
    stopping: bool,
    /// Nobody takes anything any more.
    ended: bool,
}

/// The queue between everybody and the writer.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    wake: Condvar,
    limit: usize,
}

/// What the writer is given.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) jobs: Vec<Job>,
    pub(super) bytes: usize,
    pub(super) retention: Option<Asked>,
    /// Nothing comes after this.
    pub(super) last: bool,
}

impl Queue {
    pub(super) fn new(limit: usize) -> Self {
        Self { state: Mutex::default(), wake: Condvar::new(), limit }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that wait, or are being committed.
    pub(super) fn bytes(&self) -> usize {
        self.state().bytes
    }

    /// Whether another batch may come. One that does so at the same moment may come too.
    pub(super) fn has_room(&self) -> bool {
        let state = self.state();
        state.bytes < self.limit && !state.stopping
    }

    /// Adds a job, however much waits. Gives it back where the writer has ended.
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

    /// Adds a session's row; where the queue is crowded it is kept until there is room, in the place of one that is kept already.
    /// Gives it back where the writer has ended.
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

    /// Whether even small things that are no batches have to stay out.
    pub(super) fn is_crowded(&self) -> bool {
        self.state().bytes >= self.crowd()
    }

    fn crowd(&self) -> usize {
        self.limit.saturating_mul(2).max(1)
    }

    /// The writer has ended. Gives what it leaves undone.
    pub(super) fn end(&self) -> VecDeque<Job> {
        let mut state = self.state();
        (state.ended, state.bytes, state.retention) = (true, 0, None);
        let rows = std::mem::take(&mut state.rows);
        let mut jobs = std::mem::take(&mut state.jobs);
        jobs.extend(rows.into_values());
        jobs
    }

    /// Asks for a pass of retention. It takes the place of one that has not begun yet.
    pub(super) fn retain(&self, retention: Retention, tell: Done) {
        let mut state = self.state();
        let mut done = state.retention.take().map(|asked| asked.done).unwrap_or_default();
        done.push(tell);
        state.retention = Some(Asked { retention, done });
        drop(state);
        self.wake.notify_one();
    }

    /// The writer is to end when everything is done.
    pub(super) fn stop(&self) {
        self.state().stopping = true;
        self.wake.notify_one();
    }

    /// Whether what waits is to be held until what comes next is there too.
    pub(super) fn hold(&self, hold: bool) {
        let mut state = self.state();
        state.holders = if hold { state.holders + 1 } else { state.holders.saturating_sub(1) };
        drop(state);
        if !hold {
            self.wake.notify_one();
        }
    }

    /// What is to be done next. Waits for it, unless there is something else to do; but never less than to `not_before`.
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

    /// A group is done with. Rows that wait get the room.
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
