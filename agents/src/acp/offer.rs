//! Choices that the agent offers: as it listed them at the start, with later changes.

use agent_client_protocol_schema::v1::{
    AgentCapabilities, AvailableCommand, AvailableCommandInput, InitializeResponse, SessionConfigKind,
    SessionConfigOption, SessionConfigOptionCategory, SessionConfigSelectOption, SessionConfigSelectOptions,
    SessionModeState, SessionUpdate,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use ipc_protocol::Event;

use super::quirks::AcpQuirks;
use crate::{
    Action,
    kit::{
        bounds::words,
        choices::{AgentChoices, choice},
        session_commands, session_mode, session_model, session_thinking,
    },
};

/// Most choices listed in an error.
const MAX_NAMED: usize = 20;
/// Most commands that are remembered.
const MAX_COMMANDS: usize = 1000;
/// Agents' names for the mode that does the work.
const BUILD: [&str; 5] = ["build", "default", "code", "agent", "auto"];
/// Agents' names for the planning mode.
const PLAN: [&str; 3] = ["plan", "architect", "read-only"];

/// Capabilities of an agent, and the choices of its session.
#[derive(Debug, Default)]
pub(super) struct AgentOffer {
    pub(super) capabilities: AgentCapabilities,
    pub(super) quirks: AcpQuirks,
    modes: Option<SessionModeState>,
    /// Models of agents that still have the request that the schema dropped, as raw JSON.
    models: Option<Value>,
    options: Vec<SessionConfigOption>,
    commands: Vec<String>,
    /// Those of them that take words behind their names.
    with_input: Vec<String>,
    /// The commands, for an event that was not emitted yet.
    menu: Option<Event>,
    /// Settings that were emitted last.
    emitted: CurrentSettings,
    /// Name and version, as the agent says them.
    pub(super) program: Option<String>,
    /// Its answer to `initialize`, as it stands.
    initialized: Value,
}

/// Value of a session that can be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AcpSetting {
    Model(String),
    Mode(String),
    Thinking(String),
}

impl AcpSetting {
    /// Describes the setting as the end of "agent … cannot".
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Model(model) => format!("use the model {model:?}"),
            Self::Mode(mode) => format!("work in mode {mode:?}"),
            Self::Thinking(level) => format!("think {level:?}"),
        }
    }
}

/// Settings that are in use, as far as the agent tells them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CurrentSettings {
    pub(super) model: Option<String>,
    pub(super) mode: Option<String>,
    pub(super) thinking: Option<String>,
}

/// Request that sets a value: its method, and its parameters without the session's id.
pub(super) type SetRequest = (&'static str, Map<String, Value>);

/// Choices in the answer that opens a session.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OfferedChoices {
    modes: Option<SessionModeState>,
    models: Option<Value>,
    config_options: Option<Vec<SessionConfigOption>>,
}

impl AgentOffer {
    /// Returns whether the agent can continue a conversation of an earlier process.
    pub(super) fn can_resume(&self) -> bool {
        self.capabilities.load_session || self.capabilities.session_capabilities.resume.is_some()
    }

    /// Makes the offer from the agent's answer to `initialize`.
    pub(super) fn new(response: InitializeResponse, result: &str) -> Self {
        let info = response.agent_info;
        Self {
            capabilities: response.agent_capabilities,
            quirks: info.as_ref().map(|info| AcpQuirks::of(&info.name)).unwrap_or_default(),
            program: info.map(|info| words(&format!("{} {}", info.name, info.version))),
            modes: None,
            models: None,
            options: Vec::new(),
            commands: Vec::new(),
            with_input: Vec::new(),
            menu: None,
            emitted: CurrentSettings::default(),
            initialized: serde_json::from_str(result).unwrap_or_default(),
        }
    }

    /// Records the choices in an answer, if it has any.
    pub(super) fn record_answer(&mut self, result: &str) {
        let Ok(choices) = serde_json::from_str::<OfferedChoices>(result) else { return };
        self.modes = choices.modes.or(self.modes.take());
        self.models = choices.models.filter(|models| !models.is_null()).or(self.models.take());
        if let Some(options) = choices.config_options {
            self.options = options;
        }
    }

