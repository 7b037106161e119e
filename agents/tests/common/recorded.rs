//! Conversations that a real agent had with its adapter, replayed: what the host did (`do`), what the agent wrote (`out`,
//! `err`), what files it had (`listed`), and what the adapter wrote then (`in`).

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use agents::{Action, Adapter, AdapterSetup, ListedFile, MakeAdapter};
use ipc_protocol::{AgentSessionConfig, Event, NativeResume, Operation, PermissionAnswer, Prompt, WireError};
use proptest::sample::Index;
use serde_json::{Value, json};

pub(crate) use crate::actions::{USER, events, kinds, writes};
use crate::{
    MAKE, TRANSCRIPTS,
    calls::in_pieces,
    rendered::rendered,
    spoilt::{Played, Spoilable},
};

/// What the host does.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Prompt(Prompt),
    Steer(Prompt),
    Abort,
    Permission(String, PermissionAnswer),
    Operate(Operation),
}

/// One line of a recording.
#[derive(Clone, Debug)]
pub(crate) enum Record {
    Do(Step),
    /// Written by the adapter.
    In(Value),
    /// Written by the agent, with its newline.
    Out(Vec<u8>),
    /// Written by the agent to its standard error, with its newline.
    Err(Vec<u8>),
    /// What [`Action::List`] found.
    Listed(Vec<ListedFile>),
}

/// A recording: how its adapter was made, and what happened.
#[derive(Clone, Debug)]
pub(crate) struct Recording {
    pub(crate) setup: AdapterSetup,
    pub(crate) records: Vec<Record>,
}

fn parse<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).expect("fits")
}

fn step(value: &Value) -> Step {
    let (name, value) = value.as_object().and_then(|step| step.iter().next()).expect("a step");
    match name.as_str() {
        "prompt" => Step::Prompt(parse(value)),
        "steer" => Step::Steer(parse(value)),
        "abort" => Step::Abort,
        "permission" => Step::Permission(parse(&value["id"]), parse(&value["answer"])),
        "operate" => Step::Operate(parse(value)),
        other => panic!("step {other}"),
    }
}

fn record(value: &Value) -> Record {
    let line = || format!("{}\n", value["line"].as_str().expect("a line")).into_bytes();
    match value["dir"].as_str() {
        Some("do") => Record::Do(step(&value["do"])),
        Some("in") => Record::In(serde_json::from_slice(&line()).expect("JSON")),
        Some("out") => Record::Out(line()),
        Some("err") => Record::Err(line()),
        Some("listed") => {
            let file = |file: &Value| ListedFile {
                path: parse(&file["path"]),
                modified_ms: parse(&file["modifiedMs"]),
                head: parse::<String>(&file["head"]).into_bytes(),
            };
            Record::Listed(value["files"].as_array().expect("files").iter().map(file).collect())
        }
        other => panic!("direction {other:?}"),
    }
}

/// Reads a recording; its first line says how the adapter is made.
pub(crate) fn recording(transcript: &str) -> Recording {
    let mut lines = transcript.lines().map(|line| serde_json::from_str::<Value>(line).expect("a record"));
    let first = lines.next().expect("a first line");
    assert_eq!(first["dir"], "setup");
    // They were made with full access.
    let agent_sandbox = Some(ipc_protocol::AgentSandbox::None);
    let config = AgentSessionConfig { model: parse(&first["model"]), agent_sandbox, ..parse(&first["config"]) };
    let resume = match &first["resume"] {
        Value::Null => None,
        resume => Some(NativeResume { id: parse(&resume["id"]), fork: parse(&resume["fork"]) }),
    };
    let setup = AdapterSetup {
        protocol_config: first["protocolConfig"].clone(),
        resume,
        directories: parse::<BTreeMap<String, String>>(&first["directories"]),
        ..setup(config)
    };
    Recording { setup, records: lines.map(|line| record(&line)).collect() }
}

/// How an adapter is made of `config` alone.
pub(crate) fn setup(config: AgentSessionConfig) -> AdapterSetup {
    AdapterSetup {
        agent: config.agent.clone(),
        config,
        protocol_config: json!({}),
        fresh_id: "0193a5a8-0000-7000-8000-000000000000".to_owned(),
        resume: None,
        endpoint: None,
        directories: BTreeMap::new(),
    }
}

/// What an adapter did.
pub(crate) struct Replay {
    pub(crate) adapter: Box<dyn Adapter>,
    pub(crate) actions: Vec<Action>,
    /// Operations that were taken.
    pub(crate) operations: u64,
    requests: u64,
    lists: usize,
    /// What the adapter takes for the time.
    now: Instant,
}

impl Replay {
    pub(crate) fn new(make: MakeAdapter, setup: AdapterSetup) -> Self {
        let mut adapter = make(setup).expect("an adapter");
        let mut actions = Vec::new();
        adapter.start(&mut actions);
        Self { adapter, actions, operations: 0, requests: 0, lists: 0, now: Instant::now() }
    }

    /// Forgets what was done so far.
    pub(crate) fn clear(&mut self) {
        self.actions.clear();
    }

    /// The agent writes `bytes`, and there is time before it writes more.
    pub(crate) fn stdout(&mut self, bytes: &[u8]) {
        self.feed(bytes);
        self.wait(Duration::from_secs(1));
    }

