//! JSON lines of Pi's RPC on standard input and output: commands with ids, their responses, and events.
//!
//! - There is no handshake: Pi answers `get_state` when it is ready. The adapter then checks the values of Pi's arguments: Pi starts
//!   a new conversation if it does not find the old one, and thinks at a lower level if its model has no higher one.
//! - A turn ends with `agent_settled`; `turn.rs` says how the end is detected with older agents.
//! - Pi has no MCP client. Our extension is one: `provision/pi-mcp.js`.
//! - Pi asks for no permission. Our extension does, before each tool call: `provision/pi-permissions.js`.
//! - [`Event::Usage`](ipc_protocol::Event::Usage) is the sum over the requests of a turn. The context window is that of the last request.
//! - Slash commands are asked for once the session is ready. A prompt that begins with one is run by Pi.
//! - Pi tells no sub-agents, and makes no plans.
//! - Conversations are listed from the files that Pi writes.
//! - Events without an event of ours remain available as raw lines. A line that is no message becomes a `log` event.

mod dialogs;
mod diffs;
mod operations;
mod session;
mod state;
mod tools;
mod turn;
mod wire;

use std::time::Instant;

use ipc_protocol::{Json, Operation, PermissionAnswer, Prompt, ResolvedBy, WireError, message::RequestId};
use serde_json::Value;

use self::{
    session::PiSession,
    state::{PiPurpose, PiState, PiTurn},
};
use crate::{
    Action, Adapter, AdapterSetup, ListedFile, Result,
    kit::{cut_turn_short, json_lines::JsonLinesAgent as _, refuse_asked, unanswered},
};

/// Most aborts without a response.
const MAX_ABORTS: usize = 8;

/// Makes the adapter.
///
/// # Errors
/// [`WireError::Unsupported`] for a mode, since Pi has none, and for an ephemeral session that continues a conversation.
pub fn make(setup: AdapterSetup) -> Result<Box<dyn Adapter>> {
    let config = &setup.config;
    let refused = [
        (config.mode.is_some(), "take a mode"),
        (config.ephemeral && setup.resume.is_some(), "keep nothing of a conversation that it goes on with"),
    ];
    refuse_asked(&setup.agent, &refused)?;
    Ok(Box::new(PiSession::new(setup)))
}

impl Adapter for PiSession {
    fn agent(&self) -> &str {
        &self.agent
    }

    fn start(&mut self, out: &mut Vec<Action>) {
        if matches!(self.state, PiState::New) {
            self.state = PiState::Starting;
            self.command("get_state", Value::Null, PiPurpose::Probe, out);
        }
    }

    fn stdout(&mut self, bytes: &[u8], out: &mut Vec<Action>) {
        self.read_messages(bytes, out);
    }

    fn stderr(&mut self, bytes: &[u8], out: &mut Vec<Action>) {
        self.read_stderr(bytes, out);
    }

    fn listed(&mut self, id: u64, files: Vec<ListedFile>, out: &mut Vec<Action>) {
        let Some(request) = self.lists.take(id) else { return };
        let cwd = self.config.cwd.as_deref();
        let sessions: Vec<Value> = files.iter().filter_map(|file| operations::conversation(file, cwd)).collect();
        out.push(Action::Reply { request, reply: Ok(Json::from(&sessions.into())) });
    }

    fn tick(&mut self, now: Instant, out: &mut Vec<Action>) -> Option<Instant> {
        self.calls.tick(now, out)
    }

    fn finish(&mut self, out: &mut Vec<Action>) {
        self.read_rest(out);
        self.dialogs.close_all(&ResolvedBy::Agent, out);
        self.calls.fail(|_| true, out);
        let asked = self.pending.drain().filter_map(|pending| match pending.purpose {
            PiPurpose::Operation(request, _) => Some(request),
            _ => None,
        });
        let open = asked.chain(self.lists.drain());
        out.extend(open.map(|request| Action::Reply { request, reply: Err(unanswered()) }));
        match std::mem::replace(&mut self.state, PiState::Over) {
            PiState::Ready(Some(_)) => cut_turn_short(out),
            PiState::Starting => {
                let reason = match self.last_output.as_str() {
                    "" => "its output ended before it was ready".to_owned(),
                    words => words.to_owned(),
                };
                // Any other error (a wrong flag, no key) does not mean that the conversation is missing.
                let says = ["No session found", "Session found in different project"];
                let is_missing = self.resume.is_some() && says.iter().any(|words| reason.contains(words));
                let error = if is_missing { self.missing(reason) } else { WireError::AgentDied { reason } };
                out.push(Action::Fail(error));
            }
            PiState::New | PiState::Ready(None) | PiState::Over => {}
        }
    }

    fn prompt(&mut self, prompt: &Prompt, out: &mut Vec<Action>) -> Result<()> {
        match &mut self.state {
            PiState::Ready(turn @ None) if self.pending.has_room(1) && !self.is_compacting => {
                self.turns += 1;
                *turn = Some(PiTurn { number: self.turns, ..PiTurn::default() });
            }
            PiState::Ready(_) => return Err(WireError::Busy),
            _ => return Err(self.unsupported("take a prompt: its session is not ready, or over")),
        }
        // One that runs goes on in this one.
        self.screen = None;
        self.output.answer.begin();
        self.command("prompt", session::message(prompt), PiPurpose::Prompt, out);
        Ok(())
    }

    fn steer(&mut self, prompt: &Prompt, out: &mut Vec<Action>) -> Result<()> {
        if !self.pending.has_room(1) {
            return Err(WireError::Busy);
        }
        let Some(turn) = self.turn() else { return Err(self.unsupported("be steered: no turn runs")) };
        turn.steered = true;
        self.command("steer", session::message(prompt), PiPurpose::Steer, out);
        Ok(())
    }

    /// Cancels the turn. Dialogs go first: the agent reads nothing else while one is open. The queue of steers goes next: the agent
    /// would continue with them.
    ///
    /// # Errors
    /// [`WireError::Busy`].
    fn abort(&mut self, out: &mut Vec<Action>) -> Result<()> {
        let Some(turn) = self.turn() else { return Ok(()) };
        turn.aborting = true;
        let steered = turn.steered || turn.queued > 0;
        self.dialogs.cancel_all(out);
        if self.pending.count(|pending| pending.command == "abort") >= MAX_ABORTS {
            return Err(WireError::Busy);
        }
        if steered {
            self.command("clear_queue", Value::Null, PiPurpose::Ignored, out);
        }
        self.command("abort", Value::Null, PiPurpose::Ignored, out);
        Ok(())
    }

    fn permission(&mut self, id: &str, answer: &PermissionAnswer, by: ResolvedBy, out: &mut Vec<Action>) -> Result<()> {
        self.dialogs.answer(&self.agent, id, answer, by, out)
    }

    fn operate(&mut self, request: RequestId, operation: &Operation, out: &mut Vec<Action>) -> Result<()> {
        self.send_operation(request, operation, out)
    }
}
