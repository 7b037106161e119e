//! Opening of a session: from the server's address until the conversation is ready.

use ipc_protocol::{WireError, message::AgentFact};
use serde_json::{Value, json};

use super::{
    calls::{OpenCodeRequestPurpose, OpenCodeResponse, OpeningStep, refusal},
    models::ProviderModels,
    session::{OpenCodePhase, OpenCodeSession},
    settings::is_builtin,
    wire::{AgentInfo, SessionInfo},
};
use crate::{
    Action, Result,
    kit::{bounds::MAX_ID, json_lines::log, missing_conversation},
    uri::encode,
};

/// Text before the address in the server's output.
const LISTENING: &str = "listening on ";

impl OpenCodeSession {
    /// Handles a line of standard output: the server's address, or anything else.
    pub(super) fn stdout_line(&mut self, line: &[u8], out: &mut Vec<Action>) {
        let text = String::from_utf8_lossy(line);
        let address = text.split_once(LISTENING).and_then(|(_, rest)| rest.split_whitespace().next());
        match address.filter(|address| address.starts_with("http") && address.len() <= 256) {
            Some(address) if matches!(self.phase, OpenCodePhase::Starting) && self.endpoint.url.is_none() => {
                self.endpoint.url = Some(address.to_owned());
                out.push(Action::Fact(AgentFact::ServerListens { address: address.to_owned() }));
                self.connect(out);
            }
            _ => log("stdout", line, out),
        }
    }

    pub(super) fn connect(&mut self, out: &mut Vec<Action>) {
        self.phase = OpenCodePhase::Connecting;
        out.push(Action::Connect(self.endpoint.clone()));
        self.open_stream(out);
    }

    /// Opens the conversation. The server sends its events by now, so nothing of the conversation can be missed.
    pub(super) fn connected(&mut self, out: &mut Vec<Action>) {
        self.phase = OpenCodePhase::Opening;
        match &self.resume {
            None => self.check(out),
            Some(resume) => match &resume.id {
                Some(id) => {
                    self.session = id.clone();
                    self.open(OpeningStep::Resume, "GET", &format!("/session/{}", encode(id)), None, out);
                }
                None => self.open(OpeningStep::MostRecent, "GET", "/session?roots=true&limit=1", None, out),
            },
        }
    }

    fn open(
        &mut self,
        step: OpeningStep,
        method: &'static str,
        path: &str,
        body: Option<Value>,
        out: &mut Vec<Action>,
    ) {
        let body = body.map(|body| body.to_string().into_bytes());
        self.calls.send(OpenCodeRequestPurpose::Open(step), method, self.settings.path(path), body, out);
    }

    /// Checks that the configured mode and thinking level exist: the server would notice only at the first prompt, or never.
    fn check(&mut self, out: &mut Vec<Action>) {
        let mode = self.settings.mode.as_deref();
        if mode.is_some_and(|mode| !is_builtin(mode)) && !self.checked_mode {
            self.checked_mode = true;
            return self.open(OpeningStep::CheckMode, "GET", "/agent", None, out);
        }
        if self.settings.variant.is_some() && !self.checked_thinking {
            if self.settings.model.is_none() {
                return self.open(OpeningStep::DefaultModel, "GET", "/config", None, out);
            }
            self.checked_thinking = true;
            return self.open(OpeningStep::CheckThinking, "GET", "/config/providers", None, out);
        }
        let rules = json!({ "permission": self.settings.rules() });
        match &self.resume {
            None => self.open(OpeningStep::Create, "POST", "/session", Some(rules), out),
            Some(_) => {
                let path = format!("/session/{}", encode(&self.session));
                self.open(OpeningStep::Permit, "PATCH", &path, Some(rules), out);
            }
        }
    }

    /// Handles the answer to a step of the opening.
    pub(super) fn opened(&mut self, step: OpeningStep, what: &str, answer: OpenCodeResponse, out: &mut Vec<Action>) {
        if !matches!(self.phase, OpenCodePhase::Opening) {
            return;
        }
        let done = match (step, answer) {
            // Status 500 stands for an id in a foreign form, and for a conversation that the server cannot read.
            (OpeningStep::Resume, Ok((status @ (400 | 404 | 500), body))) => Err(self.missing(refusal(status, &body))),
            (_, Ok((200, body))) => self.step(step, &body, out),
            (_, Ok((status, body))) => Err(self.broken(&format!("it answered {what} with {}", refusal(status, &body)))),
            (_, Err(why)) => Err(self.broken(&format!("{what}: {why}"))),
        };
        if let Err(error) = done {
            self.phase = OpenCodePhase::Over;
            out.push(Action::Fail(error));
        }
    }

