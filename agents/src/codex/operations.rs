//! Operations: requests to Codex other than prompts.

use ipc_protocol::{Json, Operation, WireError, message::RequestId};
use serde_json::{Map, Value, json};

use super::{
    errors,
    session::{CodexSession, collaboration_mode},
    start,
    state::{CodexPurpose, CodexReplyShape, CodexState},
    wire::CodexResponse,
};
use crate::{
    Action, Adapter as _, Result,
    kit::{
        choices::{AgentChoices, choice, choices},
        settings::AgentSettings,
    },
};

/// Most models in a list.
const MAX_MODELS: u32 = 100;
/// Most conversations in a list.
const MAX_LISTED: u32 = 100;

impl CodexSession {
    /// Sends the request of an operation.
    pub(super) fn send_operation(
        &mut self,
        request: RequestId,
        operation: &Operation,
        out: &mut Vec<Action>,
    ) -> Result<()> {
        let CodexState::Ready(thread) = &mut self.state else {
            return Err(self.unsupported(&format!("{}: its session is not ready, or over", operation.describe())));
        };
        if !self.peer.pending.has_room(1) {
            return Err(WireError::Busy);
        }
        let id = thread.id.clone();
        let this = json!({ "threadId": id });
        let settings = |key: &str, value: Value, set: AgentSettings| {
            ("thread/settings/update", json!({ "threadId": id, key: value }), CodexReplyShape::Set(set))
        };
        let (method, params, shape) = match operation {
            Operation::SetModel { model } => settings("model", json!(model), AgentSettings::of_model(model)),
            Operation::SetThinking { level } => {
                let effort = start::effort(level);
                settings("effort", json!(effort), AgentSettings::of_thinking(effort))
            }
            Operation::SetMode { mode } => match start::mode(mode) {
                Some(mode) => {
                    let value = collaboration_mode(mode, &thread.model, &thread.effort);
                    settings("collaborationMode", value, AgentSettings::of_mode(mode))
                }
                None => return Err(self.unsupported(&format!("{}: it has build and plan", operation.describe()))),
            },
            Operation::CompactWith { .. } => {
                return Err(self.unsupported(&format!("{}: it has one prompt for all summaries", operation.describe())));
            }
            Operation::Compact => {
                if thread.turn.is_some() || thread.compaction.is_some() {
                    return Err(WireError::Busy);
                }
                thread.compaction = Some(request);
                ("thread/compact/start", this, CodexReplyShape::Compact)
            }
            Operation::ListChoices => ("model/list", json!({ "limit": MAX_MODELS }), CodexReplyShape::Choices),
            Operation::GetState => ("thread/read", this, CodexReplyShape::Result),
            Operation::GetMessages => {
                ("thread/read", json!({ "threadId": id, "includeTurns": true }), CodexReplyShape::Result)
            }
            Operation::ListSessions => {
                ("thread/list", start::list(&self.config, MAX_LISTED), CodexReplyShape::Sessions)
            }
            Operation::Native { message } => return self.native(request, message, out),
        };
        self.request(method, &params, CodexPurpose::Operation(request, shape), out);
        Ok(())
    }

    fn native(&mut self, request: RequestId, message: &Json, out: &mut Vec<Action>) -> Result<()> {
        let message = message.value();
        let method = message["method"].as_str().ok_or_else(|| WireError::Protocol {
            reason: "a message to this agent is {\"method\": …, \"params\": …}, without an id".to_owned(),
        })?;
        self.peer.request(method, message.get("params"), CodexPurpose::Operation(request, CodexReplyShape::Reply), out);
        Ok(())
    }

