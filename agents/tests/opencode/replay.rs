//! Recorded conversations, replayed against the adapter: what the server sent as events and answered to requests, and what the
//! driver of the recording asked for.

use std::time::{Duration, Instant};

use agents::{Action, Adapter, AdapterSetup, HttpEvent, HttpPatience, HttpRequest, opencode};
use ipc_protocol::{
    AgentEndpoint, AgentSessionConfig, Event, Json, NativeResume, Operation, PermissionAnswer, ResolvedBy, WireError,
};
use serde_json::Value;

use crate::rendered::rendered;

/// The recordings: ours, made with requests as the adapter makes them, and the samples of another driver.
pub(crate) const TRANSCRIPTS: [(&str, &str); 17] = [
    ("basic", include_str!("transcripts/basic.jsonl")),
    ("tools", include_str!("transcripts/tools.jsonl")),
    ("files", include_str!("transcripts/files.jsonl")),
    ("reject", include_str!("transcripts/reject.jsonl")),
    ("task", include_str!("transcripts/task.jsonl")),
    ("question", include_str!("transcripts/question.jsonl")),
    ("abort", include_str!("transcripts/abort.jsonl")),
    ("steer", include_str!("transcripts/steer.jsonl")),
    ("compact", include_str!("transcripts/compact.jsonl")),
    ("errors", include_str!("transcripts/errors.jsonl")),
    ("cut", include_str!("transcripts/cut.jsonl")),
    ("nofile", include_str!("transcripts/nofile.jsonl")),
    ("resume", include_str!("transcripts/resume.jsonl")),
    ("sample-basic", include_str!("transcripts/sample-basic.jsonl")),
    ("sample-permission", include_str!("transcripts/sample-permission.jsonl")),
    ("sample-abort", include_str!("transcripts/sample-abort-slow.jsonl")),
    ("sample-resume", include_str!("transcripts/sample-resume.jsonl")),
];

/// Commands, as the real server lists them.
pub(crate) const COMMANDS: &str = r#"[
{"name":"init","description":"guided AGENTS.md setup","source":"command","template":"Create or update","hints":["$ARGUMENTS"]},
{"name":"review","description":"review changes [commit|branch|pr], defaults to uncommitted","source":"command","template":"You are","subtask":true,"hints":["$ARGUMENTS"]}
]"#;

pub(crate) const PROVIDERS: &str = r#"{"providers":[{"id":"mock","models":{
    "mock-model":{"limit":{"context":128000,"output":8192},"variants":{"low":{},"high":{}}},
    "mock-two":{"limit":{"context":0},"variants":null}}}],"default":{}}"#;

pub(crate) const MODES: &str = r#"[{"name":"build","mode":"primary","hidden":null,"permission":[]},
    {"name":"plan","mode":"primary","permission":[]},{"name":"general","mode":"subagent"},
    {"name":"title","mode":"primary","hidden":true},
    {"name":"review","mode":"all","permission":[{"permission":"*","pattern":"*","action":"allow"},
        {"permission":"bash","pattern":"*","action":"deny"},{"permission":"todowrite","pattern":"*","action":"allow"}]}]"#;

/// One line of a recording.
#[derive(Clone, Debug)]
pub(crate) enum Record {
    /// Asked of the server: method, path without query, body.
    In(String, String, Value),
    /// The server's answer to that.
    Out(u16, String),
    /// An event, with its newlines.
    Sse(Vec<u8>),
    /// On its standard output, with its newline.
    Stdout(Vec<u8>),
}

pub(crate) fn records(transcript: &str) -> Vec<Record> {
    let record = |line: &str| {
        let record: Value = serde_json::from_str(line).expect("a record");
        let text = record["line"].as_str().expect("a line");
        match record["dir"].as_str() {
            Some("in") => {
                let mut words = text.splitn(3, ' ');
                let (method, path) = (words.next().expect("a method"), words.next().expect("a path"));
                let body = words.next().map(|body| serde_json::from_str(body).unwrap_or_default()).unwrap_or_default();
                Record::In(method.into(), without_query(path).into(), body)
            }
            Some("out") => {
                let (status, body) = text.split_once(' ').expect("a status");
                Record::Out(status.parse().expect("a number"), body.into())
            }
            Some("sse") => Record::Sse(format!("{text}\n\n").into_bytes()),
            Some("stdout") => Record::Stdout(format!("{text}\n").into_bytes()),
            other => panic!("direction {other:?}"),
        }
    };
    transcript.lines().map(record).collect()
}

