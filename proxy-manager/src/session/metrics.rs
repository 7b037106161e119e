//! What a session did, in numbers.

use std::time::Duration;

use ipc_protocol::{Event, ProcessInfo, ProcessStatus, ToolStatus, Usage};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// What a session did by now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionMetrics {
    /// Prompts taken, and answers: text of the agent between two other things.
    pub messages: u64,
    /// Tool calls begun.
    pub tool_calls: u64,
    /// Tool calls that failed or were rejected.
    pub failed_tool_calls: u64,
    /// Permission requests.
    pub permission_requests: u64,
    /// Errors that the agent told, those that it tried again after among them.
    pub errors: u64,
    /// Tokens and cost of all turns, as far as the agent tells them.
    pub usage: Usage,
    /// Events.
    pub events: u64,
    /// Bytes of what the agent and its processes made events of, as [`Event::weight`] counts them.
    pub event_bytes: u64,
    /// Milliseconds in turns.
    pub busy_ms: u64,
    /// Milliseconds since the last message of its proxy, when this was asked.
    pub silent_ms: u64,
    /// Pings that its proxy has not answered, in a row.
    pub missed_pings: u32,
}

/// What the processes of a session take now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessUse {
    /// Living processes.
    pub processes: usize,
    /// Percent of one core since the last listing, of all together.
    pub cpu_percent: f32,
    /// Resident memory of all together, in bytes; what they share counts in each.
    pub rss_bytes: u64,
}

impl ProcessUse {
    pub(crate) fn of(processes: &[ProcessInfo]) -> Self {
        let running = processes.iter().filter(|process| process.status == ProcessStatus::Running);
        running.fold(Self::default(), |sum, process| Self {
            processes: sum.processes + 1,
            cpu_percent: sum.cpu_percent + process.cpu_percent.unwrap_or_default(),
            rss_bytes: sum.rss_bytes.saturating_add(process.rss_bytes.unwrap_or_default()),
        })
    }
}

/// What one turn took of the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TurnUsage {
    /// Its number; 0 for what is in no turn.
    pub turn: u64,
    /// Tokens and cost from its beginning.
    pub usage: Usage,
}

/// Counts as it happens.
#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) metrics: SessionMetrics,
    /// What of the usage is of the turn that was counted last, and is told once more from its beginning.
    pub(crate) turn: TurnUsage,
    busy: Duration,
    busy_since: Option<Instant>,
    /// The last event was a piece of an answer.
    says: bool,
    /// When the proxy was last heard.
    pub(crate) heard: Instant,
}

impl Tally {
    pub(crate) fn new() -> Self {
        let metrics = SessionMetrics::default();
        let turn = TurnUsage::default();
        Self { metrics, turn, busy: Duration::ZERO, busy_since: None, says: false, heard: Instant::now() }
    }

    /// Goes on with what another has counted for the same session: what records keep.
    pub(crate) fn go_on(&mut self, other: &Self) {
        (self.metrics.messages, self.metrics.usage) = (other.metrics.messages, other.metrics.usage);
        (self.turn, self.says) = (other.turn, other.says);
    }

    /// Something that the proxy told.
    pub(crate) fn note(&mut self, event: &Event) {
        let metrics = &mut self.metrics;
        metrics.event_bytes = metrics.event_bytes.saturating_add(event.weight() as u64);
        match event {
            Event::Text { .. } => {
                if !std::mem::replace(&mut self.says, true) {
                    metrics.messages += 1;
                }
                return;
            }
            // It is said again, and counts then.
            Event::Voided { .. } if self.says => metrics.messages = metrics.messages.saturating_sub(1),
            Event::ToolStart(_) => metrics.tool_calls += 1,
            Event::ToolEnd(end) => metrics.failed_tool_calls += u64::from(end.status == ToolStatus::Failed),
            Event::PermissionRequested(_) => metrics.permission_requests += 1,
            Event::Error { .. } => metrics.errors += 1,
            Event::Thinking { .. } | Event::Complete { .. } => {}
            // What happens beside the conversation does not cut an answer in two.
            _ => return,
        }
        self.says = false;
    }

    /// A prompt was taken.
    pub(crate) fn prompted(&mut self) {
        self.metrics.messages += 1;
        self.says = false;
    }

    /// A turn runs, or none does.
    pub(crate) fn is_busy(&mut self, is_busy: bool) {
        let now = Instant::now();
        if let Some(since) = self.busy_since.take() {
            self.busy += now.saturating_duration_since(since);
        }
        self.busy_since = is_busy.then_some(now);
    }

    /// As it is now.
    pub(crate) fn metrics(&self, events: u64) -> SessionMetrics {
        let now = Instant::now();
        let running = self.busy_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        SessionMetrics {
            events,
            busy_ms: millis(self.busy + running),
            silent_ms: millis(now.saturating_duration_since(self.heard)),
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
        let mut tally = Tally::new();
        let text = || Event::Text { text: "x".into() };
        let failed =
            Event::ToolEnd(Box::new(ToolEnd { id: "1".into(), status: ToolStatus::Failed, output: String::new() }));
        tally.prompted();
        tally.is_busy(true);
        let complete = Event::Complete { stop_reason: StopReason::EndTurn, usage: None };
        for event in [text(), text(), failed, text(), Event::error("500", "x", true), complete] {
            tally.note(&event);
        }
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(tally.metrics(7).busy_ms, 2000, "it runs");
        tally.is_busy(false);
        tokio::time::advance(Duration::from_secs(3)).await;
        let metrics = tally.metrics(7);
        assert_eq!((metrics.messages, metrics.failed_tool_calls, metrics.errors, metrics.events), (3, 1, 1, 7));
        assert_eq!((metrics.busy_ms, metrics.silent_ms), (2000, 5000));
        assert!(metrics.event_bytes > 6 * 100);
    }
}