    pub(super) fn operation_answered(
        &mut self,
        request: RequestId,
        shape: CodexReplyShape,
        answer: CodexResponse,
        line: &[u8],
        out: &mut Vec<Action>,
    ) {
        let raw = std::str::from_utf8(line).ok().and_then(|line| Json::new(line.trim()).ok());
        if let (CodexReplyShape::Reply, Some(reply)) = (&shape, raw) {
            out.push(Action::Reply { request, reply: Ok(reply) });
            return;
        }
        let reply = match (shape, answer) {
            (CodexReplyShape::Compact, Ok(_)) => return,
            (CodexReplyShape::Set(set), Ok(_)) => {
                if let CodexState::Ready(thread) = &mut self.state {
                    thread.emitted.set(set, out);
                }
                Ok(Value::Null)
            }
            (CodexReplyShape::Result | CodexReplyShape::Reply, Ok(result)) => Ok(result),
            (CodexReplyShape::Choices, Ok(list)) => Ok(self.choices(&list).to_json().value()),
            (CodexReplyShape::Sessions, Ok(list)) => Ok(sessions(&list)),
            // If its turn has already ended, the operation has its reply.
            (CodexReplyShape::Compact, Err(_)) if !self.stop_compacting() => return,
            (_, Err(refusal)) => Err(WireError::AgentRefused { agent: self.agent.clone(), reason: refusal.message }),
        };
        out.push(Action::Reply { request, reply: reply.map(|value| Json::from(&value)) });
    }

    /// Returns what Codex offers to choose from, by its list of models: its model's levels, and the modes that it has.
    fn choices(&self, list: &Value) -> AgentChoices {
        let models = || list["data"].as_array().into_iter().flatten().filter(|model| model["hidden"] != true);
        let id = |model: &Value| model["model"].as_str().or_else(|| model["id"].as_str()).map(str::to_owned);
        let current = match &self.state {
            CodexState::Ready(thread) => Some(thread.model.clone()),
            _ => None,
        };
        let levels = |model: &Value| {
            let levels = model["supportedReasoningEfforts"].as_array().into_iter().flatten();
            let level =
                |level: &Value| Some(choice(level["reasoningEffort"].as_str()?, None, level["description"].as_str()));
            levels.filter_map(level).collect()
        };
        let model =
            |model: &Value| Some(choice(&id(model)?, model["displayName"].as_str(), model["description"].as_str()));
        AgentChoices {
            models: Some(models().filter_map(model).collect()),
            modes: Some(choices(["default", "plan"])),
            thinking: models().find(|model| id(model) == current).map(levels),
        }
    }

    /// Ends the wait for a compaction. Returns whether there was one.
    fn stop_compacting(&mut self) -> bool {
        match &mut self.state {
            CodexState::Ready(thread) => thread.compaction.take().is_some(),
            _ => false,
        }
    }

    /// Handles the end of the turn that compacts.
    pub(super) fn compacted(&mut self, request: RequestId, turn: &Value, out: &mut Vec<Action>) {
        let reply = match turn["status"].as_str() {
            Some("completed") => Ok(Json::from(turn)),
            _ => {
                let (_, reason, _) = errors::describe(&turn["error"]);
                Err(WireError::AgentRefused { agent: self.agent.clone(), reason })
            }
        };
        out.push(Action::Reply { request, reply });
    }
}

/// Formats conversations as for every agent, each with all the fields of Codex.
fn sessions(list: &Value) -> Value {
    let session = |thread: &Value| {
        let mut session: Map<String, Value> = thread.as_object()?.clone();
        let title = thread["name"].as_str().or_else(|| thread["preview"].as_str()).unwrap_or_default();
        session.insert("title".to_owned(), json!(title));
        if let Some(updated) = thread["updatedAt"].as_u64().and_then(rfc3339) {
            session.insert("updatedAt".to_owned(), json!(updated));
        }
        thread["id"].is_string().then_some(Value::Object(session))
    };
    list["data"].as_array().into_iter().flatten().filter_map(session).collect::<Vec<_>>().into()
}

fn rfc3339(seconds: u64) -> Option<String> {
    let time = std::time::SystemTime::UNIX_EPOCH.checked_add(std::time::Duration::from_secs(seconds))?;
    // The format has no years beyond 9999.
    (seconds < 253_402_300_800).then(|| humantime::format_rfc3339_seconds(time).to_string())
}
