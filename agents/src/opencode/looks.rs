//! What people see of a conversation beside its messages: title, model, mode, thinking level, slash commands.
//!
//! The server keeps model, mode and level with each prompt: those of the last prompt are in use.

use std::collections::HashSet;

use ipc_protocol::{Event, Prompt, PromptPart, message::AgentFact};
use serde_json::Value;

use super::wire::{CommandInfo, MessageInfo, SessionInfo};
use crate::{
    Action,
    kit::{bounds::words, session_commands, session_mode, session_model, session_thinking, session_title},
};

/// Prefix of the title that an untitled conversation has.
const UNTITLED: &str = "New session";
/// Most commands that are remembered.
const MAX_COMMANDS: usize = 1000;

/// Settings of a prompt, as far as they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PromptLooks {
    pub(super) model: Option<String>,
    pub(super) mode: Option<String>,
    pub(super) thinking: Option<String>,
}

impl PromptLooks {
    /// Reads mode and model of a prompt or a conversation; `key` names the id of the model.
    fn read(agent: &Value, model: &Value, key: &str) -> Self {
        let text = |key: &str| model[key].as_str();
        let name = || Some(words(&format!("{}/{}", text("providerID")?, text(key)?)));
        let thinking = text("variant").filter(|variant| *variant != "default");
        Self { model: name(), mode: agent.as_str().map(words), thinking: thinking.map(words) }
    }

    /// Returns these settings, with those of `other` where they have none.
    fn or(self, other: Self) -> Self {
        Self {
            model: self.model.or(other.model),
            mode: self.mode.or(other.mode),
            thinking: self.thinking.or(other.thinking),
        }
    }
}

/// State of these looks, as they were emitted.
#[derive(Debug, Default)]
pub(super) struct ConversationLooks {
    title: Option<String>,
    settings: PromptLooks,
    commands: HashSet<Box<str>>,
}

impl ConversationLooks {
    /// Records a conversation that was opened.
    pub(super) fn opened(&mut self, info: &SessionInfo) {
        self.title = title(info);
        self.settings = PromptLooks::read(&info.agent, &info.model, "id");
    }

    /// Emits what is known at the beginning; `asked` are the settings that the session asks for.
    pub(super) fn begin(&mut self, asked: PromptLooks, out: &mut Vec<Action>) {
        out.extend(self.title.as_deref().map(|title| Action::Event(session_title(title))));
        self.settings = asked.or(std::mem::take(&mut self.settings));
        fact(self.settings.clone(), out);
    }

    /// Handles a change of the conversation.
    pub(super) fn changed(&mut self, info: &SessionInfo, out: &mut Vec<Action>) {
        if let Some(title) = title(info).filter(|title| self.title.as_ref() != Some(title)) {
            out.push(Action::Event(session_title(&title)));
            self.title = Some(title);
        }
    }

    /// Handles a new prompt: its settings are in use from now on.
    pub(super) fn prompted(&mut self, info: &MessageInfo<'_>, out: &mut Vec<Action>) {
        let now = PromptLooks::read(&info.agent, &info.prompt_model, "modelID").or(self.settings.clone());
        let before = std::mem::replace(&mut self.settings, now.clone());
        // What is known for the first time has not changed.
        let mut first = PromptLooks::default();
        type MakeEvent = fn(&str) -> Event;
        let settings: [(Option<String>, Option<String>, &mut Option<String>, MakeEvent); 3] = [
            (before.model, now.model, &mut first.model, session_model),
            (before.mode, now.mode, &mut first.mode, session_mode),
            (before.thinking, now.thinking, &mut first.thinking, session_thinking),
        ];
        for (before, now, first, event) in settings {
            match (before, now) {
                (None, now) => *first = now,
                (Some(before), Some(now)) if before != now => out.push(Action::Event(event(&now))),
                _ => {}
            }
        }
        fact(first, out);
    }

    /// Emits the settings in `set`, which an operation has set for the next prompt.
    pub(super) fn set(&mut self, set: PromptLooks, out: &mut Vec<Action>) {
        out.extend(set.model.as_deref().map(|model| Action::Event(session_model(model))));
        out.extend(set.mode.as_deref().map(|mode| Action::Event(session_mode(mode))));
        out.extend(set.thinking.as_deref().map(|level| Action::Event(session_thinking(level))));
        self.settings = set.or(std::mem::take(&mut self.settings));
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

fn fact(settings: PromptLooks, out: &mut Vec<Action>) {
    if settings != PromptLooks::default() {
        let PromptLooks { model, mode, thinking } = settings;
        out.push(Action::Fact(AgentFact::Settings { model, mode, thinking }));
    }
}
