//! Start of the session up to the first prompt, and its end.

use ipc_protocol::{Event, NativeResume, WireError};
use serde_json::json;

use super::{START_LIST, Session, State};
use crate::{
    Action, ListedFile,
    claude::{
        operations::{self, Purpose},
        outgoing, stored,
        turn::Outcome,
    },
};

/// Most bytes of standard error that are kept as the reason of a failed start.
const MAX_STDERR: usize = 4096;

impl Session {
    pub(in crate::claude) fn start(&mut self, out: &mut Vec<Action>) {
        if !matches!(self.state, State::New) {
            return;
        }
        if !matches!(self.resume, Some(NativeResume { id: None, .. })) {
            return self.initialize(out);
        }
        // Asked to continue the most recent conversation, the agent silently starts a new one if there is none.
        match self.conversations() {
            Some(directory) => {
                self.state = State::Looking;
                out.push(Action::List { id: START_LIST, directory, suffix: stored::SUFFIX });
            }
            None => self.fail_missing("where its conversations are is not known", out),
        }
    }

    pub(super) fn initialize(&mut self, out: &mut Vec<Action>) {
        self.state = State::Starting;
        let mut request = json!({ "subtype": "initialize" });
        if let Some(prompt) = &self.config.system_prompt {
            // Not in the arguments: every user can see those.
            request["appendSystemPrompt"] = prompt.as_str().into();
        }
        self.pending.send(Purpose::Initialize, request, out);
    }

    /// Sends the rest of the session's configuration after the handshake.
    pub(super) fn configure(&mut self, out: &mut Vec<Action>) {
        if !self.config.mcp_servers.is_empty() {
            let request = json!({ "subtype": "mcp_set_servers", "servers": outgoing::servers(&self.config) });
            self.pending.send(Purpose::Servers, request, out);
        }
        let level = self.config.thinking.as_deref();
        for request in level.and_then(|level| operations::thinking(level, false).ok()).unwrap_or_default() {
            self.pending.send(Purpose::Configure, request, out);
        }
        self.configured(out);
    }

    pub(super) fn configured(&mut self, out: &mut Vec<Action>) {
        if matches!(self.state, State::Starting) && self.pending.configured() {
            self.state = State::Ready(None);
            out.push(Action::Ready { native_session_id: self.native_id.clone() });
            out.append(&mut self.held);
            if self.lost > 0 {
                let reason = format!("{} events from before the agent was ready are lost: too many to hold", self.lost);
                out.push(Action::Event(Event::SessionLossy { reason }));
            }
        }
    }

    pub(super) fn fail(&mut self, error: WireError, out: &mut Vec<Action>) {
        self.close(out);
        self.state = State::Over;
        out.push(Action::Fail(error));
    }

    pub(super) fn fail_missing(&mut self, reason: &str, out: &mut Vec<Action>) {
        let id = self.resume.as_ref().and_then(|resume| resume.id.clone());
        let id = id.unwrap_or_else(|| "the most recent".to_owned());
        let error = WireError::NativeSessionMissing { agent: self.agent.clone(), id, reason: reason.to_owned() };
        self.fail(error, out);
    }

    /// Records the conversations that the most recent one can be.
    pub(super) fn looked(&mut self, files: &[ListedFile], out: &mut Vec<Action>) {
        if !matches!(self.state, State::Looking) {
            return;
        }
        let known: Vec<_> = files
            .iter()
            .filter(|file| stored::describe(file).is_some())
            .filter_map(|file| stored::id(file).map(str::to_owned))
            .collect();
        let Some(newest) = known.first() else {
            return self.fail_missing("this working directory has none", out);
        };
        // A copy has the id that it was given, and so has a conversation that the agent started instead. Later messages do not tell the
        // two apart, so this is the only check.
        if self.native_id.is_none() {
            self.native_id = Some(newest.clone());
            self.known = Some(known);
        }
        self.initialize(out);
    }

    /// Handles the result of an agent that refuses to start.
    pub(super) fn start_failed(&mut self, outcome: &Outcome, out: &mut Vec<Action>) {
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
    pub(in crate::claude) fn complained(&mut self, line: &[u8]) {
        if !matches!(self.state, State::Ready(_)) && self.stderr.len() < MAX_STDERR {
            let room = MAX_STDERR - self.stderr.len();
            self.stderr.push_str(&String::from_utf8_lossy(&line[..line.len().min(room)]));
        }
    }

    /// Ends everything that waits for an agent that has ended.
    pub(super) fn close(&mut self, out: &mut Vec<Action>) {
        let before = out.len();
        self.permissions.close_all(out);
        self.messages.end_all(out);
        if !matches!(self.state, State::Ready(_)) {
            // Their starts were not emitted either.
            out.truncate(before);
        }
        self.pending.close_all(out);
        let lists = std::mem::take(&mut self.lists).into_iter().map(|(_, request)| request);
        let waiting = lists.chain(self.compaction.take().map(|compaction| compaction.request));
        out.extend(waiting.map(|request| Action::Reply { request, reply: Err(operations::gone()) }));
    }

    /// Ends the session after the agent has ended.
    pub(in crate::claude) fn finish(&mut self, out: &mut Vec<Action>) {
        self.close(out);
        let waited_for = match std::mem::replace(&mut self.state, State::Over) {
            State::Ready(Some(_)) => {
                let message = "the agent's output ended during the turn";
                out.push(Action::Event(Event::error("agent-exited", message, false)));
                out.push(Action::TurnEnded);
                return;
            }
            State::Looking => "it was asked anything",
            State::Starting => "it answered initialize",
            State::New | State::Ready(None) | State::Over => return,
        };
        let said = self.stderr.trim();
        if self.resume.is_some() && said.contains("No conversation found") {
            let said = said.to_owned();
            return self.fail_missing(&said, out);
        }
        let said = if said.is_empty() { String::new() } else { format!(": {said}") };
        out.push(Action::Fail(WireError::AgentDied { reason: format!("its output ended before {waited_for}{said}") }));
    }
}
