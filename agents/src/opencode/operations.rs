//! Operations: requests to the server other than prompts.

use std::time::{Duration, UNIX_EPOCH};

use ipc_protocol::{Json, Operation, WireError, message::RequestId};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    calls::{OpenCodeRequestPurpose, OpenCodeResponse, OperationStep, refusal},
    models::ProviderModels,
    session::{OpenCodeCompaction, OpenCodePhase, OpenCodeSession},
    wire::{AgentInfo, SessionInfo},
};
use crate::{
    Action, Result,
    kit::{
        choices::{AgentChoices, choices},
        settings::AgentSettings,
    },
};

/// Most operations in progress; more are refused.
const MAX_OPERATIONS: usize = 16;

/// Request of the server's own protocol, as an operation gives it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NativeCommand {
    method: String,
    path: String,
    body: Option<Value>,
}

impl OpenCodeSession {
    pub(super) fn send_operation(
        &mut self,
        request: RequestId,
        operation: &Operation,
        out: &mut Vec<Action>,
    ) -> Result<()> {
        if self.phase != OpenCodePhase::Ready {
            return Err(self.settings.unsupported(operation.describe() + ": its session is not ready, or over"));
        }
        if self.calls.count(|purpose| matches!(purpose, OpenCodeRequestPurpose::Operation(..))) >= MAX_OPERATIONS {
            return Err(WireError::Busy);
        }
        match operation {
            Operation::SetModel { model } => {
                self.settings.parse_model(model)?;
                self.ask(request, OperationStep::Model(model.clone()), "GET", "/config/providers", None, out);
            }
            Operation::SetMode { mode } => {
                self.ask(request, OperationStep::Mode(mode.clone()), "GET", "/agent", None, out);
            }
            Operation::SetThinking { level } => {
                self.ask(request, OperationStep::Thinking(level.clone()), "GET", "/config/providers", None, out);
            }
            Operation::ListChoices => {
                self.ask(request, OperationStep::Models, "GET", "/config/providers", None, out);
            }
            Operation::CompactWith { .. } => {
                return Err(self.settings.unsupported(operation.describe() + ": it has one prompt for all summaries"));
            }
            Operation::Compact if self.turn.is_some() || self.compaction.is_some() => return Err(WireError::Busy),
            Operation::Compact => {
                self.content.turn_begins();
                self.compaction = Some(OpenCodeCompaction { request, answered: None, busy: false, idle: false });
                match self.content.model.clone().or_else(|| self.settings.model.clone()) {
                    Some(model) => self.compact(request, &model, out),
                    None => self.ask(request, OperationStep::CompactModel, "GET", "/config", None, out),
                }
            }
            Operation::GetState => {
                let path = self.conversation("");
                self.ask(request, OperationStep::Raw, "GET", &path, None, out);
            }
            Operation::GetMessages => {
                let path = self.conversation("/message");
                self.ask(request, OperationStep::Raw, "GET", &path, None, out);
            }
            Operation::ListSessions => self.ask(request, OperationStep::List, "GET", "/session?roots=true", None, out),
            Operation::Native { message } => self.native(request, message, out)?,
        }
        Ok(())
    }

    fn ask(
        &mut self,
        request: RequestId,
        step: OperationStep,
        method: &'static str,
        path: &str,
        body: Option<Value>,
        out: &mut Vec<Action>,
    ) {
        let (path, body) = (self.settings.path(path), body.map(|body| body.to_string().into_bytes()));
        self.calls.send(OpenCodeRequestPurpose::Operation(request, step), method, path, body, out);
    }

