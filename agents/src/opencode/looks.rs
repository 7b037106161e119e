//! What people see of a conversation beside its messages: title, model, mode, thinking level, slash commands.
//!
//! The server keeps model, mode and level with each prompt: those of the last prompt are in use.

use std::collections::HashSet;

use ipc_protocol::{Prompt, PromptPart};
use serde_json::Value;

use super::wire::{CommandInfo, MessageInfo, SessionInfo};
use crate::{
    Action,
    kit::{
        bounds::words,
        emit_title, session_commands, session_title,
        settings::{AgentSettings, EmittedSettings},
    },
};

/// Prefix of the title that an untitled conversation has.
const UNTITLED: &str = "New session";
/// Most commands that are remembered.
const MAX_COMMANDS: usize = 1000;

/// Reads mode and model of a prompt or a conversation; `key` names the id of the model.
fn settings(agent: &Value, model: &Value, key: &str) -> AgentSettings {
    let text = |key: &str| model[key].as_str();
    let name = || Some(words(&format!("{}/{}", text("providerID")?, text(key)?)));
    let thinking = text("variant").filter(|variant| *variant != "default");
    AgentSettings { model: name(), mode: agent.as_str().map(words), thinking: thinking.map(words) }
}

/// State of these looks, as they were emitted.
#[derive(Debug, Default)]
pub(super) struct ConversationLooks {
    title: Option<String>,
    /// Settings of the conversation before it was opened here.
    opened_with: AgentSettings,
    pub(super) settings: EmittedSettings,
    commands: HashSet<Box<str>>,
}

impl ConversationLooks {
    /// Records a conversation that was opened.
    pub(super) fn opened(&mut self, info: &SessionInfo) {
        self.title = title(info);
        self.opened_with = settings(&info.agent, &info.model, "id");
    }

    /// Emits what is known at the beginning; `asked` are the settings that the session asks for.
    pub(super) fn begin(&mut self, asked: AgentSettings, out: &mut Vec<Action>) {
        out.extend(self.title.as_deref().map(|title| Action::Event(session_title(title))));
        self.settings.change(asked.or(std::mem::take(&mut self.opened_with)), out);
    }

    /// Handles a change of the conversation.
    pub(super) fn changed(&mut self, info: &SessionInfo, out: &mut Vec<Action>) {
        if let Some(title) = title(info).filter(|title| self.title.as_ref() != Some(title)) {
            emit_title(&title, out);
            self.title = Some(title);
        }
    }

    /// Handles a new prompt: its settings are in use from now on.
    pub(super) fn prompted(&mut self, info: &MessageInfo<'_>, out: &mut Vec<Action>) {
        self.settings.change(settings(&info.agent, &info.prompt_model, "modelID"), out);
    }

    /// Emits the commands that the server offers.
    pub(super) fn offered(&mut self, body: &[u8], out: &mut Vec<Action>) {
        let Ok(all) = serde_json::from_slice::<Vec<CommandInfo>>(body) else { return };
        self.commands = all.iter().take(MAX_COMMANDS).map(|command| command.name.as_str().into()).collect();
        let hints: Vec<String> = all.iter().map(|command| command.hints.join(" ")).collect();
        let menu = all.iter().zip(&hints).map(|(it, hint)| (&*it.name, it.description.as_deref(), Some(hint.as_str())));
        if !all.is_empty() {
            out.push(Action::Event(session_commands(menu)));
        }
    }

    /// Returns the command that a prompt calls, and what is behind its name.
    pub(super) fn command<'a>(&self, prompt: &'a Prompt) -> Option<(&'a str, &'a str)> {
        let Some(PromptPart::Text(text)) = prompt.parts.first() else { return None };
        let call = text.trim().strip_prefix('/')?;
        let (name, input) = call.split_once(char::is_whitespace).unwrap_or((call, ""));
        self.commands.contains(name).then_some((name, input.trim_start()))
    }
}

fn title(info: &SessionInfo) -> Option<String> {
    info.title.clone().filter(|title| !title.is_empty() && !title.starts_with(UNTITLED))
}
