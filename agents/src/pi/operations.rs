//! Operations: commands to Pi other than prompts.

use std::path::Path;

use ipc_protocol::{Json, Operation, WireError, message::RequestId};
use serde_json::{Map, Value, json};

use super::{
    session::{PiSession, model_name},
    state::{PiPurpose, PiReplyShape, PiState},
    wire::PiResponse,
};
use crate::{
    Action, Adapter as _, ListedFile, Result,
    kit::{
        bounds::{rfc3339, title, words},
        choices::{AgentChoices, choice, choices},
        settings::AgentSettings,
    },
};

/// Most file lists awaited at once.
const MAX_LISTS: usize = 64;
/// Thinking levels of Pi. It sets the nearest one that a model has.
const LEVELS: [&str; 6] = ["off", "minimal", "low", "medium", "high", "xhigh"];
/// Most models listed in an error.
const MAX_NAMED: usize = 20;

impl PiSession {
    /// Sends the command of an operation.
    pub(super) fn send_operation(
        &mut self,
        request: RequestId,
        operation: &Operation,
        out: &mut Vec<Action>,
    ) -> Result<()> {
        let PiState::Ready(turn) = &self.state else {
            return Err(self.unsupported(&format!("{}: its session is not ready, or over", operation.describe())));
        };
        let busy = turn.is_some() || self.is_compacting;
        if !self.pending.has_room(1) {
            return Err(WireError::Busy);
        }
        let (command, fields, shape) = match operation {
            Operation::SetModel { model } => ("get_available_models", Value::Null, PiReplyShape::Models(model.clone())),
            Operation::SetThinking { level } => {
                ("set_thinking_level", json!({ "level": level }), PiReplyShape::Level(level.clone()))
            }
            Operation::SetMode { .. } => return Err(self.unsupported(&operation.describe())),
            Operation::Compact | Operation::CompactWith { .. } if busy => return Err(WireError::Busy),
            Operation::Compact => {
                self.is_compacting = true;
                ("compact", Value::Null, PiReplyShape::Compacted)
            }
            Operation::CompactWith { instructions } => {
                self.is_compacting = true;
                ("compact", json!({ "customInstructions": instructions }), PiReplyShape::Compacted)
            }
            Operation::ListChoices => ("get_available_models", Value::Null, PiReplyShape::Choices),
            Operation::GetState => ("get_state", Value::Null, PiReplyShape::Data),
            Operation::GetMessages => ("get_messages", Value::Null, PiReplyShape::Data),
            Operation::ListSessions => return self.list(request, out),
            Operation::Native { message } => {
                let message = message.value();
                let command = message["type"].as_str().ok_or_else(|| WireError::Protocol {
                    reason: "a message to this agent is {\"type\": …}, without an id".to_owned(),
                })?;
                self.command(command, message.clone(), PiPurpose::Operation(request, PiReplyShape::Reply), out);
                return Ok(());
            }
        };
        self.command(command, fields, PiPurpose::Operation(request, shape), out);
        Ok(())
    }

    pub(super) fn operation_answered(
        &mut self,
        request: RequestId,
        shape: PiReplyShape,
        answer: PiResponse,
        line: &[u8],
        out: &mut Vec<Action>,
    ) {
        if shape == PiReplyShape::Compacted {
            self.is_compacting = false;
        }
        let agent = self.agent.clone();
        let refused = |reason: String| WireError::AgentRefused { agent, reason };
        let reply = match (shape, answer) {
            (PiReplyShape::Reply, answer) => {
                let raw = std::str::from_utf8(line).ok().and_then(|line| Json::new(line.trim()).ok());
                if raw.is_some() {
                    // The conversation may be another one now.
                    self.command("get_state", Value::Null, PiPurpose::Identity, out);
                }
                raw.map_or_else(|| Err(refused(answer.err().unwrap_or_default())), Ok)
            }
            (_, Err(reason)) => Err(refused(reason)),
            (PiReplyShape::Models(model), Ok(models)) => match self.find(&model, &models) {
                Ok((provider, id)) => {
                    let fields = json!({ "provider": provider, "modelId": id });
                    return self.command("set_model", fields, PiPurpose::Operation(request, PiReplyShape::Done), out);
                }
                Err(error) => Err(error),
            },
            (PiReplyShape::Choices, Ok(models)) => Ok(choices_of(&models).to_json()),
            (PiReplyShape::Level(level), Ok(_)) => {
                let purpose = PiPurpose::Operation(request, PiReplyShape::CheckThinking(level));
                return self.command("get_state", Value::Null, purpose, out);
            }
            (PiReplyShape::CheckThinking(level), Ok(state)) => match state["thinkingLevel"].as_str() {
                Some(got) if got != level => {
                    Err(self.unsupported(&format!("think {level:?} with this model, only {:?}", words(got))))
                }
                _ => {
                    self.settings.set(AgentSettings::of_thinking(level), out);
                    Ok(Json::null())
                }
            },
            (PiReplyShape::Done, Ok(model)) => {
                self.record_model(&model);
                if let Some(name) = model_name(&model) {
                    self.settings.set(AgentSettings::of_model(name), out);
                }
                Ok(Json::null())
            }
            (PiReplyShape::Data | PiReplyShape::Compacted, Ok(data)) => Ok(Json::from(&data)),
        };
        out.push(Action::Reply { request, reply });
    }

