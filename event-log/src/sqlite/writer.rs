//! Writer thread: takes all waiting jobs and commits them together.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use rusqlite::Connection;

use super::{
    SharedState,
    apply::{CommitOutcome, OpenTransaction},
    classify,
    lock::FileLock,
    queue::{self, QueuedJob},
    retention_chores::RetentionChores,
    write_lock,
};
use crate::{LogError, Result};

/// Pause after a failure; doubled with each further one, up to [`MAX_RETRY_DELAY`].
const MIN_RETRY_DELAY: Duration = Duration::from_millis(10);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Owner of the writing connection.
#[derive(Debug)]
pub(super) struct LogWriter {
    pub(super) conn: Connection,
    pub(super) shared: Arc<SharedState>,
    pub(super) chores: RetentionChores,
    /// Lock of the log, dropped last, after the connection is closed.
    pub(super) _lock: FileLock,
}

impl Drop for LogWriter {
    /// Fails all queued jobs, also after a panic, so that nobody waits forever.
    fn drop(&mut self) {
        for job in self.shared.queue.end() {
            job.complete(Err(self.shared.ended()));
        }
    }
}

impl LogWriter {
    /// Runs until the log is dropped and everything queued is done.
    pub(super) fn run(mut self) {
        let mut pause = Duration::ZERO;
        let mut not_before = None;
        loop {
            let group = self.shared.queue.take(!self.chores.is_pending(), not_before.take());
            let idle = group.jobs.is_empty();
            if let Some(asked) = group.retention {
                self.chores.begin(asked, &self.shared);
            }
            let mut fine = idle || self.commit(group.jobs, group.bytes);
            if group.last {
                return;
            }
            if fine && self.chores.is_pending() {
                fine = self.run_chore(idle);
            }
            if fine {
                pause = Duration::ZERO;
            } else {
                pause = (pause * 2).clamp(MIN_RETRY_DELAY, MAX_RETRY_DELAY);
                not_before = Some(Instant::now() + pause);
            }
        }
    }

    /// Commits the jobs and calls their callbacks. Returns true on success.
    fn commit(&mut self, jobs: Vec<QueuedJob>, bytes: usize) -> bool {
        let begin = Instant::now();
        match self.attempt(&jobs) {
            Ok((results, outcome)) => {
                self.succeed(outcome, begin.elapsed());
                self.shared.queue.release(bytes);
                jobs.into_iter().zip(results).for_each(|(job, result)| job.complete(result));
                true
            }
            // The damage may concern one job only: try each alone.
            Err(LogError::Corrupt { .. }) if jobs.len() > 1 => {
                self.shared.queue.release(bytes);
                let mut fine = true;
                for job in jobs {
                    fine &= self.commit(vec![job], 0);
                }
                fine
            }
            Err(error) => {
                self.fail(&error);
                self.shared.queue.release(bytes);
                jobs.into_iter().for_each(|job| job.complete(Err(error.clone())));
                false
            }
        }
    }

    /// Runs one transaction: all jobs that are not refused, or nothing.
    fn attempt(&mut self, jobs: &[QueuedJob]) -> Result<(Vec<Result<(), LogError>>, CommitOutcome)> {
        let apply = |conn: &Connection| {
            let mut applying = OpenTransaction::new(conn, &self.shared.heads, &self.shared.byte_heads);
            let results = jobs.iter().map(|job| applying.apply(&job.work)).collect::<rusqlite::Result<Vec<_>>>()?;
            Ok((results, applying.finish()?))
        };
        transaction(&self.conn, &self.shared.path, apply)
    }

    /// Runs one slice of background work. Returns true on success.
    fn run_chore(&mut self, idle: bool) -> bool {
        let mut slice = None;
        let chores = &mut self.chores;
        let heads = &self.shared.heads;
        let done = transaction(&self.conn, &self.shared.path, |conn| {
            slice = Some(chores.slice(conn, heads, idle)?);
            Ok(())
        });
        match (done, slice) {
            (Ok(()), Some(slice)) => {
                self.shared.metrics().removed += slice.removed;
                slice.publish(&mut write_lock(&self.shared.heads));
                self.chores.take_finished().into_iter().for_each(|done| queue::notify(done, Ok(())));
                true
            }
            (Ok(()), None) => true,
            (Err(error), _) => {
                self.fail(&error);
                self.chores.give_up().into_iter().for_each(|done| queue::notify(done, Err(error.clone())));
                false
            }
        }
    }

    fn succeed(&mut self, mut outcome: CommitOutcome, took: Duration) {
        outcome.publish(&mut write_lock(&self.shared.heads));
        outcome.byte_streams.publish(&self.shared.byte_heads);
        self.chores.remove_bytes(std::mem::take(&mut outcome.byte_streams.removed));
        self.chores.remove(std::mem::take(&mut outcome.deleted_streams));
        let mut metrics = self.shared.metrics();
        metrics.commits += 1;
        metrics.commit_times.record(took);
        metrics.events += outcome.events;
        metrics.bytes += outcome.bytes;
        metrics.last_error = None;
    }

    fn fail(&self, error: &LogError) {
        let mut metrics = self.shared.metrics();
        if metrics.last_error.is_none() {
            tracing::error!(%error, "event log write failed");
        }
        metrics.failures += 1;
        metrics.last_error = Some(error.clone());
    }
}

/// Runs `body` in a transaction; rolls back if `body` or the commit fails.
fn transaction<T>(conn: &Connection, path: &Path, body: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T> {
    let run = || {
        conn.execute_batch("BEGIN IMMEDIATE")?;
        let value = body(conn)?;
        conn.execute_batch("COMMIT")?;
        Ok(value)
    };
    run().map_err(|error| {
        // SQLite rolls back by itself after some failures only.
        if !conn.is_autocommit()
            && let Err(error) = conn.execute_batch("ROLLBACK")
        {
            tracing::error!(path = %path.display(), %error, "event log rollback failed");
        }
        let error = classify(path, "write to the event log", error);
        // Cached pages would be used again, whatever has become of the file: drop them.
        if matches!(error, LogError::Corrupt { .. })
            && let Err(error) = conn.execute_batch("PRAGMA shrink_memory")
        {
            tracing::warn!(path = %path.display(), %error, "failed to drop damaged pages of the event log from memory");
        }
        error
    })
}
