//! Usage of a session, counted from its events.

use ipc_protocol::{Budget, Envelope, Event, Usage};

use super::{meter::UsageMeter, metrics::UsageCounters};
use crate::{description::AgentStatus, session_store::SessionRecord};

/// Messages and usage, counted as a live session counts them, and what the agent told of itself.
pub(crate) struct TranscriptCounts {
    tally: UsageCounters,
    meter: UsageMeter,
    agent_status: AgentStatus,
}

impl Default for TranscriptCounts {
    fn default() -> Self {
        Self {
            tally: UsageCounters::new(),
            meter: UsageMeter::new(Budget::default(), Usage::default()),
            agent_status: AgentStatus::default(),
        }
    }
}

impl TranscriptCounts {
    /// Continues from the numbers of a record.
    pub(crate) fn from_record(record: &SessionRecord) -> Self {
        let mut tally = UsageCounters::new();
        (tally.metrics.messages, tally.metrics.usage, tally.turn) = (record.messages, record.usage, record.turn_usage);
        let meter = UsageMeter::from_total(Budget::default(), record.usage, record.turn_usage);
        Self { meter, tally, agent_status: record.agent_status.clone() }
    }

    pub(crate) fn record(&mut self, envelope: &Envelope) {
        if let Event::TurnStarted { .. } = envelope.event {
            self.tally.record_prompt();
        }
        self.tally.record(&envelope.event);
        self.agent_status.record(&envelope.event);
        if self.meter.record(envelope.turn.unwrap_or_default(), &envelope.event).is_some() {
            (self.tally.metrics.usage, self.tally.turn) = (self.meter.total(), self.meter.turn());
        }
    }

    /// Returns what the agent told of itself.
    pub(crate) fn agent_status(&self) -> &AgentStatus {
        &self.agent_status
    }

    /// Transfers the counts to a session's tally.
    pub(crate) fn restore_into(&self, tally: &mut UsageCounters) {
        tally.resume_from(&self.tally);
    }

    /// Returns the number of messages, and the usage of the model.
    pub(crate) fn total(&self) -> (u64, Usage) {
        (self.tally.metrics.messages, self.meter.total())
    }
}