    /// Records what an update changes. Returns whether the update is about the choices.
    pub(super) fn record_update(&mut self, update: &SessionUpdate) -> bool {
        match update {
            SessionUpdate::CurrentModeUpdate(update) => self.record_mode(&update.current_mode_id.0),
            SessionUpdate::ConfigOptionUpdate(update) => self.options.clone_from(&update.config_options),
            SessionUpdate::AvailableCommandsUpdate(update) => {
                let had_some = !self.commands.is_empty();
                let commands = || update.available_commands.iter().take(MAX_COMMANDS);
                self.commands = commands().map(|command| command.name.clone()).collect();
                let with_input = commands().filter(|command| command.input.is_some());
                self.with_input = with_input.map(|command| command.name.clone()).collect();
                let hint = |command: &'_ AvailableCommand| match &command.input {
                    Some(AvailableCommandInput::Unstructured(input)) => Some(input.hint.clone()),
                    _ => None,
                };
                let menu: Vec<_> = commands().map(|it| (&*it.name, &*it.description, hint(it))).collect();
                let menu = menu.iter().map(|(name, about, hint)| (*name, Some(*about), hint.as_deref()));
                let menu = session_commands(menu);
                self.menu = Some(menu).filter(|_| had_some || !self.commands.is_empty());
            }
            _ => return false,
        }
        true
    }

    /// Records the agent's current mode.
    pub(super) fn record_mode(&mut self, mode: &str) {
        if let Some(modes) = &mut self.modes {
            modes.current_mode_id = mode.to_owned().into();
        }
    }

    /// Records the value that a request has set, where the agent's answer does not contain it.
    pub(super) fn record_set(&mut self, request: &SetRequest) {
        let (method, params) = request;
        match (*method, params.get("modeId").or(params.get("modelId")).and_then(Value::as_str)) {
            ("session/set_mode", Some(mode)) => self.record_mode(mode),
            ("session/set_model", Some(model)) => {
                if let Some(Value::Object(models)) = &mut self.models {
                    models.insert("currentModelId".into(), model.into());
                }
            }
            _ => {}
        }
    }

    /// Returns the session's state: the first answers with later changes.
    pub(super) fn state(&self, session: &str) -> Value {
        json!({
            "sessionId": session,
            "agent": self.initialized,
            "modes": self.modes,
            "models": self.models,
            "configOptions": self.options,
            "commands": self.commands,
        })
    }

    /// Returns what the agent offers to choose from.
    pub(super) fn choices(&self) -> AgentChoices {
        let of_option = |category| {
            let select = |option: &SessionConfigSelectOption| {
                choice(&option.value.0, Some(&option.name), option.description.as_deref())
            };
            self.option(&category).map(|option| selectable(option).into_iter().map(select).collect())
        };
        let models = || {
            let models = self.models.as_ref()?["availableModels"].as_array()?.iter();
            let model = |model: &Value| {
                Some(choice(model["modelId"].as_str()?, model["name"].as_str(), model["description"].as_str()))
            };
            Some(models.filter_map(model).collect())
        };
        let modes = || {
            let modes = self.modes.as_ref()?.available_modes.iter();
            Some(modes.map(|mode| choice(&mode.id.0, Some(&mode.name), mode.description.as_deref())).collect())
        };
        AgentChoices {
            models: of_option(SessionConfigOptionCategory::Model).or_else(models),
            modes: of_option(SessionConfigOptionCategory::Mode).or_else(modes),
            thinking: of_option(SessionConfigOptionCategory::ThoughtLevel),
        }
    }

    /// Returns the request for `setting`, or `None` if the value is already set.
    ///
    /// # Errors
    /// The missing ability, as the end of "agent … cannot".
    pub(super) fn request(&self, setting: &AcpSetting) -> Result<Option<SetRequest>, String> {
        match setting {
            AcpSetting::Model(model) => self.set_model(model),
            AcpSetting::Mode(mode) => self.set_mode(mode),
            AcpSetting::Thinking(level) => self.set_thinking(level),
        }
    }

    fn option(&self, category: &SessionConfigOptionCategory) -> Option<&SessionConfigOption> {
        self.options.iter().find(|option| option.category.as_ref() == Some(category))
    }

    fn set_model(&self, model: &str) -> Result<Option<SetRequest>, String> {
        match (self.option(&SessionConfigOptionCategory::Model), &self.models) {
            (Some(option), _) => {
                let offered = values(option);
                if offered.contains(&model) {
                    Ok(set_option(option, model))
                } else {
                    Err(format!("use the model {model:?}: it offers {}", list(&offered)))
                }
            }
            // This list may be incomplete: one agent takes any model's name.
            (None, Some(models)) if models["currentModelId"] == model => Ok(None),
            (None, Some(_)) => Ok(Some(("session/set_model", fields([("modelId", model)])))),
            (None, None) => Err("take a model: it offers no way to set one".to_owned()),
        }
    }

    fn set_mode(&self, mode: &str) -> Result<Option<SetRequest>, String> {
        let option = self.option(&SessionConfigOptionCategory::Mode);
        let offered: Vec<_> = match (option, &self.modes) {
            (Some(option), _) => values(option),
            (None, Some(modes)) => modes.available_modes.iter().map(|mode| mode.id.0.as_ref()).collect(),
            (None, None) => return Err(format!("work in mode {mode:?}: it has no modes")),
        };
        let others: &[&str] = match mode {
            "build" => &BUILD,
            "plan" => &PLAN,
            _ => &[],
        };
        let chosen = choose(&offered, mode, others)
            .ok_or_else(|| format!("work in mode {mode:?}: it offers {}", list(&offered)))?;
        match (option, &self.modes) {
            (Some(option), _) => Ok(set_option(option, chosen)),
            (None, Some(modes)) if modes.current_mode_id.0.as_ref() == chosen => Ok(None),
            (None, _) => Ok(Some(("session/set_mode", fields([("modeId", chosen)])))),
        }
    }

    /// Whether a model of the agent's stands in for whoever could be asked, without anybody's having said so.
    pub(super) fn asks_a_model(&self) -> bool {
        self.quirks.begins_in_auto && self.mode() == Some("auto")
    }

    /// The mode that the agent is in.
    pub(super) fn mode(&self) -> Option<&str> {
        let current = self.selected(&SessionConfigOptionCategory::Mode);
        current.or_else(|| self.modes.as_ref().map(|modes| modes.current_mode_id.0.as_ref()))
    }

    /// The value of the option of this category.
    fn selected(&self, category: &SessionConfigOptionCategory) -> Option<&str> {
        match self.option(category).map(|option| &option.kind) {
            Some(SessionConfigKind::Select(select)) => Some(&select.current_value.0),
            _ => None,
        }
    }

    /// Returns the settings that are in use.
    fn current(&self) -> CurrentSettings {
        let model = self.selected(&SessionConfigOptionCategory::Model);
        let model = model.or_else(|| self.models.as_ref()?.get("currentModelId")?.as_str());
        CurrentSettings {
            model: model.map(words),
            mode: self.mode().map(words),
            thinking: self.selected(&SessionConfigOptionCategory::ThoughtLevel).map(words),
        }
    }

    /// Returns the settings with which the agent begins, and counts them as emitted.
    pub(super) fn first_settings(&mut self) -> CurrentSettings {
        self.emitted = self.current();
        self.emitted.clone()
    }

    /// Emits what the agent has changed: settings and commands.
    pub(super) fn emit_changes(&mut self, out: &mut Vec<Action>) {
        let now = self.current();
        let before = std::mem::replace(&mut self.emitted, now.clone());
        type MakeEvent = fn(&str) -> Event;
        let settings: [(Option<String>, Option<String>, MakeEvent); 3] = [
            (before.model, now.model, session_model),
            (before.mode, now.mode, session_mode),
            (before.thinking, now.thinking, session_thinking),
        ];
        for (before, now, event) in settings {
            out.extend(now.filter(|now| before.as_ref() != Some(now)).map(|now| Action::Event(event(&now))));
        }
        out.extend(self.menu.take().map(Action::Event));
    }

    /// Emits what is in use after an operation has set `setting`, where the agent tells it.
    pub(super) fn emit_set(&mut self, setting: &AcpSetting, out: &mut Vec<Action>) {
        self.emit_changes(out);
        let CurrentSettings { model, mode, thinking } = self.current();
        let event = match setting {
            AcpSetting::Model(_) => model.as_deref().map(session_model),
            AcpSetting::Mode(_) => mode.as_deref().map(session_mode),
            AcpSetting::Thinking(_) => thinking.as_deref().map(session_thinking),
        };
        out.extend(event.map(Action::Event));
    }

    /// Whether there is a choice of how hard it thinks.
    pub(super) fn has_levels(&self) -> bool {
        self.option(&SessionConfigOptionCategory::ThoughtLevel).is_some()
    }

    fn set_thinking(&self, level: &str) -> Result<Option<SetRequest>, String> {
        let Some(option) = self.option(&SessionConfigOptionCategory::ThoughtLevel) else {
            let hint = "it offers no levels for its model; what takes one at its start alone is started or resumed with --thinking";
            return Err(format!("change how hard it thinks: {hint}"));
        };
        let offered = values(option);
        let chosen = choose(&offered, level, if level == "off" { &["off", "none", "disabled"] } else { &[] })
            .ok_or_else(|| format!("think {level:?}: it offers {}", list(&offered)))?;
        Ok(set_option(option, chosen))
    }

    /// Returns the prompt that compacts the conversation: the row's word, or a command that the agent offers.
    pub(super) fn compact<'a>(&self, row: Option<&'a str>) -> Option<std::borrow::Cow<'a, str>> {
        let offered =
            || ["compact", "compress"].into_iter().find(|name| self.commands.iter().any(|known| known == name));
        row.map(Into::into).or_else(|| offered().map(|name| format!("/{name}").into()))
    }

    /// Returns whether a command takes words behind its name, as the agent says.
    pub(super) fn takes_input(&self, command: &str) -> bool {
        let name = command.strip_prefix('/').unwrap_or(command);
        self.with_input.iter().any(|known| known == name)
    }
}

