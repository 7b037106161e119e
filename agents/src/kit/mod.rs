//! Parts of which adapters are made. None of them does I/O.
//!
//! | part | for |
//! |---|---|
//! | [`json_lines`] | an agent that speaks JSON lines: the adapter implements [`JsonLinesAgent`](json_lines::JsonLinesAgent), and gets whole messages |
//! | [`json_rpc`] | JSON-RPC on those lines: messages, requests, replies and refusals |
//! | [`pending`] | our requests that the agent has not answered, each with its purpose |
//! | [`tool_calls`] | the ledger of tool calls: their starts, updates and ends, and the pace of their output |
//! | [`answer`] | how much of the model's answer is void when the agent asks for it again |
//! | [`bounds`] | the longest texts and documents that an event may hold |
//! | [`bounded_map`] | a map that forgets its oldest entry |
//! | [`lines`] | lines of plain text |

pub(crate) mod answer;
pub(crate) mod bounded_map;
pub(crate) mod bounds;
pub(crate) mod json_lines;
pub(crate) mod json_rpc;
pub(crate) mod lines;
pub(crate) mod pending;
pub(crate) mod tool_calls;

use ipc_protocol::{Event, NativeResume, WireError};

use crate::{Action, Result};

/// A `log` event with a line of standard error.
pub(crate) fn stderr_line(line: &[u8]) -> Action {
    let text = String::from_utf8_lossy(line).into_owned();
    Action::Event(Event::Log { stream: "stderr".into(), text })
}

/// A `session:status` event.
pub(crate) fn session_status(status: &str, detail: impl Into<String>) -> Event {
    Event::SessionStatus { status: status.to_owned(), detail: detail.into() }
}

/// Ends the turn of an agent whose output has ended.
pub(crate) fn cut_turn_short(out: &mut Vec<Action>) {
    let message = "the agent's output ended during the turn";
    out.extend([Action::Event(Event::error("agent-exited", message, false)), Action::TurnEnded]);
}

/// The error for a request that the agent did not answer before it ended.
pub(crate) fn unanswered() -> WireError {
    WireError::AgentDied { reason: "its output ended before it answered".to_owned() }
}

/// The error for a conversation that `agent` cannot continue.
pub(crate) fn missing_conversation(agent: &str, resume: Option<&NativeResume>, reason: impl Into<String>) -> WireError {
    let id = resume.and_then(|resume| resume.id.clone()).unwrap_or_else(|| "the most recent".to_owned());
    WireError::NativeSessionMissing { agent: agent.to_owned(), id, reason: reason.into() }
}

/// The first of the features that a configuration asks for and the agent lacks, as an error: pairs of whether it is asked for, and
/// its name as the end of "agent … cannot".
pub(crate) fn refuse_asked(agent: &str, features: &[(bool, &str)]) -> Result<()> {
    match features.iter().find(|(is_asked, _)| *is_asked) {
        Some((_, feature)) => Err(WireError::Unsupported { agent: agent.to_owned(), operation: (*feature).to_owned() }),
        None => Ok(()),
    }
}