fn without_query(path: &str) -> &str {
    path.split('?').next().unwrap_or_default()
}

/// A setup as the recordings have it.
pub(crate) fn setup(config: AgentSessionConfig) -> AdapterSetup {
    AdapterSetup {
        config: AgentSessionConfig { cwd: Some("/srv/example/work".into()), ..config },
        agent: "opencode".into(),
        protocol_config: Value::Null,
        fresh_id: "fresh".into(),
        resume: None,
        endpoint: Some(AgentEndpoint { url: None, user: "opencode".into(), password: Some("pw".into()) }),
        directories: std::collections::BTreeMap::default(),
    }
}

pub(crate) fn config() -> AgentSessionConfig {
    AgentSessionConfig { model: Some("mock/mock-model".into()), ..AgentSessionConfig::new("opencode") }
}

fn setup_of(name: &str) -> AdapterSetup {
    let resume = match name {
        "resume" => Some(("ses_e004eec1effehL1OmG7rAZrDb6", true)),
        "sample-resume" => Some(("ses_e05cb0498ffeC9eoCam6DayuGb", false)),
        _ => None,
    };
    let resume = resume.map(|(id, fork)| NativeResume { id: Some(id.into()), fork });
    AdapterSetup { resume, ..setup(config()) }
}

/// What an adapter did, and what the server and the host would know.
pub(crate) struct Replay {
    pub(crate) adapter: Box<dyn Adapter>,
    pub(crate) actions: Vec<Action>,
    /// Requests that are not answered.
    pub(crate) waiting: Vec<HttpRequest>,
    pub(crate) stream: Option<u64>,
    /// Paths that are answered by hand, or by the recording.
    pub(crate) held: Vec<(String, String)>,
    pub(crate) session: String,
    turn: bool,
    open: Vec<String>,
    operations: u64,
    seen: usize,
    now: Instant,
}

impl Replay {
    pub(crate) fn new(setup: AdapterSetup) -> Self {
        let mut adapter = opencode::make(setup).expect("an adapter");
        let mut actions = Vec::new();
        adapter.start(&mut actions);
        let mut replay = Self {
            adapter,
            actions,
            waiting: Vec::new(),
            stream: None,
            held: Vec::new(),
            session: String::new(),
            turn: false,
            open: Vec::new(),
            operations: 0,
            seen: 0,
            now: Instant::now(),
        };
        replay.follow();
        replay
    }

    pub(crate) fn of(name: &str) -> Self {
        Self::new(setup_of(name))
    }

    /// Follows what the adapter did since the last time, and answers what nobody holds.
    pub(crate) fn follow(&mut self) {
        loop {
            while let Some(action) = self.actions.get(self.seen) {
                self.seen += 1;
                match action {
                    Action::TurnEnded => self.turn = false,
                    Action::Ready { native_session_id } => self.session = native_session_id.clone().expect("an id"),
                    Action::Event(Event::PermissionRequested(request)) => self.open.push(request.id.clone()),
                    Action::Event(Event::PermissionResolved { id, .. }) => self.open.retain(|open| open != id),
                    Action::Http(request) if request.patience == HttpPatience::Stream => {
                        self.stream = Some(request.id);
                        self.adapter.http(request.id, HttpEvent::Head(200), &mut Vec::new());
                    }
                    Action::Http(request) => self.waiting.push(request.clone()),
                    _ => {}
                }
            }
            let is_held = |request: &HttpRequest| {
                let path = without_query(&request.path);
                self.held.iter().any(|(method, held)| *method == request.method && held == path)
            };
            let Some(at) = self.waiting.iter().position(|request| !is_held(request)) else { return };
            let request = self.waiting.remove(at);
            let (status, body) = default_answer(&request);
            self.answer(request.id, status, &body);
        }
    }

    /// Answers request `id`.
    pub(crate) fn answer(&mut self, id: u64, status: u16, body: &str) {
        self.adapter.http(id, HttpEvent::Head(status), &mut self.actions);
        // Boundaries mean nothing.
        let (head, tail) = body.as_bytes().split_at(body.len() / 3);
        self.adapter.http(id, HttpEvent::Body(head), &mut self.actions);
        self.adapter.http(id, HttpEvent::Body(tail), &mut self.actions);
        self.adapter.http(id, HttpEvent::End, &mut self.actions);
        self.follow();
    }

