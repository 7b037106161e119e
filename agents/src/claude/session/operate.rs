//! Operations of the session.

use ipc_protocol::{Event, WireError, message::RequestId};
use serde_json::{Value, json};

use super::ClaudeSession;
use crate::{
    Action, Adapter as _, Result,
    claude::{
        operations::{self, ClaudeRequestPurpose},
        stored_conversations,
        turn::TurnResult,
        wire,
    },
    kit::bounds,
};

/// Most conversation lists that are waited for.
const MAX_LISTS: usize = 16;

/// Compaction in progress.
#[derive(Debug)]
pub(super) struct ClaudeCompaction {
    pub(super) request: RequestId,
    pub(super) uuid: String,
    pub(super) answer: Option<Value>,
    pub(super) error: Option<String>,
    /// Text of the agent during the compaction.
    text: String,
}

impl ClaudeCompaction {
    /// Moves the texts out of `out`, from index `from` on.
    pub(super) fn take_text(&mut self, out: &mut Vec<Action>, from: usize) {
        let spoken = out.extract_if(from.., |action| matches!(action, Action::Event(Event::Text { .. })));
        for action in spoken {
            if let Action::Event(Event::Text { text }) = action {
                self.text = bounds::words(&(std::mem::take(&mut self.text) + &text));
            }
        }
    }
}

impl ClaudeSession {
    pub(super) fn set_thinking(&mut self, request: RequestId, level: &str, out: &mut Vec<Action>) -> Result<()> {
        let requests =
            operations::thinking(level, self.thinking_off).map_err(|operation| self.unsupported(&operation))?;
        self.thinking_off = level == "off";
        let last = requests.len().saturating_sub(1);
        for (at, message) in requests.into_iter().enumerate() {
            let purpose =
                if at == last { ClaudeRequestPurpose::Change(request) } else { ClaudeRequestPurpose::Step(request) };
            self.pending.send(purpose, message, out);
        }
        Ok(())
    }

    /// Compacts the conversation by a slash command in a user message: the agent has no request for it.
    pub(super) fn compact(
        &mut self,
        request: RequestId,
        instructions: Option<&str>,
        out: &mut Vec<Action>,
    ) -> Result<()> {
        if self.compaction.is_some() || self.turn().is_some() {
            return Err(WireError::Busy);
        }
        let uuid = self.uuid();
        let command = instructions.map_or_else(|| "/compact".to_owned(), |words| format!("/compact {words}"));
        wire::user(&uuid, json!([{ "type": "text", "text": command }]), out);
        self.compaction = Some(ClaudeCompaction { request, uuid, answer: None, error: None, text: String::new() });
        Ok(())
    }

    /// Returns the directory of the working directory's conversations.
    pub(super) fn conversations(&self) -> Option<String> {
        let cwd = self.cwd.as_deref().or(self.config.cwd.as_deref())?;
        stored_conversations::directory(&self.directories, cwd)
    }

    pub(super) fn list(&mut self, request: RequestId, out: &mut Vec<Action>) -> Result<()> {
        let unknown = "list its conversations: where they are is not known";
        let directory = self.conversations().ok_or_else(|| self.unsupported(unknown))?;
        if self.lists.len() >= MAX_LISTS {
            return Err(self.refused("too many lists are waited for"));
        }
        out.push(Action::List { id: self.lists.add(request), directory, suffix: stored_conversations::SUFFIX });
        Ok(())
    }

    pub(super) fn compacted(&self, compaction: ClaudeCompaction, outcome: &TurnResult) -> Action {
        let ClaudeCompaction { request, answer, error, text: words, .. } = compaction;
        let words = Some(words).filter(|words| !words.is_empty());
        let reply = match (error, answer) {
            (None, Some(answer)) if !outcome.is_error() => Ok((&answer).into()),
            (error, _) => Err(self.refused(error.or(words).unwrap_or_else(|| outcome.reason()))),
        };
        Action::Reply { request, reply }
    }
}
