//! State machine of the conversation: opening it, and handling each message.

use std::collections::HashSet;

use ipc_protocol::{AgentSessionConfig, Event, NativeResume, PlanEntry, WireError, terminal::Surface};
use serde_json::{Value, json, value::RawValue};

use super::{
    agents::SubAgents,
    approvals::CodexApprovals,
    items::CodexToolCalls,
    start,
    state::{CodexPurpose, CodexState, CodexThread},
    usage::{self, ThreadTokens},
    wire::{self, CodexDelta, CodexResponse},
};
use crate::{
    Action, AdapterSetup, Result,
    kit::{
        bounds::{MAX_ID, words},
        emit_title,
        json_lines::{AgentOutput, JsonLinesAgent},
        json_rpc::{RpcDropped, RpcIncoming, RpcMessage, RpcPeer},
        missing_conversation, session_status, session_title,
        settings::{AgentSettings, EmittedSettings},
    },
};

/// Most items of a turn that are remembered because their text came in pieces.
const MAX_STREAMED: usize = 1024;

#[derive(Debug)]
pub(super) struct CodexSession {
    pub(super) agent: String,
    pub(super) config: AgentSessionConfig,
    protocol_config: Value,
    resume: Option<NativeResume>,
    /// Name of the conversation that was opened, until the session is ready.
    name: Option<String>,
    pub(super) state: CodexState,
    pub(super) output: AgentOutput,
    pub(super) peer: RpcPeer<CodexPurpose>,
    pub(super) approvals: CodexApprovals,
    pub(super) calls: CodexToolCalls,
    pub(super) sub_agents: SubAgents,
    /// Items whose text came in pieces. The text of any other item is emitted when the item is complete.
    pub(super) streamed: HashSet<Box<str>>,
    streaming: String,
    /// How far the account's limits are used, as the agent said last.
    pub(super) rate_limits: Value,
}

impl CodexSession {
    pub(super) fn new(setup: AdapterSetup) -> Self {
        let AdapterSetup { config, agent, protocol_config, resume, .. } = setup;
        Self {
            agent,
            config,
            protocol_config,
            resume,
            name: None,
            state: CodexState::New,
            output: AgentOutput::default(),
            peer: RpcPeer::new(wire::RPC),
            approvals: CodexApprovals::default(),
            calls: CodexToolCalls::default(),
            sub_agents: SubAgents::default(),
            streamed: HashSet::new(),
            streaming: String::new(),
            rate_limits: Value::Null,
        }
    }

    pub(super) fn cwd(&self) -> &str {
        self.config.cwd.as_deref().unwrap_or("/")
    }

    /// Sends a request.
    pub(super) fn request(&mut self, method: &str, params: &Value, pending: CodexPurpose, out: &mut Vec<Action>) {
        self.peer.request(method, Some(params), pending, out);
    }

    fn piece(&mut self, delta: CodexDelta<'_>, out: &mut Vec<Action>) {
        if delta.item() != self.streaming && delta.item().len() <= MAX_ID {
            self.streaming = delta.item().to_owned();
            if self.streamed.len() < MAX_STREAMED {
                self.streamed.insert(delta.item().into());
            }
        }
        out.push(Action::Event(delta.event()));
    }

    /// Handles a request from the agent.
    fn handle_request(&mut self, id: &RawValue, method: &str, params: &Value, out: &mut Vec<Action>) -> bool {
        let CodexState::Ready(thread) = &self.state else {
            wire::refuse(id, "the session is not ready", out);
            return false;
        };
        let asking = params["threadId"].as_str().unwrap_or_default();
        let interrupted = thread.turn.as_ref().is_some_and(|turn| turn.aborting);
        let parent = if asking == thread.id { None } else { self.sub_agents.parent(asking, &self.calls) };
        if let Err(reason) = self.approvals.ask(id, method, params, &self.calls, parent.as_deref(), out) {
            wire::refuse(id, reason, out);
            return false;
        }
        if interrupted {
            self.approvals.cancel_all(out);
        }
        true
    }

