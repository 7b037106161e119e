//! Recorded conversations, replayed against an adapter.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use agents::{Action, Adapter, AdapterSetup, acp};
use ipc_protocol::{AgentSessionConfig, Event, NativeResume, PermissionAnswer};
use serde_json::{Value, json};

pub(crate) use crate::actions::{USER, events, kinds, writes};
use crate::rendered::rendered;

/// The recordings: every agent, with its plain turns, its permission requests, its cancelled and steered turns, what it says
/// when the model fails, and conversations that are gone on with.
pub(crate) const TRANSCRIPTS: [(&str, &str); 25] = [
    ("claude-acp-abort", include_str!("../transcripts/claude-acp-abort.jsonl")),
    ("claude-acp-basic", include_str!("../transcripts/claude-acp-basic.jsonl")),
    ("claude-acp-errors", include_str!("../transcripts/claude-acp-errors.jsonl")),
    ("claude-acp-fork", include_str!("../transcripts/claude-acp-fork.jsonl")),
    ("claude-acp-permission", include_str!("../transcripts/claude-acp-permission.jsonl")),
    ("claude-acp-resume", include_str!("../transcripts/claude-acp-resume.jsonl")),
    ("claude-acp-retry", include_str!("../transcripts/claude-acp-retry.jsonl")),
    ("codex-acp-abort", include_str!("../transcripts/codex-acp-abort.jsonl")),
    ("codex-acp-basic", include_str!("../transcripts/codex-acp-basic.jsonl")),
    ("codex-acp-errors", include_str!("../transcripts/codex-acp-errors.jsonl")),
    ("codex-acp-permission", include_str!("../transcripts/codex-acp-permission.jsonl")),
    ("codex-acp-resume", include_str!("../transcripts/codex-acp-resume.jsonl")),
    ("codex-acp-retry", include_str!("../transcripts/codex-acp-retry.jsonl")),
    ("gemini-abort", include_str!("../transcripts/gemini-abort.jsonl")),
    ("gemini-basic", include_str!("../transcripts/gemini-basic.jsonl")),
    ("gemini-errors", include_str!("../transcripts/gemini-errors.jsonl")),
    ("gemini-missing", include_str!("../transcripts/gemini-missing.jsonl")),
    ("gemini-permission", include_str!("../transcripts/gemini-permission.jsonl")),
    ("gemini-resume", include_str!("../transcripts/gemini-resume.jsonl")),
    ("opencode-abort", include_str!("../transcripts/opencode-abort.jsonl")),
    ("opencode-basic", include_str!("../transcripts/opencode-basic.jsonl")),
    ("opencode-errors", include_str!("../transcripts/opencode-errors.jsonl")),
    ("opencode-fork", include_str!("../transcripts/opencode-fork.jsonl")),
    ("opencode-permission", include_str!("../transcripts/opencode-permission.jsonl")),
    ("opencode-resume", include_str!("../transcripts/opencode-resume.jsonl")),
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

pub(crate) fn records(transcript: &str) -> Vec<Record> {
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
    transcript.lines().map(record).collect()
}

/// A configuration as the recordings have it.
pub(crate) fn setup(config: AgentSessionConfig) -> AdapterSetup {
    AdapterSetup {
        config,
        agent: "recorded".to_owned(),
        protocol_config: json!({ "steerByPrompt": true }),
        fresh_id: "0193a5a8-0000-7000-8000-000000000000".to_owned(),
        resume: None,
        endpoint: None,
        directories: BTreeMap::new(),
    }
}

pub(crate) fn adapter() -> Box<dyn Adapter> {
    acp::make(setup(AgentSessionConfig {
        cwd: Some("/srv/example/work".into()),
        ..AgentSessionConfig::new("recorded")
    }))
    .expect("an adapter")
}

/// An adapter that opens its session as the recording does.
fn adapter_of(records: &[Record]) -> Box<dyn Adapter> {
    let opening = |record: &Record| match record {
        Record::In(message)
            if matches!(message["method"].as_str(), Some("session/resume" | "session/load" | "session/fork")) =>
        {
            Some(message.clone())
        }
        _ => None,
    };
    let mut setup =
        setup(AgentSessionConfig { cwd: Some("/srv/example/work".into()), ..AgentSessionConfig::new("recorded") });
    setup.resume = records.iter().find_map(opening).map(|message| NativeResume {
        id: message["params"]["sessionId"].as_str().map(str::to_owned),
        fork: message["method"] == "session/fork",
    });
    acp::make(setup).expect("an adapter")
}

/// What an adapter did, and what is open.
pub(crate) struct Replay {
    pub(crate) adapter: Box<dyn Adapter>,
    pub(crate) actions: Vec<Action>,
    turn: bool,
    open: Vec<String>,
    seen: usize,
    now: Instant,
}

impl Replay {
    /// Of the adapter that the recording is of.
    pub(crate) fn of(records: &[Record]) -> Self {
        Self::new(adapter_of(records))
    }

    pub(crate) fn new(mut adapter: Box<dyn Adapter>) -> Self {
        let mut actions = Vec::new();
        adapter.start(&mut actions);
        Self { adapter, actions, turn: false, open: Vec::new(), seen: 0, now: Instant::now() }
    }

    /// Follows what the adapter did since the last time.
    pub(crate) fn follow(&mut self) {
        for action in self.actions.iter().skip(self.seen) {
            match action {
                Action::TurnEnded => self.turn = false,
                Action::Event(Event::PermissionRequested(request)) => self.open.push(request.id.clone()),
                Action::Event(Event::PermissionResolved { id, .. }) => self.open.retain(|open| open != id),
                _ => {}
            }
        }
        self.seen = self.actions.len();
    }

    /// Forgets what was done so far.
    pub(crate) fn clear(&mut self) {
        self.actions.clear();
        self.seen = 0;
    }

    /// The agent writes `bytes`, and there is time before it writes more.
    pub(crate) fn stdout(&mut self, bytes: &[u8]) {
        self.feed(bytes);
        self.now += Duration::from_secs(1);
        self.adapter.tick(self.now, &mut self.actions);
        self.follow();
    }

    /// The agent writes `bytes`, and no time passes.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        self.adapter.stdout(bytes, &mut self.actions);
        self.follow();
    }

    /// Does what the driver of the recording did.
    pub(crate) fn input(&mut self, message: &Value) {
        match message["method"].as_str() {
            // The adapter's own doing.
            Some("initialize" | "session/new" | "session/resume" | "session/load" | "session/fork") => {}
            Some("session/prompt") => {
                let text = message["params"]["prompt"][0]["text"].as_str().expect("a text");
                // An adapter that was fed garbage may not be ready.
                if self.turn {
                    let _ = self.adapter.steer(&text.into(), &mut self.actions);
                } else {
                    self.turn = self.adapter.prompt(&text.into(), &mut self.actions).is_ok();
                }
            }
            Some("session/cancel") => self.adapter.abort(&mut self.actions).expect("abortable"),
            Some(other) => panic!("method {other}"),
            None => {
                // Already answered where an abort or the turn's end came first.
                let Some(open) = self.open.first().cloned() else { return };
                let answer = match message["result"]["outcome"]["optionId"].as_str() {
                    Some(option) => PermissionAnswer::Option(option.to_owned()),
                    None => PermissionAnswer::Cancelled,
                };
                let _ = self.adapter.permission(&open, &answer, USER, &mut self.actions);
            }
        }
        self.follow();
    }

    pub(crate) fn record(&mut self, record: &Record) {
        match record {
            Record::In(message) => self.input(message),
            Record::Out(line) => self.stdout(line),
            Record::Err(line) => self.adapter.stderr(line, &mut self.actions),
        }
    }

    pub(crate) fn finish(mut self) -> Vec<Action> {
        self.adapter.finish(&mut self.actions);
        self.actions
    }
}

/// One line an action.
pub(crate) fn render(actions: &[Action]) -> String {
    let write = |action: &Action| match action {
        Action::Write(line) => {
            let message: Value = serde_json::from_slice(line).expect("JSON");
            Some(match message["method"].as_str() {
                Some(method) => format!("> {method} {}", message["id"]),
                None => format!("> {} {}{}", message["id"], message["result"], message["error"]),
            })
        }
        _ => None,
    };
    rendered(actions, 200, write)
}

/// A message as the agent writes it.
pub(crate) fn line(value: &Value) -> Vec<u8> {
    format!("{value}\n").into_bytes()
}

/// An adapter with a session, and no actions yet.
pub(crate) fn ready() -> Replay {
    let mut replay = Replay::new(adapter());
    let able = json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": true}});
    replay.stdout(&line(&json!({"jsonrpc": "2.0", "id": 1, "result": able})));
    replay.stdout(&line(&json!({"jsonrpc": "2.0", "id": 2, "result": {"sessionId": "s"}})));
    assert!(matches!(replay.actions.last(), Some(Action::Ready { .. })));
    replay.clear();
    replay
}

pub(crate) fn update(update: &Value) -> Vec<u8> {
    line(&json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": update}}))
}