    fn native(&mut self, request: RequestId, message: &Json, out: &mut Vec<Action>) -> Result<()> {
        let form = "it takes {\"method\": …, \"path\": \"/…\", \"body\": …}";
        let native: NativeCommand = serde_json::from_value(message.value())
            .map_err(|error| self.settings.refused(format!("no command of its protocol ({error}): {form}")))?;
        let methods = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];
        let method = methods.into_iter().find(|method| method.eq_ignore_ascii_case(&native.method));
        let (Some(method), true) = (method, native.path.starts_with('/')) else {
            return Err(self.settings.refused(format!("no command of its protocol: {form}")));
        };
        let body = native.body.map(|body| body.to_string().into_bytes());
        // The path is sent unchanged: without the directory, too.
        self.calls.send(
            OpenCodeRequestPurpose::Operation(request, OperationStep::Native),
            method,
            native.path,
            body,
            out,
        );
        Ok(())
    }

    fn compact(&mut self, request: RequestId, (provider, model): &(String, String), out: &mut Vec<Action>) {
        let body = json!({ "providerID": provider, "modelID": model });
        let path = self.conversation("/summarize");
        self.ask(request, OperationStep::Compact, "POST", &path, Some(body), out);
    }

    /// Handles the answer to a step of an operation.
    pub(super) fn operated(
        &mut self,
        request: RequestId,
        step: OperationStep,
        what: &str,
        answer: OpenCodeResponse,
        out: &mut Vec<Action>,
    ) {
        if step == OperationStep::Native {
            let reply = answer.map(|(status, body)| {
                let text = String::from_utf8_lossy(&body);
                let body = serde_json::from_str(&text).unwrap_or_else(|_| Value::from(text.into_owned()));
                Json::from(&json!({ "status": status, "body": body }))
            });
            let reply = reply.map_err(|why| self.settings.refused(format!("{what}: {why}")));
            return out.push(Action::Reply { request, reply });
        }
        let is_compaction = matches!(step, OperationStep::Compact | OperationStep::CompactModel);
        let body = match answer {
            Ok((200, body)) => Ok(body),
            Ok((status, body)) => Err(self.settings.refused(format!("{what}: {}", refusal(status, &body)))),
            Err(why) => Err(self.settings.refused(format!("{what}: {why}"))),
        };
        let reply = match body {
            Ok(body) => self.step_done(request, step, &body, out).transpose(),
            Err(error) => Some(Err(error)),
        };
        match reply {
            None => {}
            // The reply follows at the end of the compaction.
            Some(reply) if is_compaction => {
                if let Some(compaction) = &mut self.compaction {
                    compaction.answered = Some(reply.map(drop));
                    self.check_compaction(out);
                }
            }
            Some(reply) => out.push(Action::Reply { request, reply }),
        }
    }

    /// Handles a successful step. Returns the reply if this was the last step.
    fn step_done(
        &mut self,
        request: RequestId,
        step: OperationStep,
        body: &[u8],
        out: &mut Vec<Action>,
    ) -> Result<Option<Json>> {
        let refused = |settings: &super::settings::PromptSettings, why: String| settings.refused(why);
        match step {
            OperationStep::Raw | OperationStep::Native => {
                let text = String::from_utf8_lossy(body).into_owned();
                let json = Json::new(text)
                    .map_err(|error| refused(&self.settings, format!("its answer is no JSON: {error}")))?;
                Ok(Some(json))
            }
            OperationStep::List => {
                let all: Vec<SessionInfo> = self.decode(body)?;
                Ok(Some(Json::from(&all.into_iter().map(listed).collect::<Value>())))
            }
            OperationStep::Model(model) => {
                let model = self.settings.parse_model(&model)?;
                self.models = ProviderModels::parse(body).map_err(|why| refused(&self.settings, why))?;
                self.models.check(&model).map_err(|why| refused(&self.settings, why))?;
                if let Some(level) = &self.settings.variant {
                    self.models.thinking(&model, level).map_err(|why| refused(&self.settings, why))?;
                }
                self.looks.settings.set(AgentSettings::of_model(format!("{}/{}", model.0, model.1)), out);
                self.settings.model = Some(model);
                Ok(Some(Json::null()))
            }
            OperationStep::Thinking(level) => {
                self.models = ProviderModels::parse(body).map_err(|why| refused(&self.settings, why))?;
                let model = self.settings.model.clone().or_else(|| self.content.model.clone());
                let model = model.ok_or_else(|| {
                    refused(&self.settings, "how hard it thinks depends on the model: set that first".into())
                })?;
                self.settings.variant =
                    self.models.thinking(&model, &level).map_err(|why| refused(&self.settings, why))?;
                Ok(Some(Json::null()))
            }
            OperationStep::Models => {
                self.models = ProviderModels::parse(body).map_err(|why| refused(&self.settings, why))?;
                let current = self.settings.model.clone().or_else(|| self.content.model.clone());
                let thinking = current.map(|model| choices(self.models.levels(&model)));
                let models = Some(choices(self.models.names().iter().map(String::as_str)));
                let found = AgentChoices { models, modes: None, thinking };
                self.ask(request, OperationStep::Modes(found), "GET", "/agent", None, out);
                Ok(None)
            }
            OperationStep::Modes(found) => {
                let all: Vec<AgentInfo> = self.decode(body)?;
                let modes = choices(modes(&all).map(|mode| mode.name.as_str()));
                Ok(Some(AgentChoices { modes: Some(modes), ..found }.to_json()))
            }
            OperationStep::Mode(wanted) => {
                let all: Vec<AgentInfo> = self.decode(body)?;
                let mode = mode(&all, &wanted).map_err(|why| refused(&self.settings, why))?;
                self.settings.set_mode(mode);
                let rules = json!({ "permission": self.settings.rules() });
                let path = self.conversation("");
                self.ask(request, OperationStep::ModeRules(wanted), "PATCH", &path, Some(rules), out);
                Ok(None)
            }
            OperationStep::ModeRules(mode) => {
                self.looks.settings.set(AgentSettings::of_mode(mode), out);
                Ok(Some(Json::null()))
            }
            OperationStep::Compact => Ok(Some(Json::null())),
            OperationStep::CompactModel => {
                let config: Value = self.decode(body)?;
                let model = config["model"].as_str().map(|model| self.settings.parse_model(model)).transpose()?;
                let model = model.ok_or_else(|| {
                    refused(&self.settings, "nothing has been said yet, and no model is named to shorten it".into())
                })?;
                self.compact(request, &model, out);
                Ok(None)
            }
        }
    }

    fn decode<'a, T: Deserialize<'a>>(&self, body: &'a [u8]) -> Result<T> {
        serde_json::from_slice(body)
            .map_err(|error| self.settings.refused(format!("its answer is not understood: {error}")))
    }
}

/// Finds the mode `wanted`.
///
/// # Errors
/// There is no such mode; the text lists the modes.
pub(super) fn mode<'a>(all: &'a [AgentInfo], wanted: &str) -> Result<&'a AgentInfo, String> {
    modes(all).find(|mode| mode.name == wanted).ok_or_else(|| {
        let names: Vec<&str> = modes(all).map(|mode| mode.name.as_str()).take(50).collect();
        format!("there is no mode {wanted:?}: there are {}", names.join(", "))
    })
}

/// Agents of the server in which a user can work.
fn modes(all: &[AgentInfo]) -> impl Iterator<Item = &AgentInfo> {
    all.iter().filter(|mode| mode.mode != "subagent" && !mode.hidden)
}

fn listed(info: SessionInfo) -> Value {
    // The format ends with the year 9999.
    let updated =
        info.time.updated.map(|at| UNIX_EPOCH + Duration::from_secs_f64(at.clamp(0.0, 253_402_300_799e3) / 1e3));
    json!({
        "id": info.id,
        "title": info.title,
        "updatedAt": updated.map(|at| humantime::format_rfc3339_millis(at).to_string()),
        "cwd": info.directory,
    })
}