    /// Handles the answer to a request of ours; `line` contains it.
    fn handle_response(&mut self, pending: CodexPurpose, answer: CodexResponse, line: &[u8], out: &mut Vec<Action>) {
        let done = match pending {
            CodexPurpose::Initialize => match answer {
                Ok(result) => {
                    out.extend(start::program(&result).map(Action::Program));
                    Ok(())
                }
                Err(refusal) => Err(self.refused("initialize", &refusal)),
            },
            CodexPurpose::Newest => self.handle_newest(answer, out),
            CodexPurpose::Thread => self.opened(answer, out),
            CodexPurpose::Settings => self.settled(answer, out),
            CodexPurpose::TurnStart => {
                self.turn_started(answer, out);
                Ok(())
            }
            CodexPurpose::Steer => {
                if let Err(refusal) = answer {
                    let action = "steer".to_owned();
                    out.push(Action::Event(Event::ActionFailed { action, error: refusal.message }));
                }
                Ok(())
            }
            CodexPurpose::Interrupt => {
                self.interrupted(answer.is_ok());
                Ok(())
            }
            CodexPurpose::Clean => {
                self.cleaned(out);
                Ok(())
            }
            CodexPurpose::Ignored => Ok(()),
            CodexPurpose::Operation(request, shape) => {
                self.operation_answered(request, shape, answer, line, out);
                Ok(())
            }
        };
        if let Err(error) = done {
            self.state = CodexState::Over;
            out.push(Action::Fail(error));
        }
    }

    fn refused(&self, what: &str, refusal: &wire::OutgoingError) -> WireError {
        let reason = format!("it answered {what} with error {}: {}", refusal.code, refusal.message);
        WireError::AgentRefused { agent: self.agent.clone(), reason }
    }

    fn missing(&self, reason: impl Into<String>) -> WireError {
        missing_conversation(&self.agent, self.resume.as_ref(), reason)
    }

    /// Sends the request that opens the conversation.
    pub(super) fn open(&mut self, out: &mut Vec<Action>) {
        match self.resume.clone() {
            None => {
                let mut params = start::thread(&self.config, &self.protocol_config);
                if self.config.ephemeral {
                    params.insert("ephemeral".to_owned(), json!(true));
                }
                self.request("thread/start", &params.into(), CodexPurpose::Thread, out);
            }
            Some(NativeResume { id: Some(id), fork }) => self.resume_thread(&id, fork, out),
            Some(NativeResume { id: None, .. }) => {
                self.request("thread/list", &start::list(&self.config, 1), CodexPurpose::Newest, out);
            }
        }
    }

    fn handle_newest(&mut self, answer: CodexResponse, out: &mut Vec<Action>) -> Result<()> {
        let list = answer.map_err(|refusal| self.missing(refusal.message))?;
        let id = list["data"][0]["id"].as_str().filter(|id| !id.is_empty() && id.len() <= MAX_ID);
        let id = id.ok_or_else(|| self.missing("it knows none of this working directory"))?;
        let fork = self.resume.as_ref().is_some_and(|resume| resume.fork);
        self.resume_thread(id, fork, out);
        Ok(())
    }

    fn resume_thread(&mut self, id: &str, fork: bool, out: &mut Vec<Action>) {
        let mut params = start::thread(&self.config, &self.protocol_config);
        params.insert("threadId".to_owned(), json!(id));
        params.insert("excludeTurns".to_owned(), json!(true));
        if fork {
            params.insert("ephemeral".to_owned(), json!(self.config.ephemeral));
        }
        let method = if fork { "thread/fork" } else { "thread/resume" };
        self.request(method, &params.into(), CodexPurpose::Thread, out);
    }

