//! Claude Code in stream-json: JSON lines on standard input and output. Turns are `user` and `result` messages; everything else is
//! control requests in both directions.
//!
//! - The agent is ready when it has answered `initialize`. `system/init`, at the start of every turn, contains the rest.
//! - System prompt, MCP servers and thinking level are part of the handshake, so that no argument contains them. Model, mode, tools
//!   and the conversation to continue are arguments: `../provision/claude.rs`.
//! - Each of our messages has a name, and a turn ends when the agent has answered all messages of the turn: `turn.rs`.
//! - The meaning of the agent's numbers: `usage.rs`.
//! - A line that the adapter does not understand becomes a `log` event, so that nothing is lost.

mod diffs;
mod messages;
mod operations;
mod outgoing;
mod permissions;
mod plan;
mod session;
mod stored_conversations;
mod system;
pub(crate) mod tools;
mod turn;
mod usage;
mod wire;

use ipc_protocol::WireError;

pub(crate) use self::permissions::NOT_ALLOWED;
use crate::{Adapter, AdapterSetup, Result};

/// Makes the adapter.
///
/// # Errors
/// [`WireError::Unsupported`] for a thinking level that the agent does not have.
pub fn make(setup: AdapterSetup) -> Result<Box<dyn Adapter>> {
    let agent = setup.agent.clone();
    let session =
        session::ClaudeSession::new(setup).map_err(|operation| WireError::Unsupported { agent, operation })?;
    Ok(Box::new(session))
}
