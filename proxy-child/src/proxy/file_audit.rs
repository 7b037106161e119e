//! Refusals of files, which the kernel's audit tells of a session in a sandbox without namespaces.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex, PoisonError},
};

use ipc_protocol::{Event, FileRefusal, Pid};
use registry::LandlockAudit;
use tokio::{io::Interest, sync::Notify, task::JoinSet};

use super::watch;

/// Most refusals that wait to be sent; further ones are counted.
const MAX_EVENTS: usize = 512;

/// Refusals of a session's files. Dropping it ends the reading.
#[derive(Debug)]
pub(crate) struct FileAudit {
    queue: Arc<Mutex<RefusalQueue>>,
    _task: JoinSet<()>,
}

#[derive(Debug, Default)]
struct RefusalQueue {
    refusals: VecDeque<FileRefusal>,
    lost: u64,
    /// True if the kernel has dropped some, it does not say how many.
    is_overrun: bool,
}

impl FileAudit {
    /// Reads the refusals of a program that was started with this pid. `wake` is notified when there are events.
    ///
    /// # Errors
    /// When the socket cannot be watched.
    pub(crate) fn start(mut audit: LandlockAudit, program: Pid, wake: Arc<Notify>) -> io::Result<Self> {
        audit.watch(program);
        let mut audit = watch(audit)?;
        let queue: Arc<Mutex<RefusalQueue>> = Arc::default();
        let mut task = JoinSet::new();
        let read = queue.clone();
        task.spawn(async move {
            while let Ok(refusals) = audit.async_io_mut(Interest::READABLE, LandlockAudit::read).await {
                let is_overrun = audit.get_mut().take_overrun();
                if !refusals.is_empty() || is_overrun {
                    let mut queue = read.lock().unwrap_or_else(PoisonError::into_inner);
                    queue.extend(refusals);
                    queue.is_overrun |= is_overrun;
                    wake.notify_one();
                }
            }
        });
        Ok(Self { queue, _task: task })
    }

    /// Takes the events so far.
    pub(crate) fn take_events(&self) -> Vec<Event> {
        let RefusalQueue { refusals, lost, is_overrun } =
            std::mem::take(&mut *self.queue.lock().unwrap_or_else(PoisonError::into_inner));
        let mut events: Vec<Event> =
            refusals.into_iter().map(|refusal| Event::FileRefused(Box::new(refusal))).collect();
        if lost > 0 {
            events.push(Event::SessionLossy { reason: format!("{lost} refusals of files were dropped") });
        }
        if is_overrun {
            let reason = "the kernel dropped records of refused files: they came faster than they were read";
            events.push(Event::SessionLossy { reason: reason.to_owned() });
        }
        events
    }
}

impl RefusalQueue {
    fn extend(&mut self, refusals: Vec<FileRefusal>) {
        for refusal in refusals {
            if self.refusals.len() < MAX_EVENTS {
                self.refusals.push_back(refusal);
            } else {
                self.lost += 1;
            }
        }
    }
}
