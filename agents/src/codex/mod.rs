//! JSON-RPC of Codex's app-server: lines without the `jsonrpc` member, on standard input and output.
//!
//! - The adapter sends `initialize`, `initialized` and `thread/start`, `thread/resume` or `thread/fork` together: Codex handles them
//!   in that order. `thread/list` finds the most recent conversation. Mode and thinking are set before the first prompt.
//! - A system prompt becomes `developerInstructions`, which Codex adds to its own. MCP servers are configuration of the thread.
//! - An abort is `turn/interrupt`, and after the turn's end `thread/backgroundTerminals/clean`: until then its commands run on.
//!   Sub-agents are interrupted too.
//! - Codex's token total is that of the whole conversation. [`Event::Usage`](ipc_protocol::Event::Usage) is that of a turn, and
//!   counts cached tokens as input.
//! - A sub-agent is a thread of its own. Its text, tool calls and requests are emitted with the call that started it.
//! - Codex offers no slash commands: those of its screen are the screen's own.
//! - If a conversation's file is broken after its first line, Codex continues with the part it can read, and answers `thread/resume`
//!   as if the file were complete: preview and turns are in a separate database. So the host checks the file first.
//! - Notifications without an event of ours remain available as raw lines. A line that is no message becomes a `log` event.

mod agents;
mod approvals;
mod errors;
mod items;
mod operations;
mod session;
mod start;
mod state;
mod turn;
mod usage;
mod wire;

pub(crate) use start::{effort, sandbox};

use std::time::Instant;

use ipc_protocol::{
    Operation, PermissionAnswer, Prompt, PromptPart, ResolvedBy, StopReason, WireError, message::RequestId,
};
use serde_json::json;

use self::{
    session::CodexSession,
    state::{CodexPurpose, CodexReplyShape, CodexState, CodexTurn},
};
use crate::{
    Action, Adapter, AdapterSetup, Result,
    kit::{cut_turn_short, json_lines::JsonLinesAgent as _, unanswered},
};

/// Most steers that wait for the turn's id.
const MAX_HELD: usize = 64;

/// Makes the adapter. Its configuration may have `"sandbox"`: the sandbox of Codex's own, where the session asks for none.
///
/// # Errors
/// [`WireError::Unsupported`] for a list of tools, which Codex cannot restrict; for a mode other than `build` and `plan`; and for an
/// ephemeral session that continues a conversation without forking it.
pub fn make(setup: AdapterSetup) -> Result<Box<dyn Adapter>> {
    start::check(&setup)?;
    Ok(Box::new(CodexSession::new(setup)))
}

impl Adapter for CodexSession {
    fn agent(&self) -> &str {
        &self.agent
    }

    fn start(&mut self, out: &mut Vec<Action>) {
        if matches!(self.state, CodexState::New) {
            self.state = CodexState::Starting(None);
            self.request("initialize", &start::initialize(), CodexPurpose::Initialize, out);
            wire::RPC.notify("initialized", None::<()>, out);
            self.open(out);
        }
    }

    fn stdout(&mut self, bytes: &[u8], out: &mut Vec<Action>) {
        self.read_messages(bytes, out);
    }

    fn stderr(&mut self, bytes: &[u8], out: &mut Vec<Action>) {
        self.read_stderr(bytes, out);
    }

    fn tick(&mut self, now: Instant, out: &mut Vec<Action>) -> Option<Instant> {
        self.calls.tick(now, out)
    }

    fn finish(&mut self, out: &mut Vec<Action>) {
        self.read_rest(out);
        self.approvals.close_all(out);
        self.calls.end_all(None, out);
        for pending in self.peer.pending.drain() {
            // A compaction is answered below.
            if let CodexPurpose::Operation(request, shape) = pending
                && shape != CodexReplyShape::Compact
            {
                out.push(Action::Reply { request, reply: Err(unanswered()) });
            }
        }
        match std::mem::replace(&mut self.state, CodexState::Over) {
            CodexState::Ready(thread) => {
                if let Some(request) = thread.compaction {
                    out.push(Action::Reply { request, reply: Err(unanswered()) });
                }
                if thread.turn.is_some() {
                    cut_turn_short(out);
                }
            }
            CodexState::Starting(_) => {
                let reason = "its output ended before its conversation was ready".to_owned();
                out.push(Action::Fail(WireError::AgentDied { reason }));
            }
            CodexState::New | CodexState::Over => {}
        }
    }

    fn prompt(&mut self, prompt: &Prompt, out: &mut Vec<Action>) -> Result<()> {
        let input = start::input(&prompt.parts, self.cwd());
        let CodexState::Ready(thread) = &mut self.state else {
            return Err(self.unsupported("take a prompt: its session is not ready, or over"));
        };
        if thread.turn.is_some() || thread.compaction.is_some() || !self.peer.pending.has_room(1) {
            return Err(WireError::Busy);
        }
        if thread.screen.is_some() {
            thread.turn = Some(CodexTurn { held_input: Some(input), ..CodexTurn::default() });
            return Ok(());
        }
        thread.turn = Some(CodexTurn::default());
        self.start_turn(&input, out);
        Ok(())
    }

    fn steer(&mut self, prompt: &Prompt, out: &mut Vec<Action>) -> Result<()> {
        let input = start::input(&prompt.parts, self.cwd());
        let CodexState::Ready(thread) = &mut self.state else {
            return Err(self.unsupported("be steered: no turn runs"));
        };
        let thread_id = thread.id.clone();
        let Some(turn) = &mut thread.turn else { return Err(self.unsupported("be steered: no turn runs")) };
        match turn.id.clone() {
            Some(id) if self.peer.pending.has_room(1) => self.send_steer(&thread_id, &id, &input, out),
            None if turn.held_steers.len() < MAX_HELD => turn.held_steers.push(input),
            _ => return Err(WireError::Busy),
        }
        Ok(())
    }

    fn abort(&mut self, out: &mut Vec<Action>) -> Result<()> {
        let CodexState::Ready(thread) = &mut self.state else { return Ok(()) };
        let Some(turn) = &mut thread.turn else { return Ok(()) };
        turn.aborting = true;
        turn.held_steers.clear();
        if turn.held_input.is_some() {
            // The turn that runs is not ours.
            self.complete(StopReason::Cancelled, out);
            return Ok(());
        }
        self.approvals.cancel_all(out);
        for (thread, turn) in self.sub_agents.running() {
            if !self.peer.pending.has_room(2) {
                // The earlier requests are still unanswered.
                break;
            }
            let params = json!({ "threadId": thread, "turnId": turn });
            self.request("turn/interrupt", &params, CodexPurpose::Ignored, out);
            self.request(
                "thread/backgroundTerminals/clean",
                &json!({ "threadId": thread }),
                CodexPurpose::Ignored,
                out,
            );
        }
        self.interrupt(out);
        Ok(())
    }

    fn permission(&mut self, id: &str, answer: &PermissionAnswer, by: ResolvedBy, out: &mut Vec<Action>) -> Result<()> {
        if let Some(reason) = self.approvals.answer(&self.agent, id, answer, by, out)? {
            let input = start::input(&[PromptPart::Text(reason.message)], "/");
            self.send_steer(&reason.thread, &reason.turn, &input, out);
        }
        Ok(())
    }

    fn operate(&mut self, request: RequestId, operation: &Operation, out: &mut Vec<Action>) -> Result<()> {
        self.send_operation(request, operation, out)
    }
}
