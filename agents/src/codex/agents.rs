//! Sub-agents: threads other than ours, started by our tool calls.

use super::items::CodexToolCalls;
use crate::kit::bounded_map::BoundedMap;
use serde_json::Value;

/// Most sub-agents remembered; the oldest is forgotten.
const MAX_AGENTS: usize = 64;

#[derive(Debug, Default)]
struct SubAgent {
    parent: Option<String>,
    turn: Option<String>,
}

/// Sub-agents of a conversation, by their threads.
#[derive(Debug, Default)]
pub(super) struct SubAgents(BoundedMap<SubAgent, MAX_AGENTS>);

impl SubAgents {
    /// Records the sub-agents that a tool call started or addressed.
    pub(super) fn item(&mut self, item: &Value) {
        let (Some(id), "collabAgentToolCall") = (item["id"].as_str(), item["type"].as_str().unwrap_or_default()) else {
            return;
        };
        for thread in item["receiverThreadIds"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            let agent = self.0.get_or_default(thread);
            // The call that started the sub-agent stays its parent.
            agent.parent.get_or_insert_with(|| id.to_owned());
        }
    }

    /// Records the start of a turn of `thread`.
    pub(super) fn turn_started(&mut self, thread: &str, turn: &str) {
        self.0.get_or_default(thread).turn = Some(turn.to_owned());
    }

    /// Records the end of a turn of `thread`.
    pub(super) fn turn_completed(&mut self, thread: &str) {
        self.0.get_or_default(thread).turn = None;
    }

    /// Returns the threads with a running turn, each with that turn.
    pub(super) fn running(&self) -> Vec<(String, String)> {
        let turn = |(thread, agent): (&str, &SubAgent)| Some((thread.to_owned(), agent.turn.clone()?));
        self.0.iter().filter_map(turn).collect()
    }

    /// Returns the tool call that started `thread`. While that call is still running, it is the latest call of its kind.
    pub(super) fn parent(&self, thread: &str, calls: &CodexToolCalls) -> Option<String> {
        let known = self.0.get(thread).and_then(|agent| agent.parent.clone());
        known.or_else(|| calls.latest("spawnAgent").map(str::to_owned))
    }
}
