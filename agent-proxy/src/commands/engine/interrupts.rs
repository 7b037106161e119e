//! Handling of Ctrl-C and SIGTERM, for commands that have something to end.

use tokio::signal::unix::{Signal, SignalKind, signal};

use api_types::ProblemDetails;

/// Stream of interrupts.
#[derive(Debug)]
pub(super) struct InterruptStream {
    interrupt: Signal,
    terminate: Signal,
    was_interrupted: bool,
}

/// Urgency of an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InterruptLevel {
    /// First Ctrl-C: stop the current work.
    Stop,
    /// Further Ctrl-C, or SIGTERM: end everything.
    End,
}

impl InterruptStream {
    /// Installs the handlers: Ctrl-C no longer ends the process by itself.
    pub(super) fn new() -> Result<Self, ProblemDetails> {
        let handle =
            |kind| signal(kind).map_err(|error| ProblemDetails::failed(format!("handling signals failed: {error}")));
        let (interrupt, terminate) = (handle(SignalKind::interrupt())?, handle(SignalKind::terminate())?);
        Ok(Self { interrupt, terminate, was_interrupted: false })
    }

    /// Waits for the next interrupt. May be dropped while it waits.
    pub(super) async fn next(&mut self) -> InterruptLevel {
        tokio::select! {
            _ = self.interrupt.recv() => {
                if std::mem::replace(&mut self.was_interrupted, true) { InterruptLevel::End } else { InterruptLevel::Stop }
            }
            _ = self.terminate.recv() => {
                self.was_interrupted = true;
                InterruptLevel::End
            }
        }
    }

    /// Resets the count: the next interrupt is the first again.
    pub(super) fn reset(&mut self) {
        self.was_interrupted = false;
    }

    /// Returns true if there was an interrupt.
    pub(super) fn was_interrupted(&self) -> bool {
        self.was_interrupted
    }
}
