//! Handling of Ctrl-C, SIGTERM and SIGHUP, for commands that have something to end.

use tokio::signal::unix::{Signal, SignalKind, signal};

use api_types::ProblemDetails;

/// Stream of interrupts.
#[derive(Debug)]
pub(super) struct InterruptStream {
    interrupt: Signal,
    terminate: Signal,
    /// `None` if this process was started to outlive its terminal, as by nohup.
    hangup: Option<Signal>,
    was_interrupted: bool,
}

/// Urgency of an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InterruptLevel {
    /// First Ctrl-C: stop the current work.
    Stop,
    /// Further Ctrl-C, SIGTERM, or the end of the terminal: end everything.
    End,
}

impl InterruptStream {
    /// Installs the handlers: Ctrl-C no longer ends the process by itself.
    pub(super) fn new() -> Result<Self, ProblemDetails> {
        let handle =
            |kind| signal(kind).map_err(|error| ProblemDetails::failed(format!("handling signals failed: {error}")));
        let (interrupt, terminate) = (handle(SignalKind::interrupt())?, handle(SignalKind::terminate())?);
        let hangup = if ignores_hangup() { None } else { Some(handle(SignalKind::hangup())?) };
        Ok(Self { interrupt, terminate, hangup, was_interrupted: false })
    }

    /// Waits for the next interrupt. May be dropped while it waits.
    pub(super) async fn next(&mut self) -> InterruptLevel {
        let (terminate, hangup) = (&mut self.terminate, &mut self.hangup);
        let end = async {
            match hangup {
                Some(hangup) => tokio::select! {
                    end = terminate.recv() => end,
                    end = hangup.recv() => end,
                },
                None => terminate.recv().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => {
                if std::mem::replace(&mut self.was_interrupted, true) { InterruptLevel::End } else { InterruptLevel::Stop }
            }
            _ = end => {
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

/// Returns true if SIGHUP was ignored when this process began.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}
