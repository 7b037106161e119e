//! What the public JSON of each event has, and under which version: `shapes.txt` beside this file.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::UNIX_EPOCH,
};

use ipc_protocol::{Envelope, Event, SessionId};
use proptest::{
    strategy::{Strategy, ValueTree},
    test_runner::TestRunner,
};
use serde_json::Value;

use crate::values;

/// Events looked at: so many that each field of each type is there.
const EVENTS: usize = 8000;
const HARNESS: &str = "harness:*:event-received";
/// What an agent says in whatever shape it likes.
const FREE: &str = "input";

fn note(path: &str, value: &Value, lines: &mut BTreeSet<String>) {
    let kind = match value {
        _ if path.ends_with(FREE) => "any",
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(items) => {
            items.iter().for_each(|item| note(&format!("{path}[]"), item, lines));
            "array"
        }
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| note(&format!("{path}.{name}"), value, lines));
            "object"
        }
    };
    lines.insert(format!("{path}: {kind}"));
}

/// Of each type with its version, what its payload has.
fn shapes() -> BTreeMap<String, BTreeSet<String>> {
    let (mut runner, mut found) = (TestRunner::deterministic(), BTreeMap::new());
    let session: Arc<SessionId> = Arc::new("s-1".parse().expect("a valid id"));
    for _ in 0..EVENTS {
        let event = values::event().new_tree(&mut runner).expect("an event").current();
        let is_harness = match event {
            // Its shape is somebody else's.
            Event::External { .. } => continue,
            // Its type says which one.
            Event::Harness { .. } => true,
            _ => false,
        };
        let envelope =
            Envelope { offset: 1, created_at: UNIX_EPOCH, session: session.clone(), turn: None, metadata: None, event };
        let json = envelope.to_json().expect("JSON");
        let kind = if is_harness { HARNESS } else { json["type"].as_str().expect("a type") };
        let kind = format!("{kind} {}", json["version"]);
        note("payload", &json["payload"], found.entry(kind).or_default());
    }
    found
}

/// As ARCHITECTURE.md says how an event's shape is changed.
#[test]
fn an_event_has_another_version_when_its_shape_has_changed() {
    let mut kept: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in include_str!("shapes.txt").lines() {
        let (kind, rest) = line.split_once(" payload").expect("a type, a version and a field");
        kept.entry(kind.to_owned()).or_default().insert(format!("payload{rest}"));
    }
    let now = shapes();
    let mut wrong = String::new();
    for (kind, kept) in &kept {
        let now = now.get(kind).cloned().unwrap_or_default();
        for line in kept.difference(&now) {
            wrong += &format!("{kind} {line}   is no more: give the event another version, and a new line\n");
        }
    }
    for (kind, now) in &now {
        for line in now.difference(kept.get(kind).unwrap_or(&BTreeSet::new())) {
            wrong += &format!("{kind} {line}   is new: add it to shapes.txt\n");
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}
