//! Bound on the model replies of a turn, for agents without an option of their own.
//!
//! Agents that report usage while they work do so after each reply (Codex, Pi): these reports are the count, and text or thinking
//! after one is the next reply. Where an agent reports none, a reply begins with text, thinking or a tool call that comes when all tool
//! calls before it have ended. That counts too many where the calls of one reply run one after the other: the bound is then
//! reached early, never late. Tool calls of sub-agents belong to the call that made them.

use std::collections::HashSet;

use agents::{Action, Adapter};
use ipc_protocol::{Event, MAX_TURNS_REACHED, StopReason, Usage};

/// Most tool calls that are known to be open; further ones count as ended.
const MAX_OPEN: usize = 1024;

/// Model replies of the current turn, and how many there may be.
#[derive(Debug)]
pub(crate) struct ReplyLimit {
    max: Option<u32>,
    count: ReplyCount,
    is_reached: bool,
}

#[derive(Debug, Default)]
struct ReplyCount {
    /// Replies that usage was reported for.
    reported: u32,
    /// Replies that have begun since the last report.
    begun: u32,
    last: Option<Usage>,
    open_calls: HashSet<String>,
    /// A tool call has ended since the last reply began.
    has_result: bool,
}

impl ReplyLimit {
    /// Makes the limit of a session; `None` for no limit.
    pub(crate) fn new(max: Option<u32>) -> Self {
        Self { max, count: ReplyCount::default(), is_reached: false }
    }

    /// Begins a turn.
    pub(crate) fn begin(&mut self) {
        *self = Self::new(self.max);
    }

    /// Counts an event of the turn. Has `adapter` abort the turn when a reply beyond the limit begins; the end of that turn
    /// names the limit.
    pub(crate) fn note(&mut self, event: &mut Event, adapter: &mut dyn Adapter) -> Vec<Action> {
        let Some(max) = self.max else { return Vec::new() };
        if self.is_reached {
            if let Event::Complete { stop_reason: reason @ StopReason::Cancelled, .. } = event {
                *reason = StopReason::MaxRequests;
            }
            return Vec::new();
        }
        self.count.note(event);
        if self.count.total() <= max {
            return Vec::new();
        }
        self.is_reached = true;
        let detail =
            format!("the agent has used its {max} model replies for this prompt (max_turns): the turn is aborted");
        let mut out = vec![Action::Event(Event::SessionStatus { status: MAX_TURNS_REACHED.to_owned(), detail })];
        if let Err(error) = adapter.abort(&mut out) {
            let action = "aborting the turn at its limit of model replies".to_owned();
            out.push(Action::Event(Event::ActionFailed { action, error: error.to_string() }));
        }
        out
    }
}

impl ReplyCount {
    fn total(&self) -> u32 {
        self.reported.saturating_add(self.begun)
    }

    fn note(&mut self, event: &Event) {
        match event {
            Event::Text { text } | Event::Thinking { text }
                if !text.is_empty() && (self.begun == 0 || self.has_result) =>
            {
                self.begin();
            }
            Event::ToolStart(call) if call.parent.is_none() => {
                // With reports a call belongs to the reply that was reported, or is about to be.
                let is_next = self.begun == 0 || (self.has_result && self.open_calls.is_empty());
                if self.reported == 0 && is_next {
                    self.begin();
                }
                if self.open_calls.len() < MAX_OPEN {
                    self.open_calls.insert(call.id.clone());
                }
            }
            Event::ToolEnd(call) => self.has_result |= self.open_calls.remove(&call.id),
            Event::Usage(usage) if self.last != Some(**usage) => {
                self.last = Some(**usage);
                self.reported = self.reported.saturating_add(1);
                self.begun = 0;
                self.has_result = false;
            }
            _ => {}
        }
    }

    fn begin(&mut self) {
        self.begun = self.begun.saturating_add(1);
        self.has_result = false;
    }
}

#[cfg(test)]
mod tests {
    use ipc_protocol::{Json, ToolEnd, ToolStart, ToolStatus};

    use super::*;

    fn text() -> Event {
        Event::Text { text: "so".into() }
    }

    fn start(id: &str) -> Event {
        Event::ToolStart(Box::new(ToolStart {
            id: id.into(),
            name: "bash".into(),
            title: "ls".into(),
            kind: "execute".into(),
            input: Json::null(),
            status: ToolStatus::InProgress,
            parent: None,
        }))
    }

    fn end(id: &str) -> Event {
        Event::ToolEnd(Box::new(ToolEnd { id: id.into(), status: ToolStatus::Completed, output: String::new() }))
    }

    fn usage(output: u64) -> Event {
        Event::Usage(Box::new(Usage { output_tokens: Some(output), ..Usage::default() }))
    }

    fn counted(events: &[Event]) -> u32 {
        let mut count = ReplyCount::default();
        events.iter().for_each(|event| count.note(event));
        count.total()
    }

    #[test]
    fn without_reports_a_reply_follows_the_results_of_tools() {
        assert_eq!(counted(&[]), 0);
        assert_eq!(counted(&[text(), text(), start("a"), start("b"), end("a"), end("b")]), 1);
        let loops = [start("a"), end("a"), start("b"), end("b"), text(), text(), start("c"), end("c"), start("d")];
        assert_eq!(counted(&loops), 4);
        // Calls that run at the same time are of one reply, and so is text beside them.
        assert_eq!(counted(&[start("a"), start("b"), end("a"), start("c"), end("b"), end("c"), text()]), 2);
        let mut of_sub_agent = start("sub");
        if let Event::ToolStart(call) = &mut of_sub_agent {
            call.parent = Some("a".into());
        }
        assert_eq!(counted(&[start("a"), of_sub_agent, end("sub"), end("a")]), 1);
    }

    #[test]
    fn with_reports_each_is_a_reply() {
        // The calls of a reply run one after the other, before its report or after.
        let before = [text(), start("a"), end("a"), start("b"), end("b"), usage(1)];
        assert!(counted(&before[..before.len() - 1]) >= 1);
        assert_eq!(counted(&before), 1);
        let after = [text(), usage(1), start("a"), end("a"), start("b"), end("b")];
        assert_eq!(counted(&after), 1);
        assert_eq!(counted(&[&after[..], &[text()]].concat()), 2);
        assert_eq!(counted(&[&after[..], &[text(), usage(5), usage(5)]].concat()), 2, "a report that comes twice");
        assert_eq!(counted(&[usage(1), usage(2), usage(3)]), 3, "replies without a word");
    }
}
