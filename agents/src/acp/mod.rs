//! The Agent Client Protocol, version 1: JSON-RPC lines on standard input and output.
//!
//! - The handshake is `initialize`, then `session/new` or a request that continues a conversation (`session/resume`, `session/load`,
//!   `session/fork`), and then the requests that set model, mode and thinking, where the configuration names them.
//!   The row may allow `session/new` to be sent together with `initialize`; this is done only if nothing depends on the answer.
//! - A system prompt is the first text block of the first prompt, unless the agent says that it takes one.
//! - A configured value that the agent does not offer is refused.
//! - A line that the adapter does not understand becomes a `log` event, so that nothing is lost.
//!
//! The numbers: `stream:usage` and the usage of `stream:complete` are those of the turn. Tokens are the numbers in the agent's answer
//! to the prompt (OpenCode counts its last request to the model only; Gemini counts cached tokens as input). The cost is the increase
//! of the sum that the agent reports; it is unknown for the first turn of a continued conversation.
//!
//! A row's `protocol_config` may say: `steerByPrompt` (`true`: a prompt while a turn runs steers it, and each is answered;
//! `"unanswered"`: only one of them is), `compactCommand` (what has the agent compact its conversation, where it does not offer a
//! command of that name), `opensAtOnce` (`true`: it takes `session/new` before it has answered `initialize`, and answers in that
//! order), `provisions` (fields of the configuration that the agent has from its files or arguments: `tools`, `ephemeral`;
//! `thinking`, where it offers no choice of levels), `login` (how it is logged in, for people), `sessionFailures` (`true`: it says in `_meta` what fails, and that it asks
//! again, to who declares to understand it: `failures.rs`).

mod content;
mod details;
mod errors;
mod failures;
mod gemini;
mod handshake;
mod listing;
mod offer;
mod opening;
mod operations;
mod permissions;
mod quirks;
mod session;
mod state;
mod tools;
mod turn;
mod updates;
mod wire;

use std::time::Instant;

use agent_client_protocol_schema::v1;
use ipc_protocol::{Operation, PermissionAnswer, Prompt, ResolvedBy, ToolStatus, WireError, message::RequestId};

use self::{
    gemini::LookupPurpose,
    handshake::ConversationOpening,
    session::AcpSession,
    state::{AcpActivity, AcpPurpose, AcpState, SteeringMode},
    turn::{AcpTurn, MAX_STEERS},
};
use crate::{
    Action, Adapter, AdapterSetup, ListedFile, Result,
    kit::{cut_turn_short, json_lines::JsonLinesAgent as _, tool_calls::ended, unanswered},
};

/// Makes the adapter. The agent's limits are known once it has answered `initialize`.
///
/// # Errors
/// None now.
pub fn make(setup: AdapterSetup) -> Result<Box<dyn Adapter>> {
    Ok(Box::new(AcpSession::new(setup)))
}

impl Adapter for AcpSession {
    fn agent(&self) -> &str {
        &self.agent
    }

    fn start(&mut self, out: &mut Vec<Action>) {
        if matches!(self.state, AcpState::New) {
            self.peer.request(
                "initialize",
                Some(handshake::initialize(self.says_failures)),
                AcpPurpose::Initialize,
                out,
            );
            if self.opens_at_once {
                self.request_conversation(&ConversationOpening::New, out);
            }
            self.state = AcpState::Initializing { is_opening: self.opens_at_once };
        }
    }

    fn stdout(&mut self, bytes: &[u8], out: &mut Vec<Action>) {
        self.read_messages(bytes, out);
    }

    fn stderr(&mut self, bytes: &[u8], out: &mut Vec<Action>) {
        self.read_stderr(bytes, out);
    }

    fn listed(&mut self, id: u64, files: Vec<ListedFile>, out: &mut Vec<Action>) {
        self.found_files(id, &files, out);
    }

    fn tick(&mut self, now: Instant, out: &mut Vec<Action>) -> Option<Instant> {
        self.calls.tick(now, out)
    }

