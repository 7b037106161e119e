//! The agent itself: one thread that takes messages and plays turns.

use std::{
    io::{self, Write},
    sync::{
        Arc,
        atomic::AtomicBool,
        mpsc::{Receiver, RecvTimeoutError, TryRecvError},
    },
    time::{Duration, Instant},
};

use agent_client_protocol_schema::v1::{
    ContentBlock, ContentChunk, Cost, Error, PermissionOption, PermissionOptionKind, Plan, PlanEntry,
    PlanEntryPriority, PlanEntryStatus, PromptRequest, PromptResponse, RequestId, RequestPermissionOutcome,
    RequestPermissionRequest, RequestPermissionResponse, SessionUpdate, StopReason, ToolCall, ToolCallStatus,
    ToolCallUpdate, ToolCallUpdateFields, ToolKind, Usage, UsageUpdate,
};
use serde_json::{Value, json};

use crate::{
    children,
    options::Options,
    rpc::{Incoming, Input, Wire},
    script::{self, Step, Tokens},
    setup::Setup,
};

/// Longest time between two looks at a running tool.
const TOOL_LOOK: Duration = Duration::from_millis(5);

/// Why the agent stops.
#[derive(Debug)]
pub(crate) enum Stop {
    /// With this exit code.
    Exit(i32),
    /// The client cannot be written to any more.
    Io(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

pub(crate) type Flow<T = ()> = Result<T, Stop>;

/// A turn that runs.
#[derive(Debug)]
struct Turn {
    /// Prompts to answer at its end: the first, and those that steered it.
    prompts: Vec<RequestId>,
    cancelled: bool,
    /// Tokens that it is said to have taken.
    tokens: Option<Tokens>,
}

#[derive(Debug)]
pub(crate) struct Agent<W: Write> {
    options: Options,
    /// What all of the conversation has cost.
    cents: u64,
    reexec: Vec<String>,
    inbox: Receiver<Input>,
    wire: Wire<W>,
    setup: Setup,
    /// What came before the script in the first prompt.
    system: String,
    turn: Option<Turn>,
    /// What the running prompt is made of.
    blocks: String,
    /// What the running turn has said.
    said: String,
    /// The client's answer to our open request.
    answer: Option<(RequestId, Value)>,
    /// Ids of requests and tool calls. They start at 0, and collide with the client's.
    next_id: i64,
}

impl<W: Write> Agent<W> {
    pub(crate) fn new(options: Options, reexec: Vec<String>, inbox: Receiver<Input>, wire: Wire<W>) -> Self {
        Self {
            setup: Setup::new(&options),
            options,
            cents: 0,
            reexec,
            inbox,
            wire,
            system: String::new(),
            turn: None,
            blocks: String::new(),
            said: String::new(),
            answer: None,
            next_id: 0,
        }
    }

    /// Serves until the client is gone or the script says so.
    pub(crate) fn serve(&mut self) -> Stop {
        let mut serve = || -> Flow {
            if let Some(banner) = self.options.banner.take() {
                self.wire.raw(&banner)?;
            }
            loop {
                match self.inbox.recv() {
                    Ok(input) => self.take(input)?,
                    Err(_) => return Err(Stop::Exit(0)),
                }
            }
        };
        serve().err().unwrap_or(Stop::Exit(0))
    }

    /// Takes what has come, and waits for more until `deadline`. Returns whether the deadline is over.
    fn look(&mut self, deadline: Option<Instant>) -> Flow<bool> {
        let input = match deadline {
            None => self.inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(deadline) => self.inbox.recv_timeout(deadline.saturating_duration_since(Instant::now())),
        };
        match input {
            Ok(input) => self.take(input).map(|()| false),
            Err(RecvTimeoutError::Timeout) => Ok(true),
            Err(RecvTimeoutError::Disconnected) => Err(Stop::Exit(0)),
        }
    }

    /// Takes what has come, without waiting.
    fn look_around(&mut self) -> Flow {
        loop {
            match self.inbox.try_recv() {
                Ok(input) => self.take(input)?,
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => return Err(Stop::Exit(0)),
            }
        }
    }

    fn cancelled(&self) -> bool {
        self.turn.as_ref().is_some_and(|turn| turn.cancelled)
    }

    fn take(&mut self, input: Input) -> Flow {
        let message = match input {
            Ok(message) => message,
            Err(error) => return Ok(self.wire.answer(RequestId::Null, Err::<Value, _>(error.into()))?),
        };
        match (message.id, message.method) {
            (Some(id), Some(method)) => {
                if let Some(result) = self.request(&id, &method, message.params)? {
                    self.wire.answer(id, result)?;
                }
                Ok(())
            }
            (Some(id), None) => {
                self.answer = Some((id, message.result));
                Ok(())
            }
            (None, Some(method)) => {
                if method == "session/cancel"
                    && let Some(turn) = &mut self.turn
                {
                    turn.cancelled = true;
                }
                Ok(())
            }
            (None, None) => Ok(self.wire.answer(RequestId::Null, Err::<Value, _>(Error::invalid_request()))?),
        }
    }

    /// Does what a request asks. `None` if it is not to be answered, or was already.
    fn request(&mut self, id: &RequestId, method: &str, params: Value) -> Flow<Option<Result<Value, Error>>> {
        let result = match method {
            "initialize" if self.options.no_handshake => return Ok(None),
            "initialize" if self.options.bad_handshake => {
                Err(Error::internal_error().data("the fake agent was told to refuse"))
            }
            "initialize" => self.setup.initialize(self.options.protocol_version),
            "session/new" => {
                let opened = self.setup.new_session(params);
                self.wire.set_session(self.setup.id.clone().into());
                opened
            }
            "session/load" => return self.load(&params).map(Some),
            "session/list" => self.setup.list_sessions(),
            "session/set_mode" => self.setup.set_mode(&params),
            "session/set_config_option" => self.setup.set_option(params),
            "session/set_model" => self.setup.set_model(&params),
            "session/prompt" => match serde_json::from_value(params) {
                Ok(prompt) => return self.prompt(id, &prompt).map(|()| None),
                Err(error) => Err(error.into()),
            },
            _ => Err(Error::method_not_found().data(method)),
        };
        Ok(Some(result))
    }

    fn prompt(&mut self, id: &RequestId, prompt: &PromptRequest) -> Flow {
        let mut texts: Vec<&str> = prompt.prompt.iter().filter_map(text_of).collect();
        let script = texts.pop().unwrap_or_default();
        if let Some(turn) = &mut self.turn {
            turn.prompts.push(id.clone());
            return self.say(&format!("steered: {script}"));
        }
        if !texts.is_empty() {
            self.system = texts.join("\n");
        }
        self.blocks = prompt.prompt.iter().map(describe).collect::<Vec<_>>().join(" ");
        self.said.clear();
        self.turn = Some(Turn { prompts: vec![id.clone()], cancelled: false, tokens: None });
        for step in script::parse(script) {
            self.look_around()?;
            if self.cancelled() {
                break;
            }
            self.play(step)?;
        }
        self.look_around()?;
        let said = std::mem::take(&mut self.said);
        self.setup.remember(script, &said)?;
        let Some(turn) = self.turn.take() else { return Ok(()) };
        let reason = if turn.cancelled { StopReason::Cancelled } else { StopReason::EndTurn };
        for id in turn.prompts {
            let mut response = PromptResponse::new(reason);
            match turn.tokens {
                Some(Tokens { input, output, cached: Some((read, written)) }) => {
                    let total = input + output;
                    let usage = Usage::new(total, input, output).cached_read_tokens(read).cached_write_tokens(written);
                    response = response.usage(usage);
                }
                Some(Tokens { input, output, cached: None }) => {
                    let count = json!({ "token_count": { "input_tokens": input, "output_tokens": output } });
                    response.meta = json!({ "quota": count }).as_object().cloned();
                }
                None => {}
            }
            self.wire.answer(id, Ok(response))?;
        }
        Ok(())
    }

    fn play(&mut self, step: Step) -> Flow {
        match step {
            Step::Say(text) => self.say(&text),
            Step::Think(text) => {
                Ok(self.wire.update(SessionUpdate::AgentThoughtChunk(ContentChunk::new((text + "\n").into())))?)
            }
            Step::Sleep(time) => self.until_cancelled(Instant::now().checked_add(time)),
            Step::Wait => self.until_cancelled(None),
            Step::Run(command) => self.run(&command),
            Step::Spawn(command) => self.child("spawn", children::spawn(&command)),
            Step::IgnoreTerm(command) => self.child("ignore-term", children::ignore_term(&command)),
            Step::Setsid(command) => self.child("setsid", children::setsid(&self.reexec, &command)),
            Step::Daemon(command) => self.child("daemon", children::daemon(&self.reexec, &command)),
            Step::IgnoreSigterm => {
                // A handler, not SIG_IGN: that would be inherited by every child.
                signal_hook::flag::register(signal_hook::consts::SIGTERM, Arc::new(AtomicBool::new(false)))?;
                self.say("SIGTERM is ignored")
            }
            Step::Ask(title) => {
                let fields = ToolCallUpdateFields::new()
                    .title(title.clone())
                    .kind(ToolKind::Execute)
                    .status(ToolCallStatus::Pending)
                    .raw_input(json!({"title": title}));
                self.ask(fields)
            }
            Step::AskCall(fields) => self.ask(serde_json::from_value(fields).map_err(io::Error::from)?),
            Step::Flood { count, size } => self.flood(count, size),
            Step::Tool(name) => self.tool(name),
            Step::Plan => self.plan(),
            Step::Usage => Ok(self.wire.update(SessionUpdate::UsageUpdate(UsageUpdate::new(1_234, 200_000)))?),
            Step::Tokens(tokens) => {
                self.turn.iter_mut().for_each(|turn| turn.tokens = Some(tokens));
                Ok(())
            }
            Step::Look(look) => self.look_like(&look),
            Step::Cost(cents) => {
                self.cents += cents;
                let mut update = UsageUpdate::new(1_234, 200_000);
                update.cost = u32::try_from(self.cents).ok().map(|cents| Cost::new(f64::from(cents) / 100.0, "USD"));
                Ok(self.wire.update(SessionUpdate::UsageUpdate(update))?)
            }
            Step::Crash => {
                // No core file.
                nix::sys::prctl::set_dumpable(false).map_err(io::Error::from)?;
                std::process::abort()
            }
            Step::Exit(code) => Err(Stop::Exit(code)),
            Step::Hang => loop {
                std::thread::park();
            },
            Step::Stderr(text) => Ok(writeln!(io::stderr(), "{text}")?),
            Step::Raw(line) => Ok(self.wire.raw(&line)?),
            Step::Mcp => self.say(&format!("{} MCP servers", self.setup.mcp_servers)),
            Step::Model => self.say(&self.setup.model.clone()),
            Step::System => self.say(&self.system.clone()),
            Step::Env => {
                let mut names: Vec<_> =
                    std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned()).collect();
                names.sort();
                self.say(&names.join("\n"))
            }
            Step::Mode => self.say(&self.setup.mode.clone()),
            Step::Thinking => self.say(&self.setup.thinking.clone()),
            Step::History => self.say(&format!("{} before", self.setup.conversation.exchanges.len())),
            Step::Blocks => self.say(&self.blocks.clone()),
            Step::Cwd => self.say(&std::env::current_dir()?.to_string_lossy()),
        }
    }

    /// Goes on with a conversation, which is told first.
    fn load(&mut self, params: &Value) -> Flow<Result<Value, Error>> {
        let loaded = self.setup.load_session(params);
        if loaded.is_ok() {
            self.wire.set_session(self.setup.id.clone().into());
            for exchange in self.setup.conversation.exchanges.clone() {
                self.wire.update(SessionUpdate::UserMessageChunk(ContentChunk::new(exchange.user.into())))?;
                self.wire.update(text_update(exchange.agent))?;
            }
        }
        Ok(loaded)
    }

    fn say(&mut self, text: &str) -> Flow {
        self.said.push_str(text);
        Ok(self.wire.update(text_update(format!("{text}\n")))?)
    }

    /// What the client has set.
    pub(crate) fn setup(&mut self) -> &mut Setup {
        &mut self.setup
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled()
    }

    /// The id of a new tool call.
    pub(crate) fn mint_call(&mut self) -> String {
        format!("call-{}", self.mint())
    }

    /// The working directory.
    pub(crate) fn directory(&self) -> Flow<String> {
        Ok(std::env::current_dir()?.to_string_lossy().into_owned())
    }

    /// An update in the form that it has on the wire.
    pub(crate) fn raw_update(&mut self, update: Value) -> Flow {
        Ok(self.wire.raw_update(update)?)
    }

    pub(crate) fn until_cancelled(&mut self, deadline: Option<Instant>) -> Flow {
        while !self.cancelled() && !self.look(deadline)? {}
        Ok(())
    }

    fn child(&mut self, kind: &str, pid: io::Result<u32>) -> Flow {
        match pid {
            Ok(pid) => self.say(&format!("{kind} {pid}")),
            Err(error) => self.say(&format!("{kind} failed: {error}")),
        }
    }

    fn mint(&mut self) -> i64 {
        self.next_id += 1;
        self.next_id - 1
    }

    fn tool_call(&mut self, name: &str, title: &str, input: Value) -> Flow<String> {
        let id = format!("call-{}", self.mint());
        let call = ToolCall::new(id.clone(), title)
            .name(name.to_owned())
            .kind(ToolKind::Execute)
            .status(ToolCallStatus::InProgress)
            .raw_input(input);
        self.wire.update(SessionUpdate::ToolCall(call))?;
        Ok(id)
    }

    fn tool_update(&mut self, id: String, status: ToolCallStatus, output: String) -> Flow {
        let fields = ToolCallUpdateFields::new().status(status).content(vec![output.into()]);
        Ok(self.wire.update(SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(id, fields)))?)
    }

