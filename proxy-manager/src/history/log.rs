//! The event log of a manager, until the manager closes it.

use std::{
    ops::Deref,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use event_log::EventLog;

/// Longest wait at the manager's end for users of the log.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The manager's event log, if it has one. The manager's end closes it, even if callers still have its sessions.
#[derive(Clone, derive_more::Debug, Default)]
#[debug("Log({})", self.is_open())]
pub(crate) struct LogHandle(Arc<SharedLog>);

#[derive(Default)]
struct SharedLog {
    state: Mutex<LogState>,
    is_free: Condvar,
}

#[derive(Default)]
struct LogState {
    log: Option<EventLog>,
    users: usize,
}

/// A use of the log, which is not closed before this is dropped.
pub(crate) struct InUse {
    log: EventLog,
    _use: LogUse,
}

struct LogUse(Arc<SharedLog>);

impl SharedLog {
    fn state(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LogHandle {
    pub(crate) fn new(log: Option<EventLog>) -> Self {
        Self(Arc::new(SharedLog { state: Mutex::new(LogState { log, users: 0 }), is_free: Condvar::new() }))
    }

    /// Returns the log for one use.
    pub(crate) fn get(&self) -> Option<InUse> {
        let mut state = self.0.state();
        let log = state.log.clone()?;
        state.users += 1;
        Some(InUse { log, _use: LogUse(self.0.clone()) })
    }

    pub(crate) fn is_open(&self) -> bool {
        self.0.state().log.is_some()
    }

    /// Gives the log up: it is closed with its last use.
    pub(crate) fn release(&self) {
        let log = self.0.state().log.take();
        drop(log);
    }

    /// Closes the log once its users are done, or after [`CLOSE_TIMEOUT`]. Blocks while writes are outstanding.
    pub(crate) fn close(&self) {
        let mut state = self.0.state();
        let log = state.log.take();
        let waited = self.0.is_free.wait_timeout_while(state, CLOSE_TIMEOUT, |state| state.users > 0);
        let (state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        drop(state);
        if waited.timed_out() {
            tracing::warn!("the event log is still in use at its manager's end");
        }
        drop(log);
    }
}

impl Deref for InUse {
    type Target = EventLog;

    fn deref(&self) -> &EventLog {
        &self.log
    }
}

impl Drop for LogUse {
    /// Runs after the log is dropped: fields are dropped in their order.
    fn drop(&mut self) {
        self.0.state().users -= 1;
        self.0.is_free.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use event_log::MemoryLimits;

    use super::*;

    #[test]
    fn it_is_given_back_when_nobody_uses_it_any_more() {
        let log = LogHandle::new(Some(EventLog::memory(MemoryLimits::default())));
        let (first, second) = (log.get().expect("there"), log.get().expect("there"));
        let (given, is_given) = mpsc::channel();
        let giver = thread::spawn({
            let log = log.clone();
            move || {
                log.close();
                given.send(()).expect("heard");
            }
        });
        while log.is_open() {
            thread::yield_now();
        }
        assert!(log.get().is_none());
        drop(first);
        assert!(is_given.try_recv().is_err());
        drop(second);
        giver.join().expect("no panic");
        assert!(is_given.try_recv().is_ok());
    }
}
