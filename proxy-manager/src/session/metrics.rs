//! Activity counters of a session.

use std::time::Duration;

use api_types::{SessionMetrics, TurnUsage};
use ipc_protocol::{Event, ToolStatus};
use tokio::time::Instant;

/// Live counters of a session.
#[derive(Debug)]
pub(crate) struct UsageCounters {
    pub(crate) metrics: SessionMetrics,
    /// Part of the usage that belongs to the turn counted last; the agent reports that turn again from its beginning.
    pub(crate) turn: TurnUsage,
    busy: Duration,
    busy_since: Option<Instant>,
    /// True if the last event was a piece of an answer.
    is_in_answer: bool,
    /// Instant of the proxy's last message.
    pub(crate) last_heard: Instant,
}

impl UsageCounters {
    pub(crate) fn new() -> Self {
        let metrics = SessionMetrics::default();
        let turn = TurnUsage::default();
        Self { metrics, turn, busy: Duration::ZERO, busy_since: None, is_in_answer: false, last_heard: Instant::now() }
    }

    /// Continues from another tally of the same session, as far as records retain it.
    pub(crate) fn resume_from(&mut self, other: &Self) {
        (self.metrics.messages, self.metrics.usage) = (other.metrics.messages, other.metrics.usage);
        (self.turn, self.is_in_answer) = (other.turn, other.is_in_answer);
    }

    /// Counts an event that the proxy sent.
    pub(crate) fn record(&mut self, event: &Event) {
        let metrics = &mut self.metrics;
        metrics.event_bytes = metrics.event_bytes.saturating_add(event.weight() as u64);
        match event {
            Event::Text { .. } => {
                if !std::mem::replace(&mut self.is_in_answer, true) {
                    metrics.messages += 1;
                }
                return;
            }
            // It is said again, and counts then.
            Event::Voided { .. } if self.is_in_answer => metrics.messages = metrics.messages.saturating_sub(1),
            Event::ToolStart(_) => metrics.tool_calls += 1,
            Event::ToolEnd(end) => metrics.failed_tool_calls += u64::from(end.status == ToolStatus::Failed),
            Event::PermissionRequested(_) => metrics.permission_requests += 1,
            Event::Error { .. } => metrics.errors += 1,
            Event::Thinking { .. } | Event::Complete { .. } => {}
            // Events beside the conversation do not split an answer.
            _ => return,
        }
        self.is_in_answer = false;
    }

    /// Counts an accepted prompt.
    pub(crate) fn record_prompt(&mut self) {
        self.metrics.messages += 1;
        self.is_in_answer = false;
    }

    /// Records that a turn begins or ends.
    pub(crate) fn set_busy(&mut self, is_busy: bool, now: Instant) {
        if let Some(since) = self.busy_since.take() {
            self.busy += now.saturating_duration_since(since);
        }
        self.busy_since = is_busy.then_some(now);
    }

    /// Snapshot of the counters.
    pub(crate) fn metrics(&self, events: u64) -> SessionMetrics {
        let now = Instant::now();
        let running = self.busy_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        SessionMetrics {
            events,
            busy_ms: millis(self.busy + running),
            silent_ms: millis(now.saturating_duration_since(self.last_heard)),
            ..self.metrics
        }
    }
}

#[cfg(test)]
mod tests {
    use ipc_protocol::{StopReason, ToolEnd};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_counted() {
        let mut tally = UsageCounters::new();
        let text = || Event::Text { text: "x".into() };
        let failed =
            Event::ToolEnd(Box::new(ToolEnd { id: "1".into(), status: ToolStatus::Failed, output: String::new() }));
        tally.record_prompt();
        tally.set_busy(true, Instant::now());
        let complete = Event::Complete { stop_reason: StopReason::EndTurn, usage: None };
        for event in [text(), text(), failed, text(), Event::error("500", "x", true), complete] {
            tally.record(&event);
        }
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(tally.metrics(7).busy_ms, 2000, "it runs");
        tally.set_busy(false, Instant::now());
        tokio::time::advance(Duration::from_secs(3)).await;
        let metrics = tally.metrics(7);
        assert_eq!((metrics.messages, metrics.failed_tool_calls, metrics.errors, metrics.events), (3, 1, 1, 7));
        assert_eq!((metrics.busy_ms, metrics.silent_ms), (2000, 5000));
        assert!(metrics.event_bytes > 6 * 100);
    }
}
