//! Usage of a session, counted from its events.

use ipc_protocol::{Budget, Envelope, Event, Usage};

use super::{meter::Meter, metrics::Tally};
use crate::roster::SessionRecord;

/// Messages and usage, counted as a live session counts them.
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
    /// Continues from the numbers of a record.
    pub(crate) fn going_on(record: &SessionRecord) -> Self {
        let mut tally = Tally::new();
        (tally.metrics.messages, tally.metrics.usage, tally.turn) = (record.messages, record.usage, record.turn_usage);
        Self { meter: Meter::going_on(Budget::default(), record.usage, record.turn_usage), tally }
    }

    pub(crate) fn note(&mut self, envelope: &Envelope) {
        if let Event::TurnStarted { .. } = envelope.event {
            self.tally.prompted();
        }
        self.tally.note(&envelope.event);
        if self.meter.note(envelope.turn.unwrap_or_default(), &envelope.event).is_some() {
            (self.tally.metrics.usage, self.tally.turn) = (self.meter.total(), self.meter.turn());
        }
    }

    /// Transfers the counts to a session's tally.
    pub(crate) fn tell(&self, tally: &mut Tally) {
        tally.go_on(&self.tally);
    }

    /// Returns the number of messages, and the usage of the model.
    pub(crate) fn total(&self) -> (u64, Usage) {
        (self.tally.metrics.messages, self.meter.total())
    }
}
