//! Parts of what an adapter did.

use agents::Action;
use ipc_protocol::{Event, ResolvedBy};
use serde_json::Value;

/// An answer of a user without a name.
pub(crate) const USER: ResolvedBy = ResolvedBy::User { name: None };

/// What is written to the agent, parsed.
pub(crate) fn writes(actions: &[Action]) -> Vec<Value> {
    let write = |action: &Action| match action {
        Action::Write(line) => {
            assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1, "one line a message");
            Some(serde_json::from_slice(line).expect("JSON"))
        }
        _ => None,
    };
    actions.iter().filter_map(write).collect()
}

/// What is told to the host.
pub(crate) fn events(actions: &[Action]) -> Vec<Event> {
    let event = |action: &Action| match action {
        Action::Event(event) => Some(event.clone()),
        _ => None,
    };
    actions.iter().filter_map(event).collect()
}

/// The types of the events.
pub(crate) fn kinds(actions: &[Action]) -> Vec<String> {
    let kind = |event: &Event| {
        let value = serde_json::to_value(event).expect("JSON");
        value.as_object().and_then(|map| map.keys().next().cloned()).expect("a type")
    };
    events(actions).iter().map(kind).collect()
}