    fn tool(&mut self, name: String) -> Flow {
        let id = self.tool_call(&name, &name, json!({}))?;
        self.tool_update(id.clone(), ToolCallStatus::InProgress, "half".into())?;
        self.tool_update(id, ToolCallStatus::Completed, "done".into())
    }

    fn run(&mut self, command: &str) -> Flow {
        let id = self.tool_call("shell", command, json!({"command": command}))?;
        let mut tool = match children::Tool::start(command) {
            Ok(tool) => tool,
            Err(error) => return self.tool_update(id, ToolCallStatus::Failed, error.to_string()),
        };
        let code = loop {
            if let Some(code) = tool.ended()? {
                break code;
            }
            self.look(Instant::now().checked_add(TOOL_LOOK))?;
            if self.cancelled() {
                tool.kill()?;
                return self.tool_update(id, ToolCallStatus::Failed, "cancelled".into());
            }
        };
        match code {
            0 => self.tool_update(id, ToolCallStatus::Completed, tool.output()?),
            code => {
                let output = format!("{}exit code {code}\n", tool.output()?);
                self.tool_update(id, ToolCallStatus::Failed, output)
            }
        }
    }

    /// Asks, and stays deaf to a cancel until the answer is there: some agents do.
    fn ask(&mut self, fields: ToolCallUpdateFields) -> Flow {
        let call = format!("call-{}", self.mint());
        let options = vec![
            PermissionOption::new("allow-once", "Allow once", PermissionOptionKind::AllowOnce),
            PermissionOption::new("allow-always", "Allow always", PermissionOptionKind::AllowAlways),
            PermissionOption::new("reject-once", "Reject", PermissionOptionKind::RejectOnce),
        ];
        let request = RequestPermissionRequest::new(self.wire.session(), ToolCallUpdate::new(call, fields), options);
        let id = self.mint();
        self.wire.request(id, "session/request_permission", request)?;
        let answer = loop {
            match self.answer.take() {
                Some((answered, result)) if answered == RequestId::Number(id) => break result,
                _ => self.look(None)?,
            };
        };
        let outcome = match serde_json::from_value::<RequestPermissionResponse>(answer).map(|answer| answer.outcome) {
            Ok(RequestPermissionOutcome::Selected(selected)) => selected.option_id.to_string(),
            Ok(_) => "cancelled".to_owned(),
            Err(error) => format!("no answer: {error}"),
        };
        self.say(&format!("permission: {outcome}"))
    }

