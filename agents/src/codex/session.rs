//! State machine of the conversation: opening it, and handling each message.

use std::collections::{HashMap, HashSet};

use ipc_protocol::{AgentSessionConfig, Event, NativeResume, PlanEntry, WireError, message::RequestId};
use serde_json::{Value, json, value::RawValue};

use super::{
    agents::SubAgents,
    approvals::Approvals,
    items::Calls,
    operations::Shape,
    start,
    turn::Turn,
    usage::{self, Tokens},
    wire::{self, Answer, Delta, Message},
};
use crate::{
    Action, AdapterSetup,
    answer::OpenAnswer,
    jsonl::{self, MAX_ID, log, words},
};

/// Most of our requests that wait for an answer.
pub(super) const MAX_PENDING: usize = 256;
/// Most items of a turn that are remembered because their text came in pieces.
const MAX_STREAMED: usize = 1024;

/// Purpose of one of our requests.
#[derive(Debug)]
pub(super) enum Pending {
    Initialize,
    /// List that starts with the most recent conversation.
    Newest,
    /// Opening of the conversation.
    Thread,
    /// Mode and thinking, before the first prompt.
    Settings,
    TurnStart,
    Steer,
    Interrupt,
    /// Interrupt of a sub-agent's turn, or the end of its processes: the answer is ignored.
    Ignored,
    /// End of the processes that an interrupted turn left.
    Clean,
    Operation(RequestId, Shape),
}

/// Phase of the conversation.
#[derive(Debug)]
pub(super) enum State {
    New,
    /// Until all requests in [`Session::pending`] are answered; with the thread once it is known.
    Starting(Option<Thread>),
    Ready(Thread),
    /// The session has failed, or the agent has ended.
    Over,
}

/// Open conversation.
#[derive(Debug)]
pub(super) struct Thread {
    pub(super) id: String,
    pub(super) model: String,
    pub(super) effort: Value,
    pub(super) tokens: Tokens,
    pub(super) turn: Option<Turn>,
    /// Operation that compacts the conversation, until the turn for it has ended.
    pub(super) compaction: Option<RequestId>,
}

#[derive(Debug)]
pub(super) struct Session {
    pub(super) agent: String,
    pub(super) config: AgentSessionConfig,
    protocol_config: Value,
    resume: Option<NativeResume>,
    pub(super) state: State,
    requests: i64,
    pub(super) pending: HashMap<i64, Pending>,
    pub(super) approvals: Approvals,
    pub(super) calls: Calls,
    pub(super) sub_agents: SubAgents,
    /// Items whose text came in pieces. The text of any other item is emitted when the item is complete.
    pub(super) streamed: HashSet<Box<str>>,
    streaming: String,
    pub(super) answer: OpenAnswer,
    /// How far the account's limits are used, as the agent said last.
    pub(super) rate_limits: Value,
}

impl Session {
    pub(super) fn new(setup: AdapterSetup) -> Self {
        let AdapterSetup { config, agent, protocol_config, resume, .. } = setup;
        Self {
            agent,
            config,
            protocol_config,
            resume,
            state: State::New,
            requests: 0,
            pending: HashMap::new(),
            approvals: Approvals::default(),
            calls: Calls::default(),
            sub_agents: SubAgents::default(),
            streamed: HashSet::new(),
            streaming: String::new(),
            answer: OpenAnswer::default(),
            rate_limits: Value::Null,
        }
    }

    pub(super) fn unsupported(&self, operation: &str) -> WireError {
        WireError::Unsupported { agent: self.agent.clone(), operation: operation.to_owned() }
    }

    /// Sends a request.
    pub(super) fn request(&mut self, method: &str, params: Option<&Value>, pending: Pending, out: &mut Vec<Action>) {
        self.requests += 1;
        self.pending.insert(self.requests, pending);
        wire::call(Some(self.requests), method, params, out);
    }

    pub(super) fn start(&mut self, out: &mut Vec<Action>) {
        if matches!(self.state, State::New) {
            self.state = State::Starting(None);
            self.request("initialize", Some(&start::initialize()), Pending::Initialize, out);
            wire::call(None, "initialized", None, out);
            self.open(out);
        }
    }

    /// Takes a whole line, and counts what it says of the answer.
    pub(super) fn counted_line(&mut self, line: &[u8], out: &mut Vec<Action>) {
        let before = out.len();
        self.line(line, out);
        self.answer.count(&out[before..]);
    }

