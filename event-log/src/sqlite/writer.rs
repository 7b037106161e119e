//! The thread that writes: it takes whatever waits and commits it together.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use rusqlite::Connection;

use super::{
    Shared,
    apply::{Applying, Outcome},
    chores::Chores,
    classify,
    lock::Lock,
    queue::{self, Job},
    write_lock,
};
use crate::LogError;

/// How long nothing is tried after a failure; doubled with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The owner of the connection that writes.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) conn: Connection,
    pub(super) shared: Arc<Shared>,
    pub(super) chores: Chores,
    /// Dropped last, when the connection is closed.
    pub(super) _lock: Lock,
}

impl Drop for Writer {
    /// Also after a panic: nobody waits for ever.
    fn drop(&mut self) {
        for job in self.shared.queue.end() {
            job.tell(Err(self.shared.ended()));
        }
    }
}

impl Writer {
    /// Until the log is dropped, and everything that was queued is done.
    pub(super) fn run(mut self) {
        let mut pause = Duration::ZERO;
        let mut not_before = None;
        loop {
            let group = self.shared.queue.take(!self.chores.are_pending(), not_before.take());
            let idle = group.jobs.is_empty();
            if let Some(asked) = group.retention {
                self.chores.begin(asked, &self.shared);
            }
            let mut fine = idle || self.commit(group.jobs, group.bytes);
            if group.last {
                return;
            }
            if fine && self.chores.are_pending() {
                fine = self.chore(idle);
            }
            if fine {
                pause = Duration::ZERO;
            } else {
                pause = (pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
                not_before = Some(Instant::now() + pause);
            }
        }
    }

    /// Commits the jobs and tells. Says whether that went well.
    fn commit(&mut self, jobs: Vec<Job>, bytes: usize) -> bool {
        match self.attempt(&jobs) {
            Ok((results, outcome)) => {
                self.succeed(outcome);
                self.shared.queue.finished(bytes);
                jobs.into_iter().zip(results).for_each(|(job, result)| job.tell(result));
                true
            }
            // What one stands on may be damaged, and nobody else's.
            Err(LogError::Corrupt { .. }) if jobs.len() > 1 => {
                self.shared.queue.finished(bytes);
                let mut fine = true;
                for job in jobs {
                    fine &= self.commit(vec![job], 0);
                }
                fine
            }
            Err(error) => {
                self.fail(&error);
                self.shared.queue.finished(bytes);
                jobs.into_iter().for_each(|job| job.tell(Err(error.clone())));
                false
            }
        }
    }

    /// One transaction: all that is not refused, or nothing.
    fn attempt(&mut self, jobs: &[Job]) -> Result<(Vec<Result<(), LogError>>, Outcome), LogError> {
        let apply = |conn: &Connection| {
            let mut applying = Applying::new(conn, &self.shared.heads);
            let results = jobs.iter().map(|job| applying.apply(&job.work)).collect::<rusqlite::Result<Vec<_>>>()?;
            Ok((results, applying.finish()?))
        };
        transaction(&self.conn, &self.shared.path, apply)
    }

    /// One slice of what is to be done beside the appends. Says whether that went well.
    fn chore(&mut self, idle: bool) -> bool {
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
                self.chores.told().into_iter().for_each(|done| queue::tell(done, Ok(())));
                true
            }
            (Ok(()), None) => true,
            (Err(error), _) => {
                self.fail(&error);
                self.chores.give_up().into_iter().for_each(|done| queue::tell(done, Err(error.clone())));
                false
            }
        }
    }

    fn succeed(&mut self, mut outcome: Outcome) {
        outcome.publish(&mut write_lock(&self.shared.heads));
        self.chores.remove(std::mem::take(&mut outcome.doomed));
        let mut metrics = self.shared.metrics();
        metrics.commits += 1;
        metrics.events += outcome.events;
        metrics.bytes += outcome.bytes;
        metrics.last_error = None;
    }

    fn fail(&self, error: &LogError) {
        let mut metrics = self.shared.metrics();
        if metrics.last_error.is_none() {
            tracing::error!(%error, "the event log cannot be written");
        }
        metrics.failures += 1;
        metrics.last_error = Some(error.clone());
    }
}

/// A transaction; rolled back where `body` or the commit fails.
fn transaction<T>(
    conn: &Connection,
    path: &Path,
    body: impl FnOnce(&Connection) -> rusqlite::Result<T>,
) -> Result<T, LogError> {
    let run = || {
        conn.execute_batch("BEGIN IMMEDIATE")?;
        let value = body(conn)?;
        conn.execute_batch("COMMIT")?;
        Ok(value)
    };
    run().map_err(|error| {
        // SQLite has rolled back after some failures, and not after others.
        if !conn.is_autocommit()
            && let Err(error) = conn.execute_batch("ROLLBACK")
        {
            tracing::error!(path = %path.display(), %error, "cannot roll back in the event log");
        }
        let error = classify(path, "write to the event log", error);
        // What was read of the file would be gone by again, whatever has become of the file.
        if matches!(error, LogError::Corrupt { .. })
            && let Err(error) = conn.execute_batch("PRAGMA shrink_memory")
        {
            tracing::warn!(path = %path.display(), %error, "damaged pages of the event log stay in memory");
        }
        error
    })
}