    /// The agent writes `bytes`, and no time passes.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        self.adapter.stdout(bytes, &mut self.actions);
    }

    /// Time passes.
    pub(crate) fn wait(&mut self, time: Duration) {
        self.now += time;
        self.adapter.tick(self.now, &mut self.actions);
    }

    /// The agent writes `message` as a line.
    pub(crate) fn says(&mut self, message: &Value) {
        self.stdout(format!("{message}\n").as_bytes());
    }

    pub(crate) fn step(&mut self, step: &Step) -> Result<(), WireError> {
        let out = &mut self.actions;
        match step {
            Step::Prompt(prompt) => self.adapter.prompt(prompt, out),
            Step::Steer(prompt) => self.adapter.steer(prompt, out),
            Step::Abort => self.adapter.abort(out),
            Step::Permission(id, answer) => self.adapter.permission(id, answer, USER, out),
            Step::Operate(operation) => {
                self.requests += 1;
                let taken = self.adapter.operate(self.requests, operation, out);
                self.operations += u64::from(taken.is_ok());
                taken
            }
        }
    }

    pub(crate) fn record(&mut self, record: &Record) -> Result<(), WireError> {
        match record {
            Record::Do(step) => self.step(step)?,
            Record::In(_) => {}
            Record::Out(line) => self.stdout(line),
            Record::Err(line) => self.adapter.stderr(line, &mut self.actions),
            Record::Listed(files) => {
                let list = |action: &Action| match action {
                    Action::List { id, .. } => Some(*id),
                    _ => None,
                };
                let id = self.actions.iter().filter_map(list).nth(self.lists);
                self.lists += 1;
                // An adapter that was fed garbage may not have asked.
                if let Some(id) = id {
                    self.adapter.listed(id, files.clone(), &mut self.actions);
                }
            }
        }
        Ok(())
    }

    pub(crate) fn finish(&mut self) -> Vec<Action> {
        self.adapter.finish(&mut self.actions);
        std::mem::take(&mut self.actions)
    }
}

/// Replays a recording as it was: each step was taken then.
pub(crate) fn replayed(make: MakeAdapter, transcript: &str) -> Vec<Action> {
    let recording = recording(transcript);
    let mut replay = Replay::new(make, recording.setup);
    for record in &recording.records {
        replay.record(record).unwrap_or_else(|error| panic!("{record:?}: {error}"));
    }
    replay.finish()
}

impl Spoilable for Recording {
    type Record = Record;
    const COUNT: usize = TRANSCRIPTS.len();

    fn nth(index: usize) -> Self {
        recording(TRANSCRIPTS[index].1)
    }

    fn records(&mut self) -> &mut Vec<Record> {
        &mut self.records
    }

    fn output(record: &mut Record) -> Option<&mut Vec<u8>> {
        if let Record::Out(line) = record { Some(line) } else { None }
    }

    fn written(bytes: Vec<u8>) -> Record {
        Record::Out(bytes)
    }

    fn play(&self, splits: &[Index]) -> Played {
        let mut replay = Replay::new(MAKE, self.setup.clone());
        let mut bytes = Vec::new();
        let mut splits = splits.iter().cycle();
        let mut flush = |bytes: &mut Vec<u8>, replay: &mut Replay| {
            in_pieces(bytes, &mut splits, |piece| replay.feed(piece));
            bytes.clear();
        };
        for record in &self.records {
            match record {
                Record::Out(line) => bytes.extend_from_slice(line),
                Record::In(_) => {}
                other => {
                    flush(&mut bytes, &mut replay);
                    // Refused where garbage came before.
                    let _ = replay.record(other);
                }
            }
        }
        flush(&mut bytes, &mut replay);
        (replay.finish(), replay.operations)
    }

    fn check((actions, operations): &Played) {
        crate::calls::check(actions);
        let replies = actions.iter().filter(|action| matches!(action, Action::Reply { .. })).count();
        assert_eq!(replies as u64, *operations, "each operation is answered");
    }
}

/// Bytes of the events as JSON.
pub(crate) fn event_bytes(actions: &[Action]) -> usize {
    events(actions).iter().map(|event| serde_json::to_string(event).expect("JSON").len()).sum()
}

/// What was answered to operations.
pub(crate) fn replies(actions: &[Action]) -> Vec<Result<Value, WireError>> {
    let reply = |action: &Action| match action {
        Action::Reply { reply, .. } => Some(reply.clone().map(|json| json.value())),
        _ => None,
    };
    actions.iter().filter_map(reply).collect()
}

/// One line an action. Pieces of text that follow each other are one.
pub(crate) fn render(actions: &[Action]) -> String {
    let write = |action: &Action| match action {
        Action::Write(line) => {
            let text = String::from_utf8_lossy(line);
            let version = concat!("\"version\":\"", env!("CARGO_PKG_VERSION"), "\"");
            Some(format!("> {}", text.trim_end().replace(version, "\"version\":\"…\"")))
        }
        _ => None,
    };
    rendered(&joined(actions), 400, write)
}

fn joined(actions: &[Action]) -> Vec<Action> {
    let mut out: Vec<Action> = Vec::new();
    for action in actions {
        match (out.last_mut(), action) {
            (Some(Action::Event(Event::Text { text })), Action::Event(Event::Text { text: more }))
            | (Some(Action::Event(Event::Thinking { text })), Action::Event(Event::Thinking { text: more })) => {
                text.push_str(more);
            }
            _ => out.push(action.clone()),
        }
    }
    out
}

/// What the adapter writes is what it wrote to the real agent.
pub(crate) fn assert_writes(make: MakeAdapter, transcript: &str) {
    let recorded = recording(transcript).records.into_iter().filter_map(|record| match record {
        Record::In(message) => Some(message),
        _ => None,
    });
    let versionless = |mut message: Value| {
        if let Some(client) = message.pointer_mut("/params/clientInfo") {
            client["version"] = Value::Null;
        }
        message
    };
    let written = writes(&replayed(make, transcript)).into_iter().map(versionless);
    assert_eq!(written.collect::<Vec<_>>(), recorded.map(versionless).collect::<Vec<_>>());
}
