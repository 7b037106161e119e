//! Sub-agents: threads beside ours, begun by one of our tool calls.

use super::items::Calls;
use serde_json::Value;

/// Most remembered; the oldest is forgotten.
const MAX_AGENTS: usize = 64;

#[derive(Debug)]
struct SubAgent {
    thread: String,
    parent: Option<String>,
    turn: Option<String>,
}

/// The sub-agents of a conversation.
#[derive(Debug, Default)]
pub(super) struct SubAgents(Vec<SubAgent>);

impl SubAgents {
    fn get(&mut self, thread: &str) -> &mut SubAgent {
        if let Some(at) = self.0.iter().position(|agent| agent.thread == thread) {
            return &mut self.0[at];
        }
        if self.0.len() >= MAX_AGENTS {
            self.0.remove(0);
        }
        self.0.push(SubAgent { thread: thread.to_owned(), parent: None, turn: None });
        let last = self.0.len() - 1;
        &mut self.0[last]
    }

    /// A tool call that began some, or spoke to them.
    pub(super) fn item(&mut self, item: &Value) {
        let (Some(id), "collabAgentToolCall") = (item["id"].as_str(), item["type"].as_str().unwrap_or_default()) else {
            return;
        };
        for thread in item["receiverThreadIds"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            let agent = self.get(thread);
            // The call that began it stays its parent.
            agent.parent.get_or_insert_with(|| id.to_owned());
        }
    }

    /// A turn of `thread`'s began.
    pub(super) fn turn_started(&mut self, thread: &str, turn: &str) {
        self.get(thread).turn = Some(turn.to_owned());
    }

    /// A turn of `thread`'s is over.
    pub(super) fn turn_completed(&mut self, thread: &str) {
        self.get(thread).turn = None;
    }

    /// The threads whose turns run, with these.
    pub(super) fn running(&self) -> Vec<(String, String)> {
        let turn = |agent: &SubAgent| Some((agent.thread.clone(), agent.turn.clone()?));
        self.0.iter().filter_map(turn).collect()
    }

    /// The tool call that began `thread`. One may work before the call that begins it is done: then it is the latest such call.
    pub(super) fn parent(&self, thread: &str, calls: &Calls) -> Option<String> {
        let known = self.0.iter().find(|agent| agent.thread == thread).and_then(|agent| agent.parent.clone());
        known.or_else(|| calls.latest("spawnAgent").map(str::to_owned))
    }
}