    /// Answers the oldest request that waits for `method` and `path`.
    pub(crate) fn answer_to(&mut self, method: &str, path: &str, status: u16, body: &str) {
        let is_it = |request: &HttpRequest| request.method == method && without_query(&request.path) == path;
        let at = self.waiting.iter().position(is_it);
        let at = at.unwrap_or_else(|| panic!("{method} {path} was not asked: {:?}", self.waiting));
        let request = self.waiting.remove(at);
        self.answer(request.id, status, body);
    }

    /// Requests for `method` and `path` wait for [`Replay::answer_to`].
    pub(crate) fn hold(&mut self, method: &str, path: &str) {
        self.held.push((method.into(), path.into()));
    }

    pub(crate) fn stdout(&mut self, bytes: &[u8]) {
        self.adapter.stdout(bytes, &mut self.actions);
        self.follow();
    }

    /// The server sends `bytes`, and there is time before it sends more.
    pub(crate) fn sse(&mut self, bytes: &[u8]) {
        self.feed(bytes);
        self.now += Duration::from_secs(1);
        self.adapter.tick(self.now, &mut self.actions);
    }

    /// The server sends `bytes`, and no time passes.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        if let Some(stream) = self.stream {
            self.adapter.http(stream, HttpEvent::Body(bytes), &mut self.actions);
            self.follow();
        }
    }

    /// An event of the server's.
    pub(crate) fn event(&mut self, kind: &str, properties: Value) {
        let event = serde_json::json!({ "id": "evt_1", "type": kind, "properties": properties });
        self.sse(format!("data: {event}\n\n").as_bytes());
    }

    pub(crate) fn prompt(&mut self, text: &str) -> Result<(), WireError> {
        let result = self.adapter.prompt(&text.into(), &mut self.actions);
        self.turn |= result.is_ok();
        self.follow();
        result
    }

    pub(crate) fn steer(&mut self, text: &str) -> Result<(), WireError> {
        let result = self.adapter.steer(&text.into(), &mut self.actions);
        self.follow();
        result
    }

    pub(crate) fn abort(&mut self) {
        self.adapter.abort(&mut self.actions).expect("it can be aborted");
        self.follow();
    }

    pub(crate) fn permit(&mut self, id: &str, answer: &PermissionAnswer) -> Result<(), WireError> {
        let result = self.adapter.permission(id, answer, ResolvedBy::User { name: None }, &mut self.actions);
        self.follow();
        result
    }

    pub(crate) fn operate(&mut self, operation: &Operation) -> Result<u64, WireError> {
        self.operations += 1;
        let result = self.adapter.operate(self.operations, operation, &mut self.actions);
        self.follow();
        result.map(|()| self.operations)
    }

    /// The reply to operation `request`.
    pub(crate) fn reply(&self, request: u64) -> Option<&Result<Json, WireError>> {
        self.actions.iter().find_map(|action| match action {
            Action::Reply { request: of, reply } if *of == request => Some(reply),
            _ => None,
        })
    }

    /// What the driver of the recording did, unless the adapter did it by itself before.
    fn input(&mut self, method: &str, path: &str, body: &Value) {
        let is_it = |request: &HttpRequest| request.method == method && without_query(&request.path) == path;
        if self.waiting.iter().any(is_it) {
            return;
        }
        // An adapter that was fed garbage may not be where the recording is: errors are its answer then.
        let own = format!("/session/{}", self.session);
        if path == format!("{own}/prompt_async") {
            let text = body["parts"][0]["text"].as_str().expect("a text");
            if self.turn { drop(self.steer(text)) } else { drop(self.prompt(text)) }
        } else if path == format!("{own}/abort") {
            self.abort();
        } else if path == format!("{own}/summarize") {
            drop(self.operate(&Operation::Compact));
        } else if let Some(id) = path.strip_prefix("/permission/").and_then(|path| path.strip_suffix("/reply")) {
            let answer = match (body["reply"].as_str(), body["message"].as_str()) {
                (Some("once"), _) => PermissionAnswer::Allow,
                (Some("always"), _) => PermissionAnswer::Option("always".into()),
                (_, Some(message)) => PermissionAnswer::DenyWith { message: message.into() },
                _ => PermissionAnswer::Deny,
            };
            drop(self.permit(id, &answer));
        } else if let Some(id) = path.strip_prefix("/question/").and_then(|path| path.strip_suffix("/reply")) {
            drop(self.permit(id, &PermissionAnswer::AllowWith { input: Json::from(body) }));
        } else if let Some(id) = path.strip_prefix("/question/").and_then(|path| path.strip_suffix("/reject")) {
            drop(self.permit(id, &PermissionAnswer::Deny));
        } else if path.starts_with(&own) || matches!(path, "/permission" | "/session/status") {
            let message = serde_json::json!({ "method": method, "path": path, "body": body });
            drop(self.operate(&Operation::Native { message: Json::from(&message) }));
        }
    }

    /// Does what the recording has. `sse` takes its events.
    pub(crate) fn run(&mut self, records: &[Record], mut sse: impl FnMut(&mut Self, &[u8])) {
        let asked = records.iter().filter_map(|record| match record {
            Record::In(method, path, _) => Some((method.clone(), path.clone())),
            _ => None,
        });
        self.held = asked.collect();
        // One that is answered is not held any more.
        let mut asked: Option<(String, String)> = None;
        for record in records {
            match record {
                Record::Stdout(line) => self.stdout(line),
                Record::Sse(event) => sse(self, event),
                Record::In(method, path, body) => {
                    self.input(method, path, body);
                    asked = Some((method.clone(), path.clone()));
                }
                Record::Out(status, body) => {
                    let Some((method, path)) = asked.take() else { continue };
                    if let Some(at) = self.held.iter().position(|held| *held == (method.clone(), path.clone())) {
                        self.held.remove(at);
                    }
                    let is_it =
                        |request: &HttpRequest| request.method == method && without_query(&request.path) == path;
                    if let Some(at) = self.waiting.iter().position(is_it) {
                        let request = self.waiting.remove(at);
                        self.answer(request.id, *status, body);
                    }
                    self.follow();
                }
            }
        }
    }

    pub(crate) fn finish(mut self) -> Vec<Action> {
        self.adapter.finish(&mut self.actions);
        self.actions
    }
}