    fn flood(&mut self, count: u64, size: usize) -> Flow {
        let (inbox, turn) = (&self.inbox, &mut self.turn);
        let mut seen = Vec::new();
        self.wire.flood(
            count,
            size,
            || {
                seen.extend(inbox.try_recv());
                // Only a cancel can come here that matters before the flood is over.
                let cancel = |input: &Input| is_cancel(input);
                if seen.iter().any(cancel)
                    && let Some(turn) = turn
                {
                    turn.cancelled = true;
                }
                !turn.as_ref().is_some_and(|turn| turn.cancelled)
            },
            text_update,
        )?;
        seen.into_iter().try_for_each(|input| self.take(input))
    }

    fn plan(&mut self) -> Flow {
        let entry = |text: &str, status| PlanEntry::new(text, PlanEntryPriority::Medium, status);
        let entries = vec![
            entry("look", PlanEntryStatus::Completed),
            entry("think", PlanEntryStatus::InProgress),
            entry("act", PlanEntryStatus::Pending),
        ];
        Ok(self.wire.update(SessionUpdate::Plan(Plan::new(entries)))?)
    }
}

fn is_cancel(input: &Input) -> bool {
    matches!(input, Ok(Incoming { id: None, method: Some(method), .. }) if method == "session/cancel")
}

fn text_update(text: String) -> SessionUpdate {
    SessionUpdate::AgentMessageChunk(ContentChunk::new(text.into()))
}

/// What a block is.
fn describe(block: &ContentBlock) -> String {
    match block {
        ContentBlock::Text(_) => "text".to_owned(),
        ContentBlock::Image(image) => format!("{}:{}", image.mime_type, image.data),
        ContentBlock::ResourceLink(link) => link.uri.clone(),
        _ => "other".to_owned(),
    }
}

fn text_of(block: &ContentBlock) -> Option<&str> {
    match block {
        ContentBlock::Text(text) => Some(&text.text),
        _ => None,
    }
}
