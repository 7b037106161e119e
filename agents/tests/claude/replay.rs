//! Recorded conversations, replayed against an adapter.
//!
//! In a recording the driver wrote what the adapter would have: the same ids in the same order. The recordings `unnamed-*` are of a
//! driver that gave its messages no names and its requests other ids: the ids are replaced by the adapter's.

use std::collections::{BTreeMap, VecDeque};

use agents::{Action, Adapter, AdapterSetup, ListedFile, claude};
use ipc_protocol::{
    AgentSessionConfig, EnvVars, Event, Json, McpServer, McpTransport, NativeResume, Operation, PermissionAnswer,
    Prompt, ResolvedBy, WireError,
};
use serde_json::{Value, json};

use crate::rendered::rendered;

/// An answer of a user without a name.
pub(crate) const USER: ResolvedBy = ResolvedBy::User { name: None };

/// A recording.
#[derive(Clone, Copy)]
pub(crate) struct Transcript {
    pub(crate) name: &'static str,
    text: &'static str,
    /// The first digit of the names of our messages.
    stem: u8,
    resume: Option<(Option<&'static str>, bool)>,
}

macro_rules! transcript {
    ($name:literal) => {
        transcript!($name, 0, None)
    };
    ($name:literal, $stem:literal, $resume:expr) => {
        Transcript {
            name: $name,
            text: include_str!(concat!("../transcripts/claude-", $name, ".jsonl")),
            stem: $stem,
            resume: $resume,
        }
    };
}

/// Stands for the id that the recording has.
const RECORDED: &str = "recorded";

pub(crate) const TRANSCRIPTS: [Transcript; 19] = [
    transcript!("turns"),
    transcript!("permissions"),
    transcript!("abort"),
    transcript!("steer"),
    transcript!("subagent"),
    transcript!("plan-todo"),
    transcript!("plan-tasks"),
    transcript!("plan-mode"),
    transcript!("errors"),
    transcript!("cut"),
    transcript!("operations"),
    transcript!("resume", 1, Some((Some(RECORDED), false))),
    transcript!("fork", 2, Some((Some("original"), true))),
    transcript!("continue", 3, Some((None, false))),
    transcript!("resume-missing", 4, Some((Some("missing"), false))),
    transcript!("continue-none", 5, Some((None, false))),
    transcript!("unnamed-basic"),
    transcript!("unnamed-permission"),
    transcript!("unnamed-abort"),
];

/// One line of a recording.
#[derive(Clone, Debug)]
pub(crate) enum Record {
    /// Written to the agent.
    In(Value),
    /// Written by the agent, with its newline.
    Out(Vec<u8>),
    /// Written by the agent to its standard error, with its newline.
    Err(Vec<u8>),
}

impl std::fmt::Debug for Transcript {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl Transcript {
    pub(crate) fn named(name: &str) -> Self {
        *TRANSCRIPTS.iter().find(|transcript| transcript.name == name).expect("a transcript of that name")
    }

    pub(crate) fn records(&self) -> Vec<Record> {
        let record = |line: &str| {
            let record: Value = serde_json::from_str(line).expect("a record");
            let text = record["line"].as_str().expect("a line");
            match record["dir"].as_str() {
                Some("in") => Record::In(serde_json::from_str(text).expect("JSON")),
                Some("out") => Record::Out(format!("{text}\n").into_bytes()),
                Some("err") => Record::Err(format!("{text}\n").into_bytes()),
                other => panic!("direction {other:?}"),
            }
        };
        self.text.lines().map(record).collect()
    }

    /// The setup of the recorded session.
    pub(crate) fn setup(&self) -> AdapterSetup {
        let mut config = config();
        if self.name == "operations" {
            let files = McpTransport::Stdio {
                command: "python3".into(),
                args: vec!["/srv/mcp.py".into()],
                env: EnvVars::default(),
            };
            let web = McpTransport::Http { url: "http://127.0.0.1:9/mcp".into(), headers: EnvVars::default() };
            config.mcp_servers = vec![
                McpServer { name: "files".into(), transport: files },
                McpServer { name: "web".into(), transport: web },
            ];
            config.thinking = Some("off".into());
            config.system_prompt = Some("be brief".into());
        }
        let id = |id: &str| match self.session() {
            Some(recorded) if id == RECORDED => recorded,
            _ => id.to_owned(),
        };
        let resume = self.resume.map(|(resumed, fork)| NativeResume { id: resumed.map(id), fork });
        AdapterSetup { fresh_id: format!("{:08}-0000-4000-8000-000000000000", self.stem), resume, ..setup(config) }
    }