/// Returns the request that sets `option`, or `None` if the value is already set.
fn set_option(option: &SessionConfigOption, value: &str) -> Option<SetRequest> {
    let current = match &option.kind {
        SessionConfigKind::Select(select) => select.current_value.0.as_ref() == value,
        _ => false,
    };
    let request = || ("session/set_config_option", fields([("configId", &*option.id.0), ("value", value)]));
    (!current).then(request)
}

fn fields<const N: usize>(fields: [(&str, &str); N]) -> Map<String, Value> {
    fields.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect()
}

fn values(option: &SessionConfigOption) -> Vec<&str> {
    selectable(option).into_iter().map(|option| option.value.0.as_ref()).collect()
}

fn selectable(option: &SessionConfigOption) -> Vec<&SessionConfigSelectOption> {
    let SessionConfigKind::Select(select) = &option.kind else { return Vec::new() };
    match &select.options {
        SessionConfigSelectOptions::Ungrouped(options) => options.iter().collect(),
        SessionConfigSelectOptions::Grouped(groups) => groups.iter().flat_map(|group| &group.options).collect(),
        _ => Vec::new(),
    }
}

/// Returns the choice that `wanted` names, else the first of `others` that is offered.
fn choose<'a>(offered: &[&'a str], wanted: &str, others: &[&str]) -> Option<&'a str> {
    let find = |name: &str| offered.iter().copied().find(|choice| choice.eq_ignore_ascii_case(name));
    find(wanted).or_else(|| others.iter().find_map(|name| find(name)))
}

fn list(values: &[&str]) -> String {
    let mut named: Vec<_> = values.iter().take(MAX_NAMED).map(|value| value.chars().take(80).collect()).collect();
    if values.len() > MAX_NAMED {
        named.push(format!("{} more", values.len() - MAX_NAMED));
    }
    named.join(", ")
}
