//! Ctrl-C and SIGTERM, for commands that have something to end.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::problem::Problem;

/// Wishes to stop, as they come.
#[derive(Debug)]
pub(super) struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
    seen: bool,
}

/// How urgent one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// The first Ctrl-C: stop what is going on.
    Stop,
    /// Another one, or SIGTERM: end everything.
    End,
}

impl Interrupts {
    /// From here on Ctrl-C no longer ends the process by itself.
    pub(super) fn new() -> Result<Self, Problem> {
        let handle = |kind| signal(kind).map_err(|error| Problem::failed(format!("handling signals failed: {error}")));
        let (interrupt, terminate) = (handle(SignalKind::interrupt())?, handle(SignalKind::terminate())?);
        Ok(Self { interrupt, terminate, seen: false })
    }

    /// The next one. May be dropped while it waits.
    pub(super) async fn next(&mut self) -> Urgency {
        tokio::select! {
            _ = self.interrupt.recv() => {
                if std::mem::replace(&mut self.seen, true) { Urgency::End } else { Urgency::Stop }
            }
            _ = self.terminate.recv() => {
                self.seen = true;
                Urgency::End
            }
        }
    }

    /// What was is over: the next one is the first again.
    pub(super) fn forget(&mut self) {
        self.seen = false;
    }

    /// Whether there was one.
    pub(super) fn seen(&self) -> bool {
        self.seen
    }
}