/// The answer to what the recording does not have.
pub(crate) fn default_answer(request: &HttpRequest) -> (u16, String) {
    let path = without_query(&request.path);
    match (request.method, path) {
        ("GET", "/config/providers") => (200, PROVIDERS.into()),
        ("GET", "/agent") => (200, MODES.into()),
        ("GET", "/command") => (200, COMMANDS.into()),
        ("GET", "/config") => (200, r#"{"model":"mock/mock-model"}"#.into()),
        ("POST", "/session") => (200, r#"{"id":"ses_1"}"#.into()),
        ("POST", path) if path.ends_with("/prompt_async") => (204, String::new()),
        ("POST", path) if path.ends_with("/fork") => (200, r#"{"id":"ses_2"}"#.into()),
        ("POST" | "DELETE", _) => (200, "true".into()),
        ("GET", "/session/status") => (200, "{}".into()),
        ("GET", "/session" | "/permission" | "/question") => (200, "[]".into()),
        ("GET", path) if path.ends_with("/message") => (200, "[]".into()),
        _ => (200, r#"{"id":"ses_1"}"#.into()),
    }
}

/// A session that is ready, of the default answers: `ses_1`.
pub(crate) fn ready(config: AgentSessionConfig) -> Replay {
    let mut replay = Replay::new(setup(config));
    replay.stdout(b"opencode server listening on http://127.0.0.1:4096\n");
    replay.event("server.connected", serde_json::json!({}));
    assert_eq!(replay.session, "ses_1", "{:?}", replay.actions);
    replay
}

/// The requests of `actions`: method, path and query, body.
pub(crate) fn requests(actions: &[Action]) -> Vec<(&'static str, String, Value)> {
    let request = |action: &Action| match action {
        Action::Http(HttpRequest { method, path, body, .. }) => {
            let body = body.as_ref().map(|body| serde_json::from_slice(body).expect("JSON")).unwrap_or_default();
            Some((*method, path.clone(), body))
        }
        _ => None,
    };
    actions.iter().filter_map(request).collect()
}

/// One line an action.
pub(crate) fn render(actions: &[Action]) -> String {
    let own = |action: &Action| match action {
        Action::Http(HttpRequest { method, path, body, patience, .. }) => {
            let body = body.as_ref().map(|body| String::from_utf8_lossy(body).into_owned()).unwrap_or_default();
            let patience = if *patience == HttpPatience::Short { String::new() } else { format!(" ({patience:?})") };
            Some(format!("> {method} {}{patience} {body}", without_query(path)).trim_end().to_owned())
        }
        _ => None,
    };
    rendered(actions, 240, own)
}
