//! Parts of which adapters are made. None of them does I/O.
//!
//! | part | for |
//! |---|---|
//! | [`json_lines`] | an agent that speaks JSON lines: the adapter implements [`JsonLinesAgent`](json_lines::JsonLinesAgent), and gets whole messages |
//! | [`json_rpc`] | JSON-RPC on those lines: messages, requests, replies and refusals |
//! | [`pending`] | our requests that the agent has not answered, each with its purpose |
//! | [`settings`] | model, mode and thinking level: what was told first, and changes of it |
//! | [`choices`] | the models, modes and thinking levels to choose from, in one shape |
//! | [`tool_calls`] | the ledger of tool calls: their starts, updates and ends, and the pace of their output |
//! | [`diffs`] | diffs of files, in one shape, each emitted once |
//! | [`answer`] | how much of the model's answer is void when the agent asks for it again |
//! | [`bounds`] | the longest texts and documents that an event may hold |
//! | [`bounded_map`] | a map that forgets its oldest entry |
//! | [`lines`] | lines of plain text |

pub(crate) mod answer;
pub(crate) mod bounded_map;
pub(crate) mod bounds;
pub(crate) mod choices;
pub(crate) mod diffs;
pub(crate) mod json_lines;
pub(crate) mod json_rpc;
pub(crate) mod lines;
pub(crate) mod pending;
pub(crate) mod settings;
pub(crate) mod tool_calls;

use ipc_protocol::{Event, ImageOutput, NativeResume, SettingSource, SlashCommand, WireError};

use crate::{Action, Result};

/// Longest picture in an event, in bytes of its base64.
const MAX_IMAGE: usize = 1024 * 1024;
/// Most slash commands in an event.
const MAX_COMMANDS: usize = 256;
/// Longest name of a slash command, in characters.
const MAX_COMMAND_NAME: usize = 128;
/// Longest description and hint of a slash command, in characters.
const MAX_COMMAND_TEXT: usize = 400;

/// A `log` event with a line of standard error.
pub(crate) fn stderr_line(line: &[u8]) -> Action {
    let text = String::from_utf8_lossy(line).into_owned();
    Action::Event(Event::Log { stream: "stderr".into(), text })
}

/// A `session:status` event.
pub(crate) fn session_status(status: &str, detail: impl Into<String>) -> Event {
    Event::SessionStatus { status: status.to_owned(), detail: detail.into() }
}

/// A `session:title` event of the agent's: one line, bounded.
pub(crate) fn session_title(title: &str) -> Event {
    Event::SessionTitle { title: bounds::title(title), by: SettingSource::Agent }
}

/// Emits a new title, and the status that earlier releases had for it.
pub(crate) fn emit_title(title: &str, out: &mut Vec<Action>) {
    out.push(Action::Event(session_status("title", bounds::words(title))));
    out.push(Action::Event(session_title(title)));
}

/// A `session:model` event of the agent's.
pub(crate) fn session_model(model: &str) -> Event {
    Event::SessionModel { model: bounds::words(model), by: SettingSource::Agent }
}

/// A `session:mode` event of the agent's.
pub(crate) fn session_mode(mode: &str) -> Event {
    Event::SessionMode { mode: bounds::words(mode), by: SettingSource::Agent }
}

/// A `session:thinking` event of the agent's.
pub(crate) fn session_thinking(level: &str) -> Event {
    Event::SessionThinking { level: bounds::words(level), by: SettingSource::Agent }
}

/// A `stream:image` event: of a tool call, or of the answer.
pub(crate) fn image(mime_type: &str, data: &str, tool_call_id: Option<&str>, parent: Option<&str>) -> Event {
    let padding = data.len() - data.trim_end_matches('=').len();
    Event::Image(Box::new(ImageOutput {
        mime_type: bounds::words(mime_type),
        data: (data.len() <= MAX_IMAGE).then(|| data.to_owned()),
        bytes: (data.len() / 4 * 3).saturating_sub(padding) as u64,
        tool_call_id: tool_call_id.map(str::to_owned),
        parent: parent.map(str::to_owned),
    }))
}

/// A `session:commands` event: name, description and argument hint of each command, bounded.
pub(crate) fn session_commands<'a>(
    commands: impl IntoIterator<Item = (&'a str, Option<&'a str>, Option<&'a str>)>,
) -> Event {
    let line = |text: &str, most: usize| text.trim().chars().take(most).collect::<String>();
    let text = |text: Option<&str>| text.map(|text| line(text, MAX_COMMAND_TEXT)).filter(|text| !text.is_empty());
    let command = |(name, description, hint): (&str, Option<&str>, Option<&str>)| SlashCommand {
        name: line(name.trim_start_matches('/'), MAX_COMMAND_NAME),
        description: text(description),
        argument_hint: text(hint),
    };
    let commands = commands.into_iter().map(command).filter(|command| !command.name.is_empty());
    Event::SessionCommands { commands: commands.take(MAX_COMMANDS).collect() }
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