    fn finish(&mut self, out: &mut Vec<Action>) {
        self.read_rest(out);
        self.permissions.close_all(out);
        self.calls.end_all(ended::GONE, out);
        let asked = self.peer.pending.drain().filter_map(|purpose| match purpose {
            AcpPurpose::Operation(request, _) => Some(request),
            _ => None,
        });
        let looks = std::mem::take(&mut self.lookups).into_iter().filter_map(|look| match look.purpose {
            LookupPurpose::List(request) => Some(request),
            LookupPurpose::Load(_) | LookupPurpose::Tidy(_) => None,
        });
        out.extend(asked.chain(looks).map(|request| Action::Reply { request, reply: Err(unanswered()) }));
        let waited_for = match std::mem::replace(&mut self.state, AcpState::Over) {
            AcpState::Ready { activity: AcpActivity::Turn(_), .. } => return cut_turn_short(out),
            AcpState::Ready { activity: AcpActivity::Compacting { operation, .. }, .. } => {
                out.push(Action::Reply { request: operation, reply: Err(unanswered()) });
                return;
            }
            AcpState::Initializing { .. } => "initialize",
            AcpState::Looking => "what files it has",
            AcpState::Finding { .. } => "session/list",
            AcpState::Opening { opening } => opening.method(),
            AcpState::Configuring { .. } => "the request to set its model, mode or thinking",
            AcpState::Settling { .. } => "session/load to its end",
            AcpState::New | AcpState::Ready { .. } | AcpState::Over => return,
        };
        let reason = format!("its output ended before it answered {waited_for}");
        out.push(Action::Fail(WireError::AgentDied { reason }));
    }

    fn prompt(&mut self, prompt: &Prompt, out: &mut Vec<Action>) -> Result<()> {
        let session = match &self.state {
            AcpState::Ready { session, activity: AcpActivity::Idle } => session.clone(),
            AcpState::Ready { .. } => return Err(WireError::Busy),
            _ => return Err(self.unsupported("take a prompt: its session is not ready, or over")),
        };
        self.send_prompt(&session, prompt, out)?;
        self.cost.begin_turn();
        self.state = AcpState::Ready { session, activity: AcpActivity::Turn(AcpTurn::default()) };
        Ok(())
    }

    fn steer(&mut self, prompt: &Prompt, out: &mut Vec<Action>) -> Result<()> {
        if self.steering == SteeringMode::No {
            return Err(self.unsupported("be steered while a turn runs: abort the turn, or queue the prompt"));
        }
        let AcpState::Ready { session, activity: AcpActivity::Turn(turn) } = &self.state else {
            return Err(self.unsupported("be steered: no turn runs"));
        };
        if turn.steers >= MAX_STEERS {
            return Err(WireError::Busy);
        }
        let session = session.clone();
        self.send_prompt(&session, prompt, out)?;
        if let AcpState::Ready { activity: AcpActivity::Turn(turn), .. } = &mut self.state {
            turn.steers += 1;
        }
        Ok(())
    }

    fn abort(&mut self, out: &mut Vec<Action>) -> Result<()> {
        let AcpState::Ready { session, activity } = &mut self.state else { return Ok(()) };
        let session = session.clone();
        match activity {
            AcpActivity::Idle => return Ok(()),
            AcpActivity::Turn(turn) => turn.cancelled = true,
            AcpActivity::Compacting { .. } => {}
        }
        // Requests go first: some agents do not read the cancellation while they wait for an answer.
        self.cancel_requests(out);
        wire::RPC.notify("session/cancel", Some(v1::CancelNotification::new(session)), out);
        Ok(())
    }

    fn permission(&mut self, id: &str, answer: &PermissionAnswer, by: ResolvedBy, out: &mut Vec<Action>) -> Result<()> {
        let (call, allowed) = self.permissions.answer(id, answer, by, &self.agent, out)?;
        if allowed {
            self.calls.mark_allowed(&call);
        } else if self.offer.quirks.drops_rejected {
            // The agent sends nothing more about it.
            self.calls.end(&call, ToolStatus::Failed, Some("rejected".to_owned()), out);
        }
        Ok(())
    }

    fn operate(&mut self, request: RequestId, operation: &Operation, out: &mut Vec<Action>) -> Result<()> {
        self.send_operation(request, operation, out)
    }
}
