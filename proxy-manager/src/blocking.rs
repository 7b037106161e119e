//! Blocking work, off the runtime: a bounded pool of threads.
//!
//! Work of one kind has a lane, which bounds its threads: slow readers of the event log hold up each other, and no start
//! or clean-up; storage that stands still holds up no kill. (The runtime's own pool panics where no thread can be had.)

use std::{
    collections::VecDeque,
    fmt, io, panic,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use tokio::sync::{Semaphore, SemaphorePermit, oneshot};

use crate::error::{Error, Result};

/// Work with files: homes, conversations, records.
pub(crate) static STORAGE: BlockingLane = BlockingLane::new(16);
/// Pages of the event log, for readers that are behind.
pub(crate) static READING: BlockingLane = BlockingLane::new(8);
/// Looks at processes in `/proc`, and signals to them.
pub(crate) static LOOKING: BlockingLane = BlockingLane::new(4);
/// Work that ends sessions. It touches no storage.
pub(crate) static ENDING: BlockingLane = BlockingLane::new(4);

/// Time after which a thread without work ends.
const IDLE: Duration = Duration::from_secs(10);

static POOL: ThreadPool = ThreadPool::new();

type BlockingJob = Box<dyn FnOnce() + Send>;

/// Bound on the threads of one kind of work. Callers beyond it wait for their turn.
#[derive(Debug)]
pub(crate) struct BlockingLane(Semaphore);

impl BlockingLane {
    const fn new(threads: usize) -> Self {
        Self(Semaphore::const_new(threads))
    }

    /// Runs `work` in a thread. The work finishes even if the caller stops waiting for it; if the caller stops before
    /// its turn, the work is dropped.
    ///
    /// # Errors
    /// [`Error::System`] where no thread can be had, or the work panicked.
    pub(crate) async fn run<T: Send + 'static>(
        &'static self,
        operation: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        self.start(operation, work).await?.await.map_err(|_| panicked(operation))
    }

    /// Starts `work` like [`BlockingLane::run`], and returns once it has its turn.
    ///
    /// # Errors
    /// [`Error::System`] where no thread can be had.
    pub(crate) async fn start<T: Send + 'static>(
        &'static self,
        operation: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<oneshot::Receiver<T>> {
        // Fails only for a semaphore that was closed.
        start(operation, self.0.acquire().await.ok(), work)
    }

    /// Starts `work` if a thread is free now.
    pub(crate) fn try_start<T: Send + 'static>(
        &'static self,
        operation: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<oneshot::Receiver<T>> {
        start(operation, Some(self.0.try_acquire().ok()?), work).ok()
    }
}

/// Work that is done in the order in which it came, one at a time. Whoever hands it over does not wait.
#[derive(Default)]
pub(crate) struct OrderedWork(Mutex<OrderedQueue>);

#[derive(Default)]
struct OrderedQueue {
    jobs: VecDeque<BlockingJob>,
    /// True while a thread does the jobs.
    is_running: bool,
}

/// Jobs of an [`OrderedWork`] that may wait.
const MOST_ORDERED: usize = 4096;

impl OrderedWork {
    fn queue(&self) -> MutexGuard<'_, OrderedQueue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does `job` after those before it.
    ///
    /// # Errors
    /// [`Error::System`] if too many wait, or no thread can be had. The job is dropped then.
    pub(crate) fn push(self: &Arc<Self>, operation: &str, job: impl FnOnce() + Send + 'static) -> Result<()> {
        let mut queue = self.queue();
        if queue.jobs.len() >= MOST_ORDERED {
            return Err(Error::system(operation, io::Error::other(format!("{MOST_ORDERED} jobs wait already"))));
        }
        queue.jobs.push_back(Box::new(job));
        if std::mem::replace(&mut queue.is_running, true) {
            return Ok(());
        }
        let this = self.clone();
        POOL.run(Box::new(move || this.work())).map_err(|error| {
            queue.is_running = false;
            // Nothing waited before it.
            queue.jobs.clear();
            Error::system(operation, error)
        })
    }

    fn work(&self) {
        loop {
            let mut queue = self.queue();
            let Some(job) = queue.jobs.pop_front() else {
                queue.is_running = false;
                return;
            };
            drop(queue);
            // A job that panics has said so; those after it are done all the same.
            let _ = panic::catch_unwind(panic::AssertUnwindSafe(job));
        }
    }
}

/// Runs `work` with files in a thread, as [`BlockingLane::run`] does.
///
/// # Errors
/// [`Error::System`] where no thread can be had, or the work panicked.
pub(crate) async fn blocking<T: Send + 'static>(
    operation: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    STORAGE.run(operation, work).await
}

/// Starts `work` at once, in no lane. For work of which the caller has one at a time.
///
/// # Errors
/// [`Error::System`] where no thread can be had.
pub(crate) fn spawn_blocking<T: Send + 'static>(
    operation: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<oneshot::Receiver<T>> {
    start(operation, None, work)
}

/// Error for work that ended without a result.
pub(crate) fn panicked(operation: &str) -> Error {
    Error::system(operation, io::Error::other("its thread panicked"))
}

