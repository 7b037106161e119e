//! Adapter for any program in a terminal: what it shows is on its screen, and a prompt is typed there.

use ipc_protocol::{Prompt, PromptPart};

use crate::{Action, Adapter, AdapterSetup, LineSplitter, Result};

/// Name of the adapter. It is no protocol of a row: a session has it where it has a terminal.
pub const PROTOCOL: &str = "terminal";

/// State machine of the adapter, without any state.
#[derive(Debug)]
struct TerminalAdapter {
    agent: String,
    /// Conversation of the agent, as far as it is known at the start.
    conversation: Option<String>,
    /// Reports of the agent's hooks.
    reports: LineSplitter,
}

/// Makes the adapter.
///
/// # Errors
/// None: what cannot be had in a terminal is refused where the command is made.
pub(crate) fn make(setup: AdapterSetup) -> Result<Box<dyn Adapter>> {
    let AdapterSetup { config, agent, resume, fresh_id, protocol_config, .. } = setup;
    let begun = resume.as_ref().is_none_or(|resume| resume.fork);
    let family = protocol_config.get("config").and_then(|family| family.as_str());
    // As its provision has it.
    let takes_id = family == Some("claude") && config.command.is_empty();
    let conversation = if begun { takes_id.then_some(fresh_id) } else { resume.and_then(|resume| resume.id) };
    Ok(Box::new(TerminalAdapter { agent, conversation, reports: LineSplitter::default() }))
}

impl Adapter for TerminalAdapter {
    fn agent(&self) -> &str {
        &self.agent
    }

    fn has_turns(&self) -> bool {
        false
    }

    fn start(&mut self, out: &mut Vec<Action>) {
        out.push(Action::Ready { native_session_id: self.conversation.clone() });
    }

    fn stdout(&mut self, bytes: &[u8], out: &mut Vec<Action>) {
        let conversation = &mut self.conversation;
        self.reports.push(bytes, |line| crate::claude::take_report(line, conversation, out));
    }

    fn stderr(&mut self, _bytes: &[u8], _out: &mut Vec<Action>) {}

    fn finish(&mut self, _out: &mut Vec<Action>) {}

    fn prompt(&mut self, prompt: &Prompt, out: &mut Vec<Action>) -> Result<()> {
        if prompt.parts.iter().any(|part| matches!(part, PromptPart::Image { .. })) {
            return Err(self.unsupported("take pictures in a terminal"));
        }
        let words = prompt.parts.iter().filter_map(|part| match part {
            PromptPart::Text(text) => Some(text.as_str()),
            PromptPart::File { path } => Some(path.as_str()),
            PromptPart::Image { .. } => None,
        });
        out.push(Action::Write(words.collect::<Vec<_>>().join(" ").into_bytes()));
        Ok(())
    }
}