    fn opened(&mut self, answer: CodexResponse, out: &mut Vec<Action>) -> Result<()> {
        let result = match (answer, &self.resume) {
            (Ok(result), _) => result,
            (Err(refusal), Some(_)) => return Err(self.missing(refusal.message)),
            (Err(refusal), None) => return Err(self.refused("thread/start", &refusal)),
        };
        self.name = result["thread"]["name"].as_str().filter(|name| !name.is_empty()).map(words);
        let id = result["thread"]["id"].as_str().filter(|id| !id.is_empty() && id.len() <= MAX_ID);
        let id = id.ok_or_else(|| WireError::AgentProtocol {
            agent: self.agent.clone(),
            reason: "its thread has no usable id".to_owned(),
        })?;
        let thread = CodexThread {
            id: id.to_owned(),
            model: result["model"].as_str().map(words).unwrap_or_default(),
            effort: result["reasoningEffort"].clone(),
            mode: result["collaborationMode"]["mode"].as_str().map(words),
            emitted: EmittedSettings::default(),
            tokens: if self.resume.is_some() { ThreadTokens::default() } else { ThreadTokens::of_new() },
            turn: None,
            screen: None,
            unseen_inputs: 0,
            compaction: None,
        };
        if self.config.surface == Some(Surface::Both) && self.resume.is_none() {
            // Codex writes a conversation's file with its first prompt, or its name, and its screen finds none without.
            let params = json!({ "threadId": thread.id, "name": self.config.session_id.as_str() });
            self.request("thread/name/set", &params, CodexPurpose::Ignored, out);
        }
        let mut settings = serde_json::Map::new();
        if let Some(thinking) = &self.config.thinking {
            settings.insert("effort".to_owned(), json!(start::effort(thinking)));
        }
        if let Some(mode) = self.config.mode.as_deref().and_then(start::mode) {
            let effort = settings.get("effort").cloned().unwrap_or_else(|| thread.effort.clone());
            settings.insert("collaborationMode".to_owned(), collaboration_mode(mode, &thread.model, &effort));
        }
        if settings.is_empty() {
            self.ready(thread, out);
        } else {
            settings.insert("threadId".to_owned(), json!(thread.id));
            self.state = CodexState::Starting(Some(thread));
            self.request("thread/settings/update", &settings.into(), CodexPurpose::Settings, out);
        }
        Ok(())
    }

    fn settled(&mut self, answer: CodexResponse, out: &mut Vec<Action>) -> Result<()> {
        answer.map_err(|refusal| self.refused("thread/settings/update", &refusal))?;
        if let CodexState::Starting(thread @ Some(_)) = &mut self.state
            && let Some(thread) = thread.take()
        {
            self.ready(thread, out);
        }
        Ok(())
    }

    fn ready(&mut self, mut thread: CodexThread, out: &mut Vec<Action>) {
        out.push(Action::Ready { native_session_id: Some(thread.id.clone()) });
        let asked = AgentSettings {
            model: None,
            mode: self.config.mode.as_deref().and_then(start::mode).map(str::to_owned),
            thinking: self.config.thinking.as_deref().map(|level| start::effort(level).to_owned()),
        };
        let settings = asked.or(thread.settings());
        thread.emitted.change(settings, out);
        if let Some(name) = self.name.take().filter(|name| *name != self.config.session_id.as_str()) {
            out.push(Action::Event(session_title(&name)));
        }
        self.state = CodexState::Ready(thread);
    }

    /// Handles a notification. Notifications of other methods remain available as raw lines.
    fn handle_notification(&mut self, method: &str, params: &Value, out: &mut Vec<Action>) {
        let is_ready = matches!(self.state, CodexState::Ready(_));
        let thread = match &mut self.state {
            CodexState::Ready(thread) => thread,
            CodexState::Starting(Some(thread)) if method == "thread/settings/updated" => thread,
            // No event is emitted before the agent is ready.
            CodexState::New | CodexState::Starting(_) | CodexState::Over => return,
        };
        let told = params["threadId"].as_str();
        let ours = told == Some(thread.id.as_str());
        match method {
            "thread/settings/updated" if ours => {
                let settings = &params["threadSettings"];
                let before = thread.settings();
                thread.model = settings["model"].as_str().map(words).unwrap_or_default();
                thread.effort = settings["effort"].clone();
                thread.mode = settings["collaborationMode"]["mode"].as_str().map(words);
                let now = thread.settings();
                // An answer to an operation may overtake what Codex tells of the one before.
                let now = AgentSettings {
                    model: now.model.filter(|model| before.model.as_ref() != Some(model)),
                    mode: now.mode.filter(|mode| before.mode.as_ref() != Some(mode)),
                    thinking: now.thinking.filter(|level| before.thinking.as_ref() != Some(level)),
                };
                if is_ready {
                    thread.emitted.change(now, out);
                }
            }
            "thread/name/updated" if ours => {
                // The session's id is a name of ours.
                if let Some(name) =
                    params["threadName"].as_str().filter(|name| *name != self.config.session_id.as_str())
                {
                    emit_title(name, out);
                }
            }
            "model/rerouted" if ours => {
                let model = |key: &str| words(params[key].as_str().unwrap_or_default());
                out.push(status("model", format!("{} instead of {}", model("toModel"), model("fromModel"))));
            }
            "account/rateLimits/updated" => self.rate_limits = usage::limits(&params["rateLimits"]),
            "turn/plan/updated" if ours => out.push(plan(params)),
            "serverRequest/resolved" => self.approvals.resolved(&params["requestId"], out),
            "mcpServer/startupStatus/updated" if params["status"] == "failed" => {
                let text = |key: &str| words(params[key].as_str().unwrap_or_default());
                out.push(status("mcpServerFailed", format!("{}: {}", text("name"), text("error"))));
            }
            _ if told.is_none() || method == "warning" || method == "guardianWarning" => {
                if told.is_none() || ours {
                    warning(method, params, out);
                }
            }
            _ => self.turn_notified(method, params, ours, out),
        }
    }
}

