//! What a session took, counted from its events.

use ipc_protocol::{Budget, Envelope, Event, Usage};

use super::{meter::Meter, metrics::Tally};

/// Messages and usage, as a living session counts them.
pub(crate) struct Count {
    tally: Tally,
    meter: Meter,
}

impl Default for Count {
    fn default() -> Self {
        Self { tally: Tally::new(), meter: Meter::new(Budget::default(), Usage::default()) }
    }
}

impl Count {
    pub(crate) fn note(&mut self, envelope: &Envelope) {
        if let Event::TurnStarted { .. } = envelope.event {
            self.tally.prompted();
        }
        self.tally.note(&envelope.event);
        let _ = self.meter.note(envelope.turn.unwrap_or_default(), &envelope.event);
    }

    /// Messages, and what was taken of the model.
    pub(crate) fn total(&self) -> (u64, Usage) {
        (self.tally.metrics.messages, self.meter.total())
    }
}
