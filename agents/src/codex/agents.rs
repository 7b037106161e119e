//! Sub-agents: threads other than ours, started by our tool calls.

use super::items::CodexToolCalls;
use crate::kit::{bounded_map::BoundedMap, bounds::MAX_ID};
use serde_json::Value;

/// Most sub-agents remembered; the oldest is forgotten.
const MAX_AGENTS: usize = 64;
/// Most items of sub-agents that are remembered because their text came in pieces.
const MAX_STREAMED: usize = 256;

#[derive(Debug, Default)]
struct SubAgent {
    parent: Option<String>,
    turn: Option<String>,
}

/// Sub-agents of a conversation, by their threads.
#[derive(Debug, Default)]
pub(super) struct SubAgents {
    agents: BoundedMap<SubAgent, MAX_AGENTS>,
    /// Items whose text came in pieces.
    streamed: BoundedMap<(), MAX_STREAMED>,
}

impl SubAgents {
    /// Records the sub-agents that a tool call started or addressed.
    pub(super) fn item(&mut self, item: &Value) {
        let (Some(id), "collabAgentToolCall") = (item["id"].as_str(), item["type"].as_str().unwrap_or_default()) else {
            return;
        };
        for thread in item["receiverThreadIds"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            let agent = self.agents.get_or_default(thread);
            // The call that started the sub-agent stays its parent.
            agent.parent.get_or_insert_with(|| id.to_owned());
        }
    }

    /// Records the start of a turn of `thread`.
    pub(super) fn turn_started(&mut self, thread: &str, turn: &str) {
        self.agents.get_or_default(thread).turn = Some(turn.to_owned());
    }

    /// Records the end of a turn of `thread`.
    pub(super) fn turn_completed(&mut self, thread: &str) {
        self.agents.get_or_default(thread).turn = None;
    }

    /// Records an item whose text comes in pieces.
    pub(super) fn record_streamed(&mut self, item: &str) {
        if item.len() <= MAX_ID && self.streamed.get(item).is_none() {
            self.streamed.insert(item, ());
        }
    }

    /// Returns whether the text of an item came in pieces.
    pub(super) fn is_streamed(&self, item: &str) -> bool {
        self.streamed.get(item).is_some()
    }

    /// Returns the threads with a running turn, each with that turn.
    pub(super) fn running(&self) -> Vec<(String, String)> {
        let turn = |(thread, agent): (&str, &SubAgent)| Some((thread.to_owned(), agent.turn.clone()?));
        self.agents.iter().filter_map(turn).collect()
    }

    /// Returns the tool call that started `thread`. While that call is still running, it is the latest call of its kind.
    pub(super) fn parent(&self, thread: &str, calls: &CodexToolCalls) -> Option<String> {
        let known = self.agents.get(thread).and_then(|agent| agent.parent.clone());
        known.or_else(|| calls.latest("spawnAgent").map(str::to_owned))
    }
}