impl JsonLinesAgent for CodexSession {
    fn output(&mut self) -> &mut AgentOutput {
        &mut self.output
    }

    fn delta(&mut self, line: &[u8], out: &mut Vec<Action>) -> bool {
        let CodexState::Ready(thread) = &self.state else { return false };
        let Some(delta) = CodexDelta::parse(line) else { return false };
        if delta.thread() == thread.id {
            self.piece(delta, out);
        } else if let Some(parent) = self.sub_agents.parent(delta.thread(), &self.calls) {
            self.sub_agents.record_streamed(delta.item());
            out.push(Action::Event(of_sub_agent(delta.event(), parent)));
        }
        true
    }

    fn message(&mut self, line: &[u8], out: &mut Vec<Action>) -> bool {
        let message = match serde_json::from_slice::<RpcMessage<'_>>(line) {
            Ok(message) if !matches!(self.state, CodexState::Over) => message,
            _ => return false,
        };
        match message.incoming() {
            RpcIncoming::Request { id, method, params } => self.handle_request(id, method, &params.value(), out),
            RpcIncoming::Notification { method, params } => {
                self.handle_notification(method, &params.value(), out);
                true
            }
            RpcIncoming::Answer { id, answer } => {
                let Some(pending) = self.peer.answered(id) else { return false };
                self.handle_response(pending, wire::answer(answer), line, out);
                true
            }
            RpcIncoming::Invalid => false,
        }
    }

    fn oversized(&mut self, head: Value, out: &mut Vec<Action>) {
        match self.peer.dropped(&head) {
            RpcDropped::Request(id) => wire::refuse(&id, "the request is longer than what is taken", out),
            RpcDropped::Answer(pending) => {
                let message = "its answer is longer than what is taken".to_owned();
                self.handle_response(pending, Err(wire::OutgoingError { code: 0, message }), &[], out);
            }
            RpcDropped::Unknown => {}
            RpcDropped::Notification if head["method"] == "turn/completed" => self.turn_dropped(&head["params"], out),
            // The line may have contained the end of a call.
            RpcDropped::Notification => self.calls.end_all(None, out),
        }
    }
}

/// Makes the event of a sub-agent's text: it is not part of the answer.
pub(super) fn of_sub_agent(event: Event, parent: String) -> Event {
    match event {
        Event::Text { text } => Event::SubagentText { parent, text },
        Event::Thinking { text } => Event::SubagentThinking { parent, text },
        event => event,
    }
}

/// Makes Codex's mode. It contains the model and the effort too; without instructions of ours Codex uses its own.
pub(super) fn collaboration_mode(mode: &str, model: &str, effort: &Value) -> Value {
    let settings = json!({ "model": model, "reasoning_effort": effort, "developer_instructions": null });
    json!({ "mode": mode, "settings": settings })
}

pub(super) fn status(status: &str, detail: String) -> Action {
    Action::Event(session_status(status, detail))
}

/// Emits a warning that belongs to no turn.
fn warning(method: &str, params: &Value, out: &mut Vec<Action>) {
    let (word, key) = match method {
        "warning" | "guardianWarning" => ("warning", "message"),
        "configWarning" => ("warning", "summary"),
        "deprecationNotice" => ("deprecation", "summary"),
        _ => return,
    };
    if let Some(text) = params[key].as_str() {
        out.push(status(word, words(text)));
    }
}

fn plan(params: &Value) -> Action {
    let entry = |step: &Value| {
        let status = match step["status"].as_str()? {
            "inProgress" => "in_progress",
            other => other,
        };
        let content = words(step["step"].as_str()?);
        Some(PlanEntry { content, status: words(status), priority: None })
    };
    let steps = params["plan"].as_array().into_iter().flatten();
    Action::Event(Event::Plan { entries: steps.filter_map(entry).collect() })
}