    /// The id of the recorded conversation, as the agent says it first.
    pub(crate) fn session(&self) -> Option<String> {
        self.records().iter().find_map(|record| {
            let Record::Out(line) = record else { return None };
            let line: Value = serde_json::from_slice(line).ok()?;
            Some(line["session_id"].as_str()?.to_owned())
        })
    }

    pub(crate) fn actions(&self) -> Vec<Action> {
        let mut replay = Replay::of(self);
        self.records().iter().for_each(|record| replay.record(record));
        replay.finish()
    }
}

pub(crate) fn config() -> AgentSessionConfig {
    AgentSessionConfig { cwd: Some("/srv/work".into()), ..AgentSessionConfig::new("claude-code") }
}

pub(crate) fn setup(config: AgentSessionConfig) -> AdapterSetup {
    AdapterSetup {
        config,
        agent: "claude-code".to_owned(),
        protocol_config: json!({}),
        fresh_id: "00000000-0000-4000-8000-000000000000".to_owned(),
        resume: None,
        endpoint: None,
        directories: BTreeMap::from([("HOME".to_owned(), "/srv/home".to_owned())]),
    }
}

/// A stored conversation, as [`Action::List`] finds it.
pub(crate) fn stored(id: &str) -> ListedFile {
    let head = r#"{"type":"user","message":{"role":"user","content":"hello"},"cwd":"/srv/work"}"#;
    let path = format!("/srv/home/.claude/projects/-srv-work/{id}.jsonl");
    ListedFile { path, modified_ms: 1_767_323_045_678, head: head.into() }
}

/// What an adapter did, and what is open.
pub(crate) struct Replay {
    pub(crate) adapter: Box<dyn Adapter>,
    pub(crate) actions: Vec<Action>,
    /// What is found where the conversations are.
    files: Vec<ListedFile>,
    turn: bool,
    open: Vec<String>,
    /// What the adapter wrote and the recording has still to show.
    written: VecDeque<Value>,
    /// Ids of the recording, and the adapter's.
    ids: Vec<(String, String)>,
    requests: u64,
    seen: usize,
    begun: bool,
}

impl Replay {
    pub(crate) fn of(transcript: &Transcript) -> Self {
        let adapter = claude::make(transcript.setup()).expect("an adapter");
        let files = match transcript.name {
            "continue" => transcript.session().iter().map(|id| stored(id)).collect(),
            "continue-none" => vec![stored("some-other")],
            _ => Vec::new(),
        };
        Self::new(adapter, files)
    }

    pub(crate) fn new(mut adapter: Box<dyn Adapter>, files: Vec<ListedFile>) -> Self {
        let mut actions = Vec::new();
        adapter.start(&mut actions);
        let mut replay = Self {
            adapter,
            actions,
            files,
            turn: false,
            open: Vec::new(),
            written: VecDeque::new(),
            ids: Vec::new(),
            requests: 0,
            seen: 0,
            begun: false,
        };
        replay.follow();
        replay
    }

    /// Follows what the adapter did since the last time.
    pub(crate) fn follow(&mut self) {
        let mut lists = Vec::new();
        for action in self.actions.iter().skip(self.seen) {
            match action {
                Action::TurnEnded => self.turn = false,
                Action::List { id, .. } => lists.push(*id),
                Action::Write(line) => self.written.push_back(serde_json::from_slice(line).expect("JSON")),
                Action::Event(Event::PermissionRequested(request)) => self.open.push(request.id.clone()),
                Action::Event(Event::PermissionResolved { id, .. }) => self.open.retain(|open| open != id),
                _ => {}
            }
        }
        self.seen = self.actions.len();
        for id in lists {
            self.adapter.listed(id, self.files.clone(), &mut self.actions);
            self.follow();
        }
    }

    /// Forgets what was done so far.
    pub(crate) fn clear(&mut self) {
        self.actions.clear();
        self.seen = 0;
    }

    /// Begins a turn.
    pub(crate) fn prompt(&mut self, text: &str) {
        self.adapter.prompt(&Prompt::from(text), &mut self.actions).expect("a turn");
        self.turn = true;
        self.follow();
    }

    pub(crate) fn stdout(&mut self, bytes: &[u8]) {
        self.adapter.stdout(bytes, &mut self.actions);
        self.follow();
    }

    /// A line of the agent's, with the adapter's ids.
    pub(crate) fn line(&self, line: &[u8]) -> Vec<u8> {
        if self.ids.is_empty() {
            return line.to_vec();
        }
        let mut text = String::from_utf8_lossy(line).into_owned();
        for (theirs, ours) in &self.ids {
            text = text.replace(&format!("\"{theirs}\""), &format!("\"{ours}\""));
        }
        text.into_bytes()
    }