fn start<T: Send + 'static>(
    operation: &str,
    turn: Option<SemaphorePermit<'static>>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<oneshot::Receiver<T>> {
    let (done, result) = oneshot::channel();
    let span = tracing::Span::current();
    let run = move || {
        let _entered = span.enter();
        let result = work();
        drop(turn);
        // The caller may have stopped waiting.
        let _ = done.send(result);
    };
    POOL.run(Box::new(run)).map_err(|error| Error::system(operation, error))?;
    Ok(result)
}

impl fmt::Debug for OrderedWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OrderedWork").field("waiting", &self.queue().jobs.len()).finish_non_exhaustive()
    }
}

/// Threads that serve all lanes. Their number is bounded by the lanes, and by the callers of [`spawn_blocking`].
struct ThreadPool {
    queue: Mutex<JobQueue>,
    is_news: Condvar,
}

struct JobQueue {
    /// Jobs for idle threads that were notified.
    jobs: VecDeque<BlockingJob>,
    /// Threads without a job.
    idle: usize,
}

impl ThreadPool {
    const fn new() -> Self {
        Self { queue: Mutex::new(JobQueue { jobs: VecDeque::new(), idle: 0 }), is_news: Condvar::new() }
    }

    fn queue(&self) -> MutexGuard<'_, JobQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives `job` to an idle thread, or to a new one.
    fn run(&'static self, job: BlockingJob) -> io::Result<()> {
        let mut queue = self.queue();
        if queue.idle > queue.jobs.len() {
            queue.jobs.push_back(job);
            self.is_news.notify_one();
            return Ok(());
        }
        drop(queue);
        let serve = move || {
            job();
            while let Some(job) = self.next() {
                job();
            }
        };
        thread::Builder::new().name("agent-proxy".to_owned()).spawn(serve).map(drop)
    }

    /// Waits for a job; `None` if none comes.
    fn next(&self) -> Option<BlockingJob> {
        let mut queue = self.queue();
        queue.idle += 1;
        let waited = self.is_news.wait_timeout_while(queue, IDLE, |queue| queue.jobs.is_empty());
        let (mut queue, _) = waited.unwrap_or_else(PoisonError::into_inner);
        queue.idle -= 1;
        queue.jobs.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, sync::mpsc};

    use tokio::time::{sleep, timeout};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn the_runtime_goes_on_and_threads_are_bounded_while_storage_stands_still() {
        static SLOW: BlockingLane = BlockingLane::new(3);
        static OTHER: BlockingLane = BlockingLane::new(1);
        let (begin, begun) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let released = Arc::new(Mutex::new(released));
        let works: Vec<_> = (0..50)
            .map(|_| {
                let (begin, released) = (begin.clone(), released.clone());
                tokio::spawn(SLOW.run("standing still", move || {
                    begin.send(thread::current().id()).expect("counted");
                    // Each waits for its own word, or for the end of all.
                    let _ = released.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    thread::current().id()
                }))
            })
            .collect();
        let mut running = 0;
        let run = async {
            while running < 3 {
                running += begun.try_iter().count();
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(PATIENCE, run).await.expect("in time");
        sleep(Duration::from_millis(50)).await;
        assert_eq!((running + begun.try_iter().count(), SLOW.0.available_permits()), (3, 0), "the others wait");
        // Neither another lane nor who needs a free thread is held up.
        assert_eq!(timeout(PATIENCE, OTHER.run("going on", || 7)).await.expect("in time").expect("done"), 7);
        assert!(SLOW.try_start("reading ahead", || ()).is_none());
        drop(release);
        let mut threads = HashSet::new();
        for work in works {
            threads.insert(timeout(PATIENCE, work).await.expect("in time").expect("no panic").expect("done"));
        }
        assert_eq!(SLOW.0.available_permits(), 3);
        assert!(threads.len() < 50, "threads are used again: {}", threads.len());
    }

    #[tokio::test]
    async fn work_that_panics_is_an_error_and_leaves_its_place() {
        static LANE: BlockingLane = BlockingLane::new(1);
        let error = LANE.run("reading", || -> () { panic!("of a test") }).await.expect_err("it panicked");
        assert!(error.chain().contains("its thread panicked"), "{error:?}");
        assert_eq!(timeout(PATIENCE, LANE.run("reading", || 7)).await.expect("in time").expect("done"), 7);
    }

    #[tokio::test]
    async fn work_whose_caller_leaves_is_finished_or_never_begun() {
        static LANE: BlockingLane = BlockingLane::new(1);
        let (release, released) = mpsc::channel::<()>();
        let (tell, told) = mpsc::channel();
        let first = tokio::spawn(LANE.run("writing", {
            let tell = tell.clone();
            move || {
                let _ = released.recv();
                tell.send("first").expect("heard");
            }
        }));
        while LANE.0.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let second = timeout(Duration::from_millis(20), LANE.run("writing", move || tell.send("second")));
        second.await.expect_err("it has no turn");
        first.abort();
        drop(release);
        assert_eq!(told.iter().collect::<Vec<_>>(), ["first"]);
    }
}