    /// Takes a whole line.
    fn line(&mut self, line: &[u8], out: &mut Vec<Action>) {
        if let State::Ready(thread) = &self.state
            && let Some(delta) = Delta::parse(line)
        {
            // A sub-agent's text is not part of the answer.
            if delta.thread() == thread.id {
                self.delta(delta, out);
            }
            return;
        }
        if line.trim_ascii().is_empty() {
            return;
        }
        let message = match serde_json::from_slice::<Message<'_>>(line) {
            Ok(message) if !matches!(self.state, State::Over) => message,
            _ => return log(line, out),
        };
        let understood = match (message.id, message.method.as_deref()) {
            (Some(id), Some(method)) => self.asked(id, method, &message.params(), out),
            (Some(id), None) => id.get().parse().is_ok_and(|id: i64| self.answered(id, message.answer(), line, out)),
            (None, Some(method)) => {
                self.notified(method, &message.params(), out);
                true
            }
            (None, None) => false,
        };
        if !understood {
            log(line, out);
        }
    }

    /// Handles the beginning of a line that was dropped. Nothing may go on waiting for the contents of that line.
    pub(super) fn dropped(&mut self, beginning: &[u8], out: &mut Vec<Action>) {
        jsonl::too_long(out);
        let head = jsonl::head(beginning);
        let id = head.get("id").and_then(|id| RawValue::from_string(id.to_string()).ok());
        match (id, head["method"].as_str()) {
            (Some(id), Some(_)) => wire::refuse(&id, "the request is longer than what is taken", out),
            (Some(_), None) => {
                let message = "its answer is longer than what is taken".to_owned();
                let refusal = wire::Refusal { code: 0, message };
                self.answered(head["id"].as_i64().unwrap_or_default(), Err(refusal), &[], out);
            }
            (None, Some("turn/completed")) => self.turn_dropped(&head["params"], out),
            // The line may have contained the end of a call.
            (None, _) => self.calls.end_all(None, out),
        }
    }

    fn delta(&mut self, delta: Delta<'_>, out: &mut Vec<Action>) {
        if delta.item() != self.streaming && delta.item().len() <= MAX_ID {
            self.streaming = delta.item().to_owned();
            if self.streamed.len() < MAX_STREAMED {
                self.streamed.insert(delta.item().into());
            }
        }
        out.push(Action::Event(delta.event()));
    }

    /// Handles a request from the agent.
    fn asked(&mut self, id: &RawValue, method: &str, params: &Value, out: &mut Vec<Action>) -> bool {
        let State::Ready(thread) = &self.state else {
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

    /// Handles an answer to our request `id`; `line` contains it. Returns `false` if there is no such request.
    fn answered(&mut self, id: i64, answer: Answer, line: &[u8], out: &mut Vec<Action>) -> bool {
        let Some(pending) = self.pending.remove(&id) else { return false };
        let done = match pending {
            Pending::Initialize => match answer {
                Ok(result) => {
                    out.extend(start::program(&result).map(Action::Program));
                    Ok(())
                }
                Err(refusal) => Err(self.refused("initialize", &refusal)),
            },
            Pending::Newest => self.newest(answer, out),
            Pending::Thread => self.opened(answer, out),
            Pending::Settings => self.settled(answer, out),
            Pending::TurnStart => {
                self.turn_started(answer, out);
                Ok(())
            }
            Pending::Steer => {
                if let Err(refusal) = answer {
                    let action = "steer".to_owned();
                    out.push(Action::Event(Event::ActionFailed { action, error: refusal.message }));
                }
                Ok(())
            }
            Pending::Interrupt => {
                self.interrupted(answer.is_ok());
                Ok(())
            }
            Pending::Clean => {
                self.cleaned(out);
                Ok(())
            }
            Pending::Ignored => Ok(()),
            Pending::Operation(request, shape) => {
                self.operation_answered(request, shape, answer, line, out);
                Ok(())
            }
        };
        if let Err(error) = done {
            self.state = State::Over;
            out.push(Action::Fail(error));
        }
        true
    }

    fn refused(&self, what: &str, refusal: &wire::Refusal) -> WireError {
        let reason = format!("it answered {what} with error {}: {}", refusal.code, refusal.message);
        WireError::AgentRefused { agent: self.agent.clone(), reason }
    }

    fn missing(&self, reason: String) -> WireError {
        let id =
            self.resume.as_ref().and_then(|resume| resume.id.clone()).unwrap_or_else(|| "the most recent".to_owned());
        WireError::NativeSessionMissing { agent: self.agent.clone(), id, reason }
    }

    /// Sends the request that opens the conversation.
    fn open(&mut self, out: &mut Vec<Action>) {
        match self.resume.clone() {
            None => {
                let mut params = start::thread(&self.config, &self.protocol_config);
                if self.config.ephemeral {
                    params.insert("ephemeral".to_owned(), json!(true));
                }
                self.request("thread/start", Some(&params.into()), Pending::Thread, out);
            }
            Some(NativeResume { id: Some(id), fork }) => self.go_on(&id, fork, out),
            Some(NativeResume { id: None, .. }) => {
                self.request("thread/list", Some(&start::list(&self.config, 1)), Pending::Newest, out);
            }
        }
    }

    fn newest(&mut self, answer: Answer, out: &mut Vec<Action>) -> Result<(), WireError> {
        let list = answer.map_err(|refusal| self.missing(refusal.message))?;
        let id = list["data"][0]["id"].as_str().filter(|id| !id.is_empty() && id.len() <= MAX_ID);
        let id = id.ok_or_else(|| self.missing("it knows none of this working directory".to_owned()))?;
        let fork = self.resume.as_ref().is_some_and(|resume| resume.fork);
        self.go_on(id, fork, out);
        Ok(())
    }

    fn go_on(&mut self, id: &str, fork: bool, out: &mut Vec<Action>) {
        let mut params = start::thread(&self.config, &self.protocol_config);
        params.insert("threadId".to_owned(), json!(id));
        params.insert("excludeTurns".to_owned(), json!(true));
        if fork {
            params.insert("ephemeral".to_owned(), json!(self.config.ephemeral));
        }
        let method = if fork { "thread/fork" } else { "thread/resume" };
        self.request(method, Some(&params.into()), Pending::Thread, out);
    }

    fn opened(&mut self, answer: Answer, out: &mut Vec<Action>) -> Result<(), WireError> {
        let result = match (answer, &self.resume) {
            (Ok(result), _) => result,
            (Err(refusal), Some(_)) => return Err(self.missing(refusal.message)),
            (Err(refusal), None) => return Err(self.refused("thread/start", &refusal)),
        };
        let id = result["thread"]["id"].as_str().filter(|id| !id.is_empty() && id.len() <= MAX_ID);
        let id = id.ok_or_else(|| WireError::AgentProtocol {
            agent: self.agent.clone(),
            reason: "its thread has no usable id".to_owned(),
        })?;
        let thread = Thread {
            id: id.to_owned(),
            model: result["model"].as_str().map(words).unwrap_or_default(),
            effort: result["reasoningEffort"].clone(),
            tokens: if self.resume.is_some() { Tokens::default() } else { Tokens::of_new() },
            turn: None,
            compaction: None,
        };
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
            self.state = State::Starting(Some(thread));
            self.request("thread/settings/update", Some(&settings.into()), Pending::Settings, out);
        }
        Ok(())
    }

    fn settled(&mut self, answer: Answer, out: &mut Vec<Action>) -> Result<(), WireError> {
        answer.map_err(|refusal| self.refused("thread/settings/update", &refusal))?;
        if let State::Starting(thread @ Some(_)) = &mut self.state
            && let Some(thread) = thread.take()
        {
            self.ready(thread, out);
        }
        Ok(())
    }

    fn ready(&mut self, thread: Thread, out: &mut Vec<Action>) {
        out.push(Action::Ready { native_session_id: Some(thread.id.clone()) });
        self.state = State::Ready(thread);
    }

    /// Handles a notification. Notifications of other methods remain available as raw lines.
    fn notified(&mut self, method: &str, params: &Value, out: &mut Vec<Action>) {
        let thread = match &mut self.state {
            State::Ready(thread) => thread,
            State::Starting(Some(thread)) if method == "thread/settings/updated" => thread,
            // No event is emitted before the agent is ready.
            State::New | State::Starting(_) | State::Over => return,
        };
        let told = params["threadId"].as_str();
        let ours = told == Some(thread.id.as_str());
        match method {
            "thread/settings/updated" if ours => {
                let settings = &params["threadSettings"];
                thread.model = settings["model"].as_str().map(words).unwrap_or_default();
                thread.effort = settings["effort"].clone();
            }
            "thread/name/updated" if ours => {
                if let Some(name) = params["threadName"].as_str() {
                    out.push(status("title", words(name)));
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

    /// Ends everything that is open, since the agent has ended.
    pub(super) fn finish(&mut self, out: &mut Vec<Action>) {
        self.approvals.close_all(out);
        self.calls.end_all(None, out);
        let gone = || WireError::AgentDied { reason: "its output ended before it answered".to_owned() };
        let mut pending: Vec<_> = self.pending.drain().collect();
        pending.sort_unstable_by_key(|(id, _)| *id);
        for (_, pending) in pending {
            // A compaction is answered below.
            if let Pending::Operation(request, shape) = pending
                && shape != Shape::Compact
            {
                out.push(Action::Reply { request, reply: Err(gone()) });
            }
        }
        match std::mem::replace(&mut self.state, State::Over) {
            State::Ready(thread) => {
                if let Some(request) = thread.compaction {
                    out.push(Action::Reply { request, reply: Err(gone()) });
                }
                if thread.turn.is_some() {
                    Turn::cut_short(out);
                }
            }
            State::Starting(_) => {
                let reason = "its output ended before its conversation was ready".to_owned();
                out.push(Action::Fail(WireError::AgentDied { reason }));
            }
            State::New | State::Over => {}
        }
    }
}

/// Makes Codex's mode. It contains the model and the effort too; without instructions of ours Codex uses its own.
pub(super) fn collaboration_mode(mode: &str, model: &str, effort: &Value) -> Value {
    let settings = json!({ "model": model, "reasoning_effort": effort, "developer_instructions": null });
    json!({ "mode": mode, "settings": settings })
}

pub(super) fn status(status: &str, detail: String) -> Action {
    Action::Event(Event::SessionStatus { status: status.to_owned(), detail })
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
        Some(PlanEntry { content, status: words(status), priority: String::new() })
    };
    let steps = params["plan"].as_array().into_iter().flatten();
    Action::Event(Event::Plan { entries: steps.filter_map(entry).collect() })
}