    /// Does what the driver of the recording did.
    pub(crate) fn input(&mut self, message: &Value) {
        // An adapter that was fed garbage may refuse.
        match message["type"].as_str() {
            Some("user") => self.say(message),
            Some("control_response") => self.respond(&message["response"]["response"]),
            Some("control_request") => self.ask(&message["request"]),
            other => panic!("type {other:?}"),
        }
        self.follow();
        let id = |message: &Value| message["request_id"].as_str().map(str::to_owned);
        if let Some(theirs) = id(message)
            && let Some(at) =
                self.written.iter().position(|ours| ours["request"]["subtype"] == message["request"]["subtype"])
            && let Some(ours) = self.written.remove(at).as_ref().and_then(id)
            && ours != theirs
        {
            self.ids.push((theirs, ours));
        }
    }

    fn say(&mut self, message: &Value) {
        self.begun = true;
        let text = message["message"]["content"][0]["text"].as_str().expect("a text");
        if text == "/compact" {
            return self.operate(&Operation::Compact);
        }
        let prompt = Prompt::from(text);
        if self.turn {
            let _ = self.adapter.steer(&prompt, &mut self.actions);
        } else {
            self.turn = self.adapter.prompt(&prompt, &mut self.actions).is_ok();
        }
    }

    fn respond(&mut self, response: &Value) {
        // Already answered where an abort or the turn's end came first.
        let Some(open) = self.open.first().cloned() else { return };
        let asked = self.actions.iter().rev().find_map(|action| match action {
            Action::Event(Event::PermissionRequested(request)) if request.id == open => Some(request.input.value()),
            _ => None,
        });
        let message = response["message"].as_str().unwrap_or_default();
        let answer = match response["behavior"].as_str() {
            Some("allow") if response.get("updatedPermissions").is_some() => {
                PermissionAnswer::Option("allowAlways".to_owned())
            }
            Some("allow") if asked.as_ref() == Some(&response["updatedInput"]) => PermissionAnswer::Allow,
            Some("allow") => PermissionAnswer::AllowWith { input: Json::from(&response["updatedInput"]) },
            _ if response["interrupt"] == true => PermissionAnswer::Option("rejectAndStop".to_owned()),
            _ => PermissionAnswer::DenyWith { message: message.to_owned() },
        };
        let _ = self.adapter.permission(&open, &answer, USER, &mut self.actions);
    }

    fn ask(&mut self, request: &Value) {
        let text = |key: &str| request[key].as_str().unwrap_or_default().to_owned();
        match request["subtype"].as_str().expect("a subtype") {
            // The adapter's own doing.
            "initialize" | "mcp_set_servers" => {}
            "set_max_thinking_tokens" if !self.begun => {}
            "interrupt" => self.adapter.abort(&mut self.actions).expect("abortable"),
            "set_model" => self.operate(&Operation::SetModel { model: text("model") }),
            "set_permission_mode" => self.operate(&Operation::SetMode { mode: text("mode") }),
            // The first step of this, and the second.
            "set_max_thinking_tokens" => self.operate(&Operation::SetThinking { level: "low".into() }),
            "apply_flag_settings" => {}
            "get_context_usage" => self.operate(&Operation::GetState),
            _ => self.operate(&Operation::Native { message: Json::from(request) }),
        }
    }

    fn operate(&mut self, operation: &Operation) {
        self.requests += 1;
        if let Err(error) = self.adapter.operate(self.requests, operation, &mut self.actions) {
            assert!(matches!(error, WireError::Unsupported { .. } | WireError::Busy | WireError::AgentRefused { .. }));
        }
    }

    pub(crate) fn record(&mut self, record: &Record) {
        match record {
            Record::In(message) => self.input(message),
            Record::Out(line) => self.stdout(&self.line(line)),
            Record::Err(line) => self.adapter.stderr(line, &mut self.actions),
        }
    }

    pub(crate) fn finish(mut self) -> Vec<Action> {
        self.adapter.finish(&mut self.actions);
        self.actions
    }
}

/// What is written to the agent, parsed.
pub(crate) fn writes(actions: &[Action]) -> Vec<Value> {
    let write = |action: &Action| match action {
        Action::Write(line) => {
            assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1, "one line a message");
            assert!(line.ends_with(b"\n"));
            Some(serde_json::from_slice(line).expect("JSON"))
        }
        _ => None,
    };
    actions.iter().filter_map(write).collect()
}

pub(crate) fn events(actions: &[Action]) -> Vec<&Event> {
    let mut events = Vec::new();
    for action in actions {
        if let Action::Event(event) = action {
            events.push(event);
        }
    }
    events
}

/// One line an action.
pub(crate) fn render(actions: &[Action]) -> String {
    let write = |action: &Action| match action {
        Action::Write(line) => Some(format!("> {}", String::from_utf8_lossy(line).trim_end())),
        _ => None,
    };
    rendered(actions, 260, write)
}
