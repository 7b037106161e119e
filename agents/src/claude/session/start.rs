//! Start of the session up to the first prompt, and its end.

use ipc_protocol::{Event, WireError};
use serde_json::json;

use super::{ClaudeSession, ClaudeState};
use crate::{
    Action, ListedFile,
    claude::{
        operations::{self, ClaudeRequestPurpose},
        outgoing, stored_conversations,
        turn::TurnResult,
    },
    kit::{missing_conversation, unanswered},
};

/// Most bytes of standard error that are kept as the reason of a failed start.
const MAX_STDERR: usize = 4096;

impl ClaudeSession {
    pub(super) fn initialize(&mut self, out: &mut Vec<Action>) {
        self.state = ClaudeState::Starting;
        let mut request = json!({ "subtype": "initialize" });
        if let Some(prompt) = &self.config.system_prompt {
            // Not in the arguments: every user can see those.
            request["appendSystemPrompt"] = prompt.as_str().into();
        }
        self.pending.send(ClaudeRequestPurpose::Initialize, request, out);
    }

    /// Sends the rest of the session's configuration after the handshake.
    pub(super) fn configure(&mut self, out: &mut Vec<Action>) {
        if !self.config.mcp_servers.is_empty() {
            let request = json!({ "subtype": "mcp_set_servers", "servers": outgoing::servers(&self.config) });
            self.pending.send(ClaudeRequestPurpose::Servers, request, out);
        }
        let level = self.config.thinking.as_deref();
        for request in level.and_then(|level| operations::thinking(level, false).ok()).unwrap_or_default() {
            self.pending.send(ClaudeRequestPurpose::Configure, request, out);
        }
        self.configured(out);
    }

    pub(super) fn configured(&mut self, out: &mut Vec<Action>) {
        if matches!(self.state, ClaudeState::Starting) && self.pending.is_configured() {
            self.state = ClaudeState::Ready(None);
            out.push(Action::Ready { native_session_id: self.native_id.clone() });
            out.append(&mut self.held_events);
            out.append(&mut self.handshake_news);
            if self.lost_events > 0 {
                let reason =
                    format!("{} events from before the agent was ready are lost: too many to hold", self.lost_events);
                out.push(Action::Event(Event::SessionLossy { reason }));
            }
        }
    }

    pub(super) fn fail(&mut self, error: WireError, out: &mut Vec<Action>) {
        self.close(out);
        self.state = ClaudeState::Over;
        out.push(Action::Fail(error));
    }

    pub(super) fn fail_missing(&mut self, reason: &str, out: &mut Vec<Action>) {
        let error = missing_conversation(&self.agent, self.resume.as_ref(), reason);
        self.fail(error, out);
    }

    /// Records the conversations that the most recent one can be.
    pub(super) fn handle_lookup(&mut self, files: &[ListedFile], out: &mut Vec<Action>) {
        if !matches!(self.state, ClaudeState::Looking) {
            return;
        }
        let known: Vec<_> = files
            .iter()
            .filter(|file| stored_conversations::describe(file).is_some())
            .filter_map(|file| stored_conversations::id(file).map(str::to_owned))
            .collect();
        let Some(newest) = known.first() else {
            return self.fail_missing("this working directory has none", out);
        };
        // A copy has the id that it was given, and so has a conversation that the agent started instead. Later messages do not tell the
        // two apart, so this is the only check.
        if self.native_id.is_none() {
            self.native_id = Some(newest.clone());
            self.recent_ids = Some(known);
        }
        self.initialize(out);
    }

    /// Handles the result of an agent that refuses to start.
    pub(super) fn start_failed(&mut self, outcome: &TurnResult, out: &mut Vec<Action>) {
        let reason = outcome.reason();
        let about_conversation = match outcome.startup_failure_reason.as_deref() {
            None => true,
            Some(reason) => reason.starts_with("session_") || reason.starts_with("worktree_"),
        };
        if self.resume.is_some() && about_conversation {
            self.fail_missing(&reason, out);
        } else {
            let error = self.refused(format!("to start: {reason}"));
            self.fail(error, out);
        }
    }

    /// Records a line of standard error.
    pub(super) fn record_stderr(&mut self, line: &[u8]) {
        if !matches!(self.state, ClaudeState::Ready(_)) && self.stderr.len() < MAX_STDERR {
            let room = MAX_STDERR - self.stderr.len();
            self.stderr.push_str(&String::from_utf8_lossy(&line[..line.len().min(room)]));
        }
    }

    /// Ends everything that waits for an agent that has ended.
    pub(super) fn close(&mut self, out: &mut Vec<Action>) {
        let before = out.len();
        self.permissions.close_all(out);
        self.messages.end_all(out);
        if !matches!(self.state, ClaudeState::Ready(_)) {
            // Their starts were not emitted either.
            out.truncate(before);
        }
        self.pending.close_all(out);
        let waiting = self.lists.drain().chain(self.compaction.take().map(|compaction| compaction.request));
        out.extend(waiting.map(|request| Action::Reply { request, reply: Err(unanswered()) }));
    }
}