    /// Records that the conversation may have changed after a command of the caller.
    pub(super) fn identify(&mut self, answer: &PiResponse, out: &mut Vec<Action>) {
        let Ok(state) = answer else { return };
        let before = self.native_id.clone();
        self.record_state(state);
        if let Some(id) = self.native_id.clone().filter(|id| before.as_ref() != Some(id)) {
            out.push(Action::NativeSession(id));
        }
    }

    /// Finds provider and id of the model named `model`: `provider/id`, or an id. Of several models the current provider's wins.
    fn find(&self, model: &str, models: &Value) -> Result<(String, String)> {
        let models = models["models"].as_array().map(Vec::as_slice).unwrap_or_default();
        let part = |model: &Value, key: &str| model[key].as_str().unwrap_or_default().to_owned();
        let parts = || models.iter().map(|model| (part(model, "provider"), part(model, "id")));
        let whole = parts().find(|(provider, id)| format!("{provider}/{id}") == model);
        let own = parts().find(|(provider, id)| id == model && Some(provider) == self.provider.as_ref());
        let any = || parts().find(|(_, id)| id == model);
        whole.or(own).or_else(any).ok_or_else(|| {
            let named: Vec<_> = parts().take(MAX_NAMED).map(|(provider, id)| format!("{provider}/{id}")).collect();
            self.unsupported(&format!("use the model {model:?}: it has {}", words(&named.join(", "))))
        })
    }

    /// Lists the conversation files, which are all in the directory of this conversation's file.
    fn list(&mut self, request: RequestId, out: &mut Vec<Action>) -> Result<()> {
        let beside = self.file.as_deref().and_then(|file| Path::new(file).parent()).map(Path::to_path_buf);
        let directory = beside.or_else(|| self.directory()).map(|path| path.to_string_lossy().into_owned());
        let Some(directory) = directory else {
            return Err(self.unsupported("list its conversations: it has no home directory"));
        };
        if self.lists.len() >= MAX_LISTS {
            return Err(WireError::Busy);
        }
        out.push(Action::List { id: self.lists.add(request), directory, suffix: ".jsonl" });
        Ok(())
    }

    /// Returns Pi's directory for the conversations of this working directory, if there is one.
    fn directory(&self) -> Option<std::path::PathBuf> {
        let variable = |name: &str| self.directories.get(name).filter(|value| !value.is_empty()).map(Path::new);
        if let Some(sessions) = variable("PI_CODING_AGENT_SESSION_DIR") {
            return Some(sessions.to_path_buf());
        }
        let agent = variable("PI_CODING_AGENT_DIR").map(Path::to_path_buf);
        let agent = agent.or_else(|| Some(variable("HOME")?.join(".pi/agent")))?;
        let cwd = self.config.cwd.as_deref().unwrap_or("/");
        Some(agent.join("sessions").join(format!("--{}--", cwd.trim_start_matches('/').replace(['/', ':', '\\'], "-"))))
    }
}

/// Returns what Pi offers to choose from, by its list of models. It has no modes.
fn choices_of(models: &Value) -> AgentChoices {
    let model = |model: &Value| Some(choice(&model_name(model)?, model["name"].as_str(), None));
    let models = models["models"].as_array().into_iter().flatten().filter_map(model).collect();
    AgentChoices { models: Some(models), modes: None, thinking: Some(choices(LEVELS)) }
}

/// Describes the conversation in a file. Returns `None` for a conversation of another directory, and for other files.
pub(super) fn conversation(file: &ListedFile, cwd: Option<&str>) -> Option<Value> {
    let mut lines = file.head.split(|byte| *byte == b'\n').map(serde_json::from_slice::<Value>);
    let header = lines.next()?.ok().filter(|header| header["type"] == "session")?;
    if cwd.is_some_and(|cwd| header["cwd"].as_str().is_some_and(|theirs| theirs != cwd)) {
        return None;
    }
    let mut session = Map::new();
    session.insert("id".to_owned(), header["id"].as_str()?.into());
    session.insert("cwd".to_owned(), header["cwd"].clone());
    session.insert("createdAt".to_owned(), header["timestamp"].clone());
    session.insert("path".to_owned(), file.path.as_str().into());
    if let Some(updated) = rfc3339(file.modified_ms) {
        session.insert("updatedAt".to_owned(), updated.into());
    }
    let (mut name, mut first) = (None, None);
    for entry in lines.flatten() {
        match (entry["type"].as_str(), entry["message"]["role"].as_str()) {
            (Some("session_info"), _) => name = entry["name"].as_str().map(title).or(name),
            (_, Some("user")) if first.is_none() => first = text(&entry["message"]["content"]),
            _ => {}
        }
    }
    if let Some(title) = name.or(first) {
        session.insert("title".to_owned(), title.into());
    }
    Some(session.into())
}

fn text(content: &Value) -> Option<String> {
    let part = content.as_array().into_iter().flatten().find_map(|part| part["text"].as_str());
    content.as_str().or(part).map(title)
}
