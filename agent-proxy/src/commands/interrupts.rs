//! Handling of Ctrl-C and SIGTERM, for commands that have something to end.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::problem::Problem;

/// Stream of interrupts.
#[derive(Debug)]
pub(super) struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
    seen: bool,
}

/// Urgency of an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// First Ctrl-C: stop the current work.
    Stop,
    /// Further Ctrl-C, or SIGTERM: end everything.
    End,
}

impl Interrupts {
    /// Installs the handlers: Ctrl-C no longer ends the process by itself.
    pub(super) fn new() -> Result<Self, Problem> {
        let handle = |kind| signal(kind).map_err(|error| Problem::failed(format!("handling signals failed: {error}")));
        let (interrupt, terminate) = (handle(SignalKind::interrupt())?, handle(SignalKind::terminate())?);
        Ok(Self { interrupt, terminate, seen: false })
    }

    /// Waits for the next interrupt. May be dropped while it waits.
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

    /// Resets the count: the next interrupt is the first again.
    pub(super) fn forget(&mut self) {
        self.seen = false;
    }

    /// Returns true if there was an interrupt.
    pub(super) fn seen(&self) -> bool {
        self.seen
    }
}

/// Notes that the turn continues without the client.
pub(super) fn goes_on(session: &str) -> String {
    format!("the turn goes on: `agent-proxy abort {session}` cancels it")
}