    fn step(&mut self, step: OpeningStep, body: &[u8], out: &mut Vec<Action>) -> Result<()> {
        match step {
            OpeningStep::MostRecent => {
                let all: Vec<SessionInfo> = self.parse(body)?;
                let newest = all.into_iter().next();
                let newest = newest.ok_or_else(|| self.missing("it has none in this directory".into()))?;
                self.looks.opened(&newest);
                self.session = newest.id;
                self.found(out);
            }
            OpeningStep::Resume => {
                self.looks.opened(&self.parse(body)?);
                self.found(out);
            }
            OpeningStep::Fork => {
                let copy = self.parse::<SessionInfo>(body)?;
                self.looks.opened(&copy);
                self.session = copy.id;
                self.content.forked_at = copy.time.created;
                self.check(out);
            }
            OpeningStep::CheckMode => {
                let all: Vec<AgentInfo> = self.parse(body)?;
                let wanted = self.settings.mode.clone().unwrap_or_default();
                let mode = super::operations::mode(&all, &wanted).map_err(|why| self.settings.refused(why))?;
                self.settings.set_mode(mode);
                self.check(out);
            }
            OpeningStep::DefaultModel => {
                let config: Value = self.parse(body)?;
                let model = config["model"].as_str().ok_or_else(|| {
                    self.settings.refused("how hard it thinks depends on the model: name one, PROVIDER/MODEL")
                })?;
                self.settings.model = Some(self.settings.parse_model(model)?);
                self.check(out);
            }
            OpeningStep::CheckThinking => {
                self.models = ProviderModels::parse(body).map_err(|why| self.broken(&why))?;
                let (model, level) = (self.settings.model.clone().unwrap_or_default(), self.settings.variant.take());
                let level = level.unwrap_or_default();
                self.settings.variant =
                    self.models.thinking(&model, &level).map_err(|why| self.settings.refused(why))?;
                self.check(out);
            }
            OpeningStep::Create => {
                self.session = self.parse::<SessionInfo>(body)?.id;
                self.ready(out);
            }
            OpeningStep::Permit => self.ready(out),
        }
        Ok(())
    }

    /// Continues or forks the conversation that was found.
    fn found(&mut self, out: &mut Vec<Action>) {
        if self.resume.as_ref().is_some_and(|resume| resume.fork) {
            let path = format!("/session/{}/fork", encode(&self.session));
            self.open(OpeningStep::Fork, "POST", &path, Some(json!({})), out);
        } else {
            self.check(out);
        }
    }

    fn ready(&mut self, out: &mut Vec<Action>) {
        if self.session.is_empty() || self.session.len() > MAX_ID {
            self.phase = OpenCodePhase::Over;
            return out.push(Action::Fail(self.broken("the id of its conversation is empty, or too long")));
        }
        self.phase = OpenCodePhase::Ready;
        out.push(Action::Ready { native_session_id: Some(self.session.clone()) });
        self.looks.begin(self.settings.looks(), out);
        if !self.checked_thinking {
            // Query for the sizes of context windows; nothing waits for it.
            let path = self.settings.path("/config/providers");
            self.calls.send(OpenCodeRequestPurpose::Models, "GET", path, None, out);
        }
        let path = self.settings.path("/command");
        self.calls.send(OpenCodeRequestPurpose::Commands, "GET", path, None, out);
    }

    fn parse<'a, T: serde::Deserialize<'a>>(&self, body: &'a [u8]) -> Result<T> {
        serde_json::from_slice(body)
            .map_err(|error| self.broken(&format!("what it answered is not understood: {error}")))
    }

    fn missing(&self, reason: String) -> WireError {
        missing_conversation(&self.settings.agent, self.resume.as_ref(), reason)
    }

    /// Makes the error for a server that breaks its protocol.
    pub(super) fn broken(&self, reason: &str) -> WireError {
        let hint = match reason.contains("status 401") {
            true => "; its password is wrong",
            false => "",
        };
        WireError::AgentProtocol { agent: self.settings.agent.clone(), reason: format!("{reason}{hint}") }
    }
}
