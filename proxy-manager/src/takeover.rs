//! Sweeps of sessions whose fork server is dead: the host ends what is left of them, as a later manager would.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipc_protocol::Receipt;
use tokio::sync::oneshot;

use crate::{
    blocking::spawn_blocking,
    state::{JournalRecord, sweep_own},
};

/// The sweeps of one fork server's sessions. Those that wait are swept together: each look at `/proc` counts for all.
#[derive(Debug, Default)]
pub(crate) struct SweepCoordinator(Mutex<SweepQueue>);

#[derive(Debug, Default)]
struct SweepQueue {
    waiting: Vec<(JournalRecord, oneshot::Sender<Receipt>)>,
    is_running: bool,
}

impl SweepCoordinator {
    fn queue(&self) -> MutexGuard<'_, SweepQueue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sweeps a session in a thread of its own. The receiver fails where there can be no thread.
    pub(crate) fn sweep(self: &Arc<Self>, record: JournalRecord) -> oneshot::Receiver<Receipt> {
        let (tell, receipt) = oneshot::channel();
        let mut queue = self.queue();
        queue.waiting.push((record, tell));
        if !std::mem::replace(&mut queue.is_running, true) {
            drop(queue);
            let takeover = self.clone();
            if let Err(error) = spawn_blocking("sweeping the sessions of a dead fork server", move || takeover.run()) {
                tracing::error!(error = %error.chain(), "sessions of a dead fork server are not swept");
                let mut queue = self.queue();
                queue.waiting.clear();
                queue.is_running = false;
            }
        }
        receipt
    }

    /// Sweeps until nobody waits.
    fn run(&self) {
        loop {
            let mut queue = self.queue();
            let (records, tell): (Vec<_>, Vec<_>) = queue.waiting.drain(..).unzip();
            if records.is_empty() {
                queue.is_running = false;
                return;
            }
            drop(queue);
            for (tell, receipt) in tell.into_iter().zip(sweep_own(records)) {
                // Its session's task may be gone with the runtime.
                let _ = tell.send(receipt);
            }
        }
    }
}
